"""Schedules as they fire: each tick once, whoever sweeps; what is missed, what overlaps, and what cannot be fired."""

from datetime import UTC, datetime, timedelta

import pytest

from flows import define, graph, query, task
from jobs import a_task, call, claim, claim_one, complete, enqueue, get, in_background, one, value
from jobs import no_worker as no_worker
from support import wait_for_lock

pytestmark = pytest.mark.usefixtures("no_worker")


@pytest.fixture(autouse=True)
def only_its_own_schedules(conn):
    """A tick fires every schedule that is due; those of the tests before are none."""
    yield
    conn.execute("DELETE FROM sayiir.schedule")


@pytest.fixture
def schedule(conn):
    def make(cron="0 0 1 1 *", **named):
        named = {"task": a_task()} | named
        if "workflow" in named:
            del named["task"]
        return one(conn, "schedule_define", a_task(), cron, **named)

    return make


def fall_due(conn, name, nominal):
    """Time passes for a schedule: `nominal` is its next tick, and that is due."""
    conn.execute("UPDATE sayiir.schedule SET next_at = %s, due = %s WHERE name = %s", [nominal, nominal, name])


def tick(conn):
    return dict(call(conn, "tick"))["schedules"]


def ticks(conn, name):
    """(nominal time, disposition) of the ticks that fired."""
    return conn.execute(
        "SELECT nominal_at, disposition FROM sayiir.schedule_fire f JOIN sayiir.schedule s ON s.id = f.schedule"
        " WHERE name = %s ORDER BY nominal_at",
        [name],
    ).fetchall()


def daily(conn, schedule, **named):
    """A schedule that fires every day, and its last tick, half an hour ago."""
    last = value(conn, "SELECT date_trunc('minute', clock_timestamp() - interval '30 minutes')").astimezone(UTC)
    return schedule(f"{last.minute} {last.hour} * * *", **named), last


def ago(conn, **back):
    now = value(conn, "SELECT date_trunc('hour', clock_timestamp())")
    return now - timedelta(**back)


def test_starts_a_job(conn, schedule):
    made = schedule(payload={"to": "ada"}, options={"priority": 90, "tags": ["gpu"], "max_attempts": 2})
    assert tick(conn) == 0
    nominal = datetime(2026, 1, 1, tzinfo=UTC)
    fall_due(conn, made.name, nominal)
    assert tick(conn) == 1
    job = claim_one(conn, made.task)
    assert (job.input, job.max_attempts, job.tags) == ({"to": "ada"}, 2, ["gpu"])
    assert job.idempotency_key == f"{made.name}/2026-01-01T00:00:00Z"
    assert get(conn, job.job_id).priority == 90
    seen = query(conn, "SELECT * FROM sayiir.schedules WHERE name = %s", made.name)[0]
    assert (seen["last_at"], seen["last_job"], seen["next_at"]) == (nominal, job.job_id, made.next_at)
    assert ticks(conn, made.name) == [(nominal, "started")]
    assert tick(conn) == 0


def test_starts_a_workflow(conn, schedule):
    name = define(conn, graph(task("a")))["name"]
    made = schedule(workflow=name, payload={"n": 1})
    fall_due(conn, made.name, datetime(2026, 1, 1, tzinfo=UTC))
    assert tick(conn) == 1
    workflow_id = f"{made.name}/2026-01-01T00:00:00Z"
    started = query(conn, "SELECT * FROM sayiir.workflow_get(%s)", workflow_id)[0]
    assert (started["name"], started["input"], started["status"]) == (name, {"n": 1}, "running")
    assert started["metadata"] == {"schedule": made.name, "scheduled_for": "2026-01-01T00:00:00Z"}
    assert value(conn, "SELECT last_workflow FROM sayiir.schedules WHERE name = %s", made.name) == workflow_id


def test_a_workflow_takes_the_version_asked_for(conn, schedule):
    first = graph(task("a"))
    define(conn, first)
    define(conn, first | {"steps": [task("b") | {"task": "b"}]})
    made = schedule(workflow=first["name"], options={"version": 1})
    fall_due(conn, made.name, datetime(2026, 1, 1, tzinfo=UTC))
    tick(conn)
    assert query(conn, "SELECT version FROM sayiir.workflows WHERE workflow_id LIKE %s", made.name + "%") == [
        {"version": 1}
    ]


