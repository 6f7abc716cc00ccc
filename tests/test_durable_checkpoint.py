"""What a lease leaves with its job: checkpoints, progress, log lines; and what a requeue keeps of them."""

import json

import pytest
from psycopg.types.json import Jsonb

from jobs import (  # noqa: F401
    a_task,
    assert_sound,
    call,
    claim_one,
    complete,
    enqueue,
    expire,
    fail,
    fall_due,
    get,
    in_background,
    isolate,
    leased,
    no_worker,
    one,
    reap,
    refused,
    value,
)
from support import wait_for_lock

pytestmark = pytest.mark.usefixtures("no_worker")


@pytest.fixture
def other(connect):
    return connect()


def remember(conn, job, name, answer):
    return one(conn, "job_checkpoint", job.job_id, job.epoch, name, Jsonb(answer))


def again(conn, job):
    """The job's next attempt, after this one failed."""
    fail(conn, job)
    fall_due(conn, job.job_id)
    return claim_one(conn, job.task)


# Checkpoints


def test_later_attempts_get_what_earlier_ones_remembered(conn):
    job = leased(conn, max_attempts=5)
    assert job.checkpoints == {}
    remember(conn, job, "charged", {"receipt": 7})
    remember(conn, job, "empty", None)
    job = again(conn, job)
    assert job.checkpoints == {"charged": {"receipt": 7}, "empty": None}
    remember(conn, job, "charged", {"receipt": 8})
    job = again(conn, job)
    assert job.checkpoints == {"charged": {"receipt": 8}, "empty": None}
    complete(conn, job)
    assert_sound(conn)


def test_a_batch_gets_each_its_own(conn):
    task = a_task()
    jobs = [leased(conn, task, max_attempts=5) for _ in range(3)]
    for n, job in enumerate(jobs[:2]):
        remember(conn, job, "n", n)
    for job in jobs:
        fail(conn, job)
    fall_due(conn, *[job.job_id for job in jobs])
    found = {job.job_id: job.checkpoints for job in call(conn, "job_claim", "w", [task], max_jobs=3)}
    assert found == {jobs[0].job_id: {"n": 0}, jobs[1].job_id: {"n": 1}, jobs[2].job_id: {}}


def test_a_stale_lease_remembers_nothing(conn):
    job = leased(conn, max_attempts=5)
    remember(conn, job, "mine", 1)
    expire(conn, job.job_id)
    remember(conn, job, "mine", 2)  # expired, but nobody took it
    reap(conn)
    fall_due(conn, job.job_id)
    mine = claim_one(conn, job.task)
    with refused("job.lease_lost") as detail:
        remember(conn, job, "mine", 3)
    assert (detail.job_id, detail.epoch) == (str(job.job_id), job.epoch)
    assert mine.checkpoints == {"mine": 2}
    assert again(conn, mine).checkpoints == {"mine": 2}


def test_a_checkpoint_waits_for_whoever_ends_the_lease(conn, other):
    job = leased(conn)
    conn.execute("BEGIN")
    complete(conn, job)
    writing = in_background(remember, other, job, "late", 1)
    wait_for_lock(conn, other.info.backend_pid)
    conn.execute("COMMIT")
    with refused("job.lease_lost"):
        writing.join()
    assert value(conn, "SELECT count(*) FROM sayiir.checkpoint WHERE job_id = %s", job.job_id) == 0


def test_a_heartbeat_does_not_wait_for_a_checkpoint(conn, other):
    job = leased(conn)
    conn.execute("BEGIN")
    remember(conn, job, "open", 1)
    other.execute("SET lock_timeout = '2 s'")
    assert one(other, "job_heartbeat", job.job_id, job.epoch) == "continue"
    conn.execute("ROLLBACK")
    assert again(conn, job).checkpoints == {}


@pytest.mark.parametrize(
    ("named", "code"),
    [
        ({"name": ""}, "argument.invalid"),
        ({"name": "x" * 201}, "argument.invalid"),
        ({"name": None}, "argument.null"),
        ({"value": None}, "argument.null"),
        ({"job_id": None}, "argument.null"),
        ({"epoch": None}, "argument.null"),
    ],
)
def test_checkpoint_arguments(conn, named, code):
    job = leased(conn)
    given = {"job_id": job.job_id, "epoch": job.epoch, "name": "n", "value": Jsonb(1)} | named
    with refused(code):
        call(conn, "job_checkpoint", **given)


