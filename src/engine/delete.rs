//! Delete: a finished workflow goes, with everything that is its own.

use crate::engine::owner;
use crate::error::{Code, Error, Result};
use crate::pg::clock::Instant;
use crate::pg::spi::Session;
use crate::pg::xact;
use crate::scope::Scope;
use crate::store;
use crate::store::workflow::Workflow;

/// Answers whether there was one. A workflow that has not finished is refused, also one whose cancelled leases are not quiet.
pub fn delete(session: &Session, scope: &Scope, workflow_id: &str) -> Result<bool> {
    owner::require_read_committed("workflow_delete")?;
    let Some(id) = store::workflow::find(session, scope, workflow_id) else {
        return Ok(false);
    };
    let Some(workflow) = store::workflow::lock(session, vec![id]).pop() else {
        return Ok(false);
    };
    if !workflow.status.is_terminal() || store::workflow::is_leased(session, id) {
        return Err(Error::new(
            Code::WorkflowNotFinished,
            format!("workflow {workflow_id:?} has not finished"),
        )
        .with("workflow_id", workflow_id)
        .with("status", workflow.status.as_str()));
    }
    remove(session, &workflow)?;
    Ok(true)
}

/// Removes a locked workflow that has ended. A hot row that another session holds, a claim or heartbeat in progress, is waited for a
/// moment but never locked against: who holds it may be about to lock this workflow.
pub fn remove(session: &Session, workflow: &Workflow) -> Result<()> {
    let deadline = Instant::now().plus_us(owner::BUSY_MS * 1000);
    loop {
        store::workflow::delete_hot(session, workflow.id);
        if !store::workflow::is_live(session, workflow.id) {
            break;
        }
        if Instant::now() >= deadline {
            return Err(Error::new(
                Code::JobBusy,
                format!(
                    "another session holds a job of workflow {:?}",
                    workflow.workflow_id
                ),
            )
            .with("workflow_id", workflow.workflow_id.clone()));
        }
        xact::sleep_ms(owner::BUSY_STEP_MS);
    }
    store::workflow::delete(session, workflow.id);
    Ok(())
}
