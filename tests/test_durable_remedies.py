"""What people do to stand-alone jobs: requeue by the lot, replay, delete, amend; and to those that are held."""

import threading
import uuid

import psycopg
import pytest
from psycopg.types.json import Jsonb

from durable import await_event, await_job, send, sleep, spawn
from flows import Flow, task
from jobs import (  # noqa: F401
    a_task,
    assert_sound,
    call,
    claim,
    claim_one,
    complete,
    enqueue,
    fail,
    fall_due,
    get,
    in_background,
    isolate,
    leased,
    no_worker,
    one,
    refused,
    value,
)
from support import wait_for_lock

pytestmark = pytest.mark.usefixtures("no_worker")

ENDS = ["commit", "rollback"]


@pytest.fixture
def other(connect):
    return connect()


def dead(conn, task=None, code="broken", **named):
    job = leased(conn, task, max_attempts=1, **named)
    assert fail(conn, job, code).disposition == "dead"
    return job


def succeeded(conn, **named):
    job = leased(conn, **named)
    complete(conn, job, "done")
    return job


# Dead letters by the lot


def requeued(conn, **named):
    return [row[0] for row in call(conn, "dead_letters_requeue", **named)]


def test_dead_letters_of_a_task_run_again(conn):
    work = a_task()
    jobs = [dead(conn, work) for _ in range(3)]
    stranger = dead(conn)
    succeeded(conn)
    assert requeued(conn, task=work) == [job.job_id for job in jobs]
    assert requeued(conn, task=work) == []
    assert get(conn, stranger.job_id).status == "failed"
    again = claim(conn, work, max_jobs=5)
    assert [job.job_id for job in again] == [job.job_id for job in jobs]
    assert {(job.run_number, job.attempt) for job in again} == {(2, 1)}
    assert_sound(conn)


def test_dead_letters_are_chosen(conn):
    work = a_task()
    first, second, third = dead(conn, work, "a"), dead(conn, work, "b"), dead(conn, work, "a")
    since = get(conn, second.job_id).finished_at
    assert requeued(conn, task=work, error_code="none") == []
    assert requeued(conn, task=work, since=since, error_code="a") == [third.job_id]
    assert requeued(conn, task=work, max_rows=1) == [first.job_id]
    assert requeued(conn, task=work) == [second.job_id]
    for rows in (0, 10_001):
        with refused("argument.out_of_range"):
            requeued(conn, max_rows=rows)


def test_dead_letters_of_other_organizations_and_steps_stay(conn):
    work = a_task()
    enqueue(conn, work, organization_id="acme", max_attempts=1)
    job = claim_one(conn, work, organization_id="acme")
    fail(conn, job)
    flow = Flow(conn, task("work"))
    flow.fail("work")
    assert requeued(conn, task=work) == []
    assert requeued(conn, task=flow.task("work")) == []
    assert requeued(conn, task=work, organization_id="acme") == [job.job_id]


def test_a_dead_letter_that_another_session_holds_is_left_out(conn, other):
    work = a_task()
    held, free = dead(conn, work), dead(conn, work)
    other.execute("BEGIN")
    assert one(other, "job_requeue", held.job_id).disposition == "requeued"
    assert requeued(conn, task=work) == [free.job_id]
    other.execute("ROLLBACK")
    assert requeued(conn, task=work) == [held.job_id]
    assert_sound(conn)


@pytest.mark.parametrize("end", ENDS)
def test_an_enqueue_under_a_key_and_a_requeue_in_one_transaction(conn, other, end):
    """Two sessions find the same dead job by its key and requeue it: one after the other, without a deadlock."""
    work = a_task()
    enqueue(conn, work, idempotency_key="k", max_attempts=1)
    job = claim_one(conn, work)
    fail(conn, job)

    def revive(session):
        found = one(session, "job_enqueue", work, Jsonb({}), idempotency_key="k", max_attempts=1)
        assert (found.job_id, found.disposition) == (job.job_id, "existing")
        return one(session, "job_requeue", found.job_id, expected_run=1).disposition

    conn.execute("BEGIN")
    assert revive(conn) == "requeued"
    waiting = in_background(revive, other)
    wait_for_lock(conn, other.info.backend_pid)
    conn.execute(end)
    assert waiting.join() == ("mismatch" if end == "commit" else "requeued")
    assert claim_one(conn, work).run_number == 2
    assert_sound(conn)


