"""Cancel: at once when nobody holds the job, else a request; and exactly one end, whoever comes first."""

import pytest

from jobs import (  # noqa: F401
    a_task,
    assert_sound,
    call,
    claim,
    claim_one,
    complete,
    enqueue,
    expire,
    fail,
    fall_due,
    get,
    in_background,
    leased,
    no_worker,
    one,
    reap,
    refused,
    value,
)
from support import wait_for_lock, wait_until

pytestmark = pytest.mark.usefixtures("no_worker")


def cancel(conn, job_id, **named):
    return one(conn, "job_cancel", job_id, **named).disposition


def heartbeat(conn, job):
    return one(conn, "job_heartbeat", job.job_id, job.epoch)


def requests(conn, job_id):
    return value(conn, "SELECT count(*) FROM sayiir.signal WHERE job_id = %s", job_id)


def test_what_nobody_leases_is_cancelled_at_once(conn):
    ready, scheduled = enqueue(conn, a_task()), enqueue(conn, a_task(), run_at="2100-01-01")
    retrying, held = leased(conn), leased(conn, max_attempts=1, options={"on_exhausted": "hold"})
    fail(conn, retrying)
    fail(conn, held)
    for job_id in (ready, scheduled, retrying.job_id, held.job_id):
        assert cancel(conn, job_id, reason="not needed") == "cancelled"
        state = get(conn, job_id)
        assert (state.status, state.error_code, state.reason) == ("cancelled", "job.cancelled", "not needed")
        assert state.finished_at is not None
        assert cancel(conn, job_id) == "already_ended"
    assert claim(conn, "*", max_jobs=100) == []
    with refused("job.unsuccessful") as detail:
        one(conn, "job_result", ready)
    assert detail.status == "cancelled"


def test_a_worker_learns_of_the_request_and_acknowledges_it(conn):
    job = leased(conn)
    assert heartbeat(conn, job) == "continue"
    assert cancel(conn, job.job_id, reason="stop") == "requested"
    assert cancel(conn, job.job_id) == "requested"
    assert get(conn, job.job_id).status == "leased"
    assert heartbeat(conn, job) == "cancel"
    assert one(conn, "job_release", job.job_id, job.epoch, reason="stopped") == "cancelled"
    state = get(conn, job.job_id)
    assert (state.status, state.reason) == ("cancelled", "stopped")
    assert requests(conn, job.job_id) == 0
    with refused("job.lease_lost"):
        call(conn, "job_fail", job.job_id, job.epoch, "e")


@pytest.mark.parametrize("end", ["complete", "fail", "terminal", "reap"])
def test_what_ends_after_the_cancel_is_cancelled(conn, end):
    """Never a success, and never another attempt."""
    job = leased(conn)
    cancel(conn, job.job_id)
    if end == "complete":
        assert complete(conn, job, "output") == "cancelled"
        assert complete(conn, job, "output") == "cancelled"
    elif end == "reap":
        expire(conn, job.job_id)
        assert reap(conn) == {job.job_id: "cancelled"}
    else:
        kind = "terminal" if end == "terminal" else "retryable"
        assert fail(conn, job, "e", kind=kind) == fail(conn, job, "e", kind=kind) == ("cancelled", None)
    state = get(conn, job.job_id)
    assert (state.status, state.output, state.attempt) == ("cancelled", None, 1)
    assert requests(conn, job.job_id) == 0
    assert cancel(conn, job.job_id) == "already_ended"


def test_what_has_ended_stays_as_it_is(conn):
    done, dead = leased(conn), leased(conn)
    complete(conn, done, 1)
    fail(conn, dead, kind="terminal")
    for job, status in [(done, "succeeded"), (dead, "failed")]:
        assert cancel(conn, job.job_id) == "already_ended"
        assert get(conn, job.job_id).status == status


def test_a_cancelled_job_can_run_again(conn):
    job = leased(conn)
    cancel(conn, job.job_id)
    complete(conn, job)
    assert one(conn, "job_requeue", job.job_id).disposition == "requeued"
    again = claim_one(conn, job.task)
    assert heartbeat(conn, again) == "continue"  # the old request is forgotten
    assert complete(conn, again) == "succeeded"


def test_a_rolled_back_cancel_did_not_happen(conn):
    job, ready = leased(conn), enqueue(conn, a_task())
    with conn.transaction(force_rollback=True):
        assert cancel(conn, job.job_id) == "requested"
        assert cancel(conn, ready) == "cancelled"
    assert heartbeat(conn, job) == "continue"
    assert get(conn, ready).status == "ready"
    assert complete(conn, job) == "succeeded"


def test_no_such_job(conn):
    with refused("job.not_found") as detail:
        cancel(conn, "00000000-0000-0000-0000-000000000000")
    assert detail.job_id == "00000000-0000-0000-0000-000000000000"


# Races


def test_a_completion_before_the_cancel_wins(connect):
    worker, person, observer = connect(), connect(), connect()
    job = leased(worker)
    with worker.transaction():
        assert complete(worker, job, 1) == "succeeded"
        cancelling = in_background(cancel, person, job.job_id)
        wait_for_lock(observer, person.info.backend_pid)
    assert cancelling.join() == "already_ended"
    state = get(observer, job.job_id)
    assert (state.status, state.output) == ("succeeded", 1)


