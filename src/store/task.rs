//! `task`: defaults of a task.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::args;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::{Row, Session, Statement};
use crate::pg::types::{BOOL, INT4, INT8, JSONB, TEXT, TEXTS};

/// What a task says of its jobs; None = the engine's default.
#[derive(Clone, Debug, Default)]
pub struct Task {
    pub max_attempts: Option<i32>,
    pub timeout_us: Option<i64>,
    pub lease_us: Option<i64>,
    pub priority: Option<i32>,
    pub retry_initial_us: Option<i64>,
    pub retry_factor: Option<f64>,
    pub retry_max_us: Option<i64>,
    pub retry_jitter: Option<f64>,
    pub enabled: bool,
}

/// (organization, task)
type Key = (Option<String>, String);

thread_local! {
    static KNOWN: RefCell<HashMap<Key, Option<Task>>> = RefCell::new(HashMap::new());
}

pub fn forget() {
    KNOWN.with_borrow_mut(HashMap::clear);
}

/// The organization's own definition of the task, else the global one.
pub fn find(session: &Session, organization: Option<&str>, task: &str) -> Option<Task> {
    let watch = super::cache::watch();
    let key = (organization.map(str::to_owned), task.to_owned());
    if let Some(known) = KNOWN.with_borrow(|known| known.get(&key).cloned()) {
        return known;
    }
    // task_task_organization_id_key
    static FIND: Statement = Statement::new(
        &[TEXT, TEXT],
        "SELECT max_attempts, timeout_us, lease_us, priority,
                sayiir.interval_us(retry ->> 'initial'), (retry ->> 'factor')::float8,
                sayiir.interval_us(retry ->> 'max'), (retry ->> 'jitter')::float8, enabled
         FROM sayiir.task
         WHERE task = $2 AND (organization_id = $1 OR organization_id IS NULL)
         ORDER BY organization_id NULLS LAST
         LIMIT 1",
    );
    let found = FIND
        .run(session, args![organization, task])
        .first()
        .map(|row: Row| Task {
            max_attempts: row.opt(1),
            timeout_us: row.opt(2),
            lease_us: row.opt(3),
            priority: row.opt(4),
            retry_initial_us: row.opt(5),
            retry_factor: row.opt(6),
            retry_max_us: row.opt(7),
            retry_jitter: row.opt(8),
            enabled: row.get(9),
        });
    if watch.may_keep() {
        KNOWN.with_borrow_mut(|known| known.insert(key, found.clone()));
    }
    found
}

/// What `task_define` sets; None keeps what is there.
pub struct Definition<'a> {
    pub organization: Option<&'a str>,
    pub task: &'a str,
    pub max_attempts: Option<i32>,
    pub timeout_us: Option<i64>,
    pub lease_us: Option<i64>,
    pub priority: Option<i32>,
    pub retry: Option<Jsonb>,
    pub enabled: Option<bool>,
    pub options: Option<Jsonb>,
}

/// Inserts or updates a task's row.
pub fn define(session: &Session, new: &Definition) {
    // task_task_organization_id_key
    static UPSERT: Statement = Statement::new(
        &[TEXT, TEXT, INT4, INT8, INT8, INT4, JSONB, BOOL, JSONB],
        "INSERT INTO sayiir.task AS t (organization_id, task, max_attempts, timeout_us, lease_us, priority, retry, enabled, options)
         VALUES ($1, $2, $3, $4, $5, $6, $7, coalesce($8, true), coalesce($9, '{}'))
         ON CONFLICT (task, organization_id) DO UPDATE
         SET max_attempts = coalesce($3, t.max_attempts), timeout_us = coalesce($4, t.timeout_us),
             lease_us = coalesce($5, t.lease_us), priority = coalesce($6, t.priority), retry = coalesce($7, t.retry),
             enabled = coalesce($8, t.enabled), options = coalesce($9, t.options), updated_at = clock_timestamp()",
    );
    UPSERT.run(
        session,
        args![
            new.organization,
            new.task,
            new.max_attempts,
            new.timeout_us,
            new.lease_us,
            new.priority,
            new.retry,
            new.enabled,
            new.options
        ],
    );
    super::cache::changed(c"task");
}

/// Sets `paused`. The lanes follow: see [`StandingStill`].
pub fn set_paused(session: &Session, organization: Option<&str>, task: &str, paused: bool) {
    // An organization's own row hides the global one, so it begins as its copy: a pause must not change the policy.
    static UPSERT: Statement = Statement::new(
        &[TEXT, TEXT, BOOL],
        "INSERT INTO sayiir.task AS t (organization_id, task, paused, max_attempts, timeout_us, lease_us, priority, retry, enabled,
             options)
         SELECT $1, $2, $3, g.max_attempts, g.timeout_us, g.lease_us, g.priority, g.retry, coalesce(g.enabled, true),
             coalesce(g.options, '{}')
         FROM (VALUES (true)) AS one (one)
         LEFT JOIN sayiir.task g ON g.task = $2 AND g.organization_id IS NULL
         ON CONFLICT (task, organization_id) DO UPDATE SET paused = $3, updated_at = clock_timestamp()",
    );
    UPSERT.run(session, args![organization, task, paused]);
    super::cache::changed(c"task");
}

