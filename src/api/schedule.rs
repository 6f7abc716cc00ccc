//! `schedule_*`.

use pgrx::datum::{Interval, TimestampWithTimeZone};
use pgrx::pg_extern;
use sayiir_rules::schedule::{DoubledTime, SkippedTime};

use super::arguments::{duration, microseconds, options, required, within};
use crate::columns;
use crate::engine::schedule::{GRACE_US, MAX_JITTER_US, OPTIONS, Request, calendar, first_after};
use crate::engine::{fire_schedule, schedule};
use crate::error::{Code, Error, OrRaise, Result};
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::{Session, connect};
use crate::pg::table::{Line, Table};
use crate::{scope, store};

#[pg_extern(sql = false)]
fn schedule_define(
    name: Option<&str>,
    cron: Option<&str>,
    task: Option<&str>,
    workflow: Option<&str>,
    payload: Option<Jsonb>,
    timezone: Option<&str>,
    missed: Option<&str>,
    skipped_time: Option<&str>,
    doubled_time: Option<&str>,
    overlap: Option<&str>,
    jitter: Option<Interval>,
    organization_id: Option<&str>,
    given: Option<Jsonb>,
) -> Table {
    connect(|session| {
        let options = options(given, OPTIONS)?;
        let request = Request {
            organization: scope::owner(session, organization_id)?,
            name: required("name", name)?,
            cron: required("cron", cron)?,
            timezone: required("timezone", timezone)?,
            task,
            workflow,
            payload: required("payload", payload)?,
            missed: required("missed", missed)?,
            skipped_time: required("skipped_time", skipped_time)?,
            doubled_time: required("doubled_time", doubled_time)?,
            overlap: required("overlap", overlap)?,
            jitter_us: required("jitter", microseconds("jitter", jitter, 0, MAX_JITTER_US)?)?,
            grace_us: duration(&options, "grace")?.unwrap_or(GRACE_US),
            options,
        };
        let id = schedule::define(session, &request)?;
        Ok(Table(store::schedule::info(session, id)))
    })
    .or_raise()
}

/// What a call on a schedule by its name does.
fn with_name<R>(
    name: Option<&str>,
    organization_id: Option<&str>,
    call: impl FnOnce(&Session, Option<&str>, &str) -> Result<R>,
) -> R {
    connect(|session| {
        let organization = scope::owner(session, organization_id)?;
        call(session, organization.as_deref(), required("name", name)?)
    })
    .or_raise()
}

#[pg_extern(sql = false)]
fn schedule_delete(name: Option<&str>, organization_id: Option<&str>) -> bool {
    with_name(name, organization_id, schedule::delete)
}

#[pg_extern(sql = false)]
fn schedule_pause(name: Option<&str>, organization_id: Option<&str>) -> bool {
    with_name(name, organization_id, schedule::pause)
}

#[pg_extern(sql = false)]
fn schedule_resume(name: Option<&str>, organization_id: Option<&str>) -> bool {
    with_name(name, organization_id, schedule::resume)
}

#[pg_extern(sql = false)]
fn schedule_run(name: Option<&str>, organization_id: Option<&str>) -> Table {
    let fired = with_name(name, organization_id, fire_schedule::run);
    Table::one(columns![
        fired.nominal,
        fired.disposition,
        fired.job,
        fired.workflow_id
    ])
}

#[pg_extern(sql = false)]
fn schedule_next(
    cron: Option<&str>,
    timezone: Option<&str>,
    after: Option<TimestampWithTimeZone>,
    fires: Option<i32>,
) -> Table {
    let next = || -> Result<Vec<Line>> {
        let fires = within("fires", fires, 1, 1000)?;
        let calendar = calendar(
            required("cron", cron)?,
            required("timezone", timezone)?,
            SkippedTime::Next.as_str(),
            DoubledTime::First.as_str(),
        )?;
        let mut at = after.map_or_else(Instant::now, Instant::from);
        if !at.is_finite() {
            return Err(
                Error::new(Code::ArgumentOutOfRange, "after is infinite").with("argument", "after")
            );
        }
        let mut lines = Vec::with_capacity(fires as usize);
        for _ in 0..fires {
            at = first_after(&calendar, at)?;
            lines.push(Line::Values(columns![at]));
        }
        Ok(lines)
    };
    Table(next().or_raise())
}
