"""Versions of a name: what define answers, what start takes, whose version wins."""

import json

import pytest

from flows import define, event, graph, on, query, refused, start, start_graph, task, value


def test_the_same_graph_is_the_same_version(conn):
    definition = graph(task("a"), task("b", "a"))
    first = define(conn, definition)
    assert (first["name"], first["version"], first["disposition"]) == (definition["name"], 1, "created")
    assert len(first["definition_hash"]) == 32
    assert first["changes"] == {"added": ["a", "b"], "removed": [], "changed": []}

    again = define(conn, definition)
    assert (again["version"], again["disposition"]) == (1, "existing")
    assert again["definition_hash"] == first["definition_hash"]
    assert again["changes"] == {"added": [], "removed": [], "changed": []}


def test_what_is_written_differently_is_the_same_graph(conn):
    one = graph(task("a"), task("b", on("a", "success"), priority=5), priority=7)
    b, a = (dict(step) for step in reversed(one["steps"]))
    other = {"steps": [b | {"priority": 5.0, "after": ["a"]}, a], "priority": 7.00, "name": one["name"]}
    assert define(conn, one)["version"] == 1
    assert define(conn, other)["disposition"] == "existing"
    b["after"] = [{"step": "a", "release": "success"}]
    assert define(conn, {"name": one["name"], "priority": 7, "steps": [a, b]})["disposition"] == "existing"


def test_a_changed_graph_is_the_next_version_and_tells_the_changes(conn):
    old = graph(task("kept"), task("gone"), task("moved", "kept"), event("asked", "kept"))
    define(conn, old)
    steps = [task("kept"), task("moved", on("kept", "terminal")), event("asked", "kept", timeout="1 day"), task("new")]
    new = define(conn, graph(*steps, name=old["name"]))
    assert (new["version"], new["disposition"]) == (2, "created")
    assert new["changes"] == {"added": ["new"], "removed": ["gone"], "changed": ["asked", "moved"]}


def test_start_takes_the_active_version(conn):
    one, two = graph(task("a")), graph(task("b"))
    two["name"] = name = one["name"]
    define(conn, one)
    assert define(conn, two, activate=False)["version"] == 2

    def started(**options):
        workflow_id, _ = start(conn, name, **options)
        return value(conn, "SELECT version FROM sayiir.workflow_get(%s)", workflow_id)

    assert started() == 1
    assert started(version=2) == 2
    assert value(conn, "SELECT sayiir.definition_activate(%s, 2)", name) is True
    assert started() == 2
    assert started(version=1) == 1
    # Defining it again makes it the active one, without a new version.
    assert define(conn, one)["version"] == 1
    assert started() == 1
    views = query(conn, "SELECT version, active, steps, open_workflows FROM sayiir.definitions WHERE name = %s", name)
    assert {row["version"]: (row["active"], row["steps"], row["open_workflows"]) for row in views} == {
        1: (True, 1, 3),
        2: (False, 1, 2),
    }


def test_running_workflows_keep_their_definition(conn):
    old = graph(task("a"), task("b", "a"))
    define(conn, old)
    workflow_id, _ = start(conn, old["name"])
    define(conn, graph(task("a"), name=old["name"]))
    steps = query(conn, "SELECT step FROM sayiir.workflow_steps(%s)", workflow_id)
    assert [row["step"] for row in steps] == ["a", "b"]


def test_unknown_names_and_versions_are_refused(conn):
    definition = graph(task("a"))
    define(conn, definition)
    with refused("definition.not_found"):
        start(conn, "nobody")
    with refused("definition.not_found") as detail:
        start(conn, definition["name"], version=2)
    assert (detail["name"], detail["version"]) == (definition["name"], 2)
    with refused("definition.not_found"):
        value(conn, "SELECT sayiir.definition_activate(%s, 2)", definition["name"])
    # A refused activation changes nothing.
    assert start(conn, definition["name"])[1] == "started"


def test_without_an_active_version_only_a_named_one_starts(conn):
    definition = graph(task("a"))
    define(conn, definition, activate=False)
    with refused("definition.not_found"):
        start(conn, definition["name"])
    assert start(conn, definition["name"], version=1)[1] == "started"


