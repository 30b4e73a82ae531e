//! Compares a proposed call with earlier calls of its tool. Finds an equal call that the proposal
//! continues, or the caution that the earlier calls require. Invariant: a call that may still be
//! running is never started a second time without a person's approval.

use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::{Identity, Proposal};
use crate::agent::Gate;
use crate::engine::session::TaskSession;
use crate::engine::{Engine, Refusal};
use crate::people::Caller;
use crate::store::EqualCall;
use crate::task::call_state::{CallState, Phase};
use crate::task::change::{ASKER_UNTIL_DELIVERED, KeyedCall};
use crate::task::id::TaskId;
use crate::task::item::{Fact, Outcome};
use crate::task::rejections::json_equality_key;
use crate::task::request::format_sha256;
use crate::task::status::TaskStatus;
use crate::task::time::Time;
use crate::tool::arguments;

/// The result of comparing a proposed call with earlier calls.
pub(super) enum EarlierCalls {
    /// The proposal is a new call, without a caution.
    Nothing,
    /// The proposal continues the call of this task.
    Continues(TaskId),
    /// The proposal is a new call, with a caution.
    Requires(Caution),
}

/// The effect that earlier calls have on the judgement of a new call.
pub(super) enum Caution {
    /// A person must approve the call even if the rules allow it. The text is the reason.
    Hold(String),
    /// If a rule holds the call, its request shows this notice.
    Notice(String),
    /// A person has rejected the same call before, so the new call is denied.
    Reject {
        call: crate::task::id::CallId,
        /// The reason that the person gave.
        reason: Option<String>,
    },
}

/// Returns the tool and the key by which equal calls are found. `None` if the arguments cannot be
/// parsed, because such a call never runs.
pub(super) fn keyed_call(proposal: &Proposal) -> Option<KeyedCall> {
    let text = proposal.arguments_text.as_str();
    let is_blank = text.trim_matches([' ', '\t', '\n', '\r']).is_empty();
    let value = arguments::parse(if is_blank { "{}" } else { text }).ok()?;
    let identity = match proposal.identity {
        Identity::Bytes => format!("bytes\0{}\0{text}", proposal.tool),
        Identity::Value | Identity::Key { .. } | Identity::New | Identity::Call(_) => {
            format!("value\0{}\0{}", proposal.tool, json_equality_key(&value))
        }
    };
    let hash = format_sha256(&Sha256::digest(identity.as_bytes()));
    let prefix = match proposal.identity {
        Identity::Key { attach: false, .. } | Identity::New => NAMED_PREFIX,
        Identity::Value | Identity::Bytes | Identity::Key { .. } | Identity::Call(_) => {
            EQUAL_PREFIX
        }
    };
    Some(KeyedCall {
        tool: proposal.tool.clone(),
        key: format!("{prefix}{hash}"),
    })
}

/// The prefix of the key of a call that a later proposal of an equal call may continue.
const EQUAL_PREFIX: &str = "b:";
/// The prefix of the key of a call that a later proposal continues only if it names the call by the
/// caller's own key or by id.
const NAMED_PREFIX: &str = "k:";

impl Engine {
    /// Compares a proposed call with the earlier calls of its tool in its session.
    ///
    /// # Errors
    /// `Unavailable` when the database does not answer.
    pub(super) async fn compare_with_earlier(
        &self,
        caller: &Caller,
        gate: (&str, &Gate),
        proposal: &Proposal,
        call: &KeyedCall,
    ) -> Result<EarlierCalls, Refusal> {
        let (name, gate) = gate;
        let hash = call.key.get(2..).unwrap_or_default();
        let keys = [EQUAL_PREFIX, NAMED_PREFIX].map(|prefix| format!("{prefix}{hash}"));
        let max_age = gate.use_within.max(gate.no_lasts);
        let since = time_before(self.clock.now(), max_age + CLOCK_SKEW);
        let session = proposal.session_id.as_deref();
        let found = self
            .store
            .equal_calls(
                &caller.tenant,
                name,
                &caller.user_id,
                session.unwrap_or(super::DEFAULT_SESSION),
                &call.tool,
                &keys,
                since,
            )
            .await?;
        let equal = || found.iter().filter(|row| keys.contains(&row.call_key));
        if let Some(caution) = self.recent_rejection(equal(), gate.no_lasts).await? {
            return Ok(EarlierCalls::Requires(caution));
        }
        let may_continue = call.key.starts_with(EQUAL_PREFIX);
        let mut caution = None;
        let mut continued: Vec<_> = equal()
            .filter(|row| may_continue && row.call_key.starts_with(EQUAL_PREFIX))
            .collect();
        // Ended calls come first, because their results may be undelivered. Calls that may start
        // come next, and calls that wait for people come last.
        continued.sort_by_key(|row| match row.status {
            TaskStatus::Completed | TaskStatus::Canceled | TaskStatus::Failed => 0,
            TaskStatus::Running => 1,
            TaskStatus::Paused => 2,
        });
        for row in continued {
            match self.relation(row, gate.use_within).await? {
                Relation::Continues => return Ok(EarlierCalls::Continues(row.task_id)),
                Relation::Requires(more) => caution = caution.or(Some(more)),
                Relation::Nothing => {}
            }
        }
        let is_doubtful = found.iter().any(|row| row.outcome_unknown);
        let caution = caution.or_else(|| {
            is_doubtful.then(|| {
                let text = "An earlier call of this tool may have run, and a person is asked about its outcome.";
                Caution::Hold(text.to_owned())
            })
        });
        Ok(caution.map_or(EarlierCalls::Nothing, EarlierCalls::Requires))
    }

