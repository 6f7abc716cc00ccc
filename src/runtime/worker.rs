//! A worker: a short-lived process in one database.
//!
//! It sweeps what is due, stays as notifier while clients of the database make marks and 2 s beyond, and goes. So DROP DATABASE, CREATE
//! DATABASE TEMPLATE and DROP EXTENSION, which wait 5 s for others to leave, are never blocked for long; what its own sweeps do does not
//! keep it. It sweeps in small rounds and notifies between two of them, so that listeners do not wait for long.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;

use pgrx::{pg_guard, pg_sys};

use super::commit::{self, IS_WORKER};
use super::pending::CHANNELS;
use super::shmem::{self, Database, Desk, NEVER, Shared, outcome};
use super::sweep::{self, Swept};
use crate::pg::clock::Instant;
use crate::pg::{latch, notify, process};
use crate::settings;

/// So long a notifier stays after the last mark of a client.
const STAY_US: i64 = 2_000_000;
/// Marks are collected so long between two notifications.
const COLLECT_MS: i64 = 5;
/// Sweeps are so far apart, even when timers come one after the other.
const BETWEEN_SWEEPS_US: i64 = 10_000;
/// … and so far after an error.
const AFTER_ERROR_US: i64 = 1_000_000;

#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn sayiir_worker(argument: pg_sys::Datum) {
    process::become_worker();
    let Some(shared) = shmem::shared() else {
        return;
    };
    let Some(desk) = shared.take_desk(argument.value() as i64) else {
        return;
    };
    process::connect(desk.database.load(SeqCst));
    // What a database sets for its clients is not for its sweeps. In a deadlock, say with DROP EXTENSION, the sweep is who notices or
    // gives up first, and tries again later.
    process::set(c"default_transaction_isolation", c"read committed");
    process::set(c"default_transaction_read_only", c"off");
    process::set(c"default_transaction_deferrable", c"off");
    #[cfg(any(feature = "pg17", feature = "pg18"))]
    process::set(c"transaction_timeout", c"0");
    process::set(c"lock_timeout", c"100ms");
    process::set(c"deadlock_timeout", c"10ms");
    process::set(c"sayiir.scope", c"global");
    IS_WORKER.store(true, SeqCst);
    let outcome = Visit::new(shared, desk).run();
    desk.outcome.store(outcome, SeqCst);
}

struct Visit {
    shared: &'static Shared,
    desk: &'static Desk,
    /// When a client made its last mark, as far as this worker has seen.
    last_mark: Instant,
    activity: u64,
    not_before: Instant,
    last_error: Option<String>,
}

impl Visit {
    fn new(shared: &'static Shared, desk: &'static Desk) -> Self {
        Self {
            shared,
            desk,
            last_mark: Instant(i64::MIN),
            activity: 0,
            not_before: Instant(i64::MIN),
            last_error: None,
        }
    }

    /// Serves the database until it is quiet; one of `outcome::*`.
    fn run(&mut self) -> u8 {
        match self.is_absent() {
            Ok(false) => {}
            Ok(true) => return outcome::ABSENT,
            Err(_) => return outcome::FAILED,
        }
        let Some(database) = shmem::my_database() else {
            return self.sweep(None);
        };
        self.adopt(database);
        database.notifier_looks_at.store(NEVER, SeqCst);
        database.notifier.publish();
        let mut result = self.sweep(Some(database));
        database.visited.store(true, SeqCst);
        self.see_activity(database);
        while result != outcome::ABSENT && self.stays() {
            database.wanted.store(false, SeqCst);
            self.serve(database);
            if self.is_due(database) {
                result = self.sweep(Some(database));
            }
        }
        // Writers notify themselves from here on; what they marked before is sent.
        database.notifier.clear();
        flush(database);
        result
    }

    /// What the slot still says may be of an extension that was dropped; or of one that is just being created, so it is forgotten
    /// first, and then looked again.
    fn is_absent(&self) -> Result<bool, String> {
        if sweep::has_extension()? {
            return Ok(false);
        }
        if let Some(database) = shmem::existing_database() {
            database.forget();
        }
        Ok(!sweep::has_extension()?)
    }

