"""No interleaving of sending and waiting loses an event, or delivers it twice."""

import itertools
import json
import random
import threading

import pytest

from background import Background, together
from flows import Flow, event, graph, healthy, on, query, send, start_graph, task, value
from support import wait_until


@pytest.fixture
def other(connect):
    return connect()


@pytest.fixture
def third(connect):
    return connect()


@pytest.fixture(params=["commit", "rollback"])
def end(request):
    return request.param


def finish(conn, end):
    conn.execute(end.upper())


def buffered(conn, workflow_id):
    return value(conn, "SELECT count(*) FROM sayiir.events WHERE workflow_id = %s", workflow_id)


# Parking: the step before the event step completes.


def test_an_event_sent_while_its_wait_is_being_made(conn, other, third, end):
    flow = Flow(conn, task("a"), event("e", "a"))
    flow.claim("a")
    conn.execute("BEGIN")
    flow.complete("a")
    sending = Background(other, lambda conn: flow.send("e", 1, conn=conn)).is_blocked(third)
    finish(conn, end)
    assert sending.answer() == ("resumed" if end == "commit" else "buffered")
    assert flow.states["e"] == ("succeeded" if end == "commit" else "blocked")
    assert buffered(conn, flow.id) == (0 if end == "commit" else 1)


def test_a_wait_that_is_made_while_an_event_is_sent(conn, other, third, end):
    flow = Flow(conn, task("a"), event("e", "a"))
    flow.claim("a")
    conn.execute("BEGIN")
    assert flow.send("e", 1) == "buffered"
    parking = Background(other, lambda conn: flow.complete("a", conn=conn)).is_blocked(third)
    finish(conn, end)
    assert parking.answer() == "succeeded"
    assert flow.states["e"] == ("succeeded" if end == "commit" else "waiting")
    if end == "rollback":
        assert flow.send("e", 2) == "resumed"
    assert flow.status == "succeeded"


def test_a_second_event_waits_for_the_first(conn, other, third, end):
    flow = Flow(conn, event("e"), event("e2", "e"))
    conn.execute("BEGIN")
    assert flow.send("e", 1) == "resumed"
    second = Background(other, lambda conn: flow.send("e", 2, conn=conn)).is_blocked(third)
    finish(conn, end)
    assert second.answer() == ("buffered" if end == "commit" else "resumed")
    assert flow.step("e")["output"] == (1 if end == "commit" else 2)


def test_one_key_sent_twice_at_once(conn, other, third, end):
    flow = Flow(conn, task("a"), event("e", "a"))
    conn.execute("BEGIN")
    assert flow.send("e", 1, "k") == "buffered"
    second = Background(other, lambda conn: flow.send("e", 2, "k", conn=conn)).is_blocked(third)
    finish(conn, end)
    assert second.answer() == ("duplicate" if end == "commit" else "buffered")
    assert buffered(conn, flow.id) == 1


# Birth


def test_an_event_sent_during_a_birth(conn, other, third, end):
    workflow_id = f"sent during birth {end}"
    conn.execute("BEGIN")
    start_graph(conn, graph(event("e"), task("t", "e")), workflow_id=workflow_id)
    sending = Background(other, lambda conn: send(conn, workflow_id, "e", 1)).is_blocked(third)
    # It waits at the advisory lock of the birth, not at a row that it cannot see.
    waits = "SELECT locktype FROM pg_locks WHERE pid = %s AND NOT granted"
    assert query(third, waits, other.info.backend_pid) == [{"locktype": "advisory"}]
    finish(conn, end)
    assert sending.answer() == ("resumed" if end == "commit" else "early")
    if end == "rollback":
        start_graph(conn, graph(event("e"), task("t", "e")), workflow_id=workflow_id)
    steps = query(conn, "SELECT step, status FROM sayiir.workflow_steps(%s)", workflow_id)
    assert {row["step"]: row["status"] for row in steps} == {"e": "succeeded", "t": "ready"}


def test_a_birth_during_a_sending(conn, other, third, end):
    workflow_id = f"born during sending {end}"
    conn.execute("BEGIN")
    assert send(conn, workflow_id, "e", 1) == "early"
    birth = Background(
        other, lambda conn: start_graph(conn, graph(event("e"), task("t", "e")), workflow_id=workflow_id)
    )
    birth.is_blocked(third)
    waits = "SELECT locktype FROM pg_locks WHERE pid = %s AND NOT granted"
    assert query(third, waits, other.info.backend_pid) == [{"locktype": "advisory"}]
    finish(conn, end)
    assert birth.answer() == (workflow_id, "started")
    steps = query(conn, "SELECT step, status FROM sayiir.workflow_steps(%s)", workflow_id)
    assert steps[0]["status"] == ("succeeded" if end == "commit" else "waiting")
    assert buffered(conn, workflow_id) == 0


