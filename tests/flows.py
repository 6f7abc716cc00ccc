"""Workflows under test: definitions in short, and one workflow as an object that works on its own tasks."""

import contextlib
import itertools
import json

import psycopg
import pytest
from psycopg.rows import dict_row

_numbers = itertools.count(1)


def task(key, *after, **fields):
    """A task step. Its task is the workflow's own unless named, see Flow."""
    return {"key": key, "task": "{}." + key, "after": list(after)} | fields


def event(key, *after, **fields):
    return {"key": key, "event": key, "after": list(after)} | fields


def delay(key, *after, **fields):
    if "until" not in fields:
        fields = {"delay": "0"} | fields
    return {"key": key, "after": list(after)} | fields


def on(step, word):
    """An edge other than success: on("pay", "failure")."""
    return {"step": step, "on": word}


def graph(*steps, name=None, **top):
    """A definition; without a name it gets one that no other has."""
    name = name or f"graph{next(_numbers)}"
    steps = [dict(step) for step in steps]
    for step in steps:
        if "task" in step:
            step["task"] = step["task"].format(name)
        if step.get("after") == []:
            del step["after"]
    return {"name": name, "steps": steps} | top


def query(conn, sql, *args):
    """All rows, as dictionaries."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(sql, args).fetchall()


def value(conn, sql, *args):
    """The first column of the first row."""
    row = conn.execute(sql, args).fetchone()
    return None if row is None else row[0]


def code_of(error):
    """The stable code of a refusal."""
    detail = error.diag.message_detail
    assert detail, f"{error.sqlstate}: {error.diag.message_primary}"
    return json.loads(detail)["code"]


@contextlib.contextmanager
def refused(code):
    """The block is refused with this code; gives the fields of DETAIL once it is."""
    fields = {}
    with pytest.raises(psycopg.Error) as caught:
        yield fields
    assert code_of(caught.value) == code
    assert caught.value.diag.message_hint
    fields.update(json.loads(caught.value.diag.message_detail))


def start_graph(conn, definition, input="{}", **options):
    """Starts a workflow from its definition; answers (workflow_id, disposition)."""
    return _start(conn, "workflow_start_graph", json.dumps(definition), input, options)


def start(conn, name, input="{}", **options):
    """Starts a workflow by name; answers (workflow_id, disposition)."""
    return _start(conn, "workflow_start", name, input, options)


def _start(conn, function, what, input, options):
    named = "".join(f", {name} => %s" for name in options)
    args = [what, input, *options.values()]
    return conn.execute(f"SELECT * FROM sayiir.{function}(%s, %s{named})", args).fetchone()


def define(conn, definition, **options):
    named = "".join(f", {name} => %s" for name in options)
    args = [json.dumps(definition), *options.values()]
    return query(conn, f"SELECT * FROM sayiir.workflow_define(%s{named})", *args)[0]


def send(conn, workflow_id, name, payload=None, event_key=None):
    return value(
        conn, "SELECT sayiir.workflow_send_event(%s, %s, %s, %s)", workflow_id, name, json.dumps(payload), event_key
    )


def problems(conn, definition):
    """(pointer, code without its prefix) of every problem."""
    text = definition if isinstance(definition, str) else json.dumps(definition)
    rows = conn.execute("SELECT pointer, code FROM sayiir.workflow_validate(%s)", [text]).fetchall()
    return [(pointer, code.removeprefix("definition.")) for pointer, code in rows]


class Flow:
    """A workflow started from steps; claims only its own tasks, so tests of one database do not meet."""

    def __init__(self, conn, *steps, input=None, start=None, **top):
        self.conn = conn
        self.definition = graph(*steps, **top)
        text = "{}" if input is None else json.dumps(input)
        self.id, self.disposition = start_graph(conn, self.definition, text, **(start or {}))
        self.leases = {}

    def claim(self, *steps, conn=None, **options):
        """Leases the jobs of these steps; one step gives its row, several give a list."""
        rows = []
        named = "".join(f", {name} => %s" for name in options)
        for step in steps:
            args = [self.task(step), *options.values()]
            found = query(conn or self.conn, f"SELECT * FROM sayiir.job_claim('tester', ARRAY[%s]{named})", *args)
            assert len(found) == 1, f"{step}: {found}"
            self.leases[step] = found[0]
            rows += found
        return rows[0] if len(steps) == 1 else rows

    def complete(self, step, output=None, conn=None):
        """Ends the lease of a step, claiming it first if need be."""
        lease = self._lease(step, conn)
        output = None if output is None else json.dumps(output)
        return value(conn or self.conn, "SELECT sayiir.job_complete(%s, %s, %s)", *lease, output)

    def fail(self, step, code="boom", kind="terminal", conn=None):
        lease = self._lease(step, conn)
        args = [*lease, code, "it went wrong", kind]
        return query(conn or self.conn, "SELECT * FROM sayiir.job_fail(%s, %s, %s, %s, %s)", *args)[0]

    def _lease(self, step, conn):
        if step not in self.leases:
            self.claim(step, conn=conn)
        lease = self.leases.pop(step)
        return lease["job_id"], lease["epoch"]

    def task(self, step):
        return next(one["task"] for one in self.definition["steps"] if one["key"] == step)

    def send(self, name, payload=None, event_key=None, conn=None):
        return send(conn or self.conn, self.id, name, payload, event_key)

    def complete_step(self, step, outcome="succeeded", conn=None, **fields):
        if "output" in fields:
            fields["output"] = json.dumps(fields["output"])
        named = "".join(f", {name} => %s" for name in fields)
        args = [self.id, step, outcome, *fields.values()]
        sql = f"SELECT * FROM sayiir.workflow_complete_step(%s, %s, %s{named})"
        return query(conn or self.conn, sql, *args)[0]

    def cancel(self, *args, conn=None):
        places = ", %s" * len(args)
        return value(conn or self.conn, f"SELECT sayiir.workflow_cancel(%s{places})", self.id, *args)

    @property
    def status(self):
        return value(self.conn, "SELECT sayiir.workflow_status(%s)", self.id)

    @property
    def states(self):
        """Step → status."""
        return {row["step"]: row["status"] for row in self.steps()}

    def steps(self):
        return query(self.conn, "SELECT * FROM sayiir.workflow_steps(%s)", self.id)

    def step(self, key):
        return next(row for row in self.steps() if row["step"] == key)

    def get(self):
        return query(self.conn, "SELECT * FROM sayiir.workflow_get(%s)", self.id)[0]

    def result(self, timeout="0"):
        return value(self.conn, "SELECT sayiir.workflow_result(%s, %s)", self.id, timeout)

    def history(self):
        return query(self.conn, "SELECT * FROM sayiir.workflow_history(%s)", self.id)


def healthy(conn):
    """What doctor() says of the tables; what it says of the server around them is not a test's concern."""
    outside = ("snapshot.", "vacuum.", "notify.", "task.")
    return [
        (row["code"], row["message"])
        for row in query(conn, "SELECT * FROM sayiir.doctor()")
        if not row["code"].startswith(outside)
    ]
