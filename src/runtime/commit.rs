//! The end of a transaction.
//!
//! Before the commit it is decided who notifies the listeners: if a worker of this database stands ready, the worker; else this
//! transaction, by NOTIFY. NOTIFY takes a cluster-wide lock until the commit is flushed, which 16 busy writers feel (4,064 → 835
//! commits a second) and a few do not. So a database starts with inline NOTIFY, and asks for a worker when it commits more than
//! [`INLINE_PER_SECOND`] of them.
//!
//! After the commit the callback puts the marks into shared memory, wakes the backends that wait, and moves the next timer. An error
//! there would be a PANIC of the whole server: everything it does is atomics on memory that exists already, and SetLatch.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicI64, fence};

use pgrx::{pg_guard, pg_sys};

use super::marks::MAX_PAYLOAD;
use super::pending::{self, CHANNELS, Mark, Pending};
use super::shmem::{self, Database, NEVER, Shared};
use super::waiting;
use crate::pg::clock::Instant;
use crate::pg::{catalog, notify};

/// Up to so many commits of a database notify by themselves in a second before a worker is asked for.
const INLINE_PER_SECOND: u64 = 10;
/// Beyond this the queue of notifications is left alone: somebody listens without reading, and a full queue fails commits.
const MAX_QUEUE_USAGE: f64 = 0.5;
const QUEUE_LOOK_US: i64 = 100_000;

/// This process is a worker: its own marks do not keep it here.
pub static IS_WORKER: AtomicBool = AtomicBool::new(false);

/// Registers the callback, once a process; children of the postmaster inherit it.
pub fn init() {
    // SAFETY: the callback is code of this library, which stays loaded.
    unsafe { pg_sys::RegisterXactCallback(Some(at_end), std::ptr::null_mut()) };
}

unsafe extern "C-unwind" fn at_end(event: pg_sys::XactEvent::Type, _: *mut c_void) {
    match event {
        pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT => before_commit(),
        pg_sys::XactEvent::XACT_EVENT_COMMIT => {
            // Nothing below panics; should it ever, a wake-up is lost and not the server.
            let _ = catch_unwind(AssertUnwindSafe(after_commit));
        }
        pg_sys::XactEvent::XACT_EVENT_ABORT => {
            let _ = catch_unwind(AssertUnwindSafe(|| forget(false)));
        }
        pg_sys::XactEvent::XACT_EVENT_PREPARE => {
            let _ = catch_unwind(AssertUnwindSafe(|| forget(true)));
        }
        _ => {}
    }
}

/// May raise: then the transaction is aborted.
#[pg_guard]
extern "C-unwind" fn before_commit() {
    pending::with(|pending| {
        if !pending.has_notifications() {
            return;
        }
        let database = shmem::my_database();
        let has_notifier = database.is_some_and(|database| !database.notifier.is_empty());
        let is_mine = |mark: &&Mark| !has_notifier || pending.payload(mark).len() > MAX_PAYLOAD;
        if pending.marks().iter().any(|mark| is_mine(&mark)) && queue_has_room() {
            for mark in pending.marks().iter().filter(is_mine) {
                notify::notify(
                    mark.channel.name(),
                    std::str::from_utf8(pending.payload(mark)).unwrap_or_default(),
                );
            }
            for channel in CHANNELS
                .into_iter()
                .filter(|channel| !has_notifier && pending.has_overflow(*channel))
            {
                notify::notify(channel.name(), "");
            }
        }
        if !has_notifier {
            pending.is_told = true;
            if let (Some(shared), Some(database)) = (shmem::shared(), database) {
                count_inline(shared, database);
            }
        }
    });
}

/// Whether notifying cannot fail this transaction.
pub fn queue_has_room() -> bool {
    static NEXT_LOOK: AtomicI64 = AtomicI64::new(0);
    static HAS_ROOM: AtomicBool = AtomicBool::new(true);
    let now = Instant::now().0;
    let next = NEXT_LOOK.load(SeqCst);
    // Not in order either: the clock was set back.
    if !(next - QUEUE_LOOK_US..next).contains(&now) {
        NEXT_LOOK.store(now + QUEUE_LOOK_US, SeqCst);
        HAS_ROOM.store(
            catalog::notification_queue_usage() < MAX_QUEUE_USAGE,
            SeqCst,
        );
    }
    HAS_ROOM.load(SeqCst)
}

fn count_inline(shared: &Shared, database: &Database) {
    let second = (Instant::now().0 as u64 / 1_000_000) & 0xffff_ffff;
    let seen = database.inline.load(SeqCst);
    let count = if seen >> 32 == second {
        (seen & 0xffff_ffff) + 1
    } else {
        1
    };
    // A count that another backend overwrites does not matter.
    database.inline.store(second << 32 | count, SeqCst);
    if count > INLINE_PER_SECOND && !database.wanted.swap(true, SeqCst) {
        shared.launcher.wake();
    }
}

fn after_commit() {
    waiting::stop();
    pending::with(|pending| {
        if pending.is_empty() {
            return;
        }
        if let (Some(shared), Some(database)) = (shmem::shared(), shmem::known_database()) {
            publish(shared, database, pending);
        }
        pending.clear();
    });
}

fn publish(shared: &Shared, database: &Database, pending: &Pending) {
    let mut is_marked = false;
    if !pending.is_told {
        for mark in pending.marks() {
            let payload = pending.payload(mark);
            if payload.len() <= MAX_PAYLOAD {
                database.marks.add(mark.channel as u32, mark.hash, payload);
                is_marked = true;
            }
        }
        for channel in CHANNELS
            .into_iter()
            .filter(|channel| pending.has_overflow(*channel))
        {
            database.marks.overflow(channel as u32);
            is_marked = true;
        }
    }
    if !IS_WORKER.load(SeqCst) {
        database.activity.fetch_add(1, SeqCst);
    }
    // Marks first, then the flag; the worker lowers the flag first, then takes the marks. Whoever raises it sets the latch.
    fence(SeqCst);
    if is_marked
        && !database.marked.load(SeqCst)
        && !database.marked.swap(true, SeqCst)
        && !database.notifier.wake()
    {
        database.wanted.store(true, SeqCst);
        shared.launcher.wake();
    }
    waiting::wake(shared, database, pending.jobs, pending.workflows);
    if pending.timer != NEVER {
        set_timer(shared, database, pending.timer);
    }
}

/// Moves the database's next sweep forward to `at`.
fn set_timer(shared: &Shared, database: &Database, at: i64) {
    if at < database.next_due.fetch_min(at, SeqCst) {
        if database.notifier.is_empty() {
            shared.wake_launcher_before(at);
        } else if at < database.notifier_looks_at.load(SeqCst) {
            database.notifier.wake();
        }
    }
}

/// The transaction is aborted or prepared. A prepared one may be committed by any session or none: nobody is told, but a sweep will
/// look when its timer is due.
fn forget(prepared: bool) {
    waiting::stop();
    pending::with(|pending| {
        if prepared
            && pending.timer != NEVER
            && let (Some(shared), Some(database)) = (shmem::shared(), shmem::known_database())
        {
            set_timer(shared, database, pending.timer);
        }
        pending.clear();
    });
}
