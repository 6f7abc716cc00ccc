"""Races of durable code, forced with locks: nothing is lost between a look and the parking, whoever is first, and whoever rolls back."""

import random
import threading

import pytest
from psycopg.types.json import Jsonb

from durable import await_event, await_job, back, pass_time, send, sleep, spawn
from flows import Flow, event, task
from jobs import (  # noqa: F401
    a_task,
    assert_sound,
    call,
    claim,
    claim_one,
    complete,
    enqueue,
    expire,
    get,
    in_background,
    leased,
    no_worker,
    one,
    reap,
    refused,
    value,
)
from support import wait_for_lock

pytestmark = pytest.mark.usefixtures("no_worker")

PARKED = ("parked", None)
ENDS = ["commit", "rollback"]


@pytest.fixture
def other(connect):
    return connect()


class Job:
    """A stand-alone job whose code runs."""

    def __init__(self, conn):
        self.conn = conn
        self.now = leased(conn)

    def send(self, conn, payload):
        return send(conn, self.now, payload=payload)

    def back(self):
        self.now = back(self.conn, self.now)
        return self.now


class Step:
    """The same as a step of a workflow."""

    def __init__(self, conn):
        self.conn = conn
        self.flow = Flow(conn, task("work"), event("open"))
        self.task = self.flow.task("work")
        self.now = claim_one(conn, self.task)

    def send(self, conn, payload):
        return self.flow.send("go", payload, conn=conn)

    def back(self):
        self.now = claim_one(self.conn, self.task)
        return self.now


@pytest.fixture(params=[Job, Step])
def code(conn, request):
    return request.param(conn)


def behind(conn, other, first, second, end):
    """Runs first in a transaction, then second in another session, which has to wait for it; ends the first."""
    conn.execute("BEGIN")
    done = first()
    waiting = in_background(second)
    wait_for_lock(conn, other.info.backend_pid)
    conn.execute(end)
    return done, waiting.join()


# Events


@pytest.mark.parametrize("end", ENDS)
def test_a_look_waits_for_an_event_on_its_way(conn, other, code, end):
    job = code.now
    _, answer = behind(conn, other, lambda: code.send(conn, 1), lambda: await_event(other, job), end)
    if end == "commit":
        assert answer == ("received", 1)
    else:
        assert answer == PARKED
        assert code.send(conn, 2) == "resumed"
        assert await_event(conn, code.back()) == ("received", 2)
    assert_sound(conn)


@pytest.mark.parametrize("end", ENDS)
def test_an_event_waits_for_a_job_that_is_parking(conn, other, code, end):
    job = code.now
    answer, sent = behind(conn, other, lambda: await_event(conn, job), lambda: code.send(other, 1), end)
    assert answer == PARKED
    if end == "commit":
        assert sent == "resumed"
        job = code.back()
    else:
        assert sent == "buffered"
    assert await_event(conn, job) == ("received", 1)
    assert_sound(conn)


@pytest.mark.parametrize("end", ENDS)
def test_two_events_for_one_wait(conn, other, code, end):
    await_event(conn, code.now)
    first, second = behind(conn, other, lambda: code.send(conn, 1), lambda: code.send(other, 2), end)
    assert first == "resumed"
    assert second == ("buffered" if end == "commit" else "resumed")
    job = code.back()
    assert await_event(conn, job) == ("received", 1 if end == "commit" else 2)
    if end == "commit":
        assert await_event(conn, job, "next", event="go") == ("received", 2)
    assert_sound(conn)


# Timeouts


def due(conn, job):
    """The wait's time is over, for whoever looks; nothing has swept yet."""
    conn.execute(
        "WITH c AS (UPDATE sayiir.checkpoint SET due = clock_timestamp() - interval '2 s' WHERE job_id = %s)"
        " UPDATE sayiir.job_wait SET due = clock_timestamp() - interval '1 s' WHERE job_id = %s",
        [job.job_id, job.job_id],
    )


