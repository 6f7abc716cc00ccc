//! What runs beside the calls: who is told of what a transaction did, and who does what no call does.
//!
//! - `wake`: what the engine says while it writes, and how a call waits;
//! - `pending`, `commit`: kept until the commit, then told: by the transaction itself, or by marks in shared memory;
//! - `shmem`, `marks`, `waiting`, `desk`: the shared memory;
//! - `launcher`, `worker`, `sweep`: the background processes.
//!
//! Not preloaded there are no processes and no shared memory: transactions notify themselves, waiting calls poll, claims and
//! `sayiir.tick()` do the housekeeping.

mod commit;
mod desk;
mod launcher;
mod marks;
mod pending;
mod shmem;
mod sweep;
mod waiting;
pub mod wake;
mod worker;

use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::SeqCst;

use pgrx::pg_sys;

use crate::pg::clock::Instant;

/// Between two times that claims do housekeeping.
const HOUSEKEEPING_US: i64 = 1_000_000;

/// Called once when the library is loaded.
pub fn init() {
    commit::init();
    // SAFETY: a plain global of this process.
    if unsafe { pg_sys::process_shared_preload_libraries_in_progress } {
        shmem::init();
        launcher::init();
    }
}

/// Whether the caller should do housekeeping: true at most once a second, for one caller of each database (not preloaded: of each
/// backend).
pub fn sweep_is_due() -> bool {
    static HERE: AtomicI64 = AtomicI64::new(0);
    let last = shmem::my_database().map_or(&HERE, |database| &database.swept_at);
    let now = Instant::now().0;
    let seen = last.load(SeqCst);
    // A clock that was set back does not stop it.
    (now - seen >= HOUSEKEEPING_US || now < seen)
        && last.compare_exchange(seen, now, SeqCst, SeqCst).is_ok()
}
