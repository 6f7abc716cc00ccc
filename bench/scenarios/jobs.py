"""Jobs: enqueue, and claim + complete in separate transactions, beside the hand-written minimum."""

import json

from harness import SCRIPTS, WARM_UP, Result, alternate, timed, wal_position

# Both sides work off one filling of the queue in so many turns.
SLICES = 3
TEXT = "a payload of about one hundred bytes, as small jobs have: an id, a name and a path or two"


def empty(conn):
    conn.execute("TRUNCATE sayiir.job, sayiir.job_ready, sayiir.job_lease, sayiir.job_wait, sayiir.job_end")
    conn.execute("TRUNCATE minimum.job, minimum.job_ready, minimum.job_lease, minimum.job_end")


def enqueue_many(conn, jobs, task="bench", options="{}"):
    """Fills the queue with one call for every 10,000 jobs."""
    for start in range(0, jobs, 10_000):
        conn.execute(
            """SELECT count(*) FROM sayiir.job_enqueue_many(%s, (
                   SELECT jsonb_agg(jsonb_build_object('n', n, 'text', %s::text)) FROM generate_series(1, %s) n),
                   options => %s)""",
            [task, TEXT, min(10_000, jobs - start), options],
        )


def copy_to_minimum(conn):
    """The same rows for the minimum. Answers the lane."""
    conn.execute("INSERT INTO minimum.job SELECT * FROM sayiir.job")
    conn.execute("INSERT INTO minimum.job_ready SELECT * FROM sayiir.job_ready")
    return conn.execute("SELECT lane FROM sayiir.lane WHERE task = 'bench'").fetchone()[0]


def settle_down(conn):
    """Statistics and visibility as autovacuum would have left them; and what was written is on disk."""
    for schema in ("sayiir", "minimum"):
        conn.execute(f"VACUUM ANALYZE {schema}.job, {schema}.job_ready, {schema}.job_lease, {schema}.job_end")
    conn.execute("CHECKPOINT")


def enqueue_one(server, scale):
    result = Result("enqueue one job a transaction, 4 clients")
    transactions = scale.pick(1_000, 5_000)
    with server.connect() as conn:

        def measure(name, script):
            def once():
                empty(conn)
                result.add(name, "jobs/s", server.pgbench(SCRIPTS / script, 4, transactions))

            return once

        alternate(
            scale.rounds,
            {
                "job_enqueue": measure("job_enqueue", "enqueue.sql"),
                "plain insert": measure("plain insert", "enqueue_minimum.sql"),
            },
        )
    result.ratio("job_enqueue / plain insert", "plain insert", 0.8, of="job_enqueue")
    return result


PLAIN_BULK = """
WITH record AS (
    INSERT INTO minimum.job (job_id, task, lane, payload, max_attempts, retry_initial_us, retry_factor, retry_max_us,
        retry_jitter, lease_us, created_at, history_seq)
    SELECT gen_random_uuid(), 'bench', 1, payload, 5, 1000000, 2, 3600000000, 0.1, 60000000, clock_timestamp(),
        nextval('minimum.history_seq')
    FROM jsonb_array_elements(%s::jsonb) payload
    RETURNING job_id, lane)
INSERT INTO minimum.job_ready (job_id, lane, seq, run_number, attempt, epoch)
SELECT job_id, lane, nextval('minimum.ready_seq'), 1, 0, 0 FROM record
"""


def enqueue_bulk(server, scale):
    jobs, calls = 10_000, scale.pick(4, 10)
    result = Result(f"enqueue in bulk, one client, {jobs:,} jobs a call")
    payloads = json.dumps([{"n": n, "text": TEXT} for n in range(jobs)])
    with server.connect() as conn:

        def measure(name, query):
            def once():
                empty(conn)
                for call in range(calls + 1):
                    seconds = timed(lambda: conn.execute(query, [payloads]))
                    if call:
                        result.add(name, "jobs/s", jobs / seconds)

            return once

        ours = "SELECT count(*) FROM sayiir.job_enqueue_many('bench', %s::jsonb)"
        alternate(
            scale.rounds, {"ours": measure("job_enqueue_many", ours), "plain": measure("plain insert", PLAIN_BULK)}
        )
    result.ratio("job_enqueue_many / plain insert", "plain insert", 0.8, of="job_enqueue_many")
    result.at_least("job_enqueue_many", 100_000)
    return result


def claim_and_complete(server, scale, clients, batch):
    what = "1 job" if batch == 1 else f"{batch} jobs"
    result = Result(f"claim and complete {what}, {clients} client{'s' if clients > 1 else ''}")
    transactions = max(
        {1: scale.pick(2_500, 10_000), 10: scale.pick(800, 3_000), 50: scale.pick(400, 1_200)}[batch] // clients, 100
    )
    jobs = transactions * clients * batch
    ours, plain = ("claim1.sql", "claim1_minimum.sql") if batch == 1 else ("claim_batch.sql", "claim_batch_minimum.sql")
    with server.connect() as conn:
        for _ in range(scale.rounds):
            empty(conn)
            enqueue_many(conn, SLICES * (jobs + clients * WARM_UP * batch) + 1_000)
            lane = copy_to_minimum(conn)
            settle_down(conn)

            def measure(name, script):
                def once():
                    before = wal_position(conn)
                    rate = server.pgbench(SCRIPTS / script, clients, transactions, batch=batch, lane=lane)
                    result.add(name, "jobs/s", rate * batch)
                    result.add(
                        f"{name}: WAL", "B/job", float(wal_position(conn) - before) / (jobs + clients * WARM_UP * batch)
                    )

                return once

            alternate(SLICES, {"ours": measure("sayiir", ours), "minimum": measure("minimum", plain)})
    result.ratio("sayiir / minimum", "minimum", 0.8, of="sayiir")
    if batch == 50:
        result.at_least("sayiir", 20_000)
    result.at_most("sayiir: WAL", 1_638)
    return result


def run(server, scale):
    yield enqueue_one(server, scale)
    yield enqueue_bulk(server, scale)
    for batch in scale.pick((1, 50), (1, 10, 50)):
        for clients in (1, 4, 16):
            yield claim_and_complete(server, scale, clients, batch)
