"""A server without shared_preload_libraries: claims and tick() do what the background worker would do."""

import pytest

from flows import Flow, delay, event, healthy, task, value
from jobs import a_task, call, claim_one, complete, enqueue, get, in_background, leased, one, refused
from listening import Listener, finished
from support import wait_until


@pytest.fixture(scope="module", autouse=True)
def not_preloaded(cluster, db):
    with cluster.connect() as conn:
        # ALTER SYSTEM cannot make a list empty; this library is there and changes nothing.
        conn.execute("ALTER SYSTEM SET shared_preload_libraries = plpgsql")
    cluster.restart()
    with cluster.connect() as conn:
        assert value(conn, "SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ '^sayiir'") == 0
    yield
    with cluster.connect() as conn:
        conn.execute("ALTER SYSTEM RESET shared_preload_libraries")
    cluster.restart()


def test_a_workflow(conn, connect):
    """Delays and timeouts fire by tick(), listeners and waiting calls learn of what happens."""
    listener = Listener(connect())
    flow = Flow(
        conn,
        task("work"),
        delay("pause", "work", delay="10 ms"),
        event("approved", "pause", timeout="10 ms", on_timeout="skip"),
        event("signed", "pause"),
        task("report", "signed", {"step": "approved", "on": "terminal"}),
    )
    listener.wait_for(flow.task("work"))
    flow.complete("work")
    assert flow.states["pause"] == "waiting"
    # Nobody else moves it.
    wait_until(lambda: call(conn, "tick") and flow.states["pause"] == "succeeded")
    wait_until(lambda: call(conn, "tick") and flow.states["approved"] == "skipped")
    assert flow.send("signed") == "resumed"
    listener.wait_for(flow.task("report"))
    waiting = in_background(call, connect(), "workflow_wait", flow.id, "10 s")
    flow.complete("report", "done")
    assert waiting.join()[0].workflow_wait == "succeeded"
    listener.wait(finished(flow.id, "succeeded"))
    assert flow.result() == "done"
    assert healthy(conn) == []


def test_tick_ends_leases_and_deadlines(conn):
    job = leased(conn, options={"lease": "10 ms"})
    flow = Flow(conn, event("never"), timeout="10 ms")
    done = {"leases": 0, "deadlines": 0}

    def swept():
        for row in call(conn, "tick"):
            if row.kind in done:
                done[row.kind] += row.done
        return all(done.values())

    wait_until(swept)
    assert get(conn, job.job_id).attempt == 1
    assert get(conn, job.job_id).status in ("ready", "waiting", "scheduled")
    with refused("job.lease_lost"):
        one(conn, "job_complete", job.job_id, job.epoch)
    assert flow.status == "failed"


def test_claims_do_it_on_the_way(conn):
    """Without any tick: a claim takes up an expired lease, a due retry and a job whose time has come."""
    name = a_task()
    lost = enqueue(conn, name, options={"retry": {"initial": "10ms", "jitter": 0}})
    claim_one(conn, name, lease="10 ms")
    later = enqueue(conn, name, run_at=value(conn, "SELECT clock_timestamp() + interval '20 ms'"))
    taken = {}

    def both():
        for job in call(conn, "job_claim", "next", [name], 2):
            taken[job.job_id] = job.attempt
            complete(conn, job)
        return len(taken) == 2

    wait_until(both)
    assert taken == {lost: 2, later: 1}


def test_a_waiting_claim_gets_what_comes(conn, connect):
    name = a_task()
    waiting = in_background(call, connect(), "job_claim", "patient", [name], 1, None, [], "10 s")
    job_id = enqueue(conn, name)
    [job] = waiting.join()
    assert job.job_id == job_id
    complete(conn, job)
