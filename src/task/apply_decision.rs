//! Applies three kinds of event to calls: a request was opened, a person answered a request, a
//! request was closed. Invariant: an answer affects a call only as long as the answered request
//! asks about the call. An approval lets a call run only once enough people have approved the call;
//! in a service without accounts, one approval is enough.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::call_state::{Approval, CANCELED_TEXT, CallState, EditedArguments, Phase};
use super::decision::{Action, CallAnswer, Consequence, Decision};
use super::elicitation::declined_note;
use super::id::{CallId, RequestId};
use super::item::{CloseReason, Outcome};
use super::progress::{Progress, RequestProgress};
use super::request::{RequestKind, RequestSpec};
use super::request_kind::ResponseKind;
use super::request_state::COUNTING_IDS;
use super::status::RequestStatus;
use super::time::Time;
use super::tool_spec::Effect;
use super::user::{UserId, UserIds, UserKey};
use super::verdict::{OnExpiry, Verdict};

impl RequestProgress {
    fn approvers_of(&self, call: CallId, ids: UserIds) -> BTreeSet<UserKey> {
        self.approvals
            .get(&call)
            .into_iter()
            .flatten()
            .map(|vote| ids.key(&vote.by))
            .collect()
    }

    /// Returns the number of people who have approved `call`, plus one if `user` is not among them.
    #[must_use]
    pub fn approvals_including(&self, call: CallId, user: &UserId) -> usize {
        let mut people = self.approvers_of(call, user.ids());
        people.insert(user.key().clone());
        people.len()
    }

    /// Whether `user` has approved `call` in this request.
    #[must_use]
    pub fn has_approved(&self, call: CallId, user: &UserId) -> bool {
        self.approvals
            .get(&call)
            .is_some_and(|votes| votes.iter().any(|vote| user.is_same_person(&vote.by)))
    }
}

impl Progress {
    pub(super) fn apply_request(&mut self, spec: &RequestSpec, opened_at: Time) {
        for call in spec.own_calls() {
            if let Some(state) = self.call_mut(call.tool_call_id) {
                state.phase = if spec.kind.properties().outcome_unknown {
                    state.is_attempt_over = true;
                    Phase::OutcomeUnknown(spec.request_id)
                } else {
                    Phase::AwaitsDecision(spec.request_id)
                };
                // The effect may have changed since the judgement. The stricter effect counts.
                if spec.kind.properties().decides_calls {
                    state.effect = state.effect.max(call.effect);
                }
                // An attempt's questions came together: the definition in its first request counts.
                if spec.elicitation.is_some() && state.asking_attempt != state.attempts {
                    state.asking_attempt = state.attempts;
                    state.asking_definition.clone_from(&call.definition);
                }
                state.elicitation = spec.elicitation.clone().or(state.elicitation.take());
            }
        }
        self.open.push(RequestProgress {
            spec: spec.clone(),
            opened_at,
            approvals: BTreeMap::new(),
            decided: BTreeMap::new(),
            then: None,
        });
    }

    pub(super) fn apply_decision(&mut self, id: RequestId, decision: &Decision) {
        let Some(index) = self.open.iter().position(|open| open.spec.request_id == id) else {
            return;
        };
        let mut open = self.open.remove(index);
        // The first pass applies all answers except rejections, and an approval removes the
        // rejections of equal calls. The second pass applies the rejections, so that a rejection
        // survives an approval of an equal call in the same decision.
        for rejections in [false, true] {
            for (call, answer) in &decision.decisions {
                if (answer.action == Action::Reject) == rejections {
                    self.apply_answer(&mut open, *call, decision, answer);
                }
            }
        }
        open.then = decision.then.or(open.then);
        if !decision.closes {
            self.open.insert(index, open);
            return;
        }
        self.responded.push(id);
        if let Some(then) = decision.then.filter(|then| *then != Consequence::Continue) {
            self.ending = Some(then);
            self.cancel_reason = Some(cancel_reason(decision));
            self.cancel_responded_calls(&open);
        } else {
            self.reset_undecided_calls(&open);
        }
    }

    /// Resets the calls that a closed request left undecided, so that a later request can ask about
    /// them. This is a safeguard: all calls of a closed request should be decided.
    fn reset_undecided_calls(&mut self, open: &RequestProgress) {
        for call in open.spec.own_calls() {
            if let Some(state) = self.call_mut(call.tool_call_id)
                && state.is_pending_in(open.spec.request_id)
            {
                state.phase = if open.spec.kind.properties().outcome_unknown {
                    state.phase_after_reconcile_closed()
                } else {
                    Phase::New
                };
            }
        }
    }

