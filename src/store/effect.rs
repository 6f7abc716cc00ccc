//! `effect`, `effect_event`: one effect, locked, read and written.

use pgrx::{Uuid, pg_sys};
use sayiir_rules::effect::record::Document;
use sayiir_rules::effect::{Event, Kind, Record, Status};

use crate::args;
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::{Row, Session, Statement};
use crate::pg::table::Line;
use crate::pg::types::{BOOL, INT4, INT4S, INT8, JSONB, JSONBS, TEXT, TEXTS, TIME, UUID, UUIDS};
use crate::scope::Scope;

/// The columns of `effect_record`, of a relation named `e`.
#[macro_export]
macro_rules! effect_columns {
    () => {
        "e.id, e.effect_name, e.logical_key, e.kind::text, e.status::text, e.input, e.input_fingerprint, e.output, e.last_error,
         e.created_by, e.attempt_count, e.may_have_applied, e.compensation_attempts, e.approved, e.next_attempt_at,
         e.attempt_started_at, e.attempt_ended_at, e.lease_owner, e.lease_epoch, e.lease_expires_at, e.version, e.created_at,
         e.updated_at, e.committed_at, e.execution_contract, e.input_schema_version, e.output_schema_version"
    };
}

/// What [`locked`] reads, of a relation named `e`.
#[macro_export]
macro_rules! effect_locked_columns {
    () => {
        "e.id, e.kind::text, e.status::text, e.attempt_count, e.may_have_applied, e.compensation_attempts, e.approved,
         e.next_attempt_at, e.attempt_started_at, e.attempt_ended_at, e.lease_owner, e.lease_epoch, e.lease_expires_at, e.version,
         e.updated_at, e.committed_at, e.output_schema_version, e.execution_contract, e.input_fingerprint, e.input_schema_version,
         e.superseded_at IS NOT NULL"
    };
}

/// An effect whose row this transaction holds.
pub struct Locked {
    pub id: Uuid,
    pub record: Record,
    pub contract: Option<Jsonb>,
    pub fingerprint: Option<String>,
    pub input_schema_version: i64,
    pub is_superseded: bool,
}

fn time(row: &Row, column: i32) -> Option<i64> {
    row.opt::<Instant>(column).map(Instant::unix_ms)
}

fn instant(ms: Option<i64>) -> Option<Instant> {
    ms.map(Instant::from_unix_ms)
}

/// Reads the columns of `effect_locked_columns!`.
pub fn locked(row: &Row) -> Locked {
    let kind: String = row.get(2);
    let status: String = row.get(3);
    Locked {
        id: row.get(1),
        record: Record {
            kind: Kind::parse(&kind).expect("effect_kind and the rules have the same words"),
            status: Status::parse(&status).expect("effect_state and the rules have the same words"),
            attempt_count: row.get(4),
            may_have_applied: row.get(5),
            compensation_attempts: row.get(6),
            approved: row.get(7),
            next_attempt_at: time(row, 8),
            attempt_started_at: time(row, 9),
            attempt_ended_at: time(row, 10),
            lease_owner: row.opt(11),
            lease_epoch: row.get(12),
            lease_expires_at: time(row, 13),
            version: row.get(14),
            updated_at: row.get::<Instant>(15).unix_ms(),
            committed_at: time(row, 16),
            output_schema_version: row.get(17),
            output: Document::Kept,
            error: Document::Kept,
        },
        contract: row.opt(18),
        fingerprint: row.opt(19),
        input_schema_version: row.get(20),
        is_superseded: row.get(21),
    }
}

/// Locks an effect that the scope sees. Enough to keep every other change out, and not in the way of an observation.
pub fn lock(session: &Session, scope: &Scope, id: Uuid) -> Option<Locked> {
    // effect_pkey
    static LOCK: Statement = Statement::new(
        &[UUID, BOOL, TEXT],
        concat!(
            "SELECT ",
            effect_locked_columns!(),
            " FROM sayiir.effect e
             WHERE e.id = $1 AND ($2 OR e.organization_id IS NOT DISTINCT FROM $3)
             FOR NO KEY UPDATE"
        ),
    );
    let [all, organization] = scope.args();
    let [id] = args![id];
    LOCK.run(session, &[*id, all, organization])
        .first()
        .map(|row| locked(&row))
}

