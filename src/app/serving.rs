//! Binds the listeners, and serves them until the shutdown. Divides the file descriptors among
//! connections, database and tools.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::SHUTDOWN_REMAINDER;
use crate::agent::Agents;
use crate::config::Config;
use crate::http::grpc;
use crate::http::server::connections::Connections;
use crate::http::server::descriptors::{self, DescriptorBudget};
use crate::http::server::serve::Server;
use crate::world::{Clock, SystemClock};

const MAX_METRICS_CONNECTIONS: u32 = 16;

/// Listens on `address`. If `address` has port 0, the returned address has the port that the system
/// chose.
///
/// # Errors
/// Fails if the address cannot be bound.
pub(super) async fn bind(address: &str) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}"))?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Listens on the separate address of the metrics. Returns `None` if the configuration sets no such
/// address.
///
/// # Errors
/// Fails if the address cannot be bound.
pub(super) async fn bind_metrics(
    config: &Config,
) -> anyhow::Result<Option<(TcpListener, SocketAddr)>> {
    Ok(match &config.server.metrics_listen {
        Some(address) => Some(bind(address).await?),
        None => None,
    })
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

/// Builds a server with at most `max_connections` connections. If a gate in `agents` can be reached
/// over gRPC, the server also accepts HTTP/2, which gRPC needs.
pub(super) fn server(
    router: Router,
    max_connections: u32,
    agents: Option<&Agents>,
    clock: &Arc<dyn Clock>,
) -> Server {
    Server {
        router,
        connections: Connections::new(max_connections as usize),
        clock: Arc::clone(clock),
        http2: agents.is_some_and(grpc::is_open),
    }
}

pub(super) fn metrics_server(router: Router, clock: &Arc<dyn Clock>) -> Server {
    server(router, MAX_METRICS_CONNECTIONS, None, clock)
}

/// Serves until `closed` is cancelled. Then gives open connections half of [`SHUTDOWN_REMAINDER`]
/// to end.
#[expect(
    clippy::disallowed_methods,
    reason = "the root of the process's own tasks; `Replica::stop` waits for it"
)]
pub(super) fn spawn_servers(
    servers: Vec<(TcpListener, Server)>,
    closed: CancellationToken,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        let served = servers
            .into_iter()
            .map(|(listener, server)| server.serve(listener, closed.clone()));
        // Without this limit, a client that does not read its response would keep the server from
        // ending.
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
