//! Kept statements and row types, one file a table group. Nothing here decides anything.

pub mod array;
pub mod cache;
pub mod checkpoint;
pub mod claim;
pub mod definition;
pub mod effect;
pub mod effect_set;
pub mod event;
pub mod family;
pub mod job;
pub mod lane;
pub mod lease;
pub mod log;
pub mod meta;
pub mod park;
pub mod remedy;
pub mod retention;
pub mod role_scope;
pub mod schedule;
pub mod step;
pub mod task;
pub mod trigger;
pub mod wait;
pub mod workflow;
