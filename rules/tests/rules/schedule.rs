//! When schedules fire: clock changes that happened, and what becomes of missed ticks.

use jiff::Timestamp;
use sayiir_rules::schedule::{Calendar, DoubledTime, Missed, Plan, Refused, Schedule, SkippedTime};

use DoubledTime::{Both, First};
use SkippedTime::{Drop, Next};

pub fn at(text: &str) -> i64 {
    text.parse::<Timestamp>().expect(text).as_microsecond()
}

pub fn text(us: i64) -> String {
    Timestamp::from_microsecond(us).unwrap().to_string()
}

pub fn calendar(cron: &str, zone: &str, skipped: SkippedTime, doubled: DoubledTime) -> Calendar {
    Calendar::new(cron, zone, skipped, doubled).unwrap_or_else(|refused| panic!("{refused:?}"))
}

fn fires(calendar: &Calendar, after: &str, count: usize) -> Vec<String> {
    std::iter::successors(calendar.next_after(at(after)), |us| {
        calendar.next_after(*us)
    })
    .take(count)
    .map(text)
    .collect()
}

#[track_caller]
fn check(
    cron: &str,
    zone: &str,
    policies: (SkippedTime, DoubledTime),
    after: &str,
    expected: &[&str],
) {
    let calendar = calendar(cron, zone, policies.0, policies.1);
    assert_eq!(
        fires(&calendar, after, expected.len()),
        expected,
        "{cron} {zone}"
    );
}

#[test]
fn new_york() {
    let zone = "America/New_York";
    // In March 2:00 EST is 3:00 EDT.
    let before = "2026-03-07T08:00:00Z";
    check(
        "30 2 * * *",
        zone,
        (Next, First),
        before,
        &["2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"],
    );
    check(
        "30 2 * * *",
        zone,
        (Drop, First),
        before,
        &["2026-03-09T06:30:00Z", "2026-03-10T06:30:00Z"],
    );
    // Two skipped times fire once, also together with one that exists.
    check(
        "0,30 2,3 * * *",
        zone,
        (Next, First),
        "2026-03-08T06:59:59Z",
        &["2026-03-08T07:00:00Z", "2026-03-08T07:30:00Z"],
    );
    // In November 2:00 EDT is 1:00 EST.
    let before = "2026-11-01T04:00:00Z";
    check(
        "30 1 * * *",
        zone,
        (Next, First),
        before,
        &["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"],
    );
    check(
        "30 1 * * *",
        zone,
        (Next, Both),
        before,
        &[
            "2026-11-01T05:30:00Z",
            "2026-11-01T06:30:00Z",
            "2026-11-02T06:30:00Z",
        ],
    );
    // Asked in the second half of the hour that comes twice.
    check(
        "30 1 * * *",
        zone,
        (Next, First),
        "2026-11-01T06:10:00Z",
        &["2026-11-02T06:30:00Z"],
    );
    check(
        "30 1 * * *",
        zone,
        (Next, Both),
        "2026-11-01T06:10:00Z",
        &["2026-11-01T06:30:00Z"],
    );
    // Once a year, in the hour that comes twice: the second time is not lost on the way to the next year.
    check(
        "30 1 1 11 *",
        zone,
        (Next, Both),
        "2026-11-01T05:35:00Z",
        &["2026-11-01T06:30:00Z", "2027-11-01T05:30:00Z"],
    );
}

#[test]
fn berlin() {
    let zone = "Europe/Berlin";
    check(
        "30 2 * * *",
        zone,
        (Next, First),
        "2026-03-28T12:00:00Z",
        &["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"],
    );
    check(
        "30 2 * * *",
        zone,
        (Drop, First),
        "2026-03-28T12:00:00Z",
        &["2026-03-30T00:30:00Z"],
    );
    check(
        "30 2 * * *",
        zone,
        (Next, First),
        "2026-10-24T12:00:00Z",
        &["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"],
    );
    check(
        "30 2 * * *",
        zone,
        (Next, Both),
        "2026-10-24T12:00:00Z",
        &["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"],
    );
    // Six fields
    check(
        "15 30 2 * * *",
        zone,
        (Next, Both),
        "2026-10-25T00:30:15Z",
        &["2026-10-25T01:30:15Z"],
    );
}

