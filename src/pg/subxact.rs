//! Running something that may raise, and keeping the transaction.

use std::panic::AssertUnwindSafe;

use pgrx::{PgTryBuilder, pg_sys};

/// Runs `work` in a subtransaction. An error rolls it back and comes back as its message; nothing of it leaks.
pub fn attempt<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    // SAFETY: the memory context and resource owner are restored on both paths, as PL/pgSQL's EXCEPTION block does.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let owner = pg_sys::CurrentResourceOwner;
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(context);
        let result = PgTryBuilder::new(AssertUnwindSafe(|| Ok(work())))
            .catch_others(|error| {
                Err(match error {
                    pg_sys::panic::CaughtError::PostgresError(report)
                    | pg_sys::panic::CaughtError::ErrorReport(report)
                    | pg_sys::panic::CaughtError::RustPanic {
                        ereport: report, ..
                    } => report.message().to_owned(),
                })
            })
            .execute();
        match result {
            Ok(_) => pg_sys::ReleaseCurrentSubTransaction(),
            Err(_) => pg_sys::RollbackAndReleaseCurrentSubTransaction(),
        }
        pg_sys::MemoryContextSwitchTo(context);
        pg_sys::CurrentResourceOwner = owner;
        result
    }
}
