//! The shared memory of the runtime: one struct of fixed size (2.1 MiB), all atomics, no locks.
//!
//! It exists only when the library is preloaded. Everything in it is a hint: when it is lost in a crash, or has no room for another
//! database, the engine falls back to NOTIFY by the writers and to polling, and loses time but no work.

use std::ptr::null_mut;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize,
};

use pgrx::{pg_guard, pg_sys};

use super::marks::Marks;
use crate::pg::latch::LatchCell;
use crate::pg::process;

/// Databases with the extension that are served by marks; the others have inline NOTIFY and a visit every few seconds.
pub const DATABASES: usize = 64;
/// Most workers at the same time.
pub const DESKS: usize = 8;
/// Backends that can wait to be woken, by their number in the server's table; others poll.
pub const WAITERS: usize = 2048;
/// Wake-ups are counted in so many classes, by the hash of the task or workflow.
pub const CLASSES: usize = 64;

/// No time.
pub const NEVER: i64 = i64::MAX;

#[repr(C)]
pub struct Shared {
    /// The launcher's latch, and when it will look around without being woken (NEVER while it is awake).
    pub launcher: LatchCell,
    pub launcher_looks_at: AtomicI64,
    pub desks: [Desk; DESKS],
    pub waiters: [Waiter; WAITERS],
    databases: [Database; DATABASES],
}

/// A place for a worker. The launcher gives it to a database and starts a process; the process takes it, and hands it back with its
/// outcome when it ends, however it ends.
#[repr(C)]
pub struct Desk {
    /// One of `desk::*`.
    pub state: AtomicU32,
    /// Tells a process that came too late that the desk was given away again.
    pub token: AtomicU32,
    pub database: AtomicU32,
    /// One of `outcome::*`.
    pub outcome: AtomicU8,
    /// The launcher needs the desk: the worker does not stay.
    pub leave: AtomicBool,
    /// When it entered its state.
    pub since: AtomicI64,
    pub latch: LatchCell,
}

pub mod desk {
    pub const FREE: u32 = 0;
    pub const STARTING: u32 = 1;
    pub const TAKEN: u32 = 2;
    pub const LEFT: u32 = 3;
}

pub mod outcome {
    /// It ended in the middle: terminated, or no connection.
    pub const BROKEN: u8 = 0;
    /// The database has no extension.
    pub const ABSENT: u8 = 1;
    pub const SERVED: u8 = 2;
    /// A sweep raised an error.
    pub const FAILED: u8 = 3;
}

/// What a waiting backend waits for: one bit a class.
#[repr(C)]
pub struct Waiter {
    pub latch: LatchCell,
    pub jobs: AtomicU64,
    pub workflows: AtomicU64,
}

/// A database that has the extension, or had it.
#[repr(C)]
pub struct Database {
    /// 0 = nobody's slot.
    oid: AtomicU32,
    /// A worker has been here; before that `next_due` is not known.
    pub visited: AtomicBool,
    /// Writers send more notifications than they should: a worker is asked for.
    pub wanted: AtomicBool,
    /// There are marks.
    pub marked: AtomicBool,
    /// The worker that sends the marks. Empty: writers notify themselves.
    pub notifier: LatchCell,
    /// When that worker will look around without being woken (NEVER while it is awake).
    pub notifier_looks_at: AtomicI64,
    /// When the next timer, lease or deadline is due; in microseconds since 2000, as all times here.
    pub next_due: AtomicI64,
    /// When a claim did the last housekeeping.
    pub swept_at: AtomicI64,
    /// Commits with marks, those of workers not counted.
    pub activity: AtomicU64,
    /// Notifications that writers sent: the second in the high half, how many in the low half.
    pub inline: AtomicU64,
    /// Commits that made a job ready, or ended a workflow, of each class.
    pub jobs: [AtomicU64; CLASSES],
    pub workflows: [AtomicU64; CLASSES],
    /// One bit a backend that waits.
    pub waiting: [AtomicU64; WAITERS / 64],
    pub marks: Marks,
}

static SHARED: AtomicPtr<Shared> = AtomicPtr::new(null_mut());

/// The shared memory; None: the library is not preloaded.
pub fn shared() -> Option<&'static Shared> {
    // SAFETY: null, or the segment that `startup` has prepared; it lives as long as the process and holds only atomics.
    unsafe { SHARED.load(SeqCst).as_ref() }
}

impl Shared {
    /// The slots in use, with the oid of their database.
    pub fn databases(&self) -> impl Iterator<Item = (u32, &Database)> {
        self.databases
            .iter()
            .map(|slot| (slot.oid.load(SeqCst), slot))
            .filter(|(oid, _)| *oid != 0)
    }

