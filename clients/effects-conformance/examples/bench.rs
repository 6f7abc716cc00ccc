//! The happy path of effects, in one run: the published runtime on the store of its authors, the same runtime on the functions of
//! sayiir, and the two calls that need no runtime. Each for some seconds with 1, 4 and 16 workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use agent_effects::{EffectFailure, EffectOutcome, EffectStore, Runtime};
use agent_effects_postgres::PostgresStore;
use effects_conformance::SqlStore;
use effects_conformance::harness::{database, new_database};
use serde_json::{Value, json};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use uuid::Uuid;

const WORKERS: [u32; 3] = [1, 4, 16];

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Authors,
    Functions,
    TwoCalls,
}

const WAYS: [(Way, &str); 3] = [
    (Way::Authors, "runtime on agent-effects-postgres"),
    (Way::Functions, "runtime on the functions"),
    (Way::TwoCalls, "effect_begin, effect_finish"),
];

fn input(n: u64) -> Value {
    json!({"order": n, "amount": 4200, "currency": "EUR"})
}

async fn by_runtime<S: EffectStore>(runtime: &Runtime<S>, n: u64) {
    let outcome = runtime
        .effect("bench.pay", n)
        .input(&input(n))
        .run(move |_| async move { Ok::<_, EffectFailure>(json!({"receipt": n})) })
        .await
        .unwrap();
    assert!(matches!(outcome, EffectOutcome::Committed(_)));
}

async fn by_two_calls(pool: &PgPool, worker: &str, n: u64) {
    let (decision, id, epoch, version): (String, Uuid, i64, i64) = sqlx::query_as(
        "SELECT decision, id, lease_epoch, version
         FROM sayiir.effect_begin('bench.two', $1, 'irreversible_write', $2, input => $3)",
    )
    .bind(n.to_string())
    .bind(worker)
    .bind(input(n))
    .fetch_one(pool)
    .await
    .unwrap();
    assert_eq!(decision, "run");
    sqlx::query("SELECT status FROM sayiir.effect_finish($1, $2, $3, $4, $5)")
        .bind(id)
        .bind(worker)
        .bind(epoch)
        .bind(version)
        .bind(json!({"receipt": n}))
        .fetch_one(pool)
        .await
        .unwrap();
}

async fn pool(options: &PgConnectOptions, workers: u32) -> PgPool {
    PgPoolOptions::new()
        .min_connections(workers)
        .max_connections(workers)
        .connect_with(options.clone())
        .await
        .unwrap()
}

/// WAL position in bytes.
async fn wal(pool: &PgPool) -> i64 {
    sqlx::query_scalar("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")
        .fetch_one(pool)
        .await
        .unwrap()
}

/// Effects a second, and bytes of WAL an effect.
async fn measure(way: Way, pool: PgPool, workers: u32, time: Duration, first: u64) -> (f64, f64) {
    let next = Arc::new(AtomicU64::new(first));
    let authors = match way {
        Way::Authors => Some(Runtime::new(
            PostgresStore::from_pool(pool.clone()).await.unwrap(),
        )),
        _ => None,
    };
    let functions = Runtime::new(SqlStore {
        pool: pool.clone(),
        caller_clock: false,
    });
    let before = wal(&pool).await;
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for worker in 0..workers {
        let (next, pool) = (Arc::clone(&next), pool.clone());
        let (authors, functions) = (authors.clone(), functions.clone());
        let worker = format!("worker-{worker}");
        tasks.spawn(async move {
            while start.elapsed() < time {
                let n = next.fetch_add(1, Ordering::Relaxed);
                match &authors {
                    Some(runtime) => by_runtime(runtime, n).await,
                    None if way == Way::Functions => by_runtime(&functions, n).await,
                    None => by_two_calls(&pool, &worker, n).await,
                }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let seconds = start.elapsed().as_secs_f64();
    let done = (next.load(Ordering::Relaxed) - first) as f64;
    let bytes = (wal(&pool).await - before) as f64;
    (done / seconds, bytes / done)
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let seconds = std::env::args()
        .nth(1)
        .map_or(3.0, |text| text.parse().unwrap());
    let time = Duration::from_secs_f64(seconds);
    let ours = database().await;
    let theirs = new_database(&format!("bench_effects_{}", std::process::id())).await;
    // Each way writes into tables that are warm.
    let mut first = 0;
    for workers in [1].into_iter().chain(WORKERS) {
        let is_warm_up = first == 0;
        let mut baseline = 0.0;
        for (way, name) in WAYS {
            let options = if way == Way::Authors { &theirs } else { &ours };
            let pool = pool(options, workers).await;
            let time = if is_warm_up { time / 4 } else { time };
            let (rate, bytes) = measure(way, pool.clone(), workers, time, first).await;
            pool.close().await;
            if way == Way::Authors {
                baseline = rate;
            }
            if !is_warm_up {
                println!(
                    "{workers:>2} workers  {name:<34} {rate:>8.0} effects/s  {bytes:>6.0} B of WAL  {:>5.1} x",
                    rate / baseline
                );
            }
        }
        first += 1_000_000;
    }
}
