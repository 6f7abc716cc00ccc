//! Replay: a stand-alone job that has ended is done again as a new job, once under a key.

use pgrx::Uuid;
use sayiir_rules::ids;
use serde_json::json;

use crate::engine::{enqueue, owner};
use crate::error::{Code, Error, Result};
use crate::pg::clock::Instant;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::Session;
use crate::pg::xact;
use crate::runtime::wake;
use crate::scope::Scope;
use crate::store;

/// Longest request_key: with the source's id it makes the new job's idempotency_key.
const MAX_KEY: usize = 400;

/// The new job and whether it was made now.
pub fn replay(
    session: &Session,
    scope: &Scope,
    id: Uuid,
    request_key: &str,
    reason: Option<&str>,
) -> Result<(Uuid, bool)> {
    owner::require_read_committed("job_replay")?;
    ids::check_id("request_key", request_key)?;
    if request_key.len() > MAX_KEY {
        return Err(Error::new(
            Code::ArgumentInvalid,
            format!(
                "request_key has {} bytes, at most {MAX_KEY} are allowed",
                request_key.len()
            ),
        )
        .with("argument", "request_key"));
    }
    let job = owner::visible(session, scope, id)?;
    if job.workflow.is_some() {
        return Err(owner::is_step(id));
    }
    store::job::lock_standalone(session, vec![id]);
    let key = format!("replay/{id}/{request_key}");
    let request = Jsonb::from_value(&json!({
        "replay_of": id.to_string(), "request_key": request_key, "reason": reason,
    }));
    loop {
        // The same request is answered again, whatever the source does meanwhile.
        match store::remedy::replayed(session, id, &key, request) {
            Some((found, true)) => return Ok((found, false)),
            Some((found, false)) => {
                return Err(Error::new(
                    Code::JobIdempotencyConflict,
                    format!("request_key {request_key:?} was used with another reason"),
                )
                .with("job_id", found.to_string())
                .with("idempotency_key", key));
            }
            None => {}
        }
        if store::job::end(session, id).is_none() {
            return Err(owner::not_ended(id));
        }
        xact::assign_xid();
        let new = enqueue::new_id();
        if store::remedy::replay(session, id, new, &key, request, Instant::now()) {
            if let Some(task) = store::job::task(session, id) {
                wake::job_ready(&task);
            }
            return Ok((new, true));
        }
    }
}
