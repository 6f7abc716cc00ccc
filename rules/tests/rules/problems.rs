//! What is wrong with wrong definitions: all of it, and where.

use serde_json::{Value, json};

use crate::host::problems;

/// The pointers and codes (without `definition.`) of a definition's problems.
fn told(definition: &Value) -> Vec<(String, &'static str)> {
    let code = |code: &'static str| code.strip_prefix("definition.").expect("the prefix");
    let problems = problems(definition);
    problems
        .into_iter()
        .map(|p| (p.pointer, code(p.code)))
        .collect()
}

/// Of a definition with two good tasks, `a` and `b`, and this step.
fn told_of_step(step: Value) -> Vec<(String, &'static str)> {
    let mut told = told(&json!({"name": "x", "steps": [
        step, {"key": "a", "task": "t"}, {"key": "b", "task": "t", "after": ["a"]}]}));
    for (pointer, _) in &mut told {
        *pointer = pointer
            .strip_prefix("/steps/0")
            .expect("within the step")
            .to_owned();
    }
    told
}

fn owned(expected: &[(&str, &'static str)]) -> Vec<(String, &'static str)> {
    expected
        .iter()
        .map(|(at, code)| ((*at).to_owned(), *code))
        .collect()
}

#[test]
fn of_the_top() {
    let steps = json!([{"key": "a", "task": "t"}]);
    let table: Vec<(Value, &[(&str, &str)])> = vec![
        (json!(null), &[("", "wrong_type")]),
        (json!([]), &[("", "wrong_type")]),
        (json!({}), &[("", "missing_field"), ("", "missing_field")]),
        (json!({"name": "x", "steps": []}), &[("/steps", "no_steps")]),
        (
            json!({"name": "x", "steps": {}}),
            &[("/steps", "wrong_type")],
        ),
        (
            json!({"name": "x", "steps": [1]}),
            &[("/steps/0", "wrong_type")],
        ),
        (
            json!({"name": "", "steps": steps}),
            &[("/name", "invalid_name")],
        ),
        (
            json!({"name": "a\n", "steps": steps}),
            &[("/name", "invalid_name")],
        ),
        (
            json!({"name": 5, "steps": steps}),
            &[("/name", "wrong_type")],
        ),
        (
            json!({"name": "x", "steps": steps, "result": "b"}),
            &[("/result", "unknown_step")],
        ),
        (
            json!({"name": "x", "steps": steps, "result": 1}),
            &[("/result", "wrong_type")],
        ),
        (
            json!({"name": "x", "steps": steps, "timeout": "1 mon"}),
            &[("/timeout", "out_of_range")],
        ),
        (
            json!({"name": "x", "steps": steps, "timeout": "0s"}),
            &[("/timeout", "out_of_range")],
        ),
        (
            json!({"name": "x", "steps": steps, "timeout": "soon"}),
            &[("/timeout", "invalid_interval")],
        ),
        (
            json!({"name": "x", "steps": steps, "timeout": 30}),
            &[("/timeout", "wrong_type")],
        ),
        (
            json!({"name": "x", "steps": steps, "priority": 100}),
            &[("/priority", "out_of_range")],
        ),
        (
            json!({"name": "x", "steps": steps, "priority": 1.5}),
            &[("/priority", "out_of_range")],
        ),
        (
            json!({"name": "x", "steps": steps, "priority": "1"}),
            &[("/priority", "wrong_type")],
        ),
        (
            json!({"name": "x", "steps": steps, "tags": "gpu"}),
            &[("/tags", "wrong_type")],
        ),
        (
            json!({"name": "x", "steps": steps, "tags": ["gpu", "", 1]}),
            &[("/tags/1", "invalid_name"), ("/tags/2", "wrong_type")],
        ),
        (
            json!({"name": "x", "steps": steps, "input_schema": {}}),
            &[("/input_schema", "not_supported")],
        ),
        (
            json!({"name": "x", "steps": steps, "Name/~": 1}),
            &[("/Name~1~0", "unknown_field")],
        ),
    ];
    for (definition, expected) in table {
        assert_eq!(told(&definition), owned(expected), "{definition}");
    }
}

#[test]
fn of_a_step() {
    let table: Vec<(Value, &[(&str, &str)])> = vec![
        (json!({"key": "k"}), &[("", "missing_field")]),
        (json!({"task": "t"}), &[("", "missing_field")]),
        (json!({"key": "9", "task": "t"}), &[("/key", "invalid_key")]),
        (
            json!({"key": "k", "task": ""}),
            &[("/task", "invalid_name")],
        ),
        (
            json!({"key": "k", "task": null}),
            &[("/task", "wrong_type")],
        ),
        (
            json!({"key": "k", "task": "t", "event": "e", "timeout": "1s"}),
            &[("", "conflicting_fields")],
        ),
        (
            json!({"key": "k", "delay": "1s", "until": "2030"}),
            &[("", "conflicting_fields")],
        ),
        (
            json!({"key": "k", "event": "e", "lease": "1s"}),
            &[("/lease", "conflicting_fields")],
        ),
        (
            json!({"key": "k", "task": "t", "default": 1}),
            &[("/default", "conflicting_fields")],
        ),
        (
            json!({"key": "k", "delay": "1s", "input": {}}),
            &[("/input", "conflicting_fields")],
        ),
        (
            json!({"key": "k", "event": "e", "default": 1}),
            &[("/default", "conflicting_fields")],
        ),
        (
            json!({"key": "k", "event": "e", "on_timeout": "skip"}),
            &[("/on_timeout", "conflicting_fields")],
        ),
        (
            json!({"key": "k", "event": "e", "timeout": "1s", "on_timeout": "explode"}),
            &[("/on_timeout", "out_of_range")],
        ),
        (
            json!({"key": "k", "event": "e", "timeout": "1 mon"}),
            &[("/timeout", "out_of_range")],
        ),
        (
            json!({"key": "k", "delay": "-1s"}),
            &[("/delay", "out_of_range")],
        ),
        (json!({"key": "k", "delay": 5}), &[("/delay", "wrong_type")]),
        (
            json!({"key": "k", "until": "whenever"}),
            &[("/until", "invalid_timestamp")],
        ),
        (
            json!({"key": "k", "task": "t", "retyr": {}}),
            &[("/retyr", "unknown_field")],
        ),
        (
            json!({"key": "k", "task": "t", "retry": []}),
            &[("/retry", "wrong_type")],
        ),
        (
            json!({"key": "k", "task": "t", "retry": {"max_attempts": 0, "factor": 0.5, "jitter": 2, "initial": "-1s", "max": "1 mon", "min": 1}}),
            &[
                ("/retry/min", "unknown_field"),
                ("/retry/max_attempts", "out_of_range"),
                ("/retry/initial", "out_of_range"),
                ("/retry/factor", "out_of_range"),
                ("/retry/max", "out_of_range"),
                ("/retry/jitter", "out_of_range"),
            ],
        ),
        (
            json!({"key": "k", "task": "t", "retry": {"initial": "2m", "max": "1m"}}),
            &[("/retry/initial", "out_of_range")],
        ),
        (
            json!({"key": "k", "task": "t", "retry": {"initial": "0s", "max": "0s"}}),
            &[],
        ),
        (
            json!({"key": "k", "task": "t", "on_exhausted": "retry"}),
            &[("/on_exhausted", "out_of_range")],
        ),
        (
            json!({"key": "k", "task": "t", "optional": 1, "allow_continue": "yes"}),
            &[
                ("/optional", "wrong_type"),
                ("/allow_continue", "wrong_type"),
            ],
        ),
        (
            json!({"key": "k", "task": "t", "join": "any"}),
            &[("/join", "out_of_range")],
        ),
        (
            json!({"key": "k", "task": "t", "map": "$.input.a", "max_parallel": 8, "on_item_failure": "stop"}),
            &[
                ("/map", "not_supported"),
                ("/max_parallel", "not_supported"),
                ("/on_item_failure", "not_supported"),
            ],
        ),
        (
            json!({"key": "k", "task": "t", "repeat": {}}),
            &[("/repeat", "not_supported")],
        ),
        (
            json!({"key": "k", "workflow": "w", "wait": false, "version": 1}),
            &[
                ("/version", "not_supported"),
                ("/wait", "not_supported"),
                ("/workflow", "not_supported"),
            ],
        ),
        (
            json!({"key": "k", "task": "t", "resource_key": "$.input.a"}),
            &[("/resource_key", "not_supported")],
        ),
    ];
    for (step, expected) in table {
        assert_eq!(told_of_step(step.clone()), owned(expected), "{step}");
    }
}

#[test]
fn of_edges() {
    let table: Vec<(Value, &[(&str, &str)])> = vec![
        (json!("a"), &[("/after", "wrong_type")]),
        (json!([1]), &[("/after/0", "wrong_type")]),
        (json!(["a", "c"]), &[("/after/1", "unknown_step")]),
        (json!(["k"]), &[("/after/0", "self_edge")]),
        (
            json!(["a", {"step": "a", "on": "failure"}]),
            &[("/after/1", "duplicate_edge")],
        ),
        (json!([{"on": "success"}]), &[("/after/0", "missing_field")]),
        (json!([{"step": 1}]), &[("/after/0/step", "wrong_type")]),
        (
            json!([{"step": "a", "on": "end"}]),
            &[("/after/0/on", "out_of_range")],
        ),
        (
            json!([{"step": "a", "on": "success", "release": "success"}]),
            &[("/after/0/release", "conflicting_fields")],
        ),
        (
            json!([{"step": "a", "when": "success"}]),
            &[("/after/0/when", "unknown_field")],
        ),
    ];
    for (after, expected) in table {
        let step = json!({"key": "k", "task": "t", "after": after});
        assert_eq!(told_of_step(step), owned(expected), "{after}");
    }
}

#[test]
fn of_paths() {
    let table: Vec<(Value, &[(&str, &str)])> = vec![
        (
            json!({"input": {"x": ["$.steps.b.output"]}}),
            &[("/input/x/0", "not_a_prerequisite")],
        ),
        (
            json!({"input": "$.steps.k.output"}),
            &[("/input", "not_a_prerequisite")],
        ),
        (
            json!({"input": "$.steps.c.output", "after": ["a"]}),
            &[("/input", "unknown_step")],
        ),
        (
            json!({"input": "$.inputs.id"}),
            &[("/input", "unknown_root")],
        ),
        (json!({"input": "$.a..b"}), &[("/input", "invalid_path")]),
        (
            json!({"input": {"$all": "$.steps.b.output[*]"}}),
            &[("/input/$all", "not_a_prerequisite")],
        ),
        (
            json!({"input": {"$all": 1}}),
            &[("/input/$all", "wrong_type")],
        ),
        (
            json!({"input": {"$all": "$.input[*]", "also": 1}}),
            &[("/input/also", "conflicting_fields")],
        ),
        (json!({"input": "$.item"}), &[("/input", "not_supported")]),
        (json!({"input": ["$$.steps.b", "$5", "$", "text"]}), &[]),
        (json!({"when": ""}), &[("/when", "invalid_path")]),
        (json!({"when": true}), &[("/when", "wrong_type")]),
        (
            json!({"when": "$.steps.a.status == \"x\" && $.steps.b.status == \"y\"", "after": ["a"]}),
            &[("/when", "not_a_prerequisite")],
        ),
        (json!({"when": "$.input.x == \"$.steps.b\""}), &[]),
        (json!({"input": "$.steps.a.output", "after": ["b"]}), &[]),
    ];
    for (fields, expected) in table {
        let mut step = fields.clone();
        step["key"] = json!("k");
        step["task"] = json!("t");
        assert_eq!(told_of_step(step), owned(expected), "{fields}");
    }
    let delay = json!({"key": "k", "delay": "$.steps.a.output"});
    assert_eq!(
        told_of_step(delay),
        owned(&[("/delay", "not_a_prerequisite")])
    );
}

#[test]
fn of_keys_and_cycles() {
    let twice = json!({"name": "x", "steps": [{"key": "a", "task": "t"}, {"key": "a", "task": "t"}, {"key": "a", "task": "t"}]});
    assert_eq!(
        told(&twice),
        owned(&[
            ("/steps/1/key", "duplicate_step"),
            ("/steps/2/key", "duplicate_step")
        ])
    );

    // Two cycles, one behind the other; what only stands behind a cycle is not blamed.
    let cycles = json!({"name": "x", "steps": [
        {"key": "root", "task": "t"},
        {"key": "a", "task": "t", "after": ["root", "c"]},
        {"key": "b", "task": "t", "after": ["a"]},
        {"key": "c", "task": "t", "after": ["b"]},
        {"key": "d", "task": "t", "after": ["c", "e"]},
        {"key": "e", "task": "t", "after": ["d"]},
        {"key": "f", "task": "t", "after": ["e"], "input": "$.steps.a.output"}]});
    let told = problems(&cycles);
    let told: Vec<_> = told
        .iter()
        .map(|p| (p.pointer.as_str(), p.code, p.message.as_str()))
        .collect();
    assert_eq!(
        told,
        [
            (
                "/steps/1/after",
                "definition.cycle",
                "these steps wait for each other: a after c after b after a"
            ),
            (
                "/steps/4/after",
                "definition.cycle",
                "these steps wait for each other: d after e after d"
            ),
        ]
    );
}

#[test]
fn every_problem_is_told_at_once() {
    let definition = json!({"steps": [
        {"key": "a", "task": "", "after": ["a", "z"], "retry": {"factor": "x"}},
        {"key": "a", "event": 5, "when": "$.nobody"},
        7]});
    assert_eq!(
        told(&definition),
        owned(&[
            ("", "missing_field"),
            ("/steps/0/task", "invalid_name"),
            ("/steps/0/retry/factor", "wrong_type"),
            ("/steps/1/when", "unknown_root"),
            ("/steps/1/event", "wrong_type"),
            ("/steps/2", "wrong_type"),
            ("/steps/1/key", "duplicate_step"),
            ("/steps/0/after/0", "self_edge"),
            ("/steps/0/after/1", "unknown_step"),
        ])
    );
}

#[test]
fn slips_get_a_suggestion() {
    let told = problems(&json!({"name": "x", "stpes": [], "steps": [
        {"key": "charge", "tsak": "t", "task": "t"}, {"key": "b", "task": "t", "after": ["chrage"]}]}));
    let messages: Vec<_> = told
        .iter()
        .map(|problem| problem.message.as_str())
        .collect();
    assert_eq!(
        messages,
        [
            "there is no field \"stpes\"; did you mean steps?",
            "there is no field \"tsak\"; did you mean task?",
            "there is no step \"chrage\"; did you mean charge?",
        ]
    );
}

#[test]
fn the_limits_of_size() {
    let steps = |count: usize| -> Vec<_> {
        (0..count)
            .map(|n| json!({"key": format!("k{n}"), "task": "t"}))
            .collect()
    };
    let too_large = owned(&[("", "too_large")]);
    assert_eq!(told(&json!({"name": "x", "steps": steps(10_000)})), []);
    assert_eq!(
        told(&json!({"name": "x", "steps": steps(10_001)})),
        too_large
    );

    let after = vec![json!("k"); 100_001];
    let edges = json!({"name": "x", "steps": [{"key": "k", "task": "t", "after": after}]});
    assert_eq!(told(&edges), too_large);

    let nested = |depth: usize| {
        let inner = (0..depth).fold(json!(1), |inner, _| json!([inner]));
        json!({"name": "x", "steps": [{"key": "k", "task": "t", "input": inner}]})
    };
    assert_eq!(told(&nested(96)), []);
    assert_eq!(told(&nested(97)), too_large);
}
