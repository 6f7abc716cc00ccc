-- Every column of every table, in the order of 20_tables.sql. Names that end in _us are durations in microseconds.

-- Columns that mean the same in several tables:
-- organization_id is the tenant, NULL = global; workflow is the key workflow.id; lane is lane.lane; history_seq is the
-- version of workflow_history(); seq orders the rows of a hot table; run_number, attempt and epoch are those of the last claim.

COMMENT ON COLUMN sayiir.task.id IS 'Key inside.';
COMMENT ON COLUMN sayiir.task.organization_id IS 'The tenant; NULL = global.';
COMMENT ON COLUMN sayiir.task.task IS 'What a worker claims.';
COMMENT ON COLUMN sayiir.task.max_attempts IS 'Claims of one run before a job is dead; NULL = the engine''s default.';
COMMENT ON COLUMN sayiir.task.timeout_us IS 'Run time of one attempt, in microseconds; NULL = without limit.';
COMMENT ON COLUMN sayiir.task.lease_us IS 'Silence of a worker that is tolerated, in microseconds; NULL = the engine''s default.';
COMMENT ON COLUMN sayiir.task.priority IS '0 to 99, higher first; NULL = 50.';
COMMENT ON COLUMN sayiir.task.retry IS 'Delays before another attempt: initial and max are intervals as text, factor and jitter numbers; NULL = the engine''s default.';
COMMENT ON COLUMN sayiir.task.enabled IS 'false = no claim takes its jobs, and new ones are refused under sayiir.strict_tasks.';
COMMENT ON COLUMN sayiir.task.paused IS 'true = no claim takes its jobs until task_resume.';
COMMENT ON COLUMN sayiir.task.options IS 'Whatever a program wants to keep with the task; the engine does not read it.';
COMMENT ON COLUMN sayiir.task.created_at IS 'When it was first defined or paused.';
COMMENT ON COLUMN sayiir.task.updated_at IS 'When it last changed.';

COMMENT ON COLUMN sayiir.lane.lane IS '(99 - priority) in the high bits, lane_seq in the low 40: claims in order of lane are claims by priority.';
COMMENT ON COLUMN sayiir.lane.organization_id IS 'The tenant; NULL = global.';
COMMENT ON COLUMN sayiir.lane.task IS 'The task of its jobs.';
COMMENT ON COLUMN sayiir.lane.priority IS '0 to 99, higher first.';
COMMENT ON COLUMN sayiir.lane.tags IS 'Tags that a worker needs, sorted, each once; empty = any worker.';

COMMENT ON COLUMN sayiir.definition.definition_hash IS 'SHA-256 of the canonical form.';
COMMENT ON COLUMN sayiir.definition.body IS 'The canonical form: steps sorted by key, numbers normalised, defaults not filled in.';
COMMENT ON COLUMN sayiir.definition.created_at IS 'When it was first defined or started.';

COMMENT ON COLUMN sayiir.definition_step.definition_hash IS 'The definition.';
COMMENT ON COLUMN sayiir.definition_step.step IS 'The step''s key.';
COMMENT ON COLUMN sayiir.definition_step.kind IS 'task, event or delay.';
COMMENT ON COLUMN sayiir.definition_step.task IS 'What a worker claims; NULL = the engine does the step.';
COMMENT ON COLUMN sayiir.definition_step.join_rule IS 'all (every edge satisfied), some (at least one, when all have ended), first (as soon as one is).';
COMMENT ON COLUMN sayiir.definition_step.optional IS 'true = its failure does not fail the workflow.';
COMMENT ON COLUMN sayiir.definition_step.prerequisites IS 'Number of its edges; 0 = a root.';
COMMENT ON COLUMN sayiir.definition_step.position IS 'Depth-first order of the drawing, prerequisites first.';

COMMENT ON COLUMN sayiir.definition_edge.definition_hash IS 'The definition.';
COMMENT ON COLUMN sayiir.definition_edge.step IS 'The step that waits.';
COMMENT ON COLUMN sayiir.definition_edge.prerequisite IS 'The step that it waits for.';
COMMENT ON COLUMN sayiir.definition_edge.satisfied_by IS 'success (it succeeded), failure (it failed or was cancelled, never skipped), terminal (any end).';

