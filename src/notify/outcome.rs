//! The outcome of a question, as text for a message to a chat room.

use super::chat::{format_time, single_line};
use crate::store::RequestRow;
use crate::task::decision::Action;
use crate::task::request_state::RequestState;
use crate::task::status::RequestStatus;
use crate::task::user::UserIds;

const MAX_PERSON_CHARS: usize = 64;

/// The state of a question after its first answer or its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct QuestionOutcome {
    pub(super) is_open: bool,
    /// For an open question: the number of approvals so far, or that the question is partly
    /// answered. For a closed question: the decision with its person and time, or that the question
    /// expired or was withdrawn.
    pub(super) text: String,
}

impl QuestionOutcome {
    /// Returns the outcome of a request as it is now; `None` if the request is open and has no
    /// answer.
    pub(super) fn from_request(row: &RequestRow, ids: UserIds) -> Option<Self> {
        let state = row.state();
        if state.is_open() {
            return approvals_text(&state, ids).map(|text| Self {
                is_open: true,
                text,
            });
        }
        let text = match row.status {
            RequestStatus::Responded | RequestStatus::Resumed => decision_text(&state, row),
            RequestStatus::Withdrawn => "Withdrawn".to_owned(),
            RequestStatus::Pending | RequestStatus::Expired => {
                let at = row
                    .expires_at
                    .map(|at| format_time(at, Some(row.created_at)));
                format!("Expired, {}", at.unwrap_or_default())
            }
        };
        Some(Self {
            is_open: false,
            text,
        })
    }
}

/// Describes the answers to an open request; `None` if there is no answer. If every undecided call
/// has an approval, the text gives the number of approvals of the call that has the fewest.
/// Otherwise the text says only that the request is partly answered.
fn approvals_text(state: &RequestState<'_>, ids: UserIds) -> Option<String> {
    let (count, required) = (state.approval_count(ids), state.spec.required());
    if count > 0 {
        return Some(format!("{count} of {required} have approved"));
    }
    (!state.answers.is_empty()).then(|| "Partly answered".to_owned())
}

fn decision_text(state: &RequestState<'_>, row: &RequestRow) -> String {
    let Some(found) = state.resolution() else {
        return "Decided".to_owned();
    };
    let verb = match found.action {
        Action::Approve => "Approved",
        Action::Reject => "Rejected",
        Action::Edit => "Changed",
        Action::Respond => "Answered",
        Action::Retry => "To be tried again, decided",
        Action::Mixed => "Decided call by call, last",
    };
    let (at, answer) = found.last;
    let when = format_time(*at, Some(row.created_at));
    format!(
        "{verb} by {}, {when}",
        single_line(&answer.by, MAX_PERSON_CHARS)
    )
}
