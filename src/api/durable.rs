//! `job_*` of durable code: what a worker that holds a lease asks the job to remember.

use pgrx::datum::{Interval, TimestampWithTimeZone};
use pgrx::{Uuid, pg_extern};
use sayiir_rules::definition::Span;
use sayiir_rules::ids;
use sayiir_rules::lane::canonical_tags;
use serde_json::{Map, Value};

use super::arguments::{POLICY_OPTIONS, microseconds, options, policy, required};
use crate::engine::enqueue::MAX_LEASE_US;
use crate::engine::park::Answer;
use crate::engine::{self, await_event, await_job, continue_job, send_job_event};
use crate::error::{Code, Error, OrRaise, Result};
use crate::pg::clock::Instant;
use crate::pg::input;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::{Session, connect};
use crate::pg::table::{Line, Table};
use crate::scope::{self, Use};
use crate::{columns, store};

/// Longest timeout of a wait: 100 years.
const MAX_WAIT_US: i64 = 36_525 * 86_400_000_000;

#[pg_extern(sql = false)]
fn job_checkpoint(
    job_id: Option<Uuid>,
    epoch: Option<i64>,
    name: Option<&str>,
    value: Option<Jsonb>,
) {
    connect(|session| {
        let (id, epoch) = (required("job_id", job_id)?, required("epoch", epoch)?);
        let value = required("value", value)?;
        engine::checkpoint::set(session, id, epoch, required("name", name)?, value)
    })
    .or_raise()
}

#[pg_extern(sql = false)]
fn job_log(
    job_id: Option<Uuid>,
    epoch: Option<i64>,
    level: Option<&str>,
    message: Option<&str>,
    fields: Option<Jsonb>,
) {
    connect(|session| {
        let line = engine::log::Line {
            id: required("job_id", job_id)?,
            epoch: required("epoch", epoch)?,
            level: required("level", level)?,
            message: required("message", message)?,
            fields: required("fields", fields)?,
        };
        engine::log::log(session, &line)
    })
    .or_raise()
}

/// When a sleep ends: now + delay by the calendar, or a time.
fn until(
    session: &Session,
    delay: Option<Interval>,
    until: Option<TimestampWithTimeZone>,
    now: Instant,
) -> Result<Instant> {
    let refuse = |code, problem: &str| Err(Error::new(code, problem).with("argument", "delay"));
    let at = match (delay, until) {
        (Some(delay), None) => {
            microseconds("delay", Some(delay), 0, MAX_WAIT_US)?;
            let span = Span {
                months: delay.months(),
                days: delay.days(),
                micros: delay.micros(),
            };
            store::step::add_span(session, now, span)
        }
        (None, Some(until)) => Some(Instant::from(until)),
        _ => return refuse(Code::ArgumentInvalid, "give delay or until, and not both"),
    };
    match at.filter(|at| at.is_finite()) {
        Some(at) => Ok(at),
        None => refuse(Code::ArgumentOutOfRange, "the sleep has no end"),
    }
}

#[pg_extern(sql = false)]
fn job_sleep(
    job_id: Option<Uuid>,
    epoch: Option<i64>,
    name: Option<&str>,
    delay: Option<Interval>,
    until_: Option<TimestampWithTimeZone>,
) -> &'static str {
    connect(|session| {
        let (id, epoch) = (required("job_id", job_id)?, required("epoch", epoch)?);
        let name = required("name", name)?;
        let elapsed = engine::sleep::sleep(session, id, epoch, name, |now| {
            until(session, delay, until_, now)
        })?;
        Ok(if elapsed { "elapsed" } else { "parked" })
    })
    .or_raise()
}

fn kept(session: &Session, value: Option<Jsonb>) -> Option<Jsonb> {
    value.map(|value| value.copy_to(session.upper))
}

#[pg_extern(sql = false)]
fn job_await_event(
    job_id: Option<Uuid>,
    epoch: Option<i64>,
    name: Option<&str>,
    event: Option<&str>,
    timeout: Option<Interval>,
) -> Table {
    connect(|session| {
        let name = required("name", name)?;
        let request = await_event::Request {
            id: required("job_id", job_id)?,
            epoch: required("epoch", epoch)?,
            name,
            event: event.unwrap_or(name),
            timeout_us: microseconds("timeout", timeout, 0, MAX_WAIT_US)?,
        };
        Ok(match await_event::await_event(session, &request)? {
            Answer::Parked => Table::one(columns!["parked", None::<Jsonb>]),
            Answer::Known(known) => {
                Table::one(columns![known.disposition, kept(session, known.payload)])
            }
        })
    })
    .or_raise()
}

