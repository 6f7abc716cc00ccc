//! Kept statements over SPI.
//!
//! One plan a statement for the life of the backend, planned generically once: parsing or planning on each call would cost
//! 2.4 to 4.2 times the statement. Every execution sees a fresh snapshot (READ COMMITTED), also before an xid exists, and a
//! statement that writes nothing assigns none.

use std::ffi::CString;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, Ordering};

use pgrx::{FromDatum, pg_sys};

/// An SPI session: rows read in it live until it ends.
pub struct Session {
    /// Where results that outlive the session are copied: the context of the calling function.
    pub upper: pg_sys::MemoryContext,
}

/// Opens an SPI session around `work`. A panic in `work` leaves it to the transaction's abort, as any Postgres error does.
pub fn connect<R>(work: impl FnOnce(&Session) -> R) -> R {
    // SAFETY: CurrentMemoryContext is this backend's; connect and finish are paired on the normal path.
    unsafe {
        let session = Session {
            upper: pg_sys::CurrentMemoryContext,
        };
        let code = pg_sys::SPI_connect();
        assert_eq!(code, pg_sys::SPI_OK_CONNECT as i32, "SPI_connect");
        let result = work(&session);
        pg_sys::SPI_finish();
        result
    }
}

/// A statement and its kept plan. SQL text is a constant; nothing from a user is ever part of it.
pub struct Statement {
    sql: &'static str,
    types: &'static [pg_sys::Oid],
    plan: AtomicPtr<pg_sys::_SPI_plan>,
}

impl Statement {
    pub const fn new(types: &'static [pg_sys::Oid], sql: &'static str) -> Self {
        Self {
            sql,
            types,
            plan: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    fn plan(&self) -> pg_sys::SPIPlanPtr {
        let kept = self.plan.load(Ordering::Relaxed);
        if !kept.is_null() {
            return kept;
        }
        let sql = CString::new(self.sql).expect("SQL text has no NUL byte");
        // SAFETY: inside an SPI session; the argument types are copied by the callee; the kept plan lives in its own context.
        unsafe {
            let plan = pg_sys::SPI_prepare_cursor(
                sql.as_ptr(),
                self.types.len() as i32,
                self.types.as_ptr().cast_mut(),
                pg_sys::CURSOR_OPT_GENERIC_PLAN as i32,
            );
            assert!(!plan.is_null(), "statement does not prepare: {}", self.sql);
            pg_sys::SPI_keepplan(plan);
            self.plan.store(plan, Ordering::Relaxed);
            plan
        }
    }

    /// Runs the statement. `args` match the declared types in number and order.
    pub fn run<'s>(&self, _session: &'s Session, args: &[Option<pg_sys::Datum>]) -> Rows<'s> {
        assert_eq!(args.len(), self.types.len(), "arguments of {}", self.sql);
        let plan = self.plan();
        let mut values = [pg_sys::Datum::from(0); MAX_ARGS];
        let mut nulls = [b' ' as std::ffi::c_char; MAX_ARGS];
        for (n, arg) in args.iter().enumerate() {
            match arg {
                Some(datum) => values[n] = *datum,
                None => nulls[n] = b'n' as std::ffi::c_char,
            }
        }
        // SAFETY: values and nulls have room for every argument; a negative code is a programming error.
        unsafe {
            let code =
                pg_sys::SPI_execute_plan(plan, values.as_mut_ptr(), nulls.as_ptr(), false, 0);
            assert!(
                code >= 0,
                "SPI_execute_plan returned {code} for {}",
                self.sql
            );
            Rows {
                table: pg_sys::SPI_tuptable,
                count: pg_sys::SPI_processed as usize,
                session: PhantomData,
            }
        }
    }
}

/// Most arguments of one statement.
const MAX_ARGS: usize = 32;

/// The rows of one execution.
pub struct Rows<'s> {
    table: *mut pg_sys::SPITupleTable,
    count: usize,
    session: PhantomData<&'s Session>,
}

