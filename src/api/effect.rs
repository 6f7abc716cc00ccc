//! `effect_*`.

use pgrx::datum::{Interval, TimestampWithTimeZone};
use pgrx::{Uuid, pg_extern};
use sayiir_rules::effect::contract::check_error;
use sayiir_rules::effect::course::Resolution;
use sayiir_rules::effect::{
    Contract, FailureClass, Kind, Request, Status, Transition, fingerprint, identity, transition,
};
use sayiir_rules::ids;

use super::arguments::{elements, lease_us, required, within};
use crate::columns;
use crate::engine::effect_end::Lease;
use crate::engine::effect_record::{Clock, time_argument};
use crate::engine::effect_resolve::Person;
use crate::engine::{self, enqueue};
use crate::error::{Code, Error, OrRaise, Result};
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::{Session, connect};
use crate::pg::table::{Line, Table};
use crate::scope::{self, Scope, Use};
use crate::store;
use crate::store::effect::{Documents, New};

fn one(line: Line) -> Table {
    Table(vec![line])
}

/// A word of a list.
fn word<T: Copy>(
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

fn kind(value: Option<&str>) -> Result<Kind> {
    word("kind", value, Kind::parse, words_of!(Kind))
}

fn status(name: &'static str, value: Option<&str>) -> Result<Status> {
    word(name, value, Status::parse, words_of!(Status))
}

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

fn ttl_ms(value: Option<Interval>) -> Result<i64> {
    Ok(required("ttl", lease_us("ttl", value)?)? / 1_000)
}

fn person<'a>(actor: Option<&'a str>, note: Option<&'a str>) -> Result<Person<'a>> {
    let actor = required("actor", actor)?;
    ids::check_id("actor", actor)?;
    Ok(Person { actor, note })
}

fn visible(session: &Session, organization_id: Option<&str>) -> Result<Scope> {
    scope::resolve(session, organization_id, Use::Other)
}

fn document(name: &'static str, value: Jsonb) -> Result<serde_json::Value> {
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

// Raw. Owners are whatever a client calls itself, also nothing.

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
