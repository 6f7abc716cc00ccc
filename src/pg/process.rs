//! What a process of the server is, and what a background worker has to do to be a good one.

use std::ffi::{CStr, c_int};
use std::panic::AssertUnwindSafe;

use pgrx::bgworkers::BackgroundWorkerBuilder;
use pgrx::{PgTryBuilder, pg_sys};

unsafe extern "C-unwind" {
    // tcop/tcopprot.h and postmaster/interrupt.h: signal handlers, needed as plain C functions.
    fn die(signal: c_int);
    fn SignalHandlerForConfigReload(signal: c_int);
}

/// Something that belongs to this process: a static without a thread's storage, which a callback could not rely on.
pub struct OneThread<T>(pub T);

// SAFETY: a process of the server has one thread, and pgrx refuses calls from any other.
unsafe impl<T> Sync for OneThread<T> {}

/// The database this process is connected to; 0 = none.
pub fn database() -> u32 {
    // SAFETY: a plain global of this process.
    unsafe { pg_sys::MyDatabaseId }.to_u32()
}

/// The place of this process in the server's table of processes.
pub fn number() -> usize {
    // SAFETY: a process that runs SQL has its entry.
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    let number = unsafe { (*pg_sys::MyProc).pgprocno };
    // SAFETY: a plain global of this process.
    #[cfg(any(feature = "pg17", feature = "pg18"))]
    let number = unsafe { pg_sys::MyProcNumber };
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// The first thing a background worker does: SIGHUP reads the settings again, SIGTERM ends it at its next interrupt check. What else
/// is needed (SIGINT, SIGUSR1 with its barriers) is in place already.
pub fn become_worker() {
    // SAFETY: the handlers are the server's own and only set flags.
    unsafe {
        handle(pg_sys::SIGHUP, SignalHandlerForConfigReload);
        handle(pg_sys::SIGTERM, die);
        pg_sys::BackgroundWorkerUnblockSignals();
    }
}

/// # Safety
/// The handler has to be one that may run at any time.
unsafe fn handle(signal: u32, handler: unsafe extern "C-unwind" fn(c_int)) {
    // SAFETY: by the caller.
    unsafe {
        #[cfg(any(feature = "pg15", feature = "pg16", feature = "pg17"))]
        pg_sys::pqsignal(signal as c_int, Some(handler));
        #[cfg(feature = "pg18")]
        pg_sys::pqsignal_be(signal as c_int, Some(handler));
    }
}

/// Connects a worker to a database as the bootstrap superuser; 0 = to none, only the shared catalogs can be read then. Ends the
/// process if that is impossible.
pub fn connect(database: u32) {
    // SAFETY: called once, in a background worker that asked for a connection.
    unsafe {
        pg_sys::BackgroundWorkerInitializeConnectionByOid(database.into(), pg_sys::InvalidOid, 0)
    };
}

/// Overrules what a database or role has set for its clients.
pub fn set(name: &CStr, value: &CStr) {
    // SAFETY: both are NUL-terminated; the server copies them.
    unsafe {
        pg_sys::SetConfigOption(
            name.as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_SUSET,
            pg_sys::GucSource::PGC_S_OVERRIDE,
        );
    }
}

/// Whether SIGTERM has arrived.
pub fn is_stopping() -> bool {
    // SAFETY: a flag of this process, which a signal handler sets.
    unsafe { (&raw const pg_sys::ProcDiePending).read_volatile() != 0 }
}

/// Ends a worker in the way after which the server starts it again, if it was registered so. Unlike SIGTERM's own way it does not write
/// a FATAL message at every shutdown.
pub fn exit_for_restart() -> ! {
    // SAFETY: runs the exit callbacks and does not return, which the headers of Postgres 18 do not say in a way that Rust sees.
    unsafe { pg_sys::proc_exit(1) };
    #[allow(unreachable_code)]
    std::process::abort()
}

/// Does what has to be done between two things: barriers (DROP DATABASE waits for every process to answer), termination, settings.
/// True: the settings were read again.
pub fn answer_interrupts() -> bool {
    pgrx::check_for_interrupts!();
    // SAFETY: a flag of this process, which a signal handler sets; the settings are read outside of transactions.
    unsafe {
        let has_arrived = (&raw const pg_sys::ConfigReloadPending).read_volatile() != 0;
        if has_arrived {
            (&raw mut pg_sys::ConfigReloadPending).write_volatile(0);
            pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
        }
        has_arrived
    }
}

/// Runs `work` in a transaction of its own. An error aborts it and comes back as its message.
pub fn transaction<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    // SAFETY: called outside of any transaction, in a worker. Both ways end the transaction and give the memory context back; locks,
    // buffers and what else an error leaves behind belong to the transaction.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let result = PgTryBuilder::new(AssertUnwindSafe(|| {
            pg_sys::SetCurrentStatementStartTimestamp();
            pg_sys::StartTransactionCommand();
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
            let result = work();
            pg_sys::PopActiveSnapshot();
            pg_sys::CommitTransactionCommand();
            Ok(result)
        }))
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
        if result.is_err() {
            pg_sys::AbortCurrentTransaction();
        }
        pg_sys::MemoryContextSwitchTo(context);
        result
    }
}

/// Tells the statistics what this worker has done since: autovacuum depends on it. A server's client does it between two commands.
pub fn report_statistics() {
    // SAFETY: called outside of any transaction.
    unsafe { pg_sys::pgstat_report_stat(false) };
}

/// Runs `callback` when this process ends, while shared memory is still there.
pub fn before_exit(callback: unsafe extern "C-unwind" fn(c_int, pg_sys::Datum)) {
    // SAFETY: the callback is code of this library, which stays loaded.
    unsafe { pg_sys::before_shmem_exit(Some(callback), pg_sys::Datum::from(0)) };
}

/// Most background workers the server can have, of all kinds.
pub fn max_worker_processes() -> usize {
    // SAFETY: a plain global, fixed since the server's start.
    usize::try_from(unsafe { pg_sys::max_worker_processes }).unwrap_or(0)
}

/// Starts a background worker. False: the server has no room for another one.
pub fn start_worker(worker: BackgroundWorkerBuilder) -> bool {
    let mut worker = pg_sys::BackgroundWorker::from(&worker);
    // SAFETY: the description is copied by the callee, and no handle is asked for.
    unsafe { pg_sys::RegisterDynamicBackgroundWorker(&mut worker, std::ptr::null_mut()) }
}
