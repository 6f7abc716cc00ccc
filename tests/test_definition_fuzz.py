"""Random and broken definitions, inputs and outputs: each is taken or refused with a code, and the backend lives on."""

import copy
import json
import random

import psycopg
import pytest

from flows import code_of, query, value

BASE = {
    "name": "fuzz",
    "result": "ship",
    "timeout": "1 hour",
    "priority": 50,
    "tags": ["a"],
    "steps": [
        {"key": "charge", "task": "fuzz", "retry": {"max_attempts": 3, "initial": "0", "factor": 2, "jitter": 0.5}},
        {"key": "paid", "event": "paid", "timeout": "1 day", "on_timeout": "succeed", "default": {"x": 1}},
        {"key": "wait", "delay": "$.input.pause", "after": ["charge"], "optional": True},
        {"key": "until", "until": "2001-01-01", "after": [{"step": "charge", "on": "terminal"}]},
        {
            "key": "ship",
            "task": "fuzz",
            "after": ["charge", {"step": "wait", "on": "terminal"}, {"step": "until", "release": "success"}],
            "join": "some",
            "input": {
                "a": "$.input.a",
                "b": ["$.steps.charge.output", {"$all": "$.input.list[*] ? (@ > 1)"}],
                "c": "$$",
            },
            "when": '$.steps.charge.status == "succeeded"',
        },
    ],
}

WORDS = [
    "",
    "charge",
    "ship",
    "nobody",
    "a" * 300,
    "\u0001",
    "é\U0001f600",
    "$.",
    "$.input",
    '$.input.a[*] ? (@.b like_regex "(" )',
    "$.steps.charge.output.**{2 to last}",
    '$.steps."charge".output',
    "$.input[0 to 99999999999]",
    "$.input.a.datetime()",
    "strict $.input.nope",
    "$.workflow.metadata",
    "$.input ? (@ == $.input.a / 0)",
    "lax $.input.list[last + 1]",
    "1 s",
    "-1 s",
    "0",
    "infinity",
    "-infinity",
    "NaN",
    "now",
    "99999999999999 years",
    "P1Y2M",
    "2001-02-29",
    "294277-01-01",
    "4714-01-01 BC",
    "fail",
    "hold",
    "terminal",
    "$serde_json::private::Number",
]
FIELDS = [
    "key", "task", "event", "delay", "until", "after", "join", "when", "input", "optional", "timeout", "deadline",
    "lease", "retry", "tags", "priority", "on_timeout", "default", "result", "name", "steps", "$all", "step", "on",
    "release", "map", "repeat", "workflow", "more", "$serde_json::private::Number",
]  # fmt: skip
NUMBERS = [0, 1, -1, 50, 99, 100, 1.5, 1e15, -1e300, 2**31, 2**63, 2**64, 10**40, 0.1]


def scalar(draw):
    return draw.choice([None, True, False, draw.choice(NUMBERS), draw.choice(WORDS), draw.choice(WORDS)])


def anything(draw, depth=3):
    """Random JSON whose keys and words are those of definitions."""
    kind = draw.random()
    if depth == 0 or kind < 0.5:
        return scalar(draw)
    if kind < 0.7:
        return [anything(draw, depth - 1) for _ in range(draw.randint(0, 4))]
    return {draw.choice(FIELDS): anything(draw, depth - 1) for _ in range(draw.randint(0, 5))}


