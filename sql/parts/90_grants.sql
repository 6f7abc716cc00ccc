-- Who may call what. PUBLIC may do nothing, and nobody but the owner touches a table: functions and views run with the
-- owner's rights and show what the caller's scope allows. This part is the last one, so that it sees everything.

REVOKE ALL ON ALL TABLES IN SCHEMA sayiir FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA sayiir FROM PUBLIC;
REVOKE ALL ON ALL ROUTINES IN SCHEMA sayiir FROM PUBLIC;

DO $grants$
DECLARE
    -- Everybody who works with the extension
    reads CONSTANT text[] := ARRAY[
        'version', 'error_codes', 'scope_sees', 'interval_us', 'definition_schema', 'workflow_validate',
        'workflow_get', 'workflow_status', 'workflow_steps', 'workflow_explain', 'workflow_history', 'workflow_result',
        'workflow_wait', 'job_get', 'job_history', 'job_result', 'schedule_next',
        'effect_get', 'effect_get_by_key', 'effect_list', 'effect_events', 'effect_observations', 'effect_idempotency_key',
        'effect_fingerprint', 'effect_transitions'];
    -- Those who start work and steer it
    clients CONSTANT text[] := ARRAY[
        'workflow_define', 'workflow_start', 'workflow_start_graph', 'workflow_send_event', 'workflow_cancel',
        'workflow_pause', 'workflow_resume', 'workflow_complete_step', 'workflow_lock', 'job_enqueue', 'job_enqueue_many', 'job_cancel',
        'trigger_start', 'trigger_send_event', 'job_send_event'];
    -- Those who do it
    workers CONSTANT text[] := ARRAY[
        'job_claim', 'job_heartbeat', 'job_heartbeat_many', 'job_complete', 'job_complete_many', 'job_fail', 'job_fail_many',
        'job_release', 'job_run', 'job_run_call', 'job_reap', 'tick', 'next_due',
        'job_checkpoint', 'job_log', 'job_sleep', 'job_await_event', 'job_spawn', 'job_await_job', 'job_continue',
        'effect_begin', 'effect_finish', 'effect_fail', 'effect_assert_lease', 'effect_claim_due', 'effect_insert_or_get',
        'effect_acquire_lease', 'effect_renew_lease', 'effect_release_lease', 'effect_transition', 'effect_append_observation'];
    -- Those who operate it; sayiir_admin may do all of the above as well
    admins CONSTANT text[] := ARRAY[
        'task_define', 'task_pause', 'task_resume', 'job_requeue', 'dead_letters_requeue', 'workflow_delete',
        'task_sync', 'job_replay', 'job_delete', 'job_amend', 'definition_activate', 'doctor', 'stats', 'cache_reset',
        'schedule_define', 'schedule_delete', 'schedule_pause', 'schedule_resume', 'schedule_run', 'prune', 'adopt',
        'effect_resolve', 'effect_approve', 'effect_deny', 'effect_supersede', 'effect_prune', 'effect_check'];
    -- Called by the extension only
    internals CONSTANT text[] := ARRAY['role_scope_changed'];
    views CONSTANT text[] := ARRAY[
        'workflows', 'steps', 'jobs', 'job_attempts', 'dead_letters', 'waits', 'events', 'definitions', 'tasks', 'queue_stats',
        'schedules', 'effects_pending', 'job_logs'];
    internal_views CONSTANT text[] := ARRAY['engine_state', 'lane_now', 'workflow_now', 'job_now', 'step_now'];
    one record;
    wrong text;
BEGIN
    -- A function or view that nobody decided about must not reach users by accident, nor be missing for them by accident.
    SELECT pg_catalog.string_agg(u.name, ', ' ORDER BY u.name) INTO wrong
    FROM (
        SELECT p.proname::text
        FROM pg_catalog.pg_proc p
        WHERE p.pronamespace = 'sayiir'::pg_catalog.regnamespace
            AND p.proname <> ALL (reads || clients || workers || admins || internals)
        UNION ALL
        SELECT c.relname::text
        FROM pg_catalog.pg_class c
        WHERE c.relnamespace = 'sayiir'::pg_catalog.regnamespace AND c.relkind IN ('v', 'm')
            AND c.relname <> ALL (views || internal_views)) u (name);
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'nobody decided who may use %', wrong
            USING HINT = 'Add each to one of the lists in sql/parts/90_grants.sql.';
    END IF;

    -- Rules of the surface that a grant relies on: one function a name, and no SECURITY DEFINER without its own search_path.
    SELECT pg_catalog.string_agg(DISTINCT p.proname, ', ' ORDER BY p.proname) INTO wrong
    FROM pg_catalog.pg_proc p
    WHERE p.pronamespace = 'sayiir'::pg_catalog.regnamespace
        AND (
            p.prosecdef AND NOT 'search_path=pg_catalog, sayiir, pg_temp' = ANY (coalesce(p.proconfig, '{}'))
            OR EXISTS (
                SELECT FROM pg_catalog.pg_proc o
                WHERE o.pronamespace = p.pronamespace AND o.proname = p.proname AND o.oid <> p.oid));
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'these share a name, or are SECURITY DEFINER without the pinned search_path: %', wrong;
    END IF;

    FOR one IN
        SELECT
            p.oid::pg_catalog.regprocedure AS routine,
            CASE
                WHEN p.proname = ANY (reads) THEN 'sayiir_client, sayiir_worker, sayiir_admin'
                WHEN p.proname = ANY (clients) THEN 'sayiir_client, sayiir_admin'
                WHEN p.proname = ANY (workers) THEN 'sayiir_worker, sayiir_admin'
                ELSE 'sayiir_admin'
            END AS roles
        FROM pg_catalog.pg_proc p
        WHERE p.pronamespace = 'sayiir'::pg_catalog.regnamespace AND p.proname <> ALL (internals)
    LOOP
        EXECUTE pg_catalog.format('GRANT EXECUTE ON ROUTINE %s TO %s', one.routine, one.roles);
    END LOOP;

    FOR one IN SELECT name FROM pg_catalog.unnest(views) AS v (name) LOOP
        EXECUTE pg_catalog.format('GRANT SELECT ON sayiir.%I TO sayiir_client, sayiir_worker, sayiir_admin', one.name);
    END LOOP;
END
$grants$;
