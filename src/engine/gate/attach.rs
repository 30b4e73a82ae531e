//! Compares a proposed call with earlier calls of the same tool. The proposal either continues an
//! equal call or is a new call. Earlier calls can amend the judgement of a new call: hold it for a
//! person's approval, add a notice or deny the call. Invariant: a call that may still be running is
//! never started a second time without a person's approval.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::propose::GateProposal;
use super::{Identity, Proposal};
use crate::engine::driver::verdict::parse_arguments;
use crate::engine::session::TaskSession;
use crate::engine::{Engine, Refusal};
use crate::store::{EqualCall, FoundCalls, ReadError};
use crate::task::call_state::{AttemptStart, Phase};
use crate::task::change::{ASKER_UNTIL_DELIVERED, AskerPresence, KeyedCall};
use crate::task::decision::Decision;
use crate::task::id::{CallId, RequestId, TaskId};
use crate::task::item::{Fact, Outcome, ToolCall, newest_decisions};
use crate::task::rejections::json_equality_key;
use crate::task::request::format_sha256;
use crate::task::status::TaskStatus;
use crate::task::time::Time;
use crate::tool::arguments;

/// The relation of a proposal to the earlier calls of its tool.
pub(super) enum ProposalMatch {
    /// The proposal is a new call, and earlier calls do not amend its judgement.
    Nothing,
    /// The proposal continues the call of this task.
    Continues(TaskId),
    /// The proposal is a new call, and earlier calls amend its judgement.
    Amends(JudgementAmendment),
}

/// The effect that earlier calls have on the judgement of a new call.
pub(super) enum JudgementAmendment {
    /// A person must approve the call even if the rules allow it. The text is the reason.
    Hold(String),
    /// If a rule holds the call, the request to the approvers shows this notice.
    Notice(String),
    /// A person has rejected an equal call before, so the new call is denied.
    Reject {
        call: CallId,
        reason: Option<String>,
    },
}

/// Returns the tool and the key by which equal calls are found. `None` if the arguments cannot be
/// parsed: such a call never runs, so equal calls need not be found.
pub(super) fn keyed_call(proposal: &Proposal) -> Option<KeyedCall> {
    let (tool, text) = (proposal.tool.as_str(), proposal.arguments_text.as_str());
    let value = parse_arguments(text)?;
    let identity = match &proposal.identity {
        Identity::Bytes { rest, .. } => format!("bytes\0{tool}\0{text}\0{rest}"),
        Identity::Value
        | Identity::Key { .. }
        | Identity::New
        | Identity::Call(_)
        | Identity::CallOrKey { .. } => value_identity(tool, &value),
    };
    let prefix = if proposal.identity.has_own_key() {
        NAMED_PREFIX
    } else {
        EQUAL_PREFIX
    };
    Some(keyed(prefix, tool, &identity))
}

/// Returns the text that is the same for calls with equal arguments as JSON values.
fn value_identity(tool: &str, arguments: &Value) -> String {
    format!("value\0{tool}\0{}", json_equality_key(arguments))
}

fn keyed(prefix: &str, tool: &str, identity: &str) -> KeyedCall {
    let hash = format_sha256(&Sha256::digest(identity.as_bytes()));
    KeyedCall {
        tool: tool.to_owned(),
        key: format!("{prefix}{hash}"),
    }
}

impl TaskSession {
    /// Adds a call key to the next commit. By this key, later proposals of the tool find this gate
    /// call, whose outcome is unknown, and are held. A call that is stored with a key keeps its
    /// key. A call has none if, for example, it was repeatable when a rule allowed it, and its tool
    /// is `once` by now. The session does not know how the call was proposed, so a proposal must
    /// name the call to continue it by the added key.
    pub(in crate::engine) fn key_call_of_unknown_outcome(&mut self, call: &ToolCall) {
        self.identify_pending_call();
        let own = &mut self.own;
        if own.call.is_none() {
            let value = parse_arguments(&call.arguments_text).unwrap_or_default();
            let identity = value_identity(&call.name, &value);
            own.call = Some(keyed(NAMED_PREFIX, &call.name, &identity));
        }
        if own.row.asker_until.is_none() && own.asker.is_none() {
            own.asker = Some(AskerPresence::Absent);
        }
    }
}

