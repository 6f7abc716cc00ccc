-- Row types of durable code and of the functions on many tasks; see 10_types.sql.

CREATE TYPE sayiir.task_disposition AS (task text, disposition text);
COMMENT ON TYPE sayiir.task_disposition IS 'One line of task_sync: created, updated, unchanged, disabled.';

CREATE TYPE sayiir.event_answer AS (disposition text, payload jsonb);
COMMENT ON TYPE sayiir.event_answer IS 'Answer of job_await_event: received (with the payload), timed_out, or parked (stop: the lease has ended).';

CREATE TYPE sayiir.child_answer AS (disposition text, output jsonb, error jsonb);
COMMENT ON TYPE sayiir.child_answer IS 'Answer of job_await_job: received (with the output of a child that succeeded, or the error {status, code, message} of one that did not), timed_out, or parked (stop: the lease has ended).';
