//! The release rule, driven through whole graphs by a model of the engine.

use proptest::prelude::*;
use sayiir_rules::definition::{Graph, Join, On};
use sayiir_rules::release::{Counter, Decision, Outcome, decide, deltas, initial, satisfied};
use serde_json::json;

use crate::compiled::graph;

#[test]
fn what_satisfies_an_edge() {
    let mut table = String::new();
    for &on in On::ALL {
        table.push_str(on.as_str());
        for &outcome in Outcome::ALL {
            table.push_str(if satisfied(on, outcome) {
                " yes"
            } else {
                " no"
            });
        }
        table.push('\n');
    }
    assert_eq!(
        table,
        "success yes no no no\nfailure no yes yes no\nterminal yes yes yes yes\n"
    );
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Blocked,
    Released,
    Ended(Outcome),
}

/// The engine's part: counters, states, and the cascade.
struct Model<'a> {
    graph: &'a Graph,
    counters: Vec<Counter>,
    states: Vec<State>,
    rounds: usize,
}

impl<'a> Model<'a> {
    fn start(graph: &'a Graph) -> Self {
        let mut states = vec![State::Blocked; graph.steps.len()];
        graph
            .roots
            .iter()
            .for_each(|root| states[*root] = State::Released);
        Model {
            graph,
            counters: graph.steps.iter().map(initial).collect(),
            states,
            rounds: 0,
        }
    }

    /// Ends released steps, all in one call.
    fn end(&mut self, batch: &[(usize, Outcome)]) {
        for &(step, outcome) in batch {
            assert_eq!(
                self.states[step],
                State::Released,
                "a step ends once, after its release"
            );
            self.states[step] = State::Ended(outcome);
        }
        let mut ended = batch.to_vec();
        while !ended.is_empty() {
            self.rounds += 1;
            let deltas = deltas(self.graph, &ended);
            assert!(deltas.is_sorted_by_key(|delta| delta.step));
            ended.clear();
            for delta in &deltas {
                let step = &self.graph.steps[delta.step];
                let counter = self.counters[delta.step].apply(delta);
                self.counters[delta.step] = counter;
                let decision = decide(step, counter, delta);
                if decision == Decision::Wait {
                    continue;
                }
                assert_eq!(
                    self.states[delta.step],
                    State::Blocked,
                    "a step is decided once"
                );
                if decision == Decision::Release {
                    assert!(step.join == Join::First || counter.pending == 0);
                    self.states[delta.step] = State::Released;
                } else {
                    assert_eq!(
                        counter.pending, 0,
                        "an open prerequisite never cancels early"
                    );
                    self.states[delta.step] = State::Ended(Outcome::Cancelled);
                    ended.push((delta.step, Outcome::Cancelled));
                }
            }
        }
        self.check();
    }

    /// Every counter and every state is what the ended prerequisites say.
    fn check(&self) {
        for (ordinal, step) in self.graph.steps.iter().enumerate() {
            let ends = step
                .after
                .iter()
                .filter_map(|edge| match self.states[edge.step] {
                    State::Ended(outcome) => Some(satisfied(edge.on, outcome)),
                    _ => None,
                });
            let ends: Vec<bool> = ends.collect();
            let good = ends.iter().filter(|end| **end).count();
            let counter = self.counters[ordinal];
            assert_eq!(counter.pending as usize, step.after.len() - ends.len());
            assert_eq!(counter.unsatisfied as usize, ends.len() - good);
            let complete = ends.len() == step.after.len();
            let decided = match step.join {
                _ if step.after.is_empty() => true,
                Join::All | Join::Some => complete,
                Join::First => complete || good > 0,
            };
            assert_eq!(
                self.states[ordinal] != State::Blocked,
                decided,
                "{}",
                step.key
            );
        }
    }

    fn released(&self) -> Vec<usize> {
        let released = |step: &usize| self.states[*step] == State::Released;
        (0..self.states.len()).filter(released).collect()
    }

