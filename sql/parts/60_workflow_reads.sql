-- Functions that only read. Each is one statement, so it sees one moment, and asks sayiir.scope_sees whose rows the caller may see.
-- Where a workflow_id names several workflows (sayiir.scope = all, one in each organization), workflow_get shows all of them and
-- the other functions take the global one, else the first by organization_id.
--
-- The workflow is looked up first, and everything else compared with it as one value (workflow = (SELECT …)): joined instead,
-- the planner may begin with all workflows.

CREATE FUNCTION sayiir.workflow_get(workflow_id text, organization_id text = NULL) RETURNS SETOF sayiir.workflow_info
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, sayiir, pg_temp AS $$
    -- workflow_workflow_id_organization_id_key; definition_pkey, definition_step_pkey, definition_edge_pkey
    SELECT
        w.workflow_id,
        w.name,
        w.version,
        w.status,
        w.organization_id,
        w.input,
        w.metadata,
        w.result,
        CASE
            WHEN d.body ? 'result' THEN d.body ->> 'result'
            -- Without a declaration: the only step that none waits for.
            ELSE (
                SELECT min(s.step) FROM sayiir.definition_step s
                WHERE s.definition_hash = w.definition_hash
                    AND NOT EXISTS (
                        SELECT FROM sayiir.definition_edge x
                        WHERE x.definition_hash = s.definition_hash AND x.prerequisite = s.step)
                HAVING count(*) = 1)
        END,
        w.error_code,
        w.error_message,
        w.reason,
        w.requested_by,
        w.idempotency_key,
        w.active_key,
        w.trace_parent,
        w.definition_hash,
        w.created_at,
        w.deadline_at,
        w.finished_at
    FROM sayiir.workflow_now w
    LEFT JOIN sayiir.definition d ON d.definition_hash = w.definition_hash
    WHERE w.workflow_id = workflow_get.workflow_id AND sayiir.scope_sees(w.organization_id, workflow_get.organization_id)
    ORDER BY w.organization_id NULLS FIRST
$$;
COMMENT ON FUNCTION sayiir.workflow_get IS 'The workflow; no row if there is none. result_step: the step whose output is the result, NULL if it is made of several or none is declared.';

CREATE FUNCTION sayiir.workflow_status(workflow_id text, organization_id text = NULL) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, sayiir, pg_temp AS $$
    -- workflow_workflow_id_organization_id_key
    SELECT w.status
    FROM sayiir.workflow_now w
    WHERE w.workflow_id = workflow_status.workflow_id
        AND sayiir.scope_sees(w.organization_id, workflow_status.organization_id)
    ORDER BY w.organization_id NULLS FIRST
    LIMIT 1
$$;
COMMENT ON FUNCTION sayiir.workflow_status IS 'running, waiting (nothing of it is ready or leased), paused, succeeded, failed, cancelled; NULL if there is no such workflow.';

CREATE FUNCTION sayiir.workflow_steps(workflow_id text, organization_id text = NULL) RETURNS SETOF sayiir.step_info
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, sayiir, pg_temp AS $$
    WITH owner AS MATERIALIZED (
        -- workflow_workflow_id_organization_id_key
        SELECT w.id
        FROM sayiir.workflow w
        WHERE w.workflow_id = workflow_steps.workflow_id
            AND sayiir.scope_sees(w.organization_id, workflow_steps.organization_id)
        ORDER BY w.organization_id NULLS FIRST
        LIMIT 1)
    SELECT
        s.step,
        s.kind,
        s.task,
        s.status,
        s.attempt,
        CASE WHEN s.job_id IS NULL THEN d.pending ELSE 0 END,
        d.unsatisfied,
        s.input,
        s.output,
        s.error_code,
        s.error_message,
        s.reason,
        d.dependencies,
        s.released_at,
        s.started_at,
        s.finished_at,
        s.job_id
    FROM sayiir.step_now s
    -- Counted from the prerequisites' ends, not read from step_pending, which leaves with the workflow's end.
    CROSS JOIN LATERAL (
        -- definition_edge_pkey, job_step, job_end_pkey. Fenced off, as in step_now. An open prerequisite has no state, and so
        -- leaves nothing unsatisfied.
        SELECT
            count(*) FILTER (WHERE e.state IS NULL)::int AS pending,
            count(*) FILTER (WHERE NOT CASE x.satisfied_by
                WHEN 'success' THEN e.state = 'succeeded'
                WHEN 'failure' THEN e.state IN ('failed', 'cancelled')
                ELSE true
            END)::int AS unsatisfied,
            coalesce(
                jsonb_agg(jsonb_build_object('step', x.prerequisite, 'on', x.satisfied_by) ORDER BY x.prerequisite),
                '[]') AS dependencies
        FROM sayiir.definition_edge x
        LEFT JOIN LATERAL (
            SELECT q.state FROM sayiir.job p JOIN sayiir.job_end q ON q.job_id = p.job_id
            WHERE p.workflow = s.workflow AND p.step = x.prerequisite AND p.item_index IS NULL OFFSET 0) e ON true
        WHERE x.definition_hash = s.definition_hash AND x.step = s.step) d
    WHERE s.workflow = (SELECT o.id FROM owner o)
    ORDER BY s.position, s.item_index
