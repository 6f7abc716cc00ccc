"""Whose jobs a call sees, and which role may call what."""

import contextlib
import uuid

import psycopg
import pytest
from psycopg.types.json import Jsonb

from jobs import (  # noqa: F401
    a_task,
    assert_sound,
    call,
    claim,
    claim_one,
    complete,
    enqueue,
    get,
    isolate,
    leased,
    no_worker,
    one,
    refused,
    value,
)

pytestmark = pytest.mark.usefixtures("no_worker")

CLIENT = {"job_enqueue", "job_enqueue_many", "job_cancel"}
WORKER = {
    "job_claim",
    "job_heartbeat",
    "job_heartbeat_many",
    "job_complete",
    "job_complete_many",
    "job_fail",
    "job_fail_many",
    "job_release",
    "job_run",
    "job_reap",
    "tick",
    "next_due",
}
READS = {"job_get", "job_history", "job_result", "version", "error_codes"}
ADMIN = {"task_define", "task_pause", "task_resume", "job_requeue", "doctor", "stats"}
VIEWS = {"jobs", "job_attempts", "dead_letters", "queue_stats", "tasks"}


@pytest.fixture
def task():
    return a_task()


@pytest.fixture
def role(cluster, db):
    """Makes roles; they and what binds them go after the test."""
    made = []
    with cluster.connect(db) as owner:

        def make(*granted, organization=None):
            name = f"role_{uuid.uuid4().hex[:12]}"
            owner.execute(f"CREATE ROLE {name} LOGIN")
            made.append(name)
            for other in granted:
                owner.execute(f"GRANT {other} TO {name}")
            if organization is not None:
                owner.execute("INSERT INTO sayiir.role_scope VALUES (%s, %s)", [name, organization])
            return name

        yield make
        for name in made:
            owner.execute("DELETE FROM sayiir.role_scope WHERE role_name = %s", [name])
            owner.execute(f"DROP OWNED BY {name} CASCADE")
            owner.execute(f"DROP ROLE {name}")


@contextlib.contextmanager
def scope(conn, scope, organization=None):
    conn.execute("SELECT set_config('sayiir.scope', %s, false)", [scope])
    conn.execute("SELECT set_config('sayiir.organization_id', %s, false)", [organization or ""])
    try:
        yield
    finally:
        conn.execute("RESET sayiir.scope; RESET sayiir.organization_id")


# Scope


def test_a_claim_takes_only_its_organizations_jobs(conn, task):
    ids = {organization: enqueue(conn, task, organization_id=organization) for organization in (None, "acme", "other")}
    for organization, job_id in ids.items():
        [job] = claim(conn, task, max_jobs=9, organization_id=organization)
        assert (job.job_id, job.organization_id) == (job_id, organization)
        assert claim(conn, task, organization_id=organization) == []
    enqueue(conn, task)
    assert claim(conn, task, organization_id="stranger") == []
    with scope(conn, "organization", "acme"):
        job_id = enqueue(conn, task)
        assert [job.job_id for job in claim(conn, task, max_jobs=9)] == [job_id]


def test_another_organizations_job_is_no_job(conn, task):
    theirs = [enqueue(conn, task, organization_id="acme", max_attempts=1) for _ in range(2)]
    job = claim_one(conn, task, organization_id="acme")
    call(conn, "job_fail", job.job_id, job.epoch, "e")
    mine = enqueue(conn, task)
    nothing = uuid.uuid4()
    for organization in (None, "other"):
        asked = {"organization_id": organization}
        for job_id in [*theirs, nothing]:
            assert call(conn, "job_get", job_id, **asked) == []
            assert call(conn, "job_history", job_id, **asked) == []
            with refused("job.not_found"):
                call(conn, "job_cancel", job_id, **asked)
            with refused("job.not_found"):
                call(conn, "job_result", job_id, **asked)
            assert one(conn, "job_requeue", job_id, **asked)[1:] == ("not_found", None, None)
    for view in VIEWS:
        assert (
            value(conn, f"SELECT count(*) FROM sayiir.{view} WHERE task = %s AND organization_id IS NOT NULL", task)
            == 0
        )
    with scope(conn, "organization", "acme"):
        assert call(conn, "job_get", mine) == []
        assert value(conn, "SELECT count(*) FROM sayiir.jobs WHERE task = %s", task) == 2
        assert value(conn, "SELECT count(*) FROM sayiir.dead_letters WHERE task = %s", task) == 1
        assert one(conn, "job_cancel", theirs[1]).disposition == "cancelled"
        assert one(conn, "job_requeue", theirs[0]).disposition == "requeued"


