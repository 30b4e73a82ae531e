//! `OpenAI`'s Responses protocol, for any base URL, stateless: the endpoint stores nothing.
//! Invariant: an answer without its end is rejected; the items of an answer go back byte for byte
//! and in their order, except for parts that the endpoint refuses.

use http::HeaderName;
use http::header::AUTHORIZATION;
use serde_json::{Map, Value};

use super::Prompt;
use super::clean::Cleaner;
use super::protocol::{Attempt, Manner, Protocol, Thoughts};

mod item;
mod reply;
mod request;
mod stream;
mod turn;

/// `POST …/responses`, as `OpenAI` documents it and compatible endpoints implement it.
pub(super) struct Responses;

impl Protocol for Responses {
    type Reading = stream::Stream;
    const BASE_URL: &'static str = "https://api.openai.com/v1";
    const PATH: &'static str = "/responses";
    const OURS: &'static [&'static str] = &[
        "input",
        "instructions",
        "tools",
        "model",
        "stream",
        "store",
        "include",
    ];
    const HEADERS: &'static [(&'static str, &'static str)] = &[];
    const MANNERS: &'static [Manner] = &[Manner::Streamed, Manner::Whole];

    fn key(key: &str) -> (HeaderName, String) {
        (AUTHORIZATION, format!("Bearer {key}"))
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

    /// Whether the error text `said` is about encrypted reasoning, which is bound to an
    /// organization and a model. An endpoint with another key or model refuses the reasoning ("The
    /// encrypted content … could not be verified"). If the reasoning is missing, the endpoint looks
    /// up the item by its id in vain ("Item with id 'rs_…' not found"). A model that does not
    /// reason refuses the request for encrypted reasoning ("Encrypted content is not supported with
    /// this model").
    fn is_about_thoughts(said: &str) -> bool {
        said.contains("ncrypted content")
            || said.contains("encrypted_content")
            || said.contains("'rs_")
            || said.contains("'reasoning'")
    }

    fn whole(body: &str, cleaner: &Cleaner) -> Attempt {
        reply::whole(body, cleaner)
    }

    fn reading(cleaner: &Cleaner) -> Self::Reading {
        stream::Stream::new(cleaner)
    }
}
