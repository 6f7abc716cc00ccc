"""What tests need besides fixtures: waiting for something, and the server as an object."""

import os
import subprocess
import time
from dataclasses import dataclass

import psycopg


def wait_until(condition, timeout=10.0, interval=0.01):
    """Polls until condition() is true, and returns what it returned."""
    deadline = time.monotonic() + timeout
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            raise TimeoutError(f"not true within {timeout} s")
        time.sleep(interval)


def wait_for_lock(conn, pid, timeout=10.0):
    """Waits until the backend with this pid waits for a lock, asked through conn, which is another one."""
    query = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"

    def is_blocked():
        row = conn.execute(query, [pid]).fetchone()
        assert row is not None, f"backend {pid} is gone"
        return row[0]

    wait_until(is_blocked, timeout)


RECOVERING = ("recovery mode", "starting up", "not yet accepting", "shutting down")


@dataclass(frozen=True)
class Cluster:
    """The server that scripts/with-cluster started for us."""

    major: int
    bin: str
    prefix: str
    data: str
    socket: str
    port: int
    log: str
    run_as: str

    @classmethod
    def from_environment(cls):
        env = os.environ
        return cls(
            major=int(env["SAYIIR_PG"]),
            bin=env["SAYIIR_BIN"],
            prefix=env["SAYIIR_PREFIX"],
            data=env["SAYIIR_DATA"],
            socket=env["SAYIIR_SOCKET"],
            port=int(env["SAYIIR_PORT"]),
            log=env["SAYIIR_LOG"],
            run_as=env["SAYIIR_RUN_AS"],
        )

    def uri(self, dbname="postgres"):
        return f"postgresql://postgres@/{dbname}?host={self.socket}&port={self.port}"

    def connect(self, dbname="postgres", **kwargs):
        """A new connection in autocommit mode, which the caller closes. It waits for a server that recovers from a crash."""
        settings = {"user": "postgres", "autocommit": True} | kwargs

        def attempt():
            try:
                return psycopg.connect(host=self.socket, port=self.port, dbname=dbname, **settings)
            except psycopg.OperationalError as error:
                if any(state in str(error) for state in RECOVERING):
                    return None
                raise

        return wait_until(attempt, timeout=60, interval=0.05)

    def checkpointer(self, conn):
        """The pid of a process that every crash replaces."""
        return conn.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'").fetchone()[0]

    def client(self, program, *args, **kwargs):
        """Runs a client program of this server (psql, pg_dump …) and returns its output."""
        env = os.environ | {"PGHOST": self.socket, "PGPORT": str(self.port), "PGUSER": "postgres"}
        command = [f"{self.bin}/{program}", *args]
        return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, env=env, **kwargs).stdout

    def run_as_server(self, *command, **kwargs):
        """Runs a program as the user that owns the server."""
        prefix = []
        if self.run_as:
            prefix = ["setpriv", f"--reuid={self.run_as}", f"--regid={self.run_as}", "--init-groups"]
        env = {name: value for name, value in os.environ.items() if not name.startswith("RUST_")}
        # A server keeps the standard streams that it inherits, so a pipe here would never end.
        options = {"check": True, "cwd": "/", "env": env, "stdout": subprocess.DEVNULL} | kwargs
        return subprocess.run([*prefix, *command], **options)

    def stop(self, mode="fast"):
        self.run_as_server(f"{self.bin}/pg_ctl", "-D", self.data, "-m", mode, "-w", "stop")

    def start(self):
        self.run_as_server(f"{self.bin}/pg_ctl", "-D", self.data, "-l", self.log, "-w", "start")

    def restart(self, mode="fast"):
        """Mode "immediate" is a crash: recovery replays the log."""
        self.stop(mode)
        self.start()
