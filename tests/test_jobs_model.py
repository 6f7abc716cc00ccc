"""Any sequence of calls by several workers: answers as a model says, and what holds for every job whatever happens."""

import functools
import random
from collections import defaultdict
from dataclasses import dataclass, field

import psycopg
import pytest
from psycopg.types.json import Jsonb

from jobs import (  # noqa: F401
    a_task,
    assert_sound,
    call,
    claim,
    enqueue,
    expire,
    fall_due,
    get,
    in_background,
    no_worker,
    one,
    refused,
    value,
)

pytestmark = pytest.mark.usefixtures("no_worker")


@dataclass
class Job:
    """What the model knows of a job."""

    id: object
    max_attempts: int
    hold: bool
    state: str = "ready"
    attempt: int = 0
    run: int = 1
    epoch: int = 0
    cancelled: bool = False
    output: object = None
    failure: tuple = ()
    old_epochs: list = field(default_factory=list)

    def lease_ends(self, state):
        self.old_epochs.append(self.epoch)
        self.state = state


class Model:
    """Three workers and what the model knows. Time passes only in the steps that say so."""

    def __init__(self, connections, chance):
        self.connections = connections
        self.chance = chance
        self.task = a_task()
        self.jobs = {}

    @property
    def conn(self):
        return self.chance.choice(self.connections)

    def flip(self):
        return self.chance.random() < 0.5

    def some(self, *states):
        """A job in one of these states, or in any; None if there is none."""
        found = [job for job in self.jobs.values() if not states or job.state in states]
        return self.chance.choice(found) if found else None

    def step(self):
        leased, scheduled, any_job = self.some("leased"), self.some("scheduled"), self.some()
        acts = [self.add, self.claim, self.claim]
        if leased:
            for act in (self.heartbeat, self.complete, self.fail, self.fail, self.release, self.expire, self.stale):
                acts.append(functools.partial(act, leased))
        if scheduled:
            acts += [functools.partial(self.fall_due, scheduled)] * 2
        if any_job:
            acts += [functools.partial(act, any_job) for act in (self.cancel, self.requeue)]
        self.chance.choice(acts)()

    def add(self):
        attempts, hold = self.chance.randint(1, 3), self.flip()
        options = {"on_exhausted": "hold" if hold else "fail", "retry": {"initial": "1 h"}}
        priority, tags = self.chance.choice([0, 50, 99]), self.chance.choice([[], ["a"]])
        job_id = enqueue(self.conn, self.task, max_attempts=attempts, priority=priority, tags=tags, options=options)
        self.jobs[job_id] = Job(job_id, attempts, hold)

    def claim(self):
        conn, most, rolls_back = self.conn, self.chance.randint(1, 3), self.chance.random() < 0.2
        ready = {job.id for job in self.jobs.values() if job.state == "ready"}
        with conn.transaction(force_rollback=rolls_back):
            taken = claim(conn, self.task, max_jobs=most)
        # A job that the cursor has passed because of a rolled-back claim is found within a second, not always at once.
        assert len(taken) <= most and {row.job_id for row in taken} <= ready
        for row in taken:
            job = self.jobs[row.job_id]
            assert (row.attempt, row.run_number) == (job.attempt + 1, job.run)
            assert row.attempt <= job.max_attempts
            assert row.epoch > max([0, *job.old_epochs])
            if not rolls_back:
                job.state, job.attempt, job.epoch = "leased", row.attempt, row.epoch

    def exhausted(self, job):
        """(answer, state) when no attempt is left."""
        return ("held", "held") if job.hold else ("dead", "failed")

    def heartbeat(self, job):
        assert one(self.conn, "job_heartbeat", job.id, job.epoch) == ("cancel" if job.cancelled else "continue")

    def complete(self, job):
        expected = "cancelled" if job.cancelled else "succeeded"
        output = self.chance.randrange(100)
        for answer in (output, output + 1):  # twice: the first output stands
            assert one(self.conn, "job_complete", job.id, job.epoch, Jsonb(answer)) == expected
        job.output = None if job.cancelled else output
        job.lease_ends(expected)

    def fail(self, job):
        terminal = self.chance.random() < 0.2
        expected, state = "retry", "scheduled"
        if job.cancelled:
            expected = state = "cancelled"
        elif terminal or job.attempt >= job.max_attempts:
            expected, state = self.exhausted(job)
        for _ in range(2):
            answer = one(self.conn, "job_fail", job.id, job.epoch, "e", kind="terminal" if terminal else "retryable")
            assert answer.disposition == expected
        job.lease_ends(state)

    def release(self, job):
        ran = self.flip()
        expected = state = "ready"
        if job.cancelled:
            expected = state = "cancelled"
        elif ran and job.attempt >= job.max_attempts:
            expected, state = self.exhausted(job)
        assert one(self.conn, "job_release", job.id, job.epoch, ran=ran) == expected
        if state == "ready" and not ran:
            job.attempt -= 1
        job.lease_ends(state)

    def expire(self, job):
        expire(self.conn, job.id)
        if self.flip():
            assert one(self.conn, "job_heartbeat", job.id, job.epoch) != "lost"
            return
        expected, state = "retry", "ready"
        if job.cancelled:
            expected = state = "cancelled"
        elif job.attempt >= job.max_attempts:
            expected, state = self.exhausted(job)
        assert call(self.conn, "job_reap") == [(job.id, expected)]
        job.lease_ends(state)

    def fall_due(self, job):
        fall_due(self.conn, job.id)
        job.state = "ready"

    def cancel(self, job):
        conn, rolls_back = self.conn, self.flip()
        with conn.transaction(force_rollback=rolls_back):
            answer = one(conn, "job_cancel", job.id).disposition
        ended = job.state in ("succeeded", "failed", "cancelled")
        assert answer == ("already_ended" if ended else "requested" if job.state == "leased" else "cancelled")
        if answer == "requested" and not rolls_back:
            job.cancelled = True
        elif answer == "cancelled" and not rolls_back:
            job.state = "cancelled"

    def requeue(self, job):
        answer = one(self.conn, "job_requeue", job.id).disposition
        if job.state in ("failed", "cancelled", "held"):
            assert answer == "requeued"
            job.state, job.attempt, job.run, job.cancelled = "ready", 0, job.run + 1, False
        else:
            assert answer == ("not_quiet" if job.state == "leased" else "mismatch")

    def stale(self, job):
        """A worker of an earlier lease changes nothing while another one holds the job."""
        if not job.old_epochs:
            return
        epoch = self.chance.choice(job.old_epochs)
        assert one(self.conn, "job_heartbeat", job.id, epoch) == "lost"
        for query, more in [("job_complete", []), ("job_release", []), ("job_fail", ["other"])]:
            with refused("job.lease_lost"):
                call(self.conn, query, job.id, epoch, *more)

    def check(self):
        query = "SELECT job_id, status, attempt, run_number, output FROM sayiir.jobs WHERE job_id = ANY (%s)"
        rows = self.connections[0].execute(query, [list(self.jobs)]).fetchall()
        assert {row[0]: row[1:] for row in rows} == {
            job.id: (job.state, job.attempt, job.run, job.output) for job in self.jobs.values()
        }


