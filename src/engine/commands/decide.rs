//! Applies a person's decision from any HTTP route: appends facts to the task's journal, and the
//! driver then continues the task. The task's version fences the commit. If another commit came
//! first, the decision is checked again against the new state.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::decision_input::{DecisionInput, validate};
use super::valid_decision::{JudgedEdit, ValidDecision};
use super::{Accepted, IdempotencyKey, Refusal};
use crate::agent::Agent;
use crate::engine::Engine;
use crate::engine::recovery::integrity::request_damage;
use crate::engine::session::TaskSession;
use crate::people::authorization::Approver;
use crate::secret::Redactor;
use crate::store::{CommitError, RequestRow};
use crate::task::change::{Journal, LeaseChange};
use crate::task::decision::{Action, Consequence, Edit};
use crate::task::failure::{Failure, FailureCode};
use crate::task::id::{CallId, RequestId, TaskId};
use crate::task::item::{CloseReason, Fact};
use crate::task::progress::RequestProgress;
use crate::task::request::CallSpec;
use crate::task::status::RequestStatus;
use crate::task::tool_spec::ToolSpec;
use crate::task::verdict::{Judgement, Verdict};
use crate::tool::catalog::CatalogEntry;

/// Checks an answer of a person who may decide the request, and turns it into facts.
#[derive(Clone, Copy)]
pub(super) struct Decider<'e> {
    pub(super) engine: &'e Arc<Engine>,
    pub(super) approver: Approver<'e>,
}

