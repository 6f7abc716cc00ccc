//! Delete: a finished workflow goes, with everything that is its own.

use crate::engine::owner;
use crate::error::{Code, Error, Result};
use crate::pg::spi::Session;
use crate::scope::Scope;
use crate::store;

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
    store::workflow::delete(session, id);
    Ok(true)
}
