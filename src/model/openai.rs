//! Implements the Chat Completions protocol, for any base URL. Invariant: an incomplete answer is
//! rejected. The provider's own JSON of a turn is sent back as it was stored, except for parts that
//! an endpoint would refuse.

use http::HeaderName;
use http::header::AUTHORIZATION;

use super::clean::Cleaner;
use super::problem::mentions_streaming;
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

    /// Returns whether the error text is about members that the model's earlier turns have in
    /// addition to text and calls. Endpoints put reasoning and signatures into such members. Many
    /// endpoints refuse the members of others, and some refuse their own.
    fn is_about_thinking(error_text: &str) -> bool {
        let text = error_text.to_ascii_lowercase();
        let has_any = |words: &[&str]| words.iter().any(|word| text.contains(word));
        let unknown_member = text.contains("messages")
            && has_any(&[
                "additional properties",
                "extra inputs",
                "is unsupported",
                "unknown field",
                "unknown name",
                "unknown parameter",
            ]);
        // Gemini does not name a member that is null, such as the `refusal` of an `OpenAI` model.
        let null_member = text.contains("is not a string: null");
        let thinking = has_any(&["extra_content", "reasoning", "thinking", "thought"]);
        (thinking || unknown_member || null_member) && !mentions_streaming(&text)
    }

    fn read_unstreamed(body: &str, cleaner: &Cleaner) -> AttemptOutcome {
        reply::read(body, cleaner)
    }
}

#[cfg(test)]
mod tests;
