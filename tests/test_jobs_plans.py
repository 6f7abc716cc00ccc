"""Cost: no call reads a hot or wide table from end to end or sorts it, however large it is and whatever the planner believes."""

import json

import psycopg
import pytest
from psycopg.types.json import Jsonb

from jobs import call, claim, enqueue, expire, no_worker, value  # noqa: F401

pytestmark = pytest.mark.usefixtures("no_worker")

TABLES = ["job", "job_ready", "job_lease", "job_wait", "job_end", "job_attempt"]
BATCH = 10
# A call about BATCH jobs may look at so many rows of one table: each of them a few times.
ROWS = 12 * BATCH
# A plan is generic at the latest at the sixth execution.
ROUNDS = 7

FINISHED, READY, FOREIGN, LEASED, WAITING = 60_000, 10_000, 40_000, 10_000, 20_000

_LOAD = f"""
CREATE TEMP TABLE new AS SELECT n, gen_random_uuid() AS job_id, CASE
    WHEN n <= {FINISHED} THEN 'end'
    WHEN n <= {FINISHED + READY} THEN 'ready'
    WHEN n <= {FINISHED + READY + FOREIGN} THEN 'foreign'
    WHEN n <= {FINISHED + READY + FOREIGN + LEASED} THEN 'lease'
    ELSE 'wait' END AS place
FROM generate_series(1, {FINISHED + READY + FOREIGN + LEASED + WAITING}) n;
INSERT INTO sayiir.job (job_id, task, lane, payload, max_attempts, retry_initial_us, retry_factor, retry_max_us, retry_jitter,
    lease_us, created_at, history_seq)
SELECT job_id, 'plan', (SELECT min(l.lane) FROM sayiir.lane l WHERE CASE WHEN place = 'foreign' THEN l.tags <> '{{}}' ELSE l.priority = 50 END),
    '{{}}', 5, 1000000, 2, 300000000, 0.1, 60000000, clock_timestamp(), nextval('sayiir.history_seq')
FROM new;
INSERT INTO sayiir.job_end (job_id, state, epoch, run_number, attempt, ended_at, history_seq)
SELECT job_id, 'succeeded', 1, 1, 1, clock_timestamp(), nextval('sayiir.history_seq') FROM new WHERE place = 'end';
INSERT INTO sayiir.job_attempt (job_id, run_number, attempt, epoch, kind, ended_at, disposition, history_seq)
SELECT job_id, 1, 1, 1, 'retryable', clock_timestamp(), 'retry', nextval('sayiir.history_seq') FROM new WHERE place = 'end';
INSERT INTO sayiir.job_ready (job_id, lane, seq, run_number, attempt, epoch)
SELECT job_id, (SELECT lane FROM sayiir.job j WHERE j.job_id = new.job_id), nextval('sayiir.ready_seq'), 1, 0, 0
FROM new WHERE place IN ('ready', 'foreign');
INSERT INTO sayiir.job_lease (job_id, lane, worker, epoch, run_number, attempt, lease_us, started_at, expires_at, check_at)
SELECT job_id, (SELECT min(lane) FROM sayiir.lane WHERE priority = 50), 'w', 1, 1, 1, 60000000, clock_timestamp(),
    clock_timestamp() + interval '1 day', clock_timestamp() + interval '1 day'
FROM new WHERE place = 'lease';
INSERT INTO sayiir.job_wait (job_id, lane, reason, due, seq, run_number, attempt, epoch, since)
SELECT job_id, (SELECT min(lane) FROM sayiir.lane WHERE priority = 50), CASE WHEN n % 2 = 0 THEN 'run_at' ELSE 'retry' END::sayiir.wait_reason,
    clock_timestamp() + interval '1 day', nextval('sayiir.wait_seq'), 1, 0, 0, clock_timestamp()
FROM new WHERE place = 'wait';
DROP TABLE new
"""


