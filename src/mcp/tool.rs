//! Performs the calls of tools of MCP servers. Invariant: before a call is sent, a comparison must
//! have found the tool's definition unchanged since the review, or a person must have seen the
//! change and approved the call. `ComparisonReason` says how recent the comparison must be.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context as _;
use async_trait::async_trait;
use futures_util::future::join_all;
use reqwest::header::HeaderMap;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

use super::client::{Client, McpCall, McpOutcome, ToolListing};
use super::comparison::{ComparisonReason, Comparisons};
use super::lock::{Lock, LockedServer};
use super::settings::{OnChange, Settings, Transport};
use super::wire::Revision;
use crate::net::Net;
use crate::secret::Redactor;
use crate::task::call_state::OUTCOME_UNKNOWN_TEXT;
use crate::task::elicitation::declined_note;
use crate::task::id::TaskId;
use crate::task::request::format_sha256;
use crate::task::tool_spec::ToolSpec;
use crate::tool::credential::Credentials;
use crate::tool::headers::Headers;
use crate::tool::{DefinitionChange, Invocation, StartReason, Tool, ToolAnswer, measure_attempt};
use crate::world::Clock;

/// The error text if the task of a call has no recorded comparison for the call's headers.
const NOT_COMPARED: &str = "its server's tools were not compared with the reviewed tools";

/// The MCP servers of a configuration, by name.
#[derive(Clone, Default)]
pub struct Servers(BTreeMap<String, Arc<ReviewedServer>>);

struct ReviewedServer {
    name: String,
    client: Client,
    headers: Headers,
    locked: LockedServer,
    comparisons: Comparisons,
    on_change: OnChange,
}

impl ReviewedServer {
    fn sends_user_credentials(&self) -> bool {
        self.headers.credential_names().next().is_some()
    }

    /// Returns the key under which [`Comparisons`] keeps the last comparison of `task`. If the
    /// headers contain credentials of the task's user, the key is the task. Otherwise all tasks
    /// send the same headers and share the key `None`.
    fn comparison_owner(&self, task: TaskId) -> Option<TaskId> {
        self.sends_user_credentials().then_some(task)
    }
}

impl Servers {
    /// Creates the servers of `settings`, which must have no mistakes. A server that is missing in
    /// `lock` is left out. The client connects to a server at its first use.
    #[must_use]
    pub fn new(
        settings: &BTreeMap<String, Settings>,
        lock: &Lock,
        net: &Net,
        redactor: &Arc<Redactor>,
        clock: &Arc<dyn Clock>,
        log_stderr: bool,
    ) -> Self {
        let servers = settings.iter().filter_map(|(name, settings)| {
            let locked = lock.servers.get(name)?.clone();
            let transport = settings.checked().0?;
            let headers = match &transport {
                Transport::Http { headers, .. } => headers.clone(),
                Transport::Stdio(_) => Headers::default(),
            };
            let hint = Revision::parse(&locked.protocol);
            let client = Client::new(
                name,
                transport,
                settings.timeout,
                hint,
                net,
                clock,
                (Arc::clone(redactor), log_stderr),
            );
            let server = ReviewedServer {
                name: name.clone(),
                client,
                headers,
                locked,
                comparisons: Comparisons::default(),
                on_change: settings.on_change,
            };
            Some((name.clone(), Arc::new(server)))
        });
        Self(servers.collect())
    }

    /// Returns the implementation of a tool. `spec` describes the tool in this configuration;
    /// `tool` is the tool's name at `server`. Returns `None` if the lock file does not have the
    /// server or the tool.
    #[must_use]
    pub fn tool(
        &self,
        spec: &ToolSpec,
        server: &str,
        tool: &str,
        redactor: &Arc<Redactor>,
    ) -> Option<Arc<dyn Tool>> {
        let server = self.0.get(server)?;
        let reviewed = server.locked.tools.get(tool)?;
        Some(Arc::new(McpTool {
            spec: spec.clone(),
            tool: tool.to_owned(),
            schema: reviewed.parameters(),
            server: Arc::clone(server),
            redactor: Arc::clone(redactor),
        }))
    }

