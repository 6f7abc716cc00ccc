//! Parking: a lease that durable code leaves to wait, and how it comes back.

use pgrx::Uuid;

use crate::args;
use crate::pg::clock::Instant;
use crate::pg::spi::{Row, Session, Statement};
use crate::pg::types::{INT8, TEXT, TIME, UUID, UUIDS};

/// A lease as durable code needs it; its owner is locked.
pub struct Held {
    /// The deadline of all attempts.
    pub deadline: Option<Instant>,
    pub cancel_requested: bool,
    pub step: Option<String>,
}

pub fn held(session: &Session, id: Uuid, epoch: i64) -> Option<Held> {
    // job_lease_pkey, job_pkey, signal_pkey
    static HELD: Statement = Statement::new(
        &[UUID, INT8],
        "SELECT j.deadline_at, EXISTS (SELECT FROM sayiir.signal s WHERE s.job_id = l.job_id AND s.kind = 'cancel'), j.step
         FROM sayiir.job_lease l JOIN sayiir.job j USING (job_id) WHERE l.job_id = $1 AND l.epoch = $2",
    );
    HELD.run(session, args![id, epoch]).first().map(|row| Held {
        deadline: row.opt(1),
        cancel_requested: row.get(2),
        step: row.opt(3),
    })
}

/// What a job waits for.
pub struct Wait<'a> {
    /// delay, event, child.
    pub reason: &'a str,
    pub due: Option<Instant>,
    pub event: Option<&'a str>,
}

/// Moves a lease to wait; false when another session holds it, or it is gone. Parking burns no attempt.
pub fn park(session: &Session, (id, epoch): (Uuid, i64), wait: &Wait, now: Instant) -> bool {
    // job_lease_pkey, job_pkey
    static PARK: Statement = Statement::new(
        &[UUID, INT8, TEXT, TIME, TEXT, TIME],
        "WITH locked AS MATERIALIZED (
             SELECT job_id FROM sayiir.job_lease WHERE job_id = $1 AND epoch = $2 FOR UPDATE SKIP LOCKED),
         gone AS (DELETE FROM sayiir.job_lease l USING locked k WHERE l.job_id = k.job_id RETURNING l.*)
         INSERT INTO sayiir.job_wait (job_id, workflow, lane, reason, due, event, seq, run_number, attempt, epoch, since)
         SELECT g.job_id, g.workflow, g.lane, $3::sayiir.wait_reason, least($4, j.deadline_at), $5, nextval('sayiir.wait_seq'),
             g.run_number, g.attempt - 1, g.epoch, $6
         FROM gone g JOIN sayiir.job j USING (job_id)
         RETURNING true",
    );
    !PARK
        .run(
            session,
            args![id, epoch, wait.reason, wait.due, wait.event, now],
        )
        .is_empty()
}

/// A parked job that has left `job_wait`.
pub struct Parked {
    pub id: Uuid,
    pub workflow: Option<i64>,
    pub lane: i64,
    pub task: String,
    pub run_number: i32,
    pub attempt: i32,
    pub epoch: i64,
}

fn parked(row: Row) -> Parked {
    Parked {
        id: row.get(1),
        workflow: row.opt(2),
        lane: row.get(3),
        task: row.get(4),
        run_number: row.get(5),
        attempt: row.get(6),
        epoch: row.get(7),
    }
}

macro_rules! take {
    ($which:literal) => {
        concat!(
            "WITH locked AS MATERIALIZED (",
            $which,
            "),
             gone AS (DELETE FROM sayiir.job_wait w USING locked k WHERE w.job_id = k.job_id RETURNING w.*)
             SELECT g.job_id, g.workflow, g.lane, n.task, g.run_number, g.attempt, g.epoch
             FROM gone g JOIN sayiir.lane n ON n.lane = g.lane"
        )
    };
}

/// Takes a stand-alone job that waits for the event. Its owner is locked, under which alone such waits move.
pub fn take_event(session: &Session, id: Uuid, event: &str) -> Option<Parked> {
    // job_wait_pkey, lane_pkey
    static TAKE: Statement = Statement::new(
        &[UUID, TEXT],
        take!(
            "SELECT job_id FROM sayiir.job_wait WHERE job_id = $1 AND reason = 'event' AND event = $2 FOR UPDATE"
        ),
    );
    TAKE.run(session, args![id, event]).first().map(parked)
}

/// Takes the parents that wait for one of these children. Their owners are locked.
pub fn take_parents(session: &Session, children: Vec<Uuid>) -> Vec<Parked> {
    // job_pkey, job_wait_pkey, checkpoint_pkey (leading column), lane_pkey
    static TAKE: Statement = Statement::new(
        &[UUIDS],
        take!(
            "SELECT w.job_id FROM sayiir.job c
             JOIN sayiir.job_wait w ON w.job_id = c.parent
             JOIN sayiir.checkpoint q ON q.job_id = w.job_id AND q.epoch = w.epoch AND q.child = c.job_id
             WHERE c.job_id = ANY ($1) AND w.reason = 'child' AND q.value IS NULL
             FOR UPDATE OF w"
        ),
    );
    TAKE.run(session, args![children])
        .iter()
        .map(parked)
        .collect()
}

/// Takes those of the given stand-alone jobs, whose owners are locked, that are due.
pub fn take_due(session: &Session, ids: Vec<Uuid>, now: Instant) -> Vec<Parked> {
    // job_wait_pkey, lane_pkey
    static TAKE: Statement = Statement::new(
        &[UUIDS, TIME],
        take!(
            "SELECT job_id FROM sayiir.job_wait
             WHERE job_id = ANY ($1) AND workflow IS NULL AND reason IN ('delay', 'event', 'child') AND due <= $2
             FOR UPDATE SKIP LOCKED"
        ),
    );
    TAKE.run(session, args![ids, now])
        .iter()
        .map(parked)
        .collect()
}

/// Gives the parked steps of a workflow that runs again their times back, which a sweep had taken while it was paused. Answers whether
/// there were any.
pub fn restart_clocks(session: &Session, workflow: i64) -> bool {
    // job_wait_workflow, checkpoint_pkey (leading column), job_pkey
    static RESTART: Statement = Statement::new(
        &[INT8],
        "UPDATE sayiir.job_wait w SET due = least(c.due, j.deadline_at) FROM sayiir.checkpoint c, sayiir.job j
         WHERE w.workflow = $1 AND w.due IS NULL AND w.lane IS NOT NULL AND w.reason IN ('delay', 'event', 'child')
           AND c.job_id = w.job_id AND c.epoch = w.epoch AND c.value IS NULL AND j.job_id = w.job_id
           AND (c.due IS NOT NULL OR j.deadline_at IS NOT NULL)",
    );
    RESTART.run(session, args![workflow]).count() > 0
}
