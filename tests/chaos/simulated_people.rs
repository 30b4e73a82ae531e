//! The simulated users of the service. An owner creates tasks and answers their requests until the
//! tasks end. Approvers decide, sometimes two at once. An auditor answers reconcile requests
//! according to the ledger of the executed calls (`tool_server.rs`). A POST without a reply is
//! repeated with the same idempotency key at a random replica. Every change that the service
//! acknowledges goes into the history.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::scripted_model::seeded_number;
use super::tool_server::ToolServer;
use crate::support::test_app::ALICE;
use crate::support::{http_client_builder, pause};

/// A change that the service acknowledged.
#[derive(Clone, Debug)]
pub enum Acknowledged {
    Created {
        task: String,
    },
    /// The service replied with a 2xx status, so this decision is stored.
    Decided {
        task: String,
        request: String,
        action: &'static str,
    },
    /// The service refused a decision with the status 409, because it had already stored this one.
    Overruled {
        task: String,
        request: String,
        action: String,
    },
}

/// The numbers of repetitions and conflicts in a run. A run with too few of them proves nothing.
#[derive(Debug, Default)]
pub struct Counts {
    /// The number of POSTs that were repeated with the same idempotency key.
    pub repeated: AtomicU64,
    /// The number of replies with the header `Idempotency-Replayed`: the service repeated the reply
    /// to an earlier POST with the same idempotency key.
    pub replayed: AtomicU64,
    /// The number of decisions among the repeated POSTs.
    pub repeated_decisions: AtomicU64,
    pub conflicts: AtomicU64,
}

pub struct People {
    pub urls: Vec<String>,
    pub tool_server: Arc<ToolServer>,
    pub seed: u64,
    /// The time at which every wait must be over.
    pub until: Instant,
    /// The timeout of one HTTP request.
    pub timeout: Duration,
    pub counts: Counts,
    http: reqwest::Client,
    history: Mutex<Vec<Acknowledged>>,
    complaints: Mutex<Vec<String>>,
    attempted: Mutex<BTreeMap<String, Vec<&'static str>>>,
    /// The last reply from each path, which error messages show.
    heard: Mutex<BTreeMap<String, String>>,
    drawn: AtomicU64,
}

pub struct Answer {
    pub status: u16,
    pub body: Value,
    tries: u32,
}

impl People {
    pub fn new(urls: Vec<String>, tool_server: Arc<ToolServer>, seed: u64, until: Instant) -> Self {
        let http = http_client_builder().pool_idle_timeout(Duration::from_secs(1));
        Self {
            urls,
            tool_server,
            seed,
            until,
            timeout: Duration::from_secs(5),
            counts: Counts::default(),
            http: http.build().unwrap(),
            history: Mutex::default(),
            complaints: Mutex::default(),
            attempted: Mutex::default(),
            heard: Mutex::default(),
            drawn: AtomicU64::new(0),
        }
    }

    pub fn http(&self) -> &reqwest::Client {
        &self.http
    }

    pub fn history(&self) -> Vec<Acknowledged> {
        self.history.lock().unwrap().clone()
    }

