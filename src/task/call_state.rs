//! The state of one tool call, after the journal items read so far.

use std::time::Duration;

use uuid::Uuid;

use super::decision::Vote;
use super::elicitation::Elicitation;
use super::grant::GrantUse;
use super::id::{CallId, GrantId, RequestId, TaskId};
use super::item::{Outcome, ToolCall};
use super::time::Time;
use super::tool_spec::{Effect, ToolKind};
use super::verdict::{Judgement, Terms};

/// The phase of a call, from the proposal to the written result.
#[derive(Clone, Debug, PartialEq)]
pub enum Phase {
    /// The policy has not judged the call yet, or must judge the call again.
    New,
    /// The policy allows the call.
    Allowed,
    /// The call needs an approval, but the request for the approval is not open yet.
    Held(Terms),
    /// The call is itself a request to a person, but that request is not open yet.
    Human(Terms),
    /// The tool's server has a further question, but no open request asks it yet.
    ServerAsks,
    /// An open request asks people to decide the call.
    AwaitsDecision(RequestId),
    /// The call may run, for one of three reasons. Enough people approved the call. Or the outcome
    /// of the call was unknown, and enough people approved a retry. Or a person edited the call,
    /// and the edit needs no further approval.
    Approved(Approval),
    /// The call will not run, or will not run again. Its result is known but not written yet.
    Settled(Outcome, String),
    /// The call was started and has no result yet.
    Started(AttemptStart),
    /// The outcome of the call is unknown. An open request asks a person about the outcome.
    OutcomeUnknown(RequestId),
    /// A sub-agent's task performs the call.
    Delegated(TaskId),
    /// The call's result is written.
    Done(Outcome),
}

/// An approval to run a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Approval {
    /// The request whose decision approved the call.
    pub request_id: RequestId,
    /// The people whose approvals count. If an edit approved the call, only the editor counts.
    pub by: Vec<Vote>,
    /// Terms under which the call was approved.
    pub terms: Terms,
    /// Digest of the approved call. For a call that a person edited, the digest covers the edited
    /// arguments.
    pub digest: String,
    /// Rule that the approved call runs under, if any.
    pub rule: Option<String>,
    /// Whether the approval is a `retry` after an unknown outcome. In a retry, the vote of the
    /// person who edited the call counts like any other vote. Where other people had to approve the
    /// edited arguments, they did so before the first attempt.
    pub is_retry: bool,
}

/// The prefix of [`AttemptStart::replica`] if the client that proposed the call (the asker) also
/// runs the call. The whole text is `elsewhere:<proposal>:<runner>`, with the id of the proposal
/// and the name of the client's process.
const ASKER_PREFIX: &str = "elsewhere:";

/// The start of an attempt at a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptStart {
    /// Time of the commit that recorded the start.
    pub at: Time,
    /// Number of the attempt: 1, 2, 3 …
    pub attempt: u32,
    /// Time limit of the attempt, counted from its start.
    pub timeout: Duration,
    /// Id of the process of this service that sends the call. If the client that proposed the call
    /// runs it, this field holds the text that [`AttemptStart::replica_of_asker`] returns.
    pub replica: String,
}

impl AttemptStart {
    /// Builds the `replica` of a call whose asker (the client that proposed the call) also runs it.
    /// `ask` is the id of the proposal whose answer lets the client run the call. `runner` is the
    /// name of the client's process; empty if the client gave no name.
    #[must_use]
    pub fn replica_of_asker(ask: Uuid, runner: &str) -> String {
        format!("{ASKER_PREFIX}{}:{runner}", ask.simple())
    }

    /// Returns the `ask` and the `runner` that [`AttemptStart::replica_of_asker`] stored; `None` if
    /// this service runs the call.
    #[must_use]
    pub fn permit_holder(&self) -> Option<(Uuid, &str)> {
        let (ask, runner) = self.replica.strip_prefix(ASKER_PREFIX)?.split_once(':')?;
        Some((Uuid::try_parse(ask).ok()?, runner))
    }

