//! `definition`, `definition_step`, `definition_edge`, `definition_version`: compiled graphs and the names they are known by.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use sayiir_rules::definition::{Graph, Kind};

use crate::args;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::{Session, Statement};
use crate::pg::types::{BOOL, BOOLS, BYTES, INT4, INT4S, JSONB, TEXT, TEXTS};

thread_local! {
    /// Compiled graphs by SHA-256. A graph is its hash, so an entry never goes stale; a start makes sure that the stored row is
    /// there too.
    static GRAPHS: RefCell<HashMap<Vec<u8>, Rc<Graph>>> = RefCell::new(HashMap::new());
    /// Graphs by the SHA-256 of a definition as a caller wrote it: to bring a large one into its canonical form again costs more
    /// than to start it.
    static WRITTEN: RefCell<HashMap<[u8; 32], Rc<Graph>>> = RefCell::new(HashMap::new());
}

/// Most graphs that one backend keeps.
const MAX_GRAPHS: usize = 256;

/// A graph this backend has compiled.
pub fn cached(hash: &[u8]) -> Option<Rc<Graph>> {
    GRAPHS.with_borrow(|graphs| graphs.get(hash).cloned())
}

/// Keeps a compiled graph.
pub fn keep(graph: Graph) -> Rc<Graph> {
    let graph = Rc::new(graph);
    GRAPHS.with_borrow_mut(|graphs| {
        if graphs.len() >= MAX_GRAPHS {
            graphs.clear();
        }
        graphs.insert(graph.hash.to_vec(), Rc::clone(&graph));
    });
    graph
}

/// The graph that this backend has made of a definition as it was written.
pub fn written(digest: &[u8; 32]) -> Option<Rc<Graph>> {
    WRITTEN.with_borrow(|written| written.get(digest).cloned())
}

/// Remembers what was made of a definition as it was written.
pub fn keep_written(digest: [u8; 32], graph: &Rc<Graph>) {
    WRITTEN.with_borrow_mut(|written| {
        if written.len() >= MAX_GRAPHS {
            written.clear();
        }
        written.insert(digest, Rc::clone(graph));
    });
}

/// The stored canonical form.
pub fn body(session: &Session, hash: &[u8]) -> Option<Jsonb> {
    // definition_pkey
    static BODY: Statement = Statement::new(
        &[BYTES],
        "SELECT body FROM sayiir.definition WHERE definition_hash = $1",
    );
    BODY.run(session, args![hash]).first().map(|row| row.get(1))
}

/// Whether the definition is stored.
pub fn exists(session: &Session, hash: &[u8]) -> bool {
    // definition_pkey
    static EXISTS: Statement = Statement::new(
        &[BYTES],
        "SELECT FROM sayiir.definition WHERE definition_hash = $1",
    );
    !EXISTS.run(session, args![hash]).is_empty()
}

/// Stores a definition with its steps and edges, if it is new. Waits for a transaction that is storing the same.
pub fn insert(session: &Session, graph: &Graph, body: Jsonb) {
    // definition_pkey
    static INSERT: Statement = Statement::new(
        &[BYTES, JSONB],
        "INSERT INTO sayiir.definition (definition_hash, body) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING true",
    );
    static STEPS: Statement = Statement::new(
        &[BYTES, TEXTS, TEXTS, TEXTS, TEXTS, BOOLS, INT4S, INT4S],
        "INSERT INTO sayiir.definition_step (definition_hash, step, kind, task, join_rule, optional, prerequisites, position)
         SELECT $1, i.* FROM ROWS FROM (unnest($2), unnest($3), unnest($4), unnest($5), unnest($6), unnest($7), unnest($8)) AS i",
    );
    static EDGES: Statement = Statement::new(
        &[BYTES, TEXTS, TEXTS, TEXTS],
        "INSERT INTO sayiir.definition_edge (definition_hash, step, prerequisite, satisfied_by)
         SELECT $1, i.* FROM ROWS FROM (unnest($2), unnest($3), unnest($4)) AS i",
    );
    let hash = &graph.hash[..];
    if INSERT.run(session, args![hash, body]).is_empty() {
        return;
    }
    let positions = positions(graph);
    let steps = &graph.steps;
    STEPS.run(
        session,
        args![
            hash,
            steps
                .iter()
                .map(|step| step.key.clone())
                .collect::<Vec<_>>(),
            steps
                .iter()
                .map(|step| kind(&step.kind).to_owned())
                .collect::<Vec<_>>(),
            steps
                .iter()
                .map(|step| task(&step.kind))
                .collect::<Vec<_>>(),
            steps
                .iter()
                .map(|step| step.join.as_str().to_owned())
                .collect::<Vec<_>>(),
            steps.iter().map(|step| step.optional).collect::<Vec<_>>(),
            steps
                .iter()
                .map(|step| step.after.len() as i32)
                .collect::<Vec<_>>(),
            positions,
        ],
    );
    let edges = || {
        steps
            .iter()
            .flat_map(|step| step.after.iter().map(move |edge| (step, edge)))
    };
    if edges().next().is_some() {
        EDGES.run(
            session,
            args![
                hash,
                edges()
                    .map(|(step, _)| step.key.clone())
                    .collect::<Vec<_>>(),
                edges()
                    .map(|(_, edge)| steps[edge.step].key.clone())
                    .collect::<Vec<_>>(),
                edges()
                    .map(|(_, edge)| edge.on.as_str().to_owned())
                    .collect::<Vec<_>>(),
            ],
        );
    }
}

