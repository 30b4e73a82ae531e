//! The client of a server over Streamable HTTP. Invariant: each `tools/call` has a connection of
//! its own, whose first byte waits for the permit. The call is sent again only if the answer proves
//! that the server did not execute it. No text of an outcome holds a URL, a header's value or a
//! known secret.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Request as HttpRequest, StatusCode};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use url::Url;

use super::client::{Call, Failure, Listing, Outcome};
use super::content::outcome;
use super::listing::Pages;
use super::oauth::{Tokens, bearer, hiding};
use super::param_headers::{encoded, param_headers};
use super::reader::{REPLIES, Reader, Reply};
use super::refusal::{is_gateway, refusal, without_answer};
use super::settings::OAuth;
use super::wire::{
    Answer, Request, Revision, initialized, is_stateless, is_unsupported, reply, server_info,
};
use crate::net::{self, Leave, Net, Sink as _};
use crate::secret::Secret;
use crate::task::elicitation::Resume;
use crate::tool::arguments;
use crate::tool::headers::key;

/// How long a server may take to begin a conversation, or to list a page of its tools.
const WITHIN: Duration = Duration::from_secs(20);
/// How long to wait for the answer to `server/discover`. Older servers may ignore the request.
const PROBE: Duration = Duration::from_secs(5);
/// How long a server may take to receive the reply to a request of its own.
const REPLYING: Duration = Duration::from_secs(5);
/// How long the end of all sessions may take.
const ENDING: Duration = Duration::from_secs(2);
const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");

#[derive(Debug)]
pub(super) struct Streamable {
    url: Url,
    net: Net,
    tokens: Option<Tokens>,
    hint: Option<Revision>,
    /// [`PROBE`], which tests shorten.
    probing: Duration,
    /// The conversations by the digest of the headers with which they began, so that a conversation
    /// of one user is never continued for another.
    peers: Mutex<BTreeMap<[u8; 32], Peer>>,
    /// Held while a conversation begins, so that concurrent requests do not begin another.
    beginning: tokio::sync::Mutex<()>,
    changes: watch::Sender<u64>,
}

/// A conversation with the server. `session` is `None` if the server began no session; `server` is
/// the server's `serverInfo`.
#[derive(Clone, Debug)]
struct Peer {
    revision: Revision,
    session: Option<HeaderValue>,
    server: Value,
}

/// A conversation, the headers of its next request, and the token in these headers.
struct Talk {
    peer: Peer,
    headers: HeaderMap,
    token: Option<Secret<String>>,
}

impl Streamable {
    pub(super) fn new(
        url: Url,
        oauth: Option<Box<OAuth>>,
        hint: Option<Revision>,
        net: &Net,
        changes: watch::Sender<u64>,
    ) -> Self {
        Self {
            url,
            net: net.clone(),
            tokens: oauth.map(|oauth| Tokens::new(*oauth)),
            hint,
            probing: PROBE,
            peers: Mutex::default(),
            beginning: tokio::sync::Mutex::default(),
            changes,
        }
    }

    pub(super) async fn list(&self, headers: &HeaderMap) -> Result<Listing, Failure> {
        let mut renewed = false;
        loop {
            let talk = self.talk(headers).await?;
            let mut pages = Pages::default();
            let refused = loop {
                let id = pages.id();
                let mut request = Request::new(&id, "tools/list");
                request.params.extend(pages.cursor());
                let reply = self.ask(&talk, &request, WITHIN).await?;
                let lost = reply.status == StatusCode::BAD_REQUEST && talk.peer.session.is_some();
                let Some(answer) = reply.answer.filter(|_| !lost) else {
                    break reply.status;
                };
                if !pages.add(answer).map_err(Failure)? {
                    return Ok(pages.listing(talk.peer.revision, talk.peer.server));
                }
            };
            if renewed || !self.renew(headers, &talk, refused).await {
                return Err(Failure(refusal(refused, &talk.headers)));
            }
            renewed = true;
        }
    }

