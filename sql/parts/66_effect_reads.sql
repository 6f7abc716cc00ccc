-- Functions and views that only read the ledger.

CREATE FUNCTION sayiir.effect_get(id uuid, organization_id text = NULL) RETURNS SETOF sayiir.effect_record
LANGUAGE sql STABLE ROWS 1 SECURITY DEFINER SET search_path = pg_catalog, sayiir, pg_temp AS $$
    -- effect_pkey
    SELECT
        e.id, e.effect_name, e.logical_key, e.kind::text, e.status::text, e.input, e.input_fingerprint, e.output, e.last_error,
        e.created_by, e.attempt_count, e.may_have_applied, e.compensation_attempts, e.approved, e.next_attempt_at,
        e.attempt_started_at, e.attempt_ended_at, e.lease_owner, e.lease_epoch, e.lease_expires_at, e.version, e.created_at,
        e.updated_at, e.committed_at, e.execution_contract, e.input_schema_version, e.output_schema_version
    FROM sayiir.effect e
    WHERE e.id = effect_get.id AND sayiir.scope_sees(e.organization_id, effect_get.organization_id)
$$;
COMMENT ON FUNCTION sayiir.effect_get IS 'The effect; no row if there is none.';

CREATE FUNCTION sayiir.effect_get_by_key(name text, logical_key text, organization_id text = NULL) RETURNS SETOF sayiir.effect_record
LANGUAGE sql STABLE ROWS 1 SECURITY DEFINER SET search_path = pg_catalog, sayiir, pg_temp AS $$
    -- effect_key, leading columns
    SELECT
        e.id, e.effect_name, e.logical_key, e.kind::text, e.status::text, e.input, e.input_fingerprint, e.output, e.last_error,
        e.created_by, e.attempt_count, e.may_have_applied, e.compensation_attempts, e.approved, e.next_attempt_at,
        e.attempt_started_at, e.attempt_ended_at, e.lease_owner, e.lease_epoch, e.lease_expires_at, e.version, e.created_at,
        e.updated_at, e.committed_at, e.execution_contract, e.input_schema_version, e.output_schema_version
    FROM sayiir.effect e
    WHERE e.logical_key = effect_get_by_key.logical_key AND e.effect_name = effect_get_by_key.name AND e.superseded_at IS NULL
        AND sayiir.scope_sees(e.organization_id, effect_get_by_key.organization_id)
$$;
COMMENT ON FUNCTION sayiir.effect_get_by_key IS 'The effect that holds the key; no row if there is none.';

CREATE FUNCTION sayiir.effect_events(id uuid, organization_id text = NULL) RETURNS SETOF sayiir.effect_event_info
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, sayiir, pg_temp AS $$
    -- effect_pkey, effect_event_pkey
    SELECT v.effect_id, v.sequence, v.transition, v.from_status::text, v.to_status::text, v.attempt, v.actor, v.payload, v.at
    FROM sayiir.effect e JOIN sayiir.effect_event v ON v.effect_id = e.id
    WHERE e.id = effect_events.id AND sayiir.scope_sees(e.organization_id, effect_events.organization_id)
    ORDER BY v.sequence
$$;
COMMENT ON FUNCTION sayiir.effect_events IS 'The audit trail of an effect, in order; no row if there is no such effect.';

CREATE FUNCTION sayiir.effect_observations(effect_id uuid, after uuid = NULL, max_rows bigint = 100, organization_id text = NULL)
RETURNS SETOF sayiir.effect_observation_info
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, sayiir, pg_temp AS $$
    -- effect_pkey, effect_observation_effect
    SELECT o.id, o.effect_id, o.observation
    FROM sayiir.effect e JOIN sayiir.effect_observation o ON o.effect_id = e.id
    WHERE e.id = effect_observations.effect_id
        AND sayiir.scope_sees(e.organization_id, effect_observations.organization_id)
        AND (effect_observations.after IS NULL OR o.id > effect_observations.after)
    ORDER BY o.id
    LIMIT greatest(effect_observations.max_rows, 0)
$$;
COMMENT ON FUNCTION sayiir.effect_observations IS 'What workers saw after they had lost their lease, in order of id.';

