-- Every column of the tables in 22_durable_tables.sql.

COMMENT ON COLUMN sayiir.checkpoint.job_id IS 'The job.';
COMMENT ON COLUMN sayiir.checkpoint.name IS 'As its code gave it.';
COMMENT ON COLUMN sayiir.checkpoint.kind IS 'What it remembers: value (job_checkpoint), sleep (job_sleep), event (job_await_event), spawn (job_spawn), child (job_await_job).';
COMMENT ON COLUMN sayiir.checkpoint.value IS 'The answer, as claimed_job.checkpoints gives it; NULL = asked and not answered yet.';
COMMENT ON COLUMN sayiir.checkpoint.due IS 'When a sleep ends or a wait times out, set by the first call; NULL = never.';
COMMENT ON COLUMN sayiir.checkpoint.child IS 'The job that was spawned or is waited for; NULL = another kind.';
COMMENT ON COLUMN sayiir.checkpoint.epoch IS 'The lease that wrote it or asked; a job that waits has the same epoch in job_wait.';
COMMENT ON COLUMN sayiir.checkpoint.created_at IS 'When it was first written or asked.';

COMMENT ON COLUMN sayiir.job_log_entry.id IS 'Order of arrival; pages are read by it.';
COMMENT ON COLUMN sayiir.job_log_entry.job_id IS 'The job.';
COMMENT ON COLUMN sayiir.job_log_entry.run_number IS 'The run, from 1.';
COMMENT ON COLUMN sayiir.job_log_entry.attempt IS 'Which claim of the run, from 1.';
COMMENT ON COLUMN sayiir.job_log_entry.epoch IS 'Of the lease that wrote it.';
COMMENT ON COLUMN sayiir.job_log_entry.level IS 'As the worker said.';
COMMENT ON COLUMN sayiir.job_log_entry.message IS 'As the worker said.';
COMMENT ON COLUMN sayiir.job_log_entry.fields IS 'As the worker said, an object.';
COMMENT ON COLUMN sayiir.job_log_entry.at IS 'When.';
