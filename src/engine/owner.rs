//! The owner row: every transition of a job except a plain claim locks it first, then reads everything else again.

use std::collections::{BTreeMap, HashSet};

use pgrx::Uuid;

use crate::error::{Code, Error, Result};
use crate::pg::clock::Instant;
use crate::pg::spi::Session;
use crate::pg::xact;
use crate::store;
use crate::store::workflow::Workflow;

/// The workflows that a call locked, by key; in key order, so that what follows the locks comes in one order too.
pub type Locked = BTreeMap<i64, Workflow>;

/// What runs after a lock must see what the lock waited for: a fixed snapshot does not.
pub fn require_read_committed(what: &str) -> Result<()> {
    if xact::snapshot_is_fixed() {
        return Err(Error::new(
            Code::CallIsolationUnsupported,
            format!("{what} needs READ COMMITTED"),
        )
        .with("function", what));
    }
    Ok(())
}

/// Locks the owners of leases: stand-alone jobs first, then workflows, each deepest first.
pub fn lock(session: &Session, leases: &[store::lease::Lease]) -> Locked {
    let standalone: Vec<Uuid> = leases
        .iter()
        .filter(|lease| lease.workflow.is_none())
        .map(|lease| lease.id)
        .collect();
    if !standalone.is_empty() {
        store::job::lock_standalone(session, standalone);
    }
    let mut workflows: Vec<i64> = leases.iter().filter_map(|lease| lease.workflow).collect();
    if workflows.is_empty() {
        return Locked::new();
    }
    workflows.sort_unstable();
    workflows.dedup();
    store::workflow::lock(session, workflows)
        .into_iter()
        .map(|workflow| (workflow.id, workflow))
        .collect()
}

/// How long a call tries to get a lease row that another session holds for a moment (a heartbeat, the reaper), in milliseconds.
pub const BUSY_MS: i64 = 500;
/// Between two tries, in milliseconds.
pub const BUSY_STEP_MS: i64 = 5;

/// Calls `take` until it has got every lease that still exists, or the time is up. `take` gets the leases still wanted and
/// answers the jobs that it got.
pub fn take_all(
    session: &Session,
    leases: &[store::lease::Lease],
    epochs: &[i64],
    mut take: impl FnMut(&[&store::lease::Lease]) -> Vec<Uuid>,
) {
    let mut wanted: Vec<&store::lease::Lease> = leases.iter().collect();
    let deadline = Instant::now().plus_us(BUSY_MS * 1000);
    while !wanted.is_empty() {
        let got: HashSet<Uuid> = take(&wanted).into_iter().collect();
        wanted.retain(|lease| {
            !got.contains(&lease.id) && store::lease::exists(session, lease.id, epochs[lease.n])
        });
        if wanted.is_empty() || Instant::now() >= deadline {
            return;
        }
        xact::sleep_ms(BUSY_STEP_MS);
    }
}

/// Refuses a stale lease.
pub fn lease_lost(id: Uuid, epoch: i64) -> Error {
    Error::new(
        Code::JobLeaseLost,
        format!("job {id} is not leased under epoch {epoch}"),
    )
    .with("job_id", id.to_string())
    .with("epoch", epoch)
}

/// Refuses, for now, a lease row that another session holds.
pub fn busy(id: Uuid) -> Error {
    Error::new(
        Code::JobBusy,
        format!("another session holds the lease of job {id}"),
    )
    .with("job_id", id.to_string())
}

/// Refuses an unknown job.
pub fn job_not_found(id: Uuid) -> Error {
    Error::new(Code::JobNotFound, format!("there is no job {id}")).with("job_id", id.to_string())
}
