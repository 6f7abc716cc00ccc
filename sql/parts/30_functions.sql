-- The functions in the library. Written by hand: the declaration is the contract with users.

-- Jobs

CREATE FUNCTION sayiir.job_enqueue(
    task text,
    payload jsonb DEFAULT '{}',
    priority int DEFAULT NULL,
    run_at timestamptz DEFAULT NULL,
    max_attempts int DEFAULT NULL,
    idempotency_key text DEFAULT NULL,
    resource_key text DEFAULT NULL,
    tags text[] DEFAULT '{}',
    trace_parent text DEFAULT NULL,
    organization_id text DEFAULT NULL,
    options jsonb DEFAULT '{}'
) RETURNS SETOF sayiir.enqueued_job
AS 'MODULE_PATHNAME', 'job_enqueue_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 @HOT@;
COMMENT ON FUNCTION sayiir.job_enqueue(text, jsonb, int, timestamptz, int, text, text, text[], text, text, jsonb) IS 'Enqueues one job, claimable now or at run_at. priority 0-99 (default 50). The same idempotency_key with the same request answers existing. options: timeout, lease, deadline (intervals as text), retry {initial, factor, max, jitter}, on_exhausted (fail, hold). Errors: job.idempotency_conflict, task.not_found and task.disabled (sayiir.strict_tasks), argument.*.';

CREATE FUNCTION sayiir.job_enqueue_many(
    task text,
    payloads jsonb,
    idempotency_keys text[] DEFAULT NULL,
    priority int DEFAULT NULL,
    run_at timestamptz DEFAULT NULL,
    organization_id text DEFAULT NULL,
    options jsonb DEFAULT '{}'
) RETURNS SETOF sayiir.enqueued_job
AS 'MODULE_PATHNAME', 'job_enqueue_many_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.job_enqueue_many(text, jsonb, text[], int, timestamptz, text, jsonb) IS 'Enqueues one job for each element of the JSON array payloads (at most 100,000), in order. idempotency_keys: one an element, NULL = none. options as job_enqueue, and tags, max_attempts, trace_parent.';

CREATE FUNCTION sayiir.job_claim(
    worker text,
    tasks text[],
    max_jobs int DEFAULT 1,
    lease interval DEFAULT NULL,
    tags text[] DEFAULT '{}',
    wait interval DEFAULT '0',
    organization_id text DEFAULT NULL
) RETURNS SETOF sayiir.claimed_job
AS 'MODULE_PATHNAME', 'job_claim_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.job_claim(text, text[], int, interval, text[], interval, text) IS 'Leases up to max_jobs (1-1000) ready jobs of the tasks ({*} = any) to a worker. lease: 1 ms to 30 days, NULL = the task''s. A worker without tags takes all jobs, else those whose tags are a subset of its own. wait: at most 10 s for the first job. Commit before working: the attempt is counted here.';

CREATE FUNCTION sayiir.job_heartbeat(
    job_id uuid,
    epoch bigint,
    lease interval DEFAULT NULL,
    progress_done bigint DEFAULT NULL,
    progress_total bigint DEFAULT NULL,
    stage text DEFAULT NULL
) RETURNS text
AS 'MODULE_PATHNAME', 'job_heartbeat_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.job_heartbeat(uuid, bigint, interval, bigint, bigint, text) IS 'Extends a lease and reports progress: NULL keeps what was reported, and done is never more than total. Answers continue, cancel, pause (stop and call job_release), or lost (stop). lease: NULL = as claimed.';

CREATE FUNCTION sayiir.job_heartbeat_many(job_ids uuid[], epochs bigint[], lease interval DEFAULT NULL) RETURNS SETOF sayiir.job_disposition
AS 'MODULE_PATHNAME', 'job_heartbeat_many_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.job_heartbeat_many(uuid[], bigint[], interval) IS 'Heartbeats of at most 1,000 leases in one call: continue, cancel, pause or lost for each, in order.';

CREATE FUNCTION sayiir.job_complete(job_id uuid, epoch bigint, output jsonb DEFAULT NULL) RETURNS text
AS 'MODULE_PATHNAME', 'job_complete_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.job_complete(uuid, bigint, jsonb) IS 'Ends a lease with success. Answers succeeded, or cancelled when a cancel came first; a repeat by the same lease is answered again. Errors: job.lease_lost, job.busy.';

