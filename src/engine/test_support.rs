//! Functions of the engine for the tests of the package. The product does not call them.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::{
    Accepted, DecidableRequest, DecisionInput, DetailCode, Engine, IdempotencyKey, Refusal, Worker,
};
use crate::people::Caller;
use crate::task::id::RequestId;

#[doc(hidden)]
impl Engine {
    /// Reads a request, checks that `caller` may decide it, and decides it.
    ///
    /// # Errors
    /// `NotFound` if the caller's tenant has no such request; `Forbidden` if the caller may not
    /// decide it; then as [`super::Decisions::decide`].
    pub async fn decide(
        self: &Arc<Self>,
        caller: &Caller,
        request: RequestId,
        answer: DecisionInput,
        key: Option<IdempotencyKey>,
    ) -> Result<Accepted, Refusal> {
        let read = self.store.request_with_journal(request).await?;
        let read = read.filter(|(row, _)| row.tenant == caller.tenant);
        let decidable = DecidableRequest::for_caller(caller, read.ok_or(Refusal::NotFound)?)
            .ok_or_else(|| Refusal::Forbidden(DetailCode::MayNotDecide.into()))?;
        Box::pin(self.decisions().decide(decidable, answer, key)).await
    }
}

#[doc(hidden)]
impl Worker<'_> {
    /// Takes a slot for [`Worker::claim`]; `None` if no slot is free.
    #[must_use]
    pub fn free_slot(self) -> Option<OwnedSemaphorePermit> {
        self.engine.free_slot()
    }
}
