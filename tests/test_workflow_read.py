"""What is shown of a workflow: get, status, steps, history, explain, wait, and the views."""

import datetime
import threading

from flows import Flow, delay, event, on, query, refused, start_graph, task, value
from support import wait_until


def test_who_is_not_there(conn):
    assert value(conn, "SELECT sayiir.workflow_status('nobody')") is None
    for function in ("workflow_get", "workflow_steps", "workflow_history", "workflow_explain"):
        assert query(conn, f"SELECT * FROM sayiir.{function}('nobody')") == []
    for call in ("workflow_wait('nobody')", "workflow_pause('nobody')", "workflow_resume('nobody')"):
        with refused("workflow.not_found") as detail:
            conn.execute(f"SELECT sayiir.{call}")
        assert detail["workflow_id"] == "nobody"
    assert value(conn, "SELECT sayiir.workflow_delete('nobody')") is False


def test_the_status_is_waiting_when_nothing_can_run(conn):
    flow = Flow(
        conn, task("a", retry={"initial": "1 hour", "jitter": 0}), event("e", on("a", "terminal")), task("t", "e")
    )
    assert flow.status == "running"
    flow.claim("a")
    assert flow.status == "running"
    flow.fail("a", kind="retryable")
    assert (flow.status, flow.states["a"]) == ("waiting", "scheduled")
    assert flow.get()["status"] == "waiting"
    # What is stored says running: waiting is derived.
    assert value(conn, "SELECT status FROM sayiir.workflow WHERE workflow_id = %s", flow.id) == "running"
    flow.complete_step("a")
    assert (flow.status, flow.states["e"]) == ("waiting", "waiting")
    flow.send("e")
    assert flow.status == "running"
    flow.complete("t")
    assert flow.status == "succeeded"


def test_get_names_the_step_of_the_result(conn):
    def result_step(*steps, **top):
        return Flow(conn, *steps, **top).get()["result_step"]

    assert result_step(task("a"), task("b", "a")) == "b"
    assert result_step(task("a"), task("b", "a"), result="a") == "a"
    assert result_step(task("a"), task("b")) is None
    assert result_step(task("a"), result=None) is None


def test_steps_come_prerequisites_first(conn):
    flow = Flow(conn, task("a", "z"), task("z"), event("m", on("a", "terminal"), "z"))
    rows = flow.steps()
    assert [row["step"] for row in rows] == ["z", "a", "m"]
    assert [row["kind"] for row in rows] == ["task", "task", "event"]
    assert rows[2]["dependencies"] == [{"step": "a", "on": "terminal"}, {"step": "z", "on": "success"}]
    assert (rows[2]["pending"], rows[2]["released_at"], rows[2]["job_id"], rows[2]["attempt"]) == (2, None, None, 0)
    # What has not ended leaves nothing unsatisfied, whatever the edge.
    assert rows[2]["unsatisfied"] == 0
    assert rows[0]["released_at"] is not None
    view = query(conn, "SELECT step, status FROM sayiir.steps WHERE workflow_id = %s ORDER BY position", flow.id)
    assert view == [{"step": row["step"], "status": row["status"]} for row in rows]


def test_a_step_tells_its_last_error_while_it_is_tried_again(conn):
    flow = Flow(conn, task("a", retry={"initial": "0"}))
    flow.fail("a", "first", kind="retryable")
    row = flow.step("a")
    assert (row["status"], row["attempt"], row["error_code"]) == ("ready", 1, "first")
    flow.complete("a")
    assert flow.step("a")["error_code"] is None


def test_history_is_complete_ordered_and_pages(conn):
    flow = Flow(
        conn, task("a", retry={"initial": "0"}), event("e", "a"), task("b", "e"), task("never", on("a", "failure"))
    )
    flow.fail("a", "oops", kind="retryable")
    flow.complete("a")
    conn.execute("SELECT sayiir.workflow_pause(%s)", [flow.id])
    conn.execute("SELECT sayiir.workflow_resume(%s)", [flow.id])
    flow.send("e")
    flow.complete("b")
    rows = flow.history()
    assert [(row["kind"], row["step"]) for row in rows] == [
        ("started", None),
        ("step_released", "a"),
        ("attempt_failed", "a"),
        ("step_succeeded", "a"),
        ("step_released", "e"),
        ("step_cancelled", "never"),
        ("workflow_paused", None),
        ("workflow_resumed", None),
        ("step_succeeded", "e"),
        ("step_released", "b"),
        ("step_succeeded", "b"),
        ("workflow_succeeded", None),
    ]
    versions = [row["version"] for row in rows]
    assert versions == sorted(set(versions))
    times = [row["at"] for row in rows]
    assert times == sorted(times)
    assert rows[2]["detail"]["error"] == {"code": "oops", "message": "it went wrong"}
    pages, after = [], 0
    page = "SELECT * FROM sayiir.workflow_history(%s, %s, 5)"
    while batch := query(conn, page, flow.id, after):
        assert len(batch) <= 5
        pages += batch
        after = batch[-1]["version"]
    assert pages == rows


def explained(flow):
    rows = query(flow.conn, "SELECT * FROM sayiir.workflow_explain(%s)", flow.id)
    return {row["step"]: row for row in rows}


