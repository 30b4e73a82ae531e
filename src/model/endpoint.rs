//! Implements the common part of all model protocols: sends requests to an endpoint, retries if a
//! retry may help, and reads the whole or streamed answer. Invariant: an answer is complete or
//! rejected. A reset voids the pieces that a failed attempt has emitted. Every wait is bounded. No
//! error contains a URL.

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
use super::problem::error_text_in;
use super::protocol::{AttemptOutcome, EarlierThinking, PieceEmitter, Protocol};
use super::settings::Settings;
use super::{Answer, AttemptEnd, ModelClient, ModelError, PieceSink, Prompt, retry};
use crate::net::{self, Failure, Net};
use crate::secret::Redactor;
use crate::task::text::from_bytes;
use crate::world::Clock;

mod read;

/// Returns the provider's id of the request, formatted for an error. Returns an empty text if the
/// response has no id, or if the id is long or has unusual characters.
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

/// Returns whether the body of a refusal has a word that begins with `stream`, such as the name of
/// a refused parameter. A word that only contains `stream`, such as `upstream`, does not count.
fn is_about_streaming(body: &str) -> bool {
    // A gateway may write `upstream` in any error, so this word does not count.
    let words = body.to_ascii_lowercase().replace("upstream", "");
    words.contains("stream")
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
    /// The index in [`Protocol::REQUEST_MODES`] of the mode that last led to an answer; 0 at first.
    mode_index: AtomicUsize,
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
    /// Fails if the `base_url` in the settings is invalid, or if the key or a configured header is
    /// not valid as a header.
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
        let (cleaner, mode_index, protocol) = (Cleaner(redactor), AtomicUsize::new(0), PhantomData);
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
            mode_index,
            protocol,
        })
    }

    /// Returns the request body for the mode at this index; `None` if there is no such mode, or
    /// if the body cannot be written.
    fn request(
        &self,
        prompt: &Prompt,
        mode_index: usize,
        thinking: EarlierThinking,
    ) -> Option<Bytes> {
        let mode = P::REQUEST_MODES.get(mode_index)?;
        Some(Bytes::from(
            P::body(prompt, &self.model, &self.body, *mode, thinking).ok()?,
        ))
    }

    /// Sends one request. Returns the [`AttemptOutcome`], which says whether the client asks again,
    /// and the [`AttemptEnd`] for logs. The [`AttemptEnd`] has the HTTP status. If no answer began,
    /// it has the reason instead.
    async fn attempt(
        &self,
        body: Bytes,
        emitter: &mut PieceEmitter<'_>,
    ) -> (AttemptOutcome, AttemptEnd) {
        let request = self
            .net
            .repeatable()
            .post(self.address.clone())
            .headers(self.headers.clone())
            .body(body);
        let response = match net::send_request(request, self.timeout).await {
            Ok(response) => response,
            Err(failure @ (Failure::NotSent(reason) | Failure::Lost(reason))) => {
                let attempt_end = AttemptEnd {
                    status: None,
                    reason: Some(reason),
                };
                return (
                    AttemptOutcome::Retry(failure.to_string(), None),
                    attempt_end,
                );
            }
        };
        let status = response.status().as_u16();
        let attempt = if response.status().is_success() {
            self.read(response, emitter).await
        } else {
            self.read_refusal(status, response).await
        };
        (
            attempt,
            AttemptEnd {
                status: Some(status),
                reason: None,
            },
        )
    }

    async fn read_refusal(&self, status: u16, response: Response) -> AttemptOutcome {
        let wait = net::retry_after(response.headers(), self.clock.now(), retry::MAX_RETRY_AFTER);
        let id = self.cleaner.text(&request_id(response.headers()));
        let body = self
            .read_up_to(response, read::MAX_PROBLEM_BYTES)
            .await
            .map(|(bytes, _)| from_bytes(&bytes));
        let body = body.unwrap_or_default();
        let error_text = self.cleaner.problem(&error_text_in(&body));
        let mut why = format!("it answered with status {status}{id}");
        if (300..400).contains(&status) {
            why.push_str(", a redirect, which is never followed");
        }
        if !error_text.is_empty() {
            why.push_str(": ");
            why.push_str(&error_text);
        }
        if retry::is_retryable(status) {
            AttemptOutcome::Retry(why, wait)
        } else if matches!(status, 400 | 404 | 422) && P::is_about_thinking(&error_text)
            || matches!(status, 400 | 422) && is_about_streaming(&body)
        {
            AttemptOutcome::RetrySimpler(why)
        } else {
            AttemptOutcome::Failed(why)
        }
    }

    fn measure(&self, attempt: &AttemptOutcome, began: Duration) {
        let outcome = match attempt {
            AttemptOutcome::Answered(_) => "answered",
            AttemptOutcome::Retry(..) | AttemptOutcome::RetrySimpler(_) => "again",
            AttemptOutcome::Failed(_) => "failed",
        };
        super::measure(
            &self.name,
            outcome,
            self.clock.uptime().saturating_sub(began),
        );
    }

    fn error(&self, why: &str, attempts: u32, attempt_end: AttemptEnd) -> ModelError {
        let times = if attempts > 1 {
            format!(" (after {attempts} attempts)")
        } else {
            String::new()
        };
        ModelError {
            detail: format!("Model `{}` gave no usable answer{times}: {why}", self.name),
            attempt_end,
        }
    }
}

