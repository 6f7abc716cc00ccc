//! `job`, `job_end`, `job_attempt`: records, ends and attempts.

use pgrx::Uuid;

use crate::args;
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::{Row, Session, Statement};
use crate::pg::types::{
    BOOL, FLOAT8, INT4, INT4S, INT8, INT8S, JSONB, JSONBS, TEXT, TEXTS, TIME, TIMES, UUID, UUIDS,
};
use crate::scope::Scope;

/// The statement that ends, as cancelled, what a sub-select locks in one hot table.
macro_rules! cancel_from {
    ($table:literal, $locked:literal) => {
        concat!(
            "WITH locked AS MATERIALIZED (",
            $locked,
            "),
             gone AS (
                 DELETE FROM ",
            $table,
            " h USING locked k WHERE h.job_id = k.job_id
                 RETURNING h.job_id, h.epoch, h.run_number, h.attempt)
             INSERT INTO sayiir.job_end (job_id, state, error_code, reason, epoch, run_number, attempt, ended_at, history_seq)
             SELECT job_id, 'cancelled', 'job.cancelled', $2, epoch, run_number, attempt, $3, nextval('sayiir.history_seq')
             FROM gone
             RETURNING job_id"
        )
    };
}
pub(super) use cancel_from;

/// How a job is tried: resolved from the call, its task and the engine's defaults, and written with the record.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    pub retry: sayiir_rules::retry::RetryPolicy,
    /// Exhausted: wait for a person instead of failing.
    pub hold: bool,
    pub lease_us: i64,
    /// One attempt's run time.
    pub timeout_us: Option<i64>,
    /// All attempts.
    pub deadline: Option<Instant>,
}

/// The job that spawned another, and who owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    pub id: Uuid,
    /// None = the parent owns itself.
    pub workflow: Option<i64>,
}

impl Parent {
    /// From two columns of a row: parent, parent_workflow.
    pub fn read(row: &Row, column: i32) -> Option<Self> {
        row.opt(column).map(|id| Self {
            id,
            workflow: row.opt(column + 1),
        })
    }
}

/// A stand-alone job as it is enqueued.
pub struct NewJob<'a> {
    pub organization: Option<&'a str>,
    pub task: &'a str,
    pub lane: i64,
    pub policy: Policy,
    /// None = claimable now.
    pub run_at: Option<Instant>,
    pub trace_parent: Option<&'a str>,
    /// What a keyed enqueue asked for besides the payload.
    pub request: Option<Jsonb>,
    /// The job that spawns it, and the depth of the new one: its owner's + 1.
    pub parent: Option<(Parent, i32)>,
    pub now: Instant,
}

/// Inserts one job; false when its key is taken. Waits for a transaction that is inserting the same key.
pub fn insert(
    session: &Session,
    job: &NewJob,
    id: Uuid,
    payload: Jsonb,
    key: Option<&str>,
) -> bool {
    // ON CONFLICT: job_idempotency_key. The seq is drawn behind the record's insert, so after the xid.
    static INSERT: Statement = Statement::new(
        &[
            UUID, TEXT, TEXT, INT8, JSONB, INT4, INT8, FLOAT8, INT8, FLOAT8, BOOL, INT8, INT8, TIME, TEXT, JSONB, TEXT,
            TIME, TIME, INT4, UUID, INT8,
        ],
        "WITH record AS (
             INSERT INTO sayiir.job (job_id, organization_id, task, lane, payload, max_attempts, retry_initial_us,
                 retry_factor, retry_max_us, retry_jitter, hold, lease_us, timeout_us, deadline_at, idempotency_key,
                 request, trace_parent, created_at, history_seq, depth, parent, parent_workflow)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18,
                 nextval('sayiir.history_seq'), $20, $21, $22)
             ON CONFLICT DO NOTHING
             RETURNING job_id, lane),
         ready AS (
             INSERT INTO sayiir.job_ready (job_id, lane, seq, run_number, attempt, epoch)
             SELECT job_id, lane, nextval('sayiir.ready_seq'), 1, 0, 0 FROM record WHERE $19 IS NULL),
         waiting AS (
             INSERT INTO sayiir.job_wait (job_id, lane, reason, due, seq, run_number, attempt, epoch, since)
             SELECT job_id, lane, 'run_at', $19, nextval('sayiir.wait_seq'), 1, 0, 0, $18 FROM record WHERE $19 IS NOT NULL)
         SELECT FROM record",
    );
    let policy = &job.policy;
    let inserted = INSERT.run(
        session,
        args![
            id,
            job.organization,
            job.task,
            job.lane,
            payload,
            policy.retry.max_attempts,
            policy.retry.initial_us,
            policy.retry.factor,
            policy.retry.max_us,
            policy.retry.jitter,
            policy.hold,
            policy.lease_us,
            policy.timeout_us,
            policy.deadline,
            key,
            job.request,
            job.trace_parent,
            job.now,
            job.run_at,
            job.parent.map_or(0, |(_, depth)| depth),
            job.parent.map(|(parent, _)| parent.id),
            job.parent.and_then(|(parent, _)| parent.workflow),
        ],
    );
    !inserted.is_empty()
}

