//! The owner row: every transition of a job except a plain claim locks it first, then reads everything else again.

use std::collections::{BTreeMap, HashMap, HashSet};

use pgrx::Uuid;

use crate::error::{Code, Error, Result};
use crate::pg::clock::Instant;
use crate::pg::spi::Session;
use crate::pg::xact;
use crate::scope::Scope;
use crate::store;
use crate::store::job::{Owned, Parent};
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

/// A set of owners: jobs that own themselves, and workflows.
#[derive(Default)]
struct Owners {
    standalone: Vec<Uuid>,
    workflows: Vec<i64>,
}

impl Owners {
    /// The owner of a job, and that of its parent, which the job's end concerns.
    fn add(&mut self, id: Uuid, workflow: Option<i64>, parent: Option<Parent>) {
        let parent = parent.map(|parent| (parent.id, parent.workflow));
        for (id, workflow) in [Some((id, workflow)), parent].into_iter().flatten() {
            match workflow {
                None => self.standalone.push(id),
                Some(workflow) => self.workflows.push(workflow),
            }
        }
    }

    /// Stand-alone jobs first, then workflows, each deepest first.
    fn lock(mut self, session: &Session) -> Locked {
        if !self.standalone.is_empty() {
            store::job::lock_standalone(session, self.standalone);
        }
        if self.workflows.is_empty() {
            return Locked::new();
        }
        self.workflows.sort_unstable();
        self.workflows.dedup();
        by_key(store::workflow::lock(session, self.workflows))
    }
}

fn by_key(workflows: Vec<Workflow>) -> Locked {
    workflows
        .into_iter()
        .map(|workflow| (workflow.id, workflow))
        .collect()
}

/// Locks the owners of leases and of their parents.
pub fn lock(session: &Session, leases: &[store::lease::Lease]) -> Locked {
    let mut owners = Owners::default();
    for lease in leases {
        owners.add(lease.id, lease.workflow, lease.parent);
    }
    owners.lock(session)
}

/// Locks the owner of one job and that of its parent.
pub fn lock_job(session: &Session, id: Uuid, job: &Owned) -> Locked {
    let mut owners = Owners::default();
    owners.add(id, job.workflow, job.parent);
    owners.lock(session)
}

/// What a sweep got of the owners that it wanted: others are left for the next one.
pub struct Reached {
    /// Of the jobs asked for, those whose owners, parents' included, are locked.
    pub jobs: Vec<Uuid>,
    pub workflows: Locked,
}

/// Locks, as sweeps do, the owners of jobs and of their parents that no other session holds.
pub fn try_lock(session: &Session, jobs: &[(Uuid, Option<i64>)]) -> Reached {
    let standalone: Vec<Uuid> = jobs
        .iter()
        .filter(|(_, workflow)| workflow.is_none())
        .map(|(id, _)| *id)
        .collect();
    let parents: HashMap<Uuid, Parent> = if standalone.is_empty() {
        HashMap::new()
    } else {
        store::family::parents(session, standalone)
            .into_iter()
            .collect()
    };
    let mut owners = Owners::default();
    for (id, workflow) in jobs {
        owners.add(*id, *workflow, parents.get(id).copied());
    }
    let mut got: HashSet<Uuid> = HashSet::new();
    if !owners.standalone.is_empty() {
        got.extend(store::job::try_lock_standalone(session, owners.standalone));
    }
    let mut workflows = Locked::new();
    if !owners.workflows.is_empty() {
        owners.workflows.sort_unstable();
        owners.workflows.dedup();
        workflows = by_key(store::workflow::try_lock(session, owners.workflows));
    }
    let has = |id: Uuid, workflow: Option<i64>| match workflow {
        None => got.contains(&id),
        Some(workflow) => workflows.contains_key(&workflow),
    };
    let jobs = jobs
        .iter()
        .filter(|(id, workflow)| {
            has(*id, *workflow)
                && parents
                    .get(id)
                    .is_none_or(|parent| has(parent.id, parent.workflow))
        })
        .map(|(id, _)| *id)
        .collect();
    Reached { jobs, workflows }
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

/// Who owns a job that the scope sees; no lock.
pub fn visible(session: &Session, scope: &Scope, id: Uuid) -> Result<Owned> {
    store::job::owner(session, id)
        .filter(|job| scope.sees(job.organization.as_deref()))
        .ok_or_else(|| job_not_found(id))
}

/// Refuses a job that has not ended.
pub fn not_ended(id: Uuid) -> Error {
    Error::new(Code::JobNotEnded, format!("job {id} has not ended")).with("job_id", id.to_string())
}

/// Refuses a step where only a stand-alone job makes sense.
pub fn is_step(id: Uuid) -> Error {
    Error::new(Code::JobIsStep, format!("job {id} is a step")).with("job_id", id.to_string())
}

/// Refuses an unknown job.
pub fn job_not_found(id: Uuid) -> Error {
    Error::new(Code::JobNotFound, format!("there is no job {id}")).with("job_id", id.to_string())
}
