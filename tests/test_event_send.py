"""Events: in order, once, early and late, and what becomes of a step whose event does not come."""

import json
from datetime import UTC

import psycopg
import pytest

from flows import Flow, event, healthy, on, query, refused, send, start_graph, task, value
from support import wait_until


def events(conn, workflow_id):
    rows = query(
        conn,
        "SELECT name, payload, disposition FROM sayiir.events WHERE workflow_id = %s ORDER BY event_id",
        workflow_id,
    )
    return [(row["name"], row["payload"], row["disposition"]) for row in rows]


def test_an_event_ends_the_step_that_waits_for_it(conn):
    flow = Flow(conn, event("e"), task("t", "e"))
    assert flow.states["e"] == "waiting"
    wait = query(conn, "SELECT * FROM sayiir.waits WHERE workflow_id = %s", flow.id)[0]
    assert (wait["step"], wait["event"], wait["until"], wait["workflow_name"]) == (
        "e",
        "e",
        None,
        flow.definition["name"],
    )
    assert flow.send("e", {"ok": True}) == "resumed"
    row = flow.step("e")
    assert (row["status"], row["output"]) == ("succeeded", {"ok": True})
    assert flow.states["t"] == "ready"
    assert events(conn, flow.id) == query(conn, "SELECT * FROM sayiir.waits WHERE workflow_id = %s", flow.id) == []


def test_events_that_nobody_waits_for_are_consumed_in_order(conn):
    # Three steps wait for one name, one after another; two other names are sent in between.
    steps = [task("a"), event("x1", "a"), event("x2", "x1"), event("x3", "x2"), event("other", "a")]
    for step in steps[1:4]:
        step["event"] = "x"
    flow = Flow(conn, *steps)
    for n, name in enumerate(["x", "other", "x", "noise", "x", "x"]):
        assert flow.send(name, n) == "buffered"
    flow.complete("a")
    assert {row["step"]: row["output"] for row in flow.steps() if row["kind"] == "event"} == {
        "x1": 0,
        "x2": 2,
        "x3": 4,
        "other": 1,
    }
    assert events(conn, flow.id) == [("noise", 3, "buffered"), ("x", 5, "buffered")]
    assert flow.status == "succeeded"


def test_the_oldest_wait_takes_the_event(conn):
    steps = [event("later", "go"), event("first"), event("go")]
    steps[0]["event"] = steps[1]["event"] = "x"
    flow = Flow(conn, *steps)
    flow.send("go")
    assert flow.send("x", 1) == "resumed"
    assert (flow.states["first"], flow.states["later"]) == ("succeeded", "waiting")
    assert flow.send("x", 2) == "resumed"
    assert flow.step("later")["output"] == 2
    assert flow.send("x", 3) == "late"


def test_one_event_ends_one_step(conn):
    steps = [event("a"), event("b")]
    steps[1]["event"] = "a"
    flow = Flow(conn, *steps)
    assert flow.send("a") == "resumed"
    assert sorted(flow.states.values()) == ["succeeded", "waiting"]


def test_an_event_key_is_taken_once(conn):
    flow = Flow(conn, event("e"), event("f", "e"))
    assert flow.send("f", 1, "k1") == "buffered"
    assert flow.send("f", 2, "k1") == "duplicate"
    assert flow.send("e", 3, "k1") == "duplicate"
    assert flow.states["e"] == "waiting"
    assert flow.send("e", 3, "k2") == "resumed"
    # Consumed or not, a key stays taken, also when the workflow has ended.
    assert flow.status == "succeeded"
    assert flow.send("e", 3, "k2") == "duplicate"
    assert flow.step("f")["output"] == 1
    # Another workflow has keys of its own.
    assert Flow(conn, event("e")).send("e", 1, "k1") == "resumed"


def test_an_early_event_is_there_at_birth(conn):
    assert send(conn, "unborn-1", "e", 1, "k") == "early"
    assert send(conn, "unborn-1", "e", 2) == "early"
    assert send(conn, "unborn-1", "e", 3, "k") == "duplicate"
    assert events(conn, "unborn-1") == [("e", 1, "early"), ("e", 2, "early")]
    flow = Flow(conn, event("e"), task("t", "e"), start={"workflow_id": "unborn-1"})
    assert flow.step("e")["output"] == 1
    assert events(conn, "unborn-1") == [("e", 2, "buffered")]
    assert send(conn, "unborn-1", "e", 3, "k") == "duplicate"


def test_a_late_event_is_kept(conn):
    flow = Flow(conn, task("a"))
    flow.complete("a")
    assert flow.send("e", 1) == "late"
    assert events(conn, flow.id) == [("e", 1, "late")]


