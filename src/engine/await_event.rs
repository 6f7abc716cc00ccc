//! Await event: durable code takes the oldest buffered event of a name, or waits for one.

use pgrx::Uuid;
use sayiir_rules::durable::{self, CheckpointKind, Wait};
use sayiir_rules::ids;

use crate::engine::checkpoint::conflict;
use crate::engine::park::{self, Answer, Holder};
use crate::error::Result;
use crate::pg::clock::Instant;
use crate::pg::spi::Session;
use crate::store;

pub struct Request<'a> {
    pub id: Uuid,
    pub epoch: i64,
    pub name: &'a str,
    pub event: &'a str,
    /// None = it waits for ever.
    pub timeout_us: Option<i64>,
}

pub fn await_event(session: &Session, request: &Request) -> Result<Answer> {
    let Request {
        id,
        epoch,
        name,
        event,
        ..
    } = *request;
    ids::check_name("name", name)?;
    ids::check_name("event", event)?;
    let kind = CheckpointKind::Event;
    let Some(holder) = Holder::lock(session, "job_await_event", id, epoch)? else {
        return park::repeated(session, id, epoch, name, kind);
    };
    if holder.is_cancelled() {
        holder.stop(session)?;
        return Ok(Answer::Parked);
    }
    let now = Instant::now();
    let remembered = store::checkpoint::get(session, id, name).map(|known| known.remembered);
    let asked_due = request.timeout_us.map(|us| now.plus_us(us));
    // Nothing is consumed before the rule has said that an event would be taken.
    let takes = durable::wait(kind, remembered, true, None, now.0) == Wait::Arrived;
    let payload = match holder.workflow {
        _ if !takes => None,
        Some(workflow) => {
            let found = store::event::consume(session, workflow, vec![event.to_owned()], vec![0]);
            found.into_iter().next().map(|(_, payload)| payload)
        }
        None => store::event::consume_of_job(session, id, event),
    };
    let due_us = asked_due.map(|due| due.0);
    match durable::wait(kind, remembered, payload.is_some(), due_us, now.0) {
        Wait::Conflict => Err(conflict(id, name)),
        Wait::Answered => holder.known(session, name),
        Wait::Arrived => {
            let asked = holder.asked(name, kind, asked_due, None);
            holder.received(session, &asked, payload.flatten(), now)
        }
        Wait::Over => {
            let asked = holder.asked(name, kind, asked_due, None);
            holder.over(session, &asked, now)
        }
        Wait::Park { due_us } => {
            let due = due_us.map(Instant);
            let wait = store::park::Wait {
                reason: "event",
                due,
                event: Some(event),
            };
            let asked = holder.asked(name, kind, due, None);
            holder.park(session, &asked, &wait, now)
        }
    }
}
