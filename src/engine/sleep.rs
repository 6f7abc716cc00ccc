//! Sleep: durable code goes on when a time has come.

use pgrx::Uuid;
use sayiir_rules::durable::{self, CheckpointKind, Wait};
use sayiir_rules::ids;

use crate::engine::checkpoint::conflict;
use crate::engine::park::{self, Answer, Holder};
use crate::error::Result;
use crate::pg::clock::Instant;
use crate::pg::spi::Session;
use crate::store;

/// Answers whether the time has come; else the job is parked.
pub fn sleep(
    session: &Session,
    id: Uuid,
    epoch: i64,
    name: &str,
    until: impl FnOnce(Instant) -> Result<Instant>,
) -> Result<bool> {
    ids::check_name("name", name)?;
    let kind = CheckpointKind::Sleep;
    let Some(holder) = Holder::lock(session, "job_sleep", id, epoch)? else {
        park::repeated(session, id, epoch, name, kind)?;
        return Ok(false);
    };
    if holder.is_cancelled() {
        holder.stop(session)?;
        return Ok(false);
    }
    let now = Instant::now();
    let until = until(now)?;
    let known = store::checkpoint::get(session, id, name);
    let remembered = known.map(|known| known.remembered);
    match durable::wait(kind, remembered, false, Some(until.0), now.0) {
        Wait::Conflict => Err(conflict(id, name)),
        Wait::Answered => Ok(true),
        Wait::Arrived | Wait::Over => {
            let asked = holder.asked(name, kind, Some(until), None);
            holder.over(session, &asked, now)?;
            Ok(true)
        }
        Wait::Park { due_us } => {
            let due = due_us.map(Instant);
            let wait = store::park::Wait {
                reason: "delay",
                due,
                event: None,
            };
            let asked = holder.asked(name, kind, due, None);
            let answer = holder.park(session, &asked, &wait, now)?;
            Ok(!matches!(answer, Answer::Parked))
        }
    }
}
