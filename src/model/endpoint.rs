//! The common part of all model protocols: the endpoint's address, asking, retrying when that may
//! help, and reading the whole or streamed answer. Invariant: an answer is complete or rejected;
//! pieces emitted for a failed attempt are voided by a reset; every wait is bounded; no error
//! contains a URL.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderMap;
use reqwest::Response;
use serde_json::{Map, Value};
use url::Url;

use super::clean::Cleaner;
use super::problem::said_in;
use super::protocol::{Attempt, Protocol, Telling, Thoughts};
use super::settings::Settings;
use super::{Answer, Ended, ModelClient, ModelError, Prompt, Sink, retry};
use crate::net::{self, Failure, Net};
use crate::secret::Redactor;
use crate::task::text::from_bytes;
use crate::world::Clock;

mod read;

/// Returns the provider's id of the request, formatted for an error; empty if the response has no
/// id, or an id that is long or has unusual characters.
fn request_id(headers: &HeaderMap) -> String {
    let id = headers
        .get("request-id")
        .or_else(|| headers.get("x-request-id"))
        .and_then(|id| id.to_str().ok());
    let fits = |id: &&str| {
        id.len() <= 100
            && id
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
    };
    id.filter(fits)
        .map(|id| format!(" (request {id})"))
        .unwrap_or_default()
}

pub(super) struct Endpoint<P> {
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
    /// Index in [`Protocol::MANNERS`] of the manner that last led to an answer; 0 at first.
    manner: AtomicUsize,
    protocol: PhantomData<P>,
}

impl<P> fmt::Debug for Endpoint<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("name", &self.name)
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}

impl<P: Protocol> Endpoint<P> {
    /// Creates the client of one model.
    ///
    /// # Errors
    /// [`ModelError`] for settings in which [`Settings::check`] finds mistakes.
    pub(super) fn new(
        settings: Settings,
        net: Net,
        clock: Arc<dyn Clock>,
        redactor: Arc<Redactor>,
    ) -> Result<Self, ModelError> {
        let unusable = |why: &str| {
            ModelError::new(format!("Model `{}` cannot be used: {why}.", settings.name))
        };
        let address = settings.address::<P>().map_err(unusable)?;
        let headers = settings
            .header_map::<P>()
            .ok_or_else(|| unusable("a header cannot be sent"))?;
        let model = settings.model.unwrap_or_default();
        let Settings {
            name,
            timeout,
            retries,
            body,
            ..
        } = settings;
        let (cleaner, manner, protocol) = (Cleaner(redactor), AtomicUsize::new(0), PhantomData);
        Ok(Self {
            name,
            model,
            address,
            headers,
            body,
            timeout,
            retries,
            net,
            clock,
            cleaner,
            manner,
            protocol,
        })
    }

    /// Returns the request body for the manner at this index; `None` if there is no such manner, or
    /// if the body cannot be written.
    fn request(&self, prompt: &Prompt, manner: usize, thoughts: Thoughts) -> Option<Bytes> {
        let manner = P::MANNERS.get(manner)?;
        Some(Bytes::from(
            P::body(prompt, &self.model, &self.body, *manner, thoughts).ok()?,
        ))
    }

    /// Sends one request. Returns the outcome, and the status or the connection failure.
    async fn attempt(&self, body: Bytes, telling: &mut Telling<'_>) -> (Attempt, Ended) {
        let request = self
            .net
            .repeatable()
            .post(self.address.clone())
            .headers(self.headers.clone())
            .body(body);
        let response = match net::begun(request, self.timeout).await {
            Ok(response) => response,
            Err(failure @ (Failure::NotSent(reason) | Failure::Lost(reason))) => {
                let ended = Ended {
                    status: None,
                    reason: Some(reason),
                };
                return (Attempt::Again(failure.to_string(), None), ended);
            }
        };
        let status = response.status().as_u16();
        let attempt = if response.status().is_success() {
            self.read(response, telling).await
        } else {
            self.refused(status, response).await
        };
        (
            attempt,
            Ended {
                status: Some(status),
                reason: None,
            },
        )
    }

