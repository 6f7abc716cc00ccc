"""A restored or copied database does nothing until it is adopted; then everything goes on, and the old workers are fenced."""

import os
import re
from types import SimpleNamespace

import psycopg
import pytest

from flows import Flow, delay, event, graph, healthy, query, refused, task, value
from jobs import a_task, assert_sound, call, claim, claim_one, complete, enqueue, fail, get, in_background, leased, one
from jobs import no_worker as no_worker
from support import wait_for_lock

pytestmark = pytest.mark.usefixtures("no_worker")


@pytest.fixture
def database(cluster, request):
    """The name of a new database with the extension, in which nothing was ever called."""
    name = "adopt_" + re.sub(r"\W", "_", request.node.name.lower())[-40:]
    with cluster.connect() as conn:
        conn.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        conn.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    with cluster.connect(name) as conn:
        conn.execute("CREATE EXTENSION sayiir")
    yield name
    with cluster.connect() as conn:
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


def work_in_flight(conn):
    """Work in every place, and some of it due."""
    state = SimpleNamespace()
    state.job = leased(conn, payload={"n": 1})
    state.last_attempt = leased(conn, max_attempts=1)
    state.retried = leased(conn, max_attempts=2)
    fail(conn, state.retried)
    conn.execute("UPDATE sayiir.job_wait SET due = clock_timestamp()")
    call(conn, "tick")
    state.retried = claim_one(conn, state.retried.task)
    state.stopped = leased(conn)
    call(conn, "job_cancel", state.stopped.job_id)
    state.flow = Flow(conn, task("work"), event("approved", "work"), task("report", "approved"))
    state.step = state.flow.claim("work")
    state.paused = Flow(conn, task("work"))
    state.paused.claim("work")
    call(conn, "workflow_pause", state.paused.id)
    state.ready = enqueue(conn, a_task())
    state.timer = enqueue(conn, a_task(), run_at="2100-01-01")
    state.delay = Flow(conn, delay("later", delay="1 year"))
    name = one(conn, "schedule_define", a_task(), "0 0 1 1 *", task=a_task()).name
    conn.execute("UPDATE sayiir.job_wait SET due = clock_timestamp() - interval '1 hour'")
    conn.execute(
        "UPDATE sayiir.job_lease SET expires_at = clock_timestamp() - interval '1 hour', check_at = clock_timestamp()"
    )
    conn.execute(
        "UPDATE sayiir.schedule SET next_at = clock_timestamp(), due = clock_timestamp() WHERE name = %s", [name]
    )
    return state


@pytest.fixture(params=["dump", "template"])
def copy(cluster, database, request):
    """A copy of a database with work in flight: a connection to it, and what the work is."""
    with cluster.connect(database) as conn:
        state = work_in_flight(conn)
    name = f"{database}_copy"[-60:]
    with cluster.connect() as admin:
        admin.execute(f"CREATE DATABASE {name} TEMPLATE {database if request.param == 'template' else 'template0'}")
    if request.param == "dump":
        file = f"{cluster.socket}/adopt.dump"
        cluster.client("pg_dump", "-Fc", "-d", database, "-f", file)
        cluster.client("pg_restore", "--exit-on-error", "-d", name, file)
        os.unlink(file)
    conn = cluster.connect(name)
    for flow in (state.flow, state.paused, state.delay):
        flow.conn = conn
    state.name = name
    yield conn, state
    conn.close()
    with cluster.connect() as admin:
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


HOT = [
    f"SELECT t::text FROM sayiir.{table} t ORDER BY 1"
    for table in ("job_ready", "job_lease", "job_wait", "schedule", "job_end")
]


def hot(conn):
    return [conn.execute(rows).fetchall() for rows in HOT]


def test_nothing_runs_before(copy):
    conn, state = copy
    before = hot(conn)
    for function, *args in [("job_claim", "w", ["*"]), ("job_reap",), ("prune",)]:
        with refused("engine.not_adopted"):
            call(conn, function, *args)
    conn.execute("CREATE FUNCTION handle(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1'")
    with refused("engine.not_adopted"):
        call(conn, "job_run", "any", "handle")
    notices = []
    conn.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    assert call(conn, "tick") == []
    assert any("nothing is swept" in text for text in notices)
    assert value(conn, "SELECT sayiir.next_due()") is None
    assert hot(conn) == before
    assert ("engine.not_adopted", "this database is a restore or a copy: nothing is swept or claimed") in healthy(conn)


