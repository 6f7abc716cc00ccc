//! `workflow_send_event`.

use pgrx::pg_extern;

use super::arguments::required;
use crate::engine::send_event::{self, Request};
use crate::error::OrRaise;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::connect;
use crate::scope::{self, Use};

#[pg_extern(sql = false)]
fn workflow_send_event(
    workflow_id: Option<&str>,
    name: Option<&str>,
    payload: Option<Jsonb>,
    event_key: Option<&str>,
    organization_id: Option<&str>,
) -> &'static str {
    connect(|session| {
        let request = Request {
            scope: scope::resolve(session, organization_id, Use::Other)?,
            workflow_id: required("workflow_id", workflow_id)?,
            name: required("name", name)?,
            payload,
            event_key,
        };
        Ok(send_event::send_event(session, &request)?.as_str())
    })
    .or_raise()
}