def lease(conn):
    call(conn, "job_enqueue_many", "plan", Jsonb([1] * BATCH), priority=99)
    jobs = claim(conn, "plan", max_jobs=BATCH, tags=["mine"])
    assert len(jobs) == BATCH
    return [job.job_id for job in jobs], [job.epoch for job in jobs]


def waiting(conn):
    ids, epochs = lease(conn)
    call(conn, "job_fail_many", ids, epochs, ["e"] * BATCH)
    conn.execute("UPDATE sayiir.job_wait SET due = clock_timestamp() WHERE job_id = ANY (%s)", [ids])
    return ids


def expired(conn):
    ids, _ = lease(conn)
    expire(conn, *ids)
    return ids


def dead(conn):
    ids, epochs = lease(conn)
    call(conn, "job_fail_many", ids, epochs, ["e"] * BATCH, kind="terminal")
    return ids


def requested(conn):
    """A cancelled job that nobody leases yet has its request, as after a claim that was rolled back."""
    job_id = enqueue(conn, "plan")
    conn.execute("INSERT INTO sayiir.signal (job_id, kind) VALUES (%s, 'cancel')", [job_id])


# name: (what it needs, the call)
CALLS = {
    "enqueue": (None, lambda conn, _: call(conn, "job_enqueue", "plan", priority=1)),
    "enqueue with a key": (
        lambda conn: value(conn, "SELECT gen_random_uuid()::text"),
        lambda conn, key: [call(conn, "job_enqueue", "plan", idempotency_key=key) for _ in range(2)],
    ),
    "enqueue many": (None, lambda conn, _: call(conn, "job_enqueue_many", "plan", Jsonb([1] * BATCH), priority=1)),
    "claim": (None, lambda conn, _: claim(conn, "plan", max_jobs=BATCH)),
    "claim one": (None, lambda conn, _: claim(conn, "plan")),
    "claim with foreign tags at the head": (None, lambda conn, _: claim(conn, "plan", max_jobs=BATCH, tags=["mine"])),
    "claim any task": (None, lambda conn, _: claim(conn, "*", max_jobs=BATCH)),
    "claim nothing": (None, lambda conn, _: claim(conn, "no such task")),
    "heartbeat": (lease, lambda conn, jobs: call(conn, "job_heartbeat", jobs[0][0], jobs[1][0])),
    "heartbeat many": (lease, lambda conn, jobs: call(conn, "job_heartbeat_many", *jobs)),
    "complete": (lease, lambda conn, jobs: call(conn, "job_complete", jobs[0][0], jobs[1][0])),
    "complete many": (lease, lambda conn, jobs: call(conn, "job_complete_many", *jobs)),
    "complete again": (
        lease,
        lambda conn, jobs: [call(conn, "job_complete_many", *jobs) for _ in range(2)],
    ),
    "fail": (lease, lambda conn, jobs: call(conn, "job_fail", jobs[0][0], jobs[1][0], "e")),
    "fail many": (lease, lambda conn, jobs: call(conn, "job_fail_many", *jobs, ["e"] * BATCH)),
    "fail again": (lease, lambda conn, jobs: [call(conn, "job_fail_many", *jobs, ["e"] * BATCH) for _ in range(2)]),
    "fail for good": (lease, lambda conn, jobs: call(conn, "job_fail_many", *jobs, ["e"] * BATCH, kind="terminal")),
    "release": (lease, lambda conn, jobs: call(conn, "job_release", jobs[0][0], jobs[1][0])),
    "reap": (expired, lambda conn, _: call(conn, "job_reap")),
    "promote": (waiting, lambda conn, _: call(conn, "tick")),
    "sweep a request": (requested, lambda conn, _: call(conn, "tick")),
    "sweep nothing": (None, lambda conn, _: call(conn, "tick")),
    "next due": (None, lambda conn, _: call(conn, "next_due")),
    "cancel": (lambda conn: enqueue(conn, "plan"), lambda conn, job_id: call(conn, "job_cancel", job_id)),
    "cancel a lease": (lease, lambda conn, jobs: call(conn, "job_cancel", jobs[0][0])),
    "requeue": (dead, lambda conn, ids: call(conn, "job_requeue", ids[0])),
    "result": (lease, lambda conn, jobs: complete_and_ask(conn, jobs)),
    "get": (lambda conn: enqueue(conn, "plan"), lambda conn, job_id: call(conn, "job_get", job_id)),
}