def test_checkpoints_need_read_committed(conn):
    job = leased(conn)
    isolate(conn, "repeatable read")
    with refused("call.isolation_unsupported"):
        remember(conn, job, "n", 1)
    with refused("call.isolation_unsupported"):
        call(conn, "job_log", job.job_id, job.epoch, "info", "m")


def test_a_claim_of_new_jobs_does_not_look_for_checkpoints(conn):
    """The plan has one probe of the primary key a job, which only jobs that were leased before execute."""
    for _ in range(5):
        enqueue(conn, "probe")
    value(conn, "SELECT pg_stat_force_next_flush()") if conn.info.server_version >= 150000 else None
    scans = (
        "SELECT pg_stat_get_numscans('sayiir.checkpoint_pkey'::regclass)"
        " + pg_stat_get_xact_numscans('sayiir.checkpoint_pkey'::regclass)"
    )
    conn.execute("BEGIN")
    before = value(conn, scans)
    jobs = call(conn, "job_claim", "w", ["probe"], max_jobs=5)
    assert len(jobs) == 5
    assert value(conn, scans) == before
    for job in jobs:
        call(conn, "job_release", job.job_id, job.epoch)
    assert len(call(conn, "job_claim", "w", ["probe"], max_jobs=5)) == 5
    assert value(conn, scans) == before + 5
    conn.execute("COMMIT")


# Requeue


@pytest.fixture(params=["failed", "held"])
def dead(conn, request):
    options = {"on_exhausted": "hold"} if request.param == "held" else {}
    job = leased(conn, max_attempts=1, options=options)
    remember(conn, job, "half", "done")
    assert fail(conn, job).disposition == ("held" if request.param == "held" else "dead")
    return job


def test_a_requeue_keeps_checkpoints(conn, dead):
    assert one(conn, "job_requeue", dead.job_id).disposition == "requeued"
    job = claim_one(conn, dead.task)
    assert (job.run_number, job.checkpoints) == (2, {"half": "done"})


def test_a_requeue_can_reset_checkpoints(conn, dead):
    assert one(conn, "job_requeue", dead.job_id, reset_checkpoints=True).disposition == "requeued"
    assert claim_one(conn, dead.task).checkpoints == {}


def test_a_requeue_that_does_nothing_resets_nothing(conn, dead):
    assert one(conn, "job_requeue", dead.job_id, expected_run=9, reset_checkpoints=True).disposition == "mismatch"
    one(conn, "job_requeue", dead.job_id)
    assert claim_one(conn, dead.task).checkpoints == {"half": "done"}


def test_the_reason_of_a_requeue_is_in_the_history(conn, dead):
    one(conn, "job_requeue", dead.job_id, reason="the disk is back")
    [entry] = [entry for entry in call(conn, "job_history", dead.job_id) if entry.kind == "job_requeued"]
    assert entry.detail["reason"] == "the disk is back"
    assert entry.detail["run_number"] == 1
    query = "SELECT reason, run_number FROM sayiir.job_attempts WHERE job_id = %s AND kind = 'requeued'"
    assert conn.execute(query, [dead.job_id]).fetchall() == [("the disk is back", 1)]
    assert get(conn, dead.job_id).error_code is None
    assert_sound(conn)


# Progress


def progress(conn, job):
    query = "SELECT progress_done, progress_total FROM sayiir.job_lease WHERE job_id = %s"
    return conn.execute(query, [job.job_id]).fetchone()


def beat(conn, job, done=None, total=None):
    return one(conn, "job_heartbeat", job.job_id, job.epoch, progress_done=done, progress_total=total)


def test_progress_is_checked_against_what_was_reported_before(conn):
    job = leased(conn)
    beat(conn, job, done=3)
    with refused("argument.out_of_range") as detail:
        beat(conn, job, total=2)
    assert detail.argument == "progress_done"
    assert progress(conn, job) == (3, None)
    beat(conn, job, total=5)
    with refused("argument.out_of_range"):
        beat(conn, job, done=6)
    assert progress(conn, job) == (3, 5)
    # A restarted count is no error: only what cannot be is refused.
    beat(conn, job, done=0)
    beat(conn, job, done=9, total=9)
    assert progress(conn, job) == (9, 9)


