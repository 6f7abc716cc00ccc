"""Starting: ids and keys, what a repeat is answered, what comes before run_at, and a start inside the caller's transaction."""

import datetime
import json
import uuid

import psycopg
import pytest

from flows import Flow, define, event, graph, query, refused, start, start_graph, task, value
from support import wait_until

ONE = graph(task("a"), name="one")
OTHER = graph(task("b"), name="one")


def test_without_an_id_it_gets_a_uuid_of_now(conn):
    first, second = (start_graph(conn, ONE)[0] for _ in range(2))
    assert uuid.UUID(first).version == uuid.UUID(second).version == 7
    assert first < second


def test_what_was_given_is_kept(conn):
    options = {"metadata": '{"m": 1}', "trace_parent": "00-abc-def-01", "idempotency_key": "kept", "active_key": "kept"}
    workflow_id, disposition = start_graph(conn, ONE, '{"x": 1}', **options)
    assert disposition == "started"
    info = query(conn, "SELECT * FROM sayiir.workflow_get(%s)", workflow_id)[0]
    assert (info["name"], info["version"], info["status"]) == ("one", None, "running")
    assert (info["input"], info["metadata"], info["trace_parent"]) == ({"x": 1}, {"m": 1}, "00-abc-def-01")
    assert (info["idempotency_key"], info["active_key"]) == ("kept", "kept")
    claimed = query(conn, "SELECT * FROM sayiir.job_claim('w', '{one.a}', 1000)")
    mine = next(job for job in claimed if job["workflow_id"] == workflow_id)
    assert (mine["input"], mine["trace_parent"], mine["step"]) == ({"x": 1}, "00-abc-def-01", "a")


# What a first start and its repeat differ in, and what the repeat is answered under each word. None = workflow.conflict.
REPEATS = {
    "nothing": ({}, {"match": "existing", "fail": None, "use_existing": "existing"}),
    "numbers": ({"input": '{"n": 1.0}'}, {"match": "existing", "fail": None, "use_existing": "existing"}),
    "input": ({"input": '{"n": 2}'}, {"match": None, "fail": None, "use_existing": "existing"}),
    "metadata": ({"metadata": '{"m": 2}'}, {"match": None, "fail": None, "use_existing": "existing"}),
    "graph": ({"definition": OTHER}, {"match": None, "fail": None, "use_existing": "existing"}),
    "active key": ({"active_key": "k"}, {"match": None, "fail": None, "use_existing": "existing"}),
    "run_at": ({"run_at": "2100-01-01"}, {"match": None, "fail": None, "use_existing": "existing"}),
}


@pytest.mark.parametrize("key", ["workflow_id", "idempotency_key"])
@pytest.mark.parametrize("difference", REPEATS)
def test_a_repeat(conn, key, difference):
    changed, answers = REPEATS[difference]
    chosen = str(uuid.uuid4())
    request = {"definition": ONE, "input": '{"n": 1}', "metadata": '{"m": 1}', key: chosen}
    first, _ = start_graph(conn, **request)
    for word, answer in answers.items():
        if answer is None:
            with refused("workflow.conflict") as detail:
                start_graph(conn, on_conflict=word, **request | changed)
            assert detail["workflow_id"] == first
        else:
            assert start_graph(conn, on_conflict=word, **request | changed) == (first, answer)
    count = "SELECT count(*) FROM sayiir.workflows WHERE workflow_id = %s OR idempotency_key = %s"
    assert value(conn, count, chosen, chosen) == 1


