//! The service with its fake endpoints, the values planted in it, and every reply that it gave.

use aho_corasick::AhoCorasick;
use serde_json::{Value, json};

use super::super::served_binary::Served;
use super::super::stored_values::{hashes, traces};
use super::{HTML, JSON, SEEN};
use crate::support::fake_chat_completions::{FakeModel, calls};
use crate::support::test_app::{ALICE, Reply};

/// The secret values that one answer enters into the fields of a credential. No two answers share a
/// value.
pub struct PlantedSecrets {
    pub long: String,
    pub json: String,
    pub percent: String,
    /// Every text by which a reader could recognize one of the values.
    traces: Vec<String>,
}

impl PlantedSecrets {
    pub fn new() -> Self {
        let fresh = || crate::support::postgres::unique();
        let long = format!("{}{}{}", fresh(), fresh(), fresh());
        let json = format!("{}\"\\/é{{}}\"x", fresh());
        let percent = format!("{}%41+&=/?#é;..~", fresh());
        Self {
            traces: [&long, &json, &percent]
                .into_iter()
                .flat_map(|value| traces(value))
                .collect(),
            long,
            json,
            percent,
        }
    }

    pub fn response(&self) -> Value {
        json!({"long": self.long, "json": self.json, "percent": self.percent})
    }

    pub fn answer(&self) -> Value {
        json!({"action": "respond", "response": self.response()})
    }

    pub fn form(&self, more: &[(&str, &str)]) -> String {
        let mut form = url::form_urlencoded::Serializer::new(String::new());
        form.append_pair("action", "respond");
        for (name, value) in [
            ("long", &self.long),
            ("json", &self.json),
            ("percent", &self.percent),
        ] {
            form.append_pair(&format!("field.{name}"), value);
        }
        form.extend_pairs(more);
        form.finish()
    }
}

/// The running program and its fake model; also the secret values planted in the program, the
/// hashes of the bodies that the test has sent, and the replies.
pub struct SecrecyFixture {
    pub served: Served,
    pub model: FakeModel,
    pub planted: Vec<PlantedSecrets>,
    pub body_hashes: Vec<String>,
    pub heard: Vec<(String, String)>,
}

impl SecrecyFixture {
    pub fn plant(&mut self) -> &PlantedSecrets {
        self.planted.push(PlantedSecrets::new());
        self.planted.last().unwrap()
    }

    pub async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Reply {
        if !body.is_empty() {
            self.body_hashes.extend(hashes(&body));
        }
        let reply = self.served.exchange(method, path, headers, body).await;
        self.heard.push((
            format!("{method} {path} {}", reply.status),
            format!("{:?}\n{}", reply.headers, reply.text),
        ));
        reply
    }

    pub async fn post(&mut self, path: &str, key: &str, body: &Value) -> Reply {
        let bearer = format!("Bearer {ALICE}");
        let headers = [
            ("authorization", bearer.as_str()),
            ("content-type", JSON),
            ("idempotency-key", key),
        ];
        self.send("POST", path, &headers, body.to_string().into_bytes())
            .await
    }

    /// Creates a task that waits for its credential. Returns the ids of the task and of the
    /// request.
    pub async fn task(&mut self, key: &str, call: &str) -> (String, String) {
        self.model.then(calls(&[(call, "{}")]));
        let task = self.post("/v1/tasks", key, &json!({"input": SEEN})).await;
        assert_eq!(task.str("/pending/0/kind"), "credentials", "{}", task.text);
        (task.str("/task_id"), task.str("/pending/0/request_id"))
    }

    /// Reads every path that might show a planted value.
    pub async fn read(&mut self, task: &str, request: &str) {
        let bearer = format!("Bearer {ALICE}");
        let paths = [
            format!("/v1/tasks/{task}"),
            format!("/v1/tasks/{task}/items?limit=200"),
            "/v1/tasks".to_owned(),
            format!("/v1/requests?task_id={task}"),
            "/v1/requests?status=resumed".to_owned(),
            format!("/resume/{request}"),
            format!("/resume/{request}/approve"),
            format!("/resume/{request}/reject"),
            "/v1/agents".to_owned(),
            "/v1/me".to_owned(),
            "/metrics".to_owned(),
            "/openapi.json".to_owned(),
            "/docs".to_owned(),
            "/problems/invalid".to_owned(),
            "/sign-in".to_owned(),
            "/nowhere".to_owned(),
        ];
        for path in paths {
            for accept in [JSON, HTML] {
                let headers = [("authorization", bearer.as_str()), ("accept", accept)];
                self.send("GET", &path, &headers, Vec::new()).await;
            }
        }
    }

    /// Asserts that no text contains a planted value and, if `shows` is true, that a text contains
    /// [`SEEN`].
    pub fn is_silent(&self, what: &str, texts: &[(String, String)], shows: bool) {
        let of_values = self.planted.iter().flat_map(|planted| &planted.traces);
        let hidden: Vec<_> = of_values.chain(&self.body_hashes).collect();
        // Most traces are hashes in hex, which a text may also show in capitals.
        let search = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .build(&hidden)
            .unwrap();
        for (place, text) in texts {
            for found in search.find_overlapping_iter(text) {
                let trace = hidden[found.pattern().as_usize()];
                let is_hash = trace.bytes().all(|byte| byte.is_ascii_hexdigit());
                let near = text.get(found.start().saturating_sub(80)..found.end());
                assert!(
                    !is_hash && text[found.range()] != **trace,
                    "{what}: {place} shows {trace}: {near:?}"
                );
            }
        }
        let found = |trace: &String| texts.iter().any(|(_, text)| text.contains(trace.as_str()));
        assert!(
            !shows || traces(SEEN).iter().any(found),
            "{what}: what may be seen is not found either"
        );
    }
}
