//! Cancel, pause, resume of a workflow: applied at once to everything that is not leased. A leased job learns of it from its next
//! heartbeat; what it completes after a cancel is recorded as cancelled.

use sayiir_rules::workflow::{WorkflowInput, WorkflowState};
use serde_json::json;

use crate::engine::{family, graph, owner, settle};
use crate::error::{Code, Error, Result};
use crate::pg::clock::Instant;
use crate::pg::spi::Session;
use crate::runtime::wake;
use crate::scope::Scope;
use crate::store;
use crate::store::workflow::{End, Workflow};

/// Who asks, and why.
#[derive(Clone, Copy, Default)]
pub struct Asked<'a> {
    pub reason: Option<&'a str>,
    pub requested_by: Option<&'a str>,
}

/// Finds and locks a workflow.
pub fn locked(session: &Session, scope: &Scope, workflow_id: &str) -> Result<Workflow> {
    store::workflow::find(session, scope, workflow_id)
        .and_then(|id| store::workflow::lock(session, vec![id]).pop())
        .ok_or_else(|| not_found(workflow_id))
}

pub fn not_found(workflow_id: &str) -> Error {
    Error::new(
        Code::WorkflowNotFound,
        format!("there is no workflow {workflow_id:?}"),
    )
    .with("workflow_id", workflow_id)
}

/// Cancels; a workflow that has ended stays as it is. Answers the status.
pub fn cancel(
    session: &Session,
    scope: &Scope,
    workflow_id: &str,
    asked: Asked,
) -> Result<WorkflowState> {
    owner::require_read_committed("workflow_cancel")?;
    let workflow = locked(session, scope, workflow_id)?;
    if workflow.status.apply(WorkflowInput::Cancel).is_none() {
        return Ok(workflow.status);
    }
    let now = Instant::now();
    stop(session, &workflow, asked, now);
    settle::close(
        session,
        &workflow,
        WorkflowState::Cancelled,
        Some(json!({"reason": asked.reason, "requested_by": asked.requested_by})),
        now,
    );
    Ok(WorkflowState::Cancelled)
}

/// Cancels in order to delete: no history, but waiters are woken.
pub fn terminate(session: &Session, workflow: &Workflow, now: Instant) {
    if workflow.status.apply(WorkflowInput::Cancel).is_some() {
        stop(session, workflow, Asked::default(), now);
        wake::workflow_finished(&workflow.workflow_id, WorkflowState::Cancelled.as_str());
    }
}

/// The status first, then what waits, then what is ready: the way rows move.
fn stop(session: &Session, workflow: &Workflow, asked: Asked, now: Instant) {
    let end = End {
        status: WorkflowState::Cancelled,
        result: None,
        error_code: Some("workflow.cancelled"),
        error_message: None,
        reason: asked.reason,
        requested_by: asked.requested_by,
    };
    store::workflow::end(session, workflow.id, &end, now);
    store::workflow::cancel_unleased(session, workflow.id, asked.reason, now);
    family::workflow_cancelled(session, workflow.id, now);
}

/// Ends a workflow whose deadline has passed.
pub fn time_out(session: &Session, workflow: &Workflow, now: Instant) {
    if workflow.status.is_terminal() {
        return;
    }
    let end = End {
        status: WorkflowState::Failed,
        result: None,
        error_code: Some("workflow.timeout"),
        error_message: Some("the workflow ran longer than its timeout"),
        reason: None,
        requested_by: None,
    };
    store::workflow::end(session, workflow.id, &end, now);
    store::workflow::cancel_unleased(session, workflow.id, Some("workflow.timeout"), now);
    family::workflow_cancelled(session, workflow.id, now);
    settle::close(
        session,
        workflow,
        WorkflowState::Failed,
        Some(json!({"error_code": "workflow.timeout"})),
        now,
    );
}

/// Pauses: ready jobs stand still, clocks run on. Answers the status.
pub fn pause(
    session: &Session,
    scope: &Scope,
    workflow_id: &str,
    asked: Asked,
) -> Result<WorkflowState> {
    owner::require_read_committed("workflow_pause")?;
    let workflow = locked(session, scope, workflow_id)?;
    let Some(status) = workflow.status.apply(WorkflowInput::Pause) else {
        return Ok(workflow.status);
    };
    let now = Instant::now();
    store::workflow::set_status(session, workflow.id, status);
    store::step::park(session, workflow.id, now);
    let detail = json!({"reason": asked.reason, "requested_by": asked.requested_by});
    store::workflow::log(
        session,
        workflow.id,
        "workflow_paused",
        None,
        Some(&detail),
        now,
    );
    Ok(status)
}

/// Resumes: what stood still is ready again, and what came due meanwhile fires. Answers the status.
pub fn resume(session: &Session, scope: &Scope, workflow_id: &str) -> Result<WorkflowState> {
    owner::require_read_committed("workflow_resume")?;
    let workflow = locked(session, scope, workflow_id)?;
    let Some(status) = workflow.status.apply(WorkflowInput::Resume) else {
        return Ok(workflow.status);
    };
    let now = Instant::now();
    store::workflow::set_status(session, workflow.id, status);
    for task in store::step::unpark(session, workflow.id) {
        wake::job_ready(&task);
    }
    let graph = graph::load(session, &workflow.definition_hash)?;
    let timed: Vec<String> = graph
        .steps
        .iter()
        .filter(|step| step.has_timer())
        .map(|step| step.key.clone())
        .collect();
    let parked = store::park::restart_clocks(session, workflow.id);
    if store::step::restart_clocks(session, workflow.id, timed, now) || parked {
        wake::timer_at(now);
    }
    store::workflow::log(session, workflow.id, "workflow_resumed", None, None, now);
    Ok(status)
}
