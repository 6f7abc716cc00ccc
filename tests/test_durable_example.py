"""examples/durable.py: a function of five steps, its process ended behind each of them, is done once."""

import subprocess
import sys

import pytest
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

from flows import healthy
from support import wait_until
from test_examples import EXAMPLES, environment


@pytest.fixture
def conn(connect, fresh):
    conn = connect(dbname=fresh, row_factory=namedtuple_row)
    conn.execute("CREATE TABLE fulfilment (order_id int, what text)")
    return conn


@pytest.fixture
def run(cluster, fresh):
    """Runs the example until it ends by itself or crashes; answers whether it crashed."""

    def run_once(crash):
        env = environment(cluster, {"SAYIIR_URI": cluster.uri(fresh)} | ({"CRASH": "1"} if crash else {}))
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / "durable.py")], env=env, timeout=60, text=True, capture_output=True
        )
        assert done.returncode == 0 or (crash and not done.stderr), done.stderr
        return done.returncode != 0

    return run_once


def notes(conn):
    return [what for (what,) in conn.execute("SELECT what FROM fulfilment")]


def test_a_function_survives_a_crash_behind_every_step(conn, run):
    job = conn.execute("SELECT * FROM sayiir.job_enqueue('fulfil', '{\"order\": 7}', max_attempts => 9)").fetchone()
    retry = Jsonb({"initial": "1 ms", "jitter": 0})
    conn.execute("SELECT * FROM sayiir.task_define('fulfil', retry => %s)", [retry])

    def place():
        return conn.execute("SELECT * FROM sayiir.job_get(%s)", [job.job_id]).fetchone()

    waits = "SELECT event FROM sayiir.waits WHERE job_id = %s AND waits_for = 'event'"
    crashes = 0
    while not conn.execute(waits, [job.job_id]).fetchone():
        crashes += run(crash=True)
        assert crashes < 9, notes(conn)
    assert crashes >= 2, "behind the charge and behind the spawn, at least"
    assert notes(conn) == ["charged"]
    assert place().worker is None

    conn.execute("SELECT sayiir.job_send_event(%s, 'approved', '{\"by\": \"Ada\"}')", [job.job_id])
    assert run(crash=True), "it ships, and crashes before the end"
    assert place().status != "succeeded"
    wait_until(lambda: run(crash=True) or place().status == "succeeded", timeout=60)
    done = place()
    assert done.output == {"receipt": "charged 7", "parcel": {"box": 1}, "by": "Ada", "shipped": "shipped 7"}
    assert notes(conn) == ["charged", "shipped"]
    assert healthy(conn) == []


def test_a_function_takes_the_other_way_when_nobody_answers(conn, run):
    job = conn.execute("SELECT * FROM sayiir.job_enqueue('fulfil', '{\"order\": 8}')").fetchone()
    assert not run(crash=False)
    past = "clock_timestamp() - interval '1 s'"
    conn.execute(f"UPDATE sayiir.checkpoint SET due = {past} WHERE value IS NULL")
    conn.execute(f"UPDATE sayiir.job_wait SET due = {past} WHERE event = 'approved'")
    assert not run(crash=False)
    output = conn.execute("SELECT output FROM sayiir.job_get(%s)", [job.job_id]).fetchone().output
    assert output == {"receipt": "charged 8", "refund": "refunded 8"}
    assert notes(conn) == ["charged", "refunded"]
