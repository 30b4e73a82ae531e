//! Implements Anthropic's Messages protocol, for any base URL. Invariants: an incomplete answer is
//! rejected. The model's own blocks, including thinking, are sent back as they were stored. Only
//! parts that the endpoint refuses are left out or replaced.

use http::HeaderName;

use super::clean::Cleaner;
use super::protocol::{AttemptOutcome, BodyParts, Protocol, RequestMode};

mod reply;
mod request;
mod stream;
mod turn;

/// The protocol of `POST …/v1/messages`, which Anthropic documents and compatible endpoints
/// implement.
pub(super) struct Messages;

impl Protocol for Messages {
    type StreamReader = stream::MessageStreamReader;
    const BASE_URL: &'static str = "https://api.anthropic.com";
    const PATH: &'static str = "/v1/messages";
    const RESERVED_MEMBERS: &'static [&'static str] =
        &["messages", "tools", "model", "stream", "system"];
    const HEADERS: &'static [(&'static str, &'static str)] = &[("anthropic-version", "2023-06-01")];
    const REQUEST_MODES: &'static [RequestMode] = &[RequestMode::Streamed, RequestMode::Unstreamed];

    fn key_header(key: &str) -> (HeaderName, String) {
        (HeaderName::from_static("x-api-key"), key.to_owned())
    }

    fn body(parts: &BodyParts<'_>) -> serde_json::Result<String> {
        request::body(parts)
    }

    /// Returns whether the error text is about thinking blocks of earlier turns. Newer models
    /// refuse these blocks once anything before the blocks has changed: for example the agent's
    /// instructions, the tools, or a result that arrived late. The error text names the place in
    /// the conversation (`messages.…`) and the refused `thinking`.
    fn is_about_thinking(error_text: &str) -> bool {
        error_text.contains("messages.") && error_text.contains("thinking")
    }

    fn read_unstreamed(body: &str, cleaner: &Cleaner) -> AttemptOutcome {
        reply::read_unstreamed(body, cleaner)
    }
}
