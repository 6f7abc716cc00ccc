"""The SQL of the documentation runs: every block fenced as sql, in order, one database a file.

A statement that has to fail says so in a comment in it or behind it on its line, with the code of the engine or the SQLSTATE:
-- error: job.lease_lost. What is not to be run is fenced as text.
"""

import re
from pathlib import Path

import psycopg
import pytest

from flows import code_of, value

ROOT = Path(__file__).resolve().parent.parent
FILES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]

BLOCK = re.compile(r"^( *)```sql *\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
# What can hide a semicolon; then the end of a statement with the comment behind it.
TOKEN = re.compile(
    r"""'(?:[^']|'')*' | "[^"]*" | \$(\w*)\$.*?\$\1\$ | --[^\n]* | /\*.*?\*/ | (?P<end>;[ \t]*(?:--[^\n]*)?) | .""",
    re.DOTALL | re.VERBOSE,
)
ERROR = re.compile(r"-- error: ([\w.]+)")
COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)


def blocks(text):
    """(number of the first line, SQL) of each block."""
    return [(text[: match.start(2)].count("\n") + 1, match[2]) for match in BLOCK.finditer(text)]


def statements(sql):
    """(number of its first line in the block, text, code of the expected error or None) of each statement."""
    found, begin = [], 0
    ends = [match.end() for match in TOKEN.finditer(sql) if match["end"]]
    for end in [*ends, len(sql)]:
        text = sql[begin:end]
        if COMMENT.sub("", text).strip():
            error = ERROR.search(text)
            start = begin + len(text) - len(text.lstrip())
            found.append((sql[:start].count("\n"), text.strip(), error and error[1]))
        begin = end
    return found


def run(conn, text):
    """Runs the blocks of a page; raises AssertionError with the place of the first statement that does otherwise than it says."""
    for first_line, block in blocks(text):
        for line, statement, expected in statements(block):
            place = f"line {first_line + line}: {statement}"
            try:
                conn.execute(statement)
            except psycopg.Error as error:
                assert expected, f"{place}\n{error}"
                assert expected in (error.sqlstate, error.diag.message_detail and code_of(error)), f"{place}\n{error}"
            else:
                assert not expected, f"{place}\ndid not fail"


@pytest.fixture
def own_roles(cluster):
    """Roles belong to the server, so those that a page made are dropped."""
    with cluster.connect() as conn:
        roles = "SELECT rolname FROM pg_roles"
        before = set(conn.execute(roles))
        yield
        for (role,) in set(conn.execute(roles)) - before:
            conn.execute(f'DROP ROLE "{role}"')


@pytest.mark.parametrize("file", [file for file in FILES if blocks(file.read_text())], ids=lambda file: file.name)
def test_the_sql_of(file, own_roles, fresh, connect):
    conn = connect(dbname=fresh)
    run(conn, file.read_text())
    conn.execute("DROP EXTENSION sayiir CASCADE")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_composites_are_selected_from(file, conn):
    """SELECT f(…) of a function that gives rows arrives as one odd column in most drivers, and (f(…)).* calls it several times."""
    rows = """SELECT proname FROM pg_proc WHERE pronamespace = 'sayiir'::regnamespace AND prokind = 'f'
        AND prorettype IN (SELECT oid FROM pg_type WHERE typtype = 'c')"""
    names = {name for (name,) in conn.execute(rows)}
    assert "workflow_start" in names and "workflow_result" not in names
    for sql in re.findall(r"```(?:sql|text|python)\n.*?```", file.read_text(), re.DOTALL):
        for name in re.findall(r"SELECT\s+\(?\s*sayiir\.(\w+)\s*\(", sql, re.IGNORECASE):
            assert name not in names, f"SELECT sayiir.{name}(…) instead of SELECT * FROM"


# The reader itself

PAGE = """
```sql
SELECT 1; SELECT ';', $$ ; $$, $a$ ; $$ $a$, ";" FROM (VALUES (1)) v (";") /* ; */ -- ; it's no statement

-- error: job.lease_lost
;
SELECT sayiir.job_complete(gen_random_uuid(), 1);  -- error: job.lease_lost
-- A comment alone.
SELECT 1 / 0; -- error: 22012
```
```text
no SQL
```
1. In a list:
   ```sql
   CREATE TABLE t ();
   ```
"""


def test_statements():
    first, second = blocks(PAGE)
    assert [(line, error) for line, _, error in statements(first[1])] == [
        (0, None),
        (0, "job.lease_lost"),
        (4, "job.lease_lost"),
        (5, "22012"),
    ]
    assert first[0] == 3 and second == (16, "   CREATE TABLE t ();\n")


@pytest.mark.parametrize(
    "sql, complaint",
    [
        ("SELECT 1;\nSELECT x;", 'line 3: SELECT x;\n *column "x" does not exist'),
        ("SELECT 1; -- error: 22012", "line 2: .*\n *did not fail"),
        ("SELECT 1 / 0; -- error: 42601", "line 2: .*\n *division by zero"),
        ("SELECT sayiir.job_result(gen_random_uuid()); -- error: job.lease_lost", "line 2: "),
    ],
)
def test_a_page_that_is_wrong_fails(conn, sql, complaint):
    with pytest.raises(AssertionError, match=complaint):
        run(conn, f"```sql\n{sql}\n```\n")
    assert value(conn, "SELECT 1") == 1
