"""Leases: heartbeat, complete, release, and what a worker that is late may still do."""

from datetime import timedelta
from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb

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

LEASE = "SELECT {} FROM sayiir.job_lease WHERE job_id = %s"


def heartbeat(conn, job, **named):
    return one(conn, "job_heartbeat", job.job_id, job.epoch, **named)


def release(conn, job, **named):
    return one(conn, "job_release", job.job_id, job.epoch, **named)


def lost_to_every_call(conn, job):
    """The lease with this epoch does nothing any more."""
    assert heartbeat(conn, job) == "lost"
    for function, more in [("job_complete", []), ("job_fail", ["late"]), ("job_release", [])]:
        with refused("job.lease_lost") as detail:
            call(conn, function, job.job_id, job.epoch, *more)
        assert (detail.job_id, detail.epoch) == (str(job.job_id), job.epoch)
    ids, epochs = [job.job_id], [job.epoch]
    for rows in [
        call(conn, "job_heartbeat_many", ids, epochs),
        call(conn, "job_complete_many", ids, epochs),
        call(conn, "job_fail_many", ids, epochs, ["late"]),
    ]:
        assert [row.disposition for row in rows] == ["lost"]


# Heartbeat


def test_a_heartbeat_extends_the_lease_and_reports_progress(conn):
    job = leased(conn, options={"lease": "10 s"})
    assert heartbeat(conn, job, lease="1 h", progress_done=3, progress_total=7, stage="copy") == "continue"
    state = get(conn, job.job_id)
    assert state.expires_at - job.expires_at > timedelta(minutes=59)
    assert (state.progress_done, state.progress_total, state.stage) == (3, 7, "copy")
    assert heartbeat(conn, job, progress_done=4) == "continue"
    state = get(conn, job.job_id)
    assert (state.progress_done, state.progress_total, state.stage) == (4, 7, "copy")
    # Without a lease it is as claimed, from now on.
    assert timedelta(seconds=9) < state.expires_at - value(conn, "SELECT clock_timestamp()") <= timedelta(seconds=10)


def test_a_heartbeat_never_extends_past_the_timeout(conn):
    job = leased(conn, options={"lease": "10 s", "timeout": "15 s"})
    assert job.deadline_at - job.expires_at == timedelta(seconds=5)
    assert heartbeat(conn, job, lease="1 day") == "continue"
    assert get(conn, job.job_id).expires_at == job.deadline_at


def test_a_lease_never_outlasts_the_deadline_of_all_attempts(conn):
    job = leased(conn, options={"lease": "1 h", "deadline": "15 s", "timeout": "1 h"})
    assert job.expires_at == job.deadline_at
    assert job.deadline_at - get(conn, job.job_id).created_at <= timedelta(seconds=15)


def test_heartbeats_are_hot(conn):
    task = a_task()
    call(conn, "job_enqueue_many", task, Jsonb(list(range(50))))
    jobs = claim(conn, task, max_jobs=50)
    query = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'job_lease'"

    def updates(beat):
        """(updated, HOT) of one transaction: the counters are flushed between two."""
        with conn.transaction():
            before = conn.execute(query).fetchone()
            beat()
            return [now - was for now, was in zip(conn.execute(query).fetchone(), before, strict=True)]

    for round_ in range(3):
        for job in jobs:
            assert updates(
                lambda job=job, n=round_: heartbeat(conn, job, lease="1 h", progress_done=n, stage=f"s{n}")
            ) == [1, 1]
    ids, epochs = [job.job_id for job in jobs], [job.epoch for job in jobs]
    assert updates(lambda: call(conn, "job_heartbeat_many", ids, epochs)) == [50, 50]


def test_a_batch_of_heartbeats_answers_each_in_order(conn):
    alive, stale, cancelled = leased(conn), leased(conn), leased(conn)
    assert one(conn, "job_cancel", cancelled.job_id).disposition == "requested"
    release(conn, stale)
    unknown = uuid4()
    jobs = [(cancelled.job_id, cancelled.epoch), (unknown, 1), (alive.job_id, alive.epoch), (stale.job_id, stale.epoch)]
    answers = call(conn, "job_heartbeat_many", [id for id, _ in jobs], [epoch for _, epoch in jobs], "5 min")
    assert [tuple(answer) for answer in answers] == [
        (cancelled.job_id, "cancel"),
        (unknown, "lost"),
        (alive.job_id, "continue"),
        (stale.job_id, "lost"),
    ]
    assert call(conn, "job_heartbeat_many", [], []) == []


