"""The background worker leaves a copy alone until it is adopted."""

import os

import pytest

from jobs import call, enqueue, get, value
from listening import Listener
from support import wait_until


@pytest.fixture
def copy(cluster, db):
    """A copy of a database in which a job is due that was not yet when the copy was made."""
    with cluster.connect(db) as conn:
        job = enqueue(conn, "soon", run_at="2100-01-01")
        file = cluster.client("pg_dump", "-d", db)
    with cluster.connect() as admin:
        admin.execute("CREATE DATABASE adopt_worker_copy TEMPLATE template0")
    cluster.client("psql", "-qX", "-v", "ON_ERROR_STOP=1", "-d", "adopt_worker_copy", input=file)
    with cluster.connect("adopt_worker_copy") as conn:
        conn.execute("UPDATE sayiir.job_wait SET due = clock_timestamp() - interval '1 hour'")
    yield "adopt_worker_copy", job
    with cluster.connect() as admin:
        admin.execute("DROP DATABASE adopt_worker_copy WITH (FORCE)")


def test_a_copy_is_not_swept(cluster, copy):
    name, job = copy
    seen = os.path.getsize(cluster.log)

    def told():
        with open(cluster.log) as log:
            log.seek(seen)
            return "nothing is swept" in log.read()

    with cluster.connect(name) as conn:
        # A timer calls the worker, which says why it does nothing.
        enqueue(conn, "later", run_at=value(conn, "SELECT clock_timestamp() + interval '200 ms'"))
        wait_until(told, timeout=60)
        assert get(conn, job).status == "scheduled"
        listener = Listener(conn)
        with cluster.connect(name) as admin:
            call(admin, "adopt")
        listener.wait_for("soon")
        assert get(conn, job).status == "ready"
