//! Steps of a workflow: counters, inputs, and the one statement that opens a whole level.

use pgrx::Uuid;

use crate::args;
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::{Session, Statement};
use crate::pg::types::{
    BOOL, BOOLS, FLOAT8, FLOAT8S, INT4, INT4S, INT8, INT8S, JSONB, JSONBS, TEXT, TEXTS, TIME,
    TIMES, UUID, UUIDS,
};
use crate::store::job::Policy;

/// Adds ended prerequisites to the counters of steps; answers (step, ended so far, unsatisfied so far).
pub fn count(
    session: &Session,
    workflow: i64,
    steps: Vec<String>,
    ended: Vec<i32>,
    unsatisfied: Vec<i32>,
) -> Vec<(String, i32, i32)> {
    // step_pending_pkey; the owner is locked, so nobody else counts for this workflow.
    static COUNT: Statement = Statement::new(
        &[INT8, TEXTS, INT4S, INT4S],
        "INSERT INTO sayiir.step_pending AS p (workflow, step, ended, unsatisfied)
         SELECT $1, i.* FROM ROWS FROM (unnest($2), unnest($3), unnest($4)) AS i
         ON CONFLICT (workflow, step, shard) DO UPDATE
         SET ended = p.ended + excluded.ended, unsatisfied = p.unsatisfied + excluded.unsatisfied
         RETURNING step, ended, unsatisfied",
    );
    COUNT
        .run(session, args![workflow, steps, ended, unsatisfied])
        .iter()
        .map(|row| (row.get(1), row.get(2), row.get(3)))
        .collect()
}

/// Default inputs: for each n, an object of its prerequisites' status, output and error. Answers (n, input).
pub fn default_inputs(
    session: &Session,
    workflow: i64,
    n: Vec<i32>,
    prerequisites: Vec<String>,
) -> Vec<(i32, Jsonb)> {
    // job_step, job_end_pkey
    static ONE: Statement = Statement::new(
        &[INT8, TEXT],
        "SELECT jsonb_build_object(j.step, jsonb_build_object(
             'status', e.state::text, 'output', e.output,
             'error', CASE WHEN e.error_code IS NOT NULL
                 THEN jsonb_build_object('code', e.error_code, 'message', e.error_message) END))
         FROM sayiir.job j JOIN sayiir.job_end e USING (job_id)
         WHERE j.workflow = $1 AND j.step = $2 AND j.item_index IS NULL",
    );
    static INPUTS: Statement = Statement::new(
        &[INT8, INT4S, TEXTS],
        "SELECT i.n, jsonb_object_agg(i.step, jsonb_build_object(
             'status', coalesce(e.state::text, 'open'), 'output', e.output,
             'error', CASE WHEN e.error_code IS NOT NULL
                 THEN jsonb_build_object('code', e.error_code, 'message', e.error_message) END))
         FROM ROWS FROM (unnest($2), unnest($3)) AS i (n, step)
         LEFT JOIN sayiir.job j ON j.workflow = $1 AND j.step = i.step AND j.item_index IS NULL
         LEFT JOIN sayiir.job_end e ON e.job_id = j.job_id
         GROUP BY i.n",
    );
    if let ([n], [prerequisite]) = (&n[..], &prerequisites[..])
        && let Some(row) = ONE
            .run(session, args![workflow, prerequisite.as_str()])
            .first()
    {
        return vec![(*n, row.get(1))];
    }
    INPUTS
        .run(session, args![workflow, n, prerequisites])
        .iter()
        .map(|row| (row.get(1), row.get(2)))
        .collect()
}