def test_a_requeue_that_does_nothing_does_not_hold_up_the_worker(conn, other):
    job = leased(conn)
    conn.execute("BEGIN")
    assert one(conn, "job_requeue", job.job_id).disposition == "not_quiet"
    other.execute("SET lock_timeout = '2 s'")
    assert one(other, "job_heartbeat", job.job_id, job.epoch) == "continue"
    call(other, "job_checkpoint", job.job_id, job.epoch, "n", Jsonb(1))
    conn.execute("COMMIT")


# Replay


def replay(conn, job, key="again", **named):
    return one(conn, "job_replay", job.job_id, key, **named)


@pytest.mark.parametrize("end", [succeeded, dead])
def test_a_replay_is_a_new_job(conn, end):
    work = a_task()
    options = {"lease": "7 s", "timeout": "1 hour", "deadline": "2 days"}
    enqueue(conn, work, {"n": 1}, priority=80, tags=["gpu"], options=options, trace_parent="00-t", max_attempts=1)
    job = claim_one(conn, work)
    complete(conn, job, "done") if end is succeeded else fail(conn, job)
    answer = replay(conn, job, reason="once more")
    assert (answer.disposition, answer.run_number) == ("replayed", 1)
    assert answer.job_id != job.job_id
    new = claim_one(conn, work)
    assert (new.job_id, new.input, new.attempt, new.tags) == (answer.job_id, {"n": 1}, 1, ["gpu"])
    assert (new.trace_parent, new.max_attempts) == ("00-t", 1)
    info = get(conn, new.job_id)
    assert info.priority == 80
    same = (
        "SELECT count(DISTINCT (lane, lease_us, timeout_us, retry_initial_us, hold, deadline_at - created_at))"
        " FROM sayiir.job WHERE job_id = ANY (%s)"
    )
    assert value(conn, same, [job.job_id, new.job_id]) == 1
    [first, *_] = call(conn, "job_history", new.job_id)
    assert (first.detail["replay_of"], first.detail["reason"]) == (str(job.job_id), "once more")
    assert get(conn, job.job_id).status in ("succeeded", "failed")
    assert_sound(conn)


def test_a_replay_is_made_once_under_a_key(conn):
    job = succeeded(conn)
    first = replay(conn, job, reason="r")
    assert replay(conn, job, reason="r")[:2] == (first.job_id, "existing")
    with refused("job.idempotency_conflict") as detail:
        replay(conn, job, reason="another")
    assert detail.job_id == str(first.job_id)
    assert replay(conn, job, "other").job_id != first.job_id
    # Another job's replay under the same key is another one.
    assert replay(conn, succeeded(conn)).disposition == "replayed"


def test_a_replay_is_answered_again_while_its_source_runs_again(conn):
    job = dead(conn)
    first = replay(conn, job)
    call(conn, "job_requeue", job.job_id)
    assert replay(conn, job)[:2] == (first.job_id, "existing")
    with refused("job.not_ended"):
        replay(conn, job, "new")


@pytest.mark.parametrize("end", ENDS)
def test_a_replay_waits_for_one_under_the_same_key(conn, other, end):
    job = succeeded(conn)
    conn.execute("BEGIN")
    first = replay(conn, job)
    waiting = in_background(replay, other, job)
    wait_for_lock(conn, other.info.backend_pid)
    conn.execute(end)
    second = waiting.join()
    if end == "commit":
        assert second[:2] == (first.job_id, "existing")
    else:
        assert second.disposition == "replayed"
    assert value(conn, "SELECT count(*) FROM sayiir.job WHERE request ->> 'replay_of' = %s", str(job.job_id)) == 1
    assert_sound(conn)


