"""Two sessions at one workflow. Each interleaving is forced: one holds its transaction open, the other is seen to wait."""

import json

import pytest

from background import Background, together
from flows import Flow, event, graph, healthy, on, query, refused, start_graph, task, value
from support import wait_until


@pytest.fixture
def other(connect):
    return connect()


@pytest.fixture
def third(connect):
    return connect()


def jobs(conn, flow, step):
    sql = "SELECT count(*) FROM sayiir.job j JOIN sayiir.workflow w ON w.id = j.workflow WHERE w.workflow_id = %s AND j.step = %s"
    return value(conn, sql, flow.id, step)


@pytest.fixture(params=["commit", "rollback"])
def end(request):
    return request.param


def finish(conn, end):
    conn.execute(end.upper())


DEPENDENTS = [event(f"d{n}", "a", "b") for n in range(16)]


def test_two_completions_with_shared_dependents_release_them_once(conn, other, third):
    flow = Flow(conn, task("a"), task("b"), *DEPENDENTS)
    flow.claim("a", "b")
    conn.execute("BEGIN")
    flow.complete("a")
    second = Background(other, lambda conn: flow.complete("b", conn=conn)).is_blocked(third)
    conn.execute("COMMIT")
    assert second.answer() == "succeeded"
    rows = {row["step"]: row for row in flow.steps()}
    for n in range(16):
        row = rows[f"d{n}"]
        assert (row["status"], row["pending"], row["unsatisfied"]) == ("waiting", 0, 0)
        assert jobs(conn, flow, f"d{n}") == 1
    assert healthy(conn) == []


def test_the_second_completion_counts_what_the_first_rolled_back(conn, other, third):
    flow = Flow(conn, task("a"), task("b"), task("c", "a", "b"))
    flow.claim("a", "b")
    lease = flow.leases["a"]
    conn.execute("BEGIN")
    flow.complete("a")
    second = Background(other, lambda conn: flow.complete("b", conn=conn)).is_blocked(third)
    conn.execute("ROLLBACK")
    assert second.answer() == "succeeded"
    assert flow.states == {"a": "leased", "b": "succeeded", "c": "blocked"}
    flow.leases["a"] = lease
    flow.complete("a")
    assert flow.states["c"] == "ready"


def test_completions_at_one_moment(conn, connect):
    sessions = [connect() for _ in range(8)]
    for _ in range(20):
        roots = [task(f"r{n}") for n in range(8)]
        flow = Flow(conn, *roots, task("last", *(f"r{n}" for n in range(8))))
        flow.claim(*(f"r{n}" for n in range(8)))
        calls = [lambda n=n, conn=conn: flow.complete(f"r{n}", conn=conn) for n, conn in enumerate(sessions)]
        assert together(*calls) == ["succeeded"] * 8
        assert flow.states["last"] == "ready"


def test_a_completion_that_waited_for_a_cancel_is_cancelled(conn, other, third):
    flow = Flow(conn, task("parent"), task("child", on("parent", "terminal")))
    flow.claim("parent")
    conn.execute("BEGIN")
    assert flow.cancel("stop") == "cancelled"
    completion = Background(other, lambda conn: flow.complete("parent", {"x": 1}, conn=conn)).is_blocked(third)
    conn.execute("COMMIT")
    assert completion.answer() == "cancelled"
    assert flow.states == {"parent": "cancelled", "child": "cancelled"}
    assert jobs(conn, flow, "child") == 0
    assert flow.step("parent")["output"] is None
    assert flow.status == "cancelled"


def test_a_completion_that_waited_for_a_cancel_that_rolled_back_succeeds(conn, other, third):
    flow = Flow(conn, task("parent"), task("child", "parent"))
    flow.claim("parent")
    conn.execute("BEGIN")
    flow.cancel()
    completion = Background(other, lambda conn: flow.complete("parent", conn=conn)).is_blocked(third)
    conn.execute("ROLLBACK")
    assert completion.answer() == "succeeded"
    assert flow.states == {"parent": "succeeded", "child": "ready"}


@pytest.mark.parametrize("steps, status", [([task("a")], "succeeded"), ([task("a"), task("b", "a")], "cancelled")])
def test_a_cancel_that_waited_for_a_completion_tells_what_it_found(conn, other, third, steps, status):
    flow = Flow(conn, *steps)
    flow.claim("a")
    conn.execute("BEGIN")
    assert flow.complete("a", 1) == "succeeded"
    cancel = Background(other, lambda conn: flow.cancel(conn=conn)).is_blocked(third)
    conn.execute("COMMIT")
    assert cancel.answer() == status
    assert flow.status == status
    assert flow.states["a"] == "succeeded"
    if status == "succeeded":
        assert flow.result() == 1
    else:
        # The step that appeared while the cancel waited is cancelled, too.
        assert flow.states["b"] == "cancelled"
    assert healthy(conn) == []


