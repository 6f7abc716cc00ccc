"""Bad input: every refusal has its own code, its SQLSTATE and a hint, names the argument, and changes nothing."""

import json
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from jobs import SQLSTATES, a_task, assert_sound, call, claim, enqueue, get, leased, no_worker, one, refused, value  # noqa: F401

pytestmark = pytest.mark.usefixtures("no_worker")

LONG_ID, LONG_NAME = "x" * 513, "x" * 201


@pytest.fixture(scope="module")
def job(cluster, db):
    """A leased job that every refused call is about."""
    with cluster.connect(db) as conn:
        yield leased(conn, options={"lease": "1 day"})


def state(conn):
    """What must not change: every row of every table of jobs."""
    tables = ["job", "job_ready", "job_lease", "job_wait", "job_end", "job_attempt", "signal", "lane", "task"]
    return [
        value(conn, f"SELECT md5(string_agg(t::text, '|' ORDER BY t::text)) FROM sayiir.{table} t") for table in tables
    ]


def is_refused(conn, code, argument, query, **values):
    before = state(conn)
    with refused(code) as detail:
        conn.execute(f"SELECT * FROM sayiir.{query}", values)
    if argument is not None:
        assert detail.argument == argument
    assert state(conn) == before
    return detail


NULLS = [
    ("job_enqueue(NULL)", "task"),
    ("job_enqueue('t', NULL)", "payload"),
    ("job_enqueue('t', tags => NULL)", "tags"),
    ("job_enqueue('t', tags => ARRAY['a', NULL])", "tags"),
    ("job_enqueue_many(NULL, '[]')", "task"),
    ("job_enqueue_many('t', NULL)", "payloads"),
    ("job_claim(NULL, '{t}')", "worker"),
    ("job_claim('w', NULL)", "tasks"),
    ("job_claim('w', ARRAY[NULL::text])", "tasks"),
    ("job_claim('w', '{t}', max_jobs => NULL)", "max_jobs"),
    ("job_claim('w', '{t}', tags => NULL)", "tags"),
    ("job_claim('w', '{t}', wait => NULL)", "wait"),
    ("job_heartbeat(NULL, 1)", "job_id"),
    ("job_heartbeat(gen_random_uuid(), NULL)", "epoch"),
    ("job_heartbeat_many(NULL, '{}')", "job_ids"),
    ("job_heartbeat_many('{}', NULL)", "epochs"),
    ("job_complete(NULL, 1)", "job_id"),
    ("job_complete(gen_random_uuid(), NULL)", "epoch"),
    ("job_complete_many(ARRAY[NULL::uuid], '{1}')", "job_ids"),
    ("job_complete_many('{}', ARRAY[NULL::bigint])", "epochs"),
    ("job_fail(NULL, 1, 'e')", "job_id"),
    ("job_fail(gen_random_uuid(), NULL, 'e')", "epoch"),
    ("job_fail(gen_random_uuid(), 1, NULL)", "error_code"),
    ("job_fail(gen_random_uuid(), 1, 'e', kind => NULL)", "kind"),
    ("job_fail_many('{}', '{}', NULL)", "error_codes"),
    ("job_release(NULL, 1)", "job_id"),
    ("job_release(gen_random_uuid(), NULL)", "epoch"),
    ("job_release(gen_random_uuid(), 1, NULL)", "delay"),
    ("job_release(gen_random_uuid(), 1, ran => NULL)", "ran"),
    ("job_cancel(NULL)", "job_id"),
    ("job_requeue(NULL)", "job_id"),
    ("job_result(NULL)", "job_id"),
    ("job_result(gen_random_uuid(), NULL)", "timeout"),
    ("job_reap(NULL)", "max_rows"),
    ("tick(NULL)", "max_rows"),
    ("task_define(NULL)", "task"),
    ("task_pause(NULL)", "task"),
    ("task_resume(NULL)", "task"),
]


@pytest.mark.parametrize(("query", "argument"), NULLS, ids=lambda part: part)
def test_null(conn, query, argument):
    is_refused(conn, "argument.null", argument, query)


