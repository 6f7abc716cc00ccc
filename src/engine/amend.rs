//! Amend: a stand-alone job that nobody has claimed gets another payload. It is the one update of a record.

use pgrx::Uuid;

use crate::engine::{enqueue, owner};
use crate::error::Result;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::Session;
use crate::pg::xact;
use crate::runtime::wake;
use crate::scope::Scope;
use crate::store;

/// Answers amended; claimed: a worker has, or has had it; keyed: a key stands for its request; ended.
pub fn amend(session: &Session, scope: &Scope, id: Uuid, payload: Jsonb) -> Result<&'static str> {
    owner::require_read_committed("job_amend")?;
    enqueue::check_size("payload", payload)?;
    let job = owner::visible(session, scope, id)?;
    if job.workflow.is_some() {
        return Err(owner::is_step(id));
    }
    store::job::lock_standalone(session, vec![id]);
    if store::job::end(session, id).is_some() {
        return Ok("ended");
    }
    if store::remedy::is_keyed(session, id) {
        return Ok("keyed");
    }
    xact::assign_xid();
    if !store::remedy::amend(session, id, payload) {
        return Ok("claimed");
    }
    if let Some(task) = store::job::task(session, id) {
        wake::job_ready(&task);
    }
    Ok("amended")
}
