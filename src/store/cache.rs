//! What a backend remembers of lanes, tasks and bound roles, and when it forgets.
//!
//! Whoever changes one of these tables sends a relation cache invalidation with its commit; every backend forgets when it
//! receives it. The sender's own backend forgets too, also when its (sub)transaction aborts, so nothing that was read while
//! its row was uncommitted outlives a rollback. What was read is kept only if nothing was forgotten meanwhile, and never what
//! an older snapshot showed: the invalidation may have arrived already, and there will be no second one.

use std::cell::Cell;

use pgrx::pg_sys;

use crate::pg::xact;

thread_local! {
    static WATCHED: Cell<[pg_sys::Oid; 4]> = const { Cell::new([pg_sys::InvalidOid; 4]) };
    /// Grows whenever something is forgotten.
    static FORGOTTEN: Cell<u64> = const { Cell::new(0) };
}

const TABLES: [&std::ffi::CStr; 4] = [c"lane", c"task", c"role_scope", c"meta"];

/// Registers the callback; once a process.
pub fn init() {
    // SAFETY: the callback lives as long as the process and only clears this process's own caches.
    unsafe { pg_sys::CacheRegisterRelcacheCallback(Some(forget), pg_sys::Datum::from(0)) };
}

unsafe extern "C-unwind" fn forget(_: pg_sys::Datum, relation: pg_sys::Oid) {
    // All together, the oids too: dropping the extension sends these messages for the tables, and new ones have new oids.
    if relation == pg_sys::InvalidOid || WATCHED.get().contains(&relation) {
        super::lane::forget();
        super::task::forget();
        crate::scope::forget();
        crate::engine::adopt::forget();
        WATCHED.set([pg_sys::InvalidOid; 4]);
        FORGOTTEN.set(FORGOTTEN.get() + 1);
    }
}

/// A read whose result is to be kept; made before it.
pub struct Watch(u64);

/// Finds the watched tables' oids. Cheap once known.
pub fn watch() -> Watch {
    let mut watched = WATCHED.get();
    if watched[0] == pg_sys::InvalidOid {
        for (n, table) in TABLES.iter().enumerate() {
            watched[n] = relation(table);
        }
        WATCHED.set(watched);
    }
    Watch(FORGOTTEN.get())
}

impl Watch {
    /// Whether what was read since may be kept.
    pub fn may_keep(&self) -> bool {
        self.0 == FORGOTTEN.get() && !xact::snapshot_is_fixed()
    }
}

/// Tells every backend, with the commit, that a watched table changed, and this one at once.
pub fn changed(table: &'static std::ffi::CStr) {
    // SAFETY: the relation exists: this runs after a statement that wrote it. A message of the command that still runs would be
    // dropped by an abort, and what was read meanwhile would stay; so the command ends here, as between two statements.
    unsafe {
        pg_sys::CacheInvalidateRelcacheByRelid(relation(table));
        pg_sys::GetCurrentCommandId(true);
        pg_sys::CommandCounterIncrement();
    }
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
