//! Waiting for an end inside a call: at most 10 seconds, because the call pins its caller's snapshot. Longer waits LISTEN.

use sayiir_rules::definition::ResultRule;

use crate::engine::{cancel, claim, graph, owner};
use crate::error::{Code, Error, Result};
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::Session;
use crate::pg::xact;
use crate::runtime::wake;
use crate::scope::Scope;
use crate::store;
use crate::store::workflow::Seen;

/// Between two looks of a wait that nothing wakes, in milliseconds.
const POLL_MS: i64 = 250;

/// Looks until `look` has an answer or the time is up; always once, and once more at the deadline.
fn poll<T>(
    timeout_us: i64,
    mut look: impl FnMut() -> Result<Option<T>>,
    sleep: impl Fn(i64),
) -> Result<Option<T>> {
    if !(0..=claim::MAX_WAIT_US).contains(&timeout_us) {
        return Err(
            Error::new(Code::WaitTooLong, "timeout is not between 0 and 10 seconds")
                .with("max_us", claim::MAX_WAIT_US),
        );
    }
    if timeout_us > 0 {
        owner::require_read_committed("waiting")?;
    }
    let deadline = Instant::now().plus_us(timeout_us);
    loop {
        let answer = look()?;
        let left_ms = (deadline.0 - Instant::now().0) / 1000;
        if answer.is_some() || left_ms <= 0 {
            return Ok(answer);
        }
        sleep(left_ms.min(POLL_MS));
    }
}

fn ended(seen: &Seen) -> bool {
    matches!(seen.status.as_str(), "succeeded" | "failed" | "cancelled")
}

fn see(session: &Session, scope: &Scope, workflow_id: &str) -> Result<Seen> {
    store::workflow::see(session, scope, workflow_id).ok_or_else(|| cancel::not_found(workflow_id))
}

/// The status once the workflow has ended, or at the deadline.
pub fn wait(
    session: &Session,
    scope: &Scope,
    workflow_id: &str,
    timeout_us: i64,
) -> Result<String> {
    let look = || {
        let seen = see(session, scope, workflow_id)?;
        refuse_own(&seen, workflow_id, timeout_us)?;
        Ok(ended(&seen).then_some(seen.status))
    };
    let ended = poll(timeout_us, look, |ms| {
        wake::wait_for_workflow(workflow_id, ms)
    })?;
    match ended {
        Some(status) => Ok(status),
        None => Ok(see(session, scope, workflow_id)?.status),
    }
}

/// The result. Refusals in order: not found, not declared, not committed, timeout, unsuccessful, missing.
pub fn workflow_result(
    session: &Session,
    scope: &Scope,
    workflow_id: &str,
    timeout_us: i64,
) -> Result<Option<Jsonb>> {
    let refuse = |code: Code, what: &str, seen: &Seen| {
        Error::new(code, format!("workflow {workflow_id:?} {what}"))
            .with("workflow_id", workflow_id)
            .with("status", seen.status.clone())
            .with("error_code", seen.error_code.clone())
    };
    let first = see(session, scope, workflow_id)?;
    let graph = graph::load(session, &first.definition_hash)?;
    if graph.result == ResultRule::None {
        return Err(refuse(
            Code::WorkflowResultNotDeclared,
            "declares no result",
            &first,
        ));
    }
    let look = || {
        let seen = see(session, scope, workflow_id)?;
        refuse_own(&seen, workflow_id, timeout_us)?;
        Ok(ended(&seen).then_some(seen))
    };
    let seen = poll(timeout_us, look, |ms| {
        wake::wait_for_workflow(workflow_id, ms)
    })?;
    let Some(seen) = seen else {
        return Err(refuse(
            Code::WorkflowWaitTimeout,
            "has not finished",
            &see(session, scope, workflow_id)?,
        ));
    };
    if seen.status != "succeeded" {
        return Err(refuse(
            Code::WorkflowUnsuccessful,
            &format!("is {}", seen.status),
            &seen,
        ));
    }
    if seen.result.is_none() && matches!(graph.result, ResultRule::Step(_)) {
        return Err(refuse(
            Code::WorkflowResultMissing,
            "succeeded, but its result step has no output",
            &seen,
        ));
    }
    Ok(seen.result)
}

/// Nobody else can see what this transaction has started, so waiting for it would never end.
fn refuse_own(seen: &Seen, workflow_id: &str, timeout_us: i64) -> Result<()> {
    if seen.own && timeout_us > 0 && !ended(seen) {
        return Err(Error::new(
            Code::WorkflowNotCommitted,
            format!("workflow {workflow_id:?} is not committed yet"),
        )
        .with("workflow_id", workflow_id));
    }
    Ok(())
}

/// The output of a succeeded job.
pub fn job_result(
    session: &Session,
    scope: &Scope,
    id: pgrx::Uuid,
    timeout_us: i64,
) -> Result<Option<Jsonb>> {
    let look = || store::job::result(session, id, scope).ok_or_else(|| owner::job_not_found(id));
    let end = poll(timeout_us, look, xact::sleep_ms)?;
    match end {
        None => Err(
            Error::new(Code::JobNotEnded, format!("job {id} has not ended"))
                .with("job_id", id.to_string()),
        ),
        Some(end) if end.state == "succeeded" => Ok(end.output),
        Some(end) => Err(
            Error::new(Code::JobUnsuccessful, format!("job {id} is {}", end.state))
                .with("job_id", id.to_string())
                .with("status", end.state)
                .with("error_code", end.error_code)
                .with("error_message", end.error_message),
        ),
    }
}
