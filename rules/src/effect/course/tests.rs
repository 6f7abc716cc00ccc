use super::super::Kind;
use super::super::contract::Verification;
use super::*;

const TTL: i64 = 1_000;

fn write() -> Contract {
    Contract::of_kind(Kind::IrreversibleWrite)
}

fn verified() -> Contract {
    Contract {
        verification: Verification::Authoritative,
        ..write()
    }
}

fn deduplicated() -> Contract {
    Contract {
        remote_idempotency: true,
        ..write()
    }
}

fn fresh() -> Record {
    Record::fresh(Kind::IrreversibleWrite, 0)
}

fn begun(contract: &Contract) -> Record {
    let mut record = fresh();
    let (decision, _) = begin(&mut record, contract, "a", TTL, 0).unwrap();
    assert_eq!(decision, Decision::Run);
    record
}

fn failed(record: &Record, class: FailureClass) -> Failed<'static> {
    Failed {
        lease: ("a", record.lease_epoch),
        expected_version: record.version,
        class,
        next_attempt_at: None,
        random01: 1.0,
    }
}

fn names(events: &[Event]) -> Vec<&'static str> {
    events
        .iter()
        .map(|event| event.transition.as_str())
        .collect()
}

#[test]
fn the_usual_path() {
    let mut record = fresh();
    let (decision, events) = begin(&mut record, &write(), "a", TTL, 5).unwrap();
    assert_eq!(decision, Decision::Run);
    assert_eq!(names(&events), ["start_attempt"]);
    assert_eq!(events[0].payload, Some(json!({"worker": "a", "epoch": 1})));
    assert_eq!(record.live_lease(5), Some(("a", 5 + TTL)));
    for owner in ["a", "b"] {
        let (decision, events) = begin(&mut record, &write(), owner, TTL, 6).unwrap();
        assert_eq!((decision, events.len()), (Decision::InProgress, 0));
    }
    let events = finish(&mut record, ("a", 1), 1, true, 7).unwrap();
    assert_eq!(names(&events), ["succeeded"]);
    assert_eq!(record.lease_owner, None);
    assert_eq!(record.status, Status::Committed);
    let (decision, events) = begin(&mut record, &write(), "b", TTL, 8).unwrap();
    assert_eq!((decision, events.len()), (Decision::Replay, 0));
}

#[test]
fn begin_answers_for_every_status() {
    for &status in Status::ALL {
        for held in [false, true] {
            let mut record = Record {
                status,
                attempt_count: 1,
                ..fresh()
            };
            if held {
                record.acquire("b", 100, 0).unwrap();
            }
            let before = record.clone();
            let (decision, events) = begin(&mut record, &write(), "a", TTL, 1).unwrap();
            let expected = match status {
                Status::Committed | Status::Failed | Status::Rejected | Status::Compensated => {
                    Decision::Replay
                }
                Status::NeedsIntervention | Status::CompensationFailed => {
                    Decision::NeedsIntervention
                }
                _ if held => Decision::InProgress,
                Status::Pending => Decision::Run,
                Status::AwaitingApproval => Decision::AwaitingApproval,
                Status::Executing | Status::Unknown | Status::Verifying => {
                    Decision::NeedsIntervention
                }
                Status::Compensating => Decision::InProgress,
            };
            assert_eq!(decision, expected, "{status} held: {held}");
            if events.is_empty() {
                assert_eq!(record, before, "{status}");
            }
        }
    }
}

#[test]
fn an_abandoned_attempt_follows_its_contract() {
    let cases = [
        (
            write(),
            Decision::NeedsIntervention,
            vec!["lease_expired", "escalate"],
        ),
        (
            verified(),
            Decision::Verify,
            vec!["lease_expired", "start_verification"],
        ),
        (
            deduplicated(),
            Decision::Run,
            vec!["lease_expired", "schedule_retry", "start_attempt"],
        ),
        (
            Contract {
                max_attempts: 1,
                ..deduplicated()
            },
            Decision::NeedsIntervention,
            vec!["lease_expired", "escalate"],
        ),
        (
            Contract {
                automatic_retry: false,
                ..deduplicated()
            },
            Decision::NeedsIntervention,
            vec!["lease_expired", "escalate"],
        ),
    ];
    for (contract, expected, trail) in cases {
        let mut record = begun(&contract);
        let (decision, events) = begin(&mut record, &contract, "b", TTL, TTL).unwrap();
        assert_eq!(decision, expected);
        assert_eq!(names(&events), trail);
        assert_eq!(events[0].actor.as_deref(), Some("recovery:b"));
        assert!(record.may_have_applied);
        let held = matches!(decision, Decision::Run | Decision::Verify);
        assert_eq!(record.live_lease(TTL).is_some(), held);
        // The first worker comes back too late.
        assert!(finish(&mut record, ("a", 1), 1, true, TTL).is_err());
    }
}

