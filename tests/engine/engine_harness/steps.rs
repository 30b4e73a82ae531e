//! What people do in the tests of the engine: they decide requests.

use std::sync::Arc;

use holdpoint::engine::{DecisionInput, Engine};
use holdpoint::people::Caller;
use holdpoint::task::id::RequestId;

use super::alice;

/// Decides a request as Alice, who owns the task. Panics if the engine refuses the decision.
pub async fn alice_decides(engine: &Arc<Engine>, request: RequestId, answer: DecisionInput) {
    decides(engine, &alice(), request, answer).await;
}

/// Decides a request. Panics if the engine refuses the decision.
pub async fn decides(
    engine: &Arc<Engine>,
    caller: &Caller,
    request: RequestId,
    answer: DecisionInput,
) {
    engine.decide(caller, request, answer, None).await.unwrap();
}
