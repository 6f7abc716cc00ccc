//! The database's clock, the only one the engine reads.

use pgrx::datum::TimestampWithTimeZone;
use pgrx::pg_sys;

/// Microseconds between 1970-01-01 and Postgres's epoch, 2000-01-01.
const UNIX_TO_POSTGRES_US: i64 = 946_684_800_000_000;

/// A point in time: microseconds since 2000-01-01 UTC, as `timestamptz` stores it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(pub i64);

impl Instant {
    /// `clock_timestamp()`: the wall clock now, not the transaction's start. Read it after taking a lock.
    pub fn now() -> Self {
        // SAFETY: reads the system clock; no preconditions.
        Self(unsafe { pg_sys::GetCurrentTimestamp() })
    }

    pub fn plus_us(self, us: i64) -> Self {
        Self(self.0.saturating_add(us))
    }

    /// Microseconds since 1970-01-01: the clock part of a job's epoch.
    pub fn unix_us(self) -> i64 {
        self.0.saturating_add(UNIX_TO_POSTGRES_US)
    }

    pub fn from_unix_us(us: i64) -> Self {
        Self(us.saturating_sub(UNIX_TO_POSTGRES_US))
    }

    /// Milliseconds since 1970-01-01, without what is finer: the times of the ledger.
    pub fn unix_ms(self) -> i64 {
        self.unix_us() / 1_000
    }

    /// See [`Instant::unix_ms`]; the arithmetic saturates.
    pub fn from_unix_ms(ms: i64) -> Self {
        Self(ms.saturating_mul(1_000).saturating_sub(UNIX_TO_POSTGRES_US))
    }

    pub fn is_finite(self) -> bool {
        self.0 != i64::MAX && self.0 != i64::MIN
    }
}

impl From<TimestampWithTimeZone> for Instant {
    fn from(value: TimestampWithTimeZone) -> Self {
        Self(value.into())
    }
}

impl pgrx::IntoDatum for Instant {
    fn into_datum(self) -> Option<pg_sys::Datum> {
        Some(pg_sys::Datum::from(self.0))
    }

    fn type_oid() -> pg_sys::Oid {
        pg_sys::TIMESTAMPTZOID
    }
}

impl pgrx::FromDatum for Instant {
    unsafe fn from_polymorphic_datum(
        datum: pg_sys::Datum,
        is_null: bool,
        _: pg_sys::Oid,
    ) -> Option<Self> {
        (!is_null).then(|| Self(datum.value() as i64))
    }
}

// SAFETY: a timestamptz is an int64, passed by value.
unsafe impl pgrx::datum::UnboxDatum for Instant {
    type As<'src> = Self;

    unsafe fn unbox<'src>(datum: pgrx::datum::Datum<'src>) -> Self::As<'src>
    where
        Self: 'src,
    {
        Self(datum.sans_lifetime().value() as i64)
    }
}

/// A duration argument in microseconds; a month counts 30 days, as in `extract(epoch FROM …)`.
/// None when it is infinite or does not fit.
pub fn interval_us(interval: &pgrx::datum::Interval) -> Option<i64> {
    span_us(interval.months(), interval.days(), interval.micros())
}

/// See [`interval_us`].
pub fn span_us(months: i32, days: i32, micros: i64) -> Option<i64> {
    const DAY_US: i64 = 86_400_000_000;
    if months == i32::MAX || months == i32::MIN {
        return None; // Postgres 17's infinity
    }
    let days = i64::from(months)
        .checked_mul(30)?
        .checked_add(i64::from(days))?;
    days.checked_mul(DAY_US)?.checked_add(micros)
}
