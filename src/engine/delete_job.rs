//! Delete of one job: a stand-alone job that has ended goes, with everything that is its own.

use pgrx::Uuid;

use crate::engine::owner;
use crate::error::Result;
use crate::pg::spi::Session;
use crate::scope::Scope;
use crate::store;

/// Answers whether there was one. A job that has not ended, or a step, is refused.
pub fn delete(session: &Session, scope: &Scope, id: Uuid) -> Result<bool> {
    owner::require_read_committed("job_delete")?;
    let Ok(job) = owner::visible(session, scope, id) else {
        return Ok(false);
    };
    if job.workflow.is_some() {
        return Err(owner::is_step(id));
    }
    store::job::lock_standalone(session, vec![id]);
    if store::job::end(session, id).is_none() {
        // Either it has not ended, or another session has just deleted it.
        return match store::job::owner(session, id) {
            Some(_) => Err(owner::not_ended(id)),
            None => Ok(false),
        };
    }
    store::remedy::delete(session, id);
    Ok(true)
}
