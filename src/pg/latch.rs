//! Latches: how one process wakes another, and how it sleeps.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::SeqCst};

use pgrx::pg_sys;

unsafe extern "C-unwind" {
    // storage/latch.h, the same in Postgres 15 to 18. Declared here, because pgrx's own declaration wraps it in a guard that a
    // commit callback does not want: it raises nothing, allocates nothing and takes no lock.
    fn SetLatch(latch: *mut pg_sys::Latch);
}

/// A place in shared memory where a process leaves its latch for others to set. Zeroed memory is an empty one.
#[repr(transparent)]
pub struct LatchCell(AtomicPtr<pg_sys::Latch>);

impl LatchCell {
    /// Leaves this process's latch.
    pub fn publish(&self) {
        // SAFETY: a plain global of this process; it points into the process table by the time SQL or a worker's code runs.
        self.0.store(unsafe { pg_sys::MyLatch }, SeqCst);
    }

    pub fn clear(&self) {
        self.0.store(null_mut(), SeqCst);
    }

    pub fn is_empty(&self) -> bool {
        self.0.load(SeqCst).is_null()
    }

    /// Sets the latch that is there. False: there is none.
    pub fn wake(&self) -> bool {
        let latch = self.0.load(SeqCst);
        if latch.is_null() {
            return false;
        }
        // SAFETY: only `publish` stores pointers, all into the process table, which lives as long as shared memory and is mapped at
        // the same address in every process. If its owner is gone, the latch is nobody's or a newcomer's, who wakes for nothing.
        unsafe { SetLatch(latch) };
        true
    }
}

/// Longest sleep of [`wait`] and [`pause`].
const MAX_SLEEP_MS: i64 = 1000;

/// Sleeps until somebody sets this process's latch, at most `ms` milliseconds or a second. The caller looks around afterwards.
pub fn wait(ms: i64) {
    sleep(pg_sys::WL_LATCH_SET, ms);
    // SAFETY: this process's own latch.
    unsafe { pg_sys::ResetLatch(pg_sys::MyLatch) };
}

/// Sleeps `ms` milliseconds, whoever sets the latch meanwhile.
pub fn pause(ms: i64) {
    sleep(0, ms);
}

fn sleep(events: u32, ms: i64) {
    let events = events | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    // SAFETY: this process's own latch.
    unsafe {
        pg_sys::WaitLatch(
            pg_sys::MyLatch,
            events as i32,
            ms.clamp(0, MAX_SLEEP_MS) as _,
            pg_sys::PG_WAIT_EXTENSION,
        );
    }
}
