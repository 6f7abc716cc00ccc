//! Every refusal of the engine: a stable code, a standard SQLSTATE, a DETAIL for programs and a HINT for people.

use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, PgSqlErrorCode};
use serde_json::{Map, Value};

pub type Result<T> = std::result::Result<T, Error>;

/// Declares the codes once: variant, code, SQLSTATE, hint.
macro_rules! codes {
    ($($(#[$note:meta])* $variant:ident = $code:literal, $state:ident, $hint:literal;)*) => {
        /// What went wrong. The code is part of the contract with clients and never changes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(dead_code, reason = "one code is raised in PL/pgSQL")]
        pub enum Code { $($(#[$note])* $variant),* }

        impl Code {
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $code),* }
            }

            fn sqlstate(self) -> PgSqlErrorCode {
                match self { $(Self::$variant => PgSqlErrorCode::$state),* }
            }

            fn hint(self) -> &'static str {
                match self { $(Self::$variant => $hint),* }
            }

            /// Every code with its hint, for `error_codes()`.
            pub fn all() -> &'static [(&'static str, &'static str)] {
                &[$(($code, $hint)),*]
            }

            /// SQLSTATE of each code, in the order of [`Code::all`].
            pub fn states() -> Vec<String> {
                vec![$(sqlstate_text(PgSqlErrorCode::$state)),*]
            }
        }
    };
}

codes! {
    ArgumentNull = "argument.null", ERRCODE_NULL_VALUE_NOT_ALLOWED, "Pass a value for this argument.";
    ArgumentInvalid = "argument.invalid", ERRCODE_INVALID_PARAMETER_VALUE, "See the documentation of the function for what it accepts.";
    ArgumentOutOfRange = "argument.out_of_range", ERRCODE_INVALID_PARAMETER_VALUE, "Pass a value within the range named in the message.";
    ArgumentTooLarge = "argument.too_large", ERRCODE_PROGRAM_LIMIT_EXCEEDED, "Store large data outside and pass a reference to it.";
    OptionUnknown = "option.unknown", ERRCODE_INVALID_PARAMETER_VALUE, "Remove the option or correct its name.";
    CallIsolationUnsupported = "call.isolation_unsupported", ERRCODE_ACTIVE_SQL_TRANSACTION, "Call it in a READ COMMITTED transaction.";
    WaitTooLong = "wait.too_long", ERRCODE_INVALID_PARAMETER_VALUE, "A call waits at most 10 seconds; wait longer with LISTEN, or call again.";
    ScopeDenied = "scope.denied", ERRCODE_INSUFFICIENT_PRIVILEGE, "Ask an administrator to grant the role, or use the organization the role is bound to.";
    TaskNotFound = "task.not_found", ERRCODE_NO_DATA_FOUND, "Define it with task_define, or set sayiir.strict_tasks = off.";
    TaskDisabled = "task.disabled", ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "Enable it with task_define(…, enabled => true).";
    JobNotFound = "job.not_found", ERRCODE_NO_DATA_FOUND, "Check the job_id and the scope of the call.";
    JobLeaseLost = "job.lease_lost", ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "Stop working on this job: the lease ended, or another worker holds it.";
    JobBusy = "job.busy", ERRCODE_LOCK_NOT_AVAILABLE, "Another session holds this lease row; try again.";
    JobIdempotencyConflict = "job.idempotency_conflict", ERRCODE_UNIQUE_VIOLATION, "The key was used for another request; use a new key, or send the same request.";
    JobNotEnded = "job.not_ended", ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "Wait until the job has ended, or pass a timeout.";
    JobUnsuccessful = "job.unsuccessful", ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "Only a succeeded job has a result; see job_get.";
    JobNotRequeueable = "job.not_requeueable", ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "A step that has ended stays ended; start the workflow again.";
    JobNotChild = "job.not_child", ERRCODE_INVALID_PARAMETER_VALUE, "A job awaits only jobs that it spawned with job_spawn.";
    JobIsStep = "job.is_step", ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "The job is a step: call the function of its workflow.";
    JobCancelled = "job.cancelled", ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "Stop working on this job and call job_release.";
    JobContinueNotAllowed = "job.continue_not_allowed", ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "Set \"allow_continue\": true on the step.";
    JobCheckpointConflict = "job.checkpoint_conflict", ERRCODE_UNIQUE_VIOLATION, "The code of this job has used the name for another kind of call; give each call its own name.";
    /// Raised by `job_run`, which is PL/pgSQL.
    HandlerInvalid = "handler.invalid", ERRCODE_INVALID_PARAMETER_VALUE, "Name a function that takes one jsonb and returns jsonb.";
    DefinitionInvalid = "definition.invalid", ERRCODE_INVALID_PARAMETER_VALUE, "SELECT * FROM sayiir.workflow_validate(…) lists every problem.";
    DefinitionNotFound = "definition.not_found", ERRCODE_NO_DATA_FOUND, "Define it with workflow_define, and check the name, version and scope.";
    WorkflowNotFound = "workflow.not_found", ERRCODE_NO_DATA_FOUND, "Check the workflow_id and the scope of the call.";
    WorkflowConflict = "workflow.conflict", ERRCODE_UNIQUE_VIOLATION, "The id or key was used for another request; use a new one, send the same request, or pass on_conflict.";
    WorkflowNotFinished = "workflow.not_finished", ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "Cancel it or wait until it has ended.";
    WorkflowResultNotDeclared = "workflow.result_not_declared", ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "The definition says \"result\": null; read the steps with workflow_steps.";
    WorkflowUnsuccessful = "workflow.unsuccessful", ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "Only a succeeded workflow has a result; see workflow_steps for what failed.";
    WorkflowResultMissing = "workflow.result_missing", ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "The declared result step ended without an output.";
    WorkflowWaitTimeout = "workflow.wait_timeout", ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "It has not finished yet; wait again.";
    WorkflowNotCommitted = "workflow.not_committed", ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "This transaction started the workflow; commit before waiting for it.";
    WorkflowStepNotFound = "workflow.step_not_found", ERRCODE_NO_DATA_FOUND, "See the steps with workflow_steps.";
    WorkflowStepNotOpen = "workflow.step_not_open", ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "The step is blocked: its prerequisites have not ended.";
    WorkflowStepLeased = "workflow.step_leased", ERRCODE_OBJECT_IN_USE, "A worker holds this step; let it finish, or cancel it with job_cancel.";
    WorkflowCompletionConflict = "workflow.completion_conflict", ERRCODE_UNIQUE_VIOLATION, "The step has already ended differently; that end stands.";
    WorkflowOutputConflict = "workflow.output_conflict", ERRCODE_UNIQUE_VIOLATION, "The step has already ended with another output; the first one stands.";
    WorkflowEnded = "workflow.ended", ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "The workflow has ended; its steps are final.";
    ScheduleNotFound = "schedule.not_found", ERRCODE_NO_DATA_FOUND, "See the view schedules, and check the scope of the call.";
    ScheduleCronInvalid = "schedule.invalid_cron", ERRCODE_INVALID_PARAMETER_VALUE, "Write minute hour day month weekday, or six fields with seconds in front; schedule_next shows when it fires.";
    ScheduleTimezoneUnknown = "schedule.unknown_timezone", ERRCODE_INVALID_PARAMETER_VALUE, "Name an IANA time zone such as Europe/Berlin.";
    EngineNotAdopted = "engine.not_adopted", ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "SELECT * FROM sayiir.adopt() takes it over; leave a copy for tests as it is.";
    TriggerInvalid = "trigger.invalid", ERRCODE_INVALID_PARAMETER_VALUE, "CREATE TRIGGER … AFTER INSERT ON … FOR EACH ROW EXECUTE FUNCTION sayiir.trigger_start('workflow', 'id_column').";
    EffectNotFound = "effect.not_found", ERRCODE_NO_DATA_FOUND, "Check the id and the scope of the call.";
    EffectLeaseHeld = "effect.lease_held", ERRCODE_LOCK_NOT_AVAILABLE, "Wait until the lease ends; not even its owner can take it twice.";
    EffectLeaseLost = "effect.lease_lost", ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "Stop acting on this effect; tell what you saw with effect_append_observation.";
    EffectVersionConflict = "effect.version_conflict", ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "Read the effect again and decide anew.";
    EffectInvalidTransition = "effect.invalid_transition", ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "SELECT * FROM sayiir.effect_transitions() lists what is possible.";
    EffectMismatch = "effect.mismatch", ERRCODE_UNIQUE_VIOLATION, "The key was used for something else; use a new key, or ask for the same.";
    EffectIdConflict = "effect.id_conflict", ERRCODE_UNIQUE_VIOLATION, "Leave the id out, or use a new one.";
    EffectNotSupersedable = "effect.not_supersedable", ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "Only an effect that failed or was rejected gives up its key, once.";
    EffectCallerClockDenied = "effect.caller_clock_denied", ERRCODE_INSUFFICIENT_PRIVILEGE, "Leave caller_now out: the database's clock counts. Tests may set sayiir.allow_caller_clock as a superuser.";
    InternalState = "internal.state", ERRCODE_INTERNAL_ERROR, "This is a bug: run sayiir.doctor() and report it.";
}