/// Evaluates paths against the workflow's root document, which holds the steps of `reads`. Answers one value a path, in order:
/// the first match or, for `all`, the array of matches; None where nothing matched.
pub fn evaluate(
    session: &Session,
    workflow: i64,
    reads: Vec<String>,
    paths: Vec<String>,
    all: Vec<bool>,
) -> Vec<Option<Jsonb>> {
    // workflow_pkey, job_step, job_end_pkey
    static EVALUATE: Statement = Statement::new(
        &[INT8, TEXTS, TEXTS, BOOLS],
        "WITH root AS MATERIALIZED (
             SELECT jsonb_build_object(
                 'input', w.input,
                 'workflow', jsonb_build_object(
                     'id', w.workflow_id, 'name', w.name, 'version', w.version, 'metadata', w.metadata),
                 'steps', coalesce((
                     SELECT jsonb_object_agg(j.step, jsonb_build_object(
                         'status', e.state, 'output', e.output,
                         'error', CASE WHEN e.error_code IS NOT NULL
                             THEN jsonb_build_object('code', e.error_code, 'message', e.error_message) END))
                     FROM sayiir.job j JOIN sayiir.job_end e USING (job_id)
                     WHERE j.workflow = $1 AND j.step = ANY ($2) AND j.item_index IS NULL), '{}')) AS document
             FROM sayiir.workflow w WHERE w.id = $1)
         SELECT CASE WHEN i.every
                THEN jsonb_path_query_array(root.document, i.path::jsonpath, '{}', true)
                ELSE jsonb_path_query_first(root.document, i.path::jsonpath, '{}', true) END
         FROM root, ROWS FROM (unnest($3), unnest($4)) AS i (path, every)",
    );
    EVALUATE
        .run(session, args![workflow, reads, paths, all])
        .iter()
        .map(|row| row.opt(1))
        .collect()
}

/// Where a step stands once it has been opened.
pub enum Place {
    Ready,
    Wait {
        reason: &'static str,
        due: Option<Instant>,
        event: Option<String>,
    },
    End {
        state: &'static str,
        output: Option<Jsonb>,
        error_code: Option<&'static str>,
        error_message: Option<String>,
        reason: Option<String>,
    },
}

/// A step as it is opened: released, or ended without release.
pub struct NewStep {
    pub id: Uuid,
    pub step: String,
    pub task: Option<String>,
    pub lane: Option<i64>,
    pub payload: Option<Jsonb>,
    pub policy: Option<Policy>,
    pub place: Place,
}

/// The policy columns of a step that no worker runs.
const NO_POLICY: Policy = Policy {
    retry: sayiir_rules::retry::RetryPolicy {
        max_attempts: 1,
        initial_us: 0,
        factor: 1.0,
        max_us: 0,
        jitter: 0.0,
    },
    hold: false,
    lease_us: 0,
    timeout_us: None,
    deadline: None,
};

/// Opens one step that a worker can run at once. Most completions release just that, and to take apart arrays of one element would
/// cost more than the inserts.
fn open_ready(
    session: &Session,
    workflow: i64,
    organization: Option<&str>,
    step: &NewStep,
    now: Instant,
) {
    // The seq is drawn behind the record's insert, so after the xid.
    static OPEN: Statement = Statement::new(
        &[
            INT8, TEXT, TIME, UUID, TEXT, TEXT, INT8, JSONB, INT4, INT8, FLOAT8, INT8, FLOAT8, BOOL, INT8, INT8, TIME,
        ],
        "WITH record AS (
             INSERT INTO sayiir.job (job_id, organization_id, workflow, step, task, lane, payload, max_attempts,
                 retry_initial_us, retry_factor, retry_max_us, retry_jitter, hold, lease_us, timeout_us, deadline_at,
                 created_at, history_seq)
             VALUES ($4, $2, $1, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $3, nextval('sayiir.history_seq'))
             RETURNING job_id, workflow, lane)
         INSERT INTO sayiir.job_ready (job_id, workflow, lane, seq, run_number, attempt, epoch)
         SELECT job_id, workflow, lane, nextval('sayiir.ready_seq'), 1, 0, 0 FROM record",
    );
    let policy = step.policy.unwrap_or(NO_POLICY);
    OPEN.run(
        session,
        args![
            workflow,
            organization,
            now,
            step.id,
            step.step.as_str(),
            step.task.as_deref(),
            step.lane,
            step.payload,
            policy.retry.max_attempts,
            policy.retry.initial_us,
            policy.retry.factor,
            policy.retry.max_us,
            policy.retry.jitter,
            policy.hold,
            policy.lease_us,
            policy.timeout_us,
            policy.deadline,
        ],
    );
}

