-- Views for people and dashboards. A view runs with its owner's rights on the tables, so each shows only what
-- sayiir.scope_sees allows; security_barrier keeps a caller's own functions from being run on other rows before that.
-- Conditions on a key (job_id, workflow_id, finished_at of dead_letters) reach the indexes through the barrier, because their
-- operators are leakproof; LIKE and casts do not.

CREATE VIEW sayiir.workflows WITH (security_barrier) AS
SELECT
    w.workflow_id,
    w.organization_id,
    w.name,
    w.version,
    w.status,
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
    w.finished_at
FROM sayiir.workflow_now w
WHERE sayiir.scope_sees(w.organization_id);
COMMENT ON VIEW sayiir.workflows IS 'Every workflow. status: running, waiting (nothing of it is ready or leased), paused, succeeded, failed, cancelled.';

CREATE VIEW sayiir.steps WITH (security_barrier) AS
SELECT
    s.workflow_id,
    s.organization_id,
    s.position,
    s.step,
    s.item_index,
    s.kind,
    s.task,
    s.status,
    s.run_number,
    s.attempt,
    s.max_attempts,
    s.input,
    s.output,
    s.error_code,
    s.error_message,
    s.reason,
    s.waits_for,
    s.event,
    s.due,
    s.worker,
    s.expires_at,
    s.released_at,
    s.started_at,
    s.finished_at,
    s.job_id
FROM sayiir.step_now s
WHERE sayiir.scope_sees(s.organization_id);
COMMENT ON VIEW sayiir.steps IS 'Every step of every workflow, released or not; ask for one workflow_id. status: blocked, or a job''s status. What a step waits for is in workflow_steps.';
COMMENT ON COLUMN sayiir.steps.position IS 'Order of the drawing: prerequisites first.';
COMMENT ON COLUMN sayiir.steps.due IS 'When the wait ends by itself: retry, run_at, delay, or the timeout of an event.';

CREATE VIEW sayiir.jobs WITH (security_barrier) AS
SELECT
    j.job_id,
    j.organization_id,
    j.task,
    j.status,
    j.priority,
    j.tags,
    j.run_number,
    j.attempt,
    j.max_attempts,
    j.workflow_id,
    j.step,
    j.item_index,
    j.waits_for,
    j.event,
    j.due,
    j.worker,
    j.epoch,
    j.expires_at,
    j.progress_done,
    j.progress_total,
    j.stage,
    j.input,
    j.output,
    j.error_code,
    j.error_message,
    j.reason,
    j.idempotency_key,
    j.trace_parent,
    j.created_at,
    j.started_at,
    j.deadline_at,
    j.finished_at
FROM sayiir.job_now j
WHERE sayiir.scope_sees(j.organization_id);
COMMENT ON VIEW sayiir.jobs IS 'Every job with its live state. status: ready, scheduled, waiting, held, paused, leased, succeeded, failed, cancelled, skipped. Until it has ended, its error is that of the last failed attempt of this run.';
COMMENT ON COLUMN sayiir.jobs.waits_for IS 'run_at, retry, delay, event, child, permit, paused, owner (the workflow does not run), held; NULL = it does not wait.';
COMMENT ON COLUMN sayiir.jobs.due IS 'When the wait ends by itself: retry, run_at, delay, or the timeout of an event.';
COMMENT ON COLUMN sayiir.jobs.worker IS 'Who holds the lease, or whose attempt ended the job.';
COMMENT ON COLUMN sayiir.jobs.expires_at IS 'When the lease runs out unless its worker sends a heartbeat.';
COMMENT ON COLUMN sayiir.jobs.deadline_at IS 'When it fails whatever attempts are left.';

CREATE VIEW sayiir.job_attempts WITH (security_barrier) AS
SELECT
    a.job_id,
    j.organization_id,
    j.task,
    w.workflow_id,
    j.step,
    j.item_index,
    a.run_number,
    a.attempt,
    a.epoch,
    a.worker,
    a.kind,
    a.disposition,
    a.error_code,
    a.error_message,
    a.started_at,
    a.ended_at,
    a.retry_at,
    a.reason
FROM sayiir.job_attempt a
JOIN sayiir.job j ON j.job_id = a.job_id
LEFT JOIN sayiir.workflow w ON w.id = j.workflow
WHERE sayiir.scope_sees(j.organization_id);
COMMENT ON VIEW sayiir.job_attempts IS 'Attempts that failed, timed out or whose lease expired, ends that a requeue undid, and runs that job_continue ended. kind: retryable, terminal, timeout, panicked, expired, requeued, continued.';
COMMENT ON COLUMN sayiir.job_attempts.disposition IS 'What it led to: retry, dead, held, cancelled, continued; for kind requeued, how the run had ended.';

