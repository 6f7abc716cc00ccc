//! What a trigger may do: the rights of its table's owner.

use pgrx::pg_sys;

use crate::args;
use crate::pg::spi::{Session, Statement};
use crate::pg::types::{OID, TEXT};

/// Whether this role may call the function of ours.
pub fn may_call(session: &Session, role: pg_sys::Oid, function: &str) -> bool {
    // pg_proc_proname_args_nsp_index
    static MAY_CALL: Statement = Statement::new(
        &[OID, TEXT],
        "SELECT has_schema_privilege($1, p.pronamespace, 'USAGE') AND has_function_privilege($1, p.oid, 'EXECUTE')
         FROM pg_catalog.pg_proc p
         WHERE p.proname = $2::name AND p.pronamespace = 'sayiir'::regnamespace",
    );
    MAY_CALL
        .run(session, args![role, function])
        .first()
        .is_some_and(|row| row.get(1))
}
