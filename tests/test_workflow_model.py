"""Random graphs worked on by random workers that crash, retry, give back and come late, compared with the rules in short."""

import json
import random
import threading

from psycopg import Error

from flows import code_of, healthy, query, send, start_graph, value
from graph_model import BY_THE_RULE, Graph
from support import wait_until

GRAPHS = 150
TASK = "model"
SHORT = "20 ms"
ENDS = """
    SELECT w.workflow_id, s.step, s.status, s.error_code, count(*) AS jobs
    FROM sayiir.workflow w JOIN sayiir.steps s USING (workflow_id) WHERE w.workflow_id = ANY (%s) GROUP BY 1, 2, 3, 4
"""


class Run:
    """All graphs at once: several workers, a sender, a sweeper and one that pauses and cancels."""

    def __init__(self, connect, seed):
        self.connect, self.seed = connect, seed
        draw = random.Random(seed)
        self.graphs = {f"graph {n}": Graph(draw, f"model{n}", TASK) for n in range(GRAPHS)}
        self.cancelled = set(draw.sample(list(self.graphs), GRAPHS // 10))
        self.paused = set(draw.sample(list(self.graphs), GRAPHS // 10))
        self.over = threading.Event()
        self.errors = []

    def go(self, conn):
        """Until every workflow has ended."""
        roles = [self.work] * 4 + [self.send_events, self.sweep, self.meddle]
        threads = [threading.Thread(target=self.guarded, args=[role, n]) for n, role in enumerate(roles)]
        draw = random.Random(self.seed)
        for thread in threads:
            thread.start()
        for workflow_id in draw.sample(list(self.graphs), GRAPHS):
            definition = self.graphs[workflow_id].definition()
            start_graph(conn, definition, '{"yes": true, "no": false, "n": 1}', workflow_id=workflow_id)
        unfinished = "SELECT count(*) FROM sayiir.workflow WHERE finished_at IS NULL"
        try:
            wait_until(lambda: self.errors or value(conn, unfinished) == 0, timeout=60)
        finally:
            self.over.set()
            for thread in threads:
                thread.join(30)
        if self.errors:
            raise self.errors[0]

    def guarded(self, role, number):
        try:
            role(random.Random(self.seed + number), self.connect())
        except Exception as error:
            self.errors.append(error)

    def work(self, draw, conn):
        while not self.over.is_set():
            lease = draw.choice(["10 min", "10 min", SHORT])
            claim = "SELECT *, %s AS lease FROM sayiir.job_claim('w', ARRAY[%s], %s, %s, wait => '50 ms')"
            crash = draw.random() < 0.05
            if crash:
                conn.execute("BEGIN")
            jobs = query(conn, claim, lease, TASK, draw.randint(1, 4), lease)
            if crash:
                conn.execute("ROLLBACK")
                continue
            for job in jobs:
                try:
                    self.handle(draw, conn, job)
                except Error as error:
                    # Slower than its short lease, and another has it.
                    conn.rollback()
                    assert code_of(error) == "job.lease_lost", error

    def handle(self, draw, conn, job):
        graph = self.graphs[job["workflow_id"]]
        step, lease = graph.steps[job["step"]], (job["job_id"], job["epoch"])
        self.check_input(graph, step, job["input"])
        if draw.random() < 0.1:
            assert value(conn, "SELECT sayiir.job_heartbeat(%s, %s)", *lease) in ("continue", "cancel", "pause", "lost")
        first = job["attempt"] == 1
        if step.plan == "fail":
            query(conn, "SELECT * FROM sayiir.job_fail(%s, %s, 'planned', kind => 'terminal')", *lease)
        elif step.plan == "exhaust" or (step.plan == "retry" and first):
            query(conn, "SELECT * FROM sayiir.job_fail(%s, %s, 'planned')", *lease)
        elif step.plan == "release" and draw.random() < 0.5:
            value(conn, "SELECT sayiir.job_release(%s, %s, ran => false)", *lease)
        elif step.plan == "abandon" and first:
            # Its worker dies, and some sweep finds the lease; one that would take long is given back to wait for a short one.
            if job["lease"] != SHORT:
                value(conn, "SELECT sayiir.job_release(%s, %s)", *lease)
        elif step.plan == "by_hand" and value(conn, "SELECT sayiir.job_release(%s, %s)", *lease) == "ready":
            self.by_hand(conn, job["workflow_id"], step.key, "succeeded", step.output)
        elif step.plan == "cancel":
            query(conn, "SELECT * FROM sayiir.job_cancel(%s)", job["job_id"])
            value(conn, "SELECT sayiir.job_release(%s, %s)", *lease)
        elif step.plan != "by_hand":
            if draw.random() < 0.1:
                conn.execute("BEGIN")
                value(conn, "SELECT sayiir.job_complete(%s, %s, 'null')", *lease)
                conn.execute("ROLLBACK")
            answer = value(conn, "SELECT sayiir.job_complete(%s, %s, %s)", *lease, json.dumps(step.output))
            assert answer in ("succeeded", "cancelled")

    def by_hand(self, conn, workflow_id, step, outcome, output=None):
        sql = "SELECT disposition FROM sayiir.workflow_complete_step(%s, %s, %s, %s)"
        output = None if output is None else json.dumps(output)
        try:
            return value(conn, sql, workflow_id, step, outcome, output)
        except Error as error:
            # Claimed again before the hand was there, paused or cancelled meanwhile, or not released yet.
            busy = ("workflow.step_leased", "workflow.step_not_open", "workflow.completion_conflict", "workflow.ended")
            assert code_of(error) in (*busy, "workflow.not_found"), error

    def check_input(self, graph, step, given):
        if not step.after:
            assert given == {"yes": True, "no": False, "n": 1}
        else:
            assert set(given) == set(step.after)
            if step.join != "first":
                ends = {key: end.removesuffix(" by the rule") for key, end in graph.ends().items()}
                assert {key: one["status"] for key, one in given.items()} == {key: ends[key] for key in step.after}

    def send_events(self, draw, conn):
        plans = ("send", "by_hand")
        todo = [
            (workflow_id, step)
            for workflow_id, graph in self.graphs.items()
            for step in graph.steps.values()
            if step.kind == "event" and step.plan in plans
        ]
        draw.shuffle(todo)
        while todo and not self.over.is_set():
            workflow_id, step = todo.pop()
            if step.plan == "by_hand":
                if self.by_hand(conn, workflow_id, step.key, "failed") is None and self.is_open(conn, workflow_id):
                    todo.insert(0, (workflow_id, step))
                continue
            key = f"{step.key} once"
            if draw.random() < 0.2:
                conn.execute("BEGIN")
                send(conn, workflow_id, step.key, "never sent", key)
                conn.execute("ROLLBACK")
            for _ in range(draw.choice([1, 1, 2])):
                assert send(conn, workflow_id, step.key, step.output, key) in (
                    "resumed",
                    "buffered",
                    "early",
                    "late",
                    "duplicate",
                )

    def is_open(self, conn, workflow_id):
        return value(conn, "SELECT sayiir.workflow_status(%s)", workflow_id) in (None, "running", "waiting", "paused")

    def sweep(self, draw, conn):
        while not self.over.wait(0.01):
            conn.execute("SELECT * FROM sayiir.tick(%s)", [draw.choice([1, 10, 1000])])
            broken = [row for row in query(conn, "SELECT * FROM sayiir.doctor()") if row["severity"] == "error"]
            assert broken == []

    def meddle(self, draw, conn):
        todo = list(self.cancelled | self.paused)
        while todo and not self.over.wait(0.005):
            workflow_id = draw.choice(todo)
            if value(conn, "SELECT sayiir.workflow_status(%s)", workflow_id) is None:
                continue
            todo.remove(workflow_id)
            if workflow_id in self.paused:
                conn.execute("SELECT sayiir.workflow_pause(%s)", [workflow_id])
                self.over.wait(0.02)
                conn.execute("SELECT sayiir.workflow_resume(%s)", [workflow_id])
            if workflow_id in self.cancelled:
                conn.execute("SELECT sayiir.workflow_cancel(%s, 'meddled')", [workflow_id])


def test_random_graphs_come_to_the_end_that_the_rules_say(conn, connect):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    run = Run(connect, seed)
    run.go(conn)
    # A lease of a cancelled workflow that its worker left ends with the next sweep.
    wait_until(
        lambda: conn.execute("SELECT sayiir.tick()") and value(conn, "SELECT count(*) FROM sayiir.job_lease") == 0
    )
    rows = {}
    for row in query(conn, ENDS, list(run.graphs)):
        assert row["jobs"] == 1, row
        rule = row["status"] == "cancelled" and row["error_code"] == "workflow.dependency_unsatisfied"
        rows.setdefault(row["workflow_id"], {})[row["step"]] = BY_THE_RULE if rule else row["status"]
    natural = 0
    for workflow_id, graph in run.graphs.items():
        info = query(conn, "SELECT * FROM sayiir.workflow_get(%s)", workflow_id)[0]
        ended = rows[workflow_id]
        assert set(ended) == set(graph.steps)
        assert set(ended.values()) <= {"succeeded", "failed", "cancelled", "skipped", BY_THE_RULE}, workflow_id
        if info["status"] == "cancelled":
            assert workflow_id in run.cancelled
            continue
        expected = graph.ends()
        assert ended == expected, workflow_id
        assert info["status"] == graph.status(expected), workflow_id
        if info["status"] == "succeeded":
            assert info["result"] == graph.result(expected), workflow_id
        natural += 1
    assert natural >= GRAPHS * 0.8
    once = """SELECT step, count(*) FROM sayiir.workflow w, sayiir.workflow_history(w.workflow_id, 0, 10000) h
              WHERE kind IN ('step_succeeded', 'step_failed', 'step_cancelled', 'step_skipped')
              GROUP BY w.id, step HAVING count(*) > 1"""
    assert query(conn, once) == []
    for table in ("job_ready", "job_lease", "job_wait", "step_pending", "workflow_active"):
        assert value(conn, f"SELECT count(*) FROM sayiir.{table}") == 0, table
    assert healthy(conn) == []
