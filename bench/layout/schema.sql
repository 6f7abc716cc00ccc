-- Two layouts of one queue. one_table: a row is updated from ready to leased to succeeded. split: a record that never changes, and
-- ready, lease and end rows that come and go. Both have lanes, so both find the head of a queue by one index.

DROP SCHEMA IF EXISTS one_table CASCADE;
DROP SCHEMA IF EXISTS split CASCADE;
CREATE SCHEMA one_table;
CREATE SCHEMA split;

CREATE TABLE one_table.job (
    job_id uuid PRIMARY KEY,
    lane bigint NOT NULL,
    seq bigint NOT NULL,
    task text NOT NULL,
    tags text[] NOT NULL DEFAULT '{}',
    payload jsonb NOT NULL,
    max_attempts int NOT NULL DEFAULT 5,
    retry_initial_us bigint NOT NULL DEFAULT 1000000,
    retry_factor float8 NOT NULL DEFAULT 2,
    retry_max_us bigint NOT NULL DEFAULT 3600000000,
    retry_jitter float8 NOT NULL DEFAULT 0.1,
    lease_us bigint NOT NULL DEFAULT 60000000,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    status text NOT NULL DEFAULT 'ready',
    worker text,
    epoch bigint NOT NULL DEFAULT 0,
    attempt int NOT NULL DEFAULT 0,
    started_at timestamptz,
    expires_at timestamptz,
    output jsonb,
    error_code text,
    ended_at timestamptz
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX ON one_table.job (lane, seq) WHERE status = 'ready';
CREATE INDEX ON one_table.job (expires_at) WHERE status = 'leased';
CREATE INDEX ON one_table.job (ended_at, job_id) WHERE status = 'failed';

CREATE TABLE split.job (LIKE sayiir.job INCLUDING ALL);
CREATE TABLE split.job_ready (LIKE sayiir.job_ready INCLUDING ALL);
CREATE TABLE split.job_lease (LIKE sayiir.job_lease INCLUDING ALL);
CREATE TABLE split.job_end (LIKE sayiir.job_end INCLUDING ALL);
-- Autovacuum's settings are not copied by LIKE.
ALTER TABLE split.job_ready SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE split.job_lease SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE SEQUENCE split.history_seq;
-- The claim cursor: the highest seq claimed.
CREATE SEQUENCE split.mark MINVALUE 0;