#[test]
fn approval_comes_before_the_first_attempt_only() {
    let contract = Contract {
        require_approval: true,
        ..write()
    };
    let mut record = fresh();
    let (decision, events) = begin(&mut record, &contract, "a", TTL, 0).unwrap();
    assert_eq!(decision, Decision::AwaitingApproval);
    assert_eq!(names(&events), ["request_approval"]);
    let (decision, events) = begin(&mut record, &contract, "a", TTL, 0).unwrap();
    assert_eq!((decision, events.len()), (Decision::AwaitingApproval, 0));
    step(&mut record, Transition::Approve, None, 1).unwrap();
    assert_eq!(
        begin(&mut record, &contract, "a", TTL, 2).unwrap().0,
        Decision::Run
    );
    let report = failed(&record, FailureClass::Transient);
    fail(&mut record, &contract, &report, 3).unwrap();
    let (decision, _) = begin(&mut record, &contract, "a", TTL, 100_000).unwrap();
    assert_eq!(decision, Decision::Run);
}

#[test]
fn a_retry_waits_for_its_time() {
    let mut record = begun(&write());
    let report = failed(&record, FailureClass::Transient);
    let events = fail(&mut record, &write(), &report, 10).unwrap();
    assert_eq!(names(&events), ["schedule_retry"]);
    assert_eq!(record.next_attempt_at, Some(10 + 1_000));
    assert_eq!(record.error, super::super::record::Document::Replaced);
    let (decision, _) = begin(&mut record, &write(), "b", TTL, 1_009).unwrap();
    assert_eq!(decision, Decision::Wait);
    let (decision, _) = begin(&mut record, &write(), "b", TTL, 1_010).unwrap();
    assert_eq!((decision, record.attempt_count), (Decision::Run, 2));
}

#[test]
fn a_worker_asks_for_later_and_never_for_earlier() {
    for (asked, expected) in [(5, 1_010), (90_000, 90_000)] {
        let mut record = begun(&write());
        let report = Failed {
            next_attempt_at: Some(asked),
            ..failed(&record, FailureClass::RateLimited)
        };
        fail(&mut record, &write(), &report, 10).unwrap();
        assert_eq!(record.next_attempt_at, Some(expected));
    }
}

/// Every class × doubt × kind of contract × budget, out of an attempt.
#[test]
fn every_failure_of_an_attempt_has_one_course() {
    use UnknownPlan::*;
    for &class in FailureClass::ALL {
        for doubt in [false, true] {
            for base in [write(), verified(), deduplicated()] {
                for max_attempts in [1, 5] {
                    let contract = Contract {
                        max_attempts,
                        ..base.clone()
                    };
                    let mut record = begun(&contract);
                    record.may_have_applied = doubt;
                    let report = failed(&record, class);
                    let events = fail(&mut record, &contract, &report, 10).unwrap();
                    let budget = max_attempts > 1;
                    let plan = contract.unknown_plan();
                    let expected: &[&str] = match class.disposition() {
                        Disposition::Retry if budget => &["schedule_retry"],
                        Disposition::Retry | Disposition::Fail if doubt && plan == Verify => {
                            &["outcome_unknown"]
                        }
                        Disposition::Retry | Disposition::Fail if doubt => {
                            &["outcome_unknown", "escalate"]
                        }
                        Disposition::Retry | Disposition::Fail => &["failed_definitively"],
                        Disposition::Unknown if plan == Verify => &["outcome_unknown"],
                        Disposition::Unknown if plan == Reexecute && budget => {
                            &["outcome_unknown", "schedule_retry"]
                        }
                        Disposition::Unknown => &["outcome_unknown", "escalate"],
                    };
                    assert_eq!(names(&events), expected, "{class} {doubt} {contract:?}");
                    assert_eq!(record.lease_owner, None);
                    assert_eq!(record.version, 1 + events.len() as i64);
                    if record.status == Status::Failed {
                        assert!(!record.may_have_applied, "failed means not applied");
                    }
                }
            }
        }
    }
}