/// Opens steps, however many: one statement writes records, ready rows, waits and ends.
pub fn open(
    session: &Session,
    workflow: i64,
    organization: Option<&str>,
    steps: &[NewStep],
    now: Instant,
) {
    // The seqs are drawn behind the records' insert, so after the xid.
    static OPEN: Statement = Statement::new(
        &[
            INT8, TEXT, TIME, UUIDS, TEXTS, TEXTS, INT8S, JSONBS, INT4S, INT8S, FLOAT8S, INT8S, FLOAT8S, BOOLS, INT8S, INT8S,
            TIMES, TEXTS, TIMES, TEXTS, TEXTS, JSONBS, TEXTS, TEXTS, TEXTS,
        ],
        "WITH input AS MATERIALIZED (
             SELECT * FROM ROWS FROM (unnest($4), unnest($5), unnest($6), unnest($7), unnest($8), unnest($9), unnest($10),
                 unnest($11), unnest($12), unnest($13), unnest($14), unnest($15), unnest($16), unnest($17), unnest($18),
                 unnest($19), unnest($20), unnest($21), unnest($22), unnest($23), unnest($24), unnest($25))
                 AS i (job_id, step, task, lane, payload, max_attempts, retry_initial_us, retry_factor, retry_max_us,
                     retry_jitter, hold, lease_us, timeout_us, deadline_at, wait_reason, due, event, state, output, error_code,
                     error_message, reason)),
         record AS (
             INSERT INTO sayiir.job (job_id, organization_id, workflow, step, task, lane, payload, max_attempts,
                 retry_initial_us, retry_factor, retry_max_us, retry_jitter, hold, lease_us, timeout_us, deadline_at,
                 created_at, history_seq)
             SELECT job_id, $2, $1, step, task, lane, payload, max_attempts, retry_initial_us, retry_factor, retry_max_us,
                 retry_jitter, hold, lease_us, timeout_us, deadline_at, $3, nextval('sayiir.history_seq')
             FROM input
             RETURNING job_id),
         ready AS (
             INSERT INTO sayiir.job_ready (job_id, workflow, lane, seq, run_number, attempt, epoch)
             SELECT job_id, $1, i.lane, nextval('sayiir.ready_seq'), 1, 0, 0
             FROM record JOIN input i USING (job_id) WHERE i.wait_reason IS NULL AND i.state IS NULL),
         waiting AS (
             INSERT INTO sayiir.job_wait (job_id, workflow, lane, reason, due, event, seq, run_number, attempt, epoch, since)
             SELECT job_id, $1, i.lane, i.wait_reason::sayiir.wait_reason, i.due, i.event, nextval('sayiir.wait_seq'), 1, 0, 0, $3
             FROM record JOIN input i USING (job_id) WHERE i.wait_reason IS NOT NULL)
         INSERT INTO sayiir.job_end (job_id, state, output, error_code, error_message, reason, epoch, run_number, attempt, ended_at, history_seq)
         SELECT job_id, i.state::sayiir.job_state, i.output, i.error_code, i.error_message, i.reason, 0, 1, 0, $3,
             nextval('sayiir.history_seq')
         FROM record JOIN input i USING (job_id) WHERE i.state IS NOT NULL",
    );
    match steps {
        [] => return,
        [step] if matches!(step.place, Place::Ready) => {
            return open_ready(session, workflow, organization, step, now);
        }
        _ => {}
    }
    macro_rules! column {
        ($step:ident => $value:expr) => {
            steps.iter().map(|$step| $value).collect::<Vec<_>>()
        };
    }
    macro_rules! ended {
        ($field:ident, $value:expr) => {
            steps
                .iter()
                .map(|step| match &step.place {
                    Place::End { $field, .. } => $value,
                    _ => None,
                })
                .collect::<Vec<_>>()
        };
    }
    let policies: Vec<Policy> = steps
        .iter()
        .map(|step| step.policy.unwrap_or(NO_POLICY))
        .collect();
    macro_rules! policy {
        ($policy:ident => $value:expr) => {
            policies.iter().map(|$policy| $value).collect::<Vec<_>>()
        };
    }
    OPEN.run(
        session,
        args![
            workflow,
            organization,
            now,
            column!(step => step.id),
            column!(step => step.step.clone()),
            column!(step => step.task.clone()),
            column!(step => step.lane),
            column!(step => step.payload),
            policy!(policy => policy.retry.max_attempts),
            policy!(policy => policy.retry.initial_us),
            policy!(policy => policy.retry.factor),
            policy!(policy => policy.retry.max_us),
            policy!(policy => policy.retry.jitter),
            policy!(policy => policy.hold),
            policy!(policy => policy.lease_us),
            policy!(policy => policy.timeout_us),
            policy!(policy => policy.deadline),
            column!(step => match &step.place {
                Place::Wait { reason, .. } => Some((*reason).to_owned()),
                _ => None,
            }),
            column!(step => match &step.place {
                Place::Wait { due, .. } => *due,
                _ => None,
            }),
            column!(step => match &step.place {
                Place::Wait { event, .. } => event.clone(),
                _ => None,
            }),
            ended!(state, Some((*state).to_owned())),
            ended!(output, *output),
            ended!(error_code, error_code.map(str::to_owned)),
            ended!(error_message, error_message.clone()),
            ended!(reason, reason.clone()),
        ],
    );
}

