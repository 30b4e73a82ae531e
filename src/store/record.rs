//! Reads rows of both engines (`SQLite` and Postgres) into structs.

use rusqlite::types::{FromSql, FromSqlResult, ValueRef};
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgRow, PgTypeInfo, PgValueRef, Postgres};
use sqlx::{Decode, Type};
use uuid::Uuid;

use crate::task::id::{ChangeId, RequestId, TaskId};
use crate::task::time::Time;

/// A type that can be read from a row of either engine.
pub(super) trait Record: Sized + Send + 'static {
    fn from_postgres(row: &PgRow) -> Result<Self, sqlx::Error>;
    fn from_sqlite(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self>;
}

/// A record that belongs to a group of rows, such as an item to its task.
pub(super) trait Keyed: Record {
    /// Returns the key of the record's group.
    fn key(&self) -> Uuid;
}

/// Declares a struct that is read from a row, each field from the column of the same name. A field
/// that is marked `=> flatten` is itself a record and reads its own columns. With `impl`, the struct
/// is declared elsewhere.
///
/// This macro replaces the derive macro of sqlx, which does not read the rows of `rusqlite`.
macro_rules! record {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$about:meta])* $seen:vis $field:ident: $kind:ty $(=> $how:ident)?),* $(,)?
    }) => {
        $(#[$meta])*
        $vis struct $name {
            $($(#[$about])* $seen $field: $kind),*
        }
        record!(impl $name { $($field $(=> $how)?),* });
    };
    (impl $name:ident { $($field:ident $(=> $how:ident)?),* $(,)? }) => {
        impl $crate::store::record::Record for $name {
            fn from_postgres(row: &sqlx::postgres::PgRow) -> Result<Self, sqlx::Error> {
                let _ = row; // A record without fields does not use the row.
                Ok(Self { $($field: record!(@postgres row $field $($how)?)),* })
            }

            fn from_sqlite(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
                let _ = row;
                Ok(Self { $($field: record!(@sqlite row $field $($how)?)),* })
            }
        }
    };
    (@postgres $row:ident $field:ident) => { sqlx::Row::try_get($row, stringify!($field))? };
    (@postgres $row:ident $field:ident flatten) => { $crate::store::record::Record::from_postgres($row)? };
    (@sqlite $row:ident $field:ident) => { $row.get(stringify!($field))? };
    (@sqlite $row:ident $field:ident flatten) => { $crate::store::record::Record::from_sqlite($row)? };
}
pub(super) use record;

record! {
    /// A row that is only counted.
    pub(super) struct AnyRow {}
}

/// A type that is read from one column.
pub(super) trait ColumnValue:
    FromSql + Type<Postgres> + for<'r> Decode<'r, Postgres> + Send + 'static
{
}

impl<T> ColumnValue for T where
    T: FromSql + Type<Postgres> + for<'r> Decode<'r, Postgres> + Send + 'static
{
}

/// Reads a row with two columns.
impl<A: ColumnValue, B: ColumnValue> Record for (A, B) {
    fn from_postgres(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok((sqlx::Row::try_get(row, 0)?, sqlx::Row::try_get(row, 1)?))
    }

    fn from_sqlite(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        Ok((row.get(0)?, row.get(1)?))
    }
}

/// Reads these types from a row with a single column.
macro_rules! single_column {
    ($($kind:ty),*) => {
        $(impl Record for $kind {
            fn from_postgres(row: &PgRow) -> Result<Self, sqlx::Error> {
                sqlx::Row::try_get(row, 0)
            }

            fn from_sqlite(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
                row.get(0)
            }
        })*
    };
}
single_column!(i64, Option<i64>, String, Uuid, RequestId, TaskId, Time);

/// Reads these types from a column of the type that they wrap.
macro_rules! wrapped {
    ($($name:ident($kind:ty)),*) => {
        $(impl Type<Postgres> for $name {
            fn type_info() -> PgTypeInfo {
                <$kind as Type<Postgres>>::type_info()
            }
        }

        impl<'r> Decode<'r, Postgres> for $name {
            fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
                <$kind as Decode<'r, Postgres>>::decode(value).map(Self)
            }
        }

        impl FromSql for $name {
            fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
                <$kind as FromSql>::column_result(value).map(Self)
            }
        })*
    };
}
wrapped!(ChangeId(Uuid), RequestId(Uuid), TaskId(Uuid), Time(i64));
