"""Effects and the background worker: it finds the dead by itself, and tells what ended."""

import json

from effects import WORKER, assert_sound, finish, get, running, trail
from jobs import one, value
from listening import Listener, notifier
from support import wait_until


def test_an_effect_whose_worker_fell_silent_is_found_without_a_call(conn):
    silent = running(conn, ttl="50 ms")
    wait_until(lambda: get(conn, silent).status == "unknown")
    assert trail(conn, silent) == ["attempt_started", "lease_expired"]
    assert_sound(conn)


def test_a_renewed_lease_is_left_alone(conn):
    renewed = running(conn, ttl="300 ms")
    one(conn, "effect_renew_lease", renewed.id, WORKER, 1, 600_000)
    # The check was due when the first lease would have ended.
    moved = "SELECT check_at = lease_expires_at FROM sayiir.effect WHERE id = %s"
    wait_until(lambda: value(conn, moved, renewed.id))
    assert get(conn, renewed).status == "executing"


def test_the_notifier_tells_what_ended(cluster, db, connect):
    conn, listener = connect(), Listener(connect(), "sayiir_effect")
    with notifier(cluster, db) as pid:
        effect = running(conn)
        finish(conn, effect)
        wanted = {"id": str(effect.id), "status": "committed"}
        listener.wait(lambda seen: wanted in [json.loads(payload) for payload in seen if payload])
        assert listener.seen[-1].pid == pid
