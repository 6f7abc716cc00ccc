WITH picked AS MATERIALIZED (
    SELECT ctid AS row_id FROM minimum.job_ready WHERE lane = :lane ORDER BY lane, seq LIMIT 1 FOR UPDATE SKIP LOCKED),
taken AS (
    DELETE FROM minimum.job_ready r USING picked p WHERE r.ctid = p.row_id
    RETURNING r.job_id, r.workflow, r.lane, r.run_number, r.attempt + 1 AS attempt, r.epoch + 1 AS epoch),
leased AS (
    INSERT INTO minimum.job_lease (job_id, workflow, lane, worker, epoch, run_number, attempt, lease_us, started_at, expires_at, check_at)
    SELECT job_id, workflow, lane, 'worker', epoch, run_number, attempt, 60000000, clock_timestamp(), clock_timestamp() + '60 s',
        clock_timestamp() + '60 s'
    FROM taken)
SELECT t.job_id, t.epoch, j.task, j.payload FROM taken t JOIN minimum.job j USING (job_id) \gset
WITH gone AS (DELETE FROM minimum.job_lease WHERE job_id = :job_id AND epoch = :epoch RETURNING *),
ended AS (
    INSERT INTO minimum.job_end (job_id, state, output, worker, epoch, run_number, attempt, started_at, ended_at, history_seq)
    SELECT job_id, 'succeeded', '{"done": true}', worker, epoch, run_number, attempt, started_at, clock_timestamp(),
        nextval('minimum.history_seq')
    FROM gone),
next AS (
    INSERT INTO minimum.job (job_id, workflow, step, task, lane, payload, max_attempts, retry_initial_us, retry_factor,
        retry_max_us, retry_jitter, lease_us, created_at, history_seq)
    SELECT gen_random_uuid(), workflow, 'step' || nextval('minimum.history_seq'), 'bench', lane,
        '{"before": {"status": "succeeded", "output": {"done": true}, "error": null}}', 5, 1000000, 2, 3600000000, 0.1, 60000000,
        clock_timestamp(), nextval('minimum.history_seq')
    FROM gone
    RETURNING job_id, workflow, lane)
INSERT INTO minimum.job_ready (job_id, workflow, lane, seq, run_number, attempt, epoch)
SELECT job_id, workflow, lane, nextval('minimum.ready_seq'), 1, 0, 0 FROM next;
