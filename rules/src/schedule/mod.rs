//! Schedules: when they fire.
//!
//! A tick is known by its *nominal* time, the instant that the cron expression names in its time zone. With jitter it is due a little
//! later, always equally much later. What a clock change does to a tick, and what becomes of ticks that nobody fired in time, are
//! policies of the schedule:
//!
//! | policy | word | means |
//! |---|---|---|
//! | [`SkippedTime`] | `next` | a local time that does not exist fires when the clock has jumped; several of one jump fire once |
//! | | `drop` | it does not fire |
//! | [`DoubledTime`] | `first` | a local time that comes twice fires the first time |
//! | | `both` | it fires both times |
//! | [`Missed`] | `skip` | of the ticks that are due the last one fires, and only if it is at most a grace late |
//! | | `last` | the last one fires, however late |
//! | | `all` | every one fires, oldest first |
//!
//! The policies for clock changes are about times of day. An expression that names every hour runs by elapsed time: it fires whenever
//! the local clock shows a time that matches, so that `*/15 * * * *` fires every 15 minutes through any clock change.

mod calendar;

pub use calendar::{Calendar, time_text};

use sha2::{Digest, Sha256};

words! {
    /// What happens to a local time that a clock change skips.
    pub enum SkippedTime { Next = "next", Drop = "drop", }
}
words! {
    /// What happens to a local time that a clock change brings twice.
    pub enum DoubledTime { First = "first", Both = "both", }
}
words! {
    /// What happens to ticks that were not fired in time.
    pub enum Missed { Skip = "skip", Last = "last", All = "all", }
}
words! {
    /// What happens to a tick while what the last one started is still going on.
    pub enum Overlap { Allow = "allow", Skip = "skip", }
}

/// Why a cron expression or time zone is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    Cron(String),
    Timezone(String),
}

/// How much of the past is looked through for the last tick, at first; doubled until one is found.
const LOOK_BACK_US: i64 = 60_000_000;

/// A schedule as the rule sees it. Times are microseconds since 1970-01-01 UTC.
pub struct Schedule<'a> {
    pub calendar: &'a Calendar,
    pub missed: Missed,
    /// How late a tick may fire under [`Missed::Skip`].
    pub grace_us: i64,
    /// Ticks are due up to so much after their nominal time.
    pub jitter_us: i64,
    /// What tells this schedule's jitter from that of others.
    pub seed: &'a str,
}

/// What a sweep has to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Nominal times that fire now, oldest first.
    pub fires: Vec<i64>,
    /// The nominal time that comes next; None = never.
    pub next: Option<i64>,
}

impl Schedule<'_> {
    /// When a tick is due: its nominal time and a jitter that depends on nothing but the schedule and that time.
    pub fn due(&self, nominal: i64) -> i64 {
        if self.jitter_us <= 0 {
            return nominal;
        }
        let mut hash = Sha256::new();
        hash.update(self.seed.as_bytes());
        hash.update(nominal.to_be_bytes());
        let digest = hash.finalize();
        let word = digest
            .iter()
            .take(8)
            .fold(0u64, |word, byte| word << 8 | u64::from(*byte));
        nominal.saturating_add((word % (self.jitter_us as u64 + 1)) as i64)
    }

    /// Decides over the ticks from `next`, the first that has not been decided, to now. At most `most` fire at once; what is left of
    /// [`Missed::All`] comes with the next sweep.
    pub fn plan(&self, next: i64, now: i64, most: usize) -> Plan {
        if self.due(next) > now {
            return Plan {
                fires: Vec::new(),
                next: Some(next),
            };
        }
        match self.missed {
            Missed::All => self.plan_all(next, now, most),
            Missed::Last => self.plan_last(next, now, i64::MAX),
            Missed::Skip => self.plan_last(next, now, self.grace_us),
        }
    }

    fn plan_all(&self, next: i64, now: i64, most: usize) -> Plan {
        let mut fires = Vec::new();
        let mut at = Some(next);
        while let Some(nominal) = at
            && self.due(nominal) <= now
            && fires.len() < most
        {
            fires.push(nominal);
            at = self.calendar.next_after(nominal);
        }
        Plan { fires, next: at }
    }

    fn plan_last(&self, next: i64, now: i64, grace_us: i64) -> Plan {
        let last = self.last_due(next, now);
        let in_time = now.saturating_sub(self.due(last)) <= grace_us;
        Plan {
            fires: if in_time { vec![last] } else { Vec::new() },
            next: self.calendar.next_after(last),
        }
    }

    /// The last tick of `next..=now` that is due; `next` itself is. A schedule of seconds may have missed millions.
    fn last_due(&self, next: i64, now: i64) -> i64 {
        let mut window = LOOK_BACK_US;
        loop {
            let from = now.saturating_sub(window).max(next);
            let last = std::iter::successors(
                if from == next {
                    Some(next)
                } else {
                    self.calendar.next_after(from)
                },
                |nominal| self.calendar.next_after(*nominal),
            )
            .take_while(|nominal| *nominal <= now)
            .filter(|nominal| self.due(*nominal) <= now)
            .last();
            match last {
                Some(last) => return last,
                None if from == next => return next,
                None => window = window.saturating_mul(2),
            }
        }
    }
}
