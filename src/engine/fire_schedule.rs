//! Fire: the ticks of a schedule that are due start their job or workflow. The schedule's row is locked, and a tick is known by its
//! nominal time, so that however many sweep, each fires once.

use pgrx::Uuid;
use sayiir_rules::schedule::{Overlap, Plan, time_text};
use serde_json::{Map, Value, json};

use crate::engine::enqueue::PolicyRequest;
use crate::engine::schedule::Work;
use crate::engine::start::OnConflict;
use crate::engine::{define, enqueue, owner, schedule, start};
use crate::error::{Code, Result};
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::Session;
use crate::runtime::wake;
use crate::store;
use crate::store::schedule::Schedule;

/// Ticks of one schedule that a sweep fires at most; the next one goes on.
const MAX_FIRES: usize = 100;

/// What became of a tick.
pub struct Fired {
    pub nominal: Instant,
    /// started, existing, skipped
    pub disposition: &'static str,
    pub job: Option<Uuid>,
    pub workflow_id: Option<String>,
}

/// Schedules that are due. No lock.
pub fn due(session: &Session, max_rows: i32) -> Vec<i64> {
    store::schedule::due(session, Instant::now(), max_rows)
}

/// Fires the given schedules; one that another session holds is being fired there. Answers how many ticks were decided.
pub fn fire(session: &Session, due: &[i64]) -> Result<i64> {
    let mut done = 0;
    for mut schedule in store::schedule::lock_due(session, due.to_vec(), Instant::now()) {
        let Some(next) = schedule.next_at else {
            continue;
        };
        let calendar = schedule::calendar_of(&schedule)?;
        let now = Instant::now();
        let (plan, due) = schedule::with_rule(&schedule, &calendar, |rule| {
            let plan: Plan = rule.plan(next.unix_us(), now.unix_us(), MAX_FIRES);
            let due = plan.next.map(|next| rule.due(next));
            (plan, due)
        });
        for nominal in plan.fires {
            fire_one(session, &mut schedule, Instant::from_unix_us(nominal), now)?;
            done += 1;
        }
        let due = due.map(Instant::from_unix_us);
        store::schedule::set_next(
            session,
            schedule.id,
            plan.next.map(Instant::from_unix_us),
            due,
        );
        if let Some(due) = due {
            wake::timer_at(due);
        }
    }
    Ok(done)
}

/// Fires a schedule now, beside its ticks.
pub fn run(session: &Session, organization: Option<&str>, name: &str) -> Result<Fired> {
    owner::require_read_committed("schedule_run")?;
    let mut schedule = schedule::find(session, organization, name)?;
    let now = Instant::now();
    fire_one(session, &mut schedule, now, now)
}

/// One tick of a locked schedule.
fn fire_one(
    session: &Session,
    schedule: &mut Schedule,
    nominal: Instant,
    now: Instant,
) -> Result<Fired> {
    let mut fired = Fired {
        nominal,
        disposition: "skipped",
        job: None,
        workflow_id: None,
    };
    let overlaps = schedule.overlap == Overlap::Skip.as_str()
        && store::schedule::is_going_on(session, schedule);
    if !store::schedule::take_tick(session, schedule.id, nominal, fired.disposition, now) {
        fired.disposition = "existing";
        return Ok(fired);
    }
    if overlaps {
        return Ok(fired);
    }
    let options = match schedule.options.to_value() {
        Some(Value::Object(options)) => options,
        _ => Map::new(),
    };
    let work = Work::read(&options)?;
    let key = format!("{}/{}", schedule.name, time_text(nominal.unix_us()));
    if let Some(task) = schedule.task.clone() {
        let (job, disposition) = enqueue_job(session, schedule, &task, work, &key)?;
        (fired.job, fired.disposition) = (job, disposition);
    } else if let Some(workflow) = schedule.workflow.clone() {
        let (id, disposition) = start_workflow(session, schedule, &workflow, work, nominal, &key)?;
        (fired.workflow_id, fired.disposition) = (Some(id), disposition);
    }
    store::schedule::note_started(
        session,
        schedule.id,
        nominal,
        fired.disposition,
        fired.job,
        fired.workflow_id.as_deref(),
    );
    // A later tick of the same sweep asks whether this one goes on.
    (schedule.last_job, schedule.last_workflow) = (fired.job, fired.workflow_id.clone());
    Ok(fired)
}

fn enqueue_job(
    session: &Session,
    schedule: &Schedule,
    task: &str,
    work: Work,
    key: &str,
) -> Result<(Option<Uuid>, &'static str)> {
    let request = enqueue::Request {
        organization: schedule.organization.clone(),
        task,
        priority: work.priority,
        run_at: None,
        tags: work.tags,
        trace_parent: None,
        policy: PolicyRequest {
            max_attempts: work.max_attempts,
            ..Default::default()
        },
        options: json!({}),
    };
    match enqueue::enqueue(session, &request, schedule.payload, Some(key)) {
        Ok((id, true)) => Ok((Some(id), "started")),
        Ok((id, false)) => Ok((Some(id), "existing")),
        // Somebody has enqueued a job under the tick's own key. Refusing would hold up the schedule for ever.
        Err(error) if error.code() == Code::JobIdempotencyConflict => Ok((None, "existing")),
        Err(error) => Err(error),
    }
}

fn start_workflow(
    session: &Session,
    schedule: &Schedule,
    workflow: &str,
    work: Work,
    nominal: Instant,
    key: &str,
) -> Result<(String, &'static str)> {
    let organization = schedule.organization.clone();
    let (graph, version) =
        define::resolve(session, organization.as_deref(), workflow, work.version)?;
    let request = start::Request {
        organization,
        name: &graph.name,
        version: Some(version),
        asked: json!({"version": work.version}),
        input: schedule.payload,
        metadata: Jsonb::from_value(
            &json!({"schedule": schedule.name, "scheduled_for": time_text(nominal.unix_us())}),
        ),
        workflow_id: Some(key),
        idempotency_key: None,
        active_key: None,
        run_at: None,
        trace_parent: None,
        on_conflict: OnConflict::UseExisting,
    };
    start::start(session, &graph, &request)
}
