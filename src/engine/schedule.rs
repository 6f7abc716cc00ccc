//! Define, pause, resume and delete a schedule. Each locks its row, so that it meets no tick that is just firing.

use sayiir_rules::ids;
use sayiir_rules::lane::PRIORITIES;
use sayiir_rules::schedule as rules;
use sayiir_rules::schedule::{Calendar, DoubledTime, Missed, Overlap, Refused, SkippedTime};
use serde_json::{Map, Value};

use crate::engine::{define as definitions, enqueue, owner};
use crate::error::{Code, Error, Result};
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::Session;
use crate::runtime::wake;
use crate::store;
use crate::store::schedule::{Definition, Schedule};

/// Longest `jitter` and `grace`: a day.
pub const MAX_JITTER_US: i64 = 86_400_000_000;
/// Default of option `grace`: how late a tick may fire if `missed` is skip. A scheduler that calls tick() every minute stays below it.
pub const GRACE_US: i64 = 120_000_000;
/// The options of `schedule_define`.
pub const OPTIONS: &[&str] = &["priority", "tags", "max_attempts", "version", "grace"];

/// One `schedule_define`.
pub struct Request<'a> {
    pub organization: Option<String>,
    pub name: &'a str,
    pub cron: &'a str,
    pub timezone: &'a str,
    pub task: Option<&'a str>,
    pub workflow: Option<&'a str>,
    pub payload: Jsonb,
    pub missed: &'a str,
    pub skipped_time: &'a str,
    pub doubled_time: &'a str,
    pub overlap: &'a str,
    pub jitter_us: i64,
    pub grace_us: i64,
    pub options: Map<String, Value>,
}

/// What `options` say of the work that is started.
#[derive(Default)]
pub struct Work {
    pub priority: Option<i32>,
    pub tags: Vec<String>,
    pub max_attempts: Option<i32>,
    pub version: Option<i32>,
}

impl Work {
    pub fn read(options: &Map<String, Value>) -> Result<Self> {
        let integer = |key: &'static str| match options.get(key) {
            None => Ok(None),
            Some(value) => value
                .as_i64()
                .and_then(|n| i32::try_from(n).ok())
                .map(Some)
                .ok_or_else(|| invalid(key, "is not an integer")),
        };
        let tags = match options.get("tags") {
            None => Some(Vec::new()),
            Some(value) => value.as_array().and_then(|tags| {
                tags.iter()
                    .map(|tag| tag.as_str().map(str::to_owned))
                    .collect()
            }),
        };
        Ok(Self {
            priority: integer("priority")?,
            tags: sayiir_rules::lane::canonical_tags(
                tags.ok_or_else(|| invalid("tags", "is not an array of text"))?,
            ),
            max_attempts: integer("max_attempts")?,
            version: integer("version")?,
        })
    }
}

/// Makes a schedule, or changes the one of this name. Answers its key.
pub fn define(session: &Session, request: &Request) -> Result<i64> {
    owner::require_read_committed("schedule_define")?;
    check(session, request)?;
    let calendar = calendar(
        request.cron,
        request.timezone,
        request.skipped_time,
        request.doubled_time,
    )?;
    word("missed", request.missed, Missed::parse, Missed::ALL)?;
    word("overlap", request.overlap, Overlap::parse, Overlap::ALL)?;
    let options = Jsonb::from_value(&Value::Object(request.options.clone()));
    let new = Definition {
        organization: request.organization.as_deref(),
        name: request.name,
        cron: request.cron,
        timezone: request.timezone,
        task: request.task,
        workflow: request.workflow,
        payload: request.payload,
        missed: request.missed,
        skipped_time: request.skipped_time,
        doubled_time: request.doubled_time,
        overlap: request.overlap,
        jitter_us: request.jitter_us,
        grace_us: request.grace_us,
        options,
    };
    let (known, existed) = store::schedule::lock_or_create(session, &new);
    let same_times = existed
        && known.cron == request.cron
        && known.timezone == request.timezone
        && known.skipped_time == request.skipped_time
        && known.doubled_time == request.doubled_time;
    let next = match known.next_at {
        _ if known.paused => None,
        // What was missed before a deployment that defines it again is still missed.
        Some(next) if same_times => Some(next),
        _ => Some(first_after(&calendar, Instant::now())?),
    };
    let changed = Schedule {
        missed: request.missed.to_owned(),
        jitter_us: request.jitter_us,
        grace_us: request.grace_us,
        ..known
    };
    let due = next.map(|next| due(&changed, &calendar, next));
    store::schedule::define(session, changed.id, &new, next, due);
    if let Some(due) = due {
        wake::timer_at(due);
    }
    Ok(changed.id)
}

