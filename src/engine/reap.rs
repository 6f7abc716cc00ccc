//! Reap: leases that nobody kept alive end. The attempt was counted at claim, so a job that kills its workers is dead-lettered
//! after max_attempts; it cannot loop for ever.

use pgrx::Uuid;
use sayiir_rules::retry::FailureKind;

use crate::engine::{fail, owner};
use crate::error::Result;
use crate::pg::clock::Instant;
use crate::pg::spi::Session;
use crate::store;

/// Leases whose check is due: (job, workflow). No lock.
pub fn due(session: &Session, max_rows: i32) -> Vec<(Uuid, Option<i64>)> {
    store::lease::due_checks(session, Instant::now(), max_rows)
}

/// Ends those of the given leases that have expired; answers (job, disposition).
pub fn reap(session: &Session, due: &[(Uuid, Option<i64>)]) -> Result<Vec<(Uuid, &'static str)>> {
    // Sweeps lock owners SKIP LOCKED and come back: a busy owner never holds up the others.
    let owner::Reached {
        jobs: ids,
        workflows,
    } = owner::try_lock(session, due);
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let now = Instant::now();
    let taken = store::lease::take_expired(session, ids.clone(), now);
    store::lease::postpone_checks(session, ids, now);
    let reports: Vec<fail::Report> = taken
        .iter()
        .map(|lease| {
            let timed_out = lease.deadline_at.is_some_and(|deadline| deadline <= now);
            fail::Report {
                lease,
                kind: if timed_out {
                    FailureKind::Timeout
                } else {
                    FailureKind::Expired
                },
                error_code: if timed_out {
                    "job.timeout"
                } else {
                    "job.lease_expired"
                }
                .to_owned(),
                error_message: Some(if lease.job_deadline.is_some_and(|at| at <= now) {
                    "the deadline of all attempts has passed".to_owned()
                } else if timed_out {
                    format!("attempt {} ran longer than its timeout", lease.attempt)
                } else {
                    format!("worker {} was silent longer than its lease", lease.worker)
                }),
                retry_at: None,
            }
        })
        .collect();
    let answers = fail::record(session, &workflows, &reports, now)?;
    Ok(taken
        .iter()
        .zip(answers)
        .map(|(lease, (disposition, _))| (lease.id, disposition))
        .collect())
}