    /// Ends the child processes of servers, and the sessions with servers over HTTP.
    pub async fn shut_down(&self) {
        let servers = self.0.values();
        join_all(servers.map(|server| server.client.close(server.headers.fixed()))).await;
    }
}

/// Lists the tools of a server for a review. Sends `headers`, and those headers of `settings` that
/// contain no reference to a user's credential. Returns also a redactor for the tokens with which
/// the client signed in at the server.
pub(crate) async fn list(
    name: &str,
    settings: &Settings,
    net: &Net,
    redactor: &Redactor,
    clock: &Arc<dyn Clock>,
    headers: &HeaderMap,
) -> anyhow::Result<(ToolListing, Redactor)> {
    let transport = settings.checked().0.context("its settings have mistakes")?;
    let mut all = match &transport {
        Transport::Http { headers, .. } => headers.fixed().clone(),
        Transport::Stdio(_) => HeaderMap::new(),
    };
    all.extend(headers.clone());
    let log = (Arc::new(redactor.clone()), false);
    let client = Client::new(name, transport, settings.timeout, None, net, clock, log);
    let listed = client.list(&all).await;
    client.close(&all).await;
    let listing = listed.map_err(|why| anyhow::anyhow!("{}", redactor.redact(&why)))?;
    Ok((listing, client.token_redactor()))
}

struct McpTool {
    spec: ToolSpec,
    /// The tool's name at its server, without the prefix that the configuration adds.
    tool: String,
    schema: Value,
    server: Arc<ReviewedServer>,
    redactor: Arc<Redactor>,
}

#[async_trait]
impl Tool for McpTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn connects_first(&self) -> bool {
        true
    }

    fn slots(&self) -> Option<Arc<Semaphore>> {
        Some(Arc::clone(&self.server.client.slots))
    }

    fn definition_change(&self, task: TaskId) -> Option<DefinitionChange> {
        let comparison = self
            .server
            .comparisons
            .last_used_by(self.server.comparison_owner(task))?;
        let difference = comparison.difference(&self.tool)?;
        let both = format!("{}{}", self.spec.definition, difference.digest);
        Some(DefinitionChange {
            definition: format_sha256(&Sha256::digest(both)),
            reason: format!(
                "The server changed this tool since it was locked. {}",
                difference.detail
            ),
            denied: self.server.on_change == OnChange::Deny,
        })
    }

    fn may_ask(&self) -> bool {
        self.server.locked.may_ask()
    }

    fn is_stale(&self, start: Option<StartReason>) -> bool {
        let server = &self.server;
        if server.sends_user_credentials() {
            // Each set of request headers has its own comparison, and these headers contain the
            // user's credentials. This function does not get the credentials, so it cannot find the
            // comparison. The result `true` makes the caller call `prepare`. `prepare` gets the
            // credentials, and compares only if the comparison is stale.
            return true;
        }
        let comparison = server.comparisons.last_used_by(None);
        comparison.is_none_or(|last| last.is_stale(self.comparison_reason(start), &server.client))
    }

    async fn prepare(
        &self,
        start: Option<StartReason>,
        task: TaskId,
        credentials: &Credentials,
    ) -> Result<(), String> {
        let server = &self.server;
        let headers = server.headers.fill(credentials)?;
        let owner = server.comparison_owner(task);
        let comparison = server.comparisons.for_headers(owner, &headers);
        let (client, locked) = (&server.client, &server.locked);
        let reason = self.comparison_reason(start);
        let compared = comparison.compare(reason, &server.name, client, locked, &headers);
        let compared = compared.await;
        // During the comparison, `comparisons` may have dropped the record of this task to make
        // room for other tasks. Without a record, `definition_change` would find no change. A
        // record that a newer comparison of the task has made is kept.
        if server.comparisons.last_used_by(owner).is_none() {
            server.comparisons.for_headers(owner, &headers);
        }
        let redactor = self.redactor.merged_with(&credentials.redactor());
        compared.map_err(|why| redactor.redact(&why).into_owned())
    }

    async fn call(&self, call: &Invocation) -> ToolAnswer {
        // The future is boxed because it is large.
        let attempt = Box::pin(self.attempt(call));
        measure_attempt(&self.spec.name, &call.permit, attempt).await
    }
}

