-- Effects: stored words, and the rows of the functions.
CREATE TYPE sayiir.effect_state AS ENUM (
    'pending', 'awaiting_approval', 'executing', 'unknown', 'verifying', 'committed', 'failed', 'rejected',
    'needs_intervention', 'compensating', 'compensated', 'compensation_failed');
COMMENT ON TYPE sayiir.effect_state IS 'Where an effect stands. Settled: committed, failed, rejected, compensated.';

CREATE TYPE sayiir.effect_kind AS ENUM ('read', 'idempotent_write', 'reversible_write', 'irreversible_write');
COMMENT ON TYPE sayiir.effect_kind IS 'What repeating the outside operation does.';

CREATE TYPE sayiir.effect_record AS (
    id uuid, effect_name text, logical_key text, kind text, status text, input jsonb, input_fingerprint text, output jsonb,
    last_error jsonb, created_by text, attempt_count int, may_have_applied boolean, compensation_attempts int, approved boolean,
    next_attempt_at timestamptz, attempt_started_at timestamptz, attempt_ended_at timestamptz, lease_owner text, lease_epoch bigint,
    lease_expires_at timestamptz, version bigint, created_at timestamptz, updated_at timestamptz, committed_at timestamptz,
    execution_contract jsonb, input_schema_version bigint, output_schema_version bigint
);
COMMENT ON TYPE sayiir.effect_record IS 'An effect. Times have millisecond precision. output: SQL NULL = none, JSON null = an output that is null.';
COMMENT ON COLUMN sayiir.effect_record.may_have_applied IS 'An attempt may have applied it, and nothing has shown otherwise since.';
COMMENT ON COLUMN sayiir.effect_record.lease_epoch IS 'The fencing token: grows with every acquisition.';
COMMENT ON COLUMN sayiir.effect_record.version IS 'Counts transitions; leases do not change it.';
COMMENT ON COLUMN sayiir.effect_record.updated_at IS 'When the last transition was.';

CREATE TYPE sayiir.effect_inserted AS (
    inserted boolean,
    id uuid, effect_name text, logical_key text, kind text, status text, input jsonb, input_fingerprint text, output jsonb,
    last_error jsonb, created_by text, attempt_count int, may_have_applied boolean, compensation_attempts int, approved boolean,
    next_attempt_at timestamptz, attempt_started_at timestamptz, attempt_ended_at timestamptz, lease_owner text, lease_epoch bigint,
    lease_expires_at timestamptz, version bigint, created_at timestamptz, updated_at timestamptz, committed_at timestamptz,
    execution_contract jsonb, input_schema_version bigint, output_schema_version bigint
);
COMMENT ON TYPE sayiir.effect_inserted IS 'An effect_record, and whether this call made it.';

CREATE TYPE sayiir.effect_begun AS (
    decision text, idempotency_key uuid,
    id uuid, effect_name text, logical_key text, kind text, status text, input jsonb, input_fingerprint text, output jsonb,
    last_error jsonb, created_by text, attempt_count int, may_have_applied boolean, compensation_attempts int, approved boolean,
    next_attempt_at timestamptz, attempt_started_at timestamptz, attempt_ended_at timestamptz, lease_owner text, lease_epoch bigint,
    lease_expires_at timestamptz, version bigint, created_at timestamptz, updated_at timestamptz, committed_at timestamptz,
    execution_contract jsonb, input_schema_version bigint, output_schema_version bigint
);
COMMENT ON TYPE sayiir.effect_begun IS 'An effect_record with what to do (decision) and the key to pass on to the outside system.';

CREATE TYPE sayiir.effect_lease AS (effect_id uuid, owner text, epoch bigint, expires_at timestamptz);
COMMENT ON TYPE sayiir.effect_lease IS 'A lease on an effect. Pass (effect_id, owner, epoch) to every later call.';

CREATE TYPE sayiir.effect_event_info AS (
    effect_id uuid, sequence bigint, transition text, from_status text, to_status text, attempt int, actor text, payload jsonb,
    at timestamptz
);
COMMENT ON TYPE sayiir.effect_event_info IS 'One transition of an effect. sequence = the version after it; attempt = the attempt count after it.';

CREATE TYPE sayiir.effect_move AS (from_status text, transition text, event_name text, to_status text);
COMMENT ON TYPE sayiir.effect_move IS 'One legal pair of status and transition, and where it leads. transition and event_name are both accepted.';

CREATE TYPE sayiir.effect_observation_info AS (id uuid, effect_id uuid, observation jsonb);
COMMENT ON TYPE sayiir.effect_observation_info IS 'What a worker saw after it had lost its lease: evidence for people, never authority.';

CREATE TYPE sayiir.effect_problem AS (effect_id uuid, problem text, detail jsonb);
COMMENT ON TYPE sayiir.effect_problem IS 'One contradiction between a record and its trail.';
