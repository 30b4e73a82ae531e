//! stub
use super::settings::Transport;
use super::wire::Revision;
use crate::net::Net;
use crate::secret::Redactor;
use crate::task::id::CallId;
use crate::tool::SendPermit;
use reqwest::header::HeaderMap;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
#[derive(Debug)]
pub(crate) struct Client;
impl Client {
    pub(crate) fn new(
        _n: &str,
        _t: Transport,
        _timeout: Duration,
        _hint: Option<Revision>,
        _net: &Net,
        _r: &Arc<Redactor>,
        _l: bool,
    ) -> Self {
        Self
    }
    pub(crate) async fn list(&self, _h: &HeaderMap) -> Result<Listing, crate::net::Failure> {
        todo!()
    }
    pub(crate) async fn call(&self, _c: Call<'_>) -> Outcome {
        todo!()
    }
    pub(crate) fn list_changes(&self) -> watch::Receiver<u64> {
        todo!()
    }
    pub(crate) async fn close(&self) {}
}
pub(crate) struct Listing {
    pub revision: Revision,
    pub server: Value,
    pub tools: Vec<Value>,
    pub ttl: Option<Duration>,
}
pub(crate) struct Call<'c> {
    pub tool: &'c str,
    pub arguments: &'c str,
    pub schema: &'c Value,
    pub id: CallId,
    pub traceparent: &'c str,
    pub headers: HeaderMap,
    pub permit: &'c SendPermit,
    pub redactor: &'c Redactor,
    pub resume: Option<Resume>,
}
pub(crate) struct Resume {
    pub request_state: Option<String>,
    pub responses: Map<String, Value>,
}
pub(crate) enum Outcome {
    Succeeded(String),
    Failed(String),
    Suspect(String),
    Unknown(String),
    Asks(Asks),
}
pub(crate) struct Asks {
    pub requests: Vec<(String, Elicitation)>,
    pub request_state: Option<String>,
}
pub(crate) enum Elicitation {
    Form { message: String, schema: Value },
    Url { message: String, url: String },
}