COMMENT ON COLUMN sayiir.definition_version.id IS 'Key inside.';
COMMENT ON COLUMN sayiir.definition_version.organization_id IS 'The tenant; NULL = global.';
COMMENT ON COLUMN sayiir.definition_version.name IS 'The name that workflow_start takes.';
COMMENT ON COLUMN sayiir.definition_version.version IS 'Counts from 1 within the name.';
COMMENT ON COLUMN sayiir.definition_version.definition_hash IS 'The definition that the version stands for.';
COMMENT ON COLUMN sayiir.definition_version.active IS 'true = a start without a version takes it; at most one of a name.';
COMMENT ON COLUMN sayiir.definition_version.created_at IS 'When it was registered.';

COMMENT ON COLUMN sayiir.workflow.id IS 'Key inside.';
COMMENT ON COLUMN sayiir.workflow.workflow_id IS 'Known outside by this; chosen by the caller, or a UUIDv7.';
COMMENT ON COLUMN sayiir.workflow.organization_id IS 'The tenant; NULL = global.';
COMMENT ON COLUMN sayiir.workflow.name IS 'The definition''s name.';
COMMENT ON COLUMN sayiir.workflow.version IS 'The registered version; NULL = started by workflow_start_graph.';
COMMENT ON COLUMN sayiir.workflow.definition_hash IS 'The definition, which it keeps.';
COMMENT ON COLUMN sayiir.workflow.status IS 'running, paused or the end; waiting is derived when read.';
COMMENT ON COLUMN sayiir.workflow.depth IS 'The parent''s + 1; deeper owners are locked first.';
COMMENT ON COLUMN sayiir.workflow.input IS 'As the caller gave it.';
COMMENT ON COLUMN sayiir.workflow.metadata IS 'As the caller gave it; templates read it as $.workflow.metadata.';
COMMENT ON COLUMN sayiir.workflow.request IS 'What the start asked for; a second start with the same id or key must ask for the same.';
COMMENT ON COLUMN sayiir.workflow.idempotency_key IS 'At most one workflow of the name, ever.';
COMMENT ON COLUMN sayiir.workflow.active_key IS 'At most one live workflow; see workflow_active.';
COMMENT ON COLUMN sayiir.workflow.trace_parent IS 'W3C traceparent of the start.';
COMMENT ON COLUMN sayiir.workflow.created_at IS 'When it was started.';
COMMENT ON COLUMN sayiir.workflow.deadline_at IS 'When it fails with workflow.timeout; NULL = never.';
COMMENT ON COLUMN sayiir.workflow.finished_at IS 'When it ended; NULL = open.';
COMMENT ON COLUMN sayiir.workflow.result IS 'Of a succeeded workflow only.';
COMMENT ON COLUMN sayiir.workflow.error_code IS 'Why it failed: a code for programs.';
COMMENT ON COLUMN sayiir.workflow.error_message IS 'Why it failed, for people.';
COMMENT ON COLUMN sayiir.workflow.reason IS 'Why it was cancelled or paused, as the caller said.';
COMMENT ON COLUMN sayiir.workflow.requested_by IS 'Who cancelled or paused it, as the caller said.';
COMMENT ON COLUMN sayiir.workflow.history_seq IS 'Version of its start in workflow_history().';

COMMENT ON COLUMN sayiir.workflow_active.workflow IS 'The workflow (workflow.id) that holds the key.';
COMMENT ON COLUMN sayiir.workflow_active.organization_id IS 'The tenant; NULL = global.';
COMMENT ON COLUMN sayiir.workflow_active.active_key IS 'As the caller gave it.';

COMMENT ON COLUMN sayiir.workflow_log.history_seq IS 'Version in workflow_history(), drawn under the workflow''s lock.';
COMMENT ON COLUMN sayiir.workflow_log.workflow IS 'The workflow (workflow.id).';
COMMENT ON COLUMN sayiir.workflow_log.kind IS 'What happened.';
COMMENT ON COLUMN sayiir.workflow_log.step IS 'To which step; NULL = the workflow.';
COMMENT ON COLUMN sayiir.workflow_log.detail IS 'The particulars, an object.';
COMMENT ON COLUMN sayiir.workflow_log.at IS 'When.';

