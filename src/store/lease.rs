//! `job_ready`, `job_lease`, `job_wait`: how a job moves between them. A row enters one of them only from the DELETE of another
//! in the same statement, or from the statement that creates or requeues the job.

use std::cell::RefCell;
use std::collections::HashMap;

use pgrx::Uuid;

use crate::args;
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::{Session, Statement};
use crate::pg::types::{
    BOOL, BOOLS, INT4, INT8, INT8S, JSONB, JSONBS, TEXT, TEXTS, TIME, TIMES, UUID, UUIDS,
};

/// The next lane behind `lane` that has a ready row.
pub fn next_lane(session: &Session, lane: i64) -> Option<i64> {
    // job_ready_lane: one probe a lane
    static NEXT: Statement = Statement::new(
        &[INT8],
        "SELECT lane FROM sayiir.job_ready WHERE lane > $1 ORDER BY lane, seq LIMIT 1",
    );
    NEXT.run(session, args![lane]).first().map(|row| row.get(1))
}

/// The first seq, from its `lows` on, of each lane that has a ready row.
pub fn heads(session: &Session, lanes: Vec<i64>, lows: Vec<i64>) -> Vec<(i64, i64)> {
    // job_ready_lane: one probe a lane
    static HEADS: Statement = Statement::new(
        &[INT8S, INT8S],
        "SELECT l.lane, r.seq FROM ROWS FROM (unnest($1), unnest($2)) AS l (lane, low)
         CROSS JOIN LATERAL (
             SELECT q.seq FROM sayiir.job_ready q WHERE q.lane = l.lane AND q.seq >= l.low
             ORDER BY q.lane, q.seq LIMIT 1) r",
    );
    HEADS
        .run(session, args![lanes, lows])
        .iter()
        .map(|row| (row.get(1), row.get(2)))
        .collect()
}

/// A lease as a transition finds it.
pub struct Lease {
    /// Position in the call's arrays, from 0.
    pub n: usize,
    pub id: Uuid,
    pub workflow: Option<i64>,
    pub parent: Option<super::job::Parent>,
}

thread_local! {
    /// The owners of jobs without a parent that this backend has claimed, until it ends them: they never change, so the transition that
    /// follows need not read them.
    static OWNERS: RefCell<HashMap<Uuid, Option<i64>>> = RefCell::new(HashMap::new());
}

/// Most owners that one backend remembers.
const MAX_OWNERS: usize = 4096;

/// Remembers the owner of a job that this backend leases and that nobody spawned.
pub fn remember_owner(id: Uuid, workflow: Option<i64>) {
    OWNERS.with_borrow_mut(|owners| {
        if owners.len() >= MAX_OWNERS {
            owners.clear();
        }
        owners.insert(id, workflow);
    });
}

/// The owners of all these jobs, if every one is remembered; they are forgotten.
fn remembered(ids: &[Uuid]) -> Option<Vec<Lease>> {
    OWNERS.with_borrow_mut(|owners| {
        let known = ids
            .iter()
            .enumerate()
            .map(|(n, id)| {
                owners.get(id).map(|workflow| Lease {
                    n,
                    id: *id,
                    workflow: *workflow,
                    parent: None,
                })
            })
            .collect::<Option<Vec<Lease>>>()?;
        for id in ids {
            owners.remove(id);
        }
        Some(known)
    })
}

