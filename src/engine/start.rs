//! Start: a workflow is born with its row and its root steps, whatever the size of the graph.

use std::rc::Rc;

use sayiir_rules::definition::Graph;
use sayiir_rules::ids;
use sayiir_rules::workflow::WorkflowState;
use serde_json::json;

use crate::engine::{cancel, delete, enqueue, open, owner, settle};
use crate::error::{Code, Error, Result};
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::Session;
use crate::pg::xact;
use crate::runtime::wake;
use crate::store;
use crate::store::workflow::{NewWorkflow, Workflow};

/// `run_at` is at most a century ahead.
const RUN_AT_AHEAD_US: i64 = 36_525 * 86_400_000_000;

/// What to do when the id or key is taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OnConflict {
    /// The same request is answered with the existing workflow, another one refused.
    Match,
    Fail,
    UseExisting,
    /// Cancel and delete the old one, and start anew.
    TerminateExisting,
}

impl OnConflict {
    pub fn parse(word: &str) -> Result<Self> {
        Ok(match word {
            "match" => Self::Match,
            "fail" => Self::Fail,
            "use_existing" => Self::UseExisting,
            "terminate_existing" => Self::TerminateExisting,
            other => {
                return Err(Error::new(
                    Code::ArgumentInvalid,
                    format!("on_conflict is {other:?}: it takes match, fail, use_existing or terminate_existing"),
                )
                .with("argument", "on_conflict"));
            }
        })
    }
}

pub struct Request<'a> {
    pub organization: Option<String>,
    pub name: &'a str,
    /// The version found, or None for a graph without a registered name.
    pub version: Option<i32>,
    /// What the caller asked for besides input and metadata: a repeat is compared by it.
    pub asked: serde_json::Value,
    pub input: Jsonb,
    pub metadata: Jsonb,
    pub workflow_id: Option<&'a str>,
    pub idempotency_key: Option<&'a str>,
    pub active_key: Option<&'a str>,
    pub run_at: Option<Instant>,
    pub trace_parent: Option<&'a str>,
    pub on_conflict: OnConflict,
}

/// Answers (workflow_id, disposition: started, existing, existing_active). The definition is stored.
pub fn start(
    session: &Session,
    graph: &Rc<Graph>,
    request: &Request,
) -> Result<(String, &'static str)> {
    check(request)?;
    let generated = request
        .workflow_id
        .is_none()
        .then(|| enqueue::new_id().to_string());
    let workflow_id = generated
        .as_deref()
        .or(request.workflow_id)
        .expect("one of the two");
    let organization = request.organization.as_deref();
    if request.workflow_id.is_some() {
        store::event::lock_birth(session, organization, workflow_id);
    }
    let now = Instant::now();
    let from = request.run_at.map_or(now, |run_at| run_at.max(now));
    let new = NewWorkflow {
        workflow_id,
        organization,
        name: request.name,
        version: request.version,
        definition_hash: &graph.hash,
        input: request.input,
        metadata: request.metadata,
        request: Jsonb::from_value(&json!({
            "asked": request.asked,
            "active_key": request.active_key,
            "run_at": request.run_at.map(|at| at.0),
        })),
        idempotency_key: request.idempotency_key,
        active_key: request.active_key,
        trace_parent: request.trace_parent,
        deadline_us: graph
            .timeout
            .and_then(|span| span.fixed_us())
            .map(|us| us.saturating_add(from.0 - now.0)),
        now,
    };
    xact::assign_xid();
    let id = loop {
        if let Some(id) = store::workflow::insert(session, &new) {
            break id;
        }
        // Whoever held the id or key has committed; if it has been deleted since, it is free again.
        if let Some(met) = store::workflow::by_keys(session, &new)
            && let Some(answer) = taken(session, request, met)?
        {
            return Ok(answer);
        }
    };
    if let Some(active_key) = request.active_key {
        while !store::workflow::take_active(session, id, organization, active_key) {
            if let Some((_, existing)) = store::workflow::active(session, organization, active_key)
            {
                store::workflow::discard(session, id);
                return Ok((existing, "existing_active"));
            }
        }
    }
    if let Some(us) = new.deadline_us {
        wake::timer_at(now.plus_us(us));
    }
    let workflow = Workflow {
        id,
        workflow_id: workflow_id.to_owned(),
        organization: request.organization.clone(),
        status: WorkflowState::Running,
        definition_hash: graph.hash.to_vec(),
        run_at: request.run_at,
    };
    if request.workflow_id.is_some() {
        store::event::adopt(session, id, organization, workflow_id);
    }
    let level = open::Level {
        released: &graph.roots,
        cancelled: &[],
        from,
    };
    let opened = open::open(session, &workflow, graph, &level, now)?;
    let cascaded = settle::cascade(session, &workflow, graph, opened.ended, from, now)?;
    if !opened.live && !cascaded {
        settle::finish(session, &workflow, graph, now)?;
    }
    Ok((workflow_id.to_owned(), "started"))
}

fn check(request: &Request) -> Result<()> {
    for (what, id) in [
        ("workflow_id", request.workflow_id),
        ("idempotency_key", request.idempotency_key),
        ("active_key", request.active_key),
        ("trace_parent", request.trace_parent),
    ] {
        if let Some(id) = id {
            ids::check_id(what, id)?;
        }
    }
    if request.workflow_id.is_some()
        || request.idempotency_key.is_some()
        || request.active_key.is_some()
    {
        owner::require_read_committed("a start with an id or key of the caller's")?;
    }
    // What follows adds timeouts to it, and the sum has to be a timestamp.
    let latest = Instant::now().plus_us(RUN_AT_AHEAD_US);
    if request
        .run_at
        .is_some_and(|at| !at.is_finite() || at > latest)
    {
        let message = "run_at is infinite, or more than 100 years ahead";
        return Err(Error::new(Code::ArgumentOutOfRange, message).with("argument", "run_at"));
    }
    enqueue::check_size("input", request.input)?;
    enqueue::check_size("metadata", request.metadata)
}

/// What a start answers that met an existing workflow; None = the way is free now.
fn taken(
    session: &Session,
    request: &Request,
    met: store::workflow::Met,
) -> Result<Option<(String, &'static str)>> {
    let conflict = |met: &store::workflow::Met| {
        Error::new(
            Code::WorkflowConflict,
            format!(
                "workflow {:?} exists and was started by another request",
                met.workflow_id
            ),
        )
        .with("workflow_id", met.workflow_id.clone())
    };
    match request.on_conflict {
        OnConflict::Match if met.same_request => Ok(Some((met.workflow_id, "existing"))),
        OnConflict::UseExisting => Ok(Some((met.workflow_id, "existing"))),
        OnConflict::Match | OnConflict::Fail => Err(conflict(&met)),
        OnConflict::TerminateExisting => {
            if let Some(workflow) = store::workflow::lock(session, vec![met.id]).pop() {
                cancel::terminate(session, &workflow, Instant::now());
                delete::remove(session, &workflow)?;
            }
            Ok(None)
        }
    }
}