def test_an_early_event_of_one_organization_is_not_another_s(conn):
    sent = "SELECT sayiir.workflow_send_event('tenant', 'e', '1', organization_id => %s)"
    assert value(conn, sent, "acme") == "early"
    Flow(conn, event("e"), start={"workflow_id": "tenant"})
    assert value(conn, "SELECT sayiir.workflow_status('tenant')") == "waiting"
    assert value(conn, sent, "globex") == "early"
    Flow(conn, event("e"), start={"workflow_id": "tenant", "organization_id": "acme"})
    assert value(conn, "SELECT sayiir.workflow_status('tenant', 'acme')") == "succeeded"


def test_null_is_a_payload_and_so_is_json_null(conn):
    flow = Flow(conn, event("none"), event("null"), event("later", "none", "null"))
    assert value(conn, "SELECT sayiir.workflow_send_event(%s, 'none')", flow.id) == "resumed"
    assert value(conn, "SELECT sayiir.workflow_send_event(%s, 'null', 'null')", flow.id) == "resumed"
    rows = query(conn, "SELECT step, output::text FROM sayiir.workflow_steps(%s)", flow.id)
    assert {row["step"]: row["output"] for row in rows} == {"none": None, "null": "null", "later": None}
    # Buffered and consumed without a payload, too.
    flow = Flow(conn, task("a"), event("e", "a"), result="e")
    value(conn, "SELECT sayiir.workflow_send_event(%s, 'e')", flow.id)
    flow.complete("a")
    assert (flow.status, flow.states["e"]) == ("succeeded", "succeeded")
    with refused("workflow.result_missing"):
        flow.result()


TIMEOUTS = [
    ({}, "failed", "event.timeout", None, ("cancelled", "ready"), "failed"),
    ({"on_timeout": "fail"}, "failed", "event.timeout", None, ("cancelled", "ready"), "failed"),
    ({"on_timeout": "fail", "optional": True}, "failed", "event.timeout", None, ("cancelled", "ready"), "succeeded"),
    ({"on_timeout": "skip"}, "skipped", None, None, ("cancelled", "cancelled"), "succeeded"),
    ({"on_timeout": "succeed"}, "succeeded", None, None, ("ready", "cancelled"), "succeeded"),
    ({"on_timeout": "succeed", "default": {"n": 1}}, "succeeded", None, {"n": 1}, ("ready", "cancelled"), "succeeded"),
]


@pytest.mark.parametrize("fields, status, code, output, after, end", TIMEOUTS)
def test_an_event_that_does_not_come(conn, fields, status, code, output, after, end):
    flow = Flow(conn, event("e", timeout="1 ms", **fields), task("yes", "e"), task("no", on("e", "failure")))
    wait_until(lambda: conn.execute("SELECT sayiir.tick()") and flow.states["e"] != "waiting")
    row = flow.step("e")
    assert (row["status"], row["error_code"], row["output"]) == (status, code, output)
    states = flow.states
    assert (states["yes"], states["no"]) == after
    for step in ("yes", "no"):
        if states[step] == "ready":
            flow.complete(step)
    assert flow.status == end
    # What comes now is too late for the step, and kept.
    assert flow.send("e", 5) == "late"


def test_an_event_in_time_stops_the_timeout(conn):
    flow = Flow(conn, event("e", timeout="1 hour"))
    due = "UPDATE sayiir.job_wait SET due = clock_timestamp() - interval '1 second' WHERE job_id = %s"
    assert flow.send("e", 1) == "resumed"
    assert conn.execute(due, [flow.step("e")["job_id"]]).rowcount == 0
    assert flow.status == "succeeded"


def test_a_timeout_begins_when_the_step_is_released(conn):
    flow = Flow(conn, task("a"), event("e", "a", timeout="1 hour"))
    flow.complete("a")
    wait = query(conn, "SELECT until - since AS length FROM sayiir.waits WHERE workflow_id = %s", flow.id)
    assert wait[0]["length"].total_seconds() == 3600


def test_an_event_to_a_paused_workflow_counts(conn):
    flow = Flow(conn, event("e"), task("t", "e"))
    conn.execute("SELECT sayiir.workflow_pause(%s)", [flow.id])
    assert flow.send("e") == "resumed"
    assert flow.states == {"e": "succeeded", "t": "paused"}


def test_a_rolled_back_event_was_never_sent(conn):
    flow = Flow(conn, event("e"), task("t", "e"))
    with conn.transaction(force_rollback=True):
        assert flow.send("e", 1, "k") == "resumed"
        assert flow.send("later", 1) == "buffered"
    assert flow.states == {"e": "waiting", "t": "blocked"}
    assert events(conn, flow.id) == []
    assert flow.send("e", 2, "k") == "resumed"


