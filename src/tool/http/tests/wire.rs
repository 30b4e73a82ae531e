//! Tests of a call's outcome when its server reads or sends in unusual ways, such as byte by byte.
//! The outcome of an attempt does not depend on the tool's effect (`read_only`, `idempotent` or
//! `once`). Only the engine's decision whether to repeat the call depends on the effect.

use tokio::io::AsyncReadExt as _;

use super::*;

#[derive(Clone)]
enum Step {
    /// Reads the whole request.
    Read,
    /// Reads only the first bytes of the request.
    Glance,
    Send(Vec<u8>),
    /// Sends byte by byte, with pauses of a few milliseconds.
    Drip(Vec<u8>),
    /// Ends the connection with a reset instead of an orderly close.
    Reset,
    /// Sends nothing, and keeps the connection open until the client closes it.
    Hold,
}

use Step::{Drip, Glance, Hold, Read, Reset, Send};

fn send(text: &str) -> Step {
    Send(text.as_bytes().to_vec())
}

#[derive(Debug, PartialEq)]
enum Became {
    Succeeded(u16, String),
    Failed(Option<u16>),
    Unknown,
}

use Became::{Failed, Succeeded, Unknown};

fn ok(content: &str) -> Became {
    Succeeded(200, content.to_owned())
}

/// Starts a server that takes `steps` on its first connection and answers every later connection
/// with a success. Returns the server's origin, the server's task and a sender. A message from this
/// sender stops the server. The task then returns the number of connections.
async fn server(steps: Vec<Step>) -> (String, JoinHandle<usize>, tokio::sync::oneshot::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let (over, mut is_over) = tokio::sync::oneshot::channel();
    #[expect(clippy::disallowed_methods, reason = "the fake endpoint of a test")]
    let served = tokio::spawn(async move {
        let mut connections = 0;
        loop {
            let peer = tokio::select! {
                biased;
                peer = listener.accept() => peer.unwrap().0,
                _ = &mut is_over => return connections,
            };
            connections += 1;
            let again = vec![
                Read,
                send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nagain"),
            ];
            run_steps(
                peer,
                if connections == 1 {
                    steps.clone()
                } else {
                    again
                },
            )
            .await;
        }
    });
    (origin, served, over)
}

async fn run_steps(mut peer: TcpStream, steps: Vec<Step>) {
    for step in steps {
        match step {
            Read => drop(request(&mut peer).await),
            Glance => drop(peer.read(&mut [0; 16]).await),
            Send(bytes) => drop(peer.write_all(&bytes).await),
            Drip(bytes) => {
                for byte in bytes {
                    let _ = tokio::time::timeout(
                        Duration::from_millis(3),
                        std::future::pending::<()>(),
                    )
                    .await;
                    let _ = peer.write_all(&[byte]).await;
                }
            }
            Reset => peer.set_zero_linger().unwrap(),
            Hold => while peer.read(&mut [0; 1024]).await.is_ok_and(|read| read > 0) {},
        }
    }
}

async fn became(steps: Vec<Step>, effect: Effect, text: &str, timeout: Duration) -> Became {
    let (origin, served, over) = server(steps).await;
    let tool = tool_of(
        Method::POST,
        format!("{origin}/secret-path"),
        effect,
        any(),
        timeout,
    );
    let answer = tool.call(&invocation(text)).await;
    let said = format!("{answer:?}");
    assert!(
        !said.contains("127.0.0.1") && !said.contains("secret-path"),
        "{said}"
    );
    over.send(()).unwrap();
    assert!(served.await.unwrap() <= 1, "one attempt is one request");
    match answer {
        ToolAnswer::Succeeded {
            content,
            http_status,
        } => Succeeded(http_status.unwrap(), content),
        ToolAnswer::Failed { http_status, .. } => Failed(http_status),
        ToolAnswer::NotSent { .. } => Failed(None),
        ToolAnswer::Suspect { content } => panic!("{content}"),
        ToolAnswer::Elicitation(asked) => panic!("{asked:?}"),
        ToolAnswer::Unknown { .. } => Unknown,
    }
}

/// Checks each row of a table with every effect. A row holds a name, the server's steps and the
/// expected outcome.
async fn all(table: Vec<(&str, Vec<Step>, Became)>, timeout: Duration) {
    for (name, steps, expected) in table {
        for effect in [Effect::Once, Effect::Idempotent, Effect::ReadOnly] {
            assert_eq!(
                became(steps.clone(), effect, "{}", timeout).await,
                expected,
                "{name}, {effect:?}"
            );
        }
    }
}

fn read_then(text: &str) -> Vec<Step> {
    vec![Read, send(text)]
}

