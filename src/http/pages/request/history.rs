//! The history of a request's calls since the request was opened, for the headline. The history is
//! not stored: each load of the page derives it from the journal.

use std::collections::{BTreeMap, BTreeSet};

use super::kind::status_by_later_request;
use crate::store::RequestRow;
use crate::task::decision::Decision;
use crate::task::id::{CallId, RequestId};
use crate::task::item::{CloseReason, Fact, Item, Outcome};
use crate::task::request::{RequestKind, RequestSpec};
use crate::task::status::TaskStatus;

/// The status of one call. In a headline that counts calls by status, the counts are in the order
/// of the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CallStatus {
    Ran,
    /// The call failed. The value is the HTTP status if an HTTP tool answered.
    Failed(Option<u16>),
    /// The call ran, but the result arrived after the call was closed with another outcome.
    RanLate,
    /// The call failed, but the result arrived after the call was closed with another outcome.
    FailedLate,
    /// An attempt or a sub-agent is running.
    Running,
    /// The call was let through at a gate. The client that proposed the call runs it, and need not
    /// report the outcome.
    Released,
    /// Since the page's request was opened, the call has not been started and has no result.
    Waiting,
    /// A request that was opened after the page's request asks about the call, for example whether
    /// the call may run.
    AskedAgain,
    /// A request that was opened after the page's request asks for the login that the call needs.
    NeedsLogin,
    /// A request that was opened after the page's request asks for the call's result.
    AwaitsResult,
    /// A request about the call was opened after the page's request, and its answer does not let
    /// the call run. The call has no result yet.
    AnsweredLater,
    /// The call's outcome is unknown, and an open request asks for it.
    Reconciling,
    /// The call's outcome is unknown.
    Unknown,
    /// A person gave the call's result.
    Responded,
    Rejected,
    Denied,
    /// The call is not valid and cannot run.
    Invalid,
    /// A request about the call was not answered in time.
    Expired,
    /// The request about the call was withdrawn, or the user sent another message.
    Withdrawn,
    /// The task was canceled before the call ran, or the call's sub-agent was canceled.
    Canceled,
    /// The task failed before the call ran.
    Abandoned,
}

impl CallStatus {
    /// Returns whether the call ended without success, or its outcome is unknown.
    #[must_use]
    pub(crate) fn is_failure(self) -> bool {
        match self {
            Self::Failed(_)
            | Self::FailedLate
            | Self::Reconciling
            | Self::Unknown
            | Self::Rejected
            | Self::Denied
            | Self::Invalid
            | Self::Expired
            | Self::Withdrawn
            | Self::Canceled
            | Self::Abandoned => true,
            Self::Ran
            | Self::RanLate
            | Self::Running
            | Self::Released
            | Self::Waiting
            | Self::AskedAgain
            | Self::NeedsLogin
            | Self::AwaitsResult
            | Self::AnsweredLater
            | Self::Responded => false,
        }
    }

    fn from_outcome(outcome: Outcome, http_status: Option<u16>) -> Self {
        match outcome {
            Outcome::Succeeded => Self::Ran,
            Outcome::Failed => Self::Failed(http_status),
            Outcome::Invalid => Self::Invalid,
            Outcome::Denied => Self::Denied,
            Outcome::Rejected => Self::Rejected,
            Outcome::Responded => Self::Responded,
            Outcome::Expired => Self::Expired,
            Outcome::Withdrawn => Self::Withdrawn,
            Outcome::Canceled => Self::Canceled,
            Outcome::Unknown => Self::Unknown,
            Outcome::Released => Self::Released,
        }
    }
}

/// The facts about one call in the items that [`RequestHistory::apply`] has received. The start of
/// an attempt or a sub-agent replaces all earlier facts.
#[derive(Clone, Debug, Default)]
struct CallRecord {
    /// Whether an attempt or a sub-agent was started.
    was_started: bool,
    /// The open request about this call, if such a request was opened after the page's request.
    later_request: Option<(RequestId, RequestKind)>,
    was_answered_later: bool,
    result: Option<(Outcome, Option<u16>)>,
    late_outcome: Option<Outcome>,
    /// Whether the model has answered since the call's result was stored. If so, the model has read
    /// the result.
    model_has_result: bool,
}

/// The facts that the journal has after the item that opened the page's request.
#[derive(Clone, Debug)]
pub(crate) struct RequestHistory {
    request: RequestId,
    calls: BTreeMap<CallId, CallRecord>,
    /// The reason why the request was closed without a decision; `None` if the request is open or
    /// decided.
    pub closed: Option<CloseReason>,
    /// The first terminal status that the task got after the request was closed without a decision;
    /// `None` if there is none.
    pub status_at_close: Option<TaskStatus>,
    /// The task's last status, if it is terminal.
    pub final_status: Option<TaskStatus>,
}

impl RequestHistory {
    #[must_use]
    pub(crate) fn new(row: &RequestRow) -> Self {
        let calls = row.spec.own_calls().map(|call| call.tool_call_id);
        Self {
            request: row.spec.request_id,
            calls: calls.map(|call| (call, CallRecord::default())).collect(),
            closed: None,
            status_at_close: None,
            final_status: None,
        }
    }