@pytest.mark.parametrize("missed, fired", [("skip", []), ("last", [0]), ("all", [3, 2, 1, 0])])
def test_missed(conn, schedule, missed, fired):
    """Down for some days; the last tick was half an hour ago."""
    made, last = daily(conn, schedule, missed=missed)
    fall_due(conn, made.name, last - timedelta(days=3))
    tick(conn)
    assert [nominal for nominal, _ in ticks(conn, made.name)] == [last - timedelta(days=n) for n in fired]
    assert value(conn, "SELECT next_at FROM sayiir.schedule WHERE name = %s", made.name) == last + timedelta(days=1)
    assert tick(conn) == 0


def test_grace(conn, schedule):
    """How late is missed is the schedule's own choice."""
    made = schedule(missed="skip", options={"grace": "30 days"})
    nominal = value(conn, "SELECT clock_timestamp() - interval '20 days'")
    fall_due(conn, made.name, nominal)
    tick(conn)
    assert ticks(conn, made.name) == [(nominal, "started")]
    fall_due(conn, made.name, nominal - timedelta(days=11))
    tick(conn)
    assert len(ticks(conn, made.name)) == 1


def test_a_long_backlog_comes_in_parts(conn, schedule):
    """No sweep is one endless transaction; what is left stays due."""
    made = schedule("*/10 * * * * *", missed="all")
    first = ago(conn, hours=0) - timedelta(seconds=2500)
    fall_due(conn, made.name, first)
    assert tick(conn) == 100
    assert value(conn, "SELECT due <= clock_timestamp() FROM sayiir.schedule WHERE name = %s", made.name)
    assert value(conn, "SELECT sayiir.next_due() <= clock_timestamp()")
    tick(conn)
    nominals = [nominal for nominal, _ in ticks(conn, made.name)]
    assert nominals == [first + timedelta(seconds=10 * n) for n in range(200)]
    assert len(claim(conn, made.task, max_jobs=1000)) == 200


def test_overlap(conn, schedule):
    made = schedule(overlap="skip")
    when = [datetime(2026, month, 1, tzinfo=UTC) for month in (1, 2, 3)]
    for nominal in when[:2]:
        fall_due(conn, made.name, nominal)
        assert tick(conn) == 1
    assert ticks(conn, made.name) == [(when[0], "started"), (when[1], "skipped")]
    complete(conn, claim_one(conn, made.task))
    fall_due(conn, made.name, when[2])
    tick(conn)
    assert ticks(conn, made.name)[2] == (when[2], "started")


def test_overlap_of_workflows_and_within_one_sweep(conn, schedule):
    name = define(conn, graph(task("a")))["name"]
    made = schedule("0 * * * *", workflow=name, overlap="skip", missed="all")
    fall_due(conn, made.name, ago(conn, hours=3))
    tick(conn)
    assert [disposition for _, disposition in ticks(conn, made.name)] == ["started", "skipped", "skipped", "skipped"]
    conn.execute("SELECT sayiir.workflow_cancel(last_workflow) FROM sayiir.schedule WHERE name = %s", [made.name])
    assert one(conn, "schedule_run", made.name).disposition == "started"


def test_run(conn, schedule):
    made = schedule()
    call(conn, "schedule_pause", made.name)
    ran = one(conn, "schedule_run", made.name)
    assert (ran.disposition, ran.workflow_id) == ("started", None)
    assert claim_one(conn, made.task).job_id == ran.job_id
    assert value(conn, "SELECT due FROM sayiir.schedule WHERE name = %s", made.name) is None
    busy = schedule(overlap="skip")
    assert [one(conn, "schedule_run", busy.name).disposition for _ in range(2)] == ["started", "skipped"]


def test_paused_does_not_fire(conn, schedule):
    made = schedule("* * * * * *")
    call(conn, "schedule_pause", made.name)
    assert tick(conn) == 0 and ticks(conn, made.name) == []


def test_many_tickers_fire_a_tick_once(conn, connect, schedule):
    tickers = [connect() for _ in range(6)]
    for _ in range(5):
        made, last = daily(conn, schedule, missed="all")
        fall_due(conn, made.name, last - timedelta(days=39))
        sweeps = [in_background(tick, ticker) for ticker in tickers]
        assert sum(sweep.join() for sweep in sweeps) == 40
        assert ticks(conn, made.name) == [(last - timedelta(days=n), "started") for n in range(39, -1, -1)]
        assert len(claim(conn, made.task, max_jobs=1000)) == 40


def test_a_nominal_time_fires_once_even_if_the_row_is_set_back(conn, schedule):
    """As after the server's clock was set back, or a restore of one table."""
    made = schedule()
    nominal = datetime(2026, 1, 1, tzinfo=UTC)
    for _ in range(2):
        fall_due(conn, made.name, nominal)
        tick(conn)
    assert ticks(conn, made.name) == [(nominal, "started")]
    assert len(claim(conn, made.task, max_jobs=10)) == 1


