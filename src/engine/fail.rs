//! Fail: an attempt ends without success. It is retried later, dead-lettered, held for a person, or, when the owner was cancelled
//! meanwhile, recorded as cancelled.

use pgrx::Uuid;
use sayiir_rules::release::Outcome;
use sayiir_rules::retry::{self, FailureDecision, FailureKind};

use crate::engine::{family, owner, settle};
use crate::error::Result;
use crate::pg::clock::Instant;
use crate::pg::spi::Session;
use crate::pg::xact;
use crate::runtime::wake;
use crate::store;
use crate::store::job::{NewAttempt, NewEnd};
use crate::store::lease::{Put, Taken};

/// What a worker reports.
pub struct Failure {
    pub id: Uuid,
    pub epoch: i64,
    pub error_code: String,
    pub error_message: Option<String>,
    pub kind: FailureKind,
    /// Not before this; policy may say later.
    pub retry_at: Option<Instant>,
}

/// (disposition: retry, dead, held, cancelled, lost, busy; when it runs again).
pub type Answer = (&'static str, Option<Instant>);

/// Fails a batch, each on its own terms; answers in the order of the batch.
pub fn fail(session: &Session, batch: &[Failure]) -> Result<Vec<Answer>> {
    owner::require_read_committed("job_fail")?;
    let epochs: Vec<i64> = batch.iter().map(|failure| failure.epoch).collect();
    let leases = store::lease::find(
        session,
        batch.iter().map(|failure| failure.id).collect(),
        epochs.clone(),
    );
    let workflows = owner::lock(session, &leases);
    let now = Instant::now();
    let mut taken: Vec<Taken> = Vec::with_capacity(leases.len());
    owner::take_all(session, &leases, &epochs, |wanted| {
        let got = store::lease::take(
            session,
            wanted.iter().map(|lease| lease.id).collect(),
            wanted.iter().map(|lease| epochs[lease.n]).collect(),
            now,
        );
        let ids = got.iter().map(|lease| lease.id).collect();
        taken.extend(got);
        ids
    });
    let reports: Vec<Report> = taken
        .iter()
        .map(|lease| {
            let failure = batch
                .iter()
                .find(|failure| failure.id == lease.id)
                .expect("taken for a failure of this batch");
            Report {
                lease,
                kind: failure.kind,
                error_code: failure.error_code.clone(),
                error_message: failure.error_message.clone(),
                retry_at: failure.retry_at,
            }
        })
        .collect();
    let answers = record(session, &workflows, &reports, now)?;
    Ok(batch
        .iter()
        .map(
            |failure| match taken.iter().position(|lease| lease.id == failure.id) {
                Some(n) => answers[n],
                None => repeated(session, failure),
            },
        )
        .collect())
}

/// An attempt that has ended without success, its lease already taken.
pub struct Report<'a> {
    pub lease: &'a Taken,
    pub kind: FailureKind,
    pub error_code: String,
    pub error_message: Option<String>,
    pub retry_at: Option<Instant>,
}

