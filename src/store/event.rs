//! `event`, `event_key`: buffered events and the keys of those already taken.

use pgrx::Uuid;

use crate::args;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::{Session, Statement};
use crate::pg::types::{INT8, INT8S, JSONB, TEXT, TEXTS, UUID};

/// Serializes a birth under a chosen id with an event that is sent to the id before it is born: without it an event could be
/// buffered as early after the start had looked for early events.
pub fn lock_birth(session: &Session, organization: Option<&str>, workflow_id: &str) {
    static LOCK: Statement = Statement::new(
        &[TEXT, TEXT],
        "SELECT pg_advisory_xact_lock(hashtextextended('sayiir.birth' || coalesce($1, '') || chr(1) || $2, 0))",
    );
    LOCK.run(session, args![organization, workflow_id]);
}

/// Takes an event key; false when an event with it was sent before. Waits for a transaction that is taking it.
pub fn take_key(
    session: &Session,
    organization: Option<&str>,
    workflow_id: &str,
    key: &str,
) -> bool {
    // event_key's unique index
    static TAKE: Statement = Statement::new(
        &[TEXT, TEXT, TEXT],
        "INSERT INTO sayiir.event_key (organization_id, workflow_id, event_key) VALUES ($1, $2, $3)
         ON CONFLICT DO NOTHING RETURNING true",
    );
    !TAKE
        .run(session, args![organization, workflow_id, key])
        .is_empty()
}

/// An event that stays for later.
pub struct NewEvent<'a> {
    pub workflow: Option<i64>,
    pub organization: Option<&'a str>,
    pub workflow_id: &'a str,
    pub name: &'a str,
    pub payload: Option<Jsonb>,
    pub key: Option<&'a str>,
    /// buffered, early, late.
    pub disposition: &'a str,
}

pub fn append(session: &Session, event: &NewEvent) {
    static APPEND: Statement = Statement::new(
        &[INT8, TEXT, TEXT, TEXT, JSONB, TEXT, TEXT],
        "INSERT INTO sayiir.event (workflow, organization_id, workflow_id, name, payload, event_key, disposition)
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
    );
    APPEND.run(
        session,
        args![
            event.workflow,
            event.organization,
            event.workflow_id,
            event.name,
            event.payload,
            event.key,
            event.disposition
        ],
    );
}

/// Gives the events that came early to the workflow that is born; their order stays.
pub fn adopt(session: &Session, workflow: i64, organization: Option<&str>, workflow_id: &str) {
    // event_unborn
    static ADOPT: Statement = Statement::new(
        &[INT8, TEXT, TEXT],
        "UPDATE sayiir.event SET workflow = $1, disposition = 'buffered'
         WHERE workflow IS NULL AND workflow_id = $3 AND organization_id IS NOT DISTINCT FROM $2",
    );
    ADOPT.run(session, args![workflow, organization, workflow_id]);
}

/// Consumes buffered events: for each name the oldest that has `older` older ones. Answers (place in the arrays, from 0; payload,
/// which may be SQL NULL) of those that there are. The owner is locked.
pub fn consume(
    session: &Session,
    workflow: i64,
    names: Vec<String>,
    older: Vec<i64>,
) -> Vec<(i64, Option<Jsonb>)> {
    // event_buffered, event_pkey
    static CONSUME: Statement = Statement::new(
        &[INT8, TEXTS, INT8S],
        "WITH picked AS MATERIALIZED (
             SELECT w.n - 1 AS n, e.id
             FROM ROWS FROM (unnest($2), unnest($3)) WITH ORDINALITY AS w (name, older, n)
             CROSS JOIN LATERAL (
                 SELECT v.id FROM sayiir.event v
                 WHERE v.workflow = $1 AND v.name = w.name AND v.disposition = 'buffered'
                 ORDER BY v.workflow, v.name, v.id OFFSET w.older LIMIT 1) e),
         gone AS (DELETE FROM sayiir.event d USING picked p WHERE d.id = p.id RETURNING p.n, d.payload)
         SELECT n, payload FROM gone",
    );
    CONSUME
        .run(session, args![workflow, names, older])
        .iter()
        .map(|row| (row.get(1), row.opt(2)))
        .collect()
}

/// Takes the key of an event to a job; false when an event with it was sent before. The job is locked.
pub fn take_job_key(session: &Session, organization: Option<&str>, id: Uuid, key: &str) -> bool {
    // event_key's unique index
    static TAKE: Statement = Statement::new(
        &[TEXT, UUID, TEXT],
        "INSERT INTO sayiir.event_key (organization_id, job_id, event_key) VALUES ($1, $2, $3)
         ON CONFLICT DO NOTHING RETURNING true",
    );
    !TAKE.run(session, args![organization, id, key]).is_empty()
}

/// An event to a job that stays for later.
pub struct NewJobEvent<'a> {
    pub id: Uuid,
    pub organization: Option<&'a str>,
    pub name: &'a str,
    pub payload: Option<Jsonb>,
    pub key: Option<&'a str>,
    /// buffered, late.
    pub disposition: &'a str,
}

pub fn append_to_job(session: &Session, event: &NewJobEvent) {
    static APPEND: Statement = Statement::new(
        &[UUID, TEXT, TEXT, JSONB, TEXT, TEXT],
        "INSERT INTO sayiir.event (job_id, organization_id, name, payload, event_key, disposition)
         VALUES ($1, $2, $3, $4, $5, $6)",
    );
    APPEND.run(
        session,
        args![
            event.id,
            event.organization,
            event.name,
            event.payload,
            event.key,
            event.disposition
        ],
    );
}

/// Consumes the oldest buffered event of a name that was sent to a job; Some(None) = its payload is SQL NULL. The job is locked.
pub fn consume_of_job(session: &Session, id: Uuid, name: &str) -> Option<Option<Jsonb>> {
    // event_job
    static CONSUME: Statement = Statement::new(
        &[UUID, TEXT],
        "DELETE FROM sayiir.event WHERE id = (
             SELECT id FROM sayiir.event WHERE job_id = $1 AND name = $2 AND disposition = 'buffered'
             ORDER BY job_id, name, id LIMIT 1)
         RETURNING payload",
    );
    CONSUME
        .run(session, args![id, name])
        .first()
        .map(|row| row.opt(1))
}
