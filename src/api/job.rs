//! `job_*`.

use pgrx::datum::{Interval, TimestampWithTimeZone};
use pgrx::{Uuid, pg_extern};
use sayiir_rules::ids;
use sayiir_rules::lane::canonical_tags;
use sayiir_rules::retry::FailureKind;
use serde_json::Value;

use super::arguments::{
    POLICY_OPTIONS, elements, lease_us, leases, microseconds, options, policy, required, wait_us,
    within,
};
use crate::columns;
use crate::engine::complete::{Completion, Disposition};
use crate::engine::enqueue::MAX_LEASE_US;
use crate::engine::fail::Failure;
use crate::engine::{self, owner};
use crate::error::{Code, Error, OrRaise, Result};
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::{Session, connect};
use crate::pg::table::{Line, Table};
use crate::scope::{self, Use};
use crate::store;

fn inserted(id: Uuid, inserted: bool) -> Line {
    Line::Values(columns![id, if inserted { "inserted" } else { "existing" }])
}

fn request<'a>(
    session: &Session,
    task: Option<&'a str>,
    priority: Option<i32>,
    run_at: Option<TimestampWithTimeZone>,
    max_attempts: Option<i32>,
    tags: Option<Vec<Option<String>>>,
    trace_parent: Option<&'a str>,
    organization: Option<&str>,
    given: Option<Jsonb>,
    known: &[&str],
) -> Result<engine::enqueue::Request<'a>> {
    let fields = options(given, known)?;
    if let Some(trace_parent) = trace_parent {
        ids::check_id("trace_parent", trace_parent)?;
    }
    Ok(engine::enqueue::Request {
        organization: scope::owner(session, organization)?,
        task: required("task", task)?,
        priority,
        run_at: run_at.map(Instant::from),
        tags: canonical_tags(elements("tags", tags)?),
        trace_parent,
        policy: policy(&fields, max_attempts)?,
        options: Value::Object(fields),
    })
}

#[pg_extern(sql = false)]
fn job_enqueue(
    task: Option<&str>,
    payload: Option<Jsonb>,
    priority: Option<i32>,
    run_at: Option<TimestampWithTimeZone>,
    max_attempts: Option<i32>,
    idempotency_key: Option<&str>,
    resource_key: Option<&str>,
    tags: Option<Vec<Option<String>>>,
    trace_parent: Option<&str>,
    organization_id: Option<&str>,
    given: Option<Jsonb>,
) -> Table {
    connect(|session| {
        refuse_resource_key(resource_key)?;
        let payload = required("payload", payload)?;
        let request = request(
            session,
            task,
            priority,
            run_at,
            max_attempts,
            tags,
            trace_parent,
            organization_id,
            given,
            POLICY_OPTIONS,
        )?;
        engine::enqueue::enqueue(session, &request, payload, idempotency_key)
    })
    .map(|(id, new)| Table(vec![inserted(id, new)]))
    .or_raise()
}

/// Limits by resource are not in this version; taking the key and ignoring it would be a silent lie.
fn refuse_resource_key(resource_key: Option<&str>) -> Result<()> {
    match resource_key {
        None => Ok(()),
        Some(_) => Err(Error::new(
            Code::ArgumentInvalid,
            "resource_key is not supported in this version",
        )
        .with("argument", "resource_key")),
    }
}

