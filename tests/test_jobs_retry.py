"""Failures: what follows them, dead letters, requeue, and that one broken row stops nobody."""

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import psycopg
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
    leased,
    no_worker,
    one,
    reap,
    refused,
    value,
)
from support import wait_until

pytestmark = pytest.mark.usefixtures("no_worker")


def attempts(conn, job_id):
    """(run, attempt, kind, error, disposition) of every attempt that the history keeps, in order."""
    query = "SELECT run_number, attempt, kind, error_code, disposition FROM sayiir.job_attempts WHERE job_id = %s ORDER BY ended_at"
    return conn.execute(query, [job_id]).fetchall()


def dead_letters(conn, task):
    query = "SELECT job_id, status, error_code, reason FROM sayiir.dead_letters WHERE task = %s"
    return conn.execute(query, [task]).fetchall()


def delay(conn, job, **named):
    """Seconds from the failure to the retry."""
    before = value(conn, "SELECT clock_timestamp()")
    answer = fail(conn, job, **named)
    assert answer.disposition == "retry"
    assert get(conn, job.job_id).run_at in (answer.run_at, None)
    return (answer.run_at - before).total_seconds()


# Retry


@pytest.mark.parametrize("kind", ["retryable", "timeout", "panicked"])
def test_a_failure_is_tried_again(conn, kind):
    job = leased(conn)
    answer = fail(conn, job, "E-42/x", "broken \u20ac", kind=kind)
    assert answer.disposition == "retry"
    state = get(conn, job.job_id)
    assert (state.status, state.attempt, state.run_at) == ("scheduled", 1, answer.run_at)
    assert (state.error_code, state.error_message) == ("E-42/x", "broken \u20ac")
    assert attempts(conn, job.job_id) == [(1, 1, kind, "E-42/x", "retry")]
    assert claim(conn, job.task) == []
    fall_due(conn, job.job_id)
    again = claim_one(conn, job.task)
    assert (again.attempt, again.run_number, again.idempotency_key) == (2, 1, job.idempotency_key)
    assert complete(conn, again) == "succeeded"


def test_a_terminal_failure_is_a_dead_letter_at_once(conn):
    job = leased(conn, max_attempts=9)
    assert fail(conn, job, "no", kind="terminal").disposition == "dead"
    state = get(conn, job.job_id)
    assert (state.status, state.attempt, state.error_code, state.worker) == ("failed", 1, "no", "w")
    assert dead_letters(conn, job.task) == [(job.job_id, "failed", "no", "terminal failure")]
    assert attempts(conn, job.job_id) == []  # the last attempt is the end itself
    with refused("job.unsuccessful") as detail:
        one(conn, "job_result", job.job_id)
    assert (detail.status, detail.error_code) == ("failed", "no")


def test_attempts_run_out(conn):
    job = leased(conn, max_attempts=3, options={"retry": {"initial": "0"}})
    for expected in ["retry", "retry", "dead"]:
        assert fail(conn, job).disposition == expected
        if expected == "retry":
            job = claim_one(conn, job.task)
    assert [row[1] for row in attempts(conn, job.job_id)] == [1, 2]
    assert dead_letters(conn, job.task)[0][3] == "attempt 3 of 3"


def test_the_delay_grows_up_to_its_cap(conn):
    retry = {"initial": "10 s", "factor": 3, "max": "100 s", "jitter": 0}
    job = leased(conn, max_attempts=9, options={"retry": retry})
    for expected in [10, 30, 90, 100, 100]:
        assert expected <= delay(conn, job) < expected + 5
        fall_due(conn, job.job_id)
        job = claim_one(conn, job.task)


def test_the_delay_is_spread_by_jitter(conn):
    task = a_task()
    retry = {"initial": "1000 s", "max": "1 day", "jitter": 0.5}
    call(conn, "job_enqueue_many", task, Jsonb([1] * 40), options={"retry": retry})
    delays = [delay(conn, job) for job in claim(conn, task, max_jobs=40)]
    assert 500 <= min(delays) < 900 and 1100 < max(delays) < 1505


