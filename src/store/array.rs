//! JSON arrays, taken apart by Postgres: their elements pass through unparsed.

use crate::args;
use crate::pg::jsonb::Jsonb;
use crate::pg::spi::{Session, Statement};
use crate::pg::types::{INT4, JSONB};

/// The elements of a JSON array, in order.
pub fn elements(session: &Session, array: Jsonb) -> Vec<Jsonb> {
    static ELEMENTS: Statement = Statement::new(&[JSONB], "SELECT * FROM jsonb_array_elements($1)");
    ELEMENTS
        .run(session, args![array])
        .iter()
        .map(|row| row.get(1))
        .collect()
}

/// Element `n` (from 0) of a JSON array.
pub fn element(session: &Session, array: Jsonb, n: i32) -> Jsonb {
    static ELEMENT: Statement = Statement::new(&[JSONB, INT4], "SELECT $1 -> $2");
    ELEMENT
        .run(session, args![array, n])
        .first()
        .expect("one row")
        .get(1)
}

/// Number of elements; None when it is not an array.
pub fn length(session: &Session, array: Jsonb) -> Option<i32> {
    static LENGTH: Statement = Statement::new(
        &[JSONB],
        "SELECT CASE WHEN jsonb_typeof($1) = 'array' THEN jsonb_array_length($1) END",
    );
    LENGTH
        .run(session, args![array])
        .first()
        .and_then(|row| row.opt(1))
}
