//! The requests to the three operations of a gate. Invariant: an answer whose status, decision and
//! JSON do not agree is an error, and no request is repeated unless the service keeps its key.

use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{RequestBuilder, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::AskerSettings;
use crate::net::{self, Failure, Net};
use crate::world::{Clock, SystemClock};

/// The longest wait of a single request: gateways commonly end requests after 60 s.
const LEG: Duration = Duration::from_secs(45);
/// How much longer than its wait a request may take.
const GRACE: Duration = Duration::from_secs(5);
/// The pause before a request is repeated that was answered too early.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest answer, in bytes.
const ANSWER: usize = 16 * 1024 * 1024;
/// How long a report may take.
const REPORT: Duration = Duration::from_secs(8);

/// A call to propose.
#[derive(Debug, Serialize)]
pub struct Call<'c> {
    /// The gate; none where only one is open to the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gate: Option<&'c str>,
    /// The name of the tool.
    pub tool: &'c str,
    /// The arguments, sent to the byte.
    pub arguments: &'c RawValue,
    /// The session; the service has a default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<&'c str>,
    /// The asker's own words about the call.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub context: &'c str,
    /// Whether an equal call of before is continued although its key is another.
    pub attach: bool,
}

/// The outcome of a call that was run here.
#[derive(Debug, Serialize)]
pub struct Report<'r> {
    /// The key that the call was proposed with.
    pub key: &'r str,
    /// `succeeded`, `failed` or `unknown`.
    pub outcome: &'static str,
    /// The text of the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<&'r str>,
}

/// The verdict of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// The call may run, or has run.
    Allow,
    /// The call will not run.
    Deny,
    /// The call waits for a person, or for an attempt under way.
    Pending,
}

/// The members of an answer that decide about the call.
#[derive(Clone, Debug, Deserialize)]
pub struct Answer {
    /// The name of the tool.
    pub tool: String,
    /// The arguments that run.
    pub arguments_text: String,
    /// Whether a person changed the arguments.
    pub edited: bool,
    /// The verdict.
    pub decision: Decision,
    /// The outcome of a settled call.
    pub outcome: Option<String>,
    /// One line for a model or a person.
    pub message: String,
    /// The people who approved the call.
    pub by: Vec<String>,
    /// The permit to run the call.
    pub permit: Option<Permit>,
    /// The result of a call that the service ran, or that a person supplied.
    pub result: Option<GateResult>,
    /// The question to people.
    pub request: Option<Request>,
}

/// The one leave to run a call.
#[derive(Clone, Debug, Deserialize)]
pub struct Permit {
    /// The time in which the call must be begun, counted from the request.
    pub expires_in_ms: u64,
    /// The key to pass on to the tool.
    pub idempotency_key: String,
}

/// A result of a call.
#[derive(Clone, Debug, Deserialize)]
pub struct GateResult {
    /// The text.
    pub content: String,
}

/// A question to people.
#[derive(Clone, Debug, Deserialize)]
pub struct Request {
    /// The address of its page.
    pub url: String,
}

/// A verdict with the moment of the request that it answers.
#[derive(Debug)]
pub struct Verdict {
    /// The answer.
    pub answer: Answer,
    /// The answer as it was received.
    pub text: String,
    /// When the permit ends, by this process's clock.
    pub permit_ends: Option<Instant>,
}

/// Why there is no verdict.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The service cannot be reached now.
    #[error("Holdpoint cannot be reached: {0}")]
    Unreachable(String),
    /// The service refused the request, or its answer is not understood.
    #[error("{0}")]
    Refused(String),
}

/// A client of a gate.
pub struct GateClient {
    net: Net,
    settings: AskerSettings,
    /// Names this process, so that a repeated request gets the permit that was lost with its answer.
    runner: String,
}

impl GateClient {
    /// A client with these settings. `runner` names the process.
    ///
    /// # Errors
    /// TLS that cannot be set up.
    pub fn new(settings: AskerSettings, runner: String) -> Result<Self, AskError> {
        let net = Net::new().map_err(|error| AskError::Unreachable(error.to_string()))?;
        Ok(Self {
            net,
            settings,
            runner,
        })
    }

