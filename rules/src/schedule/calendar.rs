//! A cron expression in a time zone, as a series of instants.
//!
//! Between two clock changes local time is the instant plus a constant, so one stretch after the other is searched: the expression finds
//! the next matching local time, and if it lies within the stretch that is the answer. What a change skips or brings twice is decided
//! where the stretch begins.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp};

use super::{DoubledTime, Refused, SkippedTime};

/// A tick that is further away never comes. Every date of the calendar comes up within 28 years, 40 around 2100.
const HORIZON: SignedDuration = SignedDuration::from_hours(100 * 366 * 24);
/// Local time is never further from UTC than this, so a local time so much later lies beyond any clock change before it.
const FAR: SignedDuration = SignedDuration::from_hours(52);

/// When something is to happen, as a rule.
#[derive(Clone, Debug)]
pub struct Calendar {
    cron: Cron,
    /// The expression names every hour, so clock changes do not concern it.
    every_hour: bool,
    zone: TimeZone,
    skipped: SkippedTime,
    doubled: DoubledTime,
}

/// A time without clock changes: `start..end` has one offset.
struct Stretch {
    start: Option<Timestamp>,
    end: Option<Timestamp>,
    before: Offset,
    offset: Offset,
}

impl Calendar {
    /// Five fields (minute, hour, day, month, weekday), or six with seconds in front; an IANA time zone.
    pub fn new(
        cron: &str,
        zone: &str,
        skipped: SkippedTime,
        doubled: DoubledTime,
    ) -> Result<Self, Refused> {
        let cron = CronParser::builder()
            .seconds(Seconds::Optional)
            .year(Year::Disallowed)
            .build()
            .parse(cron)
            .map_err(|error| Refused::Cron(error.to_string()))?;
        let zone = find_zone(zone)
            .ok_or_else(|| Refused::Timezone(format!("{zone:?} is no IANA time zone")))?;
        let every_hour = (0..24).all(|hour| cron.pattern.hour_match(hour).unwrap_or(false));
        Ok(Self {
            cron,
            every_hour,
            zone,
            skipped,
            doubled,
        })
    }

    /// The first instant after `us` (microseconds since 1970-01-01 UTC) at which it fires; None = not within a century.
    pub fn next_after(&self, us: i64) -> Option<i64> {
        let after = Timestamp::from_microsecond(us).ok()?;
        let until = after.checked_add(HORIZON).ok()?;
        let mut from = after;
        while from <= until {
            let stretch = self.stretch(from);
            // Behind a clock change the stretch counts from its first instant, which is not before `after`.
            let starts_here = stretch.start.filter(|start| *start > after);
            if let Some(start) = starts_here
                && self.fires_for_skipped(&stretch, start)
            {
                return Some(start.as_microsecond());
            }
            let found = match starts_here {
                Some(start) => self.find(self.unrepeated(&stretch, start), true)?,
                None => {
                    let local = stretch.offset.to_datetime(after);
                    match stretch.start.map(|start| self.unrepeated(&stretch, start)) {
                        Some(first) if first > local => self.find(first, true)?,
                        _ => self.find(local, false)?,
                    }
                }
            };
            let at = stretch.offset.to_timestamp(found).ok()?;
            match stretch.end {
                Some(end) if at >= end => {
                    // From the stretch's first local time up to `found` nothing matches, so what lies well before it need not be
                    // looked at. Of the first stretch only a part is known: what came before may come again behind the next change.
                    from = match starts_here {
                        Some(_) => at.checked_sub(FAR).ok()?.max(end),
                        None => end,
                    };
                }
                _ => return (at <= until).then(|| at.as_microsecond()),
            }
        }
        None
    }

    /// A matching local time; in local time nothing is skipped or doubled.
    fn find(&self, from: DateTime, inclusive: bool) -> Option<DateTime> {
        self.cron.find_next_occurrence(&from, inclusive).ok()
    }

    /// Where in local time a stretch begins to count: behind what the stretch before has shown already, if it fires only once.
    fn unrepeated(&self, stretch: &Stretch, start: Timestamp) -> DateTime {
        let own = stretch.offset.to_datetime(start);
        if self.every_hour || self.doubled == DoubledTime::Both {
            return own;
        }
        own.max(stretch.before.to_datetime(start))
    }

    /// Whether the clock change at `start` skipped a local time that fires there instead.
    fn fires_for_skipped(&self, stretch: &Stretch, start: Timestamp) -> bool {
        if self.every_hour || self.skipped == SkippedTime::Drop {
            return false;
        }
        let (first, end) = (
            stretch.before.to_datetime(start),
            stretch.offset.to_datetime(start),
        );
        first < end && self.find(first, true).is_some_and(|found| found < end)
    }

    /// The stretch that `at` lies in.
    fn stretch(&self, at: Timestamp) -> Stretch {
        let next_moment = at
            .checked_add(SignedDuration::from_nanos(1))
            .unwrap_or(Timestamp::MAX);
        let start = self
            .zone
            .preceding(next_moment)
            .next()
            .map(|transition| transition.timestamp());
        let offset = self.zone.to_offset(at);
        let before = start
            .and_then(|start| start.checked_sub(SignedDuration::from_nanos(1)).ok())
            .map_or(offset, |moment| self.zone.to_offset(moment));
        Stretch {
            start,
            end: self
                .zone
                .following(at)
                .next()
                .map(|transition| transition.timestamp()),
            before,
            offset,
        }
    }
}

/// The system's time zones, which are updated without us, then those that came with the library.
fn find_zone(name: &str) -> Option<TimeZone> {
    TimeZone::get(name)
        .or_else(|_| TimeZoneDatabase::bundled().get(name))
        .ok()
        .filter(|zone| !zone.is_unknown())
}

/// An instant as text, for keys and people: `2026-03-08T07:00:00Z`.
pub fn time_text(us: i64) -> String {
    Timestamp::from_microsecond(us).map_or_else(|_| us.to_string(), |at| at.to_string())
}
