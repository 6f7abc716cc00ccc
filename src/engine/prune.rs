//! Prune: what has ended long ago goes, oldest first, in small parts.
//!
//! Each kind is walked in the order of its keys from where the last walk stopped, and from the start again behind the end. Nothing of it
//! touches a row that a claim looks at, owners are locked SKIP LOCKED, and a call ends itself before `statement_timeout` would end it, so
//! that every call gets somewhere.

use pgrx::Uuid;

use crate::engine::{adopt, owner, tick};
use crate::error::{Code, Error, OrRaise, Result};
use crate::pg::clock::{Instant, span_us};
use crate::pg::spi::Session;
use crate::pg::{input, subxact, xact};
use crate::settings;
use crate::store;

/// What a sweep of tick() takes of the time, at most.
const SWEEP_US: i64 = 100_000;
/// A sweep looks at so many keys for each row that it may delete.
const LOOKS: i64 = 4;
/// When everything was looked at, a sweep looks again after this.
const AGAIN_US: i64 = 60_000_000;
/// Rows of the first part, and of the largest: it grows while there is time.
const FIRST_PART: i64 = 100;
const LARGEST_PART: i64 = 2_500;
/// Jobs of one workflow that one statement deletes.
const STEPS: i32 = 1_000;

#[derive(Clone, Copy)]
enum Kind {
    Workflows,
    Jobs,
    Events,
    EventKeys,
    Logs,
}

const KINDS: [Kind; 5] = [
    Kind::Workflows,
    Kind::Jobs,
    Kind::Events,
    Kind::EventKeys,
    Kind::Logs,
];

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Workflows => "workflows",
            Self::Jobs => "jobs",
            Self::Events => "events",
            Self::EventKeys => "event_keys",
            Self::Logs => "logs",
        }
    }

    /// What was before this moment may go; None = it stays for ever.
    fn cutoff(self, now: Instant) -> Result<Option<Instant>> {
        let (name, setting) = match self {
            Self::Workflows => ("retention_workflows", &settings::RETENTION_WORKFLOWS),
            Self::Jobs => ("retention_jobs", &settings::RETENTION_JOBS),
            Self::Events | Self::EventKeys => ("retention_events", &settings::RETENTION_EVENTS),
            Self::Logs => ("retention_logs", &settings::RETENTION_LOGS),
        };
        let text = settings::text(setting).unwrap_or_default();
        let span = input::try_interval(&text)
            .ok()
            .and_then(|span| span_us(span.months, span.days, span.micros))
            .filter(|us| *us >= 0)
            .ok_or_else(|| {
                Error::new(
                    Code::ArgumentInvalid,
                    format!("sayiir.{name} is {text:?}: it takes an interval, or 0 = for ever"),
                )
                .with("setting", name)
            })?;
        Ok((span > 0).then(|| now.plus_us(-span)))
    }
}

/// Deletes up to `max_rows` of each kind. Answers (kind, rows).
pub fn prune(session: &Session, max_rows: i32) -> Result<Vec<(&'static str, i64)>> {
    owner::require_read_committed("prune")?;
    adopt::require(session)?;
    let mut work = Work {
        session,
        max_rows: i64::from(max_rows),
        looks: i64::MAX,
        deadline: xact::statement_half_time(),
        is_sweep: false,
    };
    work.run()
}

/// What tick() does: a little, when it is due. An error of a setting or row is reported, and the sweep comes back later.
pub fn sweep(session: &Session, max_rows: i32) -> i64 {
    let now = Instant::now();
    if !store::retention::is_due(session, now) {
        return 0;
    }
    let short = now.plus_us(SWEEP_US);
    let mut work = Work {
        session,
        max_rows: i64::from(max_rows),
        looks: LOOKS * i64::from(max_rows),
        deadline: Some(xact::statement_half_time().map_or(short, |half| half.min(short))),
        is_sweep: true,
    };
    match subxact::attempt(|| work.run().or_raise()) {
        Ok(done) => done.iter().map(|(_, done)| done).sum(),
        Err(message) => {
            pgrx::warning!(
                "sayiir: sweep retention failed and is tried again in a minute: {message}"
            );
            for kind in KINDS {
                if store::retention::lock(session, kind.as_str(), now, false).is_some() {
                    store::retention::set_place(session, kind.as_str(), "", now.plus_us(AGAIN_US));
                }
            }
            0
        }
    }
}

struct Work<'a> {
    session: &'a Session,
    max_rows: i64,
    /// Keys of one kind to look at.
    looks: i64,
    deadline: Option<Instant>,
    is_sweep: bool,
}

/// What became of a part: where to go on (None = it was the last), and rows deleted.
type Part = (Option<String>, i64);

