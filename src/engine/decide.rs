//! Applies a human's answer. One function for every door: it appends facts, and the ordinary loop does the rest.
//! Whether the answer came first is decided by the version its write is fenced by.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::integrity::damage;
use super::live::Live;
use super::{Accepted, Answer, AnswerBody, Engine, FieldError, Key, Refusal};
use crate::agent::Agent;
use crate::people::{Caller, may::may_decide};
use crate::store::{CommitError, RequestRow};
use crate::task::change::LeaseChange;
use crate::task::decision::{Action, CallAnswer, Decision, Then};
use crate::task::failure::{Failure, FailureCode};
use crate::task::id::{CallId, ChangeId, RequestId};
use crate::task::item::{CloseReason, Fact};
use crate::task::request::RequestKind;
use crate::task::status::{RequestStatus, TaskStatus};
use crate::task::turn::Open;

impl Engine {
    /// Stores a human's answer and goes on.
    ///
    /// # Errors
    /// In this order: `NotFound`, `Forbidden`, `Invalid`, `DigestMismatch`, `Expired`, then `Withdrawn` or
    /// `AlreadyDecided`; nothing is changed. `Unavailable` when the database does not answer.
    pub async fn decide(
        self: &Arc<Self>,
        caller: &Caller,
        request: RequestId,
        answer: Answer,
        key: Option<Key>,
    ) -> Result<Accepted, Refusal> {
        let row = self.store.request(request).await?.ok_or(Refusal::NotFound)?;
        self.decide_read(caller, row, answer, key).await
    }

    /// [`Engine::decide`] for a door that has read the request just now.
    ///
    /// # Errors
    /// The same.
    pub async fn decide_read(
        self: &Arc<Self>,
        caller: &Caller,
        row: RequestRow,
        answer: Answer,
        key: Option<Key>,
    ) -> Result<Accepted, Refusal> {
        let said = Box::pin(self.decide_once(caller, row, answer, key.as_ref())).await;
        self.unless_replayed(caller, key.as_ref(), said).await
    }

    async fn decide_once(
        self: &Arc<Self>,
        caller: &Caller,
        row: RequestRow,
        answer: Answer,
        key: Option<&Key>,
    ) -> Result<Accepted, Refusal> {
        let request = row.asked.request_id;
        let mut read = Some(row);
        for _ in 0..super::TRIES {
            let row = match read.take() {
                Some(row) => row,
                None => self.store.request(request).await?.ok_or(Refusal::NotFound)?,
            };
            judge_answer(caller, &row, &answer)?;
            let journal = self.store.journal(row.task_id).await?.ok_or(Refusal::NotFound)?;
            let mut live = Live::read(journal);
            let Some(open) = live.progress.open(request).cloned() else {
                // Answered or closed between the two readings: read again, and say so.
                continue;
            };
            let agent = self.agent_of(&live.row).await?;
            let damaged = damage(&live, &open.asked);
            let damaged = damaged.or_else(|| agent.clone().err().filter(|why| why.code == FailureCode::Integrity));
            if let Some(failure) = damaged {
                if self.damaged(live, failure).await? {
                    return Err(Refusal::Withdrawn(request));
                }
                continue;
            }
            if self.changed(agent.ok().as_deref(), &live, &open) {
                if self.tool_changed(live, request).await? {
                    return Err(Refusal::Withdrawn(request));
                }
                continue;
            }
            let decision = decision(caller, &open, &answer)?;
            apply(&mut live, request, decision);
            live.idempotency = key.map(|key| key.row(caller, &live, Some(request)));
            if let Some(accepted) = self.enter(live).await? {
                return Ok(Accepted { task_id: accepted.root, ..accepted });
            }
            if let Some(done) = self.replay_of(caller, key).await? {
                return Ok(done);
            }
        }
        tracing::error!(%request, "a decision found no place");
        Err(Refusal::Unavailable)
    }

    /// Whether the definition of a tool that the question is about is another one by now.
    fn changed(&self, agent: Option<&Agent>, live: &Live, open: &Open) -> bool {
        if open.asked.kind != RequestKind::Approval {
            return false;
        }
        open.asked.own_calls().any(|call| {
            let entry = agent.and_then(|agent| self.offered(agent, &call.name));
            let digest = entry
                .map(|entry| live.digest(&entry.spec, call.tool_call_id, &call.arguments_text, call.rule.as_deref()));
            digest.as_deref() != Some(call.digest.as_str())
        })
    }

    /// The one refusal that writes: the question no longer stands, its calls are judged anew. `false` when another
    /// commit came first, and nothing was written.
    async fn tool_changed(self: &Arc<Self>, mut live: Live, request_id: RequestId) -> Result<bool, Refusal> {
        live.push(Fact::RequestClosed {
            request_id,
            status: RequestStatus::Withdrawn,
            reason: CloseReason::ToolChanged,
        });
        if live.progress.status == Some(TaskStatus::Paused) {
            live.push(Fact::TaskStatus { status: TaskStatus::Running, error: None, output: None });
        }
        Ok(self.enter(live).await?.is_some())
    }