/// The leases of (job, epoch) pairs that exist now, no lock; those of remembered jobs unseen: whoever takes them looks for the epoch
/// again anyway.
pub fn find(session: &Session, ids: Vec<Uuid>, epochs: Vec<i64>) -> Vec<Lease> {
    // job_lease_pkey, job_pkey. Only stand-alone jobs have parents.
    static FIND_ONE: Statement = Statement::new(
        &[UUID, INT8],
        "SELECT l.workflow, j.parent, j.parent_workflow FROM sayiir.job_lease l
         LEFT JOIN sayiir.job j ON j.job_id = CASE WHEN l.workflow IS NULL THEN l.job_id END
         WHERE l.job_id = $1 AND l.epoch = $2",
    );
    static FIND: Statement = Statement::new(
        &[UUIDS, INT8S],
        "SELECT i.n - 1, l.job_id, l.workflow, j.parent, j.parent_workflow
         FROM ROWS FROM (unnest($1), unnest($2)) WITH ORDINALITY AS i (job_id, epoch, n)
         JOIN sayiir.job_lease l ON l.job_id = i.job_id AND l.epoch = i.epoch
         LEFT JOIN sayiir.job j ON j.job_id = CASE WHEN l.workflow IS NULL THEN l.job_id END",
    );
    if let Some(leases) = remembered(&ids) {
        return leases;
    }
    if let ([id], [epoch]) = (&ids[..], &epochs[..]) {
        return FIND_ONE
            .run(session, args![*id, *epoch])
            .iter()
            .map(|row| Lease {
                n: 0,
                id: *id,
                workflow: row.opt(1),
                parent: super::job::Parent::read(&row, 2),
            })
            .collect();
    }
    FIND.run(session, args![ids, epochs])
        .iter()
        .map(|row| Lease {
            n: row.get::<i64>(1) as usize,
            id: row.get(2),
            workflow: row.opt(3),
            parent: super::job::Parent::read(&row, 4),
        })
        .collect()
}

/// A lease that a completion ended.
pub struct Ended {
    pub id: Uuid,
    pub workflow: Option<i64>,
    pub step: Option<String>,
    pub cancelled: bool,
}

// The insert of ends from leases that are gone.
macro_rules! end_from {
    ($id:literal, $output:literal, $now:literal) => {
        concat!(
            "INSERT INTO sayiir.job_end (job_id, state, output, error_code, reason, worker, epoch, run_number, attempt, started_at,
                 ended_at, history_seq)
             SELECT ", $id, ", CASE WHEN cancelled THEN 'cancelled' ELSE 'succeeded' END::sayiir.job_state,
                 CASE WHEN NOT cancelled THEN ", $output, " END, CASE WHEN cancelled THEN 'job.cancelled' END,
                 CASE WHEN cancelled THEN 'completed after the cancel' END, worker, epoch, run_number, attempt, started_at, ", $now, ",
                 nextval('sayiir.history_seq')
             FROM gone"
        )
    };
}

/// Ends one lease with success, or as cancelled when the owner or a signal says so; None = another session holds it. What every
/// worker does after every job: as few plan nodes as it takes.
pub fn complete_one(
    session: &Session,
    lease: &Lease,
    epoch: i64,
    output: Option<Jsonb>,
    owner_cancelled: bool,
    now: Instant,
) -> Option<Ended> {
    // job_lease_pkey, then by ctid: a lease that a heartbeat moved in between is not found, and the caller tries again. signal_pkey.
    macro_rules! complete {
        ($step:literal) => {
            concat!(
                "WITH gone AS (
                     DELETE FROM sayiir.job_lease
                     WHERE ctid = (SELECT ctid FROM sayiir.job_lease WHERE job_id = $1 AND epoch = $2 FOR UPDATE SKIP LOCKED)
                     RETURNING worker, epoch, run_number, attempt, started_at,
                         $4 OR EXISTS (SELECT FROM sayiir.signal WHERE job_id = $1 AND kind = 'cancel') AS cancelled) ",
                end_from!("$1", "$3", "$5"),
                " RETURNING state = 'cancelled', ",
                $step
            )
        };
    }
    static COMPLETE: Statement =
        Statement::new(&[UUID, INT8, JSONB, BOOL, TIME], complete!("NULL::text"));
    // job_pkey
    static COMPLETE_STEP: Statement = Statement::new(
        &[UUID, INT8, JSONB, BOOL, TIME],
        complete!("(SELECT j.step FROM sayiir.job j WHERE j.job_id = $1)"),
    );
    let complete = match lease.workflow {
        None => &COMPLETE,
        Some(_) => &COMPLETE_STEP,
    };
    complete
        .run(
            session,
            args![lease.id, epoch, output, owner_cancelled, now],
        )
        .first()
        .map(|row| Ended {
            id: lease.id,
            workflow: lease.workflow,
            step: row.opt(2),
            cancelled: row.get(1),
        })
}

