//! The commands about answers of people. The check of a person's right is part of a type: only a
//! [`DecidableRequest`] can be decided.

use std::sync::Arc;

use super::decide::{Decider, load_session};
use super::decision_input::DecisionInput;
use super::{Accepted, IdempotencyKey, MAX_TRIES, Refusal};
use crate::engine::Engine;
use crate::people::Caller;
use crate::people::authorization::{OwnedApprover, may_decide, may_take_any_action};
use crate::store::RequestRow;
use crate::task::change::Journal;
use crate::task::decision::Action;
use crate::task::id::CallId;

/// The commands about answers of people.
#[derive(Clone, Copy, Debug)]
pub struct Decisions<'e> {
    pub(super) engine: &'e Arc<Engine>,
}

impl Engine {
    #[must_use]
    pub fn decisions(self: &Arc<Self>) -> Decisions<'_> {
        Decisions { engine: self }
    }
}

/// A request that was just read, with the proof that a caller may decide it.
#[derive(Clone, Debug)]
pub struct DecidableRequest {
    approver: OwnedApprover,
    row: RequestRow,
    journal: Option<Journal>,
}

impl DecidableRequest {
    /// Returns the request if `caller` may decide it and may take at least one action on it,
    /// otherwise `None`. `journal` is the journal of the request's task; `None` if it cannot be
    /// decoded.
    #[must_use]
    pub fn for_caller(
        caller: &Caller,
        (row, journal): (RequestRow, Option<Journal>),
    ) -> Option<Self> {
        let approvers = &row.spec.terms.approvers;
        let approver = may_decide(caller, &row.tenant, &row.owner, approvers)?.into_owned();
        may_take_any_action(caller, &row.spec).then_some(Self {
            approver,
            row,
            journal,
        })
    }

    #[must_use]
    pub fn row(&self) -> &RequestRow {
        &self.row
    }
}

impl Decisions<'_> {
    /// Stores a person's decision and continues the task.
    ///
    /// # Errors
    /// Returns the first error that applies, in this order:
    /// 1. `Forbidden` if the person may not give this answer.
    /// 2. `Invalid` if the answer does not fit the request, or if the current rules do not permit
    ///    its edited arguments.
    /// 3. `DigestMismatch`, then `Expired`, then `Withdrawn` or `AlreadyDecided`.
    /// 4. `Invalid` for an edit of a call that was already sent, or for a standing decision that
    ///    the current rules do not permit.
    ///
    /// `KeyReused` if an earlier POST with the same key had a different body. `NotFound` if the
    /// task is gone. `Unavailable` when the database does not answer.
    ///
    /// A refusal stores nothing, with two exceptions that return `Withdrawn`: a changed tool closes
    /// the request, and damaged data fail the task.
    pub async fn decide(
        self,
        decidable: DecidableRequest,
        answer: DecisionInput,
        key: Option<IdempotencyKey>,
    ) -> Result<Accepted, Refusal> {
        let DecidableRequest {
            approver,
            row,
            journal,
        } = decidable;
        let request = row.spec.request_id;
        // The tenant, the owner and the approvers of a request never change, so the proof holds for
        // every later read of the request.
        let decider = Decider {
            engine: self.engine,
            approver: approver.borrowed(),
        };
        let mut read = Some((row, journal));
        for number in 0..MAX_TRIES {
            let (row, journal) = if let Some(read) = read.take() {
                read
            } else {
                let read = self.engine.store.request_with_journal(request).await?;
                read.ok_or(Refusal::NotFound)?
            };
            let tried = decider.try_decision(&row, journal, &answer, key.as_ref(), number == 0);
            if let Some(accepted) = tried.await? {
                return Ok(accepted);
            }
        }
        tracing::error!(%request, "a decision could not be stored");
        Err(Refusal::Unavailable)
    }

    /// Returns whether an answer of `caller` with this `action` would withdraw the open request
    /// `row`, because a tool of the request's calls, or the request's credential form, has changed
    /// since the request was opened. Stores nothing.
    ///
    /// If a tool seems changed, asks the tool's server where [`Decisions::decide`] does, and then
    /// compares again. The tool may seem changed by mistake: the request may show a change of the
    /// tool that this process does not know yet, for example after a restart.
    ///
    /// # Errors
    /// `Unavailable` when the database does not answer; `Internal` if the journal is unreadable.
    pub async fn asks_about_changed_tool(
        self,
        caller: &Caller,
        row: &RequestRow,
        action: Action,
    ) -> Result<bool, Refusal> {
        let approvers = &row.spec.terms.approvers;
        let Some(approver) = may_decide(caller, &row.tenant, &row.owner, approvers) else {
            return Ok(false);
        };
        let session = load_session(self.engine, row, None).await?;
        let Some(open) = session.own.progress.open_request(row.spec.request_id) else {
            return Ok(false);
        };
        let agent = self.engine.agent_of(&session.own.row).await?;
        let state = row.state();
        let calls = state.open_calls(&caller.user_id);
        let calls: Vec<CallId> = calls.map(|call| call.tool_call_id).collect();
        let decider = Decider {
            engine: self.engine,
            approver,
        };
        let agent = agent.as_deref().ok();
        let is_changed = || decider.is_tool_changed(agent, &session, open, action, &calls);
        if let Some(agent) = agent
            && is_changed()
        {
            let comparison = decider.compare_tools(agent, &session, (open, action), &calls);
            Box::pin(comparison).await;
        }
        Ok(is_changed())
    }
}
