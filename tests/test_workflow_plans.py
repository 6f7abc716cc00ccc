"""Cost of workflows: however many there are, a call reads what it is about, in a number of statements that its graph does not set."""

import json
import random
import uuid

import pytest

from flows import define, event, graph, on, query, send, start, start_graph, task, value
from jobs import no_worker  # noqa: F401
from plans import explained, has_auto_explain, nodes

pytestmark = pytest.mark.usefixtures("no_worker")

TABLES = [
    "workflow", "workflow_active", "workflow_log", "job", "job_ready", "job_lease", "job_wait", "job_end", "job_attempt",
    "step_pending", "event", "event_key", "definition", "definition_version",
]  # fmt: skip
OPEN, FINISHED = 15_000, 25_000
FAN = 10
# A call about FAN steps may look at so many rows of one table.
ROWS = 6 * FAN
# A plan is generic at the latest at the sixth execution.
ROUNDS = 7

WORKFLOW = graph(
    task("a"),
    *[task(f"m{n}", "a") for n in range(FAN)],
    event("e", "a"),
    task("z", *[f"m{n}" for n in range(FAN)]),
    name="plan",
)

# Copies of one workflow of each kind, open ones that wait and have a buffered event, finished ones with their history.
LOAD = f"""
CREATE TEMP TABLE new AS
SELECT n, nextval('sayiir.workflow_id_seq') AS id, gen_random_uuid() AS job_id, n <= {OPEN} AS is_open
FROM generate_series(1, {OPEN + FINISHED}) n;
INSERT INTO sayiir.workflow (id, workflow_id, name, definition_hash, status, input, metadata, request, idempotency_key, active_key,
    created_at, deadline_at, finished_at, history_seq)
SELECT new.id, 'load ' || new.id, w.name, w.definition_hash, CASE WHEN is_open THEN 'running' ELSE 'succeeded' END::sayiir.workflow_state,
    '{{}}', '{{}}', '{{}}', 'load ' || new.id, CASE WHEN is_open THEN 'load ' || new.id END, clock_timestamp(),
    CASE WHEN is_open THEN clock_timestamp() + interval '1 day' END,
    CASE WHEN NOT is_open THEN clock_timestamp() END, nextval('sayiir.history_seq')
FROM new, (SELECT * FROM sayiir.workflow LIMIT 1) w;
INSERT INTO sayiir.workflow_active (workflow, active_key) SELECT id, 'load ' || id FROM new WHERE is_open;
INSERT INTO sayiir.workflow_log (history_seq, workflow, kind) SELECT nextval('sayiir.history_seq'), id, 'load' FROM new WHERE NOT is_open;
INSERT INTO sayiir.job (job_id, workflow, step, max_attempts, retry_initial_us, retry_factor, retry_max_us, retry_jitter, lease_us,
    created_at, history_seq)
SELECT job_id, id, 'e', 1, 0, 1, 0, 0, 0, clock_timestamp(), nextval('sayiir.history_seq') FROM new;
INSERT INTO sayiir.job_wait (job_id, workflow, reason, event, due, seq, run_number, attempt, epoch, since)
SELECT job_id, id, 'event', 'e', clock_timestamp() + interval '1 day', nextval('sayiir.wait_seq'), 1, 0, 0, clock_timestamp()
FROM new WHERE is_open;
INSERT INTO sayiir.job_end (job_id, state, epoch, run_number, attempt, ended_at, history_seq)
SELECT job_id, 'succeeded', 0, 1, 0, clock_timestamp(), nextval('sayiir.history_seq') FROM new WHERE NOT is_open;
INSERT INTO sayiir.job_attempt (job_id, run_number, attempt, epoch, kind, ended_at, disposition, history_seq)
SELECT job_id, 1, 1, 1, 'retryable', clock_timestamp(), 'retry', nextval('sayiir.history_seq') FROM new;
INSERT INTO sayiir.job_ready (job_id, lane, seq, run_number, attempt, epoch)
SELECT gen_random_uuid(), (SELECT min(lane) FROM sayiir.lane), nextval('sayiir.ready_seq'), 1, 0, 0 FROM new WHERE is_open;
INSERT INTO sayiir.job_lease (job_id, lane, worker, epoch, run_number, attempt, lease_us, started_at, expires_at, check_at)
SELECT gen_random_uuid(), (SELECT min(lane) FROM sayiir.lane), 'w', 1, 1, 1, 60000000, clock_timestamp(),
    clock_timestamp() + interval '1 day', clock_timestamp() + interval '1 day' FROM new WHERE is_open;
INSERT INTO sayiir.step_pending (workflow, step, ended, unsatisfied) SELECT id, 'z', 1, 0 FROM new WHERE is_open;
INSERT INTO sayiir.event (workflow, workflow_id, name, disposition) SELECT id, 'load ' || id, 'other', 'buffered' FROM new WHERE is_open;
INSERT INTO sayiir.event (workflow_id, name, disposition) SELECT 'unborn ' || id, 'e', 'early' FROM new WHERE is_open;
INSERT INTO sayiir.event_key (workflow_id, event_key) SELECT 'load ' || id, 'k' FROM new;
INSERT INTO sayiir.definition (definition_hash, body)
SELECT decode(md5(n::text), 'hex'), '{{}}' FROM new;
INSERT INTO sayiir.definition_version (name, version, definition_hash, active)
SELECT 'load ' || n, 1, decode(md5(n::text), 'hex'), true FROM new;
DROP TABLE new
"""