def test_a_ticker_does_not_wait_for_another(conn, connect, schedule):
    """One that fires at the moment is left to whoever does."""
    mine, other = schedule(), schedule()
    for made in (mine, other):
        fall_due(conn, made.name, datetime(2026, 1, 1, tzinfo=UTC))
    holder = connect(autocommit=False)
    holder.execute("SELECT FROM sayiir.schedule WHERE name = %s FOR UPDATE", [mine.name])
    assert tick(conn) == 1
    assert (len(ticks(conn, mine.name)), len(ticks(conn, other.name))) == (0, 1)
    holder.rollback()
    assert tick(conn) == 1


def test_pause_waits_for_a_tick_that_is_firing(conn, connect, schedule):
    made = schedule()
    fall_due(conn, made.name, datetime(2026, 1, 1, tzinfo=UTC))
    ticker, pauser = connect(autocommit=False), connect()
    assert tick(ticker) == 1
    pause = in_background(one, pauser, "schedule_pause", made.name)
    wait_for_lock(conn, pauser.info.backend_pid)
    ticker.commit()
    assert pause.join() is True
    assert value(conn, "SELECT due FROM sayiir.schedule WHERE name = %s", made.name) is None
    assert len(ticks(conn, made.name)) == 1


def test_one_that_cannot_be_fired_does_not_stop_the_others(conn, connect, schedule):
    good, bad = schedule(), schedule()
    conn.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no room'; END $$;"
        f"CREATE TRIGGER refuse BEFORE INSERT ON sayiir.job FOR EACH ROW WHEN (NEW.task = '{bad.task}')"
        " EXECUTE FUNCTION refuse()"
    )
    try:
        for made in (bad, good):
            fall_due(conn, made.name, datetime(2026, 1, 1, tzinfo=UTC))
        notices = []
        conn.add_notice_handler(lambda notice: notices.append(notice.message_primary))
        assert tick(conn) == 1
        assert [disposition for _, disposition in ticks(conn, good.name)] == ["started"]
        assert ticks(conn, bad.name) == []
        assert any("sweep schedules" in text and "no room" in text for text in notices)
        # Pushed on, its tick kept.
        assert value(conn, "SELECT due > clock_timestamp() FROM sayiir.schedule WHERE name = %s", bad.name)
    finally:
        conn.execute("DROP TRIGGER refuse ON sayiir.job; DROP FUNCTION refuse()")
    fall_due(conn, bad.name, datetime(2026, 1, 1, tzinfo=UTC))
    assert tick(conn) == 1
    assert ticks(conn, bad.name) == [(datetime(2026, 1, 1, tzinfo=UTC), "started")]


def test_a_foreign_job_under_its_key_does_not_stop_it(conn, schedule):
    made = schedule()
    enqueue(conn, made.task, {"other": 1}, idempotency_key=f"{made.name}/2026-01-01T00:00:00Z")
    fall_due(conn, made.name, datetime(2026, 1, 1, tzinfo=UTC))
    assert tick(conn) == 1
    assert [disposition for _, disposition in ticks(conn, made.name)] == ["existing"]
    assert value(conn, "SELECT due > clock_timestamp() FROM sayiir.schedule WHERE name = %s", made.name)


def test_a_claim_fires_it(conn, connect, schedule):
    """Also without a background worker or scheduler, as long as somebody works."""
    made = schedule()
    fall_due(conn, made.name, datetime(2026, 1, 1, tzinfo=UTC))
    assert call(connect(), "job_claim", "w", [made.task], wait="5 s")


def test_its_organization(conn, connect, schedule):
    made = schedule(organization_id="a")
    fall_due(conn, made.name, datetime(2026, 1, 1, tzinfo=UTC))
    tick(conn)
    assert claim(conn, made.task) == []
    worker = connect()
    worker.execute("SET sayiir.scope = organization; SET sayiir.organization_id = 'a'")
    assert claim_one(worker, made.task).organization_id == "a"


def test_next_due_covers_schedules(conn, schedule):
    made = schedule("0 0 1 1 *", jitter="1 hour")
    assert value(conn, "SELECT sayiir.next_due()") <= made.due
    conn.execute("DELETE FROM sayiir.schedule")
    later = value(conn, "SELECT sayiir.next_due()")
    made = schedule()
    fall_due(conn, made.name, datetime(2020, 1, 1, tzinfo=UTC))
    assert value(conn, "SELECT sayiir.next_due()") == datetime(2020, 1, 1, tzinfo=UTC)
    assert later is None or later > datetime(2020, 1, 1, tzinfo=UTC)