#[test]
fn a_read_fails_even_in_doubt() {
    let contract = Contract::of_kind(Kind::Read);
    let mut record = Record::fresh(Kind::Read, 0);
    begin(&mut record, &contract, "a", TTL, 0).unwrap();
    record.may_have_applied = true;
    let report = failed(&record, FailureClass::Permanent);
    fail(&mut record, &contract, &report, 1).unwrap();
    assert_eq!(record.status, Status::Failed);
}

#[test]
fn a_check_without_an_answer_leaves_the_outcome_unknown() {
    for &class in FailureClass::ALL {
        let mut record = begun(&verified());
        begin(&mut record, &verified(), "a", TTL, TTL).unwrap();
        assert_eq!(record.status, Status::Verifying);
        let report = failed(&record, class);
        let events = fail(&mut record, &verified(), &report, TTL + 1).unwrap();
        assert_eq!(names(&events), ["outcome_unknown"]);
        assert_eq!(
            begin(&mut record, &verified(), "b", TTL, TTL + 2)
                .unwrap()
                .0,
            Decision::Wait
        );
    }
    let mut record = begun(&verified());
    begin(&mut record, &verified(), "a", TTL, TTL).unwrap();
    let lease = ("a", record.lease_epoch);
    let version = record.version;
    let events = finish(&mut record, lease, version, true, TTL + 1).unwrap();
    assert_eq!(names(&events), ["verification_confirmed"]);
}

#[test]
fn undoing_is_tried_again_until_the_budget_is_spent() {
    let contract = Contract {
        max_attempts: 2,
        ..write()
    };
    let compensating = || {
        let mut record = Record {
            status: Status::Committed,
            ..fresh()
        };
        let epoch = record.acquire("a", TTL, 0).unwrap();
        step(
            &mut record,
            Transition::StartCompensation,
            Some(("a", epoch)),
            0,
        )
        .unwrap();
        record
    };
    let mut record = compensating();
    let report = failed(&record, FailureClass::Ambiguous);
    let events = fail(&mut record, &contract, &report, 1).unwrap();
    assert_eq!(names(&events), ["schedule_compensation_retry"]);
    let epoch = record.acquire("a", TTL, 2).unwrap();
    step(
        &mut record,
        Transition::StartCompensationRetry,
        Some(("a", epoch)),
        2,
    )
    .unwrap();
    let report = failed(&record, FailureClass::Transient);
    let events = fail(&mut record, &contract, &report, 3).unwrap();
    assert_eq!(names(&events), ["compensation_failed"]);

    let mut record = compensating();
    let report = failed(&record, FailureClass::Permanent);
    let events = fail(&mut record, &contract, &report, 1).unwrap();
    assert_eq!(names(&events), ["compensation_failed"]);

    let mut record = compensating();
    let version = record.version;
    let events = finish(&mut record, ("a", 1), version, false, 1).unwrap();
    assert_eq!(names(&events), ["compensation_succeeded"]);
}

#[test]
fn nothing_happens_to_who_does_not_hold_the_lease() {
    for (lease, version, now) in [
        (("b", 1), 1, 5),
        (("a", 2), 1, 5),
        (("a", 1), 0, 5),
        (("a", 1), 1, TTL),
    ] {
        let mut record = begun(&write());
        let before = record.clone();
        assert!(finish(&mut record, lease, version, true, now).is_err());
        let report = Failed {
            lease,
            expected_version: version,
            ..failed(&record, FailureClass::Ambiguous)
        };
        assert!(fail(&mut record, &write(), &report, now).is_err());
        assert_eq!(record, before);
    }
}

#[test]
fn delays_double_up_to_their_cap() {
    let full: Vec<i64> = (1..=7).map(|n| delay_ms(n, 1.0)).collect();
    assert_eq!(full, [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
    assert_eq!(delay_ms(1, 0.0), 500);
    assert_eq!(delay_ms(i32::MAX, f64::NAN), 15_000);
    assert_eq!(delay_ms(i32::MIN, 2.0), 1_000);
}
