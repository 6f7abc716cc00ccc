"""One table against record, ready, lease and end, in plain SQL, and the engine beside both; each claims and completes in separate
transactions."""

import contextlib

from harness import BENCH, Result, alternate, wal_position
from scenarios.jobs import SLICES, enqueue_many

LAYOUT = BENCH / "layout"
VARIANTS = {"one table": "one_table", "split": "split", "sayiir": "sayiir"}


def fill(conn, ready, finished=0):
    """The same ready rows for all, and finished ones that are kept."""
    conn.execute("TRUNCATE sayiir.job, sayiir.job_ready, sayiir.job_lease, sayiir.job_wait, sayiir.job_end")
    conn.execute("TRUNCATE one_table.job, split.job, split.job_ready, split.job_lease, split.job_end")
    conn.execute("SELECT setval('split.mark', 0)")
    enqueue_many(conn, ready)
    if finished:
        enqueue_many(conn, finished, task="finished")
        conn.execute(
            """WITH gone AS (DELETE FROM sayiir.job_ready r USING sayiir.job j WHERE j.job_id = r.job_id AND j.task = 'finished' RETURNING r.*)
               INSERT INTO sayiir.job_end (job_id, state, output, worker, epoch, run_number, attempt, started_at, ended_at, history_seq)
               SELECT job_id, 'succeeded', '{"done": true}', 'worker', 1, 1, 1, clock_timestamp(), clock_timestamp(),
                   nextval('sayiir.history_seq') FROM gone"""
        )
    conn.execute("INSERT INTO split.job SELECT * FROM sayiir.job")
    conn.execute("INSERT INTO split.job_end SELECT * FROM sayiir.job_end")
    conn.execute(
        "INSERT INTO split.job_ready SELECT job_id, workflow, 1, seq, run_number, attempt, epoch FROM sayiir.job_ready"
    )
    conn.execute(
        """INSERT INTO one_table.job (job_id, lane, seq, task, payload, status, output, ended_at)
           SELECT j.job_id, 1, coalesce(r.seq, 0), j.task, j.payload, coalesce(e.state::text, 'ready'), e.output, e.ended_at
           FROM sayiir.job j LEFT JOIN sayiir.job_ready r USING (job_id) LEFT JOIN sayiir.job_end e USING (job_id) ORDER BY r.seq"""
    )
    vacuum(conn)


def vacuum(conn):
    for schema in ("sayiir", "split"):
        conn.execute(f"VACUUM ANALYZE {schema}.job, {schema}.job_ready, {schema}.job_lease, {schema}.job_end")
    conn.execute("VACUUM ANALYZE one_table.job")
    conn.execute("CHECKPOINT")


def compare(server, conn, result, rounds, clients, transactions, batch=1, prepare=None):
    for _ in range(rounds):
        (prepare or (lambda: fill(conn, SLICES * (transactions + 25) * clients * batch + 2_000)))()

        def measure(name, script):
            def once():
                before = wal_position(conn)
                rate = server.pgbench(LAYOUT / script, clients, transactions)
                result.add(name, "jobs/s", rate * batch)
                result.add(
                    f"{name}: WAL",
                    "B/job",
                    float(wal_position(conn) - before) / ((transactions + 20) * clients * batch),
                )

            return once

        alternate(SLICES, {name: measure(name, f"{prefix}_{batch}.sql") for name, prefix in VARIANTS.items()})
    result.ratio("split / one table", "one table", of="split")
    result.ratio("sayiir / split", "split", 0.8, of="sayiir")
    return result


