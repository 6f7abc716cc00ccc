//! Open: steps whose prerequisites have ended get their record: they run, wait, or end at once.

use std::collections::{BTreeSet, HashMap};

use sayiir_rules::definition::{DelayStep, Graph, Kind, OnTimeout, Step, TaskStep};
use sayiir_rules::lane;
use sayiir_rules::release::Outcome;
use sayiir_rules::template::Template;
use sayiir_rules::workflow::WorkflowState;

use crate::engine::enqueue::{self, PolicyRequest};
use crate::error::Result;
use crate::pg::clock::Instant;
use crate::pg::input;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::Session;
use crate::runtime::wake;
use crate::store;
use crate::store::step::{NewStep, Place};
use crate::store::workflow::Workflow;

/// The rule's code for a step that can never run.
const UNSATISFIED: &str = "workflow.dependency_unsatisfied";

/// What to open.
pub struct Level<'a> {
    pub released: &'a [usize],
    pub cancelled: &'a [usize],
    /// Nothing runs before this: the start's `run_at`, or now.
    pub from: Instant,
}

/// What came of it.
pub struct Opened {
    /// Steps that ended by being opened: skipped, cancelled, failed, or succeeded with a buffered event.
    pub ended: Vec<(usize, Outcome)>,
    /// Something of the level is live now.
    pub live: bool,
}

/// Opens a level of steps in at most four statements. The owner is locked.
pub fn open(
    session: &Session,
    workflow: &Workflow,
    graph: &Graph,
    level: &Level,
    now: Instant,
) -> Result<Opened> {
    let mut values = evaluate(session, workflow, graph, level.released).into_iter();
    let mut places: Vec<(usize, Option<Place>, Option<Jsonb>)> =
        Vec::with_capacity(level.released.len());
    for &n in level.released {
        let step = &graph.steps[n];
        let condition = step.when.as_ref().map(|_| values.next().flatten());
        let mut place = condition.and_then(refused);
        let payload = match &step.input {
            Some(template) => {
                let answers: Vec<Option<Jsonb>> = template
                    .queries()
                    .iter()
                    .map(|_| values.next().flatten())
                    .collect();
                Some(render(template, answers))
            }
            None => None,
        };
        let time = time_path(step).map(|_| values.next().flatten());
        if place.is_none() {
            place = match &step.kind {
                Kind::Task(_) => None,
                // All at once, below.
                Kind::Event(_) => None,
                Kind::Delay(delay) => {
                    Some(await_time(session, delay, time.flatten(), level.from, now))
                }
            };
        }
        places.push((n, place, payload));
    }
    await_events(session, workflow, graph, level.from, &mut places);
    add_default_inputs(session, workflow, graph, &mut places);

    let mut steps = Vec::with_capacity(places.len() + level.cancelled.len());
    let mut opened = Opened {
        ended: Vec::new(),
        live: false,
    };
    for (n, place, payload) in places {
        let step = &graph.steps[n];
        let new = match (&step.kind, place) {
            (Kind::Task(task), None) => task_step(
                session, workflow, graph, step, task, payload, level.from, now,
            )?,
            (_, place) => plain_step(step, place.expect("only a task has no place of its own")),
        };
        match &new.place {
            Place::End { state, .. } => {
                opened
                    .ended
                    .push((n, Outcome::parse(state).expect("the word of an outcome")));
            }
            Place::Ready => {
                opened.live = true;
                wake::job_ready(new.task.as_deref().expect("what is ready has a task"));
            }
            Place::Wait { due, .. } => {
                opened.live = true;
                if let Some(due) = due {
                    wake::timer_at(*due);
                }
            }
        }
        steps.push(new);
    }
    for &n in level.cancelled {
        opened.ended.push((n, Outcome::Cancelled));
        steps.push(plain_step(
            &graph.steps[n],
            Place::End {
                state: "cancelled",
                output: None,
                error_code: Some(UNSATISFIED),
                error_message: Some(
                    "the prerequisites ended otherwise than this step needs".to_owned(),
                ),
                reason: None,
            },
        ));
    }
    store::step::open(
        session,
        workflow.id,
        workflow.organization.as_deref(),
        &steps,
        now,
    );
    Ok(opened)
}