/// Inserts a batch in one statement: payloads, ids and keys in step. Answers the ids that were inserted; the others' keys are
/// taken. Keys are inserted in order, so two batches that share keys wait for each other at most one way.
pub fn insert_many(
    session: &Session,
    job: &NewJob,
    ids: Vec<Uuid>,
    payloads: Jsonb,
    keys: Option<Vec<Option<String>>>,
) -> Vec<Uuid> {
    macro_rules! insert {
        ($order:literal) => {
            concat!(
                "WITH record AS (
             INSERT INTO sayiir.job (job_id, organization_id, task, lane, payload, max_attempts, retry_initial_us,
                 retry_factor, retry_max_us, retry_jitter, hold, lease_us, timeout_us, deadline_at, idempotency_key,
                 request, trace_parent, created_at, history_seq)
             SELECT i.job_id, $2, $3, $4, i.payload, $6, $7, $8, $9, $10, $11, $12, $13, $14, i.idempotency_key,
                 CASE WHEN i.idempotency_key IS NOT NULL THEN $16 END, $17, $18, nextval('sayiir.history_seq')
             FROM ROWS FROM (unnest($1), jsonb_array_elements($5), unnest($15))
                 AS i (job_id, payload, idempotency_key) ",
                $order,
                " ON CONFLICT DO NOTHING
             RETURNING job_id, lane),
         ready AS (
             INSERT INTO sayiir.job_ready (job_id, lane, seq, run_number, attempt, epoch)
             SELECT job_id, lane, nextval('sayiir.ready_seq'), 1, 0, 0 FROM record WHERE $19 IS NULL),
         waiting AS (
             INSERT INTO sayiir.job_wait (job_id, lane, reason, due, seq, run_number, attempt, epoch, since)
             SELECT job_id, lane, 'run_at', $19, nextval('sayiir.wait_seq'), 1, 0, 0, $18 FROM record WHERE $19 IS NOT NULL)
         SELECT job_id FROM record"
            )
        };
    }
    const TYPES: &[pgrx::pg_sys::Oid] = &[
        UUIDS, TEXT, TEXT, INT8, JSONB, INT4, INT8, FLOAT8, INT8, FLOAT8, BOOL, INT8, INT8, TIME,
        TEXTS, JSONB, TEXT, TIME, TIME,
    ];
    static UNKEYED: Statement = Statement::new(TYPES, insert!(""));
    static KEYED: Statement = Statement::new(TYPES, insert!("ORDER BY i.idempotency_key"));
    let policy = &job.policy;
    let statement = if keys.is_some() { &KEYED } else { &UNKEYED };
    statement
        .run(
            session,
            args![
                ids,
                job.organization,
                job.task,
                job.lane,
                payloads,
                policy.retry.max_attempts,
                policy.retry.initial_us,
                policy.retry.factor,
                policy.retry.max_us,
                policy.retry.jitter,
                policy.hold,
                policy.lease_us,
                policy.timeout_us,
                policy.deadline,
                keys,
                job.request,
                job.trace_parent,
                job.now,
                job.run_at,
            ],
        )
        .iter()
        .map(|row| row.get(1))
        .collect()
}

/// The job that holds a key, and whether it was enqueued by the same request.
pub fn by_key(
    session: &Session,
    organization: Option<&str>,
    task: &str,
    key: &str,
    payload: Jsonb,
    request: Jsonb,
) -> Option<(Uuid, bool)> {
    // job_idempotency_key
    static FIND: Statement = Statement::new(
        &[TEXT, TEXT, TEXT, JSONB, JSONB],
        "SELECT job_id, payload = $4 AND request = $5 FROM sayiir.job
         WHERE task = $2 AND idempotency_key = $3 AND organization_id IS NOT DISTINCT FROM $1",
    );
    FIND.run(session, args![organization, task, key, payload, request])
        .first()
        .map(|row| (row.get(1), row.get(2)))
}

