use proptest::prelude::*;

use super::*;

fn at(status: Status) -> Record {
    Record {
        status,
        attempt_count: 3,
        compensation_attempts: 2,
        next_attempt_at: Some(500),
        attempt_started_at: Some(100),
        attempt_ended_at: Some(200),
        committed_at: Some(300),
        version: 7,
        output_schema_version: 9,
        ..Record::fresh(Kind::IrreversibleWrite, 50)
    }
}

fn bare(transition: Transition) -> Request<'static> {
    Request {
        transition,
        expected_version: 7,
        lease: None,
        has_output: false,
        output_schema_version: None,
        has_error: false,
        next_attempt_at: None,
    }
}

/// Every pair, with and without doubt, of a read and of a write, with and without a requested time: every field of the result.
#[test]
fn all_288_pairs_write_what_the_table_says() {
    use Transition::*;
    let mut legal = 0;
    for &status in Status::ALL {
        for &transition in Transition::ALL {
            for doubt in [false, true] {
                for kind in [Kind::Read, Kind::IrreversibleWrite] {
                    for asked in [None, Some(400), Some(600)] {
                        let before = Record {
                            may_have_applied: doubt,
                            kind,
                            ..at(status)
                        };
                        let mut after = before.clone();
                        let request = Request {
                            next_attempt_at: asked,
                            ..bare(transition)
                        };
                        let answer = after.apply(&request, 1_000);
                        let denied = transition == FailedDefinitively
                            && doubt
                            && kind != Kind::Read
                            && status == Status::Executing;
                        let Some(to) = status.after(transition).filter(|_| !denied) else {
                            let refusal = Refusal::InvalidTransition {
                                from: status,
                                transition,
                                may_have_applied: denied,
                            };
                            assert_eq!(answer, Err(refusal));
                            assert_eq!(after, before);
                            continue;
                        };
                        legal += 1;
                        let mut expected = Record {
                            status: to,
                            version: 8,
                            updated_at: 1_000,
                            ..before
                        };
                        if transition == StartAttempt {
                            expected.attempt_count = 4;
                            expected.attempt_started_at = Some(1_000);
                            expected.attempt_ended_at = None;
                            expected.output = Document::Cleared;
                        }
                        match transition {
                            StartAttempt | StartCompensation | StartCompensationRetry => {
                                expected.next_attempt_at = None;
                            }
                            ScheduleRetry | ResolvedRetry | ScheduleCompensationRetry => {
                                expected.next_attempt_at = asked.or(Some(1_000));
                            }
                            OutcomeUnknown => {
                                expected.next_attempt_at = asked.max(Some(500));
                            }
                            _ => {}
                        }
                        match transition {
                            Approve => expected.approved = true,
                            StartCompensation => expected.compensation_attempts = 1,
                            StartCompensationRetry => expected.compensation_attempts = 3,
                            _ => {}
                        }
                        if status == Status::Executing {
                            expected.attempt_ended_at = Some(1_000);
                        }
                        if to == Status::Committed {
                            expected.committed_at = Some(1_000);
                        }
                        let evidence =
                            matches!(transition, VerificationNotApplied | ResolvedNotApplied)
                                || (status, transition) == (Status::Verifying, ScheduleRetry);
                        if to == Status::Unknown {
                            expected.may_have_applied = true;
                        } else if evidence {
                            expected.may_have_applied = false;
                        }
                        assert_eq!(after, expected, "{status} {transition}");
                        let event = answer.unwrap();
                        assert_eq!(
                            (event.sequence, event.from, event.to, event.at),
                            (8, status, to, 1_000)
                        );
                        assert_eq!(event.attempt, expected.attempt_count);
                    }
                }
            }
        }
    }
    // 33 pairs × doubt × kind × time, without the doubtful failure of a write.
    assert_eq!(legal, 33 * 12 - 3);
}

#[test]
fn documents_are_replaced_by_any_transition() {
    let mut record = at(Status::Executing);
    let request = Request {
        has_output: true,
        has_error: true,
        ..bare(Transition::Succeeded)
    };
    record.apply(&request, 1).unwrap();
    assert_eq!(record.output, Document::Replaced);
    assert_eq!(record.error, Document::Replaced);
    assert_eq!(record.output_schema_version, 1, "1 unless said otherwise");

    // A new attempt clears the old output first, and then takes its own.
    let mut record = at(Status::Pending);
    let request = Request {
        has_output: true,
        output_schema_version: Some(4),
        ..bare(Transition::StartAttempt)
    };
    record.apply(&request, 1).unwrap();
    assert_eq!(record.output, Document::Replaced);
    assert_eq!(record.output_schema_version, 4);

    // Without an output the version of the old one stays.
    let mut record = at(Status::Pending);
    let request = Request {
        output_schema_version: Some(4),
        ..bare(Transition::StartAttempt)
    };
    record.apply(&request, 1).unwrap();
    assert_eq!(record.output_schema_version, 9);
}

#[test]
fn an_unknown_outcome_never_brings_the_next_attempt_forward() {
    for (existing, asked, expected) in [
        (None, None, None),
        (None, Some(5), Some(5)),
        (Some(5), None, Some(5)),
        (Some(5), Some(4), Some(5)),
        (Some(5), Some(6), Some(6)),
    ] {
        let mut record = Record {
            next_attempt_at: existing,
            ..at(Status::Executing)
        };
        let request = Request {
            next_attempt_at: asked,
            ..bare(Transition::OutcomeUnknown)
        };
        record.apply(&request, 1).unwrap();
        assert_eq!(record.next_attempt_at, expected);
    }
}

