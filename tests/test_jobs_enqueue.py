"""Enqueue: what a job is made of, and that it follows its caller's transaction."""

from datetime import UTC, datetime, timedelta

import pytest
from psycopg.types.json import Jsonb

from jobs import (  # noqa: F401
    a_task,
    assert_sound,
    call,
    claim,
    claim_one,
    enqueue,
    get,
    isolate,
    no_worker,
    one,
    refused,
    value,
)

pytestmark = pytest.mark.usefixtures("no_worker")

FIXED = ["repeatable read", "serializable"]


@pytest.fixture
def task():
    return a_task()


def policy(conn, job_id):
    """(attempts, initial, factor, max, jitter, hold, lease, timeout) of the record; durations in seconds."""
    return conn.execute(
        "SELECT max_attempts, retry_initial_us / 1e6::float8, retry_factor, retry_max_us / 1e6::float8, retry_jitter, hold,"
        " lease_us / 1e6::float8, timeout_us / 1e6::float8 FROM sayiir.job WHERE job_id = %s",
        [job_id],
    ).fetchone()


def test_a_job_is_ready_with_the_defaults(conn, task):
    answer = one(conn, "job_enqueue", task)
    assert answer.disposition == "inserted"
    job = get(conn, answer.job_id)
    assert (job.task, job.status, job.priority, job.attempt, job.run_number) == (task, "ready", 50, 0, 1)
    assert (job.input, job.tags, job.organization_id, job.run_at) == ({}, [], None, None)
    assert policy(conn, job.job_id) == (5, 1, 2, 300, 0.1, False, 60, None)


def test_everything_a_caller_says_is_kept(conn, task):
    job_id = enqueue(
        conn,
        task,
        [1, None],
        priority=99,
        max_attempts=7,
        idempotency_key="k",
        tags=["b", "a", "b"],
        trace_parent="00-trace",
        options={
            "timeout": "90 s",
            "lease": "20 s",
            "deadline": "1 day",
            "on_exhausted": "hold",
            "retry": {"initial": "3 s", "factor": 1.5, "max": "1 h", "jitter": 0},
        },
    )
    job = claim_one(conn, task)
    assert job.job_id == job_id
    assert (job.input, job.tags, job.max_attempts, job.trace_parent) == ([1, None], ["a", "b"], 7, "00-trace")
    assert (job.idempotency_key, job.checkpoints, job.attempt, job.run_number) == ("k", {}, 1, 1)
    assert get(conn, job_id).priority == 99
    assert policy(conn, job_id) == (7, 3, 1.5, 3600, 0, True, 20, 90)
    assert job.expires_at - value(
        conn, "SELECT started_at FROM sayiir.job_lease WHERE job_id = %s", job_id
    ) == timedelta(seconds=20)


def test_the_call_wins_over_the_task_and_the_task_over_the_default(conn, task):
    call(conn, "task_define", task, max_attempts=3, lease="30 s", priority=70, retry={"initial": "5 s"})
    plain, own = enqueue(conn, task), enqueue(conn, task, max_attempts=4, priority=10, options={"lease": "10 s"})
    assert policy(conn, plain) == (3, 5, 2, 300, 0.1, False, 30, None)
    assert policy(conn, own) == (4, 5, 2, 300, 0.1, False, 10, None)
    assert [get(conn, job_id).priority for job_id in (plain, own)] == [70, 10]


def test_what_is_due_already_is_ready_and_what_is_not_waits(conn, task):
    now = datetime.now(UTC)
    past = enqueue(conn, task, run_at=now - timedelta(days=1))
    future = enqueue(conn, task, run_at=now + timedelta(days=1))
    assert get(conn, past).status == "ready"
    job = get(conn, future)
    assert (job.status, job.run_at) == ("scheduled", now + timedelta(days=1))
    assert [job.job_id for job in claim(conn, task, max_jobs=9)] == [past]


def test_json_null_is_data(conn, task):
    conn.execute("SELECT * FROM sayiir.job_enqueue(%s, 'null')", [task])
    assert value(conn, "SELECT input = 'null' FROM sayiir.job_claim('w', ARRAY[%s])", task)


def test_a_payload_of_10_mb_arrives_whole(conn, task):
    text = "ü" * 5_000_000
    job_id = enqueue(conn, task, {"text": text})
    job = claim_one(conn, task)
    assert job.job_id == job_id and job.input == {"text": text}


def test_a_batch_keeps_its_order(conn, task):
    payloads = [{"n": n} for n in range(500)]
    answers = call(conn, "job_enqueue_many", task, Jsonb(payloads), options={"tags": ["t"], "max_attempts": 2})
    assert [answer.disposition for answer in answers] == ["inserted"] * 500
    jobs = claim(conn, task, max_jobs=1000)
    assert [(job.job_id, job.input) for job in jobs] == [
        (answer.job_id, payload) for answer, payload in zip(answers, payloads, strict=True)
    ]
    assert {(tuple(job.tags), job.max_attempts) for job in jobs} == {(("t",), 2)}


def test_a_batch_may_be_empty_or_in_the_future(conn, task):
    assert call(conn, "job_enqueue_many", task, Jsonb([])) == []
    [answer] = call(
        conn, "job_enqueue_many", task, Jsonb([1]), run_at=datetime.now(UTC) + timedelta(hours=1), priority=3
    )
    job = get(conn, answer.job_id)
    assert (job.status, job.priority, job.input) == ("scheduled", 3, 1)


