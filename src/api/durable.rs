//! `job_*` of durable code: what a worker that holds a lease asks the job to remember.

use pgrx::{Uuid, pg_extern};

use super::arguments::required;
use crate::engine;
use crate::error::OrRaise;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::connect;

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
