"""Fixtures. Run the tests with `make test`, which starts a server for them and tells it in the environment."""

import itertools
import os
import re

import pytest

from support import Cluster, wait_for_lock, wait_until  # noqa: F401 (tests import them from here, too)

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def cluster():
    if "SAYIIR_SOCKET" not in os.environ:
        pytest.exit("no server; run the tests with 'make test'", returncode=2)
    return Cluster.from_environment()


@pytest.fixture(scope="module")
def db(cluster, request):
    """The name of a new database with the extension, one for each test module."""
    module = re.sub(r"\W", "_", request.module.__name__.lower())[-40:]
    name = f"{module}_{next(_numbers)}"
    with cluster.connect() as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    with cluster.connect(name) as conn:
        conn.execute("CREATE EXTENSION sayiir")
    yield name
    with cluster.connect() as conn:
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def fresh(cluster):
    """The name of a new database with the extension, for this test alone."""
    name = f"fresh_{next(_numbers)}"
    with cluster.connect() as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    with cluster.connect(name) as conn:
        conn.execute("CREATE EXTENSION sayiir")
    yield name
    with cluster.connect() as conn:
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def connect(cluster, db):
    """Makes connections to the module's database (or another), in autocommit mode, and closes them after the test."""
    opened = []

    def open_connection(**kwargs):
        conn = cluster.connect(**({"dbname": db} | kwargs))
        opened.append(conn)
        return conn

    yield open_connection
    for conn in opened:
        conn.close()


@pytest.fixture
def conn(connect):
    """One connection, for tests that need only that."""
    return connect()
