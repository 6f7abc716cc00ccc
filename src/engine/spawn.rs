//! Spawn: durable code enqueues a child, once under a name.

use pgrx::Uuid;
use sayiir_rules::durable::CheckpointKind;
use sayiir_rules::ids;

use crate::engine::checkpoint::conflict;
use crate::engine::park::Holder;
use crate::engine::{enqueue, owner};
use crate::error::{Code, Error, Result};
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::Session;
use crate::pg::xact;
use crate::store;
use crate::store::job::Parent;

/// Answers the child's id and whether it was inserted now. Organization and trace are those of the parent, unless the request names
/// a trace.
pub fn spawn(
    session: &Session,
    id: Uuid,
    epoch: i64,
    name: &str,
    payload: Jsonb,
    request: enqueue::Request,
) -> Result<(Uuid, bool)> {
    ids::check_name("name", name)?;
    enqueue::check_size("payload", payload)?;
    let holder = Holder::lock(session, "job_spawn", id, epoch)?
        .ok_or_else(|| owner::lease_lost(id, epoch))?;
    if let Some(known) = store::checkpoint::get(session, id, name) {
        return match known.child {
            Some(child) if known.remembered.kind == CheckpointKind::Spawn => Ok((child, false)),
            _ => Err(conflict(id, name)),
        };
    }
    if holder.is_cancelled() {
        return Err(
            Error::new(Code::JobCancelled, format!("job {id} was cancelled"))
                .with("job_id", id.to_string()),
        );
    }
    let now = Instant::now();
    xact::assign_xid();
    let origin = store::family::origin(session, id).ok_or_else(|| owner::job_not_found(id))?;
    let depth = origin.depth.saturating_add(1);
    let request = enqueue::Request {
        organization: origin.organization,
        trace_parent: request.trace_parent.or(origin.trace_parent.as_deref()),
        ..request
    };
    let mut job = enqueue::prepare(session, &request, now, false)?;
    let parent = Parent {
        id,
        workflow: holder.workflow,
    };
    job.parent = Some((parent, depth));
    let child = enqueue::new_id();
    store::job::insert(session, &job, child, payload, None);
    let asked = holder.asked(name, CheckpointKind::Spawn, None, None);
    store::checkpoint::remember_spawn(session, &asked, child, now);
    enqueue::wake(request.task, job.run_at);
    Ok((child, true))
}
