//! `effect`: many effects at once.

use pgrx::Uuid;
use sayiir_rules::effect::{Event, Status};

use crate::pg::clock::Instant;
use crate::pg::spi::{Session, Statement};
use crate::pg::table::Line;
use crate::pg::types::{BOOL, INT4, INT4S, INT8, INT8S, TEXT, TEXTS, TIME, UUID, UUIDS};
use crate::scope::Scope;
use crate::store::effect::{self, Locked};
use crate::{args, effect_columns, effect_locked_columns};

/// Which effects a list shows.
pub struct Query {
    /// Empty = any.
    pub statuses: Vec<Status>,
    /// Only those without a lease that is live at this time.
    pub unleased_at: Option<i64>,
    pub after: Option<Uuid>,
    pub max_rows: i64,
}

/// One index scan a status; each ends after `max_rows`.
macro_rules! list {
    ($lock:literal) => {
        concat!(
            "SELECT r.* FROM unnest($3::text[]) AS s (status)
             CROSS JOIN LATERAL (
                 SELECT ",
            effect_columns!(),
            " FROM sayiir.effect e
                 WHERE e.status = s.status::sayiir.effect_state AND ($4::uuid IS NULL OR e.id > $4)
                     AND ($1 OR e.organization_id IS NOT DISTINCT FROM $2)
                     AND ($6::timestamptz IS NULL OR e.lease_owner IS NULL OR e.lease_expires_at IS NULL OR e.lease_expires_at <= $6)
                 ORDER BY e.id
                 LIMIT $5 ",
            $lock,
            ") r
             ORDER BY r.id
             LIMIT $5"
        )
    };
}

/// Effects in order of id. Those without a lease are what somebody may work on: rows that others are changing are skipped.
pub fn list(session: &Session, scope: &Scope, query: &Query) -> Vec<Line> {
    // effect_status
    static PLAIN: Statement = Statement::new(&[BOOL, TEXT, TEXTS, UUID, INT8, TIME], list!(""));
    static SKIPPING: Statement = Statement::new(
        &[BOOL, TEXT, TEXTS, UUID, INT8, TIME],
        list!("FOR NO KEY UPDATE SKIP LOCKED"),
    );
    let statuses: &[Status] = if query.statuses.is_empty() {
        Status::ALL
    } else {
        &query.statuses
    };
    let statuses: Vec<&str> = statuses.iter().map(|status| status.as_str()).collect();
    let [all, organization] = scope.args();
    let [statuses, after, max_rows, at] = args![
        statuses,
        query.after,
        query.max_rows,
        query.unleased_at.map(Instant::from_unix_ms)
    ];
    let statement = if query.unleased_at.is_some() {
        &SKIPPING
    } else {
        &PLAIN
    };
    statement
        .run(
            session,
            &[all, organization, *statuses, *after, *max_rows, *at],
        )
        .iter()
        .map(|row| row.keep(session))
        .collect()
}

/// Locks effects that are due and that nobody holds, longest due first; those that others are changing are skipped.
pub fn lock_due(
    session: &Session,
    scope: &Scope,
    names: Option<Vec<String>>,
    now: i64,
    max_rows: i32,
) -> Vec<Locked> {
    // effect_due
    static LOCK: Statement = Statement::new(
        &[BOOL, TEXT, TEXTS, TIME, INT4],
        concat!(
            "SELECT ",
            effect_locked_columns!(),
            " FROM sayiir.effect e
             WHERE e.status IN ('pending', 'unknown', 'compensating') AND coalesce(e.next_attempt_at, '-infinity') <= $4
                 AND ($1 OR e.organization_id IS NOT DISTINCT FROM $2)
                 AND ($3::text[] IS NULL OR e.effect_name = ANY ($3))
                 AND (e.lease_owner IS NULL OR e.lease_expires_at IS NULL OR e.lease_expires_at <= $4)
                 AND NOT (e.status = 'pending' AND NOT e.approved AND e.attempt_count = 0
                     AND coalesce((e.execution_contract ->> 'require_approval')::boolean, false))
             ORDER BY coalesce(e.next_attempt_at, '-infinity'), e.id
             LIMIT $5
             FOR NO KEY UPDATE OF e SKIP LOCKED"
        ),
    );
    let [all, organization] = scope.args();
    let [names, now, max_rows] = args![names, Instant::from_unix_ms(now), max_rows];
    LOCK.run(session, &[all, organization, *names, *now, *max_rows])
        .iter()
        .map(|row| effect::locked(&row))
        .collect()
}

/// Effects in flight whose check is due. No lock.
pub fn due_checks(session: &Session, now: Instant, max_rows: i32) -> Vec<Uuid> {
    // effect_check_at
    static DUE: Statement = Statement::new(
        &[TIME, INT4],
        "SELECT id FROM sayiir.effect WHERE check_at IS NOT NULL AND check_at <= $1 ORDER BY check_at LIMIT $2",
    );
    DUE.run(session, args![now, max_rows])
        .iter()
        .map(|row| row.get(1))
        .collect()
}

/// Locks those of the given effects that nobody is changing, in order of id.
pub fn try_lock(session: &Session, ids: Vec<Uuid>) -> Vec<Locked> {
    // effect_pkey
    static LOCK: Statement = Statement::new(
        &[UUIDS],
        concat!(
            "SELECT ",
            effect_locked_columns!(),
            " FROM sayiir.effect e WHERE e.id = ANY ($1) ORDER BY e.id FOR NO KEY UPDATE SKIP LOCKED"
        ),
    );
    LOCK.run(session, args![ids])
        .iter()
        .map(|row| effect::locked(&row))
        .collect()
}

/// Writes that the leases of these effects expired: the only difference between before and after such a transition is the status, the
/// doubt, the end of the attempt, the version and the time. The rows are locked.
pub fn save_expired(session: &Session, expired: &[(Uuid, Option<i64>, Event)], now: i64) {
    // effect_pkey
    static SAVE: Statement = Statement::new(
        &[UUIDS, TEXTS, TEXTS, INT4S, INT8S, TEXT, TEXT, TIME, crate::pg::types::TIMES],
        "WITH t AS MATERIALIZED (
             SELECT * FROM unnest($1, $2, $3, $4, $5, $9)
                 AS t (id, from_status, to_status, attempt, version, attempt_ended_at)),
         e AS (
             UPDATE sayiir.effect e SET
                 status = t.to_status::sayiir.effect_state, may_have_applied = true, attempt_ended_at = t.attempt_ended_at,
                 version = t.version, updated_at = $8, check_at = NULL
             FROM t WHERE e.id = t.id)
         INSERT INTO sayiir.effect_event (effect_id, sequence, transition, from_status, to_status, attempt, actor, at)
         SELECT t.id, t.version, $6, t.from_status::sayiir.effect_state, t.to_status::sayiir.effect_state, t.attempt, $7, $8 FROM t",
    );
    let Some((_, _, first)) = expired.first() else {
        return;
    };
    let each = |text: fn(&Event) -> &'static str| {
        expired
            .iter()
            .map(|(_, _, event)| text(event))
            .collect::<Vec<_>>()
    };
    SAVE.run(
        session,
        args![
            expired.iter().map(|(id, _, _)| *id).collect::<Vec<_>>(),
            each(|event| event.from.as_str()),
            each(|event| event.to.as_str()),
            expired
                .iter()
                .map(|(_, _, event)| event.attempt)
                .collect::<Vec<_>>(),
            expired
                .iter()
                .map(|(_, _, event)| event.sequence)
                .collect::<Vec<_>>(),
            first.transition.event_name(),
            first.actor.as_deref(),
            Instant::from_unix_ms(now),
            expired
                .iter()
                .map(|(_, ended, _)| ended.map(Instant::from_unix_ms))
                .collect::<Vec<_>>()
        ],
    );
}