#[pg_extern(sql = false)]
fn job_enqueue_many(
    task: Option<&str>,
    payloads: Option<Jsonb>,
    idempotency_keys: Option<Vec<Option<String>>>,
    priority: Option<i32>,
    run_at: Option<TimestampWithTimeZone>,
    organization_id: Option<&str>,
    given: Option<Jsonb>,
) -> Table {
    connect(|session| {
        let payloads = required("payloads", payloads)?;
        let mut known = POLICY_OPTIONS.to_vec();
        known.extend(["tags", "max_attempts", "trace_parent"]);
        let fields = options(given, &known)?;
        let tags = match fields.get("tags") {
            None => Vec::new(),
            Some(Value::Array(tags)) => tags
                .iter()
                .map(|tag| tag.as_str().map(|tag| Some(tag.to_owned())))
                .collect::<Option<Vec<_>>>()
                .ok_or_else(|| {
                    Error::new(Code::ArgumentInvalid, "tags is not an array of text")
                        .with("argument", "tags")
                })?,
            Some(_) => {
                return Err(
                    Error::new(Code::ArgumentInvalid, "tags is not an array of text")
                        .with("argument", "tags"),
                );
            }
        };
        let max_attempts = match fields.get("max_attempts") {
            None => None,
            Some(value) => Some(
                value
                    .as_i64()
                    .and_then(|n| i32::try_from(n).ok())
                    .ok_or_else(|| {
                        Error::new(Code::ArgumentInvalid, "max_attempts is not an integer")
                            .with("argument", "max_attempts")
                    })?,
            ),
        };
        let trace_parent = match fields.get("trace_parent") {
            None => None,
            Some(Value::String(text)) => Some(text.clone()),
            Some(_) => {
                return Err(
                    Error::new(Code::ArgumentInvalid, "trace_parent is not text")
                        .with("argument", "trace_parent"),
                );
            }
        };
        let request = request(
            session,
            task,
            priority,
            run_at,
            max_attempts,
            Some(tags),
            trace_parent.as_deref(),
            organization_id,
            given,
            &known,
        )?;
        engine::enqueue::enqueue_many(session, &request, payloads, idempotency_keys)
    })
    .map(|jobs| {
        Table(
            jobs.into_iter()
                .map(|(id, new)| inserted(id, new))
                .collect(),
        )
    })
    .or_raise()
}

#[pg_extern(sql = false)]
fn job_claim(
    worker: Option<&str>,
    tasks: Option<Vec<Option<String>>>,
    max_jobs: Option<i32>,
    lease: Option<Interval>,
    tags: Option<Vec<Option<String>>>,
    wait: Option<Interval>,
    organization_id: Option<&str>,
) -> Table {
    connect(|session| {
        let worker = required("worker", worker)?;
        ids::check_id("worker", worker)?;
        let mut tasks = elements("tasks", tasks)?;
        for task in &tasks {
            ids::check_name("task", task)?;
        }
        tasks.sort_unstable();
        tasks.dedup();
        let request = engine::claim::Request {
            scope: scope::resolve(session, organization_id, Use::Claim)?,
            worker,
            tasks: (!tasks.iter().any(|task| task == "*")).then_some(tasks),
            tags: canonical_tags(elements("tags", tags)?),
            max_jobs: within("max_jobs", max_jobs, 1, engine::claim::MAX_JOBS)?,
            lease_us: lease_us("lease", lease)?,
            wait_us: wait_us("wait", wait)?,
        };
        engine::claim::claim(session, &request)
    })
    .map(Table)
    .or_raise()
}

#[pg_extern(sql = false)]
fn job_heartbeat(
    job_id: Option<Uuid>,
    epoch: Option<i64>,
    lease: Option<Interval>,
    progress_done: Option<i64>,
    progress_total: Option<i64>,
    stage: Option<&str>,
) -> &'static str {
    connect(|session| {
        let request = engine::heartbeat::Request {
            ids: vec![required("job_id", job_id)?],
            epochs: vec![required("epoch", epoch)?],
            lease_us: lease_us("lease", lease)?,
            progress_done,
            progress_total,
            stage,
        };
        Ok(engine::heartbeat::heartbeat(session, request)?[0].as_str())
    })
    .or_raise()
}

#[pg_extern(sql = false)]
fn job_heartbeat_many(
    job_ids: Option<Vec<Option<Uuid>>>,
    epochs: Option<Vec<Option<i64>>>,
    lease: Option<Interval>,
) -> Table {
    connect(|session| {
        let (ids, epochs) = leases(job_ids, epochs)?;
        let request = engine::heartbeat::Request {
            ids: ids.clone(),
            epochs,
            lease_us: lease_us("lease", lease)?,
            progress_done: None,
            progress_total: None,
            stage: None,
        };
        let directives = engine::heartbeat::heartbeat(session, request)?;
        Ok(ids
            .into_iter()
            .zip(directives)
            .map(|(id, directive)| (id, directive.as_str()))
            .collect())
    })
    .map(lines)
    .or_raise()
}

