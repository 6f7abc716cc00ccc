//! Complete: a lease ends with success, or as cancelled when the owner was cancelled meanwhile.

use std::collections::HashMap;

use pgrx::Uuid;
use sayiir_rules::release::Outcome;

use crate::engine::{enqueue, family, owner, settle};
use crate::error::Result;
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::Session;
use crate::store;

/// What became of one completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    Completed,
    /// The owner was cancelled first: the end says cancelled.
    Cancelled,
    /// The same lease has completed before; its first answer: succeeded or cancelled.
    Repeated {
        cancelled: bool,
    },
    Lost,
    Busy,
}

/// One completion.
pub struct Completion {
    pub id: Uuid,
    pub epoch: i64,
    pub output: Option<Jsonb>,
}

/// Completes a batch, each on its own terms; answers in the order of the batch.
pub fn complete(session: &Session, batch: &[Completion]) -> Result<Vec<Disposition>> {
    owner::require_read_committed("job_complete")?;
    for completion in batch {
        if let Some(output) = completion.output {
            enqueue::check_size("output", output)?;
        }
    }
    let ids: Vec<Uuid> = batch.iter().map(|completion| completion.id).collect();
    let epochs: Vec<i64> = batch.iter().map(|completion| completion.epoch).collect();
    let leases = store::lease::find(session, ids, epochs.clone());
    let workflows = owner::lock(session, &leases);
    let now = Instant::now();

    let cancelled = |lease: &store::lease::Lease| {
        lease.workflow.is_some_and(|workflow| {
            workflows
                .get(&workflow)
                .is_none_or(|workflow| workflow.status.is_terminal())
        })
    };
    let mut ended: Vec<store::lease::Ended> = Vec::with_capacity(leases.len());
    owner::take_all(session, &leases, &epochs, |wanted| {
        let got = match wanted {
            [lease] => store::lease::complete_one(
                session,
                lease,
                epochs[lease.n],
                batch[lease.n].output,
                cancelled(lease),
                now,
            )
            .into_iter()
            .collect(),
            _ => store::lease::complete(
                session,
                wanted.iter().map(|lease| lease.id).collect(),
                wanted.iter().map(|lease| epochs[lease.n]).collect(),
                wanted.iter().map(|lease| batch[lease.n].output).collect(),
                wanted.iter().map(|lease| cancelled(lease)).collect(),
                now,
            ),
        };
        let ids = got.iter().map(|end| end.id).collect();
        ended.extend(got);
        ids
    });

    let cancelled: Vec<Uuid> = ended
        .iter()
        .filter(|end| end.cancelled)
        .map(|end| end.id)
        .collect();
    if !cancelled.is_empty() {
        store::job::answer_signals(session, cancelled.clone());
    }
    let children = leases
        .iter()
        .filter(|lease| lease.parent.is_some() && ended.iter().any(|end| end.id == lease.id))
        .map(|lease| lease.id)
        .collect();
    family::ended(session, children, cancelled, &workflows, now);

    for workflow in workflows.values() {
        let ends: Vec<settle::StepEnd> = ended
            .iter()
            .filter(|end| end.workflow == Some(workflow.id))
            .filter_map(|end| {
                let outcome = if end.cancelled {
                    Outcome::Cancelled
                } else {
                    Outcome::Succeeded
                };
                end.step
                    .clone()
                    .map(|step| settle::StepEnd { step, outcome })
            })
            .collect();
        if !ends.is_empty() {
            settle::settle(session, workflow, ends, now)?;
        }
    }
    let ended: HashMap<Uuid, store::lease::Ended> =
        ended.into_iter().map(|end| (end.id, end)).collect();
    Ok(batch
        .iter()
        .map(|completion| disposition(session, completion, &ended))
        .collect())
}

fn disposition(
    session: &Session,
    completion: &Completion,
    ended: &HashMap<Uuid, store::lease::Ended>,
) -> Disposition {
    if let Some(end) = ended.get(&completion.id) {
        return if end.cancelled {
            Disposition::Cancelled
        } else {
            Disposition::Completed
        };
    }
    if store::lease::exists(session, completion.id, completion.epoch) {
        return Disposition::Busy;
    }
    match store::job::end(session, completion.id) {
        Some(end) if end.epoch == completion.epoch && end.by_worker && end.state == "succeeded" => {
            Disposition::Repeated { cancelled: false }
        }
        // Another code than this is that of a failure after the cancel, or of the reaper.
        Some(end)
            if end.epoch == completion.epoch
                && end.by_worker
                && end.state == "cancelled"
                && end.error_code.as_deref() == Some("job.cancelled") =>
        {
            Disposition::Repeated { cancelled: true }
        }
        _ => Disposition::Lost,
    }
}
