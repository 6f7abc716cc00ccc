"""How workflows end: result, status, timeouts, cancel, pause, a person's completion, delete."""

import datetime
import json

import pytest

from flows import Flow, delay, event, healthy, on, query, refused, task, value
from support import wait_until

# steps, result → what the workflow answers after a (and b) gave 1 (and 2)
RESULTS = [
    ([task("a")], ..., 1),
    ([task("a"), task("b", "a")], ..., 2),
    ([task("a"), task("b", "a")], "a", 1),
    ([task("a"), task("b")], ..., {"a": 1, "b": 2}),
    ([task("a"), task("b"), delay("d", "a")], ..., {"b": 2, "d": None}),
    ([task("a"), task("b"), task("c", "a", when="false == true")], ..., {"b": 2}),
]


@pytest.mark.parametrize("steps, result, expected", RESULTS)
def test_the_result(conn, steps, result, expected):
    flow = Flow(conn, *steps, **({} if result is ... else {"result": result}))
    flow.complete("a", 1)
    if len(steps) > 1:
        flow.complete("b", 2)
    assert flow.status == "succeeded"
    assert flow.result() == flow.get()["result"] == expected


def test_a_declared_result_keeps_json_null_and_a_missing_one_is_refused(conn):
    flow = Flow(conn, task("a"), result="a")
    lease = flow.claim("a")
    conn.execute("SELECT sayiir.job_complete(%s, %s, 'null')", [lease["job_id"], lease["epoch"]])
    assert value(conn, "SELECT sayiir.workflow_result(%s)::text", flow.id) == "null"
    flow = Flow(conn, task("a"), result="a")
    flow.complete("a")
    with refused("workflow.result_missing"):
        flow.result()
    flow = Flow(conn, task("a"))
    flow.complete("a")
    assert value(conn, "SELECT sayiir.workflow_result(%s) IS NULL", flow.id) is True


def test_the_refusals_of_a_result_come_in_order(conn):
    with refused("workflow.not_found"):
        value(conn, "SELECT sayiir.workflow_result('nobody')")
    with refused("wait.too_long"):
        value(conn, "SELECT sayiir.workflow_result(%s, '11 s')", Flow(conn, task("a")).id)
    undeclared = Flow(conn, task("a"), result=None)
    with refused("workflow.result_not_declared"):
        undeclared.result()
    undeclared.fail("a")
    with refused("workflow.result_not_declared"):
        undeclared.result()
    flow = Flow(conn, task("a"), result="a")
    with refused("workflow.wait_timeout") as detail:
        flow.result("20 ms")
    assert detail["status"] == "running"
    flow.fail("a")
    with refused("workflow.unsuccessful") as detail:
        flow.result()
    assert (detail["status"], detail["error_code"]) == ("failed", "workflow.step_failed")


def test_a_result_of_this_transaction_is_not_waited_for(conn):
    with conn.transaction():
        flow = Flow(conn, task("a"))
        with refused("workflow.not_committed"), conn.transaction():
            flow.result("1 s")
        with refused("workflow.not_committed"), conn.transaction():
            value(conn, "SELECT sayiir.workflow_wait(%s, '1 s')", flow.id)
        with refused("workflow.wait_timeout"), conn.transaction():
            flow.result()
        # One that has ended within it has its result at once.
        flow.complete("a", 5)
        assert flow.result("1 s") == 5


# steps with "end" in place of how they end, and the status of the workflow
STATUS = [
    ([("a", "succeed", {})], "succeeded"),
    ([("a", "fail", {})], "failed"),
    ([("a", "fail", {"optional": True})], "succeeded"),
    ([("a", "fail", {"optional": True}), ("b", "fail", {})], "failed"),
    ([("a", "failed", {})], "failed"),
    ([("a", "cancelled", {})], "failed"),
    ([("a", "cancelled", {"optional": True})], "succeeded"),
    ([("a", "succeed", {}), ("b", "skip", {})], "succeeded"),
]


@pytest.mark.parametrize("ends, status", STATUS)
def test_the_status(conn, ends, status):
    steps = [task(key, when="$.input.run" if end == "skip" else "true == true", **more) for key, end, more in ends]
    # What the rule cancels or skips behind them does not count: its cause does.
    steps += [task(f"after_{key}", key, when="$.input.run") for key, _, _ in ends]
    flow = Flow(conn, *steps, input={"run": False})
    for key, end, _ in ends:
        if end == "succeed":
            flow.complete(key)
        elif end == "fail":
            flow.fail(key)
        elif end != "skip":
            flow.complete_step(key, end)
    assert flow.status == status
    assert flow.get()["error_code"] == ("workflow.step_failed" if status == "failed" else None)


