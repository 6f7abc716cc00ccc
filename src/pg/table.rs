//! What a set-returning function answers: rows of a composite type, put into the executor's tuple store at once.

use pgrx::callconv::{BoxRet, FcInfo};
use pgrx::datum::Datum;
use pgrx::pg_sys;
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};

/// One row of the answer.
pub enum Line {
    /// A row that a statement returned with the columns of the declared type, in order.
    Tuple(pg_sys::HeapTuple),
    /// One datum a column; None = NULL.
    Values(Vec<Option<pg_sys::Datum>>),
}

/// The rows of the answer, in order.
#[derive(Default)]
pub struct Table(pub Vec<Line>);

impl Table {
    pub fn one(values: Vec<Option<pg_sys::Datum>>) -> Self {
        Self(vec![Line::Values(values)])
    }
}

/// One row from its columns, in the order of the declared type. Only behind an SPI session, never within it: the datums live in the
/// current memory context, and a session's own ends with it.
#[macro_export]
macro_rules! columns {
    ($($value:expr),* $(,)?) => { vec![$(pgrx::IntoDatum::into_datum($value)),*] };
}

// SAFETY: fills the tuple store in the per-query context as SFRM_Materialize asks for.
unsafe impl BoxRet for Table {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        // SAFETY: the function is declared SETOF a composite type, so the executor passes a ReturnSetInfo with an expected
        // descriptor; the store and the copied descriptor live in the query's context.
        unsafe {
            let info = fcinfo.as_mut_ptr();
            let result = (*info).resultinfo.cast::<pg_sys::ReturnSetInfo>();
            assert!(
                !result.is_null() && !(*result).expectedDesc.is_null(),
                "called where rows are not accepted: use SELECT * FROM"
            );
            let previous =
                pg_sys::MemoryContextSwitchTo((*(*result).econtext).ecxt_per_query_memory);
            let descriptor = pg_sys::CreateTupleDescCopy((*result).expectedDesc);
            let store = pg_sys::tuplestore_begin_heap(true, false, pg_sys::work_mem);
            pg_sys::MemoryContextSwitchTo(previous);
            for line in self.0 {
                match line {
                    Line::Tuple(tuple) => pg_sys::tuplestore_puttuple(store, tuple),
                    Line::Values(columns) => {
                        assert_eq!(
                            columns.len(),
                            (*descriptor).natts as usize,
                            "columns of the answer"
                        );
                        let mut nulls: Vec<bool> = columns.iter().map(Option::is_none).collect();
                        let mut values: Vec<pg_sys::Datum> = columns
                            .into_iter()
                            .map(|value| value.unwrap_or(pg_sys::Datum::from(0)))
                            .collect();
                        pg_sys::tuplestore_putvalues(
                            store,
                            descriptor,
                            values.as_mut_ptr(),
                            nulls.as_mut_ptr(),
                        );
                    }
                }
            }
            (*result).returnMode = pg_sys::SetFunctionReturnMode::SFRM_Materialize;
            (*result).setResult = store;
            (*result).setDesc = descriptor;
            fcinfo.return_null()
        }
    }
}

// SAFETY: never used to generate SQL: every declaration is written by hand in sql/parts.
unsafe impl SqlTranslatable for Table {
    const TYPE_IDENT: &'static str = pgrx::pgrx_resolved_type!(Table);
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: Result<SqlMappingRef, ArgumentError> = Err(ArgumentError::Table);
    const RETURN_SQL: Result<ReturnsRef, ReturnsError> =
        Ok(ReturnsRef::One(SqlMappingRef::literal("record")));
}