#[async_trait]
impl<P: Protocol> ModelClient for Endpoint<P> {
    async fn answer(&self, prompt: &Prompt, sink: &dyn PieceSink) -> Result<Answer, ModelError> {
        let mut emitter = PieceEmitter::new(sink);
        let mut mode_index = self.mode_index.load(Ordering::Relaxed);
        let mut thinking = EarlierThinking::Included;
        let Some(mut body) = self.request(prompt, mode_index, thinking) else {
            return Err(self.error("the request could not be written", 1, AttemptEnd::default()));
        };
        let mut attempts = 0;
        loop {
            attempts += 1;
            let began = self.clock.uptime();
            let (attempt, attempt_end) = self.attempt(body.clone(), &mut emitter).await;
            self.measure(&attempt, began);
            if !matches!(attempt, AttemptOutcome::Answered(_)) {
                emitter.reset();
            }
            match attempt {
                AttemptOutcome::Answered(answer) => {
                    self.mode_index.store(mode_index, Ordering::Relaxed);
                    return Ok(*answer);
                }
                AttemptOutcome::Failed(why) => return Err(self.error(&why, attempts, attempt_end)),
                AttemptOutcome::RetrySimpler(why) => {
                    let (next_mode, next_thinking) = if P::is_about_thinking(&why) {
                        (mode_index, EarlierThinking::Omitted)
                    } else {
                        (mode_index + 1, thinking)
                    };
                    let request = self
                        .request(prompt, next_mode, next_thinking)
                        .filter(|request| *request != body);
                    let Some(request) = request else {
                        return Err(self.error(&why, attempts, attempt_end));
                    };
                    tracing::debug!(model = %self.name, "the model is called again with a simpler request");
                    (body, mode_index, thinking, attempts) =
                        (request, next_mode, next_thinking, attempts - 1);
                }
                AttemptOutcome::Retry(why, _) if attempts > self.retries => {
                    return Err(self.error(&why, attempts, attempt_end));
                }
                AttemptOutcome::Retry(_, wait) => {
                    let wait = wait.unwrap_or_else(|| retry::backoff(attempts));
                    tracing::info!(model = %self.name, status = attempt_end.status, reason = attempt_end.reason, attempts, wait = wait.as_secs_f64(), "the model is asked again");
                    self.clock.sleep(wait).await;
                }
            }
        }
    }
}
