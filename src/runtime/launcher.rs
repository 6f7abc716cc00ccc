//! The launcher: one process that knows which databases there are, and starts a worker where there is something to do.
//!
//! It is connected to no database, so it blocks none; it reads the shared catalog `pg_database` only. It decides from shared memory when
//! a database is due: a timer, writers who notify too often, marks that nobody has sent. A visit now and then is the belt: it finds
//! databases made from a template or by restore, and what a prepared transaction left. After any exit the server starts it again within
//! a second; on a standby it starts when recovery ends.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use pgrx::bgworkers::BackgroundWorkerBuilder;
use pgrx::{pg_guard, pg_sys};

use super::shmem::{self, DESKS, Database, Desk, NEVER, Shared, outcome};
use crate::pg::clock::Instant;
use crate::pg::{catalog, latch, process};
use crate::settings;

const SECOND: i64 = 1_000_000;
/// A database with the extension is visited at least so often.
const VISIT_US: i64 = 30 * SECOND;
/// … when it has no slot, and nobody can say when it is due.
const VISIT_BLIND_US: i64 = 5 * SECOND;
/// A database without the extension. One that gets it makes itself known with its first job.
const VISIT_ABSENT_US: i64 = 60 * SECOND;
/// After a visit that failed: a second, then twice as long each time.
const RETRY_US: i64 = SECOND;
const MAX_RETRY_DOUBLINGS: u32 = 5;
/// So often the list of databases is read; also after SIGHUP, and when a database appears that is not on it.
const LIST_US: i64 = 10 * SECOND;
/// When databases wait for a worker that stays, the one that has stayed longest leaves after so long, and comes back after as long.
const SHARE_US: i64 = SECOND;
/// Between two brief visits of a database, whose timers may be many.
const BRIEF_US: i64 = SECOND / 10;

/// Registers the launcher; while the server preloads its libraries.
pub fn init() {
    BackgroundWorkerBuilder::new("sayiir launcher")
        .set_type("sayiir launcher")
        .set_library("sayiir")
        .set_function("sayiir_launcher")
        .enable_spi_access()
        .set_restart_time(Some(Duration::from_secs(1)))
        .load();
}

#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn sayiir_launcher(_argument: pg_sys::Datum) {
    process::become_worker();
    process::connect(0);
    let Some(shared) = shmem::shared() else {
        process::exit_for_restart()
    };
    shared.launcher.publish();
    process::before_exit(at_exit);
    let mut launcher = Launcher {
        shared,
        desks: (process::max_worker_processes() / 2).clamp(1, DESKS),
        open: BTreeMap::new(),
        all: BTreeSet::new(),
        list_at: Instant(0),
        start_at: Instant(0),
        looked_at: Instant(0),
    };
    loop {
        shared.launcher_looks_at.store(NEVER, SeqCst);
        if process::is_stopping() {
            process::exit_for_restart();
        }
        if process::answer_interrupts() {
            launcher.list_at = Instant(0);
        }
        let until = launcher.look(Instant::now());
        shared.launcher_looks_at.store(until.0, SeqCst);
        latch::wait((until.0 - Instant::now().0 + 999) / 1000);
    }
}

unsafe extern "C-unwind" fn at_exit(_: c_int, _: pg_sys::Datum) {
    if let Some(shared) = shmem::shared() {
        shared.launcher.clear();
    }
}

struct Launcher {
    shared: &'static Shared,
    /// Half of the server's background workers at most. The last one, if there are more, is for brief visits: however many databases
    /// are busy, timers are served.
    desks: usize,
    /// The databases to visit.
    open: BTreeMap<u32, Known>,
    /// Every database.
    all: BTreeSet<u32>,
    list_at: Instant,
    /// Not before that: the server had no room for a process.
    start_at: Instant,
    looked_at: Instant,
}

struct Known {
    name: String,
    visit_at: Instant,
    not_before: Instant,
    /// No worker stays here before that: others have their turn.
    stay_at: Instant,
    failures: u32,
}

/// Something to do in a database.
struct Due {
    at: Instant,
    oid: u32,
    /// Sweeping and going is enough; else writers want a worker that stays.
    brief: bool,
}

impl Launcher {
    /// One look around. Returns when the next one is due if nothing happens before.
    fn look(&mut self, now: Instant) -> Instant {
        if now < self.looked_at {
            self.forget_times();
        }
        self.looked_at = now;
        self.clear_desks(now);
        let in_a_second = now.plus_us(SECOND);
        if !settings::WORKER.get() {
            return in_a_second;
        }
        if now >= self.list_at
            || self
                .shared
                .databases()
                .any(|(oid, _)| !self.all.contains(&oid))
        {
            match self.read_list() {
                Ok(()) => self.list_at = now.plus_us(LIST_US),
                Err(error) => {
                    pgrx::log!("sayiir: the list of databases cannot be read: {error}");
                    return in_a_second;
                }
            }
        }
        let mut due: Vec<Due> = self
            .open
            .iter()
            .filter(|(oid, _)| !self.shared.is_served(**oid))
            .map(|(oid, known)| self.due(*oid, known, now))
            .collect();
        due.sort_by_key(|due| (due.at, due.oid));
        let mut next = in_a_second;
        for due in due {
            let at = due.at.max(self.start_at);
            if at > now {
                next = next.min(at);
                break;
            }
            self.start(&due, now);
        }
        next
    }

