"""Durable code as a worker runs it: calls under names, and the job's next claim."""

from psycopg.types.json import Jsonb

from jobs import call, claim_one, one


def sleep(conn, job, name="nap", **named):
    return one(conn, "job_sleep", job.job_id, job.epoch, name, **named)


def await_event(conn, job, name="go", **named):
    return one(conn, "job_await_event", job.job_id, job.epoch, name, **named)


def send(conn, job, name="go", payload=None, **named):
    return one(conn, "job_send_event", job.job_id, name, Jsonb(payload), **named)


def spawn(conn, job, task, name="child", payload=None, **named):
    return one(conn, "job_spawn", job.job_id, job.epoch, name, task, Jsonb({} if payload is None else payload), **named)


def await_job(conn, job, child, name="done", **named):
    child = getattr(child, "job_id", child)
    return one(conn, "job_await_job", job.job_id, job.epoch, name, child, **named)


def back(conn, job):
    """The same job, claimed again."""
    found = claim_one(conn, job.task)
    assert found.job_id == job.job_id
    return found


def pass_time(conn, *jobs):
    """Time passes for what these jobs wait for, until it is over; then a sweep looks."""
    ids = [job.job_id for job in jobs]
    conn.execute("UPDATE sayiir.job_wait SET due = clock_timestamp() - interval '1 s' WHERE job_id = ANY (%s)", [ids])
    conn.execute(
        "UPDATE sayiir.checkpoint SET due = clock_timestamp() - interval '2 s'"
        " WHERE job_id = ANY (%s) AND value IS NULL AND due IS NOT NULL",
        [ids],
    )
    call(conn, "tick")
