//! What people do to jobs: requeue, replay, delete, amend.

use pgrx::{IntoDatum, Uuid};

use crate::args;
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::{Session, Statement};
use crate::pg::types::{BOOL, INT4, JSONB, TEXT, TIME, UUID};
use crate::scope::Scope;

/// Moves an ended job back to ready as a new run; its end becomes an attempt of the old run.
pub fn requeue_ended(
    session: &Session,
    id: Uuid,
    reason: Option<&str>,
    now: Instant,
) -> Option<i32> {
    // job_end_pkey, job_pkey
    static REQUEUE: Statement = Statement::new(
        &[UUID, TIME, TEXT],
        "WITH gone AS (DELETE FROM sayiir.job_end WHERE job_id = $1 AND state IN ('failed', 'cancelled') RETURNING *),
         kept AS (
             INSERT INTO sayiir.job_attempt (job_id, run_number, attempt, epoch, worker, kind, error_code, error_message,
                 started_at, ended_at, retry_at, disposition, reason, history_seq)
             SELECT job_id, run_number, attempt, epoch, worker, 'requeued', error_code, error_message, started_at,
                 ended_at, $2, state::text, $3, nextval('sayiir.history_seq') FROM gone),
         unsignalled AS (DELETE FROM sayiir.signal WHERE job_id = $1)
         INSERT INTO sayiir.job_ready (job_id, lane, seq, run_number, attempt, epoch)
         SELECT g.job_id, j.lane, nextval('sayiir.ready_seq'), g.run_number + 1, 0, g.epoch
         FROM gone g JOIN sayiir.job j USING (job_id)
         RETURNING run_number",
    );
    REQUEUE
        .run(session, args![id, now, reason])
        .first()
        .map(|row| row.get(1))
}

/// The run of a job that is held for a person.
pub fn held_run(session: &Session, id: Uuid) -> Option<i32> {
    // job_wait_pkey
    static HELD: Statement = Statement::new(
        &[UUID],
        "SELECT run_number FROM sayiir.job_wait WHERE job_id = $1 AND reason = 'held'",
    );
    HELD.run(session, args![id]).first().map(|row| row.get(1))
}

/// Moves a held job back to ready as a new run; the hold becomes an attempt of the old run.
pub fn requeue_held(
    session: &Session,
    id: Uuid,
    reason: Option<&str>,
    now: Instant,
) -> Option<i32> {
    // job_wait_pkey
    static REQUEUE: Statement = Statement::new(
        &[UUID, TIME, TEXT],
        "WITH gone AS (DELETE FROM sayiir.job_wait WHERE job_id = $1 AND reason = 'held' RETURNING *),
         kept AS (
             INSERT INTO sayiir.job_attempt (job_id, run_number, attempt, epoch, kind, ended_at, retry_at, disposition, reason,
                 history_seq)
             SELECT job_id, run_number, attempt, epoch, 'requeued', since, $2, 'held', $3, nextval('sayiir.history_seq')
             FROM gone)
         INSERT INTO sayiir.job_ready (job_id, workflow, lane, seq, run_number, attempt, epoch)
         SELECT job_id, workflow, lane, nextval('sayiir.ready_seq'), run_number + 1, 0, epoch FROM gone
         RETURNING run_number",
    );
    REQUEUE
        .run(session, args![id, now, reason])
        .first()
        .map(|row| row.get(1))
}

/// A copy of a job under a key of its own; false when the key is taken. Waits for a transaction that is inserting the same key.
pub fn replay(
    session: &Session,
    source: Uuid,
    id: Uuid,
    key: &str,
    request: Jsonb,
    now: Instant,
) -> bool {
    // job_pkey. ON CONFLICT: job_idempotency_key. The seq is drawn behind the record's insert, so after the xid.
    static REPLAY: Statement = Statement::new(
        &[UUID, UUID, TEXT, JSONB, TIME],
        "WITH record AS (
             INSERT INTO sayiir.job (job_id, organization_id, task, lane, payload, max_attempts, retry_initial_us,
                 retry_factor, retry_max_us, retry_jitter, hold, lease_us, timeout_us, deadline_at, idempotency_key,
                 request, trace_parent, created_at, history_seq)
             SELECT $2, organization_id, task, lane, payload, max_attempts, retry_initial_us, retry_factor, retry_max_us,
                 retry_jitter, hold, lease_us, timeout_us, $5 + (deadline_at - created_at), $3, $4, trace_parent, $5,
                 nextval('sayiir.history_seq')
             FROM sayiir.job WHERE job_id = $1
             ON CONFLICT DO NOTHING
             RETURNING job_id, lane),
         ready AS (
             INSERT INTO sayiir.job_ready (job_id, lane, seq, run_number, attempt, epoch)
             SELECT job_id, lane, nextval('sayiir.ready_seq'), 1, 0, 0 FROM record)
         SELECT FROM record",
    );
    !REPLAY
        .run(session, args![source, id, key, request, now])
        .is_empty()
}

