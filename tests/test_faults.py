"""What is committed survives: immediate restarts, killed workers, killed backends, storms of terminations."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psycopg
import pytest

from flows import Flow, event, healthy, query, task, value
from jobs import assert_sound, call, claim_one, complete, enqueue, get, in_background, refused
from support import wait_for_lock, wait_until

ROOT = Path(__file__).resolve().parent.parent
LICENCES = Path("/usr/share/common-licenses")


@pytest.fixture
def chance():
    """Random numbers; SAYIIR_SEED repeats a run as far as timing allows."""
    seed = int(os.environ.get("SAYIIR_SEED") or random.randrange(1 << 32))
    print(f"SAYIIR_SEED={seed}")
    return random.Random(seed)


def reconnected(cluster, dbname, crashed=None):
    """A connection to a server that may just be coming back; `crashed`: the checkpointer that the crash takes down."""

    def attempt():
        try:
            conn = cluster.connect(dbname)
            # Between the kill and the moment the server notices it, it still takes connections.
            if cluster.checkpointer(conn) != crashed:
                return conn
            conn.close()
        except psycopg.OperationalError:
            pass
        return None

    return wait_until(attempt, timeout=60, interval=0.05)


# Restarts


class Demos:
    """The demo, running again and again, until it has seen enough."""

    def __init__(self, cluster, dbname, folder, log):
        self.env = os.environ | {"SAYIIR_URI": cluster.uri(dbname)}
        self.folder, self.log = folder, log
        self.ids = []
        self.process = None

    def keep_running(self):
        if self.process is None or self.process.poll() is not None:
            self.finish()
            self.ids.append(f"demo-{len(self.ids) + 1}")
            command = [sys.executable, ROOT / "examples/demo/demo.py", self.folder, "--no-kill", "--pace", "0.3"]
            self.process = subprocess.Popen(
                [*command, "--workflow-id", self.ids[-1]], env=self.env, stdout=self.log, stderr=subprocess.STDOUT
            )

    def finish(self):
        if self.process is not None:
            assert self.process.wait(timeout=60) == 0, Path(self.log.name).read_text()[-5000:]

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_twenty_immediate_restarts_of_a_running_demo(cluster, fresh, chance, tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    for name in ["BSD", "GPL-1", "GPL-2", "Artistic", "Apache-2.0", "CC0-1.0"]:
        shutil.copy(LICENCES / name, folder / name)
    expected = {str((folder / name).resolve()): len((folder / name).read_text().split()) for name in os.listdir(folder)}

    with open(tmp_path / "log", "w") as log:
        demos = Demos(cluster, fresh, folder, log)
        try:
            for _ in range(20):
                demos.keep_running()
                # From the start of a worker to the report, a demo takes about a second and a half.
                time.sleep(chance.uniform(0.05, 1.5))
                cluster.restart("immediate")
            demos.finish()
        finally:
            demos.stop()

    with reconnected(cluster, fresh) as conn:
        counted = "SELECT file, words FROM demo.word_count WHERE workflow_id = %s"
        for workflow_id in demos.ids:
            (ROOT / f"target/demo/{workflow_id}.txt").unlink()
            rows = conn.execute(counted, [workflow_id]).fetchall()
            assert len(rows) == len(expected) and dict(rows) == expected
            assert value(conn, "SELECT sayiir.workflow_status(%s)", workflow_id) == "succeeded"
        assert value(conn, "SELECT count(*) FROM sayiir.workflows") == len(demos.ids)
        assert value(conn, "SELECT count(*) FROM demo.word_count") == len(demos.ids) * len(expected)
        assert_sound(conn)


def test_a_restart_after_each_call(cluster, fresh):
    """What a call has answered is there after a crash: the start, the lease with its epoch, the completion, the event."""

    def crash():
        cluster.restart("immediate")
        flow.conn.close()
        flow.conn = reconnected(cluster, fresh)
        assert_sound(flow.conn)
        return flow.conn

    flow = Flow(reconnected(cluster, fresh), task("work"), event("approved", "work"), task("report", "approved"))
    conn = crash()
    assert flow.states == {"work": "ready", "approved": "blocked", "report": "blocked"}

    job = flow.claim("work", lease="1 hour")
    conn = crash()
    assert (flow.step("work")["status"], flow.step("work")["attempt"]) == ("leased", 1)
    assert call(conn, "job_claim", "other", [job["task"]]) == []
    assert value(conn, "SELECT sayiir.job_heartbeat(%s, %s)", job["job_id"], job["epoch"]) == "continue"

    answer = flow.complete("work", {"words": 3})
    conn = crash()
    assert flow.states == {"work": "succeeded", "approved": "waiting", "report": "blocked"}
    again = "SELECT sayiir.job_complete(%s, %s, %s)"
    assert value(conn, again, job["job_id"], job["epoch"], json.dumps({"words": 4})) == answer == "succeeded"
    assert flow.step("work")["output"] == {"words": 3}

    assert flow.send("approved", {"by": "a person"}, event_key="once") == "resumed"
    conn = crash()
    assert flow.send("approved", {"by": "a person"}, event_key="once") == "duplicate"
    assert flow.step("approved")["output"] == {"by": "a person"}

    flow.complete("report", "done")
    conn = crash()
    assert (flow.status, flow.result()) == ("succeeded", "done")
    kinds = [line["kind"] for line in flow.history()]
    assert [kinds.count(kind) for kind in ["step_released", "step_succeeded", "attempt_failed"]] == [3, 3, 0]
    conn.close()


# Killed workers

CLAIM = """
import sys, psycopg
conn = psycopg.connect(sys.argv[1], autocommit=sys.argv[3] == "autocommit")
print(conn.info.backend_pid, flush=True)
conn.execute("SELECT * FROM sayiir.job_claim('victim', ARRAY[%s], lease => '200 ms')", [sys.argv[2]])
print("claimed", flush=True)
sys.stdin.read()
"""


def worker_process(cluster, dbname, name, mode):
    command = [sys.executable, "-c", CLAIM, cluster.uri(dbname), name, mode]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def kill(process):
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_a_worker_killed_after_its_claim(cluster, connect, db):
    """Its lease runs out, and the job comes back as the second attempt under a greater epoch; the first one is fenced."""
    conn = connect()
    job_id = enqueue(conn, "killed_after")
    process = worker_process(cluster, db, "killed_after", "autocommit")
    process.stdout.readline()
    assert process.stdout.readline() == "claimed\n"
    first = get(conn, job_id)
    assert (first.status, first.worker, first.attempt) == ("leased", "victim", 1)
    kill(process)
    [second] = wait_until(lambda: call(conn, "job_claim", "next", ["killed_after"]))
    assert second.attempt == 2 and second.epoch > first.epoch
    with refused("job.lease_lost"):
        call(conn, "job_complete", job_id, first.epoch)
    assert complete(conn, second) == "succeeded"
    assert value(conn, "SELECT kind FROM sayiir.job_attempts WHERE job_id = %s", job_id) == "expired"


def test_a_worker_killed_while_its_claim_runs(cluster, connect, db):
    """The backend may still commit the claim of a client that is gone: such a lease runs out like any other."""
    conn, holder = connect(), connect()
    job_id = enqueue(conn, "killed_in")
    holder.execute("BEGIN; LOCK TABLE sayiir.job_lease IN EXCLUSIVE MODE")
    process = worker_process(cluster, db, "killed_in", "autocommit")
    pid = int(process.stdout.readline())
    wait_for_lock(conn, pid)
    kill(process)
    holder.execute("COMMIT")
    wait_until(lambda: not query(conn, "SELECT 1 FROM pg_stat_activity WHERE pid = %s", pid))
    assert get(conn, job_id).attempt == 1
    [job] = wait_until(lambda: call(conn, "job_claim", "next", ["killed_in"]))
    assert (job.job_id, job.attempt) == (job_id, 2)
    assert complete(conn, job) == "succeeded"


def test_a_worker_killed_before_it_commits_its_claim(cluster, connect, db):
    """Then nothing was claimed, and no attempt counts."""
    conn = connect()
    job_id = enqueue(conn, "killed_before")
    process = worker_process(cluster, db, "killed_before", "transaction")
    pid = int(process.stdout.readline())
    assert process.stdout.readline() == "claimed\n"
    assert call(conn, "job_claim", "next", ["killed_before"]) == []
    kill(process)
    wait_until(lambda: not query(conn, "SELECT 1 FROM pg_stat_activity WHERE pid = %s", pid))
    [job] = wait_until(lambda: call(conn, "job_claim", "next", ["killed_before"]))
    assert (job.job_id, job.attempt) == (job_id, 1)
    assert complete(conn, job) == "succeeded"
    assert query(conn, "SELECT * FROM sayiir.job_attempts WHERE job_id = %s", job_id) == []


# Killed backends



BLOCKERS = {
    "before anything is written": "SELECT 1 FROM sayiir.workflow FOR UPDATE",
    "when the end is written": "LOCK TABLE sayiir.job_end IN EXCLUSIVE MODE",
    "when the next step is released": "LOCK TABLE sayiir.job_ready IN EXCLUSIVE MODE",
    "when the next step gets its record": "LOCK TABLE sayiir.job IN EXCLUSIVE MODE",
}


@pytest.mark.parametrize("blocker", BLOCKERS.values(), ids=BLOCKERS)
def test_a_backend_killed_in_the_middle_of_complete(cluster, fresh, blocker):
    """kill -9 takes the whole server down. Afterwards all of the completion has happened, or nothing: here nothing, so the same
    lease completes again."""
    conn, holder, worker = (cluster.connect(fresh) for _ in range(3))
    flow = Flow(conn, task("first"), task("second", "first"))
    job = flow.claim("first", lease="1 hour")
    holder.execute(f"BEGIN; {blocker}")
    running = in_background(flow.complete, "first", "one", worker)
    wait_for_lock(conn, worker.info.backend_pid)
    checkpointer = cluster.checkpointer(conn)
    os.kill(worker.info.backend_pid, signal.SIGKILL)
    with pytest.raises(psycopg.OperationalError):
        running.join()
    for lost in (conn, holder, worker):
        lost.close()

    with reconnected(cluster, fresh, checkpointer) as conn:
        flow.conn = conn
        assert flow.states == {"first": "leased", "second": "blocked"}
        assert (flow.step("first")["attempt"], flow.step("first")["output"]) == (1, None)
        assert_sound(conn)
        flow.leases["first"] = job
        assert flow.complete("first", "one") == "succeeded"
        flow.complete("second", "two")
        assert (flow.status, flow.result()) == ("succeeded", "two")
        assert_sound(conn)


# A storm of terminations

CHAIN = {
    "name": "chain",
    "steps": [
        {"key": key, "task": "storm", "after": after, "lease": "1 s", "retry": {"max_attempts": 100, "initial": "10ms"}}
        for key, after in [("a", []), ("b", ["a"]), ("c", ["a"]), ("d", ["b", "c"])]
    ],
}


class Storm:
    """Workers that write a row for each step in the transaction that completes it, and come back when they are cut off."""

    def __init__(self, cluster, dbname):
        self.cluster, self.dbname = cluster, dbname
        self.over = threading.Event()
        self.lost = 0
        self.threads = [in_background(self.work, f"storm-{n}") for n in range(6)]

    def work(self, name):
        while not self.over.is_set():
            conn = None
            try:
                conn = self.cluster.connect(self.dbname, application_name=name)
                while not self.over.is_set():
                    self.work_once(conn, name)
            except psycopg.Error as error:
                # A lease that was lost or is busy is no fault either: its job is tried again.
                if conn is not None and not conn.closed and error.diag.sqlstate not in ("55000", "55P03"):
                    raise
                self.lost += 1
            finally:
                if conn is not None:
                    conn.close()

    def work_once(self, conn, name):
        for job in call(conn, "job_claim", name, ["storm"], 2, wait="100 ms"):
            with conn.transaction():
                conn.execute("INSERT INTO done VALUES (%s, %s)", [job.workflow_id, job.step])
                complete(conn, job, job.step)

    def end(self):
        self.over.set()
        for thread in self.threads:
            thread.join()


@pytest.mark.slow
def test_a_hundred_terminated_backends(cluster, fresh, chance):
    with cluster.connect(fresh) as conn:
        conn.execute("CREATE TABLE done (workflow_id text NOT NULL, step text NOT NULL)")
        ids = []
        start = "SELECT workflow_id FROM sayiir.workflow_start_graph(%s)"
        # Whoever is in the middle of something first, and now and then a background worker.
        victims = """SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
            ORDER BY state = 'active' DESC NULLS LAST, random() LIMIT 1"""
        storm = Storm(cluster, fresh)
        try:
            terminated = 0
            while terminated < 100:
                if value(conn, "SELECT count(*) FROM sayiir.job_ready") < 6:
                    ids += [value(conn, start, json.dumps(CHAIN)) for _ in range(5)]
                time.sleep(chance.uniform(0, 0.05))
                for (pid,) in conn.execute(victims).fetchall():
                    terminated += value(conn, "SELECT pg_terminate_backend(%s)", pid)
            ended = "SELECT count(*) FROM sayiir.workflows WHERE status = 'succeeded'"
            wait_until(lambda: value(conn, ended) == len(ids), timeout=60, interval=0.1)
        finally:
            storm.end()
        assert storm.lost > 20, "the storm has hit nobody"
        done = query(conn, "SELECT workflow_id, array_agg(step ORDER BY step) AS steps FROM done GROUP BY workflow_id")
        assert {row["workflow_id"] for row in done} == set(ids)
        assert {tuple(row["steps"]) for row in done} == {("a", "b", "c", "d")}
        assert healthy(conn) == []


def test_workers_come_back_to_their_own_leases(cluster, connect):
    """A lease belongs to its epoch, not to a connection: a worker whose backend was terminated goes on with it."""
    conn, worker = connect(), connect()
    enqueue(conn, "own_lease")
    job = claim_one(worker, "own_lease", lease="1 hour")
    assert value(conn, "SELECT pg_terminate_backend(%s)", worker.info.backend_pid)
    with pytest.raises(psycopg.OperationalError):
        worker.execute("SELECT 1")
    other = connect()
    assert value(other, "SELECT sayiir.job_heartbeat(%s, %s)", job.job_id, job.epoch) == "continue"
    assert complete(other, job) == "succeeded"
    assert get(conn, job.job_id).status == "succeeded"
