-- Functions that only read a job.

CREATE FUNCTION sayiir.job_get(job_id uuid, organization_id text = NULL) RETURNS SETOF sayiir.job_info
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, sayiir, pg_temp
-- While a table is thought to be empty, a bitmap of it looks as cheap as its index.
SET enable_bitmapscan = off AS $$
    -- job_pkey, then the primary keys of job_ready, job_lease, job_wait, job_end, lane and workflow
    SELECT
        j.job_id,
        j.task,
        j.status,
        j.priority,
        j.attempt,
        j.max_attempts,
        j.run_number,
        j.workflow_id,
        j.step,
        j.input,
        j.output,
        j.error_code,
        j.error_message,
        j.reason,
        j.worker,
        j.epoch,
        j.expires_at,
        CASE WHEN j.waits_for IN ('run_at', 'retry', 'delay') THEN j.due END,
        j.progress_done,
        j.progress_total,
        j.stage,
        j.tags,
        j.idempotency_key,
        j.organization_id,
        j.created_at,
        j.started_at,
        j.finished_at
    FROM sayiir.job_now j
    WHERE j.job_id = job_get.job_id AND sayiir.scope_sees(j.organization_id, job_get.organization_id)
$$;
COMMENT ON FUNCTION sayiir.job_get IS 'The job; no row if there is none. Until it has ended, its error is that of the last failed attempt of this run. run_at: when it becomes claimable.';

CREATE FUNCTION sayiir.job_history(job_id uuid, organization_id text = NULL) RETURNS SETOF sayiir.history_entry
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, sayiir, pg_temp AS $$
    WITH record AS MATERIALIZED (
        -- job_pkey
        SELECT j.*, CASE WHEN j.workflow IS NULL THEN 'job_' ELSE 'step_' END AS noun
        FROM sayiir.job_now j
        WHERE j.job_id = job_history.job_id AND sayiir.scope_sees(j.organization_id, job_history.organization_id))
    SELECT
        j.history_seq AS version,
        j.released_at,
        CASE WHEN j.workflow IS NULL THEN 'job_enqueued' ELSE 'step_released' END,
        j.step,
        jsonb_strip_nulls(jsonb_build_object(
            'item_index', j.item_index, 'task', j.task, 'idempotency_key', j.idempotency_key, 'parent', o.parent,
            'replay_of', o.request -> 'replay_of', 'reason', CASE WHEN o.request ? 'replay_of' THEN o.request -> 'reason' END))
    FROM record j
    JOIN sayiir.job o ON o.job_id = j.job_id
    WHERE j.released_at IS NOT NULL
    UNION ALL
    -- job_attempt_pkey, leading column
    SELECT
        a.history_seq,
        CASE WHEN a.kind = 'requeued' THEN coalesce(a.retry_at, a.ended_at) ELSE a.ended_at END,
        CASE WHEN a.kind IN ('requeued', 'continued') THEN j.noun || a.kind ELSE 'attempt_failed' END,
        j.step,
        jsonb_strip_nulls(jsonb_build_object(
            'kind', a.kind, 'run_number', a.run_number, 'attempt', a.attempt, 'epoch', a.epoch, 'worker', a.worker,
            'error', CASE WHEN a.error_code IS NOT NULL THEN
                jsonb_build_object('code', a.error_code, 'message', a.error_message) END,
            'started_at', a.started_at, 'retry_at', a.retry_at, 'disposition', a.disposition, 'reason', a.reason))
    FROM record j
    JOIN sayiir.job_attempt a ON a.job_id = j.job_id
    UNION ALL
    -- job_end_pkey
    SELECT
        e.history_seq,
        e.ended_at,
        j.noun || e.state::text,
        j.step,
        jsonb_strip_nulls(jsonb_build_object(
            'run_number', e.run_number, 'attempt', e.attempt, 'epoch', e.epoch, 'worker', e.worker,
            'error', CASE WHEN e.error_code IS NOT NULL THEN
                jsonb_build_object('code', e.error_code, 'message', e.error_message) END,
            'reason', e.reason, 'started_at', e.started_at))
    FROM record j
    JOIN sayiir.job_end e ON e.job_id = j.job_id
    ORDER BY version
$$;
COMMENT ON FUNCTION sayiir.job_history IS 'Every transition of a job in order of version. kind: job_enqueued or step_released, attempt_failed, and job_ or step_ with requeued, continued, succeeded, failed, cancelled, skipped.';
