"""The background processes: they do what is due without any call, come back whatever ends them, and are in nobody's way."""

import contextlib
import os
import shutil

import psycopg
import pytest

from listening import Listener, launchers, notifier, workers
from support import Cluster, wait_until


@pytest.fixture
def names():
    return (f"launcher_{n}_{os.getpid()}" for n in range(100))


@pytest.fixture
def database(cluster, names):
    """A new database without the extension."""
    name = next(names)
    with cluster.connect() as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        yield name
        conn.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def enqueue_soon(conn, task):
    conn.execute("SELECT sayiir.job_enqueue(%s, run_at => clock_timestamp() + interval '200 ms')", [task])


def assert_timers_fire(cluster, database, task="due"):
    """With no client call: nobody but a listener is connected when it is due."""
    with cluster.connect(database) as conn:
        listener = Listener(conn)
        enqueue_soon(conn, task)
        listener.wait_for(task)


@contextlib.contextmanager
def system_settings(cluster, restart=False, **settings):
    apply = cluster.restart if restart else lambda: None
    with cluster.connect() as conn:
        for name, value in settings.items():
            conn.execute(
                psycopg.sql.SQL("ALTER SYSTEM SET {} = {}").format(psycopg.sql.SQL(name.replace("__", ".")), value)
            )
        conn.execute("SELECT pg_reload_conf()")
    apply()
    try:
        yield
    finally:
        with cluster.connect() as conn:
            for name in settings:
                conn.execute(f"ALTER SYSTEM RESET {name.replace('__', '.')}")
            conn.execute("SELECT pg_reload_conf()")
        apply()


def test_one_launcher_and_idle_databases_have_no_worker(cluster, db):
    with cluster.connect() as conn:
        assert len(wait_until(lambda: launchers(conn))) == 1
        wait_until(lambda: not workers(conn, db))


def test_a_timer_fires_without_a_call(cluster, db):
    assert_timers_fire(cluster, db)


def test_a_timer_fires_on_time(cluster, db):
    with cluster.connect(db) as conn:
        listener = Listener(conn)
        conn.execute("SELECT sayiir.job_enqueue('punctual', run_at => clock_timestamp() + interval '1.2 s')")
        listener.wait_for("punctual")
        enqueue = "SELECT sayiir.job_enqueue('late', run_at => clock_timestamp() + interval '1 hour')"
        conn.execute(enqueue)
        enqueue_soon(conn, "earlier")
        listener.wait_for("earlier", timeout=1.2)


def test_a_database_gets_the_extension_later(cluster, database):
    with cluster.connect(database) as conn:
        wait_until(lambda: not workers(conn, database))
        conn.execute("CREATE EXTENSION sayiir")
    assert_timers_fire(cluster, database)


def enqueue_timers(conn):
    """Twenty jobs a second become due for half a minute."""
    conn.execute(
        "SELECT count(*) FROM generate_series(1, 600) g,"
        " sayiir.job_enqueue('tick', run_at => clock_timestamp() + g * interval '50 ms')"
    )


def test_drop_and_create_the_extension_while_a_worker_sweeps(cluster, database):
    with cluster.connect(database) as conn:
        conn.execute("SET statement_timeout = '10 s'")
        for _ in range(5):
            conn.execute("CREATE EXTENSION sayiir")
            with notifier(cluster, database):
                pass
            enqueue_timers(conn)
            assert workers(conn, database)
            conn.execute("DROP EXTENSION sayiir")
        assert conn.execute("SELECT count(*) FROM pg_extension WHERE extname = 'sayiir'").fetchone() == (0,)
        conn.execute("CREATE EXTENSION sayiir")
    assert_timers_fire(cluster, database)


def test_drop_the_database_while_a_worker_is_there(cluster, database):
    with cluster.connect(database) as conn:
        conn.execute("CREATE EXTENSION sayiir")
        enqueue_soon(conn, "due")
    with notifier(cluster, database):
        pass
    with cluster.connect() as conn:
        assert workers(conn, database)
        conn.execute(f"DROP DATABASE {database}")
        assert_timers_fire_elsewhere(cluster, conn, database)


