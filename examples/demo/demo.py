"""The demo: counts the words of a folder of text files with a durable workflow, several workers, and a kill -9.

Usage: SAYIIR_URI=… demo.py [FOLDER]. `make demo` builds everything, starts a server and calls it. Everything that it asks of the
database carries an id or a key of its own, so it goes on where it was when the server was restarted meanwhile.
"""

import argparse
import itertools
import os
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import psycopg
from psycopg.types.json import Jsonb

import tasks
from session import Patient, connect, show_line

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent.parent / "target" / "demo"
ENDED = ("succeeded", "failed", "cancelled")
# Nothing has moved for so long: something is wrong.
STUCK = 60.0
# The whole of the counting takes about so long, whatever the number of files.
COUNTING = 6.0


class Failed(Exception):
    """Something that the user has to know; ends the demo."""


def say(text):
    show_line("demo", text)


def shortened(lines, first, last):
    """The first and the last lines of many."""
    if len(lines) <= first + last + 1:
        return lines
    return [*lines[:first], f"… {len(lines) - first - last} more …", *lines[-last:]]


class Demo:
    def __init__(self, uri, options, folder):
        self.options, self.folder = options, folder
        self.workflow_id = options.workflow_id or f"word-report-{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}"
        self.report = TARGET / f"{self.workflow_id}.txt"
        self.db = Patient(uri, "demo", ["sayiir_job_ready", "sayiir_workflow_finished"])
        self.workers = {}
        self.version = 0
        self.history = []
        self.killed = None
        self.files = 0

    # Steps of the demo

    def run(self):
        self.prepare()
        files = tasks.text_files(self.folder)
        say(
            f"folder {self.folder}: {len(files)} text files, {self.options.workers} workers, workflow {self.workflow_id}"
        )
        expected = {path: len(tasks.read(path).split()) for path in files}
        self.files = len(files)
        self.start_workers()
        self.list_files()
        self.follow(self.step_ended("merge"), while_waiting=None if self.options.no_kill else self.kill_one)
        self.approve()
        self.follow(self.has_ended)
        self.show(self.result())
        self.verify(expected)

    def prepare(self):
        self.db.do("CREATE SCHEMA IF NOT EXISTS demo")
        # No unique key: a file that is counted twice would be seen.
        self.db.do(
            "CREATE TABLE IF NOT EXISTS demo.word_count (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
            " workflow_id text NOT NULL, file text NOT NULL, words bigint NOT NULL, worker text NOT NULL)"
        )
        earlier = self.db.rows(
            "SELECT w.workflow_id, sayiir.workflow_cancel(w.workflow_id, 'a newer demo began')"
            " FROM sayiir.workflows w WHERE w.name = 'word_report' AND w.finished_at IS NULL"
        )
        for row in earlier:
            say(f"cancelled {row.workflow_id}, which an earlier demo did not finish")

    def start_workers(self):
        pace = self.options.pace
        if pace is None:
            pace = min(0.5, COUNTING * self.options.workers / self.files)
        for number in range(1, self.options.workers + 1):
            name = f"worker-{number}"
            command = [sys.executable, str(HERE / "worker.py"), name, str(pace)]
            self.workers[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def list_files(self):
        """The first job is a plain one; it starts the workflow, because only then is it known how many steps there are."""
        payload = {"folder": str(self.folder), "workflow_id": self.workflow_id, "report": str(self.report)}
        listing = self.db.row(
            "SELECT * FROM sayiir.job_enqueue('list_files', %s, max_attempts => %s, idempotency_key => %s, options => %s)",
            [
                Jsonb(payload),
                tasks.RETRY["max_attempts"],
                self.workflow_id,
                Jsonb({"lease": tasks.LEASE, "retry": {k: v for k, v in tasks.RETRY.items() if k != "max_attempts"}}),
            ],
        )
        say(f"enqueued list_files: {listing.disposition}")
        self.wait_for(lambda: self.listed(listing.job_id), "list_files")

    def listed(self, job_id):
        job = self.db.row("SELECT * FROM sayiir.job_get(%s)", [job_id])
        if job.status in ("failed", "cancelled"):
            raise Failed(f"the files could not be listed: {job.error_message or job.reason}")
        return job.status == "succeeded"

    def kill_one(self):
        """Ends a worker with kill -9 while it holds the lease of a file, once a few files are counted."""
        if self.killed or self.ended("count_") < min(2, self.files - 1):
            return
        for lease in self.leases():
            worker = self.workers[lease.worker]
            # Stopped, it cannot complete between our look and the kill.
            worker.send_signal(signal.SIGSTOP)
            if not any((held.job_id, held.epoch) == (lease.job_id, lease.epoch) for held in self.leases()):
                worker.send_signal(signal.SIGCONT)
                continue
            worker.kill()
            worker.wait()
            self.killed = lease
            say(
                f"killed {lease.worker} (kill -9) while it held {lease.step}, attempt {lease.attempt}, epoch {lease.epoch}"
            )
            return

    def leases(self):
        return self.db.rows(
            "SELECT * FROM sayiir.jobs WHERE workflow_id = %s AND status = 'leased' AND task = 'count_words' ORDER BY started_at DESC",
            [self.workflow_id],
        )

    def approve(self):
        self.wait_for(lambda: self.waits() or self.status() in ENDED, "the approval")
        waits = self.waits()
        if not waits:
            self.result()
            raise Failed("the workflow did not wait for its approval")
        wait = waits[0]
        say(f"{wait.step} waits for the event {wait.event!r} until {wait.until:%H:%M:%S}; sending it")
        answer = self.db.row(
            "SELECT sayiir.workflow_send_event(%s, 'approved', %s, event_key => 'demo') AS disposition",
            [self.workflow_id, Jsonb({"by": "the demo"})],
        )
        say(f"sent: {answer.disposition}")

    def waits(self):
        return self.db.rows("SELECT * FROM sayiir.waits WHERE workflow_id = %s", [self.workflow_id])

    def result(self):
        workflow = self.db.row("SELECT * FROM sayiir.workflow_get(%s)", [self.workflow_id])
        if workflow.status != "succeeded":
            raise Failed(f"the workflow has {workflow.status}: {workflow.error_message or workflow.reason}")
        return self.db.row("SELECT sayiir.workflow_result(%s) AS result", [self.workflow_id]).result

    # Following the workflow

    def follow(self, is_reached, while_waiting=None):
        """Prints the history as it grows, until is_reached()."""
        moved = time.monotonic()
        while True:
            new = self.db.rows("SELECT * FROM sayiir.workflow_history(%s, %s)", [self.workflow_id, self.version])
            if new:
                moved = time.monotonic()
                self.version = new[-1].version
                self.history += new
                self.print(new)
            if is_reached():
                return
            if while_waiting:
                while_waiting()
            self.check(moved, "the workflow")
            # Notifications tell of ready jobs and of the end; what only ends is seen by looking.
            self.db.wait(0.2)

    def wait_for(self, condition, what):
        started = time.monotonic()
        while True:
            found = condition()
            if found:
                return found
            self.check(started, what)
            self.db.wait(0.1)

    def check(self, moved, what):
        for name, worker in self.workers.items():
            if worker.poll() is not None and not (self.killed and self.killed.worker == name):
                raise Failed(f"{name} has ended by itself (status {worker.returncode})")
        if time.monotonic() - moved > STUCK:
            for line in self.db.rows("SELECT * FROM sayiir.workflow_explain(%s)", [self.workflow_id]):
                say(f"{line.step}: {line.status}, {line.why}")
            raise Failed(f"{what} has not moved for {STUCK:.0f} s")

    def step_ended(self, step):
        return lambda: self.ended(step) > 0 or self.has_ended()

    def ended(self, prefix):
        return sum(line.kind == "step_succeeded" and line.step.startswith(prefix) for line in self.history)

    def status(self):
        return self.db.row("SELECT sayiir.workflow_status(%s) AS status", [self.workflow_id]).status

    def has_ended(self):
        """Whether it has, and everything until then is printed."""
        return self.status() in ENDED and not self.db.rows(
            "SELECT 1 FROM sayiir.workflow_history(%s, %s)", [self.workflow_id, self.version]
        )

    def print(self, lines):
        for kind, same in itertools.groupby(lines, key=lambda line: line.kind):
            same = list(same)
            if kind == "step_released" and len(same) > 1:
                say(f"{kind}: {same[0].step} … {same[-1].step} ({len(same)} steps)")
                continue
            for line in same:
                say(f"{kind}: {self.describe(line)}")

    @staticmethod
    def describe(line):
        detail = line.detail or {}
        parts = [line.step or detail.get("name") or ""]
        if detail.get("worker"):
            parts.append(f"by {detail['worker']}, attempt {detail['attempt']}, epoch {detail['epoch']}")
        if "error" in detail:
            parts.append(f"{detail['error']['code']}, then {detail.get('disposition', 'no more')}")
        return " ".join(parts)

    # The end

    def show(self, result):
        print("\nResult:", result)
        print("\nHistory:")
        lines = [f"{x.version:>6}  {x.at:%H:%M:%S.%f}  {x.kind:16} {self.describe(x)}" for x in self.history]
        for line in shortened(lines, 40, 20):
            print("  " + line)
        print(f"\nReport ({self.report}):")
        lines = self.report.read_text(encoding="utf-8").splitlines()
        for line in shortened(lines, 20, 5):
            print("  " + line)
        print(flush=True)

    def verify(self, expected):
        """What the workers counted against our own count, in one process and without the engine."""
        rows = self.db.rows(
            "SELECT file, words FROM demo.word_count WHERE workflow_id = %s ORDER BY file", [self.workflow_id]
        )
        if [(row.file, row.words) for row in rows] != sorted(expected.items()):
            raise Failed(f"{len(rows)} counts of {len(expected)} files, and they are not the right ones")
        if self.ended("count_") != len(expected):
            raise Failed(f"{self.ended('count_')} steps have counted {len(expected)} files")
        say(f"verified: each of {len(expected)} files was counted exactly once, {sum(expected.values())} words in all")
        if self.killed:
            self.verify_retry()
        elif not self.options.no_kill:
            say("no worker was killed: none held a file at the right moment")

    def verify_retry(self):
        lines = [line for line in self.history if line.step == self.killed.step]
        lost = [line.detail["epoch"] for line in lines if line.kind == "attempt_failed"]
        end = next(line.detail for line in lines if line.kind == "step_succeeded")
        if self.killed.epoch not in lost or end["epoch"] <= self.killed.epoch:
            raise Failed(f"{self.killed.step} was not tried again after the kill")
        say(
            f"verified: {self.killed.step} was lost by {self.killed.worker} (epoch {self.killed.epoch}) and counted by"
            f" {end['worker']} (attempt {end['attempt']}, epoch {end['epoch']})"
        )

    def stop(self):
        for worker in self.workers.values():
            if worker.poll() is None:
                worker.terminate()
        for worker in self.workers.values():
            try:
                worker.wait(timeout=5)
            except subprocess.TimeoutExpired:
                worker.kill()


def arguments():
    parser = argparse.ArgumentParser(description="Counts the words of a folder of text files with a durable workflow.")
    parser.add_argument("folder", nargs="?", default="", help="default: /usr/share/common-licenses")
    parser.add_argument("--workers", type=int, default=3, help="how many processes (default: 3)")
    parser.add_argument("--pace", type=float, help="least seconds a file (default: so that people can follow)")
    parser.add_argument("--no-kill", action="store_true", help="leave the workers alone")
    parser.add_argument("--workflow-id", help="the workflow's id (default: a new one)")
    options = parser.parse_args()
    if options.workers < (1 if options.no_kill else 2):
        parser.error("one worker is killed, so there have to be two")
    return options


def main():
    options = arguments()
    uri = os.environ.get("SAYIIR_URI")
    if not uri:
        raise Failed("SAYIIR_URI is not set; `make demo` sets it")
    folder = Path(options.folder or "/usr/share/common-licenses").resolve()
    if not folder.is_dir():
        raise Failed(f"{folder} is not a folder")
    if not tasks.text_files(folder):
        raise Failed(f"there are no text files in {folder}")
    with connect(uri, "demo", patience=10) as conn:
        if not conn.execute("SELECT 1 FROM pg_extension WHERE extname = 'sayiir'").fetchone():
            raise Failed("the database has no extension sayiir; run CREATE EXTENSION sayiir")
    TARGET.mkdir(parents=True, exist_ok=True)
    if not os.access(TARGET, os.W_OK):
        raise Failed(f"the report cannot be written: {TARGET} belongs to someone else")
    demo = Demo(uri, options, folder)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        demo.run()
    finally:
        demo.stop()


if __name__ == "__main__":
    try:
        main()
    except (Failed, ValueError, psycopg.Error, OSError) as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