def test_a_failure_that_waited_for_a_cancel_does_not_retry(conn, other, third):
    flow = Flow(conn, task("a", retry={"initial": "0"}))
    flow.claim("a")
    conn.execute("BEGIN")
    flow.cancel()
    failure = Background(other, lambda conn: flow.fail("a", kind="retryable", conn=conn)).is_blocked(third)
    conn.execute("COMMIT")
    assert failure.answer()["disposition"] == "cancelled"
    assert flow.states == {"a": "cancelled"}


def test_cancel_and_complete_at_one_moment_end_in_one_state(conn, other):
    for _ in range(60):
        flow = Flow(conn, task("a"), task("b", "a"))
        flow.claim("a")
        answers = together(lambda: flow.complete("a", conn=conn), lambda: flow.cancel(conn=other))
        assert answers[1] == "cancelled"
        states = flow.states
        assert states["a"] == answers[0]
        assert states["b"] == "cancelled"
        assert jobs(conn, flow, "b") == (1 if answers[0] == "succeeded" else 0)
    assert healthy(conn) == []


def stray(conn, other, act):
    """A ready step of a workflow that ended or paused while a claim held its row, which then rolled back."""
    flow = Flow(conn, task("a"))
    other.execute("BEGIN")
    flow.claim("a", conn=other)
    answer = act(flow)
    other.execute("ROLLBACK")
    flow.leases.clear()
    return flow, answer


def test_what_a_cancel_skipped_is_healed_by_the_next_claim(conn, other):
    flow, answer = stray(conn, other, lambda flow: flow.cancel())
    assert answer == "cancelled"
    place = "SELECT count(*) FROM sayiir.job_ready r JOIN sayiir.job j USING (job_id) WHERE j.task = %s"
    assert value(conn, place, flow.task("a")) == 1
    assert any(code == "workflow.ended_but_live" for code, _ in healthy(conn))
    for worker in (conn, other):
        assert query(worker, "SELECT * FROM sayiir.job_claim('w', ARRAY[%s])", flow.task("a")) == []
    wait_until(lambda: conn.execute("SELECT sayiir.tick()") and flow.states["a"] == "cancelled")
    assert flow.status == "cancelled"
    assert healthy(conn) == []


def test_what_a_pause_skipped_waits_and_runs_after_the_resume(conn, other):
    flow, answer = stray(conn, other, lambda flow: value(conn, "SELECT sayiir.workflow_pause(%s)", flow.id))
    assert answer == "paused"
    assert query(conn, "SELECT * FROM sayiir.job_claim('w', ARRAY[%s])", flow.task("a")) == []
    wait_until(lambda: conn.execute("SELECT sayiir.tick()") and flow.states["a"] == "paused")
    assert value(conn, "SELECT sayiir.workflow_resume(%s)", flow.id) == "running"
    assert flow.claim("a")["attempt"] == 1


def test_what_was_parked_by_a_claim_can_be_cancelled_and_deleted(conn, other):
    flow, _ = stray(conn, other, lambda flow: value(conn, "SELECT sayiir.workflow_pause(%s)", flow.id))
    assert query(conn, "SELECT * FROM sayiir.job_claim('w', ARRAY[%s])", flow.task("a")) == []
    assert flow.cancel() == "cancelled"
    assert flow.states == {"a": "cancelled"}
    assert value(conn, "SELECT sayiir.workflow_delete(%s)", flow.id) is True
    assert healthy(conn) == []


def test_a_claim_that_commits_during_a_cancel_learns_of_it(conn, other):
    flow = Flow(conn, task("a"), start={"active_key": "claimed"})
    other.execute("BEGIN")
    flow.claim("a", conn=other)
    assert flow.cancel() == "cancelled"
    other.execute("COMMIT")
    lease = flow.leases["a"]
    assert value(conn, "SELECT sayiir.job_heartbeat(%s, %s)", lease["job_id"], lease["epoch"]) == "cancel"
    assert flow.complete("a") == "cancelled"
    assert value(conn, "SELECT count(*) FROM sayiir.workflow_active WHERE active_key = 'claimed'") == 0