    /// Performs request number `leg` of an attempt at a call. Only request 0 checks the permit,
    /// right before its first byte.
    pub(super) async fn call(
        &self,
        call: &Call<'_>,
        resume: Option<&Resume>,
        within: Duration,
        leg: u32,
    ) -> Outcome {
        let mut renewed = false;
        let mut within = within;
        loop {
            let talk = match self.talk(&call.headers).await {
                Ok(talk) => talk,
                Err(failure) => return Outcome::NotSent(failure.0),
            };
            let began = Instant::now();
            let reply = match self.send(&talk, call, resume, within, leg).await {
                Ok(reply) => reply,
                Err(failure) => {
                    // A restarted server has lost its sessions and may answer without a 404, so the
                    // next request begins a new session.
                    self.forget(&call.headers, &talk);
                    return match failure {
                        net::Failure::NotSent(why) => Outcome::NotSent(why.to_owned()),
                        net::Failure::Lost(why) => Outcome::Unknown(why.to_owned()),
                    };
                }
            };
            let status = reply.status;
            // By the protocol, a 404 proves that nothing was executed; a 400 does not. An answer
            // with the id of our request proves that the server has read the request.
            let again = self.renew(&call.headers, &talk, status).await;
            let read = reply.is_named && !reply.answer.as_ref().is_some_and(Answer::is_refusal);
            if again && !renewed && !read && status != StatusCode::BAD_REQUEST {
                renewed = true;
                let decided = call.permit.decided().await;
                let began = decided.map_or(began, |decided| decided.max(began));
                within = within.saturating_sub(began.elapsed());
                continue;
            }
            let redactor = hiding(call.redactor, talk.token.as_ref());
            return match reply.answer {
                Some(answer @ Answer::Result(_)) if status.is_success() => {
                    call.keep(&answer, reply.raw.as_deref(), &redactor);
                    outcome(answer, &redactor)
                }
                Some(answer @ Answer::Error { .. }) if !is_gateway(status) => {
                    outcome(answer, &redactor)
                }
                Some(_) | None => without_answer(status, &talk.headers),
            };
        }
    }

    /// Ends the sessions. Sends only the operator's headers, because users' credentials are not
    /// kept.
    pub(super) async fn close(&self, operator: &HeaderMap) {
        let peers = std::mem::take(&mut *self.lock()).into_values();
        let sessions: Vec<_> = peers
            .filter_map(|peer| Some((peer.revision, peer.session?)))
            .collect();
        if sessions.is_empty() {
            return;
        }
        let end = async {
            let authorized = self.authorized(operator).await;
            let headers = authorized.map_or_else(|_| operator.clone(), |(headers, _)| headers);
            let ends = sessions.into_iter().map(|(revision, session)| {
                let request = self.net.repeatable().delete(self.url.clone());
                let request = request.headers(headers.clone()).header(SESSION, session);
                let request = request.header(VERSION, revision.as_str());
                net::begun(request, ENDING)
            });
            join_all(ends).await;
        };
        let _ = tokio::time::timeout(ENDING, end).await;
    }

    /// Returns the operator's headers. If OAuth client credentials are configured, the headers
    /// include a token, which is also returned by itself.
    async fn authorized(
        &self,
        operator: &HeaderMap,
    ) -> Result<(HeaderMap, Option<Secret<String>>), Failure> {
        let mut headers = operator.clone();
        let Some(tokens) = &self.tokens else {
            return Ok((headers, None));
        };
        let token = tokens.token(&self.net).await.map_err(Failure)?;
        let value = bearer(&token).ok_or_else(|| Failure("its token fits no header".to_owned()))?;
        headers.insert(AUTHORIZATION, value);
        Ok((headers, Some(token)))
    }

    /// Returns the conversation with the server, and the headers of its next request. Begins the
    /// conversation if there is none.
    async fn talk(&self, operator: &HeaderMap) -> Result<Talk, Failure> {
        let (headers, token) = self.authorized(operator).await?;
        let key = key(operator);
        let known = |this: &Self| this.lock().get(&key).cloned();
        let talk = |peer| Talk {
            peer,
            headers: headers.clone(),
            token: token.clone(),
        };
        if let Some(peer) = known(self) {
            return Ok(talk(peer));
        }
        let _beginning = self.beginning.lock().await;
        if let Some(peer) = known(self) {
            return Ok(talk(peer));
        }
        let peer = self.begin(talk).await?;
        self.lock().insert(key, peer.clone());
        Ok(talk(peer))
    }