/// The five characters of a SQLSTATE.
fn sqlstate_text(state: PgSqlErrorCode) -> String {
    let mut packed = state as i32;
    (0..5)
        .map(|_| {
            let character = char::from((packed & 0x3f) as u8 + b'0');
            packed >>= 6;
            character
        })
        .collect()
}

/// A refusal, carried to the edge of the SQL function and raised there.
#[derive(Debug)]
pub struct Error {
    code: Code,
    message: String,
    detail: Map<String, Value>,
}

impl Error {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            detail: Map::new(),
        }
    }

    pub fn code(&self) -> Code {
        self.code
    }

    /// Adds a field to DETAIL.
    pub fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.detail.insert(field.to_owned(), value.into());
        self
    }

    /// Raises it as a Postgres error.
    pub fn raise(self) -> ! {
        let mut detail = self.detail;
        detail.insert("code".to_owned(), self.code.as_str().into());
        ErrorReport::new(self.code.sqlstate(), self.message, "sayiir")
            .set_detail(Value::Object(detail).to_string())
            .set_hint(self.code.hint())
            .report(PgLogLevel::ERROR);
        unreachable!("an ERROR does not return")
    }
}

impl From<sayiir_rules::ids::Invalid> for Error {
    fn from(invalid: sayiir_rules::ids::Invalid) -> Self {
        Self::new(
            Code::ArgumentInvalid,
            format!("{} {}", invalid.what, invalid.problem),
        )
        .with("argument", invalid.what)
    }
}

/// The edge between engine and SQL.
pub trait OrRaise<T> {
    fn or_raise(self) -> T;
}

impl<T> OrRaise<T> for Result<T> {
    fn or_raise(self) -> T {
        self.unwrap_or_else(|error| error.raise())
    }
}
