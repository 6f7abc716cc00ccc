//! A host that knows enough intervals, paths and timestamps for tests.

use sayiir_rules::definition::{Host, Problem, Span, validate};
use serde_json::Value;

pub struct FakeHost;

impl Host for FakeHost {
    /// `<number><unit>…` with units s, m, h, day(s) and mon(s).
    fn interval(&self, text: &str) -> Result<Span, String> {
        let refused = || format!("invalid input syntax for type interval: \"{text}\"");
        let text = text.trim();
        let digits = text
            .find(|c: char| !c.is_ascii_digit() && c != '-')
            .ok_or_else(refused)?;
        let number: i64 = text[..digits].parse().map_err(|_| refused())?;
        let mut span = Span::default();
        let small = i32::try_from(number).map_err(|_| refused())?;
        match text[digits..].trim() {
            "s" => span.micros = number * 1_000_000,
            "m" => span.micros = number * 60_000_000,
            "h" => span.micros = number * 3_600_000_000,
            "day" | "days" => span.days = small,
            "mon" | "mons" => span.months = small,
            _ => return Err(refused()),
        }
        Ok(span)
    }

    fn jsonpath(&self, text: &str) -> Result<(), String> {
        if text.trim().is_empty() || text.contains("..") {
            return Err(format!(
                "invalid input syntax for type jsonpath: \"{text}\""
            ));
        }
        Ok(())
    }

    fn timestamp(&self, text: &str) -> Result<(), String> {
        if text.starts_with("20") {
            return Ok(());
        }
        Err(format!(
            "invalid input syntax for type timestamp: \"{text}\""
        ))
    }
}

pub fn problems(definition: &Value) -> Vec<Problem> {
    validate(definition, &FakeHost)
}
