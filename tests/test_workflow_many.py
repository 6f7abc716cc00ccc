"""Many completions of one workflow at one moment: none deadlocks, every step is released once, nothing is left behind."""

import random
import threading

import pytest

from flows import graph, healthy, on, query, start_graph, task, value

PAIRS = 8
RELEASED = """
    SELECT j.step, count(*) AS jobs, count(DISTINCT j.workflow) AS workflows, count(r.job_id) AS ready
    FROM sayiir.job j JOIN sayiir.workflow w ON w.id = j.workflow LEFT JOIN sayiir.job_ready r ON r.job_id = j.job_id
    WHERE w.name = %s GROUP BY j.step
"""


class Crew:
    """Threads with a connection each; errors of any of them are raised at the end."""

    def __init__(self, connect):
        self.connect = connect
        self.errors = []

    def run(self, work, count):
        """Calls work(number, conn) in count threads and waits for all."""
        threads = [threading.Thread(target=self._guarded, args=[work, n, self.connect()]) for n in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(90)
            assert not thread.is_alive(), "a worker is stuck"
        if self.errors:
            raise self.errors[0]

    def _guarded(self, work, number, conn):
        try:
            work(number, conn)
        except Exception as error:
            self.errors.append(error)


@pytest.fixture
def crew(connect):
    return Crew(connect)


def claim_all(conn, task, count):
    """Every job of a task: workflow_id → (job_id, epoch)."""
    leases = {}
    while len(leases) < count:
        rows = query(conn, "SELECT workflow_id, job_id, epoch FROM sayiir.job_claim('w', ARRAY[%s], 1000)", task)
        assert rows
        leases |= {row["workflow_id"]: (row["job_id"], row["epoch"]) for row in rows}
    return leases


def start_many(conn, definition, count):
    conn.execute("BEGIN")
    ids = [start_graph(conn, definition)[0] for _ in range(count)]
    conn.execute("COMMIT")
    return ids


COMPLETE = "SELECT sayiir.job_complete(%s, %s)"
COMPLETE_MANY = "SELECT disposition FROM sayiir.job_complete_many(%s, %s)"

# A dependent is listed before its prerequisite, and its key sorts before it, in one chain; behind it in the other.
CHAINS = [task("a_tail", "m_head"), task("m_head"), task("n_head"), task("z_tail", "n_head")]


def test_two_chains_complete_their_heads_at_the_same_moment_1000_times(conn, crew):
    definition = graph(*CHAINS)
    ids = start_many(conn, definition, 1000)
    heads = [claim_all(conn, f"{definition['name']}.{head}", 1000) for head in ("m_head", "n_head")]
    barriers = [threading.Barrier(2) for _ in range(PAIRS)]

    def work(number, conn):
        pair, side = divmod(number, 2)
        for workflow_id in ids[pair::PAIRS]:
            barriers[pair].wait(60)
            assert value(conn, COMPLETE, *heads[side][workflow_id]) == "succeeded"

    crew.run(work, 2 * PAIRS)
    released = {row["step"]: row for row in query(conn, RELEASED, definition["name"])}
    for tail in ("a_tail", "z_tail"):
        assert released[tail] == {"step": tail, "jobs": 1000, "workflows": 1000, "ready": 1000}
    for tail in ("a_tail", "z_tail"):
        leases = list(claim_all(conn, f"{definition['name']}.{tail}", 1000).values())
        rows = query(conn, COMPLETE_MANY, [job for job, _ in leases], [epoch for _, epoch in leases])
        assert {row["disposition"] for row in rows} == {"completed"}
    ended = "SELECT status, count(*) FROM sayiir.workflow WHERE name = %s GROUP BY status"
    assert conn.execute(ended, [definition["name"]]).fetchall() == [("succeeded", 1000)]


def test_16_chains_of_one_workflow_complete_their_heads_at_the_same_moment(conn, crew):
    steps = [task(f"t{n:02}", f"h{n:02}") for n in range(16)] + [task(f"h{n:02}") for n in reversed(range(16))]
    steps.append(task("join", *(on(f"h{n:02}", "terminal") for n in range(16))))
    definition = graph(*steps)
    ids = start_many(conn, definition, 30)
    heads = [claim_all(conn, f"{definition['name']}.h{n:02}", 30) for n in range(16)]
    barrier = threading.Barrier(16)

    def work(number, conn):
        for workflow_id in ids:
            barrier.wait(60)
            assert value(conn, COMPLETE, *heads[number][workflow_id]) == "succeeded"

    crew.run(work, 16)
    released = {row["step"]: row for row in query(conn, RELEASED, definition["name"])}
    for step in [f"t{n:02}" for n in range(16)] + ["join"]:
        assert released[step] == {"step": step, "jobs": 30, "workflows": 30, "ready": 30}
    assert healthy(conn) == []


def test_1000_diamonds_by_16_workers(conn, crew):
    """Workers take what comes, one or several, complete it singly or in batches, and now and then die with it."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    definition = graph(task("top"), task("left", "top"), task("right", "top"), task("bottom", "left", "right"))
    for step in definition["steps"]:
        step["task"] = "diamond"
    ids = start_many(conn, definition, 1000)
    unfinished = "SELECT count(*) FROM sayiir.workflow WHERE name = %s AND finished_at IS NULL"

    def work(number, conn):
        draw = random.Random(seed + number)
        while True:
            claim = "SELECT job_id, epoch FROM sayiir.job_claim(%s, '{diamond}', %s, wait => '100 ms')"
            if draw.random() < 0.02:
                # It dies between its claim and its commit.
                conn.execute("BEGIN")
                query(conn, claim, f"w{number}", 3)
                conn.execute("ROLLBACK")
            jobs = query(conn, claim, f"w{number}", draw.choice([1, 2, 8, 32]))
            if not jobs:
                if value(conn, unfinished, definition["name"]) == 0:
                    return
                continue
            draw.shuffle(jobs)
            if draw.random() < 0.02:
                # It gives back what it does not get to.
                job = jobs.pop()
                assert value(conn, "SELECT sayiir.job_release(%s, %s)", job["job_id"], job["epoch"]) == "ready"
            if draw.random() < 0.3:
                for job in jobs:
                    assert value(conn, COMPLETE, job["job_id"], job["epoch"]) == "succeeded"
            else:
                rows = query(conn, COMPLETE_MANY, [job["job_id"] for job in jobs], [job["epoch"] for job in jobs])
                assert {row["disposition"] for row in rows} <= {"completed"}

    crew.run(work, 16)
    status = "SELECT status, count(*) FROM sayiir.workflow WHERE name = %s GROUP BY status"
    assert conn.execute(status, [definition["name"]]).fetchall() == [("succeeded", len(ids))]
    released = query(conn, RELEASED, definition["name"])
    assert sorted((row["step"], row["jobs"], row["workflows"]) for row in released) == [
        (step, 1000, 1000) for step in ("bottom", "left", "right", "top")
    ]
    assert healthy(conn) == []
