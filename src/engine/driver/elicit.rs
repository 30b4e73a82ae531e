//! Handles MCP elicitation: a tool's server interrupts a call with questions to the user. Asks
//! people these questions, and sends the answers with the next attempt. The server may give a state
//! that the next attempt must return. Invariant: if there is a sealing key, this state is stored
//! sealed (encrypted).

use std::collections::BTreeMap;

use super::{Driver, Stop};
use crate::secret::seal::{SealError, Sealed};
use crate::task::call_state::{CallState, Phase};
use crate::task::elicitation::{Elicitation, Resume, ServerState};
use crate::task::id::CallId;
use crate::task::item::Fact;
use crate::task::request::{RequestKind, RequestSpec};
use crate::task::text::cut;
use crate::task::verdict::Terms;

/// The maximum length in bytes of the server's question in a request's one-line message. The
/// request's `question` has the whole text.
const MAX_MESSAGE_BYTES: usize = 300;

impl Driver<'_> {
    /// Opens a request for the next question of each of these calls. Ends a call whose questions
    /// cannot be stored (see `end_unattempted`).
    ///
    /// # Errors
    /// The [`Stop`] of a read or commit that failed.
    pub(super) async fn elicit(&mut self, calls: &[CallId]) -> Result<(), Stop> {
        let (mut ended, mut specs) = (Vec::new(), Vec::new());
        for state in self.states_of(calls) {
            let Some(elicitation) = self.open_elicitation(&state) else {
                let text = "The tool asked the user a question, which could not be stored.";
                ended.push((state.call.tool_call_id, text.to_owned()));
                continue;
            };
            let Some(first) = elicitation.questions.first().cloned() else {
                continue;
            };
            self.session.identify_pending_call();
            let calls = vec![self.requested_call(&state, true)];
            let terms = self
                .elicitation_terms(&state, &elicitation.server, &first.message)
                .await;
            specs.push(RequestSpec {
                question: Some(first.message),
                details: Some(elicitation.details()),
                form: Some(first.form),
                elicitation: Some(elicitation),
                ..self.new_request(RequestKind::Elicitation, calls, terms)
            });
        }
        // The journal has the results of a commit before its requests.
        self.end_unattempted(ended).await?;
        for spec in specs {
            self.session
                .push(Fact::InterventionRequested(spec.sealed()));
        }
        Ok(())
    }

    /// Returns the questions with which the server interrupted the call's last attempt. If a person
    /// has already answered some of these questions, returns only the remaining ones. Returns
    /// `None` if the attempt ended without questions, or if the server's state cannot be sealed.
    fn open_elicitation(&self, state: &CallState) -> Option<Box<Elicitation>> {
        if state.phase == Phase::ServerAsks {
            return state.elicitation.clone();
        }
        let id = state.call.tool_call_id;
        let (_, elicitation) = self.session.elicitations.get(&id)?;
        let mut elicitation = elicitation.clone();
        elicitation.round = state.elicitation.as_ref().map_or(0, |last| last.round) + 1;
        if let (Some(ServerState::Plain(text)), Some(sealer)) =
            (&elicitation.state, &self.engine.sealer)
        {
            let data = self.associated_data(id, elicitation.round);
            let parts = data.each_ref().map(String::as_bytes);
            let sealed = sealer.seal(&parts, text.as_bytes()).ok()?;
            elicitation.state = Some(ServerState::Sealed {
                key_id: sealed.key_id,
                text: sealed.text,
            });
        }
        Some(elicitation)
    }

    /// Returns the associated data for sealing the server's state. The data binds the sealed state
    /// to the call and the round, so that the state cannot be opened for another call or round.
    fn associated_data(&self, call: CallId, round: u32) -> [String; 5] {
        let row = &self.session.own.row;
        [
            "elicitation".to_owned(),
            row.tenant.clone(),
            row.task_id.to_string(),
            call.to_string(),
            round.to_string(),
        ]
    }

    /// Returns the terms of a request with a server's question. If the call's rule names the tool
    /// exactly, the rule's terms apply. Otherwise the owner answers, and only the deadline and its
    /// consequence come from the rule. If the call was held or approved, these are the terms that
    /// the journal recorded for the call, unless `current_rule` returns another rule.
    /// Otherwise, they are the current terms of the rule that `current_rule` returns.
    async fn elicitation_terms(&self, state: &CallState, server: &str, text: &str) -> Terms {
        let policy = &self.engine.policy;
        let rule = self.current_rule(state).await;
        let rule = rule.as_deref();
        let recorded = state.recorded_terms().filter(|_| rule == state.rule());
        let of_rule = recorded.or_else(|| policy.terms(rule?));
        let of_rule = of_rule.cloned().unwrap_or_default();
        let names_tool = rule.is_some_and(|rule| policy.names_exactly(rule, &state.call.name));
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let shown = cut(&line, MAX_MESSAGE_BYTES);
        let rest = if shown == line { "" } else { "…" };
        let message = Some(format!("{server} asks: {shown}{rest}"));
        if names_tool {
            return Terms { message, ..of_rule };
        }
        Terms {
            message,
            expires_in: of_rule.expires_in,
            on_expiry: of_rule.on_expiry,
            ..Terms::default()
        }
    }

    /// Returns the answers and the server's state for the next attempt at a call; `None` if the
    /// server has asked no questions, or if the tool has changed since.
    ///
    /// # Errors
    /// Fails if the server's state cannot be decrypted. The call must then not be sent.
    fn resume(&self, state: &CallState) -> Result<Option<Resume>, SealError> {
        let Some(elicitation) = &state.elicitation else {
            return Ok(None);
        };
        if self.has_changed_since_questions(state) {
            return Ok(None);
        }
        let request_state = match &elicitation.state {
            None => None,
            Some(ServerState::Plain(text)) => Some(text.clone()),
            Some(ServerState::Sealed { key_id, text }) => {
                let sealer = self.engine.sealer.as_ref().ok_or(SealError::UnknownKey)?;
                let data = self.associated_data(state.call.tool_call_id, elicitation.round);
                let stored = Sealed {
                    key_id: key_id.clone(),
                    text: text.clone(),
                };
                let opened = sealer.open(&data.each_ref().map(String::as_bytes), &stored)?;
                let opened = String::from_utf8(opened.reveal().clone());
                Some(opened.map_err(|_| SealError::OpeningFailed)?)
            }
        };
        Ok(Some(Resume {
            round: elicitation.round,
            request_state,
            responses: elicitation.responses.clone(),
            declined: elicitation.declined.clone(),
        }))
    }

    /// Returns the [`Resume`] of each of these calls whose server has asked questions. If a
    /// server's state cannot be decrypted, ends the call (see `end_unattempted`) and returns
    /// `None`, so that the driver asks `next_step` again.
    ///
    /// # Errors
    /// The [`Stop`] of a read or commit that failed.
    pub(super) async fn continuations(
        &mut self,
        calls: &[CallId],
    ) -> Result<Option<BTreeMap<CallId, Resume>>, Stop> {
        let (mut known, mut ended) = (BTreeMap::new(), Vec::new());
        for id in calls {
            let Some(state) = self.session.own.progress.call(*id) else {
                continue;
            };
            match self.resume(state) {
                Ok(resume) => known.extend(resume.map(|resume| (*id, resume))),
                Err(why) => {
                    let text = format!(
                        "The tool asked the user a question, and its state was lost ({why})."
                    );
                    ended.push((*id, text));
                }
            }
        }
        if ended.is_empty() {
            return Ok(Some(known));
        }
        self.end_unattempted(ended).await?;
        Ok(None)
    }
}
