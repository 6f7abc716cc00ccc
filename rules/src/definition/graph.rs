//! The compiled graph.

use serde_json::Value;

use super::links::Links;
use super::step::{Draft, DraftResult};
use super::{Span, StepSet};
use crate::retry::RetryPolicy;
use crate::template::Template;

/// A compiled definition. Steps are known by their ordinal: their place in key order.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// The identity of the definition.
    pub hash: [u8; 32],
    /// The name of its workflows.
    pub name: String,
    /// What a succeeded workflow answers.
    pub result: ResultRule,
    /// The run time of the whole workflow; never months.
    pub timeout: Option<Span>,
    /// The priority of steps that name none.
    pub priority: Option<i32>,
    /// The tags of steps that name none; sorted.
    pub tags: Vec<String>,
    /// Every step, by ordinal.
    pub steps: Vec<Step>,
    /// The steps without prerequisites, ascending.
    pub roots: Vec<usize>,
}

impl Graph {
    /// The ordinal of a step.
    pub fn ordinal(&self, key: &str) -> Option<usize> {
        self.steps
            .binary_search_by(|step| step.key.as_str().cmp(key))
            .ok()
    }
}

/// What a succeeded workflow answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResultRule {
    /// The output of this step, by `"result": "<key>"`.
    Step(usize),
    /// Nothing was said: the output of the only sink, or an object of the outputs of all sinks by key.
    Sinks(Vec<usize>),
    /// `"result": null`: no result is declared.
    None,
}

/// A compiled step.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub key: String,
    pub kind: Kind,
    /// The edges to its prerequisites, by ascending step.
    pub after: Vec<Edge>,
    /// The edges to the steps that wait for it, by ascending step; `on` is the dependent's condition.
    pub dependents: Vec<Edge>,
    pub join: Join,
    /// The SQL/JSON path that decides whether the released step runs or is skipped.
    pub when: Option<String>,
    /// The template of its input; `None` is the default input.
    pub input: Option<Template>,
    /// Its failure does not fail the workflow.
    pub optional: bool,
    /// Every step that it comes after, directly or not.
    pub prerequisites: StepSet,
    /// The prerequisites that its `when`, input and delay read, ascending: those whose status, output and
    /// error must be loaded when it is released. A task with default input reads its direct ones.
    pub reads: Vec<usize>,
}

/// One edge, seen from one of its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The step at the other end.
    pub step: usize,
    /// Which ends of the prerequisite satisfy the dependent.
    pub on: On,
}

words! {
    /// Which ends of a prerequisite satisfy an edge.
    pub enum On {
        Success = "success",
        Failure = "failure",
        Terminal = "terminal",
    }
}

words! {
    /// How many edges of a step must be satisfied, and when that is decided.
    pub enum Join {
        /// All, when all prerequisites have ended.
        All = "all",
        /// At least one, when all prerequisites have ended.
        Some = "some",
        /// One, as soon as it is.
        First = "first",
    }
}

impl Step {
    /// While it waits, its wait has a due time.
    pub fn has_timer(&self) -> bool {
        match &self.kind {
            Kind::Task(_) => false,
            Kind::Event(event) => event.timeout.is_some(),
            Kind::Delay(_) => true,
        }
    }
}

/// What a step does.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    Task(TaskStep),
    Event(EventStep),
    Delay(DelayStep),
}

/// A step that a worker runs. What is `None` comes from the task, then from the defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskStep {
    pub task: String,
    pub retry: RetryFields,
    /// The run time of one attempt; never months.
    pub timeout: Option<Span>,
    /// The time of all attempts together; never months.
    pub deadline: Option<Span>,
    /// The silence tolerated of a worker; never months.
    pub lease: Option<Span>,
    /// 0 to 99.
    pub priority: Option<i32>,
    /// Sorted, each once.
    pub tags: Option<Vec<String>>,
    /// Out of attempts it waits for a person (`"on_exhausted": "hold"`).
    pub hold: bool,
    /// `job_continue` may begin new runs of it.
    pub allow_continue: bool,
}