@pytest.mark.parametrize("end", ENDS)
def test_a_sweep_passes_by_what_an_event_is_waking(conn, other, code, end):
    await_event(conn, code.now, timeout="1 hour")
    due(conn, code.now)
    conn.execute("BEGIN")
    assert code.send(conn, 1) == "resumed"
    call(other, "tick")  # it does not wait
    conn.execute(end)
    call(other, "tick")
    answer = await_event(conn, code.back())
    assert answer == (("received", 1) if end == "commit" else ("timed_out", None))
    assert_sound(conn)


@pytest.mark.parametrize("end", ENDS)
def test_an_event_waits_for_a_timeout_that_fires(conn, other, code, end):
    await_event(conn, code.now, timeout="1 hour")
    due(conn, code.now)
    _, sent = behind(conn, other, lambda: call(conn, "tick"), lambda: code.send(other, 1), end)
    assert sent == ("buffered" if end == "commit" else "resumed")
    job = code.back()
    assert await_event(conn, job) == (("timed_out", None) if end == "commit" else ("received", 1))
    if end == "commit":
        assert await_event(conn, job, "next", event="go") == ("received", 1)
    assert_sound(conn)


# Children


@pytest.fixture
def child(conn, code):
    work = a_task()
    found = spawn(conn, code.now, work)
    working = claim_one(conn, work)
    assert working.job_id == found.job_id
    return working


@pytest.mark.parametrize("end", ENDS)
def test_a_look_waits_for_a_child_that_is_ending(conn, other, code, child, end):
    job = code.now
    _, answer = behind(conn, other, lambda: complete(conn, child, 1), lambda: await_job(other, job, child), end)
    if end == "rollback":
        assert answer.disposition == "parked"
        complete(conn, child, 1)
        answer = await_job(conn, code.back(), child)
    assert answer == ("received", 1, None)
    assert_sound(conn)


@pytest.mark.parametrize("end", ENDS)
def test_a_child_that_ends_waits_for_a_parent_that_is_parking(conn, other, code, child, end):
    job = code.now
    answer, ended = behind(conn, other, lambda: await_job(conn, job, child), lambda: complete(other, child, 1), end)
    assert (answer.disposition, ended) == ("parked", "succeeded")
    if end == "commit":
        job = code.back()
    assert await_job(conn, job, child) == ("received", 1, None)
    assert_sound(conn)


def test_the_reaper_passes_by_a_child_whose_parent_is_busy(conn, other, code):
    work = a_task()
    found = spawn(conn, code.now, work, options=Jsonb({"max_attempts": 1}))
    claim_one(conn, work)
    expire(conn, found.job_id)
    conn.execute("BEGIN")
    assert await_job(conn, code.now, found).disposition == "parked"
    assert reap(other) == {}  # it does not wait
    conn.execute("COMMIT")
    assert reap(other) == {found.job_id: "dead"}
    assert await_job(conn, code.back(), found).error["code"] == "job.lease_expired"
    assert_sound(conn)


def test_a_sweep_of_cancels_passes_by_a_child_whose_parent_is_busy(conn, other, code):
    found = spawn(conn, code.now, a_task())
    conn.execute("INSERT INTO sayiir.signal (job_id, kind) VALUES (%s, 'cancel')", [found.job_id])
    conn.execute("BEGIN")
    assert await_job(conn, code.now, found).disposition == "parked"
    call(other, "tick")
    assert get(other, found.job_id).status == "ready"
    conn.execute("COMMIT")
    call(other, "tick")
    assert await_job(conn, code.back(), found).error["status"] == "cancelled"
    assert_sound(conn)


@pytest.mark.parametrize("end", ENDS)
def test_a_timeout_and_the_end_of_the_child(conn, other, code, child, end):
    await_job(conn, code.now, child, timeout="1 hour")
    due(conn, code.now)
    _, ended = behind(conn, other, lambda: call(conn, "tick"), lambda: complete(other, child, 1), end)
    assert ended == "succeeded"
    job = code.back()
    assert await_job(conn, job, child).disposition == ("timed_out" if end == "commit" else "received")
    assert_sound(conn)