/// Whether two argument texts are equal as JSON values.
pub(super) fn is_equal_json(one: &str, other: &str) -> bool {
    one == other
        || matches!((arguments::parse(one), arguments::parse(other)), (Ok(one), Ok(other)) if json_equality_key(&one) == json_equality_key(&other))
}

/// The key prefix of a call that a proposal of an equal call may continue without naming the call.
const EQUAL_PREFIX: &str = "b:";
/// The key prefix of a call that a proposal continues only if it names the call: by the caller's
/// idempotency key, or by the call's id.
const NAMED_PREFIX: &str = "k:";

impl GateProposal<'_> {
    /// Compares the proposed call with the earlier calls of its tool in its session. With
    /// `only_rejections`, looks only for a person's rejection of an equal call.
    ///
    /// # Errors
    /// `Unavailable` when the database does not answer.
    pub(super) async fn compare_with_earlier(
        self,
        call: &KeyedCall,
        only_rejections: bool,
    ) -> Result<ProposalMatch, Refusal> {
        let (engine, gate) = (self.engine, self.gate);
        let hash = call.key.get(2..).unwrap_or_default();
        let keys = [EQUAL_PREFIX, NAMED_PREFIX].map(|prefix| format!("{prefix}{hash}"));
        let max_age = gate.use_within.max(gate.no_lasts);
        let found = engine
            .store
            .equal_calls(
                &self.caller.tenant,
                &self.agent.name,
                &self.caller.user_id,
                self.proposal.session(),
                &call.tool,
                &keys,
                max_age,
            )
            .await?;
        let mut equal = EqualCalls {
            engine,
            found: &found,
            rows: found
                .calls
                .iter()
                .filter(|row| keys.contains(&row.call_key))
                .collect(),
            attaches: !self.proposal.identity.is_new_if_unknown(),
            sessions: BTreeMap::new(),
        };
        if let Some((row, amendment)) = equal.recent_rejection(gate.no_lasts).await? {
            // If the client of the rejected call left before it got the rejection, the proposal
            // continues the rejected call, and so gets the rejection.
            return Ok(match equal.relation(row, gate.use_within).await? {
                Relation::Continues => ProposalMatch::Continues(row.task_id),
                Relation::Nothing | Relation::Delivered | Relation::Holds(_) => {
                    ProposalMatch::Amends(amendment)
                }
            });
        }
        if only_rejections {
            return Ok(ProposalMatch::Nothing);
        }
        equal.compare(&call.tool, gate.use_within).await
    }
}

/// The earlier calls that are equal to a proposed call.
struct EqualCalls<'r> {
    engine: &'r Engine,
    /// The equal calls, and the other calls of the tool that affect a new call.
    found: &'r FoundCalls,
    rows: Vec<&'r EqualCall>,
    /// Whether the proposal may continue a call that it does not name.
    attaches: bool,
    /// The tasks that were loaded so far. They are kept, because several of the methods below need
    /// the same task.
    sessions: BTreeMap<TaskId, Option<TaskSession>>,
}

impl<'r> EqualCalls<'r> {
    /// Returns the loaded task; `None` if its journal is unreadable.
    async fn session(&mut self, task: TaskId) -> Result<Option<&TaskSession>, Refusal> {
        let session = match self.sessions.entry(task) {
            Entry::Occupied(loaded) => loaded.into_mut(),
            Entry::Vacant(missing) => missing.insert(match self.engine.load(task).await {
                Err(ReadError::Corrupt(_)) => None,
                loaded => loaded?,
            }),
        };
        Ok(session.as_ref())
    }

    /// Whether the proposal may continue this call without naming it, as far as the [`Identity`] of
    /// the proposal and the key of the call permit.
    fn is_attachable(&self, row: &EqualCall) -> bool {
        self.attaches && row.call_key.starts_with(EQUAL_PREFIX)
    }

