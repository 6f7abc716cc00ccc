//! Timers: what in `job_wait` is due.

use pgrx::Uuid;

use crate::args;
use crate::pg::clock::Instant;
use crate::pg::spi::{Session, Statement};
use crate::pg::types::{INT4, TIME, UUID, UUIDS};

/// Retries and `run_at`s that are due, oldest first. No lock.
pub fn due_of_clock(session: &Session, now: Instant, max_rows: i32) -> Vec<Uuid> {
    // job_wait_due
    static DUE: Statement = Statement::new(
        &[TIME, INT4],
        "SELECT job_id FROM sayiir.job_wait
         WHERE due <= $1 AND due IS NOT NULL AND reason IN ('run_at', 'retry')
         ORDER BY due, job_id LIMIT $2",
    );
    DUE.run(session, args![now, max_rows])
        .iter()
        .map(|row| row.get(1))
        .collect()
}

/// Moves those that are still due to ready, in their order. No owner lock: a claim reads the owner's status itself. Answers (moved,
/// tasks).
pub fn promote(session: &Session, ids: Vec<Uuid>, now: Instant) -> (i64, Vec<String>) {
    // job_wait_pkey. The seq is drawn behind the delete, so after the xid.
    static PROMOTE: Statement = Statement::new(
        &[UUIDS, TIME],
        "WITH locked AS MATERIALIZED (
             SELECT w.job_id FROM unnest($1) AS i (job_id)
             JOIN sayiir.job_wait w ON w.job_id = i.job_id
             WHERE w.due <= $2 AND w.reason IN ('run_at', 'retry')
             FOR UPDATE OF w SKIP LOCKED),
         gone AS (DELETE FROM sayiir.job_wait w USING locked k WHERE w.job_id = k.job_id RETURNING w.*),
         ready AS (
             INSERT INTO sayiir.job_ready (job_id, workflow, lane, seq, run_number, attempt, epoch)
             SELECT job_id, workflow, lane, nextval('sayiir.ready_seq'), run_number, attempt, epoch FROM gone)
         SELECT l.task, count(*) FROM gone g JOIN sayiir.lane l ON l.lane = g.lane GROUP BY l.task",
    );
    let rows = PROMOTE.run(session, args![ids, now]);
    rows.iter()
        .fold((0, Vec::new()), |(moved, mut tasks), row| {
            tasks.push(row.get(1));
            (moved + row.get::<i64>(2), tasks)
        })
}

/// Waits that are due and need their owner locked: delays, timeouts of events and children, rows that a claim parked. Answers (job,
/// workflow); None = the job owns itself.
pub fn due_of_owners(session: &Session, now: Instant, max_rows: i32) -> Vec<(Uuid, Option<i64>)> {
    // job_wait_due
    static DUE: Statement = Statement::new(
        &[TIME, INT4],
        "SELECT job_id, workflow FROM sayiir.job_wait
         WHERE due <= $1 AND due IS NOT NULL AND reason IN ('delay', 'event', 'child', 'owner')
         ORDER BY due, job_id LIMIT $2",
    );
    DUE.run(session, args![now, max_rows])
        .iter()
        .map(|row| (row.get(1), row.opt(2)))
        .collect()
}

/// Stops the clocks of due waits whose owner is paused; resume fires them.
pub fn stop_clocks(session: &Session, ids: Vec<Uuid>, now: Instant) {
    // job_wait_pkey
    static STOP: Statement = Statement::new(
        &[UUIDS, TIME],
        "UPDATE sayiir.job_wait SET due = NULL WHERE job_id = ANY ($1) AND due <= $2 AND reason <> 'run_at'",
    );
    STOP.run(session, args![ids, now]);
}

/// Moves one timer to `at`: a sweep could not fire it.
pub fn postpone(session: &Session, id: Uuid, at: Instant) {
    // job_wait_pkey
    static POSTPONE: Statement = Statement::new(
        &[UUID, TIME],
        "UPDATE sayiir.job_wait SET due = $2 WHERE job_id = $1",
    );
    POSTPONE.run(session, args![id, at]);
}

/// When the next timer, lease check (of a job or an effect), workflow deadline or schedule is due.
pub fn next_due(session: &Session) -> Option<Instant> {
    // job_wait_due, job_lease_check, effect_check_at, workflow_deadline, schedule_due: the first entry of each
    static NEXT: Statement = Statement::new(
        &[],
        "SELECT least(
             (SELECT due FROM sayiir.job_wait WHERE due IS NOT NULL ORDER BY due, job_id LIMIT 1),
             (SELECT check_at FROM sayiir.job_lease ORDER BY check_at LIMIT 1),
             (SELECT check_at FROM sayiir.effect WHERE check_at IS NOT NULL ORDER BY check_at LIMIT 1),
             (SELECT deadline_at FROM sayiir.workflow
              WHERE deadline_at IS NOT NULL AND finished_at IS NULL ORDER BY deadline_at LIMIT 1),
             (SELECT due FROM sayiir.schedule WHERE due IS NOT NULL ORDER BY due, id LIMIT 1))",
    );
    NEXT.run(session, &[]).first().and_then(|row| row.opt(1))
}
