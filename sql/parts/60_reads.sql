-- Functions that only read. Each is one statement, so it sees one moment, and asks sayiir.scope_sees whose rows the caller
-- may see. Where a workflow_id names several workflows (sayiir.scope = all, one in each organization), workflow_get shows
-- all of them and the other functions take the global one, else the first by organization_id.
--
-- The workflow is looked up first, and everything else compared with it as one value (workflow = (SELECT …)): joined instead,
-- the planner may begin with all workflows.
--
-- workflow_now, job_now and step_now say in one place what is derived when read. They have no scope and no grants: the
-- functions here and the views in 70_views.sql add the scope.

CREATE TYPE sayiir.explanation AS (step text, status text, why text, until timestamptz);
COMMENT ON TYPE sayiir.explanation IS 'One reason why a workflow is not moving, or how it ended. step NULL = the workflow itself.';

CREATE TYPE sayiir.statistic AS (name text, value numeric);
COMMENT ON TYPE sayiir.statistic IS 'One number of stats(). The unit is in the name: _seconds, _bytes; a count otherwise.';

CREATE TYPE sayiir.finding AS (severity text, code text, message text, hint text);
COMMENT ON TYPE sayiir.finding IS 'One finding of doctor(). severity: error (an invariant is broken), warning (something is going wrong), info.';
COMMENT ON COLUMN sayiir.explanation.until IS 'When it changes by itself: end of the lease, retry, timeout, deadline; NULL = it does not.';

-- What is derived

CREATE VIEW sayiir.workflow_now AS
SELECT
    w.id,
    w.workflow_id,
    w.organization_id,
    w.name,
    w.version,
    -- waiting: nothing of it is ready or leased (job_ready_workflow, job_lease_workflow).
    CASE
        WHEN w.status = 'running'
            AND NOT EXISTS (SELECT FROM sayiir.job_ready r WHERE r.workflow = w.id)
            AND NOT EXISTS (SELECT FROM sayiir.job_lease l WHERE l.workflow = w.id)
        THEN 'waiting'
        ELSE w.status::text
    END AS status,
    w.input,
    w.metadata,
    w.result,
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
    w.finished_at,
    w.history_seq
FROM sayiir.workflow w;
COMMENT ON VIEW sayiir.workflow_now IS 'Internal: workflows with the status that is derived when read.';

CREATE VIEW sayiir.job_now AS
SELECT
    j.job_id,
    j.organization_id,
    j.workflow,
    w.workflow_id,
    j.step,
    j.item_index,
    j.task,
    -- A job is in exactly one place. NULL = in none, which doctor() reports.
    CASE
        WHEN e.job_id IS NOT NULL THEN e.state::text
        WHEN l.job_id IS NOT NULL THEN 'leased'
        WHEN r.job_id IS NOT NULL THEN CASE WHEN n.paused THEN 'paused' ELSE 'ready' END
        WHEN t.reason IN ('run_at', 'retry') THEN 'scheduled'
        WHEN t.reason IN ('delay', 'event', 'child', 'permit') THEN 'waiting'
        WHEN t.reason IN ('paused', 'owner') THEN 'paused'
        WHEN t.reason = 'held' THEN 'held'
    END AS status,
    n.lane,
    n.priority,
    n.tags,
    r.seq AS ready_seq,
    t.reason::text AS waits_for,
    t.event,
    t.due,
    t.since,
    l.worker AS lease_worker,
    l.expires_at,
    l.deadline_at AS attempt_deadline_at,
    l.progress_done,
    l.progress_total,
    l.stage,
    coalesce(e.run_number, l.run_number, r.run_number, t.run_number) AS run_number,
    coalesce(e.attempt, l.attempt, r.attempt, t.attempt) AS attempt,
    coalesce(e.epoch, l.epoch, r.epoch, t.epoch) AS epoch,
    coalesce(e.worker, l.worker) AS worker,
    j.max_attempts,
    -- A task without a payload of its own works on the workflow's input. Event and delay steps have no input, nor has what
    -- was never released.
    CASE WHEN j.task IS NULL OR u.unreleased THEN j.payload ELSE coalesce(j.payload, w.input) END AS input,
    e.output,
    -- Until the job ends, its error is that of the last attempt of this run (job_attempt_pkey, leading column).
    CASE WHEN e.job_id IS NOT NULL THEN e.error_code ELSE (
        SELECT a.error_code FROM sayiir.job_attempt a
        WHERE a.job_id = j.job_id AND a.run_number = coalesce(l.run_number, r.run_number, t.run_number)
        ORDER BY a.history_seq DESC LIMIT 1) END AS error_code,
    CASE WHEN e.job_id IS NOT NULL THEN e.error_message ELSE (
        SELECT a.error_message FROM sayiir.job_attempt a
        WHERE a.job_id = j.job_id AND a.run_number = coalesce(l.run_number, r.run_number, t.run_number)
        ORDER BY a.history_seq DESC LIMIT 1) END AS error_message,
    e.reason,
    j.deadline_at,
    j.idempotency_key,
    j.trace_parent,
    j.created_at,
    CASE WHEN NOT u.unreleased THEN j.created_at END AS released_at,
    coalesce(e.started_at, l.started_at) AS started_at,
    e.ended_at AS finished_at,
    j.history_seq
