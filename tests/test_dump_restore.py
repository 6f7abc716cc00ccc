"""pg_dump takes all of the engine's state along, sequences too, and work goes on where it was. Replication has what it needs."""

import dataclasses
import os
import shutil
import uuid
from types import SimpleNamespace

import pytest
from psycopg.types.json import Jsonb

from flows import Flow, delay, event, healthy, query, task, value
from jobs import assert_sound, call, enqueue, expire, fall_due, get, leased, one, refused
from support import wait_until

TABLES = """SELECT c.oid::regclass::text FROM pg_class c
    WHERE c.relnamespace = 'sayiir'::regnamespace AND c.relkind = 'r' ORDER BY 1"""
SEQUENCES = TABLES.replace("'r'", "'S'")


# Whose database it is, and hints that a restored one makes up for.
NOT_DUMPED = {"sayiir.meta", "sayiir.retention"}


def contents(conn):
    """Every row of every table that is dumped, and where every sequence stands."""
    names = {name for (name,) in conn.execute(TABLES)} - NOT_DUMPED
    tables = {name: conn.execute(f"SELECT t::text FROM {name} t ORDER BY 1").fetchall() for name in names}
    names = [name for (name,) in conn.execute(SEQUENCES)]
    sequences = {name: conn.execute(f"SELECT last_value, is_called FROM {name}").fetchone() for name in names}
    return tables, sequences


def fill(conn):
    """Rows in every table, and a job in every place."""
    flow = Flow(conn, task("work"), event("approved", "work"), task("report", "approved"))
    flow.claim("work", lease="1 hour")
    flow.send("later", {"n": 1})
    joined = Flow(conn, task("a"), task("b"), task("c", "a", "b"), start={"active_key": "only", "idempotency_key": "k"})
    joined.complete("a", 1)
    waiting = Flow(conn, event("approved"), delay("later", delay="1 day"))
    paused = Flow(conn, task("work"))
    call(conn, "workflow_pause", paused.id)
    finished = Flow(conn, task("work"))
    finished.complete("work", "done")
    one(conn, "workflow_define", finished.definition)
    call(conn, "workflow_send_event", "unborn", "hello", Jsonb(1), "key")

    one(conn, "task_define", "kept", max_attempts=7, lease="3 s")
    enqueue(conn, "kept", {"n": 1}, idempotency_key="key", tags=["gpu"])
    enqueue(conn, "kept", run_at="2100-01-01")
    failing = leased(conn, max_attempts=1)
    one(conn, "job_fail", failing.job_id, failing.epoch, "broken")
    retried = leased(conn)
    one(conn, "job_fail", retried.job_id, retried.epoch, "broken", retry_at="2100-01-01")
    asked_to_stop = leased(conn, options={"lease": "1 hour"})
    call(conn, "job_cancel", asked_to_stop.job_id)
    call(conn, "job_checkpoint", asked_to_stop.job_id, asked_to_stop.epoch, "half", Jsonb(1))
    call(conn, "job_log", asked_to_stop.job_id, asked_to_stop.epoch, "info", "half done")
    effect = one(conn, "effect_begin", "pay", "order-1", "irreversible_write", "w", "1 hour", Jsonb({"amount": 1}))
    one(conn, "effect_append_observation", uuid.uuid4(), effect.id, Jsonb({"outcome": "failed"}))
    conn.execute("INSERT INTO sayiir.role_scope VALUES ('nobody', 'acme')")
    one(conn, "schedule_define", "yearly", "0 0 1 1 *", task="kept", timezone="Europe/Berlin")
    one(conn, "schedule_run", "yearly")
    return SimpleNamespace(
        flow=flow,
        joined=joined,
        waiting=waiting,
        paused=paused,
        finished=finished,
        failing=failing,
        stopped=asked_to_stop,
    )


@pytest.fixture
def second(cluster):
    """Another server, without any role or database of the first."""
    folder = f"{cluster.socket}/second"
    cluster.run_as_server("mkdir", folder)
    other = dataclasses.replace(cluster, data=f"{folder}/data", log=f"{folder}/log", port=54098)
    cluster.run_as_server(f"{cluster.bin}/initdb", "-D", other.data, "-U", "postgres", "-A", "trust", "--no-sync")
    with open(f"{other.data}/postgresql.conf", "a") as file:
        file.write(
            f"listen_addresses = ''\nunix_socket_directories = '{other.socket}'\nport = {other.port}\n"
            "shared_preload_libraries = 'sayiir'\nfsync = off\n"
        )
    other.start()
    yield other
    other.stop("immediate")
    shutil.rmtree(folder)


def test_a_dump_restored_into_another_server(cluster, fresh, second):
    with cluster.connect(fresh) as conn:
        state = fill(conn)
        tables, sequences = contents(conn)
        assert [name for name, rows in tables.items() if not rows] == [], "a table that the dump is not asked to keep"
    file = f"{cluster.socket}/dump"
    cluster.client("pg_dump", "-Fc", "-d", fresh, "-f", file)
    with second.connect() as conn:
        conn.execute("CREATE ROLE nobody")
        conn.execute("CREATE DATABASE restored TEMPLATE template0")
    second.client("pg_restore", "--exit-on-error", "-d", "restored", file)
    os.unlink(file)

    with second.connect("restored") as conn:
        restored_tables, restored_sequences = contents(conn)
        assert restored_tables == tables
        assert restored_sequences == sequences
        assert_sound(conn)
        # Half loaded or not, nothing runs before somebody says so.
        with refused("engine.not_adopted"):
            call(conn, "job_claim", "me", ["*"])
        assert call(conn, "tick") == []
        assert contents(conn) == (tables, sequences)
        leases = len(tables["sayiir.job_lease"])
        assert dict(call(conn, "adopt")) == {"leases": leases, "sequences": 0} and leases > 1
        assert_goes_on(conn, state, attempt=1)
        assert healthy(conn) == []


