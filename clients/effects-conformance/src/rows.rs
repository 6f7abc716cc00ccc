//! Rows of the functions as the types of the store.

use std::time::SystemTime;

use agent_effects_store::{
    EffectEvent, EffectId, EffectKey, EffectKind, EffectName, EffectRecord, EffectStatus,
    ErrorRecord, Lease, LogicalKey, StoreError, Transition, WorkerId,
};
use serde_json::Value;
use sqlx::postgres::{PgRow, Postgres};
use sqlx::{Decode, Row, Type};
use time::OffsetDateTime;

pub fn get<'r, T>(row: &'r PgRow, column: &str) -> Result<T, StoreError>
where
    T: Decode<'r, Postgres> + Type<Postgres>,
{
    row.try_get(column).map_err(StoreError::backend)
}

fn time(row: &PgRow, column: &str) -> Result<Option<SystemTime>, StoreError> {
    Ok(get::<Option<OffsetDateTime>>(row, column)?.map(SystemTime::from))
}

fn word<T>(row: &PgRow, column: &str, parse: fn(&str) -> Option<T>) -> Result<T, StoreError> {
    let text: String = get(row, column)?;
    parse(&text).ok_or_else(|| StoreError::backend(format!("{column} is {text:?}")))
}

fn document<T: serde::de::DeserializeOwned>(
    row: &PgRow,
    column: &str,
) -> Result<Option<T>, StoreError> {
    get::<Option<Value>>(row, column)?
        .map(serde_json::from_value)
        .transpose()
        .map_err(StoreError::backend)
}

fn unsigned<S, T: TryFrom<S>>(value: S) -> Result<T, StoreError>
where
    T::Error: std::error::Error + Send + Sync + 'static,
{
    T::try_from(value).map_err(StoreError::backend)
}

/// An `effect_record`.
pub fn record(row: &PgRow) -> Result<EffectRecord, StoreError> {
    let required =
        |column| time(row, column)?.ok_or_else(|| StoreError::backend(format!("{column} is NULL")));
    Ok(EffectRecord {
        id: EffectId::from_uuid(get(row, "id")?),
        key: EffectKey::new(
            EffectName::new(get::<String>(row, "effect_name")?).map_err(StoreError::backend)?,
            LogicalKey::new(get::<String>(row, "logical_key")?).map_err(StoreError::backend)?,
        ),
        kind: word(row, "kind", EffectKind::parse)?,
        execution_contract: document(row, "execution_contract")?,
        input_schema_version: unsigned(get::<i64>(row, "input_schema_version")?)?,
        output_schema_version: unsigned(get::<i64>(row, "output_schema_version")?)?,
        status: word(row, "status", EffectStatus::parse)?,
        input: get(row, "input")?,
        input_fingerprint: get(row, "input_fingerprint")?,
        output: get(row, "output")?,
        last_error: document::<ErrorRecord>(row, "last_error")?,
        created_by: get(row, "created_by")?,
        attempt_count: unsigned(get::<i32>(row, "attempt_count")?)?,
        may_have_applied: get(row, "may_have_applied")?,
        compensation_attempts: unsigned(get::<i32>(row, "compensation_attempts")?)?,
        approved: get(row, "approved")?,
        next_attempt_at: time(row, "next_attempt_at")?,
        attempt_started_at: time(row, "attempt_started_at")?,
        attempt_ended_at: time(row, "attempt_ended_at")?,
        lease_owner: get::<Option<String>>(row, "lease_owner")?.map(WorkerId::new),
        lease_epoch: unsigned(get::<i64>(row, "lease_epoch")?)?,
        lease_expires_at: time(row, "lease_expires_at")?,
        version: unsigned(get::<i64>(row, "version")?)?,
        created_at: required("created_at")?,
        updated_at: required("updated_at")?,
        committed_at: time(row, "committed_at")?,
    })
}

/// An `effect_lease`.
pub fn lease(row: &PgRow) -> Result<Lease, StoreError> {
    Ok(Lease {
        effect_id: EffectId::from_uuid(get(row, "effect_id")?),
        owner: WorkerId::new(get::<String>(row, "owner")?),
        epoch: unsigned(get::<i64>(row, "epoch")?)?,
        expires_at: SystemTime::from(get::<OffsetDateTime>(row, "expires_at")?),
    })
}

/// An `effect_event_info`.
pub fn event(row: &PgRow) -> Result<EffectEvent, StoreError> {
    Ok(EffectEvent {
        effect_id: EffectId::from_uuid(get(row, "effect_id")?),
        sequence: unsigned(get::<i64>(row, "sequence")?)?,
        transition: word(row, "transition", Transition::parse)?,
        from: word(row, "from_status", EffectStatus::parse)?,
        to: word(row, "to_status", EffectStatus::parse)?,
        attempt: unsigned(get::<i32>(row, "attempt")?)?,
        actor: get(row, "actor")?,
        payload: get(row, "payload")?,
        at: SystemTime::from(get::<OffsetDateTime>(row, "at")?),
    })
}

/// Every transition by its name in the trail, which is how the store's own types are spelled.
pub const TRANSITIONS: [&str; 24] = [
    "effect.approval_requested",
    "effect.approved",
    "effect.denied",
    "effect.precondition_rejected",
    "effect.attempt_started",
    "effect.succeeded",
    "effect.failed",
    "effect.retry_scheduled",
    "effect.outcome_unknown",
    "effect.lease_expired",
    "effect.verification_started",
    "effect.verification_confirmed",
    "effect.verification_not_applied",
    "effect.verification_conflict",
    "effect.escalated",
    "effect.resolved_applied",
    "effect.resolved_not_applied",
    "effect.resolved_retry",
    "effect.compensation_started",
    "effect.compensation_retry_scheduled",
    "effect.compensation_retry_started",
    "effect.compensated",
    "effect.compensation_failed",
    "effect.resolved_compensated",
];

/// The transition that an error names in the other spelling, that of its serialized form.
pub fn transition(name: &str) -> Option<Transition> {
    serde_json::from_value(Value::from(name)).ok()
}