#[test]
fn lord_howe_changes_by_half_an_hour() {
    let zone = "Australia/Lord_Howe";
    // In October 2:00 (+10:30) is 2:30 (+11).
    check(
        "15 2 * * *",
        zone,
        (Next, First),
        "2026-10-03T12:00:00Z",
        &["2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"],
    );
    check(
        "15 2 * * *",
        zone,
        (Drop, First),
        "2026-10-03T12:00:00Z",
        &["2026-10-04T15:15:00Z"],
    );
    // In April 2:00 (+11) is 1:30 (+10:30).
    check(
        "45 1 * * *",
        zone,
        (Next, First),
        "2026-04-04T12:00:00Z",
        &["2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"],
    );
    check(
        "45 1 * * *",
        zone,
        (Next, Both),
        "2026-04-04T12:00:00Z",
        &["2026-04-04T14:45:00Z", "2026-04-04T15:15:00Z"],
    );
    // Only half an hour comes twice.
    check(
        "15 1 * * *",
        zone,
        (Next, Both),
        "2026-04-04T12:00:00Z",
        &["2026-04-04T14:15:00Z", "2026-04-05T14:45:00Z"],
    );
}

#[test]
fn apia_skipped_a_day() {
    let zone = "Pacific/Apia";
    // After 29 December 2011 came the 31st.
    let before = "2011-12-29T12:00:00Z";
    check(
        "0 12 * * *",
        zone,
        (Next, First),
        before,
        &[
            "2011-12-29T22:00:00Z",
            "2011-12-30T10:00:00Z",
            "2011-12-30T22:00:00Z",
        ],
    );
    check(
        "0 12 * * *",
        zone,
        (Drop, First),
        before,
        &["2011-12-29T22:00:00Z", "2011-12-30T22:00:00Z"],
    );
    check(
        "0 0 30 * *",
        zone,
        (Next, First),
        before,
        &["2011-12-30T10:00:00Z", "2012-01-29T10:00:00Z"],
    );
}

#[test]
fn tehran_changed_at_midnight() {
    let zone = "Asia/Tehran";
    check(
        "0 0 * * *",
        zone,
        (Next, First),
        "2022-03-20T21:00:00Z",
        &["2022-03-21T20:30:00Z", "2022-03-22T19:30:00Z"],
    );
    check(
        "30 0 * * *",
        zone,
        (Drop, First),
        "2022-03-21T12:00:00Z",
        &["2022-03-22T20:00:00Z"],
    );
    check(
        "30 23 * * *",
        zone,
        (Next, Both),
        "2022-09-21T12:00:00Z",
        &["2022-09-21T19:00:00Z", "2022-09-21T20:00:00Z"],
    );
    // Since then there are no changes.
    check(
        "0 0 21,22 3 *",
        zone,
        (Next, First),
        "2026-01-01T00:00:00Z",
        &["2026-03-20T20:30:00Z", "2026-03-21T20:30:00Z"],
    );
}

#[test]
fn leap_day() {
    check(
        "0 12 29 2 *",
        "UTC",
        (Next, First),
        "2026-01-01T00:00:00Z",
        &["2028-02-29T12:00:00Z", "2032-02-29T12:00:00Z"],
    );
    // 2100 is no leap year.
    check(
        "0 0 29 2 *",
        "Europe/Berlin",
        (Next, First),
        "2096-03-01T00:00:00Z",
        &["2104-02-28T23:00:00Z"],
    );
    check(
        "0 0 L 2 *",
        "UTC",
        (Next, First),
        "2027-01-01T00:00:00Z",
        &["2027-02-28T00:00:00Z", "2028-02-29T00:00:00Z"],
    );
}

