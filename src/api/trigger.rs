//! Trigger functions: a row that is written starts a workflow or sends an event, in the same transaction.

use std::convert::Infallible;

use pgrx::heap_tuple::PgHeapTuple;
use pgrx::{AllocatedByPostgres, PgTrigger, pg_trigger};
use serde_json::{Map, Value, json};

use crate::engine::start::OnConflict;
use crate::engine::{define, send_event, start};
use crate::error::{self, Code, Error, OrRaise};
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::{Session, connect};
use crate::pg::trigger::{NoRow, Row};
use crate::scope::{self, Use};
use crate::store;

/// What PgTrigger's macro wants back: NEW, for BEFORE triggers.
type Answer<'a> = Result<Option<PgHeapTuple<'a, AllocatedByPostgres>>, Infallible>;

#[pg_trigger(sql = false)]
fn trigger_start<'a>(trigger: &'a PgTrigger<'a>) -> Answer<'a> {
    connect(|session| {
        let call = Call::read(
            session,
            trigger,
            "workflow_start",
            &["on_conflict", "organization_column"],
        )?;
        let organization = scope::owner(session, call.organization.as_deref())?;
        let (graph, version) = define::resolve(session, organization.as_deref(), &call.name, None)?;
        let workflow_id = format!("{}-{}", call.name, call.id);
        let on_conflict = call.option("on_conflict")?.unwrap_or("use_existing");
        let request = start::Request {
            organization,
            name: &graph.name,
            version: Some(version),
            asked: json!({"version": null}),
            input: call.row.to_jsonb(),
            metadata: Jsonb::from_value(&json!({})),
            workflow_id: Some(&workflow_id),
            idempotency_key: None,
            active_key: None,
            run_at: None,
            trace_parent: None,
            on_conflict: OnConflict::parse(on_conflict)?,
        };
        start::start(session, &graph, &request)
    })
    .or_raise();
    Ok(trigger.new())
}

#[pg_trigger(sql = false)]
fn trigger_send_event<'a>(trigger: &'a PgTrigger<'a>) -> Answer<'a> {
    connect(|session| {
        let call = Call::read(
            session,
            trigger,
            "workflow_send_event",
            &["event_key_column", "organization_column"],
        )?;
        let event_key = match call.option("event_key_column")? {
            Some(column) => call.row.column(column).map_err(|_| no_column(column))?,
            None => None,
        };
        let request = send_event::Request {
            scope: scope::resolve(session, call.organization.as_deref(), Use::Other)?,
            workflow_id: &call.id,
            name: &call.name,
            payload: Some(call.row.to_jsonb()),
            event_key: event_key.as_deref(),
        };
        send_event::send_event(session, &request)
    })
    .or_raise();
    Ok(trigger.new())
}

/// The arguments of CREATE TRIGGER, and what the row says.
struct Call {
    row: Row,
    /// Of the workflow or the event.
    name: String,
    /// What the id column holds.
    id: String,
    organization: Option<String>,
    options: Map<String, Value>,
}

impl Call {
    /// `('name', 'id_column')` or `('name', 'id_column', '{"option": …}')`. The owner of the table must be allowed to call `function`;
    /// who writes the row need not be.
    fn read(
        session: &Session,
        trigger: &PgTrigger,
        function: &str,
        known: &[&str],
    ) -> error::Result<Self> {
        let row = Row::new(trigger).map_err(|_: NoRow| {
            invalid("it is a trigger AFTER INSERT or UPDATE, FOR EACH ROW".to_owned())
        })?;
        if !store::trigger::may_call(session, row.owner, function) {
            return Err(Error::new(
                Code::ScopeDenied,
                format!("the owner of the table may not call {function}"),
            ));
        }
        let arguments = trigger.extra_args().unwrap_or_default();
        let (name, column, options) = match &arguments[..] {
            [name, column] => (name, column, Map::new()),
            [name, column, options] => (name, column, read_options(options, known)?),
            _ => {
                return Err(invalid(
                    "it takes a name, a column, and maybe options".to_owned(),
                ));
            }
        };
        let id = row
            .column(column)
            .map_err(|_| no_column(column))?
            .ok_or_else(|| {
                Error::new(Code::ArgumentNull, format!("column {column:?} is NULL"))
                    .with("argument", column.as_str())
            })?;
        let mut call = Self {
            name: name.clone(),
            id,
            organization: None,
            options,
            row,
        };
        // An owner that is bound to an organization cannot leave it by this way either.
        call.organization = match store::role_scope::organization_of(session, call.row.owner) {
            Some(bound) => Some(bound),
            None => match call.option("organization_column")? {
                Some(column) => call.row.column(column).map_err(|_| no_column(column))?,
                None => None,
            },
        };
        Ok(call)
    }

    fn option(&self, key: &str) -> error::Result<Option<&str>> {
        match self.options.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(invalid(format!("option {key:?} is not text"))),
        }
    }
}

fn read_options(text: &str, known: &[&str]) -> error::Result<Map<String, Value>> {
    let Ok(Value::Object(options)) = serde_json::from_str(text) else {
        return Err(invalid("the options are not a JSON object".to_owned()));
    };
    match options.keys().find(|key| !known.contains(&key.as_str())) {
        Some(unknown) => Err(Error::new(
            Code::OptionUnknown,
            format!("there is no option {unknown:?}"),
        )
        .with("option", unknown.as_str())
        .with("known", known.to_vec())),
        None => Ok(options),
    }
}

fn no_column(column: &str) -> Error {
    invalid(format!("the table has no column {column:?}"))
}

fn invalid(problem: String) -> Error {
    Error::new(
        Code::TriggerInvalid,
        format!("the trigger is refused: {problem}"),
    )
}
