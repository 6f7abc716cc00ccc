//! `schedule`, `schedule_fire`: what the clock starts, and the ticks that have fired.

use pgrx::Uuid;

use crate::args;
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::{Row, Session, Statement};
use crate::pg::table::Line;
use crate::pg::types::{BOOL, INT4, INT8, INT8S, JSONB, TEXT, TIME, UUID};

/// A locked schedule.
pub struct Schedule {
    pub id: i64,
    pub organization: Option<String>,
    pub name: String,
    pub cron: String,
    pub timezone: String,
    pub task: Option<String>,
    pub workflow: Option<String>,
    pub payload: Jsonb,
    pub missed: String,
    pub skipped_time: String,
    pub doubled_time: String,
    pub overlap: String,
    pub jitter_us: i64,
    pub grace_us: i64,
    pub options: Jsonb,
    pub paused: bool,
    pub next_at: Option<Instant>,
    pub last_job: Option<Uuid>,
    pub last_workflow: Option<String>,
}

macro_rules! columns {
    () => {
        "id, organization_id, name, cron, timezone, task, workflow, payload, missed, skipped_time, doubled_time, overlap,
         jitter_us, grace_us, options, paused, next_at, last_job, last_workflow"
    };
}

fn schedule(row: Row) -> Schedule {
    Schedule {
        id: row.get(1),
        organization: row.opt(2),
        name: row.get(3),
        cron: row.get(4),
        timezone: row.get(5),
        task: row.opt(6),
        workflow: row.opt(7),
        payload: row.get(8),
        missed: row.get(9),
        skipped_time: row.get(10),
        doubled_time: row.get(11),
        overlap: row.get(12),
        jitter_us: row.get(13),
        grace_us: row.get(14),
        options: row.get(15),
        paused: row.get(16),
        next_at: row.opt(17),
        last_job: row.opt(18),
        last_workflow: row.opt(19),
    }
}

/// What `schedule_define` says.
pub struct Definition<'a> {
    pub organization: Option<&'a str>,
    pub name: &'a str,
    pub cron: &'a str,
    pub timezone: &'a str,
    pub task: Option<&'a str>,
    pub workflow: Option<&'a str>,
    pub payload: Jsonb,
    pub missed: &'a str,
    pub skipped_time: &'a str,
    pub doubled_time: &'a str,
    pub overlap: &'a str,
    pub jitter_us: i64,
    pub grace_us: i64,
    pub options: Jsonb,
}

/// Makes sure that there is a schedule of this name, and locks it: (it, it was there before).
pub fn lock_or_create(session: &Session, new: &Definition) -> (Schedule, bool) {
    // schedule_name_organization_id_key. A new one has no due yet, so no sweep looks at it.
    static INSERT: Statement = Statement::new(
        &[
            TEXT, TEXT, TEXT, TEXT, TEXT, TEXT, JSONB, TEXT, TEXT, TEXT, TEXT, INT8, INT8, JSONB,
        ],
        concat!(
            "INSERT INTO sayiir.schedule (organization_id, name, cron, timezone, task, workflow, payload, missed, skipped_time,
                 doubled_time, overlap, jitter_us, grace_us, options)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
             ON CONFLICT DO NOTHING RETURNING ",
            columns!()
        ),
    );
    loop {
        let rows = INSERT.run(
            session,
            args![
                new.organization,
                new.name,
                new.cron,
                new.timezone,
                new.task,
                new.workflow,
                new.payload,
                new.missed,
                new.skipped_time,
                new.doubled_time,
                new.overlap,
                new.jitter_us,
                new.grace_us,
                new.options
            ],
        );
        if let Some(row) = rows.first() {
            return (schedule(row), false);
        }
        // Whoever made it has committed; if it has been deleted since, the name is free again.
        if let Some(known) = lock(session, new.organization, new.name) {
            return (known, true);
        }
    }
}

/// Writes what was defined, and when it fires next, into a locked schedule.
pub fn define(
    session: &Session,
    id: i64,
    new: &Definition,
    next: Option<Instant>,
    due: Option<Instant>,
) {
    // schedule_pkey
    static UPDATE: Statement = Statement::new(
        &[
            INT8, TEXT, TEXT, TEXT, TEXT, JSONB, TEXT, TEXT, TEXT, TEXT, INT8, INT8, JSONB, TIME,
            TIME,
        ],
        "UPDATE sayiir.schedule
         SET cron = $2, timezone = $3, task = $4, workflow = $5, payload = $6, missed = $7, skipped_time = $8, doubled_time = $9,
             overlap = $10, jitter_us = $11, grace_us = $12, options = $13, next_at = $14, due = $15, updated_at = clock_timestamp()
         WHERE id = $1",
    );
    UPDATE.run(
        session,
        args![
            id,
            new.cron,
            new.timezone,
            new.task,
            new.workflow,
            new.payload,
            new.missed,
            new.skipped_time,
            new.doubled_time,
            new.overlap,
            new.jitter_us,
            new.grace_us,
            new.options,
            next,
            due
        ],
    );
}

/// Locks the schedule of this name, waiting for a sweep that fires it.
pub fn lock(session: &Session, organization: Option<&str>, name: &str) -> Option<Schedule> {
    // schedule_name_organization_id_key
    static LOCK: Statement = Statement::new(
        &[TEXT, TEXT],
        concat!(
            "SELECT ",
            columns!(),
            " FROM sayiir.schedule WHERE name = $2 AND organization_id IS NOT DISTINCT FROM $1 FOR UPDATE"
        ),
    );
    LOCK.run(session, args![organization, name])
        .first()
        .map(schedule)
}

