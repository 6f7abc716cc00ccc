"""Idempotency keys under concurrency: the loser waits for the winner, and becomes the winner if that one rolls back."""

import random
import threading

import psycopg
import pytest
from psycopg.types.json import Jsonb

from jobs import a_task, assert_sound, call, claim, enqueue, in_background, no_worker, one, refused, value  # noqa: F401
from support import wait_for_lock

pytestmark = pytest.mark.usefixtures("no_worker")


def keyed(conn, task, payload=1, key="k"):
    return one(conn, "job_enqueue", task, Jsonb(payload), idempotency_key=key)


def holders(conn, task):
    return value(conn, "SELECT count(*) FROM sayiir.job WHERE task = %s AND idempotency_key IS NOT NULL", task)


def test_the_loser_waits_for_the_winner_and_takes_its_answer(connect):
    winner, loser, observer, task = connect(), connect(), connect(), a_task()
    with winner.transaction():
        first = keyed(winner, task)
        waiting = in_background(keyed, loser, task)
        wait_for_lock(observer, loser.info.backend_pid)
        # It waits for the winner's transaction, and for nothing else.
        blockers = "SELECT pg_blocking_pids(%s)"
        assert value(observer, blockers, loser.info.backend_pid) == [winner.info.backend_pid]
    second = waiting.join()
    assert (first.disposition, second.disposition, second.job_id) == ("inserted", "existing", first.job_id)


def test_the_loser_with_another_request_is_told_so_after_the_commit(connect):
    winner, loser, observer, task = connect(), connect(), connect(), a_task()
    with winner.transaction():
        keyed(winner, task, 1)
        waiting = in_background(keyed, loser, task, 2)
        wait_for_lock(observer, loser.info.backend_pid)
    with refused("job.idempotency_conflict"):
        waiting.join()


def test_the_loser_becomes_the_winner_when_the_winner_rolls_back(connect):
    winner, loser, observer, task = connect(), connect(), connect(), a_task()
    with winner.transaction(force_rollback=True):
        first = keyed(winner, task, 1)
        waiting = in_background(keyed, loser, task, 2)
        wait_for_lock(observer, loser.info.backend_pid)
    second = waiting.join()
    assert second.disposition == "inserted" and second.job_id != first.job_id
    assert [job.input for job in claim(observer, task, max_jobs=9)] == [2]


def test_50_sessions_half_of_which_roll_back(connect):
    """Every answer is true afterwards: committed callers name the one job that exists."""
    sessions, task = [connect() for _ in range(50)], a_task()
    barrier = threading.Barrier(len(sessions))

    def run(conn, rolls_back):
        barrier.wait()
        with conn.transaction(force_rollback=rolls_back):
            return keyed(conn, task)

    threads = [
        (rolls_back, in_background(run, conn, rolls_back))
        for conn, rolls_back in zip(sessions, [True, False] * 25, strict=True)
    ]
    answers = [(rolls_back, thread.join(60)) for rolls_back, thread in threads]
    committed = [answer for rolls_back, answer in answers if not rolls_back]
    assert len({answer.job_id for answer in committed}) == 1
    assert [answer.disposition for answer in committed].count("inserted") == 1
    [job] = claim(sessions[0], task, max_jobs=9)
    assert job.job_id == committed[0].job_id
    assert holders(sessions[0], task) == 1


def test_all_50_roll_back(connect):
    sessions, task = [connect() for _ in range(50)], a_task()

    def run(conn):
        with conn.transaction(force_rollback=True):
            return keyed(conn, task).disposition

    assert {thread.join(60) for thread in [in_background(run, conn) for conn in sessions]} == {"inserted"}
    assert holders(sessions[0], task) == 0
    assert keyed(sessions[0], task).disposition == "inserted"


def test_batches_in_opposite_order_do_not_deadlock(connect):
    """Each batch inserts its keys in one order, whatever order the caller has."""
    a, b, observer, task = connect(), connect(), connect(), a_task()
    keys = [f"key-{n:03}" for n in range(200)]

    def batch(conn, keys):
        return call(conn, "job_enqueue_many", task, Jsonb([1] * len(keys)), keys)

    with a.transaction():
        first = batch(a, keys)
        waiting = in_background(batch, b, keys[::-1] + ["own"])
        wait_for_lock(observer, b.info.backend_pid)
    second = waiting.join()
    assert {row.disposition for row in first} == {"inserted"}
    assert [row.job_id for row in second[:-1]] == [row.job_id for row in first][::-1]
    assert [row.disposition for row in second] == ["existing"] * 200 + ["inserted"]


def test_a_batch_behind_one_that_rolls_back_inserts_everything(connect):
    a, b, observer, task = connect(), connect(), connect(), a_task()
    keys = [f"key-{n}" for n in range(20)]
    with a.transaction(force_rollback=True):
        call(a, "job_enqueue_many", task, Jsonb([1] * 20), keys)
        waiting = in_background(call, b, "job_enqueue_many", task, Jsonb([2] * 20), keys[::-1])
        wait_for_lock(observer, b.info.backend_pid)
    assert {row.disposition for row in waiting.join()} == {"inserted"}
    assert holders(observer, task) == 20


def test_overlapping_batches_of_many_sessions(connect):
    """Random subsets in random order, some rolled back: no deadlock, one job a key, and every committed answer is true."""
    task, seed = a_task(), random.randrange(10**9)
    print("seed", seed)

    def run(conn, chance):
        answers = {}
        for _ in range(12):
            keys = chance.sample([f"k{n}" for n in range(60)], 30)
            with conn.transaction(force_rollback=rolls_back(chance)) as _:
                rows = call(conn, "job_enqueue_many", task, Jsonb([1] * 30), keys)
            answers.update(
                {key: row.job_id for key, row in zip(keys, rows, strict=True) if committed(conn, row.job_id)}
            )
        return answers

    def rolls_back(chance):
        return chance.random() < 0.3

    def committed(conn, job_id):
        return value(conn, "SELECT EXISTS (SELECT FROM sayiir.job WHERE job_id = %s)", job_id)

    sessions = [connect() for _ in range(8)]
    threads = [in_background(run, conn, random.Random(seed + n)) for n, conn in enumerate(sessions)]
    everyone = [thread.join(60) for thread in threads]
    query = "SELECT idempotency_key, job_id FROM sayiir.job WHERE task = %s"
    truth = dict(sessions[0].execute(query, [task]).fetchall())
    assert value(sessions[0], "SELECT count(*) FROM sayiir.job WHERE task = %s", task) == len(truth)
    for answers in everyone:
        assert answers.items() <= truth.items()


def test_an_unkeyed_enqueue_waits_for_nobody(connect):
    holder, other, task = connect(), connect(), a_task()
    other.execute("SET lock_timeout = '300 ms'")
    with holder.transaction():
        enqueue(holder, task)
        keyed(holder, task)
        enqueue(other, task)
        keyed(other, task, key="another")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            keyed(other, task)


def test_nothing_was_lost(conn):
    assert_sound(conn)