CREATE VIEW sayiir.dead_letters WITH (security_barrier) AS
-- Not a UNION ALL by itself: the planner pulls one up, and the barrier with it, so that a caller's function sees every row.
SELECT
    d.job_id,
    d.organization_id,
    d.task,
    d.workflow_id,
    d.step,
    d.item_index,
    d.status,
    d.run_number,
    d.attempt,
    d.max_attempts,
    d.error_code,
    d.error_message,
    d.reason,
    d.worker,
    d.input,
    d.failed_at
FROM (
    -- job_end_failed, job_pkey
    SELECT
        e.job_id,
        j.organization_id,
        j.task,
        w.workflow_id,
        j.step,
        j.item_index,
        'failed' AS status,
        e.run_number,
        e.attempt,
        j.max_attempts,
        e.error_code,
        e.error_message,
        e.reason,
        e.worker,
        CASE WHEN j.task IS NULL THEN j.payload ELSE coalesce(j.payload, w.input) END AS input,
        e.ended_at AS failed_at
    FROM sayiir.job_end e
    JOIN sayiir.job j ON j.job_id = e.job_id
    LEFT JOIN sayiir.workflow w ON w.id = j.workflow
    WHERE e.state = 'failed'
    UNION ALL
    -- job_pkey, job_attempt_pkey (leading column)
    SELECT
        t.job_id,
        j.organization_id,
        j.task,
        w.workflow_id,
        j.step,
        j.item_index,
        'held',
        t.run_number,
        t.attempt,
        j.max_attempts,
        a.error_code,
        a.error_message,
        NULL,
        a.worker,
        coalesce(j.payload, w.input),
        t.since
    FROM sayiir.job_wait t
    JOIN sayiir.job j ON j.job_id = t.job_id
    LEFT JOIN sayiir.workflow w ON w.id = j.workflow
    LEFT JOIN LATERAL (
        SELECT a.error_code, a.error_message, a.worker FROM sayiir.job_attempt a
        WHERE a.job_id = t.job_id AND a.run_number = t.run_number
        ORDER BY a.history_seq DESC LIMIT 1) a ON true
    WHERE t.reason = 'held'
) d
WHERE sayiir.scope_sees(d.organization_id);
COMMENT ON VIEW sayiir.dead_letters IS 'Jobs that need a person: failed for good, or held because on_exhausted says so. job_requeue starts a held or stand-alone one again; workflow_complete_step ends a held step.';

CREATE VIEW sayiir.waits WITH (security_barrier) AS
SELECT
    w.workflow_id,
    j.organization_id,
    w.name AS workflow_name,
    j.step,
    j.item_index,
    t.reason::text AS waits_for,
    t.event,
    t.since,
    t.due AS until,
    t.job_id
FROM sayiir.job_wait t
JOIN sayiir.job j ON j.job_id = t.job_id
LEFT JOIN sayiir.workflow w ON w.id = j.workflow
WHERE t.reason IN ('event', 'delay', 'child', 'permit') AND sayiir.scope_sees(j.organization_id);
COMMENT ON VIEW sayiir.waits IS 'Every open wait; WHERE event = … is the inbox of what waits for that event, for instance an approval. workflow_send_event answers it, for a stand-alone job job_send_event.';
COMMENT ON COLUMN sayiir.waits.until IS 'For an event its timeout, for a delay its end; NULL = it waits for ever.';

CREATE VIEW sayiir.events WITH (security_barrier) AS
SELECT
    v.workflow_id,
    v.organization_id,
    v.id AS event_id,
    v.name,
    v.payload,
    v.event_key,
    v.disposition,
    v.created_at,
    v.job_id
FROM sayiir.event v
WHERE sayiir.scope_sees(v.organization_id);
COMMENT ON VIEW sayiir.events IS 'Events that nothing has consumed, of workflows and of jobs: buffered (nothing waits for it yet), early (no such workflow yet), late (it had ended).';
COMMENT ON COLUMN sayiir.events.event_id IS 'Order of arrival; of one name, the first is consumed first.';

CREATE VIEW sayiir.definitions WITH (security_barrier) AS
SELECT
    v.name,
    v.version,
    v.organization_id,
    v.definition_hash,
    v.active,
    v.created_at,
    (SELECT count(*) FROM sayiir.definition_step s WHERE s.definition_hash = v.definition_hash) AS steps,
    -- An open workflow has a job that is ready, leased or waiting, so what is counted is the work at hand, not the history
    -- (job_ready_workflow, job_lease_workflow, job_wait_workflow; workflow_pkey).
    coalesce(o.workflows, 0) AS open_workflows,
    d.body AS definition
FROM sayiir.definition_version v
JOIN sayiir.definition d ON d.definition_hash = v.definition_hash
LEFT JOIN (
    SELECT w.name, w.version, w.organization_id, count(*) AS workflows
    FROM (
        SELECT r.workflow FROM sayiir.job_ready r WHERE r.workflow IS NOT NULL
        UNION
        SELECT l.workflow FROM sayiir.job_lease l WHERE l.workflow IS NOT NULL
        UNION
        SELECT t.workflow FROM sayiir.job_wait t WHERE t.workflow IS NOT NULL) h
    JOIN sayiir.workflow w ON w.id = h.workflow
    WHERE w.finished_at IS NULL
    GROUP BY w.name, w.version, w.organization_id
) o ON o.name = v.name AND o.version = v.version AND o.organization_id IS NOT DISTINCT FROM v.organization_id
WHERE sayiir.scope_sees(v.organization_id);
COMMENT ON VIEW sayiir.definitions IS 'The versions registered under a name. active: what workflow_start takes unless told otherwise. open_workflows: those of the same organization that have not ended.';

