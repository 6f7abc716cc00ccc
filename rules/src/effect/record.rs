//! One record of the ledger: its lease, and what a transition checks and writes.

use super::{Kind, Status, Transition};

/// The latest time that the ledger keeps: the end of Postgres's timestamps, in milliseconds since 1970.
pub const LATEST_MS: i64 = 9_224_318_015_999_999;

/// What a change does with a stored document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Document {
    #[default]
    Kept,
    Cleared,
    Replaced,
}

/// The part of a record that rules read and write. Documents stay outside: only what becomes of them is decided here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub kind: Kind,
    pub status: Status,
    pub attempt_count: i32,
    /// An attempt may have applied it, and nothing has shown otherwise since.
    pub may_have_applied: bool,
    pub compensation_attempts: i32,
    pub approved: bool,
    pub next_attempt_at: Option<i64>,
    pub attempt_started_at: Option<i64>,
    pub attempt_ended_at: Option<i64>,
    pub lease_owner: Option<String>,
    pub lease_epoch: i64,
    pub lease_expires_at: Option<i64>,
    /// Counts transitions; leases do not change it.
    pub version: i64,
    /// When the last transition was.
    pub updated_at: i64,
    pub committed_at: Option<i64>,
    pub output_schema_version: i64,
    pub output: Document,
    pub error: Document,
}

/// A requested transition.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub transition: Transition,
    pub expected_version: i64,
    /// Owner and epoch; `None` = without a lease, which works while nobody holds a live one.
    pub lease: Option<(&'a str, i64)>,
    /// A new output is given, whatever it is.
    pub has_output: bool,
    pub output_schema_version: Option<i64>,
    pub has_error: bool,
    pub next_attempt_at: Option<i64>,
}

impl<'a> Request<'a> {
    /// A bare transition of the record as it is.
    pub fn of(record: &Record, transition: Transition, lease: Option<(&'a str, i64)>) -> Self {
        Self {
            transition,
            expected_version: record.version,
            lease,
            has_output: false,
            output_schema_version: None,
            has_error: false,
            next_attempt_at: None,
        }
    }
}

/// One line of the audit trail.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The record's version after it: 1, 2, 3 …
    pub sequence: i64,
    pub transition: Transition,
    pub from: Status,
    pub to: Status,
    /// The attempt count after it.
    pub attempt: i32,
    pub at: i64,
    pub actor: Option<String>,
    pub payload: Option<serde_json::Value>,
}

/// Why a lease is not held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    Expired,
    Epoch,
    Owner,
    Released,
}

impl Lost {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Epoch => "epoch",
            Self::Owner => "owner",
            Self::Released => "released",
        }
    }
}

/// Why a change is refused. The record is untouched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    LeaseHeld {
        owner: String,
        expires_at: i64,
    },
    LeaseLost {
        reason: Lost,
        current_epoch: i64,
    },
    VersionConflict {
        expected: i64,
        actual: i64,
    },
    InvalidTransition {
        from: Status,
        transition: Transition,
        /// The pair is legal, but failing would deny an attempt that may have applied the effect.
        may_have_applied: bool,
    },
}

impl Record {
    /// A new record: pending, nobody's, no transition yet.
    pub fn fresh(kind: Kind, now: i64) -> Self {
        Self {
            kind,
            status: Status::Pending,
            attempt_count: 0,
            may_have_applied: false,
            compensation_attempts: 0,
            approved: false,
            next_attempt_at: None,
            attempt_started_at: None,
            attempt_ended_at: None,
            lease_owner: None,
            lease_epoch: 0,
            lease_expires_at: None,
            version: 0,
            updated_at: now,
            committed_at: None,
            output_schema_version: 1,
            output: Document::Kept,
            error: Document::Kept,
        }
    }

    /// Who holds a live lease, and until when. At its very expiry a lease is not live any more.
    pub fn live_lease(&self, now: i64) -> Option<(&str, i64)> {
        match (&self.lease_owner, self.lease_expires_at) {
            (Some(owner), Some(expires_at)) if expires_at > now => Some((owner, expires_at)),
            _ => None,
        }
    }

    /// Takes the lease for `ttl_ms`; the answer is its epoch. Not even its owner can take a live lease again: two tasks of one worker
    /// must not run the same effect either.
    pub fn acquire(&mut self, owner: &str, ttl_ms: i64, now: i64) -> Result<i64, Refusal> {
        self.refuse_live_lease(now)?;
        self.lease_epoch += 1;
        self.lease_owner = Some(owner.to_owned());
        self.lease_expires_at = Some(expiry(now, ttl_ms));
        Ok(self.lease_epoch)
    }

    /// Moves the end of a lease, forward or back. An expired lease does not come back, even if nobody has taken it.
    pub fn renew(&mut self, lease: (&str, i64), ttl_ms: i64, now: i64) -> Result<(), Refusal> {
        self.check_lease(lease, now)?;
        self.lease_expires_at = Some(expiry(now, ttl_ms));
        Ok(())
    }

