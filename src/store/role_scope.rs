//! `role_scope`: which role is bound to which organization.

use pgrx::pg_sys;

use crate::args;
use crate::pg::spi::{Session, Statement};
use crate::pg::types::OID;

pub fn organization_of(session: &Session, role: pg_sys::Oid) -> Option<String> {
    // role_scope_pkey, after pg_authid's oid index
    static OF_ROLE: Statement = Statement::new(
        &[OID],
        "SELECT s.organization_id
         FROM pg_catalog.pg_roles r
         JOIN sayiir.role_scope s ON s.role_name = r.rolname
         WHERE r.oid = $1",
    );
    OF_ROLE
        .run(session, args![role])
        .first()
        .map(|row| row.get(1))
}
