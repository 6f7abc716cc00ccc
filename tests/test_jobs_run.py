"""job_run: a SQL function is the handler; its writes and the completion are one commit."""

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from jobs import a_task, assert_sound, call, enqueue, get, leased, no_worker, one, refused, value  # noqa: F401

pytestmark = pytest.mark.usefixtures("no_worker")


@pytest.fixture(scope="module", autouse=True)
def handlers(cluster, db):
    with cluster.connect(db) as conn:
        conn.execute(
            "CREATE TABLE public.written (task text, input jsonb, by name DEFAULT current_user);"
            "CREATE FUNCTION public.write(jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN"
            " INSERT INTO public.written VALUES ($1 ->> 'task', $1);"
            " IF $1 ? 'error' THEN RAISE EXCEPTION 'it failed: %', $1 ->> 'error' USING ERRCODE = 'P0666'; END IF;"
            " RETURN jsonb_build_object('done', $1 -> 'n'); END $$;"
            "CREATE FUNCTION public.nothing(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb';"
            "CREATE FUNCTION public.settings(jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT jsonb_build_object("
            " 'path', current_setting('search_path'), 'seqscan', current_setting('enable_seqscan'), 'user', current_user) $$;"
            'CREATE FUNCTION public."a ""quoted"" name"(jsonb) RETURNS jsonb LANGUAGE sql AS \'SELECT $1\';'
            "CREATE FUNCTION public.of_text(text) RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb';"
            "CREATE FUNCTION public.to_text(jsonb) RETURNS text LANGUAGE sql AS 'SELECT NULL::text';"
            "CREATE FUNCTION public.of_two(jsonb, jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';"
            "CREATE FUNCTION public.a_set(jsonb) RETURNS SETOF jsonb LANGUAGE sql AS 'SELECT $1';"
            "CREATE PROCEDURE public.a_procedure(jsonb) LANGUAGE sql AS 'SELECT 1'"
        )
    yield


@pytest.fixture
def task():
    return a_task()


def run(conn, task, handler="public.write", **named):
    return one(conn, "job_run", task, handler, **named)


def written(conn, task):
    return [n for (n,) in conn.execute("SELECT input -> 'n' FROM public.written WHERE task = %s ORDER BY 1", [task])]


def fill(conn, task, *inputs):
    return [enqueue(conn, task, {"task": task} | one_input) for one_input in inputs]


def test_the_handler_gets_the_input_and_gives_the_output(conn, task):
    [job_id] = fill(conn, task, {"n": 7})
    assert run(conn, task) == 1
    assert one(conn, "job_result", job_id) == {"done": 7}
    assert written(conn, task) == [7]
    state = get(conn, job_id)
    assert (state.status, state.attempt, state.worker) == ("succeeded", 1, f"job_run/{conn.info.backend_pid}")
    assert run(conn, task) == 0


def test_the_handlers_writes_and_the_completion_are_one_commit(connect, task):
    conn, other = connect(), connect()
    [job_id] = fill(conn, task, {"n": 1})
    with conn.transaction():
        assert run(conn, task) == 1
        assert written(other, task) == []
        assert get(other, job_id).status == "ready"
    assert (written(other, task), get(other, job_id).status) == ([1], "succeeded")
    [job_id] = fill(conn, task, {"n": 2})
    with conn.transaction(force_rollback=True):
        assert run(conn, task) == 1
    assert written(other, task) == [1]
    state = get(other, job_id)
    assert (state.status, state.attempt) == ("ready", 0)  # its attempt counts only if it commits


def test_an_error_undoes_the_handlers_writes_and_fails_the_job(conn, task):
    good, bad, last = fill(conn, task, {"n": 1}, {"n": 2, "error": "ouch"}, {"n": 3})
    assert run(conn, task, max_jobs=24) == 3
    assert written(conn, task) == [1, 3]
    assert [get(conn, job_id).status for job_id in (good, bad, last)] == ["succeeded", "scheduled", "succeeded"]
    state = get(conn, bad)
    assert (state.error_code, state.error_message) == ("P0666", "it failed: ouch")


