//! What the transitions of an effect share: its lock, its clock, its refusals, and what follows a save.

use pgrx::Uuid;
use sayiir_rules::effect::record::LATEST_MS;
use sayiir_rules::effect::{Event, Record, Refusal};

use crate::engine::owner;
use crate::error::{Code, Error, Result};
use crate::pg::clock::Instant;
use crate::pg::spi::Session;
use crate::pg::table::Line;
use crate::pg::xact;
use crate::runtime::wake;
use crate::scope::Scope;
use crate::settings;
use crate::store;
use crate::store::effect::{Documents, Locked};

/// Whose clock counts.
#[derive(Clone, Copy)]
pub enum Clock {
    Database,
    /// Milliseconds since 1970; for tests, and refused unless a superuser allows it.
    Caller(i64),
}

impl Clock {
    pub fn of(caller_now: Option<Instant>) -> Result<Self> {
        match caller_now {
            None => Ok(Self::Database),
            Some(_) if !settings::ALLOW_CALLER_CLOCK.get() => Err(Error::new(
                Code::EffectCallerClockDenied,
                "caller_now is given, but sayiir.allow_caller_clock is off",
            )),
            Some(now) if !now.is_finite() => Err(Error::new(
                Code::ArgumentOutOfRange,
                "caller_now is infinite",
            )
            .with("argument", "caller_now")),
            Some(now) => Ok(Self::Caller(now.unix_ms())),
        }
    }

    /// The time. Call it when the row is locked: a time read before can be stale by the whole wait for the lock.
    pub fn read(self) -> i64 {
        match self {
            Self::Database => Instant::now().unix_ms(),
            Self::Caller(ms) => ms,
        }
    }
}

/// Locks the row of an effect that the scope sees.
pub fn lock(session: &Session, scope: &Scope, id: Uuid) -> Result<Locked> {
    store::effect::lock(session, scope, id).ok_or_else(|| not_found(id))
}

/// Like [`lock`], for the function `what`, which needs READ COMMITTED.
pub fn lock_for(session: &Session, what: &str, scope: &Scope, id: Uuid) -> Result<Locked> {
    owner::require_read_committed(what)?;
    lock(session, scope, id)
}

/// Writes a changed record with its events, and wakes who waits for what they say.
pub fn save(
    session: &Session,
    id: Uuid,
    record: &Record,
    events: &[Event],
    documents: &Documents,
) -> Result<Line> {
    let line = store::effect::save(session, id, record, events, documents);
    after_save(session, id, record, events);
    line.ok_or_else(|| not_found(id))
}

/// What follows a save: an attempt that is about to act outside must be on disk before it does; a sweep has to look when the lease of
/// an effect in flight ends; who waits for its end is woken.
pub fn after_save(session: &Session, id: Uuid, record: &Record, events: &[Event]) {
    if events.iter().any(|event| event.transition.is_intent()) && xact::commits_asynchronously() {
        store::effect::force_durable(session);
    }
    if let Some(check_at) = store::effect::check_at(record) {
        wake::timer_at(check_at);
    }
    if !events.is_empty() && record.status.is_reportable() {
        wake::effect_settled(id, record.status.as_str());
    }
}

/// A `next_attempt_at` in milliseconds.
pub fn time_argument(at: Option<Instant>) -> Result<Option<i64>> {
    match at {
        Some(at) if !at.is_finite() || at.unix_ms() > LATEST_MS => Err(Error::new(
            Code::ArgumentOutOfRange,
            "next_attempt_at is infinite",
        )
        .with("argument", "next_attempt_at")),
        at => Ok(at.map(Instant::unix_ms)),
    }
}

pub fn not_found(id: Uuid) -> Error {
    Error::new(Code::EffectNotFound, format!("there is no effect {id}")).with("id", id.to_string())
}

/// What a refusal of the rules says to the caller.
pub fn refuse(id: Uuid, refusal: Refusal) -> Error {
    let error = match refusal {
        Refusal::LeaseHeld { owner, expires_at } => Error::new(
            Code::EffectLeaseHeld,
            format!("effect {id} is leased by {owner}"),
        )
        .with("owner", owner)
        .with("expires_at_ms", expires_at),
        Refusal::LeaseLost {
            reason,
            current_epoch,
        } => Error::new(
            Code::EffectLeaseLost,
            format!("the lease on effect {id} is lost: {}", reason.as_str()),
        )
        .with("reason", reason.as_str())
        .with("current_epoch", current_epoch),
        Refusal::VersionConflict { expected, actual } => Error::new(
            Code::EffectVersionConflict,
            format!("effect {id} is at version {actual}, not {expected}"),
        )
        .with("expected", expected)
        .with("actual", actual),
        Refusal::InvalidTransition {
            from,
            transition,
            may_have_applied,
        } => Error::new(
            Code::EffectInvalidTransition,
            if may_have_applied {
                format!("effect {id} cannot fail: an earlier attempt may have applied it")
            } else {
                format!("{transition} does not lead on from {from}")
            },
        )
        .with("from", from.as_str())
        .with("transition", transition.as_str())
        .with(
            "reason",
            if may_have_applied {
                "may_have_applied"
            } else {
                "table"
            },
        ),
    };
    error.with("id", id.to_string())
}