@pytest.mark.parametrize(
    "retry",
    [
        {"initial": "30 days", "factor": 1000, "max": "30 days", "jitter": 1},
        {"initial": "1 ms", "factor": 1000, "max": "30 days"},
        {"initial": "0", "factor": 1000, "max": "1 ms"},
    ],
)
def test_no_policy_overflows(conn, retry):
    job_id = enqueue(conn, task := a_task(), max_attempts=1000, options={"retry": retry})
    # Also at the last attempt: 1000^998 is infinite.
    conn.execute("UPDATE sayiir.job_ready SET attempt = 998 WHERE job_id = %s", [job_id])
    assert 0 <= delay(conn, claim_one(conn, task)) <= 30 * 86400 + 5


def test_a_worker_may_ask_for_later_but_not_for_earlier(conn):
    later = datetime.now(UTC) + timedelta(days=3)
    job = leased(conn)
    assert fail(conn, job, retry_at=later).run_at == later
    job = leased(conn, options={"retry": {"initial": "1 h", "jitter": 0, "max": "1 h"}})
    assert delay(conn, job, retry_at=datetime.now(UTC)) >= 3600
    job = leased(conn)
    assert fail(conn, job, retry_at=datetime(1, 1, 1, tzinfo=UTC)).disposition == "retry"


@pytest.mark.parametrize(
    "when", ["294276-12-31 23:59:59.999999+00", "9999-12-31 00:00:00+00", "4713-01-01 00:00:00+00 BC"]
)
def test_far_times_stop_nobody(conn, when):
    """The timers are swept past them."""
    job = leased(conn)
    conn.execute("SELECT * FROM sayiir.job_fail(%s, %s, 'e', retry_at => %s)", [job.job_id, job.epoch, when])
    other = leased(conn)
    fail(conn, other)
    conn.execute("SELECT * FROM sayiir.job_enqueue(%s, run_at => %s)", [a_task(), when])
    fall_due(conn, other.job_id)
    assert claim_one(conn, other.task).job_id == other.job_id


def test_the_same_failure_is_answered_again(conn):
    job = leased(conn)
    first = fail(conn, job, "e")
    assert fail(conn, job, "e") == first
    fall_due(conn, job.job_id)
    again = claim_one(conn, job.task)
    assert fail(conn, job, "e") == first
    assert get(conn, job.job_id).status == "leased"
    assert fail(conn, again, "last", kind="terminal") == fail(conn, again, "last", kind="terminal") == ("dead", None)
    assert len(attempts(conn, job.job_id)) == 1


def test_a_batch_of_failures_answers_each_on_its_own_terms(conn):
    retried, exhausted, held, stale, cancelled = (
        leased(conn),
        leased(conn, max_attempts=1),
        leased(conn, max_attempts=1, options={"on_exhausted": "hold"}),
        leased(conn),
        leased(conn),
    )
    call(conn, "job_release", stale.job_id, stale.epoch)
    call(conn, "job_cancel", cancelled.job_id)
    jobs = [retried, exhausted, held, stale, cancelled]
    answers = call(
        conn,
        "job_fail_many",
        [job.job_id for job in jobs],
        [job.epoch for job in jobs],
        [f"e{n}" for n in range(5)],
        ["m", None, "m", "m", "m"],
    )
    assert [(answer.job_id, answer.disposition) for answer in answers] == list(
        zip([job.job_id for job in jobs], ["retry", "dead", "held", "lost", "cancelled"], strict=True)
    )
    assert [answer.run_at is not None for answer in answers] == [True, False, False, False, False]
    assert [get(conn, job.job_id).error_code for job in jobs] == ["e0", "e1", "e2", None, "e4"]
    assert call(conn, "job_fail_many", [], [], []) == []


def test_no_retry_begins_after_the_deadline(conn):
    job = leased(conn, options={"deadline": "10 s", "retry": {"initial": "1 h", "max": "1 h"}})
    assert fail(conn, job).disposition == "dead"
    assert dead_letters(conn, job.task)[0][3] == "the deadline of all attempts has passed"


# Held and requeued


def test_a_held_job_waits_for_a_person(conn):
    job = leased(conn, max_attempts=1, options={"on_exhausted": "hold"})
    assert fail(conn, job, "sick").disposition == "held"
    assert get(conn, job.job_id).status == "held"
    assert dead_letters(conn, job.task) == [(job.job_id, "held", "sick", None)]
    call(conn, "tick")
    assert claim(conn, job.task) == []
    answer = one(conn, "job_requeue", job.job_id)
    assert (answer.disposition, answer.run_number) == ("requeued", 2)
    again = claim_one(conn, job.task)
    assert (again.attempt, again.run_number, again.idempotency_key) == (1, 2, f"{job.job_id}/2")
    assert again.epoch > job.epoch
    assert dead_letters(conn, job.task) == []
    assert complete(conn, again) == "succeeded"


