"""Work that follows from rows: triggers that start workflows, send events and enqueue jobs."""

from pathlib import Path

import psycopg
import pytest

from flows import define, event, graph, query, refused, send, task, value
from jobs import a_task, isolate
from jobs import no_worker as no_worker

pytestmark = pytest.mark.usefixtures("no_worker")
EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "from_rows.sql"


@pytest.fixture(scope="module", autouse=True)
def app(cluster, db):
    """A role that may write tables, and do nothing with the engine."""
    with cluster.connect(db) as conn:
        conn.execute("DROP ROLE IF EXISTS trigger_app")
        conn.execute("CREATE ROLE trigger_app LOGIN")
    yield "trigger_app"
    with cluster.connect(db) as conn:
        conn.execute("DROP OWNED BY trigger_app; DROP ROLE trigger_app")


@pytest.fixture
def orders(conn):
    """A table whose rows start a workflow; its name."""
    name = define(conn, graph(event("paid"), task("ship", "paid")))["name"]
    conn.execute(f"""
        CREATE TABLE {name} (id bigint PRIMARY KEY, customer text, extra jsonb, gone int);
        ALTER TABLE {name} DROP COLUMN gone;
        CREATE TRIGGER start AFTER INSERT ON {name} FOR EACH ROW EXECUTE FUNCTION sayiir.trigger_start('{name}', 'id');
        GRANT INSERT, SELECT, UPDATE ON {name} TO trigger_app""")
    return name


def workflows(conn, name):
    return query(
        conn, "SELECT workflow_id, input, organization_id FROM sayiir.workflows WHERE name = %s ORDER BY 1", name
    )


def a_table(conn, columns="id text, workflow_id text"):
    name = a_task().replace("-", "_")
    conn.execute(f"CREATE TABLE {name} ({columns})")
    return name


def trigger(conn, table, function, *arguments, when="AFTER INSERT", each="ROW"):
    args = ", ".join("'" + argument.replace("'", "''") + "'" for argument in arguments)
    conn.execute(
        f"CREATE TRIGGER {a_task().replace('-', '_')} {when} ON {table} FOR EACH {each} EXECUTE FUNCTION sayiir.{function}({args})"
    )


def test_a_row_starts_a_workflow(conn, connect, orders):
    app = connect(user="trigger_app")
    app.execute(f"INSERT INTO {orders} VALUES (7, 'Ada', '{{\"n\": [1, 2]}}'), (8, NULL, NULL)")
    assert workflows(conn, orders) == [
        {
            "workflow_id": f"{orders}-7",
            "input": {"id": 7, "customer": "Ada", "extra": {"n": [1, 2]}},
            "organization_id": None,
        },
        {"workflow_id": f"{orders}-8", "input": {"id": 8, "customer": None, "extra": None}, "organization_id": None},
    ]
    assert value(
        conn,
        f"SELECT input = (SELECT to_jsonb(o) FROM {orders} o WHERE id = 7) FROM sayiir.workflows WHERE workflow_id = %s",
        f"{orders}-7",
    )
    # The role itself may do nothing.
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        app.execute("SELECT * FROM sayiir.workflow_start('x')")


def test_it_commits_with_the_row(conn, connect, orders):
    app = connect(user="trigger_app", autocommit=False)
    app.execute(f"INSERT INTO {orders} VALUES (1)")
    app.rollback()
    assert workflows(conn, orders) == []


def test_the_same_id_again_uses_the_workflow(conn, connect, orders):
    conn.execute(f"ALTER TABLE {orders} DROP CONSTRAINT {orders}_pkey")
    trigger(conn, orders, "trigger_start", orders, "id", when="AFTER UPDATE")
    app = connect(user="trigger_app")
    app.execute(f"INSERT INTO {orders} VALUES (1, 'Ada')")
    app.execute(f"UPDATE {orders} SET customer = 'Eve'")
    app.execute(f"INSERT INTO {orders} VALUES (1, 'Bob')")
    assert [row["input"]["customer"] for row in workflows(conn, orders)] == ["Ada"]


def test_on_conflict(conn):
    name = define(conn, graph(task("a")))["name"]
    table = a_table(conn)
    trigger(conn, table, "trigger_start", name, "id", '{"on_conflict": "fail"}')
    conn.execute(f"INSERT INTO {table} VALUES ('1')")
    with refused("workflow.conflict"):
        conn.execute(f"INSERT INTO {table} VALUES ('1')")
    assert value(conn, f"SELECT count(*) FROM {table}") == 1


