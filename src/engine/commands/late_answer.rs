//! Stores a tool's answer that arrives after the attempt has timed out.

use std::sync::Arc;

use super::MAX_TRIES;
use crate::engine::driver::credentials::stored_credentials;
use crate::engine::session::{LateAttempt, ReceivedResult, TaskSession};
use crate::engine::{Engine, Refusal};
use crate::store::ReadError;
use crate::task::id::TaskId;
use crate::task::item::ToolResult;
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
        let Some(received) = TaskSession::result(late.call, late.tool.clone(), answer) else {
            return Ok(());
        };
        let mut conflicts = 0;
        while conflicts < MAX_TRIES {
            let (mut session, result) = match self.load_with_late(task, &received).await {
                Ok(Some(loaded)) => loaded,
                Ok(None) => return Ok(()),
                Err(ReadError::Unavailable) if self.back_off().await.is_ok() => continue,
                Err(error) => return Err(error.into()),
            };
            session.add_results(vec![ReceivedResult {
                result,
                start: late.start.clone(),
            }]);
            // An earlier try of this loop may have journaled the answer already: a commit can
            // succeed while its confirmation is lost.
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

    /// Loads a task, and redacts the text of its late result with the credentials that the tree has
    /// now. A person may have given a login since the call was sent. `None` if the task does not
    /// exist.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or the stored rows cannot be read.
    async fn load_with_late(
        &self,
        task: TaskId,
        received: &ToolResult,
    ) -> Result<Option<(TaskSession, ToolResult)>, ReadError> {
        let Some(session) = self.load(task).await? else {
            return Ok(None);
        };
        let redactor = stored_credentials(self, &session).await?.redactor();
        let result = ToolResult {
            content: redactor.redact(&received.content).into_owned(),
            ..received.clone()
        };
        Ok(Some((session, result)))
    }
}
