//! Refuses edited arguments that the current rules do not permit. If the request's state also
//! forbids the answer, the client gets `Invalid` about the arguments, and no error about the state,
//! such as `Expired`. If the tool of an edited call has changed since the request was opened, the
//! edited arguments of this call are checked only for secrets, because the service refuses the
//! answer in any case.

use super::Refusal;
use super::decide::Decider;
use super::decision_input::DecisionInput;
use crate::agent::Agent;
use crate::engine::session::TaskSession;
use crate::people::authorization::others_suffice;
use crate::store::{ReadError, RequestRow};
use crate::task::request::{CallSpec, RequestSpec};
use crate::task::text::pointer;
use crate::task::verdict::{Judgement, Verdict};

impl Decider<'_> {
    /// Like [`Decider::refuse_denied_edits`], but reads the task's journal first, and also refuses
    /// edited arguments that hold a secret. Refuses nothing if the task is gone or the journal is
    /// unreadable.
    ///
    /// # Errors
    /// `Invalid` for the first such arguments; `Unavailable` when the database does not answer.
    pub(super) async fn refuse_denied_edits_of(
        self,
        row: &RequestRow,
        answer: &DecisionInput,
    ) -> Result<(), Refusal> {
        let session = match self.engine.load(row.task_id).await {
            Ok(Some(session)) => session,
            Ok(None) | Err(ReadError::Corrupt(_)) => return Ok(()),
            Err(error @ ReadError::Unavailable) => return Err(error.into()),
        };
        let agent = self.engine.agent_of(&session.own.row).await?;
        self.refuse_secrets(&session, answer.edits().collect())
            .await?;
        self.refuse_denied_edits(&session, agent.as_deref().ok(), &row.spec, answer)
            .await
    }

    /// Refuses edited arguments that a rule denies, that do not fit the tool, or that too few
    /// people could approve. Does not check the arguments of a call whose tool has changed since
    /// the request was opened. The caller must first check all arguments by `refuse_secrets`.
    ///
    /// # Errors
    /// `Invalid` for the first such arguments.
    pub(super) async fn refuse_denied_edits(
        self,
        session: &TaskSession,
        agent: Option<&Agent>,
        spec: &RequestSpec,
        answer: &DecisionInput,
    ) -> Result<(), Refusal> {
        let Some(agent) = agent else { return Ok(()) };
        for (call, text) in answer.edits() {
            let mut own_calls = spec.own_calls();
            let asked = own_calls.find(|own| own.tool_call_id.to_string() == call);
            let Some(asked) = asked.filter(|own| !self.has_tool_changed(Some(agent), session, own))
            else {
                continue;
            };
            let now = self
                .engine
                .verdict(session, agent, (asked.name.as_str(), text))
                .await;
            let judged = self.judgement_after_edit(session, spec, asked, &now);
            if let Err(detail) = judged {
                let place = format!("{}/arguments", pointer("/decisions", &call));
                return Err(Refusal::invalid(place, detail));
            }
        }
        Ok(())
    }

    /// Whether the tool of a call has changed or has been removed since the request was opened.
    pub(super) fn has_tool_changed(
        self,
        agent: Option<&Agent>,
        session: &TaskSession,
        call: &CallSpec,
    ) -> bool {
        let entry = agent.and_then(|agent| self.engine.offered(agent, &call.name));
        let digest = entry.map(|entry| {
            let (id, rule) = (call.tool_call_id, call.rule.as_deref());
            session.current_digest(&entry, id, &call.arguments_text, rule)
        });
        // An empty digest in the request means that the tool was gone when the request was opened.
        digest.unwrap_or_default() != call.digest
    }

    /// Returns two values: whether an edit also approves its call, and the judgement to journal.
    /// `now` is the judgement of the edited arguments. `asked` is the call as the request `spec`
    /// shows it. An edit does not approve its call in two cases: people other than its editor must
    /// approve the call, or the rule that holds the edited arguments has other terms than `spec`.
    /// The judgement to journal is `now` if the rules hold the edited arguments, otherwise `None`.
    ///
    /// # Errors
    /// Fails if a rule refuses the arguments, if the arguments do not fit the tool, or if too few
    /// people could approve them. The error describes the expected arguments, in words for the
    /// person.
    pub(super) fn judgement_after_edit(
        self,
        session: &TaskSession,
        spec: &RequestSpec,
        asked: &CallSpec,
        now: &Judgement,
    ) -> Result<(bool, Option<Judgement>), String> {
        let why = now.reason.as_deref().unwrap_or("no reason is given");
        let terms = match now.verdict {
            Verdict::Deny => return Err(format!("arguments that no rule refuses: {why}")),
            Verdict::Invalid | Verdict::Human => return Err(format!("arguments that fit: {why}")),
            Verdict::Allow => &spec.terms,
            Verdict::Hold => now.terms.as_ref().unwrap_or(&spec.terms),
        };
        let caller = self.approver.caller();
        let has_accounts = !caller.without_accounts;
        let editor = caller.user_id.as_str();
        let needs_others = has_accounts && spec.needs_others_after_edit(asked.tool_call_id, editor);
        let is_approved = !needs_others && *terms == spec.terms;
        let bars_editor = needs_others || (has_accounts && terms.approvers.required > 1);
        let (roster, owner) = (&self.engine.roster, &session.own.row.user_id);
        if bars_editor && !others_suffice(roster, caller, owner, &terms.approvers) {
            return Err("arguments that enough people beside you may approve".to_owned());
        }
        let judgement = (now.verdict == Verdict::Hold).then(|| now.clone());
        Ok((is_approved, judgement))
    }
}