def test_a_dead_letter_runs_again_as_a_new_run(conn):
    job = leased(conn, max_attempts=1)
    fail(conn, job, "sick")
    assert one(conn, "job_requeue", job.job_id, expected_run=1).run_number == 2
    assert attempts(conn, job.job_id) == [(1, 1, "requeued", "sick", "failed")]
    again = claim_one(conn, job.task)
    assert (again.attempt, again.run_number, again.max_attempts) == (1, 2, 1)
    assert complete(conn, again, "well") == "succeeded"
    assert dead_letters(conn, job.task) == []


def test_when_a_requeue_does_nothing(conn):
    ready, job = enqueue(conn, a_task()), leased(conn, max_attempts=1)

    def answer(job_id, **named):
        row = one(conn, "job_requeue", job_id, **named)
        return row.disposition, row.run_number

    assert answer(ready) == ("mismatch", None)
    assert answer(job.job_id) == ("not_quiet", None)
    fail(conn, job)
    assert answer(job.job_id, expected_run=2) == ("mismatch", 1)
    assert get(conn, job.job_id).status == "failed"
    assert answer(job.job_id, expected_run=1) == ("requeued", 2)
    assert answer(job.job_id, expected_run=1) == ("mismatch", None)
    complete(conn, claim_one(conn, job.task))
    assert answer(job.job_id) == ("mismatch", 2)  # success is final
    assert answer("00000000-0000-0000-0000-000000000000") == ("not_found", None)


# Expiry


def test_an_expired_attempt_is_recorded_with_its_worker(conn):
    job = leased(conn)
    expire(conn, job.job_id)
    reap(conn)
    assert attempts(conn, job.job_id) == [(1, 1, "expired", "job.lease_expired", "retry")]
    [(worker, message)] = conn.execute(
        "SELECT worker, error_message FROM sayiir.job_attempts WHERE job_id = %s", [job.job_id]
    ).fetchall()
    assert worker == "w" and "worker w was silent" in message


def test_an_attempt_that_runs_too_long_times_out(conn):
    job = leased(conn, options={"timeout": "2 h", "lease": "1 h"})
    expire(conn, job.job_id)
    conn.execute("UPDATE sayiir.job_lease SET deadline_at = expires_at WHERE job_id = %s", [job.job_id])
    assert reap(conn) == {job.job_id: "retry"}
    assert attempts(conn, job.job_id) == [(1, 1, "timeout", "job.timeout", "retry")]


_KILLED = """
import os, sys, psycopg
conn = psycopg.connect(sys.argv[1], autocommit=True)
conn.execute("SELECT * FROM sayiir.job_claim('poisoned', ARRAY[%s])", [sys.argv[2]])
print("claimed", flush=True)
sys.stdin.read()
"""


def test_a_job_that_kills_its_workers_becomes_a_dead_letter(cluster, db, conn):
    """Attempts are counted at claim: a job whose worker dies max_attempts times cannot loop for ever."""
    task, healthy = a_task(), a_task()
    job_id = enqueue(conn, task, max_attempts=3)
    for attempt in range(1, 4):
        enqueue(conn, healthy)
        command = [sys.executable, "-c", _KILLED, cluster.uri(db), task]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout.readline() == "claimed\n"
            os.kill(worker.pid, signal.SIGKILL)
        assert get(conn, job_id).attempt == attempt
        expire(conn, job_id)
        assert reap(conn) == {job_id: "retry" if attempt < 3 else "dead"}
        assert complete(conn, claim_one(conn, healthy)) == "succeeded"  # other work goes on
    assert claim(conn, task) == []
    [(_, status, code, reason)] = dead_letters(conn, task)
    assert (status, code, reason) == ("failed", "job.lease_expired", "lease expired; attempt 3 of 3")


# One broken row


@pytest.fixture
def broken(conn):
    """Makes every insert of a job into a table fail; what a corrupt row would do."""
    conn.execute(
        "CREATE TABLE public.broken (job_id uuid);"
        "CREATE FUNCTION public.break() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF EXISTS (SELECT FROM public.broken b WHERE b.job_id = NEW.job_id) THEN RAISE 'broken row'; END IF;"
        " RETURN NEW; END $$"
    )
    made = []

    def make(table, *job_ids):
        if table not in made:
            made.append(table)
            conn.execute(
                f"CREATE TRIGGER break BEFORE INSERT ON sayiir.{table} FOR EACH ROW EXECUTE FUNCTION public.break()"
            )
        for job_id in job_ids:
            conn.execute("INSERT INTO public.broken VALUES (%s)", [job_id])

    yield make
    for table in made:
        conn.execute(f"DROP TRIGGER break ON sayiir.{table}")
    conn.execute("DROP TABLE public.broken; DROP FUNCTION public.break()")


