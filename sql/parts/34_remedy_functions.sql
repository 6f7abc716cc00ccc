-- Functions with which people put stand-alone jobs right, in the library.

CREATE FUNCTION sayiir.job_replay(
    job_id uuid,
    request_key text,
    reason text DEFAULT NULL,
    organization_id text DEFAULT NULL
) RETURNS SETOF sayiir.job_change
AS 'MODULE_PATHNAME', 'job_replay_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 @HOT@;
COMMENT ON FUNCTION sayiir.job_replay(uuid, text, text, text) IS 'Does a stand-alone job that has ended again as a new job: replayed with the new job_id, or existing for the same request_key (at most 400 bytes). reason is kept in the new job''s history. Errors: job.not_found, job.not_ended, job.is_step, job.idempotency_conflict (another reason under the key).';

CREATE FUNCTION sayiir.job_delete(job_id uuid, organization_id text DEFAULT NULL) RETURNS boolean
AS 'MODULE_PATHNAME', 'job_delete_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.job_delete(uuid, text) IS 'Deletes a stand-alone job that has ended, with its attempts, checkpoints, log and events; false when there is none. Its idempotency_key is free again. Errors: job.not_ended, job.is_step.';

CREATE FUNCTION sayiir.job_amend(job_id uuid, payload jsonb, organization_id text DEFAULT NULL) RETURNS text
AS 'MODULE_PATHNAME', 'job_amend_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.job_amend(uuid, jsonb, text) IS 'Gives a stand-alone job another payload: amended (a ready job goes to the end of its lane), claimed (a worker has had it), keyed (its idempotency_key stands for its payload), ended. Errors: job.not_found, job.is_step.';

CREATE FUNCTION sayiir.dead_letters_requeue(
    task text DEFAULT NULL,
    error_code text DEFAULT NULL,
    since timestamptz DEFAULT NULL,
    max_rows int DEFAULT 1000,
    organization_id text DEFAULT NULL
) RETURNS SETOF uuid
AS 'MODULE_PATHNAME', 'dead_letters_requeue_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.dead_letters_requeue(text, text, timestamptz, int, text) IS 'Runs failed stand-alone jobs again as job_requeue does, the oldest failures first, at most max_rows (1-10,000): of a task, with an error code, failed since a time. Answers their job_ids; one that another session holds is left out.';