def test_births_and_events_at_one_moment(conn, other):
    definition = graph(event("e"))
    answers = set()
    for n in range(80):
        workflow_id = f"moment {n}"
        _, sent = together(
            lambda: start_graph(conn, definition, workflow_id=workflow_id),
            lambda: send(other, workflow_id, "e", n),
        )
        answers.add(sent)
        assert value(conn, "SELECT sayiir.workflow_result(%s)", workflow_id) == n
    assert answers <= {"early", "resumed"}


# Timeouts and cancels

PAST = "UPDATE sayiir.job_wait SET due = clock_timestamp() - interval '1 second' WHERE job_id = %s"


def timed(conn):
    """Two steps, so that the workflow is still open when the first has ended."""
    return Flow(conn, event("e", timeout="1 hour"), task("no", on("e", "failure")), task("yes", "e"), event("open"))


def test_a_timeout_leaves_alone_what_is_being_sent(conn, other, end):
    flow = timed(conn)
    job = flow.step("e")["job_id"]
    # The timer is due for everybody before the owner is locked, so a sweep finds it, and finds the owner busy.
    conn.execute("BEGIN")
    conn.execute("SELECT FROM sayiir.workflow WHERE workflow_id = %s FOR NO KEY UPDATE", [flow.id])
    other.execute(PAST, [job])
    assert flow.send("e", 1) == "resumed"
    swept = {row["kind"]: row["done"] for row in query(other, "SELECT * FROM sayiir.tick()")}
    assert swept["timers"] == 0
    finish(conn, end)
    if end == "rollback":
        wait_until(lambda: conn.execute("SELECT sayiir.tick()") and flow.states["e"] == "failed")
        assert flow.states["no"] == "ready"
    else:
        conn.execute("SELECT sayiir.tick()")
        assert (flow.step("e")["output"], flow.states["yes"]) == (1, "ready")


def test_an_event_that_waited_for_its_timeout_comes_too_late(conn, other, third, end):
    flow = timed(conn)
    conn.execute("BEGIN")
    conn.execute(PAST, [flow.step("e")["job_id"]])
    conn.execute("SELECT sayiir.tick()")
    assert flow.states["e"] == "failed"
    sending = Background(other, lambda conn: flow.send("e", 1, conn=conn)).is_blocked(third)
    finish(conn, end)
    assert sending.answer() == ("buffered" if end == "commit" else "resumed")
    assert (flow.states["e"], flow.states["no"]) == (
        ("failed", "ready") if end == "commit" else ("succeeded", "cancelled")
    )


def test_an_event_that_waited_for_a_cancel_is_late(conn, other, third, end):
    flow = Flow(conn, event("e"), task("t", "e"))
    conn.execute("BEGIN")
    flow.cancel()
    sending = Background(other, lambda conn: flow.send("e", 1, conn=conn)).is_blocked(third)
    finish(conn, end)
    assert sending.answer() == ("late" if end == "commit" else "resumed")
    assert flow.states == (
        {"e": "cancelled", "t": "cancelled"} if end == "commit" else {"e": "succeeded", "t": "ready"}
    )


def test_a_cancel_that_waited_for_an_event_cancels_what_it_released(conn, other, third, end):
    flow = Flow(conn, event("e"), task("t", "e"))
    conn.execute("BEGIN")
    flow.send("e", 1)
    cancel = Background(other, lambda conn: flow.cancel(conn=conn)).is_blocked(third)
    finish(conn, end)
    assert cancel.answer() == "cancelled"
    assert flow.states == {"e": "succeeded" if end == "commit" else "cancelled", "t": "cancelled"}
    assert query(conn, "SELECT * FROM sayiir.job_claim('w', ARRAY[%s])", flow.task("t")) == []


def test_an_event_and_a_person_at_one_step(conn, other, third, end):
    flow = Flow(conn, event("e"), event("open"))
    conn.execute("BEGIN")
    flow.complete_step("e", output="by hand")
    sending = Background(other, lambda conn: flow.send("e", "sent", conn=conn)).is_blocked(third)
    finish(conn, end)
    assert sending.answer() == ("buffered" if end == "commit" else "resumed")
    assert flow.step("e")["output"] == ("by hand" if end == "commit" else "sent")


