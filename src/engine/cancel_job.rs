//! Cancel of one job: at once when nobody leases it, else as a request that its worker learns of by heartbeat.

use pgrx::Uuid;
use sayiir_rules::release::Outcome;

use crate::engine::{owner, settle};
use crate::error::Result;
use crate::pg::clock::Instant;
use crate::pg::spi::Session;
use crate::scope::Scope;
use crate::store;

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
    let now = Instant::now();
    if store::job::end(session, id).is_some() {
        return Ok("already_ended");
    }
    if store::job::cancel_unleased(session, vec![id], reason, now).is_empty() {
        // Leased, or a claim holds its ready row: the worker sees the request.
        store::job::request_cancel(session, id, reason, None);
        return Ok("requested");
    }
    if let (Some(workflow), Some(step)) = (workflow, job.step) {
        settle::settle(
            session,
            &workflow,
            vec![settle::StepEnd {
                step,
                outcome: Outcome::Cancelled,
            }],
            now,
        )?;
    }
    Ok("cancelled")
}
