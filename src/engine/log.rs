//! Log: a lease leaves a line for people.

use pgrx::Uuid;
use sayiir_rules::ids;

use crate::engine::{enqueue, owner};
use crate::error::{Code, Error, Result};
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::Session;
use crate::store;

/// Longest message, in bytes.
const MAX_MESSAGE: usize = 1 << 20;

pub struct Line<'a> {
    pub id: Uuid,
    pub epoch: i64,
    pub level: &'a str,
    pub message: &'a str,
    pub fields: Jsonb,
}

pub fn log(session: &Session, line: &Line) -> Result<()> {
    owner::require_read_committed("job_log")?;
    ids::check_name("level", line.level)?;
    if line.message.len() > MAX_MESSAGE {
        return Err(Error::new(
            Code::ArgumentTooLarge,
            format!(
                "message has {} bytes, more than {MAX_MESSAGE}",
                line.message.len()
            ),
        )
        .with("argument", "message"));
    }
    enqueue::check_size("fields", line.fields)?;
    if !line.fields.is_object() {
        return Err(
            Error::new(Code::ArgumentInvalid, "fields is not an object").with("argument", "fields")
        );
    }
    let lease = (line.id, line.epoch);
    if store::log::append(
        session,
        lease,
        line.level,
        line.message,
        line.fields,
        Instant::now(),
    ) {
        return Ok(());
    }
    Err(owner::lease_lost(line.id, line.epoch))
}
