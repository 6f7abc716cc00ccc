//! Templates: what is a path, and what a value becomes.

use sayiir_rules::template::{Query, Template};
use serde_json::{Value, json};

fn read(value: Value) -> Template {
    Template::parse(&value).expect("a template")
}

/// Renders with one text for each path: `<path>`.
fn render(value: Value) -> Value {
    let template = read(value);
    let paths: Vec<Value> = template
        .paths()
        .into_iter()
        .map(|p| json!(format!("<{p}>")))
        .collect();
    template.render(&mut paths.into_iter().map(Some))
}

#[test]
fn what_is_a_path() {
    let literals = [
        (json!("text"), json!("text")),
        (json!("$"), json!("$")),
        (json!("$5"), json!("$5")),
        (json!("$$.input"), json!("$.input")),
        (json!("$$"), json!("$")),
        (json!("$$$"), json!("$$")),
        (json!(" $.input"), json!(" $.input")),
        (
            json!({"a": [1, null, {"b": "$$x"}]}),
            json!({"a": [1, null, {"b": "$x"}]}),
        ),
        (json!({}), json!({})),
        (json!([]), json!([])),
    ];
    for (given, expected) in literals {
        assert_eq!(read(given), Template::Literal(expected));
    }
    assert_eq!(read(json!("$.input")), Template::Path("$.input".into()));
    assert_eq!(
        read(json!({"$all": "$.input[*]"})),
        Template::All("$.input[*]".into())
    );
}

#[test]
fn values_go_where_their_paths_were() {
    let given =
        json!({"z": "$.a", "m": ["x", "$.b", {"$all": "$.c[*]"}], "a": {"deep": "$.d", "n": 1}});
    let template = read(given.clone());
    assert_eq!(template.paths(), ["$.d", "$.b", "$.c[*]", "$.a"]);
    let all: Vec<bool> = template.queries().iter().map(|query| query.all).collect();
    assert_eq!(all, [false, false, true, false]);
    assert_eq!(
        render(given),
        json!({"z": "<$.a>", "m": ["x", "<$.b>", "<$.c[*]>"], "a": {"deep": "<$.d>", "n": 1}})
    );
    let literal = read(json!([1, "two"]));
    assert_eq!(literal.queries(), [] as [Query<'_>; 0]);
    assert_eq!(literal.render(&mut std::iter::empty()), json!([1, "two"]));
}

#[test]
fn a_missing_match_is_null() {
    let template = read(json!(["$.a", {"$all": "$.b[*]"}, "$.c"]));
    let mut values = vec![None, None, Some(json!(3))].into_iter();
    assert_eq!(template.render(&mut values), json!([null, [], 3]));
    assert_eq!(
        template.render(&mut std::iter::empty()),
        json!([null, [], null])
    );
}

#[test]
fn all_stands_alone() {
    let problems = Template::parse(&json!([{"$all": "no path", "x": 1}])).unwrap_err();
    let told: Vec<_> = problems
        .iter()
        .map(|p| (p.pointer.as_str(), p.code))
        .collect();
    assert_eq!(
        told,
        [
            ("/0/x", "definition.conflicting_fields"),
            ("/0/$all", "definition.wrong_type")
        ]
    );
}
