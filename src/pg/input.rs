//! Reading text as Postgres reads it.

use std::ffi::CString;

use pgrx::{IntoDatum, direct_function_call_as_datum, pg_sys};
use sayiir_rules::definition::Span;

use super::clock::Instant;
use super::subxact;

fn cstring(text: &str) -> CString {
    // jsonb strings and text arguments hold no NUL byte
    CString::new(text).unwrap_or_default()
}

/// Reads an interval; raises what Postgres raises.
fn interval(text: &str) -> Span {
    let text = cstring(text);
    // SAFETY: interval_in takes (cstring, oid, int4) and returns a pointer to an Interval in the current context.
    unsafe {
        let datum = direct_function_call_as_datum(
            pg_sys::interval_in,
            &[
                text.as_c_str().into_datum(),
                pg_sys::InvalidOid.into_datum(),
                (-1i32).into_datum(),
            ],
        )
        .expect("interval_in never returns NULL");
        let value = &*datum.cast_mut_ptr::<pg_sys::Interval>();
        Span {
            months: value.month,
            days: value.day,
            micros: value.time,
        }
    }
}

/// Reads a timestamp with time zone; raises what Postgres raises.
fn timestamp(text: &str) -> Instant {
    let text = cstring(text);
    // SAFETY: timestamptz_in takes (cstring, oid, int4) and returns an int64.
    unsafe {
        let datum = direct_function_call_as_datum(
            pg_sys::timestamptz_in,
            &[
                text.as_c_str().into_datum(),
                pg_sys::InvalidOid.into_datum(),
                (-1i32).into_datum(),
            ],
        );
        Instant(datum.expect("timestamptz_in never returns NULL").value() as i64)
    }
}

/// Reads an interval; the error is Postgres's message.
pub fn try_interval(text: &str) -> Result<Span, String> {
    subxact::attempt(|| interval(text))
}

/// Reads a timestamp that comes some day; the error is Postgres's message. Without a zone it is UTC, whichever session reads it.
pub fn try_timestamp(text: &str) -> Result<Instant, String> {
    // SAFETY: UTC is always known; the session's zone is put back on both paths, because attempt catches what is raised.
    let read = unsafe {
        let session = pg_sys::session_timezone;
        pg_sys::session_timezone = pg_sys::pg_tzset(c"UTC".as_ptr());
        let read = subxact::attempt(|| timestamp(text));
        pg_sys::session_timezone = session;
        read
    };
    match read {
        Ok(at) if !at.is_finite() => Err(format!("{text:?} is no point in time")),
        at => at,
    }
}

/// Whether this is an SQL/JSON path; the error is Postgres's message.
pub fn try_jsonpath(text: &str) -> Result<(), String> {
    subxact::attempt(|| {
        let text = cstring(text);
        // SAFETY: jsonpath_in takes one cstring.
        unsafe {
            direct_function_call_as_datum(pg_sys::jsonpath_in, &[text.as_c_str().into_datum()])
        };
    })
}

/// Reads intervals of definitions that were checked when they were stored: no subtransactions.
pub struct Stored;

impl sayiir_rules::definition::Host for Stored {
    fn interval(&self, text: &str) -> Result<Span, String> {
        Ok(interval(text))
    }

    fn jsonpath(&self, _: &str) -> Result<(), String> {
        Ok(())
    }
}

/// Checks what a caller defines, each text in a subtransaction.
pub struct Checked;

impl sayiir_rules::definition::Host for Checked {
    fn interval(&self, text: &str) -> Result<Span, String> {
        try_interval(text)
    }

    fn jsonpath(&self, text: &str) -> Result<(), String> {
        try_jsonpath(text)
    }

    fn timestamp(&self, text: &str) -> Result<(), String> {
        try_timestamp(text).map(|_| ())
    }
}