    /// Wakes the launcher if it would otherwise sleep beyond `at`.
    pub fn wake_launcher_before(&self, at: i64) {
        if at < self.launcher_looks_at.load(SeqCst) {
            self.launcher.wake();
        }
    }
}

/// Where this process found its database's slot.
static MY_SLOT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// The slot of this process's database, taken if it has none yet; None: not preloaded, or no slot is free.
pub fn my_database() -> Option<&'static Database> {
    known_database().or_else(|| find(process::database(), true))
}

/// The slot of this process's database, if it has one.
pub fn existing_database() -> Option<&'static Database> {
    known_database().or_else(|| find(process::database(), false))
}

/// The slot that this process used before, if it still is its database's. Atomics only.
pub fn known_database() -> Option<&'static Database> {
    let slot = shared()?.databases.get(MY_SLOT.load(SeqCst))?;
    (slot.oid.load(SeqCst) == process::database()).then_some(slot)
}

fn find(oid: u32, or_take: bool) -> Option<&'static Database> {
    let shared = shared().filter(|_| oid != 0)?;
    // Two processes of one database may both find it absent: each goes on from the front, so that the first free slot decides.
    for (number, slot) in shared.databases.iter().enumerate() {
        let found = slot.oid.load(SeqCst);
        let mine = found == oid
            || found == 0 && or_take && {
                let taken = !shared
                    .databases
                    .iter()
                    .any(|slot| slot.oid.load(SeqCst) == oid)
                    && slot.oid.compare_exchange(0, oid, SeqCst, SeqCst).is_ok();
                if taken {
                    // A new face: the launcher has to see what is due here.
                    shared.launcher.wake();
                }
                taken || slot.oid.load(SeqCst) == oid
            };
        if mine {
            MY_SLOT.store(number, SeqCst);
            return Some(slot);
        }
    }
    None
}

impl Database {
    /// Gives the slot of a dropped database back. Nobody is connected to it.
    pub fn free(&self) {
        self.reset();
        self.oid.store(0, SeqCst);
    }

    /// Forgets what is due; for a worker that does not find the extension, and looks again afterwards.
    pub fn forget(&self) {
        self.wanted.store(false, SeqCst);
        self.marked.store(false, SeqCst);
        self.next_due.store(NEVER, SeqCst);
        self.visited.store(true, SeqCst);
    }

    fn reset(&self) {
        self.visited.store(false, SeqCst);
        self.wanted.store(false, SeqCst);
        self.marked.store(false, SeqCst);
        self.notifier.clear();
        self.notifier_looks_at.store(NEVER, SeqCst);
        self.next_due.store(NEVER, SeqCst);
        self.swept_at.store(0, SeqCst);
        self.inline.store(0, SeqCst);
        self.waiting.iter().for_each(|word| word.store(0, SeqCst));
        self.marks.take();
    }
}

static mut PREVIOUS_REQUEST: Option<unsafe extern "C-unwind" fn()> = None;
static mut PREVIOUS_STARTUP: Option<unsafe extern "C-unwind" fn()> = None;

/// Asks for the memory; while the server preloads its libraries.
pub fn init() {
    // SAFETY: the postmaster has one thread, and nothing else runs yet.
    unsafe {
        PREVIOUS_REQUEST = pg_sys::shmem_request_hook;
        pg_sys::shmem_request_hook = Some(request);
        PREVIOUS_STARTUP = pg_sys::shmem_startup_hook;
        pg_sys::shmem_startup_hook = Some(startup);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn request() {
    // SAFETY: called by the postmaster at the time for such requests; the previous hook is called as the server would.
    unsafe {
        if let Some(previous) = PREVIOUS_REQUEST {
            pg_sys::ffi::pg_guard_ffi_boundary(|| previous());
        }
        pg_sys::RequestAddinShmemSpace(size_of::<Shared>());
    }
}

/// Runs at the server's start, and again after a crash of one of its processes, with new memory.
#[pg_guard]
unsafe extern "C-unwind" fn startup() {
    // SAFETY: called by the postmaster, before it has children, so no lock is needed. Zeroed memory is a valid `Shared`: it holds
    // integers, flags and pointers in atomics only.
    unsafe {
        if let Some(previous) = PREVIOUS_STARTUP {
            pg_sys::ffi::pg_guard_ffi_boundary(|| previous());
        }
        let mut found = false;
        let memory = pg_sys::ShmemInitStruct(c"sayiir".as_ptr(), size_of::<Shared>(), &mut found)
            .cast::<Shared>();
        if !found {
            memory.write_bytes(0, 1);
        }
        let shared = &*memory;
        shared.launcher_looks_at.store(NEVER, SeqCst);
        shared.databases.iter().for_each(Database::reset);
        SHARED.store(memory, SeqCst);
    }
}