    /// Proposes a call and asks again with the same key until it is decided or `wait` is over. An
    /// outage of the service is waited out only for a call that it has answered before: the first
    /// request of an asker fails at once.
    ///
    /// # Errors
    /// Anything but a complete answer.
    pub async fn ask(
        &self,
        call: &Call<'_>,
        key: &str,
        wait: Duration,
    ) -> Result<Verdict, AskError> {
        let end = Instant::now() + wait;
        let mut pending = None;
        loop {
            let asked = Instant::now();
            let leg = end.saturating_duration_since(asked).min(LEG);
            match self.propose(call, key, leg).await {
                Ok(verdict) if verdict.answer.decision == Decision::Pending => {
                    pending = Some(verdict);
                }
                Ok(verdict) => return Ok(verdict),
                Err(AskError::Unreachable(_)) if pending.is_some() && Instant::now() < end => {}
                Err(error) => return Err(error),
            }
            if Instant::now() + PAUSE >= end {
                return pending.ok_or_else(|| {
                    AskError::Unreachable("the service did not answer in time".to_owned())
                });
            }
            if asked.elapsed() < PAUSE {
                SystemClock.sleep(PAUSE).await;
            }
        }
    }

    async fn propose(
        &self,
        call: &Call<'_>,
        key: &str,
        leg: Duration,
    ) -> Result<Verdict, AskError> {
        let asked = Instant::now();
        let request = self
            .post("/v1/gate/calls", call)?
            .header("prefer", format!("wait={}", leg.as_secs()))
            .header("idempotency-key", key)
            .header("holdpoint-runner", &self.runner);
        let (status, text) = exchange(request, leg + GRACE).await?;
        let answer: Answer = serde_json::from_str(&text).map_err(|_| {
            AskError::Refused(format!("Holdpoint's answer ({status}) is not understood"))
        })?;
        let fits = match answer.decision {
            Decision::Allow | Decision::Deny => status == 200,
            Decision::Pending => status == 202,
        };
        if !fits || answer.tool != call.tool {
            return Err(AskError::Refused(format!(
                "Holdpoint's answer ({status}) contradicts itself"
            )));
        }
        let permit_ends = answer
            .permit
            .as_ref()
            .map(|permit| asked + Duration::from_millis(permit.expires_in_ms));
        Ok(Verdict {
            answer,
            text,
            permit_ends,
        })
    }

    /// Reports the outcome of a call.
    ///
    /// # Errors
    /// Anything but a report that was stored.
    pub async fn report(&self, report: &Report<'_>) -> Result<(), AskError> {
        let request = self.post("/v1/gate/outcomes", report)?;
        exchange(request, REPORT).await.map(|_| ())
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

/// Sends a request and reads its whole answer, at most `within`. Statuses other than 200 and 202 are
/// errors.
async fn exchange(request: RequestBuilder, within: Duration) -> Result<(u16, String), AskError> {
    let read = async {
        let mut response = net::begun(request, within).await.map_err(unreachable)?;
        let bytes = body(&mut response, within).await?;
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
        other => Err(AskError::Refused(refusal(other, &text))),
    }
}

async fn body(response: &mut Response, within: Duration) -> Result<Vec<u8>, AskError> {
    let mut bytes = Vec::new();
    while let Some(more) = net::next_bytes(response, within)
        .await
        .map_err(unreachable)?
    {
        if bytes.len() + more.len() > ANSWER {
            return Err(AskError::Refused(
                "Holdpoint's answer is too long".to_owned(),
            ));
        }
        bytes.extend_from_slice(&more);
    }
    Ok(bytes)
}

fn unreachable(failure: Failure) -> AskError {
    AskError::Unreachable(failure.to_string())
}

/// The refusal of a problem document; other bodies are not quoted, because they may be anybody's.
fn refusal(status: u16, text: &str) -> String {
    #[derive(Deserialize)]
    struct Problem {
        code: String,
        detail: Option<String>,
    }
    match serde_json::from_str::<Problem>(text) {
        Ok(problem) => {
            let detail = problem.detail.unwrap_or_default();
            format!("Holdpoint refused ({status} {}): {detail}", problem.code)
        }
        Err(_) => format!("Holdpoint answered {status}"),
    }
}
