//! Calls at a gate around a restore or a promotion. Alice's agent runs these calls itself. A call
//! whose permit the agent got before the restore gets no permit again without a person's decision.

use reqwest::RequestBuilder;
use serde_json::{Value, json};

use super::process::{Process, id};
use crate::api::gate::{AGENT, bash};

/// The calls of the backup, as the service answered their proposals. Each call has a session of its
/// own, so that no call is held because of another call.
#[derive(Default)]
pub struct GateCalls {
    /// A rule allows this call, and the agent has its permit. The lost history has its outcome.
    permitted: Value,
    /// This call is approved. The lost history has its permit.
    approved: Value,
    /// This call waits for an approval. The lost history has the approval and the permit.
    held: Value,
}

impl GateCalls {
    /// Brings a call into each state.
    pub async fn populate(process: &Process) -> Self {
        let permitted = send(proposal(process, "permitted", "ls", 10)).await;
        assert_permitted(&permitted);
        let approved = send(named_proposal(process, "approved", 0)).await;
        assert_no_permit(&approved, "pending");
        approve(process, &approved.1).await;
        let held = send(proposal(process, "held", "make", 0)).await;
        assert_no_permit(&held, "pending");
        Self {
            permitted: permitted.1,
            approved: approved.1,
            held: held.1,
        }
    }

    /// Writes history that the backup does not contain: the agent gets the permits of the other
    /// calls and of a new call, and reports the outcomes of all calls.
    pub async fn go_on(&self, process: &Process) {
        approve(process, &self.held).await;
        let permits = [
            send(named_proposal(process, "approved", 30)).await,
            send(proposal(process, "held", "make", 30)).await,
            send(proposal(process, "lost", "ls", 30).header("idempotency-key", "lost")).await,
        ];
        for permit in &permits {
            assert_permitted(permit);
        }
        let mut tasks: Vec<String> = permits.iter().map(|(_, call)| id(call)).collect();
        assert_eq!(tasks[..2], [id(&self.approved), id(&self.held)]);
        tasks.push(id(&self.permitted));
        for task in tasks {
            assert_settled(&report(process, "task_id", &task).await);
        }
    }

    /// Asserts that no call gets a permit after the loss of the history. Then decides, and asserts
    /// that the decided calls get their permits.
    pub async fn nothing_runs_again(&self, process: &Process) {
        let equal = send(proposal(process, "permitted", "ls", 0)).await;
        assert_no_permit(&equal, "pending");
        assert_ne!(id(&equal.1), id(&self.permitted));
        let reason = &equal.1["request"]["tool_calls"][0]["reason"];
        assert!(
            reason.to_string().contains("The same call is being run."),
            "{reason}"
        );
        assert_settled(&report(process, "task_id", &id(&self.permitted)).await);

        let in_doubt = send(named_proposal(process, "approved", 0)).await;
        assert_no_permit(&in_doubt, "doubtful");
        let approved = process.settled(&id(&self.approved)).await;
        let request = only_request(&approved);
        let details = &request["details"];
        assert_eq!(
            (&request["kind"], &details["sent_at"]),
            (&json!("reconcile"), &Value::Null),
            "{request}"
        );
        assert!(
            details["problem"].as_str().unwrap().contains("restored"),
            "{request}"
        );

        let still_held = send(proposal(process, "held", "make", 0)).await;
        assert_no_permit(&still_held, "pending");
        let held = process.settled(&id(&self.held)).await;
        let request = only_request(&held);
        assert_eq!(
            request["tool_calls"][0]["warnings"][0]["code"], "may_already_have_run",
            "{request}"
        );

        let (status, refused) = report(process, "key", "lost").await;
        assert_eq!((status, &refused["code"]), (404, &json!("not_found")));

        let retry = json!({"action": "retry"});
        process.answer(&approved, &retry, 0).await;
        approve(process, &self.held).await;
        for (request, call) in [
            (named_proposal(process, "approved", 30), &self.approved),
            (proposal(process, "held", "make", 30), &self.held),
        ] {
            let permit = send(request).await;
            assert_permitted(&permit);
            assert_eq!(id(&permit.1), id(call));
        }
    }
}

fn post(process: &Process, path: &str, body: &Value) -> RequestBuilder {
    let url = format!("{}{path}", process.url);
    process.http.post(url).bearer_auth(AGENT).json(body)
}

/// Returns the proposal of a command in this session. The agent waits at most `wait` seconds.
fn proposal(process: &Process, session: &str, command: &str, wait: u32) -> RequestBuilder {
    let mut body = bash(command);
    body["session_id"] = json!(session);
    post(process, "/v1/gate/calls", &body).header("prefer", format!("wait={wait}"))
}

/// Returns the proposal of a call that its idempotency key names. The agent also names its process,
/// so that it may get a lost answer again.
fn named_proposal(process: &Process, name: &str, wait: u32) -> RequestBuilder {
    proposal(process, name, "make", wait)
        .header("idempotency-key", name)
        .header("holdpoint-runner", name)
}

async fn send(request: RequestBuilder) -> (u16, Value) {
    let reply = request.send().await.unwrap();
    (reply.status().as_u16(), reply.json().await.unwrap())
}

/// Reports the success of a call. The member `member` of the report names the call.
async fn report(process: &Process, member: &str, call: &str) -> (u16, Value) {
    let body = json!({(member): call, "outcome": "succeeded"});
    send(post(process, "/v1/gate/outcomes", &body)).await
}

/// Approves a call as Alice, its owner.
async fn approve(process: &Process, call: &Value) {
    let task = process.settled(&id(call)).await;
    process
        .answer(&task, &json!({"action": "approve"}), 0)
        .await;
}

fn only_request(task: &Value) -> &Value {
    let [request] = &task["pending"].as_array().unwrap()[..] else {
        panic!("one request is open: {task}")
    };
    request
}

#[track_caller]
fn assert_permitted((status, call): &(u16, Value)) {
    assert_eq!(
        (*status, &call["state"], &call["permit"]["attempt"]),
        (200, &json!("started"), &json!(1)),
        "{call}"
    );
}

#[track_caller]
fn assert_no_permit((status, call): &(u16, Value), state: &str) {
    assert_eq!(
        (*status, &call["state"], &call["permit"]),
        (202, &json!(state), &Value::Null),
        "{call}"
    );
}

#[track_caller]
fn assert_settled((status, call): &(u16, Value)) {
    let shown = (*status, &call["state"], &call["outcome"]);
    let expected = (200, &json!("settled"), &json!("succeeded"));
    assert_eq!(shown, expected, "{call}");
}
