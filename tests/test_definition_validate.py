"""Every problem of a definition with its place, as SQL tells it, and the schema that says the same."""

import json

import jsonschema
import pytest

from flows import delay, event, graph, on, problems, query, refused, task, value

# The example of the design without the steps that come later.
ORDER = {
    "name": "order",
    "result": "ship",
    "steps": [
        {
            "key": "charge",
            "task": "charge_card",
            "retry": {"max_attempts": 5, "initial": "1s", "factor": 2, "max": "5m"},
            "timeout": "60s",
        },
        {"key": "paid", "event": "payment_received", "timeout": "1 day", "on_timeout": "fail"},
        {
            "key": "ship",
            "task": "ship",
            "after": ["charge", "paid"],
            "input": {"order": "$.input.id", "receipt": "$.steps.charge.output.receipt"},
        },
        {"key": "refund", "task": "refund", "after": ["charge", {"step": "ship", "on": "failure"}]},
        {"key": "remind", "delay": "3 days", "after": ["ship"]},
        {"key": "fraud", "task": "review", "after": ["charge"], "when": "$.steps.charge.output.risk > 80"},
    ],
}

LATER = [
    {"key": "thumbs", "task": "resize", "map": "$.input.images", "max_parallel": 8, "on_item_failure": "continue"},
    {"key": "invoice", "workflow": "billing", "after": ["ship"]},
    {"key": "poll", "task": "check", "repeat": {"until": "$.output.done == true", "every": "30s", "max": 20}},
]


@pytest.fixture(scope="module")
def schema(cluster, db):
    with cluster.connect(db) as conn:
        schema = value(conn, "SELECT sayiir.definition_schema()")
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_example_of_the_design_is_valid(conn, schema):
    assert problems(conn, ORDER) == []
    assert schema.is_valid(ORDER)


def test_steps_of_later_versions_are_refused_by_name(conn, schema):
    definition = ORDER | {"steps": ORDER["steps"] + LATER}
    assert set(problems(conn, definition)) == {
        ("/steps/6/map", "not_supported"),
        ("/steps/6/max_parallel", "not_supported"),
        ("/steps/6/on_item_failure", "not_supported"),
        ("/steps/7/workflow", "not_supported"),
        ("/steps/8/repeat", "not_supported"),
    }
    assert not schema.is_valid(definition)


def test_all_problems_are_told_at_once(conn):
    definition = {
        "name": "",
        "result": "nobody",
        "timeout": "1 mon",
        "surprise": 1,
        "steps": [
            {"key": "a", "task": "t", "after": ["a", "b", "b", "zz", {"step": "c", "on": "sometimes"}]},
            {"key": "a", "task": 5, "lease": "soon"},
            {"key": "9", "event": "e", "on_timeout": "skip", "task": "t"},
            {"key": "c", "task": "t", "when": "$.input.x >", "input": {"x": "$.steps.d.output", "y": "$.nowhere"}},
            {"key": "d", "task": "t", "after": ["e"]},
            {"key": "e", "until": "some day", "after": ["d"]},
            {"key": "f", "delay": "-1 s", "after": "a"},
            {"task": "t"},
            7,
        ],
    }
    assert set(problems(conn, definition)) == {
        ("/name", "invalid_name"),
        ("/result", "unknown_step"),
        ("/timeout", "out_of_range"),
        ("/surprise", "unknown_field"),
        ("/steps/0/after/0", "self_edge"),
        ("/steps/0/after/1", "unknown_step"),
        ("/steps/0/after/2", "unknown_step"),
        ("/steps/0/after/3", "unknown_step"),
        ("/steps/0/after/4/on", "out_of_range"),
        ("/steps/1/key", "duplicate_step"),
        ("/steps/1/task", "wrong_type"),
        ("/steps/1/lease", "invalid_interval"),
        ("/steps/2", "conflicting_fields"),
        ("/steps/2/key", "invalid_key"),
        ("/steps/3/when", "invalid_path"),
        ("/steps/3/input/y", "unknown_root"),
        ("/steps/4/after", "cycle"),
        ("/steps/5/until", "invalid_timestamp"),
        ("/steps/6/delay", "out_of_range"),
        ("/steps/6/after", "wrong_type"),
        ("/steps/7", "missing_field"),
        ("/steps/8", "wrong_type"),
    }


A, B = task("a"), task("b", "a")

