//! Claim: ready rows become leases. The only transition that locks no owner; it reads the owner's status in the statement that
//! leases.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use sayiir_rules::lane;

use crate::engine::{adopt, owner, tick};
use crate::error::{Code, Error, Result};
use crate::pg::clock::Instant;
use crate::pg::spi::Session;
use crate::pg::table::Line;
use crate::pg::xact;
use crate::runtime::wake;
use crate::scope::Scope;
use crate::store;
use crate::store::lane::Lane;

/// Range of `max_jobs`.
pub const MAX_JOBS: i32 = 1000;
/// Longest `wait` of a function, which pins its caller's snapshot: 10 s.
pub const MAX_WAIT_US: i64 = 10_000_000;
/// Up to so many lanes are probed directly, in one statement; more are found by skip scan.
const DIRECT_LANES: usize = 64;
/// One claim in so many takes the oldest head of all lanes, so that no lane starves.
const FAIR_ONE_IN: f64 = 16.0;
/// A scan from the start of a lane happens at most this often: it finds what a rolled-back claim left behind the cursor.
const FULL_SCAN_US: i64 = 1_000_000;
/// … and at most so many times its own cost apart.
const FULL_SCAN_COST: i64 = 50;
/// Between two looks of a waiting claim, in milliseconds.
const POLL_MS: i64 = 1000;

pub struct Request<'a> {
    pub scope: Scope,
    pub worker: &'a str,
    /// None = every task.
    pub tasks: Option<Vec<String>>,
    pub tags: Vec<String>,
    pub max_jobs: i32,
    pub lease_us: Option<i64>,
    pub wait_us: i64,
}

/// Leases up to `max_jobs` jobs, waiting at most `wait_us` for the first.
pub fn claim(session: &Session, request: &Request) -> Result<Vec<Line>> {
    owner::require_read_committed("job_claim")?;
    adopt::require(session)?;
    if !(0..=MAX_WAIT_US).contains(&request.wait_us) {
        return Err(
            Error::new(Code::WaitTooLong, "wait is more than 10 seconds")
                .with("max_us", MAX_WAIT_US),
        );
    }
    let deadline = Instant::now().plus_us(request.wait_us);
    loop {
        tick::before_claim(session);
        let jobs = claim_once(session, request);
        if !jobs.is_empty() {
            return Ok(jobs);
        }
        let left_ms = (deadline.0 - Instant::now().0) / 1000;
        if left_ms <= 0 {
            return Ok(jobs);
        }
        match &request.tasks {
            Some(tasks) => wake::wait_for_job(tasks, left_ms.min(POLL_MS)),
            None => wake::wait_for_work(left_ms.min(POLL_MS)),
        }
    }
}

fn claim_once(session: &Session, request: &Request) -> Vec<Line> {
    let lanes = store::lane::compatible(
        session,
        &request.scope,
        request.tasks.as_deref(),
        &request.tags,
    );
    let mut taken = Taken {
        session,
        request,
        jobs: Vec::new(),
    };
    if lanes.is_empty() {
        return taken.jobs;
    }
    if xact::random01() * FAIR_ONE_IN < 1.0
        && let Some(oldest) = oldest_lane(session, &lanes)
    {
        taken.from(&[oldest]);
    }
    if lanes.len() <= DIRECT_LANES {
        taken.from(&in_turn(lanes.iter().map(|lane| lane.id).collect()));
    } else {
        by_skip_scan(&mut taken, &lanes);
    }
    taken.jobs
}

/// Walks the lanes that have ready rows, priority first, lanes of one priority in turn.
fn by_skip_scan(taken: &mut Taken, lanes: &Rc<Vec<Lane>>) {
    let mine = |id: i64| lanes.binary_search_by_key(&id, |lane| lane.id).is_ok();
    let mut behind = -1;
    while taken.wants() > 0 {
        let Some(found) = store::lease::next_lane(taken.session, behind) else {
            return;
        };
        // Within the priority of the first lane that has work, go on behind the lane served last, then wrap around.
        let band = lane::priority_of(found);
        let end = lane::lane_id(band, lane::SEQUENCE_END - 1);
        let last = LAST_LANE.get();
        let start = if lane::priority_of(last.max(0)) == band {
            last
        } else {
            found - 1
        };
        for (from, to) in [(start, end), (found - 1, start)] {
            let mut at = from;
            while taken.wants() > 0 {
                match store::lease::next_lane(taken.session, at) {
                    Some(next) if next <= to => {
                        at = next;
                        if mine(next) {
                            taken.from(&[next]);
                        }
                    }
                    _ => break,
                }
            }
        }
        behind = end;
    }
}

thread_local! {
    /// The lane that this backend took from last: lanes of one priority are served in turn.
    static LAST_LANE: Cell<i64> = const { Cell::new(-1) };
    static CURSORS: RefCell<HashMap<i64, Cursor>> = RefCell::new(HashMap::new());
}

/// Orders lanes by priority, those of one priority beginning behind the one served last.
fn in_turn(mut lanes: Vec<i64>) -> Vec<i64> {
    let last = LAST_LANE.get();
    lanes.sort_by_key(|id| (-lane::priority_of(*id), *id <= last, *id));
    lanes
}