def test_two_batches_of_heartbeats_wait_in_one_order(connect):
    """Whatever order the callers have: else each would hold what the other waits for."""
    conn, a, b, holder, observer = (connect() for _ in range(5))
    jobs = sorted((leased(conn) for _ in range(2)), key=lambda job: job.job_id)

    def beat(conn, jobs):
        return call(conn, "job_heartbeat_many", [job.job_id for job in jobs], [job.epoch for job in jobs])

    with holder.transaction():
        holder.execute(LEASE.format("job_id") + " FOR UPDATE", [jobs[0].job_id])
        beats = []
        for conn, order in [(a, jobs), (b, jobs[::-1])]:
            beats.append(in_background(beat, conn, order))
            wait_for_lock(observer, conn.info.backend_pid)
    for thread in beats:
        assert {row.disposition for row in thread.join()} == {"continue"}


# Complete


def test_a_completion_is_final_and_keeps_its_first_output(conn):
    job = leased(conn)
    assert complete(conn, job, {"n": 1}) == "succeeded"
    assert complete(conn, job, {"n": 2}) == "succeeded"  # repeated: answered again
    state = get(conn, job.job_id)
    assert (state.status, state.output, state.worker, state.attempt) == ("succeeded", {"n": 1}, "w", 1)
    assert one(conn, "job_result", job.job_id) == {"n": 1}
    for function, more in [("job_fail", ["e"]), ("job_release", [])]:
        with refused("job.lease_lost"):
            call(conn, function, job.job_id, job.epoch, *more)
    assert heartbeat(conn, job) == "lost"
    with refused("job.lease_lost"):
        one(conn, "job_complete", job.job_id, job.epoch + 1)


def test_without_an_output_the_result_is_null(conn):
    job = leased(conn)
    assert one(conn, "job_complete", job.job_id, job.epoch) == "succeeded"
    assert one(conn, "job_result", job.job_id) is None
    assert value(conn, "SELECT output IS NULL FROM sayiir.job_end WHERE job_id = %s", job.job_id)


def test_a_batch_of_completions_answers_each_on_its_own_terms(conn):
    fresh, repeated, stale, cancelled = (leased(conn) for _ in range(4))
    complete(conn, repeated, "first")
    release(conn, stale)
    call(conn, "job_cancel", cancelled.job_id)
    jobs = [fresh, repeated, stale, cancelled]
    answers = call(
        conn, "job_complete_many", [job.job_id for job in jobs], [job.epoch for job in jobs], Jsonb([1, 2, 3, 4])
    )
    assert [tuple(answer) for answer in answers] == [
        (fresh.job_id, "completed"),
        (repeated.job_id, "repeated"),
        (stale.job_id, "lost"),
        (cancelled.job_id, "cancelled"),
    ]
    states = [get(conn, job.job_id) for job in jobs]
    assert [(state.status, state.output) for state in states] == [
        ("succeeded", 1),
        ("succeeded", "first"),
        ("ready", None),
        ("cancelled", None),
    ]
    assert call(conn, "job_complete_many", [], []) == []


def test_a_batch_of_1000(conn):
    task = a_task()
    call(conn, "job_enqueue_many", task, Jsonb(list(range(1000))))
    jobs = claim(conn, task, max_jobs=1000)
    outputs = Jsonb([job.input for job in jobs])
    answers = call(conn, "job_complete_many", [job.job_id for job in jobs], [job.epoch for job in jobs], outputs)
    assert {answer.disposition for answer in answers} == {"completed"}
    same = "SELECT bool_and(payload = output) FROM sayiir.job JOIN sayiir.job_end USING (job_id) WHERE task = %s"
    assert value(conn, same, task)


def test_a_completion_follows_its_callers_transaction(connect):
    conn, other = connect(), connect()
    job = leased(conn)
    conn.execute("CREATE TABLE IF NOT EXISTS public.business (job_id uuid)")
    with conn.transaction(force_rollback=True):
        conn.execute("INSERT INTO public.business VALUES (%s)", [job.job_id])
        assert complete(conn, job) == "succeeded"
        assert get(other, job.job_id).status == "leased"
    assert get(conn, job.job_id).status == "leased"
    with conn.transaction():
        conn.execute("INSERT INTO public.business VALUES (%s)", [job.job_id])
        assert complete(conn, job) == "succeeded"
    assert get(other, job.job_id).status == "succeeded"
    assert value(other, "SELECT count(*) FROM public.business WHERE job_id = %s", job.job_id) == 1


# Release


def test_a_release_gives_the_attempt_back_unless_it_ran(conn):
    task = a_task()
    job_id = enqueue(conn, task, max_attempts=2)
    for _ in range(5):
        job = claim_one(conn, task)
        assert job.attempt == 1
        assert release(conn, job) == "ready"
    assert release(conn, claim_one(conn, task), ran=True) == "ready"
    assert get(conn, job_id).attempt == 1
    job = claim_one(conn, task)
    assert job.attempt == 2
    assert fail(conn, job).disposition == "dead"


