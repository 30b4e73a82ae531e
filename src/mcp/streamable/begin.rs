//! Begins conversations: finds out which revision the server speaks, and initializes a session in
//! an older revision.

use reqwest::StatusCode;

use super::super::reader::HttpReply;
use super::super::refusal::refusal;
use super::super::wire::{
    Revision, RpcAnswer, RpcRequest, initialized, is_stateless, is_unsupported, server_info,
};
use super::conversations::{Context, Conversation};
use super::{REQUEST_TIMEOUT, Streamable};
use crate::net::NO_ANSWER_IN_TIME;

impl Streamable {
    /// Begins a conversation in the stateless revision (2026-07-28). If the server does not speak
    /// that revision, initializes a session in an older revision. If the server spoke an older
    /// revision at the review (`hint`), tries to initialize a session first.
    pub(super) async fn begin(&self, unbegun: &Context) -> Result<Conversation, String> {
        let older_first = self.hint.is_some_and(|hint| !hint.is_stateless());
        let discovered = if older_first {
            Ok(None)
        } else {
            self.discover(unbegun).await
        };
        let was_silent = match discovered {
            Ok(Some(conversation)) => return Ok(conversation),
            Ok(None) => false,
            Err(why) if why == NO_ANSWER_IN_TIME => true,
            Err(failure) => return Err(failure),
        };
        let begun = self.initialize(unbegun).await;
        if !was_silent && (begun.is_ok() || !older_first) {
            return begun;
        }
        // The server may speak the stateless revision: a silent server was perhaps still starting,
        // and a server that refuses the older revisions was perhaps updated after the review.
        let discovered = self.discover(unbegun).await;
        discovered.ok().flatten().map_or(begun, Ok)
    }

    /// Returns a conversation in the stateless revision (2026-07-28); `None` if the server does not
    /// speak that revision.
    ///
    /// # Errors
    /// Fails with [`NO_ANSWER_IN_TIME`] if the server is silent, which says nothing about its
    /// revision. Fails with another reason if the server cannot be reached or refuses the headers.
    pub(super) async fn discover(&self, unbegun: &Context) -> Result<Option<Conversation>, String> {
        let newest = unbegun.with(Conversation::new(Revision::July2026));
        let mut answer = self.probe(&newest).await?;
        if answer.as_ref().is_some_and(is_unsupported) {
            // A server may refuse the revision as unsupported, and yet list it as supported in the
            // same error. So the probe is repeated once with the same revision.
            answer = self.probe(&newest).await?;
        }
        let answer = answer.filter(is_stateless);
        Ok(answer.map(|answer| {
            *self.server.lock() = server_info(&answer);
            newest.conversation
        }))
    }

    /// Initializes a session with a server that speaks an older, stateful revision of MCP.
    async fn initialize(&self, unbegun: &Context) -> Result<Conversation, String> {
        let older = unbegun.with(Conversation::new(Revision::November2025));
        let request = RpcRequest::initialize("initialize");
        let reply = self.ask(&older, &request, REQUEST_TIMEOUT).await?;
        let refused = || refusal(reply.status, &older.headers);
        let is_authorized = reply.status != StatusCode::UNAUTHORIZED;
        let answer = reply.answer.filter(|_| is_authorized);
        let (revision, server) = initialized(answer.ok_or_else(refused)?)?;
        *self.server.lock() = server;
        let begun = older.with(Conversation {
            session: reply.session,
            ..Conversation::new(revision)
        });
        let done = RpcRequest::notification("notifications/initialized");
        self.ask(&begun, &done, REQUEST_TIMEOUT).await?;
        Ok(begun.conversation)
    }

    /// Returns the server's answer to `server/discover`; `None` if the response contains no
    /// JSON-RPC answer.
    async fn probe(&self, context: &Context) -> Result<Option<RpcAnswer>, String> {
        let request = RpcRequest::new("discover", "server/discover");
        let HttpReply { status, answer, .. } =
            self.ask(context, &request, self.probe_timeout).await?;
        if matches!(status.as_u16(), 401 | 403) {
            return Err(refusal(status, &context.headers));
        }
        Ok(answer)
    }
}
