//! Continue: a lease ends its run and the job begins a new one, its attempts counted anew.

use pgrx::Uuid;
use sayiir_rules::definition::Kind;

use crate::engine::park::Holder;
use crate::engine::{enqueue, graph, owner};
use crate::error::{Code, Error, Result};
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::Session;
use crate::runtime::wake;
use crate::store;
use crate::store::job::NewAttempt;
use crate::store::lease::Put;

pub struct Request {
    pub id: Uuid,
    pub epoch: i64,
    pub delay_us: i64,
    /// None = what job_checkpoint set stays.
    pub checkpoints: Option<Jsonb>,
}

/// The new run and when it begins; None = a cancel came first, and the job has ended.
pub fn continue_job(session: &Session, request: &Request) -> Result<Option<(i32, Instant)>> {
    let (id, epoch) = (request.id, request.epoch);
    if let Some(checkpoints) = request.checkpoints {
        enqueue::check_size("checkpoints", checkpoints)?;
        check_names(checkpoints)?;
    }
    let holder = Holder::lock(session, "job_continue", id, epoch)?
        .ok_or_else(|| owner::lease_lost(id, epoch))?;
    if holder.is_cancelled() {
        holder.stop(session)?;
        return Ok(None);
    }
    check_allowed(session, &holder)?;
    let now = Instant::now();
    let lease = holder.take(session, now)?.ok_or_else(|| owner::busy(id))?;
    let begins = now.plus_us(request.delay_us);
    let attempt = NewAttempt {
        taken: &lease,
        kind: "continued",
        error_code: None,
        error_message: None,
        retry_at: Some(begins),
        disposition: "continued",
    };
    store::job::append_attempts(session, &[attempt], now);
    store::checkpoint::renew(session, id, epoch, request.checkpoints, now);
    let due = (request.delay_us > 0).then_some(begins);
    let reason = match due {
        // When it comes due while its workflow is paused, the claim parks it.
        Some(_) => Some("run_at"),
        None => holder.is_paused().then_some("paused"),
    };
    let run_number = lease.run_number + 1;
    store::lease::put(
        session,
        &[Put {
            id,
            workflow: lease.workflow,
            lane: lease.lane,
            run_number,
            attempt: 0,
            epoch: lease.epoch,
            reason,
            due,
        }],
        now,
    );
    match (due, reason) {
        (Some(at), _) => wake::timer_at(at),
        (None, None) => wake::job_ready(&lease.task),
        _ => {}
    }
    Ok(Some((run_number, begins)))
}

/// A step begins new runs only if its definition allows it: its dependents wait for the end.
fn check_allowed(session: &Session, holder: &Holder) -> Result<()> {
    let workflow = holder
        .workflow
        .and_then(|workflow| holder.workflows.get(&workflow));
    let (Some(workflow), Some(step)) = (workflow, &holder.held.step) else {
        return Ok(());
    };
    let graph = graph::load(session, &workflow.definition_hash)?;
    let allowed = graph.ordinal(step).is_some_and(
        |step| matches!(&graph.steps[step].kind, Kind::Task(task) if task.allow_continue),
    );
    if allowed {
        return Ok(());
    }
    Err(Error::new(
        Code::JobContinueNotAllowed,
        format!("step {step:?} may not begin new runs"),
    )
    .with("job_id", holder.id.to_string())
    .with("step", step.as_str()))
}

fn check_names(checkpoints: Jsonb) -> Result<()> {
    let names = checkpoints
        .is_object()
        .then(|| checkpoints.to_value())
        .flatten();
    let Some(serde_json::Value::Object(fields)) = names else {
        return Err(
            Error::new(Code::ArgumentInvalid, "checkpoints is not an object")
                .with("argument", "checkpoints"),
        );
    };
    for name in fields.keys() {
        sayiir_rules::ids::check_name("checkpoints", name)?;
    }
    Ok(())
}
