//! Lock: a transaction that works on several workflows takes their owner locks up front, in order, so that two such transactions
//! wait for each other at most one way.

use crate::engine::{cancel, owner};
use crate::error::Result;
use crate::pg::spi::Session;
use crate::scope::Scope;
use crate::store;

/// Locks the workflows until the transaction ends; an unknown id is refused.
pub fn lock(session: &Session, scope: &Scope, workflow_ids: &[String]) -> Result<()> {
    owner::require_read_committed("workflow_lock")?;
    let keys = workflow_ids
        .iter()
        .map(|id| store::workflow::find(session, scope, id).ok_or_else(|| cancel::not_found(id)))
        .collect::<Result<Vec<i64>>>()?;
    store::workflow::lock(session, keys);
    Ok(())
}
