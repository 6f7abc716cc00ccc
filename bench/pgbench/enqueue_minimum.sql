WITH record AS (
    INSERT INTO minimum.job (job_id, task, lane, payload, max_attempts, retry_initial_us, retry_factor, retry_max_us,
        retry_jitter, lease_us, created_at, history_seq)
    VALUES (gen_random_uuid(), 'bench', 1,
        '{"n": 1, "text": "a payload of about one hundred bytes, as small jobs have: an id, a name and a path or two"}',
        5, 1000000, 2, 3600000000, 0.1, 60000000, clock_timestamp(), nextval('minimum.history_seq'))
    RETURNING job_id, lane)
INSERT INTO minimum.job_ready (job_id, lane, seq, run_number, attempt, epoch)
SELECT job_id, lane, nextval('minimum.ready_seq'), 1, 0, 0 FROM record;
