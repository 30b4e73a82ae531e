//! The pages that a person sees in a browser, in English and Chinese.

pub(crate) mod follow;
pub(crate) mod grants;
pub(crate) mod inbox;
pub(crate) mod language;
pub(crate) mod layout;
pub(crate) mod link;
pub(crate) mod request;
pub(crate) mod sign_in;
pub(crate) mod site;
pub(crate) mod site_texts;
pub(crate) mod tasks;
pub(crate) mod translations;

use utoipa_axum::routes;

use self::request::{approve_page, reject_page};
use super::Operation;
use super::server::problem::Problem;
use crate::store::ReadError;

/// The paths of the pages whose content depends on the caller. Caches must not store the responses
/// at and below these paths.
pub(crate) const PATHS: [&str; 7] = [
    "/resume",
    "/l",
    "/sign-in",
    "/sign-out",
    "/inbox",
    "/tasks",
    "/grants",
];

/// Returns the path of the page to which a reader can return from a problem at `path`. If `path`
/// has no page, because only a form posts to it, this is the page with the form.
pub(super) fn page_path(path: &str) -> &str {
    if path.starts_with("/grants/") {
        return "/grants";
    }
    let task = path.strip_suffix("/cancel");
    task.filter(|task| task.starts_with("/tasks/"))
        .unwrap_or(path)
}

/// Returns the data that was read; `None` if the stored data is corrupt, so that a page can leave
/// it out.
fn unless_corrupt<T>(read: Result<T, ReadError>) -> Result<Option<T>, Problem> {
    match read {
        Ok(data) => Ok(Some(data)),
        Err(ReadError::Corrupt(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the operations of the pages, without the scripts, and without the page of a request
/// (`api/requests/show.rs`).
pub(super) fn operations() -> Vec<Operation> {
    vec![
        (&inbox::home::OP, routes!(inbox::home::get_home)),
        (&inbox::list::OP, routes!(inbox::list::get_inbox)),
        (&inbox::decided::OP, routes!(inbox::decided::get_decided)),
        (&tasks::list::OP, routes!(tasks::list::get_tasks_page)),
        (&tasks::show::OP, routes!(tasks::show::get_task_page)),
        (&tasks::cancel::OP, routes!(tasks::cancel::cancel_task_here)),
        (&grants::list::OP, routes!(grants::list::get_grants_page)),
        (&grants::end::OP, routes!(grants::end::end_grant_here)),
        (&approve_page::OP, routes!(approve_page::get_approve_page)),
        (&reject_page::OP, routes!(reject_page::get_reject_page)),
        (&link::show::OP, routes!(link::show::get_link_page)),
        (&link::decide::OP, routes!(link::decide::decide_by_link)),
        (&sign_in::show::OP, routes!(sign_in::show::get_sign_in)),
        (
            &sign_in::start_session::OP,
            routes!(sign_in::start_session::sign_in),
        ),
        (
            &sign_in::end_session::OP,
            routes!(sign_in::end_session::sign_out),
        ),
    ]
}
