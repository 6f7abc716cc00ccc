//! Claim: rows move from `job_ready` to `job_lease`.

use pgrx::Uuid;

use super::lease::{Put, put, remember_owner};
use crate::args;
use crate::pg::clock::Instant;
use crate::pg::spi::{Rows, Session, Statement};
use crate::pg::table::Line;
use crate::pg::types::{BOOL, INT4, INT8, INT8S, TEXT, TIME, UUID};

/// A ready row that a claim took.
pub struct Claimed {
    /// None = its workflow is not running: it was parked instead of leased; or its deadline has passed: the lease that it got has expired
    /// already, and the reaper ends it.
    pub job: Option<Line>,
    pub lane: i64,
    pub seq: i64,
    /// When a sweep has to look at it.
    pub check_at: Instant,
}

/// Columns of `claimed_job`.
const CLAIMED_COLUMNS: i32 = 19;

/// What the lease will say.
#[derive(Clone, Copy)]
pub struct Terms<'a> {
    pub worker: &'a str,
    /// None = the job's own.
    pub lease_us: Option<i64>,
    pub now: Instant,
}

// The head rows of one lane, and of several in their order; each lane from its mark on. job_ready_lane gives the order; job_ready rows
// are never updated, so a locked row's ctid stays.
macro_rules! heads_of_one {
    () => {
        "SELECT ctid FROM sayiir.job_ready WHERE lane = $1 AND seq >= $2 ORDER BY lane, seq LIMIT $3 FOR UPDATE SKIP LOCKED"
    };
}
macro_rules! heads_of_some {
    () => {
        "SELECT r.row_id
         FROM ROWS FROM (unnest($1), unnest($2)) AS l (lane, low)
         CROSS JOIN LATERAL (
             SELECT q.ctid AS row_id FROM sayiir.job_ready q
             WHERE q.lane = l.lane AND q.seq >= l.low
             ORDER BY q.lane, q.seq
             LIMIT $3
             FOR UPDATE SKIP LOCKED) r
         LIMIT $3"
    };
}

/// Takes up to `max_jobs` ready rows from `lanes`, in their order, each from its `lows` on, and leases them. A row whose owner is not
/// running is parked instead, due now: the owner's next transition or tick ends or frees it.
pub fn claim(
    session: &Session,
    lanes: Vec<i64>,
    lows: Vec<i64>,
    max_jobs: i32,
    terms: Terms,
) -> Vec<Claimed> {
    if max_jobs == 1 {
        return claim_one(session, lanes, lows, terms).into_iter().collect();
    }
    claim_batch(session, lanes, lows, max_jobs, terms)
}