@pytest.mark.parametrize(("on_exhausted", "answer", "status"), [("fail", "dead", "failed"), ("hold", "held", "held")])
def test_a_last_attempt_that_ran_is_not_given_to_another_worker(conn, on_exhausted, answer, status):
    job = leased(conn, max_attempts=1, options={"on_exhausted": on_exhausted})
    assert release(conn, job, ran=True, reason="shutting down") == answer
    state = get(conn, job.job_id)
    assert (state.status, state.attempt, state.error_code, state.error_message) == (
        status,
        1,
        "job.released",
        "shutting down",
    )
    assert claim(conn, job.task) == []


def test_a_release_with_a_delay_waits(conn):
    job = leased(conn)
    now = value(conn, "SELECT clock_timestamp()")
    assert release(conn, job, delay="1 h", reason="busy") == "ready"
    state = get(conn, job.job_id)
    assert state.status == "scheduled"
    assert timedelta(minutes=60) <= state.run_at - now < timedelta(minutes=61)
    assert claim(conn, job.task) == []
    fall_due(conn, job.job_id)
    assert claim_one(conn, job.task).attempt == 1


def test_a_released_lease_is_lost(conn):
    job = leased(conn)
    release(conn, job)
    lost_to_every_call(conn, job)
    again = claim_one(conn, job.task)
    assert again.epoch > job.epoch
    lost_to_every_call(conn, job)
    assert complete(conn, again) == "succeeded"


# Late workers


@pytest.mark.parametrize("act", ["complete", "fail", "heartbeat", "release"])
def test_an_expired_lease_that_nobody_took_is_still_a_lease(conn, act):
    job = leased(conn, max_attempts=1)
    expire(conn, job.job_id)
    assert get(conn, job.job_id).expires_at < value(conn, "SELECT clock_timestamp()")
    if act == "complete":
        assert complete(conn, job) == "succeeded"
    elif act == "fail":
        assert fail(conn, job).disposition == "dead"
    elif act == "heartbeat":
        assert heartbeat(conn, job) == "continue"
        assert reap(conn) == {}
        assert complete(conn, job) == "succeeded"
    else:
        assert release(conn, job) == "ready"


def test_a_reaped_lease_is_lost(conn):
    job = leased(conn)
    expire(conn, job.job_id)
    assert reap(conn) == {job.job_id: "retry"}
    lost_to_every_call(conn, job)
    assert get(conn, job.job_id).status == "ready"


def test_a_lease_that_was_reaped_for_good_is_lost(conn):
    """Also when the same end would have been the answer to a call of its worker."""
    dead, cancelled, timed_out = leased(conn, max_attempts=1), leased(conn), leased(conn, max_attempts=1)
    call(conn, "job_cancel", cancelled.job_id)
    jobs = [dead, cancelled, timed_out]
    expire(conn, *(job.job_id for job in jobs))
    conn.execute("UPDATE sayiir.job_lease SET deadline_at = expires_at WHERE job_id = %s", [timed_out.job_id])
    assert reap(conn) == {dead.job_id: "dead", cancelled.job_id: "cancelled", timed_out.job_id: "dead"}
    for job in jobs:
        lost_to_every_call(conn, job)
    assert [get(conn, job.job_id).error_code for job in jobs] == [
        "job.lease_expired",
        "job.lease_expired",
        "job.timeout",
    ]


def test_a_timed_out_attempt_is_lost(conn):
    job = leased(conn, options={"timeout": "1 h"})
    expire(conn, job.job_id)
    conn.execute("UPDATE sayiir.job_lease SET deadline_at = expires_at WHERE job_id = %s", [job.job_id])
    assert reap(conn) == {job.job_id: "retry"}
    lost_to_every_call(conn, job)


def test_a_late_worker_is_fenced_and_the_second_holder_is_unharmed(conn):
    """Scenario: a slow worker finishes after another one has claimed the job."""
    job = leased(conn, payload={"n": 1})
    expire(conn, job.job_id)
    reap(conn)
    second = claim_one(conn, job.task, worker="second", lease="1 h")
    assert (second.job_id, second.attempt) == (job.job_id, 2)
    lost_to_every_call(conn, job)
    state = get(conn, job.job_id)
    assert (state.status, state.worker, state.epoch, state.expires_at) == (
        "leased",
        "second",
        second.epoch,
        second.expires_at,
    )
    assert complete(conn, second, "second") == "succeeded"
    lost_to_every_call(conn, job)
    assert one(conn, "job_result", job.job_id) == "second"


