//! Finish and fail: what was done under a lease worked or did not. Both give the lease back.

use pgrx::Uuid;
use sayiir_rules::effect::contract::check_error;
use sayiir_rules::effect::course::{self, Failed};
use sayiir_rules::effect::{Contract, Failure, FailureClass, Refusal, Transition};

use crate::engine::effect_record::{lock_for, not_found, refuse, save};
use crate::engine::enqueue;
use crate::error::Result;
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::Session;
use crate::pg::table::Line;
use crate::pg::xact;
use crate::scope::Scope;
use crate::store;
use crate::store::effect::{Documents, Locked};

/// A lease and the version that its holder knows.
#[derive(Clone, Copy)]
pub struct Lease<'a> {
    pub id: Uuid,
    pub owner: &'a str,
    pub epoch: i64,
    pub version: i64,
}

const FINISHED: &[Transition] = &[
    Transition::Succeeded,
    Transition::VerificationConfirmed,
    Transition::CompensationSucceeded,
];

const FAILED: &[Transition] = &[
    Transition::ScheduleRetry,
    Transition::OutcomeUnknown,
    Transition::FailedDefinitively,
    Transition::ScheduleCompensationRetry,
    Transition::CompensationFailed,
];

pub fn finish(session: &Session, lease: Lease, output: Option<Jsonb>) -> Result<Line> {
    if let Some(output) = output {
        enqueue::check_size("output", output)?;
    }
    let locked = lock_for(session, "effect_finish", &Scope::All, lease.id)?;
    let now = Instant::now().unix_ms();
    let mut record = locked.record;
    let held = (lease.owner, lease.epoch);
    match course::finish(&mut record, held, lease.version, output.is_some(), now) {
        Ok(events) => {
            let documents = Documents {
                output,
                ..Documents::default()
            };
            save(session, lease.id, &record, &events, &documents)
        }
        Err(refusal) => again(session, lease, refusal, FINISHED),
    }
}

pub fn fail(
    session: &Session,
    lease: Lease,
    class: FailureClass,
    message: &str,
    next_attempt_at: Option<i64>,
) -> Result<Line> {
    let locked = lock_for(session, "effect_fail", &Scope::All, lease.id)?;
    let now = Instant::now().unix_ms();
    let contract = contract_of(&locked);
    let mut record = locked.record;
    let failed = Failed {
        lease: (lease.owner, lease.epoch),
        expected_version: lease.version,
        class,
        next_attempt_at,
        random01: xact::random01(),
    };
    match course::fail(&mut record, &contract, &failed, now) {
        Ok(events) => {
            let error = Failure {
                class: Some(class),
                message,
            }
            .to_value();
            debug_assert!(check_error(&error).is_ok());
            let documents = Documents {
                error: Some(Jsonb::from_value(&error)),
                ..Documents::default()
            };
            save(session, lease.id, &record, &events, &documents)
        }
        Err(refusal) => again(session, lease, refusal, FAILED),
    }
}

/// The assumptions that an effect was recorded with; the default ones when there are none, or none that can be read.
fn contract_of(locked: &Locked) -> Contract {
    locked
        .contract
        .and_then(Jsonb::to_value)
        .and_then(|value| Contract::read(&value).ok())
        .unwrap_or_else(|| Contract::of_kind(locked.record.kind))
}

/// The lease is not held any more. If that is because this very call was made before, and its answer was lost, it is answered again.
fn again(
    session: &Session,
    lease: Lease,
    refusal: Refusal,
    transitions: &[Transition],
) -> Result<Line> {
    if matches!(refusal, Refusal::LeaseLost { .. }) {
        let made = store::effect::transition_by(
            session,
            lease.id,
            lease.version.saturating_add(1),
            lease.owner,
            lease.epoch,
        );
        if made.is_some_and(|made| transitions.iter().any(|one| one.event_name() == made)) {
            return store::effect::read(session, lease.id).ok_or_else(|| not_found(lease.id));
        }
    }
    Err(refuse(lease.id, refusal))
}