@pytest.mark.parametrize("key", ["workflow_id", "idempotency_key"])
def test_terminate_existing_deletes_the_old_one_with_its_events(conn, key):
    chosen = str(uuid.uuid4())
    definition = graph(task("a"), event("e", "a"))
    old, _ = start_graph(conn, definition, **{key: chosen})
    lease = query(conn, "SELECT * FROM sayiir.job_claim('w', ARRAY[%s])", definition["steps"][0]["task"])[0]
    assert conn.execute("SELECT sayiir.workflow_send_event(%s, 'e', '1', 'once')", [old]).fetchone() == ("buffered",)
    new, disposition = start_graph(conn, definition, on_conflict="terminate_existing", **{key: chosen})
    assert disposition == "started"
    assert (new == old) == (key == "workflow_id")
    with refused("job.lease_lost"):
        conn.execute("SELECT sayiir.job_complete(%s, %s)", [lease["job_id"], lease["epoch"]])
    assert value(conn, "SELECT count(*) FROM sayiir.job WHERE job_id = %s", lease["job_id"]) == 0
    assert query(conn, "SELECT FROM sayiir.events WHERE workflow_id = %s", old) == []
    # The keys of its events are free again, too.
    assert conn.execute("SELECT sayiir.workflow_send_event(%s, 'e', '1', 'once')", [new]).fetchone() == ("buffered",)
    states = query(conn, "SELECT step, status FROM sayiir.workflow_steps(%s)", new)
    assert [(row["step"], row["status"]) for row in states] == [("a", "ready"), ("e", "blocked")]


def test_terminate_existing_without_an_old_one_starts(conn):
    assert start_graph(conn, ONE, workflow_id="nothing-there", on_conflict="terminate_existing")[1] == "started"


def test_an_id_stays_taken_when_its_workflow_has_ended(conn):
    flow = Flow(conn, task("a"), start={"workflow_id": "ended"})
    flow.complete("a")
    assert start_graph(conn, flow.definition, workflow_id="ended") == ("ended", "existing")
    with refused("workflow.conflict"):
        start_graph(conn, ONE, workflow_id="ended")
    assert value(conn, "SELECT sayiir.workflow_delete('ended')") is True
    assert start_graph(conn, ONE, workflow_id="ended") == ("ended", "started")


def test_a_new_version_does_not_make_a_repeat_a_conflict(conn):
    define(conn, graph(task("a"), name="versioned"))
    first = start(conn, "versioned", workflow_id="v", idempotency_key="v")
    define(conn, graph(task("a"), task("b"), name="versioned"))
    assert start(conn, "versioned", workflow_id="v", idempotency_key="v") == (first[0], "existing")
    with refused("workflow.conflict"):
        start(conn, "versioned", workflow_id="v", idempotency_key="v", version=1)
    first = start(conn, "versioned", workflow_id="v1", version=1)
    define(conn, graph(task("c"), name="versioned"))
    assert start(conn, "versioned", workflow_id="v1", version=1) == (first[0], "existing")
    with refused("workflow.conflict"):
        start(conn, "versioned", workflow_id="v1", version=2)


def test_an_idempotency_key_is_one_of_a_name_and_an_organization(conn):
    ids = {
        start_graph(conn, ONE, idempotency_key="k")[0],
        start_graph(conn, ONE | {"name": "two"}, idempotency_key="k")[0],
        start_graph(conn, ONE, idempotency_key="k", organization_id="acme")[0],
        start_graph(conn, ONE, idempotency_key="k", organization_id="globex")[0],
    }
    assert len(ids) == 4
    assert start_graph(conn, ONE, idempotency_key="k")[1] == "existing"
    assert start_graph(conn, ONE, workflow_id="same", organization_id="acme")[1] == "started"
    assert start_graph(conn, OTHER, workflow_id="same")[1] == "started"


def test_at_most_one_live_workflow_has_an_active_key(conn):
    first = Flow(conn, task("a"), start={"active_key": "busy"})
    for on_conflict in ("match", "use_existing"):
        assert start_graph(conn, ONE, active_key="busy", on_conflict=on_conflict) == (first.id, "existing_active")
    assert start_graph(conn, ONE, active_key="busy", organization_id="acme")[1] == "started"
    first.complete("a")
    second, disposition = start_graph(conn, ONE, active_key="busy")
    assert (disposition, second != first.id) == ("started", True)


def test_a_cancelled_workflow_holds_its_active_key_until_its_last_lease_ends(conn):
    first = Flow(conn, task("a"), task("b"), start={"active_key": "leased"})
    first.claim("a")
    first.cancel()
    assert start_graph(conn, ONE, active_key="leased") == (first.id, "existing_active")
    lease = first.leases["a"]
    assert value(conn, "SELECT sayiir.job_release(%s, %s)", lease["job_id"], lease["epoch"]) == "cancelled"
    assert start_graph(conn, ONE, active_key="leased")[1] == "started"