# What Postgres decides, and what needs the whole graph: (steps, problems).
GRAPHS = {
    "cycle of three": ([task("x", "z"), task("y", "x"), task("z", "y")], [("/steps/0/after", "cycle")]),
    "two cycles": (
        [task("p", "q"), task("q", "p"), task("r", "s"), task("s", "r")],
        [("/steps/0/after", "cycle"), ("/steps/2/after", "cycle")],
    ),
    "self edge": ([task("x", "x")], [("/steps/0/after/0", "self_edge")]),
    "edge named twice": ([A, task("x", "a", on("a", "failure"))], [("/steps/1/after/1", "duplicate_edge")]),
    "duplicate step": ([A, A], [("/steps/1/key", "duplicate_step")]),
    "not before": ([A, task("x", input="$.steps.a.output")], [("/steps/1/input", "not_a_prerequisite")]),
    "far before": ([A, B, task("x", "b", input="$.steps.a.output")], []),
    "in a filter": (
        [A, task("x", when="$.input ? (@.n == $.steps.a.output)")],
        [("/steps/1/when", "not_a_prerequisite")],
    ),
    "all of nothing": ([task("x", input={"$all": 5})], [("/steps/0/input/$all", "wrong_type")]),
    "beside all": ([task("x", input={"$all": "$.input[*]", "y": 1})], [("/steps/0/input/y", "conflicting_fields")]),
    "path": ([task("x", input=["$.input.["])], [("/steps/0/input/0", "invalid_path")]),
    "variable": ([task("x", when="$.input == $other")], [("/steps/0/when", "invalid_path")]),
    "interval": ([task("x", timeout="5 parsecs")], [("/steps/0/timeout", "invalid_interval")]),
    "no time": ([task("x", lease="0")], [("/steps/0/lease", "out_of_range")]),
    "months": ([event("x", timeout="1 month")], [("/steps/0/timeout", "out_of_range")]),
    "months of a delay": ([delay("x", delay="1 month")], []),
    "too long": ([task("x", timeout="106751990 days")], [("/steps/0/timeout", "out_of_range")]),
    "delay too long": ([delay("x", delay="300000 years")], [("/steps/0/delay", "out_of_range")]),
    "interval overflow": ([task("x", lease="99999999999 years")], [("/steps/0/lease", "invalid_interval")]),
    "retry": (
        [task("x", retry={"max_attempts": 0, "initial": "-1s", "factor": 0.5, "jitter": 2, "max": 5, "more": 1})],
        [
            ("/steps/0/retry/factor", "out_of_range"),
            ("/steps/0/retry/initial", "out_of_range"),
            ("/steps/0/retry/jitter", "out_of_range"),
            ("/steps/0/retry/max", "wrong_type"),
            ("/steps/0/retry/max_attempts", "out_of_range"),
            ("/steps/0/retry/more", "unknown_field"),
        ],
    ),
    "infinite until": ([delay("x", until="infinity")], [("/steps/0/until", "invalid_timestamp")]),
    "until": ([delay("x", until="2030-01-01 00:00 Europe/Berlin")], []),
    "no zone": ([delay("x", until="2030-01-01 00:00 Mars/Base")], [("/steps/0/until", "invalid_timestamp")]),
    "default alone": ([event("x", default=1)], [("/steps/0/default", "conflicting_fields")]),
    "on_timeout alone": ([event("x", on_timeout="skip")], [("/steps/0/on_timeout", "conflicting_fields")]),
    "of another kind": ([event("x", lease="1s")], [("/steps/0/lease", "conflicting_fields")]),
    "none": ([], [("/steps", "no_steps")]),
    "control character": ([task("x") | {"task": "a\tb"}], [("/steps/0/task", "invalid_name")]),
    "long key": ([task("x") | {"key": "k" * 201}], [("/steps/0/key", "invalid_key")]),
    "long key within": ([task("x") | {"key": "k" * 200}], []),
    "too many steps": ([task(f"s{n}") for n in range(10_001)], [("", "too_large")]),
    "enough steps": ([task(f"s{n}") for n in range(10_000)], []),
    "too many edges": (
        [task(f"s{n}") for n in range(317)] + [task(f"t{n}", *(f"s{m}" for m in range(317))) for n in range(316)],
        [("", "too_large")],
    ),
}


@pytest.mark.parametrize("case", GRAPHS)
def test_what_is_wrong_with_a_graph_and_where(conn, case):
    steps, expected = GRAPHS[case]
    assert sorted(problems(conn, graph(*steps))) == sorted(expected)


