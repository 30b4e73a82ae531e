//! The operations on standing decisions, one file each.

pub(crate) mod end;
pub(crate) mod list;

use utoipa_axum::routes;

use crate::http::Operation;

pub(crate) fn operations() -> [Operation; 2] {
    [
        (&list::OP, routes!(list::list_grants)),
        (&end::OP, routes!(end::end_grant)),
    ]
}
