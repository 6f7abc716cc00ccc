//! What people do: resolve, approve, deny, and free a key.

use pgrx::Uuid;
use sayiir_rules::effect::course::Resolution;
use sayiir_rules::effect::{Failure, Request, Status, Transition};
use serde_json::json;

use crate::engine::effect_record::{lock_for, not_found, refuse, save};
use crate::engine::enqueue;
use crate::error::{Code, Error, Result};
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::Session;
use crate::pg::table::Line;
use crate::scope::Scope;
use crate::store;
use crate::store::effect::Documents;

/// Who says it, and why.
#[derive(Clone, Copy)]
pub struct Person<'a> {
    pub actor: &'a str,
    pub note: Option<&'a str>,
}

pub fn resolve(
    session: &Session,
    scope: &Scope,
    id: Uuid,
    resolution: Resolution,
    person: Person,
    output: Option<Jsonb>,
) -> Result<Line> {
    if let Some(output) = output {
        enqueue::check_size("output", output)?;
    }
    let says_why = resolution == Resolution::NotApplied;
    apply(
        session,
        ("effect_resolve", resolution.transition()),
        scope,
        id,
        person,
        output,
        says_why,
    )
}

pub fn approve(session: &Session, scope: &Scope, id: Uuid, person: Person) -> Result<Line> {
    let what = ("effect_approve", Transition::Approve);
    apply(session, what, scope, id, person, None, false)
}

pub fn deny(session: &Session, scope: &Scope, id: Uuid, person: Person) -> Result<Line> {
    let what = ("effect_deny", Transition::Deny);
    apply(session, what, scope, id, person, None, true)
}

/// An unleased transition of whatever version is there. `says_why`: the note becomes the effect's error.
fn apply(
    session: &Session,
    (what, transition): (&str, Transition),
    scope: &Scope,
    id: Uuid,
    person: Person,
    output: Option<Jsonb>,
    says_why: bool,
) -> Result<Line> {
    let mut record = lock_for(session, what, scope, id)?.record;
    let error = person.note.filter(|_| says_why).map(|message| {
        let failure = Failure {
            class: None,
            message,
        };
        Jsonb::from_value(&failure.to_value())
    });
    let request = Request {
        has_output: output.is_some(),
        has_error: error.is_some(),
        ..Request::of(&record, transition, None)
    };
    let event = record
        .apply(&request, Instant::now().unix_ms())
        .map_err(|refusal| refuse(id, refusal))?;
    let documents = Documents {
        output,
        error,
        actor: Some(person.actor),
        payload: Some(Jsonb::from_value(&json!({"note": person.note}))),
    };
    save(session, id, &record, &[event], &documents)
}

/// Frees the key of an effect that was not applied and never will be. The record stays, without its key.
pub fn supersede(session: &Session, scope: &Scope, id: Uuid, person: Person) -> Result<Line> {
    let locked = lock_for(session, "effect_supersede", scope, id)?;
    let now = Instant::now().unix_ms();
    if let Some((owner, expires_at)) = locked.record.live_lease(now) {
        let owner = owner.to_owned();
        let held = sayiir_rules::effect::Refusal::LeaseHeld { owner, expires_at };
        return Err(refuse(id, held));
    }
    let status = locked.record.status;
    if locked.is_superseded || !matches!(status, Status::Failed | Status::Rejected) {
        return Err(Error::new(
            Code::EffectNotSupersedable,
            if locked.is_superseded {
                format!("effect {id} has given up its key already")
            } else {
                format!("effect {id} is {status}")
            },
        )
        .with("id", id.to_string())
        .with("status", status.as_str()));
    }
    store::effect::supersede(session, id, now, person.actor, person.note);
    store::effect::read(session, id).ok_or_else(|| not_found(id))
}
