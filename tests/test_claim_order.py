"""Claim: which jobs, in which order, and what an empty claim costs."""

import time

import pytest
from psycopg.types.json import Jsonb

from jobs import a_task, assert_sound, call, claim, claim_one, complete, enqueue, get, no_worker, one, refused, value  # noqa: F401

pytestmark = pytest.mark.usefixtures("no_worker")


@pytest.fixture
def task():
    return a_task()


def inputs(jobs):
    return [job.input for job in jobs]


def test_first_in_first_out_within_a_lane(conn, task):
    for n in range(5):
        enqueue(conn, task, n)
    assert inputs([claim_one(conn, task) for _ in range(3)]) == [0, 1, 2]
    assert inputs(claim(conn, task, max_jobs=9)) == [3, 4]


def test_what_a_claimed_job_shows(conn, task):
    job_id = enqueue(conn, task, {"a": 1})
    job = claim_one(conn, task, worker="worker-1", lease="10 min")
    assert (job.job_id, job.task, job.input, job.attempt, job.max_attempts) == (job_id, task, {"a": 1}, 1, 5)
    assert job.idempotency_key == f"{job_id}/1"
    assert (job.workflow_id, job.step, job.item_index, job.deadline_at) == (None, None, None, None)
    state = get(conn, job_id)
    assert (state.status, state.worker, state.epoch, state.expires_at) == (
        "leased",
        "worker-1",
        job.epoch,
        job.expires_at,
    )
    # The epoch follows the clock, so that a restored server never repeats one, and stays below what a float holds.
    assert abs(job.epoch - time.time() * 1e6) < 3600e6 and job.epoch < 2**53


def test_higher_priorities_first(conn, task):
    for priority in [50, 0, 99, 51, None]:
        enqueue(conn, task, priority, priority=priority)
    order = [get(conn, job.job_id).priority for job in claim(conn, task, max_jobs=9)]
    # A claim in 16 begins with the lane of the oldest job.
    assert order in ([99, 51, 50, 50, 0], [50, 50, 99, 51, 0])


def test_priorities_hold_between_tasks(conn):
    tasks = [a_task() for _ in range(6)]
    for n, task in enumerate(tasks):
        call(conn, "job_enqueue_many", task, Jsonb(list(range(20))), priority=10 + n)
    firsts = [claim_one(conn, *tasks).task for _ in range(20)]
    # All but the one in 16.
    assert firsts.count(tasks[-1]) >= 12


def test_only_the_tasks_asked_for(conn):
    mine, other = a_task(), a_task()
    enqueue(conn, other)
    enqueue(conn, mine)
    assert [job.task for job in claim(conn, mine, max_jobs=9)] == [mine]
    assert claim(conn, mine, "no such task", max_jobs=9) == []
    assert [job.task for job in claim(conn, "no such task", other, max_jobs=9)] == [other]


def test_a_star_is_any_task_and_nothing_is_none(conn, task):
    assert claim(conn) == []  # an empty list of tasks; it must not be remembered as "any"
    enqueue(conn, task)
    assert task in [job.task for job in claim(conn, "*", max_jobs=1000)]
    enqueue(conn, task)
    assert claim(conn) == []
    assert [job.task for job in claim(conn, "*", "x", max_jobs=1000)] == [task]


@pytest.mark.parametrize(
    ("job_tags", "worker_tags", "taken"),
    [
        ([], [], True),
        ([], ["gpu"], True),
        (["gpu"], [], True),
        (["gpu"], ["gpu"], True),
        (["gpu"], ["eu"], False),
        (["gpu", "eu"], ["gpu"], False),
        (["gpu", "eu"], ["eu", "x", "gpu"], True),
        (["gpu"], ["GPU"], False),
    ],
)
def test_a_jobs_tags_are_a_subset_of_the_workers(conn, task, job_tags, worker_tags, taken):
    enqueue(conn, task, tags=job_tags)
    assert len(claim(conn, task, tags=worker_tags)) == taken
    assert len(claim(conn, task)) == (not taken)


def test_lanes_of_one_priority_are_served_in_turn(conn):
    tasks = [a_task() for _ in range(3)]
    for task in tasks:
        call(conn, "job_enqueue_many", task, Jsonb(list(range(30))))
    served = [claim_one(conn, *tasks).task for _ in range(60)]
    # In turn, but for the one claim in 16 that takes the oldest job of all.
    assert min(served.count(task) for task in tasks) >= 12
    in_turn = sum(a != b for a, b in zip(served, served[1:], strict=False))
    assert in_turn >= 40


