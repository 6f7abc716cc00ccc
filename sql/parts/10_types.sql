-- Stored states. Functions take and return text; these types stay inside the tables.
CREATE TYPE sayiir.workflow_state AS ENUM ('running', 'paused', 'succeeded', 'failed', 'cancelled');
COMMENT ON TYPE sayiir.workflow_state IS 'What a workflow''s row says; waiting is derived when read.';

CREATE TYPE sayiir.job_state AS ENUM ('succeeded', 'failed', 'cancelled', 'skipped');
COMMENT ON TYPE sayiir.job_state IS 'How a job ended. A job that has not ended is in job_ready, job_lease or job_wait.';

CREATE TYPE sayiir.wait_reason AS ENUM ('run_at', 'retry', 'delay', 'event', 'child', 'permit', 'paused', 'owner', 'held');
COMMENT ON TYPE sayiir.wait_reason IS 'Why a job stands in job_wait.';

-- Row types of the functions: never a table's row type, so a table can grow without changing the contract.
CREATE TYPE sayiir.enqueued_job AS (job_id uuid, disposition text);
COMMENT ON TYPE sayiir.enqueued_job IS 'Answer of an enqueue: inserted, or existing for a repeated idempotency key.';

CREATE TYPE sayiir.claimed_job AS (
    job_id uuid, epoch bigint, task text, input jsonb, attempt int, max_attempts int, run_number int,
    workflow_id text, workflow_name text, workflow_version int, step text, item_index int,
    idempotency_key text, checkpoints jsonb, expires_at timestamptz, deadline_at timestamptz,
    tags text[], organization_id text, trace_parent text
);
COMMENT ON TYPE sayiir.claimed_job IS 'A leased job as its worker sees it. Pass (job_id, epoch) to every later call; pass idempotency_key on to outside systems.';

CREATE TYPE sayiir.job_disposition AS (job_id uuid, disposition text);
COMMENT ON TYPE sayiir.job_disposition IS 'One line of a batch: completed, repeated, cancelled, lost, busy (batches); continue, cancel, pause, lost (heartbeats).';

CREATE TYPE sayiir.job_failure AS (disposition text, run_at timestamptz);
COMMENT ON TYPE sayiir.job_failure IS 'What a failure led to: retry (again at run_at), dead, held, cancelled.';

CREATE TYPE sayiir.job_failure_line AS (job_id uuid, disposition text, run_at timestamptz);
COMMENT ON TYPE sayiir.job_failure_line IS 'One line of job_fail_many: retry, dead, held, cancelled, lost, busy.';

CREATE TYPE sayiir.job_change AS (job_id uuid, disposition text, run_number int, run_at timestamptz);
COMMENT ON TYPE sayiir.job_change IS 'Answer of job_cancel (cancelled, requested, already_ended), job_requeue (requeued, mismatch, not_quiet, not_found), job_replay (replayed, existing) and job_continue (continued, cancelled).';

CREATE TYPE sayiir.job_info AS (
    job_id uuid, task text, status text, priority int, attempt int, max_attempts int, run_number int,
    workflow_id text, step text, input jsonb, output jsonb, error_code text, error_message text, reason text,
    worker text, epoch bigint, expires_at timestamptz, run_at timestamptz, progress_done bigint,
    progress_total bigint, stage text, tags text[], idempotency_key text, organization_id text,
    created_at timestamptz, started_at timestamptz, finished_at timestamptz
);
COMMENT ON TYPE sayiir.job_info IS 'A job as job_get shows it. status: ready, scheduled, waiting, held, paused, leased, succeeded, failed, cancelled, skipped.';

CREATE TYPE sayiir.task_info AS (
    task text, organization_id text, max_attempts int, timeout interval, lease interval, priority int, retry jsonb,
    enabled boolean, paused boolean, options jsonb, created_at timestamptz, updated_at timestamptz
);
COMMENT ON TYPE sayiir.task_info IS 'A task''s defaults. NULL = the engine''s default.';

CREATE TYPE sayiir.defined AS (name text, version int, definition_hash bytea, disposition text, changes jsonb);
COMMENT ON TYPE sayiir.defined IS 'Answer of workflow_define: created or existing, and what changed against the version that was active.';

CREATE TYPE sayiir.definition_problem AS (pointer text, code text, message text);
COMMENT ON TYPE sayiir.definition_problem IS 'One problem of a definition: JSON pointer, stable code, message for people.';

CREATE TYPE sayiir.started AS (workflow_id text, disposition text);
COMMENT ON TYPE sayiir.started IS 'Answer of a start: started, existing, existing_active.';

CREATE TYPE sayiir.workflow_info AS (
    workflow_id text, name text, version int, status text, organization_id text, input jsonb, metadata jsonb,
    result jsonb, result_step text, error_code text, error_message text, reason text, requested_by text,
    idempotency_key text, active_key text, trace_parent text, definition_hash bytea,
    created_at timestamptz, deadline_at timestamptz, finished_at timestamptz
);
COMMENT ON TYPE sayiir.workflow_info IS 'A workflow as workflow_get shows it. status: running, waiting, paused, succeeded, failed, cancelled.';

CREATE TYPE sayiir.step_info AS (
    step text, kind text, task text, status text, attempt int, pending int, unsatisfied int, input jsonb, output jsonb,
    error_code text, error_message text, reason text, dependencies jsonb, released_at timestamptz,
    started_at timestamptz, finished_at timestamptz, job_id uuid
);
COMMENT ON TYPE sayiir.step_info IS 'A step of a workflow. status: blocked, or a job''s status.';

CREATE TYPE sayiir.completed_step AS (
    step text, kind text, task text, status text, attempt int, pending int, unsatisfied int, input jsonb, output jsonb,
    error_code text, error_message text, reason text, dependencies jsonb, released_at timestamptz,
    started_at timestamptz, finished_at timestamptz, job_id uuid, disposition text
);
COMMENT ON TYPE sayiir.completed_step IS 'A step_info and how workflow_complete_step took the call: completed or repeated.';

CREATE TYPE sayiir.history_entry AS (version bigint, at timestamptz, kind text, step text, detail jsonb);
COMMENT ON TYPE sayiir.history_entry IS 'One transition of a workflow or job, in order of version.';

CREATE TYPE sayiir.error_code AS (code text, sqlstate text, hint text);
COMMENT ON TYPE sayiir.error_code IS 'An error code of the engine: stable code (in DETAIL), SQLSTATE, what to do.';

CREATE TYPE sayiir.sweep AS (kind text, done bigint);
COMMENT ON TYPE sayiir.sweep IS 'What one sweep of tick() did.';

CREATE TYPE sayiir.explanation AS (step text, status text, why text, until timestamptz);
COMMENT ON TYPE sayiir.explanation IS 'One reason why a workflow is not moving, or how it ended. step NULL = the workflow itself.';

CREATE TYPE sayiir.statistic AS (name text, value numeric);
COMMENT ON TYPE sayiir.statistic IS 'One number of stats(). The unit is in the name: _seconds, _bytes; a count otherwise.';

CREATE TYPE sayiir.finding AS (severity text, code text, message text, hint text);
COMMENT ON TYPE sayiir.finding IS 'One finding of doctor(). severity: error (an invariant is broken), warning (something is going wrong), info.';
COMMENT ON COLUMN sayiir.explanation.until IS 'When it changes by itself: end of the lease, retry, timeout, deadline; NULL = it does not.';
