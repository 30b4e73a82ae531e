//! The Chat Completions protocol, for any base URL. Invariant: an incomplete answer
//! is rejected; the provider's own JSON of a turn is sent back as stored, except for parts that an
//! endpoint would refuse.

use http::HeaderName;
use http::header::AUTHORIZATION;
use serde_json::{Map, Value};

use super::Prompt;
use super::clean::Cleaner;
use super::protocol::{Attempt, Manner, Protocol, Thoughts};

mod calls;
mod merge;
mod reply;
mod request;
mod stream;

/// `POST …/chat/completions`, as `OpenAI` documents it and compatible endpoints implement it.
pub(super) struct ChatCompletions;

impl Protocol for ChatCompletions {
    type Reading = stream::Streamed;
    const BASE_URL: &'static str = "https://api.openai.com/v1";
    const PATH: &'static str = "/chat/completions";
    const OURS: &'static [&'static str] =
        &["messages", "tools", "model", "stream", "stream_options"];
    const HEADERS: &'static [(&'static str, &'static str)] = &[];
    const MANNERS: &'static [Manner] = &[Manner::Counted, Manner::Streamed, Manner::Whole];

    fn key(key: &str) -> (HeaderName, String) {
        (AUTHORIZATION, format!("Bearer {key}"))
    }

    fn body(
        prompt: &Prompt,
        model: &str,
        extra: &Map<String, Value>,
        manner: Manner,
        _: Thoughts,
    ) -> serde_json::Result<String> {
        serde_json::to_string(&request::body(prompt, model, extra, manner))
    }

    fn whole(body: &str, cleaner: &Cleaner) -> Attempt {
        reply::read(body, cleaner)
    }

    fn reading(cleaner: &Cleaner) -> Self::Reading {
        stream::Streamed::new(cleaner.clone())
    }
}

#[cfg(test)]
mod tests;
