//! Binds the listeners, and serves them from before the database is open until the shutdown.
//! Divides the file descriptors among connections, database and tools.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::SHUTDOWN_REMAINDER;
use crate::agent::Agents;
use crate::config::Config;
use crate::http::edge::Edge;
use crate::http::edge::starting;
use crate::http::grpc;
use crate::http::server::connections::Connections;
use crate::http::server::descriptors::{self, DescriptorBudget};
use crate::http::server::serve::{PingTimes, Server};
use crate::http::server::settings::address;
use crate::world::{Clock, SystemClock};

const MAX_METRICS_CONNECTIONS: u32 = 16;

/// The bound listeners. If the configuration sets port 0 for an address, `address` and
/// `metrics_address` have the port that the system chose.
pub(super) struct Listeners {
    pub address: SocketAddr,
    /// `None` if the configuration sets no separate address for the metrics.
    pub metrics_address: Option<SocketAddr>,
    main: TcpListener,
    metrics: Option<TcpListener>,
}

impl Listeners {
    /// Binds the addresses of the configuration.
    ///
    /// # Errors
    /// Fails if an address cannot be bound.
    pub(super) async fn bind(config: &Config) -> anyhow::Result<Self> {
        let (main, address) = bind(&config.server.listen).await?;
        let metrics = match &config.server.metrics_listen {
            Some(address) => Some(bind(address).await?),
            None => None,
        };
        let (metrics, metrics_address) = metrics.unzip();
        Ok(Self {
            address,
            metrics_address,
            main,
            metrics,
        })
    }
}

/// Binds an address of the configuration. `localhost` always means 127.0.0.1, as it does for
/// `holdpoint health` and for the links that the service sends. This function does not ask the
/// system to resolve `localhost`, because the result may be `::1`.
async fn bind(text: &str) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let address = address(text).with_context(|| format!("`{text}` is not an address"))?;
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {text}"))?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// The servers of a replica that starts. From [`Serving::begin`] to [`Serving::open`], they answer
/// that the service is not ready. Before [`Serving::begin`], connections wait in the backlog of the
/// listeners. Dropping the value ends the servers.
pub(super) struct Serving {
    main: watch::Sender<Router>,
    metrics: watch::Sender<Router>,
    waiting: Vec<(TcpListener, Server)>,
    servers: Option<JoinHandle<()>>,
    closed: DropGuard,
}

impl Serving {
    /// Prepares servers for at most `max_connections` connections. If a gate in `agents` can be
    /// reached over gRPC, the main server also accepts HTTP/2, which gRPC needs.
    pub(super) fn new(
        listeners: Listeners,
        max_connections: u32,
        agents: &Agents,
        edge: &Arc<Edge>,
        clock: &Arc<dyn Clock>,
    ) -> Self {
        let server = |router: &watch::Sender<Router>, max_connections: u32, http2| Server {
            router: router.subscribe(),
            connections: Connections::new(max_connections as usize),
            clock: Arc::clone(clock),
            http2,
        };
        let (main, metrics) = starting::routers(edge);
        let (main, metrics) = (watch::Sender::new(main), watch::Sender::new(metrics));
        let http2 = grpc::is_open(agents).then(PingTimes::default);
        let mut waiting = vec![(listeners.main, server(&main, max_connections, http2))];
        if let Some(listener) = listeners.metrics {
            waiting.push((listener, server(&metrics, MAX_METRICS_CONNECTIONS, None)));
        }
        Self {
            main,
            metrics,
            waiting,
            servers: None,
            closed: CancellationToken::new().drop_guard(),
        }
    }

    /// Starts the servers, which answer "not ready".
    pub(super) fn begin(&mut self) {
        self.servers = Some(self.spawn());
    }

    fn spawn(&mut self) -> JoinHandle<()> {
        let waiting = std::mem::take(&mut self.waiting);
        spawn_servers(waiting, self.closed.token().clone())
    }

    /// Replaces the routers that answer "not ready" by `main` and `metrics`. Open connections use
    /// the new routers from their next request on. Starts the servers if [`Serving::begin`] has not
    /// started them. Returns the Tokio task of the servers, and a token whose cancellation ends the
    /// servers.
    pub(super) fn open(
        mut self,
        (main, metrics): (Router, Router),
    ) -> (JoinHandle<()>, CancellationToken) {
        drop(self.main.send_replace(main));
        drop(self.metrics.send_replace(metrics));
        let servers = self.servers.take().unwrap_or_else(|| self.spawn());
        (servers, self.closed.disarm())
    }
}

/// Divides the process's file descriptors among connections, database and tools. Logs the result.
///
/// # Errors
/// Fails if the process has too few descriptors.
pub(super) fn share(config: &Config) -> anyhow::Result<DescriptorBudget> {
    let (server, database) = (&config.server, config.database.max_connections);
    let share = DescriptorBudget::new(
        descriptors::soft_limit(),
        server.max_connections,
        database,
        server.max_running,
        config.tools.values().any(|tool| tool.shell.is_some()),
    )?;
    let DescriptorBudget {
        limit,
        reserve,
        connections,
    } = share;
    tracing::info!(
        descriptors = limit,
        reserve,
        connections,
        "file descriptors are reserved"
    );
    if connections < server.max_connections {
        tracing::warn!(
            connections,
            wanted = server.max_connections,
            "the limit of descriptors allows fewer connections"
        );
    }
    Ok(share)
}

/// Serves until `closed` is cancelled. Then gives open connections half of [`SHUTDOWN_REMAINDER`]
/// to end.
#[expect(
    clippy::disallowed_methods,
    reason = "the root of the process's own tasks; `Replica::stop` waits for it"
)]
fn spawn_servers(servers: Vec<(TcpListener, Server)>, closed: CancellationToken) -> JoinHandle<()> {
    tokio::spawn(async move {
        let served = servers
            .into_iter()
            .map(|(listener, server)| server.serve(listener, closed.clone()));
        // `ended` limits the wait for open connections. Without this limit, a client that does not
        // read its response would keep the server from ending.
        let ended = async {
            closed.cancelled().await;
            SystemClock.sleep(SHUTDOWN_REMAINDER / 2).await;
        };
        tokio::select! {
            _ = futures_util::future::join_all(served) => {}
            () = ended => {}
        }
    })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[tokio::test]
    async fn localhost_is_bound_as_127_0_0_1() {
        let (_listener, bound) = bind("localhost:0").await.unwrap();
        assert_eq!(bound.ip(), Ipv4Addr::LOCALHOST);
        assert!(bind("nowhere").await.is_err());
    }
}