def assert_goes_on(conn, state, attempt=2):
    flows = [state.flow, state.joined, state.waiting, state.paused, state.finished]
    for flow in flows:
        flow.conn = conn

    # A lease whose worker is gone runs out; adopt() has ended those of a restored database, and given their attempts back.
    first = state.flow.leases["work"]
    expire(conn, first["job_id"], state.stopped.job_id)
    wait_until(lambda: call(conn, "tick") and not query(conn, "SELECT 1 FROM sayiir.job_lease"))
    assert get(conn, state.stopped.job_id).status == "cancelled"
    fall_due(conn, first["job_id"])
    second = state.flow.claim("work")
    assert second["attempt"] == attempt and second["epoch"] > first["epoch"]
    with refused("job.lease_lost"):
        one(conn, "job_complete", first["job_id"], first["epoch"])
    state.flow.complete("work")
    assert state.flow.send("approved") == "resumed"
    state.flow.complete("report", "done")
    assert (state.flow.status, state.flow.result()) == ("succeeded", "done")

    # Counters, waits, timers and pauses.
    again = {"active_key": "only", "workflow_id": "another"}
    assert Flow(conn, task("x"), start=again).disposition == "existing_active"
    state.joined.complete("b", 2)
    assert state.joined.claim("c")["input"]["a"]["output"] == 1
    state.joined.complete("c")
    assert state.waiting.send("approved") == "resumed"
    assert state.waiting.states["later"] == "waiting"
    fall_due(conn, state.waiting.step("later")["job_id"])
    assert state.waiting.status == "succeeded"
    call(conn, "workflow_resume", state.paused.id)
    state.paused.complete("work")
    assert state.paused.status == "succeeded"

    # Keys are known, and new rows get new numbers.
    assert (
        one(conn, "job_enqueue", "kept", Jsonb({"n": 1}), idempotency_key="key", tags=["gpu"]).disposition == "existing"
    )
    unborn = Flow(conn, event("hello"), start={"workflow_id": "unborn"})
    assert unborn.step("hello")["output"] == 1
    assert unborn.send("hello", 1, "key") == "duplicate"
    named = one(conn, "workflow_start", state.finished.definition["name"])
    assert named.disposition == "started"
    one(conn, "task_define", "new")
    one(conn, "workflow_define", Flow(conn, task("work")).definition)
    state.paused.send("late", 1, "new key")
    assert one(conn, "job_requeue", state.failing.job_id).disposition == "requeued"
    [job] = call(conn, "job_claim", "me", ["kept"])
    assert (job.max_attempts, job.tags) == (7, ["gpu"])


def test_a_dump_of_the_schema_alone(cluster, fresh):
    with cluster.connect(fresh) as conn:
        fill(conn)
    text = cluster.client("pg_dump", "--schema-only", "-d", fresh)
    assert "CREATE EXTENSION IF NOT EXISTS sayiir" in text
    for word in ["CREATE TABLE", "CREATE FUNCTION", "COPY ", "INSERT ", "setval"]:
        assert word not in text, word
    with cluster.connect() as conn:
        conn.execute("CREATE DATABASE bare TEMPLATE template0")
    try:
        cluster.client("psql", "-qX", "-v", "ON_ERROR_STOP=1", "-d", "bare", input=text)
        with cluster.connect("bare") as conn:
            tables, _ = contents(conn)
            assert not any(tables.values())
            flow = Flow(conn, task("work"))
            flow.complete("work", "done")
            assert flow.result() == "done"
    finally:
        with cluster.connect() as conn:
            conn.execute("DROP DATABASE bare WITH (FORCE)")


def test_every_table_can_be_replicated(cluster, fresh):
    """Without a key, a publication makes UPDATE and DELETE of the table fail."""
    with cluster.connect(fresh) as conn:
        bare = """SELECT c.oid::regclass::text FROM pg_class c
            WHERE c.relnamespace = 'sayiir'::regnamespace AND c.relkind IN ('r', 'p')
            AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)"""
        assert conn.execute(bare).fetchall() == []
        conn.execute("CREATE PUBLICATION everything FOR ALL TABLES")
        published = value(conn, "SELECT count(*) FROM pg_publication_tables WHERE schemaname = 'sayiir'")
        assert published == len(conn.execute(TABLES).fetchall())
        state = fill(conn)
        assert_goes_on(conn, state)
        conn.execute("DELETE FROM sayiir.role_scope")
        for row in query(conn, "SELECT workflow_id FROM sayiir.workflows WHERE finished_at IS NOT NULL"):
            one(conn, "workflow_delete", row["workflow_id"])
        assert healthy(conn) == []
