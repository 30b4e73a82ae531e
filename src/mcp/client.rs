//! The client of one MCP server, shared by all tasks of the process. [`Client::call`] makes one
//! attempt at a call. An attempt consists of one or more requests. Invariant: the outcome of an
//! attempt says whether the server may have executed the call.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::lock::tool_name;
use super::settings::Transport;
use super::stdio::Stdio;
use super::streamable::Streamable;
use super::wire::{Revision, RpcAnswer, RpcRequest};
use crate::net::Net;
use crate::secret::Redactor;
use crate::task::elicitation::{Elicitation, Resume, ServerState, all_declined, declined_note};
use crate::task::id::CallId;
use crate::tool::{AttemptPermit, LateAnswerCell, RawResultCell, ToolAnswer};
use crate::world::Clock;

/// How long a server may take to list its tools.
pub(super) const LIST_TIMEOUT: Duration = Duration::from_secs(20);
pub(super) const LIST_TIMED_OUT: &str = "it did not list its tools in time";
/// The maximum number of requests in one attempt at a call. A server may answer with a
/// `requestState` instead of a result, and the client then sends the call again with that state.
/// This limit stops an endless exchange.
const MAX_REQUESTS: u32 = 100;
/// The first and the longest pause between two requests of an attempt. Each pause is twice the
/// previous pause, up to the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// The maximum number of concurrent calls to one server. The limit bounds the memory of the
/// answers, each of which may have 16 MiB.
pub(super) const MAX_CALLS: usize = 16;

/// A server's answer to `tools/list`, over all pages.
#[derive(Clone, Debug)]
pub(crate) struct ToolListing {
    pub(crate) revision: Revision,
    /// The server's name and version as reported by the server (`serverInfo`); may be `Null`.
    pub(crate) server: Value,
    /// The complete definitions of the tools, including members that the protocol does not define.
    pub(crate) tools: Vec<Value>,
}

impl ToolListing {
    pub(crate) fn tool_names(&self) -> Vec<String> {
        let names = self.tools.iter().filter_map(tool_name);
        names.map(str::to_owned).collect()
    }
}

/// One attempt at a call.
pub(crate) struct McpCall<'c> {
    /// The tool's name at its server, without the prefix that the configuration adds.
    pub(crate) tool: &'c str,
    /// The approved arguments as JSON text, which is sent unchanged. A blank text is sent as `{}`.
    pub(crate) arguments: &'c str,
    /// The reviewed schema of the arguments.
    pub(crate) schema: &'c Value,
    pub(crate) id: CallId,
    pub(crate) traceparent: &'c str,
    /// The configured headers, with the user's credentials filled in.
    pub(crate) headers: HeaderMap,
    pub(crate) permit: &'c AttemptPermit,
    /// Redacts the server's answers.
    pub(crate) redactor: &'c Redactor,
    /// The server's state and the answers to the server's questions, if an earlier attempt ended
    /// with questions; otherwise `None`.
    pub(crate) resume: Option<Resume>,
    /// The cell for a late answer. After the timeout, the client of a child process puts a future
    /// here that goes on waiting for the answer. The client of an HTTP server leaves the cell
    /// empty.
    pub(crate) late: &'c LateAnswerCell,
    /// The cell for the text of the result, exactly as the server wrote it.
    pub(crate) raw: &'c RawResultCell,
}

/// The outcome of one attempt, or of one request of an attempt. The texts in an outcome contain no
/// known secret.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum McpOutcome {
    /// The text for the model.
    Succeeded(String),
    Failed(String),
    /// The reason why nothing was sent.
    NotSent(String),
    /// The text for the model. The server reported an error, but the call may have had an effect.
    Suspect(String),
    /// The reason why the outcome is not known.
    Unknown(String),
    /// Instead of a result, the server returned an MCP task, which this client does not support.
    /// The MCP task may have an effect. A retry is useless: the server would return an MCP task
    /// again.
    NeedsTasks,
    /// The server answered a request with `input_required`. If the server asks a question that a
    /// person must answer, this is also the outcome of the attempt, and the next attempt sends the
    /// answers. Otherwise the attempt sends a further request.
    Elicitation(Box<Elicitation>),
}

impl McpOutcome {
    /// Returns the answer that settles the call.
    ///
    /// # Errors
    /// Fails if the outcome does not settle the call. The error is the unchanged outcome.
    pub(super) fn settled(self) -> Result<ToolAnswer, Self> {
        match self {
            Self::Succeeded(content) => Ok(ToolAnswer::Succeeded {
                content,
                http_status: None,
            }),
            Self::Failed(content) => Ok(ToolAnswer::failed(content)),
            Self::Suspect(content) => Ok(ToolAnswer::Suspect { content }),
            Self::NotSent(_) | Self::Unknown(_) | Self::NeedsTasks | Self::Elicitation(_) => {
                Err(self)
            }
        }
    }

