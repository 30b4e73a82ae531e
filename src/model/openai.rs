//! Implements the Chat Completions protocol, for any base URL. Invariant: an incomplete answer is
//! rejected. The provider's own JSON of a turn is sent back as it was stored, except for parts that
//! an endpoint would refuse.

use http::HeaderName;
use http::header::AUTHORIZATION;

use super::clean::Cleaner;
use super::protocol::{AttemptOutcome, BodyParts, Protocol, RequestMode};

mod calls;
mod chunk;
mod merge;
mod reply;
mod request;
mod stream;

/// The protocol of `POST …/chat/completions`, which `OpenAI` documents and compatible endpoints
/// implement.
pub(super) struct ChatCompletions;

impl Protocol for ChatCompletions {
    type StreamReader = stream::ChatStreamReader;
    const BASE_URL: &'static str = "https://api.openai.com/v1";
    const PATH: &'static str = "/chat/completions";
    const RESERVED_MEMBERS: &'static [&'static str] =
        &["messages", "tools", "model", "stream", "stream_options"];
    const HEADERS: &'static [(&'static str, &'static str)] = &[];
    const REQUEST_MODES: &'static [RequestMode] = &[
        RequestMode::StreamedWithUsage,
        RequestMode::Streamed,
        RequestMode::Unstreamed,
    ];

    fn key_header(key: &str) -> (HeaderName, String) {
        (AUTHORIZATION, format!("Bearer {key}"))
    }

    fn body(parts: &BodyParts<'_>) -> serde_json::Result<String> {
        serde_json::to_string(&request::body(parts))
    }

    fn read_unstreamed(body: &str, cleaner: &Cleaner) -> AttemptOutcome {
        reply::read(body, cleaner)
    }
}

#[cfg(test)]
mod tests;
