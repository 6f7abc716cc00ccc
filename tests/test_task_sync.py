"""task_sync: the tasks that a program knows, set at once."""

import uuid

import pytest
from psycopg.types.json import Jsonb

from jobs import (  # noqa: F401
    a_task,
    call,
    claim,
    claim_one,
    enqueue,
    in_background,
    isolate,
    no_worker,
    one,
    refused,
    value,
)
from support import wait_for_lock

pytestmark = pytest.mark.usefixtures("no_worker")


@pytest.fixture
def other(connect):
    return connect()


@pytest.fixture
def org():
    """An organization that no other test uses: an exact sync is about all its tasks."""
    return f"org-{uuid.uuid4().hex[:8]}"


def sync(conn, org, *tasks, **named):
    return dict(call(conn, "task_sync", Jsonb(list(tasks)), organization_id=org, **named))


def row(conn, org, task):
    query = "SELECT max_attempts, timeout, lease, priority, retry, enabled, paused, options FROM sayiir.tasks WHERE task = %s"
    conn.execute("SELECT set_config('sayiir.organization_id', %s, false)", [org])
    conn.execute("SET sayiir.scope = organization")
    found = conn.execute(query, [task]).fetchone()
    conn.execute("RESET sayiir.scope")
    return found


def test_a_sync_creates_updates_and_leaves_alone(conn, org):
    assert sync(conn, org, {"task": "b", "max_attempts": 3}, {"task": "a"}) == {"a": "created", "b": "created"}
    full = {
        "task": "b",
        "max_attempts": 4,
        "timeout": "1 hour",
        "lease": "10 s",
        "priority": 7,
        "retry": {"initial": "1 s", "factor": 2},
        "options": {"model": "x"},
    }
    assert sync(conn, org, {"task": "a"}, full) == {"a": "unchanged", "b": "updated"}
    assert sync(conn, org, full) == {"b": "unchanged"}
    attempts, timeout, lease, priority, retry, enabled, paused, options = row(conn, org, "b")
    assert (attempts, timeout.seconds, lease.seconds, priority) == (4, 3600, 10, 7)
    assert (retry, enabled, paused, options) == ({"initial": "1 s", "factor": 2}, True, False, {"model": "x"})
    # What is left out is the default again.
    assert sync(conn, org, {"task": "b"}) == {"b": "updated"}
    assert row(conn, org, "b") == (None, None, None, None, None, True, False, {})


def test_a_job_follows_what_was_synced(conn, org):
    work = a_task()
    sync(conn, org, {"task": work, "max_attempts": 9, "priority": 80})
    enqueue(conn, work, organization_id=org)
    job = claim_one(conn, work, organization_id=org)
    assert job.max_attempts == 9
    sync(conn, org, {"task": work, "max_attempts": 2})
    enqueue(conn, work, organization_id=org)
    assert claim_one(conn, work, organization_id=org).max_attempts == 2


def test_an_exact_sync_disables_the_others(conn, org):
    sync(conn, org, {"task": "keep"}, {"task": "old"}, {"task": "off", "enabled": False})
    enqueue(conn, "old", organization_id=org)
    assert sync(conn, org, {"task": "keep"}) == {"keep": "unchanged"}
    assert sync(conn, org, {"task": "keep"}, {"task": "new"}, exact=True) == {
        "keep": "unchanged",
        "new": "created",
        "old": "disabled",
    }
    assert claim(conn, "old", organization_id=org) == []
    # It is known again: what an exact sync disabled, one enables.
    assert sync(conn, org, {"task": "old"}) == {"old": "unchanged"}
    assert claim(conn, "old", organization_id=org) == []
    assert sync(conn, org, {"task": "old"}, exact=True) == {"keep": "disabled", "new": "disabled", "old": "updated"}
    assert len(claim(conn, "old", organization_id=org)) == 1