impl<'s> Rows<'s> {
    /// Rows returned, or affected by a statement that returns none.
    pub fn count(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn iter(&self) -> impl Iterator<Item = Row<'s>> + '_ {
        let count = if self.table.is_null() { 0 } else { self.count };
        (0..count).map(|n| self.row(n))
    }

    pub fn first(&self) -> Option<Row<'s>> {
        (!self.table.is_null() && self.count > 0).then(|| self.row(0))
    }

    fn row(&self, n: usize) -> Row<'s> {
        // SAFETY: n < count, checked by both callers.
        unsafe {
            Row {
                tuple: *(*self.table).vals.add(n),
                descriptor: (*self.table).tupdesc,
                session: PhantomData,
            }
        }
    }
}

/// One row; columns are counted from 1.
#[derive(Clone, Copy)]
pub struct Row<'s> {
    tuple: pg_sys::HeapTuple,
    descriptor: pg_sys::TupleDesc,
    session: PhantomData<&'s Session>,
}

impl Row<'_> {
    /// A nullable column.
    pub fn opt<T: FromDatum>(&self, column: i32) -> Option<T> {
        let mut is_null = false;
        // SAFETY: the tuple and its descriptor belong together; the caller names a column of the statement it wrote.
        unsafe {
            let datum = pg_sys::SPI_getbinval(self.tuple, self.descriptor, column, &mut is_null);
            T::from_polymorphic_datum(
                datum,
                is_null,
                pg_sys::SPI_gettypeid(self.descriptor, column),
            )
        }
    }

    /// A column that the statement never returns as NULL.
    pub fn get<T: FromDatum>(&self, column: i32) -> T {
        self.opt(column)
            .unwrap_or_else(|| panic!("column {column} is NULL"))
    }

    /// The first `count` columns, copied to where the caller of the SQL function can still read them.
    pub fn keep_columns(&self, count: i32) -> super::table::Line {
        let copy = |column: i32| {
            let mut is_null = false;
            // SAFETY: the tuple and its descriptor belong together; SPI_datumTransfer copies into the context that called SPI_connect.
            unsafe {
                let datum =
                    pg_sys::SPI_getbinval(self.tuple, self.descriptor, column, &mut is_null);
                let attribute = &*tuple_attribute(self.descriptor, column);
                (!is_null).then(|| {
                    pg_sys::SPI_datumTransfer(
                        datum,
                        attribute.attbyval,
                        i32::from(attribute.attlen),
                    )
                })
            }
        };
        super::table::Line::Values((1..=count).map(copy).collect())
    }

    /// The whole row, copied to where the caller of the SQL function can still read it.
    pub fn keep(&self, session: &Session) -> super::table::Line {
        // SAFETY: upper is a live context; heap_copytuple copies the tuple into the current one.
        unsafe {
            let previous = pg_sys::MemoryContextSwitchTo(session.upper);
            let copy = pg_sys::heap_copytuple(self.tuple);
            pg_sys::MemoryContextSwitchTo(previous);
            super::table::Line::Tuple(copy)
        }
    }
}

/// A column's attribute, counted from 1.
///
/// # Safety
/// `column` is within the descriptor.
unsafe fn tuple_attribute(
    descriptor: pg_sys::TupleDesc,
    column: i32,
) -> *const pg_sys::FormData_pg_attribute {
    // SAFETY: promised by the caller. Postgres 18 keeps the attributes behind the array of their compact forms.
    #[cfg(feature = "pg18")]
    unsafe {
        let compact = (*descriptor).compact_attrs.as_ptr();
        compact
            .add((*descriptor).natts as usize)
            .cast::<pg_sys::FormData_pg_attribute>()
            .add(column as usize - 1)
    }
    // SAFETY: promised by the caller.
    #[cfg(not(feature = "pg18"))]
    unsafe {
        (*descriptor).attrs.as_ptr().add(column as usize - 1)
    }
}

/// Arguments of a statement, each converted to a datum.
#[macro_export]
macro_rules! args {
    ($($arg:expr),* $(,)?) => { &[$(pgrx::IntoDatum::into_datum($arg)),*] };
}
