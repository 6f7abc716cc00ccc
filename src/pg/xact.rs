//! Facts about the running transaction.

use pgrx::pg_sys;

use super::clock::Instant;

/// Assigns a transaction id if there is none. What enters `job_ready` draws its seq after this: the claim cursor relies on
/// every transaction with a drawn seq being visible in `pg_snapshot_xmin`.
pub fn assign_xid() {
    // SAFETY: no preconditions inside a transaction; raises on a standby.
    unsafe { pg_sys::GetCurrentTransactionId() };
}

/// REPEATABLE READ or SERIALIZABLE: a statement after a lock would not see what the lock waited for.
pub fn snapshot_is_fixed() -> bool {
    // SAFETY: a plain global of this backend.
    unsafe { pg_sys::XactIsoLevel > pg_sys::XACT_READ_COMMITTED as i32 }
}

/// (oldest running xid, first unassigned xid) of a fresh snapshot.
pub fn horizon() -> (u32, u32) {
    // SAFETY: a transaction is running; the snapshot is only read here.
    unsafe {
        let snapshot = pg_sys::GetTransactionSnapshot();
        ((*snapshot).xmin.into_inner(), (*snapshot).xmax.into_inner())
    }
}

/// First xid that is not assigned yet.
pub fn next_xid() -> u32 {
    // SAFETY: reads shared memory under its own lock. The low half is the xid.
    unsafe { pg_sys::ReadNextFullTransactionId() }.value as u32
}

/// The user who called, also behind SECURITY DEFINER and SET ROLE.
pub fn caller() -> pg_sys::Oid {
    // SAFETY: reads a global of this backend.
    unsafe { pg_sys::GetOuterUserId() }
}

/// Waits at most `ms` milliseconds, answering interrupts: how a poll inside a call sleeps.
pub fn sleep_ms(ms: i64) {
    // SAFETY: MyLatch is this backend's own latch.
    unsafe {
        pg_sys::WaitLatch(
            pg_sys::MyLatch,
            (pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH) as i32,
            ms as _,
            pg_sys::PG_WAIT_EXTENSION,
        );
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
    pgrx::check_for_interrupts!();
}

/// When half of `statement_timeout` has passed; None = there is no timeout.
pub fn statement_half_time() -> Option<Instant> {
    // SAFETY: plain globals of this backend.
    unsafe {
        let timeout_ms = i64::from(pg_sys::StatementTimeout);
        (timeout_ms > 0).then(|| {
            Instant(pg_sys::GetCurrentStatementStartTimestamp()).plus_us(timeout_ms * 1000 / 2)
        })
    }
}

/// A random number in 0..1, from the server's own generator.
pub fn random01() -> f64 {
    // SAFETY: the backend's own generator state.
    unsafe { pg_sys::pg_prng_double(&raw mut pg_sys::pg_global_prng_state) }
}

/// Whether the caller's transaction goes on after this statement.
pub fn is_in_block() -> bool {
    // SAFETY: reads the state of the transaction.
    unsafe { pg_sys::IsTransactionBlock() }
}

/// Whether the commit answers before it is on disk (`synchronous_commit = off`).
pub fn commits_asynchronously() -> bool {
    // SAFETY: a plain global of this backend.
    unsafe { pg_sys::synchronous_commit == pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_OFF as i32 }
}
