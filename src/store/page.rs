//! Reads lists page by page. The statements for tasks and for requests first add up the sizes of
//! the matching rows, and then load the rows that fit in the page.

use std::ops::Deref;

use uuid::Uuid;

use super::{ReadError, Store};

/// The maximum number of bytes that one statement reads for a page. If the first row alone is
/// larger, the statement reads only this row.
pub(super) const MAX_PAGE_BYTES: i64 = 4 * 1024 * 1024;

/// One page of a list, with the position of the next page.
#[derive(Clone, Debug, PartialEq)]
pub struct Page<T> {
    /// The rows of this page, in the order of the list.
    pub rows: Vec<T>,
    /// Whether more rows may follow.
    pub more: bool,
    /// The id after which the next page begins. If `None`, the next page begins after the last row
    /// of this page. The id is `Some` in two cases:
    /// - The page ended early, after a search of `MAX_SCANNED_IDS` ids. The value is the last of
    ///   these ids, which may have no row in the page.
    /// - [`Page::retain`] was called, and may have dropped the last row. The value is the id after
    ///   which the next page would have begun without the call.
    pub scanned_to: Option<Uuid>,
}

impl<T> Page<T> {
    /// Returns the page of an empty list.
    #[must_use]
    pub const fn empty() -> Self {
        Self {
            rows: Vec::new(),
            more: false,
            scanned_to: None,
        }
    }

    /// Makes a page of the first `limit` rows. More rows follow if `found` is greater than the
    /// number of these rows. `found` is the number of matches, counted up to `limit + 1`. It may be
    /// 0 if no more rows follow.
    pub(super) fn cut(mut rows: Vec<T>, found: i64, limit: i64) -> Self {
        rows.truncate(usize::try_from(limit).unwrap_or(0));
        let more = i64::try_from(rows.len()).is_ok_and(|count| count < found);
        Self {
            rows,
            more,
            scanned_to: None,
        }
    }

    /// Drops the rows that `keep` refuses. This does not change where the next page begins. `id`
    /// returns the id of a row.
    #[must_use]
    pub fn retain(mut self, id: impl Fn(&T) -> Uuid, keep: impl Fn(&T) -> bool) -> Self {
        self.scanned_to = self.scanned_to.or(self.rows.last().map(id));
        self.rows.retain(keep);
        self
    }

    /// Returns the id after which the next page begins; `None` if no rows follow. `id` returns the
    /// id of a row.
    pub fn next(&self, id: impl Fn(&T) -> Uuid) -> Option<Uuid> {
        let last = self.scanned_to.or(self.rows.last().map(id));
        last.filter(|_| self.more)
    }
}

/// The maximum number of ids that are looked at for one page. The page ends early at this number.
const MAX_SCANNED_IDS: i64 = 2_000;
/// The minimum number of ids that the first step of a page asks for, if the list is inexact (see
/// `IdsFirst::is_inexact`). The minimum grows fourfold with each further step, up to
/// `MAX_FILTERED_STEP`.
const FIRST_FILTERED_STEP: i64 = 500;
const MAX_FILTERED_STEP: i64 = 1_500;

/// A list whose pages are read in steps. Each step finds a limited number of ids, and then reads
/// the rows of these ids that match the filter. A page looks at no more than `MAX_SCANNED_IDS` ids,
/// so its cost does not grow with the number of rows that do not match.
pub(super) trait IdsFirst: Sync {
    type Row: Send;
    /// An id, perhaps with values that `matching` needs.
    type Id: Copy + Into<Uuid> + Send;

    /// Whether `ids` may also return ids of rows that do not match the filter. `matching` then
    /// leaves them out.
    fn is_inexact(&self) -> bool;

    /// Finds at most `limit` ids after `after`, in the order of the list.
    fn ids(
        &self,
        store: &Store,
        after: Uuid,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<Self::Id>, ReadError>> + Send;

    /// Reads at most `limit` rows that have one of these ids and match the filter.
    fn matching(
        &self,
        store: &Store,
        ids: Vec<Self::Id>,
        limit: i64,
    ) -> impl Future<Output = Result<Page<Self::Row>, ReadError>> + Send;

    /// Like `matching`, but leaves out rows that cannot be decoded, so that a damaged row does not
    /// hide the others. If `matching` fails because of a damaged row, reads each half of the ids by
    /// itself.
    fn readable(
        &self,
        store: &Store,
        ids: Vec<Self::Id>,
        limit: i64,
    ) -> impl Future<Output = Result<Page<Self::Row>, ReadError>> + Send {
        async move {
            let (mut parts, mut rows) = (vec![ids], Vec::new());
            while let Some(mut ids) = parts.pop() {
                let remaining = limit - i64::try_from(rows.len()).unwrap_or(limit);
                match self.matching(store, ids.clone(), remaining).await {
                    Ok(page) => {
                        rows.extend(page.rows);
                        if page.more {
                            return Ok(Page {
                                rows,
                                more: true,
                                scanned_to: None,
                            });
                        }
                    }
                    Err(ReadError::Corrupt(_)) if ids.len() > 1 => {
                        let second = ids.split_off(ids.len() / 2);
                        parts.extend([second, ids]);
                    }
                    Err(ReadError::Corrupt(_)) => {
                        let damaged = ids.into_iter().map(Into::into);
                        damaged.for_each(|id| store.log_left_out(id));
                    }
                    Err(error) => return Err(error),
                }
            }
            Ok(Page {
                rows,
                ..Page::empty()
            })
        }
    }

    /// Reads one page of at most `limit` rows after `after`. Leaves out rows that cannot be
    /// decoded. The page ends early after [`MAX_SCANNED_IDS`] ids.
    fn page(
        &self,
        store: &Store,
        limit: i64,
        mut after: Uuid,
    ) -> impl Future<Output = Result<Page<Self::Row>, ReadError>> + Send {
        async move {
            let (mut rows, mut scanned, mut step) = (Vec::new(), 0, FIRST_FILTERED_STEP);
            loop {
                let remaining = limit - i64::try_from(rows.len()).unwrap_or(limit);
                let next = remaining.saturating_add(1);
                let chunk = if self.is_inexact() {
                    next.max(step)
                } else {
                    next
                };
                let chunk = chunk.min(MAX_SCANNED_IDS - scanned);
                step = (4 * step).min(MAX_FILTERED_STEP);
                let ids = self.ids(store, after, chunk).await?;
                let found = i64::try_from(ids.len()).unwrap_or(chunk);
                let is_exhausted = found < chunk;
                scanned += found;
                let Some(last) = ids.last().map(|id| (*id).into()) else {
                    return Ok(Page::cut(rows, 0, limit));
                };
                after = last;
                let page = self.readable(store, ids, remaining).await?;
                rows.extend(page.rows);
                if page.more || is_exhausted || scanned >= MAX_SCANNED_IDS {
                    return Ok(Page {
                        rows,
                        more: page.more || !is_exhausted,
                        scanned_to: (!page.more && !is_exhausted).then_some(after),
                    });
                }
            }
        }
    }
}

impl<T> Deref for Page<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.rows
    }
}

impl<T> IntoIterator for Page<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.rows.into_iter()
    }
}
