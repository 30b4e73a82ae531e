//! Reads event streams as the standard for server-sent events describes.

use std::collections::VecDeque;
use std::io::BufRead as _;
use std::time::Duration;

use reqwest::header::HeaderMap;
use serde_json::Value;
use tokio::time::timeout;

use super::api_contract;

/// The maximum time to wait for the next bytes.
const PATIENCE: Duration = Duration::from_mins(2);

/// One event. Its `id` is set if the event is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub id: Option<i64>,
    pub name: String,
    pub data: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub enum StreamBlock {
    Event(Event),
    Comment,
    Retry(u64),
}

pub struct Watch {
    pub status: u16,
    pub headers: HeaderMap,
    response: reqwest::Response,
    /// The bytes of a block that has not ended yet.
    bytes: Vec<u8>,
    said: VecDeque<StreamBlock>,
    /// The component of the API document that describes the events.
    described_by: &'static str,
}

impl Watch {
    pub fn new(response: reqwest::Response) -> Self {
        Self::described(response, "StreamedEvent")
    }

    pub fn of_inbox(response: reqwest::Response) -> Self {
        Self::described(response, "InboxStreamedEvent")
    }

    fn described(response: reqwest::Response, described_by: &'static str) -> Self {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Self {
            status,
            headers,
            response,
            bytes: Vec::new(),
            said: VecDeque::new(),
            described_by,
        }
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or("")
    }

    /// Returns the next event, comment or `retry` of the stream, or `None` at the end of the
    /// stream.
    pub async fn said(&mut self) -> Option<StreamBlock> {
        loop {
            if let Some(said) = self.said.pop_front() {
                return Some(said);
            }
            let chunk = timeout(PATIENCE, self.response.chunk())
                .await
                .expect("nothing came")
                .expect("a clean end");
            let Some(chunk) = chunk else {
                assert!(
                    self.bytes.is_empty(),
                    "it ended within an event: {}",
                    String::from_utf8_lossy(&self.bytes)
                );
                return None;
            };
            let mut rest: &[u8] = &chunk;
            while !rest.is_empty() {
                rest.read_until(b'\n', &mut self.bytes).unwrap();
                if self.bytes.ends_with(b"\n\n") {
                    let block = std::mem::take(&mut self.bytes);
                    let block = std::str::from_utf8(&block).unwrap();
                    self.said.push_back(block_of(block, self.described_by));
                }
            }
        }
    }

    /// Returns the next event, or `None` at the end of the stream.
    pub async fn event(&mut self) -> Option<Event> {
        loop {
            match self.said().await? {
                StreamBlock::Event(event) => return Some(event),
                StreamBlock::Comment | StreamBlock::Retry(_) => {}
            }
        }
    }

    /// Returns the next events, up to and including the first event with this name.
    pub async fn until(&mut self, name: &str) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            let next = self.event().await;
            let Some(event) = next else {
                panic!("it ended before {name}: {events:#?}")
            };
            let found = event.name == name;
            events.push(event);
            if found {
                return events;
            }
        }
    }

    /// Returns all further events up to the end of the stream. Fails if the stream does not end.
    pub async fn rest(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let rest = async {
            while let Some(event) = self.event().await {
                events.push(event);
            }
        };
        timeout(2 * PATIENCE, rest).await.expect("no end came");
        events
    }
}

/// Returns the stored events among `events`: those with an id.
pub fn durable(events: &[Event]) -> Vec<Event> {
    events
        .iter()
        .filter(|event| event.id.is_some())
        .cloned()
        .collect()
}

pub fn numbers(events: &[Event]) -> Vec<i64> {
    events.iter().filter_map(|event| event.id).collect()
}

pub fn names(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.name.as_str()).collect()
}

fn block_of(block: &str, described_by: &str) -> StreamBlock {
    let (mut id, mut name, mut data) = (None, None, Vec::new());
    for line in block.trim_end_matches('\n').split('\n') {
        match line.split_once(':').unwrap() {
            ("", _) => return StreamBlock::Comment,
            ("retry", time) => return StreamBlock::Retry(time.trim().parse().unwrap()),
            ("id", number) => id = Some(number.trim().parse().unwrap()),
            ("event", word) => name = Some(word.trim().to_owned()),
            ("data", text) => data.push(text.strip_prefix(' ').unwrap_or(text)),
            (other, _) => panic!("no field {other}"),
        }
    }
    let (name, data) = (
        name.unwrap(),
        serde_json::from_str(&data.join("\n")).unwrap(),
    );
    api_contract::is_an_event(described_by, &name, &data);
    StreamBlock::Event(Event { id, name, data })
}
