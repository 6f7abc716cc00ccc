//! What needs two steps at once: keys, edges, cycles, and what a path may name.

use std::collections::HashMap;

use super::StepSet;
use super::fields::nearest;
use super::graph::Edge;
use super::problem::{At, Problem, quote};
use super::read::Reader;
use super::step::{Draft, DraftEdge, DraftResult, DraftStep};

/// The edges of a draft, resolved.
pub(crate) struct Links<'a> {
    /// Key → place of the step in the draft.
    pub(crate) ordinals: HashMap<&'a str, usize>,
    /// By step: its prerequisites.
    pub(crate) edges: Vec<Vec<Edge>>,
    /// By step: its transitive prerequisites. Empty if there is a cycle.
    pub(crate) prerequisites: Vec<StepSet>,
}

/// Resolves the keys in a draft and tells what is wrong between its steps.
pub(crate) fn link<'a>(draft: &Draft<'a>, reader: &mut Reader<'_>) -> Links<'a> {
    let ordinals = ordinals(draft, reader);
    let mut edges = Vec::with_capacity(draft.steps.len());
    for step in &draft.steps {
        edges.push(step_edges(draft, step, &ordinals, reader));
    }
    if let DraftResult::Step(key) = draft.result
        && !ordinals.contains_key(key)
    {
        let message = unknown_step(draft, key, reader);
        reader.problem(&At::ROOT.key("result"), "definition.unknown_step", message);
    }
    let order = topological(&edges);
    let acyclic = order.len() == edges.len();
    let prerequisites = if acyclic {
        closure(&edges, &order)
    } else {
        for cycle in cycles(&edges) {
            tell_cycle(draft, &cycle, &edges, reader);
        }
        Vec::new()
    };
    for (ordinal, step) in draft.steps.iter().enumerate() {
        for mention in &step.mentions {
            let (code, message) = match ordinals.get(mention.step.as_str()) {
                None => {
                    let message = unknown_step(draft, &mention.step, reader);
                    ("definition.unknown_step", message)
                }
                Some(named) if acyclic && !prerequisites[ordinal].contains(*named) => {
                    let message = format!(
                        "{} does not come before this step; add it, or a step after it, to after",
                        mention.step
                    );
                    ("definition.not_a_prerequisite", message)
                }
                Some(_) => continue,
            };
            reader.problems.push(Problem {
                pointer: mention.pointer.clone(),
                code,
                message,
            });
        }
    }
    Links {
        ordinals,
        edges,
        prerequisites,
    }
}

fn ordinals<'a>(draft: &Draft<'a>, reader: &mut Reader<'_>) -> HashMap<&'a str, usize> {
    let mut ordinals = HashMap::with_capacity(draft.steps.len());
    for (ordinal, step) in draft.steps.iter().enumerate() {
        if step.key.is_empty() {
            continue; // told already
        }
        match ordinals.entry(step.key) {
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(ordinal);
            }
            std::collections::hash_map::Entry::Occupied(_) => {
                let message = format!("another step has the key {}", step.key);
                let steps = At::ROOT.key("steps");
                let at = steps.index(step.index);
                reader.problem(&at.key("key"), "definition.duplicate_step", message);
            }
        }
    }
    ordinals
}

fn step_edges(
    draft: &Draft<'_>,
    step: &DraftStep<'_>,
    ordinals: &HashMap<&str, usize>,
    reader: &mut Reader<'_>,
) -> Vec<Edge> {
    let mut edges = Vec::with_capacity(step.after.len());
    let mut seen = StepSet::default();
    for edge in &step.after {
        let (code, message) = match ordinals.get(edge.step) {
            None => (
                "definition.unknown_step",
                unknown_step(draft, edge.step, reader),
            ),
            Some(_) if edge.step == step.key => {
                let message = "a step cannot come after itself".to_owned();
                ("definition.self_edge", message)
            }
            Some(prerequisite) if seen.contains(*prerequisite) => {
                let message = format!("{} is named twice; terminal takes any end", edge.step);
                ("definition.duplicate_edge", message)
            }
            Some(prerequisite) => {
                seen.insert(*prerequisite);
                edges.push(Edge {
                    step: *prerequisite,
                    on: edge.on,
                });
                continue;
            }
        };
        tell_edge(step, edge, code, message, reader);
    }
    edges
}

fn tell_edge(
    step: &DraftStep<'_>,
    edge: &DraftEdge<'_>,
    code: &'static str,
    message: String,
    reader: &mut Reader<'_>,
) {
    let steps = At::ROOT.key("steps");
    let step = steps.index(step.index);
    let after = step.key("after");
    reader.problem(&after.index(edge.index), code, message);
}

