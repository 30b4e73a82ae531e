//! The client of the Chat Completions protocol, for any base URL. Invariant: an incomplete answer
//! is rejected; the provider's own JSON of a turn is sent back as stored, except for parts that an
//! endpoint would refuse.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use http::HeaderName;
use http::header::AUTHORIZATION;
use serde_json::{Map, Value};

use super::clean::Cleaner;
use super::endpoint::Endpoint;
use super::protocol::{Attempt, Manner, Protocol, Thoughts};
pub(crate) use super::settings::Settings;
use super::{Answer, ModelClient, ModelError, Prompt, Sink};
use crate::net::Net;
use crate::secret::Redactor;
use crate::world::{Clock, Mistakes};

mod calls;
mod merge;
mod reply;
mod request;
mod stream;

/// A model behind a Chat Completions endpoint.
pub(crate) struct OpenAi(Endpoint<ChatCompletions>);

impl fmt::Debug for OpenAi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OpenAi").field(&self.0).finish()
    }
}

impl OpenAi {
    /// Adds every mistake in the settings, never quoting a value of a key, header or query.
    pub(crate) fn check(settings: &Settings, mistakes: &mut Mistakes, place: &[&str]) {
        settings.check::<ChatCompletions>(mistakes, place);
    }

    /// # Errors
    /// [`ModelError`] for settings in which [`OpenAi::check`] finds mistakes.
    pub(crate) fn new(
        settings: Settings,
        net: Net,
        clock: Arc<dyn Clock>,
        redactor: Arc<Redactor>,
    ) -> Result<Self, ModelError> {
        Endpoint::new(settings, net, clock, redactor).map(Self)
    }
}

#[async_trait]
impl ModelClient for OpenAi {
    async fn answer(&self, prompt: &Prompt, sink: &dyn Sink) -> Result<Answer, ModelError> {
        self.0.answer(prompt, sink).await
    }
}

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