def test_the_last_lease_of_a_cancelled_workflow_may_also_be_reaped(conn):
    first = Flow(conn, task("a"), start={"active_key": "reaped"})
    first.claim("a", lease="1 ms")
    first.cancel()
    wait_until(lambda: conn.execute("SELECT sayiir.tick()") and first.states["a"] == "cancelled")
    assert start_graph(conn, ONE, active_key="reaped")[1] == "started"


def test_a_start_that_met_a_live_workflow_leaves_nothing(conn):
    first = Flow(conn, event("e"), start={"active_key": "nothing"})
    early = "SELECT sayiir.workflow_send_event('unborn', 'e', '1', %s)"
    assert value(conn, early, "once") == "early"
    assert start_graph(conn, first.definition, workflow_id="unborn", active_key="nothing") == (
        first.id,
        "existing_active",
    )
    assert query(conn, "SELECT * FROM sayiir.workflow_get('unborn')") == []
    # What was sent to the id before is still there, and known by its key.
    assert value(conn, early, "once") == "duplicate"
    assert value(conn, "SELECT disposition FROM sayiir.events WHERE workflow_id = 'unborn'") == "early"


def test_nothing_runs_before_run_at(conn):
    at = value(conn, "SELECT clock_timestamp() + interval '400 ms'")
    definition = graph(task("a"), event("e", timeout="1 hour"), task("b", "a"))
    workflow_id, _ = start_graph(conn, definition, run_at=at)
    steps = query(conn, "SELECT step, status, due FROM sayiir.steps WHERE workflow_id = %s ORDER BY step", workflow_id)
    assert [(row["step"], row["status"], row["due"]) for row in steps] == [
        ("a", "scheduled", at),
        ("b", "blocked", None),
        ("e", "waiting", at + datetime.timedelta(hours=1)),
    ]
    assert query(conn, "SELECT * FROM sayiir.job_claim('w', ARRAY[%s])", definition["steps"][0]["task"]) == []
    assert value(conn, "SELECT sayiir.workflow_status(%s)", workflow_id) == "waiting"
    claim = "SELECT * FROM sayiir.job_claim('w', ARRAY[%s], wait => '5 s')"
    assert query(conn, claim, definition["steps"][0]["task"])[0]["workflow_id"] == workflow_id
    assert value(conn, "SELECT clock_timestamp() >= %s", at) is True


def test_a_run_at_that_has_passed_is_now(conn):
    workflow_id, _ = start_graph(conn, graph(task("a")), run_at="2001-01-01")
    assert value(conn, "SELECT status FROM sayiir.workflow_steps(%s)", workflow_id) == "ready"


def test_a_workflow_whose_steps_all_end_at_once_ends_with_its_start(conn):
    steps = [task("a", when="false == true"), task("b", "a"), event("c", "b")]
    flow = Flow(conn, *steps, start={"active_key": "at once"})
    assert (flow.status, flow.states) == ("succeeded", {"a": "skipped", "b": "cancelled", "c": "cancelled"})
    assert start_graph(conn, ONE, active_key="at once")[1] == "started"


def test_a_rolled_back_start_leaves_nothing(conn):
    with conn.transaction(force_rollback=True):
        workflow_id, _ = start_graph(conn, ONE, workflow_id="undone", idempotency_key="undone", active_key="undone")
        assert value(conn, "SELECT sayiir.workflow_status('undone')") == "running"
    assert value(conn, "SELECT sayiir.workflow_status('undone')") is None
    assert start_graph(conn, ONE, workflow_id="undone", idempotency_key="undone", active_key="undone")[1] == "started"


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_fixed_snapshot_takes_only_starts_that_cannot_conflict(conn, level):
    for options in ({"workflow_id": "fixed"}, {"idempotency_key": "fixed"}, {"active_key": "fixed"}):
        with refused("call.isolation_unsupported"), conn.transaction():
            conn.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
            start_graph(conn, ONE, **options)
    with conn.transaction():
        conn.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        assert start_graph(conn, graph(task("a")))[1] == "started"
    for call in (
        "workflow_send_event('fixed', 'e')",
        "workflow_cancel('fixed')",
        "workflow_pause('fixed')",
        "workflow_resume('fixed')",
        "workflow_complete_step('fixed', 'e')",
        "workflow_delete('fixed')",
        "workflow_define('{}')",
    ):
        with refused("call.isolation_unsupported"), conn.transaction():
            conn.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
            conn.execute(f"SELECT sayiir.{call}")


