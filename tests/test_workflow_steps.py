"""What a step waits for, whether it runs, and what it is given."""

import datetime

import pytest

from flows import Flow, delay, event, healthy, on, query, task, value
from support import wait_until


def test_a_step_waits_for_all_its_prerequisites(conn):
    flow = Flow(conn, task("a"), task("b"), task("c", "a", "b"))
    assert flow.states == {"a": "ready", "b": "ready", "c": "blocked"}
    assert (flow.step("c")["pending"], flow.step("c")["unsatisfied"]) == (2, 0)
    assert flow.complete("a") == "succeeded"
    assert (flow.step("c")["pending"], flow.step("c")["unsatisfied"]) == (1, 0)
    assert flow.states["c"] == "blocked"
    flow.complete("b")
    assert flow.states == {"a": "succeeded", "b": "succeeded", "c": "ready"}
    flow.complete("c")
    assert flow.status == "succeeded"


# (end of the prerequisite, what follows of a step after it by success, failure, terminal)
EDGES = {
    "succeeded": ("ready", "cancelled", "ready"),
    "failed": ("cancelled", "ready", "ready"),
    "cancelled": ("cancelled", "ready", "ready"),
    "skipped": ("cancelled", "cancelled", "ready"),
}


@pytest.mark.parametrize("end", EDGES)
def test_an_edge_is_satisfied_by(conn, end):
    gate = task("gate", when="$.input.run") if end == "skipped" else event("gate")
    steps = [task(word, on("gate", word)) for word in ("success", "failure", "terminal")]
    flow = Flow(conn, gate, *steps, input={"run": False})
    if end != "skipped":
        flow.complete_step("gate", end)
    states = flow.states
    assert states["gate"] == end
    assert tuple(states[word] for word in ("success", "failure", "terminal")) == EDGES[end]
    assert {
        flow.step(word)["error_code"] for word, state in states.items() if state == "cancelled" and word != "gate"
    } <= {"workflow.dependency_unsatisfied"}


# join, ends of the two prerequisites in order → the step after each of them
JOINS = [
    ("all", ("succeeded", "succeeded"), ("blocked", "ready")),
    ("all", ("failed", "succeeded"), ("blocked", "cancelled")),
    ("all", ("succeeded", "failed"), ("blocked", "cancelled")),
    ("some", ("succeeded", "failed"), ("blocked", "ready")),
    ("some", ("failed", "succeeded"), ("blocked", "ready")),
    ("some", ("failed", "failed"), ("blocked", "cancelled")),
    ("first", ("succeeded", "failed"), ("ready", "ready")),
    ("first", ("failed", "succeeded"), ("blocked", "ready")),
    ("first", ("failed", "failed"), ("blocked", "cancelled")),
]


@pytest.mark.parametrize("join, ends, expected", JOINS)
def test_a_join(conn, join, ends, expected):
    flow = Flow(conn, event("x"), event("y"), task("after", "x", "y", join=join), event("open"))
    seen = []
    for step, end in zip("xy", ends, strict=True):
        flow.complete_step(step, end)
        seen.append(flow.states["after"])
    assert tuple(seen) == expected
    jobs = "SELECT count(*) FROM sayiir.job j JOIN sayiir.workflow w ON w.id = j.workflow WHERE workflow_id = %s AND step = 'after'"
    assert value(conn, jobs, flow.id) == 1
    assert healthy(conn) == []


def test_an_open_prerequisite_never_cancels_early(conn):
    flow = Flow(conn, event("x"), event("y"), task("after", "x", "y"))
    flow.complete_step("x", "failed")
    assert (flow.states["after"], flow.step("after")["unsatisfied"]) == ("blocked", 1)
    flow.complete_step("y")
    assert flow.states["after"] == "cancelled"


def test_a_cancel_by_the_rule_cascades_at_once(conn):
    steps = [task("a"), task("b", "a"), task("c", "b"), task("d", "c"), task("clean", on("d", "failure"))]
    flow = Flow(conn, *steps)
    flow.fail("a")
    assert flow.states == {"a": "failed", "b": "cancelled", "c": "cancelled", "d": "cancelled", "clean": "ready"}
    for step in "bcd":
        row = flow.step(step)
        assert (row["error_code"], row["released_at"]) == ("workflow.dependency_unsatisfied", None)
    flow.complete("clean")
    assert flow.status == "failed"