def test_a_completion_by_a_person_and_by_a_worker(conn, other, third):
    flow = Flow(conn, task("a"), task("b", "a"))
    conn.execute("BEGIN")
    flow.complete_step("a", output=1)
    # The claim skips the row that the person holds.
    assert query(other, "SELECT * FROM sayiir.job_claim('w', ARRAY[%s])", flow.task("a")) == []
    conn.execute("ROLLBACK")
    other.execute("BEGIN")
    flow.claim("a", conn=other)
    with refused("workflow.step_leased"):
        flow.complete_step("a")
    other.execute("COMMIT")
    assert flow.complete("a") == "succeeded"


def test_two_persons(conn, other, third, end):
    flow = Flow(conn, event("gate"), task("t", "gate"))
    conn.execute("BEGIN")
    flow.complete_step("gate", output=1)
    again = Background(other, lambda conn: flow.complete_step("gate", output=1, conn=conn)).is_blocked(third)
    finish(conn, end)
    assert again.answer()["disposition"] == ("repeated" if end == "commit" else "completed")
    assert flow.states == {"gate": "succeeded", "t": "ready"}


# Starting

KEYS = ["workflow_id", "idempotency_key"]


@pytest.mark.parametrize("key", KEYS)
def test_the_loser_of_two_starts_takes_the_winner_s_answer_or_its_place(conn, other, third, key, end):
    definition = graph(task("a"))
    options = {key: f"start-{key}-{end}"}
    conn.execute("BEGIN")
    winner, _ = start_graph(conn, definition, **options)
    loser = Background(other, lambda conn: start_graph(conn, definition, **options)).is_blocked(third)
    finish(conn, end)
    workflow_id, disposition = loser.answer()
    assert disposition == ("existing" if end == "commit" else "started")
    if end == "commit" or key == "workflow_id":
        assert workflow_id == winner
    assert value(conn, f"SELECT count(*) FROM sayiir.workflows WHERE {key} = %s", options[key]) == 1
    assert value(conn, "SELECT count(*) FROM sayiir.job WHERE task = %s", definition["steps"][0]["task"]) == 1


@pytest.mark.parametrize("key", KEYS)
def test_the_loser_with_another_request_is_refused(conn, other, third, key):
    definition = graph(task("a"))
    conn.execute("BEGIN")
    start_graph(conn, definition, '{"n": 1}', **{key: f"other-{key}"})
    loser = Background(other, lambda conn: start_graph(conn, definition, '{"n": 2}', **{key: f"other-{key}"}))
    loser.is_blocked(third)
    conn.execute("COMMIT")
    with refused("workflow.conflict"):
        loser.answer()


@pytest.mark.parametrize("key", KEYS)
def test_of_many_starts_one_wins(conn, connect, key):
    sessions = [connect() for _ in range(16)]
    for round in range(5):
        definition = graph(task("a"))
        options = {key: f"many-{key}-{round}"}
        answers = together(*(lambda conn=conn: start_graph(conn, definition, **options) for conn in sessions))
        assert len({workflow_id for workflow_id, _ in answers}) == 1
        assert sorted(disposition for _, disposition in answers) == ["existing"] * 15 + ["started"]
        assert value(conn, "SELECT count(*) FROM sayiir.job WHERE task = %s", definition["steps"][0]["task"]) == 1


def test_the_loser_of_an_active_key_waits(conn, other, third, end):
    definition = graph(task("a"))
    conn.execute("BEGIN")
    winner, _ = start_graph(conn, definition, active_key=f"active-{end}")
    loser = Background(other, lambda conn: start_graph(conn, definition, active_key=f"active-{end}")).is_blocked(third)
    finish(conn, end)
    workflow_id, disposition = loser.answer()
    if end == "commit":
        assert (workflow_id, disposition) == (winner, "existing_active")
    else:
        assert disposition == "started"
    assert value(conn, "SELECT count(*) FROM sayiir.workflow_active WHERE active_key = %s", f"active-{end}") == 1
    assert value(conn, "SELECT count(*) FROM sayiir.workflows WHERE active_key = %s", f"active-{end}") == 1


def test_of_many_starts_with_an_active_key_one_runs(conn, connect):
    sessions = [connect() for _ in range(16)]
    definition = graph(task("a"))
    answers = together(*(lambda conn=conn: start_graph(conn, definition, active_key="crowd") for conn in sessions))
    assert len({workflow_id for workflow_id, _ in answers}) == 1
    assert sorted(disposition for _, disposition in answers) == ["existing_active"] * 15 + ["started"]


