"""Durable code: sleeps, events, children and new runs. A name remembers its answer; a parked job has no worker."""

import uuid

import pytest
from psycopg.types.json import Jsonb

from durable import await_event, await_job, back, pass_time, send, sleep, spawn
from flows import Flow, task
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
    isolate,
    leased,
    no_worker,
    one,
    reap,
    refused,
    value,
)
from support import wait_until

pytestmark = pytest.mark.usefixtures("no_worker")

PARKED = ("parked", None)


# Sleep


def test_a_sleep_leaves_the_worker_and_comes_back(conn):
    job = leased(conn)
    assert sleep(conn, job, delay="1 hour") == "parked"
    info = get(conn, job.job_id)
    assert (info.status, info.worker, info.attempt) == ("waiting", None, 0)
    assert claim(conn, job.task) == []
    assert_sound(conn)
    pass_time(conn, job)
    job = back(conn, job)
    assert job.attempt == 1
    assert list(job.checkpoints) == ["nap"]
    assert sleep(conn, job, delay="1 hour") == "elapsed"
    assert complete(conn, job) == "succeeded"
    assert_sound(conn)


def test_a_sleep_that_is_over_at_once_does_not_park(conn):
    job = leased(conn)
    assert sleep(conn, job, "zero", delay="0") == "elapsed"
    assert sleep(conn, job, "past", until="2020-01-01") == "elapsed"
    assert get(conn, job.job_id).status == "leased"


def test_the_first_call_sets_the_time_of_a_sleep(conn):
    job = leased(conn, max_attempts=3)
    sleep(conn, job, delay="1 hour")
    due = get(conn, job.job_id).run_at
    call(conn, "job_cancel", job.job_id)
    call(conn, "job_requeue", job.job_id)
    job = back(conn, job)
    assert job.checkpoints == {}  # asked, not answered
    assert sleep(conn, job, delay="9 hours") == "parked"
    assert get(conn, job.job_id).run_at == due


def test_a_sleep_counts_months_by_the_calendar(conn):
    job = leased(conn)
    sleep(conn, job, delay="1 month")
    assert value(
        conn,
        "SELECT due = since + interval '1 month' FROM sayiir.job_wait WHERE job_id = %s",
        job.job_id,
    )


@pytest.mark.parametrize(
    ("named", "code"),
    [
        ({}, "argument.invalid"),
        ({"delay": "1 s", "until": "2030-01-01"}, "argument.invalid"),
        ({"delay": "-1 s"}, "argument.out_of_range"),
        ({"delay": "200 years"}, "argument.out_of_range"),
        ({"until": "infinity"}, "argument.out_of_range"),
        ({"until": "-infinity"}, "argument.out_of_range"),
    ],
)
def test_sleep_arguments(conn, named, code):
    job = leased(conn)
    with refused(code):
        sleep(conn, job, **named)
    assert get(conn, job.job_id).status == "leased"


# Parking


def test_parking_burns_no_attempt(conn):
    job = leased(conn, max_attempts=2)
    for n in range(5):
        assert sleep(conn, job, f"nap {n}", delay="1 hour") == "parked"
        pass_time(conn, job)
        job = back(conn, job)
        assert job.attempt == 1
    fail(conn, job)
    fall_due(conn, job.job_id)
    job = back(conn, job)
    assert job.attempt == 2
    assert await_event(conn, job) == PARKED
    send(conn, job)
    job = back(conn, job)
    assert job.attempt == 2
    assert fail(conn, job).disposition == "dead"
    assert_sound(conn)


def test_a_parked_lease_is_gone(conn):
    job = leased(conn)
    sleep(conn, job, delay="1 hour")
    assert sleep(conn, job, delay="1 hour") == "parked"  # the same call by the same lease, its answer lost
    assert one(conn, "job_heartbeat", job.job_id, job.epoch) == "lost"
    for other in (
        lambda: complete(conn, job),
        lambda: sleep(conn, job, "another", delay="1 hour"),
        lambda: await_event(conn, job, "nap"),
        lambda: spawn(conn, job, "x"),
        lambda: call(conn, "job_continue", job.job_id, job.epoch),
    ):
        with refused("job.lease_lost"):
            other()
    assert get(conn, job.job_id).status == "waiting"