def test_a_sync_keeps_a_pause_and_what_a_person_disabled(conn, org):
    sync(conn, org, {"task": "a"})
    one(conn, "task_pause", "a", organization_id=org)
    one(conn, "task_define", "a", enabled=False, organization_id=org)
    assert sync(conn, org, {"task": "a", "max_attempts": 3}) == {"a": "updated"}
    assert row(conn, org, "a")[5:7] == (False, True)
    assert sync(conn, org, {"task": "a", "enabled": True}) == {"a": "updated"}
    assert row(conn, org, "a")[5:7] == (True, True)


def test_a_sync_is_about_one_organization(conn, org):
    stranger = f"{org}-2"
    sync(conn, stranger, {"task": "a"})
    sync(conn, org, {"task": "b"}, exact=True)
    assert row(conn, stranger, "a")[5] is True
    assert row(conn, org, "a") is None


@pytest.mark.parametrize(
    ("tasks", "code"),
    [
        ([{"task": "a"}, {"task": "a"}], "argument.invalid"),
        ([{"task": "a", "nope": 1}], "option.unknown"),
        ([{"task": "a", "retry": {"nope": 1}}], "option.unknown"),
        ([{}], "argument.invalid"),
        ([1], "argument.invalid"),
        ([{"task": ""}], "argument.invalid"),
        ([{"task": "a", "max_attempts": 0}], "argument.invalid"),
        ([{"task": "a", "max_attempts": "3"}], "argument.invalid"),
        ([{"task": "a", "priority": 100}], "argument.out_of_range"),
        ([{"task": "a", "timeout": 5}], "argument.invalid"),
        ([{"task": "a", "timeout": "0"}], "argument.out_of_range"),
        ([{"task": "a", "enabled": "yes"}], "argument.invalid"),
        ([{"task": "a", "options": []}], "argument.invalid"),
        ({"task": "a"}, "argument.invalid"),
        (None, "argument.invalid"),
    ],
)
def test_what_is_refused_changes_nothing(conn, org, tasks, code):
    with refused(code):
        call(conn, "task_sync", Jsonb(tasks), organization_id=org)
    assert value(conn, "SELECT count(*) FROM sayiir.task WHERE organization_id = %s", org) == 0


def test_an_exact_sync_of_nothing_is_refused(conn, org):
    sync(conn, org, {"task": "a"})
    with refused("argument.invalid"):
        sync(conn, org, exact=True)
    assert sync(conn, org) == {}
    assert row(conn, org, "a")[5] is True


def test_a_sync_needs_read_committed(conn, org):
    isolate(conn, "repeatable read")
    with refused("call.isolation_unsupported"):
        sync(conn, org, {"task": "a"})


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_two_exact_syncs_come_one_after_the_other(conn, other, org, end):
    """Two versions of a program start at once, each knowing what the other does not: no circle, and the second one stands."""
    sync(conn, org, {"task": "a"}, {"task": "b"}, {"task": "c"})
    conn.execute("BEGIN")
    assert sync(conn, org, {"task": "a"}, {"task": "c"}, exact=True)["b"] == "disabled"
    waiting = in_background(lambda: sync(other, org, {"task": "b"}, exact=True))
    wait_for_lock(conn, other.info.backend_pid)
    conn.execute(end)
    b = "updated" if end == "commit" else "unchanged"
    assert waiting.join() == {"a": "disabled", "b": b, "c": "disabled"}


def test_an_exact_sync_locks_before_it_writes(conn, other, org):
    """Without that, the first would hold its own tasks and wait for the other's, and the other the other way round."""
    sync(conn, org, {"task": "a"}, {"task": "b"})
    conn.execute("BEGIN")
    conn.execute("SELECT FROM sayiir.task WHERE organization_id = %s AND task = 'a' FOR NO KEY UPDATE", [org])
    waiting = in_background(lambda: sync(other, org, {"task": "b", "priority": 3}, exact=True))
    wait_for_lock(conn, other.info.backend_pid)
    free = "SELECT count(*) FROM sayiir.task WHERE organization_id = %s AND task = 'b'"
    conn.execute(f"SELECT FROM ({free.replace('count(*)', '*')} FOR NO KEY UPDATE NOWAIT) t", [org])
    conn.execute("COMMIT")
    assert waiting.join() == {"a": "disabled", "b": "updated"}