    async fn refused(&self, status: u16, response: Response) -> Attempt {
        let wait = net::asked_for(response.headers(), self.clock.now(), retry::LONGEST_ASKED);
        let id = self.cleaner.text(&request_id(response.headers()));
        let body = self
            .gathered(response, read::PROBLEM)
            .await
            .map(|(bytes, _)| from_bytes(&bytes));
        let body = body.unwrap_or_default();
        let said = self.cleaner.problem(&said_in(&body));
        let mut why = format!("it answered with status {status}{id}");
        if (300..400).contains(&status) {
            why.push_str(", a redirect, which is never followed");
        }
        if !said.is_empty() {
            why.push_str(": ");
            why.push_str(&said);
        }
        if retry::is_worth_repeating(status) {
            Attempt::Again(why, wait)
        } else if matches!(status, 400 | 404 | 422) && P::is_about_thoughts(&said)
            || matches!(status, 400 | 422) && body.to_ascii_lowercase().contains("stream")
        {
            Attempt::Plainer(why)
        } else {
            Attempt::Failed(why)
        }
    }

    fn measure(&self, attempt: &Attempt, began: Duration) {
        let outcome = match attempt {
            Attempt::Answered(_) => "answered",
            Attempt::Again(..) | Attempt::Plainer(_) => "again",
            Attempt::Failed(_) => "failed",
        };
        super::measure(
            &self.name,
            outcome,
            self.clock.uptime().saturating_sub(began),
        );
    }

    fn error(&self, why: &str, attempts: u32, ended: Ended) -> ModelError {
        let times = if attempts > 1 {
            format!(" (after {attempts} attempts)")
        } else {
            String::new()
        };
        ModelError {
            detail: format!("Model `{}` gave no usable answer{times}: {why}", self.name),
            ended,
        }
    }
}

#[async_trait]
impl<P: Protocol> ModelClient for Endpoint<P> {
    async fn answer(&self, prompt: &Prompt, sink: &dyn Sink) -> Result<Answer, ModelError> {
        let mut telling = Telling::new(sink);
        let mut manner = self.manner.load(Ordering::Relaxed);
        let mut thoughts = Thoughts::Kept;
        let Some(mut body) = self.request(prompt, manner, thoughts) else {
            return Err(self.error("the request could not be written", 1, Ended::default()));
        };
        let mut attempts = 0;
        loop {
            attempts += 1;
            let began = self.clock.uptime();
            let (attempt, ended) = self.attempt(body.clone(), &mut telling).await;
            self.measure(&attempt, began);
            if !matches!(attempt, Attempt::Answered(_)) {
                telling.reset();
            }
            match attempt {
                Attempt::Answered(answer) => {
                    self.manner.store(manner, Ordering::Relaxed);
                    return Ok(*answer);
                }
                Attempt::Failed(why) => return Err(self.error(&why, attempts, ended)),
                Attempt::Plainer(why) => {
                    let (plainer, left) = if P::is_about_thoughts(&why) {
                        (manner, Thoughts::Left)
                    } else {
                        (manner + 1, thoughts)
                    };
                    let request = self
                        .request(prompt, plainer, left)
                        .filter(|request| *request != body);
                    let Some(request) = request else {
                        return Err(self.error(&why, attempts, ended));
                    };
                    tracing::debug!(model = %self.name, "the model is called again with a simpler request");
                    (body, manner, thoughts, attempts) = (request, plainer, left, attempts - 1);
                }
                Attempt::Again(why, _) if attempts > self.retries => {
                    return Err(self.error(&why, attempts, ended));
                }
                Attempt::Again(_, wait) => {
                    let wait = wait.unwrap_or_else(|| retry::backoff(attempts));
                    tracing::info!(model = %self.name, status = ended.status, reason = ended.reason, attempts, wait = wait.as_secs_f64(), "the model is asked again");
                    self.clock.sleep(wait).await;
                }
            }
        }
    }
}
