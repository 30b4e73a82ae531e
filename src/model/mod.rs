//! Asks a language model. One trait, one file for each protocol.

pub mod openai;
pub mod scripted;

mod clean;
mod retry;

use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;

use crate::task::item::{FinishReason, Usage};
use crate::task::transcript::Message;

/// Something that answers a conversation.
#[async_trait]
pub trait ModelClient: Send + Sync {
    /// Asks for the next turn. May be repeated freely: asking has no effect outside.
    ///
    /// # Errors
    /// [`ModelError`] when there is no usable answer after the client's own retries.
    async fn answer(&self, prompt: &Prompt) -> Result<Answer, ModelError>;
}

/// What the model is shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// The agent's instructions: first, and once.
    pub system: Option<String>,
    /// The conversation so far.
    pub messages: Vec<Message>,
    /// What it may call.
    pub tools: Vec<OfferedTool>,
    /// Which answer of this task it is: 1, 2, 3 …
    pub turn: u32,
}

/// A tool as it is offered.
#[derive(Clone, Debug, PartialEq)]
pub struct OfferedTool {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// JSON Schema of its arguments.
    pub parameters: Value,
}

/// One turn of the model, as read from the provider.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// What it says, when it says something.
    pub text: Option<String>,
    /// What it asks to run, in its order.
    pub calls: Vec<AnswerCall>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// What it cost.
    pub usage: Usage,
    /// The provider's own JSON of the message, to be sent back unchanged.
    pub raw: Value,
}

/// One call of a turn. `provider_id` is never a key: a provider may repeat it in every answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerCall {
    /// The provider's id, maybe empty.
    pub provider_id: String,
    /// The name.
    pub name: String,
    /// The exact text of the arguments.
    pub arguments_text: String,
}

/// There is no usable answer. The text is for a person: the model's name and what went wrong, no URL and no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct ModelError {
    /// What went wrong.
    pub detail: String,
}

/// Counts an attempt to get an answer: what came of it, and how long it took.
fn measure(model: &str, outcome: &str, took: Duration) {
    let seconds = took.as_secs_f64();
    tracing::info!(target: "holdpoint::metric", metric = "model_call", model, outcome, seconds);
}
