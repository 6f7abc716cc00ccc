//! The published runtime on the functions: a crash at each of its points, and what its restart finds.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Once};
use std::time::Duration;

use agent_effects::fault::{FaultInjector, FaultPoint};
use agent_effects::testkit::FakeRemote;
use agent_effects::{
    CompensableEffect, CompensationContext, CompensationOutcome, EffectContext, EffectFailure,
    EffectHandler, EffectKey, EffectName, EffectOutcome, EffectStatus, EffectStore, Handler,
    LogicalKey, ManualClock, Runtime, RuntimeBuilder, RuntimeError, Verification, WorkerId,
};
use effects_conformance::SqlStore;
use effects_conformance::harness::new_store;

const TTL: Duration = Duration::from_secs(30);
const NAME: &str = "runtime.create";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protection {
    Verified,
    Idempotent,
    Unprotected,
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = Result<T, EffectFailure>> + Send>>;

/// The panics that play crashes say nothing.
fn quiet_crashes() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.to_string().contains("fault injected") {
                default(info);
            }
        }));
    });
}

/// A store, its clock, and the outside system.
struct World {
    store: SqlStore,
    clock: Arc<ManualClock>,
    remote: FakeRemote,
}

impl World {
    async fn new() -> Self {
        quiet_crashes();
        let clock = Arc::new(ManualClock::default());
        Self {
            store: new_store(true, 100).await,
            remote: FakeRemote::new(Arc::clone(&clock)),
            clock,
        }
    }

    fn worker(&self, name: &str) -> RuntimeBuilder<SqlStore> {
        Runtime::builder(self.store.clone())
            .clock(Arc::clone(&self.clock))
            .worker_id(WorkerId::new(name))
            .lease_ttl(TTL)
    }

    fn doomed(&self, point: FaultPoint) -> (Runtime<SqlStore>, Arc<FaultInjector>) {
        let injector = Arc::new(FaultInjector::new().at(point).crash());
        let runtime = self
            .worker("doomed")
            .fault_injector(Arc::clone(&injector))
            .build();
        (runtime, injector)
    }

    async fn run(
        &self,
        runtime: &Runtime<SqlStore>,
        resource: &'static str,
        protection: Protection,
        needs_approval: bool,
    ) -> Result<EffectOutcome<String>, RuntimeError> {
        let sends_key = protection == Protection::Idempotent;
        let remote = self.remote.clone();
        let action = move |context: EffectContext| -> BoxFuture<String> {
            let remote = remote.clone();
            let key = sends_key.then(|| context.idempotency_key());
            Box::pin(async move { remote.create(resource, key).await })
        };
        let mut builder = runtime.effect(NAME, resource).remote_idempotency(sends_key);
        if needs_approval {
            builder = builder.require_approval();
        }
        if protection != Protection::Verified {
            return builder.run(action).await;
        }
        let remote = self.remote.clone();
        builder
            .verify(move |_| {
                let remote = remote.clone();
                async move {
                    Ok::<_, EffectFailure>(match remote.find(resource).await? {
                        Some(found) => Verification::Confirmed(found),
                        None => Verification::NotApplied,
                    })
                }
            })
            .run(action)
            .await
    }

    async fn status(&self, resource: &str) -> Option<EffectStatus> {
        let key = EffectKey::new(
            EffectName::new(NAME).unwrap(),
            LogicalKey::new(resource).unwrap(),
        );
        let record = self.store.get_by_key(&key).await.unwrap();
        record.map(|record| record.status)
    }

    /// The dead worker's lease runs out.
    fn restart(&self) {
        self.clock.advance(TTL + Duration::from_secs(1));
    }
}

fn committed(resource: &str) -> EffectOutcome<String> {
    EffectOutcome::Committed(format!("{resource}#1"))
}