def test_explain_says_why_each_step_stands_still(conn):
    steps = [
        task("free"),
        task("leased"),
        task("retried", retry={"initial": "1 hour"}),
        task("held", on_exhausted="hold"),
        event("asked", timeout="2 hours"),
        delay("later", delay="3 hours"),
        task("blocked", "asked", on("later", "terminal")),
    ]
    flow = Flow(conn, *steps, timeout="1 day")
    flow.claim("leased")
    flow.fail("retried", "busy", kind="retryable")
    flow.fail("held", "no.money")
    why = explained(flow)
    assert set(why) == {None} | {step["key"] for step in steps}
    for step, words in {
        None: "some of its steps",
        "free": "no worker has claimed it",
        "leased": 'worker "tester" is on attempt 1 of 5',
        "retried": "waits for attempt 2 of 5: busy",
        "held": "job_requeue continues it, workflow_complete_step ends it: no.money",
        "asked": 'waits for event "asked"',
        "later": "waits for a time",
        "blocked": "needs asked, later (to end)",
    }.items():
        assert words in why[step]["why"], (step, why[step])
    until = {step: row["until"] for step, row in why.items()}
    assert until["free"] is until["blocked"] is until["held"] is None
    assert until[None] == flow.get()["deadline_at"]
    assert until["later"] - until["asked"] > datetime.timedelta(minutes=50)

    conn.execute("SELECT sayiir.workflow_pause(%s, 'lunch')", [flow.id])
    why = explained(flow)
    assert "paused; workflow_resume continues it" in why[None]["why"]
    assert "told to pause" in why["leased"]["why"]
    flow.cancel("enough", "carol")
    why = explained(flow)
    assert set(why) == {None, "leased"}
    assert "enough" in why[None]["why"] and "carol" in why[None]["why"]


def test_explain_of_a_failed_workflow_names_what_failed(conn):
    flow = Flow(conn, task("a"), task("b", "a"))
    flow.fail("a", "card.declined")
    why = explained(flow)
    assert set(why) == {None, "a"}
    assert "card.declined" in why["a"]["why"]


def test_wait_answers_the_status_then(conn, connect):
    flow = Flow(conn, task("a"))
    assert value(conn, "SELECT sayiir.workflow_wait(%s, '0')", flow.id) == "running"
    assert value(conn, "SELECT sayiir.workflow_wait(%s, '30 ms')", flow.id) == "running"
    for timeout, code in (
        ("10.000001 s", "wait.too_long"),
        ("1 month", "wait.too_long"),
        ("-1 s", "argument.out_of_range"),
        (None, "argument.null"),
    ):
        with refused(code):
            value(conn, "SELECT sayiir.workflow_wait(%s, %s)", flow.id, timeout)

    waiter, answers = connect(), []
    pid = waiter.info.backend_pid
    thread = threading.Thread(target=lambda: answers.append(value(waiter, "SELECT sayiir.workflow_wait(%s)", flow.id)))
    thread.start()
    wait_until(lambda: value(conn, "SELECT query FROM pg_stat_activity WHERE pid = %s AND state = 'active'", pid))
    flow.complete("a")
    thread.join(10)
    assert answers == ["succeeded"]
    assert value(conn, "SELECT sayiir.workflow_wait(%s)", flow.id) == "succeeded"


def test_a_result_is_waited_for(conn, connect):
    flow = Flow(conn, event("e"))
    waiter, answers = connect(), []
    pid = waiter.info.backend_pid
    thread = threading.Thread(
        target=lambda: answers.append(value(waiter, "SELECT sayiir.workflow_result(%s, '10 s')", flow.id))
    )
    thread.start()
    wait_until(lambda: value(conn, "SELECT query FROM pg_stat_activity WHERE pid = %s AND state = 'active'", pid))
    flow.send("e", [1, 2])
    thread.join(10)
    assert answers == [[1, 2]]


def test_a_fixed_snapshot_reads_but_does_not_wait(conn):
    flow = Flow(conn, task("a"))
    with conn.transaction():
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert flow.status == "running"
        assert value(conn, "SELECT sayiir.workflow_wait(%s, '0')", flow.id) == "running"
        assert len(flow.history()) == 2
        with refused("call.isolation_unsupported"), conn.transaction():
            value(conn, "SELECT sayiir.workflow_wait(%s, '1 s')", flow.id)
        with refused("call.isolation_unsupported"), conn.transaction():
            flow.result("1 s")


def test_the_views_show_one_organization(conn, connect):
    definition = {"name": "seen", "steps": [{"key": "e", "event": "e"}]}
    start_graph(conn, definition, workflow_id="mine")
    start_graph(conn, definition, workflow_id="theirs", organization_id="acme")
    conn.execute("SELECT sayiir.workflow_send_event('mine', 'x')")
    conn.execute("SELECT sayiir.workflow_send_event('theirs', 'x', organization_id => 'acme')")
    tenant = connect()
    tenant.execute("SET sayiir.scope = 'organization'; SET sayiir.organization_id = 'acme'")
    for view in ("workflows", "steps", "waits", "events"):
        seen = f"SELECT workflow_id FROM sayiir.{view} WHERE workflow_id IN ('mine', 'theirs')"
        assert query(conn, seen) == [{"workflow_id": "mine"}], view
        assert query(tenant, seen) == [{"workflow_id": "theirs"}], view
    for function in ("workflow_get", "workflow_steps", "workflow_history", "workflow_explain"):
        assert query(tenant, f"SELECT * FROM sayiir.{function}('mine')") == [], function
        assert query(tenant, f"SELECT * FROM sayiir.{function}('theirs')"), function
    for call in ("workflow_cancel('mine')", "workflow_result('mine')", "workflow_complete_step('mine', 'e')"):
        with refused("workflow.not_found"):
            tenant.execute(f"SELECT sayiir.{call}")
    everything = connect()
    everything.execute("SET sayiir.scope = 'all'")
    assert len(query(everything, "SELECT FROM sayiir.workflows WHERE workflow_id IN ('mine', 'theirs')")) == 2