/// Which tasks are paused or disabled, and so may not be claimed.
pub struct StandingStill(HashMap<(Option<String>, String), bool>);

impl StandingStill {
    /// Of these tasks, or of all.
    pub fn read(session: &Session, tasks: Option<&[String]>) -> Self {
        // task_task_organization_id_key
        static OF_TASKS: Statement = Statement::new(
            &[TEXTS],
            "SELECT organization_id, task, paused OR NOT enabled FROM sayiir.task WHERE task = ANY ($1)",
        );
        // task_pkey, whole: once after each change of a lane or task
        static EVERY: Statement = Statement::new(
            &[],
            "SELECT organization_id, task, paused OR NOT enabled FROM sayiir.task ORDER BY id",
        );
        let rows = match tasks {
            Some(tasks) => OF_TASKS.run(session, args![tasks.to_vec()]),
            None => EVERY.run(session, &[]),
        };
        Self(
            rows.iter()
                .map(|row| ((row.opt(1), row.get(2)), row.get(3)))
                .collect(),
        )
    }

    /// The organization's own row decides, then the global one.
    pub fn contains(&self, organization: Option<String>, task: String) -> bool {
        let own = self.0.get(&(organization, task.clone()));
        *own.or_else(|| self.0.get(&(None, task))).unwrap_or(&false)
    }
}

/// The task's row as `task_info`.
pub fn info(
    session: &Session,
    organization: Option<&str>,
    task: &str,
) -> Vec<crate::pg::table::Line> {
    static READ: Statement = Statement::new(
        &[TEXT, TEXT],
        "SELECT task, organization_id, max_attempts, timeout_us * interval '1 microsecond',
                lease_us * interval '1 microsecond', priority, retry, enabled, paused, options, created_at, updated_at
         FROM sayiir.task WHERE task = $2 AND organization_id IS NOT DISTINCT FROM $1",
    );
    READ.run(session, args![organization, task])
        .iter()
        .map(|row| row.keep(session))
        .collect()
}

/// Locks every task of an organization in order of task.
pub fn lock_all(session: &Session, organization: Option<&str>) {
    // The sort is over the tasks of one organization.
    static LOCK: Statement = Statement::new(
        &[TEXT],
        "SELECT FROM sayiir.task WHERE organization_id IS NOT DISTINCT FROM $1 ORDER BY task FOR NO KEY UPDATE",
    );
    LOCK.run(session, args![organization]);
}

/// Sets a task to what the definition says and nothing else, but for `enabled`, where None keeps it. Answers created, updated or
/// unchanged.
pub fn replace(session: &Session, new: &Definition) -> &'static str {
    // task_task_organization_id_key
    static REPLACE: Statement = Statement::new(
        &[TEXT, TEXT, INT4, INT8, INT8, INT4, JSONB, BOOL, JSONB],
        "INSERT INTO sayiir.task AS t (organization_id, task, max_attempts, timeout_us, lease_us, priority, retry, enabled, options)
         VALUES ($1, $2, $3, $4, $5, $6, $7, coalesce($8, true), coalesce($9, '{}'))
         ON CONFLICT (task, organization_id) DO UPDATE
         SET max_attempts = $3, timeout_us = $4, lease_us = $5, priority = $6, retry = $7,
             enabled = coalesce($8, t.enabled), options = coalesce($9, '{}'), updated_at = clock_timestamp()
         WHERE (t.max_attempts, t.timeout_us, t.lease_us, t.priority, t.retry, t.enabled, t.options)
             IS DISTINCT FROM ($3, $4, $5, $6, $7, coalesce($8, t.enabled), coalesce($9, '{}'))
         RETURNING t.xmax = 0",
    );
    let rows = REPLACE.run(
        session,
        args![
            new.organization,
            new.task,
            new.max_attempts,
            new.timeout_us,
            new.lease_us,
            new.priority,
            new.retry,
            new.enabled,
            new.options
        ],
    );
    let disposition = match rows.first().map(|row| row.get::<bool>(1)) {
        None => return "unchanged",
        Some(true) => "created",
        Some(false) => "updated",
    };
    super::cache::changed(c"task");
    disposition
}

/// Disables the enabled tasks of an organization that are not among `names`; answers which. Their rows are locked.
pub fn disable_others(
    session: &Session,
    organization: Option<&str>,
    names: Vec<String>,
) -> Vec<String> {
    static DISABLE: Statement = Statement::new(
        &[TEXT, TEXTS],
        "UPDATE sayiir.task SET enabled = false, updated_at = clock_timestamp()
         WHERE organization_id IS NOT DISTINCT FROM $1 AND task <> ALL ($2) AND enabled RETURNING task",
    );
    let disabled: Vec<String> = DISABLE
        .run(session, args![organization, names])
        .iter()
        .map(|row| row.get(1))
        .collect();
    if !disabled.is_empty() {
        super::cache::changed(c"task");
    }
    disabled
}
