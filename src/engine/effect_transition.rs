//! The raw transition of an effect.

use pgrx::Uuid;
use sayiir_rules::effect::Request;

use crate::engine::effect_record::{Clock, lock_for, refuse, save};
use crate::engine::enqueue;
use crate::error::Result;
use crate::pg::spi::Session;
use crate::pg::table::Line;
use crate::scope::Scope;
use crate::store::effect::Documents;

pub fn transition(
    session: &Session,
    scope: &Scope,
    id: Uuid,
    request: &Request,
    documents: &Documents,
    clock: Clock,
) -> Result<Line> {
    if let Some(output) = documents.output {
        enqueue::check_size("output", output)?;
    }
    if let Some(payload) = documents.payload {
        enqueue::check_size("payload", payload)?;
    }
    let mut record = lock_for(session, "effect_transition", scope, id)?.record;
    let event = record
        .apply(request, clock.read())
        .map_err(|refusal| refuse(id, refusal))?;
    save(session, id, &record, &[event], documents)
}
