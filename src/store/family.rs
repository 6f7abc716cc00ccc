//! Parents and children: jobs that jobs have spawned.

use pgrx::Uuid;

use super::job::Parent;
use crate::args;
use crate::pg::spi::{Session, Statement};
use crate::pg::types::{INT8, UUID, UUIDS};

/// Parents of the given jobs, of those that still exist: (job, parent). They never change, so no lock is needed.
pub fn parents(session: &Session, ids: Vec<Uuid>) -> Vec<(Uuid, Parent)> {
    // job_pkey
    static PARENTS: Statement = Statement::new(
        &[UUIDS],
        "SELECT c.job_id, c.parent, c.parent_workflow FROM sayiir.job c JOIN sayiir.job p ON p.job_id = c.parent
         WHERE c.job_id = ANY ($1)",
    );
    PARENTS
        .run(session, args![ids])
        .iter()
        .filter_map(|row| Parent::read(&row, 2).map(|parent| (row.get(1), parent)))
        .collect()
}

/// The organization, trace and own depth of the job that spawns.
pub struct Origin {
    pub organization: Option<String>,
    pub trace_parent: Option<String>,
    pub depth: i32,
}

/// Where a job comes from, its depth being that of its owner.
pub fn origin(session: &Session, id: Uuid) -> Option<Origin> {
    // job_pkey, workflow_pkey
    static ORIGIN: Statement = Statement::new(
        &[UUID],
        "SELECT j.organization_id, coalesce(j.trace_parent, w.trace_parent), coalesce(w.depth, j.depth)
         FROM sayiir.job j LEFT JOIN sayiir.workflow w ON w.id = j.workflow WHERE j.job_id = $1",
    );
    ORIGIN.run(session, args![id]).first().map(|row| Origin {
        organization: row.opt(1),
        trace_parent: row.opt(2),
        depth: row.get(3),
    })
}

macro_rules! request {
    ($which:literal) => {
        concat!(
            "INSERT INTO sayiir.signal (job_id, kind, reason)
             SELECT c.job_id, 'cancel', 'its parent was cancelled' FROM sayiir.job c WHERE ",
            $which,
            // Not NOT EXISTS: that may become a join that reads all ends.
            " AND (SELECT e.job_id FROM sayiir.job_end e WHERE e.job_id = c.job_id) IS NULL
             ON CONFLICT DO NOTHING RETURNING true"
        )
    };
}

/// Asks the open children of jobs to end. They are not locked: their workers, or the next sweep, apply it. Answers whether there are
/// any.
pub fn request_cancel(session: &Session, parents: Vec<Uuid>) -> bool {
    // job_parent, job_end_pkey, signal_pkey
    static REQUEST: Statement = Statement::new(&[UUIDS], request!("c.parent = ANY ($1)"));
    !REQUEST.run(session, args![parents]).is_empty()
}

/// The same for the children of all steps of a workflow.
pub fn request_cancel_of(session: &Session, workflow: i64) -> bool {
    // job_parent_workflow, job_end_pkey, signal_pkey
    static REQUEST: Statement = Statement::new(&[INT8], request!("c.parent_workflow = $1"));
    !REQUEST.run(session, args![workflow]).is_empty()
}