def fresh(**options):
    return lambda conn: start_graph(conn, WORKFLOW, **options)[0]


def leased(conn, step="a", workflow_id=None):
    workflow_id = workflow_id or fresh()(conn)
    # By hand, because a claim may take another workflow's.
    lease = """
        WITH r AS (
            DELETE FROM sayiir.job_ready WHERE job_id = ANY (ARRAY(
                SELECT j.job_id FROM sayiir.job j JOIN sayiir.workflow w ON w.id = j.workflow
                WHERE w.workflow_id = %s AND j.step LIKE %s)) RETURNING *)
        INSERT INTO sayiir.job_lease (job_id, workflow, lane, worker, epoch, run_number, attempt, lease_us, started_at, expires_at, check_at)
        SELECT job_id, workflow, lane, 'w', 1, 1, 1, 60000000, clock_timestamp(), clock_timestamp() + interval '1 day',
            clock_timestamp() + interval '1 day' FROM r RETURNING job_id, epoch"""
    rows = conn.execute(lease, [workflow_id, step]).fetchall()
    assert rows
    return workflow_id, [job for job, _ in rows], [epoch for _, epoch in rows]


def released(conn):
    """A workflow whose middle level is ready and whose event step waits."""
    workflow_id, jobs, epochs = leased(conn)
    conn.execute("SELECT sayiir.job_complete(%s, %s)", [jobs[0], epochs[0]])
    return workflow_id


def complete_many(conn, leases):
    _, jobs, epochs = leases
    rows = query(conn, "SELECT disposition FROM sayiir.job_complete_many(%s, %s)", jobs, epochs)
    assert {row["disposition"] for row in rows} == {"completed"}


def overdue(conn):
    workflow_id = released(conn)
    due = """UPDATE sayiir.job_wait SET due = clock_timestamp() WHERE reason = 'event' AND workflow =
             (SELECT id FROM sayiir.workflow WHERE workflow_id = %s)"""
    conn.execute(due, [workflow_id])


def finished(conn):
    workflow_id = fresh()(conn)
    conn.execute("SELECT sayiir.workflow_cancel(%s)", [workflow_id])
    return workflow_id


def paused(conn):
    workflow_id = released(conn)
    conn.execute("SELECT sayiir.workflow_pause(%s)", [workflow_id])
    return workflow_id


def early(conn):
    workflow_id = str(uuid.uuid4())
    assert send(conn, workflow_id, "e", 1, "k") == "early"
    return workflow_id


def sent(answer, name="e", key=None):
    def run(conn, workflow_id):
        assert send(conn, workflow_id, name, 1, key) == answer

    return run


def asks(function):
    return lambda conn, workflow_id: query(conn, f"SELECT * FROM sayiir.{function}(%s)", workflow_id)


def buffered(conn):
    leases = leased(conn)
    assert send(conn, leases[0], "e", 1) == "buffered"
    return leases