def test_a_key_conflict_tells_nothing_about_others(conn, task):
    first = enqueue(conn, task, 1, idempotency_key="k", organization_id="acme")
    for organization in ("other", None):
        answer = one(conn, "job_enqueue", task, Jsonb(2), idempotency_key="k", organization_id=organization)
        assert answer.disposition == "inserted" and answer.job_id != first


def test_an_argument_wins_over_the_setting(conn, task):
    with scope(conn, "organization", "acme"):
        job_id = enqueue(conn, task, organization_id="other")
        assert claim(conn, task) == []
        assert claim_one(conn, task, organization_id="other").job_id == job_id


def test_all_sees_everything(conn, task):
    ids = {enqueue(conn, task, organization_id=organization) for organization in (None, "acme", "other")}
    with scope(conn, "all"):
        assert value(conn, "SELECT count(*) FROM sayiir.jobs WHERE task = %s", task) == 3
        assert {job.job_id for job in claim(conn, task, max_jobs=9)} == ids
        assert {get(conn, job_id).status for job_id in ids} == {"leased"}
        job_id = enqueue(conn, task)  # a new row belongs to one: none
    assert get(conn, job_id).organization_id is None


def test_a_scope_without_its_organization_is_refused(conn, task):
    with scope(conn, "organization"), refused("scope.denied"):
        enqueue(conn, task)


def test_all_needs_a_role(conn, role, task):
    client, worker, admin = (role(f"sayiir_{kind}") for kind in ("client", "worker", "admin"))
    conn.execute(f"GRANT EXECUTE ON FUNCTION sayiir.job_claim TO {client}")
    job_id = enqueue(conn, task, organization_id="acme")
    conn.execute("SET sayiir.scope = 'all'")
    for name in (client, worker):
        conn.execute(f"SET ROLE {name}")
        for look in [
            lambda: value(conn, "SELECT count(*) FROM sayiir.jobs"),
            lambda: call(conn, "job_get", job_id),
            lambda: call(conn, "job_result", job_id),
        ]:
            with refused("scope.denied"):
                look()
    conn.execute(f"SET ROLE {client}")
    with refused("scope.denied"):
        claim(conn, task)
    conn.execute(f"SET ROLE {worker}")
    assert len(claim(conn, task)) == 1
    conn.execute(f"SET ROLE {admin}")
    assert value(conn, "SELECT count(*) FROM sayiir.jobs WHERE task = %s", task) == 1
    conn.execute("RESET ROLE")


def test_a_bound_role_cannot_leave_its_organization(connect, role, task):
    conn, bound = connect(), role("sayiir_client", "sayiir_worker", organization="acme")
    theirs, everyones = enqueue(conn, task, organization_id="other"), enqueue(conn, task)
    conn.execute(f"SET ROLE {bound}")
    mine = enqueue(conn, task)
    for name, organization in [("global", None), ("all", None), ("organization", "other")]:
        with scope(conn, name, organization):
            assert get(conn, mine).organization_id == "acme"
            for job_id in (theirs, everyones):
                assert call(conn, "job_get", job_id) == []
                with refused("job.not_found"):
                    call(conn, "job_cancel", job_id)
            assert value(conn, "SELECT count(*) FROM sayiir.jobs WHERE task = %s", task) == 1
    for call_with_argument in [
        lambda: enqueue(conn, task, organization_id="other"),
        lambda: claim(conn, task, organization_id="other"),
        lambda: call(conn, "job_cancel", theirs, organization_id="other"),
        lambda: call(conn, "job_get", theirs, organization_id="other"),
        lambda: call(conn, "job_result", theirs, organization_id="other"),
    ]:
        with refused("scope.denied"):
            call_with_argument()
    assert [job.job_id for job in claim(conn, task, max_jobs=9, organization_id="acme")] == [mine]
    assert claim(conn, task, max_jobs=9) == []


