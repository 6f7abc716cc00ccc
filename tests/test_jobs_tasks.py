"""Tasks: their defaults, pause and resume, and what the views of jobs and queues show."""

from datetime import timedelta

import pytest
from psycopg.rows import namedtuple_row

from jobs import (  # noqa: F401
    a_task,
    assert_sound,
    call,
    claim,
    claim_one,
    complete,
    enqueue,
    fail,
    get,
    in_background,
    isolate,
    leased,
    no_worker,
    one,
    refused,
    value,
)
from support import wait_until

pytestmark = pytest.mark.usefixtures("no_worker")


@pytest.fixture
def task():
    return a_task()


def row(conn, view, **where):
    conditions = " AND ".join(f"{column} = %s" for column in where)
    cursor = conn.cursor(row_factory=namedtuple_row)
    return cursor.execute(f"SELECT * FROM sayiir.{view} WHERE {conditions}", list(where.values())).fetchone()


def queue(conn, task):
    """(ready, scheduled, leased, held, failed lately) of the task."""
    stats = row(conn, "queue_stats", task=task)
    return stats.ready, stats.scheduled, stats.leased, stats.held, stats.failed_last_hour


# Defaults


def test_a_definition_keeps_what_it_is_not_told(conn, task):
    first = one(conn, "task_define", task, max_attempts=3, timeout="5 min", lease="30 s", priority=7)
    assert (first.max_attempts, first.timeout, first.lease, first.priority) == (
        3,
        timedelta(minutes=5),
        timedelta(seconds=30),
        7,
    )
    assert (first.enabled, first.paused, first.retry, first.organization_id, first.options) == (
        True,
        False,
        None,
        None,
        {},
    )
    second = one(conn, "task_define", task, retry={"initial": "1 s"}, max_attempts=4)
    assert (second.max_attempts, second.timeout, second.priority, second.retry) == (
        4,
        timedelta(minutes=5),
        7,
        {"initial": "1 s"},
    )
    assert (second.created_at, second.updated_at > first.updated_at) == (first.created_at, True)
    shown = row(conn, "tasks", task=task)
    assert (shown.max_attempts, shown.lease, shown.retry) == (4, timedelta(seconds=30), {"initial": "1 s"})


def test_the_definition_at_enqueue_counts(conn, task):
    call(conn, "task_define", task, timeout="1 h", lease="2 h", max_attempts=2)
    job_id = enqueue(conn, task)
    call(conn, "task_define", task, timeout="5 s", lease="6 s", max_attempts=9)
    job = claim_one(conn, task)
    assert (job.job_id, job.max_attempts) == (job_id, 2)
    assert job.expires_at == job.deadline_at  # a lease never outlasts the timeout
    assert job.deadline_at - get(conn, job_id).started_at == timedelta(hours=1)


def test_an_organizations_own_definition_comes_first(conn, task):
    call(conn, "task_define", task, max_attempts=2)
    call(conn, "task_define", task, max_attempts=3, organization_id="acme")
    ids = [
        enqueue(conn, task),
        enqueue(conn, task, organization_id="acme"),
        enqueue(conn, task, organization_id="other"),
    ]
    query = "SELECT max_attempts FROM sayiir.job WHERE job_id = %s"
    assert [value(conn, query, job_id) for job_id in ids] == [2, 3, 2]


def test_strict_tasks(conn, task):
    conn.execute("SET sayiir.strict_tasks = on")
    with refused("task.not_found") as detail:
        enqueue(conn, task)
    assert detail.task == task
    call(conn, "task_define", task)
    enqueue(conn, task)
    call(conn, "task_define", task, enabled=False)
    with refused("task.disabled"):
        enqueue(conn, task)
    conn.execute("RESET sayiir.strict_tasks")
    enqueue(conn, task)


# Pause