    /// Discards the results that people supplied in the approval request `open`, because a decision
    /// of this request ends the task. The calls are settled as canceled, except those with a result
    /// that is already written.
    fn cancel_responded_calls(&mut self, open: &RequestProgress) {
        for (call, action) in &open.decided {
            if open.spec.kind.properties().decides_calls
                && *action == Action::Respond
                && let Some(state) = self.call_mut(*call)
                && !matches!(state.phase, Phase::Done(_))
            {
                state.phase = Phase::Settled(Outcome::Canceled, CANCELED_TEXT.to_owned());
            }
        }
    }

    fn apply_answer(
        &mut self,
        open: &mut RequestProgress,
        id: CallId,
        decision: &Decision,
        answer: &CallAnswer,
    ) {
        let kind = open.spec.kind;
        let mut may_run = answer.leave;
        if matches!(answer.action, Action::Approve | Action::Retry) {
            open.approvals.entry(id).or_default().push(decision.vote());
            let approvers = open.approvers_of(id, COUNTING_IDS).len();
            may_run =
                decision.closes_and_continues() || answer.decides(approvers, open.spec.required());
        }
        if may_run || answer.settles() {
            open.decided.insert(id, answer.action);
        }
        let Some(state) = self.call(id) else {
            return;
        };
        if !state.is_pending_in(open.spec.request_id) {
            // The request no longer asks about the call, for example after a user message.
            return;
        }
        let name = state.call.name.clone();
        let Some(phase) = self.next_phase(open, id, decision, answer, may_run) else {
            return;
        };
        self.has_credential |= kind.takes_secrets() && answer.action == Action::Respond;
        if kind.properties().decides_calls {
            self.update_rejections(id, &phase, decision, answer);
        }
        let Some(state) = self.call_mut(id) else {
            return;
        };
        if let Phase::Approved(approval) = &phase {
            state.approval = Some(approval.clone());
        }
        if let Some(edit) = &answer.edit {
            state.edited = Some(EditedArguments {
                arguments_text: edit.arguments_text.clone(),
                by: decision.by.clone(),
                needs_others: open.spec.needs_others_after_edit(id, &decision.by),
            });
        }
        state.phase = phase;
        // After an edit that does not let the call run, the edited call still needs an approval.
        let is_decided = may_run || answer.action != Action::Edit;
        if is_decided && kind.properties().lifts_quarantine {
            self.shared.quarantine.lift(&name);
        }
    }

    /// Returns the call's phase after an answer; `None` if the phase does not change. If the
    /// request is an elicitation, also stores the answer in the call's state, for the next attempt.
    fn next_phase(
        &mut self,
        open: &RequestProgress,
        id: CallId,
        decision: &Decision,
        answer: &CallAnswer,
        may_run: bool,
    ) -> Option<Phase> {
        let state = self.call_mut(id)?;
        if open.spec.kind.properties().response != ResponseKind::ServerForm {
            return phase_after(state, open, decision, answer, may_run);
        }
        let elicitation = state.elicitation.as_mut()?;
        elicitation.answer_first(answer.action, decision);
        Some(if elicitation.questions.is_empty() {
            resumed_phase(state)
        } else {
            Phase::ServerAsks
        })
    }

    /// Updates the rejected calls after an answer about a call. A rejection is recorded, so that
    /// equal calls are refused. An approval removes the rejections of equal calls.
    fn update_rejections(
        &mut self,
        id: CallId,
        phase: &Phase,
        decision: &Decision,
        answer: &CallAnswer,
    ) {
        let Some(state) = self.call(id) else { return };
        let name = state.call.name.clone();
        let edit = answer.edit.as_ref();
        let text = edit.map_or(state.arguments_text(), |edit| &edit.arguments_text);
        let text = text.to_owned();
        if answer.action == Action::Reject {
            let reason = decision.reason_about(id).map(str::to_owned);
            self.shared.rejections.add(id, &name, &text, reason);
        }
        if matches!(phase, Phase::Approved(_)) {
            self.shared.rejections.remove_equal(&name, &text);
        }
    }

    pub(super) fn apply_request_closed(
        &mut self,
        id: RequestId,
        status: RequestStatus,
        reason: CloseReason,
    ) {
        let Some(index) = self.open.iter().position(|open| open.spec.request_id == id) else {
            return;
        };
        let open = self.open.remove(index);
        if status == RequestStatus::Expired && open.spec.terms.on_expiry == OnExpiry::Cancel {
            self.ending = Some(Consequence::Cancel);
            self.cancel_reason = Some("its request expired without an answer".to_owned());
        }
        for call in open.spec.own_calls() {
            let Some(state) = self.call_mut(call.tool_call_id) else {
                continue;
            };
            if !state.is_pending_in(id) {
                continue;
            }
            if reason == CloseReason::ToolChanged && state.elicitation.is_some() {
                forget_questions(state);
            }
            state.phase = phase_after_close(open.spec.kind, reason, state);
        }
    }
}