def test_who_binds_a_role_is_obeyed_at_once(connect, role, task):
    """Also by a backend that has looked before, and by one that reads through an old snapshot."""
    conn, owner, name = connect(), connect(), role("sayiir_client")
    theirs = enqueue(owner, task, organization_id="acme")
    conn.execute(f"SET ROLE {name}")
    isolate(conn, "repeatable read")
    with conn.transaction():
        assert call(conn, "job_get", theirs) == []
        owner.execute("INSERT INTO sayiir.role_scope VALUES (%s, 'acme')", [name])
        call(conn, "job_get", theirs)
    assert get(conn, theirs).organization_id == "acme"
    owner.execute("UPDATE sayiir.role_scope SET organization_id = 'other' WHERE role_name = %s", [name])
    assert call(conn, "job_get", theirs) == []
    with owner.transaction(force_rollback=True):
        owner.execute("DELETE FROM sayiir.role_scope WHERE role_name = %s", [name])
        owner.execute(f"SET LOCAL ROLE {name}")
        assert get(owner, enqueue(owner, task)).organization_id is None
    owner.execute(f"SET ROLE {name}")
    assert get(owner, enqueue(owner, task)).organization_id == "other"


def test_set_role_counts_and_session_user_does_not(connect, role, task):
    login, member = role(), role("sayiir_client", organization="acme")
    owner = connect()
    owner.execute(f"GRANT {member} TO {login}")
    conn = connect(user=login)
    if owner.info.server_version >= 160000:
        owner.execute(f"GRANT {member} TO {login} WITH INHERIT FALSE")
    conn.execute(f"SET ROLE {member}")
    assert get(conn, enqueue(conn, task)).organization_id == "acme"


# Rights


def may_call(conn, role):
    query = (
        "SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'sayiir'::regnamespace"
        " AND has_function_privilege(%s, p.oid, 'EXECUTE') AND has_schema_privilege(%s, 'sayiir', 'USAGE')"
    )
    return {name for (name,) in conn.execute(query, [role, role])}


def test_each_role_may_call_its_functions_and_no_others(conn, role):
    everything = CLIENT | WORKER | READS | ADMIN
    assert may_call(conn, role()) == set()
    assert may_call(conn, "sayiir_client") & everything == CLIENT | READS
    assert may_call(conn, "sayiir_worker") & everything == WORKER | READS
    assert may_call(conn, "sayiir_admin") & everything == everything


def test_nobody_may_touch_a_table_or_sequence(conn, role):
    names = [role(), "sayiir_client", "sayiir_worker", "sayiir_admin"]
    query = (
        "SELECT c.relname, c.relkind FROM pg_class c WHERE c.relnamespace = 'sayiir'::regnamespace AND c.relkind IN ('r', 'S', 'v')"
        " AND has_any_column_privilege(%s, c.oid, 'SELECT, INSERT, UPDATE, REFERENCES')"
    )
    sequences = (
        "SELECT count(*) FROM pg_class c WHERE relnamespace = 'sayiir'::regnamespace"
        " AND CASE WHEN relkind = 'S' THEN has_sequence_privilege(%s, oid, 'USAGE, SELECT, UPDATE') END"
    )
    for name in names:
        allowed = {relation for relation, _ in conn.execute(query, [name])}
        others = {"workflows", "steps", "waits", "events", "definitions", "schedules", "job_logs", "effects_pending"}
        assert all(relation in VIEWS | others for relation in allowed)
        assert (VIEWS <= allowed) == name.startswith("sayiir_")
        assert value(conn, sequences, name) == 0