CREATE FUNCTION sayiir.effect_check(max_rows int = 1000) RETURNS SETOF sayiir.effect_problem
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, sayiir, pg_temp AS $$
    WITH legal AS MATERIALIZED (SELECT * FROM sayiir.effect_transitions()),
    trail AS (
        SELECT
            v.*,
            lag(v.to_status, 1, 'pending') OVER own AS expected_from,
            row_number() OVER own AS expected_sequence
        FROM sayiir.effect_event v
        WINDOW own AS (PARTITION BY v.effect_id ORDER BY v.sequence)),
    total AS (
        SELECT
            t.effect_id,
            count(*) AS events,
            (array_agg(t.to_status ORDER BY t.sequence DESC))[1] AS last_status,
            count(*) FILTER (WHERE t.transition = 'effect.attempt_started') AS attempts,
            bool_or(t.transition = 'effect.approved') AS approved,
            max(t.at) FILTER (WHERE t.to_status = 'committed') AS committed_at
        FROM trail t
        GROUP BY t.effect_id)
    SELECT t.effect_id, 'trail has a gap', jsonb_build_object('sequence', t.sequence, 'expected', t.expected_sequence)
    FROM trail t WHERE t.sequence <> t.expected_sequence
    UNION ALL
    SELECT t.effect_id, 'trail does not connect', jsonb_build_object('sequence', t.sequence, 'from', t.from_status, 'expected', t.expected_from)
    FROM trail t WHERE t.from_status <> t.expected_from
    UNION ALL
    SELECT t.effect_id, 'transition is not legal', jsonb_build_object('sequence', t.sequence, 'from', t.from_status, 'transition', t.transition, 'to', t.to_status)
    FROM trail t
    WHERE NOT EXISTS (
        SELECT FROM legal l
        WHERE l.from_status = t.from_status::text AND l.event_name = t.transition AND l.to_status = t.to_status::text)
    UNION ALL
    SELECT t.effect_id, 'trail of no effect', jsonb_build_object('events', t.events)
    FROM total t WHERE NOT EXISTS (SELECT FROM sayiir.effect e WHERE e.id = t.effect_id)
    UNION ALL
    SELECT e.id, 'status is not where the trail ends', jsonb_build_object('status', e.status, 'trail', coalesce(t.last_status, 'pending'))
    FROM sayiir.effect e LEFT JOIN total t ON t.effect_id = e.id
    WHERE e.status <> coalesce(t.last_status, 'pending')
    UNION ALL
    SELECT e.id, 'version is not the number of events', jsonb_build_object('version', e.version, 'trail', coalesce(t.events, 0))
    FROM sayiir.effect e LEFT JOIN total t ON t.effect_id = e.id
    WHERE e.version <> coalesce(t.events, 0)
    UNION ALL
    SELECT e.id, 'attempts do not add up', jsonb_build_object('attempt_count', e.attempt_count, 'trail', coalesce(t.attempts, 0))
    FROM sayiir.effect e LEFT JOIN total t ON t.effect_id = e.id
    WHERE e.attempt_count <> coalesce(t.attempts, 0)
    UNION ALL
    SELECT e.id, 'approval is not in the trail', jsonb_build_object('approved', e.approved)
    FROM sayiir.effect e LEFT JOIN total t ON t.effect_id = e.id
    WHERE e.approved <> coalesce(t.approved, false)
    UNION ALL
    SELECT e.id, 'commit time is not in the trail', jsonb_build_object('committed_at', e.committed_at, 'trail', t.committed_at)
    FROM sayiir.effect e LEFT JOIN total t ON t.effect_id = e.id
    WHERE e.committed_at IS DISTINCT FROM t.committed_at
    UNION ALL
    SELECT e.id, 'failed, but it may have been applied', NULL
    FROM sayiir.effect e
    WHERE e.status = 'failed' AND e.may_have_applied AND e.kind <> 'read'
    UNION ALL
    SELECT o.effect_id, 'observation of no effect', jsonb_build_object('observation', o.id)
    FROM sayiir.effect_observation o WHERE NOT EXISTS (SELECT FROM sayiir.effect e WHERE e.id = o.effect_id)
    LIMIT greatest(effect_check.max_rows, 0)
$$;
COMMENT ON FUNCTION sayiir.effect_check IS 'Replays every trail and compares it with its record; at most max_rows contradictions. No row = the ledger is sound. It reads everything.';

CREATE VIEW sayiir.effects_pending WITH (security_barrier) AS
-- effect_status
SELECT
    e.id,
    e.organization_id,
    e.effect_name,
    e.logical_key,
    e.kind::text AS kind,
    e.status::text AS status,
    CASE
        WHEN e.status IN ('needs_intervention', 'compensation_failed') THEN 'resolution'
        WHEN e.status = 'awaiting_approval' THEN 'approval'
        WHEN e.lease_owner IS NOT NULL AND e.lease_expires_at > clock_timestamp() THEN 'worker'
        WHEN e.next_attempt_at > clock_timestamp() THEN 'time'
        ELSE 'claim'
    END AS waits_for,
    e.updated_at AS since,
    e.may_have_applied,
    e.attempt_count,
    e.compensation_attempts,
    e.next_attempt_at,
    e.lease_owner,
    e.lease_expires_at,
    e.last_error ->> 'message' AS last_error,
    e.version
FROM sayiir.effect e
WHERE e.status IN (
        'pending', 'awaiting_approval', 'executing', 'unknown', 'verifying', 'needs_intervention', 'compensating', 'compensation_failed')
    AND sayiir.scope_sees(e.organization_id);
COMMENT ON VIEW sayiir.effects_pending IS 'Every effect that is not settled. waits_for: resolution (effect_resolve), approval (effect_approve, effect_deny), worker (somebody holds it), time (next_attempt_at), claim (the next effect_begin or effect_claim_due).';
