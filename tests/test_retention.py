"""What has ended long ago goes, with all that is its own; what is live, young or somebody else's concern stays."""

import psycopg
import pytest

from flows import Flow, event, healthy, query, refused, send, task, value
from jobs import a_task, assert_sound, call, claim_one, complete, enqueue, expire, fail, get, in_background, leased, one
from jobs import no_worker as no_worker
from plans import explained, has_auto_explain, nodes
from support import wait_for_lock, wait_until

pytestmark = pytest.mark.usefixtures("no_worker")

KINDS = ["workflows", "jobs", "events", "logs"]

# Ended jobs of two months ago: their ids are as old as they are.
OLD_JOBS = """
WITH new AS (
    SELECT n, (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7000' || lpad(to_hex(n), 16, '8'))::uuid AS job_id, at
    FROM generate_series(1, %(count)s) n, LATERAL (SELECT clock_timestamp() - interval '60 days' + n * interval '1 ms') t (at)),
job AS (
    INSERT INTO sayiir.job (job_id, workflow, step, item_index, task, max_attempts, retry_initial_us, retry_factor, retry_max_us,
        retry_jitter, lease_us, created_at, history_seq)
    SELECT job_id, %(workflow)s::bigint, CASE WHEN %(workflow)s::bigint IS NOT NULL THEN 's' END, CASE WHEN %(workflow)s::bigint IS NOT NULL THEN n END, 'old',
        1, 0, 1, 0, 0, 0, at, nextval('sayiir.history_seq') FROM new),
attempt AS (
    INSERT INTO sayiir.job_attempt (job_id, run_number, attempt, epoch, kind, ended_at, disposition, history_seq)
    SELECT job_id, 1, 1, 1, 'retryable', at, 'retry', nextval('sayiir.history_seq') FROM new)
INSERT INTO sayiir.job_end (job_id, state, epoch, run_number, attempt, ended_at, history_seq)
SELECT job_id, 'succeeded', 1, 1, 1, at, nextval('sayiir.history_seq') FROM new
"""


def load(conn, count, workflow=None):
    conn.execute(OLD_JOBS, {"count": count, "workflow": workflow})


@pytest.fixture(autouse=True)
def nothing_old(conn):
    """Each test begins with a database in which nothing has ended."""
    yield
    conn.execute(
        "DELETE FROM sayiir.job_end; DELETE FROM sayiir.job_attempt; DELETE FROM sayiir.event; DELETE FROM sayiir.event_key"
    )
    conn.execute(
        "DELETE FROM sayiir.job j WHERE NOT EXISTS (SELECT FROM sayiir.job_now n WHERE n.job_id = j.job_id AND n.status IS NOT NULL)"
    )
    conn.execute("UPDATE sayiir.retention SET place = '', due = '-infinity'")


@pytest.fixture
def brief(connect):
    """A connection for which everything is old a millisecond after it has ended."""
    conn = connect()
    for kind in KINDS:
        conn.execute(f"SET sayiir.retention_{kind} = '1 ms'")
    return conn


def prune(conn, *args):
    return {kind: done for kind, done in call(conn, "prune", *args) if done}


def prune_until(conn, kind, count):
    """Prunes until so many rows of a kind are gone: the last may have ended in this very millisecond."""
    total = 0

    def enough():
        nonlocal total
        total += prune(conn).get(kind, 0)
        return total >= count

    wait_until(enough)
    assert total == count


def count(conn, table, column, ids):
    return value(conn, f"SELECT count(*) FROM sayiir.{table} WHERE {column} = ANY (%s)", ids)


def test_jobs_go_with_all_that_is_theirs(conn, brief):
    done = leased(conn, idempotency_key="once")
    complete(conn, done)
    dead = leased(conn, max_attempts=1)
    fail(conn, dead)
    stopped = leased(conn)
    call(conn, "job_cancel", stopped.job_id)
    complete(conn, stopped)
    ids = [job.job_id for job in (done, dead, stopped)]
    prune_until(brief, "jobs", 3)
    for table in ["job", "job_end", "job_attempt", "signal"]:
        assert count(conn, table, "job_id", ids) == 0, table
    assert call(conn, "job_get", done.job_id) == []
    # Its key is free again.
    assert one(conn, "job_enqueue", done.task, idempotency_key="once").disposition == "inserted"
    assert_sound(conn)


