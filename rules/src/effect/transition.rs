//! The states of an effect and the moves between them.

words! {
    /// Where an effect stands.
    pub enum Status {
        /// No attempt is running; one may start.
        Pending = "pending",
        /// A person has to approve it first.
        AwaitingApproval = "awaiting_approval",
        /// An attempt runs.
        Executing = "executing",
        /// An attempt may have applied it.
        Unknown = "unknown",
        /// The outside system is being asked whether it was applied.
        Verifying = "verifying",
        /// It was applied.
        Committed = "committed",
        /// It was not applied, and will not be.
        Failed = "failed",
        /// It was refused before any attempt.
        Rejected = "rejected",
        /// A person has to find out.
        NeedsIntervention = "needs_intervention",
        /// It is being undone.
        Compensating = "compensating",
        /// It was undone.
        Compensated = "compensated",
        /// It could not be undone; a person has to decide.
        CompensationFailed = "compensation_failed",
    }
}

impl Status {
    /// Nothing leads out of it.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Failed | Self::Rejected | Self::Compensated)
    }

    /// The outcome is known, and the record may be pruned.
    pub fn is_settled(self) -> bool {
        self.is_terminal() || self == Self::Committed
    }

    /// The ledger does nothing more by itself: a waiter gets its answer, or a person has to act.
    pub fn is_reportable(self) -> bool {
        self.is_settled() || matches!(self, Self::NeedsIntervention | Self::CompensationFailed)
    }

    /// Somebody works on it, or has died doing so.
    pub fn is_in_flight(self) -> bool {
        matches!(self, Self::Executing | Self::Verifying)
    }

    /// Where `transition` leads from here; `None` = it is not legal.
    pub fn after(self, transition: Transition) -> Option<Self> {
        LEGAL
            .iter()
            .find(|(from, by, _)| *from == self && *by == transition)
            .map(|(_, _, to)| *to)
    }
}

words! {
    /// A move of an effect.
    pub enum Transition {
        RequestApproval = "request_approval",
        Approve = "approve",
        Deny = "deny",
        PreconditionRejected = "precondition_rejected",
        StartAttempt = "start_attempt",
        Succeeded = "succeeded",
        FailedDefinitively = "failed_definitively",
        ScheduleRetry = "schedule_retry",
        OutcomeUnknown = "outcome_unknown",
        LeaseExpired = "lease_expired",
        StartVerification = "start_verification",
        VerificationConfirmed = "verification_confirmed",
        VerificationNotApplied = "verification_not_applied",
        VerificationConflict = "verification_conflict",
        Escalate = "escalate",
        ResolvedApplied = "resolved_applied",
        ResolvedNotApplied = "resolved_not_applied",
        ResolvedRetry = "resolved_retry",
        StartCompensation = "start_compensation",
        ScheduleCompensationRetry = "schedule_compensation_retry",
        StartCompensationRetry = "start_compensation_retry",
        CompensationSucceeded = "compensation_succeeded",
        CompensationFailed = "compensation_failed",
        ResolvedCompensated = "resolved_compensated",
    }
}

impl Transition {
    /// Its name in the audit trail.
    pub fn event_name(self) -> &'static str {
        match self {
            Self::RequestApproval => "effect.approval_requested",
            Self::Approve => "effect.approved",
            Self::Deny => "effect.denied",
            Self::PreconditionRejected => "effect.precondition_rejected",
            Self::StartAttempt => "effect.attempt_started",
            Self::Succeeded => "effect.succeeded",
            Self::FailedDefinitively => "effect.failed",
            Self::ScheduleRetry => "effect.retry_scheduled",
            Self::OutcomeUnknown => "effect.outcome_unknown",
            Self::LeaseExpired => "effect.lease_expired",
            Self::StartVerification => "effect.verification_started",
            Self::VerificationConfirmed => "effect.verification_confirmed",
            Self::VerificationNotApplied => "effect.verification_not_applied",
            Self::VerificationConflict => "effect.verification_conflict",
            Self::Escalate => "effect.escalated",
            Self::ResolvedApplied => "effect.resolved_applied",
            Self::ResolvedNotApplied => "effect.resolved_not_applied",
            Self::ResolvedRetry => "effect.resolved_retry",
            Self::StartCompensation => "effect.compensation_started",
            Self::ScheduleCompensationRetry => "effect.compensation_retry_scheduled",
            Self::StartCompensationRetry => "effect.compensation_retry_started",
            Self::CompensationSucceeded => "effect.compensated",
            Self::CompensationFailed => "effect.compensation_failed",
            Self::ResolvedCompensated => "effect.resolved_compensated",
        }
    }

    /// The transition with this name or this name in the audit trail.
    pub fn named(name: &str) -> Option<Self> {
        Self::parse(name).or_else(|| {
            Self::ALL
                .iter()
                .copied()
                .find(|one| one.event_name() == name)
        })
    }

    /// After it somebody acts outside: it has to be durable before that.
    pub fn is_intent(self) -> bool {
        matches!(
            self,
            Self::StartAttempt | Self::StartCompensation | Self::StartCompensationRetry
        )
    }
}

