//! Which fields exist where. The JSON Schema names the same ones; a test compares them.

use serde_json::{Map, Value};

use super::problem::{At, quote};
use super::read::Reader;

/// A definition.
pub(crate) const TOP: &[&str] = &["name", "result", "timeout", "priority", "tags", "steps"];
/// Every step.
pub(crate) const STEP: &[&str] = &["key", "after", "join", "when", "optional"];
/// A step that a worker runs.
pub(crate) const TASK: &[&str] = &[
    "task",
    "input",
    "retry",
    "timeout",
    "deadline",
    "lease",
    "priority",
    "tags",
    "on_exhausted",
    "allow_continue",
];
/// A step that waits for an event.
pub(crate) const EVENT: &[&str] = &["event", "timeout", "on_timeout", "default"];
/// A step that waits for a time.
pub(crate) const DELAY: &[&str] = &["delay", "until"];
/// `retry` of a task step.
pub(crate) const RETRY: &[&str] = &["max_attempts", "initial", "factor", "max", "jitter"];
/// An edge written as an object.
pub(crate) const EDGE: &[&str] = &["step", "on", "release"];

/// Fields of the design that this version does not run yet: refused by name, never ignored.
const LATER_TOP: &[&str] = &["input_schema"];
const LATER_STEP: &[&str] = &[
    "map",
    "max_parallel",
    "on_item_failure",
    "repeat",
    "workflow",
    "wait",
    "version",
    "resource_key",
];

/// The kind of a step, told by which of its fields it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KindName {
    Task,
    Event,
    Delay,
}

impl KindName {
    /// The fields that a step of this kind has besides [`STEP`].
    fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Task => TASK,
            Self::Event => EVENT,
            Self::Delay => DELAY,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Task => "a task step",
            Self::Event => "an event step",
            Self::Delay => "a delay step",
        }
    }
}

impl Reader<'_> {
    /// Refuses every field of a definition that does not exist.
    pub(crate) fn check_top(&mut self, at: &At<'_>, object: &Map<String, Value>) {
        for field in object.keys().filter(|f| !TOP.contains(&f.as_str())) {
            if LATER_TOP.contains(&field.as_str()) {
                self.not_supported(at, field);
            } else {
                self.unknown_field(at, field, TOP.iter().copied());
            }
        }
    }

    /// Refuses every field of `retry` or of an edge that does not exist.
    pub(crate) fn check_part(
        &mut self,
        at: &At<'_>,
        object: &Map<String, Value>,
        known: &'static [&'static str],
    ) {
        for field in object.keys().filter(|f| !known.contains(&f.as_str())) {
            self.unknown_field(at, field, known.iter().copied());
        }
    }

    /// Refuses every field of a step that does not exist, or not for its kind, and tells the kind.
    pub(crate) fn check_step(
        &mut self,
        at: &At<'_>,
        object: &Map<String, Value>,
    ) -> Option<KindName> {
        let kind = self.kind_of(at, object);
        let known = |field: &str| {
            let of_kind = kind.map_or(&[][..], KindName::fields);
            STEP.contains(&field) || of_kind.contains(&field)
        };
        for field in object.keys().filter(|f| !known(f)) {
            let owner = [KindName::Task, KindName::Event, KindName::Delay]
                .into_iter()
                .find(|other| other.fields().contains(&field.as_str()));
            if LATER_STEP.contains(&field.as_str()) {
                self.not_supported(at, field);
            } else if let Some(owner) = owner {
                // Without one kind the problem has been told; it is not repeated for each field.
                if let Some(kind) = kind {
                    let message = format!(
                        "{field} belongs to {}, and this is {}",
                        owner.words(),
                        kind.words()
                    );
                    self.problem(&at.key(field), "definition.conflicting_fields", message);
                }
            } else {
                let of_kind = kind.map_or(TASK, KindName::fields);
                self.unknown_field(at, field, STEP.iter().chain(of_kind).copied());
            }
        }
        kind
    }

    /// The kind of a step; `None` after telling why it has no kind or more than one.
    fn kind_of(&mut self, at: &At<'_>, object: &Map<String, Value>) -> Option<KindName> {
        const MARKS: [(&str, KindName); 4] = [
            ("task", KindName::Task),
            ("event", KindName::Event),
            ("delay", KindName::Delay),
            ("until", KindName::Delay),
        ];
        let present: Vec<_> = MARKS
            .iter()
            .filter(|(mark, _)| object.contains_key(*mark))
            .collect();
        match present[..] {
            [(_, kind)] => Some(*kind),
            [] => {
                // A workflow step has its kind; it is refused as a field of a later version.
                if !object.contains_key("workflow") {
                    self.problem(
                        at,
                        "definition.missing_field",
                        "a step has one of task, event, delay and until",
                    );
                }
                None
            }
            _ => {
                let marks: Vec<_> = present.iter().map(|(mark, _)| *mark).collect();
                let message = format!(
                    "a step has exactly one of task, event, delay and until; this one has {}",
                    marks.join(", ")
                );
                self.problem(at, "definition.conflicting_fields", message);
                None
            }
        }
    }

    fn not_supported(&mut self, at: &At<'_>, field: &str) {
        let message = format!("{field} is not supported in this version");
        self.problem(&at.key(field), "definition.not_supported", message);
    }

    fn unknown_field(
        &mut self,
        at: &At<'_>,
        field: &str,
        known: impl Iterator<Item = &'static str>,
    ) {
        let mut message = format!("there is no field {}", quote(field));
        if let Some(near) = nearest(field, known) {
            message.push_str(&format!("; did you mean {near}?"));
        }
        self.problem(&at.key(field), "definition.unknown_field", message);
    }
}

/// The candidate that `word` is a slip of: at most one edit in three letters. Long words get none, so
/// that a hostile definition costs no time.
pub(crate) fn nearest<'a>(
    word: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    const LONGEST: usize = 64;
    if word.len() > LONGEST {
        return None;
    }
    let close_enough = (word.chars().count() / 3).max(1);
    candidates
        .filter(|candidate| candidate.len() <= LONGEST)
        .map(|candidate| (strsim::osa_distance(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= close_enough)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised() {
        let near = |word| nearest(word, TASK.iter().copied());
        assert_eq!(near("retyr"), Some("retry"));
        assert_eq!(near("time_out"), Some("timeout"));
        assert_eq!(near("Task"), Some("task"));
        assert_eq!(near("on_exausted"), Some("on_exhausted"));
        assert_eq!(near("banana"), None);
        assert_eq!(near(""), None);
        assert_eq!(near(&"task".repeat(100)), None);
    }
}
