-- Functions in SQL and PL/pgSQL that the library or people call.

CREATE FUNCTION sayiir.interval_us(value text) RETURNS bigint
LANGUAGE sql STABLE STRICT PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog, sayiir, pg_temp
AS $$ SELECT (extract(epoch FROM value::interval) * 1000000)::bigint $$;
COMMENT ON FUNCTION sayiir.interval_us(text) IS 'An interval written as text, in microseconds; a month counts 30 days.';

CREATE FUNCTION sayiir.role_scope_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, sayiir, pg_temp
AS $$
BEGIN
    PERFORM sayiir.cache_reset();
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION sayiir.role_scope_changed() IS 'Trigger of role_scope: backends forget which roles are bound.';

CREATE TRIGGER role_scope_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON sayiir.role_scope
FOR EACH STATEMENT EXECUTE FUNCTION sayiir.role_scope_changed();

CREATE FUNCTION sayiir.job_run_call(handler regproc, max_jobs int) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, sayiir, pg_temp
AS $$
DECLARE
    call text;
BEGIN
    IF max_jobs IS NULL OR max_jobs NOT BETWEEN 1 AND 24 THEN
        RAISE EXCEPTION 'max_jobs is %, not 1 to 24', coalesce(max_jobs::text, 'NULL') USING
            ERRCODE = '22023',
            DETAIL = '{"argument":"max_jobs","code":"argument.out_of_range"}',
            HINT = 'Pass a value within the range named in the message.';
    END IF;
    SELECT format('SELECT %I.%I($1)', n.nspname, p.proname) INTO call
    FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE p.oid = handler AND p.prokind = 'f' AND NOT p.proretset AND p.pronargs = 1
        AND p.proargtypes[0] = 'jsonb'::regtype AND p.prorettype = 'jsonb'::regtype;
    IF call IS NULL THEN
        RAISE EXCEPTION 'handler % is not a function of one jsonb that returns jsonb', coalesce(handler::text, 'NULL') USING
            ERRCODE = '22023',
            DETAIL = '{"argument":"handler","code":"handler.invalid"}',
            HINT = 'Name a function that takes one jsonb and returns jsonb.';
    END IF;
    RETURN call;
END
$$;
COMMENT ON FUNCTION sayiir.job_run_call(regproc, int) IS 'Checks the arguments of job_run; answers the call of the handler as SQL text, by its qualified name.';

-- SECURITY INVOKER and no SET clause: the handler runs with its caller's rights and settings, under the caller's search_path, so
-- everything else here is qualified. A job is a savepoint; more than 24 would overflow the backend's cache of them.
CREATE FUNCTION sayiir.job_run(task text, handler regproc, max_jobs int DEFAULT 1) RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    call CONSTANT pg_catalog.text := sayiir.job_run_call(handler, max_jobs);
    job sayiir.claimed_job;
    output pg_catalog.jsonb;
    done pg_catalog.int8 := 0;
    state pg_catalog.text;
    message pg_catalog.text;
BEGIN
    FOR job IN
        SELECT * FROM sayiir.job_claim(pg_catalog.format('job_run/%s', pg_catalog.pg_backend_pid()), ARRAY[task], max_jobs)
    LOOP
        BEGIN
            EXECUTE call INTO output USING job.input;
            PERFORM sayiir.job_complete(job.job_id, job.epoch, output);
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT;
            PERFORM FROM sayiir.job_fail(job.job_id, job.epoch, state, message);
        END;
        done := done OPERATOR(pg_catalog.+) 1;
    END LOOP;
    RETURN done;
END
$$;
COMMENT ON FUNCTION sayiir.job_run(text, regproc, int) IS 'Claims up to max_jobs (1-24) jobs of a task and runs handler(jsonb) returns jsonb for each with the caller''s rights, in this transaction: the handler''s writes and the completion commit together. An error of the handler rolls its writes back and is job_fail with its SQLSTATE. Answers how many jobs it took. Errors: handler.invalid, argument.out_of_range.';
