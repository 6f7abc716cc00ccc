//! The ledger of outside side effects: which change of a record is allowed, and what it writes.
//!
//! An effect is known by (name, logical key) and moves through [`Status`] by [`Transition`]s. A worker holds it by a lease whose epoch
//! grows with every acquisition. Times are milliseconds since 1970; what the ledger keeps has no finer precision.
//!
//! | module | rule |
//! |---|---|
//! | [`transition`] | the 33 legal pairs of status and transition |
//! | [`record`] | leases, the order of checks, what a transition writes |
//! | [`contract`] | what is known about repeating and verifying an effect, and so what an unknown outcome leads to |
//! | [`course`] | the usual path: begin, finish, fail, resolve |
//! | [`identity`], [`fingerprint`] | keys for outside systems; whether two inputs are the same |

pub mod contract;
pub mod course;
pub mod fingerprint;
pub mod identity;
pub mod record;
pub mod transition;

pub use contract::{Contract, Failure, FailureClass};
pub use record::{Event, Record, Refusal, Request};
pub use transition::{Status, Transition};

words! {
    /// What repeating the outside operation does.
    pub enum Kind {
        /// Nothing outside changes.
        Read = "read",
        /// Doing it twice is doing it once.
        IdempotentWrite = "idempotent_write",
        /// It can be undone.
        ReversibleWrite = "reversible_write",
        /// It cannot.
        IrreversibleWrite = "irreversible_write",
    }
}

impl Kind {
    /// Repeating it cannot apply it twice, whatever the outside system does.
    pub fn is_naturally_idempotent(self) -> bool {
        matches!(self, Self::Read | Self::IdempotentWrite)
    }
}
