//! Drives gate calls. The asker of a call is the client that proposed the call and waits for the
//! verdict. Either this service runs the call, or the asker runs it elsewhere with a permit.
//! Invariants:
//! - A permit is committed only for an asker whose HTTP request is waiting in this process, because
//!   the answer to this HTTP request contains the permit.
//! - An approved call starts only while its asker waits.
//! - The commit of a stored call's permit is stale if the history has become uncertain since the
//!   driver read the journal (`Change::history_uncertain_until`). A check before the commit is not
//!   enough, because the commit may be the first statement on a promoted standby. A check after the
//!   commit comes too late, because the asker may already have read the permit.

use std::time::Duration;

use super::{Driver, Stop};
use crate::agent::gate::Report;
use crate::failpoint;
use crate::task::asker::startable_since;
use crate::task::call_state::{AttemptStart, CallState, Phase};
use crate::task::change::{AskerPresence, LeaseChange};
use crate::task::id::CallId;
use crate::task::item::{Fact, Outcome, newest_decisions};
use crate::task::step::AskerState;
use crate::task::time::Time;

/// The result text of a call whose gate requires no report of the outcome.
const RELEASED_TEXT: &str = "Let through; what came of it is not known here.";

impl Driver<'_> {
    /// Returns the state of this gate call's asker; `None` if the task is not a gate call.
    /// - `Late`: the call was not started in time, or it was started and its outcome was not
    ///   reported in time.
    /// - `Present`: the asker waits for the call, or the call has its result.
    /// - `Absent`: otherwise.
    pub(super) fn asker_state(&self) -> Option<AskerState> {
        self.agent.gate.as_ref()?;
        let Some(state) = self.session.own.progress.unfinished().next() else {
            return Some(AskerState::Present);
        };
        if self
            .startable_until(state)
            .is_some_and(|end| self.session.now >= end)
        {
            return Some(AskerState::Late);
        }
        let is_present = self.session.ask.is_some()
            || (!state.performer.properties().runs_at_client && self.is_awaited(state));
        Some(if is_present {
            AskerState::Present
        } else {
            AskerState::Absent
        })
    }

    /// Whether the asker waits for a call that this service performs. The row's `asker_until` is
    /// the time until which the asker waits. If the row has no such time, there are two cases:
    /// - If the call needed no person, the asker counts as waiting.
    /// - If the call needed a person, the asker counts as absent, because the person may have
    ///   answered hours later.
    fn is_awaited(&self, state: &CallState) -> bool {
        let own = &self.session.own;
        let needed_person =
            || state.phase == Phase::Allowed && newest_decisions(&own.items).next().is_some();
        match own.row.asker_until {
            Some(until) => until > self.session.now,
            None => state.approval.is_none() && !needed_person(),
        }
    }

    /// Returns the time at which the asker of this gate call becomes `Late`. The gate's
    /// `use_within` runs until this time. For an allowed or approved call, `use_within` begins when
    /// the call becomes free to start (`startable_since`). For a started call, it begins when the
    /// attempt counts as over. Returns `None` in any other phase, and if the task is not a gate
    /// call.
    fn startable_until(&self, state: &CallState) -> Option<Time> {
        let (own, gate) = (&self.session.own, self.agent.gate.as_ref()?);
        let from = match &state.phase {
            Phase::Allowed | Phase::Approved(_) => startable_since(&own.items)?,
            Phase::Started(start) => start.ends_at(self.engine.settings.lease),
            Phase::New
            | Phase::Held(_)
            | Phase::Human(_)
            | Phase::ServerAsks
            | Phase::AwaitsDecision(_)
            | Phase::Settled(..)
            | Phase::OutcomeUnknown(_)
            | Phase::Delegated(_)
            | Phase::Done(_) => return None,
        };
        Some(from + gate.use_within)
    }

    /// Returns the duration until the asker of this gate call becomes `Late`. Returns `None` if the
    /// task is not a gate call, if the call has its result, or if `startable_until` returns `None`.
    pub(super) fn time_until_late(&self) -> Option<Duration> {
        let state = self.session.own.progress.unfinished().next()?;
        let end = self.startable_until(state)?;
        Some(end.since(self.session.now))
    }

    /// Journals that the asker runs the call. The fact is committed before the asker gets the
    /// permit. At a gate that requires no report, the same commit also stores the call's result,
    /// `Released`. Does not hand over a call that may no longer start. Fails a call whose tool is
    /// gone. Returns whether the driver takes a further step.
    pub(super) async fn hand_over(&mut self, id: CallId) -> Result<bool, Stop> {
        if !self.may_start(&[id]).await? {
            return Ok(true);
        }
        let (Some(gate), Some(state), Some((ask, runner))) = (
            self.agent.gate.as_ref(),
            self.session.own.progress.call(id).cloned(),
            self.session.ask.clone(),
        ) else {
            return Ok(false);
        };
        let name = state.call.name.clone();
        let Some(entry) = self.offered(&name) else {
            let text = "The tool is gone from the configuration.".to_owned();
            self.session.settle_calls(vec![(id, Outcome::Failed, text)]);
            return Ok(true);
        };
        let (text, rule) = (state.arguments_text(), state.rule());
        let digest = self.session.current_digest(&entry, id, text, rule);
        self.session.push(Fact::ToolStarted {
            tool_call_id: id,
            name,
            digest,
            attempt: state.attempts + 1,
            timeout_ms: u64::try_from(gate.run_within.as_millis()).unwrap_or(u64::MAX),
            replica: AttemptStart::replica_of_asker(ask, &runner),
            grant: state.grant_use(),
        });
        // The permit counts as delivered before the answer is sent, so that no other runner gets
        // the permit.
        self.session.own.asker = Some(AskerPresence::Delivered);
        if gate.report == Report::Optional {
            let released = (id, Outcome::Released, RELEASED_TEXT.to_owned());
            self.session.settle_calls(vec![released]);
            return Ok(true);
        }
        let wake_in = Some(gate.run_within);
        self.save(LeaseChange::Park { wake_in }).await?;
        failpoint::reach("gate.handed");
        Ok(false)
    }
}