def places(value):
    """Every (container, key) within a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = []
    for key, item in items:
        found.append((value, key))
        found += places(item)
    return found


def broken(draw):
    """The base with a few places replaced, removed, copied or added."""
    definition = copy.deepcopy(BASE)
    for _ in range(draw.randint(1, 3)):
        container, key = draw.choice(places(definition))
        act = draw.random()
        if act < 0.4:
            container[key] = anything(draw, 2)
        elif act < 0.5:
            del container[key]
        elif act < 0.7 and isinstance(container, list):
            container.append(copy.deepcopy(container[key]))
        elif isinstance(container, dict):
            container[draw.choice(FIELDS)] = draw.choice([anything(draw, 2), copy.deepcopy(container[key])])
        else:
            draw.shuffle(container)
    return definition


@pytest.fixture
def unharmed(cluster, conn):
    """Nothing died: the backend is the same, and the log tells of no crash and no error of our own making."""
    with open(cluster.log, encoding="utf-8", errors="replace") as log:
        log.seek(0, 2)
        yield conn
        assert value(conn, "SELECT pg_backend_pid()") == conn.info.backend_pid
        told = log.read()
    for word in ("PANIC", "terminated by signal", "panicked", "internal.state"):
        assert word not in told, told[max(0, told.find(word) - 500) :][:2000]


def call(conn, sql, *args):
    """The rows, or the code of the refusal. Whatever Postgres itself refuses has a class of its own: data (22), too deep (54)."""
    try:
        return query(conn, sql, *args), None
    except psycopg.Error as error:
        assert error.sqlstate not in (None, "XX000"), (error, args)
        if error.diag.message_detail and error.diag.message_detail.startswith("{"):
            return None, code_of(error)
        assert error.sqlstate[:2] in ("22", "54"), (error.sqlstate, error, args)
        return None, error.sqlstate


VALIDATE = "SELECT * FROM sayiir.workflow_validate(%s)"
DEFINE = "SELECT * FROM sayiir.workflow_define(%s)"
START = "SELECT * FROM sayiir.workflow_start_graph(%s, %s)"


def test_random_definitions_are_taken_or_refused_alike_by_all(unharmed):
    conn, seed = unharmed, random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    taken = 0
    for n in range(3000):
        definition = broken(draw) if n % 3 else anything(draw, 5)
        text = json.dumps(definition)
        problems, code = call(conn, VALIDATE, text)
        assert code is None, (code, text)
        for row in problems:
            assert row["code"].startswith("definition."), row
            assert point(definition, row["pointer"]), (row, text)
        sql, args = draw.choice([(DEFINE, [text]), (START, [text, json.dumps(anything(draw))])])
        rows, code = call(conn, sql, *args)
        assert code == ("definition.invalid" if problems else None), (code, problems, text)
        taken += rows is not None
    assert 100 < taken < 2900


def point(definition, pointer):
    """Whether a JSON pointer leads somewhere."""
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(definition, list):
            definition = definition[int(part)]
        elif part in definition:
            definition = definition[part]
        else:
            return False
    return True


def test_whatever_steps_give_their_workflow_goes_on(unharmed):
    """Random paths over random outputs: a step may fail by what it reads, but the worker's completion stands."""
    conn, seed = unharmed, random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    paths = [word for word in WORDS if word.startswith(("$.", "lax", "strict"))] + [
        "$.steps.a.output",
        "$.steps.a.error",
    ]
    for _ in range(400):
        steps = [
            {"key": "a", "task": "given"},
            {
                "key": "b",
                "task": "given",
                "after": ["a"],
                "input": {"x": draw.choice(paths), "y": {"$all": draw.choice(paths)}},
            },
            {"key": "c", "task": "given", "after": ["a"], "when": draw.choice(paths)},
            {"key": "d", "delay": draw.choice(paths[:3] + ["$.steps.a.output"]), "after": ["a"]},
            {"key": "e", "until": "$.steps.a.output", "after": ["a"]},
            {"key": "f", "event": "e", "after": [{"step": "d", "on": "terminal"}, {"step": "e", "on": "terminal"}]},
        ]
        definition = json.dumps({"name": "given", "steps": steps})
        if query(conn, VALIDATE, definition):
            continue
        rows, code = call(conn, START, definition, json.dumps(anything(draw)))
        assert code is None, (code, definition)
        while jobs := query(conn, "SELECT job_id, epoch FROM sayiir.job_claim('w', '{given}', 10)"):
            for job in jobs:
                output = json.dumps(draw.choice([anything(draw), "1 day", "2001-01-01", "infinity", 1e308]))
                answer = value(conn, "SELECT sayiir.job_complete(%s, %s, %s)", job["job_id"], job["epoch"], output)
                assert answer == "succeeded"
        workflow_id = rows[0]["workflow_id"]
        states = {
            row["step"]: row["status"] for row in query(conn, "SELECT * FROM sayiir.workflow_steps(%s)", workflow_id)
        }
        assert "blocked" not in states.values() or states["d"] == "waiting" or states["e"] == "waiting", (
            states,
            definition,
        )
        conn.execute("SELECT sayiir.workflow_cancel(%s)", [workflow_id])


