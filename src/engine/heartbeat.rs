//! Heartbeat: the lease goes on, and the worker learns what its owner wants. No owner is locked; the row stays HOT.

use std::collections::HashMap;

use pgrx::Uuid;
use sayiir_rules::job::Directive;
use sayiir_rules::workflow::WorkflowState;

use crate::engine::owner;
use crate::error::{Code, Error, Result};
use crate::pg::clock::Instant;
use crate::pg::spi::Session;
use crate::store;

pub struct Request<'a> {
    pub ids: Vec<Uuid>,
    pub epochs: Vec<i64>,
    pub lease_us: Option<i64>,
    pub progress_done: Option<i64>,
    pub progress_total: Option<i64>,
    pub stage: Option<&'a str>,
}

/// Extends leases; answers in the order of the call. A lease that has expired but that nobody took is extended too: the epoch
/// alone decides.
pub fn heartbeat(session: &Session, request: Request) -> Result<Vec<Directive>> {
    owner::require_read_committed("job_heartbeat")?;
    if let (Some(done), Some(total)) = (request.progress_done, request.progress_total)
        && done > total
    {
        return Err(Error::new(
            Code::ArgumentOutOfRange,
            format!("progress_done {done} is more than progress_total {total}"),
        )
        .with("argument", "progress_done"));
    }
    for (name, value) in [
        ("progress_done", request.progress_done),
        ("progress_total", request.progress_total),
    ] {
        if value.is_some_and(|value| value < 0) {
            return Err(
                Error::new(Code::ArgumentOutOfRange, format!("{name} is negative"))
                    .with("argument", name),
            );
        }
    }
    if let Some(stage) = request.stage {
        sayiir_rules::ids::check_name("stage", stage)?;
    }
    // Locked in job order, so that two batches of one worker cannot wait for each other in a circle.
    let mut leases: Vec<(Uuid, i64)> = request.ids.iter().copied().zip(request.epochs).collect();
    leases.sort_unstable_by_key(|(id, _)| *id.as_bytes());
    let (ids, epochs) = leases.into_iter().unzip();
    let answers = store::lease::heartbeat(
        session,
        ids,
        epochs,
        request.lease_us,
        (request.progress_done, request.progress_total, request.stage),
        Instant::now(),
    );
    // Against what was reported before: one of the two may have stayed. The refusal takes the statement back.
    if let Some((id, ..)) = answers.iter().find(|(.., possible)| !possible) {
        return Err(Error::new(
            Code::ArgumentOutOfRange,
            format!("progress_done would be more than progress_total of job {id}"),
        )
        .with("argument", "progress_done"));
    }
    let alive: HashMap<Uuid, Directive> = answers
        .into_iter()
        .map(|(id, owner, cancel_requested, _)| (id, directive(owner.as_deref(), cancel_requested)))
        .collect();
    Ok(request
        .ids
        .iter()
        .map(|id| alive.get(id).copied().unwrap_or(Directive::Lost))
        .collect())
}

fn directive(owner: Option<&str>, cancel_requested: bool) -> Directive {
    if cancel_requested {
        return Directive::Cancel;
    }
    owner
        .and_then(WorkflowState::parse)
        .map_or(Directive::Continue, WorkflowState::directive)
}
