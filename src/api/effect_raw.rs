//! `effect_*`: one function an operation of the EffectStore. Owners are whatever a client calls itself, also nothing.

use pgrx::datum::TimestampWithTimeZone;
use pgrx::{Uuid, pg_extern};
use sayiir_rules::effect::contract::check_error;
use sayiir_rules::effect::{Contract, Request, Status, Transition, identity};

use super::arguments::{elements, required};
use super::effect::{document, kind, one, visible, word, words_of};
use crate::engine::effect_record::{Clock, time_argument};
use crate::engine::{self, enqueue};
use crate::error::{Code, Error, OrRaise, Result};
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::connect;
use crate::pg::table::Table;
use crate::scope::{self, Scope};
use crate::store;
use crate::store::effect::{Documents, New};

/// A number that is not negative.
fn natural(name: &'static str, value: Option<i64>) -> Result<i64> {
    let value = required(name, value)?;
    if value < 0 {
        return Err(
            Error::new(Code::ArgumentOutOfRange, format!("{name} is negative"))
                .with("argument", name),
        );
    }
    Ok(value)
}

/// A version of a schema: 0 to 2^32 - 1.
fn schema_version(name: &'static str, value: i64) -> Result<i64> {
    if !(0..=i64::from(u32::MAX)).contains(&value) {
        return Err(
            Error::new(Code::ArgumentOutOfRange, format!("{name} is {value}"))
                .with("argument", name),
        );
    }
    Ok(value)
}

fn clock(caller_now: Option<TimestampWithTimeZone>) -> Result<Clock> {
    Clock::of(caller_now.map(Instant::from))
}

fn status(name: &'static str, value: Option<&str>) -> Result<Status> {
    word(name, value, Status::parse, words_of!(Status))
}

#[pg_extern(sql = false)]
fn effect_insert_or_get(
    name: Option<&str>,
    logical_key: Option<&str>,
    kind_word: Option<&str>,
    id: Option<Uuid>,
    input: Option<Jsonb>,
    input_fingerprint: Option<&str>,
    execution_contract: Option<Jsonb>,
    input_schema_version: Option<i64>,
    created_by: Option<&str>,
    organization_id: Option<&str>,
    caller_now: Option<TimestampWithTimeZone>,
) -> Table {
    connect(|session| {
        let name = required("name", name)?;
        let logical_key = required("logical_key", logical_key)?;
        identity::check(name, logical_key)?;
        if let Some(contract) = execution_contract {
            Contract::read(&document("execution_contract", contract)?)?;
        }
        let organization = scope::owner(session, organization_id)?;
        let new = New {
            id: id.unwrap_or_else(enqueue::new_id),
            organization: organization.as_deref(),
            name,
            logical_key,
            input,
            fingerprint: input_fingerprint,
            contract: execution_contract,
            input_schema_version: schema_version(
                "input_schema_version",
                required("input_schema_version", input_schema_version)?,
            )?,
            created_by,
        };
        engine::effect_insert::insert_or_get(session, &new, kind(kind_word)?, clock(caller_now)?)
    })
    .map(one)
    .or_raise()
}

#[pg_extern(sql = false)]
fn effect_acquire_lease(
    id: Option<Uuid>,
    owner: Option<&str>,
    ttl_ms: Option<i64>,
    organization_id: Option<&str>,
    caller_now: Option<TimestampWithTimeZone>,
) -> Table {
    connect(|session| {
        engine::effect_lease::acquire(
            session,
            &visible(session, organization_id)?,
            required("id", id)?,
            required("owner", owner)?,
            natural("ttl_ms", ttl_ms)?,
            clock(caller_now)?,
        )
    })
    .map(one)
    .or_raise()
}

#[pg_extern(sql = false)]
fn effect_renew_lease(
    id: Option<Uuid>,
    owner: Option<&str>,
    epoch: Option<i64>,
    ttl_ms: Option<i64>,
    caller_now: Option<TimestampWithTimeZone>,
) -> Table {
    connect(|session| {
        engine::effect_lease::renew(
            session,
            required("id", id)?,
            (required("owner", owner)?, required("epoch", epoch)?),
            natural("ttl_ms", ttl_ms)?,
            clock(caller_now)?,
        )
    })
    .map(one)
    .or_raise()
}

