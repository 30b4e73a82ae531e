//! Sends the requests of an asker to a gate: proposes a call, and reports the call's outcome.
//! Invariants: all proposals of one call have the same idempotency key. An answer counts as an
//! error if its HTTP status contradicts its decision, if it names another tool than the proposed
//! tool, if its permit is for other arguments that no person gave, or if its permit has ended.

use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{RequestBuilder, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::AskerSettings;
use crate::net::{self, Net, NetFailure};
use crate::task::rejections::are_equal_arguments;
use crate::task::text::one_line;
use crate::world::{Clock, SystemClock};

/// The maximum time that one HTTP request asks the service to wait. Proxies commonly end
/// requests after 60 s.
const MAX_REQUEST_WAIT: Duration = Duration::from_secs(45);
/// The time that a request may take in addition to the wait that it asks for.
const RESPONSE_GRACE: Duration = Duration::from_secs(5);
/// The minimum time between two requests of [`GateClient::ask`] while the call is undecided.
const MIN_PROPOSAL_INTERVAL: Duration = Duration::from_secs(1);
const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;
/// The maximum duration of one attempt to send a report.
const REPORT_TIMEOUT: Duration = Duration::from_secs(6);
/// The maximum time that [`GateClient::ask`] and then [`GateClient::report`] take beyond the wait
/// of the ask: for the last answer, for the answer that shows whether a permit is still open, and
/// for the report.
pub const MAX_OVERTIME: Duration =
    Duration::from_secs(2 * RESPONSE_GRACE.as_secs() + REPORT_TIMEOUT.as_secs());

#[derive(Debug, Serialize)]
pub struct ProposedCall<'c> {
    /// The name of the gate. May be `None` if only one gate is open to the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gate: Option<&'c str>,
    pub tool: &'c str,
    /// The arguments as JSON text, sent byte for byte.
    pub arguments: &'c RawValue,
    /// The caller's own name for the conversation; `None` stands for the name `gate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<&'c str>,
    /// The asker's own words about the call, shown to approvers as unverified.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub context: &'c str,
    /// Whether the proposal may join an equal earlier call that was proposed with another
    /// idempotency key.
    pub attach: bool,
}

/// The outcome of a call that the asker ran.
#[derive(Debug, Serialize)]
pub struct AskerReport<'r> {
    /// The idempotency key of the call's proposal.
    pub key: &'r str,
    /// `succeeded`, `failed` or `unknown`.
    pub outcome: &'static str,
    /// The text of the call's result; `None` if only the outcome is reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<&'r str>,
}

/// The service's decision about a proposed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceDecision {
    /// The call may run, or has run.
    Allow,
    /// The call will not run.
    Deny,
    /// The call waits for a person's decision, or an attempt to run the call has not ended.
    Pending,
}

/// The part of the service's answer that the asker reads.
#[derive(Clone, Debug, Deserialize)]
pub struct ServiceAnswer {
    pub tool: String,
    /// The JSON text of the arguments to run: the proposed arguments, or a person's edit of them.
    pub arguments_text: String,
    /// Whether a person changed the arguments.
    pub edited: bool,
    /// The digest of the call. `None` if the call can never run, or if the gate counts the call in
    /// a metric without storing the call (`record: held`).
    pub digest: Option<String>,
    pub decision: ServiceDecision,
    /// The state of the call, for example `pending` or `started`.
    pub state: Option<String>,
    /// The outcome of the call; `None` until the call has an outcome.
    pub outcome: Option<String>,
    /// One line about the verdict, for a model or a person.
    pub message: String,
    /// The people who approved the call; empty if no person has approved the call.
    pub by: Vec<String>,
    /// The permit to run the call. Without a permit, the asker must not run the call.
    pub permit: Option<ServicePermit>,
    /// The result of a call that the service ran, or that a person supplied.
    pub result: Option<ServiceResult>,
    /// The open request about the call. If no request is open, the call's last request; `None` if
    /// there was no request.
    pub request: Option<ServiceRequest>,
}