def complete_and_ask(conn, jobs):
    call(conn, "job_complete_many", *jobs)
    call(conn, "job_result", jobs[0][0])


@pytest.fixture(scope="module")
def backend(cluster, db):
    """A backend by what the planner knew when it planned: an empty queue, nothing of a full one, or all of it.

    Statistics make every backend plan again, so those of the full queue come last.
    """
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
    enqueue(found["empty"], "plan", priority=99, tags=["foreign"])
    run_all(found["empty"]).execute(_LOAD)
    yield get
    for conn in found.values():
        conn.close()


def counters(conn):
    query = "SELECT relname, seq_tup_read + seq_scan, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE schemaname = 'sayiir'"
    return {table: (seq, index) for table, seq, index in conn.execute(query) if table in TABLES}


def explain(conn):
    """Whether plans can be had: not every package brings auto_explain."""
    try:
        conn.execute("LOAD 'auto_explain'")
    except psycopg.errors.UndefinedFile:
        return False
    for name, setting in [
        ("log_min_duration", "0"),
        ("log_nested_statements", "on"),
        ("log_analyze", "on"),
        ("log_timing", "off"),
        ("log_format", "json"),
    ]:
        conn.execute(f"SET auto_explain.{name} = '{setting}'")
    return True


def nodes(plan, above=()):
    yield plan, above
    for child in plan.get("Plans", []):
        yield from nodes(child, (plan, *above))


def wrong(query, plan):
    """What in this plan would cost more with larger tables."""
    for node, above in nodes(plan):
        if node.get("Relation Name") not in TABLES or node["Node Type"] == "ModifyTable":
            continue
        rows = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        sorts = [up for up in above if up["Node Type"] in ("Sort", "Incremental Sort")]
        # Sorting what was looked up job by job is fine, and so is a bitmap of it, which functions that only read may use.
        looked_up = "job_id = " in node.get("Index Cond", node.get("Recheck Cond", ""))
        kinds = ["Index Scan", "Index Only Scan", "Tid Scan"] + ["Bitmap Heap Scan"] * looked_up
        if node["Node Type"] not in kinds or rows > ROWS or (sorts and not looked_up):
            yield node["Node Type"], node["Relation Name"], rows, node.get("Index Cond"), " ".join(query.split())


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("planned", ["empty", "stale", "analyzed"])
def test_a_call_reads_what_it_is_about(backend, planned, name):
    conn, (need, run) = backend(planned), CALLS[name]
    for _ in range(ROUNDS - 1):
        run(conn, need(conn) if need else None)
    given = need(conn) if need else None
    plans = []
    handler = lambda notice: plans.append(notice.message_primary)  # noqa: E731
    explained = explain(conn)
    conn.add_notice_handler(handler)
    try:
        with conn.transaction():
            before = counters(conn)
            if explained:
                conn.execute("SET LOCAL client_min_messages = log")
            run(conn, given)
            conn.execute("SET LOCAL client_min_messages = warning")
            after = counters(conn)
    finally:
        conn.remove_notice_handler(handler)
        if explained:
            conn.execute("SET auto_explain.log_min_duration = -1")
    for table, (seq, index) in after.items():
        assert seq == before.get(table, (0, 0))[0], f"sequential scan of {table}"
        assert index - before.get(table, (0, 0))[1] <= 3 * ROWS, f"too many rows of {table}"
    found = []
    for message in plans:
        if "plan:\n" in message:
            plan = json.loads(message.partition("plan:\n")[2])
            found += wrong(plan["Query Text"], plan["Plan"])
    assert found == []
    if explained:
        assert plans
