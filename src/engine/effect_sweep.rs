//! Recover and prune: effects whose worker died, and those that nobody needs any more.

use pgrx::Uuid;
use sayiir_rules::effect::{Request, Status, Transition};

use crate::engine::effect_record::{Clock, after_save};
use crate::engine::owner;
use crate::error::Result;
use crate::pg::clock::Instant;
use crate::pg::spi::Session;
use crate::scope::Scope;
use crate::store;

/// Whose recovery it is, in the trail.
const ACTOR: &str = "recovery:tick";

/// Effects in flight whose check is due. No lock.
pub fn due(session: &Session, max_rows: i32) -> Vec<Uuid> {
    store::effect_set::due_checks(session, Instant::now(), max_rows)
}

/// Of the given effects, those whose lease is over become unknown; the checks of the others move to the end of their lease. What
/// follows from unknown is decided by the next `effect_begin`, `effect_claim_due`, or a person. Locked rows are left for the next time.
pub fn recover(session: &Session, due: &[Uuid]) -> Result<i64> {
    let locked = store::effect_set::try_lock(session, due.to_vec());
    let now = Instant::now().unix_ms();
    let mut expired = Vec::new();
    let mut alive = Vec::new();
    for mut one in locked {
        if !one.record.status.is_in_flight() {
            continue;
        }
        let request = Request::of(&one.record, Transition::LeaseExpired, None);
        match one.record.apply(&request, now) {
            Ok(mut event) => {
                event.actor = Some(ACTOR.to_owned());
                after_save(session, one.id, &one.record, std::slice::from_ref(&event));
                expired.push((one.id, one.record.attempt_ended_at, event));
            }
            Err(_) => alive.push(one.id),
        }
    }
    store::effect_set::save_expired(session, &expired, now);
    if !alive.is_empty() {
        store::effect_set::postpone_checks(session, alive);
    }
    Ok(expired.len() as i64)
}

/// Moves a check that raised.
pub fn postpone(session: &Session, id: Uuid, at: Instant) {
    store::effect_set::postpone(session, id, at);
}

/// Deletes settled effects that are old enough and that nobody holds.
pub fn prune(
    session: &Session,
    scope: &Scope,
    status: Status,
    older_than_ms: i64,
    max_rows: i64,
    clock: Clock,
) -> Result<i64> {
    owner::require_read_committed("effect_prune")?;
    let now = clock.read();
    // Nothing is older than time itself.
    const EARLIEST_MS: i64 = -210_866_803_200_000;
    let cutoff = now
        .checked_sub(older_than_ms)
        .filter(|cutoff| *cutoff >= EARLIEST_MS);
    let (Some(cutoff), true) = (cutoff, status.is_settled()) else {
        return Ok(0);
    };
    let ids = store::effect_set::lock_prunable(
        session,
        scope,
        status,
        Instant::from_unix_ms(cutoff),
        Instant::from_unix_ms(now),
        max_rows,
    );
    if ids.is_empty() {
        return Ok(0);
    }
    Ok(store::effect_set::delete(session, ids))
}
