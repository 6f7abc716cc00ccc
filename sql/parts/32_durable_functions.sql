-- Functions of durable code, in the library: a job remembers what it was told, under the names that its code gives.

CREATE FUNCTION sayiir.job_checkpoint(job_id uuid, epoch bigint, name text, value jsonb) RETURNS void
AS 'MODULE_PATHNAME', 'job_checkpoint_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.job_checkpoint(uuid, bigint, text, jsonb) IS 'Remembers a value under a name (the last one counts); later attempts get it in claimed_job.checkpoints. It does not extend the lease. Errors: job.lease_lost, job.checkpoint_conflict (the name remembers something else).';

CREATE FUNCTION sayiir.job_log(job_id uuid, epoch bigint, level text, message text, fields jsonb DEFAULT '{}') RETURNS void
AS 'MODULE_PATHNAME', 'job_log_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.job_log(uuid, bigint, text, text, jsonb) IS 'Writes a line to the log of a job: level is any name (debug, info, warn, error), fields an object. Read it in the view job_logs. Errors: job.lease_lost.';