COMMENT ON COLUMN sayiir.job.job_id IS 'UUIDv7.';
COMMENT ON COLUMN sayiir.job.organization_id IS 'The tenant, for a step that of its workflow; NULL = global.';
COMMENT ON COLUMN sayiir.job.workflow IS 'Its workflow (workflow.id); NULL = a stand-alone job.';
COMMENT ON COLUMN sayiir.job.step IS 'The step''s key; NULL = a stand-alone job.';
COMMENT ON COLUMN sayiir.job.item_index IS 'Which element of a map, from 0; NULL = not an element.';
COMMENT ON COLUMN sayiir.job.depth IS 'The parent owner''s + 1; deeper owners are locked first.';
COMMENT ON COLUMN sayiir.job.parent IS 'The job that spawned it; NULL = none did.';
COMMENT ON COLUMN sayiir.job.parent_workflow IS 'The workflow (workflow.id) that owns the parent; NULL = the parent owns itself.';
COMMENT ON COLUMN sayiir.job.task IS 'What a worker claims; NULL = an event or delay step, which the engine does.';
COMMENT ON COLUMN sayiir.job.lane IS 'Where it stands when ready (lane.lane); NULL = no worker runs it.';
COMMENT ON COLUMN sayiir.job.payload IS 'The input, computed at release so that a retry sees the same; NULL = the workflow''s input.';
COMMENT ON COLUMN sayiir.job.max_attempts IS 'Claims of one run before it is dead.';
COMMENT ON COLUMN sayiir.job.retry_initial_us IS 'Delay before the second attempt, in microseconds.';
COMMENT ON COLUMN sayiir.job.retry_factor IS 'Each delay is the last one times this.';
COMMENT ON COLUMN sayiir.job.retry_max_us IS 'Longest delay, in microseconds.';
COMMENT ON COLUMN sayiir.job.retry_jitter IS '0 to 1: each delay is spread by this part of it, up or down.';
COMMENT ON COLUMN sayiir.job.hold IS 'true = out of attempts it waits for a person instead of failing.';
COMMENT ON COLUMN sayiir.job.lease_us IS 'Silence of a worker that is tolerated, in microseconds.';
COMMENT ON COLUMN sayiir.job.timeout_us IS 'Run time of one attempt, in microseconds; NULL = without limit.';
COMMENT ON COLUMN sayiir.job.deadline_at IS 'When it fails whatever attempts are left; NULL = never.';
COMMENT ON COLUMN sayiir.job.idempotency_key IS 'At most one job of the task, ever; NULL = none was given.';
COMMENT ON COLUMN sayiir.job.request IS 'What a keyed enqueue asked for besides the payload; a second one must ask for the same.';
COMMENT ON COLUMN sayiir.job.trace_parent IS 'W3C traceparent.';
COMMENT ON COLUMN sayiir.job.created_at IS 'When it was enqueued, or its step released; of a step that ended without being released, when it ended.';
COMMENT ON COLUMN sayiir.job.history_seq IS 'Version of that in workflow_history() and job_history().';

COMMENT ON COLUMN sayiir.job_ready.job_id IS 'The job.';
COMMENT ON COLUMN sayiir.job_ready.workflow IS 'Its workflow (workflow.id); NULL = a stand-alone job.';
COMMENT ON COLUMN sayiir.job_ready.lane IS 'Its lane (lane.lane).';
COMMENT ON COLUMN sayiir.job_ready.seq IS 'From ready_seq: the order within the lane.';
COMMENT ON COLUMN sayiir.job_ready.run_number IS 'Counts from 1; a requeue begins a new run.';
COMMENT ON COLUMN sayiir.job_ready.attempt IS 'Claims of this run so far.';
COMMENT ON COLUMN sayiir.job_ready.epoch IS 'Of the last lease; 0 = never leased.';