def test_a_completion_that_is_rolled_back_lets_the_cancel_through(connect):
    worker, person, observer = connect(), connect(), connect()
    job = leased(worker)
    with worker.transaction(force_rollback=True):
        assert complete(worker, job, 1) == "succeeded"
        cancelling = in_background(cancel, person, job.job_id)
        wait_for_lock(observer, person.info.backend_pid)
    assert cancelling.join() == "requested"
    assert complete(worker, job, 1) == "cancelled"


def test_a_cancel_before_the_completion_wins(connect):
    worker, person, observer = connect(), connect(), connect()
    job = leased(worker)
    with person.transaction():
        assert cancel(person, job.job_id) == "requested"
        completing = in_background(complete, worker, job, 1)
        wait_for_lock(observer, worker.info.backend_pid)
    assert completing.join() == "cancelled"
    state = get(observer, job.job_id)
    assert (state.status, state.output) == ("cancelled", None)


def test_a_cancel_before_the_failure_leaves_no_retry(connect):
    worker, person, observer = connect(), connect(), connect()
    job = leased(worker)
    with person.transaction():
        assert cancel(person, job.job_id) == "requested"
        failing = in_background(fail, worker, job)
        wait_for_lock(observer, worker.info.backend_pid)
    assert failing.join().disposition == "cancelled"
    assert get(observer, job.job_id).status == "cancelled"


def test_a_claim_in_flight_becomes_a_lease_that_learns_of_the_cancel(connect):
    """The cancel does not wait for the claim, whose row it cannot take."""
    worker, person = connect(), connect()
    job_id = enqueue(person, task := a_task())
    with worker.transaction():
        job = claim_one(worker, task)
        assert cancel(person, job_id) == "requested"
    assert heartbeat(worker, job) == "cancel"
    assert complete(worker, job) == "cancelled"
    assert requests(person, job_id) == 0


def test_a_cancel_that_met_a_claim_which_was_rolled_back_is_applied_by_a_sweep(connect):
    worker, person = connect(), connect()
    job_id = enqueue(person, task := a_task())
    with worker.transaction(force_rollback=True):
        claim_one(worker, task)
        assert cancel(person, job_id, reason="why") == "requested"
    assert get(person, job_id).status == "ready"
    with person.transaction():
        # A sweep does not wait for an owner that somebody holds.
        person.execute("SELECT FROM sayiir.job WHERE job_id = %s FOR UPDATE", [job_id])
        assert ("cancels", 0) in call(worker, "tick")
    assert ("cancels", 1) in call(worker, "tick")
    state = get(person, job_id)
    assert (state.status, state.reason) == ("cancelled", "why")
    assert requests(person, job_id) == 0
    assert claim(worker, task) == []


def test_a_cancel_races_a_promotion(connect):
    sweeper, person = connect(), connect()
    job = leased(person)
    fail(person, job)
    with sweeper.transaction():
        fall_due(sweeper, job.job_id)
        # The row is on its way from wait to ready: the cancel sees neither.
        assert cancel(person, job.job_id) == "requested"
    call(sweeper, "tick")
    assert get(person, job.job_id).status == "cancelled"


def test_a_cancel_before_the_claim_leaves_nothing_to_claim(connect):
    worker, person = connect(), connect()
    job_id = enqueue(person, task := a_task())
    with person.transaction():
        assert cancel(person, job_id) == "cancelled"
        assert claim(worker, task) == []  # it steps over the row
    assert claim(worker, task) == []


def test_many_cancels_and_completions_end_every_job_once(connect):
    """No interleaving is forced here: whatever happens, each job has one end and both callers agree on it."""
    task, people, workers = a_task(), [connect() for _ in range(3)], [connect() for _ in range(3)]
    ids = [enqueue(people[0], task) for _ in range(150)]

    def work(conn):
        ended = {}
        while jobs := claim(conn, task, max_jobs=3):
            for job in jobs:
                ended[job.job_id] = complete(conn, job)
        return ended

    def stop(conn, mine):
        return {job_id: cancel(conn, job_id) for job_id in mine}

    working = [in_background(work, conn) for conn in workers]
    stopping = [in_background(stop, conn, ids[n::3]) for n, conn in enumerate(people)]
    stopped = {job_id: answer for thread in stopping for job_id, answer in thread.join().items()}
    worked = {job_id: answer for thread in working for job_id, answer in thread.join().items()}
    wait_until(lambda: call(people[0], "tick") and requests_left(people[0]) == 0)
    for job_id in ids:
        status = get(people[0], job_id).status
        told = {"cancelled": "cancelled", "requested": "cancelled", "already_ended": "succeeded"}[stopped[job_id]]
        assert status == told == worked.get(job_id, "cancelled")


def requests_left(conn):
    return value(conn, "SELECT count(*) FROM sayiir.signal")


def test_nothing_was_lost(conn):
    assert_sound(conn)