BAD = [
    ("NULL", "argument.null", "name"),
    ("''", "argument.invalid", "name"),
    ("E'a\\nb'", "argument.invalid", "name"),
    ("'one', NULL", "argument.null", "input"),
    ("'one', metadata => NULL", "argument.null", "metadata"),
    ("'one', on_conflict => NULL", "argument.null", "on_conflict"),
    ("'one', on_conflict => 'maybe'", "argument.invalid", "on_conflict"),
    ("'one', workflow_id => ''", "argument.invalid", "workflow_id"),
    ("'one', workflow_id => repeat('x', 513)", "argument.invalid", "workflow_id"),
    ("'one', workflow_id => E'a\\tb'", "argument.invalid", "workflow_id"),
    ("'one', idempotency_key => ''", "argument.invalid", "idempotency_key"),
    ("'one', active_key => repeat('é', 257)", "argument.invalid", "active_key"),
    ("'one', trace_parent => ''", "argument.invalid", "trace_parent"),
    ("'one', run_at => 'infinity'", "argument.out_of_range", "run_at"),
    ("'one', run_at => '-infinity'", "argument.out_of_range", "run_at"),
    ("'one', run_at => '290000-01-01'", "argument.out_of_range", "run_at"),
    ("'one', organization_id => ''", "argument.invalid", "organization_id"),
    ("'one', options => '{\"priority\": 1}'", "option.unknown", None),
    ("'one', options => '[]'", "argument.invalid", "options"),
    ("'one', version => 0", "definition.not_found", None),
]


@pytest.mark.parametrize("arguments, code, argument", BAD)
def test_bad_arguments_have_their_own_code(conn, arguments, code, argument):
    define(conn, ONE)
    with refused(code) as detail:
        conn.execute(f"SELECT * FROM sayiir.workflow_start({arguments})")
    if argument:
        assert detail["argument"] == argument


def test_the_longest_id_fits(conn):
    longest = "é" * 256
    assert start_graph(conn, ONE, workflow_id=longest, idempotency_key=longest, active_key=longest) == (
        longest,
        "started",
    )


def test_an_input_of_10_mb_goes_through(conn):
    text = json.dumps({"x": "é" * 5_000_000})
    flow = Flow(conn, task("a"), task("b", "a", input="$.input.x"))
    workflow_id, _ = start_graph(conn, flow.definition, text)
    size = "SELECT length(input->>'x') FROM sayiir.job_claim('w', ARRAY[%s], 2) WHERE workflow_id = %s"
    assert value(conn, size, flow.task("a"), workflow_id) == 5_000_000


@pytest.mark.parametrize("text", ['{"x": "\\u0000"}', '{"x": NaN}', '{"x": Infinity}', "{", ""])
def test_what_is_no_jsonb_is_refused_by_postgres(conn, text):
    with pytest.raises(psycopg.errors.DataError):
        start_graph(conn, ONE, text)


@pytest.mark.parametrize("text", ["null", "[]", '""', "0", "[" * 200 + "]" * 200, "1e400", '{"": {"$.x": "$.y"}}'])
def test_any_json_is_an_input(conn, text):
    definition = graph(task("a"), task("b", "a", input={"whole": "$.input"}))
    workflow_id, _ = start_graph(conn, definition, text)
    same = "SELECT input = %s::jsonb FROM sayiir.workflow_steps(%s) WHERE step = 'a'"
    assert value(conn, same, text, workflow_id) is True
    job = query(conn, "SELECT job_id, epoch FROM sayiir.job_claim('w', ARRAY[%s])", definition["steps"][0]["task"])[0]
    conn.execute("SELECT sayiir.job_complete(%s, %s)", [job["job_id"], job["epoch"]])
    same = "SELECT input->'whole' = %s::jsonb FROM sayiir.workflow_steps(%s) WHERE step = 'b'"
    assert value(conn, same, text, workflow_id) is True