    /// The clock was set back.
    fn forget_times(&mut self) {
        self.list_at = Instant(0);
        self.start_at = Instant(0);
        for known in self.open.values_mut() {
            (known.visit_at, known.not_before, known.stay_at) =
                (Instant(0), Instant(0), Instant(0));
        }
    }

    /// Learns from the workers that have gone.
    fn clear_desks(&mut self, now: Instant) {
        let staying = self.staying();
        for (number, desk) in self.shared.desks.iter().enumerate() {
            let made_room = desk.leave.load(SeqCst);
            let Some((oid, outcome)) = desk.clear(now) else {
                continue;
            };
            let has_slot = self.slots(oid).next().is_some();
            let Some(known) = self.open.get_mut(&oid) else {
                continue;
            };
            known.failures = if matches!(outcome, outcome::SERVED | outcome::ABSENT) {
                0
            } else {
                known.failures + 1
            };
            let (visit_us, pause_us) = match outcome {
                outcome::SERVED if has_slot => (VISIT_US, if made_room { BRIEF_US } else { 0 }),
                outcome::SERVED => (VISIT_BLIND_US, 0),
                outcome::ABSENT => (VISIT_ABSENT_US, SECOND),
                _ => (0, RETRY_US << (known.failures - 1).min(MAX_RETRY_DOUBLINGS)),
            };
            known.visit_at = now.plus_us(visit_us);
            known.not_before = now.plus_us(pause_us);
            if made_room && number < staying {
                known.stay_at = now.plus_us(SHARE_US);
            }
        }
    }

    fn slots(&self, database: u32) -> impl Iterator<Item = &'static Database> {
        self.shared
            .databases()
            .filter(move |(oid, _)| *oid == database)
            .map(|(_, slot)| slot)
    }

    /// When this database has to be visited, and how.
    fn due(&self, oid: u32, known: &Known, now: Instant) -> Due {
        let mut brief_at = known.visit_at;
        let mut stay_at = Instant(NEVER);
        for slot in self.slots(oid) {
            let is_unknown = !slot.visited.load(SeqCst) || slot.marked.load(SeqCst);
            let due = if is_unknown {
                i64::MIN
            } else {
                slot.next_due.load(SeqCst)
            };
            brief_at = brief_at.min(Instant(due));
            if slot.wanted.load(SeqCst) {
                stay_at = known.stay_at;
            }
        }
        let at = brief_at.min(stay_at).max(known.not_before);
        Due {
            at,
            oid,
            brief: brief_at <= now,
        }
    }

    /// How many desks are for workers that may stay.
    fn staying(&self) -> usize {
        if self.desks > 1 { self.desks - 1 } else { 1 }
    }

    /// Starts a worker, if a desk is free, or asks for one.
    fn start(&mut self, due: &Due, now: Instant) {
        let staying = self.staying();
        let (long, short) = self.shared.desks[..self.desks].split_at(staying);
        let free = match long.iter().position(Desk::is_free) {
            Some(desk) => Some((desk, false)),
            None if due.brief && short.iter().any(Desk::is_free) => Some((staying, true)),
            None => None,
        };
        let Some((desk, brief)) = free else {
            let staying = long
                .iter()
                .filter_map(|desk| Some((desk.busy_us(now)?, desk)));
            if let Some((us, desk)) = staying.max_by_key(|(us, _)| *us)
                && us >= SHARE_US
            {
                desk.ask_to_leave();
            }
            return;
        };
        let name = self
            .open
            .get(&due.oid)
            .map_or("", |known| known.name.as_str());
        if !self.shared.start_worker(desk, due.oid, name, brief) {
            self.start_at = now.plus_us(RETRY_US);
        }
    }

    /// Reads which databases there are, and gives back the slots of those that are gone.
    fn read_list(&mut self) -> Result<(), String> {
        // Slots first: a database whose slot is in use before the list is read, and which is not on it, has been dropped.
        let slots: Vec<(u32, &Database)> = self.shared.databases().collect();
        let list = process::transaction(catalog::databases)?;
        self.all = list.iter().map(|database| database.oid).collect();
        slots
            .iter()
            .filter(|(oid, _)| !self.all.contains(oid))
            .for_each(|(_, slot)| slot.free());
        let chosen = settings::text(&settings::DATABASES).unwrap_or_default();
        let mut open = BTreeMap::new();
        for database in list {
            if database.is_open && is_chosen(&chosen, &database.name) {
                let before = self.open.remove(&database.oid);
                let new = Known {
                    name: String::new(),
                    visit_at: Instant(0),
                    not_before: Instant(0),
                    stay_at: Instant(0),
                    failures: 0,
                };
                open.insert(
                    database.oid,
                    Known {
                        name: database.name,
                        ..before.unwrap_or(new)
                    },
                );
            }
        }
        self.open = open;
        Ok(())
    }
}

/// Whether `sayiir.databases` names the database: `*`, or a list with commas.
fn is_chosen(setting: &str, name: &str) -> bool {
    setting
        .split(',')
        .map(str::trim)
        .any(|word| word == "*" || word == name)
}