$$;
COMMENT ON FUNCTION sayiir.workflow_steps IS 'The steps of a workflow, prerequisites first. pending: prerequisites that have not ended, 0 once the step is released; unsatisfied: those that ended otherwise than the step needs. released_at NULL = never released.';

CREATE FUNCTION sayiir.workflow_history(
    workflow_id text, after_version bigint = 0, max_rows int = 1000, organization_id text = NULL
) RETURNS SETOF sayiir.history_entry
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, sayiir, pg_temp AS $$
    WITH owner AS MATERIALIZED (
        -- workflow_workflow_id_organization_id_key
        SELECT w.*
        FROM sayiir.workflow w
        WHERE w.workflow_id = workflow_history.workflow_id
            AND sayiir.scope_sees(w.organization_id, workflow_history.organization_id)
        ORDER BY w.organization_id NULLS FIRST
        LIMIT 1),
    -- Each of the four keeps its first max_rows before any detail is built. workflow_log_workflow is read from
    -- after_version on; the other three read the workflow's jobs (job_step), look up what belongs to each (job_attempt_pkey,
    -- job_end_pkey; fenced off, because the planner may else read those tables whole) and sort their first rows.
    log AS (
        SELECT g.history_seq, g.at, g.kind, g.step, g.detail
        FROM sayiir.workflow_log g
        WHERE g.workflow = (SELECT o.id FROM owner o) AND g.history_seq > coalesce(after_version, 0)
        ORDER BY g.history_seq
        LIMIT max_rows),
    released AS (
        SELECT j.history_seq, j.released_at, j.step, j.job_id, j.item_index, j.task
        FROM sayiir.job_now j
        WHERE j.workflow = (SELECT o.id FROM owner o) AND j.history_seq > coalesce(after_version, 0) AND j.released_at IS NOT NULL
        ORDER BY j.history_seq
        LIMIT max_rows),
    failed AS (
        SELECT a.*, j.step, j.item_index
        FROM sayiir.job j
        CROSS JOIN LATERAL (
            SELECT * FROM sayiir.job_attempt a
            WHERE a.job_id = j.job_id AND a.history_seq > coalesce(after_version, 0) OFFSET 0) a
        WHERE j.workflow = (SELECT o.id FROM owner o)
        ORDER BY a.history_seq
        LIMIT max_rows),
    ended AS (
        SELECT e.history_seq, e.ended_at, e.state, j.step, e.job_id, j.item_index, e.run_number, e.attempt, e.epoch, e.worker,
            e.error_code, e.error_message, e.reason
        FROM sayiir.job j
        CROSS JOIN LATERAL (
            SELECT * FROM sayiir.job_end e
            WHERE e.job_id = j.job_id AND e.history_seq > coalesce(after_version, 0) OFFSET 0) e
        WHERE j.workflow = (SELECT o.id FROM owner o)
        ORDER BY e.history_seq
        LIMIT max_rows)
    SELECT
        o.history_seq AS version,
        o.created_at,
        'started',
        NULL,
        jsonb_strip_nulls(jsonb_build_object(
            'name', o.name, 'version', o.version, 'idempotency_key', o.idempotency_key, 'active_key', o.active_key,
            'deadline_at', o.deadline_at))
    FROM owner o
    WHERE o.history_seq > coalesce(after_version, 0)
    UNION ALL
    SELECT g.history_seq, g.at, g.kind, g.step, g.detail
    FROM log g
    UNION ALL
    SELECT
        r.history_seq,
        r.released_at,
        'step_released',
        r.step,
        jsonb_strip_nulls(jsonb_build_object('job_id', r.job_id, 'item_index', r.item_index, 'task', r.task))
    FROM released r
    UNION ALL
    SELECT
        a.history_seq,
        -- A requeue is recorded with the end of the run that it follows; retry_at is when it was requeued.
        CASE WHEN a.kind = 'requeued' THEN coalesce(a.retry_at, a.ended_at) ELSE a.ended_at END,
        CASE WHEN a.kind IN ('requeued', 'continued') THEN 'step_' || a.kind ELSE 'attempt_failed' END,
        a.step,
        jsonb_strip_nulls(jsonb_build_object(
            'job_id', a.job_id, 'item_index', a.item_index, 'kind', a.kind, 'run_number', a.run_number,
            'attempt', a.attempt, 'epoch', a.epoch, 'worker', a.worker,
            'error', CASE WHEN a.error_code IS NOT NULL THEN
                jsonb_build_object('code', a.error_code, 'message', a.error_message) END,
            'retry_at', a.retry_at, 'disposition', a.disposition, 'reason', a.reason))
    FROM failed a
    UNION ALL
    SELECT
        e.history_seq,
        e.ended_at,
        'step_' || e.state::text,
        e.step,
        jsonb_strip_nulls(jsonb_build_object(
            'job_id', e.job_id, 'item_index', e.item_index, 'run_number', e.run_number, 'attempt', e.attempt,
            'epoch', e.epoch, 'worker', e.worker,
            'error', CASE WHEN e.error_code IS NOT NULL THEN
                jsonb_build_object('code', e.error_code, 'message', e.error_message) END,
            'reason', e.reason))
    FROM ended e
    ORDER BY version
    LIMIT max_rows