/// Schedules that are due, most overdue first. No lock.
pub fn due(session: &Session, now: Instant, max_rows: i32) -> Vec<i64> {
    // schedule_due
    static DUE: Statement = Statement::new(
        &[TIME, INT4],
        "SELECT id FROM sayiir.schedule WHERE due <= $1 AND due IS NOT NULL ORDER BY due, id LIMIT $2",
    );
    DUE.run(session, args![now, max_rows])
        .iter()
        .map(|row| row.get(1))
        .collect()
}

/// Locks those of them that are still due and that nobody else fires just now.
pub fn lock_due(session: &Session, ids: Vec<i64>, now: Instant) -> Vec<Schedule> {
    // schedule_pkey
    static LOCK: Statement = Statement::new(
        &[INT8S, TIME],
        concat!(
            "SELECT ",
            columns!(),
            " FROM sayiir.schedule WHERE id = ANY ($1) AND due <= $2 FOR UPDATE SKIP LOCKED"
        ),
    );
    LOCK.run(session, args![ids, now])
        .iter()
        .map(schedule)
        .collect()
}

/// Sets when a locked schedule fires next.
pub fn set_next(session: &Session, id: i64, next: Option<Instant>, due: Option<Instant>) {
    // schedule_pkey
    static SET: Statement = Statement::new(
        &[INT8, TIME, TIME],
        "UPDATE sayiir.schedule SET next_at = $2, due = $3 WHERE id = $1",
    );
    SET.run(session, args![id, next, due]);
}

/// Pauses or resumes a locked schedule.
pub fn set_paused(
    session: &Session,
    id: i64,
    paused: bool,
    next: Option<Instant>,
    due: Option<Instant>,
) {
    // schedule_pkey
    static SET: Statement = Statement::new(
        &[INT8, BOOL, TIME, TIME],
        "UPDATE sayiir.schedule SET paused = $2, next_at = $3, due = $4, updated_at = clock_timestamp() WHERE id = $1",
    );
    SET.run(session, args![id, paused, next, due]);
}

/// Moves a schedule to `at`: a sweep could not fire it. Its tick stays the same.
pub fn postpone(session: &Session, id: i64, at: Instant) {
    // schedule_pkey
    static POSTPONE: Statement = Statement::new(
        &[INT8, TIME],
        "UPDATE sayiir.schedule SET due = $2 WHERE id = $1 AND due IS NOT NULL",
    );
    POSTPONE.run(session, args![id, at]);
}

/// Deletes a locked schedule and its ticks.
pub fn delete(session: &Session, id: i64) {
    // schedule_fire_pkey (leading column), schedule_pkey
    static DELETE: Statement = Statement::new(
        &[INT8],
        "WITH fire AS (DELETE FROM sayiir.schedule_fire WHERE schedule = $1)
         DELETE FROM sayiir.schedule WHERE id = $1",
    );
    DELETE.run(session, args![id]);
}

/// Takes a tick; false when it has fired before.
pub fn take_tick(
    session: &Session,
    id: i64,
    nominal: Instant,
    disposition: &str,
    now: Instant,
) -> bool {
    // schedule_fire_pkey
    static TAKE: Statement = Statement::new(
        &[INT8, TIME, TEXT, TIME],
        "INSERT INTO sayiir.schedule_fire (schedule, nominal_at, disposition, fired_at) VALUES ($1, $2, $3, $4)
         ON CONFLICT DO NOTHING RETURNING true",
    );
    !TAKE
        .run(session, args![id, nominal, disposition, now])
        .is_empty()
}

/// Notes what a tick has started.
pub fn note_started(
    session: &Session,
    id: i64,
    nominal: Instant,
    disposition: &str,
    job: Option<Uuid>,
    workflow_id: Option<&str>,
) {
    // schedule_fire_pkey, schedule_pkey
    static NOTE: Statement = Statement::new(
        &[INT8, TIME, TEXT, UUID, TEXT],
        "WITH fire AS (
             UPDATE sayiir.schedule_fire SET disposition = $3, job_id = $4, workflow_id = $5 WHERE schedule = $1 AND nominal_at = $2)
         UPDATE sayiir.schedule SET last_at = $2, last_job = $4, last_workflow = $5 WHERE id = $1",
    );
    NOTE.run(session, args![id, nominal, disposition, job, workflow_id]);
}

/// Whether what it started last has not ended.
pub fn is_going_on(session: &Session, schedule: &Schedule) -> bool {
    // job_pkey, job_end_pkey; workflow_workflow_id_organization_id_key
    static GOES_ON: Statement = Statement::new(
        &[UUID, TEXT, TEXT],
        "SELECT EXISTS (SELECT FROM sayiir.job WHERE job_id = $1) AND NOT EXISTS (SELECT FROM sayiir.job_end WHERE job_id = $1)
             OR EXISTS (
                 SELECT FROM sayiir.workflow
                 WHERE workflow_id = $2 AND organization_id IS NOT DISTINCT FROM $3 AND finished_at IS NULL)",
    );
    GOES_ON
        .run(
            session,
            args![
                schedule.last_job,
                schedule.last_workflow.as_deref(),
                schedule.organization.as_deref()
            ],
        )
        .first()
        .is_some_and(|row| row.get(1))
}

/// The schedule's row as `schedule_info`.
pub fn info(session: &Session, id: i64) -> Vec<Line> {
    // schedule_pkey
    static INFO: Statement = Statement::new(
        &[INT8],
        "SELECT name, organization_id, cron, timezone, task, workflow, payload, missed, skipped_time, doubled_time, overlap,
                jitter_us * interval '1 microsecond', options, paused, next_at, due, last_at, created_at, updated_at
         FROM sayiir.schedule WHERE id = $1",
    );
    INFO.run(session, args![id])
        .iter()
        .map(|row| row.keep(session))
        .collect()
}