FROM sayiir.job j
-- Who does not ask for a column of one of these does not pay for it: all are joined by their primary key.
LEFT JOIN sayiir.job_ready r ON r.job_id = j.job_id
LEFT JOIN sayiir.job_lease l ON l.job_id = j.job_id
LEFT JOIN sayiir.job_wait t ON t.job_id = j.job_id
LEFT JOIN sayiir.job_end e ON e.job_id = j.job_id
LEFT JOIN sayiir.lane n ON n.lane = j.lane
LEFT JOIN sayiir.workflow w ON w.id = j.workflow
-- A step that ended without being released got its record and its end at one moment, and was never leased.
CROSS JOIN LATERAL (
    SELECT coalesce(e.ended_at = j.created_at AND e.epoch = 0 AND e.state IN ('cancelled', 'skipped'), false) AS unreleased) u;
COMMENT ON VIEW sayiir.job_now IS 'Internal: jobs with the status, attempt and error that are derived when read.';

CREATE VIEW sayiir.step_now AS
SELECT
    w.id AS workflow,
    w.workflow_id,
    w.organization_id,
    w.definition_hash,
    s.position,
    s.step,
    s.kind,
    s.task,
    s.join_rule,
    s.optional,
    j.job_id,
    j.item_index,
    -- A step that was never released has no job.
    CASE
        WHEN j.job_id IS NOT NULL THEN j.status
        WHEN w.finished_at IS NULL THEN 'blocked'
        ELSE 'cancelled'
    END AS status,
    j.run_number,
    coalesce(j.attempt, 0) AS attempt,
    j.max_attempts,
    j.input,
    j.output,
    j.error_code,
    j.error_message,
    j.reason,
    j.lane,
    j.tags,
    j.ready_seq,
    j.waits_for,
    j.event,
    j.due,
    j.since,
    j.worker,
    j.expires_at,
    j.progress_done,
    j.progress_total,
    j.stage,
    j.created_at,
    j.released_at,
    j.started_at,
    j.finished_at
FROM sayiir.workflow w
JOIN sayiir.definition_step s ON s.definition_hash = w.definition_hash
-- job_step
LEFT JOIN sayiir.job_now j ON j.workflow = w.id AND j.step = s.step;
COMMENT ON VIEW sayiir.step_now IS 'Internal: the steps of every workflow, also those that have no job.';

