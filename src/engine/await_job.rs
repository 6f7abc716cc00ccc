//! Await job: durable code takes the end of a job that it spawned, or waits for it.

use pgrx::Uuid;
use sayiir_rules::durable::{self, CheckpointKind, Wait};
use sayiir_rules::ids;

use crate::engine::checkpoint::conflict;
use crate::engine::owner;
use crate::engine::park::{self, Answer, Holder};
use crate::error::{Code, Error, Result};
use crate::pg::clock::Instant;
use crate::pg::spi::Session;
use crate::store;

pub struct Request<'a> {
    pub id: Uuid,
    pub epoch: i64,
    pub name: &'a str,
    pub child: Uuid,
    /// None = it waits for ever.
    pub timeout_us: Option<i64>,
}

pub fn await_job(session: &Session, request: &Request) -> Result<Answer> {
    let Request {
        id,
        epoch,
        name,
        child,
        ..
    } = *request;
    ids::check_name("name", name)?;
    let kind = CheckpointKind::Child;
    let Some(holder) = Holder::lock(session, "job_await_job", id, epoch)? else {
        return park::repeated(session, id, epoch, name, kind);
    };
    if holder.is_cancelled() {
        holder.stop(session)?;
        return Ok(Answer::Parked);
    }
    let now = Instant::now();
    let known = store::checkpoint::get(session, id, name);
    let remembered = known.as_ref().map(|known| known.remembered);
    if known.is_some_and(|known| known.child.is_some_and(|asked| asked != child)) {
        return Err(conflict(id, name));
    }
    let answered = remembered.is_some_and(|known| known.kind == kind && known.answered);
    // Whoever ends a child holds the owner of its parent, so the child's end is either there, or will find this job waiting.
    // Only its own children: an owner found from a child is always shallower, or locks could cycle.
    if !answered {
        let record =
            store::job::owner(session, child).ok_or_else(|| owner::job_not_found(child))?;
        if record.parent.is_none_or(|parent| parent.id != id) {
            return Err(Error::new(
                Code::JobNotChild,
                format!("job {child} was not spawned by job {id}"),
            )
            .with("job_id", id.to_string())
            .with("child_id", child.to_string()));
        }
    }
    let arrived = !answered && store::job::end(session, child).is_some();
    let asked_due = request.timeout_us.map(|us| now.plus_us(us));
    let due_us = asked_due.map(|due| due.0);
    match durable::wait(kind, remembered, arrived, due_us, now.0) {
        Wait::Conflict => Err(conflict(id, name)),
        Wait::Answered => holder.known(session, name),
        Wait::Arrived => {
            let asked = holder.asked(name, kind, asked_due, Some(child));
            holder.child_ended(session, &asked, now)
        }
        Wait::Over => {
            let asked = holder.asked(name, kind, asked_due, Some(child));
            holder.over(session, &asked, now)
        }
        Wait::Park { due_us } => {
            let due = due_us.map(Instant);
            let wait = store::park::Wait {
                reason: "child",
                due,
                event: None,
            };
            let asked = holder.asked(name, kind, due, Some(child));
            holder.park(session, &asked, &wait, now)
        }
    }
}
