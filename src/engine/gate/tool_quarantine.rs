//! Finds out whether an earlier call of a tool may have run. If so, no rule may allow a new `once`
//! call of the tool by the same user in the same session at a gate.

use std::time::Duration;

use crate::engine::Engine;
use crate::store::{FoundCalls, ReadError};
use crate::task::change::TaskRow;
use crate::task::id::{CallId, TaskId};
use crate::task::quarantine;

/// The reason to hold a call of a tool without a quarantine while a person is asked about the
/// outcome of an earlier call.
const OUTCOME_IS_ASKED: &str =
    "An earlier call of this tool may have run, and a person is asked about its outcome.";

impl Engine {
    /// Returns the reason to hold a call of `tool` because of the earlier calls `found`. Returns
    /// `None` if the tool is not in quarantine and no found call has an unknown outcome. Only the
    /// stored rows decide whether there is a reason. The journal of the call that caused the
    /// quarantine only makes the text more specific, and may be unreadable.
    ///
    /// # Errors
    /// `Unavailable` when the database does not answer.
    pub(super) async fn quarantine_reason(
        &self,
        tool: &str,
        found: &FoundCalls,
    ) -> Result<Option<String>, ReadError> {
        let Some(task) = found.quarantined_by else {
            let is_asked = found.calls.iter().any(|call| call.outcome_unknown);
            return Ok(is_asked.then(|| OUTCOME_IS_ASKED.to_owned()));
        };
        let session = match self.load(task).await {
            Ok(session) => session,
            Err(ReadError::Corrupt(_)) => None,
            Err(error @ ReadError::Unavailable) => return Err(error),
        };
        let known = session.and_then(|session| session.own.progress.shared.quarantine.reason(tool));
        let reason = known.unwrap_or_else(|| quarantine::reason_without_journal(CallId(task.0)));
        Ok(Some(reason))
    }

    /// Returns the reason to hold the stored call of `row`, a call of `tool` at a gate, before it
    /// starts. Returns `None` if no other call gives a reason (see `quarantine_reason`).
    ///
    /// # Errors
    /// `Unavailable` when the database does not answer; `Corrupt` if a row cannot be decoded.
    pub(in crate::engine) async fn quarantine_before_start(
        &self,
        row: &TaskRow,
        tool: &str,
    ) -> Result<Option<String>, ReadError> {
        let (gate, session) = (&row.agent, &row.session_id);
        let user = self.roster.ids().id(row.user_id.as_str());
        let max_age = Duration::ZERO;
        let mut found = self
            .store
            .equal_calls(&row.tenant, gate, &user, session, tool, &[], max_age)
            .await?;
        let is_other = |task: TaskId| task != row.task_id;
        found.calls.retain(|call| is_other(call.task_id));
        found.quarantined_by = found.quarantined_by.filter(|task| is_other(*task));
        self.quarantine_reason(tool, &found).await
    }
}
