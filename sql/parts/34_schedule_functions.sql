-- Schedules

CREATE FUNCTION sayiir.schedule_define(
    name text,
    cron text,
    task text DEFAULT NULL,
    workflow text DEFAULT NULL,
    payload jsonb DEFAULT '{}',
    timezone text DEFAULT 'UTC',
    missed text DEFAULT 'last',
    skipped_time text DEFAULT 'next',
    doubled_time text DEFAULT 'first',
    overlap text DEFAULT 'allow',
    jitter interval DEFAULT '0',
    organization_id text DEFAULT NULL,
    options jsonb DEFAULT '{}'
) RETURNS SETOF sayiir.schedule_info
AS 'MODULE_PATHNAME', 'schedule_define_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 @DEFINER@;
COMMENT ON FUNCTION sayiir.schedule_define(text, text, text, text, jsonb, text, text, text, text, text, interval, text, jsonb) IS 'Makes or changes the schedule of this name: it enqueues a job of task, or starts workflow, with this payload. cron: minute hour day month weekday, or six fields with seconds in front; if day and weekday are both given, either will do; L, W and # as in Quartz. The times are those of timezone (IANA). skipped_time: a local time that does not exist fires when the clock has jumped (next) or not (drop); doubled_time: one that comes twice fires the first time (first) or both times (both); an expression that names every hour runs by elapsed time instead. missed: of ticks that nobody fired in time, the last one fires (last), every one (all), or the last one if it is at most a grace late (skip). overlap skip: no tick fires while what the last one started has not ended. jitter (up to a day): a tick fires up to so much later, always equally much. The job''s idempotency_key, or the workflow_id, is <name>/<time in UTC>. options: priority, tags, max_attempts (jobs), version (workflows), grace (an interval as text, default 2 minutes). Ticks go on where they were unless cron, timezone, skipped_time or doubled_time changes. Errors: schedule.invalid_cron, schedule.unknown_timezone, definition.not_found, task.not_found and task.disabled (sayiir.strict_tasks), argument.*.';

CREATE FUNCTION sayiir.schedule_delete(name text, organization_id text DEFAULT NULL) RETURNS boolean
AS 'MODULE_PATHNAME', 'schedule_delete_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @DEFINER@;
COMMENT ON FUNCTION sayiir.schedule_delete(text, text) IS 'Deletes a schedule; what it has started goes on. false when there is none.';

CREATE FUNCTION sayiir.schedule_pause(name text, organization_id text DEFAULT NULL) RETURNS boolean
AS 'MODULE_PATHNAME', 'schedule_pause_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @DEFINER@;
COMMENT ON FUNCTION sayiir.schedule_pause(text, text) IS 'Stops a schedule until schedule_resume; false when it was paused already. Errors: schedule.not_found.';

CREATE FUNCTION sayiir.schedule_resume(name text, organization_id text DEFAULT NULL) RETURNS boolean
AS 'MODULE_PATHNAME', 'schedule_resume_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @DEFINER@;
COMMENT ON FUNCTION sayiir.schedule_resume(text, text) IS 'Lets a paused schedule go on from now: the ticks of the pause do not count as missed. false when it was not paused. Errors: schedule.not_found.';

CREATE FUNCTION sayiir.schedule_run(name text, organization_id text DEFAULT NULL) RETURNS SETOF sayiir.schedule_fired
AS 'MODULE_PATHNAME', 'schedule_run_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 @HOT@;
COMMENT ON FUNCTION sayiir.schedule_run(text, text) IS 'Fires a schedule now, also a paused one, beside its ticks: started, or skipped (overlap). Errors: schedule.not_found.';

CREATE FUNCTION sayiir.schedule_next(
    cron text,
    timezone text DEFAULT 'UTC',
    after timestamptz DEFAULT NULL,
    fires int DEFAULT 5
) RETURNS SETOF timestamptz
AS 'MODULE_PATHNAME', 'schedule_next_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 5 @DEFINER@;
COMMENT ON FUNCTION sayiir.schedule_next(text, text, timestamptz, int) IS 'The next 1-1000 times after a time (default: now) that a schedule with these would fire, with skipped_time next and doubled_time first. Errors: schedule.invalid_cron, schedule.unknown_timezone.';
