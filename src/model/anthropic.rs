//! The client of Anthropic's Messages protocol, for any base URL. Invariant: an incomplete answer
//! is rejected; the model's own blocks, thinking included, are sent back as stored, except for
//! parts that the endpoint refuses.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use http::HeaderName;
use serde_json::{Map, Value};

use super::clean::Cleaner;
use super::endpoint::Endpoint;
use super::protocol::{Attempt, Manner, Protocol, Thoughts};
pub(crate) use super::settings::Settings;
use super::{Answer, ModelClient, ModelError, Prompt, Sink};
use crate::net::Net;
use crate::secret::Redactor;
use crate::world::{Clock, Mistakes};

mod reply;
mod request;
mod stream;
mod turn;

/// A model behind a Messages endpoint.
pub(crate) struct Anthropic(Endpoint<Messages>);

impl fmt::Debug for Anthropic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Anthropic").field(&self.0).finish()
    }
}

impl Anthropic {
    /// Adds every mistake in the settings to `mistakes`, without the values of the key, headers and
    /// query.
    pub(crate) fn check(settings: &Settings, mistakes: &mut Mistakes, place: &[&str]) {
        settings.check::<Messages>(mistakes, place);
    }

    /// # Errors
    /// [`ModelError`] for settings in which [`Anthropic::check`] finds mistakes.
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
impl ModelClient for Anthropic {
    async fn answer(&self, prompt: &Prompt, sink: &dyn Sink) -> Result<Answer, ModelError> {
        self.0.answer(prompt, sink).await
    }
}

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

    /// Newer models refuse their earlier thinking once anything before it has changed: the agent's
    /// instructions or tools, or a late result. The error text names the place in the conversation
    /// (`messages.…`) and the refused `thinking`.
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
