//! What is known about an effect before its first attempt, and about a failed attempt.

use serde_json::{Map, Value, json};

use super::Kind;
use crate::ids::Invalid;

/// The only version of the contract's form.
pub const FORMAT_VERSION: u64 = 1;

/// Whether the outside system can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verification {
    None,
    /// It reads its own writes.
    Authoritative,
    /// "Not applied" counts only this long after the attempt ended.
    EventuallyConsistent {
        secs: u64,
        nanos: u32,
    },
}

/// The assumptions recorded with an effect; they never change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contract {
    pub format_version: u64,
    pub kind: Kind,
    /// The outside system recognises a repeated idempotency key.
    pub remote_idempotency: bool,
    pub verification: Verification,
    pub handler_version: String,
    pub adapter: Option<String>,
    /// A person has to agree before the first attempt.
    pub require_approval: bool,
    pub automatic_retry: bool,
    /// Over the whole life of the effect, the first included.
    pub max_attempts: u32,
}

/// What an unknown outcome leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownPlan {
    /// Ask the outside system.
    Verify,
    /// Do it again: that cannot apply it twice.
    Reexecute,
    /// A person has to find out.
    Escalate,
}

const KEYS: [&str; 9] = [
    "format_version",
    "kind",
    "remote_idempotency",
    "verification",
    "handler_version",
    "adapter",
    "require_approval",
    "automatic_retry",
    "max_attempts",
];

fn invalid(problem: impl Into<String>) -> Invalid {
    Invalid {
        what: "execution_contract",
        problem: problem.into(),
    }
}

impl Contract {
    /// What holds when nothing else was said.
    pub fn of_kind(kind: Kind) -> Self {
        Self {
            format_version: FORMAT_VERSION,
            kind,
            remote_idempotency: false,
            verification: Verification::None,
            handler_version: "1".into(),
            adapter: None,
            require_approval: false,
            automatic_retry: true,
            max_attempts: 5,
        }
    }

    /// Reads a whole contract: every key but `adapter` has to be there, and no other.
    pub fn read(value: &Value) -> Result<Self, Invalid> {
        let fields = fields(value)?;
        if let Some(missing) = KEYS
            .iter()
            .find(|key| **key != "adapter" && !fields.contains_key(**key))
        {
            return Err(invalid(format!("has no {missing}")));
        }
        Self::of_kind(Kind::Read).with(fields)
    }

    /// Reads what a caller says about an effect of this kind; the rest is as in [`Contract::of_kind`].
    pub fn read_partial(value: &Value, kind: Kind) -> Result<Self, Invalid> {
        let contract = Self::of_kind(kind).with(fields(value)?)?;
        if contract.kind != kind {
            return Err(invalid(format!("is for {}, not {kind}", contract.kind)));
        }
        if contract.format_version != FORMAT_VERSION {
            return Err(invalid("has another format_version than 1"));
        }
        Ok(contract)
    }

    fn with(mut self, fields: &Map<String, Value>) -> Result<Self, Invalid> {
        for (key, value) in fields {
            let wrong = || invalid(format!("has {key}: {value}"));
            let boolean = || value.as_bool().ok_or_else(wrong);
            let text = || value.as_str().map(str::to_owned).ok_or_else(wrong);
            let number = || value.as_u64().ok_or_else(wrong);
            match key.as_str() {
                "format_version" => {
                    self.format_version = u64::from(u32::try_from(number()?).map_err(|_| wrong())?);
                }
                "kind" => self.kind = Kind::parse(&text()?).ok_or_else(wrong)?,
                "remote_idempotency" => self.remote_idempotency = boolean()?,
                "verification" => self.verification = verification(value).ok_or_else(wrong)?,
                "handler_version" => self.handler_version = text()?,
                "adapter" if value.is_null() => self.adapter = None,
                "adapter" => self.adapter = Some(text()?),
                "require_approval" => self.require_approval = boolean()?,
                "automatic_retry" => self.automatic_retry = boolean()?,
                "max_attempts" => {
                    self.max_attempts = u32::try_from(number()?).map_err(|_| wrong())?;
                }
                _ => return Err(invalid(format!("has an unknown key {key:?}"))),
            }
        }
        Ok(self)
    }