def test_what_cannot_be_replayed(conn):
    with refused("job.not_ended"):
        replay(conn, leased(conn))
    with refused("job.not_found"):
        one(conn, "job_replay", uuid.uuid4(), "k")
    flow = Flow(conn, task("work"))
    flow.complete("work")
    with refused("job.is_step"):
        one(conn, "job_replay", flow.step("work")["job_id"], "k")
    for key in ("", "k" * 401):
        with refused("argument.invalid"):
            replay(conn, succeeded(conn), key)
    assert replay(conn, succeeded(conn), "k" * 400).disposition == "replayed"


# Delete


def test_a_deleted_job_leaves_nothing(conn):
    work = a_task()
    enqueue(conn, work, idempotency_key="k", max_attempts=2)
    job = claim_one(conn, work)
    fail(conn, job)
    fall_due(conn, job.job_id)
    job = claim_one(conn, work)
    call(conn, "job_checkpoint", job.job_id, job.epoch, "n", Jsonb(1))
    call(conn, "job_log", job.job_id, job.epoch, "info", "m")
    send(conn, job, event_key="k")
    complete(conn, job)
    assert one(conn, "job_delete", job.job_id) is True
    tables = "SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'job_id'"
    names = conn.execute(f"{tables} WHERE relnamespace = 'sayiir'::regnamespace AND relkind = 'r'").fetchall()
    assert len(names) >= 10
    for (name,) in names:
        assert value(conn, f"SELECT count(*) FROM sayiir.{name} WHERE job_id = %s", job.job_id) == 0, name
    assert one(conn, "job_delete", job.job_id) is False
    assert one(conn, "job_enqueue", work, idempotency_key="k").disposition == "inserted"
    assert_sound(conn)


def test_what_cannot_be_deleted(conn):
    with refused("job.not_ended"):
        one(conn, "job_delete", enqueue(conn, a_task()))
    with refused("job.not_ended"):
        one(conn, "job_delete", leased(conn).job_id)
    flow = Flow(conn, task("work"))
    flow.complete("work")
    with refused("job.is_step"):
        one(conn, "job_delete", flow.step("work")["job_id"])
    mine = succeeded(conn)
    assert one(conn, "job_delete", mine.job_id, organization_id="acme") is False
    assert get(conn, mine.job_id).status == "succeeded"


@pytest.mark.parametrize("end", ENDS)
def test_a_delete_waits_for_a_requeue(conn, other, end):
    job = dead(conn)
    conn.execute("BEGIN")
    one(conn, "job_requeue", job.job_id)
    waiting = in_background(one, other, "job_delete", job.job_id)
    wait_for_lock(conn, other.info.backend_pid)
    conn.execute(end)
    if end == "commit":
        with refused("job.not_ended"):
            waiting.join()
    else:
        assert waiting.join() is True
    assert_sound(conn)


@pytest.mark.parametrize("end", ENDS)
def test_two_deletes_of_one_job(conn, other, end):
    job = succeeded(conn)
    conn.execute("BEGIN")
    assert one(conn, "job_delete", job.job_id) is True
    waiting = in_background(one, other, "job_delete", job.job_id)
    wait_for_lock(conn, other.info.backend_pid)
    conn.execute(end)
    assert waiting.join() is (end == "rollback")


def test_a_parent_that_asks_for_a_deleted_child_is_told(conn):
    parent = leased(conn)
    work = a_task()
    child = spawn(conn, parent, work)
    complete(conn, claim_one(conn, work), 1)
    call(conn, "job_delete", child.job_id)
    with refused("job.not_found"):
        await_job(conn, parent, child)


# Amend


def amend(conn, job_id, payload):
    return one(conn, "job_amend", job_id, Jsonb(payload))


