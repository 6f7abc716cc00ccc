-- Functions on many tasks, in the library.

CREATE FUNCTION sayiir.task_sync(tasks jsonb, exact boolean DEFAULT false, organization_id text DEFAULT NULL) RETURNS SETOF sayiir.task_disposition
AS 'MODULE_PATHNAME', 'task_sync_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @DEFINER@;
COMMENT ON FUNCTION sayiir.task_sync(jsonb, boolean, text) IS 'Sets many tasks at once: an array of {task, max_attempts, timeout, lease, priority, retry, enabled, options}, intervals as text. Unlike task_define, a field that is left out is the engine''s default again; enabled stays as it is, and paused always does. exact: these are all the tasks there are; a task without the field is enabled, and every other task of the organization is disabled. Answers created, updated, unchanged, disabled, in order of task.';