def test_every_sequence_of_calls_does_what_the_model_says(connect):
    connections, seed = [connect() for _ in range(3)], random.randrange(10**9)
    print("seed", seed)
    for sequence in range(20):
        model = Model(connections, random.Random(seed + sequence))
        for _ in range(50):
            model.step()
            model.check()
        for job in model.jobs.values():
            expire(connections[0], job.id)
        call(connections[0], "job_reap")  # leave nothing that the next sequence would reap
    assert_sound(connections[0])


# Many at once


def churn(conn, task, chance, rounds, log):
    """Random calls of one worker, some in transactions that are rolled back; logs what was committed."""
    held = []
    for _ in range(rounds):
        rolls_back = chance.random() < 0.15
        with conn.transaction(force_rollback=rolls_back):
            did = step(conn, task, chance, held)
        if did is not None and not rolls_back:
            log.append(did)
            if did[0] == "claim":
                held += did[1]
        elif did is not None and did[0] != "claim":
            held.append(did[1])
    return held


def step(conn, task, chance, held):
    act = chance.random()
    if act < 0.35 or not held:
        jobs = claim(conn, task, max_jobs=chance.randint(1, 4))
        return ("claim", [(job.job_id, job.epoch, job.attempt, job.max_attempts) for job in jobs])
    lease = held.pop(chance.randrange(len(held)))
    job_id, epoch = lease[:2]
    if act < 0.45:
        expire(conn, job_id)
        call(conn, "job_reap", 100)
        held.append(lease)
        return None
    try:
        with conn.transaction():
            if act < 0.7:
                return ("end", lease, one(conn, "job_complete", job_id, epoch, Jsonb(epoch)))
            if act < 0.85:
                return ("end", lease, one(conn, "job_fail", job_id, epoch, "e").disposition)
            return ("end", lease, one(conn, "job_release", job_id, epoch))
    except (psycopg.errors.ObjectNotInPrerequisiteState, psycopg.errors.LockNotAvailable) as error:
        return ("end", lease, error.diag.sqlstate)


def test_many_workers_at_once(connect):
    """Whatever the interleaving: every job is in one place, no epoch is given out twice, no lease ends twice."""
    seed, task, workers = random.randrange(10**9), a_task(), [connect() for _ in range(6)]
    print("seed", seed)
    options = {"max_attempts": 3, "retry": {"initial": "0"}, "on_exhausted": "hold"}
    call(workers[0], "job_enqueue_many", task, Jsonb(list(range(60))), options=options)
    logs = [[] for _ in workers]
    running = [
        in_background(churn, conn, task, random.Random(seed + n), 120, logs[n]) for n, conn in enumerate(workers)
    ]
    for thread in running:
        thread.join(90)
    leases, ends = defaultdict(list), defaultdict(list)
    for log in logs:
        for did in log:
            if did[0] == "claim":
                for job_id, epoch, attempt, max_attempts in did[1]:
                    leases[job_id].append(epoch)
                    assert 1 <= attempt <= max_attempts
            elif did[2] in ("succeeded", "retry", "held", "dead", "ready"):
                ends[did[1][:2]].append(did[2])
    assert sum(map(len, leases.values())) > 60
    for epochs in leases.values():
        assert len(set(epochs)) == len(epochs)
    assert all(len(answers) == 1 for answers in ends.values())
    outputs = "SELECT job_id, epoch, output FROM sayiir.job_end WHERE job_id = ANY (%s) AND state = 'succeeded'"
    for job_id, epoch, output in workers[0].execute(outputs, [list(leases)]):
        assert output == epoch and ends[job_id, epoch] == ["succeeded"]
        assert epoch == max(leases[job_id])
    assert_sound(workers[0])