def test_the_same_key_with_the_same_request_is_one_job(conn, task):
    first = one(conn, "job_enqueue", task, Jsonb({"a": 1, "b": 2}), idempotency_key="k")
    again = one(conn, "job_enqueue", task, Jsonb({"b": 2.0, "a": 1}), idempotency_key="k")
    assert (again.job_id, again.disposition) == (first.job_id, "existing")
    assert len(claim(conn, task, max_jobs=9)) == 1
    # Also when it has ended: the key stays with its job.
    conn.execute("SELECT sayiir.job_complete(job_id, epoch) FROM sayiir.job_lease WHERE job_id = %s", [first.job_id])
    assert one(conn, "job_enqueue", task, Jsonb({"a": 1, "b": 2}), idempotency_key="k").disposition == "existing"


@pytest.mark.parametrize(
    "other",
    [
        {"payload": {"a": 2}},
        {"priority": 60},
        {"max_attempts": 2},
        {"tags": ["t"]},
        {"run_at": datetime(2100, 1, 1, tzinfo=UTC)},
        {"options": {"lease": "1 min"}},
    ],
    ids=lambda other: next(iter(other)),
)
def test_the_same_key_with_another_request_is_refused(conn, task, other):
    first = enqueue(conn, task, {"a": 1}, idempotency_key="k")
    with refused("job.idempotency_conflict") as detail:
        enqueue(conn, task, **({"payload": {"a": 1}} | other), idempotency_key="k")
    assert (detail.job_id, detail.idempotency_key) == (str(first), "k")


def test_a_key_belongs_to_its_task(conn, task):
    assert enqueue(conn, task, idempotency_key="k") != enqueue(conn, a_task(), idempotency_key="k")


def test_keys_in_a_batch(conn, task):
    existing = enqueue(conn, task, 1, idempotency_key="b")
    answers = call(conn, "job_enqueue_many", task, Jsonb([1, 1, 2, 1, 3]), ["c", "b", None, "c", "a"])
    assert [answer.disposition for answer in answers].count("inserted") == 3
    assert (answers[1].job_id, answers[1].disposition) == (existing, "existing")
    assert answers[0].job_id == answers[3].job_id
    assert len(claim(conn, task, max_jobs=9)) == 4
    with refused("job.idempotency_conflict"):
        call(conn, "job_enqueue_many", task, Jsonb([1, 7]), ["d", "b"])
    assert value(conn, "SELECT count(*) FROM sayiir.job WHERE task = %s AND idempotency_key = 'd'", task) == 0


def test_a_rolled_back_caller_leaves_nothing(conn, task):
    tables = ["job", "job_ready", "job_wait", "lane"]
    counts = "SELECT " + ", ".join(f"(SELECT count(*) FROM sayiir.{table})" for table in tables)
    before = conn.execute(counts).fetchone()
    with conn.transaction(force_rollback=True):
        enqueue(conn, task)
        enqueue(conn, task, idempotency_key="k", run_at=datetime(2100, 1, 1, tzinfo=UTC))
        call(conn, "job_enqueue_many", task, Jsonb([1, 2]))
        assert len(claim(conn, task, max_jobs=9)) == 3
    assert conn.execute(counts).fetchone() == before
    assert claim(conn, task) == []


def test_a_fixed_snapshot_takes_only_what_needs_no_lock(connect, task):
    fixed, other = connect(), connect()
    for level in FIXED:
        isolate(fixed, level)
        job_id = enqueue(fixed, task)
        fixed.execute("SELECT * FROM sayiir.job_enqueue_many(%s, '[1, 2]')", [task])
        assert get(fixed, job_id).status == "ready"
        with refused("call.isolation_unsupported"):
            enqueue(fixed, task, idempotency_key="k")
        with refused("call.isolation_unsupported"):
            call(fixed, "job_enqueue_many", task, Jsonb([1]), ["k"])
    assert len(claim(other, task, max_jobs=9)) == 6
    assert value(other, "SELECT count(*) FROM sayiir.job WHERE task = %s AND idempotency_key = 'k'", task) == 0


@pytest.mark.parametrize(
    "sql",
    [
        "job_claim('w', '{*}')",
        "job_heartbeat(%(id)s, %(epoch)s)",
        "job_heartbeat_many(ARRAY[%(id)s]::uuid[], ARRAY[%(epoch)s]::bigint[])",
        "job_complete(%(id)s, %(epoch)s)",
        "job_complete_many(ARRAY[%(id)s]::uuid[], ARRAY[%(epoch)s]::bigint[])",
        "job_fail(%(id)s, %(epoch)s, 'e')",
        "job_fail_many(ARRAY[%(id)s]::uuid[], ARRAY[%(epoch)s]::bigint[], '{e}')",
        "job_release(%(id)s, %(epoch)s)",
        "job_cancel(%(id)s)",
        "job_requeue(%(id)s)",
        "job_result(%(id)s, '1 s')",
        "job_reap()",
        "tick()",
    ],
)
@pytest.mark.parametrize("level", FIXED)
def test_everything_else_is_refused_before_it_changes_anything(connect, sql, level):
    fixed, task = connect(), a_task()
    enqueue(fixed, task)
    job = claim_one(fixed, task)
    isolate(fixed, level)
    with refused("call.isolation_unsupported"):
        fixed.execute(f"SELECT * FROM sayiir.{sql}", {"id": job.job_id, "epoch": job.epoch})
    isolate(fixed, "read committed")
    state = get(fixed, job.job_id)
    assert (state.status, state.epoch, state.attempt) == ("leased", job.epoch, 1)


def test_nothing_was_lost(conn):
    assert_sound(conn)