# Cancels, leases and heartbeats


@pytest.mark.parametrize("end", ENDS)
def test_a_cancel_waits_for_a_job_that_is_parking(conn, other, end):
    job = leased(conn)
    _, answer = behind(
        conn, other, lambda: sleep(conn, job, delay="1 hour"), lambda: one(other, "job_cancel", job.job_id), end
    )
    assert answer.disposition == ("cancelled" if end == "commit" else "requested")
    if end == "rollback":
        assert sleep(conn, job, delay="1 hour") == "parked"
    assert get(conn, job.job_id).status == "cancelled"
    assert_sound(conn)


@pytest.mark.parametrize("end", ENDS)
def test_a_job_that_parks_waits_for_a_cancel(conn, other, end):
    job = leased(conn)
    _, answer = behind(
        conn, other, lambda: one(conn, "job_cancel", job.job_id), lambda: sleep(other, job, delay="1 hour"), end
    )
    assert answer == "parked"
    assert get(conn, job.job_id).status == ("cancelled" if end == "commit" else "waiting")
    assert_sound(conn)


def run_on(conn, job):
    return one(conn, "job_continue", job.job_id, job.epoch)


@pytest.mark.parametrize("end", ENDS)
def test_a_cancel_waits_for_a_new_run(conn, other, end):
    job = leased(conn)
    _, answer = behind(conn, other, lambda: run_on(conn, job), lambda: one(other, "job_cancel", job.job_id), end)
    info = get(conn, job.job_id)
    if end == "commit":
        assert (answer.disposition, info.status, info.run_number) == ("cancelled", "cancelled", 2)
    else:
        assert (answer.disposition, info.status, info.run_number) == ("requested", "leased", 1)
    assert_sound(conn)


@pytest.mark.parametrize("end", ENDS)
def test_a_new_run_waits_for_a_cancel(conn, other, end):
    job = leased(conn)
    _, answer = behind(conn, other, lambda: one(conn, "job_cancel", job.job_id), lambda: run_on(other, job), end)
    info = get(conn, job.job_id)
    if end == "commit":
        assert (answer.disposition, info.status, info.run_number) == ("cancelled", "cancelled", 1)
    else:
        assert (answer.disposition, info.status, info.run_number) == ("continued", "ready", 2)
    assert_sound(conn)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("first", ["cancel", "continue"])
def test_a_workflow_is_cancelled_as_its_step_begins_a_new_run(conn, other, first, end):
    flow = Flow(conn, {**task("work"), "allow_continue": True})
    job = claim_one(conn, flow.task("work"))
    acts = {
        "cancel": lambda session: flow.cancel(conn=session),
        "continue": lambda session: run_on(session, job).disposition,
    }
    second = "cancel" if first == "continue" else "continue"
    done, then = behind(conn, other, lambda: acts[first](conn), lambda: acts[second](other), end)
    answers = {first: done, second: then}
    cancelled = end == "commit" or second == "cancel"
    assert flow.status == ("cancelled" if cancelled else "running")
    if first == "cancel":
        assert answers["continue"] == ("cancelled" if end == "commit" else "continued")
    else:
        assert answers["continue"] == "continued"
        if end == "rollback":
            assert run_on(conn, job).disposition == "cancelled"
    assert_sound(conn)


def test_the_reaper_passes_by_a_job_that_is_parking(conn, other, code):
    expire(conn, code.now.job_id)
    conn.execute("BEGIN")
    assert await_event(conn, code.now) == PARKED
    assert reap(other) == {}
    conn.execute("COMMIT")
    assert reap(other) == {}
    assert code.send(conn, 1) == "resumed"
    assert await_event(conn, code.back()) == ("received", 1)


