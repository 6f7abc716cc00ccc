"""Schedules as they are defined: what they answer, what is refused, and when they would fire."""

import json
from datetime import UTC, datetime

import pytest
from psycopg.types.json import Jsonb

from flows import define, graph, refused, task
from jobs import a_task, call, isolate, one, value
from jobs import no_worker as no_worker

pytestmark = pytest.mark.usefixtures("no_worker")


def at(text):
    return datetime.fromisoformat(text)


def fires(conn, cron, zone, after, count):
    return [row[0].astimezone(UTC).isoformat() for row in call(conn, "schedule_next", cron, zone, at(after), count)]


@pytest.mark.parametrize(
    "zone, cron, after, expected",
    [
        # Skipped: fires when the clock has jumped. Doubled: fires the first time.
        ("America/New_York", "30 2 * * *", "2026-03-07T12:00Z", ["2026-03-08T07:00", "2026-03-09T06:30"]),
        ("America/New_York", "30 1 * * *", "2026-10-31T12:00Z", ["2026-11-01T05:30", "2026-11-02T06:30"]),
        ("Europe/Berlin", "30 2 * * *", "2026-03-28T12:00Z", ["2026-03-29T01:00", "2026-03-30T00:30"]),
        ("Europe/Berlin", "30 2 * * *", "2026-10-24T12:00Z", ["2026-10-25T00:30", "2026-10-26T01:30"]),
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03T12:00Z", ["2026-10-03T15:30", "2026-10-04T15:15"]),
        ("Australia/Lord_Howe", "45 1 * * *", "2026-04-04T12:00Z", ["2026-04-04T14:45", "2026-04-05T15:15"]),
        (
            "Pacific/Apia",
            "0 12 * * *",
            "2011-12-29T12:00Z",
            ["2011-12-29T22:00", "2011-12-30T10:00", "2011-12-30T22:00"],
        ),
        ("Asia/Tehran", "30 0 * * *", "2022-03-21T12:00Z", ["2022-03-21T20:30", "2022-03-22T20:00"]),
        ("UTC", "0 12 29 2 *", "2026-01-01T00:00Z", ["2028-02-29T12:00", "2032-02-29T12:00"]),
        ("UTC", "30 */20 * * * *", "2026-01-01T00:00Z", ["2026-01-01T00:00:30", "2026-01-01T00:20:30"]),
        # Every hour: by elapsed time
        (
            "America/New_York",
            "0 * * * *",
            "2026-11-01T04:30Z",
            ["2026-11-01T05:00", "2026-11-01T06:00", "2026-11-01T07:00"],
        ),
    ],
)
def test_next(conn, zone, cron, after, expected):
    assert fires(conn, cron, zone, after, len(expected)) == [at(one + "+00:00").isoformat() for one in expected]


def test_next_agrees_with_postgres_on_time_zones(conn):
    """The library's time zones and the server's say the same of the years around us."""
    for zone in ["America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Tehran", "America/Sao_Paulo"]:
        local = conn.execute(
            "SELECT f AT TIME ZONE %s FROM sayiir.schedule_next('0 12 1 * *', %s, '2024-01-01', 60) f", [zone, zone]
        ).fetchall()
        assert {(one.day, one.hour, one.minute) for (one,) in local} == {(1, 12, 0)}


def test_next_defaults_to_now(conn):
    found = [row[0] for row in call(conn, "schedule_next", "* * * * *")]
    now = value(conn, "SELECT clock_timestamp()")
    assert len(found) == 5 and found == sorted(found)
    assert 0 < (found[0] - now).total_seconds() + 1 <= 61


def test_define_answers_what_it_made(conn):
    name = a_task()
    made = one(
        conn, "schedule_define", name, "0 9 * * MON-FRI", task="mail", payload={"to": "ada"}, timezone="Europe/Berlin"
    )
    assert (made.name, made.task, made.workflow, made.payload) == (name, "mail", None, {"to": "ada"})
    assert (made.missed, made.skipped_time, made.doubled_time, made.overlap) == ("last", "next", "first", "allow")
    assert (made.paused, made.last_at, made.organization_id, made.options) == (False, None, None, {})
    [[expected]] = call(conn, "schedule_next", "0 9 * * MON-FRI", "Europe/Berlin", fires=1)
    assert made.next_at == made.due == expected
    seen = value(conn, "SELECT to_jsonb(s) FROM sayiir.schedules s WHERE name = %s", name)
    assert (seen["cron"], seen["timezone"], seen["task"]) == ("0 9 * * MON-FRI", "Europe/Berlin", "mail")


