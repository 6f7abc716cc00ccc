//! The published suite, on the functions and, to show that the harness is right, on the store of the authors.

use std::sync::atomic::{AtomicU32, Ordering};

use agent_effects_postgres::{ClockSource, PostgresStore};
use agent_effects_store::testkit::conformance;
use effects_conformance::harness::{new_database, new_store};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_functions_conform() {
    conformance(|| new_store(true, 100)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_functions_conform_without_prepared_statements() {
    conformance(|| new_store(true, 0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_store_of_the_authors_conforms_in_this_harness() {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    conformance(|| async {
        let name = format!(
            "baseline_{}_{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        PostgresStore::connect_with(new_database(&name).await)
            .await
            .unwrap()
            .with_clock_source(ClockSource::Caller)
    })
    .await;
}
