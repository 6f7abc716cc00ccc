//! Checks that many functions share. Every argument arrives as an Option: NULL gets its own error.

use pgrx::Uuid;
use pgrx::datum::Interval;
use serde_json::{Map, Value};

use crate::engine::enqueue::{MAX_LEASE_US, PolicyRequest};
use crate::error::{Code, Error, Result};
use crate::pg::clock::{interval_us, span_us};
use crate::pg::input;
use crate::pg::jsonb::Jsonb;

/// An argument that must not be NULL.
pub fn required<T>(name: &'static str, value: Option<T>) -> Result<T> {
    value.ok_or_else(|| {
        Error::new(Code::ArgumentNull, format!("{name} is NULL")).with("argument", name)
    })
}

fn out_of_range(name: &'static str, range: &str) -> Error {
    Error::new(
        Code::ArgumentOutOfRange,
        format!("{name} is out of range: {range}"),
    )
    .with("argument", name)
}

/// An interval in microseconds, within `least..=most`.
pub fn microseconds(
    name: &'static str,
    value: Option<Interval>,
    least: i64,
    most: i64,
) -> Result<Option<i64>> {
    let Some(value) = value else { return Ok(None) };
    match interval_us(&value) {
        Some(us) if (least..=most).contains(&us) => Ok(Some(us)),
        _ => Err(out_of_range(
            name,
            &format!("{} to {} seconds", least as f64 / 1e6, most as f64 / 1e6),
        )),
    }
}

/// A lease or timeout: 1 ms to 30 days.
pub fn lease_us(name: &'static str, value: Option<Interval>) -> Result<Option<i64>> {
    microseconds(name, value, 1_000, MAX_LEASE_US)
}

/// A time to wait inside the call; the engine bounds it above.
pub fn wait_us(name: &'static str, value: Option<Interval>) -> Result<i64> {
    let value = required(name, value)?;
    interval_us(&value)
        .filter(|us| *us >= 0)
        .ok_or_else(|| out_of_range(name, "0 to 10 seconds"))
}

/// An integer within `least..=most`.
pub fn within(name: &'static str, value: Option<i32>, least: i32, most: i32) -> Result<i32> {
    let value = required(name, value)?;
    if !(least..=most).contains(&value) {
        return Err(out_of_range(
            name,
            &format!("{value}, not {least} to {most}"),
        ));
    }
    Ok(value)
}

/// An array without NULL elements.
pub fn elements<T>(name: &'static str, value: Option<Vec<Option<T>>>) -> Result<Vec<T>> {
    required(name, value)?
        .into_iter()
        .map(|element| required(name, element))
        .collect()
}

/// Jobs and their epochs, in step and at most 1,000, each job once.
pub fn leases(
    ids: Option<Vec<Option<Uuid>>>,
    epochs: Option<Vec<Option<i64>>>,
) -> Result<(Vec<Uuid>, Vec<i64>)> {
    let ids = elements("job_ids", ids)?;
    let epochs = elements("epochs", epochs)?;
    let refuse = |problem: String| {
        Err(Error::new(Code::ArgumentInvalid, problem).with("argument", "job_ids"))
    };
    if ids.len() != epochs.len() {
        return refuse(format!("{} job_ids and {} epochs", ids.len(), epochs.len()));
    }
    if ids.len() > crate::engine::claim::MAX_JOBS as usize {
        return refuse(format!(
            "{} jobs are more than {}",
            ids.len(),
            crate::engine::claim::MAX_JOBS
        ));
    }
    let distinct: std::collections::HashSet<&Uuid> = ids.iter().collect();
    if distinct.len() != ids.len() {
        return refuse("a job is named twice".to_owned());
    }
    Ok((ids, epochs))
}

/// `options` as an object, its unknown keys refused.
pub fn options(value: Option<Jsonb>, known: &[&str]) -> Result<Map<String, Value>> {
    let Some(value) = value else {
        return Ok(Map::new());
    };
    let Some(Value::Object(fields)) = value.to_value() else {
        return Err(
            Error::new(Code::ArgumentInvalid, "options is not an object")
                .with("argument", "options"),
        );
    };
    match fields.keys().find(|key| !known.contains(&key.as_str())) {
        Some(unknown) => Err(Error::new(
            Code::OptionUnknown,
            format!("there is no option {unknown:?}"),
        )
        .with("option", unknown.as_str())
        .with("known", known.to_vec())),
        None => Ok(fields),
    }
}

/// Keys of `options` that make a job's policy.
pub const POLICY_OPTIONS: &[&str] = &["timeout", "lease", "deadline", "retry", "on_exhausted"];

/// The policy part of `options`.
pub fn policy(options: &Map<String, Value>, max_attempts: Option<i32>) -> Result<PolicyRequest> {
    let mut policy = PolicyRequest {
        max_attempts,
        timeout_us: duration(options, "timeout")?,
        lease_us: duration(options, "lease")?,
        deadline_us: duration(options, "deadline")?,
        ..PolicyRequest::default()
    };
    match options.get("on_exhausted").map(|value| value.as_str()) {
        None | Some(Some("fail")) => {}
        Some(Some("hold")) => policy.hold = true,
        Some(_) => return Err(invalid("on_exhausted", "takes \"fail\" or \"hold\"")),
    }
    if let Some(retry) = options.get("retry") {
        read_retry(retry, &mut policy)?;
    }
    Ok(policy)
}

/// `{"initial", "factor", "max", "jitter", "max_attempts"}`, every one optional.
pub fn read_retry(value: &Value, policy: &mut PolicyRequest) -> Result<()> {
    let Value::Object(retry) = value else {
        return Err(invalid("retry", "is not an object"));
    };
    const KNOWN: &[&str] = &["initial", "factor", "max", "jitter", "max_attempts"];
    if let Some(unknown) = retry.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        return Err(Error::new(
            Code::OptionUnknown,
            format!("retry has no field {unknown:?}"),
        )
        .with("known", KNOWN.to_vec()));
    }
    let number = |key: &'static str| match retry.get(key) {
        None => Ok(None),
        Some(value) => value
            .as_f64()
            .map(Some)
            .ok_or_else(|| invalid(key, "is not a number")),
    };
    policy.retry_initial_us = duration(retry, "initial")?;
    policy.retry_max_us = duration(retry, "max")?;
    policy.retry_factor = number("factor")?;
    policy.retry_jitter = number("jitter")?;
    if let Some(attempts) = retry.get("max_attempts") {
        let attempts = attempts
            .as_i64()
            .and_then(|n| i32::try_from(n).ok())
            .ok_or_else(|| invalid("max_attempts", "is not an integer"))?;
        policy.max_attempts = policy.max_attempts.or(Some(attempts));
    }
    Ok(())
}

/// A duration written as Postgres writes intervals: 0 < it ≤ 30 days (`initial` may be 0).
pub fn duration(fields: &Map<String, Value>, key: &'static str) -> Result<Option<i64>> {
    let Some(value) = fields.get(key) else {
        return Ok(None);
    };
    let text = value
        .as_str()
        .ok_or_else(|| invalid(key, "is not an interval written as text"))?;
    let span = input::try_interval(text).map_err(|message| invalid(key, &message))?;
    let least = if key == "initial" { 0 } else { 1_000 };
    span_us(span.months, span.days, span.micros)
        .filter(|us| (least..=MAX_LEASE_US).contains(us))
        .map(Some)
        .ok_or_else(|| out_of_range(key, "1 millisecond to 30 days"))
}

fn invalid(name: &'static str, problem: &str) -> Error {
    Error::new(Code::ArgumentInvalid, format!("{name} {problem}")).with("argument", name)
}
