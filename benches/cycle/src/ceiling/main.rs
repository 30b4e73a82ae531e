//! Bare servers that run the benchmark's cycle of a task without accounts, policy, validation or
//! recovery. Their rates are ceilings: upper bounds of the rate that a full service can reach on
//! the same machine.
//!
//! `ceiling --mode pg3|batch3|batch5|sqlite5|gate0|gate1|gate1once --database URL|FILE
//! [--listen 127.0.0.1:9001] [--model 127.0.0.1:9100] [--writers N]`
//!
//! | mode | changes of the store | model and tool |
//! |---|---|---|
//! | `pg3` | three; each change is its own commit | JSON; no tool call |
//! | `batch3` | three; concurrent changes share commits | JSON; no tool call |
//! | `batch5` | five, like the service; concurrent changes share commits | stream; tool over HTTP |
//! | `sqlite5` | as `batch5`, but on `SQLite` | as `batch5` |
//!
//! The modes `gate0`, `gate1` and `gate1once` are bare handlers for calls at a gate (`gate.rs`).
//!
//! A writer is a database connection that commits changes. By default, `batch5` and `gate1` have
//! one writer: on two processors, one writer with large batches is faster than several writers
//! whose flushes overlap.

mod client;
mod committer;
mod cycle_of_five;
mod cycle_of_three;
mod gate;
mod postgres;
mod sqlite;

use axum::Router;
use axum::serve::ListenerExt as _;
use tokio::net::TcpListener;

use client::Client;
use committer::LARGEST_BATCH;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

async fn router(mode: &str, writers: Option<usize>, database: &str, client: Client) -> Router {
    match mode {
        "pg3" => cycle_of_three::router(database, writers.unwrap_or(32), 1, client).await,
        "batch3" => {
            let writers = writers.unwrap_or(8);
            cycle_of_three::router(database, writers, LARGEST_BATCH, client).await
        }
        "batch5" => {
            let store = postgres::open(database, writers.unwrap_or(1)).await;
            cycle_of_five::router(store, client)
        }
        "sqlite5" => cycle_of_five::router(sqlite::open(database), client),
        "gate0" | "gate1" | "gate1once" => gate::router(mode, database, writers.unwrap_or(1)).await,
        _ => panic!("no mode {mode}"),
    }
}

fn main() {
    let option = |name: &str, default: &str| {
        let mut arguments = std::env::args().skip_while(|argument| argument != name);
        arguments.nth(1).unwrap_or_else(|| default.to_owned())
    };
    let serve = async {
        let client = Client::new(&option("--model", "127.0.0.1:9100"));
        let writers = option("--writers", "").parse().ok();
        let router = router(
            &option("--mode", ""),
            writers,
            &option("--database", ""),
            client,
        )
        .await;
        let listener = TcpListener::bind(option("--listen", "127.0.0.1:9001"))
            .await
            .expect("a free address")
            .tap_io(|stream| stream.set_nodelay(true).expect("a TCP connection"));
        axum::serve(listener, router).await.expect("no end");
    };
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(serve);
}