TEXTS = {
    "job_enqueue(%(text)s)": ("task", LONG_NAME),
    "job_enqueue('t', idempotency_key => %(text)s)": ("idempotency_key", LONG_ID),
    "job_enqueue('t', tags => ARRAY[%(text)s])": ("tag", LONG_NAME),
    "job_enqueue('t', trace_parent => %(text)s)": ("trace_parent", LONG_ID),
    "job_enqueue('t', organization_id => %(text)s)": ("organization_id", LONG_ID),
    "job_enqueue_many('t', '[1]', ARRAY[%(text)s])": ("idempotency_key", LONG_ID),
    "job_claim(%(text)s, '{t}')": ("worker", LONG_ID),
    "job_claim('w', ARRAY[%(text)s])": ("task", LONG_NAME),
    "job_claim('w', '{t}', organization_id => %(text)s)": ("organization_id", LONG_ID),
    "job_heartbeat(gen_random_uuid(), 1, stage => %(text)s)": ("stage", LONG_NAME),
    "job_fail(gen_random_uuid(), 1, %(text)s)": ("error_code", LONG_NAME),
    "job_cancel(gen_random_uuid(), organization_id => %(text)s)": ("organization_id", LONG_ID),
    "task_define(%(text)s)": ("task", LONG_NAME),
    "task_pause(%(text)s)": ("task", LONG_NAME),
    "job_get(gen_random_uuid(), %(text)s)": ("organization_id", LONG_ID),
}


@pytest.mark.parametrize("text", ["", "a\nb", "\x7f", "long"], ids=["empty", "newline", "delete", "long"])
@pytest.mark.parametrize("query", TEXTS)
def test_text(conn, query, text):
    argument, long = TEXTS[query]
    if query.startswith("job_get"):
        # Asked only for the rows that it finds: none, unless there is one.
        query = query.replace("gen_random_uuid()", f"'{enqueue(conn, a_task())}'")
    is_refused(conn, "argument.invalid", argument, query, text=long if text == "long" else text)


@pytest.mark.parametrize("text", ["x" * 512, "\u00e9" * 256, "'; DROP TABLE x; --", "\\ \" ' $1 %s {}"])
def test_the_longest_and_oddest_ids_are_taken(conn, text):
    name = text[:200] if text.isascii() else text[:100]
    job_id = enqueue(conn, name, idempotency_key=text, tags=[name], trace_parent=text)
    [job] = claim(conn, name, worker=text, tags=[name, "other"])
    assert (job.job_id, job.task, job.idempotency_key, job.tags) == (job_id, name, text, [name])
    assert get(conn, job_id).worker == text


RANGES = [
    ("job_enqueue('t', priority => %(v)s)", "priority", [-1, 100, 2**31 - 1]),
    ("job_enqueue('t', run_at => %(v)s)", "run_at", ["infinity", "-infinity"]),
    ("job_enqueue_many('t', '[1]', priority => %(v)s)", "priority", [-1, 100]),
    ("job_enqueue_many('t', '[1]', run_at => %(v)s)", "run_at", ["infinity", "-infinity"]),
    ("job_claim('w', '{t}', max_jobs => %(v)s)", "max_jobs", [0, -1, 1001]),
    ("job_claim('w', '{t}', lease => %(v)s)", "lease", ["0", "-1 s", "0.9 ms", "31 days", "100 years"]),
    ("job_claim('w', '{t}', wait => %(v)s)", "wait", ["-1 s", "-100 years"]),
    ("job_heartbeat(gen_random_uuid(), 1, %(v)s)", "lease", ["0", "-1 s", "31 days"]),
    ("job_heartbeat(gen_random_uuid(), 1, progress_done => %(v)s)", "progress_done", [-1]),
    ("job_heartbeat(gen_random_uuid(), 1, progress_total => %(v)s)", "progress_total", [-1]),
    ("job_heartbeat(gen_random_uuid(), 1, progress_done => %(v)s, progress_total => 1)", "progress_done", [2]),
    ("job_heartbeat_many('{}', '{}', %(v)s)", "lease", ["0", "31 days"]),
    ("job_fail(gen_random_uuid(), 1, 'e', retry_at => %(v)s)", "retry_at", ["infinity", "-infinity"]),
    ("job_release(gen_random_uuid(), 1, %(v)s)", "delay", ["-1 s", "361 days", "9000 years"]),
    ("job_result(gen_random_uuid(), %(v)s)", "timeout", ["-1 s"]),
    ("job_reap(%(v)s)", "max_rows", [0, -1, 10001]),
    ("tick(%(v)s)", "max_rows", [0, -1, 10001]),
    ("task_define('t', lease => %(v)s)", "lease", ["0", "-1 s", "31 days"]),
    ("task_define('t', timeout => %(v)s)", "timeout", ["0", "-1 s", "31 days"]),
    ("task_define('t', priority => %(v)s)", "priority", [-1, 100]),
]


