//! `workflow_*` and `definition_*`.

use pgrx::datum::{Interval, TimestampWithTimeZone};
use pgrx::pg_extern;
use sayiir_rules::definition::{parse, validate};
use sayiir_rules::ids;
use serde_json::json;

use super::arguments::{elements, options, required, wait_us};
use crate::engine::cancel::Asked;
use crate::engine::start::{OnConflict, Request};
use crate::engine::{self, graph};
use crate::error::{OrRaise, Result};
use crate::pg::clock::Instant;
use crate::pg::input::Checked;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::{Session, connect};
use crate::pg::table::{Line, Table};
use crate::scope::{self, Scope, Use};
use crate::{columns, store};

#[pg_extern(sql = false)]
fn workflow_define(
    definition: Option<Jsonb>,
    activate: Option<bool>,
    organization_id: Option<&str>,
) -> Table {
    connect(|session| {
        let organization = scope::owner(session, organization_id)?;
        engine::define::define(
            session,
            organization.as_deref(),
            required("definition", definition)?,
            required("activate", activate)?,
        )
    })
    .map(|defined| {
        Table::one(columns![
            defined.name,
            defined.version,
            defined.hash,
            defined.disposition,
            Jsonb::from_value(&defined.changes)
        ])
    })
    .or_raise()
}

#[pg_extern(sql = false)]
fn workflow_validate(definition: Option<Jsonb>) -> Table {
    let definition = required("definition", definition).or_raise();
    let problems = match parse(&definition.to_text()) {
        Ok(definition) => validate(&definition, &Checked),
        Err(problem) => vec![problem],
    };
    Table(
        problems
            .into_iter()
            .map(|problem| Line::Values(columns![problem.pointer, problem.code, problem.message]))
            .collect(),
    )
}

#[pg_extern(sql = false)]
fn definition_schema() -> Jsonb {
    Jsonb::from_value(&sayiir_rules::definition::schema())
}

#[pg_extern(sql = false)]
fn definition_activate(
    name: Option<&str>,
    version: Option<i32>,
    organization_id: Option<&str>,
) -> bool {
    connect(|session| {
        let organization = scope::owner(session, organization_id)?;
        engine::define::activate(
            session,
            organization.as_deref(),
            required("name", name)?,
            required("version", version)?,
        )?;
        Ok(true)
    })
    .or_raise()
}

/// The arguments that both starts share.
struct Start<'a> {
    input: Option<Jsonb>,
    workflow_id: Option<&'a str>,
    idempotency_key: Option<&'a str>,
    active_key: Option<&'a str>,
    run_at: Option<TimestampWithTimeZone>,
    metadata: Option<Jsonb>,
    trace_parent: Option<&'a str>,
    on_conflict: Option<&'a str>,
    organization_id: Option<&'a str>,
    given: Option<Jsonb>,
}

impl Start<'_> {
    fn run(
        self,
        session: &Session,
        find: impl FnOnce(
            Option<&str>,
        ) -> Result<(
            std::rc::Rc<sayiir_rules::definition::Graph>,
            Option<i32>,
            serde_json::Value,
        )>,
    ) -> Result<(String, &'static str)> {
        options(self.given, &[])?;
        let organization = scope::owner(session, self.organization_id)?;
        let (graph, version, asked) = find(organization.as_deref())?;
        let request = Request {
            organization,
            name: &graph.name,
            version,
            asked,
            input: required("input", self.input)?,
            metadata: required("metadata", self.metadata)?,
            workflow_id: self.workflow_id,
            idempotency_key: self.idempotency_key,
            active_key: self.active_key,
            run_at: self.run_at.map(Instant::from),
            trace_parent: self.trace_parent,
            on_conflict: OnConflict::parse(required("on_conflict", self.on_conflict)?)?,
        };
        engine::start::start(session, &graph, &request)
    }
}

