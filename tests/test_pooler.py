"""Everything works through PgBouncer in transaction mode: no call needs a session of its own."""

import json
import threading
import uuid

import psycopg
import pytest
from psycopg.types.json import Jsonb

from flows import event, graph, task, value
from jobs import assert_sound, call, complete, in_background, one
from support import wait_until

PORT = 54099
POOL = 2
CONFIGURATION = """
[databases]
* = host={socket} port={port} user=postgres

[pgbouncer]
listen_addr =
listen_port = {bouncer}
unix_socket_dir = {socket}
pidfile = {socket}/bouncer.pid
logfile = {socket}/bouncer.log
auth_type = any
pool_mode = transaction
default_pool_size = {pool}
max_client_conn = 100
"""


@pytest.fixture(scope="module")
def bouncer(cluster):
    """A PgBouncer with POOL connections to the server, on a socket beside the server's."""
    configuration = f"{cluster.socket}/bouncer.ini"
    with open(configuration, "w") as file:
        file.write(CONFIGURATION.format(socket=cluster.socket, port=cluster.port, bouncer=PORT, pool=POOL))
    cluster.run_as_server("/usr/sbin/pgbouncer", "-q", "-d", configuration)
    yield
    with open(f"{cluster.socket}/bouncer.pid") as file:
        pid = file.read().strip()
    cluster.run_as_server("kill", "-INT", pid)


@pytest.fixture
def pooled(cluster, bouncer, db):
    """Makes connections through the pooler. A statement that is prepared in one transaction is not there in the next."""
    opened = []

    def open_connection():
        conn = psycopg.connect(
            host=cluster.socket, port=PORT, dbname=db, user="postgres", autocommit=True, prepare_threshold=None
        )
        opened.append(conn)
        return conn

    wait_until(lambda: can_connect(open_connection))
    yield open_connection
    for conn in opened:
        conn.close()


def can_connect(open_connection):
    try:
        return open_connection()
    except psycopg.OperationalError:
        return None


def backends(conns):
    return {value(conn, "SELECT pg_backend_pid()") for conn in conns}


def test_clients_share_the_backends(pooled):
    """Else the tests below prove nothing."""
    assert len(backends([pooled() for _ in range(6)])) <= POOL


def test_a_workflow(pooled):
    """Each call comes from another client and may meet another backend; the scope is an argument."""
    conns = [pooled() for _ in range(6)]
    turn = iter(range(1000))

    def client():
        return conns[next(turn) % len(conns)]

    definition = graph(task("work"), event("approved", "work"), task("report", "approved"))
    tasks = [step["task"] for step in definition["steps"] if "task" in step]
    one(client(), "workflow_define", definition, organization_id="acme")
    started = one(
        client(), "workflow_start", definition["name"], Jsonb({"n": 1}), workflow_id="w", organization_id="acme"
    )
    assert started.disposition == "started"

    assert call(client(), "job_claim", "me", tasks, organization_id="other") == []
    job = one(client(), "job_claim", "me", tasks, wait="5 s", organization_id="acme")
    assert (job.step, job.input, job.organization_id) == ("work", {"n": 1}, "acme")
    assert one(client(), "job_heartbeat", job.job_id, job.epoch, progress_done=1) == "continue"
    assert complete(client(), job, {"words": 3}) == "succeeded"
    assert complete(client(), job, {"words": 3}) == "succeeded"
    assert one(client(), "workflow_status", "w", organization_id="acme") == "waiting"
    assert one(client(), "workflow_status", "w", organization_id="other") is None
    assert one(client(), "workflow_send_event", "w", "approved", Jsonb("yes"), organization_id="acme") == "resumed"

    # One client waits for the end inside its call and keeps one backend; the other works in the one that is left.
    waiting = in_background(call, conns[0], "workflow_wait", "w", "10 s", "acme")
    failed = one(conns[1], "job_claim", "me", tasks, organization_id="acme")
    assert one(conns[2], "job_fail", failed.job_id, failed.epoch, "broken", retry_at=None).disposition == "retry"
    job = one(conns[3], "job_claim", "me", tasks, wait="10 s", organization_id="acme")
    assert (job.step, job.attempt) == ("report", 2) and job.epoch > failed.epoch
    assert complete(conns[4], job, "done") == "succeeded"
    [answer] = waiting.join()
    assert answer.workflow_wait == "succeeded"
    assert one(conns[5], "workflow_result", "w", organization_id="acme") == "done"


def test_a_scope_set_in_a_transaction_ends_with_it(pooled):
    """SET LOCAL is the setting that a pooler allows: the next client of the backend does not inherit it."""
    conns = [pooled() for _ in range(6)]
    name = f"task-{uuid.uuid4()}"
    with conns[0].transaction():
        conns[0].execute("SET LOCAL sayiir.scope = organization; SET LOCAL sayiir.organization_id = acme")
        one(conns[0], "job_enqueue", name)
        assert len(call(conns[0], "job_claim", "me", [name])) == 1
    for conn in conns:
        assert value(conn, "SELECT current_setting('sayiir.scope')") == "global"
        assert value(conn, "SELECT count(*) FROM sayiir.jobs WHERE task = %s", name) == 0


def test_many_clients_work_off_a_queue(pooled, connect):
    """Cached plans, lanes and cursors of a backend serve whoever comes; every job is done once, in its worker's transaction."""
    direct = connect()
    direct.execute("CREATE TABLE done (job_id uuid NOT NULL)")
    name = f"task-{uuid.uuid4()}"
    rows = direct.execute(
        "SELECT job_id FROM sayiir.job_enqueue_many(%s, %s)", [name, json.dumps([{"n": n} for n in range(200)])]
    )
    ids = {job_id for (job_id,) in rows}
    barrier = threading.Barrier(6)

    def work(conn):
        barrier.wait()
        while jobs := call(conn, "job_claim", "me", [name], 3):
            for job in jobs:
                with conn.transaction():
                    conn.execute("INSERT INTO done VALUES (%s)", [job.job_id])
                    complete(conn, job)

    for thread in [in_background(work, pooled()) for _ in range(6)]:
        thread.join()
    done = [job_id for (job_id,) in direct.execute("SELECT job_id FROM done")]
    assert len(done) == len(ids) and set(done) == ids
    assert_sound(direct)
