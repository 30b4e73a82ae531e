//! The service as a process on a database, and the HTTP requests that its clients send.

use std::process::Child;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::test_app::ALICE;

/// A running `holdpoint serve`. It is killed when this value is dropped.
pub struct Process {
    pub child: Child,
    pub url: String,
    pub http: reqwest::Client,
}

pub fn id(task: &Value) -> String {
    task["task_id"]
        .as_str()
        .unwrap_or_else(|| panic!("no task: {task}"))
        .to_owned()
}

impl Process {
    pub async fn ready(&self) -> Option<u16> {
        let asked = self
            .http
            .get(format!("{}/readyz", self.url))
            .timeout(Duration::from_secs(10))
            .send()
            .await;
        crate::support::pause().await;
        asked.ok().map(|reply| reply.status().as_u16())
    }

    pub async fn post(&self, path: &str, body: &Value, wait: u32) -> (u16, Value) {
        let request = self
            .http
            .post(format!("{}{path}", self.url))
            .bearer_auth(ALICE)
            .json(body);
        let reply = request
            .header("prefer", format!("wait={wait}"))
            .send()
            .await
            .unwrap();
        (reply.status().as_u16(), reply.json().await.unwrap())
    }

    pub async fn get(&self, path: &str) -> Value {
        let request = self
            .http
            .get(format!("{}{path}", self.url))
            .bearer_auth(ALICE);
        request.send().await.unwrap().json().await.unwrap()
    }

    pub async fn task(&self, input: &str, wait: u32) -> Value {
        let (status, task) = self.post("/v1/tasks", &json!({"input": input}), wait).await;
        assert!(status == 201 || status == 202, "{task}");
        task
    }

    /// Answers the first open request of a task, and returns the task. The service delays its reply
    /// until the task waits or has ended, but for at most `wait` seconds.
    pub async fn answer(&self, task: &Value, answer: &Value, wait: u32) -> Value {
        let request = task["pending"][0]["request_id"]
            .as_str()
            .unwrap_or_else(|| panic!("nothing is asked: {task}"));
        let (status, task) = self.post(&format!("/resume/{request}"), answer, wait).await;
        assert!(status == 200 || status == 202, "{task}");
        task
    }

    pub async fn settled(&self, task: &str) -> Value {
        loop {
            let request = self
                .http
                .get(format!("{}/v1/tasks/{task}", self.url))
                .bearer_auth(ALICE);
            let task: Value = request
                .header("prefer", "wait=30")
                .send()
                .await
                .unwrap()
                .json()
                .await
                .unwrap();
            if task["status"] != "Running" {
                return task;
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
