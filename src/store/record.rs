//! Rows of either engine as structs.

use sqlx::FromRow;
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;

/// A type that can be read from a row of either engine.
pub(super) trait Record:
    for<'r> FromRow<'r, PgRow> + for<'r> FromRow<'r, SqliteRow> + Send + Unpin
{
}

impl<R> Record for R where
    R: for<'r> FromRow<'r, PgRow> + for<'r> FromRow<'r, SqliteRow> + Send + Unpin
{
}

/// Declares a struct that is read from a row, each field from the column of its name. A field that
/// is marked `=> flatten` is itself a record and reads its own columns.
///
/// A macro of ours, because sqlx's derive compiles both database drivers a second time, for the
/// machine that builds.
macro_rules! record {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$about:meta])* $seen:vis $field:ident: $kind:ty $(=> $how:ident)?),* $(,)?
    }) => {
        $(#[$meta])*
        $vis struct $name {
            $($(#[$about])* $seen $field: $kind),*
        }
        record!(@read sqlx::postgres::PgRow, $name { $($field $($how)?),* });
        record!(@read sqlx::sqlite::SqliteRow, $name { $($field $($how)?),* });
    };
    (@read $row:ty, $name:ident { $($field:ident $($how:ident)?),* }) => {
        impl<'r> sqlx::FromRow<'r, $row> for $name {
            fn from_row(row: &'r $row) -> Result<Self, sqlx::Error> {
                let _ = row; // A record without fields only counts rows.
                Ok(Self { $($field: record!(@field row $field $($how)?)),* })
            }
        }
    };
    (@field $row:ident $field:ident) => { sqlx::Row::try_get($row, stringify!($field))? };
    (@field $row:ident $field:ident flatten) => { sqlx::FromRow::from_row($row)? };
}
pub(super) use record;