    fn outcomes(&self) -> Vec<Outcome> {
        let outcome = |state: &State| match state {
            State::Ended(outcome) => *outcome,
            other => panic!("every step ends: {other:?}"),
        };
        self.states.iter().map(outcome).collect()
    }
}

/// One at a time, the next one chosen by `choices`.
fn run_singly(graph: &Graph, outcomes: &[Outcome], choices: &[u16]) -> Vec<Outcome> {
    let mut model = Model::start(graph);
    let mut choices = choices.iter().cycle();
    loop {
        let released = model.released();
        if released.is_empty() {
            return model.outcomes();
        }
        let choice = usize::from(*choices.next().expect("an endless cycle"));
        let step = released[choice % released.len()];
        model.end(&[(step, outcomes[step])]);
    }
}

/// Everything that is released, in one call, again and again.
fn run_in_batches(graph: &Graph, outcomes: &[Outcome]) -> Vec<Outcome> {
    let mut model = Model::start(graph);
    loop {
        let released = model.released();
        if released.is_empty() {
            assert!(model.rounds <= 2 * graph.steps.len(), "the cascade ends");
            return model.outcomes();
        }
        let batch: Vec<_> = released
            .into_iter()
            .map(|step| (step, outcomes[step]))
            .collect();
        model.end(&batch);
    }
}

/// What every step comes to, computed in the order of the graph without any counter.
fn expected(graph: &Graph, outcomes: &[Outcome]) -> Vec<Outcome> {
    let mut ends: Vec<Option<Outcome>> = vec![None; graph.steps.len()];
    while ends.contains(&None) {
        for (ordinal, step) in graph.steps.iter().enumerate() {
            let before = step
                .after
                .iter()
                .map(|edge| Some(satisfied(edge.on, ends[edge.step]?)));
            let Some(before) = before.collect::<Option<Vec<bool>>>() else {
                continue;
            };
            let runs = match step.join {
                Join::All => before.iter().all(|good| *good),
                Join::Some | Join::First => before.is_empty() || before.iter().any(|good| *good),
            };
            ends[ordinal] = Some(if runs {
                outcomes[ordinal]
            } else {
                Outcome::Cancelled
            });
        }
    }
    ends.into_iter().flatten().collect()
}

/// All ways to end three prerequisites, in one call or in several: the ordered partitions of {0, 1, 2}.
const PARTITIONS: [&[&[usize]]; 13] = [
    &[&[0, 1, 2]],
    &[&[0], &[1, 2]],
    &[&[1], &[0, 2]],
    &[&[2], &[0, 1]],
    &[&[1, 2], &[0]],
    &[&[0, 2], &[1]],
    &[&[0, 1], &[2]],
    &[&[0], &[1], &[2]],
    &[&[0], &[2], &[1]],
    &[&[1], &[0], &[2]],
    &[&[1], &[2], &[0]],
    &[&[2], &[0], &[1]],
    &[&[2], &[1], &[0]],
];

/// The whole table for three prerequisites: join × conditions × outcomes × order and batching.
#[test]
fn three_prerequisites_in_every_way() {
    for &join in Join::ALL {
        for conditions in 0..27 {
            let on = |n: u32| On::ALL[conditions / 3usize.pow(n) % 3];
            let edge = |n: u32| json!({"step": format!("p{n}"), "on": on(n).as_str()});
            let graph = graph(&json!({"name": "x", "steps": [
                {"key": "p0", "task": "t"}, {"key": "p1", "task": "t"}, {"key": "p2", "task": "t"},
                {"key": "s", "task": "t", "join": join.as_str(), "after": [edge(0), edge(1), edge(2)]}]}));
            for ends in 0..64 {
                let mut outcomes: Vec<_> =
                    (0..3).map(|n| Outcome::ALL[ends >> (2 * n) & 3]).collect();
                outcomes.push(Outcome::Succeeded);
                let last = expected(&graph, &outcomes)[3];
                for partition in PARTITIONS {
                    let mut model = Model::start(&graph);
                    for batch in partition {
                        let batch: Vec<_> =
                            batch.iter().map(|step| (*step, outcomes[*step])).collect();
                        model.end(&batch);
                    }
                    let state = match last {
                        Outcome::Cancelled => State::Ended(Outcome::Cancelled),
                        _ => State::Released,
                    };
                    assert_eq!(model.states[3], state, "{join} {outcomes:?} {partition:?}");
                }
            }
        }
    }
}