/// Locks the effect that holds a key.
pub fn lock_key(
    session: &Session,
    organization: Option<&str>,
    name: &str,
    logical_key: &str,
) -> Option<Locked> {
    // effect_key
    static LOCK: Statement = Statement::new(
        &[TEXT, TEXT, TEXT],
        concat!(
            "SELECT ",
            effect_locked_columns!(),
            " FROM sayiir.effect e
             WHERE e.logical_key = $1 AND e.effect_name = $2 AND e.organization_id IS NOT DISTINCT FROM $3
                 AND e.superseded_at IS NULL
             FOR NO KEY UPDATE"
        ),
    );
    LOCK.run(session, args![logical_key, name, organization])
        .first()
        .map(|row| locked(&row))
}

/// The effect as `effect_record`.
pub fn read(session: &Session, id: Uuid) -> Option<Line> {
    // effect_pkey
    static READ: Statement = Statement::new(
        &[UUID],
        concat!(
            "SELECT ",
            effect_columns!(),
            " FROM sayiir.effect e WHERE e.id = $1"
        ),
    );
    READ.run(session, args![id])
        .first()
        .map(|row| row.keep(session))
}

/// The effect as `effect_inserted`: the one that holds the key.
pub fn read_key(
    session: &Session,
    organization: Option<&str>,
    name: &str,
    logical_key: &str,
) -> Option<Line> {
    // effect_key
    static READ: Statement = Statement::new(
        &[TEXT, TEXT, TEXT],
        concat!(
            "SELECT false, ",
            effect_columns!(),
            " FROM sayiir.effect e
             WHERE e.logical_key = $1 AND e.effect_name = $2 AND e.organization_id IS NOT DISTINCT FROM $3
                 AND e.superseded_at IS NULL"
        ),
    );
    READ.run(session, args![logical_key, name, organization])
        .first()
        .map(|row| row.keep(session))
}

/// The effect as `effect_begun`.
pub fn read_begun(session: &Session, id: Uuid, decision: &str, key: Uuid) -> Option<Line> {
    // effect_pkey
    static READ: Statement = Statement::new(
        &[TEXT, UUID, UUID],
        concat!(
            "SELECT $1, $2, ",
            effect_columns!(),
            " FROM sayiir.effect e WHERE e.id = $3"
        ),
    );
    READ.run(session, args![decision, key, id])
        .first()
        .map(|row| row.keep(session))
}

pub fn id_exists(session: &Session, id: Uuid) -> bool {
    // effect_pkey
    static EXISTS: Statement =
        Statement::new(&[UUID], "SELECT true FROM sayiir.effect WHERE id = $1");
    !EXISTS.run(session, args![id]).is_empty()
}

/// What a new effect says.
pub struct New<'a> {
    pub id: Uuid,
    pub organization: Option<&'a str>,
    pub name: &'a str,
    pub logical_key: &'a str,
    pub input: Option<Jsonb>,
    pub fingerprint: Option<&'a str>,
    pub contract: Option<Jsonb>,
    pub input_schema_version: i64,
    pub created_by: Option<&'a str>,
}

/// Inserts a pending effect; None = its key or id is taken.
pub fn insert(session: &Session, new: &New, kind: Kind, now: i64) -> Option<Line> {
    static INSERT: Statement = Statement::new(
        &[
            UUID, TEXT, TEXT, TEXT, TEXT, JSONB, TEXT, TEXT, JSONB, INT8, TIME,
        ],
        concat!(
            "WITH e AS (
                 INSERT INTO sayiir.effect (
                     id, organization_id, effect_name, logical_key, kind, status, input, input_fingerprint, created_by,
                     attempt_count, may_have_applied, compensation_attempts, approved, lease_epoch, version, created_at, updated_at,
                     execution_contract, input_schema_version, output_schema_version)
                 VALUES ($1, $2, $3, $4, $5::sayiir.effect_kind, 'pending', $6, $7, $8, 0, false, 0, false, 0, 0, $11, $11, $9, $10, 1)
                 ON CONFLICT DO NOTHING
                 RETURNING *)
             SELECT true, ",
            effect_columns!(),
            " FROM e"
        ),
    );
    let now = Instant::from_unix_ms(now);
    INSERT
        .run(
            session,
            args![
                new.id,
                new.organization,
                new.name,
                new.logical_key,
                kind.as_str(),
                new.input,
                new.fingerprint,
                new.created_by,
                new.contract,
                new.input_schema_version,
                now
            ],
        )
        .first()
        .map(|row| row.keep(session))
}

