//! The usual path: what beginning, finishing, failing and resolving an effect do to its record.
//!
//! Each is made of the transitions and leases of [`Record`], so nothing here can do what they refuse.

use serde_json::{Value, json};

use super::contract::{Contract, Disposition, FailureClass, UnknownPlan};
use super::{Event, Record, Refusal, Request, Status, Transition};

words! {
    /// What a worker that wants the effect is told.
    pub enum Decision {
        /// The lease is yours and the attempt is recorded: commit, then act.
        Run = "run",
        /// The lease is yours: ask the outside system whether it was applied.
        Verify = "verify",
        /// It is over; the record says how.
        Replay = "replay",
        /// Somebody else is at it.
        InProgress = "in_progress",
        /// The next attempt may start at `next_attempt_at`.
        Wait = "wait",
        /// A person has to agree first.
        AwaitingApproval = "awaiting_approval",
        /// A person has to find out what happened.
        NeedsIntervention = "needs_intervention",
    }
}

words! {
    /// What a person found out about an effect.
    pub enum Resolution {
        Applied = "applied",
        NotApplied = "not_applied",
        Retry = "retry",
        Compensated = "compensated",
    }
}

impl Resolution {
    pub fn transition(self) -> Transition {
        match self {
            Self::Applied => Transition::ResolvedApplied,
            Self::NotApplied => Transition::ResolvedNotApplied,
            Self::Retry => Transition::ResolvedRetry,
            Self::Compensated => Transition::ResolvedCompensated,
        }
    }
}

/// The lease as the audit trail names it.
fn by((owner, epoch): (&str, i64)) -> Value {
    json!({"worker": owner, "epoch": epoch})
}

/// What happens when a worker wants the effect now.
///
/// | status | nobody holds it | |
/// |---|---|---|
/// | over, or for a person | report | replay, needs_intervention |
/// | any other, live lease | | in_progress |
/// | pending | due: approval if the contract asks for it, else an attempt | awaiting_approval, run, wait |
/// | executing, verifying | the lease expired → unknown | as unknown |
/// | unknown | due: the contract's plan | verify, run, needs_intervention, wait |
/// | compensating | is undone by whoever undoes it | in_progress |
pub fn begin(
    record: &mut Record,
    contract: &Contract,
    owner: &str,
    ttl_ms: i64,
    now: i64,
) -> Result<(Decision, Vec<Event>), Refusal> {
    let mut events = Vec::new();
    if record.status.is_settled() {
        return Ok((Decision::Replay, events));
    }
    if record.status.is_reportable() {
        return Ok((Decision::NeedsIntervention, events));
    }
    if record.live_lease(now).is_some() || record.status == Status::Compensating {
        return Ok((Decision::InProgress, events));
    }
    if record.status.is_in_flight() {
        let mut event = step(record, Transition::LeaseExpired, None, now)?;
        event.actor = Some(format!("recovery:{owner}"));
        events.push(event);
    }
    let is_due = record.next_attempt_at.is_none_or(|at| at <= now);
    let decision = match record.status {
        Status::AwaitingApproval => Decision::AwaitingApproval,
        Status::Unknown => match contract.unknown_plan() {
            UnknownPlan::Escalate => escalate(record, None, now, &mut events)?,
            UnknownPlan::Reexecute if !contract.allows_another(record.attempt_count) => {
                escalate(record, None, now, &mut events)?
            }
            _ if !is_due => Decision::Wait,
            UnknownPlan::Verify => {
                let lease = (owner, record.acquire(owner, ttl_ms, now)?);
                let mut event = step(record, Transition::StartVerification, Some(lease), now)?;
                event.payload = Some(by(lease));
                events.push(event);
                Decision::Verify
            }
            UnknownPlan::Reexecute => {
                let lease = (owner, record.acquire(owner, ttl_ms, now)?);
                events.push(step(record, Transition::ScheduleRetry, Some(lease), now)?);
                start(record, lease, now, &mut events)?
            }
        },
        _ if !is_due => Decision::Wait,
        _ if contract.require_approval && !record.approved && record.attempt_count == 0 => {
            events.push(step(record, Transition::RequestApproval, None, now)?);
            Decision::AwaitingApproval
        }
        _ => {
            let lease = (owner, record.acquire(owner, ttl_ms, now)?);
            start(record, lease, now, &mut events)?
        }
    };
    Ok((decision, events))
}

fn step(
    record: &mut Record,
    transition: Transition,
    lease: Option<(&str, i64)>,
    now: i64,
) -> Result<Event, Refusal> {
    let request = Request::of(record, transition, lease);
    record.apply(&request, now)
}

fn start(
    record: &mut Record,
    lease: (&str, i64),
    now: i64,
    events: &mut Vec<Event>,
) -> Result<Decision, Refusal> {
    // A lease without time is over before it begins; the attempt would not be anyone's.
    record.check_lease(lease, now)?;
    let mut event = step(record, Transition::StartAttempt, Some(lease), now)?;
    event.payload = Some(by(lease));
    events.push(event);
    Ok(Decision::Run)
}

fn escalate(
    record: &mut Record,
    lease: Option<(&str, i64)>,
    now: i64,
    events: &mut Vec<Event>,
) -> Result<Decision, Refusal> {
    events.push(step(record, Transition::Escalate, lease, now)?);
    Ok(Decision::NeedsIntervention)
}