def assert_timers_fire_elsewhere(cluster, conn, name):
    """The same name again is another database."""
    conn.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    with cluster.connect(name) as other:
        other.execute("CREATE EXTENSION sayiir")
    assert_timers_fire(cluster, name)


def test_drop_the_database_while_timers_fire_all_the_time(cluster, database):
    with cluster.connect(database) as conn:
        conn.execute("CREATE EXTENSION sayiir")
        enqueue_timers(conn)
    with cluster.connect() as conn:
        wait_until(lambda: workers(conn, database))
        conn.execute(f"DROP DATABASE {database}")


def test_copy_the_database_while_a_worker_is_there(cluster, database, names):
    with cluster.connect(database) as conn:
        conn.execute("CREATE EXTENSION sayiir")
    with notifier(cluster, database):
        pass
    copy = next(names) + "_copy"
    with cluster.connect() as conn:
        assert workers(conn, database)
        conn.execute(f"CREATE DATABASE {copy} TEMPLATE {database}")
        conn.execute(f"DROP DATABASE {copy} WITH (FORCE)")


def test_a_template_is_left_alone(cluster, db, database):
    with cluster.connect(database) as conn:
        conn.execute("CREATE EXTENSION sayiir")
        conn.execute(f"ALTER DATABASE {database} IS_TEMPLATE true")
        conn.execute("SELECT pg_reload_conf()")
        assert_timers_fire(cluster, db)
        wait_until(lambda: not workers(conn, database))
        listener = Listener(conn)
        enqueue_soon(conn, "held_back")
        assert_timers_fire(cluster, db)
        assert_timers_fire(cluster, db)
        assert listener.payloads == [] and not workers(conn, database)
        conn.execute(f"ALTER DATABASE {database} IS_TEMPLATE false")
        conn.execute("SELECT pg_reload_conf()")
        listener.wait_for("held_back")


def test_the_launcher_comes_back(cluster, db):
    with cluster.connect() as conn:
        for _ in range(2):
            [pid] = wait_until(lambda: launchers(conn))
            conn.execute("SELECT pg_terminate_backend(%s)", [pid])
            wait_until(lambda: any(other != pid for other in launchers(conn)))  # noqa: B023
    assert_timers_fire(cluster, db)


def test_everything_comes_back_after_a_crash(cluster, db):
    with cluster.connect(db) as conn:
        conn.execute("SELECT sayiir.job_enqueue('survivor', run_at => clock_timestamp() + interval '1 s')")
    cluster.restart("immediate")
    with cluster.connect(db) as conn:
        claim = "SELECT count(*) FROM sayiir.job_claim('w', '{survivor}')"
        wait_until(lambda: launchers(conn))
        wait_until(lambda: conn.execute(claim).fetchone() == (1,))
    assert_timers_fire(cluster, db)


def test_a_killed_backend_restarts_everything(cluster, db):
    with cluster.connect() as conn:
        [pid] = wait_until(lambda: launchers(conn))
    cluster.run_as_server("kill", "-9", str(pid))

    def is_back():
        try:
            with cluster.connect() as conn:
                return any(other != pid for other in launchers(conn))
        except psycopg.OperationalError:
            return False

    wait_until(is_back, timeout=30)
    assert_timers_fire(cluster, db)


def test_worker_off_and_on(cluster, db):
    with cluster.connect(db) as conn:
        listener = Listener(conn)
        with system_settings(cluster, sayiir__worker="off"):
            wait_until(lambda: conn.execute("SHOW sayiir.worker").fetchone() == ("off",))
            wait_until(lambda: not workers(conn, db))
            enqueue_soon(conn, "held_back")
            conn.execute("SELECT sayiir.job_enqueue('by_writers')")
            listener.wait_for("by_writers", timeout=1)
            past = "SELECT clock_timestamp() > %s::timestamptz + interval '2 s'"
            [now] = conn.execute("SELECT clock_timestamp()").fetchone()
            wait_until(lambda: conn.execute(past, [now]).fetchone()[0] or workers(conn, db))
            assert not workers(conn, db)
        listener.wait_for("held_back")


