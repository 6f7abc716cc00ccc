//! Whether two inputs are the same: SHA-256 over canonical JSON.
//!
//! Object keys are sorted by their bytes, there is no white space, and scalars are written as serde_json writes them, so that a
//! client in Rust gets the same fingerprint for the same document. A number that a double cannot hold keeps all its digits instead of
//! being rounded: two amounts that differ in the last digit are two inputs. (jsonb has no difference between `1e2` and `100`, which
//! serde_json writes as `100.0` and `100`: here it is `100`.)

use serde_json::{Number, Value};
use sha2::{Digest, Sha256};

/// `sha256:` and 64 hexadecimal digits.
pub fn fingerprint(value: &Value) -> String {
    let mut canonical = String::new();
    write(value, &mut canonical);
    let digest = Sha256::digest(canonical.as_bytes());
    let hex = digest.iter().map(|byte| format!("{byte:02x}"));
    format!("sha256:{}", hex.collect::<String>())
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_unstable_by_key(|(key, _)| key.as_str());
            out.push('{');
            for (n, (key, value)) in fields.into_iter().enumerate() {
                if n > 0 {
                    out.push(',');
                }
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push(':');
                write(value, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (n, item) in items.iter().enumerate() {
                if n > 0 {
                    out.push(',');
                }
                write(item, out);
            }
            out.push(']');
        }
        Value::Number(number) => out.push_str(&number_text(&number.to_string())),
        scalar => out.push_str(&scalar.to_string()),
    }
}

/// As serde_json writes it, if that is the same number.
fn number_text(text: &str) -> String {
    if text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok() {
        return text.to_owned();
    }
    let double = text.parse::<f64>().ok().and_then(Number::from_f64);
    match double.map(|double| double.to_string()) {
        Some(shortest) if decimal(&shortest) == decimal(text) => shortest,
        _ => text.to_owned(),
    }
}

/// Sign, significant digits and exponent; equal for equal numbers.
fn decimal(text: &str) -> Option<(bool, String, i64)> {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i64>().ok()?),
        None => (text, 0),
    };
    let digits = mantissa.trim_start_matches('-');
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all = format!("{whole}{fraction}");
    let significant = all.trim_start_matches('0').trim_end_matches('0');
    if significant.is_empty() {
        return Some((mantissa.starts_with('-'), String::new(), 0));
    }
    let dropped = all.len() - all.trim_end_matches('0').len();
    let exponent = exponent
        .checked_sub(fraction.len() as i64)?
        .checked_add(dropped as i64)?;
    Some((mantissa.starts_with('-'), significant.to_owned(), exponent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(text: &str) -> String {
        fingerprint(&serde_json::from_str(text).unwrap())
    }

    #[test]
    fn the_published_vector() {
        assert_eq!(
            of(r#"{"b":[true,null],"a":"x\"y"}"#),
            "sha256:f30e11011c10c5d0aa8bc6c5d5d3524c5674821d8e100c82b9c1de63bda884e8"
        );
    }

    #[test]
    fn order_and_space_do_not_count_but_structure_does() {
        assert_eq!(
            of(r#"{"a": {"y": 1, "x": 2}, "b": 3}"#),
            of(r#"{"b":3,"a":{"x":2,"y":1}}"#)
        );
        assert_ne!(of("[1,2]"), of("[2,1]"));
        assert_ne!(of("\"1\""), of("1"));
        assert_ne!(of("null"), of("{}"));
    }

    #[test]
    fn numbers_are_written_as_serde_json_does_unless_that_loses_digits() {
        for (text, expected) in [
            ("100", "100"),
            ("100.0", "100.0"),
            ("1.50", "1.5"),
            ("0.000", "0.0"),
            ("18446744073709551615", "18446744073709551615"),
            ("18446744073709551616", "18446744073709551616"),
            ("1e400", "1e400"),
            ("12345678901234567.89", "12345678901234567.89"),
            ("0.1000000000000000055", "0.1000000000000000055"),
        ] {
            assert_eq!(number_text(text), expected);
        }
        let large = format!("1{}", "0".repeat(300));
        // Pinned: another spelling would make stored fingerprints strangers.
        assert_eq!(number_text(&large), "1e+300");
    }

    proptest! {
        #[test]
        fn a_double_is_written_as_serde_json_writes_it(double in proptest::num::f64::NORMAL) {
            let text = Number::from_f64(double).unwrap().to_string();
            prop_assert_eq!(number_text(&text), text);
        }

        #[test]
        fn equal_numbers_are_equal_decimals(whole in 0i64..1_000_000, zeros in 0usize..8) {
            let text = format!("{whole}.{}", "0".repeat(zeros + 1));
            prop_assert_eq!(decimal(&text), decimal(&whole.to_string()));
        }
    }
}
