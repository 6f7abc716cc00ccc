//! Park: durable code leaves its worker to wait, and comes back when what it waits for is there. What is asked for is looked at, and
//! the job parked, under one owner lock, which whoever brings it takes too: nothing is lost between the two.

use pgrx::Uuid;
use sayiir_rules::durable::CheckpointKind;
use sayiir_rules::retry::FailureKind;
use sayiir_rules::workflow::WorkflowState;

use crate::engine::fail::{self, Failure};
use crate::engine::{owner, release_lease};
use crate::error::{Code, Error, Result};
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::Session;
use crate::runtime::wake;
use crate::store;
use crate::store::checkpoint::{Asked, Checkpoint};
use crate::store::lease::{Lease, Put};
use crate::store::park::{Held, Parked, Wait};
use crate::store::step::Waiting;
use crate::store::workflow::Workflow;

/// What a waiting call answers.
pub enum Answer {
    /// Stop: the lease has ended.
    Parked,
    /// What is remembered under the name.
    Known(Box<Checkpoint>),
}

/// The lease of a call, its owner locked.
pub struct Holder {
    pub id: Uuid,
    pub epoch: i64,
    pub workflow: Option<i64>,
    pub held: Held,
    leases: Vec<Lease>,
    pub workflows: owner::Locked,
}

impl Holder {
    /// Locks the owner of a lease. Whoever ends a lease holds its owner, so from here on it stays. None = it is gone.
    pub fn lock(session: &Session, what: &str, id: Uuid, epoch: i64) -> Result<Option<Self>> {
        owner::require_read_committed(what)?;
        let leases = store::lease::find(session, vec![id], vec![epoch]);
        let Some(workflow) = leases.first().map(|lease| lease.workflow) else {
            return Ok(None);
        };
        let workflows = owner::lock(session, &leases);
        Ok(store::park::held(session, id, epoch).map(|held| Self {
            id,
            epoch,
            workflow,
            held,
            leases,
            workflows,
        }))
    }

    fn owner_state(&self) -> Option<WorkflowState> {
        self.workflow
            .and_then(|workflow| self.workflows.get(&workflow))
            .map(|workflow| workflow.status)
    }

    /// Whether the worker would be told to stop.
    pub fn is_cancelled(&self) -> bool {
        let owner_ended =
            self.workflow.is_some() && self.owner_state().is_none_or(WorkflowState::is_terminal);
        owner_ended || self.held.cancel_requested
    }

    pub fn is_paused(&self) -> bool {
        self.owner_state() == Some(WorkflowState::Paused)
    }

    /// Ends a cancelled lease: its worker stops now.
    pub fn stop(&self, session: &Session) -> Result<()> {
        let request = release_lease::Request {
            id: self.id,
            epoch: self.epoch,
            delay_us: 0,
            reason: None,
            ran: true,
        };
        release_lease::release(session, &request).map(|_| ())
    }

