//! What the running transaction will tell others when it commits.
//!
//! A static of the process, not of a thread: the commit callback reads and empties it without allocating anything.

use std::cell::RefCell;

use super::marks::hash;
use super::shmem::{CLASSES, NEVER};
use crate::pg::clock::Instant;
use crate::pg::process::OneThread;

/// A channel of NOTIFY.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    JobReady = 0,
    WorkflowFinished = 1,
    Effect = 2,
}

pub const CHANNELS: [Channel; 3] = [
    Channel::JobReady,
    Channel::WorkflowFinished,
    Channel::Effect,
];

impl Channel {
    pub fn name(self) -> &'static std::ffi::CStr {
        match self {
            Self::JobReady => c"sayiir_job_ready",
            Self::WorkflowFinished => c"sayiir_workflow_finished",
            Self::Effect => c"sayiir_effect",
        }
    }
}

/// Notifications of one transaction; with more, a channel's listeners get an empty payload.
const MAX_MARKS: usize = 64;

#[derive(Clone, Copy)]
pub struct Mark {
    pub channel: Channel,
    pub hash: u64,
    start: usize,
    end: usize,
}

pub struct Pending {
    /// Payloads, one behind the other.
    text: Vec<u8>,
    marks: Vec<Mark>,
    /// One bit a channel: more than MAX_MARKS.
    overflow: u32,
    /// Classes of the tasks with new jobs and of the ended workflows; also with `sayiir.notify = off`.
    pub jobs: u64,
    pub workflows: u64,
    /// The earliest timer.
    pub timer: i64,
    /// The listeners learn it from this transaction itself.
    pub is_told: bool,
}

static PENDING: OneThread<RefCell<Pending>> = OneThread(RefCell::new(Pending {
    text: Vec::new(),
    marks: Vec::new(),
    overflow: 0,
    jobs: 0,
    workflows: 0,
    timer: NEVER,
    is_told: false,
}));

/// Runs `work` on what is pending. Nothing that it calls comes back here; if it did, it would be skipped.
pub fn with<R>(work: impl FnOnce(&mut Pending) -> R) -> Option<R> {
    PENDING
        .0
        .try_borrow_mut()
        .ok()
        .map(|mut pending| work(&mut pending))
}

impl Pending {
    /// Remembers a notification, once a transaction.
    pub fn notify(&mut self, channel: Channel, payload: &[u8]) {
        if self.overflow & channel.bit() != 0 {
            return;
        }
        let hash = hash(payload);
        let is_known = |mark: &Mark| {
            mark.channel == channel && mark.hash == hash && self.payload(mark) == payload
        };
        if self.marks.iter().any(is_known) {
            return;
        }
        if self.marks.len() >= MAX_MARKS {
            self.overflow |= channel.bit();
            return;
        }
        let start = self.text.len();
        self.text.extend_from_slice(payload);
        self.marks.push(Mark {
            channel,
            hash,
            start,
            end: self.text.len(),
        });
    }

    pub fn timer_at(&mut self, at: Instant) {
        self.timer = self.timer.min(at.0);
    }

    pub fn is_empty(&self) -> bool {
        self.jobs == 0 && self.workflows == 0 && self.timer == NEVER && self.marks.is_empty()
    }

    pub fn marks(&self) -> &[Mark] {
        &self.marks
    }

    pub fn payload(&self, mark: &Mark) -> &[u8] {
        self.text.get(mark.start..mark.end).unwrap_or_default()
    }

    pub fn has_overflow(&self, channel: Channel) -> bool {
        self.overflow & channel.bit() != 0
    }

    pub fn has_notifications(&self) -> bool {
        !self.marks.is_empty()
    }

    /// Keeps the memory.
    pub fn clear(&mut self) {
        self.text.clear();
        self.marks.clear();
        self.overflow = 0;
        self.jobs = 0;
        self.workflows = 0;
        self.timer = NEVER;
        self.is_told = false;
    }
}

impl Channel {
    fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// The class of a task or workflow.
pub fn class(payload: &[u8]) -> u64 {
    1 << (hash(payload) % CLASSES as u64)
}
