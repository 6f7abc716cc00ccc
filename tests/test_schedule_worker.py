"""Schedules fire by themselves: the background worker wakes in time, also after a restart."""

from jobs import a_task, call, one, value
from listening import Listener
from support import wait_until


def test_fires_without_any_call(conn, connect):
    name = a_task()
    listener = Listener(conn)
    one(connect(), "schedule_define", a_task(), "* * * * * *", task=name)
    listener.wait(lambda seen: seen.count(name) >= 2)


def test_goes_on_after_a_crash(cluster, connect):
    conn, name = connect(), a_task()
    one(conn, "schedule_define", a_task(), "* * * * * *", task=name)
    fired = "SELECT count(*) FROM sayiir.job WHERE task = %s"
    wait_until(lambda: value(conn, fired, name))
    cluster.restart("immediate")
    conn = connect()
    before = value(conn, fired, name)
    wait_until(lambda: value(conn, fired, name) > before, timeout=20)
    # Each second at most once, whatever was going on.
    assert value(conn, "SELECT count(*) = count(DISTINCT idempotency_key) FROM sayiir.job WHERE task = %s", name)
    call(conn, "schedule_pause", value(conn, "SELECT name FROM sayiir.schedules WHERE task = %s", name))