def clean(server, conn, scale):
    for clients in (1, 4, 16):
        transactions = max(scale.pick(1_500, 8_000) // clients, 100)
        yield compare(
            server,
            conn,
            Result(f"layout, clean: claim 1 + complete 1, {clients} clients"),
            scale.rounds,
            clients,
            transactions,
        )
    transactions = scale.pick(60, 300)
    yield compare(
        server, conn, Result("layout, clean: batches of 50, 4 clients"), scale.rounds, 4, transactions, batch=50
    )


def large(server, conn, scale):
    transactions = scale.pick(400, 2_000)
    rows = scale.pick(100_000, 1_000_000)
    ready = SLICES * (transactions + 25) * 4 + 2_000
    for title, filled in (
        (f"layout: {rows:,} finished rows kept, 4 clients", lambda: fill(conn, ready, finished=rows)),
        (f"layout: {rows:,} jobs pending, 4 clients", lambda: fill(conn, rows + ready)),
    ):
        yield compare(server, conn, Result(title), scale.pick(1, 2), 4, transactions, prepare=filled)


def foreign(server, conn, scale):
    """100,000 jobs at the head in 10,000 lanes that the worker may not take; beside them a task that has no such jobs."""
    transactions = scale.pick(400, 2_000)
    lanes = 10_000
    ready = SLICES * (transactions + 25) * 4 + 2_000

    def prepare():
        fill(conn, 0)
        conn.execute(
            """SELECT count(*) FROM generate_series(1, %s) n,
                   sayiir.job_enqueue_many('bench', '[1,2,3,4,5,6,7,8,9,10]', options => jsonb_build_object('tags', array['tag' || n])) e""",
            [lanes],
        )
        enqueue_many(conn, ready)
        enqueue_many(conn, ready, task="alone")
        conn.execute("INSERT INTO split.job SELECT * FROM sayiir.job WHERE task = 'bench'")
        conn.execute(
            """INSERT INTO split.job_ready SELECT r.job_id, NULL, CASE WHEN l.tags = '{}' THEN 1 ELSE l.lane END, r.seq, 1, 0, 0
               FROM sayiir.job_ready r JOIN sayiir.lane l USING (lane) WHERE l.task = 'bench'"""
        )
        conn.execute(
            """INSERT INTO one_table.job (job_id, lane, seq, task, tags, payload)
               SELECT j.job_id, 1, r.seq, j.task, l.tags, j.payload
               FROM sayiir.job j JOIN sayiir.job_ready r USING (job_id) JOIN sayiir.lane l ON l.lane = r.lane
               WHERE j.task = 'bench' ORDER BY r.seq"""
        )
        vacuum(conn)

    # One table with a filter on tags walks the 100,000 rows on each claim: a few claims are enough to see it.
    result = Result("layout: 100,000 jobs of foreign tags in 10,000 lanes first, 4 clients")
    for _ in range(scale.pick(1, 2)):
        prepare()

        def measure(name, script, count):
            return lambda: result.add(name, "jobs/s", server.pgbench(LAYOUT / script, 4, count))

        alternate(
            SLICES,
            {
                "one table, filter on tags": measure("one table, filter on tags", "one_table_tags.sql", 60),
                "split": measure("split", "split_1.sql", transactions),
                "sayiir": measure("sayiir", "sayiir_1.sql", transactions),
                "alone": measure("sayiir, task without foreign jobs", "sayiir_alone_1.sql", transactions),
            },
        )
    result.ratio("sayiir / split", "split", 0.8, of="sayiir")
    result.ratio("with / without foreign jobs", "sayiir, task without foreign jobs", 0.9, of="sayiir")
    yield result


def lanes(server, conn, scale):
    """A worker that may take everything: the same number of jobs in one lane, and in 10,000."""
    transactions = scale.pick(400, 2_000)
    jobs = (transactions + 25) * 4 + 2_000
    result = Result("layout: jobs in 10,000 lanes that the worker may take, against one lane, 4 clients")
    conn.execute("DELETE FROM sayiir.lane WHERE task IN ('bench', 'lanes')")

    def measure(name, many):
        def once():
            fill(conn, 0 if many else jobs)
            if many:
                conn.execute(
                    """SELECT count(*) FROM generate_series(1, 10000) n,
                           sayiir.job_enqueue_many('lanes', (SELECT jsonb_agg(i) FROM generate_series(1, %s) i),
                               options => jsonb_build_object('tags', array['tag' || n])) e""",
                    [jobs // 10_000 + 1],
                )
                vacuum(conn)
            result.add(
                name,
                "jobs/s",
                server.pgbench(LAYOUT / ("sayiir_lanes_1.sql" if many else "sayiir_all_1.sql"), 4, transactions),
            )

        return once

    alternate(scale.rounds, {"one lane": measure("one lane", False), "10,000 lanes": measure("10,000 lanes", True)})
    result.ratio("10,000 lanes / one lane", "one lane", 0.9, of="10,000 lanes")
    yield result


@contextlib.contextmanager
def held_snapshot(server):
    with server.connect(autocommit=False) as conn:
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        conn.execute("SELECT 1")
        yield


def snapshot(server, conn, scale):
    """Throughput in the last seconds of a churn, with and without a snapshot that somebody holds meanwhile."""
    seconds = scale.pick(10, 60)
    result = Result(
        f"layout: a snapshot held for {seconds} s of churn, 4 clients: its last seconds against those of a clean churn"
    )
    scripts = {
        "one table": "one_table_1.sql",
        "split": "split_1.sql",
        "split, cursor": "split_cursor.sql",
        "sayiir": "sayiir_1.sql",
    }
    for _ in range(scale.pick(2, 3)):
        for name, script in scripts.items():

            def churn(kind, holding):
                fill(conn, 20_000 * seconds)
                with holding:
                    result.add(
                        f"{name}: {kind}",
                        "jobs/s",
                        server.pgbench_for(LAYOUT / script, 4, seconds, window=seconds / 5)[1],
                    )

            alternate(
                1,
                {
                    "clean": lambda: churn("clean", contextlib.nullcontext()),
                    "held": lambda: churn("held", held_snapshot(server)),
                },
            )
    for name in scripts:
        result.ratio(f"{name}: held / clean", f"{name}: clean", 0.9 if name == "sayiir" else None, of=f"{name}: held")
    yield result


PARTS = {"clean": clean, "large": large, "foreign": foreign, "lanes": lanes, "snapshot": snapshot}


def run(server, scale):
    with server.connect() as conn:
        conn.execute((LAYOUT / "schema.sql").read_text())
        for name, part in PARTS.items():
            if name in (scale.parts or PARTS):
                yield from part(server, conn, scale)