#[tokio::test]
async fn connection_that_ends_before_its_answer_leaves_the_outcome_unknown() {
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let table = vec![
        ("closes before reading", vec![], Unknown),
        ("resets before reading", vec![Reset], Unknown),
        ("reads a part and closes", vec![Glance], Unknown),
        ("reads a part and resets", vec![Glance, Reset], Unknown),
        ("reads and closes", vec![Read], Unknown),
        ("reads and resets", vec![Read, Reset], Unknown),
        ("half a status line", read_then("HTTP/1.1 20"), Unknown),
        (
            "half its headers",
            read_then("HTTP/1.1 200 OK\r\ncontent-le"),
            Unknown,
        ),
        (
            "headers without an end",
            read_then("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n"),
            Unknown,
        ),
        ("no HTTP", read_then("220 mail.example ESMTP\r\n"), Unknown),
        (
            "half a body",
            read_then("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nha"),
            Unknown,
        ),
        (
            "half a body, reset",
            vec![
                Read,
                send("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nha"),
                Reset,
            ],
            Unknown,
        ),
        (
            "half a failure",
            read_then("HTTP/1.1 500 Oops\r\ncontent-length: 4\r\n\r\nha"),
            Unknown,
        ),
        (
            "chunks without an end",
            read_then(&format!("{chunked}2\r\nok\r\n")),
            Unknown,
        ),
        (
            "half a chunk",
            read_then(&format!("{chunked}9\r\nok")),
            Unknown,
        ),
        (
            "no chunks",
            read_then(&format!("{chunked}zz\r\nok\r\n0\r\n\r\n")),
            Unknown,
        ),
        (
            "chunks without their last line",
            read_then(&format!("{chunked}2\r\nok\r\n0\r\n")),
            Unknown,
        ),
        (
            "an interim answer",
            read_then("HTTP/1.1 100 Continue\r\n\r\n"),
            Unknown,
        ),
        (
            "hints",
            read_then("HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"),
            Unknown,
        ),
        (
            "another protocol",
            read_then("HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nx"),
            Unknown,
        ),
        (
            "two lengths",
            read_then("HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\noks"),
            Unknown,
        ),
    ];
    all(table, Duration::from_secs(20)).await;
}

