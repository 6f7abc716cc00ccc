//! One file a transition, named by its verb. Each loads and locks, asks a rule, writes, and wakes.

pub mod await_result;
pub mod cancel;
pub mod cancel_job;
pub mod checkpoint;
pub mod claim;
pub mod complete;
pub mod complete_step;
pub mod define;
pub mod delete;
pub mod enqueue;
pub mod fail;
pub mod graph;
pub mod heartbeat;
pub mod lock;
pub mod log;
pub mod open;
pub mod owner;
pub mod reap;
pub mod release_lease;
pub mod requeue;
pub mod send_event;
pub mod settle;
pub mod start;
pub mod tick;
pub mod timers;
