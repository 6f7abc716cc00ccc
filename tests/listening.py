"""A session that listens, for tests of what others are told and when."""

import contextlib
import json
import threading
import time

import psycopg

END = "zzzz-end"


class Listener:
    """Collects the notifications of one database."""

    def __init__(self, conn, *channels):
        self.conn = conn
        self.seen = []
        for channel in channels or ["sayiir_job_ready", "sayiir_workflow_finished"]:
            conn.execute(f"LISTEN {channel}")

    def wait(self, is_enough, timeout=10.0):
        """Listens until is_enough(payloads so far); returns the payloads."""
        deadline = time.monotonic() + timeout
        while not is_enough(self.payloads):
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"within {timeout} s only {self.payloads}")
            self.seen += self.conn.notifies(timeout=left, stop_after=1)
        return self.payloads

    def wait_for(self, payload, timeout=10.0):
        return self.wait(lambda seen: payload in seen, timeout)

    def until_end(self, writer):
        """What was told before a last job that is enqueued now; then forgets it."""
        writer.execute("SELECT sayiir.job_enqueue(%s)", [END])
        told = [payload for payload in self.wait_for(END) if payload != END]
        self.seen = []
        return told

    @property
    def payloads(self):
        return [notification.payload for notification in self.seen]


def finished(workflow_id, status):
    """Matches what is told of a workflow's end."""
    wanted = {"workflow_id": workflow_id, "status": status}
    return lambda seen: any(payload.startswith("{") and json.loads(payload) == wanted for payload in seen)


def workers(conn, database):
    """Process ids of the background workers that are in a database."""
    query = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'sayiir worker' AND datname = %s"
    return [pid for (pid,) in conn.execute(query, [database])]


def launchers(conn):
    return [pid for (pid,) in conn.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'sayiir launcher'")]


@contextlib.contextmanager
def notifier(cluster, db):
    """Commits faster than writers should notify themselves. Yields the pid of the worker that does it for them."""
    stop = threading.Event()

    def commit(conn):
        # The extension may be dropped under it.
        with contextlib.suppress(psycopg.ProgrammingError):
            while not stop.is_set():
                conn.execute("SELECT sayiir.job_enqueue('busy')")

    with cluster.connect(db) as writer, cluster.connect(db) as other:
        thread = threading.Thread(target=commit, args=[writer])
        thread.start()
        try:
            listener = Listener(other)
            listener.wait(lambda _: listener.seen and listener.seen[-1].pid != writer.info.backend_pid)
            yield listener.seen[-1].pid
        finally:
            stop.set()
            thread.join()
