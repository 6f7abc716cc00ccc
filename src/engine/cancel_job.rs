//! Cancel of one job: at once when nobody leases it, else as a request that its worker learns of by heartbeat.

use pgrx::Uuid;
use sayiir_rules::release::Outcome;

use crate::engine::{owner, settle};
use crate::error::Result;
use crate::pg::clock::Instant;
use crate::pg::spi::Session;
use crate::scope::Scope;
use crate::store;
use crate::store::job::Owned;
use crate::store::workflow::Workflow;

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
    let workflow = match job.workflow {
        None => {
            store::job::lock_standalone(session, vec![id]);
            None
        }
        Some(workflow) => store::workflow::lock(session, vec![workflow]).pop(),
    };
    if store::job::end(session, id).is_some() {
        return Ok("already_ended");
    }
    if apply(session, id, &job, workflow.as_ref(), reason)? {
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
    workflow: Option<&Workflow>,
    reason: Option<&str>,
) -> Result<bool> {
    let now = Instant::now();
    if store::job::cancel_unleased(session, vec![id], reason, now).is_empty() {
        return Ok(false);
    }
    store::job::answer_signals(session, vec![id]);
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
        let (locked, workflow) = match job.workflow {
            None => {
                let got = store::job::try_lock_standalone(session, vec![*id]);
                (!got.is_empty(), None)
            }
            Some(workflow) => {
                let got = store::workflow::try_lock(session, vec![workflow]).pop();
                (got.is_some(), got)
            }
        };
        if locked && apply(session, *id, &job, workflow.as_ref(), reason.as_deref())? {
            applied += 1;
        }
    }
    Ok(applied)
}