impl Decider<'_> {
    /// Checks an answer to the request that was read as `row` and `journal`, and stores the
    /// decision. Returns `None` if another commit came first: the caller must then read the request
    /// again. Only the first try of a decision asks the tools' servers whether the tools have
    /// changed, so a server that does not answer delays the decision at most once.
    ///
    /// # Errors
    /// As [`Decisions::decide`](super::Decisions::decide).
    pub(super) async fn try_decision(
        self,
        row: &RequestRow,
        journal: Option<Journal>,
        answer: &DecisionInput,
        key: Option<&IdempotencyKey>,
        is_first_try: bool,
    ) -> Result<Option<Accepted>, Refusal> {
        let (engine, request) = (self.engine, row.spec.request_id);
        let decision = self.validate_answer(row, answer).await?;
        let mut session = load_session(engine, row, journal).await?;
        let Some(open) = session.own.progress.open_request(request).cloned() else {
            // The request was closed after its row was read. The next try reads the row again.
            return Ok(None);
        };
        let agent = engine.agent_of(&session.own.row).await?;
        if let Some(failure) = stored_damage(&session, request, agent.as_ref().err()) {
            let is_failed = fail_damaged_task(engine, session, failure).await?;
            return withdrawn_if(is_failed, request);
        }
        let agent = agent.as_deref().ok();
        let targets = decision.targets(self.approver, &open);
        if is_first_try && let (Some(agent), Ok(calls)) = (agent, &targets) {
            let about = (&open, decision.action);
            self.compare_tools(agent, &session, about, calls).await;
        }
        let changed = targets.as_ref().is_ok_and(|targets| {
            self.is_tool_changed(agent, &session, &open, decision.action, targets)
        });
        self.refuse_secrets(&session, answer.edits().collect())
            .await?;
        if targets.is_err() || changed {
            self.refuse_denied_edits(&session, agent, &open.spec, answer)
                .await?;
        }
        let targets = targets?;
        if changed {
            let is_withdrawn = withdraw_for_changed_tool(engine, session, request).await?;
            return withdrawn_if(is_withdrawn, request);
        }
        self.apply_decision(&mut session, agent, &open, &decision, &targets)
            .await?;
        let stored = engine.submit_with_key(self.approver.caller(), session, key, Some(request));
        Ok(stored.await?.map(|accepted| Accepted {
            task_id: accepted.root,
            ..accepted
        }))
    }

    /// Validates an answer by the request's row. If an answer that edits arguments is refused, a
    /// second check of the edits may replace the error:
    /// - `Invalid`: the edits have no secret, because the error could name it.
    /// - An error about the request's state or digest: no rule denies the edits, because a denied
    ///   edit has the same error whatever has become of the request.
    async fn validate_answer(
        self,
        row: &RequestRow,
        answer: &DecisionInput,
    ) -> Result<ValidDecision, Refusal> {
        let validated = self.validate_by_row(row, answer);
        let has_edits = answer.edits().next().is_some();
        match &validated {
            // The error's pointer may contain the name of a member of the edited arguments. If
            // this name is a secret, `refuse_secrets` returns an error without the name.
            Err(Refusal::Invalid(_)) if has_edits => {
                let session = load_session(self.engine, row, None).await?;
                self.refuse_secrets(&session, answer.edits().collect())
                    .await?;
            }
            Err(
                Refusal::DigestMismatch(_)
                | Refusal::Expired(_)
                | Refusal::Withdrawn(_)
                | Refusal::AlreadyDecided { .. },
            ) if has_edits => self.refuse_denied_edits_of(row, answer).await?,
            Ok(_) | Err(_) => {}
        }
        validated
    }

    /// Validates an answer by the request's row alone. Returns errors in the order that
    /// [`Decisions::decide`](super::Decisions::decide) documents.
    fn validate_by_row(
        self,
        row: &RequestRow,
        answer: &DecisionInput,
    ) -> Result<ValidDecision, Refusal> {
        let valid = validate(&self.engine.roster, self.approver, row, answer)?;
        let request = row.spec.request_id;
        if answer
            .digest
            .as_ref()
            .is_some_and(|digest| *digest != row.spec.digest)
        {
            return Err(Refusal::DigestMismatch(request));
        }
        match row.status {
            RequestStatus::Expired => Err(Refusal::Expired(request)),
            RequestStatus::Pending if row.expired => Err(Refusal::Expired(request)),
            RequestStatus::Withdrawn => Err(Refusal::Withdrawn(request)),
            RequestStatus::Responded | RequestStatus::Resumed => Err(Refusal::AlreadyDecided {
                request,
                call: valid.decided_call(&row.state()),
            }),
            RequestStatus::Pending => Ok(valid),
        }
    }

    /// Adds the writes of the decision's commit to the session: the decision, sealed credentials,
    /// and the new judgements of edited calls. If the decision cancels the task, adds the
    /// withdrawal of the open requests instead of the judgements.
    async fn apply_decision(
        self,
        session: &mut TaskSession,
        agent: Option<&Agent>,
        open: &RequestProgress,
        input: &ValidDecision,
        targets: &[CallId],
    ) -> Result<(), Refusal> {
        let (mut edits, mut new_judgements) = (BTreeMap::new(), Vec::new());
        let known_agent = || agent.ok_or_else(|| Refusal::internal("a decided task has no agent"));
        for (call, text) in input.edits() {
            let agent = known_agent()?;
            let (judged, judgement) = self.judge_edit(session, agent, open, call, text).await?;
            edits.insert(call, judged);
            new_judgements.extend(judgement.map(|judgement| (call, judgement)));
        }
        let mut redactor = Redactor::default();
        let shown = match &input.response {
            Some(response) if open.spec.kind.takes_secrets() => {
                let agent = known_agent()?;
                let provided = self.seal(session, agent, &open.spec, response)?;
                session.credentials.push(provided.sealed);
                redactor = provided.redactor;
                Some(provided.names)
            }
            response => response.as_ref().map(|response| response.reveal().clone()),
        };
        let grants = self
            .requested_grants(session, agent, open, input, targets)
            .await?;
        let mut decision = input.decision(self.approver, open, targets, &edits, &grants, shown);
        self.redact_decision(session, open.spec.kind, &redactor, &mut decision)
            .await?;
        let cancels = decision.closes
            && decision
                .then
                .is_some_and(|then| then != Consequence::Continue);
        session.push(Fact::Decision {
            request_id: open.spec.request_id,
            decision,
        });
        if cancels {
            session.withdraw_open(CloseReason::Canceled);
            return Ok(());
        }
        session.resume_if_unblocked();
        for (call, judgement) in new_judgements {
            session.push_judgement(call, judgement);
        }
        Ok(())
    }

    /// Judges a call with the arguments `text` that a person wrote. Returns the edit, and the
    /// judgement to journal. The judgement is `None` in three cases: the edit also approves the
    /// call, the rules allow the edited call without an approval, or the journal already has the
    /// same judgement.
    ///
    /// # Errors
    /// `Invalid` if a rule refuses the arguments, if the arguments do not fit the tool, if too few
    /// people could approve them, if the tool is gone, or if the call was already sent. A sent call
    /// keeps its arguments, because its tool knows the call by an idempotency key. If this service
    /// repeats the call, the tool expects the same arguments.
    async fn judge_edit(
        self,
        session: &TaskSession,
        agent: &Agent,
        open: &RequestProgress,
        call: CallId,
        text: &str,
    ) -> Result<(JudgedEdit, Option<Judgement>), Refusal> {
        let (Some(state), Some(request)) = (
            session.own.progress.call(call),
            open.spec.own_calls().find(|own| own.tool_call_id == call),
        ) else {
            return Err(Refusal::internal("an edited call is not in its request"));
        };
        if state.attempts > 0 {
            let detail = "`approve` or `reject`: this call has been sent, and is known by its key with these arguments";
            return Err(Refusal::invalid(
                format!("/decisions/{call}/action"),
                detail,
            ));
        }
        let name = state.call.name.as_str();
        let judgement = self.engine.verdict(session, agent, (name, text)).await;
        let refused =
            |detail: String| Refusal::invalid(format!("/decisions/{call}/arguments"), detail);
        let (is_approved, new_judgement) = self
            .judgement_after_edit(session, &open.spec, request, &judgement)
            .map_err(refused)?;
        let quarantine = session.own.progress.shared.quarantine.reason(name);
        // At a gate, a call in another task may have caused the quarantine. The reason is then only
        // in the call's earlier judgement.
        let earlier = state.judgement.as_ref().filter(|_| agent.gate.is_some());
        let earlier = earlier.and_then(|earlier| earlier.reason.as_deref());
        let new_judgement = new_judgement
            .map(|new| new.with_reason(quarantine.as_deref()).with_reason(earlier))
            .filter(|new| !is_approved && state.judgement.as_ref() != Some(new));
        let rule = if judgement.verdict == Verdict::Hold {
            judgement.rule
        } else {
            request.rule.clone()
        };
        let Some(entry) = self.engine.offered(agent, name) else {
            return Err(refused(
                "this call cannot be edited: its tool is gone".to_owned(),
            ));
        };
        let tool = shown_spec(&entry, request, session.task_id());
        let digest = session.digest(&tool, call, text, rule.as_deref());
        Ok((
            JudgedEdit {
                edit: Edit {
                    arguments_text: text.to_owned(),
                    digest,
                    rule,
                },
                approves: is_approved,
            },
            new_judgement,
        ))
    }

    /// Whether the tool of one of `calls`, or the form of the requested credential, has changed
    /// since the request was opened. `Retry` is always checked, because it runs the tool again. For
    /// any other action, returns `false` without a check if the answers to this kind of request do
    /// not depend on the tool (`depends_on_tool`).
    pub(super) fn is_tool_changed(
        self,
        agent: Option<&Agent>,
        session: &TaskSession,
        open: &RequestProgress,
        action: Action,
        calls: &[CallId],
    ) -> bool {
        if !open.spec.kind.properties().depends_on_tool && action != Action::Retry {
            return false;
        }
        if open.spec.kind.takes_secrets() && !self.form_is_unchanged(agent, &open.spec) {
            return true;
        }
        open.spec
            .own_calls()
            .filter(|call| calls.contains(&call.tool_call_id))
            .any(|call| self.has_tool_changed(agent, session, call))
    }
}

