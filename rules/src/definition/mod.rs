//! Definitions: JSON in, every problem or a compiled graph out.
//!
//! [`validate`] tells everything that is wrong with a definition, [`canonical`] and [`hash`] give it its
//! identity, [`compile`] turns the canonical form into the [`Graph`] that the release rule works on. All
//! four take any JSON whatever and never panic.

mod canonical;
mod fields;
mod graph;
mod links;
mod problem;
mod read;
mod schema;
mod step;
mod step_set;

use serde_json::Value;

pub use canonical::{canonical, digest, hash};
pub use graph::{
    DelayStep, Edge, EventStep, Graph, Join, Kind, On, OnTimeout, ResultRule, RetryFields, Step,
    TaskStep,
};
pub use problem::Problem;
pub(crate) use problem::{At, quote};
pub use schema::schema;
pub use step_set::StepSet;

use read::Reader;

/// The most steps of a definition.
pub const MAX_STEPS: usize = 10_000;
/// The most edges of a definition.
pub const MAX_EDGES: usize = 100_000;
/// How deep a definition may nest. Below what serde_json parses (128), and shallow enough for the
/// recursions over it to stay far from the end of a backend's stack.
pub const MAX_DEPTH: usize = 100;

const DAY_US: i64 = 86_400_000_000;
const CENTURY_US: i128 = 36_525 * DAY_US as i128;

/// What only Postgres can tell about a definition.
pub trait Host {
    /// Reads an interval as Postgres does; the error is its message.
    fn interval(&self, text: &str) -> Result<Span, String>;

    /// Is this an SQL/JSON path? The error is Postgres's message.
    fn jsonpath(&self, text: &str) -> Result<(), String>;

    /// Is this a timestamp? The error is Postgres's message. Without an answer of the host every text is
    /// taken, and a bad one fails its step when that is released.
    fn timestamp(&self, _text: &str) -> Result<(), String> {
        Ok(())
    }
}

/// A Postgres interval. Its parts stay apart because only a calendar can add them up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Calendar months.
    pub months: i32,
    /// Calendar days.
    pub days: i32,
    /// Microseconds.
    pub micros: i64,
}

impl Span {
    /// Its length in microseconds, a day taken as 24 hours; `None` if it has months or is out of range.
    pub fn fixed_us(&self) -> Option<i64> {
        if self.months != 0 {
            return None;
        }
        (i64::from(self.days) * DAY_US).checked_add(self.micros)
    }

    /// Longer than a century, forwards or backwards: added to a time it may be no timestamp any more, and a job with such a
    /// time would raise in whatever claims or sweeps it, and stop the others.
    pub fn is_too_long(&self) -> bool {
        let days = i128::from(self.months).abs() * 31 + i128::from(self.days).abs();
        days * i128::from(DAY_US) + i128::from(self.micros).abs() > CENTURY_US
    }
}

/// Reads the JSON text of a definition. What is nested too deep to be read has that one problem.
pub fn parse(text: &str) -> Result<Value, Problem> {
    serde_json::from_str(text).map_err(|error| {
        let (code, message) = if error.to_string().contains("recursion limit") {
            (
                "definition.too_large",
                format!("nested deeper than {MAX_DEPTH}"),
            )
        } else {
            ("definition.invalid_json", error.to_string())
        };
        Problem {
            pointer: String::new(),
            code,
            message,
        }
    })
}

/// Everything that is wrong with a definition; nothing when it is valid.
///
/// A definition over [`MAX_STEPS`], [`MAX_EDGES`] or [`MAX_DEPTH`] gets that one problem only. Where a
/// problem leaves a question without meaning (prerequisites inside a cycle), the question is not asked.
pub fn validate(definition: &Value, host: &dyn Host) -> Vec<Problem> {
    let mut reader = Reader::new(host);
    if let Some(draft) = step::read(definition, &mut reader) {
        links::link(&draft, &mut reader);
    }
    reader.problems
}

/// Compiles a definition in [`canonical`] form; the error is what [`validate`] answers.
///
/// Steps stand in key order, so the ordinal of a step is its place in the canonical list. The graph's
/// `hash` is that of `canonical` as given: of another form it would be another identity.
pub fn compile(canonical: &Value, host: &dyn Host) -> Result<Graph, Vec<Problem>> {
    let mut reader = Reader::new(host);
    let Some(mut draft) = step::read(canonical, &mut reader) else {
        return Err(reader.problems);
    };
    draft.steps.sort_by_key(|step| step.key);
    let links = links::link(&draft, &mut reader);
    if !reader.problems.is_empty() {
        return Err(reader.problems);
    }
    Ok(graph::build(draft, links, hash(canonical)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_at_most_a_century() {
        let days = |days| Span {
            days,
            ..Span::default()
        };
        assert!(!days(36_525).is_too_long());
        assert!(days(36_526).is_too_long());
        assert!(days(-36_526).is_too_long());
        let infinite = Span {
            months: i32::MIN,
            days: i32::MIN,
            micros: i64::MIN,
        };
        assert!(infinite.is_too_long());
        let months = |months| Span {
            months,
            ..Span::default()
        };
        assert!(!months(1_178).is_too_long());
        assert!(months(1_200).is_too_long());
    }

    #[test]
    fn what_cannot_be_read_is_a_problem() {
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        let problem = parse(&deep).expect_err("too deep");
        assert_eq!(problem.code, "definition.too_large");
        // A double has no 1e400; a definition has.
        assert!(parse("[1e400]").is_ok());
        // How serde_json wraps its own numbers; in a document it is only a strange object.
        let wrapped = r#"{"$serde_json::private::Number": "x"}"#;
        let problem = parse(wrapped).expect_err("no number");
        assert_eq!(problem.code, "definition.invalid_json");
    }
}
