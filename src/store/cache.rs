//! What a backend remembers of lanes, tasks and bound roles, and when it forgets.
//!
//! Whoever changes one of these tables sends a relation cache invalidation with its commit; every backend forgets when it
//! receives it. The sender's own backend forgets too, also when its (sub)transaction aborts, so nothing that was read while
//! its row was uncommitted outlives a rollback.

use std::cell::Cell;

use pgrx::pg_sys;

thread_local! {
    static WATCHED: Cell<[pg_sys::Oid; 3]> = const { Cell::new([pg_sys::InvalidOid; 3]) };
}

const TABLES: [&std::ffi::CStr; 3] = [c"lane", c"task", c"role_scope"];

/// Registers the callback; once a process.
pub fn init() {
    // SAFETY: the callback lives as long as the process and only clears this process's own caches.
    unsafe { pg_sys::CacheRegisterRelcacheCallback(Some(forget), pg_sys::Datum::from(0)) };
}

unsafe extern "C-unwind" fn forget(_: pg_sys::Datum, relation: pg_sys::Oid) {
    let watched = WATCHED.get();
    let hit = |n: usize| relation == pg_sys::InvalidOid || watched[n] == relation;
    if hit(0) {
        super::lane::forget();
    }
    if hit(1) {
        super::task::forget();
    }
    if hit(2) {
        crate::scope::forget();
    }
    if relation == pg_sys::InvalidOid {
        WATCHED.set([pg_sys::InvalidOid; 3]);
    }
}

/// Finds the watched tables' oids; before anything is read into a cache. Cheap once known.
pub fn watch() {
    let mut watched = WATCHED.get();
    if watched[0] != pg_sys::InvalidOid {
        return;
    }
    for (n, table) in TABLES.iter().enumerate() {
        watched[n] = relation(table);
    }
    WATCHED.set(watched);
}

/// Tells every backend, with the commit, that the n-th watched table changed.
pub fn changed(table: &'static std::ffi::CStr) {
    // SAFETY: the relation exists: this runs after a statement that wrote it.
    unsafe { pg_sys::CacheInvalidateRelcacheByRelid(relation(table)) };
}

fn relation(table: &std::ffi::CStr) -> pg_sys::Oid {
    // SAFETY: catalog look-ups inside a transaction.
    unsafe {
        pg_sys::get_relname_relid(
            table.as_ptr(),
            pg_sys::get_namespace_oid(c"sayiir".as_ptr(), false),
        )
    }
}
