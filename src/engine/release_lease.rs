//! Release: a worker gives a job back, on its own account or as the acknowledgement of a directive.

use pgrx::Uuid;
use sayiir_rules::release::Outcome;
use sayiir_rules::retry::FailureKind;
use sayiir_rules::workflow::WorkflowState;

use crate::engine::{fail, family, owner, settle};
use crate::error::Result;
use crate::pg::clock::Instant;
use crate::pg::spi::Session;
use crate::runtime::wake;
use crate::store;
use crate::store::job::NewEnd;
use crate::store::lease::Put;

pub struct Request<'a> {
    pub id: Uuid,
    pub epoch: i64,
    pub delay_us: i64,
    pub reason: Option<&'a str>,
    /// The handler had begun: the attempt stays counted.
    pub ran: bool,
}

/// Ends the lease without an outcome: ready, cancelled or paused; dead or held when that was the last attempt.
pub fn release(session: &Session, request: &Request) -> Result<&'static str> {
    owner::require_read_committed("job_release")?;
    let epochs = vec![request.epoch];
    let leases = store::lease::find(session, vec![request.id], epochs.clone());
    let workflows = owner::lock(session, &leases);
    let now = Instant::now();
    let mut taken = Vec::new();
    owner::take_all(session, &leases, &epochs, |wanted| {
        let got = store::lease::take(
            session,
            wanted.iter().map(|lease| lease.id).collect(),
            epochs.clone(),
            now,
        );
        let ids = got.iter().map(|lease| lease.id).collect();
        taken.extend(got);
        ids
    });
    let Some(lease) = taken.pop() else {
        return Err(
            if store::lease::exists(session, request.id, request.epoch) {
                owner::busy(request.id)
            } else {
                owner::lease_lost(request.id, request.epoch)
            },
        );
    };
    let owner_state = lease
        .workflow
        .map(|workflow| workflows.get(&workflow).map(|workflow| workflow.status));
    let ended = owner_state.is_some_and(|state| state.is_none_or(WorkflowState::is_terminal));
    if ended || lease.cancel_requested {
        let end = NewEnd {
            id: lease.id,
            state: "cancelled",
            output: None,
            error_code: Some("job.cancelled".to_owned()),
            error_message: None,
            reason: Some(
                request
                    .reason
                    .unwrap_or("released after the cancel")
                    .to_owned(),
            ),
            worker: Some(lease.worker.clone()),
            epoch: lease.epoch,
            run_number: lease.run_number,
            attempt: lease.attempt,
            started_at: Some(lease.started_at),
        };
        store::job::append_ends(session, &[end], now);
        store::job::answer_signals(session, vec![lease.id]);
        family::ended(session, vec![lease.id], vec![lease.id], &workflows, now);
        if let (Some(workflow), Some(step)) =
            (lease.workflow.and_then(|id| workflows.get(&id)), lease.step)
        {
            settle::settle(
                session,
                workflow,
                vec![settle::StepEnd {
                    step,
                    outcome: Outcome::Cancelled,
                }],
                now,
            )?;
        }
        return Ok("cancelled");
    }
    if request.ran && lease.attempt >= lease.retry.max_attempts {
        // Its last attempt is used up: another claim would be one too many.
        let report = fail::Report {
            lease: &lease,
            kind: FailureKind::Retryable,
            error_code: "job.released".to_owned(),
            error_message: request.reason.map(str::to_owned),
            retry_at: None,
        };
        return Ok(fail::record(session, &workflows, &[report], now)?[0].0);
    }
    let paused = owner_state == Some(Some(WorkflowState::Paused));
    let due = (!paused && request.delay_us > 0).then(|| now.plus_us(request.delay_us));
    let reason = if paused {
        Some("paused")
    } else if due.is_some() {
        Some("run_at")
    } else {
        None
    };
    store::lease::put(
        session,
        &[Put {
            id: lease.id,
            workflow: lease.workflow,
            lane: lease.lane,
            run_number: lease.run_number,
            attempt: if request.ran {
                lease.attempt
            } else {
                lease.attempt - 1
            },
            epoch: lease.epoch,
            reason,
            due,
        }],
        now,
    );
    match due {
        Some(at) => wake::timer_at(at),
        None if !paused => wake::job_ready(&lease.task),
        None => {}
    }
    Ok(if paused { "paused" } else { "ready" })
}