impl Work<'_> {
    fn run(&mut self) -> Result<Vec<(&'static str, i64)>> {
        let whole = self.deadline;
        let mut answer = Vec::with_capacity(KINDS.len());
        for (n, kind) in KINDS.into_iter().enumerate() {
            // An equal share of the time that is left, so that a large backlog of one kind does not keep the others waiting.
            self.deadline = whole.map(|end| {
                let now = Instant::now();
                now.plus_us((end.0 - now.0).max(0) / (KINDS.len() - n) as i64)
            });
            answer.push((kind.as_str(), self.prune(kind)?));
        }
        Ok(answer)
    }

    fn is_late(&self) -> bool {
        self.deadline.is_some_and(|end| Instant::now() >= end)
    }

    fn prune(&self, kind: Kind) -> Result<i64> {
        let now = Instant::now();
        let Some(cutoff) = kind.cutoff(now)? else {
            return Ok(0);
        };
        let Some(start) = store::retention::lock(self.session, kind.as_str(), now, !self.is_sweep)
        else {
            return Ok(0);
        };
        let (mut done, mut looked, mut part) = (0, 0, FIRST_PART);
        let mut place = start.clone();
        let mut wrapped = start.is_empty();
        let complete = loop {
            let rows = part
                .min(self.max_rows - done)
                .min(self.looks - looked)
                .max(1);
            let (next, deleted) = self.part(kind, &place, cutoff, rows as i32)?;
            done += deleted;
            looked += rows;
            part = (part * LOOKS).min(LARGEST_PART);
            // It may have stopped within the page.
            if deleted > 0 && self.is_late() {
                break false;
            }
            match next {
                None if wrapped => break true,
                None => (place, wrapped) = (String::new(), true),
                // Everything behind the start was looked at before the walk began again.
                Some(next) if wrapped && !start.is_empty() && next >= start => break true,
                Some(next) => place = next,
            }
            if done >= self.max_rows || looked >= self.looks || self.is_late() {
                break false;
            }
        };
        let (place, due) = if complete {
            ("", now.plus_us(AGAIN_US))
        } else {
            (place.as_str(), now)
        };
        store::retention::set_place(self.session, kind.as_str(), place, due);
        Ok(done)
    }

    fn part(&self, kind: Kind, place: &str, cutoff: Instant, rows: i32) -> Result<Part> {
        let session = self.session;
        Ok(match kind {
            Kind::Workflows => {
                let page = store::retention::workflows(session, number(place), cutoff, rows);
                let deleted = tick::isolated(
                    "retention",
                    &page.expired,
                    |ids| self.delete_workflows(ids, cutoff),
                    |_| {},
                );
                (page.last.map(place_of_number), deleted)
            }
            Kind::Jobs => {
                let page =
                    store::retention::jobs(session, uuid(place), first_id(cutoff), cutoff, rows);
                let deleted = tick::isolated(
                    "retention",
                    &page.expired,
                    |ids| {
                        let locked = store::job::try_lock_standalone(session, ids.to_vec());
                        Ok(store::retention::delete_jobs(session, locked, cutoff))
                    },
                    |_| {},
                );
                (page.last.map(place_of_uuid), deleted)
            }
            Kind::Events => {
                let page = store::retention::events(session, number(place), cutoff, rows);
                let deleted = store::retention::delete_events(session, page.expired);
                (page.last.map(place_of_number), deleted)
            }
            Kind::EventKeys => {
                let page = store::retention::event_keys(session, number(place), cutoff, rows);
                let deleted = store::retention::delete_event_keys(session, page.expired);
                (page.last.map(place_of_number), deleted)
            }
            Kind::Logs => {
                let (next, deleted) =
                    store::retention::delete_ticks(session, number(place), cutoff, rows);
                (next.map(place_of_number), deleted)
            }
        })
    }

    /// Finished workflows with all that is theirs. One that a session holds, or that still has a lease, is left for the next time; of a
    /// huge one the steps go first, and the next call takes up what this one had no time for.
    fn delete_workflows(&self, ids: &[i64], cutoff: Instant) -> Result<i64> {
        let mut deleted = 0;
        for workflow in store::workflow::try_lock(self.session, ids.to_vec()) {
            if !workflow.status.is_terminal()
                || store::workflow::is_live(self.session, workflow.id)
                || !store::retention::has_finished(self.session, workflow.id, cutoff)
            {
                continue;
            }
            while store::retention::delete_steps(self.session, workflow.id, STEPS)
                == i64::from(STEPS)
            {
                if self.is_late() {
                    return Ok(deleted);
                }
            }
            store::workflow::delete(self.session, workflow.id);
            deleted += 1;
            if self.is_late() {
                break;
            }
        }
        Ok(deleted)
    }
}

/// Places are texts that sort as their keys do.
fn place_of_number(key: i64) -> String {
    format!("{key:020}")
}

fn number(place: &str) -> i64 {
    place.parse().unwrap_or(0)
}

fn place_of_uuid(key: Uuid) -> String {
    key.to_string()
}

fn uuid(place: &str) -> Uuid {
    Uuid::from_bytes(*uuid::Uuid::parse_str(place).unwrap_or_default().as_bytes())
}

/// The smallest id that a job created at this moment can have: the first 48 bits of a UUIDv7 are the milliseconds.
fn first_id(at: Instant) -> Uuid {
    let ms = (at.unix_us() / 1000).max(0) as u64;
    let mut bytes = [0; 16];
    bytes[..6].copy_from_slice(&ms.to_be_bytes()[2..]);
    Uuid::from_bytes(bytes)
}
