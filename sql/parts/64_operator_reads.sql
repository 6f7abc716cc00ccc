-- What operators look at.

CREATE FUNCTION sayiir.stats() RETURNS SETOF sayiir.statistic
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, sayiir, pg_temp AS $$
    WITH
    -- Exact up to 100,000, which bounds the cost; beyond that, what the statistics collector counts.
    place (name, relation, counted) AS (
        VALUES
            ('jobs_ready', 'sayiir.job_ready'::regclass,
                (SELECT count(*) FROM (SELECT FROM sayiir.job_ready LIMIT 100000) r)),
            ('jobs_leased', 'sayiir.job_lease'::regclass,
                (SELECT count(*) FROM (SELECT FROM sayiir.job_lease LIMIT 100000) l)),
            ('jobs_waiting', 'sayiir.job_wait'::regclass,
                (SELECT count(*) FROM (SELECT FROM sayiir.job_wait LIMIT 100000) t)),
            ('events_buffered', 'sayiir.event'::regclass,
                (SELECT count(*) FROM (SELECT FROM sayiir.event LIMIT 100000) v))),
    hot (relation) AS (
        VALUES ('sayiir.job_ready'::regclass), ('sayiir.job_lease'), ('sayiir.job_wait'))
    SELECT
        p.name,
        CASE WHEN p.counted < 100000 THEN p.counted ELSE greatest(p.counted, pg_stat_get_live_tuples(p.relation)) END::numeric
    FROM place p
    UNION ALL
    -- job_ready_lane: one probe a lane
    SELECT 'ready_oldest_seconds', coalesce(round(extract(epoch FROM max(clock_timestamp() - j.created_at)), 3), 0)
    FROM sayiir.lane_now n
    CROSS JOIN LATERAL (
        SELECT r.job_id FROM sayiir.job_ready r WHERE r.lane = n.lane ORDER BY r.lane, r.seq LIMIT 1) r
    JOIN sayiir.job j ON j.job_id = r.job_id
    WHERE NOT n.paused
    UNION ALL
    SELECT 'leases_expired', count(*)::numeric
    FROM sayiir.job_lease l
    WHERE l.expires_at < clock_timestamp()
    UNION ALL
    -- job_wait_due
    SELECT 'timers_late_seconds', coalesce(greatest(round(extract(epoch FROM clock_timestamp() - (
        SELECT t.due FROM sayiir.job_wait t WHERE t.due IS NOT NULL ORDER BY t.due LIMIT 1)), 3), 0), 0)
    UNION ALL
    -- job_end_failed
    SELECT 'jobs_failed_last_hour', count(*)::numeric
    FROM sayiir.job_end e
    WHERE e.state = 'failed' AND e.ended_at > clock_timestamp() - interval '1 hour'
    UNION ALL
    SELECT 'lanes', count(*)::numeric
    FROM sayiir.lane
    UNION ALL
    SELECT 'tasks_paused', count(*)::numeric
    FROM sayiir.task t
    WHERE t.paused OR NOT t.enabled
    UNION ALL
    SELECT 'dead_rows_hot', sum(pg_stat_get_dead_tuples(h.relation))
    FROM hot h
    UNION ALL
    SELECT 'hot_bytes', sum(pg_total_relation_size(h.relation))
    FROM hot h
    UNION ALL
    SELECT 'total_bytes', sum(pg_total_relation_size(c.oid))
    FROM pg_class c
    WHERE c.relnamespace = 'sayiir'::regnamespace AND c.relkind = 'r'
    UNION ALL
    SELECT 'notify_queue_usage', round(pg_notification_queue_usage()::numeric, 6)
$$;
COMMENT ON FUNCTION sayiir.stats IS 'A few numbers about the whole database, cheap enough to be read every few seconds. Counts above 100,000 are estimates. ready_oldest_seconds: the age of the oldest job at the head of a lane; timers_late_seconds: how long the first timer has been due; notify_queue_usage: 0 to 1, of the whole server.';

