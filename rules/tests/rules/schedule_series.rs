//! The series of a schedule's ticks, compared with plain counting, and what holds for every series.

use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use sayiir_rules::schedule::{DoubledTime, Missed, SkippedTime};

use super::schedule::{HOUR, at, calendar, schedule, text};
use DoubledTime::{Both, First};
use SkippedTime::{Drop, Next};

const ZONES: [&str; 6] = [
    "America/New_York",
    "Europe/Berlin",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Asia/Tehran",
    "UTC",
];
const CHANGES: [&str; 9] = [
    "2026-03-08T07:00:00Z",
    "2026-11-01T06:00:00Z",
    "2026-03-29T01:00:00Z",
    "2026-10-25T01:00:00Z",
    "2026-04-04T15:00:00Z",
    "2026-10-03T15:30:00Z",
    "2011-12-30T10:00:00Z",
    "2022-03-21T20:30:00Z",
    "2022-09-21T19:30:00Z",
];

/// The ticks of two days, found by looking at every minute.
fn counted(
    hours: &[i8],
    minutes: &[i8],
    zone: &TimeZone,
    policies: (SkippedTime, DoubledTime),
    from: i64,
) -> Vec<i64> {
    let matches = |local: jiff::civil::DateTime| {
        hours.contains(&local.hour()) && minutes.contains(&local.minute())
    };
    let minute = SignedDuration::from_mins(1);
    let start = Timestamp::from_microsecond(from).unwrap();
    let every_hour = hours.len() == 24;
    let mut found = Vec::new();
    let mut at = start.checked_add(minute).unwrap();
    for _ in 0..2880 {
        let local = zone.to_datetime(at);
        let again = match zone.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Fold { after, .. } => zone.to_offset(at) == after,
            _ => false,
        };
        // The local times between this minute and the one before, if the clock jumped ahead.
        let mut skipped = zone
            .to_datetime(at.checked_sub(minute).unwrap())
            .checked_add(minute)
            .unwrap();
        let mut one_was_skipped = false;
        while skipped < local {
            one_was_skipped |= matches(skipped);
            skipped = skipped.checked_add(minute).unwrap();
        }
        let fires = matches(local) && (!again || every_hour || policies.1 == Both)
            || one_was_skipped && !every_hour && policies.0 == Next;
        if fires {
            found.push(at.as_microsecond());
        }
        at = at.checked_add(minute).unwrap();
    }
    found
}

fn numbers(list: &[i8]) -> String {
    list.iter().map(i8::to_string).collect::<Vec<_>>().join(",")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn the_calendar_agrees_with_counting(
        hours in prop_oneof![
            proptest::collection::btree_set(0i8..24, 1..6).prop_map(|set| set.into_iter().collect::<Vec<_>>()),
            Just((0..24).collect::<Vec<i8>>()),
        ],
        minutes in proptest::collection::btree_set(0i8..60, 1..4),
        zone in 0..ZONES.len(),
        change in 0..CHANGES.len(),
        before in 0i64..2000,
        skip in any::<bool>(),
        both in any::<bool>(),
    ) {
        let minutes: Vec<i8> = minutes.into_iter().collect();
        let policies = (if skip { Drop } else { Next }, if both { Both } else { First });
        let from = at(CHANGES[change]) - before * 60_000_000;
        let cron = format!("{} {} * * *", numbers(&minutes), numbers(&hours));
        let calendar = calendar(&cron, ZONES[zone], policies.0, policies.1);
        let expected = counted(&hours, &minutes, &TimeZone::get(ZONES[zone]).unwrap(), policies, from);
        let found: Vec<i64> = std::iter::successors(calendar.next_after(from), |us| calendar.next_after(*us))
            .take_while(|us| *us <= from + 2880 * 60_000_000)
            .collect();
        prop_assert_eq!(found, expected, "{} {} {}", cron, ZONES[zone], text(from));
    }

    /// Whatever the time, the next tick is later, and nothing lies between: asked from any moment before it, it is the same one.
    #[test]
    fn ticks_are_a_series(us in -62_000_000_000_000_000i64..92_000_000_000_000_000, part in 0.0f64..1.0, zone in 0..ZONES.len()) {
        let calendar = calendar("17,42 3,15 * * *", ZONES[zone], Next, First);
        let next = calendar.next_after(us).unwrap();
        prop_assert!(next > us);
        let between = us + ((next - us - 1) as f64 * part) as i64;
        prop_assert_eq!(calendar.next_after(between), Some(next));
    }

    /// However often a sweep looks, every tick fires once under `all`, and under `last` and `skip` never one twice.
    #[test]
    fn no_tick_fires_twice(looks in proptest::collection::vec(0i64..10 * HOUR, 1..20), most in 1usize..4, jitter in 0i64..3 * HOUR) {
        let hourly = calendar("0 * * * *", "Europe/Berlin", Next, First);
        let start = at("2026-10-24T20:00:00Z");
        for missed in [Missed::Skip, Missed::Last, Missed::All] {
            let schedule = schedule(&hourly, missed, jitter);
            let (mut now, mut next, mut fired) = (start, start, Vec::new());
            for pause in &looks {
                now += pause;
                let plan = schedule.plan(next, now, most);
                prop_assert!(plan.fires.iter().all(|nominal| schedule.due(*nominal) <= now));
                fired.extend(plan.fires);
                next = plan.next.unwrap();
                if missed != Missed::All {
                    prop_assert!(schedule.due(next) > now);
                }
            }
            prop_assert!(fired.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(fired.last().is_none_or(|last| *last < next));
            if missed == Missed::All {
                prop_assert!(fired.windows(2).all(|pair| pair[1] - pair[0] == HOUR));
                prop_assert_eq!(fired.len() as i64, (next - start) / HOUR);
            }
        }
    }
}