def test_an_optional_failure_still_ends_its_edges_as_a_failure(conn):
    flow = Flow(conn, task("a", optional=True), task("b", "a"), task("c", on("a", "failure")))
    flow.fail("a")
    assert flow.states == {"a": "failed", "b": "cancelled", "c": "ready"}
    flow.complete("c", 3)
    assert flow.status == "succeeded"


def test_out_of_attempts_on_hold_waits_for_a_person(conn):
    flow = Flow(conn, task("a", on_exhausted="hold", retry={"max_attempts": 1}), task("b", "a"))
    job = flow.claim("a")["job_id"]
    assert flow.fail("a", "card.declined", kind="retryable")["disposition"] == "held"
    assert (flow.states, flow.status) == ({"a": "held", "b": "blocked"}, "waiting")
    letter = query(conn, "SELECT * FROM sayiir.dead_letters WHERE job_id = %s", job)[0]
    assert (letter["status"], letter["error_code"], letter["step"]) == ("held", "card.declined", "a")
    again = query(conn, "SELECT * FROM sayiir.job_requeue(%s)", job)[0]
    assert (again["disposition"], again["run_number"]) == ("requeued", 2)
    lease = flow.claim("a")
    assert (lease["run_number"], lease["attempt"]) == (2, 1)
    assert flow.fail("a", kind="terminal")["disposition"] == "held"
    flow.complete_step("a", output={"by": "hand"})
    assert flow.claim("b")["input"]["a"]["output"] == {"by": "hand"}


def test_a_workflow_that_runs_too_long_fails(conn):
    flow = Flow(conn, task("a"), task("busy"), event("e"), task("b", "a", "e"), timeout="300 ms")
    info = flow.get()
    assert info["deadline_at"] - info["created_at"] == datetime.timedelta(milliseconds=300)
    flow.claim("busy")
    wait_until(lambda: flow.status == "failed")
    info = flow.get()
    assert (info["error_code"], info["result"]) == ("workflow.timeout", None)
    assert flow.states == {"a": "cancelled", "b": "cancelled", "busy": "leased", "e": "cancelled"}
    lease = flow.leases["busy"]
    assert value(conn, "SELECT sayiir.job_heartbeat(%s, %s)", lease["job_id"], lease["epoch"]) == "cancel"
    assert flow.complete("busy") == "cancelled"
    assert flow.status == "failed"


def test_a_timeout_counts_from_run_at(conn):
    flow = Flow(conn, task("a"), timeout="1 hour", start={"run_at": "2100-01-01 00:00+00"})
    assert flow.get()["deadline_at"].isoformat() == "2100-01-01T01:00:00+00:00"


def test_a_cancel_ends_at_once_what_is_not_leased(conn):
    steps = [
        task("ready"),
        task("leased"),
        event("e"),
        delay("d", delay="1 hour"),
        task("after", on("ready", "terminal")),
    ]
    flow = Flow(conn, *steps)
    flow.claim("leased")
    assert flow.cancel("changed my mind", "alice") == "cancelled"
    assert flow.states == {
        "ready": "cancelled",
        "leased": "leased",
        "e": "cancelled",
        "d": "cancelled",
        "after": "cancelled",
    }
    # Blocked steps are not released by it, not even those that take any end.
    assert value(conn, "SELECT count(*) FROM sayiir.job WHERE task = %s", flow.task("after")) == 0
    info = flow.get()
    assert (info["status"], info["reason"], info["requested_by"]) == ("cancelled", "changed my mind", "alice")
    assert flow.complete("leased", {"too": "late"}) == "cancelled"
    row = flow.step("leased")
    assert (row["status"], row["output"]) == ("cancelled", None)
    # Sticky: nothing brings it back.
    assert flow.cancel("again") == "cancelled"
    assert flow.get()["reason"] == "changed my mind"
    assert value(conn, "SELECT sayiir.workflow_resume(%s)", flow.id) == "cancelled"
    assert value(conn, "SELECT sayiir.workflow_pause(%s)", flow.id) == "cancelled"
    assert flow.send("e") == "late"
    assert healthy(conn) == []