/// Asks Postgres for every path of the level at once.
fn evaluate(
    session: &Session,
    workflow: &Workflow,
    graph: &Graph,
    released: &[usize],
) -> Vec<Option<Jsonb>> {
    let mut paths = Vec::new();
    let mut every = Vec::new();
    let mut reads = BTreeSet::new();
    let mut ask = |path: &str, all: bool| {
        paths.push(path.to_owned());
        every.push(all);
    };
    for &n in released {
        let step = &graph.steps[n];
        if let Some(condition) = &step.when {
            ask(condition, false);
        }
        for template in [step.input.as_ref(), time_path(step)].into_iter().flatten() {
            for query in template.queries() {
                ask(query.path, query.all);
            }
        }
        reads.extend(step.reads.iter().copied());
    }
    if paths.is_empty() {
        return Vec::new();
    }
    let reads = reads
        .into_iter()
        .map(|read| graph.steps[read].key.clone())
        .collect();
    store::step::evaluate(session, workflow.id, reads, paths, every)
}

fn time_path(step: &Step) -> Option<&Template> {
    match &step.kind {
        Kind::Delay(DelayStep::ForPath(template) | DelayStep::UntilPath(template)) => {
            Some(template)
        }
        _ => None,
    }
}

/// A condition that does not hold, as the place where the step ends. Unknown is false.
fn refused(answer: Option<Jsonb>) -> Option<Place> {
    match answer
        .map_or_else(|| "null".to_owned(), Jsonb::to_text)
        .as_str()
    {
        "true" => None,
        "false" | "null" => Some(Place::End {
            state: "skipped",
            output: None,
            error_code: None,
            error_message: None,
            reason: Some("when is false".to_owned()),
        }),
        other => Some(failed(
            "definition.not_boolean",
            format!("when gave {}, not true or false", cut(other)),
        )),
    }
}

