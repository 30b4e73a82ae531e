//! The pages that a person sees in a browser, in English and Chinese.

pub(crate) mod error_texts;
pub(crate) mod follow;
pub(crate) mod grants;
pub(crate) mod inbox;
pub(crate) mod language;
pub(crate) mod layout;
pub(crate) mod link;
pub(crate) mod problems;
pub(crate) mod request;
pub(crate) mod resume;
pub(crate) mod sign_in;
pub(crate) mod site;
pub(crate) mod site_texts;
pub(crate) mod tasks;
pub(crate) mod times;
pub(crate) mod translations;

use self::request::single_action;
use super::server::operation::{Operation, operation};
use super::server::problem::Problem;
use crate::store::ReadError;

/// Returns the data that was read; `None` if the stored data is corrupt, so that a page can leave
/// the data out.
fn unless_corrupt<T>(read: Result<T, ReadError>) -> Result<Option<T>, Problem> {
    match read {
        Ok(data) => Ok(Some(data)),
        Err(ReadError::Corrupt(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the operations of the pages, without the scripts, the pages about problems, and the
/// operations in `resume/`.
pub(super) fn operations() -> Vec<Operation> {
    vec![
        operation!(inbox::home::OP, inbox::home::get_home),
        operation!(inbox::list::OP, inbox::list::get_inbox),
        operation!(inbox::decided::OP, inbox::decided::get_decided),
        operation!(tasks::list::OP, tasks::list::get_tasks_page),
        operation!(tasks::show::OP, tasks::show::get_task_page),
        operation!(tasks::cancel::OP, tasks::cancel::cancel_task_here),
        operation!(grants::list::OP, grants::list::get_grants_page),
        operation!(grants::end::OP, grants::end::end_grant_here),
        operation!(single_action::APPROVE, single_action::get_approve_page),
        operation!(single_action::REJECT, single_action::get_reject_page),
        operation!(link::show::OP, link::show::get_link_page),
        operation!(link::decide::OP, link::decide::decide_by_link),
        operation!(sign_in::show::OP, sign_in::show::get_sign_in),
        operation!(sign_in::start_session::OP, sign_in::start_session::sign_in),
        operation!(sign_in::end_session::OP, sign_in::end_session::sign_out),
    ]
}