#[test]
fn every_hour_runs_by_elapsed_time() {
    for policies in [(Next, First), (Drop, Both)] {
        for (cron, minutes) in [
            ("*/15 * * * *", 15),
            ("20 * * * *", 60),
            ("30 */10 0-23 * * *", 10),
        ] {
            for zone in ["America/New_York", "Europe/Berlin", "Pacific/Apia"] {
                for after in [
                    "2026-11-01T03:00:00Z",
                    "2026-03-08T05:00:00Z",
                    "2026-10-24T22:00:00Z",
                    "2011-12-30T07:00:00Z",
                ] {
                    let calendar = calendar(cron, zone, policies.0, policies.1);
                    let ticks: Vec<i64> =
                        std::iter::successors(calendar.next_after(at(after)), |us| {
                            calendar.next_after(*us)
                        })
                        .take(40)
                        .collect();
                    assert!(
                        ticks
                            .windows(2)
                            .all(|pair| pair[1] - pair[0] == minutes * 60_000_000),
                        "{cron} {zone} {after}"
                    );
                }
            }
        }
    }
    // Of Lord Howe's changes by half an hour the local clock says so.
    check(
        "15 * * * *",
        "Australia/Lord_Howe",
        (Next, First),
        "2026-10-03T15:00:00Z",
        &["2026-10-03T16:15:00Z"],
    );
}

#[test]
fn days_of_month_and_week_are_either_or() {
    check(
        "0 0 13 * 5",
        "UTC",
        (Next, First),
        "2026-11-06T00:00:00Z",
        &["2026-11-13T00:00:00Z", "2026-11-20T00:00:00Z"],
    );
    check(
        "0 0 1 * MON",
        "UTC",
        (Next, First),
        "2026-11-24T00:00:00Z",
        &["2026-11-30T00:00:00Z", "2026-12-01T00:00:00Z"],
    );
    check(
        "0 9 * * 7",
        "UTC",
        (Next, First),
        "2026-11-28T00:00:00Z",
        &["2026-11-29T09:00:00Z"],
    );
    check(
        "@daily",
        "UTC",
        (Next, First),
        "2026-11-28T00:00:00Z",
        &["2026-11-29T00:00:00Z"],
    );
}

#[test]
fn what_is_refused() {
    for cron in [
        "",
        "*",
        "* * * *",
        "60 * * * *",
        "0 24 * * *",
        "0 0 32 * *",
        "0 0 * 13 *",
        "x * * * *",
        "0 0 0 1 1 * 2027",
        "*/0 * * * *",
        "@never",
    ] {
        assert!(
            matches!(
                Calendar::new(cron, "UTC", Next, First),
                Err(Refused::Cron(_))
            ),
            "{cron:?}"
        );
    }
    for zone in [
        "",
        "Mars/Olympus",
        "EST5EDT,M3.2.0,M11.1.0",
        "Etc/Unknown",
        "+02:00",
        "../etc/passwd",
    ] {
        assert!(
            matches!(
                Calendar::new("* * * * *", zone, Next, First),
                Err(Refused::Timezone(_))
            ),
            "{zone:?}"
        );
    }
    // Never, in sight of a century
    assert_eq!(
        calendar("0 0 30 2 *", "America/New_York", Next, First)
            .next_after(at("2026-01-01T00:00:00Z")),
        None
    );
    // Out of the range of times
    for us in [i64::MAX, i64::MIN] {
        assert_eq!(
            calendar("* * * * *", "UTC", Next, First).next_after(us),
            None
        );
    }
}

// Missed ticks

pub const HOUR: i64 = 3_600_000_000;

pub fn schedule(calendar: &Calendar, missed: Missed, jitter_us: i64) -> Schedule<'_> {
    Schedule {
        calendar,
        missed,
        grace_us: 2 * 60_000_000,
        jitter_us,
        seed: "s",
    }
}

