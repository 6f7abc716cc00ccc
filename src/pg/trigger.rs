//! The row of a trigger, as the engine takes it.

use std::ffi::{CStr, CString};

use pgrx::{PgTrigger, direct_function_call_as_datum, pg_sys};

use super::jsonb::Jsonb;

/// Why a trigger function does not run.
pub enum NoRow {
    /// Not a trigger on INSERT or UPDATE, FOR EACH ROW.
    Kind,
    /// The table has no column of this name.
    Column,
}

/// NEW of a row trigger.
pub struct Row {
    tuple: pg_sys::HeapTuple,
    descriptor: pg_sys::TupleDesc,
    /// Who owns the table.
    pub owner: pg_sys::Oid,
}

impl Row {
    pub fn new(trigger: &PgTrigger<'_>) -> Result<Self, NoRow> {
        let event = trigger.event();
        if !event.fired_for_row() || event.fired_by_delete() || event.fired_by_truncate() {
            return Err(NoRow::Kind);
        }
        let data = trigger.trigger_data();
        let tuple = if event.fired_by_update() {
            data.tg_newtuple
        } else {
            data.tg_trigtuple
        };
        // SAFETY: the executor keeps the relation open while its trigger runs.
        unsafe {
            Ok(Self {
                tuple,
                descriptor: (*data.tg_relation).rd_att,
                owner: (*(*data.tg_relation).rd_rel).relowner,
            })
        }
    }

    /// A column as text; Ok(None) = NULL.
    pub fn column(&self, name: &str) -> Result<Option<String>, NoRow> {
        let name = CString::new(name).map_err(|_| NoRow::Column)?;
        // SAFETY: tuple and descriptor belong together; a number above 0 is a column that exists. The text is in the current context.
        unsafe {
            let number = pg_sys::SPI_fnumber(self.descriptor, name.as_ptr());
            if number <= 0 {
                return Err(NoRow::Column);
            }
            let text = pg_sys::SPI_getvalue(self.tuple, self.descriptor, number);
            Ok((!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned()))
        }
    }

    /// The row as `to_jsonb(NEW)` gives it. A column's type may have a cast to json of its own, which is somebody's function: it runs as
    /// the table's owner, who chose the type, and not with the rights that a SECURITY DEFINER function has.
    pub fn to_jsonb(&self) -> Jsonb {
        let text = self.as_owner(|| {
            // SAFETY: row_to_json takes a composite datum and returns a text; both are in the current context.
            unsafe {
                let row = pg_sys::heap_copy_tuple_as_datum(self.tuple, self.descriptor);
                let json = direct_function_call_as_datum(pg_sys::row_to_json, &[Some(row)])
                    .expect("row_to_json never returns NULL");
                <String as pgrx::FromDatum>::from_datum(json, false).expect("it is not NULL")
            }
        });
        Jsonb::from_text(&text)
    }

    fn as_owner<R>(&self, work: impl FnOnce() -> R) -> R {
        let mut user = pg_sys::InvalidOid;
        let mut context = 0;
        // SAFETY: as index maintenance does it; an error restores both with the (sub)transaction.
        unsafe {
            pg_sys::GetUserIdAndSecContext(&mut user, &mut context);
            pg_sys::SetUserIdAndSecContext(
                self.owner,
                context | pg_sys::SECURITY_RESTRICTED_OPERATION as i32,
            );
            let result = work();
            pg_sys::SetUserIdAndSecContext(user, context);
            result
        }
    }
}