/// What was done under the lease worked: the attempt succeeded, the check confirmed, or the undoing is done. Gives the lease back.
pub fn finish(
    record: &mut Record,
    lease: (&str, i64),
    expected_version: i64,
    has_output: bool,
    now: i64,
) -> Result<Vec<Event>, Refusal> {
    let transition = match record.status {
        Status::Verifying => Transition::VerificationConfirmed,
        Status::Compensating => Transition::CompensationSucceeded,
        _ => Transition::Succeeded,
    };
    let request = Request {
        expected_version,
        has_output,
        ..Request::of(record, transition, Some(lease))
    };
    let mut event = record.apply(&request, now)?;
    event.payload = Some(by(lease));
    record.release(lease);
    Ok(vec![event])
}

/// A failure as its worker reports it.
pub struct Failed<'a> {
    pub lease: (&'a str, i64),
    pub expected_version: i64,
    pub class: FailureClass,
    /// When the outside system asked to come back; earlier than the back-off counts for nothing.
    pub next_attempt_at: Option<i64>,
    /// Places the back-off within its jitter.
    pub random01: f64,
}

/// What was done under the lease did not work. Gives the lease back.
///
/// | in | the failure says | |
/// |---|---|---|
/// | executing | not applied, try again | a retry if the contract allows one, else as the next line |
/// | executing | not applied, stop | failed; but unknown when an earlier attempt may have applied it |
/// | executing | may have been applied | unknown, and from there the contract's plan |
/// | verifying | anything | unknown again: the check gave no answer |
/// | compensating | stop, or no attempt left | compensation_failed |
/// | compensating | anything else | another attempt at undoing, later |
pub fn fail(
    record: &mut Record,
    contract: &Contract,
    failed: &Failed,
    now: i64,
) -> Result<Vec<Event>, Refusal> {
    let mut events = Vec::new();
    let disposition = failed.class.disposition();
    let attempts = match record.status {
        Status::Compensating => record.compensation_attempts,
        _ => record.attempt_count,
    };
    let retry_at = now
        .saturating_add(delay_ms(attempts, failed.random01))
        .max(failed.next_attempt_at.unwrap_or(i64::MIN));
    let allows_another = contract.allows_another(attempts);
    let first = |record: &mut Record, transition, at: Option<i64>| {
        let request = Request {
            expected_version: failed.expected_version,
            has_error: true,
            next_attempt_at: at,
            ..Request::of(record, transition, Some(failed.lease))
        };
        let mut event = record.apply(&request, now)?;
        event.payload = Some(by(failed.lease));
        Ok::<_, Refusal>(event)
    };
    match (record.status, disposition) {
        (Status::Compensating, Disposition::Fail) => {
            events.push(first(record, Transition::CompensationFailed, None)?);
        }
        (Status::Compensating, _) if !allows_another => {
            events.push(first(record, Transition::CompensationFailed, None)?);
        }
        (Status::Compensating, _) => {
            let transition = Transition::ScheduleCompensationRetry;
            events.push(first(record, transition, Some(retry_at))?);
        }
        (Status::Verifying, _) => {
            events.push(first(record, Transition::OutcomeUnknown, Some(retry_at))?);
        }
        (_, Disposition::Retry) if allows_another => {
            events.push(first(record, Transition::ScheduleRetry, Some(retry_at))?);
        }
        (_, Disposition::Retry | Disposition::Fail)
            if record.may_have_applied && record.kind != super::Kind::Read =>
        {
            let mut event = first(record, Transition::OutcomeUnknown, failed.next_attempt_at)?;
            if let Some(payload) = &mut event.payload {
                payload["earlier_attempt_may_have_applied"] = true.into();
            }
            events.push(event);
            if contract.unknown_plan() != UnknownPlan::Verify {
                escalate(record, Some(failed.lease), now, &mut events)?;
            }
        }
        (_, Disposition::Retry | Disposition::Fail) => {
            events.push(first(record, Transition::FailedDefinitively, None)?);
        }
        (_, Disposition::Unknown) => {
            let asked = failed.next_attempt_at;
            events.push(first(record, Transition::OutcomeUnknown, asked)?);
            match contract.unknown_plan() {
                UnknownPlan::Verify => {}
                UnknownPlan::Reexecute if allows_another => {
                    let transition = Transition::ScheduleRetry;
                    let request = Request {
                        next_attempt_at: Some(retry_at),
                        ..Request::of(record, transition, Some(failed.lease))
                    };
                    events.push(record.apply(&request, now)?);
                }
                _ => {
                    escalate(record, Some(failed.lease), now, &mut events)?;
                }
            }
        }
    }
    record.release(failed.lease);
    Ok(events)
}

/// The delay after so many attempts: 1, 2, 4 … 30 s, spread over its upper half.
fn delay_ms(attempts: i32, random01: f64) -> i64 {
    const INITIAL_MS: i64 = 1_000;
    const MAX_MS: i64 = 30_000;
    let doublings = attempts.saturating_sub(1).clamp(0, 5);
    let delay = (INITIAL_MS << doublings).min(MAX_MS);
    let sample = if random01.is_finite() {
        random01.clamp(0.0, 1.0)
    } else {
        0.0
    };
    (delay as f64 * (0.5 + 0.5 * sample)) as i64
}

#[cfg(test)]
mod tests;
