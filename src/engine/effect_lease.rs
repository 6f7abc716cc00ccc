//! Leases of effects: acquire, renew, release, assert, and many at once.

use pgrx::Uuid;
use sayiir_rules::effect::Record;

use crate::columns;
use crate::engine::effect_record::{Clock, lock_for, refuse};
use crate::engine::owner;
use crate::error::Result;
use crate::pg::clock::Instant;
use crate::pg::spi::Session;
use crate::pg::table::Line;
use crate::scope::Scope;
use crate::store;

/// A row of `effect_lease`.
fn line(id: Uuid, record: &Record) -> Line {
    Line::Values(columns![
        id,
        record.lease_owner.clone(),
        record.lease_epoch,
        record.lease_expires_at.map(Instant::from_unix_ms)
    ])
}

pub fn acquire(
    session: &Session,
    scope: &Scope,
    id: Uuid,
    owner: &str,
    ttl_ms: i64,
    clock: Clock,
) -> Result<Line> {
    let mut record = lock_for(session, "effect_acquire_lease", scope, id)?.record;
    record
        .acquire(owner, ttl_ms, clock.read())
        .map_err(|refusal| refuse(id, refusal))?;
    store::effect::save_lease(session, id, &record);
    Ok(line(id, &record))
}

pub fn renew(
    session: &Session,
    id: Uuid,
    lease: (&str, i64),
    ttl_ms: i64,
    clock: Clock,
) -> Result<Line> {
    let mut record = lock_for(session, "effect_renew_lease", &Scope::All, id)?.record;
    record
        .renew(lease, ttl_ms, clock.read())
        .map_err(|refusal| refuse(id, refusal))?;
    store::effect::save_lease(session, id, &record);
    Ok(line(id, &record))
}

pub fn release(session: &Session, id: Uuid, lease: (&str, i64)) -> Result<bool> {
    let mut record = lock_for(session, "effect_release_lease", &Scope::All, id)?.record;
    let is_released = record.release(lease);
    if is_released {
        store::effect::save_lease(session, id, &record);
    }
    Ok(is_released)
}

/// Fails unless the lease is live. The lock stays until the transaction ends: nobody can take the lease over before the caller's own
/// writes are committed.
pub fn assert(session: &Session, id: Uuid, lease: (&str, i64)) -> Result<()> {
    lock_for(session, "effect_assert_lease", &Scope::All, id)?
        .record
        .check_lease(lease, Instant::now().unix_ms())
        .map_err(|refusal| refuse(id, refusal))
}

/// Leases what is due, as `effect_record`s.
pub fn claim_due(
    session: &Session,
    scope: &Scope,
    owner: &str,
    names: Option<Vec<String>>,
    max_rows: i32,
    ttl_ms: i64,
) -> Result<Vec<Line>> {
    owner::require_read_committed("effect_claim_due")?;
    let due =
        store::effect_set::lock_due(session, scope, names, Instant::now().unix_ms(), max_rows);
    let now = Instant::now().unix_ms();
    let mut expires_at = now;
    let mut ids = Vec::with_capacity(due.len());
    for mut locked in due {
        if locked.record.acquire(owner, ttl_ms, now).is_ok() {
            expires_at = locked.record.lease_expires_at.unwrap_or(now);
            ids.push(locked.id);
        }
    }
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    Ok(store::effect::save_leases(session, ids, owner, expires_at))
}
