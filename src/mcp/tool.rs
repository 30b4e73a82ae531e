//! Performs the calls of tools of MCP servers. Invariant: a call is sent only if the comparison
//! that the call needs has found the server's definition of the tool unchanged since the review, or
//! if a person approved the call after being told of the change.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context as _;
use async_trait::async_trait;
use futures_util::future::join_all;
use reqwest::header::HeaderMap;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

use super::client::{Call, Client, Listing, Outcome};
use super::comparison::{Comparisons, Need};
use super::lock::{Lock, LockedServer};
use super::settings::{OnChange, Settings, Transport};
use super::wire::Revision;
use crate::net::Net;
use crate::secret::Redactor;
use crate::task::call_state::UNKNOWN;
use crate::task::id::TaskId;
use crate::task::request::sha256;
use crate::task::tool_spec::ToolSpec;
use crate::tool::credential::Credentials;
use crate::tool::headers::Headers;
use crate::tool::{Change, Invocation, Start, Tool, ToolAnswer, metric};
use crate::world::Clock;

/// The MCP servers of a configuration, by name.
#[derive(Clone, Default)]
pub struct Servers(BTreeMap<String, Arc<Server>>);

struct Server {
    name: String,
    client: Client,
    headers: Headers,
    locked: LockedServer,
    comparisons: Comparisons,
    on_change: OnChange,
}

impl Server {
    /// Whether the headers hold credentials of a task's user.
    fn is_personal(&self) -> bool {
        self.headers.needs().next().is_some()
    }

    /// Returns the task if the headers hold credentials of its user. Returns `None` if all tasks
    /// send the same headers.
    fn viewer(&self, task: TaskId) -> Option<TaskId> {
        self.is_personal().then_some(task)
    }
}

impl Servers {
    /// Creates the servers of `settings`, which must have no mistakes. A server that `lock` does
    /// not have is left out. Each server is connected at its first use.
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
                Transport::Stdio { .. } => Headers::default(),
            };
            let hint = Revision::named(&locked.protocol);
            let client = Client::new(
                name,
                transport,
                settings.timeout,
                hint,
                net,
                clock,
                log_stderr.then(|| Arc::clone(redactor)),
            );
            let server = Server {
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
    /// `tool` is its name at `server`. Returns `None` if the lock file does not have the tool.
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

    /// Ends the child processes, and the sessions with servers over HTTP.
    pub async fn shut_down(&self) {
        let servers = self.0.values();
        join_all(servers.map(|server| server.client.close(server.headers.fixed()))).await;
    }
}

/// Lists the tools of a server for a review. Sends `headers`, and the headers of `settings` that
/// refer to no user's credentials.
pub(crate) async fn list(
    name: &str,
    settings: &Settings,
    net: &Net,
    redactor: &Redactor,
    clock: &Arc<dyn Clock>,
    headers: &HeaderMap,
) -> anyhow::Result<Listing> {
    let transport = settings.checked().0.context("its settings have mistakes")?;
    let mut all = match &transport {
        Transport::Http { headers, .. } => headers.fixed().clone(),
        Transport::Stdio { .. } => HeaderMap::new(),
    };
    all.extend(headers.clone());
    let client = Client::new(name, transport, settings.timeout, None, net, clock, None);
    let listed = client.list(&all).await;
    client.close(&all).await;
    listed.map_err(|failure| anyhow::anyhow!("{}", redactor.clean(&failure.to_string())))
}

