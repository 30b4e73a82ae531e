//! Reads rows of both engines (`SQLite` and Postgres) into structs.

use rusqlite::types::FromSql;
use sqlx::postgres::{PgRow, Postgres};
use sqlx::{Decode, Type};
use uuid::Uuid;

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
/// that is marked `=> flatten` is itself a record and reads its own columns.
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

/// A row with a single column.
pub(super) struct SingleColumn<T>(pub(super) T);

impl<T> Record for SingleColumn<T>
where
    T: FromSql + Type<Postgres> + for<'r> Decode<'r, Postgres> + Send + 'static,
{
    fn from_postgres(row: &PgRow) -> Result<Self, sqlx::Error> {
        sqlx::Row::try_get(row, 0).map(Self)
    }

    fn from_sqlite(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        row.get(0).map(Self)
    }
}
