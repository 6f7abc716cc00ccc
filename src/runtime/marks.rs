//! The notifications that one database waits to send: a set of (channel, payload) in shared memory.
//!
//! Any number of committing backends add, one worker takes. Adding is a few atomic operations: it cannot fail, wait or allocate. A
//! notification that is there already is not added again, so 10,000 commits for one task between two looks of the worker are one entry.
//! A full neighbourhood, or anything unusual, sets the channel's overflow bit: its listeners get an empty payload and look themselves.
//!
//! A cell's state is (version, what it is). Writers fill an empty cell alone, having moved it from EMPTY to BUSY; the worker empties a
//! full one and counts its version up. A writer that compares with a full cell checks afterwards that the version is still the same.

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

/// Cells of one database; with 200 notifications sent a second, more than 20,000 different ones fit.
pub const CELLS: usize = 128;
/// Cells that an entry may be in, from its home on.
const NEIGHBOURHOOD: usize = 16;
/// Longest payload that fits; longer ones are sent by the transaction itself. A task's name has at most 200 bytes.
pub const MAX_PAYLOAD: usize = WORDS * 8;
const WORDS: usize = 30;

const EMPTY: u64 = 0;
const BUSY: u64 = 1;
const FULL: u64 = 2;
const KIND: u64 = 3;
const VERSION: u64 = 4;

/// Zeroed memory is the empty set.
#[repr(C)]
pub struct Marks {
    overflow: AtomicU32,
    cells: [Cell; CELLS],
}

#[repr(C, align(64))]
struct Cell {
    state: AtomicU64,
    /// Length of the payload, and the channel.
    shape: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// What the worker took.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// One bit a channel: its listeners have to look themselves.
    pub overflow: u32,
    /// (channel, payload), without repeats.
    pub marks: Vec<(u32, Vec<u8>)>,
}

impl Marks {
    /// Adds a notification; `hash` is the payload's.
    pub fn add(&self, channel: u32, hash: u64, payload: &[u8]) {
        if payload.len() > MAX_PAYLOAD || !self.place(shape(channel, payload), hash, payload) {
            self.overflow(channel);
        }
    }

    /// Tells every listener of the channel to look.
    pub fn overflow(&self, channel: u32) {
        self.overflow.fetch_or(1 << (channel & 31), SeqCst);
    }

    fn place(&self, shape: u64, hash: u64, payload: &[u8]) -> bool {
        let home = hash as usize % CELLS;
        // What the worker is told must not be older than what the transaction wrote: see `Cell::holds`.
        fence(SeqCst);
        for cell in self.cells.iter().cycle().skip(home).take(NEIGHBOURHOOD) {
            let seen = cell.state.load(Acquire);
            if seen & KIND == EMPTY {
                if cell
                    .state
                    .compare_exchange(seen, seen | BUSY, Acquire, Relaxed)
                    .is_ok()
                {
                    cell.write(shape, payload);
                    cell.state.store(seen | FULL, SeqCst);
                    return true;
                }
            } else if seen & KIND == FULL && cell.holds(seen, shape, payload) {
                return true;
            }
        }
        false
    }

    /// Takes everything. One process at a time.
    pub fn take(&self) -> Taken {
        let mut taken = Taken {
            overflow: self.overflow.swap(0, SeqCst),
            marks: Vec::new(),
        };
        for cell in &self.cells {
            let seen = cell.state.load(Acquire);
            if seen & KIND == FULL {
                taken.marks.push(cell.read());
                cell.state
                    .store(((seen & !KIND) | EMPTY).wrapping_add(VERSION), SeqCst);
            }
        }
        // Whoever still saw a full cell did so before this; its listeners are woken after it.
        fence(SeqCst);
        taken.marks.sort();
        taken.marks.dedup();
        taken
    }
}

impl Cell {
    fn write(&self, shape: u64, payload: &[u8]) {
        self.shape.store(shape, Relaxed);
        for (word, value) in self.words.iter().zip(words(payload)) {
            word.store(value, Relaxed);
        }
    }

    /// Whether the cell, seen full in state `seen`, holds just this, and still waits to be taken.
    fn holds(&self, seen: u64, shape: u64, payload: &[u8]) -> bool {
        let same = self.shape.load(Relaxed) == shape
            && self
                .words
                .iter()
                .zip(words(payload))
                .all(|(word, value)| word.load(Relaxed) == value);
        fence(Acquire);
        same && self.state.load(SeqCst) == seen
    }