async fn crash_at(point: FaultPoint) {
    use FaultPoint::*;
    let in_doubt = matches!(
        point,
        AfterAttemptPersisted | AfterActionStarted | AfterActionReturned | AfterVerificationStarted
    );
    for protection in [
        Protection::Verified,
        Protection::Idempotent,
        Protection::Unprotected,
    ] {
        if point == AfterVerificationStarted && protection != Protection::Verified {
            continue;
        }
        let case = format!("{point:?} / {protection:?}");
        let world = World::new().await;
        let (doomed, injector) = world.doomed(point);
        let crashed = world.run(&doomed, "res", protection, false).await;
        assert!(crashed.is_err(), "{case}: {crashed:?}");
        assert!(injector.reached().contains(&point), "{case}");
        if point == AfterActionStarted {
            // What is on the wire arrives.
            while world.remote.requests() == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        world.restart();
        let report = world.worker("recovery").build().recover().await.unwrap();
        assert_eq!(report.marked_unknown.len(), usize::from(in_doubt), "{case}");
        if in_doubt {
            let status = world.status("res").await;
            assert_eq!(status, Some(EffectStatus::Unknown), "{case}");
        }
        let restarted = world.worker("restarted").build();
        let outcome = world
            .run(&restarted, "res", protection, false)
            .await
            .unwrap();
        let created = world.remote.applications("res");
        if in_doubt && protection == Protection::Unprotected {
            assert!(
                matches!(outcome, EffectOutcome::NeedsIntervention { .. }),
                "{case}: {outcome:?}"
            );
            assert_eq!(created, u32::from(point != AfterAttemptPersisted), "{case}");
        } else {
            assert_eq!(outcome, committed("res"), "{case}");
            assert_eq!(created, 1, "{case}");
        }
        let again = world
            .run(&restarted, "res", protection, false)
            .await
            .unwrap();
        assert_eq!(again, outcome, "{case}");
        assert_eq!(world.remote.applications("res"), created, "{case}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_each_point_of_an_attempt() {
    for point in [
        FaultPoint::BeforeInsert,
        FaultPoint::AfterInsert,
        FaultPoint::AfterAttemptPersisted,
        FaultPoint::AfterActionStarted,
        FaultPoint::AfterActionReturned,
        FaultPoint::AfterVerificationStarted,
    ] {
        crash_at(point).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_before_the_approver_is_asked() {
    let world = World::new().await;
    let (doomed, injector) = world.doomed(FaultPoint::AfterApprovalRequested);
    let crashed = world
        .run(&doomed, "res", Protection::Unprotected, true)
        .await;
    assert!(crashed.is_err());
    assert!(
        injector
            .reached()
            .contains(&FaultPoint::AfterApprovalRequested)
    );
    world.restart();
    let restarted = world.worker("restarted").build();
    let EffectOutcome::AwaitingApproval { id, .. } = world
        .run(&restarted, "res", Protection::Unprotected, true)
        .await
        .unwrap()
    else {
        panic!("it runs without approval");
    };
    assert_eq!(world.remote.requests(), 0);
    restarted.approve(id, "ann", "fine").await.unwrap();
    let outcome = world
        .run(&restarted, "res", Protection::Unprotected, true)
        .await
        .unwrap();
    assert_eq!(outcome, committed("res"));
    let trail: Vec<_> = world.store.events(id).await.unwrap();
    assert_eq!(trail[1].actor.as_deref(), Some("ann"));
}

#[derive(Clone)]
struct Undoable(FakeRemote);

impl EffectHandler for Undoable {
    const NAME: &'static str = NAME;
    type Input = String;
    type Output = String;
    type Error = EffectFailure;

    async fn execute(&self, _: &EffectContext, input: &String) -> Result<String, EffectFailure> {
        self.0.create(input, None).await
    }
}

impl CompensableEffect for Undoable {
    async fn compensate(
        &self,
        context: &CompensationContext,
        input: &String,
        _: Option<&String>,
    ) -> Result<(), EffectFailure> {
        self.0.cancel(input, Some(context.idempotency_key())).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_while_undoing() {
    let world = World::new().await;
    let handler = || Handler::new(Undoable(world.remote.clone())).compensable();
    let injector = Arc::new(
        FaultInjector::new()
            .at(FaultPoint::AfterCompensationStarted)
            .crash(),
    );
    let doomed = world
        .worker("doomed")
        .register(handler())
        .fault_injector(Arc::clone(&injector))
        .build();
    doomed
        .submit::<Undoable>("res", "res".to_owned())
        .await
        .unwrap();
    assert!(doomed.compensate::<Undoable>("res").await.is_err());
    assert!(
        injector
            .reached()
            .contains(&FaultPoint::AfterCompensationStarted)
    );
    assert_eq!(world.status("res").await, Some(EffectStatus::Compensating));
    assert_eq!(world.remote.cancellations("res"), 0);
    world.restart();
    let restarted = world.worker("restarted").register(handler()).build();
    let report = restarted.recover().await.unwrap();
    assert!(report.resume_errors.is_empty(), "{report:?}");
    let outcome = restarted.compensate::<Undoable>("res").await.unwrap();
    assert_eq!(outcome, CompensationOutcome::Compensated);
    assert_eq!(world.remote.cancellations("res"), 1);
    assert_eq!(world.status("res").await, Some(EffectStatus::Compensated));
}
