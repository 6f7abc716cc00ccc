//! Any JSON has an answer, and the answers agree with each other.

use std::collections::BTreeSet;

use proptest::prelude::*;
use sayiir_rules::definition::{Graph, canonical, compile, hash, schema};
use sayiir_rules::template::Template;
use serde_json::{Map, Value, json};

use crate::host::{FakeHost, problems};

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,6}".prop_map(Value::from),
        "[$.*\"\\\\a-c]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 30, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map("[a-z$]{0,4}", inner, 0..5)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// Mostly what could stand in a definition, so that the deep checks are reached.
fn plausible() -> impl Strategy<Value = Value> {
    let word = prop::sample::select(vec![
        json!("a"),
        json!("b"),
        json!("c"),
        json!("d"),
        json!("1s"),
        json!("2 days"),
        json!("1 mon"),
        json!("$.input.x"),
        json!("$.steps.a.output"),
        json!("$.steps.b"),
        json!("$.steps.zz.status"),
        json!({"$all": "$.steps.c.output[*]"}),
        json!({"step": "a"}),
        json!({"step": "b", "on": "failure"}),
        json!({"step": "c", "release": "terminal"}),
        json!("success"),
        json!("first"),
        json!("hold"),
        json!("succeed"),
        json!("2030-01-01"),
        json!(3),
        json!(4.0),
        json!(0.5),
        json!(true),
        json!(null),
        json!(["a"]),
        json!(["b", "c"]),
        json!([{"step": "d", "on": "terminal"}, "a"]),
        json!({}),
        json!({"max_attempts": 3.0, "initial": "1s"}),
    ]);
    prop_oneof![9 => word, 1 => any_json()]
}

const STEP_FIELDS: &[&str] = &[
    "after",
    "join",
    "when",
    "optional",
    "input",
    "retry",
    "timeout",
    "deadline",
    "lease",
    "priority",
    "tags",
    "on_exhausted",
    "allow_continue",
    "on_timeout",
    "default",
    "map",
    "tmeout",
];

fn step() -> impl Strategy<Value = Value> {
    let key = prop::sample::select(vec!["a", "b", "c", "d", "e", "9"]);
    let kind = prop::sample::select(vec![
        ("task", json!("t")),
        ("task", json!("t")),
        ("event", json!("e")),
        ("event", json!(null)),
        ("delay", json!("1 mon")),
        ("until", json!("2030-01-01")),
        ("workflow", json!("w")),
    ]);
    let extra = (prop::sample::select(STEP_FIELDS), plausible());
    let after = prop::option::of(prop::collection::vec(plausible(), 0..3));
    (key, kind, prop::collection::vec(extra, 0..2), after).prop_map(|(key, kind, extra, after)| {
        let mut fields = Map::new();
        fields.insert("key".into(), key.into());
        fields.insert(kind.0.into(), kind.1);
        fields.extend(
            extra
                .into_iter()
                .map(|(field, value)| (field.to_owned(), value)),
        );
        fields.extend(after.map(|after| ("after".to_owned(), Value::Array(after))));
        Value::Object(fields)
    })
}

fn definition() -> impl Strategy<Value = Value> {
    let extra = (
        prop::sample::select(vec!["result", "timeout", "priority", "tags", "x"]),
        plausible(),
    );
    let steps = prop::collection::vec(step(), 0..6);
    (steps, prop::option::of(extra)).prop_map(|(steps, extra)| {
        let mut definition = json!({"name": "x", "steps": steps});
        if let Some((field, value)) = extra {
            definition[field] = value;
        }
        definition
    })
}

