//! Send event: the oldest wait for it resumes in the same transaction; without one the event is buffered, first in first out.

use sayiir_rules::event::{EventDisposition, Owner, disposition};
use sayiir_rules::ids;
use sayiir_rules::release::Outcome;

use crate::engine::{adopt, enqueue, owner, park, settle};
use crate::error::Result;
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::Session;
use crate::scope::Scope;
use crate::store;
use crate::store::event::NewEvent;
use crate::store::job::NewEnd;
use crate::store::workflow::Workflow;

pub struct Request<'a> {
    pub scope: Scope,
    pub workflow_id: &'a str,
    pub name: &'a str,
    pub payload: Option<Jsonb>,
    pub event_key: Option<&'a str>,
}

/// Sends one event. Nothing is lost: to an unknown id it is kept as early, to a finished workflow as late.
pub fn send_event(session: &Session, request: &Request) -> Result<EventDisposition> {
    owner::require_read_committed("workflow_send_event")?;
    ids::check_id("workflow_id", request.workflow_id)?;
    ids::check_name("name", request.name)?;
    if let Some(key) = request.event_key {
        ids::check_id("event_key", key)?;
    }
    if let Some(payload) = request.payload {
        enqueue::check_size("payload", payload)?;
    }
    adopt::note_use(session);
    let organization = match &request.scope {
        Scope::One(organization) => organization.clone(),
        Scope::All => None,
    };
    let mut workflow = locked(session, request);
    if workflow.is_none() {
        // Not born, or being born: behind the birth lock either it is there now, or its start will find this event.
        store::event::lock_birth(session, organization.as_deref(), request.workflow_id);
        workflow = locked(session, request);
    }
    let organization = workflow
        .as_ref()
        .map_or(organization, |workflow| workflow.organization.clone());
    let organization = organization.as_deref();
    let owner = match &workflow {
        None => Owner::Unborn,
        Some(workflow) if workflow.status.is_terminal() => Owner::Ended,
        Some(_) => Owner::Open,
    };
    let key_seen = request.event_key.is_some_and(|key| {
        !store::event::take_key(session, organization, request.workflow_id, key)
    });
    let wait = match (&workflow, owner) {
        (Some(workflow), Owner::Open) if !key_seen => {
            store::step::take_oldest_wait(session, workflow.id, request.name)
        }
        _ => None,
    };
    let answer = disposition(owner, key_seen, wait.is_some());
    match (answer, workflow, wait) {
        (EventDisposition::Duplicate, _, _) => {}
        (EventDisposition::Resumed, Some(workflow), Some(wait)) => {
            resume(session, &workflow, wait, request.payload)?
        }
        (_, workflow, _) => store::event::append(
            session,
            &NewEvent {
                workflow: workflow.map(|workflow| workflow.id),
                organization,
                workflow_id: request.workflow_id,
                name: request.name,
                payload: request.payload,
                key: request.event_key,
                disposition: answer.as_str(),
            },
        ),
    }
    Ok(answer)
}

fn locked(session: &Session, request: &Request) -> Option<Workflow> {
    let id = store::workflow::find(session, &request.scope, request.workflow_id)?;
    store::workflow::lock(session, vec![id]).pop()
}

/// The event step that waited ends with the payload as its output; durable code goes on with it.
fn resume(
    session: &Session,
    workflow: &Workflow,
    wait: store::step::Waiting,
    payload: Option<Jsonb>,
) -> Result<()> {
    let now = Instant::now();
    if let Some(job) = park::of_step(session, workflow, &wait) {
        store::checkpoint::answer_event(session, job.id, job.epoch, payload);
        park::resume(session, &[job], &park::alone(workflow), now);
        return Ok(());
    }
    let end = NewEnd {
        id: wait.id,
        state: "succeeded",
        output: payload,
        error_code: None,
        error_message: None,
        reason: None,
        worker: None,
        epoch: wait.epoch,
        run_number: wait.run_number,
        attempt: wait.attempt,
        started_at: None,
    };
    store::job::append_ends(session, &[end], now);
    settle::settle(
        session,
        workflow,
        vec![settle::StepEnd {
            step: wait.step,
            outcome: Outcome::Succeeded,
        }],
        now,
    )
}