/// The replay of a job under a key, and whether it was asked for in the same words.
pub fn replayed(
    session: &Session,
    source: Uuid,
    key: &str,
    request: Jsonb,
) -> Option<(Uuid, bool)> {
    // job_pkey, job_idempotency_key
    static FIND: Statement = Statement::new(
        &[UUID, TEXT, JSONB],
        "SELECT r.job_id, r.request = $3 FROM sayiir.job j
         JOIN sayiir.job r ON r.task = j.task AND r.idempotency_key = $2
             AND r.organization_id IS NOT DISTINCT FROM j.organization_id
         WHERE j.job_id = $1",
    );
    FIND.run(session, args![source, key, request])
        .first()
        .map(|row| (row.get(1), row.get(2)))
}

/// Deletes an ended job with all that is its own. The job is locked.
pub fn delete(session: &Session, id: Uuid) {
    // Primary keys and their leading columns; job_log_entry_job, event_job, event_key's unique index
    static DELETE: Statement = Statement::new(
        &[UUID],
        "WITH ended AS (DELETE FROM sayiir.job_end WHERE job_id = $1),
         attempt AS (DELETE FROM sayiir.job_attempt WHERE job_id = $1),
         signal AS (DELETE FROM sayiir.signal WHERE job_id = $1),
         checkpoint AS (DELETE FROM sayiir.checkpoint WHERE job_id = $1),
         log AS (DELETE FROM sayiir.job_log_entry WHERE job_id = $1),
         event AS (DELETE FROM sayiir.event WHERE job_id = $1),
         event_key AS (DELETE FROM sayiir.event_key WHERE workflow_id IS NULL AND job_id = $1)
         DELETE FROM sayiir.job WHERE job_id = $1",
    );
    DELETE.run(session, args![id]);
}

/// Gives a job that nobody has ever claimed another payload; false when it is claimed, or being claimed. The job is locked.
///
/// A ready job enters its lane anew: a claim that began before this, and has read the old payload, does not find the new row.
pub fn amend(session: &Session, id: Uuid, payload: Jsonb) -> bool {
    // job_ready_pkey, job_pkey
    static READY: Statement = Statement::new(
        &[UUID, JSONB],
        "WITH locked AS MATERIALIZED (SELECT job_id FROM sayiir.job_ready WHERE job_id = $1 AND epoch = 0 FOR UPDATE SKIP LOCKED),
         gone AS (DELETE FROM sayiir.job_ready r USING locked k WHERE r.job_id = k.job_id RETURNING r.*),
         ready AS (
             INSERT INTO sayiir.job_ready (job_id, lane, seq, run_number, attempt, epoch)
             SELECT job_id, lane, nextval('sayiir.ready_seq'), run_number, attempt, epoch FROM gone)
         UPDATE sayiir.job j SET payload = $2 FROM gone g WHERE j.job_id = g.job_id RETURNING true",
    );
    // job_wait_pkey, job_pkey. Whoever promotes it does so after this, and a claim after that.
    static WAITING: Statement = Statement::new(
        &[UUID, JSONB],
        "WITH locked AS MATERIALIZED (SELECT job_id FROM sayiir.job_wait WHERE job_id = $1 AND epoch = 0 FOR UPDATE SKIP LOCKED)
         UPDATE sayiir.job j SET payload = $2 FROM locked k WHERE j.job_id = k.job_id RETURNING true",
    );
    [&WAITING, &READY]
        .iter()
        .any(|statement| !statement.run(session, args![id, payload]).is_empty())
}

/// Whether a job was enqueued under a key.
pub fn is_keyed(session: &Session, id: Uuid) -> bool {
    // job_pkey
    static KEYED: Statement = Statement::new(
        &[UUID],
        "SELECT idempotency_key IS NOT NULL FROM sayiir.job WHERE job_id = $1",
    );
    KEYED
        .run(session, args![id])
        .first()
        .is_some_and(|row| row.get(1))
}

/// Which dead letters.
pub struct Which<'a> {
    pub scope: &'a Scope,
    pub task: Option<&'a str>,
    pub error_code: Option<&'a str>,
    pub since: Option<Instant>,
    pub max_rows: i32,
}

/// Failed stand-alone jobs, the oldest failure first; no lock.
pub fn dead_letters(session: &Session, which: &Which) -> Vec<Uuid> {
    // job_end_failed, job_pkey
    static FIND: Statement = Statement::new(
        &[BOOL, TEXT, TEXT, TEXT, TIME, INT4],
        "SELECT e.job_id FROM sayiir.job_end e JOIN sayiir.job j USING (job_id)
         WHERE e.state = 'failed' AND j.workflow IS NULL AND e.ended_at >= coalesce($5, '-infinity')
           AND ($1 OR j.organization_id IS NOT DISTINCT FROM $2)
           AND ($3 IS NULL OR j.task = $3) AND ($4 IS NULL OR e.error_code = $4)
         ORDER BY e.ended_at, e.job_id LIMIT $6",
    );
    let [all, organization] = which.scope.args();
    FIND.run(
        session,
        &[
            all,
            organization,
            which.task.into_datum(),
            which.error_code.into_datum(),
            which.since.into_datum(),
            which.max_rows.into_datum(),
        ],
    )
    .iter()
    .map(|row| row.get(1))
    .collect()
}