def test_live_jobs_stay(conn, brief):
    lease = leased(conn)
    held = leased(conn, max_attempts=1, options={"on_exhausted": "hold"})
    assert fail(conn, held).disposition == "held"
    retried = leased(conn)
    fail(conn, retried)
    ids = [
        lease.job_id,
        held.job_id,
        retried.job_id,
        enqueue(conn, a_task()),
        enqueue(conn, a_task(), run_at="2100-01-01"),
    ]
    assert "jobs" not in prune(brief)
    assert count(conn, "job", "job_id", ids) == 5
    assert count(conn, "job_attempt", "job_id", ids) == 2
    call(conn, "job_cancel", lease.job_id)
    complete(conn, lease)
    assert_sound(conn)


def test_workflows_go_with_all_that_is_theirs(conn, brief):
    flow = Flow(conn, task("a"), task("b"), event("c"), task("d", "a", "b", "c"), start={"active_key": "k"})
    flow.send("c", 1, "key")
    flow.send("more", 1, "other key")
    call(conn, "workflow_pause", flow.id)
    call(conn, "workflow_resume", flow.id)
    for step in "abd":
        flow.complete(step, step)
    assert (flow.status, flow.send("c")) == ("succeeded", "late")
    key = value(conn, "SELECT id FROM sayiir.workflow WHERE workflow_id = %s", flow.id)
    jobs = [step["job_id"] for step in flow.steps()]
    prune_until(brief, "workflows", 1)
    assert flow.status is None
    for table in ["job", "step_pending", "workflow_log", "event", "workflow_active"]:
        assert count(conn, table, "workflow", [key]) == 0, table
    for table in ["job_end", "job_attempt"]:
        assert count(conn, table, "job_id", jobs) == 0, table
    assert count(conn, "event_key", "workflow_id", [flow.id]) == 0
    # A new one may have its id.
    assert Flow(conn, task("a"), start={"workflow_id": flow.id, "active_key": "k"}).disposition == "started"
    assert healthy(conn) == []


def test_open_workflows_stay(conn, brief):
    flow = Flow(conn, task("a"), event("b", "a"), task("c", "b"))
    flow.complete("a")
    flow.send("other")
    paused = Flow(conn, task("a"))
    call(conn, "workflow_pause", paused.id)
    assert prune(brief) == {}
    assert flow.states == {"a": "succeeded", "b": "waiting", "c": "blocked"}
    assert flow.send("b") == "resumed"
    flow.complete("c")
    assert flow.status == "succeeded"


def test_a_cancelled_workflow_stays_until_its_lease_has_ended(conn, brief):
    flow = Flow(conn, task("a"))
    job = flow.claim("a")
    flow.cancel()
    prune(brief)
    assert flow.status == "cancelled"
    expire(conn, job["job_id"])
    call(conn, "tick")
    wait_until(lambda: prune(brief) is not None and flow.status is None)


def test_events(conn, brief):
    flow = Flow(conn, event("a"))
    flow.send("later", 1, "of one that is open")
    send(conn, "nobody", "early", 1, "of one that never came")
    done = Flow(conn, task("a"))
    done.complete("a")
    done.send("late", 1, "of one that has ended")
    brief.execute("SET sayiir.retention_workflows = '0'")

    def left():
        prune(brief)
        events = [row["name"] for row in query(conn, "SELECT name FROM sayiir.event")]
        keys = {row["event_key"] for row in query(conn, "SELECT event_key FROM sayiir.event_key")}
        return (events, keys) == (["later"], {"of one that is open", "of one that has ended"})

    wait_until(left)
    # What was pruned is unknown now, what was kept is not.
    assert flow.send("later", 1, "of one that is open") == "duplicate"
    assert send(conn, "nobody", "early", 1, "of one that never came") == "early"


