-- lane_now, workflow_now, job_now and step_now say in one place what is derived when read. They have no scope and no grants: the
-- functions and views that follow add the scope.

CREATE VIEW sayiir.lane_now AS
SELECT
    l.lane,
    l.organization_id,
    l.task,
    l.priority,
    l.tags,
    -- The organization's own task decides, then the global one (task_task_organization_id_key).
    coalesce((
        SELECT t.paused OR NOT t.enabled FROM sayiir.task t
        WHERE t.task = l.task AND (t.organization_id = l.organization_id OR t.organization_id IS NULL)
        ORDER BY t.organization_id NULLS LAST
        LIMIT 1), false) AS paused
FROM sayiir.lane l;
COMMENT ON VIEW sayiir.lane_now IS 'Internal: lanes, and whether their task is paused or disabled, so that no claim looks at them.';

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
LEFT JOIN sayiir.lane_now n ON n.lane = j.lane
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
-- job_step. Fenced off, so that it is looked up step by step: joined, the planner may read the workflow's jobs once a step.
LEFT JOIN LATERAL (SELECT * FROM sayiir.job_now j WHERE j.workflow = w.id AND j.step = s.step OFFSET 0) j ON true;
COMMENT ON VIEW sayiir.step_now IS 'Internal: the steps of every workflow, also those that have no job.';
