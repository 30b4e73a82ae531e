//! Implements the common part of all model protocols: sends requests to an endpoint, retries if a
//! retry may help, and reads the whole or streamed answer. Invariant: an answer is complete or
//! rejected. A reset voids the pieces that a failed attempt has emitted. Every wait is bounded. No
//! error contains a URL.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderMap;
use reqwest::Response;
use url::Url;

use super::clean::Cleaner;
use super::problem::{error_text_in, mentions_streaming, names_stream_parameter};
use super::protocol::{
    AttemptOutcome, BodyParts, EarlierThinking, PieceEmitter, Protocol, RefusedPart, retryable,
};
use super::settings::Settings;
use super::{Answer, AttemptEnd, ModelClient, ModelError, PieceSink, Prompt, retry};
use crate::net::{self, Net, NetFailure};
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

/// Returns the part of the request that a refusal blames, if a simpler request can do without this
/// part; otherwise `None`. `body` is the body of the refusal, and `error_text` is the error text in
/// it.
fn refused_part<P: Protocol>(status: u16, body: &str, error_text: &str) -> Option<RefusedPart> {
    let is_invalid = matches!(status, 400 | 422);
    if is_invalid && names_stream_parameter(body, error_text) {
        Some(RefusedPart::StreamParameter)
    } else if (is_invalid || status == 404) && P::is_about_thinking(error_text) {
        Some(RefusedPart::EarlierThinking)
    } else {
        (is_invalid && mentions_streaming(error_text)).then_some(RefusedPart::PossiblyStreaming)
    }
}

/// Returns the outcome of an attempt whose response has a success status. If the response holds an
/// error that blames the request, and the error is about the earlier thinking, the error counts as
/// a refusal of this thinking.
fn with_refused_thinking<P: Protocol>(outcome: AttemptOutcome) -> AttemptOutcome {
    match outcome {
        // Only a text that quotes the endpoint is owned.
        AttemptOutcome::Failed(Cow::Owned(why)) if P::is_about_thinking(&why) => {
            AttemptOutcome::RetrySimpler(why.into(), RefusedPart::EarlierThinking)
        }
        outcome @ (AttemptOutcome::Answered(_)
        | AttemptOutcome::Retry(..)
        | AttemptOutcome::RetrySimpler(..)
        | AttemptOutcome::Failed(_)) => outcome,
    }
}

/// Returns the problem of an answer whose request without the earlier thinking failed, too. Shows
/// the refusal of the thinking (`first`) and the last problem, because some endpoints refuse the
/// request without thinking only because it has none. A text that was cut is recognized only by a
/// `…` at its end, so it is shown at the end. If both were cut, shows only the first.
fn join_refusals(first: Cow<'static, str>, last: Cow<'static, str>) -> Cow<'static, str> {
    match (first.ends_with('…'), last.ends_with('…')) {
        _ if first == last => last,
        (false, _) => format!("{first}; without the earlier reasoning, {last}").into(),
        (true, false) => format!("{last}; with the earlier reasoning, {first}").into(),
        (true, true) => first,
    }
}

/// The form of a request: its mode, and whether it includes the model's earlier thinking. After a
/// refusal, the next attempt has a simpler form.
#[derive(Clone, Copy)]
struct RequestForm {
    /// The index in [`Protocol::REQUEST_MODES`].
    mode_index: usize,
    thinking: EarlierThinking,
}

impl RequestForm {
    /// Returns the form for the next attempt: this form with the refused part left out or
    /// simplified.
    fn without(self, refused: RefusedPart) -> Self {
        match refused {
            RefusedPart::EarlierThinking => Self {
                thinking: EarlierThinking::Omitted,
                ..self
            },
            RefusedPart::StreamParameter | RefusedPart::PossiblyStreaming => Self {
                mode_index: self.mode_index + 1,
                ..self
            },
        }
    }
}

pub(super) struct Endpoint<P> {
    settings: Settings,
    address: Url,
    headers: HeaderMap,
    net: Net,
    clock: Arc<dyn Clock>,
    cleaner: Cleaner,
    /// The mode of the first request for each answer, as an index in [`Protocol::REQUEST_MODES`].
    /// The client begins with mode 0. If the endpoint refuses the parameter `stream` or
    /// `stream_options` by name, and then answers a request in a simpler mode, the client keeps
    /// the simpler mode for later answers. After any other refusal, the client does not keep the
    /// simpler mode, because the refusal may have been about another part of the request.
    mode_index: AtomicUsize,
    protocol: PhantomData<P>,
}