def test_a_name_is_of_one_kind(conn):
    job = leased(conn)
    call(conn, "job_checkpoint", job.job_id, job.epoch, "n", Jsonb(1))
    for other in (
        lambda: sleep(conn, job, "n", delay="1 hour"),
        lambda: await_event(conn, job, "n"),
        lambda: spawn(conn, job, "x", "n"),
    ):
        with refused("job.checkpoint_conflict") as detail:
            other()
        assert detail.name == "n"
    assert sleep(conn, job, "s", delay="0") == "elapsed"
    with refused("job.checkpoint_conflict"):
        call(conn, "job_checkpoint", job.job_id, job.epoch, "s", Jsonb(1))
    child = spawn(conn, job, a_task(), "c")
    with refused("job.checkpoint_conflict"):
        await_job(conn, job, child, "c")


def test_a_parked_job_has_no_timeout(conn):
    """The timeout of an attempt is its run time; what comes back has all of it again."""
    job = leased(conn, options={"timeout": "1 hour"})
    sleep(conn, job, delay="2 days")
    pass_time(conn, job)
    job = back(conn, job)
    assert value(conn, "SELECT deadline_at > clock_timestamp() FROM sayiir.job_lease WHERE job_id = %s", job.job_id)


def test_the_deadline_of_all_attempts_ends_a_wait(conn):
    job = leased(conn, options={"deadline": "1 hour"})
    assert await_event(conn, job) == PARKED
    assert value(
        conn,
        "SELECT w.due = j.deadline_at FROM sayiir.job_wait w JOIN sayiir.job j USING (job_id) WHERE job_id = %s",
        job.job_id,
    )
    conn.execute(
        "UPDATE sayiir.job SET deadline_at = clock_timestamp() - interval '1 s' WHERE job_id = %s", [job.job_id]
    )
    pass_time(conn, job)
    # It wakes up, but too late: no worker gets it, and a sweep ends it.
    assert call(conn, "job_claim", "me", [job.task]) == []
    wait_until(lambda: call(conn, "tick") and get(conn, job.job_id).status == "failed")
    info = get(conn, job.job_id)
    assert (info.status, info.error_code) == ("failed", "job.timeout")
    assert_sound(conn)


@pytest.mark.parametrize("function", ["job_sleep", "job_await_event", "job_spawn", "job_await_job", "job_continue"])
def test_durable_code_needs_read_committed(conn, function):
    job = leased(conn)
    isolate(conn, "repeatable read")
    arguments = {
        "job_sleep": ["n", "1 s"],
        "job_await_event": ["n"],
        "job_spawn": ["n", "t"],
        "job_await_job": ["n", uuid.uuid4()],
        "job_continue": [],
    }
    with refused("call.isolation_unsupported"):
        call(conn, function, job.job_id, job.epoch, *arguments[function])
    with refused("call.isolation_unsupported"):
        send(conn, job)


# Events


def test_an_event_wakes_a_parked_job(conn):
    job = leased(conn)
    assert await_event(conn, job) == PARKED
    wait = conn.execute("SELECT waits_for, event, until FROM sayiir.waits WHERE job_id = %s", [job.job_id]).fetchone()
    assert wait == ("event", "go", None)
    assert send(conn, job, payload={"by": "Ada"}) == "resumed"
    job = back(conn, job)
    assert job.checkpoints == {"go": {"disposition": "received", "payload": {"by": "Ada"}}}
    for _ in range(2):
        assert await_event(conn, job) == ("received", {"by": "Ada"})
    assert send(conn, job) == "buffered"  # one event a wait
    complete(conn, job)
    assert_sound(conn)


def test_buffered_events_come_in_order(conn):
    job = leased(conn)
    for n in range(3):
        assert send(conn, job, payload=n) == "buffered"
    assert send(conn, job, "other", "x") == "buffered"
    assert [await_event(conn, job, f"n{n}", event="go").payload for n in range(3)] == [0, 1, 2]
    assert await_event(conn, job, "n0", event="go").payload == 0
    assert await_event(conn, job, "n3", event="go") == PARKED
    assert send(conn, job, payload=3) == "resumed"
    assert await_event(conn, back(conn, job), "n3", event="go").payload == 3


