//! `task_*`.

use pgrx::datum::Interval;
use pgrx::pg_extern;
use sayiir_rules::ids;

use super::arguments::{lease_us, options, read_retry, required};
use crate::engine::enqueue::{self, PolicyRequest};
use crate::error::{Code, Error, OrRaise};
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::connect;
use crate::pg::table::Table;
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
