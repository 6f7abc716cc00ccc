//! Begin: a worker asks for an effect. The first one is told to run it, in one statement; every other one is told why not.

use pgrx::Uuid;
use sayiir_rules::effect::course::{self, Decision};
use sayiir_rules::effect::fingerprint::fingerprint;
use sayiir_rules::effect::identity::idempotency_key;
use sayiir_rules::effect::{Contract, Kind, Record};

use crate::engine::effect_record::{after_save, not_found, refuse};
use crate::engine::{enqueue, owner};
use crate::error::{Code, Error, Result};
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::Session;
use crate::pg::table::Line;
use crate::pg::xact;
use crate::store;
use crate::store::effect::{Locked, New};

pub struct Request<'a> {
    pub organization: Option<String>,
    pub name: &'a str,
    pub logical_key: &'a str,
    pub kind: Kind,
    pub owner: &'a str,
    pub ttl_ms: i64,
    pub input: Option<Jsonb>,
    pub contract: Contract,
}

/// A row of `effect_begun`.
pub fn begin(session: &Session, request: &Request) -> Result<Line> {
    owner::require_read_committed("effect_begin")?;
    let fingerprint = match request.input {
        None => None,
        Some(input) => {
            enqueue::check_size("input", input)?;
            let value = input.to_value().ok_or_else(|| {
                Error::new(Code::ArgumentInvalid, "input is nested too deeply")
                    .with("argument", "input")
            })?;
            Some(fingerprint(&value))
        }
    };
    let organization = request.organization.as_deref();
    let key = Uuid::from_bytes(idempotency_key(
        organization,
        request.name,
        request.logical_key,
        false,
    ));
    let new = New {
        id: enqueue::new_id(),
        organization,
        name: request.name,
        logical_key: request.logical_key,
        input: request.input,
        fingerprint: fingerprint.as_deref(),
        contract: Some(Jsonb::from_value(&request.contract.to_value())),
        input_schema_version: 1,
        created_by: None,
    };
    loop {
        if let Some(line) = insert(session, request, &new, key)? {
            return Ok(line);
        }
        let found =
            store::effect::lock_key(session, organization, request.name, request.logical_key);
        match found {
            Some(found) => return attach(session, request, found, fingerprint.as_deref(), key),
            // Pruned or superseded between the two statements.
            None => {
                pgrx::check_for_interrupts!();
            }
        }
    }
}

/// None = the key is taken.
fn insert(session: &Session, request: &Request, new: &New, key: Uuid) -> Result<Option<Line>> {
    let now = Instant::now().unix_ms();
    let mut record = Record::fresh(request.kind, now);
    let (decision, events) = course::begin(
        &mut record,
        &request.contract,
        request.owner,
        request.ttl_ms,
        now,
    )
    .map_err(|refusal| refuse(new.id, refusal))?;
    let [event] = events.as_slice() else {
        return Err(Error::new(
            Code::InternalState,
            format!("a new effect begins with {} transitions", events.len()),
        ));
    };
    let inserted =
        store::effect::insert_begun(session, new, &record, event, decision.as_str(), key);
    let Some(mut line) = inserted else {
        return Ok(None);
    };
    warn(decision);
    // The insert may have waited for a transaction that had the key and rolled back. The lease begins when it is ours.
    let late = Instant::now().unix_ms();
    if record.lease_owner.is_some() && late - now > request.ttl_ms / 10 {
        record.lease_expires_at = Some(late.saturating_add(request.ttl_ms));
        store::effect::save_lease(session, new.id, &record);
        line = store::effect::read_begun(session, new.id, decision.as_str(), key)
            .ok_or_else(|| not_found(new.id))?;
    }
    after_save(session, new.id, &record, &events);
    Ok(Some(line))
}

/// The effect is known: checks that the same is meant, and asks the rules.
fn attach(
    session: &Session,
    request: &Request,
    found: Locked,
    fingerprint: Option<&str>,
    key: Uuid,
) -> Result<Line> {
    let contract = check(request, &found, fingerprint)?;
    let now = Instant::now().unix_ms();
    let mut record = found.record;
    let (decision, events) =
        course::begin(&mut record, &contract, request.owner, request.ttl_ms, now)
            .map_err(|refusal| refuse(found.id, refusal))?;
    let line = if events.is_empty() {
        store::effect::read_begun(session, found.id, decision.as_str(), key)
    } else {
        let line =
            store::effect::save_begun(session, found.id, &record, &events, decision.as_str(), key);
        after_save(session, found.id, &record, &events);
        line
    };
    warn(decision);
    line.ok_or_else(|| not_found(found.id))
}

/// The contract that holds for a known effect, if the caller means the same effect by the key.
fn check(request: &Request, found: &Locked, fingerprint: Option<&str>) -> Result<Contract> {
    let mismatch = |what: &str, stored: serde_json::Value, requested: serde_json::Value| {
        Error::new(
            Code::EffectMismatch,
            format!("effect {} was recorded with another {what}", found.id),
        )
        .with("id", found.id.to_string())
        .with("what", what)
        .with("stored", stored)
        .with("requested", requested)
    };
    if found.input_schema_version != 1 {
        return Err(mismatch(
            "input_schema_version",
            found.input_schema_version.into(),
            1.into(),
        ));
    }
    if found.record.kind != request.kind {
        return Err(mismatch(
            "kind",
            found.record.kind.as_str().into(),
            request.kind.as_str().into(),
        ));
    }
    if found.fingerprint.as_deref() != fingerprint {
        return Err(mismatch(
            "input",
            found.fingerprint.clone().into(),
            fingerprint.into(),
        ));
    }
    let stored = match found.contract {
        Some(contract) => {
            let value = contract.to_value().unwrap_or_default();
            match Contract::read(&value) {
                Ok(contract) => contract,
                Err(_) => {
                    let requested = request.contract.to_value();
                    return Err(mismatch("execution_contract", value, requested));
                }
            }
        }
        // Recorded without one. What is over may be replayed; for the rest only the default assumptions can be meant.
        None if found.record.status.is_settled() => return Ok(request.contract.clone()),
        None => Contract::of_kind(request.kind),
    };
    if stored != request.contract {
        return Err(mismatch(
            "execution_contract",
            stored.to_value(),
            request.contract.to_value(),
        ));
    }
    Ok(stored)
}

/// The intent must be committed before the act; in a transaction block it is not yet.
fn warn(decision: Decision) {
    if decision == Decision::Run && xact::is_in_block() {
        pgrx::warning!(
            "effect_begin runs in a transaction block: commit before acting outside, else a crash forgets that the attempt was made"
        );
    }
}
