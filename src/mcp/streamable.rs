//! The client of a server that speaks Streamable HTTP. Invariants: each `tools/call` is sent on its
//! own connection, and its first byte is written only if the call's permit holds (`AttemptPermit`).
//! A `tools/call` is sent again only if its answer proves that the call was not executed. No
//! outcome contains a known secret. The client's own texts contain no URL and no header's value.

mod begin;
mod conversations;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Request as HttpRequest, StatusCode};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};
use url::Url;

use self::conversations::{Context, Conversation, Conversations, Renewal, end_sessions};
use super::client::{LIST_TIMED_OUT, McpCall, McpOutcome, ToolListing, spawn_background};
use super::content::outcome;
use super::listing::Pages;
use super::oauth::{Tokens, bearer};
use super::param_headers::{encode_header_value, param_headers};
use super::reader::{HttpReply, MAX_QUEUED_REQUESTS, ReplyReader};
use super::refusal::{is_gateway, refusal, status_outcome};
use super::settings::OAuth;
use super::wire::{Revision, RpcAnswer, RpcRequest, reply};
use crate::net::{self, Net, ResponseSink as _, SendPermit};
use crate::secret::{Redactor, Secret};
use crate::task::elicitation::Resume;
use crate::tool::arguments;
use crate::tool::headers::headers_digest;
use crate::world::Locked;

/// The maximum time for an answer that begins a conversation.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// The maximum time for the answer to `server/discover`, which older servers may never give.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum time for sending the reply to a server's own request.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum time for ending sessions.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
const SESSION_HEADER: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION_HEADER: HeaderName = HeaderName::from_static("mcp-protocol-version");

#[derive(Debug)]
pub(super) struct Streamable {
    url: Url,
    /// The operator's headers, without users' credentials. If too many conversations are kept, the
    /// client removes one of them, and sends these headers to end its session.
    fixed_headers: HeaderMap,
    net: Net,
    tokens: Option<Tokens>,
    hint: Option<Revision>,
    probe_timeout: Duration,
    conversations: Conversations,
    /// The server's `serverInfo`, as of the conversation that began last. Only the review of the
    /// server's tools (`review.rs`) uses it.
    server: Locked<Value>,
    changes: watch::Sender<u64>,
}

impl Streamable {
    pub(super) fn new(
        url: Url,
        fixed_headers: HeaderMap,
        oauth: Option<Box<OAuth>>,
        hint: Option<Revision>,
        net: &Net,
        changes: watch::Sender<u64>,
    ) -> Self {
        Self {
            url,
            fixed_headers,
            net: net.clone(),
            tokens: oauth.map(|oauth| Tokens::new(*oauth)),
            hint,
            probe_timeout: PROBE_TIMEOUT,
            conversations: Conversations::default(),
            server: Locked::default(),
            changes,
        }
    }

    /// Lists the server's tools. Gives up at the time `until`.
    pub(super) async fn list(
        &self,
        headers: &HeaderMap,
        until: Instant,
    ) -> Result<ToolListing, String> {
        let late = |_| LIST_TIMED_OUT.to_owned();
        let mut renewed = BTreeSet::new();
        loop {
            let context = timeout_at(until, self.context(headers)).await;
            let context = context.map_err(late)??;
            let mut pages = Pages::default();
            let refused = loop {
                let id = pages.id();
                let mut request = RpcRequest::new(&id, "tools/list");
                request.params.extend(pages.cursor());
                let reply = timeout_at(until, self.exchange(&context, &request)).await;
                // The server may have lost the session, as in `call`.
                let forget = |_: &String| self.forget(headers, &context);
                let reply = reply.map_err(late).flatten().inspect_err(forget)?;
                let refused = context.refused_part(reply.status);
                let Some(answer) = reply.answer.filter(|_| refused.is_none()) else {
                    break reply.status;
                };
                if !pages.add(answer).inspect_err(forget)? {
                    let server = self.server.lock().clone();
                    return Ok(pages.listing(context.conversation.revision, server));
                }
            };
            let renewal = self.renew(headers, &context, refused, until).await;
            if renewal.is_none_or(|renewal| !renewed.insert(renewal)) {
                // A server that refuses the headers or is busy still has the session.
                if refused.is_success() || refused.is_server_error() {
                    self.forget(headers, &context);
                }
                return Err(refusal(refused, &context.headers));
            }
        }
    }