-- Workflows

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
        -- definition_edge_pkey, job_step, job_end_pkey
        SELECT
            count(*) FILTER (WHERE e.job_id IS NULL)::int AS pending,
            count(*) FILTER (WHERE NOT CASE x.satisfied_by
                WHEN 'success' THEN e.state = 'succeeded'
                WHEN 'failure' THEN e.state IN ('failed', 'cancelled')
                ELSE e.job_id IS NOT NULL
            END)::int AS unsatisfied,
            coalesce(
                jsonb_agg(jsonb_build_object('step', x.prerequisite, 'on', x.satisfied_by) ORDER BY x.prerequisite),
                '[]') AS dependencies
        FROM sayiir.definition_edge x
        LEFT JOIN sayiir.job p ON p.workflow = s.workflow AND p.step = x.prerequisite AND p.item_index IS NULL
        LEFT JOIN sayiir.job_end e ON e.job_id = p.job_id
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
    -- after_version on; the other three read the workflow's jobs (job_step) and sort their first rows.
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
        JOIN sayiir.job_attempt a ON a.job_id = j.job_id
        WHERE j.workflow = (SELECT o.id FROM owner o) AND a.history_seq > coalesce(after_version, 0)
        ORDER BY a.history_seq
        LIMIT max_rows),
    ended AS (
        SELECT e.history_seq, e.ended_at, e.state, j.step, e.job_id, j.item_index, e.run_number, e.attempt, e.epoch, e.worker,
            e.error_code, e.error_message, e.reason
        FROM sayiir.job j
        JOIN sayiir.job_end e ON e.job_id = j.job_id
        WHERE j.workflow = (SELECT o.id FROM owner o) AND e.history_seq > coalesce(after_version, 0)
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
        CASE WHEN a.kind = 'requeued' THEN 'step_requeued' ELSE 'attempt_failed' END,
        a.step,
        jsonb_strip_nulls(jsonb_build_object(
            'job_id', a.job_id, 'item_index', a.item_index, 'kind', a.kind, 'run_number', a.run_number,
            'attempt', a.attempt, 'epoch', a.epoch, 'worker', a.worker,
            'error', CASE WHEN a.error_code IS NOT NULL THEN
                jsonb_build_object('code', a.error_code, 'message', a.error_message) END,
            'retry_at', a.retry_at, 'disposition', a.disposition))
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
COMMENT ON FUNCTION sayiir.workflow_history IS 'Every transition of a workflow in order of version; pass the last version on as after_version for the next page. kind: started, step_released, attempt_failed, step_requeued, step_succeeded, step_failed, step_cancelled, step_skipped, and what workflow_log holds. Claims and heartbeats leave no version.';

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
            -- definition_edge_pkey, job_step, job_end_pkey
            SELECT string_agg(x.prerequisite || CASE x.satisfied_by
                WHEN 'success' THEN '' WHEN 'failure' THEN ' (to fail)' ELSE ' (to end)' END, ', ' ORDER BY x.prerequisite) AS needs
            FROM sayiir.definition_edge x
            LEFT JOIN sayiir.job p ON p.workflow = s.workflow AND p.step = x.prerequisite AND p.item_index IS NULL
            LEFT JOIN sayiir.job_end e ON e.job_id = p.job_id
            WHERE x.definition_hash = s.definition_hash AND x.step = s.step AND e.job_id IS NULL) b ON s.status = 'blocked'
        LEFT JOIN LATERAL (
            SELECT
                -- job_ready has no time of entry: a retry became ready at retry_at, a first run when it was released.
                greatest(s.created_at, (
                    SELECT coalesce(a.retry_at, a.ended_at) FROM sayiir.job_attempt a
                    WHERE a.job_id = s.job_id ORDER BY a.history_seq DESC LIMIT 1)) AS since,
                -- job_ready_lane
                (SELECT count(*) FROM (
                    SELECT FROM sayiir.job_ready f WHERE f.lane = s.lane AND f.seq < s.ready_seq LIMIT 1000) f) AS ahead,
                -- lane_task; job_lease holds what workers do now and is small.
                EXISTS (
                    SELECT FROM sayiir.lane n JOIN sayiir.job_lease l ON l.lane = n.lane
                    WHERE n.task = s.task) AS worked_on) q ON s.status = 'ready')
    SELECT step, status, why, until
    FROM line
    ORDER BY position, item_index
$$;
COMMENT ON FUNCTION sayiir.workflow_explain IS 'Why a workflow is not moving: a row for itself (step NULL), then one for each open step, or for each failed step once it has ended. until: when that changes by itself (lease end, retry, timeout, deadline).';

-- Jobs