@pytest.mark.parametrize("sweep", ["job_reap", "tick"])
@pytest.mark.parametrize("table", ["job_attempt", "job_end"])
def test_one_broken_row_does_not_stop_the_reaper(conn, broken, sweep, table):
    jobs = [leased(conn, max_attempts=1 if table == "job_end" else 5) for _ in range(5)]
    broken(table, jobs[0].job_id, jobs[3].job_id)
    expire(conn, *(job.job_id for job in jobs))
    notices = []
    conn.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    call(conn, sweep)
    status = "failed" if table == "job_end" else "ready"
    assert [get(conn, job.job_id).status for job in jobs] == ["leased", status, status, "leased", status]
    assert len([notice for notice in notices if "broken row" in notice]) == 2
    # It is postponed, not tried at once again.
    due = "SELECT count(*) FROM sayiir.job_lease WHERE check_at <= clock_timestamp() AND job_id = ANY (%s)"
    assert value(conn, due, [job.job_id for job in jobs]) == 0
    # And its worker can still end it, once it is mended.
    conn.execute("TRUNCATE public.broken")
    assert complete(conn, jobs[0]) == "succeeded"


def test_one_broken_row_does_not_stop_the_timers(conn, broken):
    jobs = [leased(conn) for _ in range(5)]
    for job in jobs:
        fail(conn, job)
    broken("job_ready", jobs[0].job_id, jobs[3].job_id)
    notices = []
    conn.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    fall_due(conn, *(job.job_id for job in jobs))
    assert [get(conn, job.job_id).status for job in jobs] == ["scheduled", "ready", "ready", "scheduled", "ready"]
    assert len([notice for notice in notices if "broken row" in notice]) == 2
    due = "SELECT count(*) FROM sayiir.job_wait WHERE due <= clock_timestamp() AND job_id = ANY (%s)"
    assert value(conn, due, [job.job_id for job in jobs]) == 0


def test_broken_rows_by_the_dozen_stop_nobody(conn, broken):
    task = a_task()
    call(conn, "job_enqueue_many", task, Jsonb([1] * 40), options={"max_attempts": 1})
    jobs = claim(conn, task, max_jobs=40)
    broken("job_end", *(job.job_id for job in jobs[:30]))
    expire(conn, *(job.job_id for job in jobs))
    for _ in range(6):
        reap(conn)
    assert [get(conn, job.job_id).status for job in jobs] == ["leased"] * 30 + ["failed"] * 10


def test_a_broken_row_does_not_stop_a_claims_housekeeping(conn, broken):
    sick, task = leased(conn), a_task()
    broken("job_attempt", sick.job_id)
    expire(conn, sick.job_id)
    enqueue(conn, task)
    assert len(claim(conn, task, wait="2 s")) == 1
    assert claim(conn, sick.task, wait="1.2 s") == []  # it swept at least once
    assert get(conn, sick.job_id).status == "leased"


def test_a_completion_of_a_broken_row_fails_alone(conn, broken):
    good, bad = leased(conn), leased(conn)
    broken("job_end", bad.job_id)
    with pytest.raises(psycopg.errors.RaiseException, match="broken row"):
        complete(conn, bad)
    assert complete(conn, good) == "succeeded"
    assert get(conn, bad.job_id).status == "leased"


def test_nothing_was_lost(conn):
    assert_sound(conn)


def test_a_job_past_its_deadline_is_not_handed_out(conn):
    job_id = enqueue(conn, "late", options={"deadline": "1 ms"})
    wait_until(lambda: value(conn, "SELECT deadline_at < clock_timestamp() FROM sayiir.job WHERE job_id = %s", job_id))
    assert call(conn, "job_claim", "me", ["late"]) == []
    wait_until(lambda: call(conn, "tick") and get(conn, job_id).status == "failed")
    job = get(conn, job_id)
    assert (job.error_code, job.error_message) == ("job.timeout", "the deadline of all attempts has passed")