CREATE VIEW sayiir.tasks WITH (security_barrier) AS
SELECT
    t.task,
    t.organization_id,
    t.max_attempts,
    t.timeout_us * interval '1 microsecond' AS timeout,
    t.lease_us * interval '1 microsecond' AS lease,
    t.priority,
    t.retry,
    t.enabled,
    t.paused,
    t.options,
    t.created_at,
    t.updated_at
FROM sayiir.task t
WHERE sayiir.scope_sees(t.organization_id);
COMMENT ON VIEW sayiir.tasks IS 'The defaults of every task that was defined or paused. NULL = the engine''s default.';

CREATE VIEW sayiir.queue_stats WITH (security_barrier) AS
-- Counted by lane, then added up by task: the scope is asked once a lane, not once a job.
WITH counted AS (
    SELECT r.lane, count(*) AS ready, 0::bigint AS scheduled, 0::bigint AS leased, 0::bigint AS waiting, 0::bigint AS held
    FROM sayiir.job_ready r
    GROUP BY r.lane
    UNION ALL
    SELECT l.lane, 0, 0, count(*), 0, 0
    FROM sayiir.job_lease l
    GROUP BY l.lane
    UNION ALL
    SELECT
        t.lane,
        0,
        count(*) FILTER (WHERE t.reason IN ('run_at', 'retry')),
        0,
        count(*) FILTER (WHERE t.reason IN ('delay', 'event', 'child', 'permit', 'paused', 'owner')),
        count(*) FILTER (WHERE t.reason = 'held')
    FROM sayiir.job_wait t
    WHERE t.lane IS NOT NULL
    GROUP BY t.lane
),
queue AS (
    SELECT
        n.task,
        n.organization_id,
        bool_and(n.paused) AS paused,
        coalesce(sum(c.ready), 0)::bigint AS ready,
        coalesce(sum(c.scheduled), 0)::bigint AS scheduled,
        coalesce(sum(c.leased), 0)::bigint AS leased,
        coalesce(sum(c.waiting), 0)::bigint AS waiting,
        coalesce(sum(c.held), 0)::bigint AS held
    FROM sayiir.lane_now n
    LEFT JOIN counted c ON c.lane = n.lane
    WHERE sayiir.scope_sees(n.organization_id)
    GROUP BY n.task, n.organization_id
),
-- job_ready_lane: one probe a lane
head AS (
    SELECT n.task, n.organization_id, min(j.created_at) AS created_at
    FROM sayiir.lane n
    CROSS JOIN LATERAL (
        SELECT r.job_id FROM sayiir.job_ready r WHERE r.lane = n.lane ORDER BY r.lane, r.seq LIMIT 1) r
    JOIN sayiir.job j ON j.job_id = r.job_id
    GROUP BY n.task, n.organization_id
),
-- job_end_failed
failure AS (
    SELECT j.task, j.organization_id, count(*) AS failed
    FROM sayiir.job_end e
    JOIN sayiir.job j ON j.job_id = e.job_id
    WHERE e.state = 'failed' AND e.ended_at > clock_timestamp() - interval '1 hour'
    GROUP BY j.task, j.organization_id
)
SELECT
    q.task,
    q.organization_id,
    q.paused,
    q.ready,
    q.scheduled,
    q.leased,
    q.waiting,
    q.held,
    clock_timestamp() - h.created_at AS oldest_age,
    coalesce(f.failed, 0) AS failed_last_hour
FROM queue q
LEFT JOIN head h ON h.task = q.task AND h.organization_id IS NOT DISTINCT FROM q.organization_id
LEFT JOIN failure f ON f.task = q.task AND f.organization_id IS NOT DISTINCT FROM q.organization_id;
COMMENT ON VIEW sayiir.queue_stats IS 'The queue of each task that ever had a job: what a dashboard or an autoscaler polls. It counts what is ready, leased or waiting, never the history.';
COMMENT ON COLUMN sayiir.queue_stats.waiting IS 'Waiting for an event, a time of their own, a child or a permit, or because their workflow is paused. Event and delay steps have no task and are not counted here.';
COMMENT ON COLUMN sayiir.queue_stats.held IS 'Out of attempts and kept for a person.';
COMMENT ON COLUMN sayiir.queue_stats.oldest_age IS 'Age of the oldest job at the head of a lane, since it was created; NULL = nothing is ready.';
COMMENT ON COLUMN sayiir.queue_stats.failed_last_hour IS 'Jobs that failed for good in the last hour.';
