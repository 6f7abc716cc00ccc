//! The few places that talk to the server's C interface directly. Everything above this module is safe Rust.

pub mod catalog;
pub mod clock;
pub mod input;
pub mod jsonb;
pub mod latch;
pub mod notify;
pub mod process;
pub mod spi;
pub mod subxact;
pub mod table;
pub mod trigger;
pub mod types;
pub mod xact;
