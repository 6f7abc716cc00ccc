//! `workflow`, `workflow_active`, `workflow_log`: instances.

use sayiir_rules::workflow::WorkflowState;

use crate::args;
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::{Row, Session, Statement};
use crate::pg::types::{BOOL, BYTES, INT4, INT8, INT8S, JSONB, TEXT, TEXTS, TIME};
use crate::scope::Scope;

/// A workflow as a transition needs it. Its row is locked unless said otherwise.
#[derive(Clone, Debug)]
pub struct Workflow {
    pub id: i64,
    pub workflow_id: String,
    pub organization: Option<String>,
    pub status: WorkflowState,
    pub definition_hash: Vec<u8>,
    /// The start's `run_at`: no step runs before it.
    pub run_at: Option<Instant>,
}

fn workflow(row: Row) -> Workflow {
    let status: String = row.get(4);
    Workflow {
        id: row.get(1),
        workflow_id: row.get(2),
        organization: row.opt(3),
        status: WorkflowState::parse(&status).expect("a workflow_state"),
        definition_hash: row.get(5),
        run_at: row.opt::<i64>(6).map(Instant),
    }
}

/// A statement that locks workflows and reads them: what `workflow` expects.
macro_rules! lock {
    ($which:literal) => {
        concat!(
            "SELECT id, workflow_id, organization_id, status::text, definition_hash, (request ->> 'run_at')::bigint
         FROM sayiir.workflow ",
            $which
        )
    };
}

/// Locks workflows as owners, deepest first; waits for who holds them.
pub fn lock(session: &Session, ids: Vec<i64>) -> Vec<Workflow> {
    // workflow_pkey. The sort is over the rows of this call. Columns are re-read after the wait.
    static LOCK_ONE: Statement = Statement::new(&[INT8], lock!("WHERE id = $1 FOR NO KEY UPDATE"));
    static LOCK: Statement = Statement::new(
        &[INT8S],
        lock!("WHERE id = ANY ($1) ORDER BY depth DESC, id FOR NO KEY UPDATE"),
    );
    let rows = match ids[..] {
        [id] => LOCK_ONE.run(session, args![id]),
        _ => LOCK.run(session, args![ids]),
    };
    rows.iter().map(workflow).collect()
}

/// The same, leaving out what another session holds: how sweeps lock.
pub fn try_lock(session: &Session, ids: Vec<i64>) -> Vec<Workflow> {
    // workflow_pkey
    static LOCK: Statement = Statement::new(
        &[INT8S],
        lock!("WHERE id = ANY ($1) ORDER BY depth DESC, id FOR NO KEY UPDATE SKIP LOCKED"),
    );
    LOCK.run(session, args![ids]).iter().map(workflow).collect()
}

/// The key of a workflow within the scope; no lock. Of several, one in each organization, it is the global one, else the first by
/// organization.
pub fn find(session: &Session, scope: &Scope, workflow_id: &str) -> Option<i64> {
    // workflow_workflow_id_organization_id_key. Within one organization there is one, so nothing is sorted; an order by the primary
    // key would be a walk over all workflows.
    static OF_ONE: Statement = Statement::new(
        &[TEXT, TEXT],
        "SELECT id FROM sayiir.workflow WHERE workflow_id = $1 AND organization_id IS NOT DISTINCT FROM $2",
    );
    static OF_ALL: Statement = Statement::new(
        &[TEXT],
        "SELECT id FROM sayiir.workflow WHERE workflow_id = $1 ORDER BY organization_id NULLS FIRST LIMIT 1",
    );
    let found = match scope {
        Scope::One(organization) => {
            OF_ONE.run(session, args![workflow_id, organization.as_deref()])
        }
        Scope::All => OF_ALL.run(session, args![workflow_id]),
    };
    found.first().map(|row| row.get(1))
}

/// A workflow to be born.
pub struct NewWorkflow<'a> {
    pub workflow_id: &'a str,
    pub organization: Option<&'a str>,
    pub name: &'a str,
    pub version: Option<i32>,
    pub definition_hash: &'a [u8],
    pub input: Jsonb,
    pub metadata: Jsonb,
    /// What a repeat of the start is compared with, besides input and metadata.
    pub request: Jsonb,
    pub idempotency_key: Option<&'a str>,
    pub active_key: Option<&'a str>,
    pub trace_parent: Option<&'a str>,
    pub deadline_us: Option<i64>,
    pub now: Instant,
}

