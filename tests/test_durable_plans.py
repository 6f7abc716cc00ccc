"""Cost of durable code: no call reads a table from end to end or sorts it, however many jobs wait and whatever the planner believes."""

import json

import pytest
from psycopg.types.json import Jsonb

import test_jobs_plans as plans
from durable import await_event, await_job, send, sleep, spawn
from jobs import call, claim, claim_one, complete, enqueue, fail, no_worker  # noqa: F401

pytestmark = pytest.mark.usefixtures("no_worker")

TABLES = [*plans.TABLES, "checkpoint", "event", "event_key", "job_log_entry", "signal"]
ROUNDS = plans.ROUNDS

_LOAD = """
INSERT INTO sayiir.job (job_id, depth, parent, task, lane, payload, max_attempts, retry_initial_us, retry_factor, retry_max_us,
    retry_jitter, lease_us, created_at, history_seq)
SELECT gen_random_uuid(), 1, j.job_id, j.task, j.lane, '{}', 5, 1000000, 2, 300000000, 0.1, 60000000, j.created_at, 1
FROM sayiir.job_wait JOIN sayiir.job j USING (job_id);
INSERT INTO sayiir.job_end (job_id, state, epoch, run_number, attempt, ended_at, history_seq)
SELECT job_id, 'succeeded', 1, 1, 1, clock_timestamp(), 1 FROM sayiir.job WHERE parent IS NOT NULL
ON CONFLICT DO NOTHING;
UPDATE sayiir.job_wait w SET reason = (ARRAY['delay', 'event', 'child'])[1 + seq % 3]::sayiir.wait_reason,
    event = CASE seq % 3 WHEN 1 THEN 'go' END
WHERE job_id NOT IN (SELECT job_id FROM sayiir.checkpoint);
INSERT INTO sayiir.checkpoint (job_id, name, kind, epoch, created_at)
SELECT w.job_id, n, 'event', 0, clock_timestamp() FROM sayiir.job_wait w, unnest('{a,b,c}'::text[]) n ON CONFLICT DO NOTHING;
INSERT INTO sayiir.event (job_id, name, disposition) SELECT job_id, 'go', 'buffered' FROM sayiir.job_end;
INSERT INTO sayiir.event_key (job_id, event_key) SELECT job_id, 'k' FROM sayiir.job_end;
INSERT INTO sayiir.job_log_entry (job_id, run_number, attempt, epoch, level, message, fields, at)
SELECT job_id, 1, 1, 1, 'info', 'm', '{}', clock_timestamp() FROM sayiir.job_end
"""


def one_lease(conn):
    while claim(conn, "durable", "child", max_jobs=100):
        pass  # what calls before have left ready
    enqueue(conn, "durable")
    return claim_one(conn, "durable")


def parked(conn):
    job = one_lease(conn)
    await_event(conn, job)
    return job


def family(conn):
    parent = one_lease(conn)
    spawn(conn, parent, "child")
    child = claim_one(conn, "child")
    await_job(conn, parent, child)
    return child


def remembering(conn):
    job = one_lease(conn)
    call(conn, "job_checkpoint", job.job_id, job.epoch, "n", Jsonb(1))
    call(conn, "job_release", job.job_id, job.epoch)


def slept(conn):
    job = one_lease(conn)
    sleep(conn, job, delay="1 hour")
    conn.execute("UPDATE sayiir.job_wait SET due = clock_timestamp() WHERE job_id = %s", [job.job_id])


def with_children(conn):
    parent = one_lease(conn)
    spawn(conn, parent, "child", options=Jsonb({"run_at": "2100-01-01"}))
    sleep(conn, parent, delay="1 hour")
    return parent


def buffered(conn):
    job = one_lease(conn)
    send(conn, job)
    return job


# name: (what it needs, the call)
CALLS = {
    "checkpoint": (
        one_lease,
        lambda conn, job: [call(conn, "job_checkpoint", job.job_id, job.epoch, "n", Jsonb(n)) for n in range(2)],
    ),
    "log": (one_lease, lambda conn, job: call(conn, "job_log", job.job_id, job.epoch, "info", "m")),
    "claim with checkpoints": (remembering, lambda conn, _: claim(conn, "durable")),
    "sleep": (one_lease, lambda conn, job: sleep(conn, job, delay="1 hour")),
    "await an event": (one_lease, await_event),
    "take an event": (buffered, await_event),
    "send to a wait": (parked, send),
    "send with a key": (one_lease, lambda conn, job: [send(conn, job, event_key="k") for _ in range(2)]),
    "spawn": (one_lease, lambda conn, job: [spawn(conn, job, "child") for _ in range(2)]),
    "complete a child": (family, complete),
    "fail a child": (family, lambda conn, job: fail(conn, job, kind="terminal")),
    "sweep a sleep": (slept, lambda conn, _: call(conn, "tick")),
    "cancel with children": (with_children, lambda conn, job: call(conn, "job_cancel", job.job_id)),
    "continue": (one_lease, lambda conn, job: call(conn, "job_continue", job.job_id, job.epoch)),
}


@pytest.fixture(scope="module")
def backend(cluster, db, no_worker):  # noqa: F811
    """A backend by what the planner knew when it planned, as in test_jobs_plans."""
    found = {}

    def run_all(conn):
        for need, run in CALLS.values():
            run(conn, need(conn))
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
    enqueue(found["empty"], "plan")
    run_all(found["empty"]).execute(plans._LOAD)
    found["empty"].execute(_LOAD)
    yield get
    for conn in found.values():
        conn.close()


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("planned", ["empty", "stale", "analyzed"])
def test_a_call_reads_what_it_is_about(backend, planned, name, monkeypatch):
    monkeypatch.setattr(plans, "TABLES", TABLES)
    conn, (need, run) = backend(planned), CALLS[name]
    for _ in range(ROUNDS - 1):
        run(conn, need(conn))
    given = need(conn)
    told = []
    handler = lambda notice: told.append(notice.message_primary)  # noqa: E731
    explained = plans.explain(conn)
    conn.add_notice_handler(handler)
    try:
        with conn.transaction():
            before = plans.counters(conn)
            if explained:
                conn.execute("SET LOCAL client_min_messages = log")
            run(conn, given)
            conn.execute("SET LOCAL client_min_messages = warning")
            after = plans.counters(conn)
    finally:
        conn.remove_notice_handler(handler)
        if explained:
            conn.execute("SET auto_explain.log_min_duration = -1")
    for table, (seq, index) in after.items():
        # signal holds what workers have not answered yet; a sweep reads it whole.
        assert table == "signal" or seq == before.get(table, (0, 0))[0], f"sequential scan of {table}"
        assert index - before.get(table, (0, 0))[1] <= 3 * plans.ROWS, f"too many rows of {table}"
    found = []
    for message in told:
        if "plan:\n" in message:
            plan = json.loads(message.partition("plan:\n")[2])
            found += plans.wrong(plan["Query Text"], plan["Plan"])
    assert found == []
    if explained:
        assert told
