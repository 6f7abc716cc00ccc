-- The ledger of outside side effects.

CREATE TABLE sayiir.effect (
    id uuid PRIMARY KEY,
    organization_id text,
    effect_name text NOT NULL,
    logical_key text NOT NULL,
    kind sayiir.effect_kind NOT NULL,
    status sayiir.effect_state NOT NULL,
    input jsonb,
    input_fingerprint text,
    output jsonb,
    last_error jsonb,
    created_by text,
    attempt_count int NOT NULL,
    may_have_applied boolean NOT NULL,
    compensation_attempts int NOT NULL,
    approved boolean NOT NULL,
    next_attempt_at timestamptz,
    attempt_started_at timestamptz,
    attempt_ended_at timestamptz,
    lease_owner text,
    lease_epoch bigint NOT NULL,
    lease_expires_at timestamptz,
    version bigint NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    committed_at timestamptz,
    execution_contract jsonb,
    input_schema_version bigint NOT NULL,
    output_schema_version bigint NOT NULL,
    check_at timestamptz,
    superseded_at timestamptz,
    superseded_by text,
    supersede_note text
) WITH (fillfactor = 70);
COMMENT ON TABLE sayiir.effect IS 'One outside side effect a row. No index has a column that a lease changes, so acquiring, renewing and releasing stay HOT.';
CREATE UNIQUE INDEX effect_key ON sayiir.effect (logical_key, effect_name, organization_id) NULLS NOT DISTINCT WHERE superseded_at IS NULL;
CREATE INDEX effect_status ON sayiir.effect (status, id);
CREATE INDEX effect_due ON sayiir.effect (coalesce(next_attempt_at, '-infinity'), id) WHERE status IN ('pending', 'unknown', 'compensating');
CREATE INDEX effect_check_at ON sayiir.effect (check_at) WHERE check_at IS NOT NULL;

COMMENT ON COLUMN sayiir.effect.id IS 'UUIDv7: the order of creation.';
COMMENT ON COLUMN sayiir.effect.organization_id IS 'The tenant; NULL = global.';
COMMENT ON COLUMN sayiir.effect.effect_name IS 'What is done: the first half of its identity.';
COMMENT ON COLUMN sayiir.effect.logical_key IS 'For what it is done: the second half.';
COMMENT ON COLUMN sayiir.effect.kind IS 'What repeating it does.';
COMMENT ON COLUMN sayiir.effect.status IS 'Where it stands.';
COMMENT ON COLUMN sayiir.effect.input IS 'As the caller wants it stored; NULL = not stored.';
COMMENT ON COLUMN sayiir.effect.input_fingerprint IS 'Tells whether a later call means the same; NULL = there is no input.';
COMMENT ON COLUMN sayiir.effect.output IS 'SQL NULL = none; JSON null = an output that is null.';
COMMENT ON COLUMN sayiir.effect.last_error IS '{"class", "message"}; kept after a success.';
COMMENT ON COLUMN sayiir.effect.created_by IS 'As the caller said.';
COMMENT ON COLUMN sayiir.effect.attempt_count IS 'Attempts started.';
COMMENT ON COLUMN sayiir.effect.may_have_applied IS 'An attempt may have applied it, and nothing has shown otherwise since.';
COMMENT ON COLUMN sayiir.effect.compensation_attempts IS 'Attempts at undoing it.';
COMMENT ON COLUMN sayiir.effect.approved IS 'A person has agreed; it is not asked again.';
COMMENT ON COLUMN sayiir.effect.next_attempt_at IS 'When the next attempt may start; NULL = now.';
COMMENT ON COLUMN sayiir.effect.attempt_started_at IS 'When the last attempt started.';
COMMENT ON COLUMN sayiir.effect.attempt_ended_at IS 'When the last attempt was last known to run.';
COMMENT ON COLUMN sayiir.effect.lease_owner IS 'Who holds it, or held it last; NULL = it was given back.';
COMMENT ON COLUMN sayiir.effect.lease_epoch IS 'Grows with every acquisition.';
COMMENT ON COLUMN sayiir.effect.lease_expires_at IS 'When the lease runs out.';
COMMENT ON COLUMN sayiir.effect.version IS 'Transitions so far.';
COMMENT ON COLUMN sayiir.effect.created_at IS 'When it was recorded.';
COMMENT ON COLUMN sayiir.effect.updated_at IS 'When the last transition was.';
COMMENT ON COLUMN sayiir.effect.committed_at IS 'When it was known to be applied; kept when it is undone.';
COMMENT ON COLUMN sayiir.effect.execution_contract IS 'The assumptions it was recorded with; NULL = none were given.';
COMMENT ON COLUMN sayiir.effect.input_schema_version IS 'Of the input.';
COMMENT ON COLUMN sayiir.effect.output_schema_version IS 'Of the output.';
COMMENT ON COLUMN sayiir.effect.check_at IS 'When the sweep has to look whether its worker is still alive; only transitions and the sweep move it. NULL = it is not in flight.';
COMMENT ON COLUMN sayiir.effect.superseded_at IS 'When a person freed its key for a new effect; NULL = it holds its key.';
COMMENT ON COLUMN sayiir.effect.superseded_by IS 'Who.';
COMMENT ON COLUMN sayiir.effect.supersede_note IS 'Why.';

