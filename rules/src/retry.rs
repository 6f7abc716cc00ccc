//! What follows a failed attempt: another one, later, or the end.

use crate::ids::Invalid;

/// How often and how far apart a job is tried. Times are microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryPolicy {
    /// Attempts in all, the first included: 1 to 1000.
    pub max_attempts: i32,
    /// The delay after the first failed attempt.
    pub initial_us: i64,
    /// What each further delay is multiplied by: 1 to 1000.
    pub factor: f64,
    /// No delay is longer than this.
    pub max_us: i64,
    /// How much a delay is spread, as a fraction of it: 0 (not at all) to 1 (from none to double).
    pub jitter: f64,
}

/// The range of [`RetryPolicy::max_attempts`].
pub const ATTEMPTS: std::ops::RangeInclusive<i32> = 1..=1000;
/// The range of [`RetryPolicy::factor`].
pub const FACTOR: std::ops::RangeInclusive<f64> = 1.0..=1000.0;
/// The range of [`RetryPolicy::jitter`].
pub const JITTER: std::ops::RangeInclusive<f64> = 0.0..=1.0;

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 5,
            initial_us: 1_000_000,
            factor: 2.0,
            max_us: 300_000_000,
            jitter: 0.1,
        }
    }
}

impl RetryPolicy {
    /// Refuses what is out of range, NaN and infinity included.
    pub fn check(&self) -> Result<(), Invalid> {
        let refuse = |what, problem: String| Err(Invalid { what, problem });
        if !ATTEMPTS.contains(&self.max_attempts) {
            return refuse(
                "max_attempts",
                format!("is {}, not 1 to 1000", self.max_attempts),
            );
        }
        if self.initial_us < 0 {
            return refuse("initial", "is negative".into());
        }
        if self.max_us < 0 {
            return refuse("max", "is negative".into());
        }
        // `contains` is false for NaN.
        if !FACTOR.contains(&self.factor) {
            return refuse("factor", format!("is {}, not 1 to 1000", self.factor));
        }
        if !JITTER.contains(&self.jitter) {
            return refuse("jitter", format!("is {}, not 0 to 1", self.jitter));
        }
        Ok(())
    }

    /// The delay after failed attempt number `attempt` (the first is 1), in microseconds, 0 to `max_us`.
    ///
    /// `random01` in 0..1 places it within the jitter. Every input gives a delay: the arithmetic is in
    /// floating point, which overflows to infinity and is capped, and never wraps.
    pub fn delay_us(&self, attempt: i32, random01: f64) -> i64 {
        if self.initial_us <= 0 || self.max_us <= 0 {
            return 0; // and 0 × infinity stays out of the arithmetic
        }
        let max = self.max_us as f64;
        let exponent = attempt.saturating_sub(1).max(0);
        let base = (self.initial_us as f64 * self.factor.powi(exponent)).min(max);
        let spread = self.jitter * (2.0 * random01.clamp(0.0, 1.0) - 1.0);
        let delay = (base * (1.0 + spread)).clamp(0.0, max);
        // The cast saturates; max_us as a float may be rounded up, hence the last cap.
        (delay as i64).min(self.max_us)
    }
}

/// Why an attempt did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The worker thinks that trying again can help.
    Retryable,
    /// The worker knows that it cannot.
    Terminal,
    /// The attempt ran longer than its timeout.
    Timeout,
    /// The handler crashed but its worker lives.
    Panicked,
    /// The lease ran out in silence. Only the engine says so; no caller can.
    Expired,
}

impl FailureKind {
    /// Every kind.
    pub const ALL: &'static [Self] = &[
        Self::Retryable,
        Self::Terminal,
        Self::Timeout,
        Self::Panicked,
        Self::Expired,
    ];

    /// The word of the SQL surface.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Retryable => "retryable",
            Self::Terminal => "terminal",
            Self::Timeout => "timeout",
            Self::Panicked => "panicked",
            Self::Expired => "expired",
        }
    }

    /// The kind that a caller named; `None` for other text and for `expired`, which no caller may claim.
    pub fn parse(word: &str) -> Option<Self> {
        let kind = Self::ALL.iter().copied().find(|one| one.as_str() == word);
        kind.filter(|one| *one != Self::Expired)
    }
}

/// What becomes of a job after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureDecision {
    /// It is tried again after this many microseconds.
    Retry { delay_us: i64 },
    /// It ends failed: a dead letter.
    Dead,
    /// It waits for a person (`on_exhausted: hold`).
    Hold,
}