/// Inserts it; None when its id or key is taken. Waits for a transaction that is inserting the same.
pub fn insert(session: &Session, new: &NewWorkflow) -> Option<i64> {
    // workflow_workflow_id_organization_id_key, workflow_idempotency_key
    static INSERT: Statement = Statement::new(
        &[TEXT, TEXT, TEXT, INT4, BYTES, JSONB, JSONB, JSONB, TEXT, TEXT, TEXT, INT8, TIME],
        "INSERT INTO sayiir.workflow (workflow_id, organization_id, name, version, definition_hash, status, input, metadata,
             request, idempotency_key, active_key, trace_parent, deadline_at, created_at, history_seq)
         VALUES ($1, $2, $3, $4, $5, 'running', $6, $7, $8, $9, $10, $11, $13 + $12 * interval '1 microsecond', $13,
             nextval('sayiir.history_seq'))
         ON CONFLICT DO NOTHING
         RETURNING id",
    );
    INSERT
        .run(
            session,
            args![
                new.workflow_id,
                new.organization,
                new.name,
                new.version,
                new.definition_hash,
                new.input,
                new.metadata,
                new.request,
                new.idempotency_key,
                new.active_key,
                new.trace_parent,
                new.deadline_us,
                new.now
            ],
        )
        .first()
        .map(|row| row.get(1))
}

/// A workflow that a start met, and whether the same request started it.
pub struct Met {
    pub id: i64,
    pub workflow_id: String,
    pub same_request: bool,
}

fn met(row: Row) -> Met {
    Met {
        id: row.get(1),
        workflow_id: row.get(2),
        same_request: row.get(3),
    }
}

/// The workflow that holds the id or else the idempotency key.
pub fn by_keys(session: &Session, new: &NewWorkflow) -> Option<Met> {
    // workflow_workflow_id_organization_id_key, workflow_idempotency_key
    static FIND: Statement = Statement::new(
        &[TEXT, TEXT, TEXT, TEXT, JSONB, JSONB, JSONB],
        "(SELECT id, workflow_id, name = $3 AND input = $5 AND metadata = $6 AND request = $7 FROM sayiir.workflow
          WHERE workflow_id = $1 AND organization_id IS NOT DISTINCT FROM $2)
         UNION ALL
         (SELECT id, workflow_id, input = $5 AND metadata = $6 AND request = $7 FROM sayiir.workflow
          WHERE name = $3 AND idempotency_key = $4 AND organization_id IS NOT DISTINCT FROM $2)
         LIMIT 1",
    );
    FIND.run(
        session,
        args![
            new.workflow_id,
            new.organization,
            new.name,
            new.idempotency_key,
            new.input,
            new.metadata,
            new.request
        ],
    )
    .first()
    .map(met)
}

/// Takes the active key; false when a live workflow holds it. Waits for a transaction that is taking it.
pub fn take_active(
    session: &Session,
    id: i64,
    organization: Option<&str>,
    active_key: &str,
) -> bool {
    // workflow_active_active_key_organization_id_key
    static TAKE: Statement = Statement::new(
        &[INT8, TEXT, TEXT],
        "INSERT INTO sayiir.workflow_active (workflow, organization_id, active_key) VALUES ($1, $2, $3)
         ON CONFLICT DO NOTHING RETURNING true",
    );
    !TAKE
        .run(session, args![id, organization, active_key])
        .is_empty()
}

/// Who holds the active key.
pub fn active(
    session: &Session,
    organization: Option<&str>,
    active_key: &str,
) -> Option<(i64, String)> {
    // workflow_active_active_key_organization_id_key, workflow_pkey
    static FIND: Statement = Statement::new(
        &[TEXT, TEXT],
        "SELECT w.id, w.workflow_id FROM sayiir.workflow_active a JOIN sayiir.workflow w ON w.id = a.workflow
         WHERE a.active_key = $2 AND a.organization_id IS NOT DISTINCT FROM $1",
    );
    FIND.run(session, args![organization, active_key])
        .first()
        .map(|row| (row.get(1), row.get(2)))
}

