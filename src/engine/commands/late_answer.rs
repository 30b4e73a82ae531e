//! Stores a tool's answer that arrives after the attempt has timed out.

use std::sync::Arc;

use super::MAX_TRIES;
use crate::engine::session::{LateAttempt, TaskSession};
use crate::engine::{Engine, Refusal};
use crate::store::ReadError;
use crate::task::id::TaskId;
use crate::task::item::Fact;
use crate::tool::ToolAnswer;

impl Engine {
    /// Waits in the background for the late answers to these attempts, and stores each late answer.
    /// The wait ends when the service shuts down.
    pub(in crate::engine) fn await_late_answers(
        self: &Arc<Self>,
        task: TaskId,
        attempts: Vec<LateAttempt>,
    ) {
        for late in attempts {
            let Some(answer) = late.answer.take() else {
                continue;
            };
            let engine = Arc::clone(self);
            self.drivers.spawn(async move {
                let stopped = engine.stop.clone();
                let answered = tokio::select! {
                    answered = answer => answered,
                    () = stopped.cancelled() => None,
                };
                if let Some(answered) = answered
                    && let Err(error) = engine.store_late(task, &late, answered).await
                {
                    tracing::error!(%task, call = %late.call, %error, "a late answer of a tool could not be stored");
                }
            });
        }
    }

    /// Journals the answer: as the call's result if the call has no result yet and no later attempt
    /// was started, otherwise as a late result. While the database does not answer, retries until
    /// the service goes down, because no other copy of the answer exists.
    async fn store_late(
        self: &Arc<Self>,
        task: TaskId,
        late: &LateAttempt,
        answer: ToolAnswer,
    ) -> Result<(), Refusal> {
        let Some(result) = TaskSession::result(late.call, late.tool.clone(), answer) else {
            return Ok(());
        };
        let mut conflicts = 0;
        while conflicts < MAX_TRIES {
            let mut session = match self.load(task).await {
                Ok(Some(session)) => session,
                Ok(None) => return Ok(()),
                Err(ReadError::Unavailable) if self.back_off().await.is_ok() => continue,
                Err(error) => return Err(error.into()),
            };
            let state = session.own.progress.call(late.call);
            // A failover may have lost the start of this attempt. The journal then shows fewer
            // attempts, and no later attempt was started.
            if state.is_some_and(|state| state.attempts > late.attempt) {
                // A later attempt was started. Only the later attempt's answer becomes the call's
                // result, so this answer becomes a late result. An earlier try of this loop may
                // have journaled it already: a commit can succeed while its confirmation is lost.
                if !session.is_journaled(&result) {
                    session.push(Fact::LateResult(result.clone()));
                }
            } else {
                session.add_results(vec![result.clone()]);
            }
            if !session.has_pending_facts() {
                return Ok(());
            }
            match self.submit(session).await {
                Ok(Some(_)) => return Ok(()),
                Ok(None) => conflicts += 1,
                Err(Refusal::Unavailable) if self.back_off().await.is_ok() => {}
                Err(error) => return Err(error),
            }
        }
        Err(Refusal::Unavailable)
    }
}