/// Who owns a job: (its workflow's key or None, its organization).
pub struct Owned {
    pub workflow: Option<i64>,
    pub organization: Option<String>,
    pub step: Option<String>,
    pub parent: Option<Parent>,
}

/// Reads who owns a job. It never changes, so no lock is needed.
pub fn owner(session: &Session, id: Uuid) -> Option<Owned> {
    // job_pkey
    static OWNER: Statement = Statement::new(
        &[UUID],
        "SELECT workflow, organization_id, step, parent, parent_workflow FROM sayiir.job WHERE job_id = $1",
    );
    OWNER.run(session, args![id]).first().map(|row| Owned {
        workflow: row.opt(1),
        organization: row.opt(2),
        step: row.opt(3),
        parent: Parent::read(&row, 4),
    })
}

/// Locks stand-alone jobs, deepest first, as their own owners.
pub fn lock_standalone(session: &Session, ids: Vec<Uuid>) {
    // job_pkey. The sort is over the rows of this call.
    static LOCK_ONE: Statement = Statement::new(
        &[UUID],
        "SELECT FROM sayiir.job WHERE job_id = $1 AND workflow IS NULL FOR NO KEY UPDATE",
    );
    static LOCK: Statement = Statement::new(
        &[UUIDS],
        "SELECT FROM sayiir.job WHERE job_id = ANY ($1) AND workflow IS NULL
         ORDER BY depth DESC, job_id FOR NO KEY UPDATE",
    );
    match ids[..] {
        [id] => LOCK_ONE.run(session, args![id]),
        _ => LOCK.run(session, args![ids]),
    };
}

/// The same, leaving out what another session holds: how sweeps lock. Answers what it got.
pub fn try_lock_standalone(session: &Session, ids: Vec<Uuid>) -> Vec<Uuid> {
    // job_pkey
    static LOCK: Statement = Statement::new(
        &[UUIDS],
        "SELECT job_id FROM sayiir.job WHERE job_id = ANY ($1) AND workflow IS NULL
         ORDER BY depth DESC, job_id FOR NO KEY UPDATE SKIP LOCKED",
    );
    LOCK.run(session, args![ids])
        .iter()
        .map(|row| row.get(1))
        .collect()
}

/// Cancel requests to jobs that are ready or waiting: (job, reason).
pub fn unleased_requests(session: &Session, max_rows: i32) -> Vec<(Uuid, Option<String>)> {
    // signal_pkey, whole: it holds what workers have not answered yet; then job_ready_pkey, job_wait_pkey
    static FIND: Statement = Statement::new(
        &[INT4],
        "SELECT s.job_id, s.reason FROM sayiir.signal s
         WHERE s.kind = 'cancel'
           AND (EXISTS (SELECT FROM sayiir.job_ready r WHERE r.job_id = s.job_id)
                OR EXISTS (SELECT FROM sayiir.job_wait w WHERE w.job_id = s.job_id))
         ORDER BY s.job_id LIMIT $1",
    );
    FIND.run(session, args![max_rows])
        .iter()
        .map(|row| (row.get(1), row.opt(2)))
        .collect()
}

/// Forgets the requests to jobs that have ended as cancelled.
pub fn answer_signals(session: &Session, ids: Vec<Uuid>) {
    // signal_pkey, leading column
    static ANSWER: Statement = Statement::new(
        &[UUIDS],
        "DELETE FROM sayiir.signal WHERE job_id = ANY ($1)",
    );
    ANSWER.run(session, args![ids]);
}

/// Requests the cancellation of a leased job.
pub fn request_cancel(
    session: &Session,
    id: Uuid,
    reason: Option<&str>,
    requested_by: Option<&str>,
) {
    // signal_pkey
    static INSERT: Statement = Statement::new(
        &[UUID, TEXT, TEXT],
        "INSERT INTO sayiir.signal (job_id, kind, reason, requested_by) VALUES ($1, 'cancel', $2, $3) ON CONFLICT DO NOTHING",
    );
    INSERT.run(session, args![id, reason, requested_by]);
}

/// What is known of an ended job when a call about it repeats.
pub struct End {
    pub state: String,
    pub epoch: i64,
    pub run_number: i32,
    pub error_code: Option<String>,
    /// Ended while a worker held it.
    pub by_worker: bool,
}