def test_jitter_moves_due_and_not_the_nominal_time(conn):
    name = a_task()
    made = one(conn, "schedule_define", name, "0 0 1 1 *", task="mail", jitter="1 day")
    again = one(conn, "schedule_define", name, "0 0 1 1 *", task="mail", jitter="1 day")
    assert made.next_at < made.due <= made.next_at + made.jitter
    assert (again.next_at, again.due) == (made.next_at, made.due)
    other = one(conn, "schedule_define", a_task(), "0 0 1 1 *", task="mail", jitter="1 day")
    assert other.next_at == made.next_at and other.due != made.due


def test_defined_again(conn):
    """A deployment defines its schedules each time: a tick that is due already must not get lost by that."""
    name = a_task()
    one(conn, "schedule_define", name, "0 * * * *", task="one")
    conn.execute("UPDATE sayiir.schedule SET next_at = '2026-01-01', due = '2026-01-01' WHERE name = %s", [name])
    again = one(conn, "schedule_define", name, "0 * * * *", task="two", payload={"n": 2}, missed="all")
    assert (again.task, again.payload, again.missed, again.due) == ("two", {"n": 2}, "all", at("2026-01-01T00:00Z"))
    for change in [
        {"cron": "5 * * * *"},
        {"timezone": "Asia/Tehran"},
        {"doubled_time": "both"},
        {"skipped_time": "drop"},
    ]:
        conn.execute("UPDATE sayiir.schedule SET next_at = '2026-01-01', due = '2026-01-01' WHERE name = %s", [name])
        changed = one(conn, "schedule_define", **{"name": name, "cron": "0 * * * *", "task": "two"} | change)
        assert changed.due > value(conn, "SELECT clock_timestamp()"), change
        one(conn, "schedule_define", name, "0 * * * *", task="two")
    assert value(conn, "SELECT count(*) FROM sayiir.schedules WHERE name = %s", name) == 1


def test_pause_resume_delete(conn):
    name = a_task()
    one(conn, "schedule_define", name, "0 * * * *", task="mail")
    assert one(conn, "schedule_pause", name) is True
    assert one(conn, "schedule_pause", name) is False
    paused = one(conn, "schedule_define", name, "5 * * * *", task="mail")
    assert (paused.paused, paused.next_at, paused.due) == (True, None, None)
    assert one(conn, "schedule_resume", name) is True
    assert one(conn, "schedule_resume", name) is False
    resumed = conn.execute("SELECT paused, next_at FROM sayiir.schedules WHERE name = %s", [name]).fetchone()
    [[expected]] = call(conn, "schedule_next", "5 * * * *", fires=1)
    assert resumed == (False, expected)
    assert one(conn, "schedule_delete", name) is True
    assert one(conn, "schedule_delete", name) is False
    for function in ["schedule_pause", "schedule_resume", "schedule_run"]:
        with refused("schedule.not_found") as fields:
            call(conn, function, name)
        assert fields["name"] == name


@pytest.mark.parametrize(
    "change, code",
    [
        ({"cron": "60 * * * *"}, "schedule.invalid_cron"),
        ({"cron": "* * * *"}, "schedule.invalid_cron"),
        ({"cron": "0 0 0 1 1 * 2030"}, "schedule.invalid_cron"),
        ({"cron": "0 0 30 2 *"}, "schedule.invalid_cron"),
        ({"cron": None}, "argument.null"),
        ({"timezone": "Mars/Olympus"}, "schedule.unknown_timezone"),
        ({"task": None}, "argument.invalid"),
        ({"workflow": "w"}, "argument.invalid"),
        ({"task": None, "workflow": "nobody defined me"}, "definition.not_found"),
        ({"missed": "some"}, "argument.invalid"),
        ({"overlap": "perhaps"}, "argument.invalid"),
        ({"skipped_time": "first"}, "argument.invalid"),
        ({"doubled_time": "next"}, "argument.invalid"),
        ({"jitter": "25 hours"}, "argument.out_of_range"),
        ({"jitter": "-1 s"}, "argument.out_of_range"),
        ({"jitter": None}, "argument.null"),
        ({"name": ""}, "argument.invalid"),
        ({"options": {"colour": 1}}, "option.unknown"),
        ({"options": {"priority": 100}}, "argument.invalid"),
        ({"options": {"max_attempts": "3"}}, "argument.invalid"),
        ({"options": {"version": 1}}, "argument.invalid"),
        ({"options": {"tags": "gpu"}}, "argument.invalid"),
    ],
)
def test_what_is_refused(conn, change, code):
    before = value(conn, "SELECT count(*) FROM sayiir.schedule")
    with refused(code):
        call(conn, "schedule_define", **{"name": "refused", "cron": "0 * * * *", "task": "mail"} | change)
    assert value(conn, "SELECT count(*) FROM sayiir.schedule") == before