/// The parts of a retry policy that a step names; durations never have months.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RetryFields {
    pub max_attempts: Option<i32>,
    pub initial: Option<Span>,
    pub factor: Option<f64>,
    pub max: Option<Span>,
    pub jitter: Option<f64>,
}

impl RetryFields {
    /// The policy of a step: what it names, and the rest from `base`, its task's policy.
    ///
    /// A first delay longer than the base's longest lifts that: capping it would undo what the step says.
    pub fn over(&self, base: RetryPolicy) -> RetryPolicy {
        let us = |span: Option<Span>| span.and_then(|span| span.fixed_us());
        let initial_us = us(self.initial).unwrap_or(base.initial_us);
        let max_us = us(self.max).unwrap_or(match self.initial {
            Some(_) => base.max_us.max(initial_us),
            None => base.max_us,
        });
        RetryPolicy {
            max_attempts: self.max_attempts.unwrap_or(base.max_attempts),
            initial_us,
            factor: self.factor.unwrap_or(base.factor),
            max_us,
            jitter: self.jitter.unwrap_or(base.jitter),
        }
    }
}

/// A step that waits for an event.
#[derive(Clone, Debug, PartialEq)]
pub struct EventStep {
    /// The event's name; by default the step's key.
    pub event: String,
    /// How long it waits; never months.
    pub timeout: Option<Span>,
    pub on_timeout: OnTimeout,
    /// Its output when it succeeds by timeout.
    pub default: Option<Value>,
}

words! {
    /// How an event step ends when its event does not come in time.
    pub enum OnTimeout {
        Fail = "fail",
        Skip = "skip",
        Succeed = "succeed",
    }
}

/// A step that waits for a time.
#[derive(Clone, Debug, PartialEq)]
pub enum DelayStep {
    /// `"delay": "3 days"`
    For(Span),
    /// `"delay": "$.input.pause"`: the path gives an interval as text.
    ForPath(Template),
    /// `"until": "2030-01-01 00:00 Europe/Berlin"`
    Until(String),
    /// `"until": "$.input.at"`: the path gives a timestamp as text.
    UntilPath(Template),
}

/// Builds the graph of a draft without problems, whose steps are in key order.
pub(crate) fn build(draft: Draft<'_>, links: Links<'_>, hash: [u8; 32]) -> Graph {
    let mut dependents = vec![Vec::new(); draft.steps.len()];
    for (step, edges) in links.edges.iter().enumerate() {
        for edge in edges {
            dependents[edge.step].push(Edge { step, on: edge.on });
        }
    }
    let sinks = (0..dependents.len()).filter(|step| dependents[*step].is_empty());
    let result = match draft.result {
        DraftResult::Step(key) => links
            .ordinals
            .get(key)
            .map_or(ResultRule::None, |step| ResultRule::Step(*step)),
        DraftResult::Default => ResultRule::Sinks(sinks.collect()),
        DraftResult::Declined => ResultRule::None,
    };
    let parts = draft.steps.into_iter().zip(links.edges);
    let parts = parts.zip(dependents).zip(links.prerequisites);
    let mut steps = Vec::new();
    for (((step, mut after), dependents), prerequisites) in parts {
        // Every step has one: where it could not be read, a problem was told and nothing is built.
        let Some(kind) = step.kind else { continue };
        after.sort_unstable_by_key(|edge| edge.step);
        let mut reads: Vec<usize> = step
            .mentions
            .iter()
            .filter_map(|mention| links.ordinals.get(mention.step.as_str()).copied())
            .collect();
        if matches!(kind, Kind::Task(_)) && step.input.is_none() {
            reads.extend(after.iter().map(|edge| edge.step));
        }
        reads.sort_unstable();
        reads.dedup();
        steps.push(Step {
            key: step.key.to_owned(),
            kind,
            after,
            dependents,
            join: step.join,
            when: step.when,
            input: step.input,
            optional: step.optional,
            prerequisites,
            reads,
        });
    }
    let roots = (0..steps.len()).filter(|step| steps[*step].after.is_empty());
    Graph {
        hash,
        name: draft.name.to_owned(),
        result,
        timeout: draft.timeout,
        priority: draft.priority,
        tags: draft.tags.unwrap_or_default(),
        roots: roots.collect(),
        steps,
    }
}