/// Moves the checks of effects whose lease is live to its end. The rows are locked.
pub fn postpone_checks(session: &Session, ids: Vec<Uuid>) {
    // effect_pkey
    static POSTPONE: Statement = Statement::new(
        &[UUIDS],
        "UPDATE sayiir.effect SET check_at = lease_expires_at WHERE id = ANY ($1)",
    );
    POSTPONE.run(session, args![ids]);
}

/// Moves one check to `at`: a sweep could not do it.
pub fn postpone(session: &Session, id: Uuid, at: Instant) {
    // effect_pkey
    static POSTPONE: Statement = Statement::new(
        &[UUID, TIME],
        "UPDATE sayiir.effect SET check_at = $2 WHERE id = $1 AND check_at IS NOT NULL",
    );
    POSTPONE.run(session, args![id, at]);
}

/// Locks what a prune may delete, lowest id first; what others are changing is skipped.
pub fn lock_prunable(
    session: &Session,
    scope: &Scope,
    status: Status,
    cutoff: Instant,
    now: Instant,
    max_rows: i64,
) -> Vec<Uuid> {
    // effect_status
    static LOCK: Statement = Statement::new(
        &[BOOL, TEXT, TEXT, TIME, TIME, INT8],
        "SELECT id FROM sayiir.effect
         WHERE status = $3::sayiir.effect_state AND updated_at <= $4
             AND (lease_owner IS NULL OR lease_expires_at IS NULL OR lease_expires_at <= $5)
             AND ($1 OR organization_id IS NOT DISTINCT FROM $2)
         ORDER BY id LIMIT $6
         FOR UPDATE SKIP LOCKED",
    );
    let [all, organization] = scope.args();
    let [status, cutoff, now, max_rows] = args![status.as_str(), cutoff, now, max_rows];
    LOCK.run(
        session,
        &[all, organization, *status, *cutoff, *now, *max_rows],
    )
    .iter()
    .map(|row| row.get(1))
    .collect()
}

/// Deletes locked effects with all they have. A statement of its own behind the lock: an observation that was stored just before it
/// must be seen.
pub fn delete(session: &Session, ids: Vec<Uuid>) -> i64 {
    // effect_pkey, effect_event_pkey, effect_observation_effect
    static DELETE: Statement = Statement::new(
        &[UUIDS],
        "WITH trail AS (DELETE FROM sayiir.effect_event WHERE effect_id = ANY ($1)),
         seen AS (DELETE FROM sayiir.effect_observation WHERE effect_id = ANY ($1))
         DELETE FROM sayiir.effect WHERE id = ANY ($1)",
    );
    DELETE.run(session, args![ids]).count() as i64
}