@pytest.mark.parametrize(("query", "argument", "value"), [(q, a, v) for q, a, values in RANGES for v in values])
def test_range(conn, query, argument, value):
    is_refused(conn, "argument.out_of_range", argument, query, v=value)


@pytest.mark.parametrize(
    ("query", "argument"),
    [
        ("job_claim('w', '{t}', lease => 'infinity')", "lease"),
        ("job_release(gen_random_uuid(), 1, '-infinity')", "delay"),
    ],
)
def test_infinite_intervals(cluster, conn, query, argument):
    if cluster.major < 17:  # there are none
        with pytest.raises(psycopg.errors.InvalidDatetimeFormat):
            conn.execute(f"SELECT * FROM sayiir.{query}")
    else:
        is_refused(conn, "argument.out_of_range", argument, query)


@pytest.mark.parametrize(
    "query", ["job_claim('w', '{t}', wait => '10.001 s')", "job_result(gen_random_uuid(), '11 s')"]
)
def test_nothing_waits_longer_than_10_seconds(conn, query):
    assert is_refused(conn, "wait.too_long", None, query).max_us == 10_000_000


@pytest.mark.parametrize("attempts", [0, -1, 1001, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("function", ["job_enqueue", "task_define"])
def test_attempts(conn, function, attempts):
    is_refused(conn, "argument.invalid", "max_attempts", f"{function}('t', max_attempts => %(v)s)", v=attempts)


OPTIONS = [
    ({"timeot": "1 s"}, "option.unknown", None),
    ({"": 1}, "option.unknown", None),
    ({"retry": {"intial": "1 s"}}, "option.unknown", None),
    ([], "argument.invalid", "options"),
    ("text", "argument.invalid", "options"),
    (None, "argument.invalid", "options"),
    ({"timeout": 60}, "argument.invalid", "timeout"),
    ({"timeout": None}, "argument.invalid", "timeout"),
    ({"timeout": "soon"}, "argument.invalid", "timeout"),
    ({"timeout": "-1 s"}, "argument.out_of_range", "timeout"),
    ({"timeout": "0"}, "argument.out_of_range", "timeout"),
    ({"timeout": "178000000 years"}, "argument.out_of_range", "timeout"),
    ({"timeout": "9e18 s"}, "argument.invalid", "timeout"),
    ({"lease": "1 year"}, "argument.out_of_range", "lease"),
    ({"deadline": "1000 years"}, "argument.out_of_range", "deadline"),
    ({"on_exhausted": "explode"}, "argument.invalid", "on_exhausted"),
    ({"on_exhausted": True}, "argument.invalid", "on_exhausted"),
    ({"retry": "often"}, "argument.invalid", "retry"),
    ({"retry": {"initial": "-1 s"}}, "argument.out_of_range", "initial"),
    ({"retry": {"max": "0"}}, "argument.out_of_range", "max"),
    ({"retry": {"max": "31 days"}}, "argument.out_of_range", "max"),
    ({"retry": {"factor": "2"}}, "argument.invalid", "factor"),
    ({"retry": {"factor": 0.5}}, "argument.invalid", "factor"),
    ({"retry": {"factor": 1001}}, "argument.invalid", "factor"),
    ({"retry": {"factor": 1e300}}, "argument.invalid", "factor"),
    ({"retry": {"jitter": -0.1}}, "argument.invalid", "jitter"),
    ({"retry": {"jitter": 1.1}}, "argument.invalid", "jitter"),
    ({"retry": {"max_attempts": 0}}, "argument.invalid", "max_attempts"),
    ({"retry": {"max_attempts": 1.5}}, "argument.invalid", "max_attempts"),
    ({"retry": {"max_attempts": 9e18}}, "argument.invalid", "max_attempts"),
]


@pytest.mark.parametrize(("options", "code", "argument"), OPTIONS, ids=json.dumps)
@pytest.mark.parametrize(
    "query", ["job_enqueue('t', options => %(v)s)", "job_enqueue_many('t', '[1]', options => %(v)s)"]
)
def test_options(conn, query, options, code, argument):
    detail = is_refused(conn, code, argument, query, v=Jsonb(options))
    if code == "option.unknown":
        assert isinstance(detail.known, list)


# Numbers that no float holds, and documents nested deeper than a parser likes.
@pytest.mark.parametrize(
    "text", ['{"retry": {"factor": 1e400}}', '{"retry": ' + "[" * 300 + "]" * 300 + "}"], ids=["1e400", "deep"]
)
def test_options_beyond_the_parser(conn, text):
    for query in ["job_enqueue('t', options => %(v)s)", "task_define('t', retry => (%(v)s::jsonb) -> 'retry')"]:
        is_refused(conn, "argument.invalid", None, query, v=text)


@pytest.mark.parametrize(
    "text", ["1e400", "-1e400", "1e-400", "[" * 3000 + "]" * 3000, '"' + "\\u20ac" * 1000 + '"', "9" * 500]
)
def test_any_json_passes_through(conn, text):
    """The database reads it; nothing else does."""
    [(job_id, _)] = conn.execute("SELECT * FROM sayiir.job_enqueue(%s, %s)", [task := a_task(), text]).fetchall()
    query = "SELECT epoch, input = %s::jsonb FROM sayiir.job_claim('w', ARRAY[%s])"
    epoch, same = conn.execute(query, [text, task]).fetchone()
    assert same
    conn.execute("SELECT * FROM sayiir.job_complete(%s, %s, %s)", [job_id, epoch, text])
    assert value(conn, "SELECT sayiir.job_result(%s) = %s::jsonb", job_id, text)


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"tags": "t"}, "tags"),
        ({"tags": [1]}, "tags"),
        ({"tags": [None]}, "tags"),
        ({"tags": [""]}, "tag"),
        ({"max_attempts": "3"}, "max_attempts"),
        ({"max_attempts": 3.5}, "max_attempts"),
        ({"max_attempts": 2**40}, "max_attempts"),
        ({"trace_parent": 1}, "trace_parent"),
        ({"trace_parent": ""}, "trace_parent"),
    ],
    ids=json.dumps,
)
def test_options_of_a_batch(conn, options, argument):
    is_refused(conn, "argument.invalid", argument, "job_enqueue_many('t', '[1]', options => %(v)s)", v=Jsonb(options))