fn started((workflow_id, disposition): (String, &'static str)) -> Table {
    Table::one(columns![workflow_id, disposition])
}

#[pg_extern(sql = false)]
fn workflow_start(
    name: Option<&str>,
    input: Option<Jsonb>,
    workflow_id: Option<&str>,
    idempotency_key: Option<&str>,
    active_key: Option<&str>,
    version: Option<i32>,
    run_at: Option<TimestampWithTimeZone>,
    metadata: Option<Jsonb>,
    trace_parent: Option<&str>,
    on_conflict: Option<&str>,
    organization_id: Option<&str>,
    given: Option<Jsonb>,
) -> Table {
    connect(|session| {
        let name = required("name", name)?;
        ids::check_name("name", name)?;
        let start = Start {
            input,
            workflow_id,
            idempotency_key,
            active_key,
            run_at,
            metadata,
            trace_parent,
            on_conflict,
            organization_id,
            given,
        };
        // A repeat is compared by the version asked for, not by the one found: a new version must not make it a conflict.
        start.run(session, |organization| {
            let (graph, found) = engine::define::resolve(session, organization, name, version)?;
            Ok((graph, Some(found), json!({"version": version})))
        })
    })
    .map(started)
    .or_raise()
}

#[pg_extern(sql = false)]
fn workflow_start_graph(
    definition: Option<Jsonb>,
    input: Option<Jsonb>,
    workflow_id: Option<&str>,
    idempotency_key: Option<&str>,
    active_key: Option<&str>,
    run_at: Option<TimestampWithTimeZone>,
    metadata: Option<Jsonb>,
    trace_parent: Option<&str>,
    on_conflict: Option<&str>,
    organization_id: Option<&str>,
    given: Option<Jsonb>,
) -> Table {
    connect(|session| {
        let definition = required("definition", definition)?;
        let start = Start {
            input,
            workflow_id,
            idempotency_key,
            active_key,
            run_at,
            metadata,
            trace_parent,
            on_conflict,
            organization_id,
            given,
        };
        start.run(session, |_| {
            let graph = graph::store(session, definition)?;
            let hash: String = graph
                .hash
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            Ok((graph, None, json!({"definition_hash": hash})))
        })
    })
    .map(started)
    .or_raise()
}

fn scoped<R>(organization_id: Option<&str>, work: impl FnOnce(&Session, &Scope) -> Result<R>) -> R {
    connect(|session| {
        work(
            session,
            &scope::resolve(session, organization_id, Use::Other)?,
        )
    })
    .or_raise()
}

#[pg_extern(sql = false)]
fn workflow_cancel(
    workflow_id: Option<&str>,
    reason: Option<&str>,
    requested_by: Option<&str>,
    organization_id: Option<&str>,
) -> &'static str {
    scoped(organization_id, |session, scope| {
        let asked = Asked {
            reason,
            requested_by,
        };
        Ok(
            engine::cancel::cancel(session, scope, required("workflow_id", workflow_id)?, asked)?
                .as_str(),
        )
    })
}

#[pg_extern(sql = false)]
fn workflow_pause(
    workflow_id: Option<&str>,
    reason: Option<&str>,
    requested_by: Option<&str>,
    organization_id: Option<&str>,
) -> &'static str {
    scoped(organization_id, |session, scope| {
        let asked = Asked {
            reason,
            requested_by,
        };
        Ok(
            engine::cancel::pause(session, scope, required("workflow_id", workflow_id)?, asked)?
                .as_str(),
        )
    })
}

#[pg_extern(sql = false)]
fn workflow_resume(workflow_id: Option<&str>, organization_id: Option<&str>) -> &'static str {
    scoped(organization_id, |session, scope| {
        Ok(engine::cancel::resume(session, scope, required("workflow_id", workflow_id)?)?.as_str())
    })
}

#[pg_extern(sql = false)]
fn workflow_complete_step(
    workflow_id: Option<&str>,
    step: Option<&str>,
    outcome: Option<&str>,
    output: Option<Jsonb>,
    reason: Option<&str>,
    error_code: Option<&str>,
    error_message: Option<&str>,
    organization_id: Option<&str>,
) -> Table {
    scoped(organization_id, |session, scope| {
        let request = engine::complete_step::Request {
            scope: scope.clone(),
            workflow_id: required("workflow_id", workflow_id)?,
            step: required("step", step)?,
            outcome: required("outcome", outcome)?,
            output,
            reason,
            error_code,
            error_message,
        };
        let disposition = engine::complete_step::complete_step(session, &request)?;
        Ok(Table(store::step::info(
            session,
            request.workflow_id,
            request.step,
            organization_id,
            disposition,
        )))
    })
}

#[pg_extern(sql = false)]
fn workflow_result(
    workflow_id: Option<&str>,
    timeout: Option<Interval>,
    organization_id: Option<&str>,
) -> Option<Jsonb> {
    scoped(organization_id, |session, scope| {
        let workflow_id = required("workflow_id", workflow_id)?;
        let result = engine::await_result::workflow_result(
            session,
            scope,
            workflow_id,
            wait_us("timeout", timeout)?,
        )?;
        Ok(result.map(|result| result.copy_to(session.upper)))
    })
}

#[pg_extern(sql = false)]
fn workflow_wait(
    workflow_id: Option<&str>,
    timeout: Option<Interval>,
    organization_id: Option<&str>,
) -> String {
    scoped(organization_id, |session, scope| {
        engine::await_result::wait(
            session,
            scope,
            required("workflow_id", workflow_id)?,
            wait_us("timeout", timeout)?,
        )
    })
}

#[pg_extern(sql = false)]
fn workflow_lock(workflow_ids: Option<Vec<Option<String>>>, organization_id: Option<&str>) {
    scoped(organization_id, |session, scope| {
        engine::lock::lock(session, scope, &elements("workflow_ids", workflow_ids)?)
    });
}

#[pg_extern(sql = false)]
fn workflow_delete(workflow_id: Option<&str>, organization_id: Option<&str>) -> bool {
    scoped(organization_id, |session, scope| {
        engine::delete::delete(session, scope, required("workflow_id", workflow_id)?)
    })
}