    /// Compares the proposed call of `tool` with the earlier calls. If the proposal is a new call
    /// and there is a reason to hold it, the result has a [`JudgementAmendment::Hold`]. If there is
    /// no such reason, but the agent got the result of an equal call, the result has a
    /// [`JudgementAmendment::Notice`].
    async fn compare(
        &mut self,
        tool: &str,
        use_within: Duration,
    ) -> Result<ProposalMatch, Refusal> {
        let mut rows = self.rows.clone();
        rows.retain(|_| self.attaches);
        // The proposal continues the first call, in this order, whose `relation` permits it. Ended
        // calls come first, because their results may be undelivered. Approved and started calls
        // (their tasks run) come next, and then calls of unknown outcome. All other calls that wait
        // for people come last: such a call may be held only because of a call that comes earlier
        // in this order.
        rows.sort_by_key(|row| match row.status {
            TaskStatus::Completed | TaskStatus::Canceled | TaskStatus::Failed => 0,
            TaskStatus::Running => 1,
            TaskStatus::Paused if row.outcome_unknown => 2,
            TaskStatus::Paused => 3,
        });
        let (mut delivered, mut hold) = (None, None);
        for row in rows {
            match self.relation(row, use_within).await? {
                Relation::Continues if self.is_overruled(row).await? => {}
                Relation::Continues => return Ok(ProposalMatch::Continues(row.task_id)),
                Relation::Delivered => delivered = delivered.or(Some(row)),
                Relation::Holds(reason) => hold = hold.or(Some(reason)),
                Relation::Nothing => {}
            }
        }
        let quarantine = self.engine.quarantine_reason(tool, self.found).await?;
        let mut hold = match (hold, quarantine) {
            (Some(reason), Some(quarantine)) => Some(format!("{reason} {quarantine}")),
            (reason, quarantine) => reason.map(str::to_owned).or(quarantine),
        };
        if hold.is_none() && self.has_ended_call_of_unknown_outcome(tool).await? {
            let why =
                "The same call may have run before, and no person has decided such a call since.";
            hold = Some(why.to_owned());
        }
        let amendment = match (hold, delivered) {
            (Some(reason), _) => JudgementAmendment::Hold(reason),
            (None, Some(row)) => JudgementAmendment::Notice(self.end_notice(row).await?),
            (None, None) => return Ok(ProposalMatch::Nothing),
        };
        Ok(ProposalMatch::Amends(amendment))
    }

    /// Whether the outcome of an ended equal call is unknown: the call has put its tool into
    /// quarantine, or its journal is unreadable. The proposed call is then held, even if a decision
    /// about another call has ended the quarantine. Looks at the newest ended call first, and at no
    /// call older than the newest that has run or that a person has decided.
    async fn has_ended_call_of_unknown_outcome(&mut self, tool: &str) -> Result<bool, Refusal> {
        let mut ended = self.rows.clone();
        ended.retain(|row| row.status.is_terminal());
        // The newest call comes first, because the ids of tasks ascend with time. The order is not
        // by `updated_at`, because a late answer to an older call changes `updated_at`.
        ended.sort_by_key(|row| Reverse(row.task_id));
        for row in ended {
            let Some(session) = self.session(row.task_id).await? else {
                return Ok(true);
            };
            let progress = &session.own.progress;
            if progress.shared.quarantine.reason(tool).is_some() {
                return Ok(true);
            }
            let has_run = progress.calls.first().is_some_and(|call| call.attempts > 0);
            if has_run || row.is_decided {
                return Ok(false);
            }
        }
        Ok(false)
    }

    async fn end_notice(&mut self, row: &EqualCall) -> Result<String, Refusal> {
        let session = self.session(row.task_id).await?;
        let state = session.and_then(|session| session.own.progress.calls.first());
        let verb = if state.is_some_and(|state| state.attempts > 0) {
            "ran"
        } else {
            "ended"
        };
        let at = row.updated_at.to_minute(Some(row.now));
        Ok(format!(
            "The same call {verb} at {at} UTC, and its agent got the result."
        ))
    }

