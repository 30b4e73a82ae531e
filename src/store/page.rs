//! One page of a list. The statement of a list first sums the sizes of the rows that match, and
//! then loads only the rows that fit in the page.

use std::ops::{Deref, DerefMut};

use uuid::Uuid;

/// The maximum number of bytes that a page reads from the database, unless its first entry alone is
/// larger.
pub(super) const PAGE: i64 = 4 * 1024 * 1024;

/// Part of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Page<T> {
    /// The rows of this page.
    pub rows: Vec<T>,
    /// Whether more rows may follow.
    pub more: bool,
    /// The last id that was looked at, if it lies beyond the last row: the list goes on after it.
    pub looked_at: Option<Uuid>,
}

impl<T> Page<T> {
    /// A page of at most `limit` rows, out of `found` matches (counted up to `limit + 1`).
    pub(super) fn cut(mut rows: Vec<T>, found: i64, limit: i64) -> Self {
        rows.truncate(usize::try_from(limit).unwrap_or(0));
        let more = i64::try_from(rows.len()).is_ok_and(|count| count < found);
        Self {
            rows,
            more,
            looked_at: None,
        }
    }
}

impl<T> Deref for Page<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.rows
    }
}

impl<T> DerefMut for Page<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.rows
    }
}

impl<T> IntoIterator for Page<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.rows.into_iter()
    }
}