def test_every_order_of_parking_and_two_events(conn, other):
    """Park, send, send, each committed or rolled back, in every order: what was committed counts, in the order it was sent."""
    for order in set(itertools.permutations(["park", "send", "send"])):
        for ends in itertools.product(["COMMIT", "ROLLBACK"], repeat=3):
            flow = Flow(conn, task("a"), event("e", "a"), event("f", "e", timeout="1 hour"))
            flow.claim("a")
            lease, sent, parked = dict(flow.leases), [], False
            for n, (act, end) in enumerate(zip(order, ends, strict=True)):
                other.execute("BEGIN")
                if act == "park":
                    flow.leases = dict(lease)
                    flow.complete("a", conn=other)
                    parked |= end == "COMMIT"
                else:
                    flow.send("e", n, conn=other)
                    sent += [n] if end == "COMMIT" else []
                other.execute(end)
            row = flow.step("e")
            if not parked:
                expected = ("blocked", None)
            elif sent:
                expected = ("succeeded", sent[0])
            else:
                expected = ("waiting", None)
            assert (row["status"], row["output"]) == expected, (order, ends)
            assert buffered(conn, flow.id) == len(sent) - (1 if expected[0] == "succeeded" else 0), (order, ends)
            # Frees the task of this round.
            flow.cancel()


def test_128_waits_by_4_rounds_of_sending_and_parking(conn, connect):
    """Each workflow parks at four events in turn; senders do not know how far it is, and some of what they send is rolled back
    and sent again. Every wait resumes once, with the events of its name in order."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rounds, count, sessions = 4, 128, 8
    steps = [task("t0")]
    for n in range(rounds):
        steps += [event(f"e{n}", f"t{n}", event="go"), task(f"t{n + 1}", f"e{n}")]
    definition = graph(*steps)
    for step in definition["steps"]:
        if "task" in step:
            step["task"] = "round"
    ids = [start_graph(conn, definition)[0] for _ in range(count)]
    errors = []

    def sender(number):
        draw, session = random.Random(seed + number), connect()
        plan = [(workflow_id, n) for workflow_id in ids[number::sessions] for n in range(rounds)]
        # In order of n for each workflow, else at random.
        draw.shuffle(plan)
        turn = {workflow_id: itertools.count() for workflow_id, _ in plan}
        for workflow_id, _ in plan:
            n = next(turn[workflow_id])
            key = f"{workflow_id} {n}"
            if draw.random() < 0.2:
                session.execute("BEGIN")
                send(session, workflow_id, "go", n, key)
                session.execute("ROLLBACK")
            assert send(session, workflow_id, "go", n, key) in ("resumed", "buffered")
            if draw.random() < 0.2:
                assert send(session, workflow_id, "go", -1, key) == "duplicate"

    def worker(_):
        session = connect()
        open_workflows = "SELECT count(*) FROM sayiir.workflow WHERE finished_at IS NULL AND workflow_id = ANY (%s)"
        while True:
            jobs = query(session, "SELECT job_id, epoch FROM sayiir.job_claim('w', '{round}', 8, wait => '100 ms')")
            if jobs:
                done = "SELECT disposition FROM sayiir.job_complete_many(%s, %s)"
                ids_of, epochs = [job["job_id"] for job in jobs], [job["epoch"] for job in jobs]
                assert {row["disposition"] for row in query(session, done, ids_of, epochs)} == {"completed"}
            elif value(session, open_workflows, ids) == 0:
                return

    def guarded(work, number):
        try:
            work(number)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=[sender, n]) for n in range(sessions)]
    threads += [threading.Thread(target=guarded, args=[worker, n]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    rows = query(
        conn,
        """SELECT w.workflow_id, jsonb_agg(s.output ORDER BY s.step) AS outputs
           FROM sayiir.workflows w JOIN sayiir.steps s USING (workflow_id)
           WHERE w.workflow_id = ANY (%s) AND w.status = 'succeeded' AND s.kind = 'event' GROUP BY w.workflow_id""",
        ids,
    )
    assert len(rows) == count
    assert {json.dumps(row["outputs"]) for row in rows} == {json.dumps(list(range(rounds)))}
    assert healthy(conn) == []
