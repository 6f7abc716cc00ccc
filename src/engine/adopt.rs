//! Adopt: whether the engine may run in this database, and how it takes over one that was restored or copied.
//!
//! A dump does not hold `meta`, a copy holds that of another database. So a database that is being loaded is never swept, and a copy for
//! tests does nothing that its original does too, until somebody says `adopt()`.

use std::cell::Cell;

use crate::engine::owner;
use crate::error::{Code, Error, Result};
use crate::pg::spi::Session;
use crate::runtime::wake;
use crate::store;
use crate::store::meta::State;

thread_local! {
    /// This backend has seen the committed row. Forgotten with the other caches, so also when the extension is dropped or the
    /// transaction that wrote the row rolls back.
    static ADOPTED: Cell<bool> = const { Cell::new(false) };
}

/// Called when the caches of this backend are emptied.
pub fn forget() {
    ADOPTED.set(false);
}

fn state(session: &Session) -> State {
    if ADOPTED.get() {
        return State::Adopted;
    }
    let watch = store::cache::watch();
    let state = store::meta::state(session);
    if state == State::Adopted && watch.may_keep() {
        ADOPTED.set(true);
    }
    state
}

/// Whether sweeps may run. In an empty database they find nothing.
pub fn is_foreign(session: &Session) -> bool {
    state(session) == State::Foreign
}

/// Refuses what must not run in a copy.
pub fn require(session: &Session) -> Result<()> {
    if is_foreign(session) {
        return Err(Error::new(
            Code::EngineNotAdopted,
            "this database is a restore or a copy that nobody has adopted",
        ));
    }
    Ok(())
}

/// A call by a user is about to write: the first one in an empty database makes it the engine's own. Sweeps and claims never do.
pub fn note_use(session: &Session) {
    if state(session) == State::Empty {
        store::meta::write(session, "first call");
    }
}

/// Takes the database over. Answers (kind, how many).
pub fn adopt(session: &Session) -> Result<Vec<(&'static str, i64)>> {
    owner::require_read_committed("adopt")?;
    store::meta::lock(session);
    let (mut leases, mut sequences) = (0, 0);
    if store::meta::state(session) != State::Adopted {
        store::meta::forget_others(session);
        store::meta::write(session, "adopt");
        sequences = store::meta::advance_sequences(session);
        for (task, jobs) in store::meta::return_leases(session) {
            leases += jobs;
            wake::job_ready(&task);
        }
        // Timers that came due meanwhile.
        wake::timer_at(crate::pg::clock::Instant::now());
        pgrx::log!(
            "sayiir: this database was adopted: {leases} leases returned, {sequences} sequences moved"
        );
    }
    Ok(vec![("leases", leases), ("sequences", sequences)])
}
