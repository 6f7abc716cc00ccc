"""Graphs: a step of a chain beside its minimum, the start of a large graph, fan-out and join."""

import json
import random
import threading
import time

from psycopg.types.json import Jsonb

from harness import SCRIPTS, WARM_UP, Result, alternate, timed, wal_position
from scenarios.jobs import SLICES, empty, settle_down

CHAIN = 20
STEPS, EDGES = 600, 2390


def empty_all(conn):
    empty(conn)
    conn.execute("TRUNCATE sayiir.workflow, sayiir.workflow_log, sayiir.step_pending, sayiir.event, sayiir.event_key")


def chain():
    return {
        "name": "chain",
        "steps": [{"key": f"s{n}", "task": "bench", "after": [f"s{n - 1}"] if n else []} for n in range(CHAIN)],
    }


def steps(server, scale, clients):
    """Chains: every completion releases the next step, so both sides write one more record and ready row."""
    result = Result(f"claim and complete 1 step of a graph, {clients} client{'s' if clients > 1 else ''}")
    transactions = max(scale.pick(2_500, 10_000) // clients, 100)
    chains = SLICES * (transactions + WARM_UP) * clients * 10 // 8 // CHAIN + 4 * clients
    with server.connect() as conn:
        conn.execute("SELECT * FROM sayiir.workflow_define(%s)", [Jsonb(chain())])
        for _ in range(scale.rounds):
            empty_all(conn)
            # The argument depends on n: else the function would run once.
            conn.execute(
                "SELECT count(*) FROM generate_series(1, %s) n, sayiir.workflow_start('chain', jsonb_build_object('n', n)) s",
                [chains],
            )
            conn.execute("INSERT INTO minimum.job SELECT * FROM sayiir.job")
            conn.execute("INSERT INTO minimum.job_ready SELECT * FROM sayiir.job_ready")
            lane = conn.execute("SELECT DISTINCT lane FROM minimum.job_ready").fetchone()[0]
            settle_down(conn)
            conn.execute("VACUUM ANALYZE sayiir.workflow")

            def measure(name, script):
                def once():
                    before = wal_position(conn)
                    result.add(name, "steps/s", server.pgbench(SCRIPTS / script, clients, transactions, lane=lane))
                    result.add(
                        f"{name}: WAL",
                        "B/step",
                        float(wal_position(conn) - before) / ((transactions + WARM_UP) * clients),
                    )

                return once

            alternate(
                SLICES, {"ours": measure("sayiir", "claim1.sql"), "minimum": measure("minimum", "step_minimum.sql")}
            )
    result.ratio("sayiir / minimum", "minimum", 0.8, of="sayiir")
    return result


def large(salt):
    """600 steps in 60 layers of 10, each after four of the layer before; with 30 edges over two layers it makes 2,390."""
    rng = random.Random(600)
    after = {}
    for layer in range(60):
        for place in range(10):
            key = f"step_{layer}_{place}"
            after[key] = [f"step_{layer - 1}_{n}" for n in rng.sample(range(10), 4)] if layer else []
    for layer in range(2, 5):
        for place in range(10):
            after[f"step_{layer}_{place}"].append(f"step_{layer - 2}_{place}")
    assert len(after) == STEPS and sum(map(len, after.values())) == EDGES
    return {
        "name": f"large-{salt}",
        "steps": [{"key": key, "task": "bench", "after": list(edges)} for key, edges in after.items()],
    }


def start(server, scale):
    result = Result(f"start of a graph of {STEPS} steps and {EDGES:,} edges")
    repeats = scale.pick(5, 20)
    query = "SELECT * FROM sayiir.workflow_start_graph(%s::jsonb)"
    with server.connect() as conn:
        empty_all(conn)
        known = large("known")
        conn.execute("SELECT * FROM sayiir.workflow_define(%s)", [Jsonb(known)])

        def new():
            for _ in range(repeats):
                graph = json.dumps(large(random.getrandbits(60)))
                result.add("new", "ms", 1000 * timed(lambda: conn.execute(query, [graph])))

        def again():
            graph = json.dumps(known)
            for _ in range(repeats):
                result.add("same graph again", "ms", 1000 * timed(lambda: conn.execute(query, [graph])))

        def by_name():
            for _ in range(repeats):
                result.add(
                    "by name",
                    "ms",
                    1000 * timed(lambda: conn.execute("SELECT * FROM sayiir.workflow_start('large-known')")),
                )

        alternate(scale.rounds, {"new": new, "again": again, "by name": by_name})
    result.at_most("new", 25)
    result.at_most("by name", 1)
    result.at_most("same graph again", 1)
    return result


def fan_out(server, scale):
    """One step, 50 after it, one after them; four workers that wait for work. Time from the start to the end."""
    width = 50
    result = Result(f"fan-out {width} and join, 4 workers")
    graph = {
        "name": "fan",
        "steps": [{"key": "first", "task": "fan"}]
        + [{"key": f"s{n}", "task": "fan", "after": ["first"]} for n in range(width)]
        + [{"key": "join", "task": "fan", "after": [f"s{n}" for n in range(width)]}],
    }
    stop = threading.Event()

    def work(size):
        with server.connect() as conn:
            while not stop.is_set():
                jobs = conn.execute(
                    "SELECT job_id, epoch FROM sayiir.job_claim('worker', '{fan}', %s, wait => '100 ms')", [size]
                ).fetchall()
                if jobs:
                    conn.execute(
                        "SELECT * FROM sayiir.job_complete_many(%s, %s)",
                        [[job[0] for job in jobs], [job[1] for job in jobs]],
                    )

    def measure(name, size):
        def once():
            stop.clear()
            workers = [threading.Thread(target=work, args=[size]) for _ in range(4)]
            for worker in workers:
                worker.start()
            with server.connect() as conn:
                for n in range(scale.pick(5, 20)):
                    started = time.perf_counter()
                    workflow = conn.execute("SELECT workflow_id FROM sayiir.workflow_start('fan')").fetchone()[0]
                    status = conn.execute("SELECT sayiir.workflow_wait(%s)", [workflow]).fetchone()[0]
                    assert status == "succeeded", status
                    if n:
                        result.add(name, "ms", 1000 * (time.perf_counter() - started))
            stop.set()
            for worker in workers:
                worker.join()

        return once

    with server.connect() as conn:
        empty_all(conn)
        conn.execute("SELECT * FROM sayiir.workflow_define(%s)", [Jsonb(graph)])
    alternate(scale.rounds, {"one": measure("one job a claim", 1), "ten": measure("ten jobs a claim", 10)})
    result.at_most("ten jobs a claim", 50)
    return result


def run(server, scale):
    for clients in (1, 4, 16):
        yield steps(server, scale, clients)
    yield start(server, scale)
    yield fan_out(server, scale)