def test_ticks_of_schedules(conn, brief):
    name = a_task()
    one(conn, "schedule_define", name, "0 0 1 1 *", task=a_task())
    for _ in range(3):
        call(conn, "schedule_run", name)
    prune_until(brief, "logs", 3)
    assert value(conn, "SELECT count(*) FROM sayiir.schedule_fire") == 0
    assert value(conn, "SELECT last_at IS NOT NULL FROM sayiir.schedules WHERE name = %s", name)


def test_what_is_kept_by_default(conn):
    shown = {kind: value(conn, f"SHOW sayiir.retention_{kind}") for kind in KINDS}
    assert shown == {"workflows": "30 days", "jobs": "30 days", "events": "7 days", "logs": "7 days"}
    complete(conn, leased(conn))
    Flow(conn, task("a")).complete("a")
    send(conn, "nobody", "early")
    assert prune(conn) == {}
    load(conn, 3)
    assert prune(conn) == {"jobs": 3}


def test_for_ever(conn, connect):
    load(conn, 3)
    keeper = connect()
    keeper.execute("SET sayiir.retention_jobs = '0'")
    assert prune(keeper) == {}
    keeper.execute("SET sayiir.retention_jobs = '61 days'")
    assert prune(keeper) == {}
    keeper.execute("SET sayiir.retention_jobs = '59 days'")
    assert prune(keeper) == {"jobs": 3}


def test_what_is_refused(conn, connect):
    wrong = connect()
    for text in ["soon", "-1 day", ""]:
        wrong.execute(f"SET sayiir.retention_events = '{text}'")
        with refused("argument.invalid") as fields:
            prune(wrong)
        assert fields["setting"] == "retention_events"
    for rows in [0, 100_001]:
        with refused("argument.out_of_range"):
            prune(conn, rows)
    # A sweep says it, and the other sweeps go on.
    notices = []
    wrong.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    assert dict(call(wrong, "tick"))["retention"] == 0
    assert any("retention_events" in text for text in notices)
    assert value(conn, "SELECT min(due) > clock_timestamp() FROM sayiir.retention")


def test_who_may(conn, connect):
    conn.execute("DO $$ BEGIN CREATE ROLE prune_worker LOGIN; EXCEPTION WHEN duplicate_object THEN END $$")
    conn.execute("GRANT sayiir_worker, sayiir_client TO prune_worker")
    worker = connect(user="prune_worker")
    for text in ["SELECT * FROM sayiir.prune()", "SET sayiir.retention_jobs = '1 ms'"]:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            worker.execute(text)


def test_oldest_first_and_so_many(conn, connect):
    load(conn, 250)
    first = value(conn, "SELECT min(job_id::text) FROM sayiir.job_end")
    assert prune(conn, 1) == {"jobs": 1}
    assert value(conn, "SELECT min(job_id::text) FROM sayiir.job_end") > first
    assert prune(conn, 100) == {"jobs": 100}
    # Another session goes on where this one stopped.
    assert prune(connect()) == {"jobs": 149}
    assert value(conn, "SELECT count(*) FROM sayiir.job_attempt") == 0


def test_a_walk_begins_again_behind_the_end(conn, brief):
    """A job that was passed by while it was too young, or held by somebody, is found later."""
    load(conn, 10)
    conn.execute("UPDATE sayiir.job_end SET ended_at = clock_timestamp()")
    assert prune(conn, 5) == {}
    conn.execute("UPDATE sayiir.job_end SET ended_at = clock_timestamp() - interval '31 days'")
    conn.execute(
        "UPDATE sayiir.retention SET place = (SELECT max(job_id::text) FROM sayiir.job_end) WHERE kind = 'jobs'"
    )
    assert prune(conn) == {"jobs": 10}


def test_progress_under_a_statement_timeout(conn, connect):
    """Each call ends itself in time and has got somewhere, however much there is."""
    total = 30_000
    load(conn, total)
    hasty = connect()
    hasty.execute("SET statement_timeout = '400 ms'")
    calls = 0
    while left := value(conn, "SELECT count(*) FROM sayiir.job_end"):
        done = prune(hasty, 100_000)["jobs"]
        calls += 1
        assert 0 < done <= left
        total -= done
    assert total == 0 and calls > 1
    assert value(conn, "SELECT count(*) FROM sayiir.job_attempt") == 0


