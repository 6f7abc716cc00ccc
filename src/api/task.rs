//! `task_*`.

use pgrx::datum::Interval;
use pgrx::pg_extern;
use sayiir_rules::ids;
use serde_json::Value;

use super::arguments::{duration, lease_us, options, read_retry, required};
use crate::columns;
use crate::engine::enqueue::{self, PolicyRequest};
use crate::engine::sync_tasks::{self, Task};
use crate::error::{Code, Error, OrRaise, Result};
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::connect;
use crate::pg::table::{Line, Table};
use crate::runtime::wake;
use crate::scope;
use crate::store;

#[pg_extern(sql = false)]
fn task_define(
    task: Option<&str>,
    max_attempts: Option<i32>,
    timeout: Option<Interval>,
    lease: Option<Interval>,
    priority: Option<i32>,
    retry: Option<Jsonb>,
    enabled: Option<bool>,
    max_leases: Option<i32>,
    max_rate: Option<i32>,
    rate_period: Option<Interval>,
    organization_id: Option<&str>,
    given: Option<Jsonb>,
) -> Table {
    connect(|session| {
        let task = required("task", task)?;
        ids::check_name("task", task)?;
        if max_leases.is_some() || max_rate.is_some() || rate_period.is_some() {
            return Err(Error::new(
                Code::ArgumentInvalid,
                "max_leases, max_rate and rate_period are not supported in this version",
            )
            .with("argument", "max_leases"));
        }
        options(given, &[])?;
        if let Some(priority) = priority
            && !sayiir_rules::lane::PRIORITIES.contains(&priority)
        {
            return Err(Error::new(
                Code::ArgumentOutOfRange,
                format!("priority is {priority}, not 0 to 99"),
            )
            .with("argument", "priority"));
        }
        let mut policy = PolicyRequest {
            max_attempts,
            ..PolicyRequest::default()
        };
        if let Some(retry) = retry {
            read_retry(&retry.to_value().unwrap_or_default(), &mut policy)?;
        }
        enqueue::policy(&policy, &store::task::Task::default(), Instant::now())?;
        let organization = scope::owner(session, organization_id)?;
        let organization = organization.as_deref();
        store::task::define(
            session,
            &store::task::Definition {
                organization,
                task,
                max_attempts: policy.max_attempts,
                timeout_us: lease_us("timeout", timeout)?,
                lease_us: lease_us("lease", lease)?,
                priority,
                retry,
                enabled,
                options: None,
            },
        );
        if enabled == Some(true) {
            wake::job_ready(task);
        }
        Ok(Table(store::task::info(session, organization, task)))
    })
    .or_raise()
}

fn set_paused(task: Option<&str>, organization_id: Option<&str>, paused: bool) -> bool {
    connect(|session| {
        let task = required("task", task)?;
        ids::check_name("task", task)?;
        let organization = scope::owner(session, organization_id)?;
        store::task::set_paused(session, organization.as_deref(), task, paused);
        if !paused {
            wake::job_ready(task);
        }
        Ok(true)
    })
    .or_raise()
}

#[pg_extern(sql = false)]
fn task_pause(task: Option<&str>, organization_id: Option<&str>) -> bool {
    set_paused(task, organization_id, true)
}

#[pg_extern(sql = false)]
fn task_resume(task: Option<&str>, organization_id: Option<&str>) -> bool {
    set_paused(task, organization_id, false)
}

/// Fields of a task in `task_sync`.
const SYNC_FIELDS: &[&str] = &[
    "task",
    "max_attempts",
    "timeout",
    "lease",
    "priority",
    "retry",
    "enabled",
    "options",
];

fn refused(what: &str) -> Error {
    Error::new(Code::ArgumentInvalid, what).with("argument", "tasks")
}

fn integer(value: Option<&Value>, what: &str) -> Result<Option<i32>> {
    value
        .map(|value| {
            value
                .as_i64()
                .and_then(|n| i32::try_from(n).ok())
                .ok_or_else(|| refused(what))
        })
        .transpose()
}

fn synced(value: &Value) -> Result<Task> {
    let fields = value
        .as_object()
        .ok_or_else(|| refused("a task is not an object"))?;
    if let Some(unknown) = fields
        .keys()
        .find(|key| !SYNC_FIELDS.contains(&key.as_str()))
    {
        return Err(Error::new(
            Code::OptionUnknown,
            format!("a task has no field {unknown:?}"),
        )
        .with("option", unknown.as_str())
        .with("known", SYNC_FIELDS.to_vec()));
    }
    let name = fields
        .get("task")
        .and_then(Value::as_str)
        .ok_or_else(|| refused("a task has no name: its field task is not text"))?;
    let mut policy = PolicyRequest {
        max_attempts: integer(fields.get("max_attempts"), "max_attempts is not an integer")?,
        timeout_us: duration(fields, "timeout")?,
        lease_us: duration(fields, "lease")?,
        ..PolicyRequest::default()
    };
    if let Some(retry) = fields.get("retry") {
        read_retry(retry, &mut policy)?;
    }
    let priority = integer(fields.get("priority"), "priority is not an integer")?;
    if priority.is_some_and(|priority| !sayiir_rules::lane::PRIORITIES.contains(&priority)) {
        return Err(
            Error::new(Code::ArgumentOutOfRange, "priority is not 0 to 99")
                .with("argument", "priority"),
        );
    }
    let enabled = fields
        .get("enabled")
        .map(|value| {
            value
                .as_bool()
                .ok_or_else(|| refused("enabled is not a boolean"))
        })
        .transpose()?;
    let options = fields.get("options").cloned();
    if options.as_ref().is_some_and(|options| !options.is_object()) {
        return Err(refused("options is not an object"));
    }
    Ok(Task {
        name: name.to_owned(),
        policy,
        priority,
        retry: fields.get("retry").cloned(),
        enabled,
        options,
    })
}

#[pg_extern(sql = false)]
fn task_sync(tasks: Option<Jsonb>, exact: Option<bool>, organization_id: Option<&str>) -> Table {
    connect(|session| {
        let Some(Value::Array(tasks)) = required("tasks", tasks)?.to_value() else {
            return Err(refused("tasks is not an array"));
        };
        let tasks = tasks.iter().map(synced).collect::<Result<Vec<_>>>()?;
        let organization = scope::owner(session, organization_id)?;
        sync_tasks::sync(
            session,
            organization.as_deref(),
            tasks,
            required("exact", exact)?,
        )
    })
    .map(|lines| {
        Table(
            lines
                .into_iter()
                .map(|(task, disposition)| Line::Values(columns![task, disposition]))
                .collect(),
        )
    })
    .or_raise()
}
