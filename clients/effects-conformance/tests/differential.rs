//! The functions against the pure methods of the published record: the same random operations, and after each the same answer, the
//! same record and the same trail.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agent_effects_store::{
    EffectEvent, EffectId, EffectKey, EffectKind, EffectName, EffectRecord, EffectStore,
    ErrorRecord, FailureClass, Lease, LogicalKey, NewEffect, StoreError, Transition,
    TransitionRequest, WorkerId,
};
use effects_conformance::harness::new_store;
use effects_conformance::{SqlStore, all_transitions};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

/// Which lease an operation shows.
#[derive(Clone, Copy, Debug)]
enum Shown {
    Nothing,
    Last,
    Stale,
    OtherOwner,
    OtherEffect,
}

#[derive(Clone, Debug)]
enum Step {
    Acquire(u8, Duration),
    Renew(Shown, Duration),
    Release(Shown),
    Transition {
        which: usize,
        shown: Shown,
        stale_version: bool,
        output: Option<Value>,
        output_schema_version: Option<u32>,
        error: bool,
        next_attempt_us: Option<u64>,
        actor: bool,
        payload: Option<Value>,
    },
}

fn shown() -> impl Strategy<Value = Shown> {
    prop_oneof![
        4 => Just(Shown::Nothing),
        8 => Just(Shown::Last),
        1 => Just(Shown::Stale),
        1 => Just(Shown::OtherOwner),
        1 => Just(Shown::OtherEffect),
    ]
}

/// None, some, and more than both clocks can count.
fn ttl() -> impl Strategy<Value = Duration> {
    prop_oneof![
        1 => Just(Duration::ZERO),
        8 => (1..5_000_u64).prop_map(Duration::from_millis),
        1 => Just(Duration::MAX),
    ]
}

fn document() -> impl Strategy<Value = Option<Value>> {
    prop_oneof![
        3 => Just(None),
        1 => Just(Some(Value::Null)),
        1 => any::<i32>().prop_map(|n| Some(json!({"n": n, "deep": [null, {"t": "é\n"}]}))),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let transition = (
        // Half of them are those that lead far.
        prop_oneof![0..24_usize, Just(4), Just(8), Just(10), Just(7), Just(17)],
        shown(),
        prop::bool::weighted(0.05),
        document(),
        prop::option::of(any::<u32>()),
        any::<bool>(),
        prop::option::of(0..20_000_000_u64),
        any::<bool>(),
        document(),
    )
        .prop_map(
            |(which, shown, stale_version, output, version, error, next, actor, payload)| {
                Step::Transition {
                    which,
                    shown,
                    stale_version,
                    output,
                    output_schema_version: version,
                    error,
                    next_attempt_us: next,
                    actor,
                    payload,
                }
            },
        );
    prop_oneof![
        2 => (0..2_u8, ttl()).prop_map(|(owner, ttl)| Step::Acquire(owner, ttl)),
        1 => (shown(), ttl()).prop_map(|(shown, ttl)| Step::Renew(shown, ttl)),
        1 => shown().prop_map(Step::Release),
        6 => transition,
    ]
}

fn base() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000)
}

/// What a store keeps of a time.
fn kept(time: SystemTime) -> SystemTime {
    let since = time.duration_since(UNIX_EPOCH).unwrap();
    UNIX_EPOCH + Duration::from_millis(u64::try_from(since.as_millis()).unwrap())
}

fn normalize(record: &mut EffectRecord) {
    for time in [
        &mut record.next_attempt_at,
        &mut record.attempt_started_at,
        &mut record.attempt_ended_at,
        &mut record.lease_expires_at,
        &mut record.committed_at,
    ]
    .into_iter()
    .flatten()
    {
        *time = kept(*time);
    }
    record.created_at = kept(record.created_at);
    record.updated_at = kept(record.updated_at);
}

/// An answer, comparable.
fn answer<T: std::fmt::Debug>(result: &Result<T, StoreError>) -> String {
    match result {
        Ok(value) => format!("{value:?}"),
        Err(StoreError::LeaseHeld { owner, expires_at }) => {
            format!("held by {owner:?} until {:?}", kept(*expires_at))
        }
        Err(error) => format!("{error:?}"),
    }
}

struct Both {
    store: SqlStore,
    model: EffectRecord,
    trail: Vec<EffectEvent>,
    leases: Vec<Lease>,
}

impl Both {
    async fn new(store: SqlStore, kind: EffectKind) -> Self {
        let key = EffectKey::new(
            EffectName::new("differential").unwrap(),
            LogicalKey::new(EffectId::new().to_string()).unwrap(),
        );
        let new = NewEffect::new(key, kind, base() + Duration::from_micros(123_456));
        let mut model = EffectRecord::new(new.clone());
        normalize(&mut model);
        let stored = store.insert_or_get(new).await.unwrap();
        assert!(stored.inserted);
        assert_eq!(stored.record, model);
        Self {
            store,
            model,
            trail: Vec::new(),
            leases: Vec::new(),
        }
    }

    fn lease(&self, shown: Shown) -> Option<Lease> {
        let last = self.leases.last().cloned();
        match shown {
            Shown::Nothing => None,
            Shown::Last => last,
            Shown::Stale => self.leases.first().cloned(),
            Shown::OtherOwner => last.map(|lease| Lease {
                owner: WorkerId::new(""),
                ..lease
            }),
            Shown::OtherEffect => last.map(|lease| Lease {
                effect_id: EffectId::new(),
                ..lease
            }),
        }
    }

