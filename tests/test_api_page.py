"""The documentation of the surface is that of what is installed, and nothing is without a word about it."""

import api_page


def test_page_is_current(conn):
    assert api_page.PAGE.read_text() == api_page.render(conn), "docs/api.md is stale: run 'make api-page'"


def test_everything_has_a_comment(conn):
    bare = conn.execute("""
        SELECT 'function ' || p.proname FROM pg_proc p
        WHERE p.pronamespace = 'sayiir'::regnamespace AND obj_description(p.oid, 'pg_proc') IS NULL
        UNION ALL
        SELECT 'relation ' || c.relname FROM pg_class c
        WHERE c.relnamespace = 'sayiir'::regnamespace AND c.relkind IN ('r', 'v') AND obj_description(c.oid, 'pg_class') IS NULL
        UNION ALL
        SELECT 'column ' || c.relname || '.' || a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
        WHERE c.relnamespace = 'sayiir'::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
            AND col_description(c.oid, a.attnum) IS NULL
        UNION ALL
        SELECT 'type ' || t.typname FROM pg_type t
        WHERE t.typnamespace = 'sayiir'::regnamespace AND obj_description(t.oid, 'pg_type') IS NULL
            AND (t.typtype = 'e' OR EXISTS (SELECT FROM pg_class c WHERE c.oid = t.typrelid AND c.relkind = 'c'))
    """).fetchall()
    assert bare == []


def test_every_table_has_a_primary_key(conn):
    without = conn.execute("""
        SELECT relname FROM pg_class c
        WHERE relnamespace = 'sayiir'::regnamespace AND relkind = 'r'
            AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
    """).fetchall()
    assert without == []