impl ServiceAnswer {
    /// Whether the gate counted the call in its metrics and did not store it (`record: held`). The
    /// asker need not report the outcome of such a call.
    #[must_use]
    pub fn is_only_counted(&self) -> bool {
        self.outcome.as_deref() == Some("released") && self.digest.is_none()
    }

    /// Whether a person gave the result of the call.
    #[must_use]
    pub fn is_responded(&self) -> bool {
        self.outcome.as_deref() == Some("responded")
    }

    /// Whether the answer permits arguments that neither equal `proposed` nor come from a person.
    /// Equal arguments may be written in another way, because the service may continue an earlier
    /// call.
    fn permits_other_arguments(&self, proposed: &RawValue) -> bool {
        self.permit.is_some()
            && !self.edited
            && !are_equal_arguments(&self.arguments_text, proposed.get())
    }

    /// Returns the service's message about the call in one line. The message of a call that has
    /// succeeded or was released says only who allowed the call. So if such a call comes without a
    /// permit and without a result, the returned text first says that the call has run or may have
    /// run. If a person gave the result of the call, the text ends with that result.
    #[must_use]
    pub fn message_with_end(&self) -> String {
        let has_ended_elsewhere = self.permit.is_none() && self.result.is_none();
        let end = match self.outcome.as_deref().filter(|_| has_ended_elsewhere) {
            Some("succeeded") => "This call has already run and succeeded. ",
            Some("released") => "This call was let through before and may have run. ",
            Some(_) | None => "",
        };
        let message = format!("{end}{}", self.message);
        match self.result.as_ref().filter(|_| self.is_responded()) {
            Some(result) => format!("{message} {}", one_line(&result.content)),
            None => message,
        }
    }
}

/// The right to run a call once. The service gives the permit to a single asker.
#[derive(Clone, Debug, Deserialize)]
pub struct ServicePermit {
    /// The time in milliseconds within which the call must start. The service counts this time
    /// from its answer. The client counts it from the moment at which it sends the proposal, with
    /// [`Clock::uptime`]. So for the client, the permit ends no later than for the service.
    pub expires_in_ms: u64,
    /// The idempotency key that the asker passes to the tool.
    pub idempotency_key: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct ServiceResult {
    pub content: String,
}

/// A question to people.
#[derive(Clone, Debug, Deserialize)]
pub struct ServiceRequest {
    /// The address of the page on which people answer the question.
    pub url: String,
}

/// A complete and consistent answer of the service to a proposal.
#[derive(Debug)]
pub struct AskerVerdict {
    pub answer: ServiceAnswer,
    /// The JSON text of the answer, as received.
    pub text: String,
    /// The machine's uptime ([`Clock::uptime`]) at which the permit ends; `None` without a permit.
    permit_ends: Option<Duration>,
}

impl AskerVerdict {
    fn is_permit_over(&self) -> bool {
        self.permit_ends
            .is_some_and(|end| end <= SystemClock.uptime())
    }
}

/// The reason why there is no verdict.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    #[error("Holdpoint cannot be reached: {0}")]
    Unreachable(String),
    /// The request cannot be written, the service refused it, or the service's answer is unusable.
    #[error("{0}")]
    Refused(String),
    /// The answer arrived after the end of its permit, for example because the machine was
    /// suspended.
    #[error("the permit to run the call has ended")]
    PermitEnded,
}

/// The HTTP client with which an asker proposes calls at a gate and reports their outcomes.
pub struct GateClient {
    net: Net,
    settings: AskerSettings,
    /// The name by which the service knows this process. If an answer with a permit was lost and
    /// this process sends its request again, the service recognizes the name and gives the permit
    /// to this process again.
    runner: String,
}

impl GateClient {
    /// Creates a client. `runner` names this process to the service.
    ///
    /// # Errors
    /// Fails if TLS cannot be set up.
    pub fn new(settings: AskerSettings, runner: String) -> Result<Self, AskError> {
        let net = Net::new().map_err(|error| AskError::Unreachable(error.to_string()))?;
        Ok(Self {
            net,
            settings,
            runner,
        })
    }