    /// Whether the client that proposed the call runs it, instead of this service.
    #[must_use]
    pub fn is_run_by_asker(&self) -> bool {
        self.replica.starts_with(ASKER_PREFIX)
    }

    /// Returns the time from which the attempt counts as over. If the asker runs the attempt, this
    /// is the end of the attempt's timeout. If this service runs the attempt, `grace` (the duration
    /// of a lease) is added, because the running process may notice the timeout late.
    #[must_use]
    pub fn ends_at(&self, grace: Duration) -> Time {
        let end = self.at + self.timeout;
        if self.is_run_by_asker() {
            end
        } else {
            end + grace
        }
    }
}

/// A call, and its state after the journal items read so far.
#[derive(Clone, Debug, PartialEq)]
pub struct CallState {
    /// The call as the model proposed it.
    pub call: ToolCall,
    /// A person's replacement of the call's arguments, if any.
    pub edited: Option<EditedArguments>,
    /// Number of the turn that proposed the call.
    pub turn: u32,
    /// Phase after the items read so far.
    pub phase: Phase,
    /// The policy's last judgement; `None` before the first judgement.
    pub judgement: Option<Judgement>,
    /// Effect of repeating the call; `once` until the call is judged, and `once` for an idempotent
    /// call whose questions were removed because the tool had changed. If an approval request shows
    /// a stricter effect, that effect counts.
    pub effect: Effect,
    /// How the call is performed; `Http` (the default) until the call is judged.
    pub performer: ToolKind,
    /// Approval under which the call runs, if any; kept after the start.
    pub approval: Option<Approval>,
    /// Number of attempts started so far.
    pub attempts: u32,
    /// The last started attempt; `None` before the first attempt.
    pub start: Option<AttemptStart>,
    /// Whether the last attempt is over and its outcome is unknown, so that the attempt no longer
    /// counts as in flight. True in three cases: the asker has reported an unknown outcome and so
    /// returned the permit, a request has asked people about the outcome, or the attempt ended with
    /// questions that were removed because the tool had changed.
    pub is_attempt_over: bool,
    /// The number of the last attempt that ended with questions of the tool's server; 0 if none
    /// did, or if the questions were removed because the tool had changed.
    pub asking_attempt: u32,
    /// The last questions of the tool's server, if any, with the answers for the next attempt.
    pub elicitation: Option<Box<Elicitation>>,
    /// The tool's definition in the request with the first question of the last attempt that ended
    /// with questions. `None` if no attempt did, or if that request has no definition.
    pub asking_definition: Option<String>,
    /// Whether the call was proposed before the last restore of a backup or promotion of a standby.
    /// If true, later events of the call may be lost (see `restore.rs`).
    pub in_uncertain_history: bool,
    /// Whether the decision that approved the call comes after the uncertain history (see
    /// `restore.rs`). True for every approved call if no history is uncertain.
    pub is_approval_certain: bool,
    /// The standing decision (an approval of later calls) under which an earlier attempt ran, if
    /// any. A further attempt under this standing decision does not count as a second use.
    pub used_grant: Option<GrantId>,
}

/// A person's replacement of a call's arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EditedArguments {
    /// The exact argument text with which the call runs.
    pub arguments_text: String,
    /// User id of the person who wrote the replacement.
    pub by: String,
    /// Whether people other than the editor must approve the replacement. True in two cases: the
    /// request in which the person edited the call required several approvals, or this request
    /// barred the person from approving the call, because they had edited it before. The value
    /// stays true even if a later request requires only one approval.
    pub needs_others: bool,
}

impl CallState {
    /// Returns the argument text that is judged, shown and run: the text of a person's edit, or the
    /// model's text if no person edited the call.
    #[must_use]
    pub fn arguments_text(&self) -> &str {
        self.edited
            .as_ref()
            .map_or(&self.call.arguments_text, |edited| &edited.arguments_text)
    }

