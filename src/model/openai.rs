//! The Chat Completions protocol over any base URL: one POST for each answer, not streamed. What must stay true: an
//! answer is complete or it is none; the provider's own JSON goes back as it came; no error names an address.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue};
use reqwest::Response;
use serde_json::{Map, Value};
use url::Url;

use super::clean::Cleaner;
use super::{Answer, ModelClient, ModelError, Prompt, retry};
use crate::net::{Failure, Net, read_bounded};
use crate::secret::{Redactor, Secret};
use crate::task::text::from_bytes;
use crate::world::{Clock, Mistakes};

mod reply;
mod request;

/// The longest answer that is read.
const ANSWER: usize = 8 * 1024 * 1024;
/// How much of an error's body is read.
const PROBLEM: usize = 64 * 1024;

/// What an operator writes of one such model.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Its name in the configuration: what errors and metrics say.
    pub name: String,
    /// What `/chat/completions` is appended to.
    pub base_url: String,
    /// What the provider calls it.
    pub model: String,
    /// Sent as `Authorization: Bearer`. A local model needs none.
    pub api_key: Option<Secret<String>>,
    /// How long one attempt may take.
    pub timeout: Duration,
    /// How often it is asked again after the first attempt.
    pub retries: u32,
    /// Added to each request; an `Authorization` here takes the place of the key.
    pub headers: BTreeMap<String, Secret<String>>,
    /// Added to the address of each request.
    pub query: BTreeMap<String, Secret<String>>,
    /// Merged into the body of each request.
    pub body: Map<String, Value>,
}

impl Settings {
    /// Adds everything that is wrong with them, never with a value of a key, header or query.
    pub fn check(&self, mistakes: &mut Mistakes, place: &[&str]) {
        let mut add = |keys: &[&str], detail: String| mistakes.add(&[place, keys].concat(), detail);
        if let Err(detail) = self.address() {
            add(&["base_url"], detail.to_owned());
        }
        if self.model.trim().is_empty() {
            add(&["model"], format!("model `{}` does not say what the provider calls it", self.name));
        }
        if self.timeout.is_zero() {
            add(&["timeout"], "a timeout is longer than 0".to_owned());
        }
        if self.bearer().is_some_and(|key| key.is_err()) {
            add(&["api_key"], "the key has characters that a header cannot hold".to_owned());
        }
        for (name, value) in &self.headers {
            if let Err(detail) = header(name, value) {
                add(&["headers", name], detail);
            }
        }
        for name in request::OURS {
            if self.body.contains_key(name) {
                add(&["body", name], format!("`body` may not name `{name}`"));
            }
        }
    }

    /// Where the requests go.
    fn address(&self) -> Result<Url, &'static str> {
        let mut url = Url::parse(&self.base_url).map_err(|_| "base_url is no URL")?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err("base_url is an http or https URL");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("base_url holds no user and no password: use api_key or headers");
        }
        if url.fragment().is_some() {
            return Err("base_url has no fragment");
        }
        let path = format!("{}/chat/completions", url.path().trim_end_matches('/'));
        url.set_path(&path);
        if !self.query.is_empty() {
            url.query_pairs_mut().extend_pairs(self.query.iter().map(|(name, value)| (name, value.reveal())));
        }
        Ok(url)
    }

    fn bearer(&self) -> Option<Result<HeaderValue, http::header::InvalidHeaderValue>> {
        self.api_key.as_ref().map(|key| HeaderValue::from_str(&format!("Bearer {}", key.reveal())))
    }

    /// The headers of each request; `None` when one cannot be sent.
    fn header_map(&self) -> Option<HeaderMap> {
        let mut map = HeaderMap::new();
        map.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        map.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(key) = self.bearer() {
            map.insert(AUTHORIZATION, key.ok()?);
        }
        for (name, value) in &self.headers {
            let (name, value) = header(name, value).ok()?;
            map.insert(name, value);
        }
        map.values_mut().for_each(|value| value.set_sensitive(true));
        Some(map)
    }
}

fn header(name: &str, value: &Secret<String>) -> Result<(HeaderName, HeaderValue), String> {
    let read = HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("`{name}` is no header name"))?;
    if read == CONTENT_LENGTH || read == TRANSFER_ENCODING {
        return Err(format!("the header `{name}` is set by the HTTP client"));
    }
    let value = HeaderValue::from_str(value.reveal())
        .map_err(|_| format!("the value of `{name}` has characters that a header cannot hold"))?;
    Ok((read, value))
}

