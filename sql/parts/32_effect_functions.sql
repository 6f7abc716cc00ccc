-- Effects: the functions in the library.

-- Everyday

CREATE FUNCTION sayiir.effect_begin(
    name text,
    logical_key text,
    kind text,
    owner text,
    ttl interval DEFAULT '30 s',
    input jsonb DEFAULT NULL,
    execution_contract jsonb DEFAULT NULL,
    organization_id text DEFAULT NULL
) RETURNS SETOF sayiir.effect_begun
AS 'MODULE_PATHNAME', 'effect_begin_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 @HOT@;
COMMENT ON FUNCTION sayiir.effect_begin(text, text, text, text, interval, jsonb, jsonb, text) IS 'Asks for an effect, known by (name, logical_key), and leases it when it is to be done now. decision: run (the attempt is recorded: commit, act with idempotency_key, then effect_finish or effect_fail with owner, lease_epoch and version), verify (ask the outside system, then effect_finish, effect_fail or effect_transition), replay (it is over: see status, output, last_error), in_progress, wait (until next_attempt_at), awaiting_approval, needs_intervention. ttl: 1 ms to 30 days. execution_contract: any of remote_idempotency, verification, handler_version, adapter, require_approval, automatic_retry, max_attempts; it never changes. Warns inside a transaction block: the attempt must be committed before the act. Errors: effect.mismatch (the same key for another input, kind or contract), argument.*.';

CREATE FUNCTION sayiir.effect_finish(
    id uuid,
    owner text,
    epoch bigint,
    version bigint,
    output jsonb DEFAULT NULL
) RETURNS SETOF sayiir.effect_record
AS 'MODULE_PATHNAME', 'effect_finish_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 @HOT@;
COMMENT ON FUNCTION sayiir.effect_finish(uuid, text, bigint, bigint, jsonb) IS 'What was done under the lease worked: the attempt succeeded, the check confirmed, or the undoing is done. Gives the lease back. The same call by the same lease is answered again. Errors: effect.lease_lost, effect.version_conflict, effect.invalid_transition, effect.not_found.';

CREATE FUNCTION sayiir.effect_fail(
    id uuid,
    owner text,
    epoch bigint,
    version bigint,
    class text,
    message text,
    next_attempt_at timestamptz DEFAULT NULL
) RETURNS SETOF sayiir.effect_record
AS 'MODULE_PATHNAME', 'effect_fail_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 @HOT@;
COMMENT ON FUNCTION sayiir.effect_fail(uuid, text, bigint, bigint, text, text, timestamptz) IS 'What was done under the lease did not work. class: transient, rate_limited (not applied, try again), permanent, authentication, authorization, validation (not applied, stop), ambiguous (it may have been applied). What follows is the contract''s: pending (again at next_attempt_at, which may be asked for later, never earlier), failed, unknown, needs_intervention, compensation_failed. Gives the lease back. Errors: as effect_finish.';

CREATE FUNCTION sayiir.effect_assert_lease(id uuid, owner text, epoch bigint) RETURNS void
AS 'MODULE_PATHNAME', 'effect_assert_lease_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.effect_assert_lease(uuid, text, bigint) IS 'Fences the caller''s own writes: fails unless the lease is live, and keeps it from being taken over until the transaction ends. Errors: effect.lease_lost, effect.not_found.';

CREATE FUNCTION sayiir.effect_claim_due(
    owner text,
    names text[] DEFAULT NULL,
    max_rows int DEFAULT 10,
    ttl interval DEFAULT '30 s',
    organization_id text DEFAULT NULL
) RETURNS SETOF sayiir.effect_record
AS 'MODULE_PATHNAME', 'effect_claim_due_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.effect_claim_due(text, text[], int, interval, text) IS 'Leases up to max_rows (1-1000) effects that are due and that nobody holds: pending, unknown or compensating. Those that a person has to approve first are left alone. Go on with effect_transition.';

-- For people

CREATE FUNCTION sayiir.effect_resolve(
    id uuid,
    resolution text,
    actor text,
    note text DEFAULT NULL,
    output jsonb DEFAULT NULL,
    organization_id text DEFAULT NULL
) RETURNS SETOF sayiir.effect_record
AS 'MODULE_PATHNAME', 'effect_resolve_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 @HOT@;
COMMENT ON FUNCTION sayiir.effect_resolve(uuid, text, text, text, jsonb, text) IS 'What a person found out about an effect that is unknown, needs intervention or could not be undone. resolution: applied (with its output), not_applied, retry (also beyond the budget), compensated. Errors: effect.lease_held, effect.invalid_transition, effect.not_found.';

