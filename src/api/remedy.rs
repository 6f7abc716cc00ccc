//! `job_replay`, `job_delete`, `job_amend`, `dead_letters_requeue`.

use pgrx::datum::TimestampWithTimeZone;
use pgrx::{Uuid, pg_extern};

use super::arguments::{required, within};
use crate::error::OrRaise;
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::connect;
use crate::pg::table::{Line, Table};
use crate::scope::{self, Use};
use crate::store::remedy::Which;
use crate::{columns, engine};

#[pg_extern(sql = false)]
fn job_replay(
    job_id: Option<Uuid>,
    request_key: Option<&str>,
    reason: Option<&str>,
    organization_id: Option<&str>,
) -> Table {
    connect(|session| {
        let scope = scope::resolve(session, organization_id, Use::Other)?;
        let (id, key) = (
            required("job_id", job_id)?,
            required("request_key", request_key)?,
        );
        engine::replay::replay(session, &scope, id, key, reason)
    })
    .map(|(id, new)| {
        let disposition = if new { "replayed" } else { "existing" };
        let run_at = new.then(Instant::now);
        Table::one(columns![id, disposition, new.then_some(1), run_at])
    })
    .or_raise()
}

#[pg_extern(sql = false)]
fn job_delete(job_id: Option<Uuid>, organization_id: Option<&str>) -> bool {
    connect(|session| {
        let scope = scope::resolve(session, organization_id, Use::Other)?;
        engine::delete_job::delete(session, &scope, required("job_id", job_id)?)
    })
    .or_raise()
}

#[pg_extern(sql = false)]
fn job_amend(
    job_id: Option<Uuid>,
    payload: Option<Jsonb>,
    organization_id: Option<&str>,
) -> &'static str {
    connect(|session| {
        let scope = scope::resolve(session, organization_id, Use::Other)?;
        let (id, payload) = (required("job_id", job_id)?, required("payload", payload)?);
        engine::amend::amend(session, &scope, id, payload)
    })
    .or_raise()
}

#[pg_extern(sql = false)]
fn dead_letters_requeue(
    task: Option<&str>,
    error_code: Option<&str>,
    since: Option<TimestampWithTimeZone>,
    max_rows: Option<i32>,
    organization_id: Option<&str>,
) -> Table {
    connect(|session| {
        let which = Which {
            scope: &scope::resolve(session, organization_id, Use::Other)?,
            task,
            error_code,
            since: since.map(Instant::from),
            max_rows: within("max_rows", max_rows, 1, 10_000)?,
        };
        engine::requeue::requeue_dead(session, &which)
    })
    .map(|ids| {
        Table(
            ids.into_iter()
                .map(|id| Line::Values(columns![id]))
                .collect(),
        )
    })
    .or_raise()
}
