//! Anthropic's Messages protocol, for any base URL. Invariant: an incomplete answer
//! is rejected; the model's own blocks, thinking included, are sent back as stored, except for
//! parts that the endpoint refuses.

use http::HeaderName;
use serde_json::{Map, Value};

use super::Prompt;
use super::clean::Cleaner;
use super::protocol::{Attempt, Manner, Protocol, Thoughts};

mod reply;
mod request;
mod stream;
mod turn;

/// `POST …/v1/messages`, as Anthropic documents it and compatible endpoints implement it.
pub(super) struct Messages;

impl Protocol for Messages {
    type Reading = stream::Stream;
    const BASE_URL: &'static str = "https://api.anthropic.com";
    const PATH: &'static str = "/v1/messages";
    const OURS: &'static [&'static str] = &["messages", "tools", "model", "stream", "system"];
    const HEADERS: &'static [(&'static str, &'static str)] = &[("anthropic-version", "2023-06-01")];
    const MANNERS: &'static [Manner] = &[Manner::Streamed, Manner::Whole];

    fn key(key: &str) -> (HeaderName, String) {
        (HeaderName::from_static("x-api-key"), key.to_owned())
    }

    fn body(
        prompt: &Prompt,
        model: &str,
        extra: &Map<String, Value>,
        manner: Manner,
        thoughts: Thoughts,
    ) -> serde_json::Result<String> {
        request::body(prompt, model, extra, manner, thoughts)
    }

    /// Whether the error text `said` is about thinking blocks of earlier turns. Newer models refuse
    /// these blocks once anything before them has changed: the agent's instructions or tools, or a
    /// late result. The error text names the place in the conversation (`messages.…`) and the
    /// refused `thinking`.
    fn is_about_thoughts(said: &str) -> bool {
        said.contains("messages.") && said.contains("thinking")
    }

    fn whole(body: &str, cleaner: &Cleaner) -> Attempt {
        reply::whole(body, cleaner)
    }

    fn reading(cleaner: &Cleaner) -> Self::Reading {
        stream::Stream::new(cleaner)
    }
}
