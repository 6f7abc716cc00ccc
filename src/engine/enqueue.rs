//! Enqueue: a stand-alone job, claimable now or at `run_at`.

use pgrx::Uuid;
use sayiir_rules::{ids, lane, retry::RetryPolicy};
use serde_json::json;

use crate::engine::owner;
use crate::error::{Code, Error, Result};
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::Session;
use crate::pg::xact;
use crate::runtime::wake;
use crate::store;
use crate::store::job::{NewJob, Policy};

/// Default of `lease`: how long a worker may be silent.
pub const LEASE_US: i64 = 60_000_000;
/// Range of `lease` and `timeout`.
pub const MAX_LEASE_US: i64 = 30 * 86_400_000_000;
/// Most jobs of one bulk enqueue.
pub const MAX_BATCH: i32 = 100_000;
/// Largest payload, output or input, in bytes.
pub const MAX_PAYLOAD: usize = 64 << 20;

/// What a call says of a job's policy; None = the task's, else the engine's default.
#[derive(Clone, Default)]
pub struct PolicyRequest {
    pub max_attempts: Option<i32>,
    pub retry_initial_us: Option<i64>,
    pub retry_factor: Option<f64>,
    pub retry_max_us: Option<i64>,
    pub retry_jitter: Option<f64>,
    pub hold: bool,
    pub lease_us: Option<i64>,
    pub timeout_us: Option<i64>,
    /// From now.
    pub deadline_us: Option<i64>,
}

/// One enqueue, checked.
pub struct Request<'a> {
    pub organization: Option<String>,
    pub task: &'a str,
    pub priority: Option<i32>,
    pub run_at: Option<Instant>,
    pub tags: Vec<String>,
    pub trace_parent: Option<&'a str>,
    pub policy: PolicyRequest,
    /// The options as the caller wrote them, for comparing keyed requests.
    pub options: serde_json::Value,
}

/// The policy of a job: the call's, else the task's, else the engine's default.
pub fn policy(request: &PolicyRequest, task: &store::task::Task, now: Instant) -> Result<Policy> {
    let default = RetryPolicy::default();
    let retry = RetryPolicy {
        max_attempts: request
            .max_attempts
            .or(task.max_attempts)
            .unwrap_or(default.max_attempts),
        initial_us: request
            .retry_initial_us
            .or(task.retry_initial_us)
            .unwrap_or(default.initial_us),
        factor: request
            .retry_factor
            .or(task.retry_factor)
            .unwrap_or(default.factor),
        max_us: request
            .retry_max_us
            .or(task.retry_max_us)
            .unwrap_or(default.max_us),
        jitter: request
            .retry_jitter
            .or(task.retry_jitter)
            .unwrap_or(default.jitter),
    };
    retry.check()?;
    Ok(Policy {
        retry,
        hold: request.hold,
        lease_us: request.lease_us.or(task.lease_us).unwrap_or(LEASE_US),
        timeout_us: request.timeout_us.or(task.timeout_us),
        deadline: request.deadline_us.map(|us| now.plus_us(us)),
    })
}

/// The task's definition; refused under `sayiir.strict_tasks` when it is unknown or disabled.
pub fn task(
    session: &Session,
    organization: Option<&str>,
    name: &str,
) -> Result<store::task::Task> {
    ids::check_name("task", name)?;
    let strict = crate::settings::STRICT_TASKS.get();
    match store::task::find(session, organization, name) {
        Some(task) if strict && !task.enabled => Err(Error::new(
            Code::TaskDisabled,
            format!("task {name:?} is disabled"),
        )
        .with("task", name)),
        Some(task) => Ok(task),
        None if strict => Err(
            Error::new(Code::TaskNotFound, format!("there is no task {name:?}")).with("task", name),
        ),
        None => Ok(store::task::Task {
            enabled: true,
            ..Default::default()
        }),
    }
}

/// A lane for (task, priority, tags), and the checks of all three.
pub fn lane_of(
    session: &Session,
    organization: Option<&str>,
    task: &str,
    priority: i32,
    tags: &[String],
) -> Result<i64> {
    if !lane::PRIORITIES.contains(&priority) {
        return Err(Error::new(
            Code::ArgumentOutOfRange,
            format!("priority is {priority}, not 0 to 99"),
        )
        .with("argument", "priority"));
    }
    for tag in tags {
        ids::check_name("tag", tag)?;
    }
    Ok(store::lane::of_job(
        session,
        organization,
        task,
        priority,
        tags,
    ))
}

/// One job. Answers its id and whether it was inserted.
pub fn enqueue(
    session: &Session,
    request: &Request,
    payload: Jsonb,
    key: Option<&str>,
) -> Result<(Uuid, bool)> {
    check_size("payload", payload)?;
    if let Some(key) = key {
        ids::check_id("idempotency_key", key)?;
        owner::require_read_committed("job_enqueue with an idempotency_key")?;
    }
    let now = Instant::now();
    xact::assign_xid();
    let prepared = prepare(session, request, now, key.is_some())?;
    loop {
        let id = new_id();
        if store::job::insert(session, &prepared, id, payload, key) {
            wake(request.task, prepared.run_at);
            return Ok((id, true));
        }
        // The key is taken: whoever held it has committed. If it has been deleted since, the key is free again.
        let key = key.expect("only a key conflicts");
        let wanted = prepared.request.expect("a keyed job keeps its request");
        if let Some(found) = existing(session, request, key, payload, wanted)? {
            return Ok((found, false));
        }
    }
}

