//! `checkpoint`: the named answers of durable code.

use pgrx::Uuid;

use crate::args;
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::{Session, Statement};
use crate::pg::types::{INT8, JSONB, TEXT, TIME, UUID};

/// Remembers a value for the holder of a lease; false when the lease is gone or the name remembers something else.
pub fn set_value(
    session: &Session,
    id: Uuid,
    epoch: i64,
    name: &str,
    value: Jsonb,
    now: Instant,
) -> bool {
    // job_lease_pkey, checkpoint_pkey. The lease is locked only against its end, so heartbeats go on meanwhile; whoever is ending it
    // is waited for, and then there is no row: a stale worker writes nothing.
    static SET: Statement = Statement::new(
        &[UUID, INT8, TEXT, JSONB, TIME],
        "WITH lease AS MATERIALIZED (
             SELECT job_id, epoch FROM sayiir.job_lease WHERE job_id = $1 AND epoch = $2 FOR KEY SHARE)
         INSERT INTO sayiir.checkpoint AS c (job_id, name, kind, value, epoch, created_at)
         SELECT job_id, $3, 'value', $4, epoch, $5 FROM lease
         ON CONFLICT (job_id, name) DO UPDATE SET value = excluded.value, epoch = excluded.epoch WHERE c.kind = 'value'
         RETURNING true",
    );
    !SET.run(session, args![id, epoch, name, value, now])
        .is_empty()
}

/// Forgets everything that a job remembers.
pub fn reset(session: &Session, id: Uuid) {
    // checkpoint_pkey, leading column
    static RESET: Statement =
        Statement::new(&[UUID], "DELETE FROM sayiir.checkpoint WHERE job_id = $1");
    RESET.run(session, args![id]);
}
