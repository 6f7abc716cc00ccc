SET LOCAL search_path = pg_catalog, sayiir, pg_temp;

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
