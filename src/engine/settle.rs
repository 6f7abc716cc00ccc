//! Settle: steps of a workflow have ended; release what that allows, breadth-first, and end the workflow when nothing is live.

use std::collections::HashMap;

use sayiir_rules::definition::{Graph, ResultRule};
use sayiir_rules::release::{self, Counter, Decision, Outcome};
use sayiir_rules::workflow::{WorkflowState, final_state};
use serde_json::json;

use crate::engine::{graph, open};
use crate::error::{Code, Error, Result};
use crate::pg::clock::Instant;
use crate::pg::spi::Session;
use crate::runtime::wake;
use crate::store;
use crate::store::workflow::{End, Workflow};

/// A step that has ended.
pub struct StepEnd {
    pub step: String,
    pub outcome: Outcome,
}

/// Carries on a locked workflow after steps of it have ended; their ends are written.
pub fn settle(
    session: &Session,
    workflow: &Workflow,
    ends: Vec<StepEnd>,
    now: Instant,
) -> Result<()> {
    if workflow.status.is_terminal() {
        // The last lease of a cancelled workflow gives the active key back.
        store::workflow::release_active(session, workflow.id);
        return Ok(());
    }
    let graph = graph::load(session, &workflow.definition_hash)?;
    let ended = ends
        .into_iter()
        .map(|end| match graph.ordinal(&end.step) {
            Some(step) => Ok((step, end.outcome)),
            None => Err(Error::new(
                Code::InternalState,
                format!("step {:?} is not in its definition", end.step),
            )),
        })
        .collect::<Result<Vec<_>>>()?;
    // An event may end a root step before the workflow's run_at; what it releases still waits for that.
    let from = workflow.run_at.map_or(now, |run_at| run_at.max(now));
    if !cascade(session, workflow, &graph, ended, from, now)? {
        finish(session, workflow, &graph, now)?;
    }
    Ok(())
}

/// Applies ends to the graph until no more steps end by it. Answers whether it opened anything that is live.
pub fn cascade(
    session: &Session,
    workflow: &Workflow,
    graph: &Graph,
    mut ended: Vec<(usize, Outcome)>,
    from: Instant,
    now: Instant,
) -> Result<bool> {
    let mut live = false;
    while !ended.is_empty() {
        let deltas = release::deltas(graph, &ended);
        let counters = count(session, workflow, graph, &deltas);
        let (mut released, mut cancelled) = (Vec::new(), Vec::new());
        for delta in &deltas {
            match release::decide(&graph.steps[delta.step], counters[&delta.step], delta) {
                Decision::Release => released.push(delta.step),
                Decision::Cancel => cancelled.push(delta.step),
                Decision::Wait => {}
            }
        }
        if released.is_empty() && cancelled.is_empty() {
            break;
        }
        let level = open::Level {
            released: &released,
            cancelled: &cancelled,
            from,
        };
        let opened = open::open(session, workflow, graph, &level, now)?;
        live |= opened.live;
        ended = opened.ended;
    }
    Ok(live)
}

/// The counters after the deltas. A step with one prerequisite needs no stored counter.
fn count(
    session: &Session,
    workflow: &Workflow,
    graph: &Graph,
    deltas: &[release::Delta],
) -> HashMap<usize, Counter> {
    let mut counters = HashMap::with_capacity(deltas.len());
    let stored: Vec<&release::Delta> = deltas
        .iter()
        .filter(|delta| graph.steps[delta.step].after.len() > 1)
        .collect();
    for delta in deltas {
        let step = &graph.steps[delta.step];
        if step.after.len() == 1 {
            counters.insert(delta.step, release::initial(step).apply(delta));
        }
    }
    if stored.is_empty() {
        return counters;
    }
    let rows = store::step::count(
        session,
        workflow.id,
        stored
            .iter()
            .map(|delta| graph.steps[delta.step].key.clone())
            .collect(),
        stored.iter().map(|delta| delta.ended).collect(),
        stored.iter().map(|delta| delta.unsatisfied).collect(),
    );
    for (key, ended, unsatisfied) in rows {
        let step = graph.ordinal(&key).expect("counted a moment ago");
        let pending = release::initial(&graph.steps[step]).pending - ended;
        counters.insert(
            step,
            Counter {
                pending,
                unsatisfied,
            },
        );
    }
    counters
}

/// Ends the workflow if nothing of it is live any more.
pub fn finish(session: &Session, workflow: &Workflow, graph: &Graph, now: Instant) -> Result<()> {
    if store::workflow::is_live(session, workflow.id) {
        return Ok(());
    }
    let required = graph
        .steps
        .iter()
        .filter(|step| !step.optional)
        .map(|step| step.key.clone())
        .collect();
    let failed = store::workflow::failed_step(session, workflow.id, required);
    let status = final_state(failed.is_some(), false);
    let key = |step: usize| graph.steps[step].key.clone();
    let result = match (&graph.result, status) {
        (ResultRule::Step(step), WorkflowState::Succeeded) => {
            store::workflow::output(session, workflow.id, &key(*step))
        }
        (ResultRule::Sinks(sinks), WorkflowState::Succeeded) => match sinks[..] {
            [only] => store::workflow::output(session, workflow.id, &key(only)),
            _ => store::workflow::outputs(
                session,
                workflow.id,
                sinks.iter().map(|sink| key(*sink)).collect(),
            ),
        },
        _ => None,
    };
    let message = failed
        .as_ref()
        .map(|step| format!("step {step:?} did not succeed"));
    let end = End {
        status,
        result,
        error_code: failed.is_some().then_some("workflow.step_failed"),
        error_message: message.as_deref(),
        reason: None,
        requested_by: None,
    };
    store::workflow::end(session, workflow.id, &end, now);
    let detail = failed.map(|step| json!({"step": step}));
    close(session, workflow, status, detail, now);
    Ok(())
}

/// What every end of a workflow does last: history, active key, wake-up.
pub fn close(
    session: &Session,
    workflow: &Workflow,
    status: WorkflowState,
    detail: Option<serde_json::Value>,
    now: Instant,
) {
    let kind = match status {
        WorkflowState::Succeeded => "workflow_succeeded",
        WorkflowState::Failed => "workflow_failed",
        _ => "workflow_cancelled",
    };
    store::workflow::log(session, workflow.id, kind, None, detail.as_ref(), now);
    store::workflow::release_active(session, workflow.id);
    wake::workflow_finished(&workflow.workflow_id, status.as_str());
}
