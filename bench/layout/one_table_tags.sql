WITH picked AS (
    SELECT job_id FROM one_table.job WHERE status = 'ready' AND lane = 1 AND tags <@ '{mine}' ORDER BY lane, seq LIMIT 1
    FOR UPDATE SKIP LOCKED)
UPDATE one_table.job j SET status = 'leased', worker = 'worker', epoch = epoch + 1, attempt = attempt + 1,
    started_at = clock_timestamp(), expires_at = clock_timestamp() + '60 s'
FROM picked p WHERE j.job_id = p.job_id RETURNING j.job_id, j.epoch, j.task, j.payload \gset
UPDATE one_table.job SET status = 'succeeded', output = '{"done": true}', ended_at = clock_timestamp(), expires_at = NULL
WHERE job_id = :job_id AND epoch = :epoch AND status = 'leased';
