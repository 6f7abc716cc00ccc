//! One visit to what is due in a database, over SPI, in short transactions: no lock outlives a sweep.

use std::sync::atomic::Ordering::SeqCst;

use super::shmem::{Database, NEVER};
use crate::pg::clock::Instant;
use crate::pg::spi::{self, Statement};
use crate::pg::{catalog, process};

pub enum Swept {
    /// The extension is not there, or not any more.
    Absent,
    Done,
}

/// After so many rounds of 200 rows the worker looks at its other duties.
const MAX_ROUNDS: usize = 100;
/// What a sweep could not take although it is due (locked, paused) is tried again so much later.
const LATER_US: i64 = 1_000_000;

/// Sweeps until nothing is due, then learns when the next is. An error is one of the database's, and comes back as its message.
/// `between` runs after each round.
pub fn run(database: Option<&Database>, between: impl Fn()) -> Result<Swept, String> {
    static TICK: Statement = Statement::new(
        &[],
        "SELECT coalesce(pg_catalog.sum(done), 0)::bigint FROM sayiir.tick(200)",
    );
    static NEXT_DUE: Statement = Statement::new(&[], "SELECT sayiir.next_due()");

    let mut did_something = false;
    for round in 0..=MAX_ROUNDS {
        process::answer_interrupts();
        let done = in_database(|session| {
            TICK.run(session, &[])
                .first()
                .map_or(0, |row| row.get::<i64>(1))
        })?;
        process::report_statistics();
        between();
        match done {
            None => return Ok(Swept::Absent),
            Some(0) => break,
            Some(_) if round == MAX_ROUNDS => {
                set_next_due(database, Instant::now().0);
                return Ok(Swept::Done);
            }
            Some(_) => did_something = true,
        }
    }
    // Forget the old time first: a commit that the next statement does not see sets its timer after this.
    if let Some(database) = database {
        database.next_due.store(NEVER, SeqCst);
    }
    let due = in_database(|session| {
        NEXT_DUE
            .run(session, &[])
            .first()
            .and_then(|row| row.opt::<Instant>(1))
    });
    let now = Instant::now();
    match due {
        Ok(None) => return Ok(Swept::Absent),
        Ok(Some(None)) => {}
        Ok(Some(Some(due))) => {
            let earliest = if did_something {
                i64::MIN
            } else {
                now.plus_us(LATER_US).0
            };
            set_next_due(
                database,
                if due <= now {
                    due.0.max(earliest)
                } else {
                    due.0
                },
            );
        }
        Err(error) => {
            set_next_due(database, now.plus_us(LATER_US).0);
            return Err(error);
        }
    }
    Ok(Swept::Done)
}

/// Runs `work` in a transaction of its own, if the extension is there; looked up each time, since it may be dropped at any time.
fn in_database<R>(work: impl FnOnce(&spi::Session) -> R) -> Result<Option<R>, String> {
    process::transaction(|| catalog::has_extension(c"sayiir").then(|| spi::connect(work)))
}

fn set_next_due(database: Option<&Database>, at: i64) {
    if let Some(database) = database {
        database.next_due.fetch_min(at, SeqCst);
    }
}

/// Whether the extension is there.
pub fn has_extension() -> Result<bool, String> {
    process::transaction(|| catalog::has_extension(c"sayiir"))
}
