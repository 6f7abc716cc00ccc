//! `lane`: the queue of one (organization, task, priority, tag set).

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::args;
use crate::pg::spi::{Row, Session, Statement};
use crate::pg::types::{BOOL, INT4, INT8, TEXT, TEXTS};
use crate::scope::Scope;

/// A lane a claim may take from.
#[derive(Clone, Debug)]
pub struct Lane {
    pub id: i64,
    pub tags: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    organization: Option<String>,
    task: String,
    priority: i32,
    tags: Vec<String>,
}

/// What a claim asked for: the lanes it may take from are found once and kept.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Filter {
    all: bool,
    organization: Option<String>,
    tasks: Vec<String>,
    tags: Vec<String>,
}

thread_local! {
    static BY_KEY: RefCell<HashMap<Key, i64>> = RefCell::new(HashMap::new());
    static BY_FILTER: RefCell<HashMap<Filter, Rc<Vec<Lane>>>> = RefCell::new(HashMap::new());
}

/// Most claim filters that one backend keeps; a pooled backend sees many workers.
const MAX_FILTERS: usize = 64;

pub fn forget() {
    BY_KEY.with_borrow_mut(HashMap::clear);
    BY_FILTER.with_borrow_mut(HashMap::clear);
}

/// The lane of a job, made when it is the first of its key. `tags` are canonical. Two sessions may make two lanes for one key:
/// claims treat them alike, and no enqueuer waits for another.
pub fn of_job(
    session: &Session,
    organization: Option<&str>,
    task: &str,
    priority: i32,
    tags: &[String],
) -> i64 {
    super::cache::watch();
    let key = Key {
        organization: organization.map(str::to_owned),
        task: task.to_owned(),
        priority,
        tags: tags.to_vec(),
    };
    if let Some(id) = BY_KEY.with_borrow(|known| known.get(&key).copied()) {
        return id;
    }
    // lane_task
    static FIND: Statement = Statement::new(
        &[TEXT, TEXT, INT4, TEXTS],
        "SELECT lane FROM sayiir.lane
         WHERE task = $2 AND organization_id IS NOT DISTINCT FROM $1 AND priority = $3 AND tags = $4
         LIMIT 1",
    );
    let found = FIND
        .run(session, args![organization, task, priority, tags.to_vec()])
        .first()
        .map(|row| row.get(1));
    let id = found.unwrap_or_else(|| create(session, organization, task, priority, tags));
    BY_KEY.with_borrow_mut(|known| known.insert(key, id));
    id
}

fn create(
    session: &Session,
    organization: Option<&str>,
    task: &str,
    priority: i32,
    tags: &[String],
) -> i64 {
    static NEXT: Statement = Statement::new(&[], "SELECT pg_catalog.nextval('sayiir.lane_seq')");
    // A new lane of a paused task is born paused.
    static INSERT: Statement = Statement::new(
        &[INT8, TEXT, TEXT, INT4, TEXTS],
        "INSERT INTO sayiir.lane (lane, organization_id, task, priority, tags, paused)
         SELECT $1, $2, $3, $4, $5, coalesce((
             SELECT t.paused OR NOT t.enabled FROM sayiir.task t
             WHERE t.task = $3 AND (t.organization_id = $2 OR t.organization_id IS NULL)
             ORDER BY t.organization_id NULLS LAST LIMIT 1), false)",
    );
    let sequence: i64 = NEXT
        .run(session, &[])
        .first()
        .expect("a sequence answers")
        .get(1);
    let id = sayiir_rules::lane::lane_id(priority, sequence);
    INSERT.run(
        session,
        args![id, organization, task, priority, tags.to_vec()],
    );
    super::cache::changed(c"lane");
    id
}

/// The unpaused lanes that a worker may take from, by id: priority first. `tasks` = None takes every task.
pub fn compatible(
    session: &Session,
    scope: &Scope,
    tasks: Option<&[String]>,
    tags: &[String],
) -> Rc<Vec<Lane>> {
    super::cache::watch();
    let (all, organization) = match scope {
        Scope::All => (true, None),
        Scope::One(organization) => (false, organization.clone()),
    };
    let filter = Filter {
        all,
        organization,
        tasks: tasks.map(<[_]>::to_vec).unwrap_or_default(),
        tags: tags.to_vec(),
    };
    if let Some(known) = BY_FILTER.with_borrow(|known| known.get(&filter).cloned()) {
        return known;
    }
    let [every, organization] = scope.args();
    let read = |row: Row| Lane {
        id: row.get(1),
        tags: row.get(2),
    };
    let lanes: Vec<Lane> = match tasks {
        // lane_task
        Some(tasks) => {
            static OF_TASKS: Statement = Statement::new(
                &[BOOL, TEXT, TEXTS],
                "SELECT lane, tags FROM sayiir.lane
                 WHERE task = ANY ($3) AND NOT paused AND ($1 OR organization_id IS NOT DISTINCT FROM $2)",
            );
            OF_TASKS
                .run(
                    session,
                    &[
                        every,
                        organization,
                        pgrx::IntoDatum::into_datum(tasks.to_vec()),
                    ],
                )
                .iter()
                .map(read)
                .collect()
        }
        // lane_pkey, whole: once after each change of a lane
        None => {
            static EVERY: Statement = Statement::new(
                &[BOOL, TEXT],
                "SELECT lane, tags FROM sayiir.lane
                 WHERE NOT paused AND ($1 OR organization_id IS NOT DISTINCT FROM $2) ORDER BY lane",
            );
            EVERY
                .run(session, &[every, organization])
                .iter()
                .map(read)
                .collect()
        }
    };
    let mut lanes: Vec<Lane> = lanes
        .into_iter()
        .filter(|lane| sayiir_rules::lane::compatible(&lane.tags, tags))
        .collect();
    lanes.sort_by_key(|lane| lane.id);
    let lanes = Rc::new(lanes);
    BY_FILTER.with_borrow_mut(|known| {
        if known.len() >= MAX_FILTERS {
            known.clear();
        }
        known.insert(filter, Rc::clone(&lanes));
    });
    lanes
}

/// Pauses or resumes the lanes of a task; a task of one organization touches only that organization's lanes, a global one every
/// lane whose organization has no row of its own for the task.
pub fn set_paused(session: &Session, organization: Option<&str>, task: &str, paused: bool) {
    static SET: Statement = Statement::new(
        &[TEXT, TEXT, BOOL],
        "UPDATE sayiir.lane l SET paused = $3
         WHERE l.task = $2 AND l.paused <> $3
           AND (l.organization_id = $1
                OR ($1 IS NULL AND NOT EXISTS (
                    SELECT FROM sayiir.task t WHERE t.task = $2 AND t.organization_id = l.organization_id)))",
    );
    SET.run(session, args![organization, task, paused]);
    super::cache::changed(c"lane");
}
