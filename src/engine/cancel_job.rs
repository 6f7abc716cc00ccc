//! Cancel of one job: at once when nobody leases it, else as a request that its worker learns of by heartbeat.

use pgrx::Uuid;
use sayiir_rules::release::Outcome;

use crate::engine::{family, owner, settle};
use crate::error::Result;
use crate::pg::clock::Instant;
use crate::pg::spi::Session;
use crate::scope::Scope;
use crate::store;
use crate::store::job::Owned;

/// Answers cancelled, requested or already_ended.
pub fn cancel_job(
    session: &Session,
    scope: &Scope,
    id: Uuid,
    reason: Option<&str>,
) -> Result<&'static str> {
    owner::require_read_committed("job_cancel")?;
    let job = store::job::owner(session, id)
        .filter(|job| scope.sees(job.organization.as_deref()))
        .ok_or_else(|| owner::job_not_found(id))?;
    let workflows = owner::lock_job(session, id, &job);
    if store::job::end(session, id).is_some() {
        return Ok("already_ended");
    }
    if apply(session, id, &job, &workflows, reason)? {
        return Ok("cancelled");
    }
    // Leased, or a claim or sweep holds its row: the worker sees the request, or the next sweep applies it.
    store::job::request_cancel(session, id, reason, None);
    Ok("requested")
}

/// Ends a job that nobody leases; its owner is locked. False: somebody leases it, or holds its row.
fn apply(
    session: &Session,
    id: Uuid,
    job: &Owned,
    workflows: &owner::Locked,
    reason: Option<&str>,
) -> Result<bool> {
    let now = Instant::now();
    if store::job::cancel_unleased(session, vec![id], reason, now).is_empty() {
        return Ok(false);
    }
    store::job::answer_signals(session, vec![id]);
    family::ended(session, vec![id], vec![id], workflows, now);
    let workflow = job.workflow.and_then(|workflow| workflows.get(&workflow));
    if let (Some(workflow), Some(step)) = (workflow, job.step.clone()) {
        let outcome = Outcome::Cancelled;
        settle::settle(
            session,
            workflow,
            vec![settle::StepEnd { step, outcome }],
            now,
        )?;
    }
    Ok(true)
}

/// Requests to jobs that nobody leases (any more): a claim that held the row when the cancel came was rolled back, or a sweep
/// was moving it. Job and reason. No lock.
pub fn due(session: &Session, max_rows: i32) -> Vec<(Uuid, Option<String>)> {
    store::job::unleased_requests(session, max_rows)
}

/// Applies them; those whose owner another session holds are left for the next sweep.
pub fn apply_due(session: &Session, due: &[(Uuid, Option<String>)]) -> Result<i64> {
    let mut applied = 0;
    for (id, reason) in due {
        let Some(job) = store::job::owner(session, *id) else {
            continue;
        };
        let reached = owner::try_lock(session, &[(*id, job.workflow)]);
        if !reached.jobs.is_empty()
            && apply(session, *id, &job, &reached.workflows, reason.as_deref())?
        {
            applied += 1;
        }
    }
    Ok(applied)
}
