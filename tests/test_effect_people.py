"""What people do with effects, and what becomes of those whose worker died."""

import json
from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb

from effects import (
    WORKER,
    a_key,
    assert_sound,
    begin,
    expire,
    fail,
    finish,
    get,
    running,
    trail,
    transition,
)
from jobs import call, no_worker, one, refused, value  # noqa: F401
from listening import Listener

pytestmark = pytest.mark.usefixtures("no_worker")

APPROVAL = Jsonb({"require_approval": True})


def doubtful(conn):
    """An effect that may have been applied, for a person to find out."""
    effect = running(conn)
    assert fail(conn, effect, "ambiguous").status == "needs_intervention"
    return effect


def last_event(conn, effect):
    return call(conn, "effect_events", effect.id)[-1]


def waits_for(conn, effect):
    row = conn.execute("SELECT waits_for FROM sayiir.effects_pending WHERE id = %s", [effect.id]).fetchone()
    return row and row[0]


def tick(conn):
    return dict(call(conn, "tick"))["effects"]


@pytest.mark.parametrize(
    ("resolution", "status", "event"),
    [
        ("applied", "committed", "resolved_applied"),
        ("not_applied", "failed", "resolved_not_applied"),
        ("retry", "pending", "resolved_retry"),
    ],
)
def test_a_person_finds_out(conn, resolution, status, event):
    effect = doubtful(conn)
    assert waits_for(conn, effect) == "resolution"
    assert begin(conn, effect.logical_key).decision == "needs_intervention"
    output = {"output": Jsonb({"seen": 1})} if resolution == "applied" else {}
    resolved = one(conn, "effect_resolve", effect.id, resolution, "ann", "looked it up", **output)
    assert (resolved.status, resolved.output) == (status, {"seen": 1} if output else None)
    assert trail(conn, effect)[-1] == event
    assert (last_event(conn, effect).actor, last_event(conn, effect).payload) == ("ann", {"note": "looked it up"})
    if resolution == "not_applied":
        assert resolved.last_error == {"class": None, "message": "looked it up"}
    decisions = {"applied": "replay", "not_applied": "replay", "retry": "run"}
    assert begin(conn, effect.logical_key).decision == decisions[resolution]
    assert_sound(conn)


def test_a_resolution_has_to_fit(conn):
    effect = doubtful(conn)
    with refused("effect.invalid_transition"):
        one(conn, "effect_resolve", effect.id, "compensated", "ann")
    for arguments, argument in [(["odd", "ann"], "resolution"), (["retry", ""], "actor")]:
        with refused("argument.invalid") as detail:
            one(conn, "effect_resolve", effect.id, *arguments)
        assert detail.argument == argument
    with refused("argument.invalid"):
        one(conn, "effect_resolve", effect.id, "retry", "ann", output=Jsonb(1))
    one(conn, "effect_acquire_lease", effect.id, "somebody", 30_000)
    with refused("effect.lease_held") as detail:
        one(conn, "effect_resolve", effect.id, "retry", "ann")
    assert detail.owner == "somebody"


def test_a_person_may_go_beyond_the_budget(conn):
    once = Jsonb({"max_attempts": 1})
    effect = running(conn, execution_contract=once)
    fail(conn, effect, "ambiguous")
    one(conn, "effect_resolve", effect.id, "retry", "ann")
    assert begin(conn, effect.logical_key, execution_contract=once).attempt_count == 2


def test_approval_comes_first(conn):
    key = a_key()
    effect = begin(conn, key, execution_contract=APPROVAL)
    assert (effect.decision, effect.attempt_count) == ("awaiting_approval", 0)
    assert waits_for(conn, effect) == "approval"
    approved = one(conn, "effect_approve", effect.id, "ann", "fine")
    assert (approved.status, approved.approved) == ("pending", True)
    assert waits_for(conn, effect) == "claim"
    ran = begin(conn, key, execution_contract=APPROVAL)
    assert (ran.decision, waits_for(conn, effect)) == ("run", "worker")
    assert trail(conn, effect) == ["approval_requested", "approved", "attempt_started"]
    with refused("effect.lease_held"):
        one(conn, "effect_approve", effect.id, "ann")
    assert_sound(conn)


def test_a_denied_effect_ends(conn):
    key = a_key()
    effect = begin(conn, key, execution_contract=APPROVAL)
    denied = one(conn, "effect_deny", effect.id, "ann", "too much")
    assert (denied.status, denied.last_error["message"]) == ("rejected", "too much")
    assert begin(conn, key, execution_contract=APPROVAL).decision == "replay"
    assert waits_for(conn, effect) is None


def test_a_failed_key_is_freed_and_its_record_stays(conn):
    key = a_key()
    effect = running(conn, key)
    fail(conn, effect, "permanent", "no such card")
    old = one(conn, "effect_supersede", effect.id, "ann", "card was replaced")
    assert (old.id, old.status) == (effect.id, "failed")
    assert call(conn, "effect_get_by_key", "pay", key) == []
    again = begin(conn, key)
    assert (again.decision, again.attempt_count, again.id != effect.id) == ("run", 1, True)
    assert again.idempotency_key == effect.idempotency_key
    query = "SELECT superseded_by, supersede_note, superseded_at IS NOT NULL FROM sayiir.effect WHERE id = %s"
    assert conn.execute(query, [effect.id]).fetchone() == ("ann", "card was replaced", True)
    for one_of, status in [(effect, "failed"), (again, "executing")]:
        if one_of is again:
            expire(conn, again)
        with refused("effect.not_supersedable") as detail:
            one(conn, "effect_supersede", one_of.id, "ann")
        assert detail.status == status
    assert_sound(conn)