def test_calls_by_users_work_and_adopt_nothing(copy):
    conn, state = copy
    job = enqueue(conn, a_task())
    flow = Flow(conn, task("a"))
    assert state.flow.send("other") == "buffered"
    one(conn, "task_define", a_task())
    assert (get(conn, job).status, flow.status) == ("ready", "running")
    with refused("engine.not_adopted"):
        claim(conn, "*")


def test_everything_goes_on(cluster, copy):
    conn, state = copy
    assert dict(call(conn, "adopt")) == {"leases": 6, "sequences": 0}
    assert query(conn, "SELECT * FROM sayiir.job_lease") == []
    assert_sound(conn)

    # The old workers are fenced.
    for old in (state.job, state.last_attempt, state.retried):
        with refused("job.lease_lost"):
            complete(conn, old)
        assert one(conn, "job_heartbeat", old.job_id, old.epoch) == "lost"

    # Each attempt was given back, the last one of a job too.
    for old, attempt in [(state.job, 1), (state.last_attempt, 1), (state.retried, 2)]:
        new = claim_one(conn, old.task)
        assert (new.job_id, new.attempt, new.input) == (old.job_id, attempt, old.input)
        assert new.epoch > old.epoch
        assert complete(conn, new) == "succeeded"

    # What was due fires, what was asked for happens.
    call(conn, "tick")
    assert get(conn, state.stopped.job_id).status == "cancelled"
    assert get(conn, state.timer).status == "ready"
    assert state.delay.status == "succeeded"
    assert value(conn, "SELECT count(*) FROM sayiir.schedule_fire") == 1

    # Workflows, a paused one too.
    step = state.flow.claim("work")
    assert (step["attempt"], step["epoch"] > state.step["epoch"]) == (1, True)
    state.flow.complete("work")
    assert state.flow.send("approved") == "resumed"
    state.flow.complete("report")
    assert state.flow.status == "succeeded"
    assert claim(conn, state.paused.task("work")) == []
    call(conn, "workflow_resume", state.paused.id)
    call(conn, "tick")
    state.paused.leases.clear()
    state.paused.complete("work")
    assert state.paused.status == "succeeded"
    assert healthy(conn) == []
    assert_sound(conn)
    assert "this database was adopted: 6 leases returned" in open(cluster.log).read()


def test_adopting_again_does_nothing(cluster, copy):
    conn, state = copy
    call(conn, "adopt")
    job = claim_one(conn, state.job.task)
    assert dict(call(conn, "adopt")) == {"leases": 0, "sequences": 0}
    with cluster.connect(state.name) as other:
        assert dict(call(other, "adopt")) == {"leases": 0, "sequences": 0}
        assert call(other, "tick")
    assert complete(conn, job) == "succeeded"


def test_two_adopt_at_once(cluster, copy):
    conn, state = copy
    with cluster.connect(state.name) as other, conn.transaction():
        assert dict(call(conn, "adopt"))["leases"] == 6
        second = in_background(call, other, "adopt")
        wait_for_lock(conn, other.info.backend_pid)
    assert dict(second.join()) == {"leases": 0, "sequences": 0}


def test_rolled_back(copy):
    conn, state = copy
    with conn.transaction(force_rollback=True):
        call(conn, "adopt")
        claim_one(conn, state.job.task)
    with refused("engine.not_adopted"):
        claim(conn, "*")
    # Also by a savepoint.
    with conn.transaction():
        with conn.transaction(force_rollback=True):
            call(conn, "adopt")
            claim_one(conn, state.job.task)
        with refused("engine.not_adopted"), conn.transaction():
            claim(conn, "*")
    call(conn, "adopt")
    claim_one(conn, state.job.task)


def test_sequences_behind_their_tables(copy):
    """As when only the rows were copied."""
    conn, state = copy
    sequences = [
        name
        for (name,) in conn.execute(
            "SELECT c.oid::regclass::text FROM pg_class c WHERE relnamespace = 'sayiir'::regnamespace AND relkind = 'S' ORDER BY 1"
        )
    ]
    at = {name: value(conn, f"SELECT last_value FROM {name}") for name in sequences}
    for name in sequences:
        conn.execute(f"SELECT setval('{name}', 1, false)")
    moved = dict(call(conn, "adopt"))["sequences"]
    # Each that has rows stands where they do; of one whose rows are all gone nothing can be said.
    assert moved == sum(value(conn, f"SELECT is_called FROM {name}") for name in sequences) >= 6
    for name in ("sayiir.history_seq", "sayiir.lane_seq", "sayiir.workflow_id_seq", "sayiir.schedule_id_seq"):
        assert value(conn, f"SELECT last_value FROM {name}") == at[name]
    Flow(conn, task("a")).complete("a")
    enqueue(conn, a_task())
    one(conn, "workflow_define", graph(task("a")))
    call(conn, "workflow_send_event", "unborn", "e", None, "k")
    one(conn, "schedule_define", a_task(), "* * * * *", task=a_task())
    one(conn, "task_define", a_task())
    assert healthy(conn) == []