CREATE FUNCTION sayiir.job_complete_many(job_ids uuid[], epochs bigint[], outputs jsonb DEFAULT NULL) RETURNS SETOF sayiir.job_disposition
AS 'MODULE_PATHNAME', 'job_complete_many_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.job_complete_many(uuid[], bigint[], jsonb) IS 'Completes at most 1,000 leases, each on its own terms: completed, repeated, cancelled, lost, busy, in order. outputs: a JSON array with one element a job.';

CREATE FUNCTION sayiir.job_fail(
    job_id uuid,
    epoch bigint,
    error_code text,
    error_message text DEFAULT NULL,
    kind text DEFAULT 'retryable',
    retry_at timestamptz DEFAULT NULL
) RETURNS SETOF sayiir.job_failure
AS 'MODULE_PATHNAME', 'job_fail_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 @HOT@;
COMMENT ON FUNCTION sayiir.job_fail(uuid, bigint, text, text, text, timestamptz) IS 'Ends an attempt without success. kind: retryable, terminal, timeout, panicked. retry_at may ask for later than policy, never earlier. Answers retry (again at run_at), dead, held or cancelled. Errors: job.lease_lost, job.busy.';

CREATE FUNCTION sayiir.job_fail_many(
    job_ids uuid[],
    epochs bigint[],
    error_codes text[],
    error_messages text[] DEFAULT NULL,
    kind text DEFAULT 'retryable',
    retry_at timestamptz DEFAULT NULL
) RETURNS SETOF sayiir.job_failure_line
AS 'MODULE_PATHNAME', 'job_fail_many_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.job_fail_many(uuid[], bigint[], text[], text[], text, timestamptz) IS 'Fails at most 1,000 leases, each on its own terms: retry, dead, held, cancelled, lost, busy, in order.';

CREATE FUNCTION sayiir.job_release(
    job_id uuid,
    epoch bigint,
    delay interval DEFAULT '0',
    reason text DEFAULT NULL,
    ran boolean DEFAULT false
) RETURNS text
AS 'MODULE_PATHNAME', 'job_release_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.job_release(uuid, bigint, interval, text, boolean) IS 'Gives a lease back: ready (after delay, at most 360 days), or cancelled or paused when that was the directive. ran => false gives the attempt back; ran => true in the last attempt answers dead or held. Errors: job.lease_lost, job.busy.';

CREATE FUNCTION sayiir.job_cancel(job_id uuid, reason text DEFAULT NULL, organization_id text DEFAULT NULL) RETURNS SETOF sayiir.job_change
AS 'MODULE_PATHNAME', 'job_cancel_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 @HOT@;
COMMENT ON FUNCTION sayiir.job_cancel(uuid, text, text) IS 'Cancels a job: cancelled at once when nobody leases it, requested when a worker does (it learns by heartbeat), already_ended. Errors: job.not_found.';

CREATE FUNCTION sayiir.job_requeue(
    job_id uuid,
    expected_run int DEFAULT NULL,
    reset_checkpoints boolean DEFAULT false,
    reason text DEFAULT NULL,
    organization_id text DEFAULT NULL
) RETURNS SETOF sayiir.job_change
AS 'MODULE_PATHNAME', 'job_requeue_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 @HOT@;
COMMENT ON FUNCTION sayiir.job_requeue(uuid, int, boolean, text, text) IS 'Runs a failed, cancelled or held job again as a new run, attempts counted anew. reset_checkpoints: it forgets its checkpoints. reason is kept in the history. Answers requeued, mismatch (not in such a state, or another run_number than expected_run), not_quiet (leased), not_found. Errors: job.not_requeueable for a step that has ended.';

CREATE FUNCTION sayiir.job_result(job_id uuid, timeout interval DEFAULT '0', organization_id text DEFAULT NULL) RETURNS jsonb
AS 'MODULE_PATHNAME', 'job_result_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.job_result(uuid, interval, text) IS 'The output of a succeeded job, waiting at most timeout (0-10 s) for its end. Errors: job.not_found, job.not_ended, job.unsuccessful, wait.too_long.';

