//! The identity of a definition.

use serde_json::{Map, Number, Value, json};
use sha2::{Digest, Sha256};

/// The canonical form: what is written differently and means the same becomes the same.
///
/// Steps are sorted by key, `after` is sorted and expanded to `{"step", "on"}` (`release` is read as
/// `on`), numbers are normalised (1.0 → 1) and keep all their digits. Defaults are not filled in: a default that changes later must
/// not change what was stored. What is not a definition comes back with its numbers normalised.
pub fn canonical(definition: &Value) -> Value {
    let mut definition = normalised(definition);
    if let Some(Value::Array(steps)) = definition.get_mut("steps") {
        for step in steps.iter_mut() {
            if let Some(Value::Array(edges)) = step.get_mut("after") {
                edges.iter_mut().for_each(expand);
                edges.sort_by(|a, b| edge_order(a).cmp(&edge_order(b)));
            }
        }
        steps.sort_by(|a, b| text(a, "key").cmp(text(b, "key")));
    }
    definition
}

/// `"charge"` → `{"step": "charge", "on": "success"}`.
fn expand(edge: &mut Value) {
    match edge {
        Value::String(step) => *edge = json!({"step": step, "on": "success"}),
        Value::Object(fields) if !fields.contains_key("on") => {
            let on = fields.remove("release").unwrap_or_else(|| "success".into());
            fields.insert("on".into(), on);
        }
        _ => {}
    }
}

fn edge_order(edge: &Value) -> (&str, &str) {
    (text(edge, "step"), text(edge, "on"))
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or("")
}

fn normalised(value: &Value) -> Value {
    match value {
        Value::Number(number) => Value::Number(normal_number(number)),
        Value::Array(items) => items.iter().map(normalised).collect(),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(k, v)| (k.clone(), normalised(v)));
            Value::Object(fields.collect::<Map<_, _>>())
        }
        other => other.clone(),
    }
}

/// Digits and no more: no exponent, no zeros that say nothing, no minus before zero. It works on the text, because a double
/// would round long numbers.
fn normal_number(number: &Number) -> Number {
    let text = number.to_string();
    match plain(&text) {
        Some(plain) if plain != text => plain.parse().unwrap_or_else(|_| number.clone()),
        _ => number.clone(),
    }
}

/// `-0.10e2` → `-10`; `None` for an exponent beyond what jsonb holds.
fn plain(text: &str) -> Option<String> {
    const LARGEST: i64 = 131_072;
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i64>().ok()?),
        None => (text, 0),
    };
    if !(-LARGEST..=LARGEST).contains(&exponent) {
        return None;
    }
    let unsigned = mantissa.trim_start_matches('-');
    let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    let mut digits = format!("{whole}{fraction}");
    let mut point = whole.len() as i64 + exponent;
    if point < 0 {
        digits.insert_str(0, &"0".repeat(point.unsigned_abs() as usize));
        point = 0;
    }
    let point = point as usize;
    if digits.len() < point {
        digits.push_str(&"0".repeat(point - digits.len()));
    }
    let whole = digits[..point].trim_start_matches('0');
    let fraction = digits[point..].trim_end_matches('0');
    let sign = if mantissa.starts_with('-') && !(whole.is_empty() && fraction.is_empty()) {
        "-"
    } else {
        ""
    };
    let whole = if whole.is_empty() { "0" } else { whole };
    let dot = if fraction.is_empty() { "" } else { "." };
    Some(format!("{sign}{whole}{dot}{fraction}"))
}

/// The identity of a definition: SHA-256 of the compact JSON of its [`canonical`] form, object keys sorted.
///
/// The bytes are written here and not by a library, because a change of them in a later version would
/// make every stored definition a stranger.
pub fn hash(canonical: &Value) -> [u8; 32] {
    let mut text = String::new();
    write(canonical, &mut text);
    Sha256::digest(text.as_bytes()).into()
}

/// SHA-256 of a definition as somebody wrote it: equal ones are the same definition, different ones may be, too.
pub fn digest(written: &[u8]) -> [u8; 32] {
    Sha256::digest(written).into()
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => out.push_str(&number.to_string()),
        Value::String(text) => write_text(text, out),
        Value::Array(items) => write_list(out, '[', ']', items, write),
        Value::Object(fields) => {
            // Sorted already, unless some crate of the build turns on serde_json's preserve_order.
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_unstable_by_key(|(key, _)| key.as_str());
            write_list(out, '{', '}', fields, |(key, value), out| {
                write_text(key, out);
                out.push(':');
                write(value, out);
            });
        }
    }
}