impl<P> fmt::Debug for Endpoint<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("name", &self.settings.name)
            .field("model", &self.settings.model)
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
        Ok(Self {
            settings,
            address,
            headers,
            net,
            clock,
            cleaner: Cleaner(redactor),
            mode_index: AtomicUsize::new(0),
            protocol: PhantomData,
        })
    }

    /// Returns the request body in the given form; `None` if the protocol has no mode with the
    /// form's `mode_index`, or if the body cannot be written.
    fn request(&self, prompt: &Prompt, form: RequestForm) -> Option<Bytes> {
        let mode = P::REQUEST_MODES.get(form.mode_index)?;
        let Settings { model, body, .. } = &self.settings;
        let parts = BodyParts {
            prompt,
            model: model.as_deref().unwrap_or_default(),
            extra: body,
            mode: *mode,
            earlier_thinking: form.thinking,
        };
        P::body(&parts).ok().map(Bytes::from)
    }

    /// Sends one request. Returns the [`AttemptOutcome`], which says whether the client asks again,
    /// and the [`AttemptEnd`] for logs.
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
        let response = match net::send_request(request, self.settings.timeout).await {
            Ok(response) => response,
            Err(NetFailure::NotSent(reason) | NetFailure::Lost(reason)) => {
                let attempt_end = AttemptEnd {
                    status: None,
                    reason: Some(reason),
                };
                return (retryable(reason), attempt_end);
            }
        };
        let status = response.status().as_u16();
        let (attempt, reason) = if response.status().is_success() {
            let attempt = self.read(response, emitter).await;
            let reason = attempt.loggable_reason();
            (with_refused_thinking::<P>(attempt), reason)
        } else {
            (self.read_refusal(status, response).await, None)
        };
        let attempt_end = AttemptEnd {
            status: Some(status),
            reason,
        };
        (attempt, attempt_end)
    }

    async fn read_refusal(&self, status: u16, response: Response) -> AttemptOutcome {
        let wait = retry::requested_wait(response.headers(), self.clock.now());
        let id = self.cleaner.text(&request_id(response.headers()));
        let read = self.read_up_to(response, read::MAX_PROBLEM_BYTES).await;
        let (bytes, is_cut) = read.unwrap_or_default();
        let mut body = from_bytes(&bytes);
        if is_cut {
            body = self.cleaner.cut_text(&body);
        }
        let mut error_text = self.cleaner.problem(&error_text_in(&body));
        if is_cut && !error_text.is_empty() && !error_text.ends_with('…') {
            error_text.push('…');
        }
        let mut why = format!("it answered with status {status}{id}");
        if net::is_redirect(status) {
            why.push_str(", a redirect, which is never followed");
        }
        if !error_text.is_empty() {
            why.push_str(": ");
            why.push_str(&error_text);
        }
        if retry::is_retryable(status) {
            return AttemptOutcome::Retry(why.into(), wait);
        }
        match refused_part::<P>(status, &body, &error_text) {
            Some(refused) => AttemptOutcome::RetrySimpler(why.into(), refused),
            None => AttemptOutcome::Failed(why.into()),
        }
    }

    fn measure(&self, attempt: &AttemptOutcome, began: Duration) {
        let outcome = match attempt {
            AttemptOutcome::Answered(_) => "answered",
            AttemptOutcome::Retry(..) | AttemptOutcome::RetrySimpler(..) => "again",
            AttemptOutcome::Failed(_) => "failed",
        };
        let took = self.clock.uptime().saturating_sub(began);
        super::measure(&self.settings.name, outcome, took);
    }

    fn error(&self, why: &str, attempts: u32, attempt_end: AttemptEnd) -> ModelError {
        let times = if attempts > 1 {
            format!(" (after {attempts} attempts)")
        } else {
            String::new()
        };
        let name = &self.settings.name;
        ModelError {
            detail: format!("Model `{name}` gave no usable answer{times}: {why}"),
            attempt_end,
        }
    }
}

#[async_trait]
impl<P: Protocol> ModelClient for Endpoint<P> {
    async fn answer(&self, prompt: &Prompt, sink: &dyn PieceSink) -> Result<Answer, ModelError> {
        let mut emitter = PieceEmitter::new(sink);
        let mut kept_mode = self.mode_index.load(Ordering::Relaxed);
        let mut form = RequestForm {
            mode_index: kept_mode,
            thinking: EarlierThinking::Included,
        };
        let Some(mut body) = self.request(prompt, form) else {
            return Err(self.error("the request could not be written", 1, AttemptEnd::default()));
        };
        let (mut attempts, mut retries) = (0, 0);
        let mut first_refusal = None;
        loop {
            attempts += 1;
            let began = self.clock.uptime();
            let (attempt, attempt_end) = self.attempt(body.clone(), &mut emitter).await;
            self.measure(&attempt, began);
            if !matches!(attempt, AttemptOutcome::Answered(_)) {
                emitter.reset();
            }
            let why = match attempt {
                AttemptOutcome::Answered(answer) => {
                    self.mode_index.store(kept_mode, Ordering::Relaxed);
                    return Ok(*answer);
                }
                AttemptOutcome::Failed(why) => why,
                AttemptOutcome::RetrySimpler(why, refused) => {
                    form = form.without(refused);
                    let request = self.request(prompt, form);
                    if let Some(request) = request.filter(|request| *request != body) {
                        match refused {
                            RefusedPart::EarlierThinking => first_refusal = Some(why),
                            RefusedPart::StreamParameter => kept_mode = form.mode_index,
                            RefusedPart::PossiblyStreaming => {}
                        }
                        body = request;
                        tracing::debug!(model = %self.settings.name, "the model is called again with a simpler request");
                        continue;
                    }
                    why
                }
                AttemptOutcome::Retry(why, _) if retries >= self.settings.retries => why,
                AttemptOutcome::Retry(_, wait) => {
                    retries += 1;
                    let wait = retry::backoff(retries, wait);
                    tracing::info!(model = %self.settings.name, status = attempt_end.status, reason = attempt_end.reason, attempts, wait = wait.as_secs_f64(), "the model is asked again");
                    self.clock.sleep(wait).await;
                    continue;
                }
            };
            let why = match first_refusal {
                Some(first) => join_refusals(first, why),
                None => why,
            };
            return Err(self.error(&why, attempts, attempt_end));
        }
    }
}
