"""A worker of the demo. Usage: SAYIIR_URI=… worker.py NAME [SECONDS]

It claims one job at a time and does what tasks.py says. SECONDS is the least time that it spends on a file, so that people can
follow. While there is nothing to do it listens, and looks now and then, because notifications are only hints.
"""

import os
import signal
import sys
import time

import psycopg
from psycopg.types.json import Jsonb

from session import connect, error_code, show_line
from tasks import TASKS

POLL = 2.0


class Stopped(Exception):
    """The engine wants the job back: its workflow was cancelled or paused."""


class Lease:
    def __init__(self, conn, worker, job, pace):
        self.conn, self.worker, self.job, self.pace = conn, worker, job, pace

    def heartbeat(self, done, total):
        directive = self.conn.execute(
            "SELECT sayiir.job_heartbeat(%s, %s, progress_done => %s, progress_total => %s)",
            [self.job.job_id, self.job.epoch, done, total],
        ).fetchone()[0]
        if directive in ("cancel", "pause"):
            answer = self.conn.execute("SELECT sayiir.job_release(%s, %s)", [self.job.job_id, self.job.epoch])
            raise Stopped(answer.fetchone()[0])
        if directive == "lost":
            raise Stopped("lost")

    def complete(self, output):
        parameters = [self.job.job_id, self.job.epoch, Jsonb(output)]
        self.conn.execute("SELECT sayiir.job_complete(%s, %s, %s)", parameters)


def work(conn, worker, job, pace):
    label = " ".join(filter(None, [job.step, job.task, os.path.basename(job.input.get("file", ""))]))
    show_line(worker, f"took {label}: attempt {job.attempt}, epoch {job.epoch}")
    try:
        TASKS[job.task](job, Lease(conn, worker, job, pace))
    except Stopped as stopped:
        show_line(worker, f"leaves {label}: {stopped}")
    except Exception as error:
        # Without a connection there is nobody to tell: the lease will expire, and the job be tried again.
        if conn.closed:
            raise
        if error_code(error) in ("job.lease_lost", "job.busy"):
            show_line(worker, f"could not end {label}: {error}")
            return
        show_line(worker, f"failed with {label}: {error}")
        kind = "terminal" if isinstance(error, ValueError | psycopg.DataError) else "retryable"
        conn.execute(
            "SELECT * FROM sayiir.job_fail(%s, %s, %s, %s, %s)",
            [job.job_id, job.epoch, type(error).__name__, str(error), kind],
        )


def run(conn, worker, pace):
    conn.execute("LISTEN sayiir_job_ready")
    parent = os.getppid()
    while os.getppid() == parent:
        job = conn.execute("SELECT * FROM sayiir.job_claim(%s, %s)", [worker, list(TASKS)]).fetchone()
        if job:
            work(conn, worker, job, pace)
        else:
            list(conn.notifies(timeout=POLL, stop_after=1))


def main():
    worker, pace = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    while True:
        conn = connect(os.environ["SAYIIR_URI"], worker)
        try:
            run(conn, worker, pace)
            return
        except psycopg.Error:
            if not conn.closed:
                raise
            show_line(worker, "lost its connection")
            time.sleep(0.1)


if __name__ == "__main__":
    main()