    /// Finds out which revision the server speaks. If it is an older one, initializes a session.
    async fn begin(&self, talk: impl Fn(Peer) -> Talk) -> Result<Peer, Failure> {
        let older_first = self.hint.is_some_and(|hint| !hint.is_stateless());
        if !older_first && let Some(peer) = self.discover(&talk).await? {
            return Ok(peer);
        }
        match self.initialize(&talk).await {
            Err(failure) if older_first => self.discover(&talk).await?.ok_or(failure),
            begun => begun,
        }
    }

    /// Returns a conversation in the stateless revision; `None` if the server does not speak it.
    async fn discover(&self, talk: &impl Fn(Peer) -> Talk) -> Result<Option<Peer>, Failure> {
        let newest = talk(Peer::of(Revision::July2026));
        let mut answer = self.probe(&newest).await?;
        if answer.as_ref().is_some_and(is_unsupported) {
            // The error lists the server's revisions, which may include this revision all the same.
            answer = self.probe(&newest).await?;
        }
        let answer = answer.filter(is_stateless);
        Ok(answer.map(|answer| Peer {
            server: server_info(&answer),
            ..newest.peer
        }))
    }

    /// Initializes a session in one of the older revisions.
    async fn initialize(&self, talk: &impl Fn(Peer) -> Talk) -> Result<Peer, Failure> {
        let older = talk(Peer::of(Revision::November2025));
        let request = Request::initialize("initialize");
        let reply = self.ask(&older, &request, WITHIN).await?;
        let refused = || Failure(refusal(reply.status, &older.headers));
        let answer = reply.answer.ok_or_else(refused)?;
        let (revision, server) = initialized(answer).map_err(Failure)?;
        let begun = talk(Peer {
            revision,
            session: reply.session,
            server,
        });
        let done = Request::notification("notifications/initialized");
        self.ask(&begun, &done, WITHIN).await?;
        Ok(begun.peer)
    }

