"""Random durable code, run by several workers while events, cancels, requeues and sweeps come from outside: whatever the sequence, every
job is in exactly one place, no call deadlocks, epochs grow, no attempt is one too many, and in the end everything has ended."""

import json
import random
import threading

import psycopg
import pytest
from psycopg.types.json import Jsonb

from durable import await_event, await_job, sleep, spawn
from jobs import assert_sound, call, claim, complete, enqueue, fail, in_background, no_worker, one, value  # noqa: F401
from support import wait_until

pytestmark = pytest.mark.usefixtures("no_worker")

TASKS = ["model 0", "model 1", "model 2"]
WORKERS, ROUNDS, JOBS = 4, 120, 40
EVENTS = ["red", "blue"]
# What a worker may be told when others act on its job meanwhile, or when its names were used before.
EXPECTED = {"job.lease_lost", "job.busy", "job.cancelled", "job.checkpoint_conflict"}


class Model:
    def __init__(self):
        self.epochs = {}
        self.guard = threading.Lock()
        self.over = threading.Event()

    def seen(self, job):
        assert job.attempt <= job.max_attempts
        with self.guard:
            assert job.epoch > self.epochs.get(job.job_id, 0)
            self.epochs[job.job_id] = job.epoch

    def work(self, conn, draw):
        for _ in range(ROUNDS):
            for job in claim(conn, *TASKS, max_jobs=draw.choice([1, 1, 3]), lease="1 hour"):
                self.seen(job)
                try:
                    self.run(conn, draw, job)
                except psycopg.Error as error:
                    code = json.loads(error.diag.message_detail or "{}").get("code")
                    assert code in EXPECTED, f"{error.sqlstate}: {error}"
                    if code in ("job.cancelled", "job.busy", "job.checkpoint_conflict"):
                        one(conn, "job_release", job.job_id, job.epoch)

    def run(self, conn, draw, job):
        """Some calls, until one parks or ends the job."""
        level = TASKS.index(job.task)
        for _ in range(6):
            act = draw.choice(["sleep", "event", "event", "child", "child", "value", "stop"])
            if (
                act == "sleep"
                and sleep(conn, job, f"nap {draw.randrange(3)}", delay=draw.choice(["0", "1 ms", "1 h"])) == "parked"
            ):
                return
            if act == "event":
                event, timeout = draw.choice(EVENTS), draw.choice([None, "1 ms", "1 h"])
                if (
                    await_event(conn, job, f"{event} {draw.randrange(3)}", event=event, timeout=timeout).disposition
                    == "parked"
                ):
                    return
            if act == "child" and level < 2:
                name = f"child {draw.randrange(2)}"
                child = spawn(conn, job, TASKS[level + 1], name)
                if await_job(conn, job, child, f"{name} done").disposition == "parked":
                    return
            if act == "value":
                call(conn, "job_checkpoint", job.job_id, job.epoch, "value", Jsonb(draw.random()))
            if act == "stop":
                break
        end = draw.choice(["complete", "complete", "complete", "fail", "continue", "release"])
        if end == "complete":
            complete(conn, job, level)
        elif end == "fail":
            fail(conn, job, kind=draw.choice(["retryable", "terminal"]))
        elif end == "continue":
            call(conn, "job_continue", job.job_id, job.epoch)
        else:
            one(conn, "job_release", job.job_id, job.epoch)

    def meddle(self, conn, draw):
        while not self.over.wait(0.002):
            ids = [job_id for (job_id,) in conn.execute("SELECT job_id FROM sayiir.job ORDER BY random() LIMIT 3")]
            act = draw.choice(["event", "event", "event", "time", "tick", "cancel", "requeue"])
            for job_id in ids:
                if act == "event":
                    assert one(conn, "job_send_event", job_id, draw.choice(EVENTS), Jsonb(1)) in (
                        "resumed",
                        "buffered",
                        "late",
                    )
                elif act == "time":
                    pass_all_time(conn, [job_id])
                elif act == "cancel" and draw.random() < 0.2:
                    one(conn, "job_cancel", job_id)
                elif act == "requeue":
                    one(conn, "job_requeue", job_id, reset_checkpoints=draw.random() < 0.5)
            if act == "tick":
                call(conn, "tick")


def pass_all_time(conn, ids=None):
    """What waits for a time is due: for these jobs, or for all."""
    which = "TRUE" if ids is None else "job_id = ANY (%s)"
    args = [] if ids is None else [ids]
    conn.execute(
        f"UPDATE sayiir.checkpoint SET due = clock_timestamp() - interval '1 s'"
        f" WHERE value IS NULL AND due > clock_timestamp() AND {which}",
        args,
    )
    conn.execute(
        f"UPDATE sayiir.job_wait SET due = clock_timestamp() - interval '1 s' WHERE due > clock_timestamp() AND {which}",
        args,
    )


def drained(conn):
    """One round that lets everything end; answers whether it has."""
    pass_all_time(conn)
    call(conn, "tick")
    for job_id, event in conn.execute("SELECT job_id, event FROM sayiir.job_wait WHERE event IS NOT NULL").fetchall():
        one(conn, "job_send_event", job_id, event)
    for job in claim(conn, *TASKS, max_jobs=100):
        complete(conn, job)
    return value(
        conn,
        "SELECT NOT EXISTS (SELECT FROM sayiir.job_ready) AND NOT EXISTS (SELECT FROM sayiir.job_lease)"
        " AND NOT EXISTS (SELECT FROM sayiir.job_wait)",
    )


def test_random_durable_code_comes_to_an_end(conn, connect):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    one(conn, "task_define", TASKS[0], retry=Jsonb({"initial": "1 ms", "max": "2 ms"}), max_attempts=3)
    for _ in range(JOBS):
        enqueue(conn, TASKS[0])
    model = Model()
    workers = [in_background(model.work, connect(), random.Random(seed + n)) for n in range(WORKERS)]
    meddlers = [in_background(model.meddle, connect(), random.Random(seed - n - 1)) for n in range(2)]
    for worker in workers:
        worker.join(timeout=100)
    model.over.set()
    for meddler in meddlers:
        meddler.join()
    assert_sound(conn)
    wait_until(lambda: drained(conn), timeout=60)
    assert_sound(conn)
    # Everybody who asked has an answer, and nobody was answered who is not there.
    open_questions = "SELECT count(*) FROM sayiir.checkpoint c JOIN sayiir.job_end e USING (job_id) WHERE c.value IS NULL AND e.state = 'succeeded' AND c.epoch = e.epoch"
    assert value(conn, open_questions) == 0
    assert value(conn, "SELECT count(*) FROM sayiir.signal s JOIN sayiir.job_end e USING (job_id)") == 0
    assert value(conn, "SELECT count(*) FROM sayiir.job WHERE parent IS NOT NULL") > 0
