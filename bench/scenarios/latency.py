"""How long it takes until a worker that waits has the step which an event released."""

import queue
import threading
import time

from psycopg.types.json import Jsonb

from harness import Result, percentile
from scenarios.graph import empty_all

GRAPH = {
    "name": "event",
    "steps": [{"key": "paid", "event": "paid"}, {"key": "ship", "task": "ship", "after": ["paid"]}],
}


def run(server, scale):
    result = Result("event sent → its step claimed by a waiting worker (and, for comparison, job enqueued → claimed)")
    count = scale.pick(60, 400)
    arrived = queue.Queue()
    stop = threading.Event()

    def work():
        with server.connect() as conn:
            while not stop.is_set():
                jobs = conn.execute(
                    "SELECT job_id, epoch FROM sayiir.job_claim('worker', '{ship}', wait => '1 s')"
                ).fetchall()
                if jobs:
                    arrived.put(time.perf_counter())
                for job in jobs:
                    conn.execute("SELECT sayiir.job_complete(%s, %s)", job)

    def measure(send):
        times = []
        for n in range(count):
            started = time.perf_counter()
            send(n)
            times.append(1000 * (arrived.get(timeout=30) - started))
            time.sleep(0.01)  # the worker goes back to waiting
        return times

    with server.connect() as conn:
        empty_all(conn)
        conn.execute("SELECT * FROM sayiir.workflow_define(%s)", [Jsonb(GRAPH)])
        worker = threading.Thread(target=work)
        worker.start()
        for round in range(scale.rounds):
            conn.execute(
                "SELECT count(*) FROM generate_series(1, %s) n, sayiir.workflow_start('event', workflow_id => %s || n) s",
                [count, f"e{round}-"],
            )
            for name, send in (
                (
                    "event",
                    lambda n: conn.execute("SELECT sayiir.workflow_send_event(%s, 'paid')", [f"e{round}-{n + 1}"]),
                ),
                ("job", lambda n: conn.execute("SELECT * FROM sayiir.job_enqueue('ship')")),
            ):
                times = measure(send)
                result.add(f"{name}: p50", "ms", percentile(times, 50))
                result.add(f"{name}: p99", "ms", percentile(times, 99))
        stop.set()
        worker.join()
    result.at_most("event: p50", 2)
    yield result