def test_the_last_attempt_is_a_dead_letter(conn, task):
    job_id = enqueue(conn, task, {"task": task, "error": "x"}, max_attempts=1)
    assert run(conn, task) == 1
    assert get(conn, job_id).status == "failed"


def test_a_handler_may_answer_nothing(conn, task):
    [job_id] = fill(conn, task, {})
    assert run(conn, task, "public.nothing") == 1
    assert one(conn, "job_result", job_id) is None


def test_any_name_that_regproc_reads(conn, task):
    [job_id] = fill(conn, task, {"n": 1})
    assert run(conn, task, 'public."a ""quoted"" name"') == 1
    assert one(conn, "job_result", job_id)["n"] == 1


def test_the_handler_runs_with_the_callers_rights_and_settings(conn, task):
    role = f"runner_{task[5:]}"
    conn.execute(
        f"CREATE ROLE {role}; GRANT sayiir_worker, sayiir_client TO {role}; GRANT USAGE ON SCHEMA public TO {role}"
    )
    try:
        conn.execute(f"SET ROLE {role}; SET search_path = public, pg_temp")
        ids = fill(conn, task, {"n": 1})
        assert run(conn, task, "public.settings") == 1
        assert one(conn, "job_result", ids[0]) == {"path": "public, pg_temp", "seqscan": "on", "user": role}
        # It may not write where its caller may not, and the job learns that.
        [denied] = fill(conn, task, {"n": 2})
        assert run(conn, task, "public.write") == 1
        assert get(conn, denied).error_code == "42501"
    finally:
        conn.execute("RESET ROLE; RESET search_path")
        conn.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_who_may_not_claim_may_not_run(conn, task):
    [job_id] = fill(conn, task, {"n": 1})
    conn.execute("SET ROLE sayiir_client")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        run(conn, task, "public.settings")
    conn.execute("RESET ROLE")
    assert get(conn, job_id).attempt == 0


@pytest.mark.parametrize("handler", ["of_text", "to_text", "of_two", "a_set", "a_procedure", None])
def test_what_is_no_handler_is_refused(conn, task, handler):
    [job_id] = fill(conn, task, {"n": 1})
    with refused("handler.invalid"):
        run(conn, task, handler and f"public.{handler}")
    assert get(conn, job_id).status == "ready"


@pytest.mark.parametrize("max_jobs", [0, 25, -1, None])
def test_at_most_24_jobs(conn, task, max_jobs):
    """Each is a savepoint; more would overflow the backend's cache of them."""
    with refused("argument.out_of_range"):
        run(conn, task, max_jobs=max_jobs)
    call(conn, "job_enqueue_many", task, Jsonb([{"n": 1}] * 30))
    assert [run(conn, task, "public.nothing", max_jobs=24), run(conn, task, "public.nothing", max_jobs=24)] == [24, 6]


def test_a_handler_may_enqueue_and_may_end_its_own_job(conn, task):
    conn.execute(
        sql.SQL(
            "CREATE OR REPLACE FUNCTION public.chain(jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN"
            " PERFORM sayiir.job_enqueue({}, '{{\"n\": 9}}'); RETURN $1; END $$"
        ).format(sql.Literal(task + "-next"))
    )
    fill(conn, task, {"n": 1})
    assert run(conn, task, "public.chain") == 1
    assert run(conn, task + "-next", "public.nothing") == 1


def test_a_job_that_somebody_leases_is_left(conn, task):
    job = leased(conn, task)
    assert run(conn, task) == 0
    assert get(conn, job.job_id).epoch == job.epoch


def test_a_cancelled_statement_leaves_the_job(connect, task):
    conn, other = connect(), connect()
    conn.execute(
        "CREATE OR REPLACE FUNCTION public.sleep(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT to_jsonb(pg_sleep(60)::text)'"
    )
    [job_id] = fill(conn, task, {"n": 1})
    conn.execute("SET statement_timeout = '200 ms'")
    with pytest.raises(psycopg.errors.QueryCanceled):
        run(conn, task, "public.sleep")
    state = get(other, job_id)
    assert (state.status, state.attempt) == ("ready", 0)


def test_nothing_was_lost(conn):
    assert_sound(conn)