fn lines(answers: Vec<(Uuid, &'static str)>) -> Table {
    Table(
        answers
            .into_iter()
            .map(|(id, word)| Line::Values(columns![id, word]))
            .collect(),
    )
}

#[pg_extern(sql = false)]
fn job_complete(job_id: Option<Uuid>, epoch: Option<i64>, output: Option<Jsonb>) -> &'static str {
    connect(|session| {
        let (id, epoch) = (required("job_id", job_id)?, required("epoch", epoch)?);
        match engine::complete::complete(session, &[Completion { id, epoch, output }])?[0] {
            Disposition::Completed | Disposition::Repeated { cancelled: false } => Ok("succeeded"),
            Disposition::Cancelled | Disposition::Repeated { cancelled: true } => Ok("cancelled"),
            Disposition::Busy => Err(owner::busy(id)),
            Disposition::Lost => Err(owner::lease_lost(id, epoch)),
        }
    })
    .or_raise()
}

#[pg_extern(sql = false)]
fn job_complete_many(
    job_ids: Option<Vec<Option<Uuid>>>,
    epochs: Option<Vec<Option<i64>>>,
    outputs: Option<Jsonb>,
) -> Table {
    connect(|session| {
        let (ids, epochs) = leases(job_ids, epochs)?;
        if let Some(outputs) = outputs
            && store::array::length(session, outputs) != Some(ids.len() as i32)
        {
            return Err(Error::new(
                Code::ArgumentInvalid,
                "outputs is not a JSON array with one element a job",
            )
            .with("argument", "outputs"));
        }
        let outputs = outputs.map(|outputs| store::array::elements(session, outputs));
        let batch: Vec<Completion> = ids
            .iter()
            .zip(epochs)
            .enumerate()
            .map(|(n, (id, epoch))| Completion {
                id: *id,
                epoch,
                output: outputs.as_ref().map(|outputs| outputs[n]),
            })
            .collect();
        let answers = engine::complete::complete(session, &batch)?;
        Ok(ids
            .into_iter()
            .zip(answers.into_iter().map(batch_word))
            .collect())
    })
    .map(lines)
    .or_raise()
}

fn batch_word(disposition: Disposition) -> &'static str {
    match disposition {
        Disposition::Completed => "completed",
        Disposition::Cancelled => "cancelled",
        Disposition::Repeated { .. } => "repeated",
        Disposition::Lost => "lost",
        Disposition::Busy => "busy",
    }
}

fn failure(
    id: Uuid,
    epoch: i64,
    error_code: Option<&str>,
    error_message: Option<&str>,
    kind: Option<&str>,
    retry_at: Option<TimestampWithTimeZone>,
) -> Result<Failure> {
    let error_code = required("error_code", error_code)?;
    ids::check_error_code("error_code", error_code)?;
    let kind = required("kind", kind)?;
    let retry_at = retry_at.map(Instant::from);
    if retry_at.is_some_and(|at| !at.is_finite()) {
        return Err(Error::new(Code::ArgumentOutOfRange, "retry_at is infinite")
            .with("argument", "retry_at"));
    }
    Ok(Failure {
        id,
        epoch,
        error_code: error_code.to_owned(),
        error_message: error_message.map(str::to_owned),
        kind: FailureKind::parse(kind).ok_or_else(|| {
            Error::new(
                Code::ArgumentInvalid,
                format!("kind is {kind:?}: it takes retryable, terminal, timeout or panicked"),
            )
            .with("argument", "kind")
        })?,
        retry_at,
    })
}

#[pg_extern(sql = false)]
fn job_fail(
    job_id: Option<Uuid>,
    epoch: Option<i64>,
    error_code: Option<&str>,
    error_message: Option<&str>,
    kind: Option<&str>,
    retry_at: Option<TimestampWithTimeZone>,
) -> Table {
    connect(|session| {
        let (id, epoch) = (required("job_id", job_id)?, required("epoch", epoch)?);
        let failure = failure(id, epoch, error_code, error_message, kind, retry_at)?;
        match engine::fail::fail(session, &[failure])?[0] {
            ("lost", _) => Err(owner::lease_lost(id, epoch)),
            ("busy", _) => Err(owner::busy(id)),
            answer => Ok(answer),
        }
    })
    .map(|(disposition, run_at)| Table::one(columns![disposition, run_at]))
    .or_raise()
}

