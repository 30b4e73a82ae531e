//! Agents that repeat the proposal of a call at a gate until they know how the call ended. The gate
//! recognizes a repeated proposal by its idempotency key if the agent runs the call. If the service
//! runs the call, the proposal has no key: the gate recognizes it by session, tool and arguments.

use serde_json::{Value, json};

use super::simulated_people::{Acknowledged, People};
use crate::support::pause;
use crate::support::postgres::unique;

/// The agent's key. It may propose calls and do nothing else.
pub const AGENT: &str = "gate-agent-key-0123456789";

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A person must approve the call, and the service runs it.
    HeldOurs,
    /// A rule allows the call, and the service runs it.
    AllowedOurs,
    /// A person must approve the call, and the agent runs it.
    HeldTheirs,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::HeldOurs, Self::AllowedOurs, Self::HeldTheirs];

    fn tool(self) -> &'static str {
        match self {
            Self::HeldOurs | Self::AllowedOurs => "refund",
            Self::HeldTheirs => "shell",
        }
    }
}

impl People {
    /// Proposes a call, and repeats the proposal until the agent knows how the call ended. Each
    /// call has a session of its own.
    pub async fn ask_at_gate(&self, kind: Kind) {
        let key = format!("gate-{}", unique());
        let amount = if matches!(kind, Kind::AllowedOurs) {
            5
        } else {
            90
        };
        let body = json!({
            "gate": "coding", "tool": kind.tool(), "session_id": key,
            "arguments": {"order": 1, "amount": amount},
        });
        loop {
            self.in_time("/v1/gate/calls");
            let reply = self.propose(kind, &key, &body).await;
            let Some((status, call)) = reply else {
                pause().await;
                continue;
            };
            let task = call["task_id"].as_str().unwrap_or_default().to_owned();
            match (status, call["decision"].as_str()) {
                (202, _) => {
                    self.acknowledge(Acknowledged::Created { task: task.clone() });
                    self.answer_once(&task).await;
                    pause().await;
                }
                (200, Some("allow")) if call["permit"].is_object() => {
                    self.run_and_report(&call).await;
                    return;
                }
                (200, _) => {
                    self.acknowledge(Acknowledged::Created { task });
                    return;
                }
                (status, _) => {
                    self.complain(format!("{kind:?} was answered {status} {call}"));
                    return;
                }
            }
        }
    }

    async fn propose(&self, kind: Kind, key: &str, body: &Value) -> Option<(u16, Value)> {
        let url = format!("{}/v1/gate/calls", self.anywhere());
        let post = self.http().post(url).bearer_auth(AGENT);
        let post = post.header("prefer", "wait=1").timeout(self.timeout);
        let post = match kind {
            Kind::HeldTheirs => post
                .header("idempotency-key", key)
                .header("holdpoint-runner", key),
            Kind::HeldOurs | Kind::AllowedOurs => post,
        };
        let reply = self.understood(post.json(body), "/v1/gate/calls").await;
        reply.map(|(status, _, body)| (status, body))
    }

    /// Runs a permitted call, as its agent would: sends the call to the tools' process
    /// (`tool_server.rs`), and reports the receipt from this process as the outcome.
    async fn run_and_report(&self, call: &Value) {
        let text = |name: &str| call[name].as_str().unwrap().to_owned();
        let run = self
            .http()
            .post(format!("{}/{}", self.tool_server.url, text("tool")))
            .header("idempotency-key", text("tool_call_id"))
            .header("holdpoint-task-id", text("task_id"))
            .body(text("arguments_text"));
        let receipt = run.send().await.unwrap().text().await.unwrap();
        let report =
            json!({"task_id": text("task_id"), "outcome": "succeeded", "content": receipt});
        loop {
            self.in_time("/v1/gate/outcomes");
            let post = self
                .http()
                .post(format!("{}/v1/gate/outcomes", self.anywhere()))
                .bearer_auth(AGENT)
                .timeout(self.timeout);
            match self
                .understood(post.json(&report), "/v1/gate/outcomes")
                .await
            {
                Some((200, ..)) => break,
                Some((status, _, body)) => {
                    self.complain(format!("a report was answered {status} {body}"));
                    break;
                }
                None => pause().await,
            }
        }
        self.acknowledge(Acknowledged::Created {
            task: text("task_id"),
        });
    }

    /// Brings the tasks of all calls at the gate to their ends, after the agents have finished.
    /// Returns these tasks. Records a complaint if there are fewer than `least` of them.
    pub async fn end_gate_calls(&self, least: u64) -> Vec<String> {
        let calls = self.listed_at("&agent=coding").await;
        if (calls.len() as u64) < least {
            self.complain(format!("vacuous: {} calls at the gate", calls.len()));
        }
        for task in &calls {
            // A call that may have run pauses its task with a reconcile request. `answer_once`
            // answers this request, so this loop ends once the task continues. The next loop
            // cancels the task if its call still waits for its agent.
            while self.answer_once(task).await == "Paused" {
                pause().await;
            }
            let path = format!("/v1/tasks/{task}/cancel");
            while self.answer_once(task).await == "Running" {
                self.post(&path, &Value::Null).await;
            }
        }
        calls
    }
}