    /// Adds a note to the text of the outcome: some questions were declined, because their forms
    /// ask for secrets. `declined` has the names of the secret form fields. In a text for the
    /// model, the note comes first, because the end of a long text is cut off, and because a gate
    /// looks for structured content in the last line.
    pub(super) fn noting(self, declined: &[String]) -> Self {
        if declined.is_empty() {
            return self;
        }
        let noted = |text: String| format!("{}\n{text}", declined_note(declined).trim_start());
        match self {
            Self::Succeeded(text) => Self::Succeeded(noted(text)),
            Self::Failed(text) => Self::Failed(noted(text)),
            Self::Suspect(text) => Self::Suspect(noted(text)),
            Self::Unknown(why) => Self::Unknown(format!(
                "{why}; earlier, the server asked the user for a secret in a form (`{}`), which was declined",
                declined.join("`, `")
            )),
            Self::NotSent(_) | Self::NeedsTasks | Self::Elicitation(_) => self,
        }
    }
}

impl McpCall<'_> {
    /// Returns the id of request `request_index` (counted from 0) of this attempt. The protocol
    /// demands a new id for each request, so the id consists of the call's id, `resume.round` and
    /// `request_index`. The round counts the earlier attempts that ended with questions. In round
    /// 0, the id omits the round, and the id of the first request omits the index, too.
    pub(super) fn request_id(&self, request_index: u32) -> String {
        let round = self.resume.as_ref().map_or(0, |resume| resume.round);
        match (round, request_index) {
            (0, 0) => self.id.to_string(),
            (0, _) => format!("{}.{request_index}", self.id),
            _ => format!("{}-{round}.{request_index}", self.id),
        }
    }

    /// Stores the text of the result in `self.raw`, exactly as the server wrote it. Stores nothing
    /// if the answer is not a complete result, or if the text contains a secret.
    pub(super) fn store_raw_result(
        &self,
        answer: &RpcAnswer,
        raw: Option<&str>,
        redactor: &Redactor,
    ) {
        let raw = raw.filter(|raw| answer.is_complete() && !redactor.finds_secret_in(raw));
        if let Some(raw) = raw {
            self.raw.put(raw.into());
        }
    }

    /// Builds one request of the attempt. `resume` holds the server's state and the answers to the
    /// server's questions.
    pub(super) fn request<'r>(&self, id: &'r str, resume: Option<&Resume>) -> RpcRequest<'r> {
        let arguments = self.arguments.trim_ascii();
        let arguments = if arguments.is_empty() {
            "{}"
        } else {
            self.arguments
        };
        let mut params = vec![
            ("name", json!(self.tool).to_string()),
            ("arguments", arguments.to_owned()),
        ];
        if let Some(resume) = resume {
            let state = resume.request_state.as_ref();
            params.extend(state.map(|state| ("requestState", json!(state).to_string())));
            if !resume.responses.is_empty() {
                params.push(("inputResponses", json!(resume.responses).to_string()));
            }
        }
        RpcRequest {
            params,
            meta: vec![
                ("traceparent", json!(self.traceparent).to_string()),
                ("holdpoint/call", json!(self.id.to_string()).to_string()),
            ],
            ..RpcRequest::new(id, "tools/call")
        }
    }
}

pub(crate) struct Client {
    clock: Arc<dyn Clock>,
    pub(super) connection: Connection,
    timeout: Duration,
    /// Limits the concurrent calls. The caller takes a slot before each call.
    pub(super) slots: Arc<Semaphore>,
    changes: watch::Sender<u64>,
}

#[derive(Debug)]
pub(super) enum Connection {
    Http(Box<Streamable>),
    Stdio(Box<Stdio>),
}

impl Client {
    /// Creates a client, which connects at its first use. `hint` is the protocol revision that the
    /// server spoke when its tools were reviewed. If `log` is true, the client logs the lines that
    /// a child process writes to standard error. If `log` is false, the client drops these lines
    /// and counts them. `redactor` removes secrets from the logged lines, and from the name of a
    /// program that cannot be started.
    pub(crate) fn new(
        name: &str,
        transport: Transport,
        timeout: Duration,
        hint: Option<Revision>,
        net: &Net,
        clock: &Arc<dyn Clock>,
        (redactor, log): (Arc<Redactor>, bool),
    ) -> Self {
        let (changes, _) = watch::channel(0);
        let connection = match transport {
            Transport::Http {
                url,
                headers,
                oauth,
            } => Connection::Http(Box::new(Streamable::new(
                url,
                headers.fixed().clone(),
                oauth,
                hint,
                net,
                changes.clone(),
            ))),
            Transport::Stdio(command) => Connection::Stdio(Box::new(Stdio::new(
                name,
                command,
                hint,
                timeout,
                changes.clone(),
                (redactor, log),
            ))),
        };
        Self {
            clock: Arc::clone(clock),
            connection,
            timeout,
            slots: Arc::new(Semaphore::new(MAX_CALLS)),
            changes,
        }
    }