@pytest.mark.parametrize("run_at", [None, "2100-01-01"])
def test_an_unclaimed_job_gets_another_payload(conn, run_at):
    work = a_task()
    job_id = enqueue(conn, work, {"n": 1}, run_at=run_at)
    assert amend(conn, job_id, {"n": 2}) == "amended"
    assert get(conn, job_id).input == {"n": 2}
    if run_at:
        fall_due(conn, job_id)
    assert claim_one(conn, work).input == {"n": 2}
    assert_sound(conn)


def test_what_cannot_be_amended(conn):
    job = leased(conn, payload={"n": 1}, max_attempts=1)
    assert amend(conn, job.job_id, 2) == "claimed"
    call(conn, "job_release", job.job_id, job.epoch)
    assert amend(conn, job.job_id, 2) == "claimed"
    job = claim_one(conn, job.task)
    sleep(conn, job, delay="1 hour")
    assert amend(conn, job.job_id, 2) == "claimed"
    assert get(conn, job.job_id).input == {"n": 1}
    assert amend(conn, enqueue(conn, a_task(), idempotency_key="k"), 2) == "keyed"
    assert amend(conn, succeeded(conn).job_id, 2) == "ended"
    with refused("job.not_found"):
        amend(conn, uuid.uuid4(), 2)
    flow = Flow(conn, task("work"))
    with refused("job.is_step"):
        amend(conn, flow.step("work")["job_id"], 2)
    with refused("argument.null"):
        call(conn, "job_amend", enqueue(conn, a_task()), None)


def test_an_amend_does_not_wait_for_a_claim(conn, other):
    work = a_task()
    job_id = enqueue(conn, work, {"n": 1})
    other.execute("BEGIN")
    assert claim_one(other, work).input == {"n": 1}
    assert amend(conn, job_id, {"n": 2}) == "claimed"
    other.execute("ROLLBACK")
    assert amend(conn, job_id, {"n": 2}) == "amended"


def test_amends_and_claims_at_one_moment(conn, other):
    """Whatever interleaving comes: what was answered as amended is what a worker gets."""
    work = a_task()
    for n in range(100):
        job_id = enqueue(conn, work, {"n": 0})
        gate = threading.Barrier(2)

        def amending(gate=gate, job_id=job_id, n=n):
            gate.wait()
            return amend(other, job_id, {"n": n})

        waiting = in_background(amending)
        gate.wait()
        found = claim(conn, work)
        answer = waiting.join()
        [job] = found or claim(conn, work)
        assert (answer, job.input["n"]) in [("amended", n), ("claimed", 0)]
    assert_sound(conn)


@pytest.mark.parametrize("function", ["job_replay", "job_delete", "job_amend", "dead_letters_requeue"])
def test_remedies_need_read_committed(conn, function):
    arguments = {"job_replay": [uuid.uuid4(), "k"], "job_delete": [uuid.uuid4()], "job_amend": [uuid.uuid4(), Jsonb(1)]}
    isolate(conn, "repeatable read")
    with refused("call.isolation_unsupported"):
        call(conn, function, *arguments.get(function, []))


# Held


def hold(conn):
    job = leased(conn, max_attempts=1, options={"on_exhausted": "hold"})
    assert fail(conn, job).disposition == "held"
    return job


def test_a_held_job_runs_again_or_is_cancelled(conn):
    job = hold(conn)
    assert one(conn, "job_requeue", job.job_id, expected_run=1).run_number == 2
    job = claim_one(conn, job.task)
    assert (job.run_number, job.attempt) == (2, 1)
    assert fail(conn, job).disposition == "held"
    assert one(conn, "job_cancel", job.job_id).disposition == "cancelled"
    kinds = [entry.kind for entry in call(conn, "job_history", job.job_id)]
    assert kinds == ["job_enqueued", "attempt_failed", "job_requeued", "attempt_failed", "job_cancelled"]
    assert_sound(conn)


