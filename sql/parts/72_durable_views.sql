-- Views on what durable code and workers leave with a job; see 70_views.sql.

CREATE VIEW sayiir.job_logs WITH (security_barrier) AS
-- job_log_entry_job serves WHERE job_id = … AND log_id > … ORDER BY log_id LIMIT …
SELECT
    g.job_id,
    g.id AS log_id,
    j.organization_id,
    j.task,
    j.step,
    g.run_number,
    g.attempt,
    g.epoch,
    g.level,
    g.message,
    g.fields,
    g.at
FROM sayiir.job_log_entry g
JOIN sayiir.job j ON j.job_id = g.job_id
WHERE sayiir.scope_sees(j.organization_id);
COMMENT ON VIEW sayiir.job_logs IS 'What workers logged with job_log. Pages: WHERE job_id = … AND log_id > (the last one seen) ORDER BY log_id LIMIT ….';
COMMENT ON COLUMN sayiir.job_logs.log_id IS 'Order of arrival; pass the last one on for the next page.';
