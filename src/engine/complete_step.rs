//! Complete step: a person or an outside system ends an open step that no worker holds.

use sayiir_rules::ids;
use sayiir_rules::release::Outcome;

use crate::engine::{cancel, enqueue, graph, owner, settle};
use crate::error::{Code, Error, Result};
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::Session;
use crate::scope::Scope;
use crate::store;
use crate::store::job::NewEnd;

pub struct Request<'a> {
    pub scope: Scope,
    pub workflow_id: &'a str,
    pub step: &'a str,
    pub outcome: &'a str,
    pub output: Option<Jsonb>,
    pub reason: Option<&'a str>,
    pub error_code: Option<&'a str>,
    pub error_message: Option<&'a str>,
}

/// Answers completed, or repeated for the same completion again; another one is refused.
pub fn complete_step(session: &Session, request: &Request) -> Result<&'static str> {
    owner::require_read_committed("workflow_complete_step")?;
    let outcome = match request.outcome {
        "succeeded" => Outcome::Succeeded,
        "failed" => Outcome::Failed,
        "cancelled" => Outcome::Cancelled,
        other => {
            return Err(Error::new(
                Code::ArgumentInvalid,
                format!("outcome is {other:?}: it takes succeeded, failed or cancelled"),
            )
            .with("argument", "outcome"));
        }
    };
    if let Some(code) = request.error_code {
        ids::check_error_code("error_code", code)?;
    }
    if let Some(output) = request.output {
        enqueue::check_size("output", output)?;
    }
    let workflow = cancel::locked(session, &request.scope, request.workflow_id)?;
    let graph = graph::load(session, &workflow.definition_hash)?;
    let refuse = |code: Code, what: &str| {
        Error::new(
            code,
            format!(
                "step {:?} of workflow {:?} {what}",
                request.step, request.workflow_id
            ),
        )
        .with("workflow_id", request.workflow_id)
        .with("step", request.step)
        .with("status", workflow.status.as_str())
    };
    if graph.ordinal(request.step).is_none() {
        return Err(refuse(Code::WorkflowStepNotFound, "does not exist"));
    }
    let Some(job) = store::step::job(session, workflow.id, request.step) else {
        return Err(if workflow.status.is_terminal() {
            refuse(
                Code::WorkflowEnded,
                "was never released, and the workflow has ended",
            )
        } else {
            refuse(Code::WorkflowStepNotOpen, "is not released yet")
        });
    };
    let ended = store::step::compare_end(
        session,
        job,
        outcome.as_str(),
        request.output,
        request.reason,
        request.error_code,
        request.error_message,
    );
    match ended {
        Some((true, true)) => return Ok("repeated"),
        Some((true, false)) => {
            return Err(refuse(
                Code::WorkflowOutputConflict,
                "has already ended with another output",
            ));
        }
        Some((false, _)) => {
            return Err(refuse(
                Code::WorkflowCompletionConflict,
                "has already ended otherwise",
            ));
        }
        None => {}
    }
    if workflow.status.is_terminal() {
        // It is with a worker, or a claim that met the end parked it: it will end cancelled.
        return Err(refuse(
            Code::WorkflowEnded,
            "is open, but the workflow has ended",
        ));
    }
    let Some(open) = store::step::take_open(session, job) else {
        return Err(refuse(Code::WorkflowStepLeased, "is held by a worker"));
    };
    let now = Instant::now();
    let end = NewEnd {
        id: job,
        state: outcome.as_str(),
        output: request.output,
        error_code: request.error_code.map(str::to_owned),
        error_message: request.error_message.map(str::to_owned),
        reason: request.reason.map(str::to_owned),
        worker: None,
        epoch: open.epoch,
        run_number: open.run_number,
        attempt: open.attempt,
        started_at: None,
    };
    store::job::append_ends(session, &[end], now);
    settle::settle(
        session,
        &workflow,
        vec![settle::StepEnd {
            step: open.step,
            outcome,
        }],
        now,
    )?;
    Ok("completed")
}