impl McpTool {
    /// Returns the reason for a comparison of the tool with its reviewed definition, which decides
    /// how recent the comparison must be. A call that starts because of a person's decision needs a
    /// new comparison ([`ComparisonReason::StartNow`]). A call that must not be repeated also needs
    /// a new comparison before it starts.
    fn comparison_reason(&self, start: Option<StartReason>) -> ComparisonReason {
        match start {
            None => ComparisonReason::Judge,
            Some(StartReason::Allowed) if self.spec.effect.is_repeatable() => {
                ComparisonReason::Start
            }
            Some(StartReason::Allowed | StartReason::Approved) => ComparisonReason::StartNow,
        }
    }

    async fn attempt(&self, call: &Invocation) -> ToolAnswer {
        let redactor = call.redactor(&self.redactor);
        let answered = match self.fill_compared_headers(call) {
            Ok(headers) => {
                let call = self.client_call(call, headers, &redactor);
                self.server.client.call(call).await
            }
            Err(why) => McpOutcome::NotSent(why),
        };
        let unsettled = match answered.settled() {
            Ok(answer) => return answer,
            Err(outcome) => outcome,
        };
        match unsettled {
            McpOutcome::NotSent(why) if call.resume.is_some() => {
                let declined = call
                    .resume
                    .as_ref()
                    .map(|resume| declined_note(&resume.declined));
                let content = format!(
                    "The tool `{}` asked the user a question; its answer was not sent: {}. {OUTCOME_UNKNOWN_TEXT}{}",
                    self.spec.name,
                    redactor.redact(&why),
                    declined.unwrap_or_default()
                );
                ToolAnswer::NotSent { content }
            }
            McpOutcome::NotSent(why) => self.not_sent(&redactor.redact(&why)),
            McpOutcome::Unknown(why) => self.unknown(&redactor.redact(&why)),
            McpOutcome::NeedsTasks if self.spec.effect.is_repeatable() => {
                ToolAnswer::failed("The tool needs tasks, which are not supported.".to_owned())
            }
            McpOutcome::NeedsTasks => {
                self.unknown("the server made a task of it, which is not supported here")
            }
            McpOutcome::Elicitation(mut asked) => {
                asked.server.clone_from(&self.server.name);
                asked.tool.clone_from(&self.tool);
                ToolAnswer::Elicitation(asked)
            }
            // This arm is never reached: `settled` has turned these three outcomes into answers,
            // which are returned above.
            McpOutcome::Succeeded(text) | McpOutcome::Failed(text) | McpOutcome::Suspect(text) => {
                ToolAnswer::failed(text)
            }
        }
    }

    /// Fills in the headers of a call, and checks that the call's task has compared the tools with
    /// these headers.
    ///
    /// # Errors
    /// Fails if a credential is missing. Also fails if no successful comparison with these headers
    /// is recorded for the task: the driver may then have missed a change of the tool. The error is
    /// the reason.
    fn fill_compared_headers(&self, call: &Invocation) -> Result<HeaderMap, String> {
        let server = &self.server;
        let headers = server.headers.fill(&call.credentials)?;
        let owner = server.comparison_owner(call.task_id);
        if server.comparisons.is_compared(owner, &headers) {
            Ok(headers)
        } else {
            Err(NOT_COMPARED.to_owned())
        }
    }

    fn client_call<'c>(
        &'c self,
        call: &'c Invocation,
        headers: HeaderMap,
        redactor: &'c Redactor,
    ) -> McpCall<'c> {
        McpCall {
            tool: &self.tool,
            arguments: &call.arguments_text,
            schema: &self.schema,
            id: call.call_id,
            traceparent: &call.traceparent,
            headers,
            permit: &call.permit,
            redactor,
            resume: call.resume.clone(),
            late: &call.late,
            raw: &call.raw,
        }
    }

    fn unknown(&self, why: &str) -> ToolAnswer {
        ToolAnswer::Unknown {
            problem: format!(
                "The tool `{}` was called, and its outcome is not known: {why}.",
                self.spec.name
            ),
        }
    }

    fn not_sent(&self, why: &str) -> ToolAnswer {
        let name = &self.spec.name;
        ToolAnswer::NotSent {
            content: format!("The tool `{name}` failed before it was called: {why}."),
        }
    }
}

#[cfg(test)]
mod tests;
