//! Which process serves which database. The launcher gives a desk to a database and starts a process, which takes it; when the process
//! ends, however it ends, it leaves its outcome there, and the launcher clears the desk.

use std::ffi::c_int;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::SeqCst;

use pgrx::bgworkers::BackgroundWorkerBuilder;
use pgrx::{IntoDatum, pg_sys};

use super::shmem::{self, DESKS, Desk, Shared, desk, outcome};
use crate::pg::clock::Instant;
use crate::pg::process;

/// A process that has not come to its desk by then will not come any more.
const MAX_START_US: i64 = 10_000_000;

impl Desk {
    fn enter(&self, state: u32) {
        self.since.store(Instant::now().0, SeqCst);
        self.state.store(state, SeqCst);
    }

    pub fn is_free(&self) -> bool {
        self.state.load(SeqCst) == desk::FREE
    }

    /// For so many microseconds a worker has been at work here; None: there is none.
    pub fn busy_us(&self, now: Instant) -> Option<i64> {
        (self.state.load(SeqCst) == desk::TAKEN).then(|| now.0 - self.since.load(SeqCst))
    }

    /// Asks the worker to make room.
    pub fn ask_to_leave(&self) {
        if !self.leave.swap(true, SeqCst) {
            self.latch.wake();
        }
    }

    /// Clears the desk when its worker is gone: the database and the outcome.
    pub fn clear(&self, now: Instant) -> Option<(u32, u8)> {
        let is_late = || {
            now.0 - self.since.load(SeqCst) > MAX_START_US
                && self
                    .state
                    .compare_exchange(desk::STARTING, desk::LEFT, SeqCst, SeqCst)
                    .is_ok()
        };
        if self.state.load(SeqCst) != desk::LEFT && !is_late() {
            return None;
        }
        let left = (self.database.load(SeqCst), self.outcome.load(SeqCst));
        self.database.store(0, SeqCst);
        self.enter(desk::FREE);
        Some(left)
    }
}

impl Shared {
    /// Whether a worker serves this database, or is about to.
    pub fn is_served(&self, database: u32) -> bool {
        self.desks
            .iter()
            .any(|desk| !desk.is_free() && desk.database.load(SeqCst) == database)
    }

    /// Starts a worker at a free desk. Brief: it does not stay. False: the server has no room for another process.
    pub fn start_worker(&self, number: usize, database: u32, name: &str, brief: bool) -> bool {
        let Some(desk) = self.desks.get(number) else {
            return false;
        };
        let token = desk.token.fetch_add(1, SeqCst).wrapping_add(1);
        desk.database.store(database, SeqCst);
        desk.outcome.store(outcome::BROKEN, SeqCst);
        desk.leave.store(brief, SeqCst);
        desk.enter(desk::STARTING);
        let started = process::start_worker(
            BackgroundWorkerBuilder::new(&format!("sayiir worker for {name}"))
                .set_type("sayiir worker")
                .set_library("sayiir")
                .set_function("sayiir_worker")
                .set_argument((i64::from(token) << 8 | number as i64).into_datum())
                .enable_spi_access()
                .set_restart_time(None),
        );
        if !started {
            desk.database.store(0, SeqCst);
            desk.enter(desk::FREE);
        }
        started
    }

    /// The desk that the launcher has given to this process; None: it came too late. Whatever happens from here on, the desk is handed
    /// back when the process ends.
    pub fn take_desk(&self, argument: i64) -> Option<&'static Desk> {
        let number = (argument & 0xff) as usize;
        let desk = shmem::shared()?.desks.get(number.min(DESKS))?;
        if i64::from(desk.token.load(SeqCst)) != argument >> 8
            || desk
                .state
                .compare_exchange(desk::STARTING, desk::TAKEN, SeqCst, SeqCst)
                .is_err()
        {
            return None;
        }
        desk.since.store(Instant::now().0, SeqCst);
        desk.latch.publish();
        MINE.store(std::ptr::from_ref(desk).cast_mut(), SeqCst);
        process::before_exit(hand_back);
        Some(desk)
    }
}

static MINE: AtomicPtr<Desk> = AtomicPtr::new(std::ptr::null_mut());

unsafe extern "C-unwind" fn hand_back(_: c_int, _: pg_sys::Datum) {
    // SAFETY: null, or a desk in shared memory, which is still there.
    let desk = unsafe { MINE.load(SeqCst).as_ref() };
    let (Some(desk), Some(shared)) = (desk, shmem::shared()) else {
        return;
    };
    if let Some(database) = shmem::known_database() {
        // Writers notify themselves from here on. What they have marked till now, the launcher sees.
        database.notifier.clear();
    }
    desk.latch.clear();
    desk.enter(desk::LEFT);
    shared.launcher.wake();
}