CREATE FUNCTION sayiir.job_get(job_id uuid, organization_id text = NULL) RETURNS SETOF sayiir.job_info
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, sayiir, pg_temp AS $$
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
        jsonb_strip_nulls(jsonb_build_object('item_index', j.item_index, 'task', j.task, 'idempotency_key', j.idempotency_key))
    FROM record j
    WHERE j.released_at IS NOT NULL
    UNION ALL
    -- job_attempt_pkey, leading column
    SELECT
        a.history_seq,
        CASE WHEN a.kind = 'requeued' THEN coalesce(a.retry_at, a.ended_at) ELSE a.ended_at END,
        CASE WHEN a.kind = 'requeued' THEN j.noun || 'requeued' ELSE 'attempt_failed' END,
        j.step,
        jsonb_strip_nulls(jsonb_build_object(
            'kind', a.kind, 'run_number', a.run_number, 'attempt', a.attempt, 'epoch', a.epoch, 'worker', a.worker,
            'error', CASE WHEN a.error_code IS NOT NULL THEN
                jsonb_build_object('code', a.error_code, 'message', a.error_message) END,
            'started_at', a.started_at, 'retry_at', a.retry_at, 'disposition', a.disposition))
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
COMMENT ON FUNCTION sayiir.job_history IS 'Every transition of a job in order of version. kind: job_enqueued or step_released, attempt_failed, and job_ or step_ with requeued, succeeded, failed, cancelled, skipped.';

-- Operators

CREATE FUNCTION sayiir.stats() RETURNS SETOF sayiir.statistic
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, sayiir, pg_temp AS $$
    WITH
    -- Exact up to 100,000, which bounds the cost; beyond that, what the statistics collector counts.
    place (name, relation, counted) AS (
        VALUES
            ('jobs_ready', 'sayiir.job_ready'::regclass,
                (SELECT count(*) FROM (SELECT FROM sayiir.job_ready LIMIT 100000) r)),
            ('jobs_leased', 'sayiir.job_lease'::regclass,
                (SELECT count(*) FROM (SELECT FROM sayiir.job_lease LIMIT 100000) l)),
            ('jobs_waiting', 'sayiir.job_wait'::regclass,
                (SELECT count(*) FROM (SELECT FROM sayiir.job_wait LIMIT 100000) t)),
            ('events_buffered', 'sayiir.event'::regclass,
                (SELECT count(*) FROM (SELECT FROM sayiir.event LIMIT 100000) v))),
    hot (relation) AS (
        VALUES ('sayiir.job_ready'::regclass), ('sayiir.job_lease'), ('sayiir.job_wait'))
    SELECT
        p.name,
        CASE WHEN p.counted < 100000 THEN p.counted ELSE greatest(p.counted, pg_stat_get_live_tuples(p.relation)) END::numeric
    FROM place p
    UNION ALL
    -- job_ready_lane: one probe a lane
    SELECT 'ready_oldest_seconds', coalesce(round(extract(epoch FROM max(clock_timestamp() - j.created_at)), 3), 0)
    FROM sayiir.lane n
    CROSS JOIN LATERAL (
        SELECT r.job_id FROM sayiir.job_ready r WHERE r.lane = n.lane ORDER BY r.lane, r.seq LIMIT 1) r
    JOIN sayiir.job j ON j.job_id = r.job_id
    WHERE NOT n.paused
    UNION ALL
    SELECT 'leases_expired', count(*)::numeric
    FROM sayiir.job_lease l
    WHERE l.expires_at < clock_timestamp()
    UNION ALL
    -- job_wait_due
    SELECT 'timers_late_seconds', coalesce(greatest(round(extract(epoch FROM clock_timestamp() - (
        SELECT t.due FROM sayiir.job_wait t WHERE t.due IS NOT NULL ORDER BY t.due LIMIT 1)), 3), 0), 0)
    UNION ALL
    -- job_end_failed
    SELECT 'jobs_failed_last_hour', count(*)::numeric
    FROM sayiir.job_end e
    WHERE e.state = 'failed' AND e.ended_at > clock_timestamp() - interval '1 hour'
    UNION ALL
    SELECT 'lanes', count(*)::numeric
    FROM sayiir.lane
    UNION ALL
    SELECT 'tasks_paused', count(*)::numeric
    FROM sayiir.task t
    WHERE t.paused OR NOT t.enabled
    UNION ALL
    SELECT 'dead_rows_hot', sum(pg_stat_get_dead_tuples(h.relation))
    FROM hot h
    UNION ALL
    SELECT 'hot_bytes', sum(pg_total_relation_size(h.relation))
    FROM hot h
    UNION ALL
    SELECT 'total_bytes', sum(pg_total_relation_size(c.oid))
    FROM pg_class c
    WHERE c.relnamespace = 'sayiir'::regnamespace AND c.relkind = 'r'
    UNION ALL
    SELECT 'notify_queue_usage', round(pg_notification_queue_usage()::numeric, 6)