/// A graph of up to 40 steps with random edges, conditions and joins, and the outcome of each step if it runs.
fn any_run() -> impl Strategy<Value = (Graph, Vec<Outcome>)> {
    let edges = prop::collection::vec((any::<u16>(), prop::sample::select(On::ALL)), 0..5);
    let outcome =
        prop_oneof![4 => Just(Outcome::Succeeded), 3 => prop::sample::select(Outcome::ALL)];
    let step = (edges, prop::sample::select(Join::ALL), outcome);
    let steps = prop::collection::vec(step, 1..=40);
    let order = Just((0..40).collect::<Vec<usize>>()).prop_shuffle();
    (steps, order).prop_map(|(steps, order)| {
        // Keys in a random order, so that ordinals are not the order of the graph.
        let key = |n: usize| format!("k{:02}", order[n]);
        let mut outcomes = Vec::new();
        let mut written = Vec::new();
        for (n, (edges, join, outcome)) in steps.into_iter().enumerate() {
            let mut seen = Vec::new();
            let mut after = Vec::new();
            for (before, on) in edges {
                let before = usize::from(before) % n.max(1);
                if before < n && !seen.contains(&before) {
                    seen.push(before);
                    after.push(json!({"step": key(before), "on": on.as_str()}));
                }
            }
            written
                .push(json!({"key": key(n), "task": "t", "join": join.as_str(), "after": after}));
            outcomes.push((key(n), outcome));
        }
        outcomes.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let graph = graph(&json!({"name": "x", "steps": written}));
        (
            graph,
            outcomes.into_iter().map(|(_, outcome)| outcome).collect(),
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_order_comes_to_the_same_end(
        (graph, outcomes) in any_run(),
        choices in prop::collection::vec(any::<u16>(), 40),
        others in prop::collection::vec(any::<u16>(), 40),
    ) {
        let expected = expected(&graph, &outcomes);
        prop_assert_eq!(&run_singly(&graph, &outcomes, &choices), &expected);
        prop_assert_eq!(&run_singly(&graph, &outcomes, &others), &expected);
        prop_assert_eq!(&run_in_batches(&graph, &outcomes), &expected);
    }
}

#[test]
fn a_fan_in_gets_one_delta() {
    let mut steps: Vec<_> = (0..50)
        .map(|n| json!({"key": format!("p{n:02}"), "task": "t"}))
        .collect();
    let keys: Vec<_> = (0..50).map(|n| format!("p{n:02}")).collect();
    steps.push(json!({"key": "s", "task": "t", "after": keys}));
    let graph = graph(&json!({"name": "x", "steps": steps}));
    let ended: Vec<_> = (0..50)
        .map(|n| {
            (
                n,
                if n < 3 {
                    Outcome::Failed
                } else {
                    Outcome::Succeeded
                },
            )
        })
        .collect();
    let deltas = deltas(&graph, &ended);
    assert_eq!(deltas.len(), 1);
    assert_eq!(
        (deltas[0].step, deltas[0].ended, deltas[0].unsatisfied),
        (50, 50, 3)
    );
}

#[test]
fn steps_of_another_graph_change_nothing() {
    let graph = graph(&json!({"name": "x", "steps": [{"key": "a", "task": "t"}]}));
    assert_eq!(deltas(&graph, &[(7, Outcome::Failed)]), []);
    assert_eq!(deltas(&graph, &[]), []);
}
