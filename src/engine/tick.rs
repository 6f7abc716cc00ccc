//! Tick: every sweep once. Called by the background worker, by any scheduler, and, in small, by claims.
//!
//! One broken row never stops the others: a batch that raises is rolled back and done again row by row, each in a subtransaction
//! of its own; the row that raises is reported and comes up again later.

use pgrx::Uuid;

use crate::engine::{adopt, cancel_job, effect_sweep, fire_schedule, owner, prune, reap, timers};
use crate::error::{OrRaise, Result};
use crate::pg::clock::Instant;
use crate::pg::spi::Session;
use crate::pg::subxact;
use crate::runtime;
use crate::store;

/// Rows that a claim sweeps at most, of each kind.
const CLAIM_ROWS: i32 = 100;
/// Rows done one by one after a batch has failed: more subtransactions would overflow the backend's cache of them.
const MAX_SUBTRANSACTIONS: usize = 24;
/// A row that raised comes up again after this.
const POSTPONE_US: i64 = 60_000_000;

/// (kind, rows done) of each sweep.
pub fn tick(session: &Session, max_rows: i32) -> Result<Vec<(&'static str, i64)>> {
    owner::require_read_committed("tick")?;
    if adopt::is_foreign(session) {
        pgrx::warning!(
            "sayiir: nothing is swept: this database is a restore or a copy; SELECT * FROM sayiir.adopt() takes it over"
        );
        return Ok(Vec::new());
    }
    let mut done = sweep(session, max_rows);
    // Not with a claim: what has ended can wait until somebody has the time.
    done.push(("retention", prune::sweep(session, max_rows)));
    Ok(done)
}

/// What claims do first, at most once a second a database: due timers and expired leases must not wait for a worker of ours.
pub fn before_claim(session: &Session) {
    if runtime::sweep_is_due() {
        sweep(session, CLAIM_ROWS);
    }
}

fn sweep(session: &Session, max_rows: i32) -> Vec<(&'static str, i64)> {
    let promoted = isolated(
        "timers",
        &timers::due_of_clock(session, max_rows),
        |due| Ok(timers::promote(session, due)),
        |job| store::wait::postpone(session, *job, Instant::now().plus_us(POSTPONE_US)),
    );
    let fired = isolated(
        "timers",
        &timers::due(session, max_rows),
        |due| timers::fire(session, due),
        |(job, _)| store::wait::postpone(session, *job, Instant::now().plus_us(POSTPONE_US)),
    );
    let leases = isolated(
        "leases",
        &reap::due(session, max_rows),
        |due| Ok(reap::reap(session, due)?.len() as i64),
        |(job, _)| store::lease::postpone(session, *job, Instant::now().plus_us(POSTPONE_US)),
    );
    // Before the next claim takes them: a job that was cancelled is not worked on.
    let cancels = isolated(
        "cancels",
        &cancel_job::due(session, max_rows),
        |due| cancel_job::apply_due(session, due),
        |_| {},
    );
    let deadlines = isolated(
        "deadlines",
        &timers::past_deadline(session, max_rows),
        |due| timers::end_past_deadline(session, due),
        |_| {},
    );
    let schedules = isolated(
        "schedules",
        &fire_schedule::due(session, max_rows),
        |due| fire_schedule::fire(session, due),
        |id| store::schedule::postpone(session, *id, Instant::now().plus_us(POSTPONE_US)),
    );
    let effects = isolated(
        "effects",
        &effect_sweep::due(session, max_rows),
        |due| effect_sweep::recover(session, due),
        |id| effect_sweep::postpone(session, *id, Instant::now().plus_us(POSTPONE_US)),
    );
    vec![
        ("timers", promoted + fired),
        ("leases", leases),
        ("cancels", cancels),
        ("deadlines", deadlines),
        ("schedules", schedules),
        ("effects", effects),
    ]
}

/// Ends expired leases; answers (job, disposition). One broken row is reported and skipped.
pub fn reap(session: &Session, max_rows: i32) -> Result<Vec<(Uuid, &'static str)>> {
    owner::require_read_committed("job_reap")?;
    adopt::require(session)?;
    let due = reap::due(session, max_rows);
    let mut reaped = Vec::new();
    isolated(
        "leases",
        &due,
        |due| {
            let done = reap::reap(session, due)?;
            let count = done.len() as i64;
            reaped.extend(done);
            Ok(count)
        },
        |(job, _)| store::lease::postpone(session, *job, Instant::now().plus_us(POSTPONE_US)),
    );
    Ok(reaped)
}

pub(super) fn isolated<T>(
    kind: &str,
    due: &[T],
    mut work: impl FnMut(&[T]) -> Result<i64>,
    postpone: impl Fn(&T),
) -> i64 {
    if due.is_empty() {
        return 0;
    }
    let mut attempt = |rows: &[T]| subxact::attempt(|| work(rows).or_raise());
    let whole = match attempt(due) {
        Ok(done) => return done,
        Err(message) if due.len() == 1 => Err(message),
        Err(_) => Ok(()),
    };
    let mut done = 0;
    for row in due.iter().take(MAX_SUBTRANSACTIONS / 2) {
        let result = match &whole {
            Err(message) => Err(message.clone()),
            Ok(()) => attempt(std::slice::from_ref(row)),
        };
        match result {
            Ok(count) => done += count,
            Err(message) => {
                pgrx::warning!(
                    "sayiir: a row of sweep {kind} failed and is tried again in a minute: {message}"
                );
                if let Err(message) = subxact::attempt(|| postpone(row)) {
                    pgrx::warning!("sayiir: the row could not be postponed: {message}");
                }
            }
        }
    }
    done
}