    /// Returns the name of the gate that the settings name.
    pub fn gate(&self) -> Option<&str> {
        self.settings.gate.as_deref()
    }

    /// Proposes a call, and repeats the proposal with the same key until the call is decided or
    /// `wait` has passed. Returns the last answer. Each request asks for a wait in whole seconds,
    /// rounded up, so the service may send the last answer up to a second after `wait`.
    ///
    /// An unreachable service is asked again if an earlier answer was `pending`, or if a request
    /// has lasted for `MIN_PROPOSAL_INTERVAL`. Otherwise, the service was probably unreachable from
    /// the beginning, and the client returns the error at once.
    ///
    /// # Errors
    /// Fails if no complete and consistent answer arrives, or if the answer's permit has ended.
    pub async fn ask(
        &self,
        call: &ProposedCall<'_>,
        key: &str,
        wait: Duration,
    ) -> Result<AskerVerdict, AskError> {
        let deadline = Instant::now() + wait;
        let (mut pending, mut has_waited) = (None, false);
        loop {
            let sent_at = Instant::now();
            let request_wait = deadline
                .saturating_duration_since(sent_at)
                .min(MAX_REQUEST_WAIT);
            let proposed = self.propose(call, key, request_wait).await;
            has_waited |= sent_at.elapsed() >= MIN_PROPOSAL_INTERVAL;
            match proposed {
                Ok(verdict) if verdict.answer.decision == ServiceDecision::Pending => {
                    (pending, has_waited) = (Some(verdict), true);
                }
                Ok(verdict) => return self.with_open_permit(call, key, verdict).await,
                Err(AskError::Unreachable(_)) if has_waited && Instant::now() < deadline => {}
                Err(error) => return Err(error),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return pending.ok_or_else(|| {
                    AskError::Unreachable("the service did not answer in time".to_owned())
                });
            }
            if sent_at.elapsed() < MIN_PROPOSAL_INTERVAL {
                SystemClock.sleep(left.min(MIN_PROPOSAL_INTERVAL)).await;
            }
        }
    }

    /// Returns `verdict` unless its permit seems to have ended. In that case, proposes the call
    /// once more and returns the new verdict. The client counts a permit's time from the start of
    /// the request. If the service gave the permit after a long wait, the permit can seem to have
    /// ended although it is still valid at the service. The service then answers the new proposal
    /// with the same permit and the remaining time.
    ///
    /// # Errors
    /// Fails with `PermitEnded` if the permit of the new verdict also seems to have ended. Fails
    /// with the error of the new proposal if that proposal fails.
    async fn with_open_permit(
        &self,
        call: &ProposedCall<'_>,
        key: &str,
        mut verdict: AskerVerdict,
    ) -> Result<AskerVerdict, AskError> {
        if verdict.is_permit_over() {
            verdict = self.propose(call, key, Duration::ZERO).await?;
        }
        if verdict.is_permit_over() {
            return Err(AskError::PermitEnded);
        }
        Ok(verdict)
    }

    async fn propose(
        &self,
        call: &ProposedCall<'_>,
        key: &str,
        request_wait: Duration,
    ) -> Result<AskerVerdict, AskError> {
        let sent_at = SystemClock.uptime();
        let request = self
            .post("/v1/gate/calls", call)?
            .header(
                "prefer",
                format!("wait={}", request_wait.as_millis().div_ceil(1000)),
            )
            .header("idempotency-key", key)
            .header("holdpoint-runner", &self.runner);
        let (status, text) = exchange(request, request_wait + RESPONSE_GRACE).await?;
        let answer: ServiceAnswer = serde_json::from_str(&text).map_err(|_| {
            AskError::Refused(format!("Holdpoint's answer ({status}) is not understood"))
        })?;
        let status_matches = match answer.decision {
            ServiceDecision::Allow | ServiceDecision::Deny => status == 200,
            ServiceDecision::Pending => status == 202,
        };
        let is_other_call =
            answer.tool != call.tool || answer.permits_other_arguments(call.arguments);
        if !status_matches || is_other_call {
            return Err(AskError::Refused(format!(
                "Holdpoint's answer ({status}) contradicts itself"
            )));
        }
        let permit_ends = answer
            .permit
            .as_ref()
            .map(|permit| sent_at + Duration::from_millis(permit.expires_in_ms));
        Ok(AskerVerdict {
            answer,
            text,
            permit_ends,
        })
    }

