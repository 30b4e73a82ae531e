//! Shared by the tests: the whole service in a process, its databases, and its fake endpoints.

pub mod app;
pub mod clock;
pub mod database;
pub mod document;
pub mod events;
pub mod forwarder;
pub mod messages;
pub mod model;
pub mod postgres;
pub mod raw;
pub mod stream;
pub mod tool;

use std::net::SocketAddr;

/// Serves a router on a free port of loopback until the test ends.
pub async fn serve(router: axum::Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    #[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}