def test_sql_null_and_json_null_stay_apart(conn):
    job = leased(conn)
    call(conn, "job_send_event", job.job_id, "none")
    call(conn, "job_send_event", job.job_id, "null", Jsonb(None))
    text = "SELECT disposition, payload::text FROM sayiir.job_await_event(%s, %s, %s)"
    for _ in range(2):
        assert conn.execute(text, [job.job_id, job.epoch, "none"]).fetchone() == ("received", None)
        assert conn.execute(text, [job.job_id, job.epoch, "null"]).fetchone() == ("received", "null")
    await_event(conn, job, "later")
    call(conn, "job_send_event", job.job_id, "later")
    job = back(conn, job)
    assert conn.execute(text, [job.job_id, job.epoch, "later"]).fetchone() == ("received", None)


def test_a_wait_for_an_event_times_out(conn):
    job = leased(conn)
    assert await_event(conn, job, timeout="1 hour") == PARKED
    pass_time(conn, job)
    assert send(conn, job, payload="late") == "buffered"
    job = back(conn, job)
    assert job.checkpoints == {"go": {"disposition": "timed_out"}}
    for _ in range(2):
        assert await_event(conn, job, timeout="1 hour") == ("timed_out", None)
    # Another name asks anew.
    assert await_event(conn, job, "again", event="go") == ("received", "late")


def test_a_timeout_of_zero_looks_once(conn):
    job = leased(conn)
    assert await_event(conn, job, timeout="0") == ("timed_out", None)
    send(conn, job, "there", 1)
    assert await_event(conn, job, "there", timeout="0") == ("received", 1)


def test_a_conflict_consumes_no_event(conn):
    job = leased(conn)
    sleep(conn, job, "go", delay="0")
    send(conn, job, payload=1)
    with refused("job.checkpoint_conflict"):
        await_event(conn, job, "go")
    assert await_event(conn, job, "other", event="go") == ("received", 1)


def test_an_event_key_is_taken_once(conn):
    job = leased(conn)
    assert send(conn, job, event_key="k") == "buffered"
    assert send(conn, job, event_key="k") == "duplicate"
    assert send(conn, job, "other", event_key="k") == "duplicate"
    assert send(conn, leased(conn), event_key="k") == "buffered"
    assert value(conn, "SELECT count(*) FROM sayiir.events WHERE job_id = %s", job.job_id) == 1


def test_an_event_to_an_ended_job_is_kept_as_late(conn):
    job = leased(conn, max_attempts=1)
    fail(conn, job)
    assert send(conn, job, payload=1) == "late"
    assert send(conn, job, payload=2, event_key="k") == "late"
    assert send(conn, job, payload=2, event_key="k") == "duplicate"
    call(conn, "job_requeue", job.job_id)
    assert await_event(conn, back(conn, job), timeout="0").disposition == "timed_out"


def test_events_go_to_stand_alone_jobs_only(conn):
    with refused("job.not_found"):
        one(conn, "job_send_event", uuid.uuid4(), "go")
    flow = Flow(conn, task("work"))
    with refused("job.is_step"):
        one(conn, "job_send_event", flow.step("work")["job_id"], "go")


def test_an_event_to_another_organization_does_not_arrive(conn):
    mine = enqueue(conn, a_task(), organization_id="acme")
    with refused("job.not_found"):
        one(conn, "job_send_event", mine, "go")
    assert one(conn, "job_send_event", mine, "go", organization_id="acme") == "buffered"


# Children


def test_a_child_is_spawned_once(conn):
    job = leased(conn)
    work = a_task()
    child = spawn(conn, job, work, payload={"n": 1}, options=Jsonb({"priority": 70, "max_attempts": 2, "tags": ["x"]}))
    assert child.disposition == "inserted"
    assert spawn(conn, job, work, payload={"n": 2}) == (child.job_id, "existing")
    assert spawn(conn, job, work, "another").job_id != child.job_id
    info = get(conn, child.job_id)
    assert (info.input, info.priority, info.max_attempts, info.tags) == ({"n": 1}, 70, 2, ["x"])
    fail(conn, job)
    fall_due(conn, job.job_id)
    job = back(conn, job)
    assert job.checkpoints["child"] == str(child.job_id)
    assert spawn(conn, job, work) == (child.job_id, "existing")


def test_a_parent_waits_for_its_child(conn):
    job = leased(conn)
    child = spawn(conn, job, a_task())
    assert await_job(conn, job, child) == ("parked", None, None)
    working = claim_one(conn, get(conn, child.job_id).task)
    assert complete(conn, working, {"sum": 3}) == "succeeded"
    job = back(conn, job)
    assert job.checkpoints["done"] == {"disposition": "received", "output": {"sum": 3}}
    for _ in range(2):
        assert await_job(conn, job, child) == ("received", {"sum": 3}, None)
    complete(conn, job)
    assert_sound(conn)