CALLS = [
    "workflow_start(%s)",
    "workflow_start('fuzz', workflow_id => %s)",
    "workflow_start('fuzz', idempotency_key => %s)",
    "workflow_start('fuzz', active_key => %s)",
    "workflow_start('fuzz', on_conflict => %s)",
    "workflow_start('fuzz', organization_id => %s)",
    "workflow_send_event(%s, 'e')",
    "workflow_send_event('fuzz', %s)",
    "workflow_send_event('fuzz', 'e', NULL, %s)",
    "workflow_cancel(%s)",
    "workflow_cancel('fuzz', %s, %s)",
    "workflow_pause(%s)",
    "workflow_resume(%s)",
    "workflow_complete_step(%s, 'a')",
    "workflow_complete_step('fuzz', %s)",
    "workflow_complete_step('fuzz', 'charge', %s)",
    "workflow_complete_step('fuzz', 'charge', 'failed', NULL, %s, %s, %s)",
    "workflow_result(%s)",
    "workflow_wait(%s, '0')",
    "workflow_delete(%s)",
    "workflow_status(%s)",
    "workflow_get(%s)",
    "workflow_steps(%s)",
    "workflow_history(%s)",
    "workflow_explain(%s)",
    "definition_activate(%s, 1)",
]


@pytest.mark.parametrize("function", CALLS)
def test_strange_texts(unharmed, function):
    conn = unharmed
    query(conn, DEFINE, json.dumps(BASE))
    for text in [None, *WORDS, "x" * 10_000, "'; DROP TABLE sayiir.job; --", "%s", "\\", "a/b", " "]:
        call(conn, f"SELECT sayiir.{function}", *[text] * function.count("%s"))
    assert value(conn, "SELECT count(*) >= 0 FROM sayiir.job") is True


def test_strange_numbers_and_intervals(unharmed):
    conn = unharmed
    for number in (None, -(2**31), -1, 0, 2**31 - 1):
        for sql in ("workflow_start('fuzz', version => %s)", "definition_activate('fuzz', %s)", "tick(%s)"):
            rows, code = call(conn, f"SELECT * FROM sayiir.{sql}", number)
            assert code in (None, "argument.null", "argument.out_of_range", "definition.not_found")
        for sql in ("workflow_history('fuzz', %s)", "workflow_history('fuzz', 0, %s)"):
            call(conn, f"SELECT * FROM sayiir.{sql}", number)
    for text in ("-1 us", "10 s 1 us", "178000000 years", "-178000000 years", "1 mon", None):
        for sql in ("workflow_wait('fuzz', %s)", "workflow_result('fuzz', %s)"):
            rows, code = call(conn, f"SELECT sayiir.{sql}", text)
            assert code in ("argument.null", "argument.out_of_range", "wait.too_long", "workflow.not_found"), (
                text,
                code,
            )


def test_10_mb_of_definition(unharmed):
    conn = unharmed
    big = {"name": "big", "steps": [{"key": "a", "task": "t", "input": "x" * 10_000_000}]}
    rows, code = call(conn, DEFINE, json.dumps(big))
    assert code is None
    rows, code = call(conn, DEFINE, json.dumps({"name": "x" * 10_000_000, "steps": [{"key": "y" * 10_000_000}]}))
    assert code == "definition.invalid"
    rows, code = call(conn, VALIDATE, json.dumps([{}] * 1_000_000))
    assert [row["code"] for row in rows] == ["definition.wrong_type"]
    many = {"name": "many", "steps": [{"key": f"s{n}", "tsk": "t", "after": ["nobody"]} for n in range(10_000)]}
    rows, code = call(conn, VALIDATE, json.dumps(many))
    assert len(rows) == 30_000