/// Gives the active key back, if none of the workflow's jobs is leased any more.
pub fn release_active(session: &Session, id: i64) {
    // workflow_active_pkey, job_lease_workflow
    static RELEASE: Statement = Statement::new(
        &[INT8],
        "DELETE FROM sayiir.workflow_active
         WHERE workflow = $1 AND NOT EXISTS (SELECT FROM sayiir.job_lease WHERE workflow = $1)",
    );
    RELEASE.run(session, args![id]);
}

/// Whether anything of the workflow is still live: ready, leased or waiting, asked in one statement.
pub fn is_live(session: &Session, id: i64) -> bool {
    // job_ready_workflow, job_lease_workflow, job_wait_workflow
    static LIVE: Statement = Statement::new(
        &[INT8],
        "SELECT EXISTS (SELECT FROM sayiir.job_ready WHERE workflow = $1)
             OR EXISTS (SELECT FROM sayiir.job_lease WHERE workflow = $1)
             OR EXISTS (SELECT FROM sayiir.job_wait WHERE workflow = $1)",
    );
    LIVE.run(session, args![id])
        .first()
        .expect("one row")
        .get(1)
}

/// Whether any of its jobs is leased.
pub fn is_leased(session: &Session, id: i64) -> bool {
    // job_lease_workflow
    static LEASED: Statement = Statement::new(
        &[INT8],
        "SELECT FROM sayiir.job_lease WHERE workflow = $1 LIMIT 1",
    );
    !LEASED.run(session, args![id]).is_empty()
}

/// How a workflow ends.
pub struct End<'a> {
    pub status: WorkflowState,
    pub result: Option<Jsonb>,
    pub error_code: Option<&'a str>,
    pub error_message: Option<&'a str>,
    pub reason: Option<&'a str>,
    pub requested_by: Option<&'a str>,
}

/// Writes the end and drops the counters.
pub fn end(session: &Session, id: i64, end: &End, now: Instant) {
    // workflow_pkey, step_pending_pkey
    static END: Statement = Statement::new(
        &[INT8, TEXT, JSONB, TEXT, TEXT, TEXT, TEXT, TIME],
        "WITH counters AS (DELETE FROM sayiir.step_pending WHERE workflow = $1)
         UPDATE sayiir.workflow
         SET status = $2::sayiir.workflow_state, result = $3, error_code = $4, error_message = $5, reason = $6,
             requested_by = $7, finished_at = $8
         WHERE id = $1",
    );
    END.run(
        session,
        args![
            id,
            end.status.as_str(),
            end.result,
            end.error_code,
            end.error_message,
            end.reason,
            end.requested_by,
            now
        ],
    );
}

/// Sets running or paused.
pub fn set_status(session: &Session, id: i64, status: WorkflowState) {
    // workflow_pkey
    static SET: Statement = Statement::new(
        &[INT8, TEXT],
        "UPDATE sayiir.workflow SET status = $2::sayiir.workflow_state WHERE id = $1",
    );
    SET.run(session, args![id, status.as_str()]);
}

/// Ends, as cancelled, every waiting and ready job of the workflow that no other session holds. Leases are not touched: their
/// workers learn of it by heartbeat.
pub fn cancel_unleased(session: &Session, id: i64, reason: Option<&str>, now: Instant) {
    // job_wait_workflow, then job_ready_workflow: the way rows move, one fresh statement each.
    static WAITING: Statement = Statement::new(
        &[INT8, TEXT, TIME],
        super::job::cancel_from!(
            "sayiir.job_wait",
            "SELECT job_id FROM sayiir.job_wait WHERE workflow = $1 FOR UPDATE SKIP LOCKED"
        ),
    );
    static READY: Statement = Statement::new(
        &[INT8, TEXT, TIME],
        super::job::cancel_from!(
            "sayiir.job_ready",
            "SELECT job_id FROM sayiir.job_ready WHERE workflow = $1 FOR UPDATE SKIP LOCKED"
        ),
    );
    WAITING.run(session, args![id, reason, now]);
    READY.run(session, args![id, reason, now]);
}