def test_a_low_lane_is_served_under_constant_load(conn, task):
    """One claim in 16 takes the oldest job of all lanes. (15/16)^600 is 1e-17."""
    enqueue(conn, task, "low", priority=0)
    for _ in range(600):
        enqueue(conn, task, "high", priority=99)
        if claim_one(conn, task).input == "low":
            break
    else:
        pytest.fail("the low lane starved")


def test_a_low_lane_among_many_lanes_is_served_under_constant_load(conn, task):
    """The same with more lanes than are probed directly."""
    for n in range(70):
        enqueue(conn, task, "high", priority=99, tags=[f"t{n}"])
    enqueue(conn, task, "low", priority=0)
    for _ in range(2000):
        enqueue(conn, task, "high", priority=99)
        if claim_one(conn, task).input == "low":
            break
    else:
        pytest.fail("the low lane starved")


def test_every_job_of_many_lanes_is_found_by_priority(conn, task):
    payloads = {}
    for n in range(100):
        payloads[enqueue(conn, task, n, priority=n % 10, tags=[f"tag-{n}"])] = n % 10
    jobs = claim(conn, task, max_jobs=70) + claim(conn, task, max_jobs=70)
    assert {job.job_id for job in jobs} == set(payloads)
    order = [payloads[job.job_id] for job in jobs]
    # Each call may begin with the oldest job of all.
    for part in (order[1:70], order[71:]):
        assert part == sorted(part, reverse=True)


def test_a_worker_with_tags_among_many_foreign_lanes(conn, task):
    for n in range(80):
        enqueue(conn, task, "foreign", tags=[f"tag-{n}"])
    enqueue(conn, task, "mine", tags=["mine"])
    enqueue(conn, task, "anybody's")
    assert sorted(inputs(claim(conn, task, tags=["mine"], max_jobs=100))) == ["anybody's", "mine"]


def test_no_more_than_asked_for(conn, task):
    call(conn, "job_enqueue_many", task, Jsonb(list(range(1100))))
    assert [len(claim(conn, task, max_jobs=n)) for n in (1, 7, 1000, 1000)] == [1, 7, 1000, 92]


def test_two_sessions_never_get_the_same_job(connect, task):
    a, b = connect(), connect()
    call(a, "job_enqueue_many", task, Jsonb(list(range(20))))
    with a.transaction(), b.transaction():
        taken = [job.input for _ in range(5) for conn in (a, b) for job in claim(conn, task, max_jobs=2)]
    assert sorted(taken) == list(range(20))


def test_an_empty_claim_uses_no_transaction_id(conn, task):
    """However it looks: in a lane without jobs, in one whose jobs are taken, for tags or tasks without a lane."""
    enqueue(conn, task, tags=["x"])
    claim_one(conn, task)
    enqueue(conn, task, tags=["y"])
    look = {"tasks": [task], "tags": ["x"]}, {"tasks": ["no such task"]}, {"tasks": []}
    call(conn, "tick")
    with conn.transaction():
        for one_look in look:
            for _ in range(40):
                assert call(conn, "job_claim", "w", **one_look) == []
        assert value(conn, "SELECT pg_current_xact_id_if_assigned()") is None


def test_sweeps_without_work_use_no_transaction_id(conn):
    call(conn, "tick")
    with conn.transaction():
        call(conn, "tick")
        call(conn, "job_reap")
        value(conn, "SELECT sayiir.next_due()")
        assert value(conn, "SELECT pg_current_xact_id_if_assigned()") is None


def test_a_waiting_claim_that_finds_nothing_answers_in_time_and_uses_no_transaction_id(conn, task):
    with conn.transaction():
        assert claim(conn, task, wait="0.3 s") == []
        assert value(conn, "SELECT pg_current_xact_id_if_assigned()") is None


def test_attempts_are_counted_at_claim(conn, task):
    job_id = enqueue(conn, task)
    with conn.transaction(force_rollback=True):
        assert claim_one(conn, task).attempt == 1
    assert get(conn, job_id).attempt == 0  # a claim that was rolled back did not happen
    job = claim_one(conn, task)
    assert (job.attempt, get(conn, job_id).attempt) == (1, 1)
    assert complete(conn, job) == "succeeded"


def test_epochs_grow_with_every_lease(conn, task):
    job_id = enqueue(conn, task, max_attempts=9)
    epochs = []
    for _ in range(5):
        job = claim_one(conn, task)
        epochs.append(job.epoch)
        assert one(conn, "job_release", job_id, job.epoch) == "ready"
    assert epochs == sorted(set(epochs))
    # Also when the clock was set back: the last epoch lies in the future.
    conn.execute("UPDATE sayiir.job_ready SET epoch = epoch + 1e15::bigint WHERE job_id = %s", [job_id])
    assert claim_one(conn, task).epoch == epochs[-1] + 10**15 + 1


def test_nothing_was_lost(conn):
    assert_sound(conn)
