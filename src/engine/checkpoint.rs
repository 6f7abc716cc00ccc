//! Checkpoint: a lease remembers a value under a name. No owner is locked: the job does not move.

use pgrx::Uuid;
use sayiir_rules::ids;

use crate::engine::{enqueue, owner};
use crate::error::{Code, Error, Result};
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::Session;
use crate::store;

/// Sets a value; the last one of a name counts.
pub fn set(session: &Session, id: Uuid, epoch: i64, name: &str, value: Jsonb) -> Result<()> {
    owner::require_read_committed("job_checkpoint")?;
    ids::check_name("name", name)?;
    enqueue::check_size("value", value)?;
    if store::checkpoint::set_value(session, id, epoch, name, value, Instant::now()) {
        return Ok(());
    }
    if store::lease::exists(session, id, epoch) {
        return Err(conflict(id, name));
    }
    Err(owner::lease_lost(id, epoch))
}

/// Refuses a name that the job's code has used for something else.
pub fn conflict(id: Uuid, name: &str) -> Error {
    Error::new(
        Code::JobCheckpointConflict,
        format!("checkpoint {name:?} of job {id} remembers something else"),
    )
    .with("job_id", id.to_string())
    .with("name", name)
}