/// One job, in three small statements: for a single row most of the time goes into starting the executor, and that grows with the
/// number of plan nodes times their columns. The row is not leased by the statement that took it, but the transaction is the same, and
/// the owner's status is read later, not earlier.
fn claim_one(session: &Session, lanes: Vec<i64>, lows: Vec<i64>, terms: Terms) -> Option<Claimed> {
    macro_rules! take {
        ($heads:expr) => {
            concat!(
                "DELETE FROM sayiir.job_ready WHERE ctid = (",
                $heads,
                ") RETURNING job_id, workflow, lane, seq, run_number, attempt, epoch"
            )
        };
    }
    static FROM_ONE: Statement = Statement::new(&[INT8, INT8, INT4], take!(heads_of_one!()));
    static FROM_SOME: Statement = Statement::new(&[INT8S, INT8S, INT4], take!(heads_of_some!()));
    // job_pkey, lane_pkey, workflow_pkey; checkpoint_pkey, leading column: what was never leased has none and is not looked up.
    macro_rules! read {
        ($input:literal, $workflow:literal, $trace_parent:literal, $may_run:literal, $join:literal) => {
            concat!(
                "SELECT j.job_id, $2, j.task, ", $input, ", $3, j.max_attempts, $4, ", $workflow, ", j.step, j.item_index,
                     coalesce(j.idempotency_key, j.job_id || '/' || $4),
                     CASE WHEN $8 THEN coalesce((
                         SELECT jsonb_object_agg(c.name, c.value) FROM sayiir.checkpoint c
                         WHERE c.job_id = $1 AND c.value IS NOT NULL), '{}') ELSE '{}'::jsonb END,
                     least($5 + coalesce($6, j.lease_us) * interval '1 microsecond', j.deadline_at,
                         $5 + j.timeout_us * interval '1 microsecond'),
                     least(j.deadline_at, $5 + j.timeout_us * interval '1 microsecond'),
                     l.tags, j.organization_id, ", $trace_parent, ", coalesce($6, j.lease_us), ", $may_run, ", j.parent IS NULL
                 FROM sayiir.job j JOIN sayiir.lane l ON l.lane = $7 ", $join, "
                 WHERE j.job_id = $1"
            )
        };
    }
    static READ: Statement = Statement::new(
        &[UUID, INT8, INT4, INT4, TIME, INT8, INT8, BOOL],
        read!(
            "j.payload",
            "NULL::text, NULL::text, NULL::int",
            "j.trace_parent",
            "true",
            ""
        ),
    );
    static READ_STEP: Statement = Statement::new(
        &[UUID, INT8, INT4, INT4, TIME, INT8, INT8, BOOL],
        read!(
            "coalesce(j.payload, w.input)",
            "w.workflow_id, w.name, w.version",
            "coalesce(j.trace_parent, w.trace_parent)",
            "w.status = 'running'",
            "JOIN sayiir.workflow w ON w.id = j.workflow"
        ),
    );
    static LEASE: Statement = Statement::new(
        &[UUID, INT8, INT8, TEXT, INT8, INT4, INT4, INT8, TIME, TIME, TIME],
        "INSERT INTO sayiir.job_lease (job_id, workflow, lane, worker, epoch, run_number, attempt, lease_us, started_at, expires_at,
             deadline_at, check_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $10)",
    );
    let taken = match (&lanes[..], &lows[..]) {
        ([lane], [low]) => FROM_ONE.run(session, args![*lane, *low, 1]),
        _ => FROM_SOME.run(session, args![lanes, lows, 1]),
    };
    let taken = taken.first()?;
    let (id, workflow): (Uuid, Option<i64>) = (taken.get(1), taken.opt(2));
    let (lane, seq): (i64, i64) = (taken.get(3), taken.get(4));
    let (run_number, last_attempt, last_epoch): (i32, i32, i64) =
        (taken.get(5), taken.get(6), taken.get(7));
    let epoch = terms.now.unix_us().max(last_epoch + 1);
    let read = if workflow.is_some() {
        &READ_STEP
    } else {
        &READ
    };
    let job = read
        .run(
            session,
            args![
                id,
                epoch,
                last_attempt + 1,
                run_number,
                terms.now,
                terms.lease_us,
                lane,
                last_epoch != 0
            ],
        )
        .first()
        .filter(|job| job.get(21));
    match job {
        Some(job) => {
            if job.get(22) {
                remember_owner(id, workflow);
            }
            LEASE.run(
                session,
                args![
                    id,
                    workflow,
                    lane,
                    terms.worker,
                    epoch,
                    run_number,
                    last_attempt + 1,
                    job.get::<i64>(20),
                    terms.now,
                    job.get::<Instant>(15),
                    job.opt::<Instant>(16),
                ],
            );
        }
        None => put(
            session,
            &[Put {
                id,
                workflow,
                lane,
                run_number,
                attempt: last_attempt,
                epoch: last_epoch,
                reason: Some("owner"),
                due: Some(terms.now),
            }],
            terms.now,
        ),
    }
    Some(Claimed {
        check_at: job.map_or(terms.now, |job| job.get(15)),
        job: job
            .filter(|job| job.get::<Instant>(15) > terms.now)
            .map(|job| job.keep_columns(CLAIMED_COLUMNS)),
        lane,
        seq,
    })
}

