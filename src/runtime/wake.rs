//! How the engine wakes others, and waits to be woken. Wake-ups are hints: tables are the truth, and a lost one costs time only.
//!
//! The engine calls these while it writes; what they say is told after the commit (`commit`), and never if the transaction is rolled
//! back. What a rolled-back savepoint said is told: its mark may be the parent's, too.

use super::pending::{self, Channel};
use super::shmem;
use super::waiting::{self, Interest};
use crate::pg::clock::Instant;
use crate::settings;

/// Longest payload of NOTIFY, in bytes.
const MAX_PAYLOAD: usize = 7999;

/// A job of this task became claimable. Channel `sayiir_job_ready`, payload: the task, once a transaction.
pub fn job_ready(task: &str) {
    pending::with(|pending| {
        pending.jobs |= pending::class(task.as_bytes());
        if settings::NOTIFY.get() {
            pending.notify(Channel::JobReady, task.as_bytes());
        }
    });
    shmem::my_database();
}

/// A workflow ended. Channel `sayiir_workflow_finished`, payload: JSON, or empty when it would not fit.
pub fn workflow_finished(workflow_id: &str, status: &str) {
    pending::with(|pending| {
        pending.workflows |= pending::class(workflow_id.as_bytes());
        if settings::NOTIFY.get() {
            let text = |value: &str| serde_json::Value::from(value).to_string();
            let payload = format!(
                "{{\"workflow_id\": {}, \"status\": {}}}",
                text(workflow_id),
                text(status)
            );
            let payload = if payload.len() <= MAX_PAYLOAD {
                payload.as_str()
            } else {
                ""
            };
            pending.notify(Channel::WorkflowFinished, payload.as_bytes());
        }
    });
    shmem::my_database();
}

/// An effect came to an end, or to where a person has to act. Channel `sayiir_effect`, payload: JSON.
pub fn effect_settled(id: pgrx::Uuid, status: &str) {
    if settings::NOTIFY.get() {
        let payload = format!("{{\"id\": \"{id}\", \"status\": \"{status}\"}}");
        pending::with(|pending| pending.notify(Channel::Effect, payload.as_bytes()));
        shmem::my_database();
    }
}

/// A timer, lease or deadline was set: a sweep has to look then.
pub fn timer_at(at: Instant) {
    if at.is_finite() {
        pending::with(|pending| pending.timer_at(at));
        shmem::my_database();
    }
}

/// Sleeps until a job of any task becomes claimable in this database, at most `ms` milliseconds or a second. It may return early; the
/// caller looks again.
pub fn wait_for_work(ms: i64) {
    waiting::wait(
        Interest {
            jobs: u64::MAX,
            workflows: 0,
        },
        ms,
    );
}

/// The same for a job of one of these tasks.
pub fn wait_for_job(tasks: &[String], ms: i64) {
    let jobs = tasks
        .iter()
        .fold(0, |classes, task| classes | pending::class(task.as_bytes()));
    waiting::wait(Interest { jobs, workflows: 0 }, ms);
}

/// The same for the end of a workflow.
pub fn wait_for_workflow(workflow_id: &str, ms: i64) {
    waiting::wait(
        Interest {
            jobs: 0,
            workflows: pending::class(workflow_id.as_bytes()),
        },
        ms,
    );
}
