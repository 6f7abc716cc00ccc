//! The compiled graph of a definition: from the backend's cache, else from its stored form.

use std::rc::Rc;

use sayiir_rules::definition::{self, Graph, Problem};
use serde_json::{Value, json};

use crate::error::{Code, Error, Result};
use crate::pg::input::{Checked, Stored};
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::Session;
use crate::store;

/// The graph of a stored definition.
pub fn load(session: &Session, hash: &[u8]) -> Result<Rc<Graph>> {
    if let Some(graph) = store::definition::cached(hash) {
        return Ok(graph);
    }
    let body = store::definition::body(session, hash)
        .ok_or_else(|| Error::new(Code::InternalState, "a workflow's definition is not stored"))?;
    let body = read(body)?;
    let graph = definition::compile(&body, &Stored).map_err(|problems| invalid(&problems))?;
    if graph.hash[..] != *hash {
        return Err(Error::new(
            Code::InternalState,
            "a stored definition does not have its hash",
        ));
    }
    Ok(store::definition::keep(graph))
}

/// Checks and compiles a definition, and makes sure that it is stored.
pub fn store(session: &Session, definition: Jsonb) -> Result<Rc<Graph>> {
    let digest = definition::digest(&definition.stored_bytes());
    if let Some(graph) = store::definition::written(&digest)
        && store::definition::exists(session, &graph.hash)
    {
        return Ok(graph);
    }
    let canonical = definition::canonical(&read(definition)?);
    let hash = definition::hash(&canonical);
    let graph = match store::definition::cached(&hash) {
        Some(graph) => graph,
        None => {
            let graph =
                definition::compile(&canonical, &Checked).map_err(|problems| invalid(&problems))?;
            store::definition::keep(graph)
        }
    };
    if !store::definition::exists(session, &hash) {
        store::definition::insert(session, &graph, Jsonb::from_value(&canonical));
    }
    store::definition::keep_written(digest, &graph);
    Ok(graph)
}

fn read(definition: Jsonb) -> Result<Value> {
    definition::parse(&definition.to_text()).map_err(|problem| invalid(&[problem]))
}

/// Refuses a definition with all its problems in DETAIL.
fn invalid(problems: &[Problem]) -> Error {
    const SHOWN: usize = 100;
    let first = problems.first().map_or(String::new(), |problem| {
        format!("{} at {:?}", problem.message, problem.pointer)
    });
    let list: Vec<Value> = problems
        .iter()
        .take(SHOWN)
        .map(|problem| json!({"pointer": problem.pointer, "code": problem.code, "message": problem.message}))
        .collect();
    Error::new(
        Code::DefinitionInvalid,
        format!(
            "the definition has {} problem(s); the first: {first}",
            problems.len()
        ),
    )
    .with("problems", list)
}
