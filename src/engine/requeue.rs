//! Requeue: a dead-lettered, cancelled or held job runs again as a new run, its attempts counted anew.

use std::collections::HashSet;

use pgrx::Uuid;

use crate::engine::owner;
use crate::error::{Code, Error, Result};
use crate::pg::clock::Instant;
use crate::pg::spi::Session;
use crate::pg::xact;
use crate::runtime::wake;
use crate::scope::Scope;
use crate::store;
use crate::store::remedy::Which;

/// How to requeue.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Only if this is the run that has ended.
    pub expected_run: Option<i32>,
    /// The new run begins without checkpoints.
    pub reset_checkpoints: bool,
    pub reason: Option<&'a str>,
}

/// Answers (disposition: requeued, mismatch, not_quiet, not_found; run_number).
pub fn requeue(
    session: &Session,
    scope: &Scope,
    id: Uuid,
    request: Request,
) -> Result<(&'static str, Option<i32>)> {
    owner::require_read_committed("job_requeue")?;
    let Some(job) =
        store::job::owner(session, id).filter(|job| scope.sees(job.organization.as_deref()))
    else {
        return Ok(("not_found", None));
    };
    match job.workflow {
        None => store::job::lock_standalone(session, vec![id]),
        Some(workflow) => drop(store::workflow::lock(session, vec![workflow])),
    }
    let now = Instant::now();
    xact::assign_xid();
    if store::lease::leased(session, id) {
        return Ok(("not_quiet", None));
    }
    let end = store::job::end(session, id);
    let run_number = match &end {
        Some(end) => Some(end.run_number),
        None => store::remedy::held_run(session, id),
    };
    let Some(run_number) = run_number else {
        // Retention may have deleted it while we waited for its lock.
        let is_there = store::job::owner(session, id).is_some();
        return Ok((if is_there { "mismatch" } else { "not_found" }, None));
    };
    if request
        .expected_run
        .is_some_and(|expected| expected != run_number)
    {
        return Ok(("mismatch", Some(run_number)));
    }
    let requeued = match end {
        Some(_) if job.workflow.is_some() => {
            return Err(Error::new(
                Code::JobNotRequeueable,
                format!("job {id} is a step that has ended"),
            )
            .with("job_id", id.to_string()));
        }
        Some(_) => store::remedy::requeue_ended(session, id, request.reason, now),
        None => store::remedy::requeue_held(session, id, request.reason, now),
    };
    match requeued {
        Some(run_number) => {
            if request.reset_checkpoints {
                store::checkpoint::reset(session, id);
            }
            if let Some(task) = store::job::task(session, id) {
                wake::job_ready(&task);
            }
            Ok(("requeued", Some(run_number)))
        }
        None => Ok(("mismatch", Some(run_number))),
    }
}

/// Requeues dead letters by the lot; those that another session holds are left out. Answers the jobs.
pub fn requeue_dead(session: &Session, which: &Which) -> Result<Vec<Uuid>> {
    owner::require_read_committed("dead_letters_requeue")?;
    let found = store::remedy::dead_letters(session, which);
    if found.is_empty() {
        return Ok(found);
    }
    // Never waits, so the order of the failures, which is the order of the new runs, may differ from that of the locks.
    let locked: HashSet<Uuid> = store::job::try_lock_standalone(session, found.clone())
        .into_iter()
        .collect();
    let now = Instant::now();
    let mut requeued = Vec::with_capacity(found.len());
    for id in found {
        if locked.contains(&id) && store::remedy::requeue_ended(session, id, None, now).is_some() {
            requeued.push(id);
            if let Some(task) = store::job::task(session, id) {
                wake::job_ready(&task);
            }
        }
    }
    Ok(requeued)
}
