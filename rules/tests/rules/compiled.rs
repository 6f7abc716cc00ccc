//! What valid definitions compile to.

use proptest::prelude::*;
use sayiir_rules::definition::{
    DelayStep, Edge, Graph, Join, Kind, On, OnTimeout, ResultRule, RetryFields, Span, canonical,
    compile, hash,
};
use sayiir_rules::retry::RetryPolicy;
use sayiir_rules::template::Template;
use serde_json::{Value, json};

use crate::host::{FakeHost, problems};

pub fn graph(definition: &Value) -> Graph {
    compile(&canonical(definition), &FakeHost).expect("a valid definition")
}

/// The example of the documentation, without the steps of later versions.
fn order() -> Value {
    json!({"name": "order", "result": "ship", "steps": [
        {"key": "charge", "task": "charge_card", "retry": {"max_attempts": 5, "initial": "1s", "factor": 2, "max": "5m"}, "timeout": "60s"},
        {"key": "paid", "event": "payment_received", "timeout": "1 day", "on_timeout": "fail"},
        {"key": "ship", "task": "ship", "after": ["charge", "paid"], "input": {"order": "$.input.id", "receipt": "$.steps.charge.output.receipt"}},
        {"key": "refund", "task": "refund", "after": ["charge", {"step": "ship", "on": "failure"}]},
        {"key": "remind", "delay": "3 days", "after": ["ship"]},
        {"key": "fraud", "task": "review", "after": ["charge"], "when": "$.steps.charge.output.risk > 80"}]})
}

const CHARGE: usize = 0;
const FRAUD: usize = 1;
const PAID: usize = 2;
const REFUND: usize = 3;
const REMIND: usize = 4;
const SHIP: usize = 5;

#[test]
fn the_documented_example() {
    assert_eq!(problems(&order()), []);
    let graph = graph(&order());
    let keys: Vec<_> = graph.steps.iter().map(|step| step.key.as_str()).collect();
    assert_eq!(
        keys,
        ["charge", "fraud", "paid", "refund", "remind", "ship"]
    );
    assert_eq!(graph.name, "order");
    assert_eq!(graph.result, ResultRule::Step(SHIP));
    assert_eq!(graph.roots, [CHARGE, PAID]);
    assert_eq!(graph.hash, hash(&canonical(&order())));
    assert_eq!(graph.ordinal("refund"), Some(REFUND));
    assert_eq!(graph.ordinal("nobody"), None);

    let edge = |step, on| Edge { step, on };
    let step = |ordinal: usize| &graph.steps[ordinal];
    assert_eq!(
        step(REFUND).after,
        [edge(CHARGE, On::Success), edge(SHIP, On::Failure)]
    );
    assert_eq!(
        step(CHARGE).dependents,
        [
            edge(FRAUD, On::Success),
            edge(REFUND, On::Success),
            edge(SHIP, On::Success)
        ]
    );
    assert_eq!(
        step(REFUND).prerequisites.iter().collect::<Vec<_>>(),
        [CHARGE, PAID, SHIP]
    );
    // Named by its template; named by `when`, and once; the direct ones by default; nothing.
    assert_eq!(step(SHIP).reads, [CHARGE]);
    assert_eq!(step(FRAUD).reads, [CHARGE]);
    assert_eq!(step(REFUND).reads, [CHARGE, SHIP]);
    assert!(step(REMIND).reads.is_empty());
    assert!(step(CHARGE).reads.is_empty());

    let Kind::Task(charge) = &step(CHARGE).kind else {
        panic!("a task")
    };
    let seconds = |n: i64| Span {
        micros: n * 1_000_000,
        ..Span::default()
    };
    assert_eq!(charge.task, "charge_card");
    assert_eq!(charge.timeout, Some(seconds(60)));
    assert_eq!(charge.retry.max_attempts, Some(5));
    assert_eq!(charge.retry.max, Some(seconds(300)));
    assert_eq!(charge.retry.jitter, None);
    assert!(!charge.hold && !charge.allow_continue);
    let Kind::Event(paid) = &step(PAID).kind else {
        panic!("an event")
    };
    assert_eq!(paid.event, "payment_received");
    assert_eq!(paid.on_timeout, OnTimeout::Fail);
    let days = Span {
        days: 3,
        ..Span::default()
    };
    assert_eq!(step(REMIND).kind, Kind::Delay(DelayStep::For(days)));
}