def test_an_invalid_definition_tells_every_problem_and_leaves_nothing(conn):
    broken = graph(task("a", "b"), task("b", "a"), {"key": "c", "task": "t", "retyr": {}})
    for call in (lambda: define(conn, broken), lambda: start_graph(conn, broken)):
        with refused("definition.invalid") as detail:
            call()
        codes = sorted(problem["code"] for problem in detail["problems"])
        assert codes == ["definition.cycle", "definition.unknown_field"]
        assert "did you mean retry" in json.dumps(detail["problems"])
    assert query(conn, "SELECT FROM sayiir.definitions WHERE name = %s", broken["name"]) == []


def test_a_rolled_back_define_leaves_nothing_and_its_backend_can_define_again(conn):
    definition = graph(task("a"))
    with conn.transaction(force_rollback=True):
        define(conn, definition)
        workflow_id, _ = start(conn, definition["name"])
    with refused("definition.not_found"):
        start(conn, definition["name"])
    assert define(conn, definition)["disposition"] == "created"
    workflow_id, _ = start(conn, definition["name"])
    assert value(conn, "SELECT count(*) FROM sayiir.workflow_steps(%s)", workflow_id) == 1


def test_a_rolled_back_start_of_a_graph_stores_it_the_next_time(conn):
    definition = graph(task("a"), task("b", "a"))
    with conn.transaction(force_rollback=True):
        start_graph(conn, definition)
    # The backend still has the compiled graph, but the tables do not.
    workflow_id, _ = start_graph(conn, definition)
    assert value(conn, "SELECT count(*) FROM sayiir.workflow_steps(%s)", workflow_id) == 2


@pytest.fixture
def organization(connect):
    conn = connect()
    conn.execute("SET sayiir.scope = 'organization'; SET sayiir.organization_id = 'acme'")
    return conn


def test_an_organization_prefers_its_own_version_and_else_takes_the_global_one(conn, organization):
    general = graph(task("a"))
    name = general["name"]
    define(conn, general)
    workflow_id, _ = start(organization, name)
    info = query(organization, "SELECT * FROM sayiir.workflow_get(%s)", workflow_id)[0]
    assert (info["organization_id"], info["version"]) == ("acme", 1)
    assert query(conn, "SELECT * FROM sayiir.workflow_get(%s)", workflow_id) == []

    own = define(organization, graph(task("x"), name=name))
    assert (own["version"], own["disposition"]) == (1, "created")

    def steps(conn):
        workflow_id, _ = start(conn, name)
        return [row["step"] for row in query(conn, "SELECT step FROM sayiir.workflow_steps(%s)", workflow_id)]

    assert steps(organization) == ["x"]
    assert steps(conn) == ["a"]


def test_an_organization_cannot_activate_what_is_global(conn, organization):
    definition = graph(task("a"))
    define(conn, definition)
    with refused("definition.not_found"):
        value(organization, "SELECT sayiir.definition_activate(%s, 1)", definition["name"])


def test_definitions_shows_what_was_registered(conn):
    definition = graph(task("b", on("a", "release")) | {"after": ["a"]}, task("a"))
    defined = define(conn, definition)
    row = query(conn, "SELECT * FROM sayiir.definitions WHERE name = %s", definition["name"])[0]
    assert row["definition_hash"] == defined["definition_hash"]
    assert [step["key"] for step in row["definition"]["steps"]] == ["a", "b"]
    assert row["definition"]["steps"][1]["after"] == [{"step": "a", "on": "success"}]


@pytest.mark.parametrize("number", ["123456789012345678901234567890.123456789012345678901", "1e400", "-1.50", "0.1"])
def test_numbers_of_a_definition_keep_their_digits(conn, number):
    text = json.dumps(graph(task("a"))).replace('"key": "a"', f'"key": "a", "input": {{"n": {number}}}')
    hashes = {
        bytes(value(conn, "SELECT definition_hash FROM sayiir.workflow_define(%s)", written))
        for written in (text, text.replace(number, f"{number}0" if "." in number else number))
    }
    assert len(hashes) == 1
    workflow_id, _ = conn.execute("SELECT * FROM sayiir.workflow_start_graph(%s)", [text]).fetchone()
    kept = "SELECT input->'n' = (%s)::jsonb FROM sayiir.workflow_steps(%s)"
    assert value(conn, kept, number, workflow_id) is True