    /// Returns the actions that were sent as decisions, by request id.
    pub fn attempted(&self) -> BTreeMap<String, Vec<&'static str>> {
        self.attempted.lock().unwrap().clone()
    }

    /// Returns the complaints about replies that the service should never have given.
    pub fn complaints(&self) -> Vec<String> {
        self.complaints.lock().unwrap().clone()
    }

    pub fn complain(&self, what: String) {
        self.complaints.lock().unwrap().push(what);
    }

    /// Returns the next number of this run's random sequence.
    pub fn draw(&self) -> u64 {
        seeded_number(self.seed, self.drawn.fetch_add(1, Ordering::Relaxed))
    }

    pub fn anywhere(&self) -> &str {
        &self.urls[usize::try_from(self.draw()).unwrap() % self.urls.len()]
    }

    /// Repeats a POST with one idempotency key until the reply is final. A reply with the status
    /// 429, 500 or 503 is not final.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_waiting(path, body, 1).await
    }

    /// Like [`Self::post`], with this many seconds in `Prefer: wait`.
    pub async fn post_waiting(&self, path: &str, body: &Value, seconds: u32) -> Answer {
        let key = format!("k-{}", crate::support::postgres::unique());
        let mut tries = 0;
        loop {
            tries += 1;
            self.in_time(path);
            let request = self
                .http
                .post(format!("{}{path}", self.anywhere()))
                .bearer_auth(ALICE);
            let request = request
                .header("idempotency-key", &key)
                .header("prefer", format!("wait={seconds}"));
            let request = request.timeout(self.timeout);
            let request = if body.is_null() {
                request
            } else {
                request.json(body)
            };
            if let Some(answer) = self.understood(request, path).await {
                let (status, replayed, body) = answer;
                self.counts
                    .repeated
                    .fetch_add(u64::from(tries > 1), Ordering::Relaxed);
                self.counts
                    .replayed
                    .fetch_add(u64::from(replayed), Ordering::Relaxed);
                return Answer {
                    status,
                    body,
                    tries,
                };
            }
            pause().await;
        }
    }

    pub async fn get(&self, path: &str) -> Value {
        loop {
            self.in_time(path);
            let request = self
                .http
                .get(format!("{}{path}", self.anywhere()))
                .bearer_auth(ALICE);
            let request = request.header("prefer", "wait=1").timeout(self.timeout);
            match self.understood(request, path).await {
                Some((200, _, body)) => return body,
                Some((status, _, body)) => {
                    self.complain(format!("lost: GET {path} is {status} {body}"));
                    return Value::Null;
                }
                None => pause().await,
            }
        }
    }

    pub async fn understood(
        &self,
        request: reqwest::RequestBuilder,
        path: &str,
    ) -> Option<(u16, bool, Value)> {
        let reply = request.send().await.ok()?;
        let status = reply.status().as_u16();
        let replayed = reply.headers().contains_key("idempotency-replayed");
        // If the connection breaks in the middle of a reply, the reply does not count.
        let text = reply.text().await.ok()?;
        if status == 500 {
            self.complain(format!("{path} answered 500: {text}"));
        }
        self.heard.lock().unwrap().insert(
            path.to_owned(),
            format!("{status} {}", text.get(..900).unwrap_or(&text)),
        );
        let later = status == 500 || status == 503 || status == 429;
        (!later).then(|| {
            (
                status,
                replayed,
                serde_json::from_str(&text).unwrap_or_default(),
            )
        })
    }

    pub fn in_time(&self, what: &str) {
        if Instant::now() >= self.until {
            let heard = self
                .heard
                .lock()
                .unwrap()
                .get(what)
                .cloned()
                .unwrap_or_default();
            let complaints = self.complaints().join("\n");
            panic!(
                "seed {:x}: it takes too long; the last of {what} was {heard}\n{complaints}",
                self.seed
            );
        }
    }

    pub async fn create(&self, message: &str) -> String {
        self.create_waiting(message, 1).await
    }

    /// Like [`Self::create`], with this many seconds in `Prefer: wait`.
    pub async fn create_waiting(&self, message: &str, seconds: u32) -> String {
        let body = json!({"input": message});
        let answer = self.post_waiting("/v1/tasks", &body, seconds).await;
        assert!(
            matches!(answer.status, 201 | 202),
            "{} {}",
            answer.status,
            answer.body
        );
        let task = answer.body["task_id"].as_str().unwrap().to_owned();
        self.history
            .lock()
            .unwrap()
            .push(Acknowledged::Created { task: task.clone() });
        task
    }

    /// Looks at a task once and answers its open requests. Returns the status that the task had
    /// before these answers.
    pub async fn answer_once(&self, task: &str) -> String {
        let now = self.get(&format!("/v1/tasks/{task}")).await;
        if now["status"] == "Paused" {
            for request in now["pending"].as_array().into_iter().flatten() {
                self.answer(task, request).await;
            }
        }
        now["status"].as_str().unwrap_or("lost").to_owned()
    }

    /// Answers a task's open requests until the task ends. Returns the task's last status.
    pub async fn settle(&self, task: &str) -> String {
        loop {
            let status = self.answer_once(task).await;
            if !matches!(status.as_str(), "Running" | "Paused") {
                return status;
            }
            pause().await;
        }
    }

    /// Like `settle`, but retries a failed task at most five times.
    pub async fn complete(&self, task: &str) -> String {
        for _ in 0..5 {
            let status = self.settle(task).await;
            if status != "Failed" {
                return status;
            }
            self.post(&format!("/v1/tasks/{task}/retry"), &Value::Null)
                .await;
        }
        self.settle(task).await
    }

    async fn answer(&self, task: &str, request: &Value) {
        let id = request["request_id"].as_str().unwrap();
        let own: Vec<_> = request["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|call| call["needs_decision"] == true)
            .collect();
        if request["kind"] == "reconcile" {
            // The simulated auditor looks up whether the simulated tool executed the call.
            let key = own[0]["tool_call_id"].as_str().unwrap();
            if self.tool_server.of(key).is_empty() {
                self.decide(task, id, "retry", json!({"action": "retry"}), true)
                    .await;
            } else {
                let body = json!({"action": "respond", "result": format!("audited {key}")});
                self.decide(task, id, "respond", body, true).await;
            }
            return;
        }
        if own.iter().any(|call| call["name"] == "short") {
            // The simulated people do not answer this request, so that it expires.
            return;
        }
        let digest = &request["digest"];
        let approve = json!({"action": "approve", "digest": digest});
        let reject =
            json!({"action": "reject", "then": "continue", "reason": "no", "digest": digest});
        if own.iter().any(|call| call["arguments"]["fault"] == "no") {
            self.decide(task, id, "reject", reject, true).await;
        } else if self.draw().is_multiple_of(5) {
            // Two people decide at once, with different answers.
            tokio::join!(
                self.decide(task, id, "approve", approve, false),
                self.decide(task, id, "reject", reject, false)
            );
        } else {
            self.decide(task, id, "approve", approve, true).await;
        }
    }

    async fn decide(
        &self,
        task: &str,
        request: &str,
        action: &'static str,
        body: Value,
        alone: bool,
    ) {
        self.attempted
            .lock()
            .unwrap()
            .entry(request.to_owned())
            .or_default()
            .push(action);
        let answer = self.post(&format!("/resume/{request}"), &body).await;
        self.counts
            .repeated_decisions
            .fetch_add(u64::from(answer.tries > 1), Ordering::Relaxed);
        let (task, request) = (task.to_owned(), request.to_owned());
        match (answer.status, answer.body["code"].as_str()) {
            (200 | 202, _) => self.history.lock().unwrap().push(Acknowledged::Decided {
                task,
                request,
                action,
            }),
            (409, Some("already_decided")) => {
                self.counts.conflicts.fetch_add(1, Ordering::Relaxed);
                // If no other person decides, only an earlier decision of this person can cause
                // the conflict. Without such a decision, the conflict is an error.
                let repeated = self.attempted.lock().unwrap()[&request].len() > 1;
                if alone && !repeated {
                    self.complain(format!(
                        "{task}: {action} of {request} lost against itself: {}",
                        answer.body
                    ));
                }
                let action = answer.body["decision"]["action"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned();
                self.history.lock().unwrap().push(Acknowledged::Overruled {
                    task,
                    request,
                    action,
                });
            }
            // The request has expired, or was withdrawn because the call's result has arrived.
            (409, Some("request_withdrawn")) | (410, _) => {
                self.counts.conflicts.fetch_add(1, Ordering::Relaxed);
            }
            (status, _) => {
                self.complain(format!(
                    "{task}: {action} of {request} was answered {status} {}",
                    answer.body
                ));
            }
        }
    }

    /// Returns whether a task's journal has an item of this type.
    pub async fn has(&self, task: &str, kind: &str) -> bool {
        let page = self.get(&format!("/v1/tasks/{task}/items?limit=200")).await;
        page["items"]
            .as_array()
            .is_some_and(|items| items.iter().any(|item| item["type"] == kind))
    }

    /// Returns the outcome of the last result in a task's journal; `None` if the journal has no
    /// result.
    pub async fn last_outcome(&self, task: &str) -> Option<String> {
        let page = self.get(&format!("/v1/tasks/{task}/items?limit=200")).await;
        let last = page["items"]
            .as_array()?
            .iter()
            .rev()
            .find(|item| item["type"] == "tool_result")?;
        last["outcome"].as_str().map(str::to_owned)
    }

    pub fn acknowledge(&self, change: Acknowledged) {
        self.history.lock().unwrap().push(change);
    }

    pub async fn listed(&self) -> Vec<String> {
        self.listed_at("").await
    }

    /// Returns the ids of all tasks that the service lists for these further query parameters.
    pub async fn listed_at(&self, which: &str) -> Vec<String> {
        let (mut found, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = self
                .get(&format!("/v1/tasks?limit=200{which}{cursor}"))
                .await;
            let ids = page["tasks"].as_array().into_iter().flatten();
            found.extend(ids.filter_map(|task| task["task_id"].as_str().map(str::to_owned)));
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return found,
            }
        }
    }
}