def test_one_huge_workflow_under_a_statement_timeout(conn, connect):
    """Larger than what one statement may delete in its time."""
    flow = Flow(conn, task("a"))
    flow.complete("a")
    key = value(conn, "SELECT id FROM sayiir.workflow WHERE workflow_id = %s", flow.id)
    load(conn, 30_000, key)
    conn.execute(
        "UPDATE sayiir.workflow SET created_at = clock_timestamp() - interval '60 days',"
        " finished_at = clock_timestamp() - interval '59 days' WHERE id = %s",
        [key],
    )
    hasty = connect()
    hasty.execute("SET statement_timeout = '400 ms'")
    # Others before it were not created long ago.
    conn.execute("DELETE FROM sayiir.workflow WHERE id < %s", [key])
    calls = 0
    while flow.status:
        before = value(conn, "SELECT count(*) FROM sayiir.job WHERE workflow = %s", key)
        prune(hasty)
        calls += 1
        assert value(conn, "SELECT count(*) FROM sayiir.job WHERE workflow = %s", key) < before
    assert calls > 1
    assert count(conn, "job", "workflow", [key]) == 0


def test_it_never_blocks_a_claim(conn, connect):
    """While a prune has not committed, work goes on: nobody waits for a lock of it."""
    load(conn, 500)
    jobs = [enqueue(conn, "busy") for _ in range(3)]
    flow = Flow(conn, task("a"), event("b", "a"))
    pruner, other = connect(autocommit=False), connect()
    assert prune(pruner)["jobs"] == 500
    other.execute("SET lock_timeout = '1 ms'")
    for job in jobs:
        assert complete(other, claim_one(other, "busy")) == "succeeded"
        assert get(other, job).status == "succeeded"
    flow.complete("a", conn=other)
    assert flow.send("b", conn=other) == "resumed"
    assert send(other, "unborn", "hello") == "early"
    # Nor does a sweep wait for it.
    assert dict(call(other, "tick"))["retention"] == 0
    pruner.rollback()
    assert value(conn, "SELECT count(*) FROM sayiir.job WHERE task = 'old'") == 500


def test_a_job_that_is_being_requeued_stays(conn, connect, brief):
    job = leased(conn, max_attempts=1)
    fail(conn, job)
    other = leased(conn)
    complete(conn, other)
    requeuer = connect(autocommit=False)
    assert one(requeuer, "job_requeue", job.job_id).disposition == "requeued"
    prune_until(brief, "jobs", 1)
    requeuer.commit()
    prune(brief)
    assert get(conn, job.job_id).status == "ready"
    assert get(conn, job.job_id).attempt == 0


def test_a_requeue_behind_a_prune_finds_nothing(conn, connect, brief):
    job = leased(conn, max_attempts=1)
    fail(conn, job)
    brief.autocommit = False
    wait_until(lambda: prune(brief).get("jobs"))
    requeuer = connect()
    requeue = in_background(one, requeuer, "job_requeue", job.job_id)
    wait_for_lock(conn, requeuer.info.backend_pid)
    brief.commit()
    assert requeue.join().disposition == "not_found"
    for table in ["job", "job_end", "job_ready", "job_attempt"]:
        assert count(conn, table, "job_id", [job.job_id]) == 0, table


def test_an_early_event_that_is_being_adopted_stays(conn, connect, brief):
    send(conn, "slow birth", "hello", 1)
    brief.execute("SELECT pg_sleep(0.002)")
    starter = connect(autocommit=False)
    flow = Flow(starter, event("first"), event("hello", "first"), start={"workflow_id": "slow birth"})
    assert "events" not in prune(brief)
    starter.commit()
    flow.conn = conn
    flow.send("first")
    assert flow.step("hello")["output"] == 1


