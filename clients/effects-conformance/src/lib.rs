//! An [`EffectStore`] over the SQL functions of sayiir: one function an operation, and no logic of its own.

pub mod harness;
mod rows;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agent_effects_store::{
    EffectEvent, EffectId, EffectKey, EffectRecord, EffectStatus, EffectStore, InsertOutcome,
    InvalidTransition, LateObservation, Lease, ListQuery, NewEffect, PruneQuery, StoreError,
    Transition, TransitionRequest, WorkerId,
};
use serde_json::Value;
use sqlx::PgPool;
use sqlx::postgres::PgDatabaseError;
use time::OffsetDateTime;
use uuid::Uuid;

/// The store. With the caller's clock it passes every `now` on, which the database has to allow.
#[derive(Clone)]
pub struct SqlStore {
    pub pool: PgPool,
    pub caller_clock: bool,
}

impl SqlStore {
    fn now(&self, now: SystemTime) -> Option<OffsetDateTime> {
        self.caller_clock.then(|| OffsetDateTime::from(now))
    }
}

fn backend(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StoreError {
    StoreError::backend(error)
}

/// The refusal that DETAIL describes.
fn refusal(error: sqlx::Error, asked: EffectId) -> StoreError {
    let detail = error
        .as_database_error()
        .and_then(|error| error.try_downcast_ref::<PgDatabaseError>())
        .and_then(|error| error.detail())
        .and_then(|detail| serde_json::from_str::<Value>(detail).ok());
    let Some(detail) = detail else {
        return backend(error);
    };
    let number = |field: &str| detail[field].as_i64();
    let text = |field: &str| detail[field].as_str();
    let found = match text("code") {
        Some("effect.not_found") => Some(StoreError::NotFound(
            text("id")
                .and_then(|id| id.parse::<Uuid>().ok())
                .map_or(asked, EffectId::from_uuid),
        )),
        Some("effect.lease_lost") => Some(StoreError::LeaseLost),
        Some("effect.lease_held") => {
            text("owner")
                .zip(number("expires_at_ms"))
                .map(|(owner, ms)| StoreError::LeaseHeld {
                    owner: WorkerId::new(owner),
                    expires_at: at_ms(ms),
                })
        }
        Some("effect.version_conflict") => {
            number("expected")
                .zip(number("actual"))
                .map(|(expected, actual)| StoreError::VersionConflict {
                    expected: expected as u64,
                    actual: actual as u64,
                })
        }
        Some("effect.invalid_transition") => text("from")
            .and_then(EffectStatus::parse)
            .zip(text("transition").and_then(rows::transition))
            .map(|(from, event)| InvalidTransition { from, event }.into()),
        _ => None,
    };
    found.unwrap_or_else(|| backend(error))
}

fn at_ms(ms: i64) -> SystemTime {
    match u64::try_from(ms) {
        Ok(ms) => UNIX_EPOCH + Duration::from_millis(ms),
        Err(_) => UNIX_EPOCH - Duration::from_millis(ms.unsigned_abs()),
    }
}

fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// What no record has: -1 never is an epoch or a version.
fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(-1)
}

fn rows_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

impl EffectStore for SqlStore {
    async fn append_late_observation(&self, seen: LateObservation) -> Result<(), StoreError> {
        sqlx::query("SELECT sayiir.effect_append_observation($1, $2, $3)")
            .bind(seen.id.as_uuid())
            .bind(seen.effect_id.as_uuid())
            .bind(serde_json::to_value(&seen).map_err(backend)?)
            .execute(&self.pool)
            .await
            .map_err(|error| refusal(error, seen.effect_id))?;
        Ok(())
    }