    /// Returns the server's answer to `server/discover`; `None` if no JSON-RPC answer comes in
    /// time.
    async fn probe(&self, talk: &Talk) -> Result<Option<Answer>, Failure> {
        match self
            .ask(
                talk,
                &Request::new("discover", "server/discover"),
                self.probing,
            )
            .await
        {
            Ok(Reply { status, .. }) if matches!(status.as_u16(), 401 | 403) => {
                Err(Failure(refusal(status, &talk.headers)))
            }
            Ok(reply) => Ok(reply.answer),
            Err(Failure(why)) if why == net::NO_ANSWER_IN_TIME => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Forgets the session or the token that the server refused with `status`. Returns whether
    /// there was a session or token to forget.
    async fn renew(&self, operator: &HeaderMap, talk: &Talk, status: StatusCode) -> bool {
        match (status, &self.tokens, &talk.token) {
            // Many servers answer 400 instead of 404 to an unknown session.
            (StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST, _, _)
                if talk.peer.session.is_some() =>
            {
                self.forget(operator, talk);
                true
            }
            (StatusCode::UNAUTHORIZED, Some(tokens), Some(token)) => {
                tokens.forget(token).await;
                true
            }
            _ => false,
        }
    }

    /// Forgets the session of `talk`, unless another session has replaced it.
    fn forget(&self, operator: &HeaderMap, talk: &Talk) {
        let mut peers = self.lock();
        let key = key(operator);
        let session = &talk.peer.session;
        if session.is_some() && peers.get(&key).is_some_and(|peer| peer.session == *session) {
            peers.remove(&key);
        }
    }

    /// Sends a request without effect, and waits at most `within` for the whole answer.
    async fn ask(
        &self,
        talk: &Talk,
        request: &Request<'_>,
        within: Duration,
    ) -> Result<Reply, Failure> {
        let asked = tokio::time::timeout(within, self.exchange(talk, request, within));
        let in_time = asked.await;
        in_time.unwrap_or_else(|_| Err(Failure(net::NO_ANSWER_IN_TIME.to_owned())))
    }

    /// Sends a request, and waits at most `within` for the beginning and for each part of the
    /// answer.
    async fn exchange(
        &self,
        talk: &Talk,
        request: &Request<'_>,
        within: Duration,
    ) -> Result<Reply, Failure> {
        let (asked, mut requests) = mpsc::channel(REPLIES);
        let mut reader = Reader::new(request.id.unwrap_or_default(), asked, self.changes.clone());
        let http = self.http(talk, request);
        let http = reqwest::RequestBuilder::from_parts(self.net.repeatable().clone(), http);
        let failed = |failure: net::Failure| Failure(failure.to_string());
        let mut response = net::begun(http, within).await.map_err(failed)?;
        reader.begin(response.status(), response.headers());
        while let Some(bytes) = net::next_bytes(&mut response, within)
            .await
            .map_err(failed)?
        {
            if !reader.take(&bytes) {
                break;
            }
            while let Ok((id, method)) = requests.try_recv() {
                self.respond(talk, &id, &method).await;
            }
        }
        Ok(reader.finish())
    }

    /// Sends `tools/call` on a connection of its own.
    async fn send(
        &self,
        talk: &Talk,
        call: &Call<'_>,
        resume: Option<&Resume>,
        within: Duration,
        leg: u32,
    ) -> Result<Reply, net::Failure> {
        let id = call.request_id(leg);
        let request = call.request(&id, resume);
        let mut http = self.http(talk, &request);
        let headers = http.headers_mut();
        let put = |headers: &mut HeaderMap, name: &'static str, value: &str| {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        };
        put(headers, "idempotency-key", &call.id.to_string());
        if talk.peer.revision.is_stateless() {
            put(headers, "mcp-name", &encoded(call.tool));
            let arguments = arguments::parse(call.arguments).unwrap_or_default();
            headers.extend(param_headers(call.schema, &arguments));
        }
        let (decided, permit) = (call.permit.clone(), call.permit.clone());
        let leave = Leave {
            decided: async move { decided.decided().await }.boxed(),
            holds: Box::new(move || leg > 0 || permit.holds()),
        };
        let (asked, mut requests) = mpsc::channel(REPLIES);
        let mut reader = Reader::new(&id, asked, self.changes.clone());
        let exchange = self.net.alone_into(http, within, leave, &mut reader);
        let responding = async {
            while let Some((id, method)) = requests.recv().await {
                self.respond(talk, &id, &method).await;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            exchanged = exchange => exchanged?,
            () = responding => {}
        }
        Ok(reader.finish())
    }

    /// Replies to a request that the server made while it answers a request of this client.
    async fn respond(&self, talk: &Talk, id: &Value, method: &str) {
        let http = self.post(talk, reply(id, method));
        let http = reqwest::RequestBuilder::from_parts(self.net.repeatable().clone(), http);
        let _ = net::begun(http, REPLYING).await;
    }

    fn http(&self, talk: &Talk, request: &Request<'_>) -> HttpRequest {
        let mut http = self.post(talk, request.text(talk.peer.revision));
        if talk.peer.revision.is_stateless()
            && let Ok(method) = HeaderValue::from_str(request.method)
        {
            http.headers_mut().insert("mcp-method", method);
        }
        http
    }

    fn post(&self, talk: &Talk, body: String) -> HttpRequest {
        let mut http = HttpRequest::new(Method::POST, self.url.clone());
        let headers = http.headers_mut();
        headers.extend(talk.headers.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let both = HeaderValue::from_static("application/json, text/event-stream");
        headers.insert(ACCEPT, both);
        let revision = HeaderValue::from_static(talk.peer.revision.as_str());
        headers.insert(VERSION, revision);
        if let Some(session) = &talk.peer.session {
            headers.insert(SESSION, session.clone());
        }
        *http.body_mut() = Some(body.into());
        http
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<[u8; 32], Peer>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peer {
    fn of(revision: Revision) -> Self {
        Self {
            revision,
            session: None,
            server: Value::Null,
        }
    }
}

#[cfg(test)]
mod tests;