def test_send_and_complete_in_one_transaction_follow_it(conn, connect):
    other = connect()
    flow = Flow(conn, task("a"), event("e", "a"), task("t", "e"))
    flow.claim("a")
    lease = flow.leases["a"]
    before = (flow.steps(), flow.history())
    with conn.transaction(force_rollback=True):
        conn.execute("CREATE TEMP TABLE mine (x int)")
        assert flow.send("e", {"n": 1}) == "buffered"
        assert flow.complete("a") == "succeeded"
        assert flow.states == {"a": "succeeded", "e": "succeeded", "t": "ready"}
        # Nobody else sees any of it.
        assert value(other, "SELECT count(*) FROM sayiir.events WHERE workflow_id = %s", flow.id) == 0
        assert query(other, "SELECT * FROM sayiir.job_claim('w', ARRAY[%s])", flow.task("t")) == []
    assert (flow.steps(), flow.history()) == before
    assert events(conn, flow.id) == []
    flow.leases["a"] = lease
    with conn.transaction():
        flow.complete("a")
        flow.send("e", {"n": 2})
    assert flow.claim("t")["input"]["e"]["output"] == {"n": 2}
    assert healthy(conn) == []


BAD = [
    ("NULL, 'e'", "argument.null"),
    ("'x', NULL", "argument.null"),
    ("'', 'e'", "argument.invalid"),
    ("'x', ''", "argument.invalid"),
    ("'x', E'a\\nb'", "argument.invalid"),
    ("'x', repeat('e', 201)", "argument.invalid"),
    ("repeat('x', 513), 'e'", "argument.invalid"),
    ("'x', 'e', '1', ''", "argument.invalid"),
    ("'x', 'e', '1', repeat('k', 513)", "argument.invalid"),
    ("'x', 'e', to_jsonb(repeat('x', 65 * 1024 * 1024))", "argument.too_large"),
]


@pytest.mark.parametrize("arguments, code", BAD)
def test_bad_arguments_have_their_own_code(conn, arguments, code):
    with refused(code):
        conn.execute(f"SELECT sayiir.workflow_send_event({arguments})")


@pytest.mark.parametrize("text", ['"\\u0000"', "NaN", "Infinity", "{"])
def test_what_is_no_jsonb_is_refused_by_postgres(conn, text):
    with pytest.raises(psycopg.errors.DataError):
        conn.execute("SELECT sayiir.workflow_send_event('x', 'e', %s)", [text])


def test_a_payload_of_10_mb_goes_through(conn):
    flow = Flow(conn, event("e"), task("t", "e"))
    payload = json.dumps("é" * 5_000_000)
    assert value(conn, "SELECT sayiir.workflow_send_event(%s, 'e', %s)", flow.id, payload) == "resumed"
    length = "SELECT length(input#>>'{e,output}') FROM sayiir.job_claim('w', ARRAY[%s])"
    assert value(conn, length, flow.task("t")) == 5_000_000


def test_an_event_wakes_every_level_it_releases(conn):
    """A buffered event ends its step at once, so several levels may pass in one call."""
    steps = [task("a")] + [event(f"e{n}", f"e{n - 1}" if n else "a") for n in range(20)]
    workflow_id, _ = start_graph(
        conn, {"name": "chain", "steps": [step | {"task": "chain_a"} if "task" in step else step for step in steps]}
    )
    for n in range(20):
        assert send(conn, workflow_id, f"e{n}", n) == "buffered"
    job = query(conn, "SELECT job_id, epoch FROM sayiir.job_claim('w', '{chain_a}')")[0]
    conn.execute("SELECT sayiir.job_complete(%s, %s)", [job["job_id"], job["epoch"]])
    assert value(conn, "SELECT sayiir.workflow_result(%s)", workflow_id) == 19


def test_what_an_early_event_releases_waits_for_run_at(conn):
    graph = '{"name": "patient", "steps": [{"key": "go", "event": "go"}, {"key": "act", "task": "act", "after": ["go"]}]}'
    conn.execute(
        "SELECT * FROM sayiir.workflow_start_graph(%s, workflow_id => 'patient', run_at => clock_timestamp() + interval '1 hour')",
        [graph],
    )
    assert conn.execute("SELECT sayiir.workflow_send_event('patient', 'go')").fetchone()[0] == "resumed"
    status, due = conn.execute(
        "SELECT s.status, j.due > clock_timestamp() + interval '59 minutes' FROM sayiir.workflow_steps('patient') s"
        " JOIN sayiir.jobs j ON j.job_id = s.job_id WHERE s.step = 'act'"
    ).fetchone()
    assert (status, due) == ("scheduled", True)


def test_a_time_without_a_zone_is_utc_in_every_session(connect):
    graph = '{"name": "zoned", "steps": [{"key": "until", "until": "2100-01-01 00:00:00"}]}'
    conn = connect()
    conn.execute("SET timezone = 'Asia/Tokyo'")
    conn.execute("SELECT * FROM sayiir.workflow_start_graph(%s, workflow_id => 'zoned')", [graph])
    due = conn.execute("SELECT due FROM sayiir.job_wait WHERE event IS NULL AND reason = 'delay'").fetchall()
    assert [str(row[0].astimezone(UTC)) for row in due] == ["2100-01-01 00:00:00+00:00"]
    assert conn.execute("SHOW timezone").fetchone()[0] == "Asia/Tokyo"