$$;
COMMENT ON FUNCTION sayiir.workflow_history IS 'Every transition of a workflow in order of version; pass the last version on as after_version for the next page. kind: started, step_released, attempt_failed, step_requeued, step_continued, step_succeeded, step_failed, step_cancelled, step_skipped, and what workflow_log holds. Claims and heartbeats leave no version.';

CREATE FUNCTION sayiir.workflow_explain(workflow_id text, organization_id text = NULL) RETURNS SETOF sayiir.explanation
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, sayiir, pg_temp AS $$
    WITH owner AS MATERIALIZED (
        -- workflow_workflow_id_organization_id_key
        SELECT w.*
        FROM sayiir.workflow_now w
        WHERE w.workflow_id = workflow_explain.workflow_id
            AND sayiir.scope_sees(w.organization_id, workflow_explain.organization_id)
        ORDER BY w.organization_id NULLS FIRST
        LIMIT 1),
    -- What is open while the workflow is; what failed, or is still with a worker, once it has ended.
    open_step AS MATERIALIZED (
        SELECT s.*, CASE WHEN s.error_code IS NOT NULL THEN concat_ws(': ', s.error_code, s.error_message) END AS error
        FROM sayiir.step_now s
        WHERE s.workflow = (SELECT o.id FROM owner o) AND CASE
            WHEN (SELECT o.finished_at FROM owner o) IS NULL THEN s.status NOT IN ('succeeded', 'failed', 'cancelled', 'skipped')
            ELSE s.status IN ('failed', 'leased')
        END),
    -- job_lease holds what workers do now and is small; it is read once, whatever the number of ready steps.
    worked_on AS MATERIALIZED (
        SELECT DISTINCT n.task FROM sayiir.job_lease l JOIN sayiir.lane n ON n.lane = l.lane),
    line AS (
        SELECT
            -1 AS position,
            NULL::int AS item_index,
            NULL::text AS step,
            o.status,
            CASE
                WHEN o.finished_at IS NOT NULL THEN concat_ws(': ',
                    format('it ended at %s', o.finished_at::timestamptz(0)), o.error_code, o.error_message,
                    nullif(concat_ws(', by ', o.reason, o.requested_by), ''))
                WHEN o.status = 'paused' THEN concat_ws(': ',
                    'it is paused; workflow_resume continues it', nullif(concat_ws(', by ', o.reason, o.requested_by), ''))
                WHEN NOT EXISTS (SELECT FROM open_step) THEN 'no step is open, but it has not ended: see doctor()'
                WHEN o.status = 'waiting' THEN 'nothing of it can run now'
                ELSE 'some of its steps are with a worker or can be claimed'
            END
            || CASE WHEN o.finished_at IS NULL AND o.deadline_at IS NOT NULL THEN '; it fails at its deadline' ELSE '' END
            AS why,
            CASE WHEN o.finished_at IS NULL THEN o.deadline_at END AS until
        FROM owner o
        UNION ALL
        SELECT
            s.position,
            s.item_index,
            s.step,
            s.status,
            CASE
                WHEN s.status = 'blocked' AND b.needs IS NULL THEN
                    'what it needs has ended, but it was not released: see doctor()'
                WHEN s.status = 'blocked' THEN
                    CASE s.join_rule WHEN 'all' THEN 'needs ' WHEN 'some' THEN 'needs the end of ' ELSE 'needs the first of ' END
                    || b.needs
                WHEN s.status = 'ready' THEN concat_ws('; ',
                    format('no worker has claimed it since %s', q.since::timestamptz(0)),
                    CASE q.ahead WHEN 0 THEN NULL WHEN 1000 THEN '1000 or more jobs of its lane stand before it'
                        ELSE format('%s jobs of its lane stand before it', q.ahead) END,
                    CASE WHEN NOT q.worked_on THEN format('no worker has any job of task "%s"', s.task) END,
                    CASE WHEN s.tags <> '{}' THEN 'it needs a worker with the tags ' || array_to_string(s.tags, ', ') END,
                    'last error: ' || s.error)
                WHEN s.status = 'leased' THEN concat_ws('; ',
                    format(CASE WHEN s.expires_at > clock_timestamp()
                            THEN 'worker "%s" is on attempt %s of %s'
                            ELSE 'the lease of worker "%s" on attempt %s of %s has run out: the next claim or tick() ends it' END,
                        s.worker, s.attempt, s.max_attempts),
                    format('stage %s', s.stage),
                    CASE WHEN s.progress_done IS NOT NULL THEN
                        concat_ws(' of ', s.progress_done, s.progress_total) || ' done' END,
                    CASE WHEN o.status = 'paused' THEN 'it was told to pause'
                        WHEN o.finished_at IS NOT NULL THEN 'it was told to cancel' END)
                WHEN s.status = 'paused' AND s.ready_seq IS NOT NULL THEN
                    format('task "%s" is paused or disabled; task_resume or task_define(…, enabled => true) continues it', s.task)
                WHEN s.status = 'paused' THEN 'the workflow is not running; workflow_resume continues it'
                WHEN s.status = 'held' THEN concat_ws(': ',
                    'out of attempts; job_requeue continues it, workflow_complete_step ends it', s.error)
                WHEN s.status = 'failed' THEN concat_ws(': ',
                    CASE WHEN s.optional THEN 'failed, but it is optional' ELSE 'failed' END, s.error, s.reason)
                ELSE concat_ws('; ',
                    CASE s.waits_for
                        WHEN 'event' THEN format('waits for event "%s"%s', s.event,
                            CASE WHEN s.due IS NULL THEN ', without a timeout' ELSE '' END)
                        WHEN 'retry' THEN concat_ws(': ',
                            format('waits for attempt %s of %s', s.attempt + 1, s.max_attempts), s.error)
                        WHEN 'run_at' THEN 'is to run later'
                        WHEN 'delay' THEN 'waits for a time'
                        WHEN 'child' THEN 'waits for another job or workflow'
                        WHEN 'permit' THEN 'waits for a permit: as many jobs are leased as its limit allows'
                    END,
                    CASE WHEN s.due < clock_timestamp() THEN 'its time has come: the next claim or tick() sees to it' END)
            END,
            coalesce(s.expires_at, s.due)
        FROM owner o
        CROSS JOIN open_step s
        LEFT JOIN LATERAL (
            -- definition_edge_pkey, job_step, job_end_pkey. Fenced off, as in step_now.
            SELECT string_agg(x.prerequisite || CASE x.satisfied_by
                WHEN 'success' THEN '' WHEN 'failure' THEN ' (to fail)' ELSE ' (to end)' END, ', ' ORDER BY x.prerequisite) AS needs
            FROM sayiir.definition_edge x
            LEFT JOIN LATERAL (
                SELECT q.state FROM sayiir.job p JOIN sayiir.job_end q ON q.job_id = p.job_id
                WHERE p.workflow = s.workflow AND p.step = x.prerequisite AND p.item_index IS NULL OFFSET 0) e ON true
            WHERE x.definition_hash = s.definition_hash AND x.step = s.step AND e.state IS NULL) b ON s.status = 'blocked'
        LEFT JOIN LATERAL (
            SELECT
                -- job_ready has no time of entry: a retry became ready at retry_at, a first run when it was released.
                greatest(s.created_at, (
                    SELECT coalesce(a.retry_at, a.ended_at) FROM sayiir.job_attempt a
                    WHERE a.job_id = s.job_id ORDER BY a.history_seq DESC LIMIT 1)) AS since,
                -- job_ready_lane
                (SELECT count(*) FROM (
                    SELECT FROM sayiir.job_ready f WHERE f.lane = s.lane AND f.seq < s.ready_seq LIMIT 1000) f) AS ahead,
                s.task IN (SELECT k.task FROM worked_on k) AS worked_on) q ON s.status = 'ready')
    SELECT step, status, why, until
    FROM line
    ORDER BY position, item_index
$$;
COMMENT ON FUNCTION sayiir.workflow_explain IS 'Why a workflow is not moving: a row for itself (step NULL), then one for each open step, or for each failed step once it has ended. until: when that changes by itself (lease end, retry, timeout, deadline).';