    fn read(&self) -> (u32, Vec<u8>) {
        let shape = self.shape.load(Relaxed);
        let length = (shape as u32 as usize).min(MAX_PAYLOAD);
        let mut payload: Vec<u8> = self
            .words
            .iter()
            .flat_map(|word| word.load(Relaxed).to_ne_bytes())
            .collect();
        payload.truncate(length);
        ((shape >> 32) as u32, payload)
    }
}

fn shape(channel: u32, payload: &[u8]) -> u64 {
    u64::from(channel) << 32 | payload.len() as u64
}

/// The payload in words, the last one filled up with zeros.
fn words(payload: &[u8]) -> impl Iterator<Item = u64> + '_ {
    payload.chunks(8).map(|chunk| {
        let mut bytes = [0; 8];
        for (to, from) in bytes.iter_mut().zip(chunk) {
            *to = *from;
        }
        u64::from_ne_bytes(bytes)
    })
}

/// FNV-1a: short, and the same in every process.
pub fn hash(payload: &[u8]) -> u64 {
    payload.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    //! Run with `rustc --edition 2024 --test src/runtime/marks.rs`: a crate that links to the server has no test binary.

    use std::collections::BTreeSet;
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn empty() -> Box<Marks> {
        // SAFETY: zeroed atomics are valid, and the empty set.
        unsafe { Box::<Marks>::new_zeroed().assume_init() }
    }

    fn add(marks: &Marks, channel: u32, payload: &str) {
        marks.add(channel, hash(payload.as_bytes()), payload.as_bytes());
    }

    #[test]
    fn repeats_are_one() {
        let marks = empty();
        for _ in 0..10_000 {
            add(&marks, 0, "resize");
        }
        add(&marks, 1, "resize");
        add(&marks, 0, "");
        let expected = vec![
            (0, b"".to_vec()),
            (0, b"resize".to_vec()),
            (1, b"resize".to_vec()),
        ];
        assert_eq!(
            marks.take(),
            Taken {
                overflow: 0,
                marks: expected
            }
        );
        assert_eq!(marks.take(), Taken::default());
    }

    #[test]
    fn every_length_survives() {
        let marks = empty();
        for length in 0..=MAX_PAYLOAD {
            let payload: Vec<u8> = (0..length).map(|n| n as u8 | 1).collect();
            marks.add(0, hash(&payload), &payload);
            assert_eq!(
                marks.take(),
                Taken {
                    overflow: 0,
                    marks: vec![(0, payload)]
                }
            );
        }
    }

    #[test]
    fn too_many_or_too_long_overflow() {
        let marks = empty();
        add(&marks, 1, &"x".repeat(MAX_PAYLOAD + 1));
        assert_eq!(
            marks.take(),
            Taken {
                overflow: 2,
                marks: vec![]
            }
        );
        for n in 0..10 * CELLS {
            add(&marks, 0, &n.to_string());
        }
        let taken = marks.take();
        assert_eq!(taken.overflow, 1);
        assert!(taken.marks.len() <= CELLS && taken.marks.len() > CELLS / 2);
    }

    #[test]
    fn nothing_is_lost_between_writers_and_the_worker() {
        let marks = empty();
        let done = AtomicBool::new(false);
        let published: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4)
                .map(|writer: usize| {
                    let (marks, published) = (&marks, &published);
                    scope.spawn(move || {
                        for n in 1..=100_000u64 {
                            // "Commit", then mark, as the callback does.
                            let topic = (n as usize + writer) % 8;
                            published[topic].fetch_add(1, SeqCst);
                            add(
                                marks,
                                0,
                                &format!("topic {topic} {}", "y".repeat(topic * 20)),
                            );
                        }
                    })
                })
                .collect();
            let worker = scope.spawn(|| {
                // What a listener has seen when it looked after its last notification.
                let mut seen = [0; 8];
                loop {
                    let last = done.load(SeqCst);
                    for (_, payload) in marks.take().marks {
                        let text = String::from_utf8(payload).unwrap();
                        let topic: usize = text.split(' ').nth(1).unwrap().parse().unwrap();
                        assert_eq!(
                            text,
                            format!("topic {topic} {}", "y".repeat(topic * 20)),
                            "torn payload"
                        );
                        seen[topic] = published[topic].load(SeqCst);
                    }
                    if last {
                        return seen;
                    }
                }
            });
            for writer in writers {
                writer.join().unwrap();
            }
            done.store(true, SeqCst);
            let seen = worker.join().unwrap();
            let published: Vec<u64> = published.iter().map(|n| n.load(SeqCst)).collect();
            assert_eq!(
                seen.to_vec(),
                published,
                "the last commit of each topic was announced"
            );
        });
        assert_eq!(marks.take().marks.iter().collect::<BTreeSet<_>>().len(), 0);
    }
}