#[tokio::test]
async fn complete_answer_is_taken_as_it_is() {
    let broken = [
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 12\r\n\r\n".as_slice(),
        b"\x1f\x8b\x08zzzzzzzzz",
    ];
    let extra = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n";
    let chunks = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1;x=y\r\nk\r\n0\r\nx: y\r\n\r\n";
    let table = vec![
        (
            "after an interim one",
            read_then(
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
            ),
            ok("ok"),
        ),
        ("chunks", read_then(chunks), ok("ok")),
        (
            "until the close",
            read_then("HTTP/1.1 200 OK\r\n\r\nok"),
            ok("ok"),
        ),
        (
            "of HTTP/1.0",
            read_then("HTTP/1.0 200 OK\r\n\r\nok"),
            ok("ok"),
        ),
        (
            "and the peer stays",
            vec![
                Read,
                send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"),
                Hold,
            ],
            ok("ok"),
        ),
        (
            "and resets",
            vec![
                Read,
                send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
                Hold,
                Reset,
            ],
            ok(""),
        ),
        (
            "a length too short",
            read_then("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok and more"),
            ok("ok"),
        ),
        ("a second answer", read_then(extra), ok("ok")),
        (
            "nothing",
            read_then("HTTP/1.1 204 No Content\r\n\r\n"),
            Succeeded(204, String::new()),
        ),
        (
            "nothing, with a body",
            read_then("HTTP/1.1 204 No Content\r\ncontent-length: 2\r\n\r\nok"),
            Succeeded(204, String::new()),
        ),
        (
            "a coding nobody asked for, broken",
            vec![Read, Send(broken.concat())],
            ok("\u{1f}\u{FFFD}\u{8}zzzzzzzzz"),
        ),
        (
            "dripping",
            vec![
                Read,
                Drip(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok".to_vec()),
            ],
            ok("ok"),
        ),
    ];
    all(table, Duration::from_secs(20)).await;
}

#[tokio::test]
async fn status_decides_the_outcome_of_an_answer() {
    for status in [
        300, 302, 304, 307, 400, 401, 408, 409, 425, 429, 500, 501, 503, 505, 599, 700,
    ] {
        let steps = read_then(&format!(
            "HTTP/1.1 {status} Word\r\nlocation: /x\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n"
        ));
        all(
            vec![("a failure", steps, Failed(Some(status)))],
            Duration::from_secs(20),
        )
        .await;
    }
    for status in [502, 504] {
        let steps = read_then(&format!(
            "HTTP/1.1 {status} Word\r\ncontent-length: 0\r\n\r\n"
        ));
        all(vec![("a gateway", steps, Unknown)], Duration::from_secs(20)).await;
    }
}

/// The server answers while the client is still writing the request. The answer counts if the
/// client can read all of it. Otherwise the outcome is unknown, and nothing is sent again.
#[tokio::test]
async fn answer_before_the_request_was_read_is_that_answer_or_unknown() {
    let text = format!(r#"{{"note":"{}"}}"#, "x".repeat(4 * 1024 * 1024));
    let answer = "HTTP/1.1 413 Too Large\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno";
    let patient = became(
        vec![Glance, send(answer), Hold],
        Effect::Once,
        &text,
        Duration::from_secs(20),
    )
    .await;
    assert_eq!(patient, Failed(Some(413)));
    let hasty = became(
        vec![Glance, send(answer)],
        Effect::Once,
        &text,
        Duration::from_secs(20),
    )
    .await;
    assert!(matches!(hasty, Failed(Some(413)) | Unknown), "{hasty:?}");
}

#[tokio::test]
async fn answer_that_is_not_complete_in_time_is_unknown() {
    let short = Duration::from_millis(400);
    let table = [
        ("silence", vec![Read, Hold]),
        (
            "half an answer",
            vec![
                Read,
                send("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok"),
                Hold,
            ],
        ),
        ("a drip", vec![Read, Drip(vec![b'x'; 400])]),
        (
            "a dripping body",
            vec![
                Read,
                send("HTTP/1.1 200 OK\r\ncontent-length: 400\r\n\r\n"),
                Drip(vec![b'x'; 400]),
            ],
        ),
    ];
    for (name, steps) in table {
        for effect in [Effect::Once, Effect::Idempotent, Effect::ReadOnly] {
            let late = loop {
                let late = became(steps.clone(), effect, "{}", short).await;
                // On a busy machine, the timeout may pass before the request is sent. The attempt
                // is then `Failed(None)`, and the test makes another attempt.
                if late != Failed(None) {
                    break late;
                }
            };
            assert_eq!(late, Unknown, "{name}, {effect:?}");
        }
    }
}

#[tokio::test]
async fn answer_at_the_last_moment_is_whole_or_unknown() {
    for milliseconds in 1..40 {
        let steps = vec![
            Glance,
            Drip(b"H".to_vec()),
            send("TTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"),
            Hold,
        ];
        let late = became(
            steps,
            Effect::Once,
            "{}",
            Duration::from_millis(milliseconds),
        )
        .await;
        assert!(
            late == ok("ok") || late == Unknown || late == Failed(None),
            "{late:?}"
        );
    }
}

#[tokio::test]
async fn success_whose_kept_part_arrived_stays_a_success_whatever_follows() {
    let long = vec![b'x'; output::MAX_RESULT_BYTES + 1];
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n",
        3 * output::MAX_RESULT_BYTES
    );
    let long_enough = Duration::from_secs(20);
    for end in [vec![], vec![Hold]] {
        let steps = [vec![Read, send(&head), Send(long.clone())], end].concat();
        let Succeeded(200, content) = became(steps, Effect::Once, "{}", long_enough).await else {
            panic!("no success")
        };
        assert!(content.ends_with("[cut: the result is longer than 1 MiB]"));
    }
    let almost = vec![b'x'; output::MAX_RESULT_BYTES - 1];
    assert_eq!(
        became(
            vec![Read, send(&head), Send(almost)],
            Effect::Once,
            "{}",
            long_enough
        )
        .await,
        Unknown
    );
}

#[tokio::test]
async fn response_never_reaches_another_call() {
    let two = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nfirstHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nstray";
    for effect in [Effect::Once, Effect::Idempotent, Effect::ReadOnly] {
        let (origin, served, over) = server(vec![Read, send(two)]).await;
        let tool = tool_of(Method::POST, origin, effect, any(), Duration::from_secs(20));
        for content in ["first", "again", "again"] {
            let answer = tool.call(&invocation("{}")).await;
            assert_eq!(
                answer,
                ToolAnswer::Succeeded {
                    content: content.to_owned(),
                    http_status: Some(200)
                }
            );
        }
        over.send(()).unwrap();
        assert_eq!(
            served.await.unwrap(),
            3,
            "each call has a connection of its own"
        );
    }
}

#[tokio::test]
async fn unknown_host_name_is_a_failure_before_anything_was_sent() {
    let nowhere = "http://no-such-host.invalid/".to_owned();
    let answer = tool(Method::POST, nowhere).call(&invocation("{}")).await;
    assert_unsent(&answer);
}