def test_a_start_waits_for_the_end_that_frees_its_active_key(conn, other, third, end):
    flow = Flow(conn, task("a"), start={"active_key": f"freed-{end}"})
    flow.claim("a")
    conn.execute("BEGIN")
    flow.complete("a")
    definition = graph(task("a"))
    starting = Background(other, lambda conn: start_graph(conn, definition, active_key=f"freed-{end}"))
    starting.is_blocked(third)
    finish(conn, end)
    workflow_id, disposition = starting.answer()
    if end == "commit":
        assert disposition == "started"
    else:
        assert (workflow_id, disposition) == (flow.id, "existing_active")
    assert value(conn, "SELECT count(*) FROM sayiir.workflow_active WHERE active_key = %s", f"freed-{end}") == 1


@pytest.mark.parametrize("key", KEYS)
def test_two_that_terminate_the_existing_one(conn, other, third, key, end):
    definition = graph(task("a"))
    options = {key: f"terminate-{key}-{end}"}
    start_graph(conn, definition, "0", **options)
    options["on_conflict"] = "terminate_existing"
    conn.execute("BEGIN")
    assert start_graph(conn, definition, "1", **options)[1] == "started"
    second = Background(other, lambda conn: start_graph(conn, definition, "2", **options)).is_blocked(third)
    finish(conn, end)
    assert second.answer()[1] == "started"
    rows = query(conn, f"SELECT input, status FROM sayiir.workflows WHERE {key} = %s", options[key])
    assert rows == [{"input": 2, "status": "running"}]
    assert value(conn, "SELECT count(*) FROM sayiir.job WHERE task = %s", definition["steps"][0]["task"]) == 1
    assert healthy(conn) == []


def test_a_termination_waits_for_a_completion(conn, other, third):
    flow = Flow(conn, task("a"), task("b", "a"), start={"workflow_id": "completed meanwhile"})
    flow.claim("a")
    conn.execute("BEGIN")
    flow.complete("a")
    options = {"workflow_id": flow.id, "on_conflict": "terminate_existing"}
    second = Background(other, lambda conn: start_graph(conn, flow.definition, "7", **options)).is_blocked(third)
    conn.execute("COMMIT")
    assert second.answer() == (flow.id, "started")
    assert flow.states == {"a": "ready", "b": "blocked"}
    assert value(conn, "SELECT count(*) FROM sayiir.job WHERE task = %s", flow.task("b")) == 0
    assert healthy(conn) == []


def test_a_completion_of_a_terminated_workflow_is_lost(conn, other, third):
    flow = Flow(conn, task("a"), start={"workflow_id": "terminated meanwhile"})
    flow.claim("a")
    conn.execute("BEGIN")
    start_graph(conn, flow.definition, "7", workflow_id=flow.id, on_conflict="terminate_existing")
    completion = Background(other, lambda conn: flow.complete("a", conn=conn)).is_blocked(third)
    conn.execute("COMMIT")
    with refused("job.lease_lost"):
        completion.answer()
    assert flow.states == {"a": "ready"}


# Several workflows in one call


def batch(flows, step):
    leases = [flow.leases[step] for flow in flows]
    return [lease["job_id"] for lease in leases], [lease["epoch"] for lease in leases]


COMPLETE_MANY = "SELECT disposition FROM sayiir.job_complete_many(%s, %s)"


def test_batches_over_the_same_workflows_in_opposite_orders(conn, connect):
    first, second, holder = (connect() for _ in range(3))
    flows = [Flow(conn, task("a"), task("b"), task("c", "a", "b")) for _ in range(6)]
    for flow in flows:
        flow.claim("a", "b")
    # The last owner is held, so both batches are half way when it is let go.
    holder.execute("BEGIN")
    holder.execute("SELECT FROM sayiir.workflow WHERE workflow_id = %s FOR NO KEY UPDATE", [flows[-1].id])
    calls = [
        Background(first, lambda conn: query(conn, COMPLETE_MANY, *batch(flows, "a"))).is_blocked(conn),
        Background(second, lambda conn: query(conn, COMPLETE_MANY, *batch(flows[::-1], "b"))).is_blocked(conn),
    ]
    holder.execute("COMMIT")
    for call in calls:
        assert [row["disposition"] for row in call.answer()] == ["completed"] * 6
    assert {flow.states["c"] for flow in flows} == {"ready"}