fn oldest_lane(session: &Session, lanes: &Rc<Vec<Lane>>) -> Option<i64> {
    // Of very many lanes a random stretch is asked: over time every lane comes up.
    let start = if lanes.len() > DIRECT_LANES {
        (xact::random01() * lanes.len() as f64) as usize
    } else {
        0
    };
    let (asked, lows) = CURSORS.with_borrow(|cursors| {
        lanes
            .iter()
            .cycle()
            .skip(start)
            .take(lanes.len().min(DIRECT_LANES))
            .map(|lane| {
                (
                    lane.id,
                    cursors.get(&lane.id).map_or(0, |cursor| cursor.low),
                )
            })
            .unzip()
    });
    store::lease::heads(session, asked, lows)
        .into_iter()
        .min_by_key(|(_, seq)| *seq)
        .map(|(lane, _)| lane)
}

/// A claim in progress.
struct Taken<'a> {
    session: &'a Session,
    request: &'a Request<'a>,
    jobs: Vec<Line>,
}

impl Taken<'_> {
    fn wants(&self) -> i32 {
        self.request.max_jobs - self.jobs.len() as i32
    }

    /// Takes from `lanes` in order. Rows whose workflow is not running are parked on the way; then it looks again.
    fn from(&mut self, lanes: &[i64]) {
        while self.wants() > 0 {
            let started = Instant::now();
            let lows: Vec<i64> = CURSORS.with_borrow_mut(|cursors| {
                let low = |lane: &i64| cursors.entry(*lane).or_default().start(started);
                lanes.iter().map(low).collect()
            });
            let (oldest_running, _) = xact::horizon();
            let (request, wanted) = (self.request, self.wants());
            let mut rows = store::claim::claim(
                self.session,
                lanes.to_vec(),
                lows.clone(),
                wanted,
                store::claim::Terms {
                    worker: request.worker,
                    lease_us: request.lease_us,
                    now: started,
                },
            );
            let place: HashMap<i64, usize> = lanes
                .iter()
                .enumerate()
                .map(|(n, lane)| (*lane, n))
                .collect();
            rows.sort_by_key(|row| (place.get(&row.lane).copied(), row.seq));
            let scan = Scan {
                lanes,
                lows: &lows,
                // Behind the lane that filled the batch none was looked at.
                reached: match rows.last() {
                    Some(last) if rows.len() as i32 >= wanted => place[&last.lane] + 1,
                    _ => lanes.len(),
                },
                oldest_running,
                started,
            };
            scan.move_cursors(&rows);
            if let Some(last) = rows.last() {
                LAST_LANE.set(last.lane);
            }
            // The sweeper learns when the first lease runs out, and of what was parked at once.
            if let Some(first) = rows.iter().map(|row| row.check_at).min() {
                wake::timer_at(first);
            }
            let parked = rows.iter().any(|row| row.job.is_none());
            self.jobs.extend(rows.into_iter().filter_map(|row| row.job));
            if !parked {
                return;
            }
        }
    }
}

/// What one statement looked at: `lanes[..reached]`, each from its `lows` on.
struct Scan<'a> {
    lanes: &'a [i64],
    lows: &'a [i64],
    reached: usize,
    oldest_running: u32,
    started: Instant,
}

impl Scan<'_> {
    fn move_cursors(&self, rows: &[store::claim::Claimed]) {
        let next_xid = xact::next_xid();
        let cost = Instant::now().0 - self.started.0;
        CURSORS.with_borrow_mut(|cursors| {
            for (lane, low) in self.lanes.iter().zip(self.lows).take(self.reached) {
                let cursor = cursors.entry(*lane).or_default();
                if *low == 0 {
                    cursor.scanned_at = self.started;
                    cursor.scan_again_at = self
                        .started
                        .plus_us(FULL_SCAN_US.max(FULL_SCAN_COST * cost));
                }
                if let Some(first) = rows.iter().find(|row| row.lane == *lane) {
                    cursor.found(first.seq, self.oldest_running, next_xid);
                }
            }
        });
    }
}

/// A lane's low-water mark in this backend: below it, only dead index entries. Under a snapshot that somebody holds open those
/// cannot be removed, and without the mark every claim would walk them.
///
/// A mark set at `first` is trusted once every transaction that ran when it was set has ended: each had drawn its seq after its
/// xid, so what it inserted below has become visible by then, and the scan that sees it comes from the old mark. What is not
/// covered, a claim that rolled back, is found by the scans from the start.
#[derive(Default)]
struct Cursor {
    low: i64,
    /// (mark to be, first xid not assigned when it was seen).
    next: Option<(i64, u32)>,
    /// When a scan from the start of the lane began, and when the next one is due.
    scanned_at: Instant,
    scan_again_at: Instant,
}

impl Cursor {
    /// Where the next scan begins: at the mark, or at the start when that is due (also when the clock was set back).
    fn start(&self, now: Instant) -> i64 {
        if now >= self.scan_again_at || now < self.scanned_at {
            0
        } else {
            self.low
        }
    }

    /// A scan whose snapshot saw `oldest_running` as the oldest running xid found `first` as the first free row.
    fn found(&mut self, first: i64, oldest_running: u32, next_xid: u32) {
        if first < self.low {
            self.low = first;
            self.next = None;
        }
        match self.next {
            Some((mark, horizon)) if !precedes(oldest_running, horizon) => {
                self.low = mark.min(first).max(self.low);
                self.next = Some((first, next_xid));
            }
            Some(_) => {}
            None => self.next = Some((first, next_xid)),
        }
    }
}

/// Xids wrap around: half of the circle precedes.
fn precedes(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}
