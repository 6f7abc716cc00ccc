//! Durable workflows, jobs and events inside PostgreSQL.

mod api;
mod engine;
mod error;
mod pg;
mod runtime;
mod scope;
mod settings;
mod store;

::pgrx::pg_module_magic!();

/// Called once when the library is loaded into the postmaster or a backend.
#[pgrx::pg_guard]
pub extern "C-unwind" fn _PG_init() {
    settings::init();
    store::cache::init();
    runtime::init();
}