@pytest.mark.parametrize("how", ["pause", "disable"])
def test_a_paused_task_is_not_claimed(conn, task, how):
    stop, go = {
        "pause": (lambda: call(conn, "task_pause", task), lambda: call(conn, "task_resume", task)),
        "disable": (
            lambda: call(conn, "task_define", task, enabled=False),
            lambda: call(conn, "task_define", task, enabled=True),
        ),
    }[how]
    running, waiting = leased(conn, task), enqueue(conn, task)
    stop()
    later = enqueue(conn, task, priority=80, tags=["new"])  # in a lane that is made now
    assert claim(conn, task) == []
    assert task not in [job.task for job in claim(conn, "*", max_jobs=1000)]
    assert {get(conn, job_id).status for job_id in (waiting, later)} == {"paused"}
    assert row(conn, "queue_stats", task=task).paused
    assert complete(conn, running) == "succeeded"  # leases go on
    go()
    assert get(conn, waiting).status == "ready"
    assert {job.job_id for job in claim(conn, task, max_jobs=9)} == {waiting, later}
    assert not row(conn, "queue_stats", task=task).paused


def test_a_disabled_task_that_is_resumed_stays_disabled(conn, task):
    enqueue(conn, task)
    call(conn, "task_pause", task)
    call(conn, "task_define", task, enabled=False)
    call(conn, "task_resume", task)
    assert claim(conn, task) == []
    call(conn, "task_define", task, enabled=True)
    assert len(claim(conn, task)) == 1


def test_a_pause_reaches_other_backends_with_its_commit(connect, task):
    worker, admin = connect(), connect()
    for n in range(4):
        enqueue(worker, task, n)
    assert claim_one(worker, task).input == 0
    with admin.transaction():
        call(admin, "task_pause", task)
        assert claim(admin, task) == []
        assert claim_one(worker, task).input == 1
    assert claim(worker, task) == []
    with admin.transaction(force_rollback=True):
        call(admin, "task_resume", task)
        assert claim_one(admin, task).input == 2
    assert claim(worker, task) == [] and claim(admin, task) == []
    call(admin, "task_resume", task)
    assert len(claim(worker, task, max_jobs=9)) == 2


@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
def test_a_pause_holds_for_a_lane_that_is_made_meanwhile(connect, task, level):
    """The pause cannot see the lane, nor the lane's maker the pause."""
    client, admin = connect(), connect()
    isolate(client, level)
    with client.transaction():
        enqueue(client, task)
        call(admin, "task_pause", task)
    assert claim(admin, task) == []
    with client.transaction():
        enqueue(client, task, priority=99)
        call(admin, "task_resume", task)
    assert len(claim(admin, task, max_jobs=9)) == 2


def test_an_organization_pauses_only_its_own(conn, task):
    def inputs(organization):
        return [job.input for job in claim(conn, task, organization_id=organization)]

    for organization in (None, "acme", "other"):
        for n in range(3):
            enqueue(conn, task, n, organization_id=organization)
    call(conn, "task_pause", task, organization_id="acme")
    assert [inputs(organization) for organization in (None, "acme", "other")] == [[0], [], [0]]
    call(conn, "task_pause", task)
    call(conn, "task_resume", task, organization_id="acme")
    # The global pause counts for who has no row of its own.
    assert [inputs(organization) for organization in (None, "acme", "other")] == [[], [0], []]


def test_a_pause_is_seen_by_a_waiting_claim(connect, task):
    worker, admin = connect(), connect()
    call(admin, "task_pause", task)
    enqueue(admin, task)
    waiting = in_background(lambda: claim(worker, task, wait="10 s"))
    asleep = "SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = %s"
    wait_until(lambda: value(admin, asleep, worker.info.backend_pid))
    call(admin, "task_resume", task)
    assert len(waiting.join()) == 1


# Views