CREATE FUNCTION sayiir.job_reap(max_rows int DEFAULT 1000) RETURNS SETOF sayiir.job_disposition
AS 'MODULE_PATHNAME', 'job_reap_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.job_reap(int) IS 'Ends expired leases (at most max_rows, 1-10,000): retry, dead, held or cancelled for each. tick() and claims do this too.';

-- Tasks

CREATE FUNCTION sayiir.task_define(
    task text,
    max_attempts int DEFAULT NULL,
    timeout interval DEFAULT NULL,
    lease interval DEFAULT NULL,
    priority int DEFAULT NULL,
    retry jsonb DEFAULT NULL,
    enabled boolean DEFAULT NULL,
    max_leases int DEFAULT NULL,
    max_rate int DEFAULT NULL,
    rate_period interval DEFAULT NULL,
    organization_id text DEFAULT NULL,
    options jsonb DEFAULT '{}'
) RETURNS SETOF sayiir.task_info
AS 'MODULE_PATHNAME', 'task_define_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 @DEFINER@;
COMMENT ON FUNCTION sayiir.task_define(text, int, interval, interval, int, jsonb, boolean, int, int, interval, text, jsonb) IS 'Sets the defaults of a task''s jobs; NULL keeps what is there. timeout: one attempt''s run time, lease: the silence tolerated, both 1 ms to 30 days. retry: {initial, factor, max, jitter}. A disabled task is not claimed.';

CREATE FUNCTION sayiir.task_pause(task text, organization_id text DEFAULT NULL) RETURNS boolean
AS 'MODULE_PATHNAME', 'task_pause_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @DEFINER@;
COMMENT ON FUNCTION sayiir.task_pause(text, text) IS 'Stops claims of a task until task_resume; leases go on.';

CREATE FUNCTION sayiir.task_resume(task text, organization_id text DEFAULT NULL) RETURNS boolean
AS 'MODULE_PATHNAME', 'task_resume_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @DEFINER@;
COMMENT ON FUNCTION sayiir.task_resume(text, text) IS 'Lets a paused task be claimed again.';

-- Workflows

CREATE FUNCTION sayiir.workflow_define(definition jsonb, activate boolean DEFAULT true, organization_id text DEFAULT NULL) RETURNS SETOF sayiir.defined
AS 'MODULE_PATHNAME', 'workflow_define_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 @DEFINER@;
COMMENT ON FUNCTION sayiir.workflow_define(jsonb, boolean, text) IS 'Registers a definition as a version of its name: created, or existing for the same graph. changes: steps added, removed, changed against the version that was active. Running workflows keep theirs. Errors: definition.invalid (every problem in DETAIL).';

CREATE FUNCTION sayiir.workflow_validate(definition jsonb) RETURNS SETOF sayiir.definition_problem
AS 'MODULE_PATHNAME', 'workflow_validate_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @DEFINER@;
COMMENT ON FUNCTION sayiir.workflow_validate(jsonb) IS 'Every problem of a definition with its JSON pointer; no row = valid.';

CREATE FUNCTION sayiir.definition_schema() RETURNS jsonb
AS 'MODULE_PATHNAME', 'definition_schema_wrapper'
LANGUAGE c STABLE PARALLEL UNSAFE @DEFINER@;
COMMENT ON FUNCTION sayiir.definition_schema() IS 'The JSON Schema (draft 2020-12) of a definition.';

CREATE FUNCTION sayiir.definition_activate(name text, version int, organization_id text DEFAULT NULL) RETURNS boolean
AS 'MODULE_PATHNAME', 'definition_activate_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @DEFINER@;
COMMENT ON FUNCTION sayiir.definition_activate(text, int, text) IS 'Makes a version the one that workflow_start takes. Errors: definition.not_found.';