def test_batches_failures_cancels_and_events_at_one_moment(conn, connect):
    """Whatever takes several owners takes them in one order, whatever takes one owner takes no other."""
    sessions = [connect() for _ in range(5)]
    for _ in range(12):
        flows = [Flow(conn, task("a"), task("b"), event("e"), task("c", "a", "b", "e")) for _ in range(8)]
        for flow in flows:
            flow.claim("a", "b")
        fail_many = "SELECT disposition FROM sayiir.job_fail_many(%s, %s, %s, kind => 'terminal')"
        ids, epochs = batch(flows[::-1], "b")
        codes = ["x"] * len(ids)
        answers = together(
            lambda: query(sessions[0], COMPLETE_MANY, *batch(flows, "a")),
            lambda: query(sessions[1], fail_many, ids, epochs, codes),
            lambda: [flow.send("e", conn=sessions[2]) for flow in flows[::2]],
            lambda: [flow.cancel(conn=sessions[3]) for flow in flows[::-3]],
            lambda: query(sessions[4], "SELECT * FROM sayiir.tick()"),
        )
        assert {row["disposition"] for row in answers[0]} <= {"completed", "cancelled"}
        assert {row["disposition"] for row in answers[1]} <= {"dead", "cancelled"}
        for flow, row in zip(flows, answers[0], strict=True):
            flow.send("e")
            ends = flow.states
            assert ends["a"] == ("succeeded" if row["disposition"] == "completed" else "cancelled")
            assert ends["c"] == "cancelled"
            assert flow.status in ("failed", "cancelled")
    assert healthy(conn) == []


def test_a_caller_s_own_transaction_over_several_workflows(conn, other, third):
    """Two transactions that take two owners in opposite orders: one is told of the deadlock, and nothing of it is left."""
    one, two = Flow(conn, task("a")), Flow(conn, task("a"))
    for flow in (one, two):
        flow.claim("a")
    leases = {flow.id: dict(flow.leases) for flow in (one, two)}
    conn.execute("BEGIN")
    other.execute("BEGIN")
    one.complete("a", conn=conn)
    two.complete("a", conn=other)
    one.leases, two.leases = (dict(leases[flow.id]) for flow in (one, two))
    waiting = Background(other, lambda conn: one.complete("a", conn=conn)).is_blocked(third)
    try:
        two.complete("a", conn=conn)
        conn.execute("COMMIT")
        survivor = None
    except Exception as error:
        assert error.sqlstate == "40P01"
        conn.execute("ROLLBACK")
        survivor = other
    if survivor is None:
        with pytest.raises(Exception) as caught:
            waiting.answer()
        assert caught.value.sqlstate == "40P01"
        other.execute("ROLLBACK")
    else:
        assert waiting.answer() == "succeeded"
        other.execute("COMMIT")
    assert (one.status, two.status) == ("succeeded", "succeeded")
    assert json.dumps(healthy(conn)) == "[]"


def test_a_termination_does_not_wait_for_a_claim(conn, other):
    """A claim in a transaction that goes on may need the owner later, so who holds the owner never waits for its row."""
    flow = Flow(conn, task("a"), task("b", "a"), start={"workflow_id": "terminated in a claim"})
    over = {"workflow_id": flow.id, "on_conflict": "terminate_existing"}
    other.execute("BEGIN")
    flow.claim("a", conn=other)
    with refused("job.busy"):
        start_graph(conn, flow.definition, "7", **over)
    assert flow.complete("a", conn=other) == "succeeded"
    other.execute("COMMIT")
    assert flow.states == {"a": "succeeded", "b": "ready"}
    flow.claim("b")
    assert start_graph(conn, flow.definition, "7", **over) == (flow.id, "started")
    with refused("job.lease_lost"):
        flow.complete("b")
    assert flow.states == {"a": "ready", "b": "blocked"}
    assert healthy(conn) == []


def test_a_workflow_is_not_deleted_while_a_claim_holds_a_job_of_it(conn, other):
    flow = Flow(conn, task("a"))
    other.execute("BEGIN")
    flow.claim("a", conn=other)
    assert flow.cancel() == "cancelled"
    with refused("job.busy"):
        value(conn, "SELECT sayiir.workflow_delete(%s)", flow.id)
    other.execute("COMMIT")
    with refused("workflow.not_finished"):
        value(conn, "SELECT sayiir.workflow_delete(%s)", flow.id)
    assert flow.complete("a") == "cancelled"
    assert value(conn, "SELECT sayiir.workflow_delete(%s)", flow.id) is True
    assert healthy(conn) == []
