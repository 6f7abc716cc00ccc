//! `effect_*`.

use pgrx::datum::{Interval, TimestampWithTimeZone};
use pgrx::{Uuid, pg_extern};
use sayiir_rules::effect::course::Resolution;
use sayiir_rules::effect::{Contract, FailureClass, Kind, fingerprint, identity, transition};
use sayiir_rules::ids;

use super::arguments::{elements, lease_us, required, within};
use crate::columns;
use crate::engine;
use crate::engine::effect_end::Lease;
use crate::engine::effect_record::time_argument;
use crate::engine::effect_resolve::Person;
use crate::error::{Code, Error, OrRaise, Result};
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::{Session, connect};
use crate::pg::table::{Line, Table};
use crate::scope::{self, Scope, Use};

pub(super) fn one(line: Line) -> Table {
    Table(vec![line])
}

/// A word of a list.
pub(super) fn word<T: Copy>(
    name: &'static str,
    value: Option<&str>,
    parse: fn(&str) -> Option<T>,
    all: &[&'static str],
) -> Result<T> {
    let value = required(name, value)?;
    parse(value).ok_or_else(|| {
        Error::new(
            Code::ArgumentInvalid,
            format!("{name} is {value:?}: it takes {}", all.join(", ")),
        )
        .with("argument", name)
    })
}

macro_rules! words_of {
    ($type:ty) => {
        &<$type>::ALL
            .iter()
            .map(|one| one.as_str())
            .collect::<Vec<_>>()
    };
}

pub(super) use words_of;

pub(super) fn kind(value: Option<&str>) -> Result<Kind> {
    word("kind", value, Kind::parse, words_of!(Kind))
}

fn ttl_ms(value: Option<Interval>) -> Result<i64> {
    Ok(required("ttl", lease_us("ttl", value)?)? / 1_000)
}

fn person<'a>(actor: Option<&'a str>, note: Option<&'a str>) -> Result<Person<'a>> {
    let actor = required("actor", actor)?;
    ids::check_id("actor", actor)?;
    Ok(Person { actor, note })
}

pub(super) fn visible(session: &Session, organization_id: Option<&str>) -> Result<Scope> {
    scope::resolve(session, organization_id, Use::Other)
}

pub(super) fn document(name: &'static str, value: Jsonb) -> Result<serde_json::Value> {
    value.to_value().ok_or_else(|| {
        Error::new(
            Code::ArgumentInvalid,
            format!("{name} is nested too deeply"),
        )
        .with("argument", name)
    })
}

// Everyday

#[pg_extern(sql = false)]
fn effect_begin(
    name: Option<&str>,
    logical_key: Option<&str>,
    kind_word: Option<&str>,
    owner: Option<&str>,
    ttl: Option<Interval>,
    input: Option<Jsonb>,
    execution_contract: Option<Jsonb>,
    organization_id: Option<&str>,
) -> Table {
    connect(|session| {
        let name = required("name", name)?;
        let logical_key = required("logical_key", logical_key)?;
        identity::check(name, logical_key)?;
        let kind = kind(kind_word)?;
        let owner = required("owner", owner)?;
        ids::check_id("owner", owner)?;
        let contract = match execution_contract {
            None => Contract::of_kind(kind),
            Some(given) => Contract::read_partial(&document("execution_contract", given)?, kind)?,
        };
        engine::effect_begin::begin(
            session,
            &engine::effect_begin::Request {
                organization: scope::owner(session, organization_id)?,
                name,
                logical_key,
                kind,
                owner,
                ttl_ms: ttl_ms(ttl)?,
                input,
                contract,
            },
        )
    })
    .map(one)
    .or_raise()
}

fn lease<'a>(
    id: Option<Uuid>,
    owner: Option<&'a str>,
    epoch: Option<i64>,
    version: Option<i64>,
) -> Result<Lease<'a>> {
    Ok(Lease {
        id: required("id", id)?,
        owner: required("owner", owner)?,
        epoch: required("epoch", epoch)?,
        version: required("version", version)?,
    })
}

#[pg_extern(sql = false)]
fn effect_finish(
    id: Option<Uuid>,
    owner: Option<&str>,
    epoch: Option<i64>,
    version: Option<i64>,
    output: Option<Jsonb>,
) -> Table {
    connect(|session| {
        engine::effect_end::finish(session, lease(id, owner, epoch, version)?, output)
    })
    .map(one)
    .or_raise()
}

#[pg_extern(sql = false)]
fn effect_fail(
    id: Option<Uuid>,
    owner: Option<&str>,
    epoch: Option<i64>,
    version: Option<i64>,
    class: Option<&str>,
    message: Option<&str>,
    next_attempt_at: Option<TimestampWithTimeZone>,
) -> Table {
    connect(|session| {
        engine::effect_end::fail(
            session,
            lease(id, owner, epoch, version)?,
            word("class", class, FailureClass::parse, words_of!(FailureClass))?,
            required("message", message)?,
            time_argument(next_attempt_at.map(Instant::from))?,
        )
    })
    .map(one)
    .or_raise()
}

