"""A crash between the beginning and the end of an effect: nothing that was acknowledged is forgotten, nothing runs twice unnoticed."""

import psycopg
import pytest

from effects import a_key, assert_sound, begin, expire, finish, get, running
from jobs import value
from support import wait_until


def test_a_killed_server_forgets_no_acknowledged_attempt(cluster, connect):
    keys = [a_key() for _ in range(20)]
    conn = connect()
    conn.execute("SET synchronous_commit = off")
    begun = [begin(conn, key) for key in keys]
    finished = begun[:5]
    conn.execute("SET synchronous_commit = on")
    for effect in finished:
        finish(conn, effect)
    cluster.restart("immediate")
    conn = connect()
    for effect in begun:
        assert begin(conn, effect.logical_key).decision == ("replay" if effect in finished else "in_progress")
    expire(conn, *begun)
    for effect in begun[5:]:
        # Not silently again: whether it was applied is for a person to say.
        assert begin(conn, effect.logical_key).decision == "needs_intervention"
        assert get(conn, effect).attempt_count == 1
    assert_sound(conn)


def test_a_killed_session_leaves_the_attempt(connect):
    worker, conn = connect(), connect()
    effect = running(worker)
    pid = worker.info.backend_pid
    worker.execute("BEGIN")
    finish(worker, effect)
    conn.execute("SELECT pg_terminate_backend(%s)", [pid])
    wait_until(lambda: not value(conn, "SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pid))
    with pytest.raises(psycopg.OperationalError):
        worker.execute("COMMIT")
    assert get(conn, effect).status == "executing"
    assert begin(conn, effect.logical_key).decision == "in_progress"
    assert_sound(conn)