CREATE TABLE sayiir.effect_event (
    effect_id uuid NOT NULL,
    sequence bigint NOT NULL,
    transition text NOT NULL,
    from_status sayiir.effect_state NOT NULL,
    to_status sayiir.effect_state NOT NULL,
    attempt int NOT NULL,
    actor text,
    payload jsonb,
    at timestamptz NOT NULL,
    PRIMARY KEY (effect_id, sequence)
);
COMMENT ON TABLE sayiir.effect_event IS 'Append-only: the audit trail, one row a transition.';
COMMENT ON COLUMN sayiir.effect_event.effect_id IS 'The effect.';
COMMENT ON COLUMN sayiir.effect_event.sequence IS 'Its version after the transition.';
COMMENT ON COLUMN sayiir.effect_event.transition IS 'The name in the trail, such as effect.attempt_started.';
COMMENT ON COLUMN sayiir.effect_event.from_status IS 'Before.';
COMMENT ON COLUMN sayiir.effect_event.to_status IS 'After.';
COMMENT ON COLUMN sayiir.effect_event.attempt IS 'The attempt count after it.';
COMMENT ON COLUMN sayiir.effect_event.actor IS 'Who: a person, or recovery:<worker>; NULL = the worker of the effect.';
COMMENT ON COLUMN sayiir.effect_event.payload IS 'The particulars.';
COMMENT ON COLUMN sayiir.effect_event.at IS 'When.';

CREATE TABLE sayiir.effect_observation (
    id uuid PRIMARY KEY,
    effect_id uuid NOT NULL,
    observation jsonb NOT NULL
);
COMMENT ON TABLE sayiir.effect_observation IS 'Append-only: what workers saw after they had lost their lease. Evidence for people; nothing follows from it.';
CREATE INDEX effect_observation_effect ON sayiir.effect_observation (effect_id, id);
COMMENT ON COLUMN sayiir.effect_observation.id IS 'Chosen by the worker: the same observation twice is stored once.';
COMMENT ON COLUMN sayiir.effect_observation.effect_id IS 'The effect.';
COMMENT ON COLUMN sayiir.effect_observation.observation IS 'What it saw.';

DO $dump$
DECLARE
    relation oid;
BEGIN
    FOR relation IN
        SELECT c.oid FROM pg_catalog.pg_class c
        WHERE c.relnamespace = 'sayiir'::pg_catalog.regnamespace AND c.relkind IN ('r', 'S')
            AND c.relname IN ('effect', 'effect_event', 'effect_observation')
    LOOP
        PERFORM pg_catalog.pg_extension_config_dump(relation, '');
    END LOOP;
END
$dump$;