    /// Returns the rule that the call runs under: the rule of the call's approval or, without an
    /// approval, the rule of the call's last judgement.
    #[must_use]
    pub fn rule(&self) -> Option<&str> {
        match &self.approval {
            Some(approval) => approval.rule.as_deref(),
            None => self.judgement.as_ref()?.rule.as_deref(),
        }
    }

    /// Returns the standing decision that lets the call run. `None` if a person approved the call,
    /// or if the call needs no standing decision.
    #[must_use]
    pub fn grant(&self) -> Option<GrantId> {
        let grant = self.judgement.as_ref()?.grant_id;
        grant.filter(|_| self.approval.is_none())
    }

    /// Returns the use of a standing decision that the `ToolStarted` item of the next attempt
    /// records. `None` if no standing decision lets the call run.
    #[must_use]
    pub fn grant_use(&self) -> Option<GrantUse> {
        self.grant().map(|grant_id| GrantUse {
            grant_id,
            again: self.used_grant == Some(grant_id),
        })
    }

    /// Returns the terms of the call's approval. A call without an approval has the terms of its
    /// last judgement, or the default terms if that judgement has none.
    #[must_use]
    pub fn terms(&self) -> Terms {
        self.recorded_terms().cloned().unwrap_or_default()
    }

    /// Returns the terms of the call's approval or, without an approval, of its last judgement.
    /// `None` if neither has terms, as for an allowed call.
    #[must_use]
    pub fn recorded_terms(&self) -> Option<&Terms> {
        match &self.approval {
            Some(approval) => Some(&approval.terms),
            None => self.judgement.as_ref()?.terms.as_ref(),
        }
    }

    /// Whether the call still waits for the result of the attempt `attempt`. The call stops waiting
    /// when the result arrives. It also stops, for example, when a request about it is opened.
    #[must_use]
    pub fn awaits_result_of(&self, attempt: u32) -> bool {
        matches!(&self.phase, Phase::Started(start) if start.attempt == attempt)
    }

    /// Returns the task of the sub-agent that performs the call, if any.
    #[must_use]
    pub fn child(&self) -> Option<TaskId> {
        if let Phase::Delegated(child) = self.phase {
            Some(child)
        } else {
            None
        }
    }

    /// Returns the phase of a call whose outcome stays unknown after a request about it was closed:
    /// `Started`, or `New` if the journal shows no start.
    pub(super) fn phase_after_reconcile_closed(&self) -> Phase {
        self.start.clone().map_or(Phase::New, Phase::Started)
    }

    /// Returns the result that an unfinished call gets when its task is canceled. A call that is
    /// already settled as rejected, responded, failed or unknown keeps that result.
    #[must_use]
    pub fn canceled_result(&self) -> (CallId, Outcome, String) {
        let (outcome, text) = if let Phase::Settled(outcome, text) = &self.phase
            && matches!(
                outcome,
                Outcome::Rejected | Outcome::Responded | Outcome::Failed | Outcome::Unknown
            ) {
            (*outcome, text.clone())
        } else if self.child().is_some() {
            (Outcome::Canceled, SUB_AGENT_CANCELED_TEXT.to_owned())
        } else if self.ends_unknown() {
            (Outcome::Unknown, self.unknown_outcome_text())
        } else {
            (Outcome::Canceled, CANCELED_TEXT.to_owned())
        };
        (self.call.tool_call_id, outcome, text)
    }

    /// Returns the result of a gate call whose client was too late to run the approved call or to
    /// report its outcome.
    #[must_use]
    pub fn late_asker_result(&self) -> (CallId, Outcome, String) {
        let id = self.call.tool_call_id;
        if matches!(self.phase, Phase::Started(_)) {
            let text =
                "The call was let through, and no outcome was reported. It may have taken effect.";
            return (id, Outcome::Failed, text.to_owned());
        }
        let text = "Approved, but its agent did not ask for it again in time.";
        (id, Outcome::Expired, text.to_owned())
    }