fn unknown_step(draft: &Draft<'_>, key: &str, reader: &Reader<'_>) -> String {
    // Looking for the nearest key costs a pass over the steps: help people, not generators of 100,000 problems.
    const PROBLEMS: usize = 100;
    const STEPS: usize = 1_000;
    let mut message = format!("there is no step {}", quote(key));
    if reader.problems.len() < PROBLEMS && draft.steps.len() <= STEPS {
        let keys = draft.steps.iter().map(|step| step.key);
        if let Some(near) = nearest(key, keys.filter(|key| !key.is_empty())) {
            message.push_str(&format!("; did you mean {near}?"));
        }
    }
    message
}

/// The steps in an order in which prerequisites come first; steps in and behind cycles are missing.
fn topological(edges: &[Vec<Edge>]) -> Vec<usize> {
    let mut dependents = vec![Vec::new(); edges.len()];
    let mut open: Vec<usize> = edges.iter().map(Vec::len).collect();
    for (step, prerequisites) in edges.iter().enumerate() {
        for edge in prerequisites {
            dependents[edge.step].push(step);
        }
    }
    let mut order: Vec<usize> = (0..edges.len()).filter(|step| open[*step] == 0).collect();
    let mut next = 0;
    while let Some(&step) = order.get(next) {
        next += 1;
        for &dependent in &dependents[step] {
            open[dependent] -= 1;
            if open[dependent] == 0 {
                order.push(dependent);
            }
        }
    }
    order
}

fn closure(edges: &[Vec<Edge>], order: &[usize]) -> Vec<StepSet> {
    let mut prerequisites = vec![StepSet::default(); edges.len()];
    for &step in order {
        let mut all = StepSet::default();
        for edge in &edges[step] {
            all.extend(&prerequisites[edge.step]);
            all.insert(edge.step);
        }
        prerequisites[step] = all;
    }
    prerequisites
}

/// The groups of steps that wait for each other (strongly connected components of more than one step),
/// each ascending. Tarjan's algorithm, with its stack in a vector: a chain of 10,000 steps must not be
/// 10,000 calls deep.
fn cycles(edges: &[Vec<Edge>]) -> Vec<Vec<usize>> {
    const UNSEEN: usize = usize::MAX;
    let mut groups = Vec::new();
    let mut number = vec![UNSEEN; edges.len()];
    let mut lowest = vec![UNSEEN; edges.len()];
    let mut grouped = vec![false; edges.len()];
    let mut path = Vec::new();
    let mut count = 0;
    for start in 0..edges.len() {
        let mut calls = vec![(start, 0)];
        while let Some((step, edge)) = calls.pop() {
            if edge == 0 {
                if number[step] != UNSEEN {
                    continue;
                }
                number[step] = count;
                lowest[step] = count;
                count += 1;
                path.push(step);
            } else {
                // Back from the previous edge's step.
                let child = edges[step][edge - 1].step;
                if !grouped[child] {
                    lowest[step] = lowest[step].min(lowest[child]);
                }
            }
            if let Some(next) = edges[step].get(edge) {
                calls.push((step, edge + 1));
                calls.push((next.step, 0));
            } else if lowest[step] == number[step] {
                let begin = path.iter().rposition(|one| *one == step).unwrap_or(0);
                let mut group = path.split_off(begin);
                group.iter().for_each(|one| grouped[*one] = true);
                if group.len() > 1 {
                    group.sort_unstable();
                    groups.push(group);
                }
            }
        }
    }
    groups.sort_unstable();
    groups
}

/// Tells one cycle of a group of steps that wait for each other, at the first of its steps.
fn tell_cycle(draft: &Draft<'_>, group: &[usize], edges: &[Vec<Edge>], reader: &mut Reader<'_>) {
    const SHOWN: usize = 12;
    let mut walk: Vec<usize> = Vec::new();
    let mut step = group[0];
    // Within a group every step has a prerequisite in the group, so the walk comes back.
    while !walk.contains(&step) && walk.len() <= SHOWN {
        walk.push(step);
        let inside = edges[step].iter().map(|edge| edge.step);
        let Some(next) = { inside }.find(|next| group.binary_search(next).is_ok()) else {
            break;
        };
        step = next;
    }
    let begin = walk.iter().position(|one| *one == step).unwrap_or(0);
    let mut keys: Vec<_> = walk[begin..]
        .iter()
        .map(|one| draft.steps[*one].key)
        .collect();
    keys.push(if walk.len() > SHOWN { "…" } else { keys[0] });
    let message = format!("these steps wait for each other: {}", keys.join(" after "));
    let steps = At::ROOT.key("steps");
    let at = steps.index(draft.steps[walk[begin]].index);
    reader.problem(&at.key("after"), "definition.cycle", message);
}
