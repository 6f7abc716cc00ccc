"""Writes docs/api.md from the catalog: what is documented is what is installed. `make api-page` runs it."""

import os
import re
import sys
from pathlib import Path

import psycopg

PAGE = Path(__file__).parent.parent / "docs" / "api.md"

HEAD = """# The SQL API

Made by `make api-page` from the comments in the database; a test fails when it is stale.

- Always `SELECT * FROM f(…)`: plain columns in every driver. `SELECT f(…)` gives a composite, `(f(…)).*` runs f twice.
- Argument names are public: `job_claim('me', '{ship}', max_jobs => 10)`.
- `NULL` is SQL NULL; JSON null is data. Intervals are `interval`; ids are compared byte by byte.
- Look-ups by a caller's key take `organization_id`; calls with a lease (job_id and epoch) do not.
- Errors carry a stable code in DETAIL: `SELECT * FROM sayiir.error_codes()`.

Drivers: psycopg 3 wraps dicts in `Jsonb`; node-pg gets bigint as a string, and wants `JSON.stringify` for jsonb; JDBC wants
`?::uuid` and `?::jsonb`.

"""

FUNCTIONS = """
SELECT p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid), obj_description(p.oid, 'pg_proc'),
    t.typrelid
FROM pg_proc p JOIN pg_type t ON t.oid = p.prorettype
WHERE p.pronamespace = 'sayiir'::regnamespace AND p.prorettype <> 'trigger'::regtype
ORDER BY p.proname COLLATE "C"
"""

COLUMNS = """
SELECT attname || ' ' || format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = %s AND attnum > 0 ORDER BY attnum
"""

VIEWS = """
SELECT c.relname, obj_description(c.oid, 'pg_class'), c.oid FROM pg_class c
WHERE c.relnamespace = 'sayiir'::regnamespace AND c.relkind = 'v' AND has_table_privilege('sayiir_client', c.oid, 'SELECT')
ORDER BY c.relname COLLATE "C"
"""


def render(conn):
    """The page for the extension installed in conn's database."""
    conn.execute("SET search_path = pg_catalog")

    def columns(relation):
        return ", ".join(row[0] for row in conn.execute(COLUMNS, [relation]))

    parts = [HEAD, "## Functions\n"]
    for name, arguments, result, comment, relation in conn.execute(FUNCTIONS).fetchall():
        signature = re.sub(r"(DEFAULT (?:NULL|'[^']*'))::[a-z ]+(\[\])?", r"\1", arguments)
        parts.append(f"\n### {name}\n\n`{name}({signature})` → `{result.replace('sayiir.', '')}`\n\n{comment}\n")
        if relation:
            parts.append(f"\nColumns: `{columns(relation)}`\n")
    parts.append("\n## Views\n")
    for name, comment, relation in conn.execute(VIEWS).fetchall():
        parts.append(f"\n### {name}\n\n{comment}\n\nColumns: `{columns(relation)}`\n")
    return "".join(parts)


if __name__ == "__main__":
    with psycopg.connect(os.environ["SAYIIR_URI"], autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS sayiir")
        PAGE.write_text(render(connection))
    print(f"wrote {PAGE.name}", file=sys.stderr)
