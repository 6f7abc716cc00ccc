//! Insert or get: the raw way to record an effect, and to store what a late worker saw.

use pgrx::Uuid;
use sayiir_rules::effect::Kind;

use crate::engine::effect_record::{Clock, not_found};
use crate::engine::{enqueue, owner};
use crate::error::{Code, Error, Result};
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::Session;
use crate::pg::table::Line;
use crate::scope::Scope;
use crate::store;
use crate::store::effect::New;

/// A row of `effect_inserted`. What has the key already is answered untouched, whatever it is.
pub fn insert_or_get(session: &Session, new: &New, kind: Kind, clock: Clock) -> Result<Line> {
    owner::require_read_committed("effect_insert_or_get")?;
    if let Some(input) = new.input {
        enqueue::check_size("input", input)?;
    }
    loop {
        if let Some(line) = store::effect::insert(session, new, kind, clock.read()) {
            return Ok(line);
        }
        let found = store::effect::read_key(session, new.organization, new.name, new.logical_key);
        if let Some(line) = found {
            return Ok(line);
        }
        if store::effect::id_exists(session, new.id) {
            return Err(Error::new(
                Code::EffectIdConflict,
                format!("the id {} belongs to another effect", new.id),
            )
            .with("id", new.id.to_string()));
        }
        // Pruned or superseded between the two statements: it is free now.
        pgrx::check_for_interrupts!();
    }
}

/// Stores an observation; false = its id is there already.
pub fn append_observation(
    session: &Session,
    scope: &Scope,
    id: Uuid,
    effect: Uuid,
    observation: Jsonb,
) -> Result<bool> {
    owner::require_read_committed("effect_append_observation")?;
    enqueue::check_size("observation", observation)?;
    store::effect::append_observation(session, scope, id, effect, observation)
        .ok_or_else(|| not_found(effect))
}