# The first call


def test_an_empty_engine_is_begun_by_the_first_call(cluster, database):
    with cluster.connect(database) as conn, cluster.connect(database) as worker:
        # A worker may be there first; neither it nor a sweep begins anything.
        assert claim(worker, "*") == []
        assert call(worker, "job_reap") == [] and call(worker, "tick")
        assert healthy(worker) == []
        assert query(conn, "SELECT * FROM sayiir.meta") == []
        job = enqueue(conn, "first")
        rows = query(conn, "SELECT reason, database_oid, system_identifier FROM sayiir.meta")
        oid = value(conn, "SELECT oid FROM pg_database WHERE datname = current_database()")
        assert rows == [
            {
                "reason": "first call",
                "database_oid": oid,
                "system_identifier": value(conn, "SELECT system_identifier FROM pg_control_system()"),
            }
        ]
        assert claim_one(worker, "first").job_id == job
        enqueue(worker, "second")
        assert value(conn, "SELECT count(*) FROM sayiir.meta") == 1


@pytest.mark.parametrize(
    "first",
    [
        lambda conn: Flow(conn, task("a")),
        lambda conn: one(conn, "workflow_define", graph(task("a"))),
        lambda conn: call(conn, "workflow_send_event", "unborn", "e"),
        lambda conn: one(conn, "task_define", "t"),
        lambda conn: one(conn, "task_pause", "t"),
        lambda conn: one(conn, "schedule_define", "s", "* * * * *", task="t"),
        lambda conn: conn.execute("SELECT * FROM sayiir.job_enqueue_many('t', '[1]')"),
    ],
    ids=["start", "define", "event", "task", "pause", "schedule", "bulk"],
)
def test_whatever_the_first_call_is(cluster, database, first):
    with cluster.connect(database) as conn:
        first(conn)
        assert value(conn, "SELECT count(*) FROM sayiir.meta") == 1
    with cluster.connect(database) as conn:
        assert claim(conn, "nothing") == []
        assert call(conn, "tick")


def test_a_first_call_that_is_rolled_back(cluster, database):
    with cluster.connect(database) as conn, cluster.connect(database) as other:
        with conn.transaction(force_rollback=True):
            enqueue(conn, "t")
            claim_one(conn, "t")
        with conn.transaction():
            with conn.transaction(force_rollback=True):
                enqueue(conn, "t")
                claim_one(conn, "t")
            enqueue(conn, "t")
        assert len(claim(other, "t", max_jobs=10)) == 1
        assert value(conn, "SELECT count(*) FROM sayiir.meta") == 1


def test_two_first_calls_do_not_wait_for_each_other(cluster, database):
    with cluster.connect(database, autocommit=False) as one_of_them, cluster.connect(database) as other:
        enqueue(one_of_them, "t")
        other.execute("SET lock_timeout = '1 ms'")
        enqueue(other, "t")
        one_of_them.rollback()
        assert len(claim(other, "t", max_jobs=10)) == 1
    with cluster.connect(database) as conn:
        assert call(conn, "tick")


def test_the_extension_made_anew(cluster, database):
    """A session that knew the old one begins the new one."""
    with cluster.connect(database) as conn, cluster.connect(database) as other:
        enqueue(conn, "t")
        claim_one(conn, "t")
        claim(other, "t")
        conn.execute("DROP EXTENSION sayiir")
        conn.execute("CREATE EXTENSION sayiir")
        enqueue(conn, "t")
        assert value(conn, "SELECT count(*) FROM sayiir.meta") == 1
        claim_one(other, "t")


def test_who_may(cluster, database):
    with cluster.connect(database) as conn:
        conn.execute("DO $$ BEGIN CREATE ROLE adopt_worker LOGIN; EXCEPTION WHEN duplicate_object THEN END $$")
        conn.execute("GRANT sayiir_worker, sayiir_client TO adopt_worker")
        with cluster.connect(database, user="adopt_worker") as worker:
            # It may be the first, though it may not read what it begins.
            worker.execute("SELECT * FROM sayiir.job_enqueue('t')")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                worker.execute("SELECT * FROM sayiir.adopt()")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                worker.execute("SELECT * FROM sayiir.engine_state")
        conn.execute("SET default_transaction_isolation = 'repeatable read'")
        with refused("call.isolation_unsupported"):
            call(conn, "adopt")
