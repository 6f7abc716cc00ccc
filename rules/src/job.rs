//! The states, epochs and leases of a job.

words! {
    /// Where a job is. Steps that are not released yet have no job and no state here.
    pub enum JobState {
        /// Claimable now.
        Ready = "ready",
        /// Waits for a time: `run_at`, or the delay before a retry.
        Scheduled = "scheduled",
        /// Waits for an event, a timer of its own, a child or a permit.
        Waiting = "waiting",
        /// Out of attempts, waits for a person.
        Held = "held",
        /// Runnable, but its owner is paused.
        Paused = "paused",
        /// A worker has it.
        Leased = "leased",
        Succeeded = "succeeded",
        Failed = "failed",
        Cancelled = "cancelled",
        Skipped = "skipped",
    }
}

words! {
    /// What happens to a job.
    pub enum JobInput {
        /// A worker takes it.
        Claim = "claim",
        /// What it waited for is there: its time, event, child or permit.
        Due = "due",
        /// Its worker gives it back, or its lease ran out with attempts left.
        Return = "return",
        /// It is to run later: a retry after a delay, or a release with one.
        Postpone = "postpone",
        /// Its worker leaves it to wait for an event, a sleep or a child.
        Park = "park",
        /// It has no attempts left and is kept for a person.
        Hold = "hold",
        /// Its owner is paused, and it would run otherwise.
        Pause = "pause",
        /// Its owner goes on.
        Resume = "resume",
        /// It is done: by its worker, by the event it waited for, or by a person.
        Succeed = "succeed",
        /// It failed for good: attempts, deadline, timeout of a wait, or a person.
        Fail = "fail",
        /// The timeout of its wait says that it is left out.
        Skip = "skip",
        /// Somebody asked for its end.
        Cancel = "cancel",
        /// Somebody starts it again as a new run.
        Requeue = "requeue",
    }
}

words! {
    /// What a worker that holds a lease is told.
    pub enum Directive {
        /// Go on.
        Continue = "continue",
        /// Stop and release: it was cancelled.
        Cancel = "cancel",
        /// Stop and release: it is paused.
        Pause = "pause",
        /// The lease is somebody else's now; nothing this worker says counts.
        Lost = "lost",
    }
}

impl JobState {
    /// Has it ended? Only a requeue, which begins a new run, leads out again.
    pub const fn is_terminal(self) -> bool {
        matches!(
            self,
            Self::Succeeded | Self::Failed | Self::Cancelled | Self::Skipped
        )
    }

    /// The state that an input leads to; `None` when this state does not take it.
    ///
    /// | state | takes |
    /// |---|---|
    /// | ready | claim → leased, pause → paused, fail → failed (deadline), cancel → cancelled |
    /// | scheduled | due → ready, pause → paused (due while its owner is paused), fail → failed (deadline), cancel → cancelled |
    /// | waiting | due → ready, succeed, fail, skip, cancel → that end |
    /// | held | requeue → ready, succeed, fail, cancel → that end |
    /// | paused | resume → ready, cancel → cancelled |
    /// | leased | return → ready, postpone → scheduled, park → waiting, hold → held, pause → paused, succeed, fail, cancel → that end |
    /// | failed, cancelled | requeue → ready |
    /// | succeeded, skipped | nothing |
    pub const fn apply(self, input: JobInput) -> Option<Self> {
        use JobInput as I;
        use JobState as S;
        let next = match (self, input) {
            (S::Ready, I::Claim) => S::Leased,
            (S::Scheduled | S::Waiting, I::Due) => S::Ready,
            (S::Paused, I::Resume) => S::Ready,
            (S::Held | S::Failed | S::Cancelled, I::Requeue) => S::Ready,
            (S::Ready | S::Scheduled | S::Leased, I::Pause) => S::Paused,
            (S::Leased, I::Return) => S::Ready,
            (S::Leased, I::Postpone) => S::Scheduled,
            (S::Leased, I::Park) => S::Waiting,
            (S::Leased, I::Hold) => S::Held,
            (S::Leased | S::Waiting | S::Held, I::Succeed) => S::Succeeded,
            (S::Leased | S::Waiting | S::Held | S::Ready | S::Scheduled, I::Fail) => S::Failed,
            (S::Waiting, I::Skip) => S::Skipped,
            (state, I::Cancel) if !state.is_terminal() => S::Cancelled,
            _ => return None,
        };
        Some(next)
    }
}

/// No epoch reaches this: every driver, JavaScript's floats included, holds a smaller one exactly.
pub const EPOCH_END: i64 = 1 << 53;