/// Many jobs, in one statement.
fn claim_batch(
    session: &Session,
    lanes: Vec<i64>,
    lows: Vec<i64>,
    max_jobs: i32,
    terms: Terms,
) -> Vec<Claimed> {
    // job_pkey, lane_pkey, workflow_pkey, checkpoint_pkey
    macro_rules! claim {
        ($heads:expr) => {
            concat!(
                "WITH taken AS (
             DELETE FROM sayiir.job_ready WHERE ctid = ANY (ARRAY(", $heads, "))
             RETURNING job_id, workflow, lane, seq, run_number, attempt, epoch),
         job AS MATERIALIZED (
             SELECT t.job_id, t.workflow, t.lane, t.seq, t.run_number, t.attempt + 1 AS attempt,
                 greatest(t.epoch + 1, $7) AS epoch, t.attempt AS last_attempt, t.epoch AS last_epoch,
                 j.task, coalesce(j.payload, w.input) AS input, j.max_attempts, w.workflow_id, w.name AS workflow_name,
                 w.version AS workflow_version, j.step, j.item_index,
                 coalesce(j.idempotency_key, j.job_id || '/' || t.run_number) AS idempotency_key,
                 coalesce($5, j.lease_us) AS lease_us, j.organization_id,
                 coalesce(j.trace_parent, w.trace_parent) AS trace_parent,
                 least(j.deadline_at, $6 + j.timeout_us * interval '1 microsecond') AS deadline_at,
                 l.tags, coalesce(w.status = 'running', true) AS may_run, j.parent IS NOT NULL AS is_spawned
             FROM taken t
             JOIN sayiir.job j USING (job_id)
             JOIN sayiir.lane l ON l.lane = t.lane
             LEFT JOIN sayiir.workflow w ON w.id = t.workflow),
         leased AS (
             INSERT INTO sayiir.job_lease (job_id, workflow, lane, worker, epoch, run_number, attempt, lease_us, started_at,
                 expires_at, deadline_at, check_at)
             SELECT job_id, workflow, lane, $4, epoch, run_number, attempt, lease_us, $6,
                 least($6 + lease_us * interval '1 microsecond', deadline_at), deadline_at,
                 least($6 + lease_us * interval '1 microsecond', deadline_at)
             FROM job WHERE may_run)
         SELECT job_id, epoch, task, input, attempt, max_attempts, run_number, workflow_id, workflow_name, workflow_version,
             step, item_index, idempotency_key,
             CASE WHEN last_epoch = 0 THEN '{}'::jsonb ELSE coalesce((
                 SELECT jsonb_object_agg(c.name, c.value) FROM sayiir.checkpoint c
                 WHERE c.job_id = job.job_id AND c.value IS NOT NULL), '{}') END,
             least($6 + lease_us * interval '1 microsecond', deadline_at), deadline_at, tags, organization_id,
             trace_parent, may_run, lane, seq, workflow, last_attempt, last_epoch, is_spawned
         FROM job"
            )
        };
    }
    static FROM_ONE: Statement = Statement::new(
        &[INT8, INT8, INT4, TEXT, INT8, TIME, INT8],
        claim!(heads_of_one!()),
    );
    static FROM_SOME: Statement = Statement::new(
        &[INT8S, INT8S, INT4, TEXT, INT8, TIME, INT8],
        claim!(heads_of_some!()),
    );
    let Terms {
        worker,
        lease_us,
        now,
    } = terms;
    let epoch = now.unix_us();
    let rows: Rows = match (&lanes[..], &lows[..]) {
        ([lane], [low]) => FROM_ONE.run(
            session,
            args![*lane, *low, max_jobs, worker, lease_us, now, epoch],
        ),
        _ => FROM_SOME.run(
            session,
            args![lanes, lows, max_jobs, worker, lease_us, now, epoch],
        ),
    };
    let mut parked = Vec::new();
    let claimed = rows
        .iter()
        .map(|row| {
            let may_run: bool = row.get(20);
            let lane = row.get(21);
            if may_run {
                if !row.get::<bool>(26) {
                    remember_owner(row.get(1), row.opt(23));
                }
            } else {
                parked.push(Put {
                    id: row.get(1),
                    workflow: row.opt(23),
                    lane,
                    run_number: row.get(7),
                    attempt: row.get(24),
                    epoch: row.get(25),
                    reason: Some("owner"),
                    due: Some(now),
                });
            }
            Claimed {
                job: (may_run && row.get::<Instant>(15) > now)
                    .then(|| row.keep_columns(CLAIMED_COLUMNS)),
                lane,
                seq: row.get(22),
                check_at: if may_run { row.get(15) } else { now },
            }
        })
        .collect();
    if !parked.is_empty() {
        put(session, &parked, now);
    }
    claimed
}