/// Inserts an effect together with its first transition; None = its key is taken.
pub fn insert_begun(
    session: &Session,
    new: &New,
    record: &Record,
    event: &Event,
    decision: &str,
    key: Uuid,
) -> Option<Line> {
    static INSERT: Statement = Statement::new(
        &[
            UUID, TEXT, TEXT, TEXT, TEXT, TEXT, JSONB, TEXT, JSONB, INT8, INT4, TIME, TEXT, INT8,
            TIME, TIME, TIME, TEXT, JSONB, TEXT, UUID,
        ],
        concat!(
            "WITH e AS (
                 INSERT INTO sayiir.effect (
                     id, organization_id, effect_name, logical_key, kind, status, input, input_fingerprint, execution_contract,
                     input_schema_version, attempt_count, attempt_started_at, lease_owner, lease_epoch, lease_expires_at, check_at,
                     created_at, updated_at, version, may_have_applied, compensation_attempts, approved, output_schema_version)
                 VALUES ($1, $2, $3, $4, $5::sayiir.effect_kind, $6::sayiir.effect_state, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16,
                     $17, $17, 1, false, 0, false, 1)
                 ON CONFLICT DO NOTHING
                 RETURNING *),
             trail AS (
                 INSERT INTO sayiir.effect_event (effect_id, sequence, transition, from_status, to_status, attempt, payload, at)
                 SELECT e.id, 1, $18, 'pending', e.status, e.attempt_count, $19, $17 FROM e)
             SELECT $20, $21, ",
            effect_columns!(),
            " FROM e"
        ),
    );
    INSERT
        .run(
            session,
            args![
                new.id,
                new.organization,
                new.name,
                new.logical_key,
                record.kind.as_str(),
                record.status.as_str(),
                new.input,
                new.fingerprint,
                new.contract,
                new.input_schema_version,
                record.attempt_count,
                instant(record.attempt_started_at),
                record.lease_owner.as_deref(),
                record.lease_epoch,
                instant(record.lease_expires_at),
                check_at(record),
                Instant::from_unix_ms(record.updated_at),
                event.transition.event_name(),
                event.payload.as_ref().map(Jsonb::from_value),
                decision,
                key
            ],
        )
        .first()
        .map(|row| row.keep(session))
}

/// When a sweep has to look at it. Without a lease: now.
pub fn check_at(record: &Record) -> Option<Instant> {
    record.status.is_in_flight().then(|| {
        let at = match record.lease_owner {
            Some(_) => record.lease_expires_at.unwrap_or(record.updated_at),
            None => record.updated_at,
        };
        Instant::from_unix_ms(at)
    })
}

/// What a save writes beside the record.
#[derive(Default)]
pub struct Documents<'a> {
    pub output: Option<Jsonb>,
    pub error: Option<Jsonb>,
    /// Instead of those of the events.
    pub actor: Option<&'a str>,
    pub payload: Option<Jsonb>,
}

/// The arguments $1 to $27 of a save.
const SAVE_TYPES: [pg_sys::Oid; 27] = [
    UUID, TEXT, INT4, BOOL, INT4, BOOL, TIME, TIME, TIME, TEXT, INT8, TIME, INT8, TIME, TIME, INT8,
    BOOL, JSONB, BOOL, JSONB, TIME, TEXTS, TEXTS, TEXTS, INT4S, TEXTS, JSONBS,
];

const SAVE_BEGUN_TYPES: [pg_sys::Oid; 29] = {
    let mut types = [TEXT; 29];
    let mut n = 0;
    while n < 27 {
        types[n] = SAVE_TYPES[n];
        n += 1;
    }
    types[28] = UUID;
    types
};

