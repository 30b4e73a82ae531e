//! The section `server` of the configuration.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::task::units::duration_text;

/// The addresses and the capacity of the service.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Server")]
pub struct ServerSettings {
    /// The address and port to listen on.
    pub listen: String,
    /// The base of all links, such as `https://agents.acme.com`. It may have a path, which the
    /// proxy strips. Default: `http://<listen>`. Required when `listen` is not on loopback.
    pub public_url: Option<String>,
    /// The URL of your own page for a request, with `{request_id}` in it, such as
    /// `https://app.acme.com/approvals/{request_id}`. It replaces the built-in page in `url` of
    /// requests (in the API and in webhooks), and in the links of Slack, Teams and mails without
    /// `notify.links`. Default: the built-in page, `<public_url>/resume/{request_id}`.
    pub request_url: Option<String>,
    /// The origins of frontends other than the service's own, each `https://host[:port]` or
    /// `http://host[:port]`, without the default port of the scheme and without a path.
    pub cors_origins: Vec<String>,
    /// How long a POST waits for the task if the request does not say how long; at most `300s`.
    #[serde(with = "duration_text")]
    #[schemars(with = "duration_text::Text")]
    pub wait: Duration,
    /// The maximum number of tasks that run at once in this process. Further tasks wait in the
    /// database.
    pub max_running: u32,
    /// The maximum number of connections at once. When the process has too few file descriptors for
    /// this number, fewer connections are allowed, because the database and tools need descriptors,
    /// too.
    pub max_connections: u32,
    /// The address and port of a separate listener for `/metrics`. Default: `/metrics` is on
    /// `listen`.
    pub metrics_listen: Option<String>,
    /// The maximum number of event streams that are open at once in this process.
    pub max_streams: u32,
    /// The maximum number of event streams that one caller has open at once in this process. Also
    /// the maximum number of HTTP requests of one caller that wait at gates at once in this
    /// process.
    pub max_streams_per_caller: u32,
    /// The maximum number of HTTP requests that wait at gates in this process at the same time. A
    /// further request does not wait: while there is no verdict, the answer says that the call is
    /// pending.
    pub max_waiting: u32,
    /// How long an event stream stays open. The client then opens it again.
    #[serde(with = "duration_text")]
    #[schemars(with = "duration_text::Text")]
    pub stream_life: Duration,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8080".to_owned(),
            public_url: None,
            request_url: None,
            cors_origins: Vec::new(),
            wait: Duration::from_secs(10),
            max_running: 64,
            max_connections: 1024,
            metrics_listen: None,
            max_streams: 1000,
            max_streams_per_caller: 20,
            max_waiting: 1000,
            stream_life: Duration::from_hours(1),
        }
    }
}

impl ServerSettings {
    /// Returns the address to listen on; `None` if `listen` cannot be parsed.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        address(&self.listen)
    }
}

/// Parses an address and a port; the host `localhost` is `127.0.0.1`.
#[must_use]
pub(crate) fn address(text: &str) -> Option<SocketAddr> {
    if let Some(port) = text.strip_prefix("localhost:") {
        return port
            .parse()
            .ok()
            .map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    text.parse().ok()
}