#[test]
fn missed_ticks() {
    let hourly = calendar("0 * * * *", "UTC", Next, First);
    let next = at("2026-01-01T08:00:00Z");
    let plan = |missed, now: &str| schedule(&hourly, missed, 0).plan(next, at(now), 100);
    let gives = |fires: &[&str], next: &str| Plan {
        fires: fires.iter().map(|one| at(one)).collect(),
        next: Some(at(next)),
    };
    for missed in [Missed::Skip, Missed::Last, Missed::All] {
        // Not yet, and in time
        assert_eq!(
            plan(missed, "2026-01-01T07:59:59Z"),
            gives(&[], "2026-01-01T08:00:00Z")
        );
        assert_eq!(
            plan(missed, "2026-01-01T08:00:00Z"),
            gives(&["2026-01-01T08:00:00Z"], "2026-01-01T09:00:00Z")
        );
    }
    let late = "2026-01-01T11:30:00Z";
    assert_eq!(plan(Missed::Skip, late), gives(&[], "2026-01-01T12:00:00Z"));
    assert_eq!(
        plan(Missed::Last, late),
        gives(&["2026-01-01T11:00:00Z"], "2026-01-01T12:00:00Z")
    );
    let every = [
        "2026-01-01T08:00:00Z",
        "2026-01-01T09:00:00Z",
        "2026-01-01T10:00:00Z",
        "2026-01-01T11:00:00Z",
    ];
    assert_eq!(
        plan(Missed::All, late),
        gives(&every, "2026-01-01T12:00:00Z")
    );
    // A few at a time, and the rest stays due.
    assert_eq!(
        schedule(&hourly, Missed::All, 0).plan(next, at(late), 2),
        gives(&every[..2], "2026-01-01T10:00:00Z")
    );
    // The current tick is not missed, those before it are.
    assert_eq!(
        plan(Missed::Skip, "2026-01-01T11:01:59Z"),
        gives(&["2026-01-01T11:00:00Z"], "2026-01-01T12:00:00Z")
    );
    assert_eq!(
        plan(Missed::Skip, "2026-01-01T11:02:01Z"),
        gives(&[], "2026-01-01T12:00:00Z")
    );
}

#[test]
fn a_year_of_missed_seconds_is_no_work() {
    let seconds = calendar("* * * * * *", "UTC", Next, First);
    let plan = schedule(&seconds, Missed::Last, 0).plan(
        at("2025-01-01T00:00:00Z"),
        at("2026-01-01T00:00:00.5Z"),
        100,
    );
    assert_eq!(
        plan,
        Plan {
            fires: vec![at("2026-01-01T00:00:00Z")],
            next: Some(at("2026-01-01T00:00:01Z"))
        }
    );
}

#[test]
fn a_last_tick() {
    let never_again = calendar("0 0 1 1 *", "UTC", Next, First);
    let end = at("9999-01-01T00:00:00Z");
    assert_eq!(
        schedule(&never_again, Missed::All, 0).plan(end, end, 100),
        Plan {
            fires: vec![end],
            next: None
        }
    );
}

#[test]
fn jitter_is_deterministic_and_spreads() {
    let hourly = calendar("0 * * * *", "UTC", Next, First);
    let with_seed = |seed| Schedule {
        calendar: &hourly,
        missed: Missed::Last,
        grace_us: 0,
        jitter_us: HOUR,
        seed,
    };
    let nominal = at("2026-01-01T08:00:00Z");
    let due: Vec<i64> = (0..100)
        .map(|n| with_seed("a").due(nominal + n * HOUR) - (nominal + n * HOUR))
        .collect();
    assert!(due.iter().all(|jitter| (0..=HOUR).contains(jitter)));
    assert!(
        due.iter().any(|jitter| *jitter < HOUR / 4)
            && due.iter().any(|jitter| *jitter > HOUR * 3 / 4)
    );
    assert_eq!(with_seed("a").due(nominal), with_seed("a").due(nominal));
    assert_ne!(with_seed("a").due(nominal), with_seed("b").due(nominal));
    assert_eq!(schedule(&hourly, Missed::Last, 0).due(nominal), nominal);
}
