//! The outcome of a question, in words for a room.

use super::chat::{line, moment};
use crate::store::RequestRow;
use crate::task::decision::Action;
use crate::task::request_state::RequestState;
use crate::task::status::RequestStatus;
use crate::task::user::UserIds;

/// The maximum number of characters of a person's id.
const PERSON: usize = 64;

/// The state of a question after its first answer or its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Whether the question still waits for an answer.
    pub(super) open: bool,
    /// The decision, its person and its time, or another end of the question. While the question is
    /// open, the approvals so far.
    pub(super) words: String,
}

impl Outcome {
    /// Returns the outcome of a request as it is now; `None` before the first answer.
    pub(super) fn of(row: &RequestRow, ids: UserIds) -> Option<Self> {
        let state = row.state();
        if state.is_open() {
            return approvals(&state, ids).map(|words| Self { open: true, words });
        }
        let words = match row.status {
            RequestStatus::Responded | RequestStatus::Resumed => decided(&state, row),
            RequestStatus::Withdrawn => "Withdrawn".to_owned(),
            RequestStatus::Pending | RequestStatus::Expired => {
                let at = row.expires_at.map(|at| moment(at, Some(row.created_at)));
                format!("Expired, {}", at.unwrap_or_default())
            }
        };
        Some(Self { open: false, words })
    }
}

/// Describes the approvals of an open request so far; `None` if there is no answer yet.
fn approvals(state: &RequestState<'_>, ids: UserIds) -> Option<String> {
    let required = state.asked.required();
    let calls = state.asked.own_calls();
    let open = calls.filter(|call| state.deciding(call.tool_call_id).is_none());
    let count = open.map(|call| state.approvals(call.tool_call_id, ids).len());
    let count = count.min().unwrap_or_default();
    if count > 0 {
        return Some(format!("{count} of {required} have approved"));
    }
    (!state.answers.is_empty()).then(|| "Partly answered".to_owned())
}

fn decided(state: &RequestState<'_>, row: &RequestRow) -> String {
    let Some(found) = state.resolution() else {
        return "Decided".to_owned();
    };
    let did = match found.action {
        Action::Approve => "Approved",
        Action::Reject => "Rejected",
        Action::Edit => "Approved with changes",
        Action::Respond => "Answered",
        Action::Retry => "To be tried again, decided",
        Action::Mixed => "Decided call by call, last",
    };
    let (at, answer) = found.last;
    let when = moment(*at, Some(row.created_at));
    format!("{did} by {}, {when}", line(&answer.by, PERSON))
}
