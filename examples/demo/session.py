"""What the demo and its workers share: a connection that comes back after the server was away, and lines on the screen."""

import json
import sys
import time
from datetime import datetime

import psycopg
from psycopg.rows import namedtuple_row

PATIENCE = 60.0


def show_line(who, text):
    """In one write, so that lines of several processes do not mix."""
    sys.stdout.write(f"{datetime.now():%H:%M:%S.%f}"[:-3] + f" {who:9} {text}\n")
    sys.stdout.flush()


def error_code(error):
    """The engine's code of an error, for instance job.lease_lost; None for an error that is not the engine's."""
    try:
        return json.loads(error.diag.message_detail)["code"]
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def connect(uri, name, patience=PATIENCE):
    """A new connection in autocommit mode; waits for a server that is starting."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return psycopg.connect(uri, application_name=name, autocommit=True, row_factory=namedtuple_row)
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


class Patient:
    """Runs statements, each again on a new connection when the server went away. The first time may have been committed
    although its answer was lost, so every statement has to be one that may run twice: with an id or a key of the caller's."""

    def __init__(self, uri, name, channels=()):
        self.uri, self.name, self.channels = uri, name, channels
        self.conn = None
        self.listens = False

    def rows(self, statement, params=None):
        return self._patiently(lambda conn: conn.execute(statement, params).fetchall())

    def row(self, statement, params=None):
        return self.rows(statement, params)[0]

    def do(self, statement, params=None):
        self._patiently(lambda conn: conn.execute(statement, params))

    def wait(self, seconds):
        """Sleeps until a notification comes, or for so many seconds."""
        self._patiently(lambda conn: list(conn.notifies(timeout=seconds, stop_after=1)))

    def _patiently(self, work):
        while True:
            if self.conn is None:
                self.conn = connect(self.uri, self.name)
            try:
                if not self.listens:
                    for channel in self.channels:
                        self.conn.execute(f"LISTEN {channel}")
                    self.listens = True
                return work(self.conn)
            except psycopg.Error:
                if not self.conn.closed:
                    raise
                self.conn, self.listens = None, False