#[test]
fn every_field_arrives() {
    let graph = graph(&json!({
        "name": "all", "result": null, "timeout": "2 days", "priority": 7.0, "tags": ["b", "a", "b"],
        "steps": [
            {"key": "a", "task": "t", "deadline": "1h", "lease": "30s", "priority": 99, "tags": [],
             "on_exhausted": "hold", "allow_continue": true, "optional": true, "join": "some",
             "retry": {"jitter": 0.5, "factor": 1.5}},
            {"key": "b", "event": null, "timeout": "1m", "on_timeout": "succeed", "default": null},
            {"key": "c", "event": "e", "after": [{"step": "a", "release": "terminal"}], "join": "first"},
            {"key": "d", "delay": "$.input.pause"},
            {"key": "e", "until": "$.steps.d.output.at", "after": ["d"]},
            {"key": "f", "until": "2030-01-01"},
            {"key": "g", "delay": "1 mon"}]}));
    assert_eq!(graph.result, ResultRule::None);
    assert_eq!(
        graph.timeout.and_then(|t| t.fixed_us()),
        Some(172_800_000_000)
    );
    assert_eq!(graph.priority, Some(7));
    assert_eq!(graph.tags, ["a", "b"]);
    let Kind::Task(a) = &graph.steps[0].kind else {
        panic!("a task")
    };
    assert!(a.hold && a.allow_continue && graph.steps[0].optional);
    assert_eq!(a.priority, Some(99));
    assert_eq!(a.tags, Some(vec![]));
    assert_eq!(a.deadline.and_then(|t| t.fixed_us()), Some(3_600_000_000));
    assert_eq!(a.lease.and_then(|t| t.fixed_us()), Some(30_000_000));
    assert_eq!(a.retry.factor, Some(1.5));
    assert_eq!(graph.steps[0].join, Join::Some);
    let Kind::Event(b) = &graph.steps[1].kind else {
        panic!("an event")
    };
    assert_eq!((b.event.as_str(), b.on_timeout), ("b", OnTimeout::Succeed));
    assert_eq!(b.default, Some(Value::Null));
    assert_eq!(graph.steps[2].after[0].on, On::Terminal);
    let path = |text: &str| Template::Path(text.to_owned());
    let delays = [
        DelayStep::ForPath(path("$.input.pause")),
        DelayStep::UntilPath(path("$.steps.d.output.at")),
        DelayStep::Until("2030-01-01".to_owned()),
        DelayStep::For(Span {
            months: 1,
            ..Span::default()
        }),
    ];
    for (step, delay) in graph.steps[3..].iter().zip(delays) {
        assert_eq!(step.kind, Kind::Delay(delay));
    }
    assert_eq!(graph.steps[4].reads, [3]);
}

#[test]
fn without_a_result_the_sinks_count() {
    let graph = graph(&json!({"name": "x", "steps": [
        {"key": "a", "task": "t"}, {"key": "c", "task": "t", "after": ["a"]}, {"key": "b", "task": "t", "after": ["a"]}]}));
    assert_eq!(graph.result, ResultRule::Sinks(vec![1, 2]));
}

#[test]
fn a_step_policy_stands_on_the_task_policy() {
    let base = RetryPolicy::default();
    assert_eq!(RetryFields::default().over(base), base);
    let minutes = |n: i64| {
        Some(Span {
            micros: n * 60_000_000,
            ..Span::default()
        })
    };
    let slow = RetryFields {
        initial: minutes(10),
        jitter: Some(0.0),
        ..RetryFields::default()
    };
    let policy = slow.over(base);
    assert_eq!(
        (policy.initial_us, policy.max_us),
        (600_000_000, 600_000_000)
    );
    assert_eq!(policy.delay_us(1, 0.5), 600_000_000);
    let short = RetryFields {
        max: minutes(1),
        max_attempts: Some(2),
        ..RetryFields::default()
    };
    let policy = short.over(base);
    assert_eq!((policy.max_attempts, policy.max_us), (2, 60_000_000));
}

#[test]
fn the_largest_definitions_compile() {
    let key = |n: usize| format!("s{n:05}");
    let chain: Vec<_> = (0..10_000)
        .map(|n| match n {
            0 => json!({"key": key(n), "task": "t"}),
            _ => json!({"key": key(n), "task": "t", "after": [key(n - 1)]}),
        })
        .collect();
    let graph = graph(&json!({"name": "chain", "steps": chain}));
    assert_eq!(graph.steps[9_999].prerequisites.len(), 9_999);

    let wide: Vec<_> = (0..400)
        .map(|n| {
            let after: Vec<_> = (n - n.min(250)..n).map(key).collect();
            json!({"key": key(n), "task": "t", "after": after})
        })
        .collect();
    let edges = (0..400).map(|n| n.min(250)).sum::<usize>();
    assert!(edges > 60_000);
    assert_eq!(problems(&json!({"name": "wide", "steps": wide})), []);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However a definition is written down, it is the same definition.
    #[test]
    fn the_order_of_writing_does_not_matter(
        edges in prop::collection::vec((0usize..12, 0usize..12), 0..30),
        order in Just((0..12).collect::<Vec<usize>>()).prop_shuffle(),
    ) {
        let step = |n: usize| {
            let mut after: Vec<_> = edges.iter().filter(|(a, b)| *b == n && a < b).map(|(a, _)| format!("k{a}")).collect();
            after.sort();
            after.dedup();
            (n, after)
        };
        let written: Vec<_> = (0..12).map(|n| { let (n, after) = step(n); json!({"key": format!("k{n}"), "task": "t", "after": after}) }).collect();
        let other: Vec<_> = order.iter().map(|n| {
            let (n, mut after) = step(*n);
            after.reverse();
            let after: Vec<_> = after.into_iter().map(|step| json!({"release": "success", "step": step})).collect();
            json!({"after": after, "task": "t", "key": format!("k{n}")})
        }).collect();
        let one = graph(&json!({"name": "x", "steps": written}));
        let two = graph(&json!({"name": "x", "steps": other}));
        prop_assert_eq!(one, two);
    }
}