    async fn run(&mut self, step: Step, now: SystemTime) {
        let shows = format!("{step:?}");
        match step {
            Step::Acquire(owner, ttl) => {
                let owner = WorkerId::new(format!("worker-{owner}"));
                let mut expected = self.model.acquire_lease(&owner, now, ttl);
                if let Ok(lease) = &mut expected {
                    lease.expires_at = kept(lease.expires_at);
                }
                let got = self
                    .store
                    .acquire_lease(self.model.id, &owner, now, ttl)
                    .await;
                assert_eq!(answer(&got), answer(&expected), "{shows}");
                self.leases.extend(got);
            }
            Step::Renew(shown, ttl) => {
                let Some(lease) = self
                    .lease(shown)
                    .filter(|lease| lease.effect_id == self.model.id)
                else {
                    return;
                };
                let mut expected = self.model.renew_lease(&lease, now, ttl);
                if let Ok(lease) = &mut expected {
                    lease.expires_at = kept(lease.expires_at);
                }
                let got = self.store.renew_lease(&lease, now, ttl).await;
                assert_eq!(answer(&got), answer(&expected), "{shows}");
            }
            Step::Release(shown) => {
                let Some(lease) = self
                    .lease(shown)
                    .filter(|lease| lease.effect_id == self.model.id)
                else {
                    return;
                };
                self.model.release_lease(&lease);
                self.store.release_lease(&lease).await.unwrap();
            }
            Step::Transition {
                which,
                shown,
                stale_version,
                output,
                output_schema_version,
                error,
                next_attempt_us,
                actor,
                payload,
            } => {
                let lease = self.lease(shown);
                let transition: Transition = all_transitions()[which];
                let mut request =
                    TransitionRequest::new(&self.model, lease.as_ref(), transition, now);
                request.expected_version += u64::from(stale_version);
                request.output = output;
                request.output_schema_version = output_schema_version;
                request.error = error.then(|| ErrorRecord {
                    class: Some(FailureClass::RateLimited {
                        retry_after: Some(Duration::new(9, 5)),
                    }),
                    message: "later \"please\"".into(),
                });
                request.next_attempt_at =
                    next_attempt_us.map(|us| base() + Duration::from_micros(us));
                request.actor = actor.then(|| "ann".to_owned());
                request.payload = payload;
                let expected = self.model.apply(request.clone()).map(|mut event| {
                    event.at = kept(event.at);
                    self.trail.push(event);
                    normalize(&mut self.model);
                    self.model.clone()
                });
                let got = self.store.transition(request).await;
                assert_eq!(answer(&got), answer(&expected), "{shows}");
            }
        }
        normalize(&mut self.model);
        let stored = self.store.get(self.model.id).await.unwrap().unwrap();
        assert_eq!(stored, self.model, "{shows}");
    }
}

#[test]
fn random_sequences_agree() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let store = runtime.block_on(new_store(true, 100));
    let cases = std::env::var("PROPTEST_CASES").map_or(150, |cases| cases.parse().unwrap());
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let steps = prop::collection::vec((step(), 0..3_000_000_u64), 1..60);
    let kinds = prop::sample::select(vec![
        EffectKind::Read,
        EffectKind::IdempotentWrite,
        EffectKind::ReversibleWrite,
        EffectKind::IrreversibleWrite,
    ]);
    TestRunner::new(config)
        .run(&(kinds, steps), |(kind, steps)| {
            runtime.block_on(async {
                let mut both = Both::new(store.clone(), kind).await;
                let mut now = base();
                for (step, us) in steps {
                    now += Duration::from_micros(us);
                    both.run(step, now).await;
                }
                assert_eq!(both.store.events(both.model.id).await.unwrap(), both.trail);
            });
            Ok(())
        })
        .unwrap();
}

/// From every status that can be reached, every transition: 33 of 288 lead on, here as there.
#[tokio::test(flavor = "multi_thread")]
async fn all_288_pairs_agree() {
    use Transition::*;
    let paths: [&[Transition]; 12] = [
        &[],
        &[RequestApproval],
        &[StartAttempt],
        &[StartAttempt, OutcomeUnknown],
        &[StartAttempt, StartVerification],
        &[StartAttempt, Succeeded],
        &[StartAttempt, FailedDefinitively],
        &[PreconditionRejected],
        &[StartAttempt, OutcomeUnknown, Escalate],
        &[StartAttempt, Succeeded, StartCompensation],
        &[
            StartAttempt,
            Succeeded,
            StartCompensation,
            CompensationSucceeded,
        ],
        &[
            StartAttempt,
            Succeeded,
            StartCompensation,
            CompensationFailed,
        ],
    ];
    let store = new_store(true, 100).await;
    let mut statuses = std::collections::HashSet::new();
    let mut legal = 0;
    for path in paths {
        for transition in all_transitions() {
            let mut both = Both::new(store.clone(), EffectKind::IrreversibleWrite).await;
            for step in path {
                bare(&mut both, *step).await;
            }
            statuses.insert(both.model.status);
            let before = both.model.version;
            bare(&mut both, transition).await;
            legal += both.model.version - before;
        }
    }
    assert_eq!((statuses.len(), legal), (12, 33));
}

async fn bare(both: &mut Both, transition: Transition) {
    let which = all_transitions()
        .iter()
        .position(|one| *one == transition)
        .unwrap();
    let step = Step::Transition {
        which,
        shown: Shown::Nothing,
        stale_version: false,
        output: None,
        output_schema_version: None,
        error: false,
        next_attempt_us: None,
        actor: false,
        payload: None,
    };
    both.run(step, base()).await;
}