def test_high_fan_out_then_fan_in_is_breadth_first(conn):
    middle = [event(f"m{n}", "gate") for n in range(64)]
    last = event("last", *(on(f"m{n}", "terminal") for n in range(64)))
    flow = Flow(conn, event("gate"), *middle, last)
    flow.complete_step("gate", "failed")
    rows = {row["step"]: row for row in flow.steps()}
    for n in range(64):
        row = rows[f"m{n}"]
        assert (row["status"], row["pending"], row["unsatisfied"]) == ("cancelled", 0, 1)
        assert row["error_code"] == "workflow.dependency_unsatisfied"
    assert (rows["last"]["status"], rows["last"]["unsatisfied"]) == ("waiting", 0)
    assert healthy(conn) == []


# when, what becomes of the step
WHEN = [
    ("$.input.yes", "ready"),
    ("$.input.no", "skipped"),
    ("$.input.missing", "skipped"),
    ("$.input.nothing", "skipped"),
    ("$.input.n > 2", "ready"),
    ("$.input.n > 3", "skipped"),
    ("$.input.text > 3", "skipped"),
    ("$.input.n", "failed"),
    ("$.input.text", "failed"),
    ("$.input", "failed"),
    ("exists($.input.missing)", "skipped"),
    ('$.workflow.name starts with "graph"', "ready"),
]


@pytest.mark.parametrize("when, expected", WHEN)
def test_when(conn, when, expected):
    inputs = {"yes": True, "no": False, "nothing": None, "n": 3, "text": "yes"}
    flow = Flow(conn, task("a", when=when), task("b", "a"), task("c", on("a", "failure")), input=inputs)
    states = flow.states
    assert states["a"] == expected
    if expected == "failed":
        row = flow.step("a")
        assert row["error_code"] == "definition.not_boolean"
        assert states == {"a": "failed", "b": "cancelled", "c": "ready"}
    elif expected == "skipped":
        # Skipped satisfies neither success nor failure, and nothing is left to do.
        assert states == {"a": "skipped", "b": "cancelled", "c": "cancelled"}
        assert flow.status == "succeeded"


@pytest.mark.parametrize("text", ["[" * 200 + "]" * 200, "1" * 500, '"' + "x" * 10_000 + '"'])
def test_a_condition_that_is_no_boolean_fails_however_strange_it_is(conn, text):
    flow = Flow(conn, event("go"), task("a", "go", when="$.steps.go.output"), event("open"))
    assert value(conn, "SELECT sayiir.workflow_send_event(%s, 'go', %s)", flow.id, text) == "resumed"
    row = flow.step("a")
    assert (row["status"], row["error_code"]) == ("failed", "definition.not_boolean")
    assert len(row["error_message"]) < 200


def test_a_template_is_filled_in(conn):
    template = {
        "id": "$.input.id",
        "none": "$.input.missing",
        "literal": "$$.input.id",
        "dollars": "$$$",
        "plain": "5 $",
        "list": ["$.input.items[0]", 1, None, True, {"deep": "$.input.items[*].n"}],
        "all": {"$all": "$.input.items[*].n"},
        "none_of_all": {"$all": "$.input.nowhere[*]"},
        "filtered": {"$all": "$.input.items[*] ? (@.n > 1).n"},
        "step": "$.steps.a.output.x",
        "status": "$.steps.a.status",
        "error": "$.steps.a.error",
        "failed": "$.steps.f.error",
        "workflow": ["$.workflow.id", "$.workflow.name", "$.workflow.version", "$.workflow.metadata.k"],
        "method": "$.input.items.size()",
    }
    inputs = {"id": "o-1", "items": [{"n": 1}, {"n": 2}, {"n": 3}]}
    steps = [task("a"), task("f"), task("t", "a", on("f", "failure"), input=template)]
    flow = Flow(conn, *steps, input=inputs, start={"metadata": '{"k": "v"}'})
    flow.complete("a", {"x": [1, {"y": None}]})
    flow.fail("f", "card.declined")
    got = flow.claim("t")["input"]
    assert got == {
        "id": "o-1",
        "none": None,
        "literal": "$.input.id",
        "dollars": "$$",
        "plain": "5 $",
        "list": [{"n": 1}, 1, None, True, {"deep": 1}],
        "all": [1, 2, 3],
        "none_of_all": [],
        "filtered": [2, 3],
        "step": [1, {"y": None}],
        "status": "succeeded",
        "error": None,
        "failed": {"code": "card.declined", "message": "it went wrong"},
        "workflow": [flow.id, flow.definition["name"], None, "v"],
        "method": 3,
    }


def test_a_template_may_be_one_path_or_a_literal(conn):
    flow = Flow(conn, task("a", input="$.input.x"), task("b", input=7), task("c", input=None), input={"x": [1]})
    assert [flow.claim(step)["input"] for step in "abc"] == [[1], 7, None]