def test_a_before_trigger_keeps_the_row(conn):
    name = define(conn, graph(task("a")))["name"]
    table = a_table(conn)
    trigger(conn, table, "trigger_start", name, "id", when="BEFORE INSERT")
    conn.execute(f"INSERT INTO {table} VALUES ('1', 'x')")
    assert conn.execute(f"SELECT * FROM {table}").fetchall() == [("1", "x")]
    assert len(workflows(conn, name)) == 1


def test_a_row_is_an_event(conn, connect, orders):
    app = connect(user="trigger_app")
    payments = a_table(conn, "id bigint, workflow_id text, amount numeric")
    conn.execute(f"GRANT INSERT ON {payments} TO trigger_app")
    trigger(conn, payments, "trigger_send_event", "paid", "workflow_id", '{"event_key_column": "id"}')
    app.execute(f"INSERT INTO {orders} VALUES (1)")
    # To one that waits, and to one that is not born yet; the same key again is no second event.
    app.execute(f"INSERT INTO {payments} VALUES (1, '{orders}-1', 9.50), (2, '{orders}-2', 1)")
    app.execute(f"INSERT INTO {payments} VALUES (2, '{orders}-2', 2)")
    steps = "SELECT step, status, output FROM sayiir.workflow_steps(%s) ORDER BY step"
    paid = {"id": 1, "workflow_id": f"{orders}-1", "amount": 9.5}
    assert conn.execute(steps, [f"{orders}-1"]).fetchall() == [("paid", "succeeded", paid), ("ship", "ready", None)]
    app.execute(f"INSERT INTO {orders} VALUES (2)")
    assert conn.execute(steps, [f"{orders}-2"]).fetchall()[0][2]["amount"] == 1
    assert value(conn, "SELECT count(*) FROM sayiir.events WHERE workflow_id = %s", f"{orders}-2") == 0
    assert send(conn, f"{orders}-2", "paid", None, "2") == "duplicate"


def test_the_owners_right_counts(conn, connect):
    """Not that of who writes, nor of who once made the trigger."""
    name = define(conn, graph(task("a")))["name"]
    table = a_table(conn)
    trigger(conn, table, "trigger_start", name, "id")
    conn.execute(f"ALTER TABLE {table} OWNER TO trigger_app")
    for writer in (connect(user="trigger_app"), conn):
        with refused("scope.denied"):
            writer.execute(f"INSERT INTO {table} VALUES ('1')")
    conn.execute("GRANT sayiir_client TO trigger_app")
    try:
        conn.execute(f"INSERT INTO {table} VALUES ('1')")
    finally:
        conn.execute("REVOKE sayiir_client FROM trigger_app")
    assert len(workflows(conn, name)) == 1


def test_who_may_make_a_trigger(conn, connect):
    table = a_table(conn)
    conn.execute(f"ALTER TABLE {table} OWNER TO trigger_app")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        trigger(connect(user="trigger_app"), table, "trigger_start", "x", "id")


def test_a_cast_of_a_column_runs_with_the_owners_right(conn, connect):
    """A type may bring its own cast to json, which is a function of whoever made the type."""
    conn.execute("""
        CREATE TYPE sneaky AS ENUM ('on');
        CREATE TABLE ran_as (who text);
        CREATE FUNCTION sneak(sneaky) RETURNS json LANGUAGE plpgsql AS
            $$ BEGIN INSERT INTO public.ran_as VALUES (current_user); RETURN '"x"'; END $$;
        CREATE CAST (sneaky AS json) WITH FUNCTION sneak(sneaky);
        GRANT INSERT ON ran_as TO trigger_app""")
    name = define(conn, graph(task("a")))["name"]
    table = a_table(conn, "id text, odd sneaky")
    trigger(conn, table, "trigger_start", name, "id")
    conn.execute(f"ALTER TABLE {table} OWNER TO trigger_app; GRANT sayiir_client TO trigger_app")
    try:
        conn.execute(f"INSERT INTO {table} VALUES ('1', 'on')")
    finally:
        conn.execute("REVOKE sayiir_client FROM trigger_app")
    assert conn.execute("SELECT * FROM ran_as").fetchall() == [("trigger_app",)]
    assert workflows(conn, name)[0]["input"] == {"id": "1", "odd": "x"}
    assert value(conn, "SELECT current_user") == "postgres"


