"""New runs: what a job begins them with, and what it forgets."""

import pytest
from psycopg.types.json import Jsonb

from durable import await_event, back, send, sleep, spawn
from jobs import (  # noqa: F401
    a_task,
    assert_sound,
    call,
    fail,
    fall_due,
    get,
    leased,
    no_worker,
    one,
    refused,
)

pytestmark = pytest.mark.usefixtures("no_worker")


def test_a_job_continues_as_a_new_run(conn):
    job = leased(conn, max_attempts=2)
    fail(conn, job)
    fall_due(conn, job.job_id)
    job = back(conn, job)
    call(conn, "job_checkpoint", job.job_id, job.epoch, "cursor", Jsonb(10))
    sleep(conn, job, delay="0")
    send(conn, job, payload=1)
    await_event(conn, job)
    child = spawn(conn, job, a_task())
    answer = one(conn, "job_continue", job.job_id, job.epoch)
    assert (answer.disposition, answer.run_number) == ("continued", 2)
    assert_sound(conn)
    job = back(conn, job)
    assert (job.run_number, job.attempt, job.checkpoints) == (2, 1, {"cursor": 10})
    assert job.idempotency_key == f"{job.job_id}/2"
    assert get(conn, job.job_id).error_code is None
    assert spawn(conn, job, a_task()).job_id != child.job_id
    kinds = [entry.kind for entry in call(conn, "job_history", job.job_id)]
    assert kinds == ["job_enqueued", "attempt_failed", "job_continued"]


def test_a_new_run_begins_with_the_checkpoints_it_is_given(conn):
    job = leased(conn)
    call(conn, "job_checkpoint", job.job_id, job.epoch, "old", Jsonb(1))
    call(conn, "job_continue", job.job_id, job.epoch, checkpoints={"new": {"n": 2}, "none": None})
    job = back(conn, job)
    assert job.checkpoints == {"new": {"n": 2}, "none": None}
    call(conn, "job_continue", job.job_id, job.epoch, checkpoints={})
    assert back(conn, job).checkpoints == {}


def test_a_new_run_can_begin_later(conn):
    job = leased(conn)
    answer = one(conn, "job_continue", job.job_id, job.epoch, delay="1 hour")
    assert get(conn, job.job_id).status == "scheduled"
    assert get(conn, job.job_id).run_at == answer.run_at
    fall_due(conn, job.job_id)
    assert back(conn, job).run_number == 2


@pytest.mark.parametrize("given", [[], 1, None, {"": 1}])
def test_checkpoints_of_a_new_run_are_an_object_of_names(conn, given):
    job = leased(conn)
    with refused("argument.invalid"):
        call(conn, "job_continue", job.job_id, job.epoch, checkpoints=Jsonb(given))
    assert get(conn, job.job_id).status == "leased"