def test_a_cancel_after_the_end_changes_nothing(conn):
    flow = Flow(conn, task("a"))
    flow.complete("a", 7)
    assert flow.cancel() == "succeeded"
    assert (flow.status, flow.result()) == ("succeeded", 7)
    with refused("workflow.not_found"):
        value(conn, "SELECT sayiir.workflow_cancel('nobody')")


def test_pause_and_resume(conn):
    steps = [
        task("ready"),
        task("leased"),
        event("e"),
        task("after", "e"),
        delay("d", delay="2 s"),
        task("late", "d"),
    ]
    flow = Flow(conn, *steps)
    flow.claim("leased")
    assert value(conn, "SELECT sayiir.workflow_pause(%s, 'lunch', 'bob')", flow.id) == "paused"
    assert flow.states["ready"] == "paused"
    assert query(conn, "SELECT * FROM sayiir.job_claim('w', ARRAY[%s])", flow.task("ready")) == []
    lease = flow.leases["leased"]
    assert value(conn, "SELECT sayiir.job_heartbeat(%s, %s)", lease["job_id"], lease["epoch"]) == "pause"
    # What is released meanwhile waits, and clocks run on but do not fire.
    assert flow.send("e") == "resumed"
    assert flow.states["after"] == "paused"
    stopped = "SELECT due IS NULL FROM sayiir.steps WHERE workflow_id = %s AND step = 'd'"
    wait_until(lambda: conn.execute("SELECT sayiir.tick()") and value(conn, stopped, flow.id))
    assert (flow.states["d"], flow.states["late"]) == ("waiting", "blocked")
    assert flow.complete("leased") == "succeeded"
    assert flow.status == "paused"
    assert value(conn, "SELECT sayiir.workflow_resume(%s)", flow.id) == "running"
    assert (flow.states["ready"], flow.states["after"]) == ("ready", "ready")
    wait_until(lambda: flow.states["late"] == "ready")
    for step in ("ready", "after", "late"):
        flow.complete(step)
    assert flow.status == "succeeded"
    kinds = [row["kind"] for row in flow.history()]
    assert kinds.count("workflow_paused") == kinds.count("workflow_resumed") == 1


def test_a_released_lease_of_a_paused_workflow_waits(conn):
    flow = Flow(conn, task("a"))
    lease = flow.claim("a")
    value(conn, "SELECT sayiir.workflow_pause(%s)", flow.id)
    assert value(conn, "SELECT sayiir.job_release(%s, %s)", lease["job_id"], lease["epoch"]) == "paused"
    assert value(conn, "SELECT sayiir.workflow_resume(%s)", flow.id) == "running"
    assert flow.claim("a")["attempt"] == 1


def test_a_retry_of_a_paused_workflow_waits(conn):
    flow = Flow(conn, task("a", retry={"initial": "0"}))
    flow.claim("a")
    value(conn, "SELECT sayiir.workflow_pause(%s)", flow.id)
    assert flow.fail("a", kind="retryable")["disposition"] == "retry"
    assert query(conn, "SELECT * FROM sayiir.job_claim('w', ARRAY[%s])", flow.task("a")) == []
    wait_until(lambda: conn.execute("SELECT sayiir.tick()") and flow.states["a"] == "paused")
    value(conn, "SELECT sayiir.workflow_resume(%s)", flow.id)
    assert flow.claim("a")["attempt"] == 2


def test_a_paused_workflow_ends_with_its_last_job(conn):
    flow = Flow(conn, task("a"))
    flow.claim("a")
    value(conn, "SELECT sayiir.workflow_pause(%s)", flow.id)
    flow.complete("a")
    assert flow.status == "succeeded"


def test_a_person_completes_an_event_a_delay_and_a_waiting_task(conn):
    flow = Flow(conn, event("e"), delay("d", delay="1 hour"), task("t"), task("after", "e", "d", "t"))
    row = flow.complete_step("e", output={"ok": True}, reason="approved", error_code="none", error_message="m")
    assert (row["disposition"], row["status"], row["output"]) == ("completed", "succeeded", {"ok": True})
    assert (row["reason"], row["error_code"], row["error_message"]) == ("approved", "none", "m")
    flow.complete_step("d")
    flow.complete_step("t", output=3)
    assert flow.states == {"e": "succeeded", "d": "succeeded", "t": "succeeded", "after": "ready"}
    assert healthy(conn) == []