@pytest.mark.parametrize(
    ("query", "code", "argument"),
    [
        ("job_enqueue_many('t', '{}')", "argument.invalid", "payloads"),
        ("job_enqueue_many('t', 'null')", "argument.invalid", "payloads"),
        ("job_enqueue_many('t', '[1, 2]', '{a}')", "argument.invalid", "idempotency_keys"),
        ("job_enqueue_many('t', '[]', '{a}')", "argument.invalid", "idempotency_keys"),
        (
            "job_enqueue_many('t', (SELECT jsonb_agg(1) FROM generate_series(0, 100000)))",
            "argument.too_large",
            "payloads",
        ),
        ("job_enqueue('t', resource_key => 'r')", "argument.invalid", "resource_key"),
        ("task_define('t', max_leases => 1)", "argument.invalid", "max_leases"),
        ("task_define('t', retry => '[]')", "argument.invalid", "retry"),
        ("task_define('t', retry => '{\"factor\": 0}')", "argument.invalid", "factor"),
        ("task_define('t', options => '{\"x\": 1}')", "option.unknown", None),
        ("job_fail(gen_random_uuid(), 1, 'e', kind => 'expired')", "argument.invalid", "kind"),
        ("job_fail(gen_random_uuid(), 1, 'e', kind => 'Retryable')", "argument.invalid", "kind"),
        ("job_fail_many(ARRAY[gen_random_uuid()], '{1}', '{}')", "argument.invalid", "error_codes"),
        ("job_fail_many(ARRAY[gen_random_uuid()], '{1}', '{e}', '{}')", "argument.invalid", "error_codes"),
        ("job_complete_many(ARRAY[gen_random_uuid()], '{}')", "argument.invalid", "job_ids"),
        ("job_complete_many(ARRAY[gen_random_uuid()], '{1}', '[]')", "argument.invalid", "outputs"),
        ("job_complete_many(ARRAY[gen_random_uuid()], '{1}', '{}')", "argument.invalid", "outputs"),
    ],
)
def test_shapes(conn, query, code, argument):
    is_refused(conn, code, argument, query)