    /// Slots of this database that a race has made beside `mine` are given up.
    fn adopt(&mut self, mine: &Database) {
        let me = process::database();
        self.shared
            .databases()
            .filter(|(oid, slot)| *oid == me && !std::ptr::eq(*slot, mine))
            .for_each(|(_, slot)| slot.free());
        self.activity = mine.activity.load(SeqCst);
        if mine.wanted.load(SeqCst) || mine.marked.load(SeqCst) {
            self.last_mark = Instant::now();
        }
    }

    fn sweep(&mut self, database: Option<&Database>) -> u8 {
        let result = sweep::run(database, || {
            if let Some(database) = database {
                flush(database);
            }
        });
        let now = Instant::now();
        match result {
            Ok(Swept::Absent) => {
                if matches!(self.is_absent(), Ok(true)) {
                    return outcome::ABSENT;
                }
                // It was created again meanwhile.
                if let Some(database) = database {
                    database.next_due.fetch_min(now.0, SeqCst);
                }
                outcome::SERVED
            }
            Ok(Swept::Done) => {
                self.not_before = now.plus_us(BETWEEN_SWEEPS_US);
                self.last_error = None;
                outcome::SERVED
            }
            Err(error) => {
                self.not_before = now.plus_us(AFTER_ERROR_US);
                if let Some(database) = database {
                    database.next_due.fetch_min(self.not_before.0, SeqCst);
                }
                if self.last_error.as_ref() != Some(&error) {
                    pgrx::log!("sayiir: a sweep failed and will be tried again: {error}");
                    self.last_error = Some(error);
                }
                outcome::FAILED
            }
        }
    }

    /// Clients that make marks keep the worker here.
    fn see_activity(&mut self, database: &Database) {
        let activity = database.activity.load(SeqCst);
        if activity != self.activity {
            self.activity = activity;
            self.last_mark = Instant::now();
        }
    }

    /// It goes, too, when the clock was set back: its times mean nothing then.
    fn stays(&self) -> bool {
        let now = Instant::now();
        settings::WORKER.get()
            && !self.desk.leave.load(SeqCst)
            && (self.last_mark..self.last_mark.plus_us(STAY_US)).contains(&now)
    }

    fn is_due(&self, database: &Database) -> bool {
        self.next_sweep(database) <= Instant::now().0
    }

    fn next_sweep(&self, database: &Database) -> i64 {
        database.next_due.load(SeqCst).max(self.not_before.0)
    }

    /// Notifies, until a sweep is due or the visit over.
    fn serve(&mut self, database: &Database) {
        loop {
            // Awake: every timer sets the latch, so that none is missed between looking and sleeping.
            database.notifier_looks_at.store(NEVER, SeqCst);
            process::answer_interrupts();
            if flush(database) {
                latch::pause(COLLECT_MS);
            }
            self.see_activity(database);
            if !self.stays() || self.is_due(database) {
                return;
            }
            let due = self.next_sweep(database);
            let until = due.min(self.last_mark.plus_us(STAY_US).0);
            database.notifier_looks_at.store(until, SeqCst);
            fence(SeqCst);
            if self.next_sweep(database) >= due && !database.marked.load(SeqCst) {
                latch::wait((until - Instant::now().0 + 999) / 1000);
            }
        }
    }
}

/// Sends what is marked, in one transaction. False: nothing was.
fn flush(database: &Database) -> bool {
    if !database.marked.swap(false, SeqCst) {
        return false;
    }
    let taken = database.marks.take();
    let sent = process::transaction(|| {
        if !commit::queue_has_room() {
            return;
        }
        for channel in CHANNELS {
            if taken.overflow & (1 << channel as u32) != 0 {
                notify::notify(channel.name(), "");
            }
            for (_, payload) in taken.marks.iter().filter(|(of, _)| *of == channel as u32) {
                notify::notify(
                    channel.name(),
                    std::str::from_utf8(payload).unwrap_or_default(),
                );
            }
        }
    });
    if let Err(error) = sent {
        pgrx::log!(
            "sayiir: notifications were not sent; listeners will look when they poll: {error}"
        );
    }
    true
}