/// A model behind a Chat Completions endpoint.
pub struct OpenAi {
    name: String,
    model: String,
    address: Url,
    headers: HeaderMap,
    body: Map<String, Value>,
    timeout: Duration,
    retries: u32,
    net: Net,
    clock: Arc<dyn Clock>,
    cleaner: Cleaner,
}

impl fmt::Debug for OpenAi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenAi").field("name", &self.name).field("model", &self.model).finish_non_exhaustive()
    }
}

/// What became of one attempt.
enum Attempt {
    Answered(Box<Answer>),
    /// Another attempt may go better, after this time if the endpoint said one.
    Again(String, Option<Duration>),
    /// It would fail again.
    Failed(String),
}

impl OpenAi {
    /// A client of one model.
    ///
    /// # Errors
    /// [`ModelError`] for settings that [`Settings::check`] finds mistakes in.
    pub fn new(
        settings: Settings,
        net: Net,
        clock: Arc<dyn Clock>,
        redactor: Arc<Redactor>,
    ) -> Result<Self, ModelError> {
        let unusable = |why: &str| ModelError { detail: format!("Model `{}` cannot be used: {why}.", settings.name) };
        let address = settings.address().map_err(unusable)?;
        let headers = settings.header_map().ok_or_else(|| unusable("a header cannot be sent"))?;
        let Settings { name, model, timeout, retries, body, .. } = settings;
        Ok(Self { name, model, address, headers, body, timeout, retries, net, clock, cleaner: Cleaner(redactor) })
    }

    /// Asks once.
    async fn attempt(&self, body: Bytes) -> Attempt {
        let request = self.net.repeatable().post(self.address.clone()).headers(self.headers.clone());
        let response = match request.timeout(self.timeout).body(body).send().await {
            Ok(response) => response,
            Err(error) => return Attempt::Again(Failure::of(&error).to_string(), None),
        };
        let status = response.status().as_u16();
        if !response.status().is_success() {
            return self.refused(status, response).await;
        }
        match read_bounded(response, ANSWER).await {
            Ok((_, true)) => Attempt::Failed(format!("its answer is longer than {} MiB", ANSWER / 1024 / 1024)),
            Ok((bytes, false)) => reply::read(&from_bytes(&bytes), &self.cleaner),
            Err(failure) => Attempt::Again(failure.to_string(), None),
        }
    }

    async fn refused(&self, status: u16, response: Response) -> Attempt {
        let wait = retry::asked_for(response.headers(), self.clock.now());
        let said = match read_bounded(response, PROBLEM).await {
            Ok((bytes, _)) => self.cleaner.problem(&reply::problem(&from_bytes(&bytes))),
            Err(_) => String::new(),
        };
        let mut why = format!("it answered with status {status}");
        if (300..400).contains(&status) {
            why.push_str(", a redirect, which is never followed");
        }
        if !said.is_empty() {
            why.push_str(": ");
            why.push_str(&said);
        }
        if retry::is_worth_repeating(status) { Attempt::Again(why, wait) } else { Attempt::Failed(why) }
    }

    fn measure(&self, attempt: &Attempt, began: Duration) {
        let outcome = match attempt {
            Attempt::Answered(_) => "answered",
            Attempt::Again(..) => "again",
            Attempt::Failed(_) => "failed",
        };
        super::measure(&self.name, outcome, self.clock.uptime().saturating_sub(began));
    }

    fn error(&self, why: &str, attempts: u32) -> ModelError {
        let times = if attempts > 1 { format!(" (after {attempts} attempts)") } else { String::new() };
        ModelError { detail: format!("Model `{}` gave no usable answer{times}: {why}", self.name) }
    }
}

#[async_trait]
impl ModelClient for OpenAi {
    async fn answer(&self, prompt: &Prompt) -> Result<Answer, ModelError> {
        let body = Bytes::from(request::body(prompt, &self.model, &self.body).to_string());
        let mut attempts = 0;
        loop {
            attempts += 1;
            let began = self.clock.uptime();
            let attempt = self.attempt(body.clone()).await;
            self.measure(&attempt, began);
            match attempt {
                Attempt::Answered(answer) => return Ok(*answer),
                Attempt::Failed(why) => return Err(self.error(&why, attempts)),
                Attempt::Again(why, _) if attempts > self.retries => return Err(self.error(&why, attempts)),
                Attempt::Again(_, wait) => {
                    let wait = wait.unwrap_or_else(|| retry::backoff(attempts));
                    tracing::debug!(model = %self.name, attempts, wait = wait.as_secs_f64(), "the model is asked again");
                    self.clock.sleep(wait).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