    /// Returns the call's id and its last attempt, if the call is `Started`, or is `Done` with the
    /// outcome `Unknown`. In both cases, no answer of the tool is known. `None` for any other call.
    #[must_use]
    pub fn unanswered_attempt(&self) -> Option<(CallId, &AttemptStart)> {
        let open = matches!(
            self.phase,
            Phase::Started(_) | Phase::Done(Outcome::Unknown)
        );
        self.start
            .as_ref()
            .filter(|_| open)
            .map(|start| (self.call.tool_call_id, start))
    }

    pub(super) fn is_pending_in(&self, request: RequestId) -> bool {
        matches!(self.phase, Phase::AwaitsDecision(id) | Phase::OutcomeUnknown(id) if id == request)
    }

    /// Applies a user message that came after the call.
    /// - A call that waits for its first attempt is settled as withdrawn.
    /// - A call that waits for a further attempt (`Allowed`, `Approved` or `ServerAsks`) becomes
    ///   `Started`, because its last attempt may have taken effect.
    /// - A call that a sub-agent performs is settled as canceled.
    /// - Any other call keeps its phase.
    pub(super) fn apply_user_message(&mut self) {
        self.phase = match (&self.phase, &self.start) {
            (
                Phase::New
                | Phase::Allowed
                | Phase::Held(_)
                | Phase::Human(_)
                | Phase::AwaitsDecision(_)
                | Phase::Approved(_),
                None,
            ) => Phase::Settled(Outcome::Withdrawn, WITHDRAWN_TEXT.to_owned()),
            (Phase::Allowed | Phase::Approved(_) | Phase::ServerAsks, Some(start)) => {
                Phase::Started(start.clone())
            }
            (Phase::Delegated(_), _) => {
                Phase::Settled(Outcome::Canceled, SUB_AGENT_CANCELED_TEXT.to_owned())
            }
            (phase, _) => phase.clone(),
        };
    }

    /// Returns the result of a call that will not run again: the call is settled, or it is
    /// repeatable and has used up its attempts without an answer. `None` for any other call.
    ///
    /// While another driver drives the task (`is_driven_elsewhere`), the call's last attempt may be
    /// in flight. Only that driver knows when the attempt ends, so only that driver gives up the
    /// call.
    #[must_use]
    pub fn settlement(&self, is_driven_elsewhere: bool) -> Option<(CallId, Outcome, String)> {
        let id = self.call.tool_call_id;
        if let Phase::Settled(outcome, text) = &self.phase {
            return Some((id, *outcome, text.clone()));
        }
        let is_given_up = self.effect.is_repeatable() && self.unanswered_attempts() >= MAX_ATTEMPTS;
        let text = || {
            format!(
                "There was no answer in {MAX_ATTEMPTS} attempts. The call may have taken effect."
            )
        };
        (is_given_up && !is_driven_elsewhere && matches!(self.phase, Phase::Started(_)))
            .then(|| (id, Outcome::Failed, text()))
    }

    /// Returns the number of attempts without an answer. An attempt that ended with questions of
    /// the tool's server counts as answered.
    #[must_use]
    pub fn unanswered_attempts(&self) -> u32 {
        let elicitation = self.elicitation.as_ref();
        let rounds = elicitation.map_or(0, |elicitation| elicitation.round);
        self.attempts.saturating_sub(rounds)
    }

    /// Whether the call may have taken effect, although its last `unsent` attempts were provably
    /// not sent: an earlier attempt has no answer, or the call may have run in a lost part of the
    /// history.
    #[must_use]
    pub fn may_have_acted(&self, unsent: u32) -> bool {
        self.unanswered_attempts() > unsent || self.may_have_run()
    }
}

