"""Who is told of what a transaction did: listeners by NOTIFY, waiting calls at once, and nobody of what was rolled back."""

import contextlib
import json
import threading
import time

import psycopg
import pytest

from listening import Listener, finished
from support import wait_until

ONE_STEP = {"name": "one", "steps": [{"key": "only", "task": "only_task"}]}


@contextlib.contextmanager
def not_preloaded(cluster):
    with cluster.connect() as conn:
        conn.execute("ALTER SYSTEM SET shared_preload_libraries = plpgsql")
    cluster.restart()
    try:
        yield
    finally:
        with cluster.connect() as conn:
            conn.execute("ALTER SYSTEM RESET shared_preload_libraries")
        cluster.restart()


@pytest.fixture(scope="module", params=["preloaded", "not preloaded"])
def server(request, cluster, db):
    """Both ways to load the library promise the same."""
    if request.param == "preloaded":
        yield request.param
    else:
        with not_preloaded(cluster):
            yield request.param


@pytest.fixture
def writer(server, connect):
    return connect()


@pytest.fixture
def listener(server, connect):
    return Listener(connect())


def start(conn, workflow_id):
    conn.execute("SELECT sayiir.workflow_start_graph(%s, workflow_id => %s)", [json.dumps(ONE_STEP), workflow_id])


def enqueue_many(conn, task, count):
    conn.execute(
        "SELECT count(*) FROM sayiir.job_enqueue_many(%s, (SELECT jsonb_agg(g) FROM generate_series(1, %s) g))",
        [task, count],
    )


def test_a_listener_gets_the_task_within_a_second(writer, listener):
    writer.execute("SELECT sayiir.job_enqueue('resize')")
    listener.wait_for("resize", timeout=1)


def test_1000_jobs_in_bulk_are_one_notification(writer, listener):
    enqueue_many(writer, "bulk", 1000)
    assert listener.until_end(writer) == ["bulk"]


def test_1000_jobs_of_one_transaction_are_one_notification(writer, listener):
    writer.execute("SELECT sayiir.job_enqueue('loop') FROM generate_series(1, 1000)")
    assert listener.until_end(writer) == ["loop"]


def test_a_rollback_tells_nothing(writer, listener):
    with writer.transaction(force_rollback=True):
        writer.execute("SELECT sayiir.job_enqueue('undone')")
    assert listener.until_end(writer) == []


def test_what_a_savepoint_and_its_parent_said_is_told(writer, listener):
    with writer.transaction():
        with writer.transaction(force_rollback=True):
            writer.execute("SELECT sayiir.job_enqueue('twice')")
        writer.execute("SELECT sayiir.job_enqueue('twice')")
    assert listener.until_end(writer) == ["twice"]


def test_what_the_parent_said_survives_a_savepoint(writer, listener):
    with writer.transaction():
        writer.execute("SELECT sayiir.job_enqueue('before')")
        with writer.transaction(force_rollback=True):
            writer.execute("SELECT sayiir.job_enqueue('before')")
    assert listener.until_end(writer) == ["before"]


def test_a_prepared_transaction_can_enqueue(server, connect, writer, listener):
    other = connect(autocommit=False)
    for name in ["prepared_kept", "prepared_undone"]:
        other.tpc_begin(other.xid(1, name, "branch"))
        other.execute("SELECT sayiir.job_enqueue(%s)", [name])
        other.tpc_prepare()
        if name == "prepared_kept":
            other.tpc_commit()
        else:
            other.tpc_rollback()
    # Nobody is told of it at the commit of a prepared transaction, but the work is there.
    assert "prepared_undone" not in listener.until_end(writer)
    claim = "SELECT task FROM sayiir.job_claim('w', '{prepared_kept,prepared_undone}', max_jobs => 10)"
    assert writer.execute(claim).fetchall() == [("prepared_kept",)]


def test_the_end_of_a_workflow_is_told(server, writer, listener):
    workflow_id = f'a "quoted" wörkflow \\ {server}'
    start(writer, workflow_id)
    writer.execute("SELECT sayiir.workflow_cancel(%s)", [workflow_id])
    listener.wait(finished(workflow_id, "cancelled"), timeout=1)


def test_the_longest_names_are_told_whole(server, writer, listener):
    task = "ä" * 100
    workflow_id = '"' * (512 - len(server)) + server
    writer.execute("SELECT sayiir.job_enqueue(%s)", [task])
    start(writer, workflow_id)
    writer.execute("SELECT sayiir.workflow_cancel(%s)", [workflow_id])
    listener.wait_for(task)
    listener.wait(finished(workflow_id, "cancelled"))


def test_a_large_payload_is_no_obstacle(writer, listener):
    writer.execute("SELECT sayiir.job_enqueue('large', %s::jsonb)", [json.dumps("€\"'\\" * 200_000)])
    listener.wait_for("large")


def test_too_many_tasks_of_one_transaction_wake_all(writer, listener):
    writer.execute("SELECT sayiir.job_enqueue('task_' || g) FROM generate_series(1, 1000) g")
    assert "" in listener.until_end(writer)


def test_notify_off_tells_nothing(connect, writer, listener):
    quiet = connect()
    quiet.execute("SET sayiir.notify = off")
    quiet.execute("SELECT sayiir.job_enqueue('quiet')")
    assert listener.until_end(writer) == []


def test_a_waiting_claim_gets_the_job(server, connect, writer):
    """Also when nobody had ever enqueued a job of the task before it began to wait."""
    task = f"awaited {server}"
    waiting = connect()
    answers = []

    def claim():
        jobs = waiting.execute("SELECT task FROM sayiir.job_claim('w', %s, wait => '10 s')", [[task]]).fetchall()
        answers.append((jobs, time.monotonic()))

    thread = threading.Thread(target=claim)
    thread.start()
    wait_until(lambda: is_asleep(writer, waiting))
    enqueued = time.monotonic()
    writer.execute("SELECT sayiir.job_enqueue(%s)", [task])
    thread.join()
    [(jobs, claimed)] = answers
    assert jobs == [(task,)]
    assert claimed - enqueued < 1


def is_asleep(conn, waiting):
    """Whether the other session waits, and has looked for a while."""
    query = (
        "SELECT wait_event_type = 'Extension' AND clock_timestamp() > query_start + interval '300 ms'"
        " FROM pg_stat_activity WHERE pid = %s"
    )
    return conn.execute(query, [waiting.info.backend_pid]).fetchone()[0]


@pytest.mark.parametrize("end", ["pg_cancel_backend", "pg_terminate_backend"])
def test_a_waiting_claim_can_be_ended(server, connect, writer, end):
    waiting = connect()
    errors = []

    def claim():
        try:
            waiting.execute("SELECT * FROM sayiir.job_claim('w', '{never}', wait => '10 s')")
        except psycopg.Error as error:
            errors.append(error)

    thread = threading.Thread(target=claim)
    thread.start()
    wait_until(lambda: is_asleep(writer, waiting))
    writer.execute(f"SELECT {end}(%s)", [waiting.info.backend_pid])
    thread.join(timeout=2)
    assert not thread.is_alive() and errors