#[pg_extern(sql = false)]
fn job_await_job(
    job_id: Option<Uuid>,
    epoch: Option<i64>,
    name: Option<&str>,
    child_id: Option<Uuid>,
    timeout: Option<Interval>,
) -> Table {
    connect(|session| {
        let request = await_job::Request {
            id: required("job_id", job_id)?,
            epoch: required("epoch", epoch)?,
            name: required("name", name)?,
            child: required("child_id", child_id)?,
            timeout_us: microseconds("timeout", timeout, 0, MAX_WAIT_US)?,
        };
        Ok(match await_job::await_job(session, &request)? {
            Answer::Parked => Table::one(columns!["parked", None::<Jsonb>, None::<Jsonb>]),
            Answer::Known(known) => Table::one(columns![
                known.disposition,
                kept(session, known.output),
                kept(session, known.error)
            ]),
        })
    })
    .or_raise()
}

/// Options of `job_spawn` besides those of a policy.
const SPAWN_OPTIONS: &[&str] = &["priority", "run_at", "max_attempts", "tags", "trace_parent"];

fn refused(option: &'static str, what: &str) -> Error {
    Error::new(Code::ArgumentInvalid, format!("{option} {what}")).with("argument", option)
}

fn integer(fields: &Map<String, Value>, key: &'static str) -> Result<Option<i32>> {
    fields
        .get(key)
        .map(|value| {
            value
                .as_i64()
                .and_then(|n| i32::try_from(n).ok())
                .ok_or_else(|| refused(key, "is not an integer"))
        })
        .transpose()
}

fn text<'a>(fields: &'a Map<String, Value>, key: &'static str) -> Result<Option<&'a str>> {
    fields
        .get(key)
        .map(|value| value.as_str().ok_or_else(|| refused(key, "is not text")))
        .transpose()
}

fn tags(fields: &Map<String, Value>) -> Result<Vec<String>> {
    let not_tags = || refused("tags", "is not an array of text");
    let Some(value) = fields.get("tags") else {
        return Ok(Vec::new());
    };
    value
        .as_array()
        .ok_or_else(not_tags)?
        .iter()
        .map(|tag| tag.as_str().map(str::to_owned).ok_or_else(not_tags))
        .collect()
}

#[pg_extern(sql = false)]
fn job_spawn(
    job_id: Option<Uuid>,
    epoch: Option<i64>,
    name: Option<&str>,
    task: Option<&str>,
    payload: Option<Jsonb>,
    given: Option<Jsonb>,
) -> Table {
    connect(|session| {
        let (id, epoch) = (required("job_id", job_id)?, required("epoch", epoch)?);
        let fields = options(given, &[POLICY_OPTIONS, SPAWN_OPTIONS].concat())?;
        let run_at = text(&fields, "run_at")?
            .map(|at| input::try_timestamp(at).map_err(|message| refused("run_at", &message)))
            .transpose()?;
        let trace_parent = text(&fields, "trace_parent")?;
        if let Some(trace_parent) = trace_parent {
            ids::check_id("trace_parent", trace_parent)?;
        }
        let request = engine::enqueue::Request {
            organization: None,
            task: required("task", task)?,
            priority: integer(&fields, "priority")?,
            run_at,
            tags: canonical_tags(tags(&fields)?),
            trace_parent,
            policy: policy(&fields, integer(&fields, "max_attempts")?)?,
            options: Value::Null,
        };
        let name = required("name", name)?;
        let payload = required("payload", payload)?;
        engine::spawn::spawn(session, id, epoch, name, payload, request)
    })
    .map(|(child, new)| {
        let disposition = if new { "inserted" } else { "existing" };
        Table(vec![Line::Values(columns![child, disposition])])
    })
    .or_raise()
}

#[pg_extern(sql = false)]
fn job_continue(
    job_id: Option<Uuid>,
    epoch: Option<i64>,
    delay: Option<Interval>,
    checkpoints: Option<Jsonb>,
) -> Table {
    connect(|session| {
        let id = required("job_id", job_id)?;
        let request = continue_job::Request {
            id,
            epoch: required("epoch", epoch)?,
            delay_us: required("delay", microseconds("delay", delay, 0, 12 * MAX_LEASE_US)?)?,
            checkpoints,
        };
        let next = continue_job::continue_job(session, &request)?;
        Ok(Table::one(match next {
            Some((run_number, at)) => columns![id, "continued", run_number, at],
            None => columns![id, "cancelled", None::<i32>, None::<Instant>],
        }))
    })
    .or_raise()
}

#[pg_extern(sql = false)]
fn job_send_event(
    job_id: Option<Uuid>,
    name: Option<&str>,
    payload: Option<Jsonb>,
    event_key: Option<&str>,
    organization_id: Option<&str>,
) -> &'static str {
    connect(|session| {
        let request = send_job_event::Request {
            scope: scope::resolve(session, organization_id, Use::Other)?,
            id: required("job_id", job_id)?,
            name: required("name", name)?,
            payload,
            event_key,
        };
        Ok(send_job_event::send(session, &request)?.as_str())
    })
    .or_raise()
}
