//! Reads a traffic file, and sends the answers in the file as an endpoint on loopback.
//!
//! A file is a list of parts. Each part begins with one of these lines:
//!
//! - `>>>`: the expected body of a request follows.
//! - `<<< STATUS TYPE, NAME: VALUE, …`: an answer follows. If the line has the word `cut`, the
//!   connection is closed before the end of the body.
//! - `||| STATUS TYPE`: the unstreamed form of the preceding answer follows.
//!
//! The text before the first part describes the file.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

#[derive(Debug)]
pub(super) struct Traffic {
    /// The expected bodies of the requests, in order.
    pub(super) bodies: Vec<Value>,
    pub(super) answers: Vec<RecordedReply>,
}

#[derive(Clone, Debug)]
pub(super) struct RecordedReply {
    status: String,
    headers: Vec<String>,
    /// Whether the connection is lost before the answer is complete.
    cut: bool,
    body: String,
    /// The unstreamed form of the answer, if the file has it.
    whole: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    AsRecorded,
    /// The answers are sent a few bytes at a time.
    InCrumbs,
    /// An answer is sent unstreamed if the file has its unstreamed form, otherwise as recorded.
    Whole,
}

impl Traffic {
    pub(super) fn of(provider: &str, case: &str) -> Self {
        let path = format!(
            "{}/src/model/conformance/wire/{provider}/{case}.txt",
            env!("CARGO_MANIFEST_DIR")
        );
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        Self::read(&text).unwrap_or_else(|why| panic!("{path}: {why}"))
    }

    fn read(text: &str) -> Result<Self, String> {
        let mut traffic = Self {
            bodies: Vec::new(),
            answers: Vec::new(),
        };
        let mut parts: Vec<(&str, String)> = Vec::new();
        for line in text.lines() {
            if ["<<<", ">>>", "|||"]
                .iter()
                .any(|mark| line.starts_with(mark))
            {
                parts.push((line, String::new()));
            } else if let Some((_, body)) = parts.last_mut() {
                body.push_str(line);
                body.push('\n');
            }
        }
        for (head, body) in parts {
            match head.split_at(3) {
                (">>>", _) => traffic
                    .bodies
                    .push(serde_json::from_str(&body).map_err(|error| error.to_string())?),
                ("<<<", said) => traffic.answers.push(RecordedReply::read(said.trim(), body)),
                (_, _) => {
                    let answer = traffic
                        .answers
                        .last_mut()
                        .ok_or("||| stands before any answer")?;
                    answer.whole = Some(body.trim_end().to_owned());
                }
            }
        }
        Ok(traffic)
    }
}

impl RecordedReply {
    fn read(said: &str, body: String) -> Self {
        let (status, rest) = said.split_once(' ').unwrap_or((said, ""));
        let mut headers = Vec::new();
        let mut cut = false;
        for word in rest.split(", ").filter(|word| !word.is_empty()) {
            match word {
                "cut" => cut = true,
                kind if !kind.contains(": ") => headers.push(format!("content-type: {kind}")),
                header => headers.push(header.to_owned()),
            }
        }
        Self {
            status: status.to_owned(),
            headers,
            cut,
            body,
            whole: None,
        }
    }

    fn is_whole(&self, sent: Sent) -> Option<&str> {
        self.whole.as_deref().filter(|_| sent == Sent::Whole)
    }

    /// Returns the body, if the answer is streamed and successful.
    pub(super) fn stream(&self) -> Option<&str> {
        let is_stream = self
            .headers
            .iter()
            .any(|header| header.starts_with("content-type: text/event-stream"));
        (self.status == "200" && is_stream).then_some(self.body.as_str())
    }

    async fn send(&self, peer: &mut TcpStream, sent: Sent) -> std::io::Result<()> {
        let body = self.is_whole(sent).unwrap_or(&self.body);
        let mut head = format!(
            "HTTP/1.1 {} X\r\nconnection: close\r\ntransfer-encoding: chunked\r\n",
            self.status
        );
        for header in self
            .headers
            .iter()
            .filter(|_| self.is_whole(sent).is_none())
        {
            let _ = write!(head, "{header}\r\n");
        }
        if self.is_whole(sent).is_some() {
            head.push_str("content-type: application/json\r\n");
        }
        peer.write_all(format!("{head}\r\n").as_bytes()).await?;
        let size = if sent == Sent::InCrumbs {
            7
        } else {
            body.len().max(1)
        };
        for piece in body.as_bytes().chunks(size) {
            let mut chunk = format!("{:x}\r\n", piece.len()).into_bytes();
            chunk.extend_from_slice(piece);
            chunk.extend_from_slice(b"\r\n");
            peer.write_all(&chunk).await?;
            peer.flush().await?;
        }
        if !self.cut {
            peer.write_all(b"0\r\n\r\n").await?;
        }
        peer.shutdown().await
    }
}

#[derive(Clone, Debug)]
pub(super) struct RecordedRequest {
    pub(super) head: String,
    pub(super) body: String,
}

/// An endpoint that sends the answers of a traffic file, one per connection.
pub(super) struct TrafficEndpoint {
    pub(super) url: String,
    requests: Arc<Mutex<Vec<RecordedRequest>>>,
}

impl TrafficEndpoint {
    pub(super) async fn begin(answers: Vec<RecordedReply>, sent: Sent) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests: Arc<Mutex<Vec<RecordedRequest>>> = Arc::default();
        let record = Arc::clone(&requests);
        #[expect(clippy::disallowed_methods, reason = "the fake endpoint of a test")]
        tokio::spawn(async move {
            for answer in answers {
                let (mut peer, _) = listener.accept().await.unwrap();
                peer.set_nodelay(true).unwrap();
                let (head, body) = crate::net::tests::receive(&mut peer).await;
                let head = head.to_lowercase();
                record.lock().unwrap().push(RecordedRequest { head, body });
                // The client may have closed the connection early, so a failure to send is ignored.
                let _ = answer.send(&mut peer, sent).await;
            }
        });
        Self { url, requests }
    }

    pub(super) fn requests(&self) -> Vec<RecordedRequest> {
        self.requests.lock().unwrap().clone()
    }
}