CREATE FUNCTION sayiir.effect_approve(
    id uuid,
    actor text,
    note text DEFAULT NULL,
    organization_id text DEFAULT NULL
) RETURNS SETOF sayiir.effect_record
AS 'MODULE_PATHNAME', 'effect_approve_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 @HOT@;
COMMENT ON FUNCTION sayiir.effect_approve(uuid, text, text, text) IS 'Agrees to an effect that awaits approval; the next effect_begin runs it. Errors: effect.lease_held, effect.invalid_transition, effect.not_found.';

CREATE FUNCTION sayiir.effect_deny(
    id uuid,
    actor text,
    note text DEFAULT NULL,
    organization_id text DEFAULT NULL
) RETURNS SETOF sayiir.effect_record
AS 'MODULE_PATHNAME', 'effect_deny_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 @HOT@;
COMMENT ON FUNCTION sayiir.effect_deny(uuid, text, text, text) IS 'Refuses an effect that awaits approval: it ends rejected, with the note as its error. Errors: effect.lease_held, effect.invalid_transition, effect.not_found.';

CREATE FUNCTION sayiir.effect_supersede(
    id uuid,
    actor text,
    note text DEFAULT NULL,
    organization_id text DEFAULT NULL
) RETURNS SETOF sayiir.effect_record
AS 'MODULE_PATHNAME', 'effect_supersede_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 @HOT@;
COMMENT ON FUNCTION sayiir.effect_supersede(uuid, text, text, text) IS 'Frees the key of an effect that failed or was rejected, so that it can be begun anew. The old record stays, with who did it and why; the key for outside systems stays the same. Errors: effect.not_supersedable, effect.lease_held, effect.not_found.';

-- Raw: one function an operation of the EffectStore

CREATE FUNCTION sayiir.effect_insert_or_get(
    name text,
    logical_key text,
    kind text,
    id uuid DEFAULT NULL,
    input jsonb DEFAULT NULL,
    input_fingerprint text DEFAULT NULL,
    execution_contract jsonb DEFAULT NULL,
    input_schema_version bigint DEFAULT 1,
    created_by text DEFAULT NULL,
    organization_id text DEFAULT NULL,
    caller_now timestamptz DEFAULT NULL
) RETURNS SETOF sayiir.effect_inserted
AS 'MODULE_PATHNAME', 'effect_insert_or_get_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 @HOT@;
COMMENT ON FUNCTION sayiir.effect_insert_or_get(text, text, text, uuid, jsonb, text, jsonb, bigint, text, text, timestamptz) IS 'Records an effect as pending, or answers the one that has the key already, untouched and whatever it is. Errors: effect.id_conflict (the id belongs to another key), argument.*.';

CREATE FUNCTION sayiir.effect_acquire_lease(
    id uuid,
    owner text,
    ttl_ms bigint,
    organization_id text DEFAULT NULL,
    caller_now timestamptz DEFAULT NULL
) RETURNS SETOF sayiir.effect_lease
AS 'MODULE_PATHNAME', 'effect_acquire_lease_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 @HOT@;
COMMENT ON FUNCTION sayiir.effect_acquire_lease(uuid, text, bigint, text, timestamptz) IS 'Takes the lease if nobody, not even the same owner, holds a live one. Errors: effect.lease_held (owner, expires_at_ms), effect.not_found.';

CREATE FUNCTION sayiir.effect_renew_lease(
    id uuid,
    owner text,
    epoch bigint,
    ttl_ms bigint,
    caller_now timestamptz DEFAULT NULL
) RETURNS SETOF sayiir.effect_lease
AS 'MODULE_PATHNAME', 'effect_renew_lease_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 @HOT@;
COMMENT ON FUNCTION sayiir.effect_renew_lease(uuid, text, bigint, bigint, timestamptz) IS 'Moves the end of a live lease. An expired one does not come back. Errors: effect.lease_lost (reason, current_epoch), effect.not_found.';

CREATE FUNCTION sayiir.effect_release_lease(id uuid, owner text, epoch bigint) RETURNS boolean
AS 'MODULE_PATHNAME', 'effect_release_lease_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.effect_release_lease(uuid, text, bigint) IS 'Gives a lease back, expired or not; false when it is not this one''s any more. Errors: effect.not_found.';

