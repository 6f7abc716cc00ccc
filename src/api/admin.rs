//! Sweeps, and what the SQL parts of the extension ask the library.

use pgrx::pg_extern;

use super::arguments::within;
use crate::error::{Code, OrRaise};
use crate::pg::spi::connect;
use crate::pg::table::{Line, Table};
use crate::scope::{self, Use};
use crate::{columns, engine, store};

#[pg_extern(sql = false)]
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

pub fn sweeps(done: Vec<(&'static str, i64)>) -> Table {
    Table(
        done.into_iter()
            .map(|(kind, done)| Line::Values(columns![kind, done]))
            .collect(),
    )
}

#[pg_extern(sql = false)]
fn tick(max_rows: Option<i32>) -> Table {
    connect(|session| engine::tick::tick(session, within("max_rows", max_rows, 1, 10_000)?))
        .map(sweeps)
        .or_raise()
}

#[pg_extern(sql = false)]
fn prune(max_rows: Option<i32>) -> Table {
    connect(|session| engine::prune::prune(session, within("max_rows", max_rows, 1, 100_000)?))
        .map(sweeps)
        .or_raise()
}

#[pg_extern(sql = false)]
fn next_due() -> Option<pgrx::datum::TimestampWithTimeZone> {
    connect(|session| {
        // Where nothing may run, nothing is due.
        (!engine::adopt::is_foreign(session)).then(|| store::wait::next_due(session))?
    })
    .and_then(|due| due.0.try_into().ok())
}

#[pg_extern(sql = false)]
fn error_codes() -> Table {
    let states = Code::states();
    Table(
        Code::all()
            .iter()
            .zip(states)
            .map(|((code, hint), state)| Line::Values(columns![*code, state, *hint]))
            .collect(),
    )
}

#[pg_extern(sql = false)]
fn scope_sees(organization_id: Option<&str>, asked: Option<&str>) -> bool {
    connect(|session| Ok(scope::resolve(session, asked, Use::Other)?.sees(organization_id)))
        .or_raise()
}

#[pg_extern(sql = false)]
fn cache_reset() {
    store::cache::changed(c"role_scope");
}
