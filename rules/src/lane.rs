//! Lanes: the queues in which ready jobs stand in order.
//!
//! The id of a lane carries its priority in its high bits, so that the claim index, ordered by lane id
//! alone, hands out higher priorities first.

use std::ops::RangeInclusive;

/// The priorities; higher goes first.
pub const PRIORITIES: RangeInclusive<i32> = 0..=99;
/// The priority of what names none.
pub const DEFAULT_PRIORITY: i32 = 50;

const SEQUENCE_BITS: u32 = 40;
/// The first sequence number that no longer fits into a lane id.
pub const SEQUENCE_END: i64 = 1 << SEQUENCE_BITS;

/// The id of a lane: `(99 − priority) << 40 | sequence`, never negative.
///
/// A priority out of 0..=99 is taken as the nearest one, and of the sequence only the low 40 bits count:
/// the caller has refused the first, and a trillion lanes are never made.
pub fn lane_id(priority: i32, sequence: i64) -> i64 {
    let rank = i64::from(PRIORITIES.end() - priority.clamp(*PRIORITIES.start(), *PRIORITIES.end()));
    rank << SEQUENCE_BITS | (sequence & (SEQUENCE_END - 1))
}

/// The priority that an id of [`lane_id`] carries.
pub fn priority_of(lane_id: i64) -> i32 {
    let rank = (lane_id >> SEQUENCE_BITS).clamp(0, i64::from(*PRIORITIES.end()));
    PRIORITIES.end() - rank as i32
}

/// A tag set as it is stored and compared: sorted, each tag once.
pub fn canonical_tags(mut tags: Vec<String>) -> Vec<String> {
    tags.sort_unstable();
    tags.dedup();
    tags
}

/// May this worker take this job? The job's tags must be among the worker's; a worker without tags takes all.
pub fn compatible(job_tags: &[String], worker_tags: &[String]) -> bool {
    worker_tags.is_empty() || job_tags.iter().all(|tag| worker_tags.contains(tag))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tags(words: &[&str]) -> Vec<String> {
        words.iter().map(|w| (*w).to_owned()).collect()
    }

    #[test]
    fn higher_priorities_sort_first() {
        assert_eq!(lane_id(99, 7), 7);
        assert_eq!(lane_id(0, 1), 99 << 40 | 1);
        for priority in PRIORITIES {
            for sequence in [0, 1, SEQUENCE_END - 1] {
                let id = lane_id(priority, sequence);
                assert_eq!(priority_of(id), priority);
                assert!(id >= 0);
            }
            if priority > 0 {
                assert!(lane_id(priority, SEQUENCE_END - 1) < lane_id(priority - 1, 0));
            }
        }
    }

    #[test]
    fn tags_are_a_set() {
        assert_eq!(canonical_tags(tags(&["b", "a", "b"])), tags(&["a", "b"]));
        assert_eq!(canonical_tags(vec![]), tags(&[]));
    }

    #[test]
    fn who_may_take_what() {
        let table: [(&[&str], &[&str], bool); 7] = [
            (&[], &[], true),
            (&["gpu"], &[], true),
            (&[], &["gpu"], true),
            (&["gpu"], &["gpu"], true),
            (&["gpu"], &["eu"], false),
            (&["gpu", "eu"], &["gpu"], false),
            (&["gpu", "eu"], &["eu", "gpu", "big"], true),
        ];
        for (job, worker, expected) in table {
            assert_eq!(
                compatible(&tags(job), &tags(worker)),
                expected,
                "{job:?} {worker:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn ids_never_leave_the_range(priority in any::<i32>(), sequence in any::<i64>(), id in any::<i64>()) {
            prop_assert!((0..100 << 40).contains(&lane_id(priority, sequence)));
            prop_assert!(PRIORITIES.contains(&priority_of(id)));
        }
    }
}