CREATE FUNCTION sayiir.workflow_start(
    name text,
    input jsonb DEFAULT '{}',
    workflow_id text DEFAULT NULL,
    idempotency_key text DEFAULT NULL,
    active_key text DEFAULT NULL,
    version int DEFAULT NULL,
    run_at timestamptz DEFAULT NULL,
    metadata jsonb DEFAULT '{}',
    trace_parent text DEFAULT NULL,
    on_conflict text DEFAULT 'match',
    organization_id text DEFAULT NULL,
    options jsonb DEFAULT '{}'
) RETURNS SETOF sayiir.started
AS 'MODULE_PATHNAME', 'workflow_start_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 @HOT@;
COMMENT ON FUNCTION sayiir.workflow_start(text, jsonb, text, text, text, int, timestamptz, jsonb, text, text, text, jsonb) IS 'Starts a workflow by name: started, existing (same workflow_id or idempotency_key), existing_active (a live workflow holds active_key). on_conflict: match (another request is refused), fail, use_existing, terminate_existing. run_at: nothing runs before. Errors: definition.not_found, workflow.conflict.';

CREATE FUNCTION sayiir.workflow_start_graph(
    definition jsonb,
    input jsonb DEFAULT '{}',
    workflow_id text DEFAULT NULL,
    idempotency_key text DEFAULT NULL,
    active_key text DEFAULT NULL,
    run_at timestamptz DEFAULT NULL,
    metadata jsonb DEFAULT '{}',
    trace_parent text DEFAULT NULL,
    on_conflict text DEFAULT 'match',
    organization_id text DEFAULT NULL,
    options jsonb DEFAULT '{}'
) RETURNS SETOF sayiir.started
AS 'MODULE_PATHNAME', 'workflow_start_graph_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 @HOT@;
COMMENT ON FUNCTION sayiir.workflow_start_graph(jsonb, jsonb, text, text, text, timestamptz, jsonb, text, text, text, jsonb) IS 'Starts a workflow from a definition that is not registered by name; else as workflow_start. Errors: definition.invalid, workflow.conflict.';

CREATE FUNCTION sayiir.workflow_send_event(
    workflow_id text,
    name text,
    payload jsonb DEFAULT NULL,
    event_key text DEFAULT NULL,
    organization_id text DEFAULT NULL
) RETURNS text
AS 'MODULE_PATHNAME', 'workflow_send_event_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.workflow_send_event(text, text, jsonb, text, text) IS 'Sends an event: resumed (a step waited for it), buffered (kept in order until one waits), early (no such workflow yet; kept), late (it has ended; kept), duplicate (event_key was sent before).';

CREATE FUNCTION sayiir.workflow_cancel(
    workflow_id text,
    reason text DEFAULT NULL,
    requested_by text DEFAULT NULL,
    organization_id text DEFAULT NULL
) RETURNS text
AS 'MODULE_PATHNAME', 'workflow_cancel_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.workflow_cancel(text, text, text, text) IS 'Cancels a workflow: at once everything that is not leased; workers learn by heartbeat. A workflow that has ended stays as it is. Answers the status. Errors: workflow.not_found.';

CREATE FUNCTION sayiir.workflow_pause(
    workflow_id text,
    reason text DEFAULT NULL,
    requested_by text DEFAULT NULL,
    organization_id text DEFAULT NULL
) RETURNS text
AS 'MODULE_PATHNAME', 'workflow_pause_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.workflow_pause(text, text, text, text) IS 'Pauses a workflow: ready jobs stand still, workers learn by heartbeat, clocks run on. Answers the status. Errors: workflow.not_found.';

CREATE FUNCTION sayiir.workflow_resume(workflow_id text, organization_id text DEFAULT NULL) RETURNS text
AS 'MODULE_PATHNAME', 'workflow_resume_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.workflow_resume(text, text) IS 'Lets a paused workflow go on; what came due meanwhile fires. Answers the status. Errors: workflow.not_found.';

CREATE FUNCTION sayiir.workflow_complete_step(
    workflow_id text,
    step text,
    outcome text DEFAULT 'succeeded',
    output jsonb DEFAULT NULL,
    reason text DEFAULT NULL,
    error_code text DEFAULT NULL,
    error_message text DEFAULT NULL,
    organization_id text DEFAULT NULL
) RETURNS SETOF sayiir.completed_step
AS 'MODULE_PATHNAME', 'workflow_complete_step_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 @HOT@;
COMMENT ON FUNCTION sayiir.workflow_complete_step(text, text, text, jsonb, text, text, text, text) IS 'Ends an open step that no worker holds: an event, a delay, a held or waiting task. outcome: succeeded, failed, cancelled. The same completion again answers repeated. Errors: workflow.completion_conflict, workflow.output_conflict, workflow.step_not_found, workflow.step_not_open, workflow.step_leased, workflow.ended.';