def test_a_refused_heartbeat_does_not_extend_the_lease(conn):
    job = leased(conn)
    beat(conn, job, done=3)
    expire(conn, job.job_id)
    with refused("argument.out_of_range"):
        beat(conn, job, total=2)
    assert reap(conn) == {job.job_id: "retry"}


# Logs


def log(conn, job, message, level="info", **named):
    return one(conn, "job_log", job.job_id, job.epoch, level, message, **named)


def test_log_lines_are_read_page_by_page(conn):
    job = leased(conn, max_attempts=2)
    log(conn, job, "began", fields={"rows": 3})
    log(conn, job, "line\nbreak", level="warn")
    job = again(conn, job)
    log(conn, job, "", level="error")
    query = (
        "SELECT log_id, level, message, fields, attempt, epoch = %s FROM sayiir.job_logs"
        " WHERE job_id = %s AND log_id > %s ORDER BY log_id LIMIT 2"
    )
    first = conn.execute(query, [job.epoch, job.job_id, 0]).fetchall()
    assert [row[1:] for row in first] == [
        ("info", "began", {"rows": 3}, 1, False),
        ("warn", "line\nbreak", {}, 1, False),
    ]
    second = conn.execute(query, [job.epoch, job.job_id, first[-1][0]]).fetchall()
    assert [row[1:] for row in second] == [("error", "", {}, 2, True)]


def test_a_page_of_the_log_is_an_index_scan(conn):
    conn.execute(
        "INSERT INTO sayiir.job_log_entry (job_id, run_number, attempt, epoch, level, message, fields, at)"
        " SELECT gen_random_uuid(), 1, 1, 1, 'info', 'm', '{}', now() FROM generate_series(1, 20000)"
    )
    job = leased(conn)
    for n in range(50):
        log(conn, job, str(n))
    conn.execute("ANALYZE sayiir.job_log_entry")
    query = (
        "EXPLAIN (ANALYZE, FORMAT JSON) SELECT * FROM sayiir.job_logs"
        " WHERE job_id = %s AND log_id > 0 ORDER BY log_id LIMIT 10"
    )
    plan = json.dumps(conn.execute(query, [job.job_id]).fetchone()[0])
    assert '"job_log_entry_job"' in plan
    assert "Seq Scan" not in plan
    conn.execute("DELETE FROM sayiir.job_log_entry WHERE epoch = 1")


def test_a_stale_lease_logs_nothing(conn):
    job = leased(conn)
    complete(conn, job)
    with refused("job.lease_lost"):
        log(conn, job, "late")


@pytest.mark.parametrize(
    ("named", "code"),
    [
        ({"level": ""}, "argument.invalid"),
        ({"level": None}, "argument.null"),
        ({"message": None}, "argument.null"),
        ({"message": "x" * ((1 << 20) + 1)}, "argument.too_large"),
        ({"fields": Jsonb([1])}, "argument.invalid"),
        ({"fields": Jsonb(None)}, "argument.invalid"),
        ({"fields": None}, "argument.null"),
    ],
)
def test_log_arguments(conn, named, code):
    job = leased(conn)
    given = {"job_id": job.job_id, "epoch": job.epoch, "level": "info", "message": "m"} | named
    with refused(code):
        call(conn, "job_log", **given)


def test_the_log_of_another_organization_is_not_seen(conn):
    job = leased(conn)
    log(conn, job, "global")
    conn.execute("SET sayiir.scope = organization")
    conn.execute("SET sayiir.organization_id = 'acme'")
    assert value(conn, "SELECT count(*) FROM sayiir.job_logs WHERE job_id = %s", job.job_id) == 0
    enqueue(conn, "orga")
    mine = claim_one(conn, "orga")
    log(conn, mine, "acme's")
    assert value(conn, "SELECT message FROM sayiir.job_logs WHERE job_id = %s", mine.job_id) == "acme's"