def test_strict_tasks(connect):
    conn = connect()
    conn.execute("SET sayiir.strict_tasks = on")
    with refused("task.not_found"):
        call(conn, "schedule_define", a_task(), "0 * * * *", task=a_task())


def test_next_refuses(conn):
    for args in [("* * * * *", "UTC", None, 0), ("* * * * *", "UTC", None, 1001)]:
        with refused("argument.out_of_range"):
            call(conn, "schedule_next", *args)
    with refused("argument.out_of_range"):
        call(conn, "schedule_next", "* * * * *", after="infinity")
    with refused("schedule.invalid_cron"):
        call(conn, "schedule_next", "0 0 31 2 *")


def test_organizations(connect):
    """Each has its own schedules; another one's is the same as none."""
    ours, theirs = connect(), connect()
    ours.execute("SET sayiir.scope = organization; SET sayiir.organization_id = 'a'")
    theirs.execute("SET sayiir.scope = organization; SET sayiir.organization_id = 'b'")
    name = a_task()
    assert one(ours, "schedule_define", name, "0 * * * *", task="mail").organization_id == "a"
    assert value(theirs, "SELECT count(*) FROM sayiir.schedules WHERE name = %s", name) == 0
    assert one(theirs, "schedule_delete", name) is False
    one(theirs, "schedule_define", name, "0 * * * *", task="other")
    assert value(ours, "SELECT task FROM sayiir.schedules WHERE name = %s", name) == "mail"
    # An organization's schedule may start a global workflow.
    definition = define(connect(), graph(task("a")))
    assert (
        one(ours, "schedule_define", a_task(), "0 * * * *", workflow=definition["name"]).workflow == definition["name"]
    )


def test_only_admins_define(connect):
    conn = connect()
    conn.execute("DO $$ BEGIN CREATE ROLE schedule_reader LOGIN; EXCEPTION WHEN duplicate_object THEN END $$")
    conn.execute("GRANT sayiir_client TO schedule_reader")
    reader = connect(user="schedule_reader")
    assert reader.execute("SELECT count(*) FROM sayiir.schedule_next('* * * * *')").fetchone() == (5,)
    assert reader.execute("SELECT * FROM sayiir.schedules WHERE false").fetchall() == []
    for text in ["schedule_define('x', '* * * * *', task => 't')", "schedule_delete('x')", "schedule_run('x')"]:
        with pytest.raises(Exception, match="permission denied"):
            reader.execute(f"SELECT * FROM sayiir.{text}")


def test_isolation(connect):
    conn = connect()
    isolate(conn, "repeatable read")
    with refused("call.isolation_unsupported"):
        call(conn, "schedule_define", a_task(), "0 * * * *", task="mail")
    assert len(call(conn, "schedule_next", "0 * * * *")) == 5


def test_rolled_back(connect):
    conn = connect(autocommit=False)
    name = a_task()
    conn.execute(
        "SELECT * FROM sayiir.schedule_define(%s, '0 * * * *', task => 'mail', payload => %s)", [name, Jsonb({})]
    )
    conn.rollback()
    assert value(conn, "SELECT count(*) FROM sayiir.schedule WHERE name = %s", name) == 0


def test_options_are_kept(conn):
    options = {"priority": 90, "tags": ["gpu"], "max_attempts": 2, "grace": "5 minutes"}
    made = one(conn, "schedule_define", a_task(), "0 * * * *", task="mail", options=options)
    assert made.options == json.loads(json.dumps(options))