    /// Sends the request number `request_index` (from 0) of an attempt at a call, and waits for the
    /// answer. If the server refuses the session or the token, and has certainly not run the call,
    /// renews it and sends the request again.
    ///
    /// Request 0 starts the call, so it is sent only if `call.permit` holds right before its first
    /// byte. Later requests continue a call that has started, and are sent without this check.
    ///
    /// `within` limits all of this, including the start of a conversation if none is kept. The wait
    /// for the decision about the permit does not count: the time that was left before the exchange
    /// starts again at the decision.
    pub(super) async fn call(
        &self,
        call: &McpCall<'_>,
        resume: Option<&Resume>,
        within: Duration,
        request_index: u32,
    ) -> McpOutcome {
        let (mut until, mut renewed) = (Instant::now() + within, BTreeSet::new());
        loop {
            let context = timeout_at(until, self.context(&call.headers)).await;
            let context = match context.unwrap_or_else(|_| Err(net::NO_ANSWER_IN_TIME.to_owned())) {
                Ok(context) => context,
                Err(why) => return McpOutcome::NotSent(why),
            };
            let remaining = until.saturating_duration_since(Instant::now());
            let sent = self.send(&context, call, resume, remaining, request_index);
            let reply = match sent.await {
                Ok(reply) => reply,
                Err(failure) => {
                    // A server that has lost the session may fail like this instead of answering
                    // 404. So the session is forgotten, and the next request begins a new session.
                    self.forget(&call.headers, &context);
                    return match failure {
                        net::NetFailure::NotSent(why) => McpOutcome::NotSent(why.to_owned()),
                        net::NetFailure::Lost(why) => McpOutcome::Unknown(why.to_owned()),
                    };
                }
            };
            let status = reply.status;
            // The call is sent again only if the server certainly did not execute it. A status 400
            // does not prove this. An answer with the request's id proves this only if the answer
            // is a refusal (`RpcAnswer::is_refusal`).
            let renewal = self.renew(&call.headers, &context, status, until).await;
            let was_read =
                reply.has_request_id && !reply.answer.as_ref().is_some_and(RpcAnswer::is_refusal);
            let is_unexecuted = !was_read && status != StatusCode::BAD_REQUEST;
            if is_unexecuted && renewal.is_some_and(|renewal| renewed.insert(renewal)) {
                if let Some(decided) = call.permit.decided().await {
                    until = until.max(decided + remaining);
                }
                continue;
            }
            let tokens = self.token_redactor(context.token.as_ref());
            let redactor = call.redactor.merged_with(&tokens);
            return match reply.answer {
                Some(answer @ RpcAnswer::Result(_)) if status.is_success() => {
                    call.store_raw_result(&answer, reply.raw.as_deref(), &redactor);
                    outcome(answer, &redactor)
                }
                Some(answer @ RpcAnswer::Error { .. }) if !is_gateway(status) => {
                    outcome(answer, &redactor)
                }
                Some(_) | None => status_outcome(status, reply.is_event_stream, &context.headers),
            };
        }
    }

    /// Returns a redactor for the server's tokens (see [`Tokens::redactor`]).
    pub(super) fn token_redactor(&self, used: Option<&Secret<String>>) -> Redactor {
        let tokens = self.tokens.as_ref();
        tokens.map_or_else(Redactor::default, |tokens| tokens.redactor(used))
    }

