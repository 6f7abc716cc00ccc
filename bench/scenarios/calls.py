"""Round trips, transactions and WAL of one job and of one step, from the first call to the result."""

from psycopg.types.json import Jsonb

from harness import Result, wal_position
from scenarios.graph import empty_all

GRAPH = {"name": "two", "steps": [{"key": "one", "task": "two"}, {"key": "two", "task": "two", "after": ["one"]}]}


class Counted:
    """A connection that counts its calls: in autocommit mode each is one round trip and one transaction."""

    def __init__(self, conn):
        self.conn = conn
        self.calls = 0

    def row(self, query, args=()):
        self.calls += 1
        return self.conn.execute(query, args).fetchone()


def job(calls):
    calls.row("SELECT * FROM sayiir.job_enqueue('two', '{\"n\": 1}')")
    claimed = calls.row("SELECT job_id, epoch FROM sayiir.job_claim('worker', '{two}')")
    calls.row("SELECT sayiir.job_complete(%s, %s, '{\"done\": true}')", claimed)


def workflow(calls):
    calls.row("SELECT workflow_id FROM sayiir.workflow_start('two')")
    for _ in GRAPH["steps"]:
        claimed = calls.row("SELECT job_id, epoch FROM sayiir.job_claim('worker', '{two}')")
        calls.row("SELECT sayiir.job_complete(%s, %s, '{\"done\": true}')", claimed)


def run(server, scale):
    result = Result("one after the other, from the first call to the end")
    with server.connect() as conn:
        empty_all(conn)
        conn.execute("SELECT * FROM sayiir.workflow_define(%s)", [Jsonb(GRAPH)])
        for name, work in (("job", job), ("workflow of two steps", workflow)):
            for _ in range(scale.rounds):
                work(Counted(conn))
                repeats = 100
                before = wal_position(conn)
                counted = Counted(conn)
                for _ in range(repeats):
                    work(counted)
                result.add(f"{name}: round trips", "", counted.calls / repeats)
                result.add(f"{name}: WAL", "B", float(wal_position(conn) - before) / repeats)
    yield result
