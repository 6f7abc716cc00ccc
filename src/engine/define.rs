//! Define: a graph becomes a version of its name. Running workflows keep the definition they started with.

use sayiir_rules::definition::Graph;
use serde_json::{Value, json};

use crate::engine::{graph, owner};
use crate::error::{Code, Error, Result};
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::Session;
use crate::store;

pub struct Defined {
    pub name: String,
    pub version: i32,
    pub hash: Vec<u8>,
    /// created, existing
    pub disposition: &'static str,
    /// Against the version that was active: steps added, removed, changed.
    pub changes: Value,
}

/// Registers a definition under its name; the same graph again is the same version.
pub fn define(
    session: &Session,
    organization: Option<&str>,
    definition: Jsonb,
    activate: bool,
) -> Result<Defined> {
    owner::require_read_committed("workflow_define")?;
    let graph = graph::store(session, definition)?;
    store::definition::lock_name(session, organization, &graph.name);
    let before = store::definition::find(session, organization, &graph.name, None);
    let changes = match &before {
        Some(version) if version.hash[..] == graph.hash[..] => {
            json!({"added": [], "removed": [], "changed": []})
        }
        Some(version) => changes(&*graph::load(session, &version.hash)?, &graph),
        None => changes_from_nothing(&graph),
    };
    let known = store::definition::by_hash(session, organization, &graph.name, &graph.hash);
    let (version, disposition) = match known {
        Some((version, _)) => (version, "existing"),
        None => (
            store::definition::register(session, organization, &graph.name, &graph.hash),
            "created",
        ),
    };
    if activate && !known.is_some_and(|(_, active)| active) {
        store::definition::activate(session, organization, &graph.name, version);
    }
    Ok(Defined {
        name: graph.name.clone(),
        version,
        hash: graph.hash.to_vec(),
        disposition,
        changes,
    })
}

/// Makes a version the one that starts take.
pub fn activate(
    session: &Session,
    organization: Option<&str>,
    name: &str,
    version: i32,
) -> Result<()> {
    owner::require_read_committed("definition_activate")?;
    store::definition::lock_name(session, organization, name);
    match store::definition::find(session, organization, name, Some(version)) {
        Some(found)
            if found.own && store::definition::activate(session, organization, name, version) =>
        {
            Ok(())
        }
        _ => Err(not_found(name, Some(version))),
    }
}

/// The graph and version that a start by name takes.
pub fn resolve(
    session: &Session,
    organization: Option<&str>,
    name: &str,
    version: Option<i32>,
) -> Result<(std::rc::Rc<Graph>, i32)> {
    let found = store::definition::find(session, organization, name, version)
        .ok_or_else(|| not_found(name, version))?;
    Ok((graph::load(session, &found.hash)?, found.version))
}

fn not_found(name: &str, version: Option<i32>) -> Error {
    let what = match version {
        Some(version) => format!("there is no version {version} of workflow {name:?}"),
        None => format!("there is no active workflow {name:?}"),
    };
    Error::new(Code::DefinitionNotFound, what)
        .with("name", name)
        .with("version", version)
}

fn changes(old: &Graph, new: &Graph) -> Value {
    let keys = |graph: &Graph, other: &Graph| -> Vec<String> {
        graph
            .steps
            .iter()
            .filter(|step| other.ordinal(&step.key).is_none())
            .map(|step| step.key.clone())
            .collect()
    };
    let changed: Vec<&str> = new
        .steps
        .iter()
        .filter(|step| {
            old.ordinal(&step.key)
                .is_some_and(|n| !same_step(old, &old.steps[n], new, step))
        })
        .map(|step| step.key.as_str())
        .collect();
    json!({"added": keys(new, old), "removed": keys(old, new), "changed": changed})
}

/// The same but for where its prerequisites stand in the list.
fn same_step(
    old_graph: &Graph,
    old: &sayiir_rules::definition::Step,
    new_graph: &Graph,
    new: &sayiir_rules::definition::Step,
) -> bool {
    let edges =
        |graph: &Graph, step: &sayiir_rules::definition::Step| -> Vec<(String, &'static str)> {
            step.after
                .iter()
                .map(|edge| (graph.steps[edge.step].key.clone(), edge.on.as_str()))
                .collect()
        };
    old.kind == new.kind
        && old.join == new.join
        && old.when == new.when
        && old.input == new.input
        && old.optional == new.optional
        && edges(old_graph, old) == edges(new_graph, new)
}

fn changes_from_nothing(graph: &Graph) -> Value {
    let added: Vec<&str> = graph.steps.iter().map(|step| step.key.as_str()).collect();
    json!({"added": added, "removed": [], "changed": []})
}
