//! jsonb that passes through unparsed: 0.1 µs a value, where parsing costs 1 to 166 µs.

use pgrx::IntoDatum as _;
use pgrx::callconv::{Arg, ArgAbi, BoxRet, FcInfo};
use pgrx::datum::Datum;
use pgrx::pg_sys;
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};

/// An opaque jsonb datum. It lives as long as the memory context it was made in: an argument for the whole call,
/// a column of a row until the SPI session ends.
#[derive(Clone, Copy)]
pub struct Jsonb(pub pg_sys::Datum);

impl Jsonb {
    pub fn from_value(value: &serde_json::Value) -> Self {
        Self::from_text(&value.to_string())
    }

    /// Parses JSON text. It comes from a serializer; what jsonb refuses even so (`\u0000`) raises as Postgres does.
    pub fn from_text(text: &str) -> Self {
        let text = std::ffi::CString::new(text).expect("serialized JSON has no NUL byte");
        // SAFETY: jsonb_in takes one cstring and returns a freshly allocated datum.
        let datum = unsafe {
            pgrx::direct_function_call_as_datum(pg_sys::jsonb_in, &[text.as_c_str().into_datum()])
        };
        Self(datum.expect("jsonb_in never returns NULL"))
    }

    /// The document as Postgres prints it.
    pub fn to_text(self) -> String {
        // SAFETY: the datum is a jsonb; jsonb_out returns a NUL-terminated cstring in the current context.
        unsafe {
            let datum = pgrx::direct_function_call_as_datum(pg_sys::jsonb_out, &[Some(self.0)])
                .expect("jsonb_out never returns NULL");
            std::ffi::CStr::from_ptr(datum.cast_mut_ptr())
                .to_string_lossy()
                .into_owned()
        }
    }

    /// The document as a value tree; for options, never for payloads that pass through. None = nested deeper than 127.
    pub fn to_value(self) -> Option<serde_json::Value> {
        serde_json::from_str(&self.to_text()).ok()
    }

    /// A copy that outlives the SPI session: detoasted, in `context`.
    pub fn copy_to(self, context: pg_sys::MemoryContext) -> Self {
        // SAFETY: context is a live memory context; the datum is a varlena.
        unsafe {
            let previous = pg_sys::MemoryContextSwitchTo(context);
            let copy = pg_sys::pg_detoast_datum_copy(self.0.cast_mut_ptr());
            pg_sys::MemoryContextSwitchTo(previous);
            Self(pg_sys::Datum::from(copy))
        }
    }

    /// A copy of the document as Postgres stores it, uncompressed: equal bytes are the same document.
    pub fn stored_bytes(self) -> Vec<u8> {
        // SAFETY: the datum is a varlena; detoasting answers it, or a copy, with a plain header, and the bytes behind it are copied.
        unsafe {
            let plain = pg_sys::pg_detoast_datum(self.0.cast_mut_ptr());
            pgrx::varlena::varlena_to_byte_slice(plain).to_vec()
        }
    }

    /// Whether it is an object.
    pub fn is_object(self) -> bool {
        // SAFETY: the datum is a jsonb; jsonb_typeof takes one and never returns NULL.
        let kind: Option<&str> =
            unsafe { pgrx::direct_function_call(pg_sys::jsonb_typeof, &[Some(self.0)]) };
        kind == Some("object")
    }

    /// Stored size in bytes, as it is (compressed or not).
    pub fn size(self) -> usize {
        // SAFETY: the datum is a varlena; this reads its header, at most its toast pointer.
        unsafe { pg_sys::toast_raw_datum_size(self.0) as usize }
    }
}

impl pgrx::IntoDatum for Jsonb {
    fn into_datum(self) -> Option<pg_sys::Datum> {
        Some(self.0)
    }

    fn type_oid() -> pg_sys::Oid {
        pg_sys::JSONBOID
    }
}

impl pgrx::FromDatum for Jsonb {
    unsafe fn from_polymorphic_datum(
        datum: pg_sys::Datum,
        is_null: bool,
        _: pg_sys::Oid,
    ) -> Option<Self> {
        (!is_null).then_some(Self(datum))
    }
}

// SAFETY: the argument's datum is passed on untouched.
unsafe impl<'fcx> ArgAbi<'fcx> for Jsonb {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // SAFETY: the SQL declaration says jsonb.
        unsafe { arg.unbox_arg_using_from_datum() }
            .expect("a jsonb argument that may be NULL is an Option")
    }

    unsafe fn unbox_nullable_arg(arg: Arg<'_, 'fcx>) -> pgrx::nullable::Nullable<Self> {
        // SAFETY: the SQL declaration says jsonb.
        unsafe { arg.unbox_arg_using_from_datum().into() }
    }
}

// SAFETY: the datum was copied into the caller's context before the SPI session ended.
unsafe impl BoxRet for Jsonb {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        // SAFETY: returned as it is.
        unsafe { fcinfo.return_raw_datum(self.0) }
    }
}

// SAFETY: it is a jsonb in SQL.
unsafe impl SqlTranslatable for Jsonb {
    const TYPE_IDENT: &'static str = pgrx::pgrx_resolved_type!(Jsonb);
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: Result<SqlMappingRef, ArgumentError> = Ok(SqlMappingRef::literal("jsonb"));
    const RETURN_SQL: Result<ReturnsRef, ReturnsError> =
        Ok(ReturnsRef::One(SqlMappingRef::literal("jsonb")));
}