# name: (what it needs, the call)
CALLS = {
    "send to a wait": (released, sent("resumed", key="k")),
    "send before the wait": (fresh(), sent("buffered")),
    "send again": (lambda conn: early(conn), sent("duplicate", key="k")),
    "send before birth": (lambda conn: str(uuid.uuid4()), sent("early", key="k")),
    "send after the end": (finished, sent("late")),
    "release a level": (leased, complete_many),
    "release with a buffered event": (buffered, complete_many),
    "join": (lambda conn: leased(conn, "m%", released(conn)), complete_many),
    "fail a level": (
        lambda conn: leased(conn, "m%", released(conn)),
        lambda conn, it: query(
            conn, "SELECT * FROM sayiir.job_fail_many(%s, %s, %s, kind => 'terminal')", it[1], it[2], ["x"] * len(it[1])
        ),
    ),
    "start": (None, lambda conn, _: start_graph(conn, WORKFLOW)),
    "start by name": (None, lambda conn, _: start(conn, "plan")),
    "start with every key": (
        early,
        lambda conn, it: start_graph(conn, WORKFLOW, workflow_id=it, idempotency_key=it, active_key=it),
    ),
    "start again": (
        lambda conn: fresh(idempotency_key=str(uuid.uuid4()))(conn),
        lambda conn, it: start_graph(conn, WORKFLOW, workflow_id=it, on_conflict="use_existing"),
    ),
    "start over": (
        lambda conn: fresh(workflow_id=str(uuid.uuid4()))(conn),
        lambda conn, it: start_graph(conn, WORKFLOW, workflow_id=it, on_conflict="terminate_existing"),
    ),
    "cancel": (released, asks("workflow_cancel")),
    "pause": (released, asks("workflow_pause")),
    "resume": (paused, asks("workflow_resume")),
    "complete a step": (
        released,
        lambda conn, it: query(conn, "SELECT sayiir.workflow_complete_step(%s, 'e', output => '1')", it),
    ),
    "delete": (finished, asks("workflow_delete")),
    "time out an event": (overdue, lambda conn, _: conn.execute("SELECT * FROM sayiir.tick()")),
    "status": (released, asks("workflow_status")),
    "wait": (released, lambda conn, it: query(conn, "SELECT sayiir.workflow_wait(%s, '0')", it)),
    "get": (released, asks("workflow_get")),
    "steps": (released, asks("workflow_steps")),
    "history": (released, asks("workflow_history")),
    "explain": (released, asks("workflow_explain")),
}


# These show people few rows in an order of their own.
SHOW = {"status", "wait", "get", "steps", "history", "explain", "complete a step"}
# Of each ready step it counts the jobs before it, up to 1000; and it reads once what workers do now.
COUNTED = {"explain": 1000 * (FAN + 2)}
ONCE = {"explain": "job_lease"}


@pytest.fixture(scope="module")
def backend(cluster, db, no_worker):  # noqa: F811
    """A backend by what the planner knew when it planned: nothing of empty tables, nothing of full ones, or all of them."""
    found = {}

    def run_all(conn):
        for need, run in CALLS.values():
            run(conn, need(conn) if need else None)
        return conn

    def get(planned):
        if planned not in found:
            if planned == "analyzed":
                found["empty"].execute("ANALYZE")
            found[planned] = run_all(cluster.connect(db))
        return found[planned]

    found["empty"] = cluster.connect(db)
    for table in TABLES:
        found["empty"].execute(f"ALTER TABLE sayiir.{table} SET (autovacuum_enabled = off)")
    define(found["empty"], WORKFLOW)
    run_all(found["empty"]).execute(LOAD)
    yield get
    for conn in found.values():
        conn.close()


def wrong(name, statement, plan):
    """What in this plan would cost more with larger tables."""
    for node, above in nodes(plan):
        table = node.get("Relation Name")
        if table not in TABLES or node["Node Type"] == "ModifyTable":
            continue
        if table == ONCE.get(name) and node["Actual Loops"] == 1:
            continue
        rows = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        sorted_ = any(up["Node Type"] in ("Sort", "Incremental Sort") for up in above)
        # Owners are locked in order.
        may_sort = name in SHOW or "FOR NO KEY UPDATE" in statement
        if node["Node Type"] == "Seq Scan" or rows > COUNTED.get(name, ROWS) or (sorted_ and not may_sort):
            yield node["Node Type"], table, rows, statement


def sequential_scans(conn):
    """How often this transaction has read each table from end to end, as the server counts."""
    rows = query(conn, "SELECT relname, seq_scan FROM pg_stat_xact_user_tables WHERE schemaname = 'sayiir'")
    return {row["relname"]: row["seq_scan"] for row in rows if row["relname"] in TABLES}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("planned", ["empty", "stale", "analyzed"])
def test_a_call_reads_what_it_is_about(backend, planned, name):
    conn, (need, run) = backend(planned), CALLS[name]
    for _ in range(ROUNDS - 1):
        run(conn, need(conn) if need else None)
    given = need(conn) if need else None
    can_explain = has_auto_explain(conn)
    with conn.transaction():
        before = sequential_scans(conn)
        if can_explain:
            with explained(conn) as plans:
                run(conn, given)
            assert plans
            assert [found for statement, plan in plans for found in wrong(name, statement, plan)] == []
        else:
            run(conn, given)
        after = sequential_scans(conn)
    grown = {table for table, count in after.items() if count > before.get(table, 0)}
    assert grown - {ONCE.get(name)} == set()


