//! `job_log_entry`: what workers logged.

use pgrx::Uuid;

use crate::args;
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::{Session, Statement};
use crate::pg::types::{INT8, JSONB, TEXT, TIME, UUID};

/// Appends a line for the holder of a lease; false when the lease is gone. A line that crosses the end of the lease does no harm, so
/// nothing is locked.
pub fn append(
    session: &Session,
    (id, epoch): (Uuid, i64),
    level: &str,
    message: &str,
    fields: Jsonb,
    now: Instant,
) -> bool {
    // job_lease_pkey
    static APPEND: Statement = Statement::new(
        &[UUID, INT8, TEXT, TEXT, JSONB, TIME],
        "INSERT INTO sayiir.job_log_entry (job_id, run_number, attempt, epoch, level, message, fields, at)
         SELECT job_id, run_number, attempt, epoch, $3, $4, $5, $6 FROM sayiir.job_lease WHERE job_id = $1 AND epoch = $2
         RETURNING true",
    );
    !APPEND
        .run(session, args![id, epoch, level, message, fields, now])
        .is_empty()
}