/// Maximum number of unanswered attempts at a repeatable call. If the process that made an attempt
/// crashed before the answer, the attempt is unanswered.
pub const MAX_ATTEMPTS: u32 = 3;

/// Result of a call that was started and whose outcome stays unknown.
pub const OUTCOME_UNKNOWN_TEXT: &str =
    "This call was started and its outcome is not known: it may have taken effect.";

/// The end of a text about an attempt that was not sent, if the call may have taken effect earlier.
pub const EARLIER_ATTEMPT_TEXT: &str = "An earlier attempt at this call may have taken effect.";

/// Result of a call that had not started when its task was canceled.
pub const CANCELED_TEXT: &str = "The task was canceled; this call was not run.";

/// Result of a call whose sub-agent was canceled while at work.
pub const SUB_AGENT_CANCELED_TEXT: &str =
    "The sub-agent was at work and was canceled. Its earlier work is not undone.";

/// Result of a call that had not started when the user sent another message.
pub const WITHDRAWN_TEXT: &str = "The user went on with another message; this call was not run.";

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::task::item::{Fact, FinishReason, Item, Turn, Usage};
    use crate::task::progress::Progress;
    use crate::task::status::TaskStatus;
    use crate::task::step::{Step, StepContext, next_step};
    use crate::task::verdict::Verdict;

    pub(in crate::task) const CALL: CallId = CallId(Uuid::from_u128(1));

    /// Returns a task whose only call has this tool and this effect and is allowed. `facts` follow
    /// the judgement of the call.
    pub(in crate::task) fn after_judgement(
        tool: &str,
        effect: Effect,
        facts: impl IntoIterator<Item = Fact>,
    ) -> Progress {
        let call = ToolCall {
            tool_call_id: CALL,
            name: tool.to_owned(),
            arguments_text: "{}".to_owned(),
            holds_secret: false,
            provider_id: String::new(),
        };
        let first = [
            Fact::TaskStatus {
                status: TaskStatus::Running,
                error: None,
                output: None,
            },
            Fact::AssistantMessage(Turn {
                turn: 1,
                text: None,
                tool_calls: vec![call],
                finish_reason: FinishReason::ToolCalls,
                usage: Usage::default(),
                raw: serde_json::Value::Null,
            }),
            Fact::Judged {
                tool_call_id: CALL,
                judgement: Judgement::new(Verdict::Allow),
                effect,
                performer: ToolKind::Http,
            },
        ];
        let items: Vec<_> = first
            .into_iter()
            .chain(facts)
            .zip(1..)
            .map(|(fact, seq)| Item {
                seq,
                at: Time(seq),
                fact,
            })
            .collect();
        Progress::from_items(&items)
    }

    /// Returns a task whose only call is repeatable and has no answer to its last attempt.
    fn after_last_start() -> Progress {
        let starts = (1..=MAX_ATTEMPTS).map(|attempt| Fact::ToolStarted {
            tool_call_id: CALL,
            name: "lookup".to_owned(),
            digest: String::new(),
            attempt,
            timeout_ms: 30_000,
            replica: "r1".to_owned(),
            grant: None,
        });
        after_judgement("lookup", Effect::ReadOnly, starts)
    }

    #[test]
    fn repeatable_call_after_its_last_start_is_given_up_unless_another_driver_has_the_task() {
        let progress = after_last_start();
        for running in [BTreeSet::new(), BTreeSet::from([CALL])] {
            let step = |is_driven_elsewhere| {
                let context = StepContext {
                    running: running.clone(),
                    is_driven_elsewhere,
                    ..StepContext::default()
                };
                next_step(&progress, &context)
            };
            let text = "There was no answer in 3 attempts. The call may have taken effect.";
            let given_up = vec![(CALL, Outcome::Failed, text.to_owned())];
            assert_eq!(step(false), Step::Settle(given_up));
            // A driver leaves this step to the other driver.
            assert_eq!(step(true), Step::RunCalls(vec![CALL]));
        }
    }
}
