//! Steps of people in the tests of the engine: they decide requests and write messages.

use std::sync::Arc;

use holdpoint::engine::{DecisionInput, Engine, MessageInput, Refusal};
use holdpoint::people::Caller;
use holdpoint::task::id::{RequestId, TaskId};
use holdpoint::task::item::{Part, PartType};

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

/// Decides a request as Alice, who owns the task. Returns the refusal. Panics if the engine accepts
/// the decision.
pub async fn alice_is_refused(
    engine: &Arc<Engine>,
    request: RequestId,
    answer: DecisionInput,
) -> Refusal {
    let decided = engine.decide(&alice(), request, answer, None).await;
    decided.unwrap_err()
}

/// Writes a message to a task as Alice, who owns the task. Panics if the engine refuses the
/// message.
pub async fn alice_writes(engine: &Arc<Engine>, task: TaskId, message: MessageInput) {
    let accepted = engine.message(&alice(), task, message, None).await;
    accepted.unwrap();
}

/// Returns a message that does not supersede the work on the task.
pub fn message(text: &str) -> MessageInput {
    let items = vec![Part {
        content_type: PartType::Text,
        content: text.to_owned(),
    }];
    MessageInput {
        items,
        user_context: None,
        supersede: false,
    }
}

/// Returns a message that supersedes the work on the task.
pub fn superseding(text: &str) -> MessageInput {
    MessageInput {
        supersede: true,
        ..message(text)
    }
}