/// Appends to the history.
pub fn log(
    session: &Session,
    id: i64,
    kind: &str,
    step: Option<&str>,
    detail: Option<&serde_json::Value>,
    now: Instant,
) {
    static LOG: Statement = Statement::new(
        &[INT8, TEXT, TEXT, JSONB, TIME],
        "INSERT INTO sayiir.workflow_log (history_seq, workflow, kind, step, detail, at)
         VALUES (nextval('sayiir.history_seq'), $1, $2, $3, $4, $5)",
    );
    LOG.run(
        session,
        args![id, kind, step, detail.map(Jsonb::from_value), now],
    );
}

/// Which of `required` steps make the workflow fail: failed, or cancelled otherwise than by the rule.
pub fn failed_step(session: &Session, id: i64, required: Vec<String>) -> Option<String> {
    // job_step, job_end_pkey
    static FAILED: Statement = Statement::new(
        &[INT8, TEXTS],
        "SELECT j.step FROM sayiir.job j JOIN sayiir.job_end e USING (job_id)
         WHERE j.workflow = $1 AND j.step = ANY ($2)
           AND (e.state = 'failed'
                OR (e.state = 'cancelled' AND e.error_code IS DISTINCT FROM 'workflow.dependency_unsatisfied'))
         LIMIT 1",
    );
    FAILED
        .run(session, args![id, required])
        .first()
        .map(|row| row.get(1))
}

/// The output of one step.
pub fn output(session: &Session, id: i64, step: &str) -> Option<Jsonb> {
    // job_step, job_end_pkey
    static OUTPUT: Statement = Statement::new(
        &[INT8, TEXT],
        "SELECT e.output FROM sayiir.job j JOIN sayiir.job_end e USING (job_id)
         WHERE j.workflow = $1 AND j.step = $2 AND j.item_index IS NULL",
    );
    OUTPUT
        .run(session, args![id, step])
        .first()
        .and_then(|row| row.opt(1))
}

/// An object of the outputs of several steps; a step without one is left out.
pub fn outputs(session: &Session, id: i64, steps: Vec<String>) -> Option<Jsonb> {
    // job_step, job_end_pkey
    static OUTPUTS: Statement = Statement::new(
        &[INT8, TEXTS],
        "SELECT jsonb_object_agg(j.step, e.output) FROM sayiir.job j JOIN sayiir.job_end e USING (job_id)
         WHERE j.workflow = $1 AND j.step = ANY ($2) AND j.item_index IS NULL AND e.state = 'succeeded'",
    );
    OUTPUTS
        .run(session, args![id, steps])
        .first()
        .and_then(|row| row.opt(1))
}

/// What a waiter looks at.
pub struct Seen {
    pub status: String,
    pub definition_hash: Vec<u8>,
    pub result: Option<Jsonb>,
    pub error_code: Option<String>,
    /// This transaction has inserted it.
    pub own: bool,
}

/// The workflow as it is now; no lock. Of several it is the one that [`find`] finds.
pub fn see(session: &Session, scope: &Scope, workflow_id: &str) -> Option<Seen> {
    // workflow_workflow_id_organization_id_key, job_ready_workflow, job_lease_workflow
    static SEE: Statement = Statement::new(
        &[TEXT, BOOL, TEXT],
        "SELECT CASE WHEN w.status = 'running'
                      AND NOT EXISTS (SELECT FROM sayiir.job_ready r WHERE r.workflow = w.id)
                      AND NOT EXISTS (SELECT FROM sayiir.job_lease l WHERE l.workflow = w.id)
                 THEN 'waiting' ELSE w.status::text END,
             w.definition_hash, w.result, w.error_code,
             w.xmin = pg_current_xact_id_if_assigned()::xid
         FROM sayiir.workflow w
         WHERE w.workflow_id = $1 AND ($2 OR w.organization_id IS NOT DISTINCT FROM $3)
         ORDER BY w.organization_id NULLS FIRST
         LIMIT 1",
    );
    let [all, organization] = scope.args();
    SEE.run(
        session,
        &[pgrx::IntoDatum::into_datum(workflow_id), all, organization],
    )
    .first()
    .map(|row| Seen {
        status: row.get(1),
        definition_hash: row.get(2),
        result: row.opt(3),
        error_code: row.opt(4),
        own: row.opt(5).unwrap_or(false),
    })
}