/// Removes the elicitation from a call whose tool has changed, because answers and the server's
/// state must not reach another target. The attempts that ended with questions then count as
/// unanswered: they may have taken effect at the earlier target. An idempotent call becomes a
/// `once` call, because the new target does not know the earlier attempts.
fn forget_questions(state: &mut CallState) {
    if state.effect == Effect::Idempotent {
        state.effect = Effect::Once;
    }
    state.elicitation = None;
    state.is_attempt_over |= state.asking_attempt == state.attempts;
    state.asking_attempt = 0;
}

/// Returns a call's phase after a request about it was closed without a decision.
fn phase_after_close(kind: RequestKind, reason: CloseReason, state: &CallState) -> Phase {
    match reason {
        // The outcome of the call stays unknown: the closed request asked for the outcome, or the
        // call was started before that request. If the tool changed, a new request asks for the
        // outcome at once. If the task failed, a new request asks once the task continues. If the
        // task was canceled or got a message, no request asks: the call gets a result at once.
        CloseReason::ToolChanged | CloseReason::Canceled if kind.properties().outcome_unknown => {
            state.phase_after_reconcile_closed()
        }
        CloseReason::Canceled | CloseReason::Superseded if state.start.is_some() => {
            state.phase_after_reconcile_closed()
        }
        // A call that was sent and must not be repeated stays started, so that a person is asked
        // about its outcome, also if the tool is gone or denied by now.
        CloseReason::ToolChanged if state.start.is_some() && !state.effect.is_repeatable() => {
            state.phase_after_reconcile_closed()
        }
        CloseReason::ToolChanged => Phase::New,
        CloseReason::Expired => expiry_phase(kind, state),
        CloseReason::Superseded | CloseReason::Canceled | CloseReason::AnsweredLate => {
            withdrawal_phase(kind, state)
        }
    }
}

fn expiry_phase(kind: RequestKind, state: &CallState) -> Phase {
    let (outcome, text) = match kind {
        RequestKind::Approval | RequestKind::Credentials => (
            Outcome::Expired,
            state.not_run_text(
                "The request expired without a decision",
                ", so this call was not run. No human has said no to it.",
            ),
        ),
        RequestKind::Guidance | RequestKind::Confirmation => (
            Outcome::Expired,
            "A human was asked, and the request expired without an answer.".to_owned(),
        ),
        RequestKind::ExternalResult => (
            Outcome::Expired,
            "The request for the result of this call expired. It is not known whether the call was run.".to_owned(),
        ),
        RequestKind::Reconcile => (
            Outcome::Unknown,
            "The outcome of this call is unknown; a human was asked, and the request expired without an answer.".to_owned(),
        ),
        RequestKind::Elicitation => {
            let text = state.not_run_text(
                "The tool asked the user a question, and no person answered it in time",
                ".",
            );
            let elicitation = state.elicitation.as_ref();
            let note = elicitation.map(|asked| declined_note(&asked.declined));
            (Outcome::Expired, text + &note.unwrap_or_default())
        }
    };
    Phase::Settled(outcome, text)
}

fn withdrawal_phase(kind: RequestKind, state: &CallState) -> Phase {
    match kind {
        RequestKind::Reconcile | RequestKind::Elicitation => {
            Phase::Settled(Outcome::Unknown, state.unknown_outcome_text())
        }
        RequestKind::Approval
        | RequestKind::Guidance
        | RequestKind::Credentials
        | RequestKind::Confirmation
        | RequestKind::ExternalResult => Phase::Settled(
            Outcome::Withdrawn,
            "This call was withdrawn before a human decided.".to_owned(),
        ),
    }
}

/// Returns the phase of a call after its confirmation was answered. The answer and the person's
/// `comment` become the call's result.
fn confirmation_phase(is_confirmed: bool, comment: Option<&String>) -> Phase {
    let mut result = json!({"confirmed": is_confirmed});
    if let (Some(comment), Value::Object(members)) = (comment, &mut result) {
        members.insert("comment".to_owned(), Value::from(comment.as_str()));
    }
    Phase::Settled(Outcome::Responded, result.to_string())
}

