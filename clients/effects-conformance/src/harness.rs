//! A database for the suites, and as many empty stores in it as they want.

use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::sync::OnceCell;

use crate::SqlStore;

/// The server of `scripts/with-cluster`. Its background worker is off: leases of a caller's clock lie in the past of its own.
fn server() -> PgConnectOptions {
    let variable =
        |name| std::env::var(name).expect("no server; run the tests with 'make test-effects'");
    PgConnectOptions::new()
        .socket(variable("SAYIIR_SOCKET"))
        .port(
            variable("SAYIIR_PORT")
                .parse()
                .expect("SAYIIR_PORT is a number"),
        )
        .username("postgres")
        .database("postgres")
}

/// Makes an empty database.
pub async fn new_database(name: &str) -> PgConnectOptions {
    let mut admin = PgConnection::connect_with(&server()).await.unwrap();
    let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
    sqlx::query(AssertSqlSafe(drop))
        .execute(&mut admin)
        .await
        .unwrap();
    sqlx::query(AssertSqlSafe(format!("CREATE DATABASE {name}")))
        .execute(&mut admin)
        .await
        .unwrap();
    server().database(name)
}

/// The database of this process with the extension.
pub async fn database() -> PgConnectOptions {
    static DATABASE: OnceCell<PgConnectOptions> = OnceCell::const_new();
    DATABASE
        .get_or_init(|| async {
            let options = new_database(&format!("effects_{}", std::process::id())).await;
            let mut conn = PgConnection::connect_with(&options).await.unwrap();
            sqlx::query("CREATE EXTENSION sayiir")
                .execute(&mut conn)
                .await
                .unwrap();
            options
        })
        .await
        .clone()
}

/// An empty store: an organization of its own, which sees nothing of the others.
pub async fn new_store(caller_clock: bool, statement_cache: usize) -> SqlStore {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let organization = format!("org-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let options = database().await.statement_cache_capacity(statement_cache);
    store_of(options, &organization, caller_clock).await
}

/// The store of an organization in the database that another process has made.
pub async fn shared_store(database: &str, organization: &str) -> SqlStore {
    store_of(server().database(database), organization, false).await
}

async fn store_of(options: PgConnectOptions, organization: &str, caller_clock: bool) -> SqlStore {
    let options = options.options([
        ("sayiir.scope", "organization"),
        ("sayiir.organization_id", organization),
        (
            "sayiir.allow_caller_clock",
            if caller_clock { "on" } else { "off" },
        ),
    ]);
    let pool = PgPoolOptions::new()
        .max_connections(4)
        .connect_with(options)
        .await
        .unwrap();
    SqlStore { pool, caller_clock }
}
