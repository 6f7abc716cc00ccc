-- Whose database this is. Not dumped: what a dump is restored into, or a copy of the database is, does not run before adopt().
-- Without a unique key on the identity, so that two first calls do not wait for each other; several rows say the same.
CREATE TABLE sayiir.meta (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    system_identifier bigint NOT NULL,
    database_oid oid NOT NULL,
    reason text NOT NULL,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE sayiir.meta IS 'The server and database that this engine runs in. No row of them = a copy or a restore: nothing is swept or claimed before adopt().';
COMMENT ON COLUMN sayiir.meta.id IS 'Key inside.';
COMMENT ON COLUMN sayiir.meta.system_identifier IS 'The server, as pg_control_system() says.';
COMMENT ON COLUMN sayiir.meta.database_oid IS 'The database (pg_database.oid).';
COMMENT ON COLUMN sayiir.meta.reason IS 'first call, or adopt.';
COMMENT ON COLUMN sayiir.meta.written_at IS 'When.';

CREATE VIEW sayiir.engine_state AS
SELECT
    s.adopted,
    -- Only asked before the first call: what somebody began to load is not empty.
    CASE
        WHEN s.adopted THEN false
        ELSE NOT (
            EXISTS (SELECT FROM sayiir.job)
            OR EXISTS (SELECT FROM sayiir.workflow)
            OR EXISTS (SELECT FROM sayiir.definition)
            OR EXISTS (SELECT FROM sayiir.task)
            OR EXISTS (SELECT FROM sayiir.lane)
            OR EXISTS (SELECT FROM sayiir.event)
            OR EXISTS (SELECT FROM sayiir.event_key)
            OR EXISTS (SELECT FROM sayiir.schedule)
            OR EXISTS (SELECT FROM sayiir.effect))
    END AS empty,
    s.system_identifier,
    s.database_oid
FROM (
    SELECT
        EXISTS (
            SELECT FROM sayiir.meta m
            WHERE m.system_identifier = c.system_identifier AND m.database_oid = d.oid) AS adopted,
        c.system_identifier,
        d.oid AS database_oid
    FROM pg_catalog.pg_control_system() c
    JOIN pg_catalog.pg_database d ON d.datname = current_database()) s;
COMMENT ON VIEW sayiir.engine_state IS 'Internal: whether the engine runs in the database that it was begun or adopted in, and whether it is still empty.';
