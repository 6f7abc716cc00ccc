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
    /// None = every task.
    tasks: Option<Vec<String>>,
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
    let watch = super::cache::watch();
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
    match found {
        Some(id) => {
            if watch.may_keep() {
                BY_KEY.with_borrow_mut(|known| known.insert(key, id));
            }
            id
        }
        // Kept when it is found again: it is known to nobody until the commit.
        None => create(session, organization, task, priority, tags),
    }
}

fn create(
    session: &Session,
    organization: Option<&str>,
    task: &str,
    priority: i32,
    tags: &[String],
) -> i64 {
    static NEXT: Statement = Statement::new(&[], "SELECT pg_catalog.nextval('sayiir.lane_seq')");
    static INSERT: Statement = Statement::new(
        &[INT8, TEXT, TEXT, INT4, TEXTS],
        "INSERT INTO sayiir.lane (lane, organization_id, task, priority, tags) VALUES ($1, $2, $3, $4, $5)",
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

/// The lanes that a worker may take from, by id: priority first. `tasks` = None takes every task. Lanes of a task that is paused or
/// disabled are not among them; only the task's row says so, hence a lane made while its task is being paused stands still, too.
pub fn compatible(
    session: &Session,
    scope: &Scope,
    tasks: Option<&[String]>,
    tags: &[String],
) -> Rc<Vec<Lane>> {
    let watch = super::cache::watch();
    let (all, organization) = match scope {
        Scope::All => (true, None),
        Scope::One(organization) => (false, organization.clone()),
    };
    let filter = Filter {
        all,
        organization,
        tasks: tasks.map(<[_]>::to_vec),
        tags: tags.to_vec(),
    };
    if let Some(known) = BY_FILTER.with_borrow(|known| known.get(&filter).cloned()) {
        return known;
    }
    let [every, organization] = scope.args();
    let still = super::task::StandingStill::read(session, tasks);
    let read = |row: Row| {
        let (organization, task): (Option<String>, String) = (row.opt(3), row.get(4));
        let lane = Lane {
            id: row.get(1),
            tags: row.get(2),
        };
        (!still.contains(organization, task)).then_some(lane)
    };
    let lanes: Vec<Lane> = match tasks {
        // lane_task
        Some(tasks) => {
            static OF_TASKS: Statement = Statement::new(
                &[BOOL, TEXT, TEXTS],
                "SELECT lane, tags, organization_id, task FROM sayiir.lane
                 WHERE task = ANY ($3) AND ($1 OR organization_id IS NOT DISTINCT FROM $2)",
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
                .filter_map(read)
                .collect()
        }
        // lane_pkey, whole: once after each change of a lane
        None => {
            static EVERY: Statement = Statement::new(
                &[BOOL, TEXT],
                "SELECT lane, tags, organization_id, task FROM sayiir.lane
                 WHERE $1 OR organization_id IS NOT DISTINCT FROM $2 ORDER BY lane",
            );
            EVERY
                .run(session, &[every, organization])
                .iter()
                .filter_map(read)
                .collect()
        }
    };
    let mut lanes: Vec<Lane> = lanes
        .into_iter()
        .filter(|lane| sayiir_rules::lane::compatible(&lane.tags, tags))
        .collect();
    lanes.sort_by_key(|lane| lane.id);
    let lanes = Rc::new(lanes);
    if !watch.may_keep() {
        return lanes;
    }
    BY_FILTER.with_borrow_mut(|known| {
        if known.len() >= MAX_FILTERS {
            known.clear();
        }
        known.insert(filter, Rc::clone(&lanes));
    });
    lanes
}