struct McpTool {
    spec: ToolSpec,
    /// The name of the tool at its server.
    tool: String,
    schema: Value,
    server: Arc<Server>,
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
        self.server.client.slots()
    }

    fn change(&self, task: TaskId) -> Option<Change> {
        let comparison = self.server.comparisons.of(self.server.viewer(task))?;
        let difference = comparison.difference(&self.tool)?;
        let both = format!("{}{}", self.spec.definition, difference.digest);
        Some(Change {
            definition: sha256(&Sha256::digest(both)),
            reason: format!(
                "The server changed this tool since it was locked. {}",
                difference.detail
            ),
            denied: self.server.on_change == OnChange::Deny,
        })
    }

    fn is_stale(&self, start: Option<Start>) -> bool {
        let server = &self.server;
        if server.is_personal() {
            // The comparison depends on the headers, which only `prepare` knows: they hold the
            // task's credentials.
            return true;
        }
        let comparison = server.comparisons.of(None);
        comparison.is_none_or(|last| last.is_stale(self.need(start), &server.client))
    }

    async fn prepare(
        &self,
        start: Option<Start>,
        task: TaskId,
        credentials: &Credentials,
    ) -> Result<(), String> {
        let server = &self.server;
        let headers = server.headers.filled(credentials)?;
        let comparison = server.comparisons.with(server.viewer(task), &headers);
        let (client, locked) = (&server.client, &server.locked);
        let compared = comparison.compare(self.need(start), &server.name, client, locked, &headers);
        let redactor = self.redactor.and(&credentials.redactor());
        compared
            .await
            .map_err(|why| redactor.clean(&why).into_owned())
    }

    async fn call(&self, call: &Invocation) -> ToolAnswer {
        // The future of an exchange is large.
        let attempt = Box::pin(self.attempt(call));
        metric(&self.spec.name, &call.permit, attempt).await
    }
}

impl McpTool {
    /// Returns the need for a comparison. A call that a person approved, or that must not be
    /// repeated, needs a comparison of its own at its start.
    fn need(&self, start: Option<Start>) -> Need {
        match start {
            None => Need::Judge,
            Some(Start::Allowed) if self.spec.effect.repeatable() => Need::Start,
            Some(Start::Allowed | Start::Approved) => Need::StartNow,
        }
    }

    async fn attempt(&self, call: &Invocation) -> ToolAnswer {
        let headers = match self.server.headers.filled(&call.credentials) {
            Ok(headers) => headers,
            Err(why) => return self.not_sent(&why),
        };
        let redactor = call.redactor(&self.redactor);
        let client = &self.server.client;
        let answered = client.call(self.call_of(call, headers, &redactor));
        let unsettled = match answered.await.settled() {
            Ok(answer) => return answer,
            Err(outcome) => outcome,
        };
        match unsettled {
            Outcome::NotSent(why) if call.resume.is_some() => failed(format!(
                "The tool `{}` asked the user a question; its answer was not sent: {}. {UNKNOWN}",
                self.spec.name,
                redactor.clean(&why)
            )),
            Outcome::NotSent(why) => self.not_sent(&redactor.clean(&why)),
            Outcome::Unknown(why) => ToolAnswer::Unknown {
                problem: format!(
                    "The tool `{}` was called, and its outcome is not known: {}.",
                    self.spec.name,
                    redactor.clean(&why)
                ),
            },
            Outcome::Asks(mut asked) => {
                asked.server.clone_from(&self.server.name);
                asked.tool.clone_from(&self.tool);
                ToolAnswer::Asks(asked)
            }
            // `Client::call` never returns `Leg`; `settled` has turned the other three into
            // answers.
            Outcome::Leg(_) | Outcome::Succeeded(_) | Outcome::Failed(_) | Outcome::Suspect(_) => {
                failed("The tool asks for input.".to_owned())
            }
        }
    }

    fn call_of<'c>(
        &'c self,
        call: &'c Invocation,
        headers: HeaderMap,
        redactor: &'c Redactor,
    ) -> Call<'c> {
        Call {
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

    fn not_sent(&self, why: &str) -> ToolAnswer {
        failed(format!(
            "The tool `{}` failed before it was called: {why}.",
            self.spec.name
        ))
    }
}

fn failed(content: String) -> ToolAnswer {
    ToolAnswer::Failed {
        content,
        http_status: None,
    }
}

#[cfg(test)]
mod tests;