def test_retention_is_by_status(conn):
    effects = {}
    for status in ["committed", "failed"]:
        effects[status] = running(conn)
    finish(conn, effects["committed"])
    fail(conn, effects["failed"], "permanent")
    open_one = running(conn)
    one(conn, "effect_append_observation", uuid4(), effects["failed"].id, Jsonb({}))
    assert one(conn, "effect_prune", "failed", 3_600_000) == 0
    assert one(conn, "effect_prune", "executing", 0) == 0
    assert one(conn, "effect_prune", "failed", 2**63 - 1) == 0
    assert one(conn, "effect_prune", "failed", 0) >= 1
    assert call(conn, "effect_get", effects["failed"].id) == []
    for table in ["effect_event", "effect_observation"]:
        assert value(conn, f"SELECT count(*) FROM sayiir.{table} WHERE effect_id = %s", effects["failed"].id) == 0
    assert get(conn, effects["committed"]).status == "committed"
    assert get(conn, open_one).status == "executing"
    assert begin(conn, effects["failed"].logical_key).decision == "run", "the key is free again"


def test_the_check_finds_what_does_not_fit(conn):
    effect = running(conn)
    finish(conn, effect)
    assert_sound(conn)
    for change, problem in [
        ("UPDATE sayiir.effect SET status = 'failed' WHERE id = %s", "status is not where the trail ends"),
        ("UPDATE sayiir.effect SET version = 7 WHERE id = %s", "version is not the number of events"),
        ("UPDATE sayiir.effect SET attempt_count = 2 WHERE id = %s", "attempts do not add up"),
        ("UPDATE sayiir.effect SET approved = true WHERE id = %s", "approval is not in the trail"),
        ("UPDATE sayiir.effect SET committed_at = NULL WHERE id = %s", "commit time is not in the trail"),
        ("DELETE FROM sayiir.effect_event WHERE sequence = 1 AND effect_id = %s", "trail has a gap"),
        ("UPDATE sayiir.effect_event SET from_status = 'unknown' WHERE sequence = 2 AND effect_id = %s", "trail does not connect"),
        ("UPDATE sayiir.effect_event SET transition = 'effect.denied' WHERE sequence = 2 AND effect_id = %s", "transition is not legal"),
        ("DELETE FROM sayiir.effect WHERE id = %s", "trail of no effect"),
    ]:
        with conn.transaction(force_rollback=True):
            conn.execute(change, [effect.id])
            found = [row.problem for row in call(conn, "effect_check") if row.effect_id == effect.id]
            assert problem in found
            assert len(call(conn, "effect_check", 0)) == 0
    assert_sound(conn)


# Recovery


def test_tick_finds_the_dead(conn):
    tick(conn)
    dead, alive, checking = running(conn), running(conn), running(conn)
    done = running(conn)
    finish(conn, done)
    expire(conn, dead)
    transition(conn, checking, "start_verification", lease_owner=WORKER, lease_epoch=1)
    expire(conn, checking)
    # Its check is due, but it was renewed.
    conn.execute("UPDATE sayiir.effect SET check_at = clock_timestamp() WHERE id = %s", [alive.id])
    assert tick(conn) == 2
    for effect in [dead, checking]:
        recovered = get(conn, effect)
        assert (recovered.status, recovered.may_have_applied) == ("unknown", True)
        assert (last_event(conn, effect).actor, trail(conn, effect)[-1]) == ("recovery:tick", "lease_expired")
        with refused("effect.lease_lost"):
            finish(conn, effect)
    assert get(conn, dead).attempt_ended_at == get(conn, dead).updated_at
    assert get(conn, checking).attempt_ended_at < get(conn, checking).updated_at
    assert get(conn, alive).status == "executing"
    check = "SELECT check_at = lease_expires_at FROM sayiir.effect WHERE id = %s"
    assert value(conn, check, alive.id)
    assert tick(conn) == 0
    assert_sound(conn)


def test_tick_leaves_what_others_change_for_the_next_time(connect):
    conn, other = connect(), connect()
    effect = running(conn)
    expire(conn, effect)
    with other.transaction():
        other.execute("SELECT FROM sayiir.effect WHERE id = %s FOR UPDATE", [effect.id])
        assert tick(conn) == 0
    assert tick(conn) == 1


def test_the_end_is_told(connect):
    conn, listener = connect(), Listener(connect(), "sayiir_effect")

    def told(effect, status):
        wanted = {"id": str(effect.id), "status": status}
        listener.wait(lambda seen: wanted in map(json.loads, seen))

    effect = running(conn)
    with conn.transaction(force_rollback=True):
        finish(conn, effect)
    finish(conn, effect)
    told(effect, "committed")
    assert len(listener.payloads) == 1, "neither the beginning nor what was rolled back"
    effect = doubtful(conn)
    told(effect, "needs_intervention")
    one(conn, "effect_resolve", effect.id, "not_applied", "ann")
    told(effect, "failed")


def test_a_dump_has_the_ledger(cluster, db, conn):
    effect = running(conn)
    dump = cluster.client("pg_dump", "--data-only", db)
    assert str(effect.id) in dump
    for table in ["effect", "effect_event", "effect_observation"]:
        assert f"COPY sayiir.{table} " in dump