fn rejection_phase(kind: RequestKind, state: &CallState, reason: Option<&String>) -> Phase {
    let reason_text = reason.map_or(String::new(), |reason| format!(" Reason: {reason}"));
    match kind {
        RequestKind::Reconcile => Phase::Settled(
            Outcome::Failed,
            format!(
                "It is unknown whether this call took effect. A human was asked and said not to count on it.{reason_text}"
            ),
        ),
        RequestKind::Approval | RequestKind::ExternalResult => {
            let text = state.not_run_text("A human rejected this call", "; it was not run.");
            Phase::Settled(Outcome::Rejected, format!("{text}{reason_text}"))
        }
        RequestKind::Guidance
        | RequestKind::Credentials
        | RequestKind::Confirmation
        | RequestKind::Elicitation => {
            let text = state.not_run_text("A human was asked and declined to answer", ".");
            Phase::Settled(Outcome::Rejected, format!("{text}{reason_text}"))
        }
    }
}

/// Returns a call's phase after an answer to a request other than an elicitation; `None` if the
/// phase does not change.
fn phase_after(
    state: &CallState,
    open: &RequestProgress,
    decision: &Decision,
    answer: &CallAnswer,
    may_run: bool,
) -> Option<Phase> {
    let (kind, id) = (open.spec.kind, state.call.tool_call_id);
    let reason = answer.reason.as_ref().or(decision.reason.as_ref());
    let approved = |digest: String, rule: Option<String>| {
        let mut by = open.approvals.get(&id).cloned().unwrap_or_default();
        if answer.action == Action::Edit {
            by = vec![decision.vote()];
        }
        let (request_id, terms) = (open.spec.request_id, open.spec.terms.clone());
        Phase::Approved(Approval {
            request_id,
            by,
            terms,
            digest,
            rule,
            is_retry: answer.action == Action::Retry,
        })
    };
    match answer.action {
        Action::Approve | Action::Reject if kind.is_yes_or_no() => {
            Some(confirmation_phase(answer.action == Action::Approve, reason))
        }
        Action::Approve | Action::Retry => may_run.then(|| {
            let shown = open.spec.own_calls().find(|call| call.tool_call_id == id);
            approved(
                shown.map(|call| call.digest.clone()).unwrap_or_default(),
                shown.and_then(|call| call.rule.clone()),
            )
        }),
        Action::Edit => {
            let edit = answer.edit.as_ref()?;
            Some(if may_run {
                approved(edit.digest.clone(), edit.rule.clone())
            } else {
                Phase::Held(open.spec.terms.clone())
            })
        }
        Action::Reject => Some(rejection_phase(kind, state, reason)),
        Action::Respond if kind.takes_secrets() => Some(credentials_phase(state, decision)),
        Action::Respond => {
            let result = answer
                .result_text
                .as_ref()
                .or(decision.result_text.as_ref());
            let text = match (result, &decision.response) {
                (Some(text), _) => json_string_text(text),
                (None, Some(response)) => response.to_string(),
                (None, None) => String::new(),
            };
            Some(Phase::Settled(Outcome::Responded, text))
        }
        Action::Mixed => None,
    }
}

/// Returns a call's phase after a person provided credentials. A call of `request_credentials` is
/// settled, and its result tells the model how tools use the credentials. Any other call continues.
fn credentials_phase(state: &CallState, decision: &Decision) -> Phase {
    match &state.judgement {
        Some(judgement) if judgement.verdict == Verdict::Human => {
            let fields: Vec<&String> = match &decision.response {
                Some(Value::Object(members)) => members.keys().collect(),
                Some(_) | None => Vec::new(),
            };
            let text = json!({
                "provided": true, "fields": fields,
                "note": "The values are sealed and not shown. The tools that need them use them by themselves: call them.",
            });
            Phase::Settled(Outcome::Responded, text.to_string())
        }
        _ => resumed_phase(state),
    }
}

/// Returns the phase in which a call continues after a person has answered a question about it.
fn resumed_phase(state: &CallState) -> Phase {
    match &state.approval {
        Some(approval) => Phase::Approved(approval.clone()),
        None => Phase::Allowed,
    }
}

fn cancel_reason(decision: &Decision) -> String {
    let own = decision
        .decisions
        .values()
        .find_map(|answer| answer.reason.as_ref());
    let reason = decision.reason.as_ref().or(own);
    let why = reason.map_or(String::new(), |reason| format!(" (reason: {reason})"));
    format!("a human rejected what it wanted to do{why}")
}

/// Returns the text that a JSON string encodes. Any other JSON is returned unchanged.
fn json_string_text(json: &str) -> String {
    serde_json::from_str::<String>(json).unwrap_or_else(|_| json.to_owned())
}