def test_jobs_shows_every_state(conn, task):
    ready = enqueue(conn, task, {"n": 1}, tags=["t"], idempotency_key="k", trace_parent="p", priority=5)
    job = row(conn, "jobs", job_id=ready)
    assert (job.status, job.task, job.tags, job.idempotency_key, job.trace_parent, job.priority, job.input) == (
        "ready",
        task,
        ["t"],
        "k",
        "p",
        5,
        {"n": 1},
    )
    running = claim_one(conn, task)
    call(conn, "job_heartbeat", running.job_id, running.epoch, progress_done=1, progress_total=2, stage="s")
    job = row(conn, "jobs", job_id=ready)
    assert (job.status, job.worker, job.epoch, job.attempt, job.progress_done, job.progress_total, job.stage) == (
        "leased",
        "w",
        running.epoch,
        1,
        1,
        2,
        "s",
    )
    fail(conn, running, "e", "m")
    job = row(conn, "jobs", job_id=ready)
    assert (job.status, job.waits_for, job.error_code, job.error_message, job.due is None) == (
        "scheduled",
        "retry",
        "e",
        "m",
        False,
    )
    call(conn, "job_cancel", ready, "r")
    job = row(conn, "jobs", job_id=ready)
    assert (job.status, job.reason, job.waits_for, job.due) == ("cancelled", "r", None, None)
    scheduled = enqueue(conn, task, run_at="2100-01-01")
    assert row(conn, "jobs", job_id=scheduled).waits_for == "run_at"


def test_queue_stats_counts_what_is_live(conn, task):
    enqueue(conn, task)
    assert queue(conn, task) == (1, 0, 0, 0, 0)
    running = claim_one(conn, task)
    enqueue(conn, task, run_at="2100-01-01")
    enqueue(conn, task, priority=3)
    assert queue(conn, task) == (1, 1, 1, 0, 0)
    assert row(conn, "queue_stats", task=task).oldest_age > timedelta()
    fail(conn, running, kind="terminal")
    held = enqueue(conn, task, max_attempts=1, priority=99, options={"on_exhausted": "hold"})
    taken = claim(conn, task, max_jobs=2)
    fail(conn, next(job for job in taken if job.job_id == held))
    assert queue(conn, task) == (0, 1, 1, 1, 1)
    assert row(conn, "queue_stats", task=task).oldest_age is None
    complete(conn, next(job for job in taken if job.job_id != held))
    assert queue(conn, task) == (0, 1, 0, 1, 1)


def test_job_attempts_and_dead_letters_name_the_worker_and_the_input(conn, task):
    enqueue(conn, task, {"n": 1}, max_attempts=2, options={"retry": {"initial": "0"}})
    fail(conn, claim_one(conn, task, worker="first"), "e1", "m1")
    attempt = row(conn, "job_attempts", task=task)
    assert (attempt.worker, attempt.kind, attempt.error_code, attempt.error_message, attempt.disposition) == (
        "first",
        "retryable",
        "e1",
        "m1",
        "retry",
    )
    assert attempt.started_at <= attempt.ended_at <= attempt.retry_at
    fail(conn, claim_one(conn, task, worker="second"), "e2", "m2")
    letter = row(conn, "dead_letters", task=task)
    assert (letter.worker, letter.status, letter.error_code, letter.error_message, letter.input, letter.attempt) == (
        "second",
        "failed",
        "e2",
        "m2",
        {"n": 1},
        2,
    )


def test_job_result_waits_for_the_end(connect, task):
    conn, worker = connect(), connect()
    job = leased(conn, task)
    with refused("job.not_ended"):
        one(conn, "job_result", job.job_id)
    waiting = in_background(lambda: one(conn, "job_result", job.job_id, "10 s"))
    complete(worker, job, [1])
    assert waiting.join() == [1]


def test_tick_names_its_sweeps(conn):
    assert {"timers", "leases", "cancels"} <= {sweep for sweep, _ in call(conn, "tick")}


def test_nothing_was_lost(conn):
    assert_sound(conn)


def test_a_pause_of_one_organization_keeps_the_policy_of_the_global_task(conn):
    conn.execute("SELECT * FROM sayiir.task_define('kept', max_attempts => 9, retry => '{\"initial\": \"7s\"}')")
    conn.execute("SELECT sayiir.task_pause('kept', organization_id => 'o')")
    conn.execute("SELECT sayiir.task_resume('kept', organization_id => 'o')")
    job = conn.execute("SELECT job_id FROM sayiir.job_enqueue('kept', organization_id => 'o')").fetchone()[0]
    policy = conn.execute("SELECT max_attempts, retry_initial_us FROM sayiir.job WHERE job_id = %s", [job]).fetchone()
    assert policy == (9, 7_000_000)