    /// Adds an item of the journal. Items must be added in order, beginning after the item that
    /// opened the page's request.
    pub(crate) fn apply(&mut self, item: &Item) {
        match &item.fact {
            Fact::TaskStatus { status, .. } => self.apply_task_status(*status),
            Fact::AssistantMessage(_) => {
                for record in self.calls.values_mut() {
                    record.model_has_result |= record.result.is_some();
                }
            }
            Fact::InterventionRequested(spec) => self.apply_request(spec),
            Fact::Decision {
                request_id,
                decision,
            } => self.apply_decision(*request_id, decision),
            Fact::RequestClosed {
                request_id, reason, ..
            } if *request_id == self.request => {
                self.closed = Some(*reason);
            }
            Fact::RequestClosed { request_id, .. } => self.close_later_request(*request_id),
            Fact::ToolStarted { tool_call_id, .. } | Fact::SubAgentStarted { tool_call_id, .. } => {
                self.update(*tool_call_id, |record| {
                    *record = CallRecord {
                        was_started: true,
                        ..CallRecord::default()
                    }
                });
            }
            Fact::ToolResult(result) => self.update(result.tool_call_id, |record| {
                record.result = Some((result.outcome, result.http_status));
            }),
            Fact::LateResult(late) => self.update(late.tool_call_id, |record| {
                record.late_outcome = Some(late.outcome);
            }),
            Fact::UserMessage { .. } | Fact::Judged { .. } => {}
        }
    }

    fn apply_task_status(&mut self, status: TaskStatus) {
        self.final_status = Some(status).filter(|status| status.is_terminal());
        self.status_at_close = self
            .status_at_close
            .or(self.final_status.filter(|_| self.closed.is_some()));
    }

    fn apply_request(&mut self, spec: &RequestSpec) {
        if spec.request_id == self.request {
            return;
        }
        for call in spec.own_calls() {
            self.update(call.tool_call_id, |record| {
                record.later_request = Some((spec.request_id, spec.kind));
            });
        }
    }

    fn apply_decision(&mut self, request_id: RequestId, decision: &Decision) {
        if request_id == self.request {
            return;
        }
        let answers = decision.decisions.iter();
        for (call, answer) in answers.filter(|(_, answer)| answer.settles()) {
            self.update(*call, |record| {
                record.later_request = None;
                record.was_answered_later = !answer.leave;
            });
        }
        if decision.closes {
            self.close_later_request(request_id);
        }
    }

    fn update(&mut self, call: CallId, change: impl FnOnce(&mut CallRecord)) {
        if let Some(record) = self.calls.get_mut(&call) {
            change(record);
        }
    }

    fn close_later_request(&mut self, request: RequestId) {
        for record in self.calls.values_mut() {
            record.later_request = record.later_request.filter(|(later, _)| *later != request);
        }
    }

    /// Returns whether later items can no longer change the headline: the model has read the
    /// results of all calls, and no result is `Unknown` or `Canceled`. A late result may still
    /// follow a result that is `Unknown` or `Canceled`.
    #[must_use]
    pub(crate) fn is_settled(&self) -> bool {
        self.calls.values().all(|record| {
            let uncertain = matches!(
                record.result,
                None | Some((Outcome::Unknown | Outcome::Canceled, _))
            );
            record.model_has_result && !uncertain
        })
    }

    /// Returns the open requests that were opened after the page's request and that block a call of
    /// the page's request.
    #[must_use]
    pub(crate) fn later_requests(&self) -> BTreeSet<RequestId> {
        let waiting = self.calls.values().filter(|record| record.result.is_none());
        waiting
            .filter_map(|record| record.later_request.map(|(request, _)| request))
            .collect()
    }

    #[must_use]
    pub(crate) fn model_has_results(&self) -> bool {
        self.calls.values().all(|record| record.model_has_result)
    }

    /// Returns the status of a call as of the last applied item; `Waiting` for a call that the
    /// request does not decide.
    #[must_use]
    pub(crate) fn call_status(&self, call: CallId) -> CallStatus {
        let Some(record) = self.calls.get(&call) else {
            return CallStatus::Waiting;
        };
        match (record.late_outcome, record.result) {
            (Some(Outcome::Succeeded), _) => CallStatus::RanLate,
            (Some(Outcome::Failed), _) => CallStatus::FailedLate,
            (_, Some((outcome, status))) => CallStatus::from_outcome(outcome, status),
            (_, None) => self.status_without_result(record),
        }
    }

    fn status_without_result(&self, record: &CallRecord) -> CallStatus {
        let later = record.later_request.map(|(_, kind)| kind);
        match (later, self.final_status) {
            (Some(kind), _) => status_by_later_request(kind),
            (None, _) if record.was_answered_later => CallStatus::AnsweredLater,
            (None, Some(_)) if record.was_started => CallStatus::Unknown,
            (None, None) if record.was_started => CallStatus::Running,
            (None, Some(TaskStatus::Failed)) => CallStatus::Abandoned,
            (None, Some(_)) => CallStatus::Canceled,
            (None, None) => CallStatus::Waiting,
        }
    }
}