    /// The stored form: every key, in the shape that clients of the ledger decode.
    pub fn to_value(&self) -> Value {
        json!({
            "format_version": self.format_version,
            "kind": self.kind.as_str(),
            "remote_idempotency": self.remote_idempotency,
            "verification": match self.verification {
                Verification::None => json!({"mode": "none"}),
                Verification::Authoritative => json!({"mode": "authoritative"}),
                Verification::EventuallyConsistent { secs, nanos } => json!({
                    "mode": "eventually_consistent",
                    "settle": {"secs": secs, "nanos": nanos},
                }),
            },
            "handler_version": self.handler_version,
            "adapter": self.adapter,
            "require_approval": self.require_approval,
            "automatic_retry": self.automatic_retry,
            "max_attempts": self.max_attempts,
        })
    }

    /// Verifying comes first even when doing it again would be safe: it repeats nothing.
    pub fn unknown_plan(&self) -> UnknownPlan {
        if self.verification != Verification::None {
            UnknownPlan::Verify
        } else if self.kind.is_naturally_idempotent() || self.remote_idempotency {
            UnknownPlan::Reexecute
        } else {
            UnknownPlan::Escalate
        }
    }

    /// Whether another attempt may follow by itself after so many.
    pub fn allows_another(&self, attempts: i32) -> bool {
        self.automatic_retry && i64::from(attempts) < i64::from(self.max_attempts)
    }
}

fn fields(value: &Value) -> Result<&Map<String, Value>, Invalid> {
    value.as_object().ok_or_else(|| invalid("is not an object"))
}

fn verification(value: &Value) -> Option<Verification> {
    let fields = value.as_object()?;
    match fields.get("mode")?.as_str()? {
        "none" => Some(Verification::None),
        "authoritative" => Some(Verification::Authoritative),
        "eventually_consistent" => {
            let (secs, nanos) = duration(fields.get("settle")?)?;
            Some(Verification::EventuallyConsistent { secs, nanos })
        }
        _ => None,
    }
}

/// `{"secs", "nanos"}`.
fn duration(value: &Value) -> Option<(u64, u32)> {
    let nanos = u32::try_from(value.get("nanos")?.as_u64()?).ok()?;
    Some((value.get("secs")?.as_u64()?, nanos)).filter(|_| nanos < 1_000_000_000)
}

words! {
    /// What an attempt says about its failure. This, not the mere failure, decides what follows.
    pub enum FailureClass {
        /// Not applied; doing it again may help.
        Transient = "transient",
        /// Not applied; doing it again does not help.
        Permanent = "permanent",
        /// It may have been applied.
        Ambiguous = "ambiguous",
        /// Not applied; the outside system asks for patience.
        RateLimited = "rate_limited",
        Authentication = "authentication",
        Authorization = "authorization",
        Validation = "validation",
    }
}

/// What a failure says about the effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Not applied; try again if the contract allows.
    Retry,
    /// Not applied; stop.
    Fail,
    /// It may have been applied.
    Unknown,
}

impl FailureClass {
    pub fn disposition(self) -> Disposition {
        match self {
            Self::Transient | Self::RateLimited => Disposition::Retry,
            Self::Ambiguous => Disposition::Unknown,
            Self::Permanent | Self::Authentication | Self::Authorization | Self::Validation => {
                Disposition::Fail
            }
        }
    }
}

/// A failure as the ledger stores it; a person's note has no class.
pub struct Failure<'a> {
    pub class: Option<FailureClass>,
    pub message: &'a str,
}

impl Failure<'_> {
    pub fn to_value(&self) -> Value {
        let class = self.class.map(|class| match class {
            FailureClass::RateLimited => json!({"class": class.as_str(), "retry_after": null}),
            _ => json!({"class": class.as_str()}),
        });
        json!({"class": class, "message": self.message})
    }
}

