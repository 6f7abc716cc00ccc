"""Durable code in Python: SAYIIR_URI=… durable.py

It works on jobs of the task fulfil: {"order": 7}. The function below is plain code that is run again from the top whenever its job comes
back, after a wait or a crash; what a name has answered is not done again. CRASH=1 ends the process behind every new answer, as a
failing machine would; start it again, and it goes on where it was. It ends when the queue has been empty for 3 seconds. Needs psycopg 3.
"""

import os

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb


class Parked(Exception):
    """The job has left this worker to wait. Nothing is to be done."""


class Run:
    """One claim of a job: calls under names, each answered once."""

    def __init__(self, db, job):
        self.db, self.job = db, job

    def _ask(self, function, name, *args):
        places = ", %s" * len(args)
        answer = self.db.execute(
            f"SELECT * FROM sayiir.{function}(%s, %s, %s{places})", [self.job.job_id, self.job.epoch, name, *args]
        ).fetchone()
        if answer[0] == "parked":
            raise Parked(name)
        return answer

    def _answered(self, name):
        if os.environ.get("CRASH") and name not in self.job.checkpoints:
            os._exit(1)

    def step(self, name, work):
        """Does work(db) once: what it writes and the answer are committed together."""
        if name not in self.job.checkpoints:
            with self.db.transaction():
                answer = work(self.db)
                self._ask("job_checkpoint", name, Jsonb(answer))
            self._answered(name)
            self.job.checkpoints[name] = answer
        return self.job.checkpoints[name]

    def sleep(self, name, delay):
        if name not in self.job.checkpoints:
            self._ask("job_sleep", name, delay)
            self._answered(name)

    def event(self, name, timeout):
        """The payload, or None when none came in time."""
        answer = self._ask("job_await_event", name, name, timeout)
        self._answered(name)
        return answer.payload if answer.disposition == "received" else None

    def child(self, name, task, payload):
        """Spawns a job and waits for its output."""
        child = self._ask("job_spawn", name, task, Jsonb(payload))
        self._answered(name)
        answer = self._ask("job_await_job", f"{name} done", child.job_id)
        self._answered(f"{name} done")
        if answer.error is not None:
            raise RuntimeError(f"{task}: {answer.error}")
        return answer.output


def fulfil(run, order):
    def note(what):
        def work(db):
            db.execute("INSERT INTO fulfilment (order_id, what) VALUES (%s, %s)", [order, what])
            return f"{what} {order}"

        return work

    receipt = run.step("charge", note("charged"))
    parcel = run.child("pack", "pack", {"order": order})
    run.sleep("cool down", "1 second")
    approval = run.event("approved", "1 day")
    if approval is None:
        return {"receipt": receipt, "refund": run.step("refund", note("refunded"))}
    return {"receipt": receipt, "parcel": parcel, "by": approval["by"], "shipped": run.step("ship", note("shipped"))}


# In autocommit mode every answer is committed before the next call.
with psycopg.connect(os.environ["SAYIIR_URI"], autocommit=True, row_factory=namedtuple_row) as db:
    claim = "SELECT * FROM sayiir.job_claim('durable', '{fulfil, pack}', lease => '2 s', wait => '3 s')"
    while job := db.execute(claim).fetchone():
        try:
            result = {"box": job.input["order"] % 3} if job.task == "pack" else fulfil(Run(db, job), job.input["order"])
        except Parked:
            continue
        except Exception as error:
            statement, answer = "SELECT * FROM sayiir.job_fail(%s, %s, 'failed', %s)", repr(error)
        else:
            statement, answer = "SELECT sayiir.job_complete(%s, %s, %s)", Jsonb(result)
        db.execute(statement, [job.job_id, job.epoch, answer])
