//! Receivers of webhooks, which run in the process of `tool_server.rs`. A receiver writes each
//! message to a file before it answers. The answer is drawn at random. Most answers are a 200,
//! at once or late. The others are a 500, no answer at all, or a cut connection.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path as PathOf, State};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use serde::{Deserialize, Serialize};

use super::process::within;
use super::scripted_model::seeded_number;
use crate::support::fake_receiver::Received;

/// The name of the file that lists all received messages. It is in the folder of the test run.
const LEDGER: &str = "hooks";
/// The name of the file whose presence makes every answer a 200.
const FAULT_FREE: &str = "fault_free";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Arrival {
    /// The name of the configuration's entry that sent the message.
    pub entry: String,
    headers: Vec<(String, String)>,
    text: String,
    /// The fault of the answer, or empty: see [`answer`].
    pub fault: String,
}

impl Arrival {
    pub fn is_taken(&self) -> bool {
        matches!(self.fault.as_str(), "" | "slow")
    }

    /// Converts the message to [`Received`], the type that the checks of messages use.
    pub fn received(&self) -> Received {
        let headers = self.headers.iter().map(|(name, value)| {
            let name: HeaderName = name.parse().unwrap();
            (name, value.parse().unwrap())
        });
        Received {
            path: format!("/hook/{}", self.entry),
            headers: headers.collect(),
            body: serde_json::from_str(&self.text).unwrap_or_default(),
            text: self.text.clone(),
        }
    }
}

pub fn arrivals(folder: &Path) -> Vec<Arrival> {
    let text = std::fs::read_to_string(folder.join(LEDGER)).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Makes the receivers answer every further message with a 200 at once.
pub fn stop_faults(folder: &Path) {
    File::create(folder.join(FAULT_FREE)).unwrap();
}

struct Receiver {
    folder: PathBuf,
    file: Mutex<File>,
    drawn: AtomicU64,
}

/// Returns the router with the receivers' routes. `tool_server.rs` serves these routes.
pub fn router(folder: &Path) -> Router {
    let ledger = folder.join(LEDGER);
    let file = File::options().create(true).append(true).open(ledger);
    let receiver = Receiver {
        folder: folder.to_owned(),
        file: Mutex::new(file.unwrap()),
        drawn: AtomicU64::new(0),
    };
    let receiver = std::sync::Arc::new(receiver);
    Router::new()
        .route("/hook/{entry}", post(receive))
        .with_state(receiver)
}

async fn receive(
    State(receiver): State<std::sync::Arc<Receiver>>,
    PathOf(entry): PathOf<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let drawn = receiver.drawn.fetch_add(1, Ordering::Relaxed);
    let draw = seeded_number(u64::from(std::process::id()), drawn);
    let fault = if receiver.folder.join(FAULT_FREE).exists() {
        ""
    } else {
        match draw % 100 {
            0..10 => "fail",
            10..12 => "hang",
            12..22 => "cut",
            22..37 => "slow",
            _ => "",
        }
    };
    let headers = headers.iter().map(|(name, value)| {
        let value = value.to_str().unwrap_or_default();
        (name.as_str().to_owned(), value.to_owned())
    });
    let arrival = Arrival {
        entry,
        headers: headers.collect(),
        text: String::from_utf8_lossy(&body).into_owned(),
        fault: fault.to_owned(),
    };
    let line = serde_json::to_string(&arrival).unwrap() + "\n";
    receiver
        .file
        .lock()
        .unwrap()
        .write_all(line.as_bytes())
        .unwrap();
    answer(fault, draw / 100).await
}

/// Answers a message that has arrived, in the way that `fault` names.
async fn answer(fault: &str, draw: u64) -> Response {
    match fault {
        "fail" => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        "hang" => std::future::pending().await,
        // A panic in the task that serves a connection cuts the connection.
        "cut" => std::panic::resume_unwind(Box::new("cut")),
        "slow" => {
            within(Duration::from_millis(50 + draw % 700)).await;
            StatusCode::OK.into_response()
        }
        _ => StatusCode::OK.into_response(),
    }
}