@pytest.mark.parametrize("end", ENDS)
def test_a_job_that_parks_waits_for_the_reaper(conn, other, code, end):
    job = code.now
    expire(conn, job.job_id)
    waiting = lambda: await_event(other, job)  # noqa: E731
    if end == "commit":
        with refused("job.lease_lost"):
            behind(conn, other, lambda: reap(conn), waiting, end)
    else:
        _, answer = behind(conn, other, lambda: reap(conn), waiting, end)
        assert answer == PARKED
    assert_sound(conn)


def test_a_lease_that_is_held_cannot_park_and_nothing_changes(conn, other, code):
    job = code.now
    conn.execute("BEGIN")
    assert one(conn, "job_heartbeat", job.job_id, job.epoch) == "continue"
    with refused("job.busy"):
        await_event(other, job)
    conn.execute("COMMIT")
    assert value(conn, "SELECT count(*) FROM sayiir.checkpoint WHERE job_id = %s", job.job_id) == 0
    assert await_event(other, job) == PARKED


# Lock order


def test_batches_with_parents_lock_in_one_order(conn, connect):
    """Children of jobs that are themselves in other batches, completed from all sides: no deadlock, and every parent goes on."""
    sessions = [connect() for _ in range(4)]
    for round_number in range(12):
        parents, children = a_task(), a_task()
        flows = [Flow(conn, task("work"), event("open")) for _ in range(2)]
        for _ in range(4):
            enqueue(conn, parents)
        owners = claim(conn, parents, max_jobs=4) + [claim_one(conn, flow.task("work")) for flow in flows]
        for n, owner in enumerate(owners):
            for name in "ab":
                spawn(conn, owner, children, name)
        working = claim(conn, children, max_jobs=12)
        # Half of the parents wait for their first child, the others end together with the children.
        of = {str(job.job_id): job for job in working}
        waiting = owners[::2]
        for owner in waiting:
            first = value(
                conn, "SELECT value #>> '{}' FROM sayiir.checkpoint WHERE job_id = %s AND name = 'a'", owner.job_id
            )
            assert await_job(conn, owner, of[first]).disposition == "parked"
        ending = working + owners[1::2]
        random.Random(round_number).shuffle(ending)
        gate = threading.Barrier(4)

        def finish(session, jobs, gate=gate):
            gate.wait()
            ids, epochs = [job.job_id for job in jobs], [job.epoch for job in jobs]
            return [line.disposition for line in call(session, "job_complete_many", ids, epochs)]

        running = [in_background(finish, session, ending[n::4]) for n, session in enumerate(sessions)]
        for thread in running:
            assert set(thread.join()) == {"completed"}
        for owner in waiting:
            assert get(conn, owner.job_id).status == "ready"
    assert_sound(conn)


def test_events_and_waits_at_one_moment(conn, connect):
    """Without forced order: whatever interleaving comes, every event arrives."""
    sender, worker = connect(), connect()
    for n in range(60):
        job = leased(conn)
        gate = threading.Barrier(2)

        def after(function, *args, gate=gate):
            gate.wait()
            return function(*args)

        sending = in_background(after, lambda job=job, n=n: send(sender, job, payload=n))
        answer = after(await_event, worker, job)
        sent = sending.join()
        if answer == PARKED:
            assert sent == "resumed"
            answer = await_event(conn, back(conn, job))
        assert answer == ("received", n)
    assert_sound(conn)


def test_a_sweep_wakes_a_crowd_in_one_go(conn):
    """Many sleepers fall due together; each comes back once."""
    work = a_task()
    for _ in range(50):
        enqueue(conn, work)
    jobs = claim(conn, work, max_jobs=50)
    for job in jobs:
        assert sleep(conn, job, delay="1 hour") == "parked"
    pass_time(conn, *jobs)
    found = claim(conn, work, max_jobs=100)
    assert {job.job_id for job in found} == {job.job_id for job in jobs}
    assert len(found) == 50
    assert_sound(conn)
