"""Durable code as a step of a workflow: its owner is the workflow, which pauses, cancels and feeds it events."""

import pytest
from psycopg.types.json import Jsonb

from durable import await_event, await_job, pass_time, sleep, spawn
from flows import Flow, event, task
from jobs import (  # noqa: F401
    a_task,
    assert_sound,
    call,
    claim,
    claim_one,
    complete,
    expire,
    get,
    no_worker,
    one,
    reap,
    refused,
)

pytestmark = pytest.mark.usefixtures("no_worker")

PARKED = ("parked", None)


def step_job(flow, conn, key):
    flow.claim(key)
    found = flow.leases[key]
    return type("Step", (), {"job_id": found["job_id"], "epoch": found["epoch"], "task": found["task"]})


def test_a_step_runs_durable_code(conn):
    flow = Flow(conn, task("work"), task("next", "work"))
    step = step_job(flow, conn, "work")
    assert sleep(conn, step, delay="1 hour") == "parked"
    assert flow.status == "waiting"
    pass_time(conn, step)
    step = step_job(flow, conn, "work")
    assert sleep(conn, step, delay="1 hour") == "elapsed"
    assert await_event(conn, step) == PARKED
    assert flow.send("go", 5) == "resumed"
    assert flow.states["work"] == "ready"
    step = step_job(flow, conn, "work")
    assert await_event(conn, step) == ("received", 5)
    flow.send("more", 6)
    assert await_event(conn, step, "more") == ("received", 6)
    work = a_task()
    child = spawn(conn, step, work)
    assert await_job(conn, step, child).disposition == "parked"
    complete(conn, claim_one(conn, work), 9)
    step = step_job(flow, conn, "work")
    assert await_job(conn, step, child).output == 9
    flow.complete("work", "done")
    flow.complete("next", "end")
    assert (flow.status, flow.result()) == ("succeeded", "end")
    assert_sound(conn)


def test_event_steps_and_durable_steps_take_turns(conn):
    """The oldest wait takes the oldest event, whichever kind it is."""
    flow = Flow(conn, task("work"), event("go"))
    step = step_job(flow, conn, "work")
    assert await_event(conn, step, "mine", event="go") == PARKED
    assert flow.send("go", 1) == "resumed"
    assert flow.states["go"] == "succeeded"
    assert flow.send("go", 2) == "resumed"
    assert await_event(conn, step_job(flow, conn, "work"), "mine", event="go") == ("received", 2)


def test_a_pause_holds_what_would_go_on(conn):
    flow = Flow(conn, task("work"), event("open"))
    step = step_job(flow, conn, "work")
    await_event(conn, step)
    call(conn, "workflow_pause", flow.id)
    assert flow.send("go", 1) == "resumed"
    assert flow.states["work"] == "paused"
    assert claim(conn, step.task) == []
    call(conn, "workflow_resume", flow.id)
    assert await_event(conn, step_job(flow, conn, "work")) == ("received", 1)


@pytest.mark.parametrize("wait", ["sleep", "timeout"])
def test_what_comes_due_while_paused_fires_on_resume(conn, wait):
    flow = Flow(conn, task("work"), event("open"))
    step = step_job(flow, conn, "work")
    if wait == "sleep":
        sleep(conn, step, delay="1 hour")
    else:
        await_event(conn, step, timeout="1 hour")
    call(conn, "workflow_pause", flow.id)
    pass_time(conn, step)
    assert flow.states["work"] == "waiting"
    call(conn, "workflow_resume", flow.id)
    call(conn, "tick")
    step = step_job(flow, conn, "work")
    if wait == "sleep":
        assert sleep(conn, step, delay="1 hour") == "elapsed"
    else:
        assert await_event(conn, step).disposition == "timed_out"
    assert_sound(conn)


def test_a_child_that_ends_while_its_parent_is_paused(conn):
    flow = Flow(conn, task("work"), event("open"))
    step = step_job(flow, conn, "work")
    work = a_task()
    child = spawn(conn, step, work)
    await_job(conn, step, child)
    call(conn, "workflow_pause", flow.id)
    complete(conn, claim_one(conn, work), 1)
    assert flow.states["work"] == "paused"
    call(conn, "workflow_resume", flow.id)
    assert await_job(conn, step_job(flow, conn, "work"), child).output == 1


def test_a_cancel_of_a_workflow_reaches_the_children_of_its_steps(conn):
    flow = Flow(conn, task("work"))
    step = step_job(flow, conn, "work")
    work = a_task()
    child = spawn(conn, step, work)
    await_job(conn, step, child)
    call(conn, "workflow_cancel", flow.id)
    assert flow.states["work"] == "cancelled"
    call(conn, "tick")
    assert get(conn, child.job_id).status == "cancelled"
    assert_sound(conn)


def test_a_step_continues_only_if_its_definition_allows_it(conn):
    flow = Flow(conn, task("work"), {**task("again"), "allow_continue": True}, task("next", "again"))
    step = step_job(flow, conn, "work")
    with refused("job.continue_not_allowed") as detail:
        call(conn, "job_continue", step.job_id, step.epoch)
    assert detail.step == "work"
    step = step_job(flow, conn, "again")
    assert one(conn, "job_continue", step.job_id, step.epoch).run_number == 2
    assert flow.states["next"] == "blocked"
    flow.claim("again")
    flow.complete("again", 1)
    assert flow.states["next"] == "ready"
    kinds = [kind for (kind,) in conn.execute("SELECT kind FROM sayiir.workflow_history(%s)", [flow.id])]
    assert "step_continued" in kinds


def test_a_child_of_a_deleted_parent_is_swept_like_any_other(conn):
    flow = Flow(conn, task("work"))
    step = step_job(flow, conn, "work")
    work = a_task()
    child = spawn(conn, step, work, options=Jsonb({"max_attempts": 1}))
    flow.complete("work")
    call(conn, "workflow_delete", flow.id)
    claim_one(conn, work)
    expire(conn, child.job_id)
    assert reap(conn) == {child.job_id: "dead"}