/// The beginning of a text that may be long.
fn cut(text: &str) -> String {
    const SHOWN: usize = 60;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn failed(code: &'static str, message: String) -> Place {
    Place::End {
        state: "failed",
        output: None,
        error_code: Some(code),
        error_message: Some(message),
        reason: None,
    }
}

/// The input of a template: text put together from what Postgres printed, so every number keeps its digits.
fn render(template: &Template, answers: Vec<Option<Jsonb>>) -> Jsonb {
    match (template, &answers[..]) {
        (Template::Path(_), [Some(value)]) => *value,
        _ => Jsonb::from_text(
            &template.render_text(&mut answers.into_iter().map(|value| value.map(Jsonb::to_text))),
        ),
    }
}

/// Steps of a task without a template: an object of their prerequisites. A root has none and gets the workflow's input.
fn add_default_inputs(
    session: &Session,
    workflow: &Workflow,
    graph: &Graph,
    places: &mut [(usize, Option<Place>, Option<Jsonb>)],
) {
    let mut of = Vec::new();
    let mut prerequisites = Vec::new();
    for (n, place, payload) in places.iter() {
        if place.is_none() && payload.is_none() {
            for edge in &graph.steps[*n].after {
                of.push(*n as i32);
                prerequisites.push(graph.steps[edge.step].key.clone());
            }
        }
    }
    if of.is_empty() {
        return;
    }
    let inputs: HashMap<i32, Jsonb> =
        store::step::default_inputs(session, workflow.id, of, prerequisites)
            .into_iter()
            .collect();
    for (n, place, payload) in places.iter_mut() {
        if place.is_none() && payload.is_none() {
            *payload = inputs.get(&(*n as i32)).copied();
        }
    }
}

/// Event steps take what is buffered, the oldest event of a name first; the others wait.
fn await_events(
    session: &Session,
    workflow: &Workflow,
    graph: &Graph,
    from: Instant,
    places: &mut [(usize, Option<Place>, Option<Jsonb>)],
) {
    let mut waiting = Vec::new();
    let mut taken: HashMap<&str, i64> = HashMap::new();
    let (mut names, mut older) = (Vec::new(), Vec::new());
    for (at, (n, place, _)) in places.iter().enumerate() {
        if let (Kind::Event(event), None) = (&graph.steps[*n].kind, place) {
            let count = taken.entry(&event.event).or_default();
            waiting.push((at, event));
            names.push(event.event.clone());
            older.push(*count);
            *count += 1;
        }
    }
    if waiting.is_empty() {
        return;
    }
    let consumed: HashMap<i64, Option<Jsonb>> =
        store::event::consume(session, workflow.id, names, older)
            .into_iter()
            .collect();
    for (wanted, (at, event)) in waiting.into_iter().enumerate() {
        let timeout = event.timeout.and_then(|span| span.fixed_us());
        places[at].1 = Some(match consumed.get(&(wanted as i64)) {
            Some(payload) => Place::End {
                state: "succeeded",
                output: *payload,
                error_code: None,
                error_message: None,
                reason: None,
            },
            None => Place::Wait {
                reason: "event",
                due: timeout.map(|us| from.plus_us(us)),
                event: Some(event.event.clone()),
            },
        });
    }
}

fn await_time(
    session: &Session,
    step: &DelayStep,
    answer: Option<Jsonb>,
    from: Instant,
    now: Instant,
) -> Place {
    let text: Option<String> = answer.and_then(|value| serde_json::from_str(&value.to_text()).ok());
    let text = text.as_deref();
    let due = match step {
        DelayStep::For(span) => Ok(*span).map(|span| store::step::add_span(session, from, span)),
        DelayStep::Until(text) => input::try_timestamp(text).map(Some),
        DelayStep::ForPath(_) => match text {
            Some(text) => match input::try_interval(text) {
                Ok(span) if span.is_too_long() => {
                    Err(format!("delay {} is longer than 100 years", cut(text)))
                }
                span => span.map(|span| store::step::add_span(session, from, span)),
            },
            None => Err("the path of delay gave no text".to_owned()),
        },
        DelayStep::UntilPath(_) => match text {
            Some(text) => input::try_timestamp(text).map(Some),
            None => Err("the path of until gave no text".to_owned()),
        },
    };
    match due {
        Ok(Some(due)) if due <= now => Place::End {
            state: "succeeded",
            output: None,
            error_code: None,
            error_message: None,
            reason: None,
        },
        Ok(due) => Place::Wait {
            reason: "delay",
            due,
            event: None,
        },
        Err(message) => failed("definition.invalid_time", message),
    }
}

fn plain_step(step: &Step, place: Place) -> NewStep {
    let task = match &step.kind {
        Kind::Task(task) => Some(task.task.clone()),
        _ => None,
    };
    NewStep {
        id: enqueue::new_id(),
        step: step.key.clone(),
        task,
        lane: None,
        payload: None,
        policy: None,
        place,
    }
}

#[allow(
    clippy::too_many_arguments,
    reason = "one caller; a struct would only name them again"
)]
fn task_step(
    session: &Session,
    workflow: &Workflow,
    graph: &Graph,
    step: &Step,
    task: &TaskStep,
    payload: Option<Jsonb>,
    from: Instant,
    now: Instant,
) -> Result<NewStep> {
    let organization = workflow.organization.as_deref();
    let defaults = store::task::find(session, organization, &task.task).unwrap_or_default();
    let us = |span: Option<sayiir_rules::definition::Span>| span.and_then(|span| span.fixed_us());
    let request = PolicyRequest {
        hold: task.hold,
        lease_us: us(task.lease),
        timeout_us: us(task.timeout),
        ..PolicyRequest::default()
    };
    let mut policy = enqueue::policy(&request, &defaults, now)?;
    policy.retry = task.retry.over(policy.retry);
    policy.deadline = us(task.deadline).map(|us| from.plus_us(us));
    let priority = task
        .priority
        .or(graph.priority)
        .or(defaults.priority)
        .unwrap_or(lane::DEFAULT_PRIORITY);
    let tags = task.tags.as_deref().unwrap_or(&graph.tags);
    let lane = enqueue::lane_of(session, organization, &task.task, priority, tags)?;
    let place = if workflow.status == WorkflowState::Paused {
        Place::Wait {
            reason: "paused",
            due: None,
            event: None,
        }
    } else if from > now {
        Place::Wait {
            reason: "run_at",
            due: Some(from),
            event: None,
        }
    } else {
        Place::Ready
    };
    Ok(NewStep {
        id: enqueue::new_id(),
        step: step.key.clone(),
        task: Some(task.task.clone()),
        lane: Some(lane),
        payload,
        policy: Some(policy),
        place,
    })
}

/// How an event step ends when its event has not come in time.
pub fn on_timeout(graph: &Graph, step: usize) -> (Outcome, Option<Jsonb>, Option<String>) {
    let Kind::Event(event) = &graph.steps[step].kind else {
        return (Outcome::Succeeded, None, None);
    };
    match event.on_timeout {
        OnTimeout::Fail => (
            Outcome::Failed,
            None,
            Some(format!("event {:?} did not come in time", event.event)),
        ),
        OnTimeout::Skip => (Outcome::Skipped, None, None),
        OnTimeout::Succeed => (
            Outcome::Succeeded,
            event.default.as_ref().map(Jsonb::from_value),
            None,
        ),
    }
}