@pytest.mark.parametrize("kind", [None, "client", "worker"])
def test_a_call_without_the_right_is_refused(conn, role, kind):
    name = role(*([f"sayiir_{kind}"] if kind else []))
    calls = {
        "job_enqueue": "job_enqueue('t')",
        "job_claim": "job_claim('w', '{t}')",
        "job_complete": "job_complete(gen_random_uuid(), 1)",
        "job_cancel": "job_cancel(gen_random_uuid())",
        "job_requeue": "job_requeue(gen_random_uuid())",
        "task_pause": "task_pause('t')",
        "tick": "tick()",
        "job_get": "job_get(gen_random_uuid())",
    }
    allowed = {None: set(), "client": CLIENT | READS, "worker": WORKER | READS}[kind]
    conn.execute(f"SET ROLE {name}")
    for function, query in calls.items():
        if function not in allowed:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(f"SELECT * FROM sayiir.{query}")
    for table in ["job", "job_ready", "role_scope", "job_now"]:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute(f"SELECT * FROM sayiir.{table}")
    conn.execute("RESET ROLE")


def test_a_hostile_search_path_changes_nothing(connect, role, task):
    """What a caller puts in front of pg_catalog is not found by what runs with the owner's rights."""
    conn, name = connect(), role("sayiir_client", "sayiir_worker")
    owner = connect()
    owner.execute(f"CREATE SCHEMA hostile AUTHORIZATION {name}")
    conn.execute(f"SET ROLE {name}")
    conn.execute(
        "CREATE TABLE hostile.caught (by name);"
        "CREATE FUNCTION hostile.catch(anyelement, anyelement) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO hostile.caught VALUES (current_user); RETURN true; END $$;"
        "CREATE OPERATOR hostile.= (LEFTARG = anyelement, RIGHTARG = anyelement, FUNCTION = hostile.catch);"
        "CREATE OPERATOR hostile.<= (LEFTARG = anyelement, RIGHTARG = anyelement, FUNCTION = hostile.catch);"
        "CREATE FUNCTION hostile.coalesce(anyelement, anyelement) RETURNS anyelement LANGUAGE sql AS 'SELECT $1';"
        "CREATE FUNCTION hostile.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT 'epoch'::timestamptz $$;"
        "CREATE FUNCTION hostile.nextval(regclass) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';"
        "SET search_path = hostile, pg_catalog"
    )
    job_id = enqueue(conn, task, idempotency_key="k")
    job = claim_one(conn, task)
    assert job.job_id == job_id
    assert one(conn, "job_heartbeat", job.job_id, job.epoch) == "continue"
    assert complete(conn, job) == "succeeded"
    assert get(conn, job_id).status == "succeeded"
    call(conn, "tick")
    assert value(conn, "SELECT count(*) FROM hostile.caught") == 0
    conn.execute("RESET ROLE; RESET search_path")


def test_a_view_shows_a_callers_function_only_its_own_rows(conn, role, task):
    """security_barrier: a cheap function in WHERE does not run before the scope is checked."""
    enqueue(conn, task, {"secret": "theirs"}, organization_id="other")
    name = role("sayiir_client", organization=task)  # one without jobs
    conn.execute(f"CREATE SCHEMA peek AUTHORIZATION {name}")
    conn.execute(f"SET ROLE {name}")
    conn.execute(
        "CREATE FUNCTION peek.peek(jsonb) RETURNS boolean COST 0.0001 LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE NOTICE 'seen %', $1; RETURN true; END $$"
    )
    notices = []
    conn.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    for view in ("jobs", "dead_letters"):
        assert conn.execute(f"SELECT * FROM sayiir.{view} WHERE peek.peek(input)").fetchall() == []
    assert notices == []
    conn.execute("RESET ROLE")


def test_nothing_was_lost(conn):
    assert_sound(conn)