/// The same for many, each on its own terms; answers those that were ended.
pub fn complete(
    session: &Session,
    ids: Vec<Uuid>,
    epochs: Vec<i64>,
    outputs: Vec<Option<Jsonb>>,
    owner_cancelled: Vec<bool>,
    now: Instant,
) -> Vec<Ended> {
    // As above; job_pkey for steps only.
    static COMPLETE: Statement = Statement::new(
        &[UUIDS, INT8S, JSONBS, BOOLS, TIME],
        concat!(
            "WITH locked AS MATERIALIZED (
                 SELECT l.ctid AS row_id, i.output, i.cancelled
                 FROM ROWS FROM (unnest($1), unnest($2), unnest($3), unnest($4)) AS i (job_id, epoch, output, cancelled)
                 JOIN sayiir.job_lease l ON l.job_id = i.job_id AND l.epoch = i.epoch
                 FOR UPDATE OF l SKIP LOCKED),
             gone AS (
                 DELETE FROM sayiir.job_lease l USING locked k WHERE l.ctid = k.row_id
                 RETURNING l.job_id, l.workflow, l.worker, l.epoch, l.run_number, l.attempt, l.started_at, k.output,
                     k.cancelled OR EXISTS (SELECT FROM sayiir.signal s WHERE s.job_id = l.job_id AND s.kind = 'cancel') AS cancelled),
             ended AS (",
            end_from!("job_id", "output", "$5"),
            ")
             SELECT job_id, workflow,
                 CASE WHEN workflow IS NOT NULL THEN (SELECT j.step FROM sayiir.job j WHERE j.job_id = gone.job_id) END, cancelled
             FROM gone"
        ),
    );
    COMPLETE
        .run(session, args![ids, epochs, outputs, owner_cancelled, now])
        .iter()
        .map(|row| Ended {
            id: row.get(1),
            workflow: row.opt(2),
            step: row.opt(3),
            cancelled: row.get(4),
        })
        .collect()
}

/// A lease taken by a failure, a release or the reaper: everything that decides what follows.
pub struct Taken {
    pub id: Uuid,
    pub workflow: Option<i64>,
    pub step: Option<String>,
    pub task: String,
    pub lane: i64,
    pub worker: String,
    pub epoch: i64,
    pub run_number: i32,
    pub attempt: i32,
    pub started_at: Instant,
    pub deadline_at: Option<Instant>,
    pub retry: sayiir_rules::retry::RetryPolicy,
    pub hold: bool,
    /// The deadline of all attempts.
    pub job_deadline: Option<Instant>,
    pub cancel_requested: bool,
}

macro_rules! take {
    ($which:literal) => {
        concat!(
            "WITH locked AS MATERIALIZED (",
            $which,
            " FOR UPDATE OF l SKIP LOCKED),
         gone AS (DELETE FROM sayiir.job_lease l USING locked k WHERE l.job_id = k.job_id RETURNING l.*)
         SELECT g.job_id, g.workflow, j.step, j.task, g.lane, g.worker, g.epoch, g.run_number, g.attempt, g.started_at,
             g.deadline_at, j.max_attempts, j.retry_initial_us, j.retry_factor, j.retry_max_us, j.retry_jitter, j.hold,
             j.deadline_at,
             EXISTS (SELECT FROM sayiir.signal s WHERE s.job_id = g.job_id AND s.kind = 'cancel')
         FROM gone g JOIN sayiir.job j USING (job_id)"
        )
    };
}

fn taken(row: crate::pg::spi::Row) -> Taken {
    Taken {
        id: row.get(1),
        workflow: row.opt(2),
        step: row.opt(3),
        task: row.get(4),
        lane: row.get(5),
        worker: row.get(6),
        epoch: row.get(7),
        run_number: row.get(8),
        attempt: row.get(9),
        started_at: row.get(10),
        deadline_at: row.opt(11),
        retry: sayiir_rules::retry::RetryPolicy {
            max_attempts: row.get(12),
            initial_us: row.get(13),
            factor: row.get(14),
            max_us: row.get(15),
            jitter: row.get(16),
        },
        hold: row.get(17),
        job_deadline: row.opt(18),
        cancel_requested: row.get(19),
    }
}