    /// Reports the outcome of a call.
    ///
    /// # Errors
    /// Fails if the service does not confirm that the report is stored.
    pub async fn report(&self, report: &AskerReport<'_>) -> Result<(), AskError> {
        let request = self.post("/v1/gate/outcomes", report)?;
        exchange(request, REPORT_TIMEOUT).await.map(|_| ())
    }

    fn post(&self, path: &str, body: &impl Serialize) -> Result<RequestBuilder, AskError> {
        let body = serde_json::to_vec(body)
            .map_err(|_| AskError::Refused("the request cannot be written".to_owned()))?;
        let url = format!("{}{path}", self.settings.url);
        let json = HeaderValue::from_static("application/json");
        let request = self.net.repeatable().post(url).header(CONTENT_TYPE, json);
        Ok(match &self.settings.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
        .body(body))
    }
}

/// Sends a request and reads the whole answer within the time `within`. Statuses other than 200 and
/// 202 are errors.
async fn exchange(request: RequestBuilder, within: Duration) -> Result<(u16, String), AskError> {
    let read = async {
        let mut response = net::send_request(request, within)
            .await
            .map_err(unreachable_error)?;
        let bytes = read_body(&mut response, within).await?;
        Ok::<_, AskError>((response.status().as_u16(), bytes))
    };
    let (status, bytes) = tokio::time::timeout(within, read)
        .await
        .unwrap_or_else(|_| Err(AskError::Unreachable(net::NO_ANSWER_IN_TIME.to_owned())))?;
    let text = String::from_utf8(bytes)
        .map_err(|_| AskError::Refused(format!("Holdpoint's answer ({status}) is not UTF-8")))?;
    match status {
        200 | 202 => Ok((status, text)),
        502..=504 => Err(AskError::Unreachable(format!("it answered {status}"))),
        other => Err(AskError::Refused(refusal_text(other, &text))),
    }
}

async fn read_body(response: &mut Response, within: Duration) -> Result<Vec<u8>, AskError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = net::next_bytes(response, within)
        .await
        .map_err(unreachable_error)?
    {
        if bytes.len() + chunk.len() > MAX_ANSWER_BYTES {
            return Err(AskError::Refused(
                "Holdpoint's answer is too long".to_owned(),
            ));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn unreachable_error(failure: NetFailure) -> AskError {
    AskError::Unreachable(failure.to_string())
}

/// Returns the error text of a refusal. If the body is a problem document, the text has the
/// document's code and detail. If the key or the gate is wrong, the text also names the environment
/// variable to set. Any other body is not quoted, because a proxy may have written it.
fn refusal_text(status: u16, text: &str) -> String {
    #[derive(Deserialize)]
    struct ServiceProblem {
        code: String,
        detail: Option<String>,
        #[serde(default)]
        errors: Vec<ServiceFieldError>,
    }
    #[derive(Deserialize)]
    struct ServiceFieldError {
        pointer: String,
    }
    match serde_json::from_str::<ServiceProblem>(text) {
        Ok(problem) => {
            let detail = problem.detail.unwrap_or_default();
            let is_about_gate = problem.errors.iter().any(|error| error.pointer == "/gate");
            let advice = match problem.code.as_str() {
                "unauthorized" => " Set HOLDPOINT_KEY to a valid key.",
                _ if is_about_gate => " Set HOLDPOINT_GATE to its name.",
                _ => "",
            };
            format!(
                "Holdpoint refused ({status} {}): {detail}{advice}",
                problem.code
            )
        }
        Err(_) => format!("Holdpoint answered {status}"),
    }
}
