//! The release rule: which steps run, end or wait when steps end.
//!
//! A step starts with a counter of its prerequisites. When steps end, [`deltas`] says how the counters of
//! their dependents change, and [`decide`] what each new counter means. Cancelled steps have ended as
//! well: the caller repeats with them, breadth-first, until nothing ends any more. The rule keeps no
//! state and asks for no order, so a batch and its members one at a time come to the same end.
//!
//! A step is decided once, by the delta that takes its counter to the deciding value. Two things are
//! the caller's: with `join: first` the counter outlives the release (it is complete when `pending` is 0),
//! because a counter that began anew would release again; and a step that ended otherwise before it was
//! released (a person completed it) takes no decision.

use crate::definition::{Graph, Join, On, Step};

words! {
    /// How a step ended.
    pub enum Outcome {
        Succeeded = "succeeded",
        Failed = "failed",
        Cancelled = "cancelled",
        Skipped = "skipped",
    }
}

/// The prerequisites of a step that are still to end, and those that ended without satisfying it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    pub pending: i32,
    pub unsatisfied: i32,
}

impl Counter {
    /// The counter after a delta.
    pub fn apply(self, delta: &Delta) -> Counter {
        Counter {
            pending: self.pending - delta.ended,
            unsatisfied: self.unsatisfied + delta.unsatisfied,
        }
    }
}

/// How the counter of a step changes: subtract `ended` from pending, add `unsatisfied`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta {
    pub step: usize,
    pub ended: i32,
    pub unsatisfied: i32,
}

/// What a counter means for its step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing yet, or nothing any more.
    Wait,
    /// It runs now (or is skipped, if its `when` says so).
    Release,
    /// It can never run: it ends cancelled, with `workflow.dependency_unsatisfied`.
    Cancel,
}

/// The counter of a step none of whose prerequisites has ended.
pub fn initial(step: &Step) -> Counter {
    Counter {
        pending: count(step),
        unsatisfied: 0,
    }
}

/// The changes that ended steps make to the counters of their dependents: one a touched dependent, in
/// step order. Steps that the graph does not have are left out.
pub fn deltas(graph: &Graph, ended: &[(usize, Outcome)]) -> Vec<Delta> {
    let mut edges = Vec::new();
    for &(step, outcome) in ended {
        let dependents = graph.steps.get(step).map_or(&[][..], |one| &one.dependents);
        edges.extend(dependents.iter().map(|edge| Delta {
            step: edge.step,
            ended: 1,
            unsatisfied: i32::from(!satisfied(edge.on, outcome)),
        }));
    }
    edges.sort_unstable_by_key(|delta| delta.step);
    edges.dedup_by(|next, kept| {
        let same = next.step == kept.step;
        if same {
            kept.ended += next.ended;
            kept.unsatisfied += next.unsatisfied;
        }
        same
    });
    edges
}

/// Decides about a step whose counter is `after` now that `delta` was applied to it.
///
/// | join | release | cancel |
/// |---|---|---|
/// | all | pending = 0 and unsatisfied = 0 | pending = 0 and unsatisfied > 0 |
/// | some | pending = 0 and satisfied > 0 | pending = 0 and satisfied = 0 |
/// | first | satisfied leaves 0 | pending = 0 and satisfied = 0 |
///
/// An open prerequisite never cancels a step early: it may yet be what a person looks for.
pub fn decide(step: &Step, after: Counter, delta: &Delta) -> Decision {
    let complete = after.pending == 0;
    let satisfied = count(step) - after.pending - after.unsatisfied;
    let satisfied_before = satisfied - (delta.ended - delta.unsatisfied);
    let release = match step.join {
        Join::All => complete && after.unsatisfied == 0,
        Join::Some => complete && satisfied > 0,
        Join::First => satisfied > 0 && satisfied_before == 0,
    };
    let cancel = match step.join {
        Join::All => complete && after.unsatisfied > 0,
        Join::Some | Join::First => complete && satisfied == 0,
    };
    match (release, cancel) {
        (true, _) => Decision::Release,
        (false, true) => Decision::Cancel,
        (false, false) => Decision::Wait,
    }
}

/// Does this end of a prerequisite satisfy the edge?
///
/// | on | succeeded | failed | cancelled | skipped |
/// |---|---|---|---|---|
/// | success | yes | no | no | no |
/// | failure | no | yes | yes | no |
/// | terminal | yes | yes | yes | yes |
pub fn satisfied(on: On, outcome: Outcome) -> bool {
    match on {
        On::Success => outcome == Outcome::Succeeded,
        On::Failure => matches!(outcome, Outcome::Failed | Outcome::Cancelled),
        On::Terminal => true,
    }
}

fn count(step: &Step) -> i32 {
    // A definition has at most 100,000 edges.
    i32::try_from(step.after.len()).unwrap_or(i32::MAX)
}