$$;
COMMENT ON FUNCTION sayiir.stats IS 'A few numbers about the whole database, cheap enough to be read every few seconds. Counts above 100,000 are estimates. ready_oldest_seconds: the age of the oldest job at the head of a lane; timers_late_seconds: how long the first timer has been due; notify_queue_usage: 0 to 1, of the whole server.';

CREATE FUNCTION sayiir.doctor() RETURNS SETOF sayiir.finding
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, sayiir, pg_temp AS $$
    WITH
    hot AS MATERIALIZED (
        SELECT 'ready' AS place, job_id, workflow, lane FROM sayiir.job_ready
        UNION ALL
        SELECT 'lease', job_id, workflow, lane FROM sayiir.job_lease
        UNION ALL
        SELECT 'wait', job_id, workflow, lane FROM sayiir.job_wait),
    -- One row a thing that is wrong; the things of one code are told together.
    problem (severity, code, what, item, hint) AS (
        -- A job is in exactly one of ready, lease and wait, or has an end. This proves it for every job, so it reads all of
        -- job and job_end.
        SELECT 'error', 'job.in_two_places', 'jobs are in more than one of ready, lease, wait and end',
            concat(h.job_id, ' (', string_agg(h.place, ', ' ORDER BY h.place), ')'),
            'This is a bug: please report it. The engine skips these jobs.'
        FROM (
            SELECT place, job_id FROM hot
            UNION ALL
            SELECT 'end', e.job_id FROM sayiir.job_end e WHERE EXISTS (SELECT FROM hot h WHERE h.job_id = e.job_id)) h
        GROUP BY h.job_id
        HAVING count(*) > 1
        UNION ALL
        SELECT 'error', 'job.in_no_place', 'jobs are in none of ready, lease, wait and end', j.job_id::text,
            'This is a bug: please report it. Nothing will run these jobs; enqueue their work again.'
        FROM sayiir.job j
        WHERE NOT EXISTS (SELECT FROM sayiir.job_end e WHERE e.job_id = j.job_id)
            AND NOT EXISTS (SELECT FROM hot h WHERE h.job_id = j.job_id)

        -- Rows whose owner is gone
        UNION ALL
        SELECT 'error', 'job.no_record', 'rows belong to a job that does not exist', concat(o.job_id, ' in ', o.place),
            'Rows were deleted by hand, or a restore was partial. Nothing will run them.'
        FROM (
            SELECT 'job_' || place AS place, job_id FROM hot
            UNION ALL
            SELECT 'job_end', job_id FROM sayiir.job_end
            UNION ALL
            SELECT 'job_attempt', job_id FROM sayiir.job_attempt
            UNION ALL
            SELECT 'signal', job_id FROM sayiir.signal) o
        WHERE NOT EXISTS (SELECT FROM sayiir.job j WHERE j.job_id = o.job_id)
        UNION ALL
        SELECT 'error', 'job.workflow_differs', 'hot rows name another workflow than their job', h.job_id::text,
            'This is a bug: please report it.'
        FROM hot h
        JOIN sayiir.job j ON j.job_id = h.job_id
        WHERE j.workflow IS DISTINCT FROM h.workflow
        UNION ALL
        SELECT 'error', 'workflow.no_record', 'rows belong to a workflow that does not exist', concat(o.place, ' of ', o.workflow),
            'Rows were deleted by hand, or a restore was partial.'
        FROM (
            SELECT DISTINCT 'job' AS place, workflow FROM sayiir.job WHERE workflow IS NOT NULL
            UNION ALL
            SELECT DISTINCT 'step_pending', workflow FROM sayiir.step_pending
            UNION ALL
            SELECT 'workflow_active', workflow FROM sayiir.workflow_active
            UNION ALL
            SELECT DISTINCT 'workflow_log', workflow FROM sayiir.workflow_log
            UNION ALL
            SELECT DISTINCT 'event', workflow FROM sayiir.event WHERE workflow IS NOT NULL) o
        WHERE NOT EXISTS (SELECT FROM sayiir.workflow w WHERE w.id = o.workflow)
        UNION ALL
        SELECT 'error', 'lane.no_record', 'jobs stand in a lane that does not exist', h.job_id::text,
            'Rows were deleted by hand, or a restore was partial. No claim will find these jobs.'
        FROM hot h
        WHERE h.lane IS NOT NULL AND NOT EXISTS (SELECT FROM sayiir.lane n WHERE n.lane = h.lane)
        UNION ALL
        SELECT 'error', 'definition.no_record', 'workflows have a definition that does not exist', w.workflow_id,
            'Rows were deleted by hand, or a restore was partial.'
        FROM sayiir.workflow w
        WHERE NOT EXISTS (SELECT FROM sayiir.definition d WHERE d.definition_hash = w.definition_hash)

        -- Workflows against their jobs
        UNION ALL
        SELECT 'error', 'workflow.nothing_live', 'workflows have not ended, but nothing of them is ready, leased or waiting',
            w.workflow_id, 'This is a bug: please report it. workflow_cancel ends them.'
        FROM sayiir.workflow w
        WHERE w.finished_at IS NULL AND NOT EXISTS (SELECT FROM hot h WHERE h.workflow = w.id)
        UNION ALL
        SELECT 'warning', 'workflow.ended_but_live', 'ended workflows still have jobs that are ready or waiting',
            w.workflow_id, 'The next claim or sayiir.tick() ends them; they were held by another session when the workflow ended.'
        FROM sayiir.workflow w
        WHERE w.finished_at IS NOT NULL
            AND EXISTS (SELECT FROM hot h WHERE h.workflow = w.id AND h.place <> 'lease')
        UNION ALL
        SELECT 'warning', 'workflow.active_key_kept', 'ended workflows still hold their active_key, though nothing of them is leased',
            w.workflow_id, 'This is a bug: please report it. workflow_delete frees the key.'
        FROM sayiir.workflow_active k
        JOIN sayiir.workflow w ON w.id = k.workflow
        WHERE w.finished_at IS NOT NULL
            AND NOT EXISTS (SELECT FROM hot h WHERE h.workflow = w.id AND h.place = 'lease')
        UNION ALL
        SELECT 'error', 'step.counter_differs', 'counters of steps do not fit the ends of their prerequisites',
            concat(w.workflow_id, ' ', c.step), 'This is a bug: please report it. workflow_steps counts from the ends.'
        FROM (
            SELECT workflow, step, sum(ended) AS ended, sum(unsatisfied) AS unsatisfied
            FROM sayiir.step_pending
            GROUP BY workflow, step) c
        JOIN sayiir.workflow w ON w.id = c.workflow
        CROSS JOIN LATERAL (
            SELECT
                count(*) AS ended,
                count(*) FILTER (WHERE NOT CASE x.satisfied_by
                    WHEN 'success' THEN e.state = 'succeeded'
                    WHEN 'failure' THEN e.state IN ('failed', 'cancelled')
                    ELSE true
                END) AS unsatisfied
            FROM sayiir.definition_edge x
            JOIN sayiir.job p ON p.workflow = c.workflow AND p.step = x.prerequisite AND p.item_index IS NULL
            JOIN sayiir.job_end e ON e.job_id = p.job_id
            WHERE x.definition_hash = w.definition_hash AND x.step = c.step) d
        WHERE (c.ended, c.unsatisfied) IS DISTINCT FROM (d.ended, d.unsatisfied)
        UNION ALL
        SELECT 'error', 'step.not_released', 'steps have no open prerequisite, but were neither released nor ended',
            concat(s.workflow_id, ' ', s.step), 'This is a bug: please report it. workflow_cancel ends the workflow.'
        FROM sayiir.workflow w
        JOIN sayiir.step_now s ON s.workflow = w.id
        WHERE w.finished_at IS NULL
            AND s.job_id IS NULL
            AND NOT EXISTS (
                SELECT FROM sayiir.definition_edge x
                WHERE x.definition_hash = s.definition_hash AND x.step = s.step
                    AND NOT EXISTS (
                        SELECT FROM sayiir.job p JOIN sayiir.job_end e ON e.job_id = p.job_id
                        WHERE p.workflow = s.workflow AND p.step = x.prerequisite AND p.item_index IS NULL))
        UNION ALL
        SELECT 'warning', 'event.unmatched', 'buffered events have an open wait', concat(w.workflow_id, ' ', v.name),
            'sayiir.tick() matches them. If they come again, please report it.'
        FROM sayiir.event v
        JOIN sayiir.workflow w ON w.id = v.workflow AND w.finished_at IS NULL
        WHERE EXISTS (SELECT FROM sayiir.job_wait t WHERE t.workflow = v.workflow AND t.event = v.name)

        -- Nobody sweeps, nobody works
        UNION ALL
        SELECT 'warning', 'lease.expired', 'leases ran out more than a minute ago, and nothing has swept',
            concat(l.job_id, ' of worker ', l.worker),
            'Preload the library, or call sayiir.tick() from a scheduler every few seconds; claims sweep, too.'
        FROM sayiir.job_lease l
        WHERE l.expires_at < clock_timestamp() - interval '1 minute'
        UNION ALL
        SELECT 'warning', 'timer.late', 'timers have been due for more than a minute, and nothing has swept', t.job_id::text,
            'Preload the library, or call sayiir.tick() from a scheduler every few seconds; claims sweep, too.'
        FROM sayiir.job_wait t
        WHERE t.due < clock_timestamp() - interval '1 minute'
        UNION ALL
        SELECT 'warning', 'task.no_worker', 'tasks have jobs that have been ready for more than 10 minutes, and no worker has a job of them',
            n.task, 'Start a worker that claims the task, with all tags of its jobs (see the view queue_stats).'
        FROM sayiir.lane n
        CROSS JOIN LATERAL (
            SELECT r.job_id FROM sayiir.job_ready r WHERE r.lane = n.lane ORDER BY r.lane, r.seq LIMIT 1) r
        JOIN sayiir.job j ON j.job_id = r.job_id
        WHERE NOT n.paused
        GROUP BY n.task
        HAVING min(j.created_at) < clock_timestamp() - interval '10 minutes'
            AND NOT EXISTS (
                SELECT FROM sayiir.lane b JOIN sayiir.job_lease l ON l.lane = b.lane WHERE b.task = n.task)
        UNION ALL
        SELECT 'info', 'task.paused', 'tasks are paused or disabled',
            concat(t.task, ' of ' || t.organization_id), 'task_resume, or task_define(…, enabled => true), continues them.'
        FROM sayiir.task t
        WHERE t.paused OR NOT t.enabled
        UNION ALL
        SELECT 'error', 'lane.paused_alone', 'lanes are paused, but their task is not', concat(n.task, ' of ' || n.organization_id),
            'task_pause and task_resume set them right.'
        FROM sayiir.lane n
        WHERE n.paused AND NOT EXISTS (
            SELECT FROM sayiir.task t
            WHERE t.task = n.task AND (t.organization_id = n.organization_id OR t.organization_id IS NULL)
                AND (t.paused OR NOT t.enabled))

        -- Clock and sequences after a restore
        UNION ALL
        SELECT 'error', 'clock.went_back', 'leases began in the future', concat(l.job_id, ' at ', l.started_at::timestamptz(0)),
            'The server''s clock was set back: these leases last longer than they should. Check its time synchronisation.'
        FROM sayiir.job_lease l
        WHERE l.started_at > clock_timestamp() + interval '5 seconds'
        UNION ALL
        SELECT 'error', 'sequence.behind', 'sequences are behind their tables', s.name,
            'A restore was partial: set them past the maxima with setval before anything is claimed.'
        FROM (
            SELECT 'ready_seq', (SELECT last_value FROM sayiir.ready_seq), (SELECT max(seq) FROM sayiir.job_ready)
            UNION ALL
            SELECT 'wait_seq', (SELECT last_value FROM sayiir.wait_seq), (SELECT max(seq) FROM sayiir.job_wait)
            UNION ALL
            -- workflow_log_pkey
            SELECT 'history_seq', (SELECT last_value FROM sayiir.history_seq), (SELECT max(history_seq) FROM sayiir.workflow_log)
            UNION ALL
            SELECT 'lane_seq', (SELECT last_value FROM sayiir.lane_seq), (SELECT max(lane & 1099511627775) FROM sayiir.lane)
        ) s (name, last, highest)
        WHERE s.last < s.highest

        -- What the server around it does to the hot tables. Without pg_read_all_stats the owner of the extension sees only
        -- its own sessions here.
        UNION ALL
        SELECT 'warning', 'snapshot.old', 'sessions have held a snapshot for more than 5 minutes',
            format('pid %s (%s, %s) since %s', a.pid, a.usename, a.state, a.xact_start::timestamptz(0)),
            'Dead rows of the hot tables cannot be removed meanwhile. End the transaction, or pg_terminate_backend(pid).'
        FROM pg_stat_activity a
        WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
            AND a.xact_start < clock_timestamp() - interval '5 minutes'
            AND a.pid <> pg_backend_pid()
            AND a.backend_type = 'client backend'
        UNION ALL
        SELECT 'warning', 'snapshot.prepared', 'prepared transactions are older than 5 minutes', p.gid,
            'Dead rows of the hot tables cannot be removed meanwhile. COMMIT PREPARED or ROLLBACK PREPARED.'
        FROM pg_prepared_xacts p
        WHERE p.prepared < clock_timestamp() - interval '5 minutes'
        UNION ALL
        SELECT 'warning', 'snapshot.replication', 'replication holds back the removal of dead rows by more than 1,000,000 transactions',
            s.name, 'Drop the slot if its consumer is gone; see hot_standby_feedback for standbys.'
        FROM (
            SELECT slot_name::text, greatest(age(xmin), age(catalog_xmin)) FROM pg_replication_slots
            UNION ALL
            SELECT application_name, age(backend_xmin) FROM pg_stat_replication) s (name, age)
        WHERE s.age > 1000000
        UNION ALL
        SELECT 'warning', 'vacuum.behind', 'hot tables have far more dead rows than live ones',
            format('%s (%s dead, %s live, last autovacuum %s)', v.relname, v.n_dead_tup, v.n_live_tup,
                coalesce(v.last_autovacuum::timestamptz(0)::text, 'never')),
            'Check that autovacuum runs and that no old snapshot is held.'
        FROM pg_stat_all_tables v
        WHERE v.schemaname = 'sayiir' AND v.relname IN ('job_ready', 'job_lease', 'job_wait')
            AND v.n_dead_tup > 100000 + 10 * v.n_live_tup
        UNION ALL
        SELECT 'warning', 'vacuum.off', NULL, 'autovacuum is off', 'Set autovacuum = on: claims slow down as dead rows pile up.'
        FROM pg_settings g
        WHERE g.name = 'autovacuum' AND g.setting = 'off'
        UNION ALL
        SELECT CASE WHEN u.usage > 0.5 THEN 'error' ELSE 'warning' END, 'notify.queue', NULL,
            format('the queue of NOTIFY is %s %% full', round(u.usage::numeric * 100, 1)),
            'A session that LISTENs sits in a long transaction; end it. When the queue is full, commits that notify fail.'
        FROM pg_notification_queue_usage() AS u (usage)
        WHERE u.usage > 0.1),
    numbered AS (
        SELECT p.*, row_number() OVER (PARTITION BY p.severity, p.code ORDER BY p.item) AS n
        FROM problem p)
    SELECT
        n.severity,
        n.code,
        CASE
            WHEN n.what IS NULL THEN min(n.item)
            ELSE concat(n.what, ': ', count(*), ' (',
                string_agg(n.item, ', ' ORDER BY n.n) FILTER (WHERE n.n <= 3), CASE WHEN count(*) > 3 THEN ', …' END, ')')
        END,
        n.hint
    FROM numbered n
    GROUP BY n.severity, n.code, n.what, n.hint
    ORDER BY CASE n.severity WHEN 'error' THEN 1 WHEN 'warning' THEN 2 ELSE 3 END, n.code
$$;
COMMENT ON FUNCTION sayiir.doctor IS 'Checks the invariants of every table and what the server around them does; no row = nothing found. It reads all of job and job_end, so it takes seconds for millions of jobs.';