COMMENT ON COLUMN sayiir.job_lease.job_id IS 'The job.';
COMMENT ON COLUMN sayiir.job_lease.workflow IS 'Its workflow (workflow.id); NULL = a stand-alone job.';
COMMENT ON COLUMN sayiir.job_lease.lane IS 'Its lane (lane.lane).';
COMMENT ON COLUMN sayiir.job_lease.worker IS 'Who has it, as it named itself.';
COMMENT ON COLUMN sayiir.job_lease.epoch IS 'The fencing token: the greater of the last one + 1 and the clock in microseconds since 1970.';
COMMENT ON COLUMN sayiir.job_lease.run_number IS 'Counts from 1; a requeue begins a new run.';
COMMENT ON COLUMN sayiir.job_lease.attempt IS 'Which claim of this run, from 1.';
COMMENT ON COLUMN sayiir.job_lease.lease_us IS 'By how much a heartbeat extends it, in microseconds.';
COMMENT ON COLUMN sayiir.job_lease.started_at IS 'When it was claimed.';
COMMENT ON COLUMN sayiir.job_lease.expires_at IS 'From when on others may take it; until they do, its worker can still finish.';
COMMENT ON COLUMN sayiir.job_lease.deadline_at IS 'When this attempt times out, heartbeats or not; NULL = never.';
COMMENT ON COLUMN sayiir.job_lease.check_at IS 'When the reaper looks at it next; never later than expires_at was when it last looked.';
COMMENT ON COLUMN sayiir.job_lease.progress_done IS 'As the last heartbeat said, in the worker''s unit.';
COMMENT ON COLUMN sayiir.job_lease.progress_total IS 'As the last heartbeat said, in the worker''s unit.';
COMMENT ON COLUMN sayiir.job_lease.stage IS 'As the last heartbeat said.';

COMMENT ON COLUMN sayiir.job_wait.job_id IS 'The job.';
COMMENT ON COLUMN sayiir.job_wait.workflow IS 'Its workflow (workflow.id); NULL = a stand-alone job.';
COMMENT ON COLUMN sayiir.job_wait.lane IS 'Where it will stand when ready (lane.lane); NULL = no worker runs it.';
COMMENT ON COLUMN sayiir.job_wait.reason IS 'run_at, retry, delay: for its time; event, child, permit: for that; paused, owner: for its workflow to run; held: for a person.';
COMMENT ON COLUMN sayiir.job_wait.due IS 'When its timer fires: run_at, retry, delay, or the timeout of an event; NULL = no timer.';
COMMENT ON COLUMN sayiir.job_wait.event IS 'The name of the event; NULL = it waits for something else.';
COMMENT ON COLUMN sayiir.job_wait.seq IS 'From wait_seq: the oldest wait takes the oldest event.';
COMMENT ON COLUMN sayiir.job_wait.run_number IS 'Counts from 1; a requeue begins a new run.';
COMMENT ON COLUMN sayiir.job_wait.attempt IS 'Claims of this run so far.';
COMMENT ON COLUMN sayiir.job_wait.epoch IS 'Of the last lease; 0 = never leased.';
COMMENT ON COLUMN sayiir.job_wait.since IS 'When it began to wait.';

COMMENT ON COLUMN sayiir.job_end.job_id IS 'The job.';
COMMENT ON COLUMN sayiir.job_end.state IS 'How it ended.';
COMMENT ON COLUMN sayiir.job_end.output IS 'Of a succeeded job only; for an event step the event''s payload.';
COMMENT ON COLUMN sayiir.job_end.error_code IS 'Why it failed or was cancelled: a code for programs.';
COMMENT ON COLUMN sayiir.job_end.error_message IS 'Why, for people.';
COMMENT ON COLUMN sayiir.job_end.reason IS 'Why it was cancelled or completed by hand, as the caller said.';
COMMENT ON COLUMN sayiir.job_end.worker IS 'Whose attempt ended it; NULL = the engine or a person did.';
COMMENT ON COLUMN sayiir.job_end.epoch IS 'Of the last lease; 0 = never leased.';
COMMENT ON COLUMN sayiir.job_end.run_number IS 'The run that ended, from 1.';
COMMENT ON COLUMN sayiir.job_end.attempt IS 'Claims of that run.';
COMMENT ON COLUMN sayiir.job_end.started_at IS 'When the last attempt was claimed; NULL = the end did not come from an attempt.';
COMMENT ON COLUMN sayiir.job_end.ended_at IS 'When it ended.';
COMMENT ON COLUMN sayiir.job_end.history_seq IS 'Version of the end in workflow_history() and job_history().';

