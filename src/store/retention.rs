//! Retention: what is old enough to go, page by page in the order of keys, and its deletion.
//!
//! Keys grow with time: job ids are UUIDv7, the others come from sequences. What was created after the cutoff cannot have ended before
//! it, so a walk over the primary key ends there. A BRIN index on the time of the end would not do: deletion frees pages at the front of
//! the table, new rows go there, and soon every range is old and new at once.

use pgrx::Uuid;

use crate::args;
use crate::pg::clock::Instant;
use crate::pg::spi::{Rows, Session, Statement};
use crate::pg::types::{INT4, INT8, INT8S, TEXT, TIME, UUID, UUIDS};

/// Keys looked at.
pub struct Page<T> {
    /// The last one; None = there is nothing behind it that could be old enough.
    pub last: Option<T>,
    /// Those that may go.
    pub expired: Vec<T>,
}

/// Rows of (key, created before the cutoff, may go).
fn page<T: pgrx::FromDatum + Copy>(rows: &Rows, limit: i32) -> Page<T> {
    let mut page = Page {
        last: None,
        expired: Vec::new(),
    };
    for row in rows.iter() {
        if !row.get::<bool>(2) {
            return Page { last: None, ..page };
        }
        let key: T = row.get(1);
        page.last = Some(key);
        if row.get(3) {
            page.expired.push(key);
        }
    }
    if (rows.count() as i32) < limit {
        page.last = None;
    }
    page
}

/// Locks the place of a kind. `wait`: behind another session that prunes it; else None when there is one, or when it is not due.
pub fn lock(session: &Session, kind: &str, now: Instant, wait: bool) -> Option<String> {
    // retention_pkey
    static WAIT: Statement = Statement::new(
        &[TEXT],
        "SELECT place FROM sayiir.retention WHERE kind = $1 FOR UPDATE",
    );
    static TRY: Statement = Statement::new(
        &[TEXT, TIME],
        "SELECT place FROM sayiir.retention WHERE kind = $1 AND due <= $2 FOR UPDATE SKIP LOCKED",
    );
    let rows = if wait {
        WAIT.run(session, args![kind])
    } else {
        TRY.run(session, args![kind, now])
    };
    rows.first().map(|row| row.get(1))
}

/// Whether a sweep has to look at anything. No lock.
pub fn is_due(session: &Session, now: Instant) -> bool {
    // the table's only page
    static DUE: Statement = Statement::new(
        &[TIME],
        "SELECT EXISTS (SELECT FROM sayiir.retention WHERE due <= $1)",
    );
    DUE.run(session, args![now])
        .first()
        .is_some_and(|row| row.get(1))
}

pub fn set_place(session: &Session, kind: &str, place: &str, due: Instant) {
    // retention_pkey
    static SET: Statement = Statement::new(
        &[TEXT, TEXT, TIME],
        "UPDATE sayiir.retention SET place = $2, due = $3 WHERE kind = $1",
    );
    SET.run(session, args![kind, place, due]);
}

/// Stand-alone jobs that ended before the cutoff. `end`: the smallest id that a job created at the cutoff can have.
pub fn jobs(session: &Session, after: Uuid, end: Uuid, cutoff: Instant, limit: i32) -> Page<Uuid> {
    // job_end_pkey, which has no job that is live; job_pkey
    static JOBS: Statement = Statement::new(
        &[UUID, UUID, TIME, INT4],
        "SELECT e.job_id, true,
                e.ended_at < $3 AND EXISTS (SELECT FROM sayiir.job j WHERE j.job_id = e.job_id AND j.workflow IS NULL)
         FROM sayiir.job_end e WHERE e.job_id > $1 AND e.job_id < $2 ORDER BY e.job_id LIMIT $4",
    );
    page(&JOBS.run(session, args![after, end, cutoff, limit]), limit)
}

/// Deletes those of these locked jobs that have still ended before the cutoff, with their attempts and requests.
pub fn delete_jobs(session: &Session, ids: Vec<Uuid>, cutoff: Instant) -> i64 {
    // job_end_pkey; job_pkey, job_attempt_pkey, signal_pkey and checkpoint_pkey (leading column); job_log_entry_job, event_job
    static DELETE: Statement = Statement::new(
        &[UUIDS, TIME],
        "WITH ended AS (DELETE FROM sayiir.job_end WHERE job_id = ANY ($1) AND ended_at < $2 RETURNING job_id),
         attempt AS (DELETE FROM sayiir.job_attempt h USING ended WHERE h.job_id = ended.job_id),
         signal AS (DELETE FROM sayiir.signal h USING ended WHERE h.job_id = ended.job_id),
         checkpoint AS (DELETE FROM sayiir.checkpoint h USING ended WHERE h.job_id = ended.job_id),
         log AS (DELETE FROM sayiir.job_log_entry h USING ended WHERE h.job_id = ended.job_id),
         event AS (DELETE FROM sayiir.event h USING ended WHERE h.job_id = ended.job_id)
         DELETE FROM sayiir.job h USING ended WHERE h.job_id = ended.job_id",
    );
    DELETE.run(session, args![ids, cutoff]).count() as i64
}

/// Workflows that finished before the cutoff.
pub fn workflows(session: &Session, after: i64, cutoff: Instant, limit: i32) -> Page<i64> {
    // workflow_pkey
    static WORKFLOWS: Statement = Statement::new(
        &[INT8, TIME, INT4],
        "SELECT id, created_at < $2, coalesce(finished_at < $2, false)
         FROM sayiir.workflow WHERE id > $1 ORDER BY id LIMIT $3",
    );
    page(&WORKFLOWS.run(session, args![after, cutoff, limit]), limit)
}