/// A definition that is valid: a graph of eight tasks, each after some of the earlier ones.
fn valid() -> impl Strategy<Value = Value> {
    let step = (
        any::<u8>(),
        prop::sample::select(vec!["success", "failure", "terminal"]),
        any::<bool>(),
    );
    prop::collection::vec(step, 1..9).prop_map(|steps| {
        // Keys whose order is not that of the graph.
        let key = |n: usize| format!("k{}", (n * 5 + 3) % 11);
        let steps = steps.into_iter().enumerate().map(|(n, (mask, on, named))| {
            let before: Vec<_> = (0..n).filter(|p| mask & (1 << p) != 0).map(key).collect();
            let after: Vec<_> = before
                .iter()
                .map(|step| json!({"step": step, "on": on}))
                .collect();
            let mut step = json!({"key": key(n), "task": "t", "after": after});
            if let (true, Some(first)) = (named, before.first()) {
                step["input"] = json!({"x": format!("$.steps.{first}.output")});
            }
            step
        });
        json!({"name": "x", "steps": steps.collect::<Vec<_>>()})
    })
}

/// What must hold in every graph, whatever it was compiled from.
fn check_graph(graph: &Graph) {
    for (ordinal, step) in graph.steps.iter().enumerate() {
        assert_eq!(graph.ordinal(&step.key), Some(ordinal));
        assert!(step.after.is_sorted_by_key(|edge| edge.step));
        assert!(step.dependents.is_sorted_by_key(|edge| edge.step));
        for edge in &step.after {
            let back = &graph.steps[edge.step].dependents;
            assert!(
                back.iter()
                    .any(|other| other.step == ordinal && other.on == edge.on)
            );
        }
        let mut reached = BTreeSet::new();
        let mut open: Vec<usize> = step.after.iter().map(|edge| edge.step).collect();
        while let Some(one) = open.pop() {
            if reached.insert(one) {
                open.extend(graph.steps[one].after.iter().map(|edge| edge.step));
            }
        }
        assert!(!reached.contains(&ordinal));
        assert!(step.prerequisites.iter().eq(reached.iter().copied()));
        assert!(step.reads.iter().all(|read| reached.contains(read)));
        assert!(step.reads.is_sorted());
        assert_eq!(graph.roots.contains(&ordinal), step.after.is_empty());
    }
    let edges = |count: fn(&sayiir_rules::definition::Step) -> usize| {
        graph.steps.iter().map(count).sum::<usize>()
    };
    assert_eq!(
        edges(|step| step.after.len()),
        edges(|step| step.dependents.len())
    );
}

/// Validates, canonicalises and compiles, and compares the answers.
fn check(definition: &Value) {
    let told = problems(definition);
    let canonical = canonical(definition);
    hash(&canonical);
    let codes = |problems: &[sayiir_rules::definition::Problem]| {
        let mut codes: Vec<_> = problems.iter().map(|problem| problem.code).collect();
        codes.sort_unstable();
        codes
    };
    // The canonical form has exactly the same problems.
    match compile(&canonical, &FakeHost) {
        Ok(graph) => {
            assert_eq!(told, []);
            check_graph(&graph);
        }
        Err(problems) => {
            assert!(!problems.is_empty());
            assert_eq!(codes(&told), codes(&problems));
        }
    }
    // Every pointer leads into the definition.
    for problem in &told {
        assert!(
            definition.pointer(&problem.pointer).is_some(),
            "{problem:?}"
        );
        assert!(problem.code.starts_with("definition."));
        assert!(!problem.message.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_json_has_an_answer(value in any_json()) {
        check(&value);
    }

    #[test]
    fn any_template_renders(value in any_json()) {
        if let Ok(template) = Template::parse(&value) {
            let values = template.paths().len();
            let mut answers = (0..values).map(|n| Some(json!(n)));
            template.render(&mut answers);
            prop_assert!(answers.next().is_none());
        }
    }

    #[test]
    fn anything_like_a_definition_has_an_answer(definition in definition()) {
        check(&definition);
    }

    #[test]
    fn valid_definitions_compile(definition in valid()) {
        prop_assert_eq!(problems(&definition), []);
        check(&definition);
    }
}

#[test]
fn the_schema_is_no_definition() {
    check(&schema());
}