/// Every legal move: from, by, to.
pub const LEGAL: [(Status, Transition, Status); 33] = {
    use Status::*;
    use Transition as T;
    [
        (Pending, T::RequestApproval, AwaitingApproval),
        (Pending, T::PreconditionRejected, Rejected),
        (Pending, T::StartAttempt, Executing),
        (AwaitingApproval, T::Approve, Pending),
        (AwaitingApproval, T::Deny, Rejected),
        (Executing, T::Succeeded, Committed),
        (Executing, T::FailedDefinitively, Failed),
        (Executing, T::ScheduleRetry, Pending),
        (Executing, T::OutcomeUnknown, Unknown),
        (Executing, T::LeaseExpired, Unknown),
        (Executing, T::StartVerification, Verifying),
        (Verifying, T::VerificationConfirmed, Committed),
        (Verifying, T::VerificationNotApplied, Failed),
        (Verifying, T::ScheduleRetry, Pending),
        (Verifying, T::OutcomeUnknown, Unknown),
        (Verifying, T::LeaseExpired, Unknown),
        (Verifying, T::VerificationConflict, NeedsIntervention),
        (Unknown, T::ResolvedApplied, Committed),
        (Unknown, T::ResolvedNotApplied, Failed),
        (Unknown, T::ScheduleRetry, Pending),
        (Unknown, T::ResolvedRetry, Pending),
        (Unknown, T::StartVerification, Verifying),
        (Unknown, T::Escalate, NeedsIntervention),
        (NeedsIntervention, T::ResolvedApplied, Committed),
        (NeedsIntervention, T::ResolvedNotApplied, Failed),
        (NeedsIntervention, T::ResolvedRetry, Pending),
        (Committed, T::StartCompensation, Compensating),
        (Compensating, T::ScheduleCompensationRetry, Compensating),
        (Compensating, T::StartCompensationRetry, Compensating),
        (Compensating, T::CompensationSucceeded, Compensated),
        (Compensating, T::CompensationFailed, CompensationFailed),
        (CompensationFailed, T::ResolvedRetry, Compensating),
        (CompensationFailed, T::ResolvedCompensated, Compensated),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_and_event_names_are_one_to_one() {
        let mut names = std::collections::BTreeSet::new();
        for &one in Transition::ALL {
            assert_eq!(Transition::named(one.as_str()), Some(one));
            assert_eq!(Transition::named(one.event_name()), Some(one));
            assert!(one.event_name().starts_with("effect."));
            names.insert(one.as_str());
            names.insert(one.event_name());
        }
        assert_eq!(names.len(), 48);
        assert_eq!(Transition::named("Approve"), None);
        assert_eq!(Status::ALL.len(), 12);
    }

    /// 12 × 24 = 288 pairs: 33 are legal, each once, and none leads out of a terminal status.
    #[test]
    fn all_288_pairs() {
        let mut legal = 0;
        for &from in Status::ALL {
            let ways = Transition::ALL
                .iter()
                .filter(|by| from.after(**by).is_some())
                .count();
            assert_eq!(from.is_terminal(), ways == 0, "{from}");
            legal += ways;
        }
        assert_eq!(legal, LEGAL.len());
        let pairs: std::collections::HashSet<_> =
            LEGAL.iter().map(|(from, by, _)| (from, by)).collect();
        assert_eq!(pairs.len(), LEGAL.len());
    }

    #[test]
    fn every_status_is_reached_and_grouped() {
        for &status in Status::ALL {
            let reached = status == Status::Pending || LEGAL.iter().any(|(_, _, to)| *to == status);
            assert!(reached, "{status}");
        }
        let count = |is: fn(Status) -> bool| Status::ALL.iter().filter(|one| is(**one)).count();
        assert_eq!(count(Status::is_terminal), 3);
        assert_eq!(count(Status::is_settled), 4);
        assert_eq!(count(Status::is_reportable), 6);
        assert_eq!(count(Status::is_in_flight), 2);
    }
}
