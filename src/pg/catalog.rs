//! Catalog reads that need no plan, and for the shared catalogs not even a database.

use std::ffi::CStr;

use pgrx::pg_sys;

/// A row of `pg_database`.
pub struct Database {
    pub oid: u32,
    pub name: String,
    /// Neither a template, nor closed, nor half dropped.
    pub is_open: bool,
}

/// `datconnlimit` of a database whose DROP was interrupted.
const INVALID_DATABASE: i32 = -2;

/// All databases. Works in a process that is connected to none; inside a transaction.
pub fn databases() -> Vec<Database> {
    let mut found = Vec::new();
    // SAFETY: the way autovacuum's launcher reads pg_database: its description is nailed, the rows are read under a catalog snapshot and
    // copied before the scan goes on. The leading columns of the struct are never NULL and of fixed width.
    unsafe {
        let relation =
            pg_sys::table_open(pg_sys::DatabaseRelationId, pg_sys::AccessShareLock as i32);
        let scan = pg_sys::table_beginscan_catalog(relation, 0, std::ptr::null_mut());
        loop {
            let tuple = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
            if tuple.is_null() {
                break;
            }
            let header = (*tuple).t_data;
            let row = &*header
                .byte_add(usize::from((*header).t_hoff))
                .cast::<pg_sys::FormData_pg_database>();
            found.push(Database {
                oid: row.oid.to_u32(),
                name: CStr::from_ptr(row.datname.data.as_ptr())
                    .to_string_lossy()
                    .into_owned(),
                is_open: row.datallowconn
                    && !row.datistemplate
                    && row.datconnlimit != INVALID_DATABASE,
            });
        }
        pg_sys::heap_endscan(scan);
        pg_sys::table_close(relation, pg_sys::AccessShareLock as i32);
    }
    found
}

/// Whether this database has the extension now; inside a transaction.
pub fn has_extension(name: &CStr) -> bool {
    // SAFETY: a catalog look-up; a missing one answers InvalidOid.
    unsafe { pg_sys::get_extension_oid(name.as_ptr(), true) != pg_sys::InvalidOid }
}

/// How full the queue of notifications is, 0 to 1. When it is full, every NOTIFY fails with its transaction.
pub fn notification_queue_usage() -> f64 {
    // SAFETY: a built-in function without arguments that never returns NULL.
    unsafe {
        f64::from_bits(
            pg_sys::OidFunctionCall0Coll(
                pg_sys::F_PG_NOTIFICATION_QUEUE_USAGE.into(),
                pg_sys::InvalidOid,
            )
            .value() as u64,
        )
    }
}

/// Learns what other sessions have changed in the catalogs and in what caches hang on them. Statements do it when they lock a table for
/// the first time; a call that looks at the same tables again and again has to ask.
pub fn accept_changes() {
    // SAFETY: inside a transaction.
    unsafe { pg_sys::AcceptInvalidationMessages() };
}