/// Takes a step's job out of `job_wait`: (job, run_number, attempt, epoch). None = it is not there, or another session holds it.
pub struct Waiting {
    pub id: Uuid,
    pub step: String,
    pub reason: String,
    pub lane: Option<i64>,
    pub run_number: i32,
    pub attempt: i32,
    pub epoch: i64,
}

/// Takes the oldest wait for an event.
pub fn take_oldest_wait(session: &Session, workflow: i64, event: &str) -> Option<Waiting> {
    // job_wait_event. Waits of a workflow are only taken under its owner lock, so nothing is skipped for long.
    static TAKE: Statement = Statement::new(
        &[INT8, TEXT],
        "WITH gone AS (
             DELETE FROM sayiir.job_wait WHERE job_id = (
                 SELECT job_id FROM sayiir.job_wait
                 WHERE workflow = $1 AND event = $2 AND reason = 'event' ORDER BY workflow, event, seq LIMIT 1 FOR UPDATE)
             RETURNING *)
         SELECT g.job_id, j.step, g.reason::text, g.lane, g.run_number, g.attempt, g.epoch
         FROM gone g JOIN sayiir.job j USING (job_id)",
    );
    TAKE.run(session, args![workflow, event])
        .first()
        .map(waiting)
}

fn waiting(row: crate::pg::spi::Row) -> Waiting {
    Waiting {
        id: row.get(1),
        step: row.get(2),
        reason: row.get(3),
        lane: row.opt(4),
        run_number: row.get(5),
        attempt: row.get(6),
        epoch: row.get(7),
    }
}