    /// Ends the sessions of all kept conversations. The requests that end them have the headers
    /// `operator`, because the headers with users' credentials are not kept.
    pub(super) async fn close(&self, operator: &HeaderMap) {
        let ended = self.conversations.take();
        let end = async {
            if let Some(end) = self.end(operator, ended).await {
                end.await;
            }
        };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, end).await;
    }

    /// Returns a future that ends the sessions of `ended`. The future's requests have the headers
    /// `operator` and, if OAuth is configured, a token. `None` if `ended` contains no session.
    async fn end(
        &self,
        operator: &HeaderMap,
        ended: Vec<Conversation>,
    ) -> Option<BoxFuture<'static, ()>> {
        if ended.iter().all(|it| it.session.is_none()) {
            return None;
        }
        let unbegun = self.unbegun(operator).await;
        let headers = unbegun.map_or_else(|_| operator.clone(), |unbegun| unbegun.headers);
        Some(end_sessions(self.net.clone(), self.url.clone(), headers, ended).boxed())
    }

    /// Returns a context in which no conversation has begun. Its headers are the operator's headers
    /// (`operator`) and, if OAuth is configured, a token. For a call, the caller has already filled
    /// the user's credentials into `operator`.
    async fn unbegun(&self, operator: &HeaderMap) -> Result<Context, String> {
        let (mut headers, mut token) = (operator.clone(), None);
        if let Some(tokens) = &self.tokens {
            let fetched = tokens.token(&self.net).await?;
            let value = bearer(&fetched).ok_or("its token fits no header")?;
            headers.insert(AUTHORIZATION, value);
            token = Some(fetched);
        }
        Ok(Context {
            conversation: Conversation::new(Revision::July2026),
            headers,
            token,
        })
    }

    /// Returns the kept conversation that began with the headers `operator`, and the headers of its
    /// next request. If no such conversation is kept, begins a conversation.
    async fn context(&self, operator: &HeaderMap) -> Result<Context, String> {
        let key = headers_digest(operator);
        let begin_lock = self.conversations.begin_lock(key);
        let _begin_lock = begin_lock.lock().await;
        if let Some(conversation) = self.conversations.get(&key) {
            return Ok(self.unbegun(operator).await?.with(conversation));
        }
        let begun = self.begin_with_valid_token(operator).await?;
        let conversation = begun.conversation.clone();
        if let Some(removed) = self.conversations.insert(key, conversation)
            && let Some(end) = self.end(&self.fixed_headers, vec![removed]).await
        {
            spawn_background(end);
        }
        Ok(begun)
    }

    /// Begins a conversation. If the server refuses the OAuth token, forgets the token and tries
    /// once more, because a server that restarts may lose the tokens that it has issued.
    async fn begin_with_valid_token(&self, operator: &HeaderMap) -> Result<Context, String> {
        let mut renewed = false;
        loop {
            let unbegun = self.unbegun(operator).await?;
            let failure = match self.begin(&unbegun).await {
                Ok(conversation) => return Ok(unbegun.with(conversation)),
                Err(failure) => failure,
            };
            let status = StatusCode::UNAUTHORIZED;
            if failure != refusal(status, &unbegun.headers) {
                return Err(failure);
            }
            let until = Instant::now() + REQUEST_TIMEOUT;
            let renewal = self.renew(operator, &unbegun, status, until).await;
            if renewed || renewal.is_none() {
                return Err(failure);
            }
            renewed = true;
        }
    }

    /// Finds out from `status` whether the server has refused the session or the token of
    /// `context`. Forgets the refused part, so that the next request does not use it. Returns the
    /// refused part; `None` if the server has refused neither, or if another token is still being
    /// fetched at the time `until`.
    async fn renew(
        &self,
        operator: &HeaderMap,
        context: &Context,
        status: StatusCode,
        until: Instant,
    ) -> Option<Renewal> {
        let refused = context.refused_part(status)?;
        match (refused, &self.tokens, &context.token) {
            (Renewal::Token, Some(tokens), Some(token)) => {
                timeout_at(until, tokens.forget(token)).await.ok()?;
            }
            (Renewal::Token, _, _) => {}
            (Renewal::Session, _, _) => self.forget(operator, context),
        }
        Some(refused)
    }

    /// Forgets the session of `context`. A session that has replaced this session is kept.
    fn forget(&self, operator: &HeaderMap, context: &Context) {
        if let Some(session) = &context.conversation.session {
            self.conversations
                .forget(&headers_digest(operator), session);
        }
    }

    /// Sends a request that calls no tool, and waits at most `within` for the whole answer.
    async fn ask(
        &self,
        context: &Context,
        request: &RpcRequest<'_>,
        within: Duration,
    ) -> Result<HttpReply, String> {
        let answered = tokio::time::timeout(within, self.exchange(context, request));
        let in_time = answered.await;
        in_time.unwrap_or_else(|_| Err(net::NO_ANSWER_IN_TIME.to_owned()))
    }

    /// Sends a request, and waits for the answer without a time limit.
    async fn exchange(
        &self,
        context: &Context,
        request: &RpcRequest<'_>,
    ) -> Result<HttpReply, String> {
        let (server_requests, mut requests) = mpsc::channel(MAX_QUEUED_REQUESTS);
        let mut reader = ReplyReader::new(
            request.id.unwrap_or_default(),
            server_requests,
            self.changes.clone(),
        );
        let http = self.http(context, request);
        let http = reqwest::RequestBuilder::from_parts(self.net.repeatable().clone(), http);
        let failed = |error: reqwest::Error| net::NetFailure::from_error(&error).to_string();
        let mut response = http.send().await.map_err(failed)?;
        reader.begin(response.status(), response.headers());
        while let Some(bytes) = response.chunk().await.map_err(failed)? {
            if !reader.take(&bytes) {
                break;
            }
            while let Ok((id, method)) = requests.try_recv() {
                self.respond(context, &id, &method).await;
            }
        }
        Ok(reader.finish())
    }

    async fn send(
        &self,
        context: &Context,
        call: &McpCall<'_>,
        resume: Option<&Resume>,
        within: Duration,
        request_index: u32,
    ) -> Result<HttpReply, net::NetFailure> {
        let id = call.request_id(request_index);
        let request = call.request(&id, resume);
        let mut http = self.http(context, &request);
        let headers = http.headers_mut();
        let put = |headers: &mut HeaderMap, name: &'static str, value: &str| {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        };
        put(headers, "idempotency-key", &call.id.to_string());
        if context.conversation.revision.is_stateless() {
            put(headers, "mcp-name", &encode_header_value(call.tool));
            let arguments = arguments::parse(call.arguments).unwrap_or_default();
            headers.extend(param_headers(call.schema, &arguments));
        }
        let (decided, permit) = (call.permit.clone(), call.permit.clone());
        let send_permit = SendPermit {
            decision: async move { decided.decided().await }.boxed(),
            may_send: Arc::new(move || request_index > 0 || permit.holds()),
        };
        let (server_requests, mut requests) = mpsc::channel(MAX_QUEUED_REQUESTS);
        let mut reader = ReplyReader::new(&id, server_requests, self.changes.clone());
        let exchange = self
            .net
            .send_single_into(http, within, send_permit, &mut reader);
        let responding = async {
            while let Some((id, method)) = requests.recv().await {
                self.respond(context, &id, &method).await;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            exchanged = exchange => exchanged?,
            () = responding => {}
        }
        Ok(reader.finish())
    }

    /// Replies to a request that the server made while it answered a request of this client.
    async fn respond(&self, context: &Context, id: &Value, method: &str) {
        let http = self.post(context, reply(id, method));
        let http = reqwest::RequestBuilder::from_parts(self.net.repeatable().clone(), http);
        let _ = net::send_request(http, REPLY_TIMEOUT).await;
    }

    fn http(&self, context: &Context, request: &RpcRequest<'_>) -> HttpRequest {
        let mut http = self.post(context, request.text(context.conversation.revision));
        if context.conversation.revision.is_stateless()
            && let Ok(method) = HeaderValue::from_str(request.method)
        {
            http.headers_mut().insert("mcp-method", method);
        }
        http
    }

    fn post(&self, context: &Context, body: String) -> HttpRequest {
        let mut http = HttpRequest::new(Method::POST, self.url.clone());
        let headers = http.headers_mut();
        headers.extend(context.headers.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let both = HeaderValue::from_static("application/json, text/event-stream");
        headers.insert(ACCEPT, both);
        let revision = HeaderValue::from_static(context.conversation.revision.as_str());
        headers.insert(VERSION_HEADER, revision);
        if let Some(session) = &context.conversation.session {
            headers.insert(SESSION_HEADER, session.clone());
        }
        *http.body_mut() = Some(body.into());
        http
    }
}

#[cfg(test)]
mod tests;