def test_databases_setting(cluster, db, database):
    with cluster.connect(database) as conn:
        conn.execute("CREATE EXTENSION sayiir")
        listener = Listener(conn)
        with system_settings(cluster, sayiir__databases=f"nobody, {db}"):
            wait_until(lambda: conn.execute("SHOW sayiir.databases").fetchone() == (f"nobody, {db}",))
            assert_timers_fire(cluster, db)
            enqueue_soon(conn, "not_served")
            assert_timers_fire(cluster, db, "served")
            assert_timers_fire(cluster, db, "served again")
            assert not workers(conn, database)
        listener.wait_for("not_served")


def test_without_a_free_process_the_engine_works_through_calls(cluster, db):
    # The launchers of Postgres and of ours take both.
    with system_settings(cluster, restart=True, max_worker_processes="2"), cluster.connect(db) as conn:
        wait_until(lambda: launchers(conn))
        listener = Listener(conn)
        for _ in range(50):
            conn.execute("SELECT sayiir.job_enqueue('told')")
        listener.wait_for("told", timeout=1)
        enqueue_soon(conn, "by_call")
        wait_until(lambda: conn.execute("SELECT sum(done) > 0 FROM sayiir.tick(100)").fetchone()[0])
        listener.wait_for("by_call", timeout=1)
        assert not workers(conn, db)
    assert_timers_fire(cluster, db)


def test_settings_of_the_database_do_not_reach_the_worker(cluster, database):
    with cluster.connect(database) as conn:
        conn.execute("CREATE EXTENSION sayiir")
        for setting in ["default_transaction_isolation = 'serializable'", "default_transaction_read_only = on"]:
            conn.execute(f"ALTER DATABASE {database} SET {setting}")
    with cluster.connect(database) as conn:
        conn.execute("SET default_transaction_read_only = off")
        conn.execute("SET default_transaction_isolation = 'read committed'")
        listener = Listener(conn)
        enqueue_soon(conn, "due")
        listener.wait_for("due")


@pytest.mark.slow
def test_a_standby_waits_for_its_promotion(cluster, db):
    folder = f"{cluster.socket}/standby"
    standby = Cluster(**{**vars(cluster), "data": folder, "port": cluster.port + 1})
    with cluster.connect(db) as conn:
        conn.execute("SELECT sayiir.job_enqueue('due', run_at => clock_timestamp() + interval '1 s')")
    backup = ["pg_basebackup", "-d", cluster.uri("postgres"), "-D", folder, "-R", "-X", "stream", "-c", "fast"]
    try:
        cluster.run_as_server(f"{cluster.bin}/{backup[0]}", *backup[1:])
        cluster.run_as_server("sh", "-c", f"echo port = {standby.port} >> {folder}/postgresql.auto.conf")
        standby.start()
        with standby.connect(db) as conn:
            assert conn.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)
            assert_timers_fire(cluster, db, "on the primary")
            assert not launchers(conn)
            assert not workers(conn, db)
            conn.execute("SELECT pg_promote()")
            wait_until(lambda: launchers(conn))
        assert_timers_fire(standby, db, "promoted")
    finally:
        with contextlib.suppress(Exception):
            standby.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_more_busy_databases_than_processes(cluster, names):
    """Each is told of its jobs and has its timers served, whoever has the processes."""
    busy = [next(names) + "_busy" for _ in range(6)]
    with cluster.connect() as admin, contextlib.ExitStack() as stack:
        for name in busy:
            admin.execute(f"CREATE DATABASE {name} TEMPLATE template0")
            stack.callback(admin.execute, f"DROP DATABASE {name} WITH (FORCE)")
            with cluster.connect(name) as conn:
                conn.execute("CREATE EXTENSION sayiir")
        for name in busy:
            stack.enter_context(notifier(cluster, name))
        for name in busy:
            with cluster.connect(name) as conn:
                listener = Listener(conn)
                conn.execute("SELECT sayiir.job_enqueue('told')")
                listener.wait(lambda seen: {"told", ""} & set(seen))
            assert_timers_fire(cluster, name)
