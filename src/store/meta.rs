//! `meta`: whose database this is.

use crate::args;
use crate::pg::spi::{Session, Statement};
use crate::pg::types::TEXT;

/// What the engine finds itself in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The database that it was begun or adopted in.
    Adopted,
    /// A new one: nothing has been called yet.
    Empty,
    /// A copy or a restore.
    Foreign,
}

pub fn state(session: &Session) -> State {
    // meta is a page; the first entry of each other table
    static STATE: Statement = Statement::new(&[], "SELECT adopted, empty FROM sayiir.engine_state");
    let rows = STATE.run(session, &[]);
    let row = rows.first().expect("one row");
    match (row.get(1), row.get(2)) {
        (true, _) => State::Adopted,
        (false, true) => State::Empty,
        (false, false) => State::Foreign,
    }
}

/// Makes this database the engine's own.
pub fn write(session: &Session, reason: &str) {
    static WRITE: Statement = Statement::new(
        &[TEXT],
        "INSERT INTO sayiir.meta (system_identifier, database_oid, reason)
         SELECT system_identifier, database_oid, $1 FROM sayiir.engine_state",
    );
    WRITE.run(session, args![reason]);
    super::cache::changed(c"meta");
}

/// Keeps other calls of adopt, and first calls, out until the transaction ends.
pub fn lock(session: &Session) {
    static LOCK: Statement =
        Statement::new(&[], "LOCK TABLE sayiir.meta IN SHARE ROW EXCLUSIVE MODE");
    LOCK.run(session, &[]);
}

/// Forgets the databases that this one was copied from.
pub fn forget_others(session: &Session) {
    static FORGET: Statement = Statement::new(&[], "DELETE FROM sayiir.meta");
    FORGET.run(session, &[]);
}

/// Every lease ends and its job is ready, the attempt given back: it was the server that was lost, not the job's doing. Answers the
/// tasks and how many jobs of each. No owner is locked: a claim reads its status, and parks what may not run.
pub fn return_leases(session: &Session) -> Vec<(String, i64)> {
    // job_lease, whole; lane_pkey. The seq is drawn behind the delete, so after the xid.
    static RETURN: Statement = Statement::new(
        &[],
        "WITH gone AS (DELETE FROM sayiir.job_lease RETURNING *),
         ready AS (
             INSERT INTO sayiir.job_ready (job_id, workflow, lane, seq, run_number, attempt, epoch)
             SELECT job_id, workflow, lane, nextval('sayiir.ready_seq'), run_number, greatest(attempt - 1, 0), epoch FROM gone)
         SELECT l.task, count(*) FROM gone g JOIN sayiir.lane l ON l.lane = g.lane GROUP BY l.task",
    );
    RETURN
        .run(session, &[])
        .iter()
        .map(|row| (row.get(1), row.get(2)))
        .collect()
}

/// Moves a sequence past the numbers that its table holds; it may have been restored from another moment than the table.
macro_rules! advance {
    ($sequence:literal, $highest:literal) => {
        concat!(
            "SELECT setval('sayiir.",
            $sequence,
            "', h.highest) FROM (",
            $highest,
            ") h (highest) WHERE h.highest > (SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM sayiir.",
            $sequence,
            ")"
        )
    };
}

/// Moves every sequence that is behind its table; answers how many were. Reads the wide tables from end to end.
pub fn advance_sequences(session: &Session) -> i64 {
    static ADVANCE: [Statement; 11] = [
        Statement::new(
            &[],
            advance!("ready_seq", "SELECT max(seq) FROM sayiir.job_ready"),
        ),
        Statement::new(
            &[],
            advance!("wait_seq", "SELECT max(seq) FROM sayiir.job_wait"),
        ),
        Statement::new(
            &[],
            advance!(
                "history_seq",
                "SELECT greatest((SELECT max(history_seq) FROM sayiir.job), (SELECT max(history_seq) FROM sayiir.job_end),
                     (SELECT max(history_seq) FROM sayiir.job_attempt), (SELECT max(history_seq) FROM sayiir.workflow_log),
                     (SELECT max(history_seq) FROM sayiir.workflow))"
            ),
        ),
        Statement::new(
            &[],
            advance!(
                "lane_seq",
                "SELECT max(lane & 1099511627775) FROM sayiir.lane"
            ),
        ),
        Statement::new(
            &[],
            advance!("task_id_seq", "SELECT max(id) FROM sayiir.task"),
        ),
        Statement::new(
            &[],
            advance!(
                "definition_version_id_seq",
                "SELECT max(id) FROM sayiir.definition_version"
            ),
        ),
        Statement::new(
            &[],
            advance!("workflow_id_seq", "SELECT max(id) FROM sayiir.workflow"),
        ),
        Statement::new(
            &[],
            advance!("event_id_seq", "SELECT max(id) FROM sayiir.event"),
        ),
        Statement::new(
            &[],
            advance!(
                "job_log_entry_id_seq",
                "SELECT max(id) FROM sayiir.job_log_entry"
            ),
        ),
        Statement::new(
            &[],
            advance!("event_key_id_seq", "SELECT max(id) FROM sayiir.event_key"),
        ),
        Statement::new(
            &[],
            advance!("schedule_id_seq", "SELECT max(id) FROM sayiir.schedule"),
        ),
    ];
    ADVANCE
        .iter()
        .map(|statement| statement.run(session, &[]).count() as i64)
        .sum()
}
