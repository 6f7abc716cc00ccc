"""The claim cursor and the caches skip nothing: commits out of order, rolled-back claims, lanes made by a race."""

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
    get,
    isolate,
    no_worker,
    refused,
    value,
)
from support import wait_until

pytestmark = pytest.mark.usefixtures("no_worker")


@pytest.fixture
def task():
    return a_task()


def seq(conn, job_id):
    return value(conn, "SELECT seq FROM sayiir.job_ready WHERE job_id = %s", job_id)


def churn(conn, task, rounds=40):
    """Claims until the cursor of this backend has moved: every round sees another horizon."""
    for _ in range(rounds):
        enqueue(conn, task, "churn")
        complete(conn, claim_one(conn, task))


def lanes(conn, task):
    return value(conn, "SELECT count(*) FROM sayiir.lane WHERE task = %s", task)


def test_an_earlier_seq_that_commits_later_is_claimed(connect, task):
    """A transaction draws its seq, others that came later are claimed and the cursor moves on; then it commits."""
    slow, worker = connect(), connect()
    churn(worker, task)
    for _ in range(3):
        with slow.transaction():
            job_id = enqueue(slow, task, "slow")
            drawn = seq(slow, job_id)
            churn(worker, task)
            assert seq(worker, enqueue(worker, task, "later")) > drawn
            assert claim_one(worker, task).input == "later"
        assert [job.job_id for job in claim(worker, task)] == [job_id]


def test_an_earlier_seq_of_a_savepoint_and_of_a_prepared_transaction_is_claimed(connect, task):
    slow, prepared, worker = connect(), connect(autocommit=False), connect()
    with slow.transaction():
        with slow.transaction():
            ids = [enqueue(slow, task, "savepoint")]
        prepared.tpc_begin(prepared.xid(1, task, "b"))
        ids.append(enqueue(prepared, task, "prepared"))
        prepared.tpc_prepare()
        churn(worker, task)
        prepared.tpc_commit()
        churn_left = claim_one(worker, task)
        assert churn_left.job_id == ids[1]
        churn(worker, task)
    assert [job.job_id for job in claim(worker, task)] == [ids[0]]


def test_a_retry_and_a_requeue_enter_behind_the_cursor_nowhere(connect, task):
    """Whatever comes back to ready draws a fresh seq."""
    conn = connect()
    enqueue(conn, task, "again", max_attempts=100)
    job = claim_one(conn, task)
    seqs = []
    for _ in range(5):
        call(conn, "job_release", job.job_id, job.epoch)
        seqs.append(seq(conn, job.job_id))
        for _ in range(20):
            enqueue(conn, task, "churn")
        jobs = claim(conn, task, max_jobs=100)
        [job] = [job for job in jobs if job.input == "again"]
        for other in jobs:
            if other.input == "churn":
                complete(conn, other)
    assert seqs == sorted(set(seqs))


def leave_behind(connect, worker, task):
    """A ready job that the cursor of the worker's backend has passed.

    A mark is trusted once the transactions that ran when it was set have ended. So one claim holds the job while the mark is set,
    and another one, after the first was rolled back, while it becomes trusted.
    """
    first, second = connect(), connect()
    job_id = enqueue(worker, task, "held")
    for conn in (first, second):
        with conn.transaction(force_rollback=True):
            assert claim_one(conn, task).job_id == job_id
            churn(worker, task)
    return job_id


def test_a_job_of_a_rolled_back_claim_is_found_again(connect, task):
    """Also by a backend whose cursor has passed it, within the interval of the scans from the start."""
    worker = connect()
    churn(worker, task)
    job_id = leave_behind(connect, worker, task)
    assert seq(worker, job_id) is not None
    found = wait_until(lambda: claim(worker, task))
    assert [job.job_id for job in found] == [job_id]


def test_a_job_of_a_rolled_back_claim_is_found_under_constant_load(connect, task):
    """The scan from the start must not wait for a claim that would answer nothing."""
    worker = connect()
    churn(worker, task)
    job_id = leave_behind(connect, worker, task)

    def claims_it():
        enqueue(worker, task, "load")
        return claim_one(worker, task).job_id == job_id

    wait_until(claims_it)


def test_a_job_of_a_rolled_back_claim_is_found_among_many_lanes(connect, task):
    worker = connect()
    for n in range(70):
        enqueue(worker, task, "lane", tags=[f"t{n}"])
    assert len(claim(worker, task, max_jobs=100)) == 70
    churn(worker, task)
    job_id = leave_behind(connect, worker, task)
    found = wait_until(lambda: claim(worker, task))
    assert [job.job_id for job in found] == [job_id]


def test_a_killed_claim_leaves_its_job_to_others(connect, task):
    job_id = enqueue(connect(), task)
    worker, other = connect(), connect()
    with worker.transaction():
        assert claim_one(worker, task).job_id == job_id
        assert claim(other, task) == []
        other.execute("SELECT pg_terminate_backend(%s)", [worker.info.backend_pid])
        worker.close()
    assert wait_until(lambda: claim(other, task))[0].job_id == job_id


