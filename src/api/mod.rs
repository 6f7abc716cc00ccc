//! The SQL functions, one file a noun: arguments in, one engine call, rows out. Declared in `sql/parts`.

// The argument lists are the contract with users; a struct would only name them a second time.
#![allow(clippy::too_many_arguments)]

mod admin;
mod adopt;
mod arguments;
mod durable;
mod effect;
mod effect_raw;
mod event;
mod job;
mod remedy;
mod schedule;
mod task;
mod trigger;
mod workflow;
