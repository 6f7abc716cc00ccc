//! The settings `sayiir.*`.

use std::ffi::CString;

use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting};

pub static SCOPE: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c"global"));
pub static ORGANIZATION_ID: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);
pub static NOTIFY: GucSetting<bool> = GucSetting::<bool>::new(true);
pub static STRICT_TASKS: GucSetting<bool> = GucSetting::<bool>::new(false);
pub static ALLOW_CALLER_CLOCK: GucSetting<bool> = GucSetting::<bool>::new(false);
pub static WORKER: GucSetting<bool> = GucSetting::<bool>::new(true);
pub static DATABASES: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c"*"));
pub static RETENTION_WORKFLOWS: GucSetting<Option<CString>> =
    GucSetting::<Option<CString>>::new(Some(c"30 days"));
pub static RETENTION_JOBS: GucSetting<Option<CString>> =
    GucSetting::<Option<CString>>::new(Some(c"30 days"));
pub static RETENTION_EVENTS: GucSetting<Option<CString>> =
    GucSetting::<Option<CString>>::new(Some(c"7 days"));
pub static RETENTION_LOGS: GucSetting<Option<CString>> =
    GucSetting::<Option<CString>>::new(Some(c"7 days"));

const RETENTION_HINT: &std::ffi::CStr = c"An interval; 0 = for ever.";

/// Registers them; called once when the library is loaded.
pub fn init() {
    let flags = GucFlags::default();
    GucRegistry::define_string_guc(
        c"sayiir.scope",
        c"Whose rows a call sees: global, organization or all.",
        c"organization reads sayiir.organization_id; all needs sayiir_worker for claims and sayiir_admin for the rest.",
        &SCOPE,
        GucContext::Userset,
        flags,
    );
    GucRegistry::define_string_guc(
        c"sayiir.organization_id",
        c"The organization of scope organization.",
        c"At most 512 bytes.",
        &ORGANIZATION_ID,
        GucContext::Userset,
        flags,
    );
    GucRegistry::define_bool_guc(
        c"sayiir.notify",
        c"Whether transitions wake listeners with NOTIFY.",
        c"Off: workers and waiters find work by polling.",
        &NOTIFY,
        GucContext::Userset,
        flags,
    );
    GucRegistry::define_bool_guc(
        c"sayiir.strict_tasks",
        c"Refuse jobs whose task is not defined or is disabled.",
        c"Off: an unknown task takes the engine's defaults.",
        &STRICT_TASKS,
        GucContext::Userset,
        flags,
    );
    GucRegistry::define_bool_guc(
        c"sayiir.allow_caller_clock",
        c"Whether effect functions take the time from their caller.",
        c"For conformance tests only: whoever may say what time it is can take every lease.",
        &ALLOW_CALLER_CLOCK,
        GucContext::Suset,
        flags,
    );
    GucRegistry::define_bool_guc(
        c"sayiir.worker",
        c"Whether the background worker sweeps.",
        c"Needs the library in shared_preload_libraries. Off: call sayiir.tick() from any scheduler.",
        &WORKER,
        GucContext::Sighup,
        flags,
    );
    GucRegistry::define_string_guc(
        c"sayiir.databases",
        c"Databases that the background worker visits: * or a comma-separated list.",
        c"A database without the extension is left at once.",
        &DATABASES,
        GucContext::Sighup,
        flags,
    );
    // Not for everybody to set: prune() deletes every organization's rows.
    GucRegistry::define_string_guc(
        c"sayiir.retention_workflows",
        c"How long finished workflows are kept.",
        RETENTION_HINT,
        &RETENTION_WORKFLOWS,
        GucContext::Suset,
        flags,
    );
    GucRegistry::define_string_guc(
        c"sayiir.retention_jobs",
        c"How long stand-alone jobs that have ended are kept, with their keys.",
        RETENTION_HINT,
        &RETENTION_JOBS,
        GucContext::Suset,
        flags,
    );
    GucRegistry::define_string_guc(
        c"sayiir.retention_events",
        c"How long events are kept that no workflow took.",
        RETENTION_HINT,
        &RETENTION_EVENTS,
        GucContext::Suset,
        flags,
    );
    GucRegistry::define_string_guc(
        c"sayiir.retention_logs",
        c"How long the ticks of schedules are kept.",
        RETENTION_HINT,
        &RETENTION_LOGS,
        GucContext::Suset,
        flags,
    );
}

/// A string setting; None when unset or empty.
pub fn text(setting: &GucSetting<Option<CString>>) -> Option<String> {
    setting
        .get()
        .map(|value| value.to_string_lossy().into_owned())
        .filter(|value| !value.is_empty())
}