@pytest.mark.parametrize(
    "arguments, code",
    [
        ((), "trigger.invalid"),
        (("{name}",), "trigger.invalid"),
        (("{name}", "id", "{{}}", "more"), "trigger.invalid"),
        (("{name}", "nothing"), "trigger.invalid"),
        (("{name}", "id", "[]"), "trigger.invalid"),
        (("{name}", "id", '{{"on_conflict": 1}}'), "trigger.invalid"),
        (("{name}", "id", '{{"colour": "red"}}'), "option.unknown"),
        (("{name}", "id", '{{"on_conflict": "perhaps"}}'), "argument.invalid"),
        (("{name}", "id", '{{"organization_column": "nothing"}}'), "trigger.invalid"),
        (("{name}", "workflow_id"), "argument.null"),
        (("nobody defined me", "id"), "definition.not_found"),
    ],
)
def test_what_is_refused(conn, arguments, code):
    name = define(conn, graph(task("a")))["name"]
    table = a_table(conn)
    trigger(conn, table, "trigger_start", *[argument.format(name=name) for argument in arguments])
    with refused(code):
        conn.execute(f"INSERT INTO {table} VALUES ('1')")
    assert value(conn, f"SELECT count(*) FROM {table}") == 0


@pytest.mark.parametrize("when, each", [("AFTER DELETE", "ROW"), ("AFTER INSERT", "STATEMENT")])
@pytest.mark.parametrize("function", ["trigger_start", "trigger_send_event"])
def test_kinds_of_trigger(conn, function, when, each):
    name = define(conn, graph(task("a")))["name"]
    table = a_table(conn)
    conn.execute(f"INSERT INTO {table} VALUES ('1', 'w')")
    trigger(conn, table, function, name, "id", when=when, each=each)
    with refused("trigger.invalid"):
        conn.execute(f"DELETE FROM {table}" if "DELETE" in when else f"INSERT INTO {table} VALUES ('2', 'w')")


def test_organizations(conn, connect):
    """By a column of the row; an owner that is bound cannot leave its organization by it."""
    name = define(conn, graph(task("a")))["name"]
    table = a_table(conn, "id text, tenant text")
    conn.execute(f"GRANT INSERT ON {table} TO trigger_app")
    trigger(conn, table, "trigger_start", name, "id", '{"organization_column": "tenant"}')
    connect(user="trigger_app").execute(f"INSERT INTO {table} VALUES ('1', 'a'), ('2', NULL)")
    everywhere = connect()
    everywhere.execute("SET sayiir.scope = 'all'")
    assert [row["organization_id"] for row in workflows(everywhere, name)] == ["a", None]
    conn.execute(f"ALTER TABLE {table} OWNER TO trigger_app; GRANT sayiir_client TO trigger_app")
    conn.execute("INSERT INTO sayiir.role_scope VALUES ('trigger_app', 'b')")
    try:
        conn.execute(f"INSERT INTO {table} VALUES ('3', 'a')")
    finally:
        conn.execute(
            "DELETE FROM sayiir.role_scope WHERE role_name = 'trigger_app'; REVOKE sayiir_client FROM trigger_app"
        )
    assert [row["organization_id"] for row in workflows(everywhere, name)] == ["a", None, "b"]


def test_isolation(connect, orders):
    conn = connect()
    isolate(conn, "repeatable read")
    with refused("call.isolation_unsupported"):
        conn.execute(f"INSERT INTO {orders} VALUES (1)")


def test_partitions_and_many_rows(conn):
    name = define(conn, graph(task("a")))["name"]
    table = a_table(conn, "id int, part int) PARTITION BY LIST (part")
    conn.execute(
        f"CREATE TABLE {table}_1 PARTITION OF {table} FOR VALUES IN (1); CREATE TABLE {table}_2 PARTITION OF {table} DEFAULT"
    )
    trigger(conn, table, "trigger_start", name, "id")
    conn.execute(f"INSERT INTO {table} SELECT n, n % 3 FROM generate_series(1, 300) n")
    assert value(conn, "SELECT count(*) FROM sayiir.workflows WHERE name = %s", name) == 300


def test_the_example(cluster, connect):
    with cluster.connect() as conn:
        conn.execute("CREATE DATABASE example_from_rows TEMPLATE template0")
    try:
        with cluster.connect("example_from_rows") as conn:
            conn.execute("CREATE EXTENSION sayiir")
        lines = cluster.client(
            "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", "example_from_rows", "-f", str(EXAMPLE)
        ).splitlines()
        assert lines == [
            "order|created",
            'ship|{"order": 7, "amount": 12.50}|succeeded',
            '{"parcel": 42}',
            'thumbnail|{"file": "cat.png"}|picture-1',
        ]
    finally:
        with cluster.connect() as conn:
            conn.execute("DROP DATABASE example_from_rows WITH (FORCE)")
            conn.execute("DROP ROLE shop")