CREATE FUNCTION sayiir.doctor() RETURNS SETOF sayiir.finding
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, sayiir, pg_temp AS $$
    WITH
    hot AS MATERIALIZED (
        SELECT 'ready' AS place, job_id, workflow, lane FROM sayiir.job_ready
        UNION ALL
        SELECT 'lease', job_id, workflow, lane FROM sayiir.job_lease
        UNION ALL
        SELECT 'wait', job_id, workflow, lane FROM sayiir.job_wait),
    -- One row a thing that is wrong; the things of one code are told together.
    problem (severity, code, what, item, hint) AS (
        -- A job is in exactly one of ready, lease and wait, or has an end. This proves it for every job, so it reads all of
        -- job and job_end.
        SELECT 'error', 'job.in_two_places', 'jobs are in more than one of ready, lease, wait and end',
            concat(h.job_id, ' (', string_agg(h.place, ', ' ORDER BY h.place), ')'),
            'This is a bug: please report it. The engine skips these jobs.'
        FROM (
            SELECT place, job_id FROM hot
            UNION ALL
            SELECT 'end', e.job_id FROM sayiir.job_end e WHERE EXISTS (SELECT FROM hot h WHERE h.job_id = e.job_id)) h
        GROUP BY h.job_id
        HAVING count(*) > 1
        UNION ALL
        SELECT 'error', 'job.in_no_place', 'jobs are in none of ready, lease, wait and end', j.job_id::text,
            'This is a bug: please report it. Nothing will run these jobs; enqueue their work again.'
        FROM sayiir.job j
        WHERE NOT EXISTS (SELECT FROM sayiir.job_end e WHERE e.job_id = j.job_id)
            AND NOT EXISTS (SELECT FROM hot h WHERE h.job_id = j.job_id)

        -- Rows whose owner is gone
        UNION ALL
        SELECT 'error', 'job.no_record', 'rows belong to a job that does not exist', concat(o.job_id, ' in ', o.place),
            'Rows were deleted by hand, or a restore was partial. Nothing will run them.'
        FROM (
            SELECT 'job_' || place AS place, job_id FROM hot
            UNION ALL
            SELECT 'job_end', job_id FROM sayiir.job_end
            UNION ALL
            SELECT 'job_attempt', job_id FROM sayiir.job_attempt
            UNION ALL
            SELECT 'signal', job_id FROM sayiir.signal
            UNION ALL
            SELECT DISTINCT 'checkpoint', job_id FROM sayiir.checkpoint
            UNION ALL
            SELECT DISTINCT 'job_log_entry', job_id FROM sayiir.job_log_entry) o
        WHERE NOT EXISTS (SELECT FROM sayiir.job j WHERE j.job_id = o.job_id)
        UNION ALL
        SELECT 'error', 'job.workflow_differs', 'hot rows name another workflow than their job', h.job_id::text,
            'This is a bug: please report it.'
        FROM hot h
        JOIN sayiir.job j ON j.job_id = h.job_id
        WHERE j.workflow IS DISTINCT FROM h.workflow
        UNION ALL
        SELECT 'error', 'workflow.no_record', 'rows belong to a workflow that does not exist', concat(o.place, ' of ', o.workflow),
            'Rows were deleted by hand, or a restore was partial.'
        FROM (
            SELECT DISTINCT 'job' AS place, workflow FROM sayiir.job WHERE workflow IS NOT NULL
            UNION ALL
            SELECT DISTINCT 'step_pending', workflow FROM sayiir.step_pending
            UNION ALL
            SELECT 'workflow_active', workflow FROM sayiir.workflow_active
            UNION ALL
            SELECT DISTINCT 'workflow_log', workflow FROM sayiir.workflow_log
            UNION ALL
            SELECT DISTINCT 'event', workflow FROM sayiir.event WHERE workflow IS NOT NULL) o
        WHERE NOT EXISTS (SELECT FROM sayiir.workflow w WHERE w.id = o.workflow)
        UNION ALL
        SELECT 'error', 'lane.no_record', 'jobs stand in a lane that does not exist', h.job_id::text,
            'Rows were deleted by hand, or a restore was partial. No claim will find these jobs.'
        FROM hot h
        WHERE h.lane IS NOT NULL AND NOT EXISTS (SELECT FROM sayiir.lane n WHERE n.lane = h.lane)
        UNION ALL
        SELECT 'error', 'definition.no_record', 'workflows have a definition that does not exist', w.workflow_id,
            'Rows were deleted by hand, or a restore was partial.'
        FROM sayiir.workflow w
        WHERE NOT EXISTS (SELECT FROM sayiir.definition d WHERE d.definition_hash = w.definition_hash)

        -- Workflows against their jobs
        UNION ALL
        SELECT 'error', 'workflow.nothing_live', 'workflows have not ended, but nothing of them is ready, leased or waiting',
            w.workflow_id, 'This is a bug: please report it. workflow_cancel ends them.'
        FROM sayiir.workflow w
        WHERE w.finished_at IS NULL AND NOT EXISTS (SELECT FROM hot h WHERE h.workflow = w.id)
        UNION ALL
        SELECT 'warning', 'workflow.ended_but_live', 'ended workflows still have jobs that are ready or waiting',
            w.workflow_id, 'The next claim or sayiir.tick() ends them; they were held by another session when the workflow ended.'
        FROM sayiir.workflow w
        WHERE w.finished_at IS NOT NULL
            AND EXISTS (SELECT FROM hot h WHERE h.workflow = w.id AND h.place <> 'lease')
        UNION ALL
        SELECT 'warning', 'workflow.active_key_kept', 'ended workflows still hold their active_key, though nothing of them is leased',
            w.workflow_id, 'This is a bug: please report it. workflow_delete frees the key.'
        FROM sayiir.workflow_active k
        JOIN sayiir.workflow w ON w.id = k.workflow
        WHERE w.finished_at IS NOT NULL
            AND NOT EXISTS (SELECT FROM hot h WHERE h.workflow = w.id AND h.place = 'lease')
        UNION ALL
        SELECT 'error', 'step.counter_differs', 'counters of steps do not fit the ends of their prerequisites',
            concat(w.workflow_id, ' ', c.step), 'This is a bug: please report it. workflow_steps counts from the ends.'
        FROM (
            SELECT workflow, step, sum(ended) AS ended, sum(unsatisfied) AS unsatisfied
            FROM sayiir.step_pending
            GROUP BY workflow, step) c
        JOIN sayiir.workflow w ON w.id = c.workflow
        CROSS JOIN LATERAL (
            SELECT
                count(*) AS ended,
                count(*) FILTER (WHERE NOT CASE x.satisfied_by
                    WHEN 'success' THEN e.state = 'succeeded'
                    WHEN 'failure' THEN e.state IN ('failed', 'cancelled')
                    ELSE true
                END) AS unsatisfied
            FROM sayiir.definition_edge x
            JOIN sayiir.job p ON p.workflow = c.workflow AND p.step = x.prerequisite AND p.item_index IS NULL
            JOIN sayiir.job_end e ON e.job_id = p.job_id
            WHERE x.definition_hash = w.definition_hash AND x.step = c.step) d
        WHERE (c.ended, c.unsatisfied) IS DISTINCT FROM (d.ended, d.unsatisfied)
        UNION ALL
        SELECT 'error', 'step.not_released', 'steps have no open prerequisite, but were neither released nor ended',
            concat(s.workflow_id, ' ', s.step), 'This is a bug: please report it. workflow_cancel ends the workflow.'
        FROM sayiir.workflow w
        JOIN sayiir.step_now s ON s.workflow = w.id
        WHERE w.finished_at IS NULL
            AND s.job_id IS NULL
            AND NOT EXISTS (
                SELECT FROM sayiir.definition_edge x
                WHERE x.definition_hash = s.definition_hash AND x.step = s.step
                    AND NOT EXISTS (
                        SELECT FROM sayiir.job p JOIN sayiir.job_end e ON e.job_id = p.job_id
                        WHERE p.workflow = s.workflow AND p.step = x.prerequisite AND p.item_index IS NULL))
        UNION ALL
        SELECT 'warning', 'event.unmatched', 'buffered events have an open wait', concat(w.workflow_id, ' ', v.name),
            'This is a bug; please report it. Send the event again with another event_key to go on.'
        FROM sayiir.event v
        JOIN sayiir.workflow w ON w.id = v.workflow AND w.finished_at IS NULL
        WHERE EXISTS (SELECT FROM sayiir.job_wait t WHERE t.workflow = v.workflow AND t.event = v.name)

        UNION ALL
        -- A wait that ended as its cause came would have been missed: the owner's lock rules it out.
        SELECT 'error', 'wait.missed', 'jobs wait for something that is there', concat(t.job_id, ' for ', coalesce(t.event, 'a job')),
            'This is a bug: please report it. job_cancel and job_requeue run the job again.'
        FROM sayiir.job_wait t
        LEFT JOIN sayiir.checkpoint c ON c.job_id = t.job_id AND c.epoch = t.epoch AND c.value IS NULL
        WHERE (t.reason = 'event' AND t.workflow IS NULL AND EXISTS (
                SELECT FROM sayiir.event v WHERE v.job_id = t.job_id AND v.name = t.event AND v.disposition = 'buffered'))
            OR (t.reason = 'child' AND EXISTS (SELECT FROM sayiir.job_end e WHERE e.job_id = c.child))

        -- Nobody sweeps, nobody works
        UNION ALL
        SELECT 'warning', 'lease.expired', 'leases ran out more than a minute ago, and nothing has swept',
            concat(l.job_id, ' of worker ', l.worker),
            'Preload the library, or call sayiir.tick() from a scheduler every few seconds; claims sweep, too.'
        FROM sayiir.job_lease l
        WHERE l.expires_at < clock_timestamp() - interval '1 minute'
        UNION ALL
        SELECT 'warning', 'timer.late', 'timers have been due for more than a minute, and nothing has swept', t.job_id::text,
            'Preload the library, or call sayiir.tick() from a scheduler every few seconds; claims sweep, too.'
        FROM sayiir.job_wait t
        WHERE t.due < clock_timestamp() - interval '1 minute'
        UNION ALL
        SELECT 'warning', 'task.no_worker', 'tasks have jobs that have been ready for more than 10 minutes, and no worker has a job of them',
            n.task, 'Start a worker that claims the task, with all tags of its jobs (see the view queue_stats).'
        FROM sayiir.lane_now n
        CROSS JOIN LATERAL (
            SELECT r.job_id FROM sayiir.job_ready r WHERE r.lane = n.lane ORDER BY r.lane, r.seq LIMIT 1) r
        JOIN sayiir.job j ON j.job_id = r.job_id
        WHERE NOT n.paused
        GROUP BY n.task
        HAVING min(j.created_at) < clock_timestamp() - interval '10 minutes'
            AND NOT EXISTS (
                SELECT FROM sayiir.lane b JOIN sayiir.job_lease l ON l.lane = b.lane WHERE b.task = n.task)
        UNION ALL
        SELECT 'info', 'task.paused', 'tasks are paused or disabled',
            concat(t.task, ' of ' || t.organization_id), 'task_resume, or task_define(…, enabled => true), continues them.'
        FROM sayiir.task t
        WHERE t.paused OR NOT t.enabled

        -- Clock and sequences after a restore
        UNION ALL
        SELECT 'error', 'clock.went_back', 'leases began in the future', concat(l.job_id, ' at ', l.started_at::timestamptz(0)),
            'The server''s clock was set back: these leases last longer than they should. Check its time synchronisation.'
        FROM sayiir.job_lease l
        WHERE l.started_at > clock_timestamp() + interval '5 seconds'
        UNION ALL
        SELECT 'error', 'sequence.behind', 'sequences are behind their tables', s.name,
            'A restore was partial: set them past the maxima with setval before anything is claimed.'
        FROM (
            SELECT 'ready_seq', (SELECT last_value FROM sayiir.ready_seq), (SELECT max(seq) FROM sayiir.job_ready)
            UNION ALL
            SELECT 'wait_seq', (SELECT last_value FROM sayiir.wait_seq), (SELECT max(seq) FROM sayiir.job_wait)
            UNION ALL
            -- workflow_log_pkey
            SELECT 'history_seq', (SELECT last_value FROM sayiir.history_seq), (SELECT max(history_seq) FROM sayiir.workflow_log)
            UNION ALL
            SELECT 'lane_seq', (SELECT last_value FROM sayiir.lane_seq), (SELECT max(lane & 1099511627775) FROM sayiir.lane)
        ) s (name, last, highest)
        WHERE s.last < s.highest

        UNION ALL
        SELECT 'warning', 'engine.not_adopted', NULL, 'this database is a restore or a copy: nothing is swept or claimed',
            'SELECT * FROM sayiir.adopt() takes it over; leave a copy for tests as it is.'
        FROM sayiir.engine_state s
        WHERE NOT s.adopted AND NOT s.empty

        -- What the server around it does to the hot tables. Without pg_read_all_stats the owner of the extension sees only
        -- its own sessions here.
        UNION ALL
        SELECT 'warning', 'snapshot.old', 'sessions have held a snapshot for more than 5 minutes',
            format('pid %s (%s, %s) since %s', a.pid, a.usename, a.state, a.xact_start::timestamptz(0)),
            'Dead rows of the hot tables cannot be removed meanwhile. End the transaction, or pg_terminate_backend(pid).'
        FROM pg_stat_activity a
        WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
            AND a.xact_start < clock_timestamp() - interval '5 minutes'
            AND a.pid <> pg_backend_pid()
            AND a.backend_type = 'client backend'
        UNION ALL
        SELECT 'warning', 'snapshot.prepared', 'prepared transactions are older than 5 minutes', p.gid,
            'Dead rows of the hot tables cannot be removed meanwhile. COMMIT PREPARED or ROLLBACK PREPARED.'
        FROM pg_prepared_xacts p
        WHERE p.prepared < clock_timestamp() - interval '5 minutes'
        UNION ALL
        SELECT 'warning', 'snapshot.replication', 'replication holds back the removal of dead rows by more than 1,000,000 transactions',
            s.name, 'Drop the slot if its consumer is gone; see hot_standby_feedback for standbys.'
        FROM (
            SELECT slot_name::text, greatest(age(xmin), age(catalog_xmin)) FROM pg_replication_slots
            UNION ALL
            SELECT application_name, age(backend_xmin) FROM pg_stat_replication) s (name, age)
        WHERE s.age > 1000000
        UNION ALL
        SELECT 'warning', 'vacuum.behind', 'hot tables have far more dead rows than live ones',
            format('%s (%s dead, %s live, last autovacuum %s)', v.relname, v.n_dead_tup, v.n_live_tup,
                coalesce(v.last_autovacuum::timestamptz(0)::text, 'never')),
            'Check that autovacuum runs and that no old snapshot is held.'
        FROM pg_stat_all_tables v
        WHERE v.schemaname = 'sayiir' AND v.relname IN ('job_ready', 'job_lease', 'job_wait')
            AND v.n_dead_tup > 100000 + 10 * v.n_live_tup
        UNION ALL
        SELECT 'warning', 'vacuum.off', NULL, 'autovacuum is off', 'Set autovacuum = on: claims slow down as dead rows pile up.'
        FROM pg_settings g
        WHERE g.name = 'autovacuum' AND g.setting = 'off'
        UNION ALL
        SELECT CASE WHEN u.usage > 0.5 THEN 'error' ELSE 'warning' END, 'notify.queue', NULL,
            format('the queue of NOTIFY is %s %% full', round(u.usage::numeric * 100, 1)),
            'A session that LISTENs sits in a long transaction; end it. When the queue is full, commits that notify fail.'
        FROM pg_notification_queue_usage() AS u (usage)
        WHERE u.usage > 0.1),
    numbered AS (
        SELECT p.*, row_number() OVER (PARTITION BY p.severity, p.code ORDER BY p.item) AS n
        FROM problem p)
    SELECT
        n.severity,
        n.code,
        CASE
            WHEN n.what IS NULL THEN min(n.item)
            ELSE concat(n.what, ': ', count(*), ' (',
                string_agg(n.item, ', ' ORDER BY n.n) FILTER (WHERE n.n <= 3), CASE WHEN count(*) > 3 THEN ', …' END, ')')
        END,
        n.hint
    FROM numbered n
    GROUP BY n.severity, n.code, n.what, n.hint
    ORDER BY CASE n.severity WHEN 'error' THEN 1 WHEN 'warning' THEN 2 ELSE 3 END, n.code
$$;
COMMENT ON FUNCTION sayiir.doctor IS 'Checks the invariants of every table and what the server around them does; no row = nothing found. It reads all of job and job_end, so it takes seconds for millions of jobs.';