def test_a_template_reads_far_prerequisites(conn):
    flow = Flow(conn, task("a"), task("b", "a"), task("c", "b", input=["$.steps.a.output", "$.steps.b.output"]))
    flow.complete("a", 1)
    flow.complete("b", 2)
    assert flow.claim("c")["input"] == [1, 2]


def test_big_numbers_keep_their_digits(conn):
    number = "12345678901234567890123456789.000000000000000000010"
    flow = Flow(conn, event("n"), task("t", "n", input={"deep": ["$.steps.n.output", {"$all": "$.steps.n.output"}]}))
    conn.execute("SELECT sayiir.workflow_send_event(%s, 'n', %s)", [flow.id, number])
    kept = "SELECT (input->'deep'->>0, input#>>'{deep,1,0}')::text FROM sayiir.workflow_steps(%s) WHERE step = 't'"
    assert value(conn, kept, flow.id) == f"({number},{number})"


def test_the_default_input(conn):
    steps = [task("root"), event("e"), task("one", "root"), task("two", "root", on("e", "terminal"))]
    flow = Flow(conn, *steps, input={"of": "the workflow"})
    assert flow.claim("root")["input"] == {"of": "the workflow"}
    flow.complete("root", {"x": 1})
    assert flow.claim("one")["input"] == {"root": {"status": "succeeded", "output": {"x": 1}, "error": None}}
    flow.complete_step("e", "failed", error_code="no", error_message="not this time")
    assert flow.claim("two")["input"] == {
        "root": {"status": "succeeded", "output": {"x": 1}, "error": None},
        "e": {"status": "failed", "output": None, "error": {"code": "no", "message": "not this time"}},
    }


def test_the_default_input_of_a_first_join_shows_what_is_open(conn):
    flow = Flow(conn, event("x"), event("y"), task("t", "x", "y", join="first"))
    flow.send("y", {"n": 1})
    got = flow.claim("t")["input"]
    assert got["y"] == {"status": "succeeded", "output": {"n": 1}, "error": None}
    assert (got["x"]["output"], got["x"]["error"]) == (None, None)


def test_a_retry_sees_the_same_input(conn):
    flow = Flow(conn, event("e"), task("t", "e", retry={"initial": "0"}))
    flow.send("e", {"n": 1})
    first = flow.claim("t")["input"]
    assert flow.fail("t", kind="retryable")["disposition"] == "retry"
    again = flow.claim("t")
    assert (again["input"], again["attempt"]) == (first, 2)


def test_a_delay_waits_for_its_time(conn):
    later = task("later", "wait")
    flow = Flow(conn, task("a"), delay("wait", "a", delay="300 ms"), later)
    flow.complete("a")
    assert flow.states["wait"] == "waiting"
    wait = query(conn, "SELECT * FROM sayiir.waits WHERE workflow_id = %s", flow.id)[0]
    assert (wait["step"], wait["waits_for"]) == ("wait", "delay")
    assert wait["until"] - wait["since"] == datetime.timedelta(milliseconds=300)
    wait_until(lambda: flow.states["later"] == "ready")
    assert flow.step("wait")["finished_at"] >= wait["until"]


DELAYS = [
    ({"delay": "0"}, None),
    ({"delay": "$.input.short"}, None),
    ({"until": "2001-01-01 00:00 Europe/Berlin"}, None),
    ({"until": "$.input.past"}, None),
    ({"delay": "$.input.negative"}, None),
    ({"delay": "$.input.missing"}, "definition.invalid_time"),
    ({"delay": "$.input.number"}, "definition.invalid_time"),
    ({"delay": "$.input.word"}, "definition.invalid_time"),
    ({"delay": "$.input.endless"}, "definition.invalid_time"),
    ({"delay": "$.input.before"}, "definition.invalid_time"),
    ({"until": "$.input.word"}, "definition.invalid_time"),
    ({"until": "$.input.infinite"}, "definition.invalid_time"),
    ({"until": "$.input.deep"}, "definition.invalid_time"),
]


@pytest.mark.parametrize("fields, error", DELAYS)
def test_the_time_of_a_delay(conn, fields, error):
    inputs = {
        "short": "0 s",
        "past": "2001-01-01",
        "negative": "-1 day",
        "number": 5,
        "word": "soon",
        "endless": "300000 years",
        "before": "-300000 years",
        "infinite": "infinity",
        "deep": [[[1]]],
    }
    flow = Flow(conn, task("a"), delay("d", "a", **fields), task("b", "d"), input=inputs)
    assert flow.complete("a") == "succeeded"
    row = flow.step("d")
    assert (row["status"], row["error_code"]) == (("failed" if error else "succeeded"), error)
    assert flow.states["b"] == ("cancelled" if error else "ready")


