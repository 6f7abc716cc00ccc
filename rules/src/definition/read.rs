//! Reading single values of a definition, and collecting what is wrong with them.

use serde_json::{Number, Value};

use super::problem::{At, Problem, quote};
use super::{Host, Span};
use crate::ids::Invalid;

/// Reads a definition and collects every problem. A value that cannot be read is told and left out, and
/// reading goes on.
pub(crate) struct Reader<'h> {
    pub(crate) host: &'h dyn Host,
    pub(crate) problems: Vec<Problem>,
}

/// Which intervals a field takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Duration {
    /// A time limit: longer than nothing, and of a fixed length, so without months.
    Limit,
    /// The distance of retries: fixed, may be nothing.
    Distance,
    /// A delay: may have months, may be nothing.
    Calendar,
}

impl<'h> Reader<'h> {
    pub(crate) fn new(host: &'h dyn Host) -> Self {
        Self {
            host,
            problems: Vec::new(),
        }
    }

    pub(crate) fn problem(&mut self, at: &At<'_>, code: &'static str, message: impl Into<String>) {
        self.problems.push(Problem {
            pointer: at.pointer(),
            code,
            message: message.into(),
        });
    }

    pub(crate) fn wrong_type(&mut self, at: &At<'_>, expected: &str, value: &Value) {
        let message = format!("expected {expected}, found {}", type_name(value));
        self.problem(at, "definition.wrong_type", message);
    }

    /// A text that `check` accepts; the problem has the given code.
    pub(crate) fn checked<'a>(
        &mut self,
        at: &At<'_>,
        value: &'a Value,
        code: &'static str,
        check: impl FnOnce(&str) -> Result<(), Invalid>,
    ) -> Option<&'a str> {
        let text = self.text(at, value)?;
        match check(text) {
            Ok(()) => Some(text),
            Err(invalid) => {
                self.problem(at, code, invalid.to_string());
                None
            }
        }
    }

    pub(crate) fn text<'a>(&mut self, at: &At<'_>, value: &'a Value) -> Option<&'a str> {
        let text = value.as_str();
        if text.is_none() {
            self.wrong_type(at, "a string", value);
        }
        text
    }

    pub(crate) fn flag(&mut self, at: &At<'_>, value: Option<&Value>) -> bool {
        match value {
            None => false,
            Some(Value::Bool(flag)) => *flag,
            Some(other) => {
                self.wrong_type(at, "true or false", other);
                false
            }
        }
    }

    /// One of a few words.
    pub(crate) fn choice<T: Copy>(
        &mut self,
        at: &At<'_>,
        value: &Value,
        choices: &[(&'static str, T)],
    ) -> Option<T> {
        let text = self.text(at, value)?;
        let found = choices.iter().find(|(word, _)| *word == text);
        if found.is_none() {
            let words: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
            let message = format!("{} is none of {}", quote(text), words.join(", "));
            self.problem(at, "definition.out_of_range", message);
        }
        found.map(|(_, choice)| *choice)
    }

    /// A whole number in a range; 5.0 is one.
    pub(crate) fn integer(
        &mut self,
        at: &At<'_>,
        value: &Value,
        range: std::ops::RangeInclusive<i32>,
    ) -> Option<i32> {
        let Value::Number(number) = value else {
            self.wrong_type(at, "a whole number", value);
            return None;
        };
        let whole = whole(number).and_then(|n| i32::try_from(n).ok());
        let fits = whole.filter(|n| range.contains(n));
        if fits.is_none() {
            let message = format!(
                "{} is not a whole number from {} to {}",
                short(number),
                range.start(),
                range.end()
            );
            self.problem(at, "definition.out_of_range", message);
        }
        fits
    }

    pub(crate) fn number(
        &mut self,
        at: &At<'_>,
        value: &Value,
        range: std::ops::RangeInclusive<f64>,
    ) -> Option<f64> {
        let Value::Number(number) = value else {
            self.wrong_type(at, "a number", value);
            return None;
        };
        let fits = number.as_f64().filter(|n| range.contains(n));
        if fits.is_none() {
            let message = format!(
                "{} is not from {} to {}",
                short(number),
                range.start(),
                range.end()
            );
            self.problem(at, "definition.out_of_range", message);
        }
        fits
    }

    /// An interval, as text.
    pub(crate) fn duration(&mut self, at: &At<'_>, value: &Value, rule: Duration) -> Option<Span> {
        let Some(text) = value.as_str() else {
            self.wrong_type(at, "an interval as a string, such as \"30 s\"", value);
            return None;
        };
        let span = match self.host.interval(text) {
            Ok(span) => span,
            Err(message) => {
                self.problem(at, "definition.invalid_interval", message);
                return None;
            }
        };
        let refused = if span.is_too_long() {
            Some("is longer than 100 years")
        } else if rule == Duration::Calendar {
            (span.months < 0 || span.days < 0 || span.micros < 0).then_some("is negative")
        } else {
            match span.fixed_us() {
                None => Some("has months, whose length differs; only a delay takes them"),
                Some(us) if us < 0 => Some("is negative"),
                Some(0) if rule == Duration::Limit => Some("leaves no time"),
                Some(_) => None,
            }
        };
        if let Some(why) = refused {
            let message = format!("{} {why}", quote(text));
            self.problem(at, "definition.out_of_range", message);
            return None;
        }
        Some(span)
    }
}

/// A number in a message: jsonb keeps more than 100,000 digits.
fn short(number: &Number) -> String {
    const SHOWN: usize = 40;
    let text = number.to_string();
    match text.get(..SHOWN) {
        Some(begin) if text.len() > SHOWN => format!("{begin}…"),
        _ => text,
    }
}

/// The number as an integer when it is one, however it is written.
pub(crate) fn whole(number: &Number) -> Option<i64> {
    const END: f64 = 9_223_372_036_854_775_808.0; // 2^63
    number.as_i64().or_else(|| {
        let float = number.as_f64()?;
        (float.fract() == 0.0 && (-END..END).contains(&float)).then_some(float as i64)
    })
}

pub(crate) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