def test_the_end_of_a_child_is_there_when_its_parent_asks_later(conn):
    job = leased(conn)
    child = spawn(conn, job, a_task())
    complete(conn, claim_one(conn, get(conn, child.job_id).task), 7)
    assert await_job(conn, job, child) == ("received", 7, None)


ENDS = {
    "fail": ("failed", "broken"),
    "reap": ("failed", "job.lease_expired"),
    "cancel": ("cancelled", "job.cancelled"),
    "cancel while leased": ("cancelled", "job.cancelled"),
    "release after cancel": ("cancelled", "job.cancelled"),
    "sweep a cancel": ("cancelled", "job.cancelled"),
}


@pytest.mark.parametrize("how", ENDS)
def test_every_end_of_a_child_wakes_its_parent(conn, how):
    job = leased(conn)
    work = a_task()
    child = spawn(conn, job, work, options=Jsonb({"max_attempts": 1}))
    assert await_job(conn, job, child).disposition == "parked"
    if how == "cancel":
        assert one(conn, "job_cancel", child.job_id).disposition == "cancelled"
    elif how == "sweep a cancel":
        conn.execute("INSERT INTO sayiir.signal (job_id, kind) VALUES (%s, 'cancel')", [child.job_id])
        call(conn, "tick")
    else:
        working = claim_one(conn, work)
        if how == "fail":
            assert fail(conn, working, "broken", "it is").disposition == "dead"
        elif how == "reap":
            expire(conn, child.job_id)
            assert reap(conn) == {child.job_id: "dead"}
        else:
            assert one(conn, "job_cancel", child.job_id).disposition == "requested"
            if how == "cancel while leased":
                assert complete(conn, working) == "cancelled"
            else:
                assert one(conn, "job_release", working.job_id, working.epoch) == "cancelled"
    status, code = ENDS[how]
    answer = await_job(conn, back(conn, job), child)
    assert (answer.disposition, answer.output) == ("received", None)
    assert (answer.error["status"], answer.error["code"]) == (status, code)
    assert_sound(conn)


def test_a_retry_of_a_child_does_not_wake_its_parent(conn):
    job = leased(conn)
    work = a_task()
    child = spawn(conn, job, work)
    await_job(conn, job, child)
    assert fail(conn, claim_one(conn, work)).disposition == "retry"
    assert get(conn, job.job_id).status == "waiting"


def test_a_parent_waits_for_one_child_at_a_time(conn):
    job = leased(conn)
    work = a_task()
    first, second = spawn(conn, job, work, "a"), spawn(conn, job, work, "b")
    await_job(conn, job, second, "b done")
    jobs = {found.job_id: found for found in claim(conn, work, max_jobs=2)}
    complete(conn, jobs[first.job_id], "a")
    assert get(conn, job.job_id).status == "waiting"
    complete(conn, jobs[second.job_id], "b")
    job = back(conn, job)
    assert await_job(conn, job, second, "b done").output == "b"
    assert await_job(conn, job, first, "a done").output == "a"
    with refused("job.checkpoint_conflict"):
        await_job(conn, job, first, "b done")


def test_a_wait_for_a_child_times_out(conn):
    job = leased(conn)
    work = a_task()
    child = spawn(conn, job, work)
    assert await_job(conn, job, child, timeout="1 hour").disposition == "parked"
    pass_time(conn, job)
    complete(conn, claim_one(conn, work), 1)
    job = back(conn, job)
    assert await_job(conn, job, child, timeout="1 hour") == ("timed_out", None, None)
    assert await_job(conn, job, child, "again") == ("received", 1, None)


def test_a_job_awaits_only_its_own_children(conn):
    job, stranger = leased(conn), leased(conn)
    with refused("job.not_child"):
        await_job(conn, job, stranger)
    with refused("job.not_child"):
        await_job(conn, job, job)
    with refused("job.not_found"):
        await_job(conn, job, uuid.uuid4())
    child = spawn(conn, stranger, a_task())
    with refused("job.not_child"):
        await_job(conn, job, child)


