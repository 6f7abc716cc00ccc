//! Whose rows a call sees. An argument wins over the setting; a role bound to an organization cannot leave it by either.

use std::cell::RefCell;
use std::collections::HashMap;

use pgrx::{IntoDatum, pg_sys};

use crate::engine::adopt;
use crate::error::{Code, Error, Result};
use crate::pg::spi::Session;
use crate::pg::xact;
use crate::settings;
use crate::store;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every row, whatever its organization.
    All,
    /// The rows of one organization; None = the global rows, which belong to none.
    One(Option<String>),
}

/// What `all` asks for.
#[derive(Clone, Copy)]
pub enum Use {
    /// Claiming jobs: `all` needs sayiir_worker.
    Claim,
    /// Anything else: `all` needs sayiir_admin.
    Other,
}

thread_local! {
    /// role → the organization it is bound to; forgotten when `role_scope` changes.
    static BOUND: RefCell<HashMap<pg_sys::Oid, Option<String>>> = RefCell::new(HashMap::new());
}

/// Forgets which roles are bound; called when `role_scope` changed.
pub fn forget() {
    BOUND.with_borrow_mut(HashMap::clear);
}

/// The scope of this call.
pub fn resolve(session: &Session, argument: Option<&str>, purpose: Use) -> Result<Scope> {
    if let Some(organization) = argument {
        sayiir_rules::ids::check_id("organization_id", organization)?;
    }
    if let Some(bound) = bound_organization(session) {
        if argument.is_some_and(|asked| asked != bound) {
            return Err(Error::new(
                Code::ScopeDenied,
                "this role is bound to another organization",
            ));
        }
        return Ok(Scope::One(Some(bound)));
    }
    if let Some(organization) = argument {
        return Ok(Scope::One(Some(organization.to_owned())));
    }
    match settings::text(&settings::SCOPE).as_deref() {
        None | Some("global") => Ok(Scope::One(None)),
        Some("organization") => match settings::text(&settings::ORGANIZATION_ID) {
            Some(organization) => Ok(Scope::One(Some(organization))),
            None => Err(Error::new(
                Code::ScopeDenied,
                "sayiir.scope is organization, but sayiir.organization_id is not set",
            )),
        },
        Some("all") => {
            let needed = match purpose {
                Use::Claim => c"sayiir_worker",
                Use::Other => c"sayiir_admin",
            };
            if !has_role(needed) {
                return Err(Error::new(
                    Code::ScopeDenied,
                    format!(
                        "sayiir.scope = all needs the role {}",
                        needed.to_string_lossy()
                    ),
                ));
            }
            Ok(Scope::All)
        }
        Some(other) => Err(Error::new(
            Code::ArgumentInvalid,
            format!("sayiir.scope is {other:?}: it takes global, organization or all"),
        )),
    }
}

/// The organization that a new row belongs to. Who asks is about to write.
pub fn owner(session: &Session, argument: Option<&str>) -> Result<Option<String>> {
    adopt::note_use(session);
    match resolve(session, argument, Use::Other)? {
        Scope::One(organization) => Ok(organization),
        Scope::All => Ok(None),
    }
}

impl Scope {
    /// (every organization?, the organization) as two arguments of a statement.
    pub fn args(&self) -> [Option<pg_sys::Datum>; 2] {
        match self {
            Self::All => [true.into_datum(), None],
            Self::One(organization) => [false.into_datum(), organization.as_deref().into_datum()],
        }
    }

    pub fn sees(&self, organization: Option<&str>) -> bool {
        match self {
            Self::All => true,
            Self::One(mine) => mine.as_deref() == organization,
        }
    }
}

fn bound_organization(session: &Session) -> Option<String> {
    let role = xact::caller();
    if let Some(known) = BOUND.with_borrow(|bound| bound.get(&role).cloned()) {
        return known;
    }
    let watch = store::cache::watch();
    let organization = store::role_scope::organization_of(session, role);
    if watch.may_keep() {
        BOUND.with_borrow_mut(|bound| bound.insert(role, organization.clone()));
    }
    organization
}

fn has_role(role: &std::ffi::CStr) -> bool {
    // SAFETY: catalog look-ups inside a transaction; a missing role answers InvalidOid.
    unsafe {
        let oid = pg_sys::get_role_oid(role.as_ptr(), true);
        oid != pg_sys::InvalidOid && pg_sys::has_privs_of_role(xact::caller(), oid)
    }
}