    pub fn asked<'a>(
        &self,
        name: &'a str,
        kind: CheckpointKind,
        due: Option<Instant>,
        child: Option<Uuid>,
    ) -> Asked<'a> {
        Asked {
            id: self.id,
            epoch: self.epoch,
            name,
            kind,
            due,
            child,
        }
    }

    /// What is remembered under a name that has its answer.
    pub fn known(&self, session: &Session, name: &str) -> Result<Answer> {
        store::checkpoint::get(session, self.id, name)
            .map(|known| Answer::Known(Box::new(known)))
            .ok_or_else(|| {
                Error::new(
                    Code::InternalState,
                    "a checkpoint that was just written is gone",
                )
            })
    }

    /// Remembers that the time is over.
    pub fn over(&self, session: &Session, asked: &Asked, now: Instant) -> Result<Answer> {
        store::checkpoint::ask(session, asked, now);
        store::checkpoint::answer_over(session, vec![self.id], vec![self.epoch], now);
        self.known(session, asked.name)
    }

    /// Remembers the payload of an event that was there.
    pub fn received(
        &self,
        session: &Session,
        asked: &Asked,
        payload: Option<Jsonb>,
        now: Instant,
    ) -> Result<Answer> {
        store::checkpoint::ask(session, asked, now);
        store::checkpoint::answer_event(session, self.id, self.epoch, payload);
        self.known(session, asked.name)
    }

    /// Remembers the end of a child that has ended.
    pub fn child_ended(&self, session: &Session, asked: &Asked, now: Instant) -> Result<Answer> {
        store::checkpoint::ask(session, asked, now);
        store::checkpoint::answer_children(session, vec![self.id], vec![self.epoch]);
        self.known(session, asked.name)
    }

    /// Takes the lease; None = another session holds it for longer than a moment.
    pub fn take(&self, session: &Session, now: Instant) -> Result<Option<store::lease::Taken>> {
        let mut taken = Vec::new();
        owner::take_all(session, &self.leases, &[self.epoch], |_| {
            let got = store::lease::take(session, vec![self.id], vec![self.epoch], now);
            let ids = got.iter().map(|lease| lease.id).collect();
            taken.extend(got);
            ids
        });
        Ok(taken.pop())
    }

    /// Parks the job with its question.
    pub fn park(
        &self,
        session: &Session,
        asked: &Asked,
        wait: &Wait,
        now: Instant,
    ) -> Result<Answer> {
        if self.held.deadline.is_some_and(|deadline| deadline <= now) {
            let failure = Failure {
                id: self.id,
                epoch: self.epoch,
                error_code: "job.timeout".to_owned(),
                error_message: Some("the deadline of all attempts has passed".to_owned()),
                kind: FailureKind::Timeout,
                retry_at: None,
            };
            fail::fail(session, &[failure])?;
            return Ok(Answer::Parked);
        }
        store::checkpoint::ask(session, asked, now);
        let mut parked = false;
        owner::take_all(session, &self.leases, &[self.epoch], |_| {
            parked = store::park::park(session, (self.id, self.epoch), wait, now);
            if parked { vec![self.id] } else { Vec::new() }
        });
        if !parked {
            // A heartbeat holds the row; the question is taken back with the call.
            return Err(owner::busy(self.id));
        }
        for at in [wait.due, self.held.deadline].into_iter().flatten() {
            wake::timer_at(at);
        }
        Ok(Answer::Parked)
    }
}

/// Answers a call whose lease is gone: parked, if this lease was parked by this call before; refused else.
pub fn repeated(
    session: &Session,
    id: Uuid,
    epoch: i64,
    name: &str,
    kind: CheckpointKind,
) -> Result<Answer> {
    match store::checkpoint::get(session, id, name) {
        Some(known) if known.epoch == epoch && known.remembered.kind == kind => Ok(Answer::Parked),
        _ => Err(owner::lease_lost(id, epoch)),
    }
}

/// Parked jobs, their answers written, go on: ready, or paused with their workflow. Their owners are locked.
pub fn resume(session: &Session, jobs: &[Parked], workflows: &owner::Locked, now: Instant) {
    if jobs.is_empty() {
        return;
    }
    let state = |job: &Parked| {
        job.workflow
            .and_then(|workflow| workflows.get(&workflow))
            .map(|workflow| workflow.status)
    };
    let puts: Vec<Put> = jobs
        .iter()
        .map(|job| Put {
            id: job.id,
            workflow: job.workflow,
            lane: job.lane,
            run_number: job.run_number,
            attempt: job.attempt,
            epoch: job.epoch,
            reason: (state(job) == Some(WorkflowState::Paused)).then_some("paused"),
            due: None,
        })
        .collect();
    store::lease::put(session, &puts, now);
    for (job, put) in jobs.iter().zip(&puts) {
        if put.reason.is_none() {
            wake::job_ready(&job.task);
        }
    }
}

/// Durable code among the waits of a workflow's steps: it has a lane, where a worker finds it again.
pub fn of_step(session: &Session, workflow: &Workflow, wait: &Waiting) -> Option<Parked> {
    Some(Parked {
        id: wait.id,
        workflow: Some(workflow.id),
        lane: wait.lane?,
        task: store::job::task(session, wait.id)?,
        run_number: wait.run_number,
        attempt: wait.attempt,
        epoch: wait.epoch,
    })
}

/// One locked workflow.
pub fn alone(workflow: &Workflow) -> owner::Locked {
    owner::Locked::from([(workflow.id, workflow.clone())])
}
