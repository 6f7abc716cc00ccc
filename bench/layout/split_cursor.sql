SELECT greatest(last_value - 64, 0) AS mark FROM split.mark \gset
WITH picked AS MATERIALIZED (
    SELECT ctid AS row_id FROM split.job_ready WHERE lane = 1 AND seq >= :mark ORDER BY lane, seq LIMIT 1 FOR UPDATE SKIP LOCKED),
taken AS (
    DELETE FROM split.job_ready r USING picked p WHERE r.ctid = p.row_id
    RETURNING r.job_id, r.lane, setval('split.mark', r.seq), r.run_number, r.attempt + 1 AS attempt, r.epoch + 1 AS epoch),
leased AS (
    INSERT INTO split.job_lease (job_id, lane, worker, epoch, run_number, attempt, lease_us, started_at, expires_at, check_at)
    SELECT job_id, lane, 'worker', epoch, run_number, attempt, 60000000, clock_timestamp(), clock_timestamp() + '60 s',
        clock_timestamp() + '60 s'
    FROM taken)
SELECT t.job_id, t.epoch, j.task, j.payload FROM taken t JOIN split.job j USING (job_id) \gset
WITH gone AS (DELETE FROM split.job_lease WHERE job_id = :job_id AND epoch = :epoch RETURNING *)
INSERT INTO split.job_end (job_id, state, output, worker, epoch, run_number, attempt, started_at, ended_at, history_seq)
SELECT job_id, 'succeeded', '{"done": true}', worker, epoch, run_number, attempt, started_at, clock_timestamp(),
    nextval('split.history_seq')
FROM gone;
