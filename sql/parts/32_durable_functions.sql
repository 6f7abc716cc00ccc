-- Functions of durable code, in the library: a job remembers what it was told, under the names that its code gives.

CREATE FUNCTION sayiir.job_checkpoint(job_id uuid, epoch bigint, name text, value jsonb) RETURNS void
AS 'MODULE_PATHNAME', 'job_checkpoint_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.job_checkpoint(uuid, bigint, text, jsonb) IS 'Remembers a value under a name (the last one counts); later attempts get it in claimed_job.checkpoints. It does not extend the lease. Errors: job.lease_lost, job.checkpoint_conflict (the name remembers something else).';

CREATE FUNCTION sayiir.job_log(job_id uuid, epoch bigint, level text, message text, fields jsonb DEFAULT '{}') RETURNS void
AS 'MODULE_PATHNAME', 'job_log_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.job_log(uuid, bigint, text, text, jsonb) IS 'Writes a line to the log of a job: level is any name (debug, info, warn, error), fields an object. Read it in the view job_logs. Errors: job.lease_lost.';

CREATE FUNCTION sayiir.job_sleep(
    job_id uuid,
    epoch bigint,
    name text,
    delay interval DEFAULT NULL,
    until timestamptz DEFAULT NULL
) RETURNS text
AS 'MODULE_PATHNAME', 'job_sleep_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.job_sleep(uuid, bigint, text, interval, timestamptz) IS 'Sleeps for delay, or until a time, counted from the first call under this name. Answers elapsed (go on), or parked: stop, the lease has ended; the job comes back with its checkpoints, its attempt not counted. Errors: job.lease_lost, job.busy, job.checkpoint_conflict.';

CREATE FUNCTION sayiir.job_await_event(
    job_id uuid,
    epoch bigint,
    name text,
    event text DEFAULT NULL,
    timeout interval DEFAULT NULL
) RETURNS SETOF sayiir.event_answer
AS 'MODULE_PATHNAME', 'job_await_event_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 @HOT@;
COMMENT ON FUNCTION sayiir.job_await_event(uuid, bigint, text, text, interval) IS 'Waits for an event (default: called as the name), sent by job_send_event, or to the workflow of a step. The name remembers the answer: received or timed_out; or parked: stop, the lease has ended, and the job comes back when the event is there. timeout counts from the first call; 0 = look once. Errors: job.lease_lost, job.busy, job.checkpoint_conflict.';

CREATE FUNCTION sayiir.job_spawn(
    job_id uuid,
    epoch bigint,
    name text,
    task text,
    payload jsonb DEFAULT '{}',
    options jsonb DEFAULT '{}'
) RETURNS SETOF sayiir.enqueued_job
AS 'MODULE_PATHNAME', 'job_spawn_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 @HOT@;
COMMENT ON FUNCTION sayiir.job_spawn(uuid, bigint, text, text, jsonb, jsonb) IS 'Enqueues a child job, once under this name: inserted, or existing. The child is a stand-alone job of the same organization; a cancel of its parent cancels it. options as job_enqueue, and priority, run_at, max_attempts, tags, trace_parent (default: the parent''s). Errors: job.lease_lost, job.cancelled, job.checkpoint_conflict, and those of job_enqueue.';

CREATE FUNCTION sayiir.job_await_job(
    job_id uuid,
    epoch bigint,
    name text,
    child_id uuid,
    timeout interval DEFAULT NULL
) RETURNS SETOF sayiir.child_answer
AS 'MODULE_PATHNAME', 'job_await_job_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 @HOT@;
COMMENT ON FUNCTION sayiir.job_await_job(uuid, bigint, text, uuid, interval) IS 'Waits for the end of a job that this job spawned. The name remembers the answer: received (output, or error {status, code, message}) or timed_out; or parked: stop, the lease has ended, and the job comes back when the child has ended. timeout counts from the first call. Errors: job.not_found, job.not_child, job.lease_lost, job.busy, job.checkpoint_conflict.';

CREATE FUNCTION sayiir.job_continue(
    job_id uuid,
    epoch bigint,
    delay interval DEFAULT '0',
    checkpoints jsonb DEFAULT NULL
) RETURNS SETOF sayiir.job_change
AS 'MODULE_PATHNAME', 'job_continue_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 @HOT@;
COMMENT ON FUNCTION sayiir.job_continue(uuid, bigint, interval, jsonb) IS 'Ends the run and begins a new one after delay (at most 360 days): run_number + 1, attempts counted anew. checkpoints: an object that the new run begins with; NULL = what job_checkpoint set stays, remembered sleeps, events and children are forgotten. Answers continued, or cancelled when a cancel came first. Errors: job.lease_lost, job.busy, job.continue_not_allowed (a step without allow_continue).';

CREATE FUNCTION sayiir.job_send_event(
    job_id uuid,
    name text,
    payload jsonb DEFAULT NULL,
    event_key text DEFAULT NULL,
    organization_id text DEFAULT NULL
) RETURNS text
AS 'MODULE_PATHNAME', 'job_send_event_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.job_send_event(uuid, text, jsonb, text, text) IS 'Sends an event to a stand-alone job: resumed (it waited for it), buffered (kept in order until it does), late (it has ended; kept), duplicate (event_key was sent before). Errors: job.not_found, job.is_step (send it to the workflow).';