/// Decides what follows failed attempt number `attempt`.
///
/// | kind | attempts left | none left |
/// |---|---|---|
/// | retryable, timeout, panicked | retry after max(policy, asked) | dead or hold |
/// | expired | retry at once: nobody is there to be spared | dead or hold |
/// | terminal | dead or hold | dead or hold |
///
/// `asked_delay_us` is what the worker asked for; it can only make the retry later.
pub fn after_failure(
    policy: &RetryPolicy,
    kind: FailureKind,
    attempt: i32,
    hold: bool,
    asked_delay_us: Option<i64>,
    random01: f64,
) -> FailureDecision {
    if kind == FailureKind::Terminal || attempt >= policy.max_attempts {
        return if hold {
            FailureDecision::Hold
        } else {
            FailureDecision::Dead
        };
    }
    let delay_us = match kind {
        FailureKind::Expired => 0,
        _ => policy
            .delay_us(attempt, random01)
            .max(asked_delay_us.unwrap_or(0)),
    };
    FailureDecision::Retry { delay_us }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLAIN: RetryPolicy = RetryPolicy {
        max_attempts: 5,
        initial_us: 1_000,
        factor: 2.0,
        max_us: 6_000,
        jitter: 0.0,
    };

    #[test]
    fn delays_grow_up_to_the_cap() {
        let delays: Vec<i64> = (1..=5).map(|n| PLAIN.delay_us(n, 0.7)).collect();
        assert_eq!(delays, [1_000, 2_000, 4_000, 6_000, 6_000]);
        assert_eq!(PLAIN.delay_us(i32::MAX, 0.5), 6_000);
        assert_eq!(PLAIN.delay_us(i32::MIN, 0.5), 1_000);
    }

    #[test]
    fn jitter_spreads_both_ways_below_the_cap() {
        let policy = RetryPolicy {
            jitter: 0.5,
            ..PLAIN
        };
        assert_eq!(policy.delay_us(1, 0.0), 500);
        assert_eq!(policy.delay_us(1, 0.5), 1_000);
        assert_eq!(policy.delay_us(1, 1.0), 1_500);
        assert_eq!(policy.delay_us(9, 1.0), 6_000);
    }

    #[test]
    fn bad_policies_are_refused() {
        assert!(RetryPolicy::default().check().is_ok());
        assert!(PLAIN.check().is_ok());
        let refused = [
            RetryPolicy {
                max_attempts: 0,
                ..PLAIN
            },
            RetryPolicy {
                max_attempts: 1001,
                ..PLAIN
            },
            RetryPolicy {
                initial_us: -1,
                ..PLAIN
            },
            RetryPolicy {
                max_us: -1,
                ..PLAIN
            },
            RetryPolicy {
                factor: f64::NAN,
                ..PLAIN
            },
            RetryPolicy {
                factor: f64::INFINITY,
                ..PLAIN
            },
            RetryPolicy {
                factor: 0.5,
                ..PLAIN
            },
            RetryPolicy {
                jitter: -0.1,
                ..PLAIN
            },
            RetryPolicy {
                jitter: 1.1,
                ..PLAIN
            },
            RetryPolicy {
                jitter: f64::NAN,
                ..PLAIN
            },
        ];
        for policy in refused {
            assert!(policy.check().is_err(), "{policy:?}");
        }
    }

    #[test]
    fn no_caller_can_say_expired() {
        assert_eq!(FailureKind::parse("expired"), None);
        for kind in FailureKind::ALL
            .iter()
            .filter(|k| **k != FailureKind::Expired)
        {
            assert_eq!(FailureKind::parse(kind.as_str()), Some(*kind));
        }
        assert_eq!(FailureKind::parse("Retryable"), None);
    }

    /// The whole table: kind × attempts left × hold × asked.
    #[test]
    fn every_failure_has_one_answer() {
        for &kind in FailureKind::ALL {
            for attempt in 1..=7 {
                for hold in [false, true] {
                    for asked in [None, Some(-5), Some(0), Some(500), Some(50_000)] {
                        let got = after_failure(&PLAIN, kind, attempt, hold, asked, 0.5);
                        let over = kind == FailureKind::Terminal || attempt >= 5;
                        let expected = match (over, hold) {
                            (true, true) => FailureDecision::Hold,
                            (true, false) => FailureDecision::Dead,
                            _ if kind == FailureKind::Expired => {
                                FailureDecision::Retry { delay_us: 0 }
                            }
                            _ => FailureDecision::Retry {
                                delay_us: PLAIN.delay_us(attempt, 0.5).max(asked.unwrap_or(0)),
                            },
                        };
                        assert_eq!(got, expected, "{kind:?} {attempt} {hold} {asked:?}");
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn a_delay_is_always_between_0_and_max(
            initial_us in any::<i64>(), max_us in any::<i64>(), factor in any::<f64>(),
            jitter in any::<f64>(), attempt in any::<i32>(), random01 in any::<f64>(),
        ) {
            let policy = RetryPolicy { max_attempts: 5, initial_us, factor, max_us, jitter };
            let delay = policy.delay_us(attempt, random01);
            prop_assert!(delay >= 0);
            prop_assert!(delay <= max_us.max(0));
        }

        #[test]
        fn without_jitter_delays_never_shrink(
            initial_us in 0..i64::MAX, max_us in 0..i64::MAX, factor in 1.0..1000.0f64, attempt in 1..i32::MAX - 1,
        ) {
            let policy = RetryPolicy { max_attempts: 5, initial_us, factor, max_us, jitter: 0.0 };
            prop_assert!(policy.check().is_ok());
            prop_assert!(policy.delay_us(attempt, 0.3) <= policy.delay_us(attempt + 1, 0.9));
        }
    }
}
