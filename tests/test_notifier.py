"""Beyond a few commits a second a background worker notifies, and writers do not: they only mark shared memory."""

from listening import Listener, notifier, workers
from support import wait_until


def test_a_worker_notifies_for_the_writers(cluster, db, connect):
    writer, listener = connect(), Listener(connect())
    with notifier(cluster, db) as pid:
        assert pid in workers(writer, db)
        for n in range(20):
            writer.execute("SELECT sayiir.job_enqueue(%s)", [f"served_{n}"])
            listener.wait_for(f"served_{n}", timeout=1)


def test_every_task_is_told_or_all_are_woken(cluster, db, connect):
    writer, listener = connect(), Listener(connect())
    with notifier(cluster, db):
        for n in range(600):
            listener.seen = []
            tasks = [f"many_{n}_{m}" for m in range(60)] if n % 100 == 0 else [f"many_{n}"]
            with writer.transaction():
                for task in tasks:
                    writer.execute("SELECT sayiir.job_enqueue(%s)", [task])
            if n % 20 == 0:
                listener.wait(lambda seen: "" in seen or set(tasks) <= set(seen))  # noqa: B023


def test_a_rollback_tells_nothing(cluster, db, connect):
    writer, listener = connect(), Listener(connect())
    with notifier(cluster, db):
        with writer.transaction(force_rollback=True):
            writer.execute("SELECT sayiir.job_enqueue('undone')")
        assert set(listener.until_end(writer)) <= {"busy", ""}


def test_a_terminated_worker_is_replaced(cluster, db, connect):
    writer, listener = connect(), Listener(connect())
    with notifier(cluster, db) as pid, cluster.connect() as conn:
        conn.execute("SELECT pg_terminate_backend(%s)", [pid])
        wait_until(lambda: any(other != pid for other in workers(conn, db)))
        writer.execute("SELECT sayiir.job_enqueue('still_told')")
        listener.wait_for("still_told", timeout=1)


def test_the_worker_leaves_when_it_is_quiet(cluster, db, connect):
    writer = connect()
    with notifier(cluster, db):
        pass
    wait_until(lambda: not workers(writer, db))
    listener = Listener(connect())
    writer.execute("SELECT sayiir.job_enqueue('alone')")
    listener.wait_for("alone", timeout=1)