/// Takes the leases of (job, epoch) pairs out of `job_lease`; what another session holds is left.
pub fn take(session: &Session, ids: Vec<Uuid>, epochs: Vec<i64>, now: Instant) -> Vec<Taken> {
    // job_lease_pkey
    static TAKE: Statement = Statement::new(
        &[UUIDS, INT8S, TIME],
        take!(
            "SELECT l.job_id FROM ROWS FROM (unnest($1), unnest($2)) AS i (job_id, epoch)
             JOIN sayiir.job_lease l ON l.job_id = i.job_id AND l.epoch = i.epoch"
        ),
    );
    TAKE.run(session, args![ids, epochs, now])
        .iter()
        .map(taken)
        .collect()
}

/// Takes the leases among `ids` that have expired.
pub fn take_expired(session: &Session, ids: Vec<Uuid>, now: Instant) -> Vec<Taken> {
    // job_lease_pkey
    static TAKE: Statement = Statement::new(
        &[UUIDS, INT8S, TIME],
        take!(
            "SELECT l.job_id FROM sayiir.job_lease l WHERE l.job_id = ANY ($1) AND $2 IS NULL AND l.expires_at <= $3"
        ),
    );
    TAKE.run(session, args![ids, None::<Vec<i64>>, now])
        .iter()
        .map(taken)
        .collect()
}

/// Leases whose check is due: (job, workflow). No lock.
pub fn due_checks(session: &Session, now: Instant, max_rows: i32) -> Vec<(Uuid, Option<i64>)> {
    // job_lease_check
    static DUE: Statement = Statement::new(
        &[TIME, INT4],
        "SELECT job_id, workflow FROM sayiir.job_lease WHERE check_at <= $1 ORDER BY check_at LIMIT $2",
    );
    DUE.run(session, args![now, max_rows])
        .iter()
        .map(|row| (row.get(1), row.opt(2)))
        .collect()
}

/// Moves the check of leases that a heartbeat kept alive to their expiry.
pub fn postpone_checks(session: &Session, ids: Vec<Uuid>, now: Instant) {
    // job_lease_pkey
    static POSTPONE: Statement = Statement::new(
        &[UUIDS, TIME],
        "WITH locked AS MATERIALIZED (
             SELECT job_id FROM sayiir.job_lease WHERE job_id = ANY ($1) AND expires_at > $2 AND check_at <= $2
             FOR UPDATE SKIP LOCKED)
         UPDATE sayiir.job_lease l SET check_at = l.expires_at FROM locked k WHERE l.job_id = k.job_id",
    );
    POSTPONE.run(session, args![ids, now]);
}

/// Moves the check of one lease to `at`, whatever its expiry: the reaper could not end it.
pub fn postpone(session: &Session, id: Uuid, at: Instant) {
    // job_lease_pkey
    static POSTPONE: Statement = Statement::new(
        &[UUID, TIME],
        "UPDATE sayiir.job_lease SET check_at = $2 WHERE job_id = $1",
    );
    POSTPONE.run(session, args![id, at]);
}

/// Whether a lease row with this epoch exists, locked or not.
pub fn exists(session: &Session, id: Uuid, epoch: i64) -> bool {
    // job_lease_pkey
    static EXISTS: Statement = Statement::new(
        &[UUID, INT8],
        "SELECT FROM sayiir.job_lease WHERE job_id = $1 AND epoch = $2",
    );
    !EXISTS.run(session, args![id, epoch]).is_empty()
}

/// Whether anybody leases the job.
pub fn leased(session: &Session, id: Uuid) -> bool {
    // job_lease_pkey
    static LEASED: Statement =
        Statement::new(&[UUID], "SELECT FROM sayiir.job_lease WHERE job_id = $1");
    !LEASED.run(session, args![id]).is_empty()
}