/// Refuses an error document that clients of the ledger could not decode.
pub fn check_error(value: &Value) -> Result<(), Invalid> {
    let wrong = || Invalid {
        what: "error",
        problem: "is not {\"class\": null or {\"class\": …}, \"message\": text}".into(),
    };
    let fields = value.as_object().ok_or_else(wrong)?;
    if !fields.get("message").is_some_and(Value::is_string) {
        return Err(wrong());
    }
    let class = match fields.get("class") {
        None | Some(Value::Null) => return Ok(()),
        Some(class) => class.get("class").and_then(Value::as_str),
    };
    match class.and_then(FailureClass::parse) {
        Some(FailureClass::RateLimited) => match value["class"].get("retry_after") {
            None | Some(Value::Null) => Ok(()),
            Some(after) => duration(after).map(|_| ()).ok_or_else(wrong),
        },
        Some(_) => Ok(()),
        None => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole() -> Value {
        json!({
            "format_version": 1, "kind": "irreversible_write", "remote_idempotency": true,
            "verification": {"mode": "eventually_consistent", "settle": {"secs": 17, "nanos": 0}},
            "handler_version": "v2", "adapter": "stripe", "require_approval": false, "automatic_retry": true,
            "max_attempts": 7,
        })
    }

    #[test]
    fn a_whole_contract_round_trips() {
        let contract = Contract::read(&whole()).unwrap();
        assert_eq!(contract.to_value(), whole());
        let mut without_adapter = whole();
        without_adapter.as_object_mut().unwrap().remove("adapter");
        assert_eq!(Contract::read(&without_adapter).unwrap().adapter, None);
        for kind in Kind::ALL {
            let default = Contract::of_kind(*kind);
            assert_eq!(Contract::read(&default.to_value()).unwrap(), default);
        }
    }

    #[test]
    fn what_a_client_could_not_decode_is_refused() {
        for key in KEYS {
            let mut one = whole();
            if key != "adapter" {
                one.as_object_mut().unwrap().remove(key);
                assert!(Contract::read(&one).is_err(), "without {key}");
            }
            let mut one = whole();
            one[key] = json!(["?"]);
            assert!(Contract::read(&one).is_err(), "{key}: [\"?\"]");
        }
        let mut one = whole();
        one["extra"] = json!(1);
        assert!(Contract::read(&one).unwrap_err().problem.contains("extra"));
        for bad in [json!(null), json!([]), json!("{}")] {
            assert!(Contract::read(&bad).is_err());
        }
        for (key, value) in [
            ("max_attempts", json!(-1)),
            ("max_attempts", json!(u64::from(u32::MAX) + 1)),
            ("verification", json!({"mode": "eventually_consistent"})),
            (
                "verification",
                json!({"mode": "eventually_consistent", "settle": {"secs": 1, "nanos": 1_000_000_000}}),
            ),
        ] {
            let mut one = whole();
            one[key] = value;
            assert!(Contract::read(&one).is_err(), "{key}");
        }
    }

    #[test]
    fn a_partial_contract_is_filled_in() {
        let some = json!({"max_attempts": 2, "remote_idempotency": true});
        let contract = Contract::read_partial(&some, Kind::ReversibleWrite).unwrap();
        let expected = Contract {
            max_attempts: 2,
            remote_idempotency: true,
            ..Contract::of_kind(Kind::ReversibleWrite)
        };
        assert_eq!(contract, expected);
        for bad in [
            json!({"kind": "read"}),
            json!({"format_version": 2}),
            json!({"nope": 1}),
        ] {
            assert!(
                Contract::read_partial(&bad, Kind::IdempotentWrite).is_err(),
                "{bad}"
            );
        }
    }

    #[test]
    fn the_plan_for_an_unknown_outcome() {
        for &kind in Kind::ALL {
            for remote_idempotency in [false, true] {
                for verification in [
                    Verification::None,
                    Verification::Authoritative,
                    Verification::EventuallyConsistent { secs: 1, nanos: 0 },
                ] {
                    let contract = Contract {
                        remote_idempotency,
                        verification,
                        ..Contract::of_kind(kind)
                    };
                    let safe =
                        remote_idempotency || matches!(kind, Kind::Read | Kind::IdempotentWrite);
                    let expected = match (verification, safe) {
                        (Verification::None, true) => UnknownPlan::Reexecute,
                        (Verification::None, false) => UnknownPlan::Escalate,
                        _ => UnknownPlan::Verify,
                    };
                    assert_eq!(contract.unknown_plan(), expected, "{contract:?}");
                }
            }
        }
    }

    #[test]
    fn errors_have_one_shape() {
        for &class in FailureClass::ALL {
            let error = Failure {
                class: Some(class),
                message: "x",
            };
            assert!(check_error(&error.to_value()).is_ok(), "{class}");
        }
        let note = Failure {
            class: None,
            message: "x",
        };
        assert_eq!(note.to_value(), json!({"class": null, "message": "x"}));
        let limited = json!({"class": {"class": "rate_limited", "retry_after": {"secs": 9, "nanos": 0}}, "message": "x"});
        assert!(check_error(&limited).is_ok());
        for bad in [
            json!({"message": 1}),
            json!({"class": "transient", "message": "x"}),
            json!({"class": {"class": "odd"}, "message": "x"}),
            json!({"class": {"class": "rate_limited", "retry_after": 9}, "message": "x"}),
            json!("x"),
            json!(null),
        ] {
            assert!(check_error(&bad).is_err(), "{bad}");
        }
    }
}
