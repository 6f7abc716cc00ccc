//! Send event to a job: a stand-alone job that waits for it goes on in the same transaction; else the event is buffered, first in
//! first out.

use pgrx::Uuid;
use sayiir_rules::event::{EventDisposition, Owner, disposition};
use sayiir_rules::ids;

use crate::engine::{enqueue, owner, park};
use crate::error::Result;
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::Session;
use crate::scope::Scope;
use crate::store;

pub struct Request<'a> {
    pub scope: Scope,
    pub id: Uuid,
    pub name: &'a str,
    pub payload: Option<Jsonb>,
    pub event_key: Option<&'a str>,
}

pub fn send(session: &Session, request: &Request) -> Result<EventDisposition> {
    owner::require_read_committed("job_send_event")?;
    ids::check_name("name", request.name)?;
    if let Some(key) = request.event_key {
        ids::check_id("event_key", key)?;
    }
    if let Some(payload) = request.payload {
        enqueue::check_size("payload", payload)?;
    }
    let id = request.id;
    let job = owner::visible(session, &request.scope, id)?;
    if job.workflow.is_some() {
        return Err(owner::is_step(id));
    }
    store::job::lock_standalone(session, vec![id]);
    let now = Instant::now();
    let owner = match store::job::end(session, id) {
        Some(_) => Owner::Ended,
        None => Owner::Open,
    };
    let organization = job.organization.as_deref();
    let key_seen = request
        .event_key
        .is_some_and(|key| !store::event::take_job_key(session, organization, id, key));
    let waiting = match owner {
        Owner::Open if !key_seen => store::park::take_event(session, id, request.name),
        _ => None,
    };
    let answer = disposition(owner, key_seen, waiting.is_some());
    match (answer, waiting) {
        (EventDisposition::Duplicate, _) => {}
        (EventDisposition::Resumed, Some(job)) => {
            store::checkpoint::answer_event(session, id, job.epoch, request.payload);
            park::resume(session, &[job], &owner::Locked::new(), now);
        }
        _ => store::event::append_to_job(
            session,
            &store::event::NewJobEvent {
                id,
                organization,
                name: request.name,
                payload: request.payload,
                key: request.event_key,
                disposition: answer.as_str(),
            },
        ),
    }
    Ok(answer)
}
