"""Jobs seen from outside: calls by name, what a refusal must carry, and what holds whatever happened."""

import contextlib
import json
import threading
import uuid
from types import SimpleNamespace

import psycopg
import pytest
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

from support import wait_until

_PLACES = """
WITH place AS (
    SELECT 'ready' AS place, job_id FROM sayiir.job_ready UNION ALL
    SELECT 'leased', job_id FROM sayiir.job_lease UNION ALL
    SELECT 'waiting', job_id FROM sayiir.job_wait UNION ALL
    SELECT 'ended', job_id FROM sayiir.job_end)
SELECT job_id, array_remove(array_agg(place), NULL) FROM sayiir.job FULL JOIN place USING (job_id)
GROUP BY job_id HAVING count(place) <> 1"""


@pytest.fixture(scope="module")
def no_worker(cluster, db):
    """The background worker sweeps nothing, so that a test decides when leases are reaped and timers fire."""
    with cluster.connect() as conn:
        conn.execute("ALTER SYSTEM SET sayiir.worker = off")
        conn.execute("SELECT pg_reload_conf()")
        busy = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'sayiir worker'"
        wait_until(lambda: conn.execute("SELECT NOT current_setting('sayiir.worker')::bool").fetchone()[0])
        wait_until(lambda: conn.execute(busy).fetchone()[0] == 0)
        yield
        conn.execute("ALTER SYSTEM RESET sayiir.worker")
        conn.execute("SELECT pg_reload_conf()")


def _adapted(value):
    return Jsonb(value) if isinstance(value, dict) else value


def call(conn, function, *args, **named):
    """The rows of SELECT * FROM sayiir.function(…). Dicts are passed as jsonb."""
    arguments = ["%s"] * len(args) + [f"{name} => %s" for name in named]
    values = [_adapted(value) for value in [*args, *named.values()]]
    cursor = conn.cursor(row_factory=namedtuple_row)
    return cursor.execute(f"SELECT * FROM sayiir.{function}({', '.join(arguments)})", values).fetchall()


def isolate(conn, level):
    """Every transaction from here on is of this isolation level."""
    conn.execute(f"SET default_transaction_isolation = '{level}'")


def one(conn, function, *args, **named):
    """The only row; its only column if it has one."""
    [row] = call(conn, function, *args, **named)
    return row[0] if len(row) == 1 else row


def value(conn, query, *args):
    return conn.execute(query, args).fetchone()[0]


def a_task():
    """A task that no other test uses."""
    return f"task-{uuid.uuid4().hex[:12]}"


def enqueue(conn, task, payload=None, **named):
    return one(conn, "job_enqueue", task, Jsonb({} if payload is None else payload), **named).job_id


def claim(conn, *tasks, worker="w", **named):
    return call(conn, "job_claim", worker, list(tasks), **named)


def claim_one(conn, *tasks, **named):
    [job] = claim(conn, *tasks, **named)
    return job


def leased(conn, task=None, **named):
    """A new job, leased."""
    task = task or a_task()
    enqueue(conn, task, **named)
    return claim_one(conn, task)


def complete(conn, job, output=None):
    return one(conn, "job_complete", job.job_id, job.epoch, Jsonb(output))


def fail(conn, job, code="broken", message=None, **named):
    return one(conn, "job_fail", job.job_id, job.epoch, code, message, **named)


def get(conn, job_id):
    return one(conn, "job_get", job_id)


def expire(conn, *job_ids):
    """Time passes for these leases until they have expired."""
    conn.execute(
        "UPDATE sayiir.job_lease SET expires_at = clock_timestamp() - interval '1 second',"
        " check_at = clock_timestamp() - interval '1 second' WHERE job_id = ANY (%s)",
        [list(job_ids)],
    )


def reap(conn):
    """job → disposition of what the reaper ended."""
    return dict(call(conn, "job_reap"))


def fall_due(conn, *job_ids):
    """Time passes for these waits until they are due; what a claim would promote is promoted."""
    conn.execute(
        "UPDATE sayiir.job_wait SET due = clock_timestamp() - interval '1 second' WHERE job_id = ANY (%s)",
        [list(job_ids)],
    )
    call(conn, "tick")


@contextlib.contextmanager
def refused(code):
    """Expects a refusal with this code, its own SQLSTATE and a hint; gives the fields of DETAIL as attributes."""
    found = SimpleNamespace()
    with pytest.raises(psycopg.Error) as caught:
        yield found
    diag = caught.value.diag
    assert diag.message_detail is not None, f"no DETAIL: {diag.sqlstate} {diag.message_primary}"
    detail = json.loads(diag.message_detail)
    assert detail.pop("code") == code, f"{diag.message_detail}: {diag.message_primary}"
    assert diag.sqlstate == SQLSTATES[code]
    assert diag.message_hint
    vars(found).update(detail)


SQLSTATES = {
    "argument.null": "22004",
    "argument.invalid": "22023",
    "argument.out_of_range": "22023",
    "argument.too_large": "54000",
    "option.unknown": "22023",
    "call.isolation_unsupported": "25001",
    "wait.too_long": "22023",
    "scope.denied": "42501",
    "task.not_found": "P0002",
    "task.disabled": "55000",
    "job.not_found": "P0002",
    "job.lease_lost": "55000",
    "job.busy": "55P03",
    "job.idempotency_conflict": "23505",
    "job.not_ended": "55000",
    "job.unsuccessful": "55000",
    "job.not_requeueable": "55000",
    "job.checkpoint_conflict": "23505",
    "job.not_child": "22023",
    "job.is_step": "55000",
    "job.cancelled": "55000",
    "job.continue_not_allowed": "55000",
    "handler.invalid": "22023",
    "engine.not_adopted": "55000",
}


def assert_sound(conn):
    """Every job is in exactly one of ready, lease and wait, or has an end, and doctor() finds no error."""
    assert conn.execute(_PLACES).fetchall() == []
    assert conn.execute("SELECT * FROM sayiir.doctor() WHERE severity = 'error'").fetchall() == []


def in_background(function, *args):
    """Runs function in a thread; the result's join() gives what it returned or raises what it raised."""
    outcome = SimpleNamespace()

    def run():
        try:
            outcome.value = function(*args)
        except BaseException as error:  # handed over to join()
            outcome.error = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def join(timeout=30.0):
        thread.join(timeout)
        assert not thread.is_alive(), "it does not end"
        if hasattr(outcome, "error"):
            raise outcome.error
        return outcome.value

    return SimpleNamespace(join=join, is_alive=thread.is_alive)