/// Whether a workflow, now locked, finished before the cutoff.
pub fn has_finished(session: &Session, workflow: i64, cutoff: Instant) -> bool {
    // workflow_pkey
    static HAS_FINISHED: Statement = Statement::new(
        &[INT8, TIME],
        "SELECT coalesce(finished_at < $2, false) FROM sayiir.workflow WHERE id = $1",
    );
    HAS_FINISHED
        .run(session, args![workflow, cutoff])
        .first()
        .is_some_and(|row| row.get(1))
}

/// Deletes up to `limit` jobs of a locked workflow that has ended and has no hot rows; answers how many there were.
pub fn delete_steps(session: &Session, workflow: i64, limit: i32) -> i64 {
    // job_step; job_end_pkey, job_attempt_pkey, signal_pkey and checkpoint_pkey (leading column); job_log_entry_job
    static DELETE: Statement = Statement::new(
        &[INT8, INT4],
        "WITH old AS MATERIALIZED (SELECT job_id FROM sayiir.job WHERE workflow = $1 LIMIT $2),
         ended AS (DELETE FROM sayiir.job_end h USING old WHERE h.job_id = old.job_id),
         attempt AS (DELETE FROM sayiir.job_attempt h USING old WHERE h.job_id = old.job_id),
         signal AS (DELETE FROM sayiir.signal h USING old WHERE h.job_id = old.job_id),
         checkpoint AS (DELETE FROM sayiir.checkpoint h USING old WHERE h.job_id = old.job_id),
         log AS (DELETE FROM sayiir.job_log_entry h USING old WHERE h.job_id = old.job_id)
         DELETE FROM sayiir.job h USING old WHERE h.job_id = old.job_id",
    );
    DELETE.run(session, args![workflow, limit]).count() as i64
}

/// Events that came before the cutoff to a workflow that was not there yet, or not any more.
pub fn events(session: &Session, after: i64, cutoff: Instant, limit: i32) -> Page<i64> {
    // event_pkey
    static EVENTS: Statement = Statement::new(
        &[INT8, TIME, INT4],
        "SELECT id, created_at < $2, disposition IN ('early', 'late') FROM sayiir.event WHERE id > $1 ORDER BY id LIMIT $3",
    );
    page(&EVENTS.run(session, args![after, cutoff, limit]), limit)
}

/// Deletes those of them that nothing has adopted meanwhile.
pub fn delete_events(session: &Session, ids: Vec<i64>) -> i64 {
    // event_pkey. A birth that is adopting one holds its row: SKIP LOCKED, so that nobody waits for anybody.
    static DELETE: Statement = Statement::new(
        &[INT8S],
        "WITH locked AS MATERIALIZED (
             SELECT id FROM sayiir.event WHERE id = ANY ($1) AND disposition IN ('early', 'late') FOR UPDATE SKIP LOCKED)
         DELETE FROM sayiir.event e USING locked k WHERE e.id = k.id",
    );
    DELETE.run(session, args![ids]).count() as i64
}

/// Keys that were used before the cutoff for events to a workflow or job that there is not. Those of a workflow go with it.
pub fn event_keys(session: &Session, after: i64, cutoff: Instant, limit: i32) -> Page<i64> {
    // event_key_pkey; workflow_workflow_id_organization_id_key, job_pkey
    static KEYS: Statement = Statement::new(
        &[INT8, TIME, INT4],
        "SELECT k.id, k.created_at < $2,
                k.created_at < $2 AND NOT EXISTS (
                    SELECT FROM sayiir.workflow w
                    WHERE w.workflow_id = k.workflow_id AND w.organization_id IS NOT DISTINCT FROM k.organization_id)
                AND NOT EXISTS (SELECT FROM sayiir.job j WHERE j.job_id = k.job_id)
         FROM sayiir.event_key k WHERE k.id > $1 ORDER BY k.id LIMIT $3",
    );
    page(&KEYS.run(session, args![after, cutoff, limit]), limit)
}

pub fn delete_event_keys(session: &Session, ids: Vec<i64>) -> i64 {
    // event_key_pkey
    static DELETE: Statement = Statement::new(
        &[INT8S],
        "WITH locked AS MATERIALIZED (SELECT id FROM sayiir.event_key WHERE id = ANY ($1) FOR UPDATE SKIP LOCKED)
         DELETE FROM sayiir.event_key k USING locked l WHERE k.id = l.id",
    );
    DELETE.run(session, args![ids]).count() as i64
}

/// Deletes ticks of schedules that fired before the cutoff, a page of the schedules behind `after`.
pub fn delete_ticks(
    session: &Session,
    after: i64,
    cutoff: Instant,
    limit: i32,
) -> (Option<i64>, i64) {
    // schedule_pkey: the next schedule; schedule_fire_pkey: its oldest ticks
    static NEXT: Statement = Statement::new(
        &[INT8],
        "SELECT id FROM sayiir.schedule WHERE id > $1 ORDER BY id LIMIT 1",
    );
    static DELETE: Statement = Statement::new(
        &[INT8, TIME, INT4],
        "WITH old AS MATERIALIZED (
             SELECT schedule, nominal_at FROM sayiir.schedule_fire
             WHERE schedule = $1 AND nominal_at < $2 ORDER BY schedule, nominal_at LIMIT $3)
         DELETE FROM sayiir.schedule_fire f USING old o
         WHERE f.schedule = o.schedule AND f.nominal_at = o.nominal_at AND f.fired_at < $2",
    );
    let Some(schedule) = NEXT
        .run(session, args![after])
        .first()
        .map(|row| row.get::<i64>(1))
    else {
        return (None, 0);
    };
    let done = DELETE.run(session, args![schedule, cutoff, limit]).count() as i64;
    // The same schedule again while it gives full pages.
    let place = if done == i64::from(limit) {
        after
    } else {
        schedule
    };
    (Some(place), done)
}