def test_a_claim_takes_an_expired_lease_by_itself(conn):
    """Claims reap at most once a second, so a waiting one does it while it waits."""
    job = leased(conn)
    expire(conn, job.job_id)
    again = claim_one(conn, job.task, wait="5 s")
    assert (again.job_id, again.attempt) == (job.job_id, 2)


def test_the_reaper_looks_again_when_a_heartbeat_has_moved_the_expiry(conn):
    job = leased(conn, options={"lease": "1 h"})
    conn.execute("UPDATE sayiir.job_lease SET check_at = clock_timestamp() WHERE job_id = %s", [job.job_id])
    assert reap(conn) == {}
    assert value(conn, LEASE.format("check_at = expires_at"), job.job_id)


# Busy


@pytest.mark.parametrize("function", ["job_complete", "job_fail", "job_release"])
def test_a_lease_row_that_another_session_holds_is_busy(connect, function):
    conn, holder = connect(), connect()
    job = leased(conn)
    conn.execute("SET lock_timeout = '5 s'")
    with holder.transaction():
        holder.execute(LEASE.format("job_id") + " FOR UPDATE", [job.job_id])
        with refused("job.busy") as detail:
            call(conn, function, job.job_id, job.epoch, *(["e"] if function == "job_fail" else []))
        assert detail.job_id == str(job.job_id)
        assert get(conn, job.job_id).status == "leased"
    assert complete(conn, job) == "succeeded"


def test_in_a_batch_only_the_locked_lease_is_busy(connect):
    conn, holder = connect(), connect()
    jobs = [leased(conn) for _ in range(3)]
    ids, epochs = [job.job_id for job in jobs], [job.epoch for job in jobs]
    with holder.transaction():
        holder.execute(LEASE.format("job_id") + " FOR UPDATE", [ids[1]])
        failed = call(conn, "job_fail_many", ids[:2], epochs[:2], ["e", "e"], None, "terminal")
        assert [(row.job_id, row.disposition) for row in failed] == [(ids[0], "dead"), (ids[1], "busy")]
        done = call(conn, "job_complete_many", ids[1:], epochs[1:])
        assert [(row.job_id, row.disposition) for row in done] == [(ids[1], "busy"), (ids[2], "completed")]
        # The reaper steps over it, too.
        expire(conn, ids[2])
        assert reap(conn) == {}
    assert complete(conn, jobs[1]) == "succeeded"


def test_a_lease_that_is_free_again_in_time_is_taken(connect):
    conn, holder = connect(), connect()
    job = leased(conn)
    holder.execute("BEGIN")
    holder.execute(LEASE.format("job_id") + " FOR UPDATE", [job.job_id])
    done = in_background(complete, conn, job)
    # The completion holds its owner while it tries.
    probe, owner = connect(), "SELECT FROM sayiir.job WHERE job_id = %s FOR UPDATE SKIP LOCKED"
    wait_until(lambda: probe.execute(owner, [job.job_id]).fetchone() is None)
    holder.execute("COMMIT")
    assert done.join() == "succeeded"


def test_two_completions_of_one_lease_end_it_once(connect):
    """The second waits for the owner, then repeats."""
    a, b, observer = connect(), connect(), connect()
    job = leased(a)
    with a.transaction():
        assert complete(a, job, 1) == "succeeded"
        second = in_background(complete, b, job, 2)
        wait_for_lock(observer, b.info.backend_pid)
    assert second.join() == "succeeded"
    assert one(a, "job_result", job.job_id) == 1


def test_a_completion_and_a_failure_of_one_lease_end_it_once(connect):
    a, b, observer = connect(), connect(), connect()
    for first in ["complete", "fail"]:
        job = leased(a)
        act = {"complete": lambda conn, job=job: complete(conn, job), "fail": lambda conn, job=job: fail(conn, job)}
        with a.transaction():
            act[first](a)
            second = in_background(act["fail" if first == "complete" else "complete"], b)
            wait_for_lock(observer, b.info.backend_pid)
        with refused("job.lease_lost"):
            second.join()
        assert get(a, job.job_id).status == ("succeeded" if first == "complete" else "scheduled")


def test_a_completion_races_the_reaper(connect):
    """The reaper steps over a job whose owner a completion holds, and a completion behind the reaper has lost."""
    a, b, observer = connect(), connect(), connect()
    job = leased(a)
    expire(a, job.job_id)
    with a.transaction():
        assert complete(a, job) == "succeeded"
        assert reap(b) == {}
    assert get(a, job.job_id).status == "succeeded"
    job = leased(a)
    expire(a, job.job_id)
    with a.transaction():
        assert reap(a) == {job.job_id: "retry"}
        late = in_background(complete, b, job)
        wait_for_lock(observer, b.info.backend_pid)
    with refused("job.lease_lost"):
        late.join()


def test_nothing_was_lost(conn):
    assert_sound(conn)
