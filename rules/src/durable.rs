//! Durable code: a call under a name is answered once, and the name remembers the answer, so that the code can run again from
//! the top.

words! {
    /// What a name remembers.
    pub enum CheckpointKind {
        /// A value that the code chose.
        Value = "value",
        /// That a time has passed.
        Sleep = "sleep",
        /// An event, or that none came in time.
        Event = "event",
        /// The job that it spawned.
        Spawn = "spawn",
        /// How a spawned job ended, or that it did not in time.
        Child = "child",
    }
}

/// What is known under the name of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remembered {
    pub kind: CheckpointKind,
    /// The answer is there.
    pub answered: bool,
    /// When the wait is over whatever happens, in microseconds; set by the first call.
    pub due_us: Option<i64>,
}

/// What a waiting call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The code has used the name for another kind of call.
    Conflict,
    /// The answer is remembered.
    Answered,
    /// What it waits for is there: take it and remember it.
    Arrived,
    /// The time is over: remember that.
    Over,
    /// The job leaves its worker until then, or until what it waits for is there.
    Park { due_us: Option<i64> },
}

/// Decides a waiting call: a sleep, for which nothing ever arrives, an event or a child.
///
/// | remembered | arrived | due | |
/// |---|---|---|---|
/// | another kind | any | any | conflict |
/// | an answer | any | any | answered |
/// | nothing, or the question | yes | any | arrived |
/// | nothing, or the question | no | passed | over |
/// | nothing, or the question | no | to come, or never | park |
///
/// The time of the first call counts: a second one does not begin the wait anew.
pub fn wait(
    kind: CheckpointKind,
    remembered: Option<Remembered>,
    arrived: bool,
    asked_due_us: Option<i64>,
    now_us: i64,
) -> Wait {
    let due_us = match remembered {
        Some(known) if known.kind != kind => return Wait::Conflict,
        Some(known) if known.answered => return Wait::Answered,
        Some(known) => known.due_us,
        None => asked_due_us,
    };
    match due_us {
        _ if arrived => Wait::Arrived,
        Some(due) if due <= now_us => Wait::Over,
        due_us => Wait::Park { due_us },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: i64 = 100;

    fn question(due_us: Option<i64>) -> Option<Remembered> {
        Some(Remembered {
            kind: CheckpointKind::Event,
            answered: false,
            due_us,
        })
    }

    #[test]
    fn the_whole_table() {
        let decide =
            |remembered, arrived, due| wait(CheckpointKind::Event, remembered, arrived, due, NOW);
        for arrived in [false, true] {
            for due in [None, Some(NOW - 1), Some(NOW), Some(NOW + 1)] {
                let known = |kind, answered| {
                    Some(Remembered {
                        kind,
                        answered,
                        due_us: due,
                    })
                };
                for &kind in CheckpointKind::ALL {
                    for answered in [false, true] {
                        if kind != CheckpointKind::Event {
                            assert_eq!(decide(known(kind, answered), arrived, due), Wait::Conflict);
                        }
                    }
                }
                let answer = known(CheckpointKind::Event, true);
                assert_eq!(decide(answer, arrived, due), Wait::Answered);
                let expected = match due {
                    _ if arrived => Wait::Arrived,
                    Some(due) if due <= NOW => Wait::Over,
                    due_us => Wait::Park { due_us },
                };
                assert_eq!(decide(None, arrived, due), expected);
                assert_eq!(decide(question(due), arrived, None), expected);
            }
        }
    }

    #[test]
    fn the_time_of_the_first_call_counts() {
        let decide =
            |first, second| wait(CheckpointKind::Event, question(first), false, second, NOW);
        assert_eq!(decide(Some(NOW), Some(NOW + 9)), Wait::Over);
        assert_eq!(
            decide(Some(NOW + 5), Some(NOW - 5)),
            Wait::Park {
                due_us: Some(NOW + 5)
            }
        );
        assert_eq!(decide(None, Some(NOW - 5)), Wait::Park { due_us: None });
    }

    #[test]
    fn words_round_trip() {
        for &kind in CheckpointKind::ALL {
            assert_eq!(CheckpointKind::parse(kind.as_str()), Some(kind));
        }
        assert_eq!(CheckpointKind::parse("Value"), None);
    }

    proptest! {
        #[test]
        fn a_call_that_parks_is_over_when_it_comes_back_at_its_time(due in any::<i64>(), now in any::<i64>(), later in any::<i64>()) {
            if let Wait::Park { due_us: Some(until) } = wait(CheckpointKind::Event, None, false, Some(due), now) {
                prop_assert!(until > now);
                let back = wait(CheckpointKind::Event, question(Some(until)), false, Some(later), until);
                prop_assert_eq!(back, Wait::Over);
            }
        }
    }
}
