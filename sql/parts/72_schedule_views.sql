CREATE VIEW sayiir.schedules WITH (security_barrier) AS
SELECT
    s.name,
    s.organization_id,
    s.cron,
    s.timezone,
    s.task,
    s.workflow,
    s.payload,
    s.missed,
    s.skipped_time,
    s.doubled_time,
    s.overlap,
    s.jitter_us * interval '1 microsecond' AS jitter,
    s.options,
    s.paused,
    s.next_at,
    s.due,
    s.last_at,
    s.last_job,
    s.last_workflow,
    s.created_at,
    s.updated_at
FROM sayiir.schedule s
WHERE sayiir.scope_sees(s.organization_id);
COMMENT ON VIEW sayiir.schedules IS 'Every schedule. One whose due has passed is late: nobody sweeps, or it could not be fired, and the server''s log says why.';
COMMENT ON COLUMN sayiir.schedules.next_at IS 'The time that its expression names next; NULL = paused.';
COMMENT ON COLUMN sayiir.schedules.due IS 'When that fires, jitter included.';
COMMENT ON COLUMN sayiir.schedules.last_at IS 'The last tick that fired; NULL = none yet.';