CREATE FUNCTION sayiir.workflow_result(workflow_id text, timeout interval DEFAULT '0', organization_id text DEFAULT NULL) RETURNS jsonb
AS 'MODULE_PATHNAME', 'workflow_result_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.workflow_result(text, interval, text) IS 'The result of a succeeded workflow, waiting at most timeout (0-10 s) for its end. Errors, in this order: workflow.not_found, workflow.result_not_declared, workflow.not_committed, workflow.wait_timeout, workflow.unsuccessful, workflow.result_missing; wait.too_long.';

CREATE FUNCTION sayiir.workflow_wait(workflow_id text, timeout interval DEFAULT '10 s', organization_id text DEFAULT NULL) RETURNS text
AS 'MODULE_PATHNAME', 'workflow_wait_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.workflow_wait(text, interval, text) IS 'Waits at most timeout (0-10 s) until the workflow has ended; answers the status then. Errors: workflow.not_found, workflow.not_committed, wait.too_long.';

CREATE FUNCTION sayiir.workflow_delete(workflow_id text, organization_id text DEFAULT NULL) RETURNS boolean
AS 'MODULE_PATHNAME', 'workflow_delete_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.workflow_delete(text, text) IS 'Deletes a finished workflow with its steps, events and history; false when there is none. Errors: workflow.not_finished.';

CREATE FUNCTION sayiir.workflow_lock(workflow_ids text[], organization_id text DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'workflow_lock_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.workflow_lock(text[], text) IS 'Locks several workflows up front, in order, until the transaction ends: for a transaction that calls on several of them. Errors: workflow.not_found.';

-- Engine

CREATE FUNCTION sayiir.tick(max_rows int DEFAULT 1000) RETURNS SETOF sayiir.sweep
AS 'MODULE_PATHNAME', 'tick_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.tick(int) IS 'Runs every sweep once: due timers, expired leases of jobs and effects, cancels that met a busy job, workflow deadlines, schedules, now and then retention; at most max_rows (1-10,000) of each. For any scheduler where the background worker does not run.';

CREATE FUNCTION sayiir.next_due() RETURNS timestamptz
AS 'MODULE_PATHNAME', 'next_due_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.next_due() IS 'When the next timer, lease check (of a job or an effect), workflow deadline or schedule is due; NULL = nothing waits for a time.';

CREATE FUNCTION sayiir.scope_sees(organization_id text, asked text DEFAULT NULL) RETURNS boolean
AS 'MODULE_PATHNAME', 'scope_sees_wrapper'
LANGUAGE c STABLE PARALLEL UNSAFE @DEFINER@;
COMMENT ON FUNCTION sayiir.scope_sees(text, text) IS 'Whether the caller''s scope sees a row of this organization; asked = the call''s organization_id argument.';

CREATE FUNCTION sayiir.cache_reset() RETURNS void
AS 'MODULE_PATHNAME', 'cache_reset_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @DEFINER@;
COMMENT ON FUNCTION sayiir.cache_reset() IS 'Makes every backend forget which roles are bound; called when role_scope changes.';

CREATE FUNCTION sayiir.version() RETURNS text
AS 'MODULE_PATHNAME', 'version_wrapper'
LANGUAGE c STABLE PARALLEL UNSAFE @DEFINER@;
COMMENT ON FUNCTION sayiir.version() IS 'Version of the loaded library.';

CREATE FUNCTION sayiir.error_codes() RETURNS SETOF sayiir.error_code
AS 'MODULE_PATHNAME', 'error_codes_wrapper'
LANGUAGE c STABLE PARALLEL UNSAFE @DEFINER@;
COMMENT ON FUNCTION sayiir.error_codes() IS 'Every error code of the engine, with its SQLSTATE and what to do about it.';