#[pg_extern(sql = false)]
fn job_fail_many(
    job_ids: Option<Vec<Option<Uuid>>>,
    epochs: Option<Vec<Option<i64>>>,
    error_codes: Option<Vec<Option<String>>>,
    error_messages: Option<Vec<Option<String>>>,
    kind: Option<&str>,
    retry_at: Option<TimestampWithTimeZone>,
) -> Table {
    connect(|session| {
        let (ids, epochs) = leases(job_ids, epochs)?;
        let codes = elements("error_codes", error_codes)?;
        if codes.len() != ids.len()
            || error_messages
                .as_ref()
                .is_some_and(|messages| messages.len() != ids.len())
        {
            return Err(Error::new(
                Code::ArgumentInvalid,
                "error_codes and error_messages need one element a job",
            )
            .with("argument", "error_codes"));
        }
        let message = |n: usize| {
            error_messages
                .as_ref()
                .and_then(|messages| messages[n].as_deref())
        };
        let batch: Vec<Failure> = ids
            .iter()
            .zip(epochs)
            .enumerate()
            .map(|(n, (id, epoch))| {
                failure(*id, epoch, Some(&codes[n]), message(n), kind, retry_at)
            })
            .collect::<Result<_>>()?;
        let answers = engine::fail::fail(session, &batch)?;
        Ok((ids, answers))
    })
    .map(|(ids, answers)| {
        Table(
            ids.into_iter()
                .zip(answers)
                .map(|(id, (word, run_at))| Line::Values(columns![id, word, run_at]))
                .collect(),
        )
    })
    .or_raise()
}

#[pg_extern(sql = false)]
fn job_release(
    job_id: Option<Uuid>,
    epoch: Option<i64>,
    delay: Option<Interval>,
    reason: Option<&str>,
    ran: Option<bool>,
) -> &'static str {
    connect(|session| {
        engine::release_lease::release(
            session,
            &engine::release_lease::Request {
                id: required("job_id", job_id)?,
                epoch: required("epoch", epoch)?,
                delay_us: required("delay", microseconds("delay", delay, 0, 12 * MAX_LEASE_US)?)?,
                reason,
                ran: required("ran", ran)?,
            },
        )
    })
    .or_raise()
}

#[pg_extern(sql = false)]
fn job_cancel(job_id: Option<Uuid>, reason: Option<&str>, organization_id: Option<&str>) -> Table {
    connect(|session| {
        let id = required("job_id", job_id)?;
        let scope = scope::resolve(session, organization_id, Use::Other)?;
        let disposition = engine::cancel_job::cancel_job(session, &scope, id, reason)?;
        Ok((id, disposition))
    })
    .map(|(id, disposition)| Table::one(columns![id, disposition, None::<i32>, None::<Instant>]))
    .or_raise()
}

#[pg_extern(sql = false)]
fn job_requeue(
    job_id: Option<Uuid>,
    expected_run: Option<i32>,
    reset_checkpoints: Option<bool>,
    reason: Option<&str>,
    organization_id: Option<&str>,
) -> Table {
    connect(|session| {
        let id = required("job_id", job_id)?;
        let scope = scope::resolve(session, organization_id, Use::Other)?;
        let request = engine::requeue::Request {
            expected_run,
            reset_checkpoints: required("reset_checkpoints", reset_checkpoints)?,
            reason,
        };
        let (disposition, run_number) = engine::requeue::requeue(session, &scope, id, request)?;
        Ok((id, disposition, run_number))
    })
    .map(|(id, disposition, run_number)| {
        let run_at = (disposition == "requeued").then(Instant::now);
        Table::one(columns![id, disposition, run_number, run_at])
    })
    .or_raise()
}

#[pg_extern(sql = false)]
fn job_result(
    job_id: Option<Uuid>,
    timeout: Option<Interval>,
    organization_id: Option<&str>,
) -> Option<Jsonb> {
    connect(|session| {
        let scope = scope::resolve(session, organization_id, Use::Other)?;
        let output = engine::await_result::job_result(
            session,
            &scope,
            required("job_id", job_id)?,
            wait_us("timeout", timeout)?,
        )?;
        Ok(output.map(|output| output.copy_to(session.upper)))
    })
    .or_raise()
}

#[pg_extern(sql = false)]
fn job_reap(max_rows: Option<i32>) -> Table {
    connect(|session| engine::tick::reap(session, within("max_rows", max_rows, 1, 10_000)?))
        .map(lines)
        .or_raise()
}
