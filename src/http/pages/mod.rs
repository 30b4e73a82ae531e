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
mod shown_to;
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
use crate::task::decision::Decision;

/// Returns the data that was read, or `None` if the stored data is corrupt. A page then leaves the
/// data out.
fn unless_corrupt<T>(read: Result<T, ReadError>) -> Result<Option<T>, Problem> {
    match read {
        Ok(data) => Ok(Some(data)),
        Err(ReadError::Corrupt(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the reason for a whole answer or, without it, the reasons for the answer's calls, each
/// once. A form that names a call stores the person's reason with the call.
fn reasons(answer: &Decision) -> Vec<&str> {
    if let Some(reason) = answer.reason.as_deref() {
        return vec![reason];
    }
    let mut reasons: Vec<&str> = Vec::new();
    let calls = answer.decisions.values();
    for reason in calls.filter_map(|call| call.reason.as_deref()) {
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    reasons
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openapi::sample;
    use crate::task::decision::Action;

    #[test]
    fn reasons_of_an_answer_about_several_calls_are_each_named_once() {
        let row = sample::several(3);
        let calls = row.spec.own_calls().map(|call| call.tool_call_id);
        let calls: Vec<_> = calls.collect();
        let (_, mut answer) = sample::answer("bob", Action::Reject, &calls, true).unwrap();
        assert_eq!(reasons(&answer), ["So it is."]);
        let second = answer.decisions.get_mut(&calls[1]).unwrap();
        second.reason = Some("Too much.".to_owned());
        assert_eq!(reasons(&answer), ["So it is.", "Too much."]);
        answer.reason = Some("All of them.".to_owned());
        assert_eq!(reasons(&answer), ["All of them."]);
    }
}