    /// What was asked is not what is stored: nothing of the task runs. `false` when another commit came first, and
    /// nothing was written.
    async fn damaged(&self, mut live: Live, failure: Failure) -> Result<bool, Refusal> {
        live.withdraw_open(CloseReason::Canceled);
        live.push(Fact::TaskStatus { status: TaskStatus::Failed, error: Some(failure), output: None });
        let change = live.change(ChangeId(self.ids.fresh()), LeaseChange::Park { wake_in: None });
        match self.store.commit(change).await {
            Ok(done) => {
                live.saved(done);
                Ok(true)
            }
            Err(CommitError::Unavailable) => Err(Refusal::Unavailable),
            Err(CommitError::Stale | CommitError::Refused | CommitError::Unknown) => Ok(false),
        }
    }
}

/// Everything that can be said of an answer before the journal is read, in the contract's order.
fn judge_answer(caller: &Caller, row: &RequestRow, answer: &Answer) -> Result<(), Refusal> {
    if row.tenant != caller.tenant {
        return Err(Refusal::NotFound);
    }
    if !may_decide(caller, &row.tenant, &row.owner, &row.asked.terms.approvers) {
        return Err(Refusal::Forbidden("You are not among those who may decide this request.".to_owned()));
    }
    fits(row, answer)?;
    let request_id = row.asked.request_id;
    if answer.digest.as_ref().is_some_and(|digest| *digest != row.asked.digest) {
        return Err(Refusal::DigestMismatch(request_id));
    }
    match row.status {
        RequestStatus::Expired => Err(Refusal::Expired(request_id)),
        RequestStatus::Pending if row.expired => Err(Refusal::Expired(request_id)),
        RequestStatus::Withdrawn => Err(Refusal::Withdrawn(request_id)),
        RequestStatus::Responded | RequestStatus::Resumed => Err(Refusal::AlreadyDecided(request_id)),
        RequestStatus::Pending => {
            let answered = row.answers.iter().any(|(_, known)| known.by == caller.user_id);
            if answered { Err(Refusal::AlreadyDecided(request_id)) } else { Ok(()) }
        }
    }
}

/// Whether the body is an answer that this request takes.
fn fits(row: &RequestRow, answer: &Answer) -> Result<(), Refusal> {
    let invalid =
        |pointer: &str, detail: String| Err(Refusal::Invalid(vec![FieldError { pointer: pointer.to_owned(), detail }]));
    let AnswerBody::Whole { action, then, response, result, .. } = &answer.body else {
        return invalid("/decisions", "Decisions for single calls are not taken; answer the whole request.".to_owned());
    };
    let allowed = row.asked.actions();
    if !allowed.contains(action) {
        let words: Vec<_> = allowed.iter().map(|action| action.as_str()).collect();
        return invalid("/action", format!("one of: {}", words.join(", ")));
    }
    if then.is_some() && *action != Action::Reject {
        return invalid("/then", "only beside a reject".to_owned());
    }
    if response.is_some() {
        return invalid("/response", "this kind of request takes none".to_owned());
    }
    if result.is_some() != (*action == Action::Respond) {
        return invalid("/result", "exactly beside a respond".to_owned());
    }
    Ok(())
}

/// The decision as it is journaled.
fn decision(caller: &Caller, open: &Open, answer: &Answer) -> Result<Decision, Refusal> {
    let AnswerBody::Whole { action, reason, then, response, result } = &answer.body else {
        return Err(Refusal::Internal);
    };
    let terms = &open.asked.terms;
    // Only a yes is counted; any other answer is one person's.
    let counted = matches!(action, Action::Approve | Action::Retry) && !caller.unaccounted;
    let needed = if counted { open.asked.required() } else { 1 };
    let enough = |call: CallId| {
        let so_far = open.approvals.get(&call).map_or(0, Vec::len);
        u32::try_from(so_far).unwrap_or(u32::MAX).saturating_add(1) >= needed
    };
    let given = CallAnswer { action: *action, reason: reason.clone(), arguments: None, result: result.clone() };
    let decisions: BTreeMap<_, _> = open.asked.own_calls().map(|call| (call.tool_call_id, given.clone())).collect();
    let rejected = *action == Action::Reject;
    let unsaid = if open.asked.kind == RequestKind::Approval { terms.on_reject } else { Then::Continue };
    Ok(Decision {
        action: *action,
        by: caller.user_id.clone(),
        via: caller.via.clone(),
        reason: reason.clone(),
        then: rejected.then(|| then.unwrap_or(unsaid)),
        response: response.clone(),
        result: result.clone(),
        closes: rejected || decisions.keys().all(|call| enough(*call)),
        decisions,
    })
}

/// Appends a decision and what belongs to the same commit.
fn apply(live: &mut Live, request_id: RequestId, decision: Decision) {
    let cancels = decision.closes && decision.then.is_some_and(|then| then != Then::Continue);
    live.push(Fact::Decision { request_id, decision });
    if cancels {
        live.withdraw_open(CloseReason::Canceled);
    } else if live.progress.open.is_empty() && live.progress.status == Some(TaskStatus::Paused) {
        live.push(Fact::TaskStatus { status: TaskStatus::Running, error: None, output: None });
    }
}