/// The epoch of the next lease: max(previous + 1, clock), below 2^53.
///
/// It grows with every lease, and because it follows the clock a restored or failed-over server, which
/// may have forgotten the last leases, does not give one out twice. A clock beyond 2^53 µs (the year
/// 2255) is not believed.
pub fn next_epoch(previous: i64, clock_us: i64) -> i64 {
    let grown = previous.saturating_add(1).min(EPOCH_END - 1);
    if clock_us < EPOCH_END {
        grown.max(clock_us)
    } else {
        grown
    }
}

/// When a lease runs out, in microseconds of the clock: `now + lease`, but never past `started + timeout`,
/// so that no heartbeat extends an attempt beyond its timeout. Saturates.
pub fn lease_expiry_us(
    now_us: i64,
    lease_us: i64,
    started_us: i64,
    timeout_us: Option<i64>,
) -> i64 {
    let expiry = now_us.saturating_add(lease_us);
    match timeout_us {
        Some(timeout) => expiry.min(started_us.saturating_add(timeout)),
        None => expiry,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Prints the table of the documentation and compares it word by word.
    #[test]
    fn the_whole_table() {
        let mut table = String::new();
        for &state in JobState::ALL {
            table.push_str(state.as_str());
            table.push(':');
            for &input in JobInput::ALL {
                if let Some(next) = state.apply(input) {
                    table.push_str(&format!(" {input}={next}"));
                }
            }
            table.push('\n');
        }
        let expected = "\
ready: claim=leased pause=paused fail=failed cancel=cancelled
scheduled: due=ready pause=paused fail=failed cancel=cancelled
waiting: due=ready succeed=succeeded fail=failed skip=skipped cancel=cancelled
held: succeed=succeeded fail=failed cancel=cancelled requeue=ready
paused: resume=ready cancel=cancelled
leased: return=ready postpone=scheduled park=waiting hold=held pause=paused succeed=succeeded fail=failed cancel=cancelled
succeeded:
failed: requeue=ready
cancelled: requeue=ready
skipped:
";
        assert_eq!(table, expected);
    }

    #[test]
    fn an_open_job_can_always_be_cancelled_and_an_end_never_changes_to_another() {
        for &state in JobState::ALL {
            let cancelled = state.apply(JobInput::Cancel);
            assert_eq!(cancelled.is_none(), state.is_terminal());
            if state.is_terminal() {
                for &input in JobInput::ALL {
                    assert!(
                        state
                            .apply(input)
                            .is_none_or(|next| next == JobState::Ready)
                    );
                }
            }
        }
    }

    #[test]
    fn words_round_trip() {
        for &one in JobState::ALL {
            assert_eq!(JobState::parse(one.as_str()), Some(one));
        }
        for &one in Directive::ALL {
            assert_eq!(Directive::parse(one.as_str()), Some(one));
        }
        assert_eq!(JobState::parse("blocked"), None);
    }

    #[test]
    fn epochs() {
        let now = 1_780_000_000_000_000;
        assert_eq!(next_epoch(0, now), now);
        assert_eq!(next_epoch(now, now), now + 1);
        assert_eq!(next_epoch(now + 5, now), now + 6); // the clock went back
        assert_eq!(next_epoch(7, i64::MAX), 8);
        assert_eq!(next_epoch(7, -1), 8);
        assert_eq!(next_epoch(i64::MAX, now), EPOCH_END - 1);
    }

    #[test]
    fn expiries() {
        assert_eq!(lease_expiry_us(100, 30, 90, None), 130);
        assert_eq!(lease_expiry_us(100, 30, 90, Some(60)), 130);
        assert_eq!(lease_expiry_us(100, 30, 90, Some(20)), 110);
        assert_eq!(lease_expiry_us(i64::MAX, 1, 0, None), i64::MAX);
        assert_eq!(lease_expiry_us(1, i64::MAX, i64::MAX, Some(5)), i64::MAX);
    }

    proptest! {
        #[test]
        fn an_epoch_grows_below_the_end(previous in -5..EPOCH_END - 1, clock in any::<i64>()) {
            let next = next_epoch(previous, clock);
            prop_assert!(next > previous);
            prop_assert!(next < EPOCH_END);
            if clock < EPOCH_END {
                prop_assert!(next >= clock);
            }
        }

        #[test]
        fn an_expiry_is_never_past_the_timeout(now in any::<i64>(), lease in any::<i64>(), started in any::<i64>(), timeout in any::<i64>()) {
            let expiry = lease_expiry_us(now, lease, started, Some(timeout));
            prop_assert!(expiry <= started.saturating_add(timeout));
            prop_assert!(expiry <= lease_expiry_us(now, lease, started, None));
        }
    }
}
