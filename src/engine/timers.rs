//! Timers: what in `job_wait` is due moves on, and workflows past their deadline end.

use std::collections::HashMap;

use pgrx::Uuid;
use sayiir_rules::release::Outcome;
use sayiir_rules::workflow::WorkflowState;

use crate::engine::{cancel, graph, open, owner, park, settle};
use crate::error::Result;
use crate::pg::clock::Instant;
use crate::pg::spi::Session;
use crate::runtime::wake;
use crate::store;
use crate::store::job::NewEnd;
use crate::store::lease::Put;
use crate::store::park::Parked;
use crate::store::step::Waiting;
use crate::store::workflow::Workflow;

/// Retries and `run_at`s that are due.
pub fn due_of_clock(session: &Session, max_rows: i32) -> Vec<Uuid> {
    store::wait::due_of_clock(session, Instant::now(), max_rows)
}

/// They become ready: one statement, no owner lock.
pub fn promote(session: &Session, due: &[Uuid]) -> i64 {
    let (moved, tasks) = store::wait::promote(session, due.to_vec(), Instant::now());
    for task in tasks {
        wake::job_ready(&task);
    }
    moved
}

/// Due waits that their owner must decide on: (job, workflow; None = the job owns itself).
pub fn due(session: &Session, max_rows: i32) -> Vec<(Uuid, Option<i64>)> {
    store::wait::due_of_owners(session, Instant::now(), max_rows)
}

/// Fires the given waits. An owner that another session holds is left for the next sweep.
pub fn fire(session: &Session, due: &[(Uuid, Option<i64>)]) -> Result<i64> {
    let mut standalone = Vec::new();
    let mut by_workflow: HashMap<i64, Vec<Uuid>> = HashMap::new();
    for (job, workflow) in due {
        match workflow {
            None => standalone.push(*job),
            Some(workflow) => by_workflow.entry(*workflow).or_default().push(*job),
        }
    }
    let mut ids: Vec<i64> = by_workflow.keys().copied().collect();
    ids.sort_unstable();
    let mut fired = fire_standalone(session, standalone);
    if ids.is_empty() {
        return Ok(fired);
    }
    for workflow in store::workflow::try_lock(session, ids) {
        let jobs = by_workflow.remove(&workflow.id).unwrap_or_default();
        fired += fire_of(session, &workflow, jobs)?;
    }
    Ok(fired)
}

/// Durable code that waits on its own goes on: its time is over.
fn fire_standalone(session: &Session, jobs: Vec<Uuid>) -> i64 {
    if jobs.is_empty() {
        return 0;
    }
    let locked = store::job::try_lock_standalone(session, jobs);
    let now = Instant::now();
    let parked = store::park::take_due(session, locked, now);
    go_on(session, &parked, &owner::Locked::new(), now);
    parked.len() as i64
}

fn go_on(session: &Session, parked: &[Parked], workflows: &owner::Locked, now: Instant) {
    if parked.is_empty() {
        return;
    }
    let ids = parked.iter().map(|job| job.id).collect();
    let epochs = parked.iter().map(|job| job.epoch).collect();
    store::checkpoint::answer_over(session, ids, epochs, now);
    park::resume(session, parked, workflows, now);
}

fn fire_of(session: &Session, workflow: &Workflow, jobs: Vec<Uuid>) -> Result<i64> {
    let now = Instant::now();
    if workflow.status == WorkflowState::Paused {
        store::wait::stop_clocks(session, jobs.clone(), now);
        return Ok(jobs.len() as i64);
    }
    let waits = store::step::take_due(session, workflow.id, jobs, now);
    let fired = waits.len() as i64;
    let (parked, timers): (Vec<Waiting>, Vec<Waiting>) =
        waits.into_iter().partition(|wait| wait.reason == "owner");
    if workflow.status.is_terminal() {
        // A claim that met the cancelled workflow had parked these.
        let ends: Vec<NewEnd> = parked
            .iter()
            .chain(&timers)
            .map(|wait| end(wait, Outcome::Cancelled, None, None))
            .collect();
        store::job::append_ends(session, &ends, now);
        store::workflow::release_active(session, workflow.id);
        return Ok(fired);
    }
    let puts: Vec<Put> = parked
        .iter()
        .map(|wait| Put {
            id: wait.id,
            workflow: Some(workflow.id),
            lane: wait.lane.expect("what a claim parked has a lane"),
            run_number: wait.run_number,
            attempt: wait.attempt,
            epoch: wait.epoch,
            reason: None,
            due: None,
        })
        .collect();
    if !puts.is_empty() {
        store::lease::put(session, &puts, now);
        for put in &puts {
            if let Some(task) = store::job::task(session, put.id) {
                wake::job_ready(&task);
            }
        }
    }
    let (durable, timers): (Vec<Waiting>, Vec<Waiting>) =
        timers.into_iter().partition(|wait| wait.lane.is_some());
    let durable: Vec<Parked> = durable
        .iter()
        .filter_map(|wait| park::of_step(session, workflow, wait))
        .collect();
    go_on(session, &durable, &park::alone(workflow), now);
    if timers.is_empty() {
        return Ok(fired);
    }
    let graph = graph::load(session, &workflow.definition_hash)?;
    let mut ends = Vec::with_capacity(timers.len());
    let mut steps = Vec::with_capacity(timers.len());
    for wait in timers {
        let (outcome, output, message) = match graph.ordinal(&wait.step) {
            Some(step) => open::on_timeout(&graph, step),
            None => (Outcome::Succeeded, None, None),
        };
        ends.push(end(&wait, outcome, output, message));
        steps.push(settle::StepEnd {
            step: wait.step,
            outcome,
        });
    }
    store::job::append_ends(session, &ends, now);
    settle::settle(session, workflow, steps, now)?;
    Ok(fired)
}

fn end(
    wait: &Waiting,
    outcome: Outcome,
    output: Option<crate::pg::jsonb::Jsonb>,
    message: Option<String>,
) -> NewEnd {
    let error_code = match outcome {
        Outcome::Failed => Some("event.timeout"),
        Outcome::Cancelled => Some("job.cancelled"),
        _ => None,
    };
    NewEnd {
        id: wait.id,
        state: outcome.as_str(),
        output,
        error_code: error_code.map(str::to_owned),
        error_message: message,
        reason: (outcome == Outcome::Skipped).then(|| "event.timeout".to_owned()),
        worker: None,
        epoch: wait.epoch,
        run_number: wait.run_number,
        attempt: wait.attempt,
        started_at: None,
    }
}

/// Workflows past their deadline.
pub fn past_deadline(session: &Session, max_rows: i32) -> Vec<i64> {
    store::workflow::past_deadline(session, Instant::now(), max_rows)
}

/// Ends them.
pub fn end_past_deadline(session: &Session, workflows: &[i64]) -> Result<i64> {
    let locked = store::workflow::try_lock(session, workflows.to_vec());
    let now = Instant::now();
    let ended = locked.len() as i64;
    for workflow in locked {
        cancel::time_out(session, &workflow, now);
    }
    Ok(ended)
}