    async fn late_observations(
        &self,
        id: EffectId,
        after: Option<EffectId>,
        limit: usize,
    ) -> Result<Vec<LateObservation>, StoreError> {
        // One row with NULL for an effect without observations, none for no effect.
        sqlx::query_scalar::<_, Option<Value>>(
            "SELECT o.observation FROM sayiir.effect_get($1) e
             LEFT JOIN LATERAL sayiir.effect_observations(e.id, $2, $3) o ON true",
        )
        .bind(id.as_uuid())
        .bind(after.map(|after| *after.as_uuid()))
        .bind(rows_limit(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(backend)
        .and_then(|rows| {
            if rows.is_empty() {
                return Err(StoreError::NotFound(id));
            }
            rows.into_iter()
                .flatten()
                .map(|seen| serde_json::from_value(seen).map_err(backend))
                .collect()
        })
    }

    async fn insert_or_get(&self, new: NewEffect) -> Result<InsertOutcome, StoreError> {
        let contract = new.execution_contract.as_ref().map(serde_json::to_value);
        let row = sqlx::query(
            "SELECT * FROM sayiir.effect_insert_or_get($1, $2, $3, $4, $5, $6, $7, $8, $9, caller_now => $10)",
        )
        .bind(new.key.name.as_str())
        .bind(new.key.key.as_str())
        .bind(new.kind.as_str())
        .bind(new.id.as_uuid())
        .bind(new.input)
        .bind(new.input_fingerprint)
        .bind(contract.transpose().map_err(backend)?)
        .bind(i64::from(new.input_schema_version))
        .bind(new.created_by)
        .bind(self.now(new.now))
        .fetch_one(&self.pool)
        .await
        .map_err(|error| refusal(error, new.id))?;
        Ok(InsertOutcome {
            record: rows::record(&row)?,
            inserted: rows::get(&row, "inserted")?,
        })
    }

    async fn get(&self, id: EffectId) -> Result<Option<EffectRecord>, StoreError> {
        sqlx::query("SELECT * FROM sayiir.effect_get($1)")
            .bind(id.as_uuid())
            .fetch_optional(&self.pool)
            .await
            .map_err(backend)?
            .map(|row| rows::record(&row))
            .transpose()
    }

    async fn get_by_key(&self, key: &EffectKey) -> Result<Option<EffectRecord>, StoreError> {
        sqlx::query("SELECT * FROM sayiir.effect_get_by_key($1, $2)")
            .bind(key.name.as_str())
            .bind(key.key.as_str())
            .fetch_optional(&self.pool)
            .await
            .map_err(backend)?
            .map(|row| rows::record(&row))
            .transpose()
    }

    async fn acquire_lease(
        &self,
        id: EffectId,
        owner: &WorkerId,
        now: SystemTime,
        ttl: Duration,
    ) -> Result<Lease, StoreError> {
        let row =
            sqlx::query("SELECT * FROM sayiir.effect_acquire_lease($1, $2, $3, caller_now => $4)")
                .bind(id.as_uuid())
                .bind(owner.as_str())
                .bind(milliseconds(ttl))
                .bind(self.now(now))
                .fetch_one(&self.pool)
                .await
                .map_err(|error| refusal(error, id))?;
        rows::lease(&row)
    }

    async fn renew_lease(
        &self,
        lease: &Lease,
        now: SystemTime,
        ttl: Duration,
    ) -> Result<Lease, StoreError> {
        let row = sqlx::query(
            "SELECT * FROM sayiir.effect_renew_lease($1, $2, $3, $4, caller_now => $5)",
        )
        .bind(lease.effect_id.as_uuid())
        .bind(lease.owner.as_str())
        .bind(number(lease.epoch))
        .bind(milliseconds(ttl))
        .bind(self.now(now))
        .fetch_one(&self.pool)
        .await
        .map_err(|error| refusal(error, lease.effect_id))?;
        rows::lease(&row)
    }

    async fn release_lease(&self, lease: &Lease) -> Result<(), StoreError> {
        sqlx::query("SELECT sayiir.effect_release_lease($1, $2, $3)")
            .bind(lease.effect_id.as_uuid())
            .bind(lease.owner.as_str())
            .bind(number(lease.epoch))
            .execute(&self.pool)
            .await
            .map_err(|error| refusal(error, lease.effect_id))?;
        Ok(())
    }

    async fn transition(&self, request: TransitionRequest) -> Result<EffectRecord, StoreError> {
        // A lease on another effect is no lease on this one.
        let epoch = request.lease.as_ref().map(|lease| {
            if lease.effect_id == request.id {
                number(lease.epoch)
            } else {
                -1
            }
        });
        let error = request.error.as_ref().map(serde_json::to_value);
        let row = sqlx::query(
            "SELECT * FROM sayiir.effect_transition($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, caller_now => $12)",
        )
        .bind(request.id.as_uuid())
        .bind(number(request.expected_version))
        .bind(request.transition.as_str())
        .bind(request.lease.as_ref().map(|lease| lease.owner.as_str().to_owned()))
        .bind(epoch)
        .bind(request.output)
        .bind(request.output_schema_version.map(i64::from))
        .bind(error.transpose().map_err(backend)?)
        .bind(request.next_attempt_at.map(OffsetDateTime::from))
        .bind(request.actor)
        .bind(request.payload)
        .bind(self.now(request.now))
        .fetch_one(&self.pool)
        .await
        .map_err(|error| refusal(error, request.id))?;
        rows::record(&row)
    }

    async fn list(&self, query: ListQuery) -> Result<Vec<EffectRecord>, StoreError> {
        let statuses: Vec<&str> = query.statuses.iter().map(|one| one.as_str()).collect();
        sqlx::query("SELECT * FROM sayiir.effect_list($1, $2, $3, $4, caller_now => $5)")
            .bind(statuses)
            .bind(query.lease_expired_at.is_some())
            .bind(query.after.map(|after| *after.as_uuid()))
            .bind(rows_limit(query.limit))
            .bind(query.lease_expired_at.and_then(|now| self.now(now)))
            .fetch_all(&self.pool)
            .await
            .map_err(backend)?
            .iter()
            .map(rows::record)
            .collect()
    }

    async fn events(&self, id: EffectId) -> Result<Vec<EffectEvent>, StoreError> {
        // One row with NULLs for an effect without events, none for no effect.
        let found = sqlx::query(
            "SELECT v.* FROM sayiir.effect_get($1) e LEFT JOIN LATERAL sayiir.effect_events(e.id) v ON true",
        )
        .bind(id.as_uuid())
        .fetch_all(&self.pool)
        .await
        .map_err(backend)?;
        if found.is_empty() {
            return Err(StoreError::NotFound(id));
        }
        let mut events = Vec::with_capacity(found.len());
        for row in &found {
            if rows::get::<Option<i64>>(row, "sequence")?.is_some() {
                events.push(rows::event(row)?);
            }
        }
        Ok(events)
    }

    async fn prune(&self, query: PruneQuery) -> Result<u64, StoreError> {
        let pruned: i64 =
            sqlx::query_scalar("SELECT sayiir.effect_prune($1, $2, $3, caller_now => $4)")
                .bind(query.status.as_str())
                .bind(milliseconds(query.older_than))
                .bind(rows_limit(query.limit))
                .bind(self.now(query.now))
                .fetch_one(&self.pool)
                .await
                .map_err(backend)?;
        u64::try_from(pruned).map_err(backend)
    }
}

/// Every transition, for the tests.
pub fn all_transitions() -> Vec<Transition> {
    rows::TRANSITIONS
        .iter()
        .filter_map(|name| Transition::parse(name))
        .collect()
}