fn write_list<T>(
    out: &mut String,
    open: char,
    close: char,
    items: impl IntoIterator<Item = T>,
    mut write: impl FnMut(T, &mut String),
) {
    out.push(open);
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write(item, out);
    }
    out.push(close);
}

fn write_text(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_means_the_same_becomes_the_same() {
        let a = json!({"name": "x", "priority": 50.0, "steps": [
            {"key": "b", "task": "t", "after": [{"step": "c", "release": "failure"}, "a"]},
            {"key": "c", "task": "t"},
            {"key": "a", "task": "t", "input": {"n": -0.0, "big": 1e19, "half": 0.5}}]});
        let b = json!({"name": "x", "priority": 50, "steps": [
            {"key": "a", "task": "t", "input": {"n": 0, "big": 10000000000000000000u64, "half": 0.5}},
            {"key": "b", "task": "t", "after": [{"step": "a"}, {"on": "failure", "step": "c"}]},
            {"key": "c", "task": "t"}]});
        assert_eq!(canonical(&a), canonical(&b));
        assert_eq!(
            canonical(&a),
            json!({"name": "x", "priority": 50, "steps": [
                {"key": "a", "task": "t", "input": {"n": 0, "big": 10000000000000000000u64, "half": 0.5}},
                {"key": "b", "task": "t", "after": [{"step": "a", "on": "success"}, {"step": "c", "on": "failure"}]},
                {"key": "c", "task": "t"}]})
        );
    }

    #[test]
    fn numbers_are_plain() {
        for (text, expected) in [
            ("0", "0"),
            ("-0", "0"),
            ("-0.00", "0"),
            ("0e5", "0"),
            ("1.0", "1"),
            ("1.50", "1.5"),
            ("-0.10e2", "-10"),
            (
                "12345678901234567890.12345678901234567890",
                "12345678901234567890.1234567890123456789",
            ),
            ("1e3", "1000"),
            ("1.5E+1", "15"),
            ("-1e-7", "-0.0000001"),
            ("120e-1", "12"),
            ("0.001e1", "0.01"),
        ] {
            assert_eq!(plain(text).as_deref(), Some(expected), "{text}");
        }
        assert_eq!(plain("1e131073"), None);
        assert_eq!(plain("1e99999999999999999999"), None);
        assert_eq!(
            plain(&format!("1e{}", 400)),
            Some(format!("1{}", "0".repeat(400)))
        );
    }

    #[test]
    fn defaults_are_not_filled_in() {
        let given = json!({"name": "x", "steps": [{"key": "a", "task": "t"}]});
        assert_eq!(canonical(&given), given);
        let with_default =
            json!({"name": "x", "steps": [{"key": "a", "task": "t", "join": "all"}]});
        assert_ne!(hash(&canonical(&given)), hash(&canonical(&with_default)));
    }

    /// These bytes are stored in databases: a failure here means that a new version loses its definitions.
    #[test]
    fn the_hash_never_changes() {
        let mut text = String::new();
        let value = json!({"b": [1, -2, 0.1, 1e300, 1e-7, true, null], "a": "é\n\"\\\u{7f}"});
        write(&canonical(&value), &mut text);
        let big = format!("1{}", "0".repeat(300));
        assert_eq!(
            text,
            format!(
                "{{\"a\":\"é\\u000a\\\"\\\\\u{7f}\",\"b\":[1,-2,0.1,{big},0.0000001,true,null]}}"
            )
        );
        let hex: String = hash(&json!({"a": 1}))
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        assert_eq!(
            hex,
            "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"
        );
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map("[a-z]{0,4}", inner, 0..6)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn canonical_is_idempotent_and_its_text_reads_back(value in any_json()) {
            let once = canonical(&value);
            prop_assert_eq!(&canonical(&once), &once);
            let mut text = String::new();
            write(&once, &mut text);
            let back: Value = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(canonical(&back), once);
        }
    }
}