    /// Finds a person's newest decision about the equal calls. If it is a rejection, returns the
    /// rejected call and the amendment that denies the proposed call. Ignores a call whose last
    /// change is older than `no_lasts`, the time for which a rejection counts.
    async fn recent_rejection(
        &mut self,
        no_lasts: Duration,
    ) -> Result<Option<(&'r EqualCall, JudgementAmendment)>, Refusal> {
        if no_lasts.is_zero() {
            return Ok(None);
        }
        let mut decided = self.rows.clone();
        decided.retain(|row| row.is_decided && row.updated_at + no_lasts > row.now);
        decided.sort_by_key(|row| Reverse(row.updated_at));
        let mut newest: Option<(Time, Option<(&'r EqualCall, JudgementAmendment)>)> = None;
        for row in decided {
            // The rows are sorted by the time of their call's last item, the newest first, and no
            // decision about a call is newer than that item. So if this row's last item is not
            // newer than the newest decision found so far, neither this row nor a later row has a
            // newer decision.
            if newest.as_ref().is_some_and(|(at, _)| row.updated_at <= *at) {
                break;
            }
            let Some(decided) = self.session(row.task_id).await?.and_then(decision_about) else {
                continue;
            };
            let (at, amendment) = decided;
            if newest.as_ref().is_none_or(|(newest, _)| at > *newest) {
                newest = Some((at, amendment.map(|amendment| (row, amendment))));
            }
        }
        Ok(newest.and_then(|(_, rejection)| rejection))
    }

    /// Whether an approval of an equal call overrules the rejection of the ended call `row`. This
    /// is so if a person gave the approval after the rejection, and the approved call has not ended
    /// yet. The proposal must then continue the approved call, because a client that gets the older
    /// rejection would not ask again.
    async fn is_overruled(&mut self, row: &EqualCall) -> Result<bool, Refusal> {
        let mut open = self.rows.clone();
        open.retain(|it| self.is_attachable(it) && it.is_decided && !it.status.is_terminal());
        if !(row.is_decided && row.status.is_terminal()) || open.is_empty() {
            return Ok(false);
        }
        let decision = self.session(row.task_id).await?.and_then(rejected_by);
        let Some((rejected, ..)) = decision else {
            return Ok(false);
        };
        for other in open {
            let decision = self.session(other.task_id).await?.and_then(decision_about);
            if let Some((approved, None)) = decision
                && approved > rejected
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Relates the proposal to the call `row`. `Continues` requires [`Self::is_attachable`].
    async fn relation(
        &mut self,
        row: &EqualCall,
        use_within: Duration,
    ) -> Result<Relation, Refusal> {
        let until = row.asker_until.unwrap_or_default();
        let is_delivered = until == ASKER_UNTIL_DELIVERED;
        let is_awaited_here = self.engine.awaited_calls.contains(row.task_id);
        let is_present = until > row.now || is_awaited_here;
        let is_attachable = self.is_attachable(row);
        let unawaited = if is_attachable {
            Relation::Continues
        } else {
            Relation::Nothing
        };
        if row.status.is_terminal() {
            return Ok(if is_delivered || is_present {
                Relation::Delivered
            } else if row.updated_at + use_within > row.now {
                unawaited
            } else {
                Relation::Nothing
            });
        }
        if !is_present && (is_attachable || row.status == TaskStatus::Paused) {
            return Ok(unawaited);
        }
        let session = self.session(row.task_id).await?;
        let state = session.and_then(|session| session.own.progress.calls.first());
        let phase = state.map(|state| &state.phase);
        let may_run = phase.is_none_or(|phase| matches!(phase, Phase::Started(_)));
        let is_unawaited = if may_run && !is_attachable {
            // The proposal cannot continue this call, and must not run a `once` call beside it.
            state.is_some_and(|state| state.effect.is_repeatable())
        } else {
            !is_present || (!is_awaited_here && session.is_some_and(awaits_next_ask))
        };
        if is_unawaited {
            return Ok(unawaited);
        }
        Ok(Relation::Holds(reason_to_hold_beside(phase)))
    }
}

enum Relation {
    Nothing,
    Continues,
    /// The earlier call has ended, and its result was delivered or is being delivered.
    Delivered,
    /// A person must approve the proposed call. The text is the reason.
    Holds(&'static str),
}

/// Returns the reason to hold a proposed call beside an equal call that has an asker or may run.
/// `phase` is the phase of the equal call; `None` if its journal is unreadable.
fn reason_to_hold_beside(phase: Option<&Phase>) -> &'static str {
    match phase {
        Some(
            Phase::New
            | Phase::Allowed
            | Phase::Held(_)
            | Phase::Human(_)
            | Phase::ServerAsks
            | Phase::AwaitsDecision(_),
        ) => "The same call waits already.",
        Some(Phase::Approved(_)) => "The same call was approved and waits for its asker.",
        Some(Phase::OutcomeUnknown(_)) => {
            "The same call is being run or may have run: a person is asked about its outcome."
        }
        Some(Phase::Started(_) | Phase::Settled(..) | Phase::Delegated(_) | Phase::Done(_))
        | None => "The same call is being run.",
    }
}

/// Whether the next proposal may start another attempt at a call whose permit was delivered. True
/// if a person has approved the call again, or if the call may be repeated and the permit has
/// ended. While the permit lasts, its holder may be running the call.
fn awaits_next_ask(session: &TaskSession) -> bool {
    let Some(state) = session.own.progress.calls.first() else {
        return false;
    };
    let is_over = |start: &AttemptStart| {
        start.is_run_by_asker()
            && (state.is_attempt_over || session.now >= start.ends_at(Duration::ZERO))
    };
    let may_start = matches!(state.phase, Phase::Approved(_))
        || (state.effect.is_repeatable()
            && matches!(&state.phase, Phase::Started(start) if is_over(start)));
    let is_delivered = session.own.row.asker_until == Some(ASKER_UNTIL_DELIVERED);
    is_delivered && state.performer.properties().runs_at_client && may_start
}

/// Returns the time at which a person approved or rejected this call. After a rejection, also
/// returns the amendment for an equal call. An approval counts even if the call has not run yet. An
/// approval of edited arguments, a declined login, and a person's answer about the outcome of a
/// started call do not count. Returns `None` if no decision counts, or if the call expired or was
/// canceled.
fn decision_about(session: &TaskSession) -> Option<(Time, Option<JudgementAmendment>)> {
    let state = session.own.progress.calls.first()?;
    if matches!(
        state.phase,
        Phase::Done(Outcome::Expired | Outcome::Canceled)
    ) {
        return None;
    }
    if let Some((at, request, decision)) = rejected_by(session)
        && decides_calls(session, request)
    {
        let call = state.call.tool_call_id;
        let reason = decision.reason_about(call).map(str::to_owned);
        return Some((at, Some(JudgementAmendment::Reject { call, reason })));
    }
    // An approval of edited arguments does not cover the proposed call.
    let approval = state.approval.as_ref().filter(|_| state.edited.is_none())?;
    let mut decisions = newest_decisions(&session.own.items);
    let (at, ..) = decisions.find(|(_, id, _)| *id == approval.request_id)?;
    Some((at, None))
}

/// Returns the decision by which a call ended as rejected, with its time and its request. The
/// decision rejects the call, or declines a login that the call needs. `None` if the call has not
/// ended as rejected.
fn rejected_by(session: &TaskSession) -> Option<(Time, RequestId, &Decision)> {
    let state = session.own.progress.calls.first()?;
    let is_rejected = state.phase == Phase::Done(Outcome::Rejected);
    newest_decisions(&session.own.items)
        .next()
        .filter(|_| is_rejected)
}

/// Whether a request in the session's journal decides if calls may run. A request for a login does
/// not.
fn decides_calls(session: &TaskSession, request: RequestId) -> bool {
    session.own.items.iter().any(|item| {
        matches!(&item.fact, Fact::InterventionRequested(asked)
            if asked.request_id == request && asked.kind.properties().decides_calls)
    })
}
