"""What benchmarks share: the server, pgbench, and figures taken in turn so that a noisy machine is noisy for all of them."""

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

BENCH = Path(__file__).parent
SCRIPTS = BENCH / "pgbench"
CORES = os.cpu_count() or 1
# Scripts that each client of pgbench runs before it counts.
WARM_UP = 20


@dataclass
class Server:
    """The server that scripts/with-cluster started, and the database of this run."""

    bin: str
    socket: str
    port: int
    dbname: str = "bench"

    @classmethod
    def from_environment(cls):
        env = os.environ
        return cls(bin=env["SAYIIR_BIN"], socket=env["SAYIIR_SOCKET"], port=int(env["SAYIIR_PORT"]))

    def connect(self, dbname=None, **kwargs):
        settings = {"user": "postgres", "autocommit": True} | kwargs
        return psycopg.connect(host=self.socket, port=self.port, dbname=dbname or self.dbname, **settings)

    def create_database(self):
        """A new database; the checkpointer is told to stay away from the measurements."""
        with self.connect("postgres") as conn:
            conn.execute("ALTER SYSTEM SET max_wal_size = '16GB'")
            conn.execute("ALTER SYSTEM SET checkpoint_timeout = '1h'")
            conn.execute("SELECT pg_reload_conf()")
            conn.execute(f"DROP DATABASE IF EXISTS {self.dbname} WITH (FORCE)")
            conn.execute(f"CREATE DATABASE {self.dbname} TEMPLATE template0")
        with self.connect() as conn:
            conn.execute("CREATE EXTENSION sayiir")

    def pgbench(self, script, clients, transactions, **variables):
        """Each client runs the script so many times, prepared, after some more for its plans and caches; answers scripts per second
        of all clients together while all of them are warm and none has finished."""
        ends = self.moments(script, clients, ["-t", str(transactions + WARM_UP)], variables)
        started = max(times[WARM_UP - 1] for times in ends)
        stopped = min(times[-1] for times in ends)
        if stopped <= started:
            sys.exit(f"{script}: too few transactions to count while all clients run")
        return sum(started < moment <= stopped for times in ends for moment in times) / (stopped - started)

    def pgbench_for(self, script, clients, seconds, window, **variables):
        """The same for a time; answers scripts per second in the first and in the last `window` seconds."""
        ends = self.moments(script, clients, ["-T", str(seconds)], variables)
        started = max(times[WARM_UP - 1] for times in ends)
        stopped = max(times[-1] for times in ends)

        def count(since, until):
            return sum(since < moment <= until for times in ends for moment in times)

        return count(started, started + window) / window, count(stopped - window, stopped) / window

    def moments(self, script, clients, length, variables):
        """When each client finished each script."""
        with tempfile.TemporaryDirectory() as folder:
            command = [
                f"{self.bin}/pgbench",
                "-n",
                "-M",
                "prepared",
                "-f",
                str(script),
                "-l",
                f"--log-prefix={folder}/log",
            ]
            command += ["-c", str(clients), "-j", str(min(clients, CORES)), *length]
            for name, value in variables.items():
                command += ["-D", f"{name}={value}"]
            env = os.environ | {
                "PGHOST": self.socket,
                "PGPORT": str(self.port),
                "PGUSER": "postgres",
                "PGDATABASE": self.dbname,
            }
            done = subprocess.run(command, text=True, capture_output=True, env=env)
            if done.returncode != 0 or "ERROR" in done.stderr:
                sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
            ends = {}
            for file in Path(folder).iterdir():
                for line in file.read_text().splitlines():
                    client, _, _, _, seconds, micros = line.split()[:6]
                    ends.setdefault(client, []).append(int(seconds) + int(micros) / 1e6)
        return list(ends.values())


@dataclass
class Figure:
    """One thing measured: its values over the rounds, higher is better unless it is a time or a size."""

    name: str
    unit: str
    values: list = field(default_factory=list)

    @property
    def median(self):
        return statistics.median(self.values)

    def as_json(self):
        return {
            "unit": self.unit,
            "median": self.median,
            "low": min(self.values),
            "high": max(self.values),
            "values": self.values,
        }


@dataclass
class Result:
    """What a scenario answers. `ratio` compares a figure with another one of the same round, so that both had the same noise."""

    title: str
    figures: dict = field(default_factory=dict)
    ratios: dict = field(default_factory=dict)
    targets: dict = field(default_factory=dict)

    def add(self, name, unit, value):
        self.figures.setdefault(name, Figure(name, unit)).values.append(value)

    def ratio(self, name, base, target=None, of=None):
        """Adds `of / base` (default: this figure) to what is reported, with the least ratio that DESIGN asks for."""
        above, below = self.figures[of or name], self.figures[base]
        values = [a / b for a, b in zip(above.values, below.values, strict=True)]
        self.ratios[name] = {
            "of": of or name,
            "base": base,
            "target": target,
            "median": statistics.median(values),
            "low": min(values),
            "high": max(values),
            "values": values,
        }

    def at_least(self, name, value):
        self.targets[name] = ("at least", value)

    def at_most(self, name, value):
        self.targets[name] = ("at most", value)


@dataclass(frozen=True)
class Scale:
    """How long a run may take."""

    full: bool
    rounds: int
    parts: tuple = ()

    def pick(self, quick, full):
        return full if self.full else quick


def alternate(rounds, variants):
    """Runs every variant once a round, each round in another order."""
    names = list(variants)
    for _ in range(rounds):
        random.shuffle(names)
        for name in names:
            variants[name]()


def percentile(values, percent):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def timed(work):
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def wal_position(conn):
    return conn.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()[0]
