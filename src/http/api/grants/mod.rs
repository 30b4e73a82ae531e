//! The operations on standing decisions, one file each.

pub(crate) mod end;
pub(crate) mod list;

use crate::http::server::operation::{Operation, operation};

pub(crate) fn operations() -> [Operation; 2] {
    [
        operation!(list::OP, list::list_grants),
        operation!(end::OP, end::end_grant),
    ]
}