def test_1000_steps_are_released_and_joined_in_a_few_statements(conn):
    if not has_auto_explain(conn):
        pytest.skip("this package of Postgres has no auto_explain")
    middle = [task(f"m{n}", "a") | {"task": "middle"} for n in range(1000)]
    workflow_id, _ = start_graph(conn, graph(task("a"), *middle, task("z", *(f"m{n}" for n in range(1000)))))
    leases = leased(conn, workflow_id=workflow_id)
    with explained(conn) as plans:
        complete_many(conn, leases)
    assert len(plans) <= 12, [statement for statement, _ in plans]
    leases = leased(conn, "m%", workflow_id)
    assert len(leases[1]) == 1000
    with explained(conn) as plans:
        complete_many(conn, leases)
    assert len(plans) <= 12, [statement for statement, _ in plans]
    states = query(conn, "SELECT status, count(*) FROM sayiir.workflow_steps(%s) GROUP BY 1 ORDER BY 1", workflow_id)
    assert states == [{"status": "ready", "count": 1}, {"status": "succeeded", "count": 1001}]


def test_1000_event_steps_are_released_in_a_few_statements(conn):
    if not has_auto_explain(conn):
        pytest.skip("this package of Postgres has no auto_explain")
    steps = [event(f"e{n}", "a", event=f"e{n % 500}") for n in range(1000)]
    workflow_id, _ = start_graph(
        conn, graph(task("a"), *steps, task("z", *(on(f"e{n}", "terminal") for n in range(1000))))
    )
    # Three times more of the names 0 to 99 than the two steps that wait for each.
    conn.execute(
        "SELECT count(sayiir.workflow_send_event(%s, 'e' || n %% 100, to_jsonb(n))) FROM generate_series(0, 499) n",
        [workflow_id],
    )
    leases = leased(conn, workflow_id=workflow_id)
    with explained(conn) as plans:
        complete_many(conn, leases)
    assert len(plans) <= 12, [statement for statement, _ in plans]
    rows = query(
        conn, "SELECT event, status, output FROM sayiir.steps WHERE workflow_id = %s AND kind = 'event'", workflow_id
    )
    assert sorted(row["output"] for row in rows if row["status"] == "succeeded") == list(range(200))
    assert sum(row["status"] == "waiting" for row in rows) == 800
    assert value(conn, "SELECT count(*) FROM sayiir.events WHERE workflow_id = %s", workflow_id) == 300


def wide(draw):
    """600 steps with 2,390 edges in levels of 60: each step comes after four of the level before, but for ten edges less."""
    steps, edges = [], 2390
    levels = [[f"l{level}n{n}" for n in range(60)] for level in range(10)]
    for level, keys in enumerate(levels):
        for key in keys:
            width = min(5 if level > 1 else 4, edges - 0) if level else 0
            after = draw.sample(levels[level - 1], width) if level else []
            steps.append(task(key, *after) | {"task": "wide"})
    total = sum(len(step["after"]) for step in steps)
    for step in reversed(steps):
        while total > edges and len(step["after"]) > 1:
            step["after"].pop()
            total -= 1
    assert (len(steps), total) == (600, edges)
    draw.shuffle(steps)
    return graph(*steps)


def test_600_steps_with_2390_edges(conn):
    """Starting costs the row and the root steps, whatever the size; and the first level releases the second."""
    definition = wide(random.Random(1))
    workflow_id, _ = start_graph(conn, definition)
    jobs = "SELECT count(*) FROM sayiir.job j JOIN sayiir.workflow w ON w.id = j.workflow WHERE w.workflow_id = %s"
    assert value(conn, jobs, workflow_id) == 60
    again, _ = start_graph(conn, json.loads(json.dumps(definition)))
    assert (
        value(
            conn,
            "SELECT count(DISTINCT definition_hash) FROM sayiir.workflow WHERE workflow_id IN (%s, %s)",
            workflow_id,
            again,
        )
        == 1
    )
    if has_auto_explain(conn):
        with explained(conn) as plans:
            start_graph(conn, definition)
        assert len(plans) <= 8, [statement for statement, _ in plans]
    # Level by level, each in one batch.
    for level in range(10):
        _, ids, epochs = leased(conn, "%", workflow_id)
        assert len(ids) == 60, level
        rows = query(conn, "SELECT disposition FROM sayiir.job_complete_many(%s, %s)", ids, epochs)
        assert {row["disposition"] for row in rows} == {"completed"}
    assert value(conn, "SELECT sayiir.workflow_status(%s)", workflow_id) == "succeeded"