FIRST = {"reason": "approved", "error_code": "c", "error_message": "m"}
CHANGES = [
    {"reason": "other"},
    {"reason": None},
    {"error_code": "other"},
    {"error_message": None},
]


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "cancelled"])
def test_a_completion_is_answered_again_and_never_changed(conn, outcome):
    flow = Flow(conn, event("gate"), result="gate")
    output = {"output": {"score": 1}} if outcome == "succeeded" else {}
    assert flow.complete_step("gate", outcome, **FIRST, **output)["disposition"] == "completed"
    before = flow.step("gate")
    again = flow.complete_step("gate", outcome, **FIRST, **output)
    assert again.pop("disposition") == "repeated"
    assert again == before
    for change in CHANGES:
        with refused("workflow.completion_conflict"):
            flow.complete_step("gate", outcome, **FIRST | change, **output)
    for other in {"succeeded", "failed", "cancelled"} - {outcome}:
        with refused("workflow.completion_conflict"):
            flow.complete_step("gate", other, **FIRST, **output)
    with refused("workflow.output_conflict"):
        flow.complete_step("gate", outcome, **FIRST, output={"score": 2})
    assert flow.step("gate") == before
    if outcome == "succeeded":
        # Equal as jsonb is the same, and the first output stands.
        sql = "SELECT disposition FROM sayiir.workflow_complete_step(%s, 'gate', 'succeeded', '{\"score\": 1.0}', 'approved', 'c', 'm')"
        assert value(conn, sql, flow.id) == "repeated"
        assert value(conn, "SELECT sayiir.workflow_result(%s)::text", flow.id) == json.dumps({"score": 1})
        with refused("workflow.output_conflict"):
            flow.complete_step("gate", outcome, **FIRST)


def test_steps_that_cannot_be_completed(conn):
    flow = Flow(conn, task("a"), task("b", "a"))
    with refused("workflow.step_not_found"):
        flow.complete_step("nobody")
    with refused("workflow.step_not_open"):
        flow.complete_step("b")
    with refused("argument.invalid"):
        flow.complete_step("a", "skipped")
    flow.claim("a")
    with refused("workflow.step_leased"):
        flow.complete_step("a")
    flow.complete("a", 1)
    with refused("workflow.completion_conflict"):
        flow.complete_step("a", "failed")
    flow.cancel()
    with refused("workflow.completion_conflict"):
        flow.complete_step("b")
    with refused("workflow.not_found"):
        conn.execute("SELECT * FROM sayiir.workflow_complete_step('nobody', 'a')")
    blocked = Flow(conn, event("a"), task("b", "a"), task("held"))
    blocked.claim("held")
    blocked.cancel()
    for step in ("b", "held"):
        with refused("workflow.ended"):
            blocked.complete_step(step)


def test_delete(conn):
    flow = Flow(conn, task("a"), event("e"))
    with refused("workflow.not_finished"):
        value(conn, "SELECT sayiir.workflow_delete(%s)", flow.id)
    flow.claim("a")
    flow.cancel()
    with refused("workflow.not_finished"):
        value(conn, "SELECT sayiir.workflow_delete(%s)", flow.id)
    flow.complete("a")
    flow.send("e", event_key="k")
    key = value(conn, "SELECT id FROM sayiir.workflow WHERE workflow_id = %s", flow.id)
    assert value(conn, "SELECT sayiir.workflow_delete(%s)", flow.id) is True
    assert value(conn, "SELECT sayiir.workflow_delete(%s)", flow.id) is False
    for table in (
        "job",
        "job_ready",
        "job_lease",
        "job_wait",
        "step_pending",
        "workflow_active",
        "workflow_log",
        "event",
    ):
        assert value(conn, f"SELECT count(*) FROM sayiir.{table} WHERE workflow = %s", key) == 0, table
    assert value(conn, "SELECT count(*) FROM sayiir.event_key WHERE workflow_id = %s", flow.id) == 0
    ends = "SELECT count(*) FROM sayiir.job_end e WHERE NOT EXISTS (SELECT FROM sayiir.job j WHERE j.job_id = e.job_id)"
    assert value(conn, ends) == 0
    assert healthy(conn) == []
