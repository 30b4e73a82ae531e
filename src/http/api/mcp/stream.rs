//! The event stream that answers a `tools/call` whose answer does not come at once. The stream
//! contains comments that keep the connection open, progress notifications if the client asked for
//! them, and the answer.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{Stream, stream};
use http::{HeaderName, HeaderValue};
use serde_json::{Value, json};

use crate::engine::gate::{AskProgress, AwaitedRequest, ResultDelivery, UNDER_WAY};
use crate::http::events::sse::write_event;
use crate::task::request::RequestKind;
use crate::task::verdict::Approvers;
use crate::world::Clock;

const COMMENT_INTERVAL: Duration = Duration::from_secs(15);

#[derive(Default)]
pub(super) struct RpcReply {
    /// The headers of a response in JSON, besides `Content-Type`. An event stream is sent without
    /// these headers.
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    /// The JSON-RPC message; empty if the client has canceled the request. MCP says that the
    /// receiver of a cancellation should send no response.
    pub(super) text: String,
    /// The handle that records that the client has received the result of a settled call; `None` if
    /// the message has no such result.
    pub(super) delivery: Option<ResultDelivery>,
}

/// A call whose answer is sent as an event stream.
pub(super) struct CallStream {
    reply: BoxFuture<'static, RpcReply>,
    clock: Arc<dyn Clock>,
    /// The client's progress token, and the cell into which the gate writes the intervention
    /// request that the call waits for. `None` if the client did not ask for progress.
    progress: Option<(Value, AskProgress)>,
    frames_sent: u64,
}

impl CallStream {
    pub(super) fn new(
        reply: BoxFuture<'static, RpcReply>,
        clock: Arc<dyn Clock>,
        progress: Option<(Value, AskProgress)>,
    ) -> Self {
        Self {
            reply,
            clock,
            progress,
            frames_sent: 0,
        }
    }

    /// Returns the frames of the stream. Dropping the stream ends the wait for the answer.
    pub(super) fn frames(self) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
        stream::unfold(Some(self), async |stream| {
            let (text, rest) = stream?.next().await;
            Some((Ok(Bytes::from(text)), rest))
        })
    }

    async fn next(mut self) -> (String, Option<Self>) {
        if self.frames_sent > 0 {
            tokio::select! {
                biased;
                reply = &mut self.reply => {
                    if let Some(delivery) = reply.delivery {
                        delivery.delivered();
                    }
                    return (last_frame(&reply.text), None);
                }
                () = self.clock.sleep(COMMENT_INTERVAL) => {}
            }
        }
        self.frames_sent += 1;
        let mut text = ":\n\n".to_owned();
        if let Some((token, progress)) = &self.progress {
            let request = progress.request();
            let message = notification(token, self.frames_sent, request.as_ref());
            write_event(&mut text, "message", &message);
        }
        (text, Some(self))
    }
}

/// Returns the last frame of a stream: the message, or a comment if the message is empty.
pub(super) fn last_frame(message: &str) -> String {
    if message.is_empty() {
        return ":\n\n".to_owned();
    }
    let mut text = String::new();
    write_event(&mut text, "message", message);
    text
}

/// Writes a progress notification. `number` counts the notifications; it does not measure progress.
fn notification(token: &Value, number: u64, request: Option<&AwaitedRequest>) -> String {
    let message = match request {
        None => UNDER_WAY.to_owned(),
        Some(request) => waiting_text(request.kind, &request.approvers),
    };
    let params = json!({"progressToken": token, "progress": number, "message": message});
    json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}).to_string()
}

/// Returns a text that names the people for whom a call waits and the action that is asked of them:
/// to approve, if the request is an approval, or else to answer a question. The text for a question
/// does not say `approve`, because the call may already have run.
fn waiting_text(kind: RequestKind, approvers: &Approvers) -> String {
    let names = approvers.groups.iter().chain(&approvers.users);
    let names: Vec<&str> = names.map(String::as_str).collect();
    let names = if names.is_empty() {
        "a person".to_owned()
    } else {
        names.join(" or ")
    };
    let action = if kind.properties().decides_calls {
        "approve"
    } else {
        "answer a question"
    };
    format!("Waiting for {names} to {action}.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_waits_for_an_approval_only_if_its_request_asks_for_an_approval() {
        let anybody = Approvers::default();
        let finance = Approvers {
            groups: vec!["finance".to_owned()],
            ..Approvers::default()
        };
        for (kind, approvers, text) in [
            (RequestKind::Approval, &finance, "finance to approve"),
            (RequestKind::Approval, &anybody, "a person to approve"),
            (
                RequestKind::Reconcile,
                &finance,
                "finance to answer a question",
            ),
            (
                RequestKind::Elicitation,
                &anybody,
                "a person to answer a question",
            ),
            (
                RequestKind::Credentials,
                &anybody,
                "a person to answer a question",
            ),
        ] {
            assert_eq!(
                waiting_text(kind, approvers),
                format!("Waiting for {text}.")
            );
        }
    }
}