#[test]
fn checks_come_in_order() {
    let mut record = at(Status::Failed);
    let epoch = record.acquire("a", 10, 0).unwrap();
    let wrong_everywhere = Request {
        expected_version: 1,
        ..bare(Transition::Succeeded)
    };
    let held = record.apply(&wrong_everywhere, 9).unwrap_err();
    assert!(matches!(held, Refusal::LeaseHeld { expires_at: 10, .. }));
    let stale = Request {
        lease: Some(("a", epoch - 1)),
        ..wrong_everywhere
    };
    assert!(matches!(
        record.apply(&stale, 9),
        Err(Refusal::LeaseLost { .. })
    ));
    let leased = Request {
        lease: Some(("a", epoch)),
        ..wrong_everywhere
    };
    assert_eq!(
        record.apply(&leased, 9),
        Err(Refusal::VersionConflict {
            expected: 1,
            actual: 7
        })
    );
    let current = Request {
        expected_version: 7,
        ..leased
    };
    assert!(matches!(
        record.apply(&current, 9),
        Err(Refusal::InvalidTransition { .. })
    ));
    // At its very expiry the lease is lost to its holder and in nobody's way.
    assert!(matches!(
        record.apply(&leased, 10),
        Err(Refusal::LeaseLost {
            reason: Lost::Expired,
            ..
        })
    ));
    assert!(matches!(
        record.apply(&wrong_everywhere, 10),
        Err(Refusal::VersionConflict { .. })
    ));
}

#[test]
fn a_lost_lease_says_why() {
    let mut record = at(Status::Pending);
    let epoch = record.acquire("a", 10, 0).unwrap();
    let why = |record: &Record, owner, epoch, now| match record.check_lease((owner, epoch), now) {
        Err(Refusal::LeaseLost { reason, .. }) => Some(reason),
        _ => None,
    };
    assert_eq!(why(&record, "a", epoch, 9), None);
    assert_eq!(why(&record, "a", epoch, 10), Some(Lost::Expired));
    assert_eq!(why(&record, "b", epoch, 9), Some(Lost::Owner));
    assert_eq!(why(&record, "a", epoch + 1, 9), Some(Lost::Epoch));
    assert_eq!(why(&record, "a", 0, 9), Some(Lost::Epoch));
    assert!(record.release(("a", epoch)));
    assert_eq!(why(&record, "a", epoch, 9), Some(Lost::Released));
}

#[test]
fn leases_are_exclusive_and_fence() {
    for &status in Status::ALL {
        let mut record = at(status);
        assert_eq!(record.acquire("a", 30, 0), Ok(1));
        for owner in ["a", "b"] {
            let refusal = Refusal::LeaseHeld {
                owner: "a".into(),
                expires_at: 30,
            };
            assert_eq!(record.acquire(owner, 30, 29), Err(refusal));
        }
        assert_eq!(record.acquire("b", 30, 30), Ok(2));
        assert!(record.renew(("a", 1), 30, 31).is_err());
        assert!(!record.release(("a", 1)));
        assert_eq!(record.renew(("b", 2), 5, 31), Ok(()));
        assert_eq!(record.lease_expires_at, Some(36), "renewing may shorten");
        assert!(record.renew(("b", 2), 30, 36).is_err(), "never revived");
        assert!(record.release(("b", 2)));
        assert!(!record.release(("b", 2)));
        assert_eq!(record.acquire("a", 30, 36), Ok(3));
        assert_eq!((record.version, record.updated_at), (7, 50));
    }
}

#[test]
fn a_lease_beyond_the_end_of_time_is_over_at_once() {
    for ttl in [0, i64::MAX, LATEST_MS] {
        let mut record = at(Status::Pending);
        record.acquire("a", ttl, 5).unwrap();
        assert_eq!(record.lease_expires_at, Some(5));
        assert_eq!(record.live_lease(5), None);
    }
    let mut record = at(Status::Pending);
    record.acquire("a", LATEST_MS - 5, 5).unwrap();
    assert_eq!(record.lease_expires_at, Some(LATEST_MS));
}

#[test]
fn counts_stop_at_their_limit() {
    let mut record = Record {
        attempt_count: i32::MAX,
        ..at(Status::Pending)
    };
    record.apply(&bare(Transition::StartAttempt), 1).unwrap();
    assert_eq!(record.attempt_count, i32::MAX);
}

proptest! {
    /// Whatever is tried: the version counts the events, their trail leads from pending to the status, and doubt is only cleared
    /// by evidence.
    #[test]
    fn trails_replay(moves in prop::collection::vec((0usize..24, 0i64..3, any::<bool>()), 1..200)) {
        let mut record = Record::fresh(Kind::IrreversibleWrite, 0);
        let mut trail: Vec<Event> = Vec::new();
        for (n, (which, stale, leased)) in moves.into_iter().enumerate() {
            let now = n as i64;
            let lease = if leased { record.acquire("w", 1, now).ok().map(|epoch| ("w", epoch)) } else { None };
            let request = Request {
                expected_version: record.version - (stale / 2),
                lease,
                ..Request::of(&record, Transition::ALL[which], None)
            };
            let before = record.clone();
            match record.apply(&request, now) {
                Ok(event) => trail.push(event),
                Err(_) => prop_assert_eq!(&record, &before),
            }
            if before.may_have_applied && record.status == Status::Failed {
                prop_assert!(!record.may_have_applied);
            }
        }
        let mut status = Status::Pending;
        for (n, event) in trail.iter().enumerate() {
            prop_assert_eq!(event.sequence, n as i64 + 1);
            prop_assert_eq!(event.from, status);
            status = status.after(event.transition).unwrap();
        }
        prop_assert_eq!(status, record.status);
        prop_assert_eq!(trail.len() as i64, record.version);
    }
}