def test_two_lanes_for_one_key_are_both_served(connect, task):
    a, b, worker = connect(), connect(), connect()
    with a.transaction(), b.transaction():
        ids = {enqueue(a, task, "a"), enqueue(b, task, "b")}  # neither waits for the other
    assert lanes(worker, task) == 2
    ids |= {enqueue(conn, task, "more") for conn in (a, b, worker)}
    assert {job.job_id for job in claim(worker, task, max_jobs=9)} == ids
    assert lanes(worker, task) == 2


def test_a_lane_made_by_another_backend_is_seen(connect, task):
    worker, client = connect(), connect()
    for n in range(3):
        assert claim(worker, task) == []
        job_id = enqueue(client, task, priority=n, tags=[f"new-{n}"])
        assert [job.job_id for job in claim(worker, task)] == [job_id]


@pytest.mark.parametrize("how", ["rollback", "savepoint", "error in the call", "error after the call"])
def test_a_cached_lane_of_a_rolled_back_transaction_is_dropped(connect, task, how):
    client, worker = connect(), connect()
    if how == "rollback":
        with client.transaction(force_rollback=True):
            enqueue(client, task)
    elif how == "savepoint":
        with client.transaction(), client.transaction(force_rollback=True):
            enqueue(client, task)
    elif how == "error in the call":
        with refused("argument.invalid"):
            enqueue(client, task, max_attempts=0)
    else:
        with pytest.raises(Exception, match="division by zero"):
            client.execute("SELECT 1 / (SELECT count(*) - count(*) FROM sayiir.job_enqueue(%s))", [task])
    assert lanes(client, task) == 0
    job_id = enqueue(client, task)
    assert lanes(client, task) == 1
    assert [job.job_id for job in claim(worker, task)] == [job_id]


def test_a_lane_that_a_claim_saw_in_its_own_transaction_is_dropped_with_it(connect, task):
    conn, other = connect(), connect()
    with conn.transaction(force_rollback=True):
        enqueue(conn, task)
        assert len(claim(conn, task)) == 1
    job_id = enqueue(other, task)
    assert [job.job_id for job in claim(conn, task)] == [job_id]


def test_a_changed_task_reaches_other_backends(connect, task):
    client, admin = connect(), connect()
    enqueue(client, task)
    for attempts in (3, 8):
        call(admin, "task_define", task, max_attempts=attempts)
        assert get(client, enqueue(client, task)).max_attempts == attempts


def test_an_uncommitted_task_is_seen_by_nobody_else_and_forgotten_when_it_is_rolled_back(connect, task):
    conn, other = connect(), connect()
    with conn.transaction(force_rollback=True):
        call(conn, "task_define", task, max_attempts=2)
        with conn.transaction(force_rollback=True), refused("argument.out_of_range"):
            enqueue(conn, task, priority=1000)  # reads the task, writes nothing
        assert get(other, enqueue(other, task)).max_attempts == 5
    assert get(conn, enqueue(conn, task)).max_attempts == 5


def test_an_old_snapshot_does_not_make_a_backend_remember_old_tasks(connect, task):
    """REPEATABLE READ sees the task as it was; the backend must not keep that beyond the transaction."""
    client, admin = connect(), connect()
    isolate(client, "repeatable read")
    with client.transaction():
        value(client, "SELECT count(*) FROM sayiir.tasks")  # takes the snapshot
        call(admin, "task_define", task, max_attempts=2)
        enqueue(client, task)
    isolate(client, "read committed")
    assert get(client, enqueue(client, task)).max_attempts == 2


def test_nothing_is_remembered_of_an_extension_that_was_dropped(cluster, connect, task):
    """The new tables are others, and their changes have to reach a backend that knew the old ones."""
    with cluster.connect() as admin:
        admin.execute("CREATE DATABASE dropped TEMPLATE template0")
    try:
        conn, other = connect(dbname="dropped"), connect(dbname="dropped")
        for _ in range(2):
            other.execute("CREATE EXTENSION sayiir")
            assert claim(conn, task) == []
            with conn.transaction(force_rollback=True):
                enqueue(conn, task)
                assert len(claim(conn, task)) == 1
            job_id = enqueue(other, task, tags=["t"])
            assert [job.job_id for job in claim(conn, task)] == [job_id]
            job_id = enqueue(conn, task)
            assert [job.job_id for job in claim(other, task)] == [job_id]
            other.execute("DROP EXTENSION sayiir")
    finally:
        with cluster.connect() as admin:
            admin.execute("DROP DATABASE dropped WITH (FORCE)")


def test_a_batch_moves_the_cursor_of_each_lane_for_itself(connect):
    """A batch that ends in one lane must not move the cursor of a lane that it did not reach."""
    conn, tasks = connect(), [a_task() for _ in range(4)]
    for _ in range(10):
        for task in tasks:
            call(conn, "job_enqueue_many", task, Jsonb([1, 2, 3]))
        taken = []
        while jobs := claim(conn, *tasks, max_jobs=5):
            taken += jobs
        assert len(taken) == 12


def test_nothing_was_lost(conn):
    assert_sound(conn)