macro_rules! save {
    ($select:literal) => {
        concat!(
            "WITH e AS (
                 UPDATE sayiir.effect SET
                     status = $2::sayiir.effect_state, attempt_count = $3, may_have_applied = $4, compensation_attempts = $5,
                     approved = $6, next_attempt_at = $7, attempt_started_at = $8, attempt_ended_at = $9, lease_owner = $10,
                     lease_epoch = $11, lease_expires_at = $12, version = $13, updated_at = $14, committed_at = $15,
                     output_schema_version = $16, output = CASE WHEN $17 THEN $18 ELSE output END,
                     last_error = CASE WHEN $19 THEN $20 ELSE last_error END, check_at = $21
                 WHERE id = $1
                 RETURNING *),
             trail AS (
                 INSERT INTO sayiir.effect_event (
                     effect_id, sequence, transition, from_status, to_status, attempt, actor, payload, at)
                 SELECT $1, $13 - cardinality($22) + t.n, t.transition, t.from_status::sayiir.effect_state,
                     t.to_status::sayiir.effect_state, t.attempt, t.actor, t.payload, $14
                 FROM unnest($22, $23, $24, $25, $26, $27)
                     WITH ORDINALITY AS t (transition, from_status, to_status, attempt, actor, payload, n))
             SELECT ",
            $select,
            effect_columns!(),
            " FROM e"
        )
    };
}

fn save_arguments(
    id: Uuid,
    record: &Record,
    events: &[Event],
    documents: &Documents,
) -> Vec<Option<pg_sys::Datum>> {
    let each = |text: fn(&Event) -> &'static str| events.iter().map(text).collect::<Vec<_>>();
    let actors: Vec<Option<String>> = events
        .iter()
        .map(|event| documents.actor.map(str::to_owned).or(event.actor.clone()))
        .collect();
    let payloads: Vec<Option<Jsonb>> = events
        .iter()
        .map(|event| {
            documents
                .payload
                .or_else(|| event.payload.as_ref().map(Jsonb::from_value))
        })
        .collect();
    args![
        id,
        record.status.as_str(),
        record.attempt_count,
        record.may_have_applied,
        record.compensation_attempts,
        record.approved,
        instant(record.next_attempt_at),
        instant(record.attempt_started_at),
        instant(record.attempt_ended_at),
        record.lease_owner.as_deref(),
        record.lease_epoch,
        instant(record.lease_expires_at),
        record.version,
        Instant::from_unix_ms(record.updated_at),
        instant(record.committed_at),
        record.output_schema_version,
        record.output != Document::Kept,
        documents
            .output
            .filter(|_| record.output == Document::Replaced),
        record.error != Document::Kept,
        documents.error,
        check_at(record),
        each(|event| event.transition.event_name()),
        each(|event| event.from.as_str()),
        each(|event| event.to.as_str()),
        events.iter().map(|event| event.attempt).collect::<Vec<_>>(),
        actors,
        payloads
    ]
    .to_vec()
}

/// Writes a changed record and its events, in one statement; the answer is an `effect_record`. The row is locked.
pub fn save(
    session: &Session,
    id: Uuid,
    record: &Record,
    events: &[Event],
    documents: &Documents,
) -> Option<Line> {
    // effect_pkey
    static SAVE: Statement = Statement::new(&SAVE_TYPES, save!(""));
    SAVE.run(session, &save_arguments(id, record, events, documents))
        .first()
        .map(|row| row.keep(session))
}

/// The same; the answer is an `effect_begun`.
pub fn save_begun(
    session: &Session,
    id: Uuid,
    record: &Record,
    events: &[Event],
    decision: &str,
    key: Uuid,
) -> Option<Line> {
    // effect_pkey
    static SAVE: Statement = Statement::new(&SAVE_BEGUN_TYPES, save!("$28, $29, "));
    let mut arguments = save_arguments(id, record, events, &Documents::default());
    arguments.extend_from_slice(args![decision, key]);
    SAVE.run(session, &arguments)
        .first()
        .map(|row| row.keep(session))
}

