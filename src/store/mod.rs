//! Kept statements and row types, one file a table group. Nothing here decides anything.

pub mod cache;
pub mod checkpoint;
pub mod definition;
pub mod event;
pub mod family;
pub mod job;
pub mod lane;
pub mod lease;
pub mod log;
pub mod park;
pub mod remedy;
pub mod role_scope;
pub mod step;
pub mod task;
pub mod wait;
pub mod workflow;