pub fn end(session: &Session, id: Uuid) -> Option<End> {
    // job_end_pkey
    static END: Statement = Statement::new(
        &[UUID],
        "SELECT state::text, epoch, run_number, error_code, worker IS NOT NULL FROM sayiir.job_end WHERE job_id = $1",
    );
    END.run(session, args![id]).first().map(|row| End {
        state: row.get(1),
        epoch: row.get(2),
        run_number: row.get(3),
        error_code: row.opt(4),
        by_worker: row.get(5),
    })
}

/// The end of a job as a waiter sees it.
pub struct Outcome {
    pub state: String,
    pub output: Option<Jsonb>,
    pub error_code: Option<String>,
    pub error_message: Option<String>,
}

/// The end of a job within the scope: None = no such job, Some(None) = it has not ended.
pub fn result(session: &Session, id: Uuid, scope: &Scope) -> Option<Option<Outcome>> {
    // job_pkey, job_end_pkey
    static RESULT: Statement = Statement::new(
        &[UUID, BOOL, TEXT],
        "SELECT e.state::text, e.output, e.error_code, e.error_message
         FROM sayiir.job j LEFT JOIN sayiir.job_end e USING (job_id)
         WHERE j.job_id = $1 AND ($2 OR j.organization_id IS NOT DISTINCT FROM $3)",
    );
    let [all, organization] = scope.args();
    RESULT
        .run(
            session,
            &[pgrx::IntoDatum::into_datum(id), all, organization],
        )
        .first()
        .map(|row| {
            row.opt(1).map(|state| Outcome {
                state,
                output: row.opt(2),
                error_code: row.opt(3),
                error_message: row.opt(4),
            })
        })
}

/// The job's task, for a wake-up.
pub fn task(session: &Session, id: Uuid) -> Option<String> {
    // job_pkey
    static TASK: Statement =
        Statement::new(&[UUID], "SELECT task FROM sayiir.job WHERE job_id = $1");
    TASK.run(session, args![id])
        .first()
        .and_then(|row| row.opt(1))
}

/// The answer to a failure that this lease has reported before: (disposition, retry_at). What the reaper said of the lease is
/// another failure.
pub fn attempt_answer(
    session: &Session,
    id: Uuid,
    epoch: i64,
    kind: &str,
    error_code: &str,
) -> Option<(String, Option<Instant>)> {
    // job_attempt_pkey, leading column
    static ANSWER: Statement = Statement::new(
        &[UUID, INT8, TEXT, TEXT],
        "SELECT disposition, retry_at FROM sayiir.job_attempt
         WHERE job_id = $1 AND epoch = $2 AND kind = $3 AND error_code = $4",
    );
    ANSWER
        .run(session, args![id, epoch, kind, error_code])
        .first()
        .map(|row| (row.get(1), row.opt(2)))
}

/// How a job ended.
pub struct NewEnd {
    pub id: Uuid,
    pub state: &'static str,
    pub output: Option<Jsonb>,
    pub error_code: Option<String>,
    pub error_message: Option<String>,
    pub reason: Option<String>,
    /// None = ended by the engine or a person.
    pub worker: Option<String>,
    pub epoch: i64,
    pub run_number: i32,
    pub attempt: i32,
    pub started_at: Option<Instant>,
}

/// Appends ends, behind the DELETE of the hot row in the same transaction.
pub fn append_ends(session: &Session, ends: &[NewEnd], now: Instant) {
    static APPEND: Statement = Statement::new(
        &[UUIDS, TEXTS, JSONBS, TEXTS, TEXTS, TEXTS, TEXTS, INT8S, INT4S, INT4S, TIMES, TIME],
        "INSERT INTO sayiir.job_end (job_id, state, output, error_code, error_message, reason, worker, epoch, run_number,
             attempt, started_at, ended_at, history_seq)
         SELECT job_id, state::sayiir.job_state, output, error_code, error_message, reason, worker, epoch, run_number, attempt,
             started_at, $12, nextval('sayiir.history_seq')
         FROM ROWS FROM (unnest($1), unnest($2), unnest($3), unnest($4), unnest($5), unnest($6), unnest($7), unnest($8),
             unnest($9), unnest($10), unnest($11))
             AS i (job_id, state, output, error_code, error_message, reason, worker, epoch, run_number, attempt, started_at)",
    );
    if ends.is_empty() {
        return;
    }
    APPEND.run(
        session,
        args![
            ends.iter().map(|end| end.id).collect::<Vec<_>>(),
            ends.iter()
                .map(|end| end.state.to_owned())
                .collect::<Vec<_>>(),
            ends.iter().map(|end| end.output).collect::<Vec<_>>(),
            ends.iter()
                .map(|end| end.error_code.clone())
                .collect::<Vec<_>>(),
            ends.iter()
                .map(|end| end.error_message.clone())
                .collect::<Vec<_>>(),
            ends.iter()
                .map(|end| end.reason.clone())
                .collect::<Vec<_>>(),
            ends.iter()
                .map(|end| end.worker.clone())
                .collect::<Vec<_>>(),
            ends.iter().map(|end| end.epoch).collect::<Vec<_>>(),
            ends.iter().map(|end| end.run_number).collect::<Vec<_>>(),
            ends.iter().map(|end| end.attempt).collect::<Vec<_>>(),
            ends.iter().map(|end| end.started_at).collect::<Vec<_>>(),
            now,
        ],
    );
}