#[pg_extern(sql = false)]
fn effect_release_lease(id: Option<Uuid>, owner: Option<&str>, epoch: Option<i64>) -> bool {
    connect(|session| {
        let lease = (required("owner", owner)?, required("epoch", epoch)?);
        engine::effect_lease::release(session, required("id", id)?, lease)
    })
    .or_raise()
}

#[pg_extern(sql = false)]
fn effect_transition(
    id: Option<Uuid>,
    expected_version: Option<i64>,
    transition: Option<&str>,
    lease_owner: Option<&str>,
    lease_epoch: Option<i64>,
    output: Option<Jsonb>,
    output_schema_version: Option<i64>,
    error: Option<Jsonb>,
    next_attempt_at: Option<TimestampWithTimeZone>,
    actor: Option<&str>,
    payload: Option<Jsonb>,
    organization_id: Option<&str>,
    caller_now: Option<TimestampWithTimeZone>,
) -> Table {
    connect(|session| {
        let transition = word(
            "transition",
            transition,
            Transition::named,
            words_of!(Transition),
        )?;
        let lease = match (lease_owner, lease_epoch) {
            (None, None) => None,
            (Some(owner), Some(epoch)) => Some((owner, epoch)),
            _ => {
                return Err(Error::new(
                    Code::ArgumentInvalid,
                    "lease_owner and lease_epoch go together",
                )
                .with("argument", "lease_owner"));
            }
        };
        if let Some(error) = error {
            check_error(&document("error", error)?)?;
        }
        let request = Request {
            transition,
            expected_version: required("expected_version", expected_version)?,
            lease,
            has_output: output.is_some(),
            output_schema_version: output_schema_version
                .map(|version| schema_version("output_schema_version", version))
                .transpose()?,
            has_error: error.is_some(),
            next_attempt_at: time_argument(next_attempt_at.map(Instant::from))?,
        };
        // Who holds the lease was let in when it was taken.
        let scope = match lease {
            Some(_) => Scope::All,
            None => visible(session, organization_id)?,
        };
        let documents = Documents {
            output,
            error,
            actor,
            payload,
        };
        engine::effect_transition::transition(
            session,
            &scope,
            required("id", id)?,
            &request,
            &documents,
            clock(caller_now)?,
        )
    })
    .map(one)
    .or_raise()
}

#[pg_extern(sql = false)]
fn effect_list(
    statuses: Option<Vec<Option<String>>>,
    unleased: Option<bool>,
    after: Option<Uuid>,
    max_rows: Option<i64>,
    organization_id: Option<&str>,
    caller_now: Option<TimestampWithTimeZone>,
) -> Table {
    connect(|session| {
        let clock = clock(caller_now)?;
        let mut wanted = elements("statuses", statuses)?
            .iter()
            .map(|one| status("statuses", Some(one)))
            .collect::<Result<Vec<_>>>()?;
        wanted.sort_unstable_by_key(|one| one.as_str());
        wanted.dedup();
        let query = store::effect_set::Query {
            statuses: wanted,
            unleased_at: required("unleased", unleased)?.then(|| clock.read()),
            after,
            max_rows: natural("max_rows", max_rows)?,
        };
        Ok(store::effect_set::list(
            session,
            &visible(session, organization_id)?,
            &query,
        ))
    })
    .map(Table)
    .or_raise()
}

#[pg_extern(sql = false)]
fn effect_prune(
    status_word: Option<&str>,
    older_than_ms: Option<i64>,
    max_rows: Option<i64>,
    organization_id: Option<&str>,
    caller_now: Option<TimestampWithTimeZone>,
) -> i64 {
    connect(|session| {
        engine::effect_sweep::prune(
            session,
            &visible(session, organization_id)?,
            status("status", status_word)?,
            natural("older_than_ms", older_than_ms)?,
            natural("max_rows", max_rows)?,
            clock(caller_now)?,
        )
    })
    .or_raise()
}

#[pg_extern(sql = false)]
fn effect_append_observation(
    id: Option<Uuid>,
    effect_id: Option<Uuid>,
    observation: Option<Jsonb>,
    organization_id: Option<&str>,
) -> bool {
    connect(|session| {
        engine::effect_insert::append_observation(
            session,
            &visible(session, organization_id)?,
            required("id", id)?,
            required("effect_id", effect_id)?,
            required("observation", observation)?,
        )
    })
    .or_raise()
}