@pytest.mark.parametrize("function", ["job_heartbeat_many", "job_complete_many", "job_fail_many"])
def test_batches_of_leases(conn, job, function):
    more = ", array_fill('e'::text, ARRAY[cardinality(%(ids)s::uuid[])])" if function == "job_fail_many" else ""
    for ids in [[job.job_id] * 2, [uuid4() for _ in range(1001)]]:
        is_refused(
            conn,
            "argument.invalid",
            "job_ids",
            f"{function}(%(ids)s::uuid[], %(epochs)s{more})",
            ids=ids,
            epochs=[job.epoch] * len(ids),
        )


@pytest.mark.parametrize(
    ("query", "argument"),
    [
        ("job_enqueue('t', to_jsonb(repeat('x', 67108865)))", "payload"),
        ("job_enqueue_many('t', jsonb_build_array(repeat('x', 67108865)))", "payloads"),
        ("job_complete(%(id)s, %(epoch)s, to_jsonb(repeat('x', 67108865)))", "output"),
    ],
)
def test_more_than_64_mb(conn, job, query, argument):
    with refused("argument.too_large") as detail:
        conn.execute(f"SELECT * FROM sayiir.{query}", {"id": job.job_id, "epoch": job.epoch})
    assert detail.argument == argument
    assert get(conn, job.job_id).status == "leased"


def test_what_postgres_refuses_itself(conn):
    """U+0000 is no text, and NaN no JSON: the call is not reached."""
    for text, error in [
        ('"\\u0000"', psycopg.errors.UntranslatableCharacter),
        ("NaN", psycopg.errors.InvalidTextRepresentation),
        ("Infinity", psycopg.errors.InvalidTextRepresentation),
        ("", psycopg.errors.InvalidTextRepresentation),
    ]:
        with pytest.raises(error):
            conn.execute("SELECT * FROM sayiir.job_enqueue('t', %s)", [text])


@pytest.mark.parametrize("epoch", [0, -1, 2**63 - 1, -(2**63)])
def test_any_epoch_that_is_not_the_leases_is_lost(conn, job, epoch):
    assert one(conn, "job_heartbeat", job.job_id, epoch) == "lost"
    for query in ["job_complete(%(id)s, %(v)s)", "job_fail(%(id)s, %(v)s, 'e')", "job_release(%(id)s, %(v)s)"]:
        is_refused(conn, "job.lease_lost", None, query, id=job.job_id, v=epoch)


def test_unknown_jobs(conn):
    is_refused(conn, "job.not_found", None, "job_cancel(gen_random_uuid())")
    is_refused(conn, "job.not_found", None, "job_result(gen_random_uuid())")
    is_refused(conn, "job.lease_lost", None, "job_complete(gen_random_uuid(), 1)")
    assert call(conn, "job_get", uuid4()) == []


@pytest.mark.parametrize("setting", ["", "everything", "ALL"])
def test_scope_settings(conn, setting):
    conn.execute("SELECT set_config('sayiir.scope', %s, false)", [setting])
    if setting == "":
        assert claim(conn, "no such task") == []
    else:
        is_refused(conn, "argument.invalid", None, "job_claim('w', '{t}')")


def test_the_codes_are_those_that_the_library_lists(conn):
    listed = {row.code: row for row in call(conn, "error_codes")}
    assert SQLSTATES.items() <= {code: row.sqlstate for code, row in listed.items()}.items()
    assert all(row.hint and len(row.sqlstate) == 5 for row in listed.values())


def test_nothing_was_lost(conn, job):
    assert get(conn, job.job_id).status == "leased"
    assert_sound(conn)