/// The order in which people read the steps: prerequisites first, by the longest way from a root, then by key.
fn positions(graph: &Graph) -> Vec<i32> {
    let mut depth = vec![0usize; graph.steps.len()];
    let mut open: Vec<usize> = graph.steps.iter().map(|step| step.after.len()).collect();
    let mut queue: Vec<usize> = graph.roots.clone();
    while let Some(step) = queue.pop() {
        for edge in &graph.steps[step].dependents {
            depth[edge.step] = depth[edge.step].max(depth[step] + 1);
            open[edge.step] -= 1;
            if open[edge.step] == 0 {
                queue.push(edge.step);
            }
        }
    }
    let mut order: Vec<usize> = (0..graph.steps.len()).collect();
    order.sort_by_key(|step| (depth[*step], *step));
    let mut positions = vec![0; order.len()];
    for (position, step) in order.into_iter().enumerate() {
        positions[step] = position as i32;
    }
    positions
}

fn kind(kind: &Kind) -> &'static str {
    match kind {
        Kind::Task(_) => "task",
        Kind::Event(_) => "event",
        Kind::Delay(_) => "delay",
    }
}

fn task(kind: &Kind) -> Option<String> {
    match kind {
        Kind::Task(step) => Some(step.task.clone()),
        _ => None,
    }
}

/// A registered version of a name.
pub struct Version {
    pub version: i32,
    pub hash: Vec<u8>,
    /// Under the asked organization, not taken from the global ones.
    pub own: bool,
}

/// The asked version of a name, or the active one: the organization's own first, then the global one.
pub fn find(
    session: &Session,
    organization: Option<&str>,
    name: &str,
    version: Option<i32>,
) -> Option<Version> {
    // definition_version_name_version_organization_id_key, definition_version_active
    static ACTIVE: Statement = Statement::new(
        &[TEXT, TEXT],
        "SELECT version, definition_hash, organization_id IS NOT DISTINCT FROM $1 FROM sayiir.definition_version
         WHERE name = $2 AND active AND (organization_id = $1 OR organization_id IS NULL)
         ORDER BY organization_id NULLS LAST LIMIT 1",
    );
    static ONE: Statement = Statement::new(
        &[TEXT, TEXT, INT4],
        "SELECT version, definition_hash, organization_id IS NOT DISTINCT FROM $1 FROM sayiir.definition_version
         WHERE name = $2 AND version = $3 AND (organization_id = $1 OR organization_id IS NULL)
         ORDER BY organization_id NULLS LAST LIMIT 1",
    );
    let rows = match version {
        None => ACTIVE.run(session, args![organization, name]),
        Some(version) => ONE.run(session, args![organization, name, version]),
    };
    rows.first().map(|row| Version {
        version: row.get(1),
        hash: row.get(2),
        own: row.get(3),
    })
}

/// Locks a name while a version of it is registered or made active, so that versions count up one by one.
pub fn lock_name(session: &Session, organization: Option<&str>, name: &str) {
    static LOCK: Statement = Statement::new(
        &[TEXT, TEXT],
        "SELECT pg_advisory_xact_lock(hashtextextended('sayiir.definition' || coalesce($1, '') || chr(1) || $2, 0))",
    );
    LOCK.run(session, args![organization, name]);
}

/// The version of a name that has this hash.
pub fn by_hash(
    session: &Session,
    organization: Option<&str>,
    name: &str,
    hash: &[u8],
) -> Option<(i32, bool)> {
    // definition_version_name_version_organization_id_key
    static FIND: Statement = Statement::new(
        &[TEXT, TEXT, BYTES],
        "SELECT version, active FROM sayiir.definition_version
         WHERE name = $2 AND definition_hash = $3 AND organization_id IS NOT DISTINCT FROM $1
         ORDER BY version DESC LIMIT 1",
    );
    FIND.run(session, args![organization, name, hash])
        .first()
        .map(|row| (row.get(1), row.get(2)))
}

/// Registers the next version of a name. The name is locked.
pub fn register(session: &Session, organization: Option<&str>, name: &str, hash: &[u8]) -> i32 {
    static REGISTER: Statement = Statement::new(
        &[TEXT, TEXT, BYTES],
        "INSERT INTO sayiir.definition_version (organization_id, name, version, definition_hash, active)
         SELECT $1, $2, coalesce(max(version), 0) + 1, $3, false FROM sayiir.definition_version
         WHERE name = $2 AND organization_id IS NOT DISTINCT FROM $1
         RETURNING version",
    );
    REGISTER
        .run(session, args![organization, name, hash])
        .first()
        .expect("one row")
        .get(1)
}

/// Makes one version the active one; false when there is no such version. The name is locked.
pub fn activate(session: &Session, organization: Option<&str>, name: &str, version: i32) -> bool {
    // Off before on: the unique index allows one active version at every moment.
    static OFF: Statement = Statement::new(
        &[TEXT, TEXT, INT4],
        "UPDATE sayiir.definition_version SET active = false
         WHERE name = $2 AND organization_id IS NOT DISTINCT FROM $1 AND active AND version <> $3",
    );
    static ON: Statement = Statement::new(
        &[TEXT, TEXT, INT4, BOOL],
        "UPDATE sayiir.definition_version SET active = $4
         WHERE name = $2 AND organization_id IS NOT DISTINCT FROM $1 AND version = $3 RETURNING true",
    );
    OFF.run(session, args![organization, name, version]);
    !ON.run(session, args![organization, name, version, true])
        .is_empty()
}