/// Heartbeats of a batch, `ids` in ascending order: (job, its owner's status, whether a cancel was requested, whether what it has
/// reported so far is possible) of those that are not lost.
pub fn heartbeat(
    session: &Session,
    ids: Vec<Uuid>,
    epochs: Vec<i64>,
    lease_us: Option<i64>,
    progress: (Option<i64>, Option<i64>, Option<&str>),
    now: Instant,
) -> Vec<(Uuid, Option<String>, bool, bool)> {
    // job_lease_pkey, workflow_pkey, signal_pkey. No indexed column changes, so the update stays HOT.
    // NO KEY: a checkpoint, which holds the lease against its end, is not waited for.
    // Rows are locked in the order of `ids`. An ORDER BY here would be answered by walking all of job_lease_pkey.
    static HEARTBEAT: Statement = Statement::new(
        &[UUIDS, INT8S, INT8, INT8, INT8, TEXT, TIME],
        "WITH locked AS MATERIALIZED (
             SELECT l.job_id FROM ROWS FROM (unnest($1), unnest($2)) AS i (job_id, epoch)
             JOIN sayiir.job_lease l ON l.job_id = i.job_id AND l.epoch = i.epoch
             FOR NO KEY UPDATE OF l)
         UPDATE sayiir.job_lease l
         SET expires_at = least($7 + coalesce($3, l.lease_us) * interval '1 microsecond', l.deadline_at),
             progress_done = coalesce($4, l.progress_done), progress_total = coalesce($5, l.progress_total),
             stage = coalesce($6, l.stage)
         FROM locked k
         WHERE l.job_id = k.job_id
         RETURNING l.job_id, (SELECT w.status::text FROM sayiir.workflow w WHERE w.id = l.workflow),
             EXISTS (SELECT FROM sayiir.signal s WHERE s.job_id = l.job_id AND s.kind = 'cancel'),
             coalesce(l.progress_done <= l.progress_total, true)",
    );
    let (done, total, stage) = progress;
    HEARTBEAT
        .run(
            session,
            args![ids, epochs, lease_us, done, total, stage, now],
        )
        .iter()
        .map(|row| (row.get(1), row.opt(2), row.get(3), row.get(4)))
        .collect()
}

/// Where a job goes that has left `job_lease`.
pub struct Put<'a> {
    pub id: Uuid,
    pub workflow: Option<i64>,
    pub lane: i64,
    pub run_number: i32,
    pub attempt: i32,
    pub epoch: i64,
    /// None = ready at once.
    pub reason: Option<&'a str>,
    pub due: Option<Instant>,
}

/// Puts a job into ready or wait, behind the DELETE of its lease in the same transaction.
pub fn put(session: &Session, jobs: &[Put], now: Instant) {
    // One statement for the batch; the seq is drawn behind the deletes, so after the xid.
    static PUT: Statement = Statement::new(
        &[UUIDS, INT8S, INT8S, INT8S, INT8S, INT8S, TEXTS, TIMES, TIME],
        "WITH input AS MATERIALIZED (
             SELECT * FROM ROWS FROM (unnest($1), unnest($2), unnest($3), unnest($4), unnest($5), unnest($6), unnest($7), unnest($8))
                 AS i (job_id, workflow, lane, run_number, attempt, epoch, reason, due)),
         ready AS (
             INSERT INTO sayiir.job_ready (job_id, workflow, lane, seq, run_number, attempt, epoch)
             SELECT job_id, workflow, lane, nextval('sayiir.ready_seq'), run_number, attempt, epoch FROM input WHERE reason IS NULL)
         INSERT INTO sayiir.job_wait (job_id, workflow, lane, reason, due, seq, run_number, attempt, epoch, since)
         SELECT job_id, workflow, lane, reason::sayiir.wait_reason, due, nextval('sayiir.wait_seq'), run_number, attempt, epoch, $9
         FROM input WHERE reason IS NOT NULL",
    );
    PUT.run(
        session,
        args![
            jobs.iter().map(|job| job.id).collect::<Vec<_>>(),
            jobs.iter().map(|job| job.workflow).collect::<Vec<_>>(),
            jobs.iter().map(|job| job.lane).collect::<Vec<_>>(),
            jobs.iter()
                .map(|job| i64::from(job.run_number))
                .collect::<Vec<_>>(),
            jobs.iter()
                .map(|job| i64::from(job.attempt))
                .collect::<Vec<_>>(),
            jobs.iter().map(|job| job.epoch).collect::<Vec<_>>(),
            jobs.iter()
                .map(|job| job.reason.map(str::to_owned))
                .collect::<Vec<_>>(),
            jobs.iter().map(|job| job.due).collect::<Vec<_>>(),
            now,
        ],
    );
}