CREATE FUNCTION sayiir.effect_transition(
    id uuid,
    expected_version bigint,
    transition text,
    lease_owner text DEFAULT NULL,
    lease_epoch bigint DEFAULT NULL,
    output jsonb DEFAULT NULL,
    output_schema_version bigint DEFAULT NULL,
    error jsonb DEFAULT NULL,
    next_attempt_at timestamptz DEFAULT NULL,
    actor text DEFAULT NULL,
    payload jsonb DEFAULT NULL,
    organization_id text DEFAULT NULL,
    caller_now timestamptz DEFAULT NULL
) RETURNS SETOF sayiir.effect_record
AS 'MODULE_PATHNAME', 'effect_transition_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 @HOT@;
COMMENT ON FUNCTION sayiir.effect_transition(uuid, bigint, text, text, bigint, jsonb, bigint, jsonb, timestamptz, text, jsonb, text, timestamptz) IS 'Applies one transition of effect_transitions(), with the lease or while nobody holds one. Checked in this order: effect.not_found, effect.lease_lost or effect.lease_held, effect.version_conflict, effect.invalid_transition (reason: table, or may_have_applied: it cannot fail, because an earlier attempt may have applied it).';

CREATE FUNCTION sayiir.effect_list(
    statuses text[] DEFAULT '{}',
    unleased boolean DEFAULT false,
    after uuid DEFAULT NULL,
    max_rows bigint DEFAULT 100,
    organization_id text DEFAULT NULL,
    caller_now timestamptz DEFAULT NULL
) RETURNS SETOF sayiir.effect_record
AS 'MODULE_PATHNAME', 'effect_list_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.effect_list(text[], boolean, uuid, bigint, text, timestamptz) IS 'Effects in order of id. statuses: {} = any. unleased: only those without a live lease, and those locked by others are skipped.';

CREATE FUNCTION sayiir.effect_prune(
    status text,
    older_than_ms bigint,
    max_rows bigint DEFAULT 500,
    organization_id text DEFAULT NULL,
    caller_now timestamptz DEFAULT NULL
) RETURNS bigint
AS 'MODULE_PATHNAME', 'effect_prune_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.effect_prune(text, bigint, bigint, text, timestamptz) IS 'Deletes up to max_rows effects of a settled status (committed, failed, rejected, compensated) whose last transition is so old and that nobody holds, lowest id first, with their trails and observations; answers how many. 0 for any other status. A deleted key can be used again.';

CREATE FUNCTION sayiir.effect_append_observation(
    id uuid,
    effect_id uuid,
    observation jsonb,
    organization_id text DEFAULT NULL
) RETURNS boolean
AS 'MODULE_PATHNAME', 'effect_append_observation_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.effect_append_observation(uuid, uuid, jsonb, text) IS 'Stores what a worker saw after it had lost its lease; false when this id is there already. Nothing follows from it. Errors: effect.not_found.';

-- Rules

CREATE FUNCTION sayiir.effect_idempotency_key(
    name text,
    logical_key text,
    compensation boolean DEFAULT false,
    organization_id text DEFAULT NULL
) RETURNS uuid
AS 'MODULE_PATHNAME', 'effect_idempotency_key_wrapper'
LANGUAGE c STABLE PARALLEL UNSAFE @DEFINER@;
COMMENT ON FUNCTION sayiir.effect_idempotency_key(text, text, boolean, text) IS 'The key to pass on to the outside system: the same for every attempt, another one for undoing (compensation) and for each organization.';

CREATE FUNCTION sayiir.effect_fingerprint(input jsonb) RETURNS text
AS 'MODULE_PATHNAME', 'effect_fingerprint_wrapper'
LANGUAGE c IMMUTABLE PARALLEL UNSAFE @DEFINER@;
COMMENT ON FUNCTION sayiir.effect_fingerprint(jsonb) IS 'sha256: and the hash of the canonical JSON of an input; NULL for NULL.';

CREATE FUNCTION sayiir.effect_transitions() RETURNS SETOF sayiir.effect_move
AS 'MODULE_PATHNAME', 'effect_transitions_wrapper'
LANGUAGE c IMMUTABLE PARALLEL UNSAFE @DEFINER@;
COMMENT ON FUNCTION sayiir.effect_transitions() IS 'The legal pairs of status and transition.';