/// Takes back the row that this call has inserted. What is known by the id stays: events may have come early.
pub fn discard(session: &Session, id: i64) {
    // workflow_pkey
    static DISCARD: Statement =
        Statement::new(&[INT8], "DELETE FROM sayiir.workflow WHERE id = $1");
    DISCARD.run(session, args![id]);
}

/// Deletes the hot rows of a workflow that no other session holds: the way rows move, one fresh statement each.
pub fn delete_hot(session: &Session, id: i64) {
    // job_wait_workflow, job_ready_workflow, job_lease_workflow
    static WAITING: Statement = Statement::new(
        &[INT8],
        "WITH locked AS MATERIALIZED (SELECT job_id FROM sayiir.job_wait WHERE workflow = $1 FOR UPDATE SKIP LOCKED)
         DELETE FROM sayiir.job_wait h USING locked k WHERE h.job_id = k.job_id",
    );
    static READY: Statement = Statement::new(
        &[INT8],
        "WITH locked AS MATERIALIZED (SELECT job_id FROM sayiir.job_ready WHERE workflow = $1 FOR UPDATE SKIP LOCKED)
         DELETE FROM sayiir.job_ready h USING locked k WHERE h.job_id = k.job_id",
    );
    static LEASED: Statement = Statement::new(
        &[INT8],
        "WITH locked AS MATERIALIZED (SELECT job_id FROM sayiir.job_lease WHERE workflow = $1 FOR UPDATE SKIP LOCKED)
         DELETE FROM sayiir.job_lease h USING locked k WHERE h.job_id = k.job_id",
    );
    for statement in [&WAITING, &READY, &LEASED] {
        statement.run(session, args![id]);
    }
}

/// Deletes a workflow that has no hot rows, with all that is its own. The row is locked.
pub fn delete(session: &Session, id: i64) {
    // job_step, workflow_log_workflow, event_buffered, event_key's unique index, workflow_active_pkey
    static JOBS: Statement = Statement::new(
        &[INT8],
        "WITH job AS (DELETE FROM sayiir.job WHERE workflow = $1 RETURNING job_id),
         ended AS (DELETE FROM sayiir.job_end h USING job WHERE h.job_id = job.job_id),
         attempt AS (DELETE FROM sayiir.job_attempt h USING job WHERE h.job_id = job.job_id),
         signal AS (DELETE FROM sayiir.signal h USING job WHERE h.job_id = job.job_id),
         checkpoint AS (DELETE FROM sayiir.checkpoint h USING job WHERE h.job_id = job.job_id),
         log AS (DELETE FROM sayiir.job_log_entry h USING job WHERE h.job_id = job.job_id)
         SELECT",
    );
    static REST: Statement = Statement::new(
        &[INT8],
        "WITH workflow AS (DELETE FROM sayiir.workflow WHERE id = $1 RETURNING workflow_id, organization_id),
         counters AS (DELETE FROM sayiir.step_pending WHERE workflow = $1),
         log AS (DELETE FROM sayiir.workflow_log WHERE workflow = $1),
         event AS (DELETE FROM sayiir.event WHERE workflow = $1),
         active AS (DELETE FROM sayiir.workflow_active WHERE workflow = $1)
         DELETE FROM sayiir.event_key k USING workflow w
         WHERE k.workflow_id = w.workflow_id AND k.organization_id IS NOT DISTINCT FROM w.organization_id",
    );
    JOBS.run(session, args![id]);
    REST.run(session, args![id]);
}

/// Workflows whose deadline has passed; no lock.
pub fn past_deadline(session: &Session, now: Instant, max_rows: i32) -> Vec<i64> {
    // workflow_deadline
    static PAST: Statement = Statement::new(
        &[TIME, INT4],
        "SELECT id FROM sayiir.workflow
         WHERE deadline_at <= $1 AND deadline_at IS NOT NULL AND finished_at IS NULL ORDER BY deadline_at LIMIT $2",
    );
    PAST.run(session, args![now, max_rows])
        .iter()
        .map(|row| row.get(1))
        .collect()
}