/// Writes the lease of a record. No column of it is in an index, so the update is HOT.
pub fn save_lease(session: &Session, id: Uuid, record: &Record) {
    // effect_pkey
    static SAVE: Statement = Statement::new(
        &[UUID, TEXT, INT8, TIME],
        "UPDATE sayiir.effect SET lease_owner = $2, lease_epoch = $3, lease_expires_at = $4 WHERE id = $1",
    );
    SAVE.run(
        session,
        args![
            id,
            record.lease_owner.as_deref(),
            record.lease_epoch,
            instant(record.lease_expires_at)
        ],
    );
}

/// The transition that led to this version, if it was made under this lease by `effect_begin`, `effect_finish` or `effect_fail`.
pub fn transition_by(
    session: &Session,
    id: Uuid,
    version: i64,
    owner: &str,
    epoch: i64,
) -> Option<String> {
    // effect_event_pkey
    static READ: Statement = Statement::new(
        &[UUID, INT8, TEXT, TEXT],
        "SELECT transition FROM sayiir.effect_event
         WHERE effect_id = $1 AND sequence = $2 AND payload ->> 'worker' = $3 AND payload ->> 'epoch' = $4",
    );
    READ.run(session, args![id, version, owner, epoch.to_string()])
        .first()
        .map(|row| row.get(1))
}

/// Frees the key of a record. The row is locked.
pub fn supersede(session: &Session, id: Uuid, now: i64, actor: &str, note: Option<&str>) {
    // effect_pkey
    static SUPERSEDE: Statement = Statement::new(
        &[UUID, TIME, TEXT, TEXT],
        "UPDATE sayiir.effect SET superseded_at = $2, superseded_by = $3, supersede_note = $4 WHERE id = $1",
    );
    SUPERSEDE.run(session, args![id, Instant::from_unix_ms(now), actor, note]);
}

/// Makes this transaction's commit answer only when it is on disk.
pub fn force_durable(session: &Session) {
    static FORCE: Statement = Statement::new(
        &[],
        "SELECT pg_catalog.set_config('synchronous_commit', 'on', true)",
    );
    FORCE.run(session, &[]);
}

/// Stores an observation of an effect that the scope sees: Some(false) = its id is there already, None = there is no such effect.
pub fn append_observation(
    session: &Session,
    scope: &Scope,
    id: Uuid,
    effect: Uuid,
    observation: Jsonb,
) -> Option<bool> {
    // effect_pkey. The lock keeps a prune from leaving the observation behind without its effect.
    static LOCK: Statement = Statement::new(
        &[UUID, BOOL, TEXT],
        "SELECT true FROM sayiir.effect
         WHERE id = $1 AND ($2 OR organization_id IS NOT DISTINCT FROM $3) FOR KEY SHARE",
    );
    static APPEND: Statement = Statement::new(
        &[UUID, UUID, JSONB],
        "INSERT INTO sayiir.effect_observation (id, effect_id, observation) VALUES ($1, $2, $3)
         ON CONFLICT DO NOTHING RETURNING true",
    );
    let [all, organization] = scope.args();
    let [effect_argument] = args![effect];
    if LOCK
        .run(session, &[*effect_argument, all, organization])
        .is_empty()
    {
        return None;
    }
    Some(
        !APPEND
            .run(session, args![id, effect, observation])
            .is_empty(),
    )
}

/// Writes the leases of several records that one owner took at one time, as `effect_record`s in order of id. The rows are locked.
pub fn save_leases(session: &Session, ids: Vec<Uuid>, owner: &str, expires_at: i64) -> Vec<Line> {
    // effect_pkey
    static SAVE: Statement = Statement::new(
        &[UUIDS, TEXT, TIME],
        concat!(
            "WITH e AS (
                 UPDATE sayiir.effect SET lease_owner = $2, lease_epoch = lease_epoch + 1, lease_expires_at = $3
                 WHERE id = ANY ($1) RETURNING *)
             SELECT ",
            effect_columns!(),
            " FROM e ORDER BY e.id"
        ),
    );
    SAVE.run(
        session,
        args![ids, owner, Instant::from_unix_ms(expires_at)],
    )
    .iter()
    .map(|row| row.keep(session))
    .collect()
}