COMMENT ON COLUMN sayiir.job_attempt.job_id IS 'The job.';
COMMENT ON COLUMN sayiir.job_attempt.run_number IS 'The run, from 1.';
COMMENT ON COLUMN sayiir.job_attempt.attempt IS 'Which claim of the run, from 1.';
COMMENT ON COLUMN sayiir.job_attempt.epoch IS 'Of its lease.';
COMMENT ON COLUMN sayiir.job_attempt.worker IS 'Who had it.';
COMMENT ON COLUMN sayiir.job_attempt.kind IS 'retryable, terminal, timeout, panicked (as the worker said), expired (the lease ran out), requeued (an end that a requeue undid), continued (a run that job_continue ended).';
COMMENT ON COLUMN sayiir.job_attempt.error_code IS 'A code for programs.';
COMMENT ON COLUMN sayiir.job_attempt.error_message IS 'For people.';
COMMENT ON COLUMN sayiir.job_attempt.started_at IS 'When it was claimed.';
COMMENT ON COLUMN sayiir.job_attempt.ended_at IS 'When it failed or its lease was taken back; for kinds requeued and continued, when the run had ended.';
COMMENT ON COLUMN sayiir.job_attempt.retry_at IS 'When the job becomes claimable again; for kind requeued, when it was requeued; for kind continued, when the next run begins; NULL = it does not.';
COMMENT ON COLUMN sayiir.job_attempt.disposition IS 'What it led to: retry, dead, held, cancelled, continued; for kind requeued, how the run had ended.';
COMMENT ON COLUMN sayiir.job_attempt.reason IS 'Why it was requeued, as the caller said.';
COMMENT ON COLUMN sayiir.job_attempt.history_seq IS 'Version in workflow_history() and job_history().';

COMMENT ON COLUMN sayiir.step_pending.workflow IS 'The workflow (workflow.id).';
COMMENT ON COLUMN sayiir.step_pending.step IS 'The blocked step''s key.';
COMMENT ON COLUMN sayiir.step_pending.shard IS 'Wide joins count in several rows; what counts is their sum.';
COMMENT ON COLUMN sayiir.step_pending.ended IS 'Prerequisites that have ended.';
COMMENT ON COLUMN sayiir.step_pending.unsatisfied IS 'Those of them that ended otherwise than the step needs.';

COMMENT ON COLUMN sayiir.event.id IS 'Order of arrival.';
COMMENT ON COLUMN sayiir.event.workflow IS 'The workflow (workflow.id); NULL = none has this workflow_id yet, or it was sent to a job.';
COMMENT ON COLUMN sayiir.event.job_id IS 'The stand-alone job; NULL = it was sent to a workflow.';
COMMENT ON COLUMN sayiir.event.organization_id IS 'The tenant; NULL = global.';
COMMENT ON COLUMN sayiir.event.workflow_id IS 'To which workflow it was sent; NULL = to a job.';
COMMENT ON COLUMN sayiir.event.name IS 'What waits name it by.';
COMMENT ON COLUMN sayiir.event.payload IS 'The output of the event step, or the answer of the job_await_event, that consumes it.';
COMMENT ON COLUMN sayiir.event.event_key IS 'See event_key; NULL = none was given.';
COMMENT ON COLUMN sayiir.event.disposition IS 'buffered (nothing waits for it yet), early (no such workflow yet), late (it had ended).';
COMMENT ON COLUMN sayiir.event.created_at IS 'When it was sent.';

