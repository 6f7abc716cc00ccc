//! Family: the end of a job concerns the job that spawned it, and a cancelled one's own children.

use pgrx::Uuid;

use crate::engine::{owner, park};
use crate::pg::clock::Instant;
use crate::pg::spi::Session;
use crate::runtime::wake;
use crate::store;

/// Stand-alone jobs have ended, some of them as cancelled. Their parents' owners are locked, so a parent either waits already, or
/// will see the end when it looks.
pub fn ended(
    session: &Session,
    ended: Vec<Uuid>,
    cancelled: Vec<Uuid>,
    workflows: &owner::Locked,
    now: Instant,
) {
    if !ended.is_empty() {
        let parents = store::park::take_parents(session, ended);
        if !parents.is_empty() {
            let ids = parents.iter().map(|parent| parent.id).collect();
            let epochs = parents.iter().map(|parent| parent.epoch).collect();
            store::checkpoint::answer_children(session, ids, epochs);
            park::resume(session, &parents, workflows, now);
        }
    }
    if !cancelled.is_empty() && store::family::request_cancel(session, cancelled) {
        wake::timer_at(now);
    }
}

/// A workflow was cancelled: what its steps have spawned is asked to end.
pub fn workflow_cancelled(session: &Session, workflow: i64, now: Instant) {
    if store::family::request_cancel_of(session, workflow) {
        wake::timer_at(now);
    }
}