    /// Gives the lease back, expired or not; false = it is not this one's any more.
    pub fn release(&mut self, (owner, epoch): (&str, i64)) -> bool {
        let is_current = self.lease_epoch == epoch && self.lease_owner.as_deref() == Some(owner);
        if is_current {
            self.lease_owner = None;
            self.lease_expires_at = None;
        }
        is_current
    }

    /// Refuses unless this lease is live.
    pub fn check_lease(&self, (owner, epoch): (&str, i64), now: i64) -> Result<(), Refusal> {
        let reason = if self.lease_epoch != epoch {
            Lost::Epoch
        } else if self.lease_owner.is_none() {
            Lost::Released
        } else if self.lease_owner.as_deref() != Some(owner) {
            Lost::Owner
        } else if self.lease_expires_at.is_none_or(|at| at <= now) {
            Lost::Expired
        } else {
            return Ok(());
        };
        Err(Refusal::LeaseLost {
            reason,
            current_epoch: self.lease_epoch,
        })
    }

    fn refuse_live_lease(&self, now: i64) -> Result<(), Refusal> {
        match self.live_lease(now) {
            None => Ok(()),
            Some((owner, expires_at)) => Err(Refusal::LeaseHeld {
                owner: owner.to_owned(),
                expires_at,
            }),
        }
    }

    /// Applies a transition. Checked in this order: the lease, the version, the table, the doubt.
    pub fn apply(&mut self, request: &Request, now: i64) -> Result<Event, Refusal> {
        match request.lease {
            Some(lease) => self.check_lease(lease, now)?,
            None => self.refuse_live_lease(now)?,
        }
        if request.expected_version != self.version {
            return Err(Refusal::VersionConflict {
                expected: request.expected_version,
                actual: self.version,
            });
        }
        let from = self.status;
        let transition = request.transition;
        let invalid = |may_have_applied| Refusal::InvalidTransition {
            from,
            transition,
            may_have_applied,
        };
        let to = from.after(transition).ok_or_else(|| invalid(false))?;
        // Failed means not applied, and a failed attempt proves that for itself only.
        if transition == Transition::FailedDefinitively
            && self.may_have_applied
            && self.kind != Kind::Read
        {
            return Err(invalid(true));
        }
        self.write(request, to, now);
        Ok(Event {
            sequence: self.version,
            transition,
            from,
            to,
            attempt: self.attempt_count,
            at: now,
            actor: None,
            payload: None,
        })
    }

    fn write(&mut self, request: &Request, to: Status, now: i64) {
        let from = self.status;
        let transition = request.transition;
        match transition {
            Transition::StartAttempt => {
                self.attempt_count = self.attempt_count.saturating_add(1);
                self.attempt_started_at = Some(now);
                self.attempt_ended_at = None;
                self.next_attempt_at = None;
                // It belongs to an attempt that did not settle the effect, and must never be replayed.
                self.output = Document::Cleared;
            }
            Transition::ScheduleRetry
            | Transition::ResolvedRetry
            | Transition::ScheduleCompensationRetry => {
                self.next_attempt_at = Some(request.next_attempt_at.unwrap_or(now));
            }
            Transition::OutcomeUnknown if request.next_attempt_at.is_some() => {
                self.next_attempt_at = self.next_attempt_at.max(request.next_attempt_at);
            }
            Transition::Approve => self.approved = true,
            Transition::StartCompensation => {
                self.compensation_attempts = 1;
                self.next_attempt_at = None;
            }
            Transition::StartCompensationRetry => {
                self.compensation_attempts = self.compensation_attempts.saturating_add(1);
                self.next_attempt_at = None;
            }
            _ => {}
        }
        if from == Status::Executing {
            self.attempt_ended_at = Some(now);
        }
        if to == Status::Committed {
            self.committed_at = Some(now);
        }
        if to == Status::Unknown {
            self.may_have_applied = true;
        }
        let is_shown_not_applied = matches!(
            transition,
            Transition::VerificationNotApplied | Transition::ResolvedNotApplied
        ) || (from == Status::Verifying
            && transition == Transition::ScheduleRetry);
        if is_shown_not_applied {
            self.may_have_applied = false;
        }
        if request.has_output {
            self.output = Document::Replaced;
            self.output_schema_version = request.output_schema_version.unwrap_or(1);
        }
        if request.has_error {
            self.error = Document::Replaced;
        }
        self.status = to;
        self.version += 1;
        self.updated_at = now;
    }
}

/// `now + ttl`. A lease that would end after the end of time ends at once: its holder is fenced off, which is the safe side.
fn expiry(now: i64, ttl_ms: i64) -> i64 {
    now.checked_add(ttl_ms)
        .filter(|at| *at <= LATEST_MS)
        .unwrap_or(now)
}

#[cfg(test)]
mod tests;
