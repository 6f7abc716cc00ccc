//! NOTIFY without a statement.

use std::ffi::CString;

unsafe extern "C-unwind" {
    // commands/async.h, which pgrx does not bind; the declaration is the same in Postgres 15 to 18.
    fn Async_Notify(channel: *const std::ffi::c_char, payload: *const std::ffi::c_char);
}

/// Longest payload NOTIFY takes, in bytes.
const MAX_PAYLOAD: usize = 7999;

/// Queues a notification for this transaction's commit; Postgres drops exact repeats within one transaction.
/// A payload that is too long or has a NUL byte is replaced by an empty one: listeners look themselves.
pub fn notify(channel: &std::ffi::CStr, payload: &str) {
    let payload = if payload.len() <= MAX_PAYLOAD {
        CString::new(payload).unwrap_or_default()
    } else {
        CString::default()
    };
    // SAFETY: both strings are NUL-terminated and copied by the callee; the guard turns a C error into a Rust panic.
    unsafe {
        pgrx::pg_sys::ffi::pg_guard_ffi_boundary(|| {
            Async_Notify(channel.as_ptr(), payload.as_ptr())
        })
    }
}