/// A batch in the order of the payloads: (id, inserted).
pub fn enqueue_many(
    session: &Session,
    request: &Request,
    payloads: Jsonb,
    keys: Option<Vec<Option<String>>>,
) -> Result<Vec<(Uuid, bool)>> {
    let count = store::array::length(session, payloads).ok_or_else(|| {
        Error::new(Code::ArgumentInvalid, "payloads is not a JSON array")
            .with("argument", "payloads")
    })?;
    if count > MAX_BATCH {
        return Err(Error::new(
            Code::ArgumentTooLarge,
            format!("{count} payloads are more than {MAX_BATCH}"),
        )
        .with("argument", "payloads"));
    }
    if let Some(keys) = &keys {
        owner::require_read_committed("job_enqueue_many with idempotency_keys")?;
        if keys.len() != count as usize {
            return Err(Error::new(
                Code::ArgumentInvalid,
                format!("{} idempotency_keys for {count} payloads", keys.len()),
            )
            .with("argument", "idempotency_keys"));
        }
        for key in keys.iter().flatten() {
            ids::check_id("idempotency_key", key)?;
        }
    }
    if count == 0 {
        return Ok(Vec::new());
    }
    check_size("payloads", payloads)?;
    let now = Instant::now();
    xact::assign_xid();
    let prepared = prepare(session, request, now, keys.is_some())?;
    let ids: Vec<Uuid> = (0..count).map(|_| new_id()).collect();
    let inserted = store::job::insert_many(session, &prepared, ids.clone(), payloads, keys.clone());
    if !inserted.is_empty() {
        wake(request.task, prepared.run_at);
    }
    if inserted.len() == ids.len() {
        return Ok(ids.into_iter().map(|id| (id, true)).collect());
    }
    let inserted: std::collections::HashSet<Uuid> = inserted.into_iter().collect();
    let keys = keys.expect("only a key conflicts");
    let mut answers = Vec::with_capacity(ids.len());
    for (n, id) in ids.into_iter().enumerate() {
        if inserted.contains(&id) {
            answers.push((id, true));
            continue;
        }
        // Taken by an earlier element of this batch or by another transaction.
        let payload = store::array::element(session, payloads, n as i32);
        answers.push(enqueue(session, request, payload, keys[n].as_deref())?);
    }
    Ok(answers)
}

/// A checked job with its lane and policy.
pub fn prepare<'a>(
    session: &Session,
    request: &'a Request,
    now: Instant,
    keyed: bool,
) -> Result<NewJob<'a>> {
    if let Some(run_at) = request.run_at
        && !run_at.is_finite()
    {
        return Err(
            Error::new(Code::ArgumentOutOfRange, "run_at is infinite").with("argument", "run_at")
        );
    }
    let organization = request.organization.as_deref();
    let task = task(session, organization, request.task)?;
    let priority = request
        .priority
        .or(task.priority)
        .unwrap_or(lane::DEFAULT_PRIORITY);
    let lane = lane_of(session, organization, request.task, priority, &request.tags)?;
    Ok(NewJob {
        organization,
        task: request.task,
        lane,
        policy: policy(&request.policy, &task, now)?,
        // What is due already is claimable now, never a timer.
        run_at: request.run_at.filter(|run_at| *run_at > now),
        trace_parent: request.trace_parent,
        request: keyed.then(|| {
            Jsonb::from_value(&json!({
                "priority": request.priority,
                "run_at": request.run_at.map(|at| at.0),
                "max_attempts": request.policy.max_attempts,
                "tags": request.tags,
                "options": request.options,
            }))
        }),
        parent: None,
        now,
    })
}

fn existing(
    session: &Session,
    request: &Request,
    key: &str,
    payload: Jsonb,
    wanted: Jsonb,
) -> Result<Option<Uuid>> {
    match store::job::by_key(
        session,
        request.organization.as_deref(),
        request.task,
        key,
        payload,
        wanted,
    ) {
        Some((id, true)) => Ok(Some(id)),
        Some((id, false)) => Err(Error::new(
            Code::JobIdempotencyConflict,
            format!(
                "idempotency_key {key:?} of task {:?} was used for another request",
                request.task
            ),
        )
        .with("job_id", id.to_string())
        .with("idempotency_key", key)),
        None => Ok(None),
    }
}

/// Tells of a new job.
pub fn wake(task: &str, run_at: Option<Instant>) {
    match run_at {
        None => wake::job_ready(task),
        Some(at) => wake::timer_at(at),
    }
}

/// A time-ordered id.
pub fn new_id() -> Uuid {
    Uuid::from_bytes(*uuid::Uuid::now_v7().as_bytes())
}

/// Refuses what is too large to be a payload.
pub fn check_size(what: &'static str, value: Jsonb) -> Result<()> {
    let size = value.size();
    if size > MAX_PAYLOAD {
        return Err(Error::new(
            Code::ArgumentTooLarge,
            format!("{what} has {size} bytes, more than {MAX_PAYLOAD}"),
        )
        .with("argument", what));
    }
    Ok(())
}
