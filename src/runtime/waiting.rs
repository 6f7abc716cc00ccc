//! Backends that wait inside a call for a job or for the end of a workflow.
//!
//! A waiter leaves its latch and what it waits for, sets its bit, and sleeps unless a counter of its classes has moved since it looked
//! last. A commit moves the counters, then sets the latches of those whose bits are up. Whichever comes first, one sees the other; and
//! as the counters stay, nothing is lost between two sleeps, nor when something else resets the latch.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64, fence};

use super::shmem::{self, CLASSES, Database, Shared};
use crate::pg::{catalog, latch, process};

/// What a backend waits for: classes, one bit each.
#[derive(Clone, Copy, Default)]
pub struct Interest {
    pub jobs: u64,
    pub workflows: u64,
}

/// Between two looks of a backend that nobody can wake.
const POLL_MS: i64 = 50;

static IS_WAITING: AtomicBool = AtomicBool::new(false);
/// What the counters were when this process looked last, and of which interest.
static SEEN: AtomicU64 = AtomicU64::new(u64::MAX);
static SEEN_JOBS: AtomicU64 = AtomicU64::new(0);
static SEEN_WORKFLOWS: AtomicU64 = AtomicU64::new(0);

/// Sleeps until a commit of this database concerns `interest`, at most `ms` milliseconds. It may return early; the caller looks again.
pub fn wait(interest: Interest, ms: i64) {
    let place = shmem::shared().and_then(|shared| shared.waiters.get(process::number()));
    let (Some(waiter), Some(database)) = (place, shmem::my_database()) else {
        latch::wait(ms.min(POLL_MS));
        look_up();
        return;
    };
    waiter.jobs.store(interest.jobs, SeqCst);
    waiter.workflows.store(interest.workflows, SeqCst);
    waiter.latch.publish();
    IS_WAITING.store(true, SeqCst);
    set_bit(database, true);
    fence(SeqCst);
    if !is_news(database, interest) {
        latch::wait(ms);
    }
    stop();
    // From here on the caller looks: what the counters count later is news for the next wait.
    is_news(database, interest);
    look_up();
}

/// What a call has to do between two looks; without the second it would never see a lane that is new since it began.
fn look_up() {
    pgrx::check_for_interrupts!();
    catalog::accept_changes();
}

/// Whether a counter of `interest` has moved since this was asked last.
fn is_news(database: &Database, interest: Interest) -> bool {
    let sum = sum(&database.jobs, interest.jobs)
        .wrapping_add(sum(&database.workflows, interest.workflows));
    let known = SEEN_JOBS.swap(interest.jobs, SeqCst) == interest.jobs
        && SEEN_WORKFLOWS.swap(interest.workflows, SeqCst) == interest.workflows;
    SEEN.swap(sum, SeqCst) != sum || !known
}

fn sum(counters: &[AtomicU64; CLASSES], classes: u64) -> u64 {
    of(counters, classes)
        .map(|counter| counter.load(SeqCst))
        .fold(0, u64::wrapping_add)
}

/// The counters of these classes.
fn of(counters: &[AtomicU64; CLASSES], classes: u64) -> impl Iterator<Item = &AtomicU64> {
    counters
        .iter()
        .enumerate()
        .filter(move |(class, _)| classes >> class & 1 == 1)
        .map(|(_, counter)| counter)
}

/// Does not wait any more; also at the end of a transaction that an error or a termination ended inside `wait`. Atomics only.
pub fn stop() {
    if IS_WAITING.load(SeqCst)
        && IS_WAITING.swap(false, SeqCst)
        && let Some(database) = shmem::known_database()
    {
        set_bit(database, false);
    }
}

fn set_bit(database: &Database, up: bool) {
    let number = process::number();
    if let Some(word) = database.waiting.get(number / 64) {
        let bit = 1 << (number % 64);
        if up {
            word.fetch_or(bit, SeqCst)
        } else {
            word.fetch_and(!bit, SeqCst)
        };
    }
}

/// Tells those who wait for a job or the end of a workflow of these classes. Part of the commit callback: atomics and SetLatch.
pub fn wake(shared: &Shared, database: &Database, jobs: u64, workflows: u64) {
    for counter in of(&database.jobs, jobs).chain(of(&database.workflows, workflows)) {
        counter.fetch_add(1, SeqCst);
    }
    fence(SeqCst);
    for (word, waiters) in database.waiting.iter().zip(shared.waiters.chunks(64)) {
        let mut bits = word.load(SeqCst);
        while bits != 0 {
            let number = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            if let Some(waiter) = waiters.get(number)
                && (waiter.jobs.load(SeqCst) & jobs != 0
                    || waiter.workflows.load(SeqCst) & workflows != 0)
            {
                waiter.latch.wake();
            }
        }
    }
}