def test_delays_go_by_the_calendar(conn):
    flow = Flow(conn, delay("month", delay="1 month"), delay("path", delay="$.input.d"), input={"d": "1 year 2 days"})
    waits = query(
        conn,
        """SELECT step, until = since + CASE step WHEN 'month' THEN interval '1 month' ELSE interval '1 year 2 days' END
               AS right
           FROM sayiir.waits WHERE workflow_id = %s""",
        flow.id,
    )
    assert {row["step"]: row["right"] for row in waits} == {"month": True, "path": True}


def test_a_step_takes_priority_and_tags_from_its_definition(conn):
    steps = [task("own", priority=90, tags=["b", "a", "b"]), task("given"), task("none", tags=[])]
    flow = Flow(conn, *steps, priority=10, tags=["gpu"])
    rows = query(conn, "SELECT step, priority, tags FROM sayiir.jobs WHERE workflow_id = %s", flow.id)
    assert {row["step"]: (row["priority"], row["tags"]) for row in rows} == {
        "own": (90, ["a", "b"]),
        "given": (10, ["gpu"]),
        "none": (10, []),
    }


def test_the_retry_policy_of_a_step(conn):
    retry = {"max_attempts": 3, "initial": "10 s", "factor": 3, "max": "20 s", "jitter": 0}
    flow = Flow(conn, task("t", retry=retry))
    delays = []
    for attempt in (1, 2):
        lease = flow.claim("t")
        assert (lease["attempt"], lease["max_attempts"]) == (attempt, 3)
        answer = flow.fail("t", kind="retryable")
        assert answer["disposition"] == "retry"
        delays.append(value(conn, "SELECT round(extract(epoch FROM %s - clock_timestamp()))::int", answer["run_at"]))
        conn.execute("UPDATE sayiir.job_wait SET due = clock_timestamp() WHERE job_id = %s", [lease["job_id"]])
        conn.execute("SELECT sayiir.tick()")
        wait_until(lambda: flow.states["t"] == "ready")
    assert delays == [10, 20]
    flow.claim("t")
    assert flow.fail("t", kind="retryable")["disposition"] == "dead"
    assert flow.states == {"t": "failed"}
    assert flow.status == "failed"


def test_what_a_step_does_not_say_comes_from_its_task(conn):
    conn.execute(
        """SELECT sayiir.task_define('with_defaults', max_attempts => 2, priority => 70, lease => '5 min',
               retry => '{"initial": "7 s", "jitter": 0}')"""
    )
    steps = [task("plain") | {"task": "with_defaults"}, task("own", retry={"max_attempts": 9}, priority=60)]
    steps[1]["task"] = "with_defaults"
    flow = Flow(conn, *steps)
    rows = query(conn, "SELECT step, max_attempts, priority FROM sayiir.jobs WHERE workflow_id = %s", flow.id)
    assert {row["step"]: (row["max_attempts"], row["priority"]) for row in rows} == {"plain": (2, 70), "own": (9, 60)}
    lease = query(
        conn, "SELECT *, expires_at - clock_timestamp() AS left FROM sayiir.job_claim('w', '{with_defaults}')"
    )[0]
    assert lease["step"] == "plain"
    assert datetime.timedelta(minutes=4) < lease["left"] <= datetime.timedelta(minutes=5)


def test_a_timeout_ends_one_attempt_and_a_deadline_all_of_them(conn):
    steps = [task("slow", timeout="50 ms", retry={"initial": "0", "max_attempts": 2}), task("never", deadline="100 ms")]
    flow = Flow(conn, *steps)
    lease = flow.claim("slow", lease="10 min")
    assert lease["deadline_at"] == lease["expires_at"]
    conn.execute("SELECT sayiir.job_heartbeat(%s, %s, '1 hour')", [lease["job_id"], lease["epoch"]])
    wait_until(lambda: flow.states["slow"] == "ready")
    attempts = query(conn, "SELECT kind, error_code FROM sayiir.job_attempts WHERE job_id = %s", lease["job_id"])
    assert attempts == [{"kind": "timeout", "error_code": "job.timeout"}]
    assert value(
        conn, "SELECT deadline_at - created_at FROM sayiir.jobs WHERE workflow_id = %s AND step = 'never'", flow.id
    ) == (datetime.timedelta(milliseconds=100))