COMMENT ON COLUMN sayiir.event_key.id IS 'Key inside.';
COMMENT ON COLUMN sayiir.event_key.organization_id IS 'The tenant; NULL = global.';
COMMENT ON COLUMN sayiir.event_key.workflow_id IS 'To which workflow the event was sent; NULL = to a job.';
COMMENT ON COLUMN sayiir.event_key.job_id IS 'To which job; NULL = to a workflow.';
COMMENT ON COLUMN sayiir.event_key.event_key IS 'As the sender gave it.';
COMMENT ON COLUMN sayiir.event_key.created_at IS 'When it was first sent.';

COMMENT ON COLUMN sayiir.signal.job_id IS 'The leased stand-alone job; a step learns from its workflow''s status.';
COMMENT ON COLUMN sayiir.signal.kind IS 'cancel.';
COMMENT ON COLUMN sayiir.signal.reason IS 'As the caller said.';
COMMENT ON COLUMN sayiir.signal.requested_by IS 'As the caller said.';
COMMENT ON COLUMN sayiir.signal.requested_at IS 'When.';

COMMENT ON COLUMN sayiir.role_scope.role_name IS 'The database role.';
COMMENT ON COLUMN sayiir.role_scope.organization_id IS 'The only organization whose rows its calls see.';

-- Attributes of row types whose names do not say it

COMMENT ON COLUMN sayiir.claimed_job.epoch IS 'The fencing token: pass it on with job_id.';
COMMENT ON COLUMN sayiir.claimed_job.attempt IS 'Which claim of this run, from 1.';
COMMENT ON COLUMN sayiir.claimed_job.run_number IS 'Counts from 1; a requeue begins a new run.';
COMMENT ON COLUMN sayiir.claimed_job.idempotency_key IS 'For outside systems: the caller''s, else <job_id>/<run_number>; the same on every attempt.';
COMMENT ON COLUMN sayiir.claimed_job.checkpoints IS 'Named answers of earlier attempts, {name: value}.';
COMMENT ON COLUMN sayiir.claimed_job.expires_at IS 'When the lease runs out unless a heartbeat extends it.';
COMMENT ON COLUMN sayiir.claimed_job.deadline_at IS 'When this attempt times out, heartbeats or not; NULL = never.';
COMMENT ON COLUMN sayiir.job_failure.run_at IS 'When the next attempt can be claimed; NULL = there is none.';
COMMENT ON COLUMN sayiir.job_info.run_at IS 'When it becomes claimable; NULL = its time does not decide that.';
COMMENT ON COLUMN sayiir.job_info.expires_at IS 'When its lease runs out unless a heartbeat extends it.';
COMMENT ON COLUMN sayiir.job_info.worker IS 'Who holds the lease, or whose attempt ended the job.';
COMMENT ON COLUMN sayiir.job_info.idempotency_key IS 'As the caller gave it; NULL = none.';
COMMENT ON COLUMN sayiir.task_info.timeout IS 'Run time of one attempt; NULL = without limit.';
COMMENT ON COLUMN sayiir.task_info.lease IS 'Silence of a worker that is tolerated.';
COMMENT ON COLUMN sayiir.workflow_info.result_step IS 'The step whose output is the result; NULL = it is made of several, or none is declared.';
COMMENT ON COLUMN sayiir.workflow_info.deadline_at IS 'When it fails with workflow.timeout; NULL = never.';
COMMENT ON COLUMN sayiir.step_info.kind IS 'task, event or delay.';
COMMENT ON COLUMN sayiir.step_info.pending IS 'Prerequisites that have not ended; 0 once it is released.';
COMMENT ON COLUMN sayiir.step_info.unsatisfied IS 'Prerequisites that ended otherwise than it needs.';
COMMENT ON COLUMN sayiir.step_info.dependencies IS 'Its edges: an array of {"step", "on"}.';
COMMENT ON COLUMN sayiir.step_info.released_at IS 'When it could first be claimed or began to wait; NULL = never released.';
COMMENT ON COLUMN sayiir.history_entry.version IS 'Grows with every transition; pass the last one on to read on.';
COMMENT ON COLUMN sayiir.history_entry.detail IS 'The particulars, an object; NULL = none.';
