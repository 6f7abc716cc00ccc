//! The rules of sayiir: values in, decision out.
//!
//! Every state machine of the engine is here as plain Rust that knows no Postgres, so that it can be
//! tested over its whole table and by properties. The extension loads and locks, asks a rule, and writes
//! what the rule decided.
//!
//! | module | rule |
//! |---|---|
//! | [`ids`] | which ids, keys and names are accepted |
//! | [`definition`] | JSON definition → every problem, the canonical form, its hash, the compiled graph |
//! | [`template`], [`jsonpath`] | how a step's input is built, and what a path may name |
//! | [`release`] | ended step + counters → release, cancel or wait |
//! | [`job`], [`retry`], [`lane`] | states, epochs, leases, retries and queues of a job |
//! | [`schedule`] | cron expression, time zone, policies → when a schedule fires |
//! | [`durable`] | what a call of durable code does: answer, go on, or park |
//! | [`workflow`], [`event`] | states of a workflow; what becomes of a sent event |
//! | [`effect`] | the ledger of outside side effects |
#![forbid(unsafe_code)]

#[macro_use]
mod words;

pub mod definition;
pub mod durable;
pub mod effect;
pub mod event;
pub mod ids;
pub mod job;
pub mod jsonpath;
pub mod lane;
pub mod release;
pub mod retry;
pub mod schedule;
pub mod template;
pub mod workflow;
