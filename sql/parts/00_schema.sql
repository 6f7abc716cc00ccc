SET LOCAL search_path = pg_catalog, sayiir, pg_temp;

-- CREATE EXTENSION takes a schema that is already there. One that somebody else owns, or that holds anything, could shadow what
-- the functions call.
DO $schema$
BEGIN
    IF NOT EXISTS (
        SELECT FROM pg_catalog.pg_namespace
        WHERE nspname = 'sayiir' AND pg_catalog.pg_get_userbyid(nspowner) = CURRENT_USER
    ) THEN
        RAISE EXCEPTION 'schema sayiir belongs to another role' USING HINT = 'Drop it, or rename it.';
    END IF;
    IF EXISTS (SELECT FROM pg_catalog.pg_class WHERE relnamespace = 'sayiir'::pg_catalog.regnamespace)
        OR EXISTS (SELECT FROM pg_catalog.pg_proc WHERE pronamespace = 'sayiir'::pg_catalog.regnamespace)
        OR EXISTS (SELECT FROM pg_catalog.pg_operator WHERE oprnamespace = 'sayiir'::pg_catalog.regnamespace)
    THEN
        RAISE EXCEPTION 'schema sayiir is not empty' USING HINT = 'Drop what is in it.';
    END IF;
END
$schema$;

-- The extension's own schema and the three roles. Roles are shared by the whole cluster, hence IF NOT EXISTS.
DO $roles$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['sayiir_client', 'sayiir_worker', 'sayiir_admin'] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = wanted) THEN
            EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', wanted);
        END IF;
    END LOOP;
END
$roles$;

REVOKE ALL ON SCHEMA sayiir FROM PUBLIC;
GRANT USAGE ON SCHEMA sayiir TO sayiir_client, sayiir_worker, sayiir_admin;
COMMENT ON SCHEMA sayiir IS 'Durable workflows, jobs and events. Tables are written only through the functions.';