def test_too_deep_is_a_problem_and_not_a_crash(conn):
    for depth in (101, 200, 5000):
        deep = "[" * depth + "]" * depth
        text = '{"name": "x", "steps": [{"key": "a", "task": "t", "input": %s}]}' % deep
        assert problems(conn, text) == [("", "too_large")]
        with refused("definition.invalid") as detail:
            conn.execute("SELECT * FROM sayiir.workflow_start_graph(%s)", [text])
        assert detail["problems"][0]["code"] == "definition.too_large"


def test_null_is_refused(conn):
    for function in ("workflow_validate", "workflow_define", "workflow_start_graph"):
        with refused("argument.null") as detail:
            conn.execute(f"SELECT * FROM sayiir.{function}(NULL)")
        assert detail["argument"] == "definition"
    with refused("argument.null") as detail:
        conn.execute("SELECT * FROM sayiir.workflow_define('{}', activate => NULL)")
    assert detail["argument"] == "activate"


@pytest.mark.parametrize("text", ["null", "true", "0", '"x"', "[]"])
def test_what_is_no_object_is_a_problem(conn, text, schema):
    assert problems(conn, text) == [("", "wrong_type")]
    assert not schema.is_valid(json.loads(text))


def test_messages_suggest_what_was_meant(conn):
    definition = graph(task("charge"), task("ship", "chrage", optionl=True))
    rows = query(conn, "SELECT message FROM sayiir.workflow_validate(%s)", json.dumps(definition))
    told = " ".join(row["message"] for row in rows)
    assert "did you mean charge?" in told
    assert "did you mean optional?" in told


def test_validating_leaves_nothing(conn):
    before = value(conn, "SELECT count(*) FROM sayiir.definition")
    assert problems(conn, ORDER) == []
    assert value(conn, "SELECT count(*) FROM sayiir.definition") == before


# What the schema can see by itself: there the two agree.
OF_THE_SCHEMA = [
    {},
    {"name": "x"},
    {"name": "x", "steps": []},
    {"name": "x", "steps": [{}]},
    {"name": 1, "steps": [A]},
    {"name": "x", "steps": [A], "result": None},
    {"name": "x", "steps": [A], "result": 1},
    {"name": "x", "steps": [A], "priority": 100},
    {"name": "x", "steps": [A], "priority": 99},
    {"name": "x", "steps": [A], "tags": ["a", ""]},
    {"name": "x", "steps": [A], "more": 1},
    {"name": "x", "steps": [A | {"more": 1}]},
    {"name": "x", "steps": [A | {"event": "e"}]},
    {"name": "x", "steps": [A | {"join": "most"}]},
    {"name": "x", "steps": [A | {"optional": 1}]},
    {"name": "x", "steps": [A | {"on_exhausted": "hold", "allow_continue": True, "tags": [], "input": None}]},
    {"name": "x", "steps": [A | {"retry": {"jitter": 1, "factor": 1000, "max_attempts": 1000}}]},
    {"name": "x", "steps": [A | {"retry": {"jitter": 1.1}}]},
    {"name": "x", "steps": [A | {"retry": []}]},
    {"name": "x", "steps": [{"key": "e", "event": None}]},
    {"name": "x", "steps": [{"key": "e", "event": "e", "timeout": "1 s", "on_timeout": "succeed", "default": None}]},
    {"name": "x", "steps": [{"key": "e", "event": "e", "default": 1}]},
    {"name": "x", "steps": [{"key": "e", "event": "e", "on_timeout": "skip"}]},
    {"name": "x", "steps": [{"key": "d", "delay": "1 s", "until": "2030-01-01"}]},
    {"name": "x", "steps": [{"key": "d", "until": "2030-01-01"}]},
    {
        "name": "x",
        "steps": [A, {"key": "b", "task": "t", "after": [{"step": "a", "on": "success", "release": "success"}]}],
    },
    {"name": "x", "steps": [A, {"key": "b", "task": "t", "after": [{"on": "success"}]}]},
    {"name": "x", "steps": [A, {"key": "b", "task": "t", "after": [{"step": "a", "release": "terminal"}]}]},
]


@pytest.mark.parametrize("definition", OF_THE_SCHEMA, ids=lambda definition: json.dumps(definition)[:80])
def test_the_schema_and_validate_agree(conn, schema, definition):
    assert schema.is_valid(definition) == (problems(conn, definition) == [])
