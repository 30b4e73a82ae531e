//! Tests that the service connects to a tool while the start of the call is being committed, and
//! sends nothing before the commit. The tests need Postgres, where another transaction can delay
//! the commit.

use std::time::Duration;

use holdpoint::task::decision::Action;
use holdpoint::task::id::{RequestId, TaskId};
use holdpoint::task::item::Outcome;
use sqlx::{AssertSqlSafe, Executor as _, PgConnection};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::engine_harness::{EngineHarness, alice, outcomes, whole};
use crate::store::store_fixture::{StoreFixture, TASKS};

const LARGE: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":500}"#)];

/// A held refund, and another transaction that has locked the row of the refund's task.
struct LockedRefund {
    harness: EngineHarness,
    task: TaskId,
    request: RequestId,
    other: PgConnection,
}

impl LockedRefund {
    /// Creates a held refund. The service sends the refund to the address of `listener`.
    async fn at(listener: &TcpListener) -> Self {
        let mut harness = EngineHarness::new(StoreFixture::postgres().await, LARGE).await;
        let address = format!("http://{}", listener.local_addr().unwrap());
        harness.replace("{tool}", &address);
        let task = harness.held().await;
        let request = harness.open_specs(task).await.remove(0).request_id;
        let other = harness.fixture.holding(TASKS, task.0).await;
        Self {
            harness,
            task,
            request,
            other,
        }
    }
}

async fn approve(harness: &EngineHarness, request: RequestId) -> bool {
    let approval = whole(Action::Approve, None);
    let engine = harness.engine(1);
    engine
        .decide(&alice(), request, approval, None)
        .await
        .is_ok()
}

/// Returns the connection to the tool once the service has opened it. Asserts that the connection
/// carries nothing yet.
async fn connected_early(listener: &TcpListener) -> TcpStream {
    let (mut peer, _) = listener.accept().await.unwrap();
    let pause = Duration::from_millis(100);
    let early = tokio::time::timeout(pause, peer.read(&mut [0; 16])).await;
    assert!(early.is_err(), "bytes before the commit: {early:?}");
    peer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tool_is_connected_before_the_commit_of_the_start_and_called_after_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let LockedRefund {
        harness,
        task,
        request,
        mut other,
    } = LockedRefund::at(&listener).await;
    let (approved, ()) = tokio::join!(approve(&harness, request), async {
        let mut peer = connected_early(&listener).await;
        other.execute("rollback").await.unwrap();
        let mut received = vec![0; 4096];
        assert!(peer.read(&mut received).await.unwrap() > 0);
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\npaid";
        peer.write_all(answer.as_bytes()).await.unwrap();
    });
    assert!(approved);
    harness.until_stopped(task).await;
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Succeeded]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tool_receives_nothing_when_another_commit_wins_against_the_start() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let LockedRefund {
        harness,
        task,
        request,
        mut other,
    } = LockedRefund::at(&listener).await;
    let (_, received) = tokio::join!(approve(&harness, request), async {
        let mut peer = connected_early(&listener).await;
        let wins = format!("update agent_task set version = version + 1 where task_id = '{task}'");
        other.execute(AssertSqlSafe(wins)).await.unwrap();
        other.execute("commit").await.unwrap();
        let mut received = Vec::new();
        let read = peer.read_to_end(&mut received);
        tokio::time::timeout(Duration::from_mins(1), read)
            .await
            .expect("the connection is closed")
            .unwrap();
        // After the refused commit of the start, the service loads the task again and may try to
        // start the call a second time. The closed listener refuses the connection of this second
        // attempt.
        drop(listener);
        received
    });
    assert_eq!(received, b"");
}