/// Returns the refusal `Withdrawn` if the request was closed without the decision (`is_closed`).
/// Returns `None` if the commit that closes the request failed; the decision is then tried again.
fn withdrawn_if(is_closed: bool, request: RequestId) -> Result<Option<Accepted>, Refusal> {
    if is_closed {
        Err(Refusal::Withdrawn(request))
    } else {
        Ok(None)
    }
}

/// Closes a request because a tool of its calls, or its credential form, has changed. The driver
/// then judges the calls again. Returns `false`, and writes nothing, if another commit came first
/// or the database refused the change.
async fn withdraw_for_changed_tool(
    engine: &Arc<Engine>,
    mut session: TaskSession,
    request_id: RequestId,
) -> Result<bool, Refusal> {
    session.push(Fact::withdrawn(request_id, CloseReason::ToolChanged));
    session.resume_if_unblocked();
    Ok(engine.submit(session).await?.is_some())
}

/// Fails a task whose stored request or agent version is damaged, so that none of the task's calls
/// runs. Returns `false` if the commit failed, for example because another commit came first.
async fn fail_damaged_task(
    engine: &Engine,
    mut session: TaskSession,
    failure: Failure,
) -> Result<bool, Refusal> {
    session.fail(failure);
    match engine.commit(&mut session, LeaseChange::PARK).await {
        Ok(_) => Ok(true),
        Err(CommitError::Unavailable) => Err(Refusal::Unavailable),
        Err(CommitError::Stale | CommitError::Refused | CommitError::Unknown) => Ok(false),
    }
}

pub(super) async fn load_session(
    engine: &Engine,
    row: &RequestRow,
    journal: Option<Journal>,
) -> Result<TaskSession, Refusal> {
    let session = match journal {
        Some(journal) => engine.load_from(journal).await?,
        None => engine.load(row.task_id).await?,
    };
    session.ok_or(Refusal::NotFound)
}

fn stored_damage(
    session: &TaskSession,
    request: RequestId,
    agent_failure: Option<&Failure>,
) -> Option<Failure> {
    let unreadable = agent_failure.filter(|why| why.code == FailureCode::Integrity);
    request_damage(session, request).or_else(|| unreadable.cloned())
}

/// Returns the spec of a call's tool, with the definition that `request` showed to the person who
/// edits the call. The tool's definition may have changed after the request was opened. The digest
/// of the edit covers the shown definition. If the current definition differs, the judgement right
/// before the start of the call finds another digest, and holds the call.
fn shown_spec(entry: &CatalogEntry, request: &CallSpec, task: TaskId) -> ToolSpec {
    let mut spec = entry.current_spec(task).into_owned();
    if let Some(definition) = &request.definition {
        spec.definition.clone_from(definition);
    }
    spec
}