/// Takes given jobs of a locked workflow out of `job_wait` if they are due.
pub fn take_due(session: &Session, workflow: i64, ids: Vec<Uuid>, now: Instant) -> Vec<Waiting> {
    // job_wait_pkey
    static TAKE: Statement = Statement::new(
        &[INT8, UUIDS, TIME],
        "WITH locked AS MATERIALIZED (
             SELECT job_id FROM sayiir.job_wait WHERE job_id = ANY ($2) AND workflow = $1 AND due <= $3 FOR UPDATE SKIP LOCKED),
         gone AS (DELETE FROM sayiir.job_wait w USING locked k WHERE w.job_id = k.job_id RETURNING w.*)
         SELECT g.job_id, j.step, g.reason::text, g.lane, g.run_number, g.attempt, g.epoch
         FROM gone g JOIN sayiir.job j USING (job_id)",
    );
    TAKE.run(session, args![workflow, ids, now])
        .iter()
        .map(waiting)
        .collect()
}

/// Takes a step's job out of `job_wait` or `job_ready`, whichever it is in.
pub fn take_open(session: &Session, id: Uuid) -> Option<Waiting> {
    // job_wait_pkey, then job_ready_pkey
    static WAITING: Statement = Statement::new(
        &[UUIDS],
        "WITH locked AS MATERIALIZED (SELECT job_id FROM sayiir.job_wait WHERE job_id = ANY ($1) FOR UPDATE SKIP LOCKED),
         gone AS (DELETE FROM sayiir.job_wait w USING locked k WHERE w.job_id = k.job_id RETURNING w.*)
         SELECT g.job_id, j.step, g.reason::text, g.lane, g.run_number, g.attempt, g.epoch
         FROM gone g JOIN sayiir.job j USING (job_id)",
    );
    static READY: Statement = Statement::new(
        &[UUIDS],
        "WITH locked AS MATERIALIZED (SELECT job_id FROM sayiir.job_ready WHERE job_id = ANY ($1) FOR UPDATE SKIP LOCKED),
         gone AS (DELETE FROM sayiir.job_ready r USING locked k WHERE r.job_id = k.job_id RETURNING r.*)
         SELECT g.job_id, j.step, 'ready', g.lane, g.run_number, g.attempt, g.epoch
         FROM gone g JOIN sayiir.job j USING (job_id)",
    );
    let ids = vec![id];
    let found = WAITING
        .run(session, args![ids.clone()])
        .first()
        .map(waiting);
    found.or_else(|| READY.run(session, args![ids]).first().map(waiting))
}

/// A step's job: (job, what it says where it is: ended state, or None while open).
pub fn job(session: &Session, workflow: i64, step: &str) -> Option<Uuid> {
    // job_step
    static JOB: Statement = Statement::new(
        &[INT8, TEXT],
        "SELECT job_id FROM sayiir.job WHERE workflow = $1 AND step = $2 AND item_index IS NULL",
    );
    JOB.run(session, args![workflow, step])
        .first()
        .map(|row| row.get(1))
}

/// How an ended step compares with a completion that is asked for: (same state and texts, same output).
#[allow(
    clippy::too_many_arguments,
    reason = "the columns that a completion is compared by"
)]
pub fn compare_end(
    session: &Session,
    id: Uuid,
    state: &str,
    output: Option<Jsonb>,
    reason: Option<&str>,
    error_code: Option<&str>,
    error_message: Option<&str>,
) -> Option<(bool, bool)> {
    // job_end_pkey. SQL NULL and JSON null stay apart.
    static COMPARE: Statement = Statement::new(
        &[UUIDS, TEXT, JSONB, TEXT, TEXT, TEXT],
        "SELECT state::text = $2 AND reason IS NOT DISTINCT FROM $4 AND error_code IS NOT DISTINCT FROM $5
                AND error_message IS NOT DISTINCT FROM $6,
            output IS NOT DISTINCT FROM $3
         FROM sayiir.job_end WHERE job_id = ANY ($1)",
    );
    COMPARE
        .run(
            session,
            args![vec![id], state, output, reason, error_code, error_message],
        )
        .first()
        .map(|row| (row.get(1), row.get(2)))
}