/// An attempt that failed or expired and was not the last word on its job.
pub struct NewAttempt<'a> {
    pub taken: &'a super::lease::Taken,
    pub kind: &'static str,
    pub error_code: Option<String>,
    pub error_message: Option<String>,
    pub retry_at: Option<Instant>,
    pub disposition: &'static str,
}

/// Appends attempts.
pub fn append_attempts(session: &Session, attempts: &[NewAttempt], now: Instant) {
    static APPEND: Statement = Statement::new(
        &[UUIDS, INT4S, INT4S, INT8S, TEXTS, TEXTS, TEXTS, TEXTS, TIMES, TIMES, TEXTS, TIME],
        "INSERT INTO sayiir.job_attempt (job_id, run_number, attempt, epoch, worker, kind, error_code, error_message, started_at,
             retry_at, disposition, ended_at, history_seq)
         SELECT i.*, $12, nextval('sayiir.history_seq')
         FROM ROWS FROM (unnest($1), unnest($2), unnest($3), unnest($4), unnest($5), unnest($6), unnest($7), unnest($8),
             unnest($9), unnest($10), unnest($11)) AS i",
    );
    if attempts.is_empty() {
        return;
    }
    APPEND.run(
        session,
        args![
            attempts.iter().map(|a| a.taken.id).collect::<Vec<_>>(),
            attempts
                .iter()
                .map(|a| a.taken.run_number)
                .collect::<Vec<_>>(),
            attempts.iter().map(|a| a.taken.attempt).collect::<Vec<_>>(),
            attempts.iter().map(|a| a.taken.epoch).collect::<Vec<_>>(),
            attempts
                .iter()
                .map(|a| a.taken.worker.clone())
                .collect::<Vec<_>>(),
            attempts
                .iter()
                .map(|a| a.kind.to_owned())
                .collect::<Vec<_>>(),
            attempts
                .iter()
                .map(|a| a.error_code.clone())
                .collect::<Vec<_>>(),
            attempts
                .iter()
                .map(|a| a.error_message.clone())
                .collect::<Vec<_>>(),
            attempts
                .iter()
                .map(|a| Some(a.taken.started_at))
                .collect::<Vec<_>>(),
            attempts.iter().map(|a| a.retry_at).collect::<Vec<_>>(),
            attempts
                .iter()
                .map(|a| a.disposition.to_owned())
                .collect::<Vec<_>>(),
            now,
        ],
    );
}

/// What the end of a running job means to its owner: ends every hot row of stand-alone jobs that nobody leases. Answers those ended.
pub fn cancel_unleased(
    session: &Session,
    ids: Vec<Uuid>,
    reason: Option<&str>,
    now: Instant,
) -> Vec<Uuid> {
    // job_wait_pkey, then job_ready_pkey: the way rows move. What a claim holds is skipped: its worker learns of the cancel.
    static WAITING: Statement = Statement::new(
        &[UUIDS, TEXT, TIME],
        cancel_from!(
            "sayiir.job_wait",
            "SELECT job_id FROM sayiir.job_wait WHERE job_id = ANY ($1) FOR UPDATE SKIP LOCKED"
        ),
    );
    static READY: Statement = Statement::new(
        &[UUIDS, TEXT, TIME],
        cancel_from!(
            "sayiir.job_ready",
            "SELECT job_id FROM sayiir.job_ready WHERE job_id = ANY ($1) FOR UPDATE SKIP LOCKED"
        ),
    );
    let mut ended: Vec<Uuid> = Vec::new();
    for statement in [&WAITING, &READY] {
        ended.extend(
            statement
                .run(session, args![ids.clone(), reason, now])
                .iter()
                .map(|row| row.get::<Uuid>(1)),
        );
    }
    ended
}