fn check(session: &Session, request: &Request) -> Result<()> {
    ids::check_name("name", request.name)?;
    enqueue::check_size("payload", request.payload)?;
    let work = Work::read(&request.options)?;
    let organization = request.organization.as_deref();
    match (request.task, request.workflow) {
        (Some(task), None) => {
            if work.version.is_some() {
                return Err(invalid("version", "is an option of workflows"));
            }
            enqueue::task(session, organization, task)?;
            if work
                .priority
                .is_some_and(|priority| !PRIORITIES.contains(&priority))
            {
                return Err(invalid("priority", "is not 0 to 99"));
            }
            for tag in &work.tags {
                ids::check_name("tag", tag)?;
            }
            let policy = enqueue::PolicyRequest {
                max_attempts: work.max_attempts,
                ..Default::default()
            };
            enqueue::policy(&policy, &store::task::Task::default(), Instant::now())?;
        }
        (None, Some(workflow)) => {
            if work.priority.is_some() || work.max_attempts.is_some() || !work.tags.is_empty() {
                return Err(invalid(
                    "priority, tags, max_attempts",
                    "are options of jobs",
                ));
            }
            definitions::resolve(session, organization, workflow, work.version)?;
        }
        _ => {
            return Err(invalid("task", "or workflow: name one of the two"));
        }
    }
    Ok(())
}

/// Stops a schedule; false when it stood still already.
pub fn pause(session: &Session, organization: Option<&str>, name: &str) -> Result<bool> {
    owner::require_read_committed("schedule_pause")?;
    let schedule = find(session, organization, name)?;
    if !schedule.paused {
        store::schedule::set_paused(session, schedule.id, true, None, None);
    }
    Ok(!schedule.paused)
}

/// Lets it go on from now; false when it was not paused.
pub fn resume(session: &Session, organization: Option<&str>, name: &str) -> Result<bool> {
    owner::require_read_committed("schedule_resume")?;
    let schedule = find(session, organization, name)?;
    if schedule.paused {
        let calendar = calendar_of(&schedule)?;
        let next = first_after(&calendar, Instant::now())?;
        let due = due(&schedule, &calendar, next);
        store::schedule::set_paused(session, schedule.id, false, Some(next), Some(due));
        wake::timer_at(due);
    }
    Ok(schedule.paused)
}

/// Deletes it; false when there is none.
pub fn delete(session: &Session, organization: Option<&str>, name: &str) -> Result<bool> {
    owner::require_read_committed("schedule_delete")?;
    let Some(schedule) = store::schedule::lock(session, organization, name) else {
        return Ok(false);
    };
    store::schedule::delete(session, schedule.id);
    Ok(true)
}

/// Locks the schedule of this name.
pub fn find(session: &Session, organization: Option<&str>, name: &str) -> Result<Schedule> {
    store::schedule::lock(session, organization, name).ok_or_else(|| {
        Error::new(
            Code::ScheduleNotFound,
            format!("there is no schedule {name:?}"),
        )
        .with("name", name)
    })
}

/// The times that an expression names, with their policies.
pub fn calendar(cron: &str, timezone: &str, skipped: &str, doubled: &str) -> Result<Calendar> {
    let skipped = word(
        "skipped_time",
        skipped,
        SkippedTime::parse,
        SkippedTime::ALL,
    )?;
    let doubled = word(
        "doubled_time",
        doubled,
        DoubledTime::parse,
        DoubledTime::ALL,
    )?;
    Calendar::new(cron, timezone, skipped, doubled).map_err(|refused| match refused {
        Refused::Cron(problem) => Error::new(
            Code::ScheduleCronInvalid,
            format!("cron {cron:?} is refused: {problem}"),
        )
        .with("cron", cron),
        Refused::Timezone(problem) => {
            Error::new(Code::ScheduleTimezoneUnknown, problem).with("timezone", timezone)
        }
    })
}

/// The same of a stored schedule.
pub fn calendar_of(schedule: &Schedule) -> Result<Calendar> {
    calendar(
        &schedule.cron,
        &schedule.timezone,
        &schedule.skipped_time,
        &schedule.doubled_time,
    )
}

/// The first tick after a moment.
pub fn first_after(calendar: &Calendar, after: Instant) -> Result<Instant> {
    calendar
        .next_after(after.unix_us())
        .map(Instant::from_unix_us)
        .ok_or_else(|| {
            Error::new(
                Code::ScheduleCronInvalid,
                "the expression names no time within a century",
            )
        })
}

/// When a tick of a stored schedule is due.
fn due(schedule: &Schedule, calendar: &Calendar, nominal: Instant) -> Instant {
    with_rule(schedule, calendar, |rule| {
        Instant::from_unix_us(rule.due(nominal.unix_us()))
    })
}

/// A stored schedule as the rule sees it.
pub fn with_rule<R>(
    schedule: &Schedule,
    calendar: &Calendar,
    ask: impl FnOnce(&rules::Schedule) -> R,
) -> R {
    let seed = format!(
        "{}\u{1}{}",
        schedule.organization.as_deref().unwrap_or_default(),
        schedule.name
    );
    ask(&rules::Schedule {
        calendar,
        missed: Missed::parse(&schedule.missed).unwrap_or(Missed::Last),
        grace_us: schedule.grace_us,
        jitter_us: schedule.jitter_us,
        seed: &seed,
    })
}

fn word<T: Copy + std::fmt::Display>(
    argument: &'static str,
    given: &str,
    parse: impl Fn(&str) -> Option<T>,
    all: &[T],
) -> Result<T> {
    parse(given).ok_or_else(|| {
        let words: Vec<String> = all.iter().map(T::to_string).collect();
        invalid(
            argument,
            &format!("is {given:?}: it takes {}", words.join(", ")),
        )
    })
}

fn invalid(argument: &'static str, problem: &str) -> Error {
    Error::new(Code::ArgumentInvalid, format!("{argument} {problem}")).with("argument", argument)
}