def test_a_row_that_cannot_go_does_not_stop_the_others(conn):
    load(conn, 10)
    bad = value(conn, "SELECT min(job_id::text) FROM sayiir.job_end")
    conn.execute(
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'evidence'; END $$;"
        f"CREATE TRIGGER keep BEFORE DELETE ON sayiir.job FOR EACH ROW WHEN (OLD.job_id = '{bad}') EXECUTE FUNCTION keep()"
    )
    try:
        notices = []
        conn.add_notice_handler(lambda notice: notices.append(notice.message_primary))
        assert prune(conn) == {"jobs": 9}
        assert any("sweep retention" in text and "evidence" in text for text in notices)
        assert query(conn, "SELECT job_id::text FROM sayiir.job_end") == [{"job_id": bad}]
    finally:
        conn.execute("DROP TRIGGER keep ON sayiir.job; DROP FUNCTION keep()")
    assert prune(conn) == {"jobs": 1}


def test_tick_prunes_a_little_and_not_always(conn):
    load(conn, 1000)
    assert dict(call(conn, "tick", 100))["retention"] == 100
    assert dict(call(conn, "tick", 900))["retention"] == 900
    while dict(call(conn, "tick"))["retention"] or value(
        conn, "SELECT min(due) <= clock_timestamp() FROM sayiir.retention"
    ):
        pass
    # All was looked at; the next look is not due yet.
    load(conn, 1)
    assert dict(call(conn, "tick"))["retention"] == 0
    conn.execute("UPDATE sayiir.retention SET due = clock_timestamp()")
    assert dict(call(conn, "tick"))["retention"] == 1


def test_many_prune_at_once(conn, connect):
    load(conn, 2000)
    pruners = [in_background(prune, connect()) for _ in range(4)]
    assert sum(pruner.join().get("jobs", 0) for pruner in pruners) == 2000


def test_isolation(connect):
    conn = connect()
    conn.execute("SET default_transaction_isolation = 'repeatable read'")
    with refused("call.isolation_unsupported"):
        prune(conn)


def test_it_reads_no_table_from_end_to_end(conn, connect):
    """However much is kept, a call looks at what it deletes and at keys beside it."""
    load(conn, 20_000)
    one(conn, "schedule_define", "ticks", "0 0 1 1 *", task="t")
    conn.execute(
        "INSERT INTO sayiir.schedule_fire SELECT id, '2020-01-01'::timestamptz + n * interval '1 s', 'started', NULL, NULL, '2020-01-01'"
        " FROM sayiir.schedule, generate_series(1, 5000) n"
    )
    conn.execute(
        "INSERT INTO sayiir.event (workflow_id, name, disposition, created_at)"
        " SELECT 'w' || n, 'e', 'early', '2020-01-01' FROM generate_series(1, 3000) n"
    )
    conn.execute(
        "INSERT INTO sayiir.event_key (workflow_id, event_key, created_at) SELECT 'w' || n, 'k', '2020-01-01' FROM generate_series(1, 3000) n"
    )
    # A younger one before it would end the walk.
    conn.execute("DELETE FROM sayiir.workflow")
    flow = Flow(conn, task("a"), task("b"))
    flow.complete("a")
    flow.complete("b")
    conn.execute(
        "UPDATE sayiir.workflow SET created_at = '2020-01-01', finished_at = '2020-01-02' WHERE workflow_id = %s",
        [flow.id],
    )
    pruner = connect()
    if not has_auto_explain(pruner):
        pytest.skip("this Postgres has no auto_explain")
    # Generic plans, made while nobody had analyzed anything.
    for _ in range(7):
        with explained(pruner) as plans:
            done = prune(pruner, 100)
        assert done.keys() >= {"jobs", "events", "event_keys", "logs"}
        looked = [node for _, plan in plans for node, _ in nodes(plan)]
        tables = ["job", "job_end", "job_attempt", "signal", "workflow", "event", "event_key", "schedule_fire"]
        assert [node for node in looked if node["Node Type"] == "Seq Scan" and node["Relation Name"] in tables] == []
        assert max(node["Actual Rows"] for node in looked if "Relation Name" in node) <= 400
    assert flow.status is None