#[pg_extern(sql = false)]
fn effect_assert_lease(id: Option<Uuid>, owner: Option<&str>, epoch: Option<i64>) {
    connect(|session| {
        let lease = (required("owner", owner)?, required("epoch", epoch)?);
        engine::effect_lease::assert(session, required("id", id)?, lease)
    })
    .or_raise();
}

#[pg_extern(sql = false)]
fn effect_claim_due(
    owner: Option<&str>,
    names: Option<Vec<Option<String>>>,
    max_rows: Option<i32>,
    ttl: Option<Interval>,
    organization_id: Option<&str>,
) -> Table {
    connect(|session| {
        let owner = required("owner", owner)?;
        ids::check_id("owner", owner)?;
        let names = match names {
            None => None,
            Some(names) => Some(elements("names", Some(names))?),
        };
        engine::effect_lease::claim_due(
            session,
            &scope::resolve(session, organization_id, Use::Claim)?,
            owner,
            names,
            within("max_rows", max_rows, 1, 1_000)?,
            ttl_ms(ttl)?,
        )
    })
    .map(Table)
    .or_raise()
}

// For people

#[pg_extern(sql = false)]
fn effect_resolve(
    id: Option<Uuid>,
    resolution: Option<&str>,
    actor: Option<&str>,
    note: Option<&str>,
    output: Option<Jsonb>,
    organization_id: Option<&str>,
) -> Table {
    connect(|session| {
        let resolution = word(
            "resolution",
            resolution,
            Resolution::parse,
            words_of!(Resolution),
        )?;
        if output.is_some() && resolution != Resolution::Applied {
            return Err(Error::new(
                Code::ArgumentInvalid,
                "output is given, but only an applied effect has one",
            )
            .with("argument", "output"));
        }
        engine::effect_resolve::resolve(
            session,
            &visible(session, organization_id)?,
            required("id", id)?,
            resolution,
            person(actor, note)?,
            output,
        )
    })
    .map(one)
    .or_raise()
}

type Decide = fn(&Session, &Scope, Uuid, Person) -> Result<Line>;

fn decide(
    what: Decide,
    id: Option<Uuid>,
    actor: Option<&str>,
    note: Option<&str>,
    organization_id: Option<&str>,
) -> Table {
    connect(|session| {
        let scope = visible(session, organization_id)?;
        what(session, &scope, required("id", id)?, person(actor, note)?)
    })
    .map(one)
    .or_raise()
}

#[pg_extern(sql = false)]
fn effect_approve(
    id: Option<Uuid>,
    actor: Option<&str>,
    note: Option<&str>,
    organization_id: Option<&str>,
) -> Table {
    decide(
        engine::effect_resolve::approve,
        id,
        actor,
        note,
        organization_id,
    )
}

#[pg_extern(sql = false)]
fn effect_deny(
    id: Option<Uuid>,
    actor: Option<&str>,
    note: Option<&str>,
    organization_id: Option<&str>,
) -> Table {
    decide(
        engine::effect_resolve::deny,
        id,
        actor,
        note,
        organization_id,
    )
}

#[pg_extern(sql = false)]
fn effect_supersede(
    id: Option<Uuid>,
    actor: Option<&str>,
    note: Option<&str>,
    organization_id: Option<&str>,
) -> Table {
    decide(
        engine::effect_resolve::supersede,
        id,
        actor,
        note,
        organization_id,
    )
}

// Rules

#[pg_extern(sql = false)]
fn effect_idempotency_key(
    name: Option<&str>,
    logical_key: Option<&str>,
    compensation: Option<bool>,
    organization_id: Option<&str>,
) -> Uuid {
    connect(|session| {
        let name = required("name", name)?;
        let logical_key = required("logical_key", logical_key)?;
        identity::check(name, logical_key)?;
        let organization = scope::owner(session, organization_id)?;
        let compensation = required("compensation", compensation)?;
        Ok(Uuid::from_bytes(identity::idempotency_key(
            organization.as_deref(),
            name,
            logical_key,
            compensation,
        )))
    })
    .or_raise()
}

#[pg_extern(sql = false)]
fn effect_fingerprint(input: Option<Jsonb>) -> Option<String> {
    input.map(|input| {
        document("input", input)
            .map(|value| fingerprint::fingerprint(&value))
            .or_raise()
    })
}

#[pg_extern(sql = false)]
fn effect_transitions() -> Table {
    Table(
        transition::LEGAL
            .iter()
            .map(|(from, by, to)| {
                Line::Values(columns![
                    from.as_str(),
                    by.as_str(),
                    by.event_name(),
                    to.as_str()
                ])
            })
            .collect(),
    )
}