    /// Returns the rejection of the newest call of `equal` that ended less than `no_lasts` ago.
    /// `None` if there is no such call, or no person rejected it.
    async fn recent_rejection<'r>(
        &self,
        equal: impl Iterator<Item = &'r EqualCall>,
        no_lasts: Duration,
    ) -> Result<Option<Caution>, Refusal> {
        let ended = equal
            .filter(|row| row.status.is_terminal() && row.updated_at + no_lasts > row.now)
            .collect::<Vec<_>>();
        let newest = ended.into_iter().max_by_key(|row| row.updated_at);
        let Some(row) = newest.filter(|_| !no_lasts.is_zero()) else {
            return Ok(None);
        };
        let Some(session) = self.load(row.task_id).await? else {
            return Ok(None);
        };
        Ok(rejection(&session))
    }

    /// Returns the relation of a proposed call to an earlier equal call that the proposal might
    /// continue.
    async fn relation(&self, row: &EqualCall, use_within: Duration) -> Result<Relation, Refusal> {
        let until = row.asker_until.unwrap_or_default();
        let is_delivered = until == ASKER_UNTIL_DELIVERED;
        let is_present = until > row.now || self.is_awaited_here(row.task_id);
        if row.status.is_terminal() {
            return Ok(if is_delivered || is_present {
                let at = row.updated_at.to_minute(Some(row.now));
                let text =
                    format!("The same call ended at {at} UTC, and its agent got the result.");
                Relation::Requires(Caution::Notice(text))
            } else if row.updated_at + use_within > row.now {
                Relation::Continues
            } else {
                Relation::Nothing
            });
        }
        if !is_present {
            return Ok(Relation::Continues);
        }
        let session = self.load(row.task_id).await?;
        let state = session
            .as_ref()
            .and_then(|session| session.own.progress.calls.first());
        let is_waiting = state.is_some_and(|state| matches!(state.phase, Phase::AwaitsDecision(_)));
        Ok(Relation::Requires(Caution::Hold(
            if is_waiting {
                "The same call waits already."
            } else {
                "The same call is being run."
            }
            .to_owned(),
        )))
    }
}

/// The relation of a proposed call to one earlier call. The variants mean the same as in
/// [`EarlierCalls`].
enum Relation {
    Nothing,
    Continues,
    Requires(Caution),
}

/// The assumed maximum difference between the clocks of a process and its database. The query looks
/// further back by this time; the found rows are then compared by the database's clock.
const CLOCK_SKEW: Duration = Duration::from_mins(5);

fn time_before(now: Time, time: Duration) -> Time {
    let micros = i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
    Time(now.0.saturating_sub(micros))
}

/// Returns the rejection by which a person ended this call; `None` if no person rejected the call.
fn rejection(session: &TaskSession) -> Option<Caution> {
    let state = session.own.progress.calls.first()?;
    let Phase::Done(Outcome::Rejected) = state.phase else {
        return None;
    };
    let reason = session.own.items.iter().rev().find_map(|item| {
        let Fact::Decision { decision, .. } = &item.fact else {
            return None;
        };
        Some(rejection_reason(state, decision))
    })?;
    Some(Caution::Reject {
        call: state.call.tool_call_id,
        reason,
    })
}

fn rejection_reason(
    state: &CallState,
    decision: &crate::task::decision::Decision,
) -> Option<String> {
    let own = decision.decisions.get(&state.call.tool_call_id);
    let own = own.and_then(|answer| answer.reason.clone());
    own.or_else(|| decision.reason.clone())
}
