"""Effects seen from outside: what the tests of the ledger share."""

import uuid

from psycopg.types.json import Jsonb

from jobs import SQLSTATES, call, one

WORKER = "w"

SQLSTATES |= {
    "effect.not_found": "P0002",
    "effect.lease_held": "55P03",
    "effect.lease_lost": "55000",
    "effect.version_conflict": "55000",
    "effect.invalid_transition": "55000",
    "effect.mismatch": "23505",
    "effect.id_conflict": "23505",
    "effect.not_supersedable": "55000",
    "effect.caller_clock_denied": "42501",
}


def a_key():
    """A logical key that no other test uses."""
    return f"key-{uuid.uuid4().hex[:12]}"


def begin(conn, key, kind="irreversible_write", owner=WORKER, **named):
    return one(conn, "effect_begin", "pay", key, kind, owner, **named)


def running(conn, key=None, **named):
    """A new effect whose first attempt has begun."""
    effect = begin(conn, key or a_key(), **named)
    assert effect.decision == "run"
    return effect


def held(effect):
    """The arguments that name its lease and version."""
    return effect.id, effect.lease_owner, effect.lease_epoch, effect.version


def finish(conn, effect, output=None):
    return one(conn, "effect_finish", *held(effect), Jsonb(output))


def fail(conn, effect, class_="transient", message="broken", **named):
    return one(conn, "effect_fail", *held(effect), class_, message, **named)


def get(conn, effect):
    return one(conn, "effect_get", effect.id)


def transition(conn, effect, name, **named):
    """A raw transition of the effect as it is now."""
    now = get(conn, effect)
    return one(conn, "effect_transition", now.id, now.version, name, **named)


def trail(conn, effect):
    """The transitions of an effect, without their prefix."""
    return [event.transition.removeprefix("effect.") for event in call(conn, "effect_events", effect.id)]


def expire(conn, *effects):
    """Time passes for the leases of these effects until they have expired."""
    conn.execute(
        "UPDATE sayiir.effect SET lease_expires_at = clock_timestamp() - interval '1 second',"
        " check_at = least(check_at, clock_timestamp() - interval '1 second') WHERE id = ANY (%s)",
        [[effect.id for effect in effects]],
    )


def fall_due(conn, *effects):
    """Time passes until the next attempt of these effects may start."""
    conn.execute(
        "UPDATE sayiir.effect SET next_attempt_at = clock_timestamp() - interval '1 second' WHERE id = ANY (%s)",
        [[effect.id for effect in effects]],
    )


def assert_sound(conn):
    """Every trail leads to its record."""
    assert call(conn, "effect_check") == []