/// Moves paused and parked jobs of a workflow that runs again to ready. Answers their tasks.
pub fn unpark(session: &Session, workflow: i64) -> Vec<String> {
    // job_wait_workflow
    static UNPARK: Statement = Statement::new(
        &[INT8],
        "WITH locked AS MATERIALIZED (
             SELECT job_id FROM sayiir.job_wait WHERE workflow = $1 AND reason IN ('paused', 'owner') FOR UPDATE SKIP LOCKED),
         gone AS (DELETE FROM sayiir.job_wait w USING locked k WHERE w.job_id = k.job_id RETURNING w.*),
         ready AS (
             INSERT INTO sayiir.job_ready (job_id, workflow, lane, seq, run_number, attempt, epoch)
             SELECT job_id, workflow, lane, nextval('sayiir.ready_seq'), run_number, attempt, epoch FROM gone)
         SELECT DISTINCT l.task FROM gone g JOIN sayiir.lane l ON l.lane = g.lane",
    );
    UNPARK
        .run(session, args![workflow])
        .iter()
        .map(|row| row.get(1))
        .collect()
}

/// Moves ready jobs of a paused workflow to wait; what a claim holds is skipped and parked by that or the next claim.
pub fn park(session: &Session, workflow: i64, now: Instant) {
    // job_ready_workflow
    static PARK: Statement = Statement::new(
        &[INT8, TIME],
        "WITH locked AS MATERIALIZED (SELECT job_id FROM sayiir.job_ready WHERE workflow = $1 FOR UPDATE SKIP LOCKED),
         gone AS (DELETE FROM sayiir.job_ready r USING locked k WHERE r.job_id = k.job_id RETURNING r.*)
         INSERT INTO sayiir.job_wait (job_id, workflow, lane, reason, seq, run_number, attempt, epoch, since)
         SELECT job_id, workflow, lane, 'paused', nextval('sayiir.wait_seq'), run_number, attempt, epoch, $2 FROM gone",
    );
    PARK.run(session, args![workflow, now]);
}

/// Adds a span to a time as Postgres does: months and days by the calendar.
pub fn add_span(
    session: &Session,
    at: Instant,
    span: sayiir_rules::definition::Span,
) -> Option<Instant> {
    static ADD: Statement = Statement::new(
        &[TIME, INT8, INT8, INT8],
        "SELECT $1 + make_interval(months => $2::int, days => $3::int) + $4 * interval '1 microsecond'",
    );
    ADD.run(
        session,
        args![
            at,
            i64::from(span.months),
            i64::from(span.days),
            span.micros
        ],
    )
    .first()
    .and_then(|row| row.opt(1))
}

/// Makes the waits of `steps` that a sweep stopped while their workflow was paused due now. Answers whether there were any.
pub fn restart_clocks(session: &Session, workflow: i64, steps: Vec<String>, now: Instant) -> bool {
    // job_wait_workflow, job_pkey
    static RESTART: Statement = Statement::new(
        &[INT8, TEXTS, TIME],
        "UPDATE sayiir.job_wait w SET due = $3 FROM sayiir.job j
         WHERE w.workflow = $1 AND w.due IS NULL AND w.reason IN ('delay', 'event')
           AND j.job_id = w.job_id AND j.step = ANY ($2)",
    );
    RESTART.run(session, args![workflow, steps, now]).count() > 0
}

/// A step as `completed_step`.
pub fn info(
    session: &Session,
    workflow_id: &str,
    step: &str,
    organization: Option<&str>,
    disposition: &str,
) -> Vec<crate::pg::table::Line> {
    static INFO: Statement = Statement::new(
        &[TEXT, TEXT, TEXT, TEXT],
        "SELECT s.*, $4 FROM sayiir.workflow_steps($1, $3) AS s WHERE s.step = $2",
    );
    INFO.run(session, args![workflow_id, step, organization, disposition])
        .iter()
        .map(|row| row.keep(session))
        .collect()
}
