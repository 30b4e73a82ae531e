//! Tests of a client that opens an event stream and does not read it.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::time::timeout;

use crate::support::fake_chat_completions::calls;
use crate::support::test_app::{ALICE, On, TestApp, refunds};
use crate::support::test_clock::TestClock;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_of_a_client_that_does_not_read_is_closed() {
    let clock = TestClock::new();
    let yaml = refunds("{ owner: true }") + "\nserver: { max_streams_per_caller: 1 }\n";
    let app = TestApp::timed(On::Sqlite, &yaml, Arc::<TestClock>::clone(&clock)).await;
    // The results exceed the buffers of a connection whose client does not read.
    app.tool.answers(200, "x".repeat(900 * 1024));
    app.model.then(calls(&[("lookup", "{}"); 16]));
    let task = app.owner().prefer("wait=120").create_task("look").await;
    assert_eq!(task.str("/status"), "Completed");

    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut line = socket
        .connect(app.url().strip_prefix("http://").unwrap().parse().unwrap())
        .await
        .unwrap();
    let path = format!("/v1/tasks/{}/events", task.str("/task_id"));
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {ALICE}\r\n\r\n");
    line.write_all(request.as_bytes()).await.unwrap();
    let mut first = [0; 15];
    line.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    assert_eq!(
        app.owner().watch(&task.str("/task_id"), None).await.status,
        429,
        "that stream holds the only slot"
    );
    // The test cannot see when the buffers are full, so it advances the clock until the service
    // closes the stream.
    let let_go = async {
        // Each advance also exceeds the service's time limit for the head of a request. If the
        // service therefore closes the connection of `try_watch`, the loop tries again.
        while app
            .owner()
            .try_watch(&task.str("/task_id"))
            .await
            .is_none_or(|watch| watch.status == 429)
        {
            clock.advance(Duration::from_secs(31));
        }
    };
    timeout(Duration::from_mins(10), let_go)
        .await
        .expect("its stream is still open");
    // A client that reads its stream gets all of it.
    let mut again = app.owner().watch(&task.str("/task_id"), None).await;
    while again.status == 429 {
        again = app.owner().watch(&task.str("/task_id"), None).await;
    }
    let whole = again.rest().await;
    assert_eq!(
        whole
            .iter()
            .filter(|event| event.name == "tool.finished")
            .count(),
        16
    );
    app.stop().await;
}