def test_a_cancel_reaches_children_and_grandchildren(conn):
    job = leased(conn)
    work, deeper = a_task(), a_task()
    ready, leased_child = spawn(conn, job, work, "ready"), spawn(conn, job, a_task(), "leased")
    parent = claim_one(conn, work)
    grandchild = spawn(conn, parent, deeper)
    await_job(conn, parent, grandchild)
    working = claim_one(conn, get(conn, leased_child.job_id).task)
    sleep(conn, job, delay="1 day")
    assert one(conn, "job_cancel", job.job_id).disposition == "cancelled"
    assert one(conn, "job_heartbeat", working.job_id, working.epoch) == "cancel"
    call(conn, "tick")
    call(conn, "tick")
    assert get(conn, ready.job_id).status == "cancelled"
    assert get(conn, grandchild.job_id).status == "cancelled"
    assert complete(conn, working) == "cancelled"
    assert claim(conn, deeper) == []
    assert (
        value(conn, "SELECT count(*) FROM sayiir.signal WHERE job_id = ANY (%s)", [ready.job_id, grandchild.job_id])
        == 0
    )
    assert_sound(conn)


def test_the_end_of_a_parent_leaves_its_children_alone(conn):
    job = leased(conn)
    work = a_task()
    child = spawn(conn, job, work)
    complete(conn, job)
    call(conn, "tick")
    assert complete(conn, claim_one(conn, work), 1) == "succeeded"
    assert get(conn, child.job_id).status == "succeeded"


def test_a_child_belongs_where_its_parent_does(conn):
    work, deeper = a_task(), a_task()
    enqueue(conn, work, organization_id="acme", trace_parent="00-trace")
    job = claim_one(conn, work, organization_id="acme")
    spawn(conn, job, deeper)
    assert claim(conn, deeper) == []
    child = claim_one(conn, deeper, organization_id="acme")
    assert (child.organization_id, child.trace_parent) == ("acme", "00-trace")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"nope": 1}, "option.unknown"),
        ({"priority": 100}, "argument.out_of_range"),
        ({"priority": "high"}, "argument.invalid"),
        ({"run_at": "soon"}, "argument.invalid"),
        ({"run_at": "infinity"}, "argument.invalid"),
        ({"tags": "x"}, "argument.invalid"),
        ({"max_attempts": 0}, "argument.invalid"),
        ({"trace_parent": 7}, "argument.invalid"),
    ],
)
def test_spawn_options(conn, options, code):
    job = leased(conn)
    with refused(code):
        spawn(conn, job, "x", options=Jsonb(options))
    assert value(conn, "SELECT count(*) FROM sayiir.job WHERE parent = %s", job.job_id) == 0


def test_a_child_can_be_spawned_for_later(conn):
    job = leased(conn)
    child = spawn(conn, job, a_task(), options=Jsonb({"run_at": "2100-01-01"}))
    assert get(conn, child.job_id).status == "scheduled"


# Cancel


WAITS = {
    "sleep": lambda conn, job: sleep(conn, job, delay="1 hour"),
    "event": lambda conn, job: await_event(conn, job).disposition,
    "child": lambda conn, job: await_job(conn, job, spawn(conn, job, a_task())).disposition,
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_cancel_reaches_a_parked_job(conn, wait):
    job = leased(conn)
    assert WAITS[wait](conn, job) == "parked"
    assert one(conn, "job_cancel", job.job_id, reason="enough").disposition == "cancelled"
    info = get(conn, job.job_id)
    assert (info.status, info.reason) == ("cancelled", "enough")
    assert_sound(conn)


@pytest.mark.parametrize("wait", ["sleep", "event"])
def test_a_cancelled_lease_ends_where_it_would_park(conn, wait):
    job = leased(conn)
    assert one(conn, "job_cancel", job.job_id).disposition == "requested"
    assert WAITS[wait](conn, job) == "parked"
    assert get(conn, job.job_id).status == "cancelled"
    assert_sound(conn)


def test_a_cancelled_lease_spawns_nothing(conn):
    job = leased(conn)
    child = spawn(conn, job, a_task(), "before")
    call(conn, "job_cancel", job.job_id)
    assert spawn(conn, job, a_task(), "before") == (child.job_id, "existing")
    with refused("job.cancelled"):
        spawn(conn, job, a_task(), "after")
    assert one(conn, "job_continue", job.job_id, job.epoch).disposition == "cancelled"
    assert get(conn, job.job_id).status == "cancelled"
