//! Which ids, keys and names are accepted.
//!
//! Everything a caller chooses becomes part of an index entry, a notification or a log line. So all of it
//! is bounded in bytes and free of control characters.

use std::fmt;

/// The most bytes of an id or a key.
pub const MAX_ID_BYTES: usize = 512;
/// The most bytes of a name, a step key or an error code.
pub const MAX_NAME_BYTES: usize = 200;

/// A refused value: what it was meant to be, and why it cannot be that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// What the value was meant to be, e.g. `workflow_id`.
    pub what: &'static str,
    /// Why it is refused; continues the sentence that `what` begins.
    pub problem: String,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.what, self.problem)
    }
}

impl std::error::Error for Invalid {}

/// An id or key (workflow, idempotency, active, event, resource key): 1 to 512 bytes, no control characters.
pub fn check_id(what: &'static str, s: &str) -> Result<(), Invalid> {
    check_text(what, s, MAX_ID_BYTES)
}

/// A name (workflow, task, event, tag, checkpoint): 1 to 200 bytes, no control characters.
pub fn check_name(what: &'static str, s: &str) -> Result<(), Invalid> {
    check_text(what, s, MAX_NAME_BYTES)
}

/// An error code that a worker reports: like a name, because codes of other systems (`E-42`,
/// `card.declined`) must pass unchanged.
pub fn check_error_code(what: &'static str, s: &str) -> Result<(), Invalid> {
    check_text(what, s, MAX_NAME_BYTES)
}

/// A step key: `[A-Za-z_][A-Za-z0-9_]*`, at most 200 bytes, so that a path can name it without quotes.
pub fn check_step_key(what: &'static str, s: &str) -> Result<(), Invalid> {
    check_text(what, s, MAX_NAME_BYTES)?;
    let starts_well = s.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if starts_well && s.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Ok(());
    }
    Err(Invalid {
        what,
        problem: "has only letters, digits and underscores, and does not begin with a digit".into(),
    })
}

fn check_text(what: &'static str, s: &str, max_bytes: usize) -> Result<(), Invalid> {
    let problem = if s.is_empty() {
        "is empty".to_owned()
    } else if s.len() > max_bytes {
        format!("has {} bytes, at most {max_bytes} are allowed", s.len())
    } else if let Some(at) = s.find(char::is_control) {
        format!("has a control character at byte {at}")
    } else {
        return Ok(());
    };
    Err(Invalid { what, problem })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Check = fn(&'static str, &str) -> Result<(), Invalid>;

    #[test]
    fn the_limits_are_exact() {
        let checks: [(Check, usize); 4] = [
            (check_id, 512),
            (check_name, 200),
            (check_error_code, 200),
            (check_step_key, 200),
        ];
        for (check, max) in checks {
            assert!(check("x", "").is_err());
            assert!(check("x", "a").is_ok());
            assert!(check("x", &"a".repeat(max)).is_ok());
            assert!(check("x", &"a".repeat(max + 1)).is_err());
        }
        // Bytes count, not characters.
        assert!(check_name("x", &"é".repeat(100)).is_ok());
        assert!(check_name("x", &"é".repeat(101)).is_err());
    }

    #[test]
    fn control_characters_are_refused_everywhere() {
        for bad in ["a\nb", "\0", "a\u{7f}", "a\u{85}b", "\t"] {
            assert!(check_id("x", bad).is_err(), "{bad:?}");
            assert!(check_name("x", bad).is_err(), "{bad:?}");
            assert!(check_error_code("x", bad).is_err(), "{bad:?}");
            assert!(check_step_key("x", bad).is_err(), "{bad:?}");
        }
        assert!(check_id("x", "order-42/réçu 日本").is_ok());
    }

    #[test]
    fn a_step_key_is_an_identifier() {
        for good in ["a", "_", "_9", "Charge_2", "A1"] {
            assert!(check_step_key("key", good).is_ok(), "{good}");
        }
        for bad in ["9a", "a-b", "a b", "é", "a.b", "$a", "a/b"] {
            assert!(check_step_key("key", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_message_is_a_sentence() {
        let refused = check_id("workflow_id", "").unwrap_err();
        assert_eq!(refused.to_string(), "workflow_id is empty");
    }
}