/// Writes what follows the failures, and settles the workflows whose steps ended by it. Owners are locked, those of parents too.
pub fn record(
    session: &Session,
    workflows: &owner::Locked,
    reports: &[Report],
    now: Instant,
) -> Result<Vec<Answer>> {
    let mut answers = Vec::with_capacity(reports.len());
    let mut ends = Vec::new();
    let mut attempts = Vec::new();
    let mut puts = Vec::new();
    let mut steps: Vec<(i64, settle::StepEnd)> = Vec::new();
    for report in reports {
        let lease = report.lease;
        let owner = lease.workflow.and_then(|workflow| workflows.get(&workflow));
        let owner_ended =
            lease.workflow.is_some() && owner.is_none_or(|workflow| workflow.status.is_terminal());
        let cancelled = owner_ended || lease.cancel_requested;
        let decision = decide(report, now);
        let answer: Answer = match decision {
            _ if cancelled => ("cancelled", None),
            FailureDecision::Dead => ("dead", None),
            FailureDecision::Hold => ("held", None),
            FailureDecision::Retry { delay_us } => ("retry", Some(now.plus_us(delay_us))),
        };
        match answer.0 {
            "cancelled" | "dead" => {
                let state = if cancelled { "cancelled" } else { "failed" };
                ends.push(NewEnd {
                    id: lease.id,
                    state,
                    output: None,
                    error_code: Some(report.error_code.clone()),
                    error_message: report.error_message.clone(),
                    reason: Some(reason(report, cancelled)),
                    worker: Some(lease.worker.clone()),
                    epoch: lease.epoch,
                    run_number: lease.run_number,
                    attempt: lease.attempt,
                    started_at: Some(lease.started_at),
                });
                if let (Some(workflow), Some(step)) = (lease.workflow, lease.step.clone()) {
                    let outcome = if cancelled {
                        Outcome::Cancelled
                    } else {
                        Outcome::Failed
                    };
                    steps.push((workflow, settle::StepEnd { step, outcome }));
                }
            }
            disposition => {
                attempts.push(NewAttempt {
                    taken: lease,
                    kind: report.kind.as_str(),
                    error_code: Some(report.error_code.clone()),
                    error_message: report.error_message.clone(),
                    retry_at: answer.1,
                    disposition,
                });
                let due = answer.1.filter(|at| *at > now);
                let reason = match disposition {
                    "held" => Some("held"),
                    _ if due.is_some() => Some("retry"),
                    _ => None,
                };
                puts.push(Put {
                    id: lease.id,
                    workflow: lease.workflow,
                    lane: lease.lane,
                    run_number: lease.run_number,
                    attempt: lease.attempt,
                    epoch: lease.epoch,
                    reason,
                    due,
                });
                match due {
                    Some(at) => wake::timer_at(at),
                    None if reason.is_none() => wake::job_ready(&lease.task),
                    None => {}
                }
            }
        }
        answers.push(answer);
    }
    store::job::append_ends(session, &ends, now);
    let cancelled: Vec<Uuid> = ends
        .iter()
        .filter(|end| end.state == "cancelled")
        .map(|end| end.id)
        .collect();
    if !cancelled.is_empty() {
        store::job::answer_signals(session, cancelled.clone());
    }
    let standalone = reports
        .iter()
        .zip(&answers)
        .filter(|(report, answer)| {
            report.lease.workflow.is_none() && matches!(answer.0, "cancelled" | "dead")
        })
        .map(|(report, _)| report.lease.id)
        .collect();
    family::ended(session, standalone, cancelled, workflows, now);
    store::job::append_attempts(session, &attempts, now);
    if !puts.is_empty() {
        store::lease::put(session, &puts, now);
    }
    for workflow in workflows.values() {
        let ended: Vec<settle::StepEnd> = steps
            .extract_if(.., |(owner, _)| *owner == workflow.id)
            .map(|(_, step)| step)
            .collect();
        if !ended.is_empty() {
            settle::settle(session, workflow, ended, now)?;
        }
    }
    Ok(answers)
}

fn decide(report: &Report, now: Instant) -> FailureDecision {
    let lease = report.lease;
    let asked_us = report.retry_at.map(|at| at.0.saturating_sub(now.0).max(0));
    let decision = retry::after_failure(
        &lease.retry,
        report.kind,
        lease.attempt,
        lease.hold,
        asked_us,
        xact::random01(),
    );
    match (decision, lease.job_deadline) {
        // Another attempt would begin after the deadline of all attempts.
        (FailureDecision::Retry { delay_us }, Some(deadline))
            if now.plus_us(delay_us) >= deadline =>
        {
            if lease.hold {
                FailureDecision::Hold
            } else {
                FailureDecision::Dead
            }
        }
        (decision, _) => decision,
    }
}

/// Why it is not tried again, for people.
fn reason(report: &Report, cancelled: bool) -> String {
    let lease = report.lease;
    let deadline_passed =
        lease.attempt < lease.retry.max_attempts && report.kind != FailureKind::Terminal;
    match report.kind {
        _ if cancelled => "failed after the cancel".to_owned(),
        FailureKind::Expired => format!(
            "lease expired; attempt {} of {}",
            lease.attempt, lease.retry.max_attempts
        ),
        FailureKind::Terminal => "terminal failure".to_owned(),
        _ if deadline_passed => "the deadline of all attempts has passed".to_owned(),
        _ => format!("attempt {} of {}", lease.attempt, lease.retry.max_attempts),
    }
}

/// The same failure by the same lease is answered again. Kind and code tell it from what the reaper said of the lease.
fn repeated(session: &Session, failure: &Failure) -> Answer {
    if store::lease::exists(session, failure.id, failure.epoch) {
        return ("busy", None);
    }
    if let Some(end) = store::job::end(session, failure.id)
        && end.epoch == failure.epoch
        && end.by_worker
        && end.error_code.as_deref() == Some(&failure.error_code)
    {
        match end.state.as_str() {
            "failed" => return ("dead", None),
            "cancelled" => return ("cancelled", None),
            _ => {}
        }
    }
    let (kind, code) = (failure.kind.as_str(), failure.error_code.as_str());
    match store::job::attempt_answer(session, failure.id, failure.epoch, kind, code) {
        Some((disposition, retry_at)) => match disposition.as_str() {
            "retry" => ("retry", retry_at),
            "held" => ("held", None),
            _ => ("lost", None),
        },
        None => ("lost", None),
    }
}