    /// Asks the server for its tools.
    ///
    /// # Errors
    /// Fails if the server cannot be reached, refuses the request, answers wrongly, or takes too
    /// long. The error is the reason, and contains no URL and no value of a header.
    pub(crate) async fn list(&self, headers: &HeaderMap) -> Result<ToolListing, String> {
        match &self.connection {
            Connection::Http(http) => http.list(headers, Instant::now() + LIST_TIMEOUT).await,
            Connection::Stdio(stdio) => stdio.list().await,
        }
    }

    /// Returns a redactor for the tokens with which the client signs in at an HTTP server.
    pub(super) fn token_redactor(&self) -> Redactor {
        match &self.connection {
            Connection::Http(http) => http.token_redactor(None),
            Connection::Stdio(_) => Redactor::default(),
        }
    }

    /// Performs one attempt within the timeout. If the server answers a request with
    /// `input_required`, but asks no question that a person must answer, the attempt sends a
    /// further request.
    pub(crate) async fn call(&self, call: McpCall<'_>) -> McpOutcome {
        let mut resume = call.resume.clone();
        let earlier = resume.as_ref();
        let mut declined = earlier.map_or_else(Vec::new, |resume| resume.declined.clone());
        let (mut until, mut pause) = (None, PAUSES.0);
        let began = Instant::now();
        for request_index in 0..MAX_REQUESTS {
            let within = until.map_or(self.timeout, |until: Instant| until - Instant::now());
            let answered = match &self.connection {
                Connection::Http(http) => {
                    http.call(&call, resume.as_ref(), within, request_index)
                        .await
                }
                Connection::Stdio(stdio) => {
                    stdio
                        .call(&call, resume.as_ref(), within, request_index)
                        .await
                }
            };
            let mut input = match answered {
                McpOutcome::Elicitation(input) => *input,
                // An earlier request of the attempt reached the server, so the outcome of the call
                // is unknown.
                McpOutcome::NotSent(why) if request_index > 0 => {
                    return McpOutcome::Unknown(why).noting(&declined);
                }
                McpOutcome::Succeeded(_)
                | McpOutcome::Failed(_)
                | McpOutcome::NotSent(_)
                | McpOutcome::Suspect(_)
                | McpOutcome::Unknown(_)
                | McpOutcome::NeedsTasks => return answered.noting(&declined),
            };
            declined = all_declined(declined, std::mem::take(&mut input.declined));
            input.declined.clone_from(&declined);
            if !input.questions.is_empty() {
                return McpOutcome::Elicitation(Box::new(input));
            }
            // The attempt's timeout begins when `call.permit` is decided: after the commit of the
            // call's start. The server does not cause the wait for this commit.
            let decided = call.permit.decided().await;
            let sent = decided.map_or(began, |decided| decided.max(began));
            let until = *until.get_or_insert(sent + self.timeout);
            if Instant::now() + pause >= until {
                break;
            }
            self.clock.sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
            resume = Some(next_resume(resume.unwrap_or_default(), input));
        }
        let why = "the server kept its state and gave no result in time";
        McpOutcome::Unknown(why.to_owned()).noting(&declined)
    }

    /// Sets the metric `mcp_server_up` to 0 for an HTTP server that did not list its tools. For a
    /// child process, `Stdio::session` sets the metric.
    pub(crate) fn observe_failure(&self, server: &str) {
        if matches!(self.connection, Connection::Http(_)) {
            tracing::info!(target: "holdpoint::metric", metric = "mcp_server_up", server, change = 0);
        }
    }

    /// Sets the metric `mcp_server_up` to 1, because the server has listed its tools.
    pub(crate) fn observe_success(server: &str) {
        tracing::info!(target: "holdpoint::metric", metric = "mcp_server_up", server, change = 1);
    }

    /// Returns a watch on a count that grows by 1 with each `list_changed` notification. The count
    /// also grows at the end of a child process, because the next child may have other tools.
    pub(crate) fn list_changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns the pending checks whether a child process still answers after a timeout; `None` for
    /// an HTTP server.
    pub(super) fn checks(&self) -> Option<&TaskTracker> {
        match &self.connection {
            Connection::Http(_) => None,
            Connection::Stdio(stdio) => Some(&stdio.checks),
        }
    }

    /// Ends the child process, or the HTTP sessions. The HTTP requests that end the sessions carry
    /// `headers`: the operator's headers, without credentials of users.
    pub(crate) async fn close(&self, headers: &HeaderMap) {
        match &self.connection {
            Connection::Http(http) => http.close(headers).await,
            Connection::Stdio(stdio) => stdio.close().await,
        }
    }
}

/// Runs work that ends with a child process or at a time limit.
#[expect(
    clippy::disallowed_methods,
    reason = "a shutdown ends the children and need not wait for the rest"
)]
pub(super) fn spawn_background(work: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(work);
}

/// Returns the data for the next request of an attempt. `input` is the server's request for input,
/// without questions to a person: the server asked no question, or every question was declined.
fn next_resume(earlier: Resume, input: Elicitation) -> Resume {
    Resume {
        round: earlier.round,
        request_state: input.state.and_then(ServerState::into_plain),
        responses: if input.responses.is_empty() {
            earlier.responses
        } else {
            input.responses
        },
        declined: input.declined,
    }
}
