//! `checkpoint`: the named answers of durable code.

use pgrx::Uuid;
use sayiir_rules::durable::{CheckpointKind, Remembered};

use crate::args;
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::{Session, Statement};
use crate::pg::types::{INT8, INT8S, JSONB, TEXT, TIME, UUID, UUIDS};

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

/// What is known under a name.
pub struct Checkpoint {
    pub remembered: Remembered,
    /// The lease that wrote it, or that asked and was parked.
    pub epoch: i64,
    pub child: Option<Uuid>,
    /// Of an event or child: received or timed_out.
    pub disposition: Option<String>,
    pub payload: Option<Jsonb>,
    pub output: Option<Jsonb>,
    pub error: Option<Jsonb>,
}

pub fn get(session: &Session, id: Uuid, name: &str) -> Option<Checkpoint> {
    // checkpoint_pkey. What job_checkpoint stored is no answer and is not looked into.
    static GET: Statement = Statement::new(
        &[UUID, TEXT],
        "SELECT kind, value IS NOT NULL, due, epoch, child, a.answer ->> 'disposition', a.answer -> 'payload',
             a.answer -> 'output', a.answer -> 'error'
         FROM sayiir.checkpoint
         CROSS JOIN LATERAL (SELECT CASE WHEN kind IN ('event', 'child') THEN value END AS answer) a
         WHERE job_id = $1 AND name = $2",
    );
    GET.run(session, args![id, name]).first().map(|row| {
        let kind: String = row.get(1);
        Checkpoint {
            remembered: Remembered {
                kind: CheckpointKind::parse(&kind).expect("a kind of checkpoint"),
                answered: row.get(2),
                due_us: row.opt::<Instant>(3).map(|due| due.0),
            },
            epoch: row.get(4),
            child: row.opt(5),
            disposition: row.opt(6),
            payload: row.opt(7),
            output: row.opt(8),
            error: row.opt(9),
        }
    })
}

/// A question, or an answer, of a lease whose owner is locked.
pub struct Asked<'a> {
    pub id: Uuid,
    pub epoch: i64,
    pub name: &'a str,
    pub kind: CheckpointKind,
    pub due: Option<Instant>,
    pub child: Option<Uuid>,
}

/// Notes the question that a job is parked with. One that was asked before keeps its time and gets the new epoch, by which the
/// answer finds it.
pub fn ask(session: &Session, asked: &Asked, now: Instant) {
    // checkpoint_pkey
    static ASK: Statement = Statement::new(
        &[UUID, INT8, TEXT, TEXT, TIME, UUID, TIME],
        "INSERT INTO sayiir.checkpoint (job_id, epoch, name, kind, due, child, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7)
         ON CONFLICT (job_id, name) DO UPDATE SET epoch = excluded.epoch, child = excluded.child",
    );
    ASK.run(
        session,
        args![
            asked.id,
            asked.epoch,
            asked.name,
            asked.kind.as_str(),
            asked.due,
            asked.child,
            now
        ],
    );
}

/// The answers as `checkpoint.value` keeps them. SQL NULL and JSON null stay apart: a payload or output of SQL NULL has no field.
macro_rules! received {
    ($field:literal, $value:literal) => {
        concat!(
            "jsonb_build_object('disposition', 'received') || CASE WHEN ",
            $value,
            " IS NULL THEN '{}' ELSE jsonb_build_object('",
            $field,
            "', ",
            $value,
            ") END"
        )
    };
}
macro_rules! over {
    () => {
        "CASE WHEN c.kind = 'sleep' THEN to_jsonb(c.due) ELSE jsonb_build_object('disposition', 'timed_out') END"
    };
}
macro_rules! ended {
    () => {
        concat!(
            received!("output", "e.output"),
            " || CASE WHEN e.state = 'succeeded' THEN '{}' ELSE jsonb_build_object('error', jsonb_build_object(
                 'status', e.state::text, 'code', e.error_code, 'message', e.error_message)) END"
        )
    };
}

/// Answers a question with the payload of an event.
pub fn answer_event(session: &Session, id: Uuid, epoch: i64, payload: Option<Jsonb>) {
    // checkpoint_pkey, leading column
    static ANSWER: Statement = Statement::new(
        &[UUID, INT8, JSONB],
        concat!(
            "UPDATE sayiir.checkpoint SET value = ",
            received!("payload", "$3"),
            " WHERE job_id = $1 AND epoch = $2 AND value IS NULL"
        ),
    );
    ANSWER.run(session, args![id, epoch, payload]);
}

/// Answers the questions of parked jobs whose time is over. One that came back for another reason, the deadline of its job, is not
/// answered.
pub fn answer_over(session: &Session, ids: Vec<Uuid>, epochs: Vec<i64>, now: Instant) {
    // checkpoint_pkey, leading column
    static ANSWER: Statement = Statement::new(
        &[UUIDS, INT8S, TIME],
        concat!(
            "UPDATE sayiir.checkpoint c SET value = ",
            over!(),
            " FROM ROWS FROM (unnest($1), unnest($2)) AS i (job_id, epoch)
             WHERE c.job_id = i.job_id AND c.epoch = i.epoch AND c.value IS NULL AND c.due <= $3"
        ),
    );
    ANSWER.run(session, args![ids, epochs, now]);
}

/// Answers the questions of parked jobs with the ends of their children.
pub fn answer_children(session: &Session, ids: Vec<Uuid>, epochs: Vec<i64>) {
    // checkpoint_pkey, leading column; job_end_pkey
    static ANSWER: Statement = Statement::new(
        &[UUIDS, INT8S],
        concat!(
            "UPDATE sayiir.checkpoint c SET value = ",
            ended!(),
            " FROM ROWS FROM (unnest($1), unnest($2)) AS i (job_id, epoch), sayiir.job_end e
             WHERE c.job_id = i.job_id AND c.epoch = i.epoch AND c.value IS NULL AND e.job_id = c.child"
        ),
    );
    ANSWER.run(session, args![ids, epochs]);
}

/// Remembers a spawned child.
pub fn remember_spawn(session: &Session, asked: &Asked, child: Uuid, now: Instant) {
    // checkpoint_pkey
    static REMEMBER: Statement = Statement::new(
        &[UUID, INT8, TEXT, UUID, TIME],
        "INSERT INTO sayiir.checkpoint (job_id, epoch, name, kind, child, value, created_at)
         VALUES ($1, $2, $3, 'spawn', $4, to_jsonb($4), $5)",
    );
    REMEMBER.run(
        session,
        args![asked.id, asked.epoch, asked.name, child, now],
    );
}

/// Forgets what a run has remembered besides its own values, or, with an object, everything but its fields.
pub fn renew(session: &Session, id: Uuid, epoch: i64, values: Option<Jsonb>, now: Instant) {
    // checkpoint_pkey, leading column
    static FORGET: Statement = Statement::new(
        &[UUID],
        "DELETE FROM sayiir.checkpoint WHERE job_id = $1 AND kind <> 'value'",
    );
    static FILL: Statement = Statement::new(
        &[UUID, INT8, JSONB, TIME],
        "INSERT INTO sayiir.checkpoint (job_id, epoch, name, kind, value, created_at)
         SELECT $1, $2, v.key, 'value', v.value, $4 FROM jsonb_each($3) v",
    );
    match values {
        None => {
            FORGET.run(session, args![id]);
        }
        Some(values) => {
            reset(session, id);
            FILL.run(session, args![id, epoch, values, now]);
        }
    }
}
