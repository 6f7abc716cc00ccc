//! Sync: the tasks that a program knows, set at once as it says; with `exact`, what it does not know is disabled.

use sayiir_rules::ids;
use serde_json::Value;

use crate::engine::enqueue::{self, PolicyRequest};
use crate::engine::owner;
use crate::error::{Code, Error, Result};
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::Session;
use crate::runtime::wake;
use crate::store;
use crate::store::task::Definition;

/// One task as the program says it.
pub struct Task {
    pub name: String,
    pub policy: PolicyRequest,
    pub priority: Option<i32>,
    pub retry: Option<Value>,
    /// None = as it is; with `exact` enabled.
    pub enabled: Option<bool>,
    pub options: Option<Value>,
}

/// Sets the tasks of an organization. Answers (task, created, updated, unchanged or disabled) in order of task.
pub fn sync(
    session: &Session,
    organization: Option<&str>,
    mut tasks: Vec<Task>,
    exact: bool,
) -> Result<Vec<(String, &'static str)>> {
    owner::require_read_committed("task_sync")?;
    let refuse =
        |problem: String| Err(Error::new(Code::ArgumentInvalid, problem).with("argument", "tasks"));
    if exact && tasks.is_empty() {
        return refuse("an exact sync of no tasks would disable all".to_owned());
    }
    tasks.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = tasks.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return refuse(format!("task {:?} is there twice", pair[0].name));
    }
    let now = Instant::now();
    for task in &tasks {
        ids::check_name("task", &task.name)?;
        enqueue::policy(&task.policy, &store::task::Task::default(), now)?;
    }
    let names: Vec<String> = tasks.iter().map(|task| task.name.clone()).collect();
    if exact {
        // All rows in one order before any is written, so that two programs never wait for each other in a circle.
        store::task::lock_all(session, organization);
    }
    let mut answers = Vec::with_capacity(tasks.len());
    for task in tasks {
        let definition = Definition {
            organization,
            task: &task.name,
            max_attempts: task.policy.max_attempts,
            timeout_us: task.policy.timeout_us,
            lease_us: task.policy.lease_us,
            priority: task.priority,
            retry: task.retry.as_ref().map(Jsonb::from_value),
            enabled: task.enabled.or(exact.then_some(true)),
            options: task.options.as_ref().map(Jsonb::from_value),
        };
        let disposition = store::task::replace(session, &definition);
        if disposition != "unchanged" {
            // It may have been disabled before.
            wake::job_ready(&task.name);
        }
        answers.push((task.name, disposition));
    }
    if exact {
        let disabled = store::task::disable_others(session, organization, names);
        answers.extend(disabled.into_iter().map(|task| (task, "disabled")));
        answers.sort();
    }
    Ok(answers)
}