def test_a_parent_of_a_held_job_waits_on(conn):
    parent = leased(conn)
    work = a_task()
    child = spawn(conn, parent, work, options=Jsonb({"max_attempts": 1, "on_exhausted": "hold"}))
    await_job(conn, parent, child)
    fail(conn, claim_one(conn, work))
    assert get(conn, parent.job_id).status == "waiting"
    call(conn, "job_requeue", child.job_id)
    complete(conn, claim_one(conn, work), 1)
    assert await_job(conn, claim_one(conn, parent.task), child).output == 1
    assert_sound(conn)


@pytest.fixture
def held_flow(conn):
    work = {**task("work"), "retry": {"max_attempts": 1}, "on_exhausted": "hold"}
    flow = Flow(conn, work, task("next", "work"))
    flow.fail("work", kind="retryable")
    assert flow.states == {"work": "held", "next": "blocked"}
    assert flow.status == "waiting"
    return flow


def test_a_held_step_runs_again(conn, held_flow):
    flow = held_flow
    assert one(conn, "job_requeue", flow.step("work")["job_id"], reason="repaired").disposition == "requeued"
    flow.complete("work")
    flow.complete("next", "end")
    assert flow.status == "succeeded"
    detail = "SELECT detail ->> 'reason' FROM sayiir.workflow_history(%s) WHERE kind = 'step_requeued'"
    assert conn.execute(detail, [flow.id]).fetchall() == [("repaired",)]
    assert_sound(conn)


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "cancelled"])
def test_a_person_ends_a_held_step(conn, held_flow, outcome):
    flow = held_flow
    fields = {"output": 5} if outcome == "succeeded" else {}
    assert flow.complete_step("work", outcome, **fields)["disposition"] == "completed"
    if outcome == "succeeded":
        assert flow.claim("next")["input"]["work"]["output"] == 5
        flow.complete("next")
    assert flow.status == ("succeeded" if outcome == "succeeded" else "failed")
    assert flow.complete_step("work", outcome, **fields)["disposition"] == "repeated"
    assert_sound(conn)


def test_a_person_ends_a_parked_step(conn):
    flow = Flow(conn, task("work"), task("next", "work"))
    job = claim_one(conn, flow.task("work"))
    await_event(conn, job)
    assert flow.complete_step("work", output=3)["disposition"] == "completed"
    assert flow.send("go") == "buffered"
    assert flow.claim("next")["input"]["work"]["output"] == 3
    assert_sound(conn)


# Rights

RIGHTS = {
    "sayiir_worker": [
        "job_checkpoint",
        "job_log",
        "job_sleep",
        "job_await_event",
        "job_spawn",
        "job_await_job",
        "job_continue",
    ],
    "sayiir_client": ["job_send_event"],
    "sayiir_admin": ["job_replay", "job_delete", "job_amend", "dead_letters_requeue", "task_sync"],
}


def test_who_may_call_what(conn):
    query = (
        "SELECT p.proname, r.rolname FROM pg_proc p, pg_roles r WHERE p.pronamespace = 'sayiir'::regnamespace"
        " AND r.rolname = ANY (%s) AND p.proname = ANY (%s) AND has_function_privilege(r.oid, p.oid, 'EXECUTE')"
    )
    functions = [name for names in RIGHTS.values() for name in names]
    allowed = set(conn.execute(query, [list(RIGHTS), functions]).fetchall())
    expected = {(name, role) for role, names in RIGHTS.items() for name in names}
    assert allowed == expected | {(name, "sayiir_admin") for name in functions}


def test_a_worker_runs_durable_code_with_its_own_rights(conn, connect):
    worker = connect()
    worker.execute("SET ROLE sayiir_worker")
    job = leased(conn)
    assert await_event(worker, job, timeout="0").disposition == "timed_out"
    assert await_job(worker, job, spawn(worker, job, a_task())).disposition == "parked"
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        send(worker, job)
