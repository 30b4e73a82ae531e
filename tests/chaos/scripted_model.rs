//! The scripted model. Its answer follows from the conversation alone, so it is the same before and
//! after any crash. The model checks that every conversation is well-formed and that the model's
//! own answers come back unchanged.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::process::Process;
use super::stored_prompts::user_text;
use crate::support::fake_chat_completions::text_answer;

/// The model's answer: either calls of tools, each given as (name, text of the arguments), or the
/// final text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptedAnswer {
    Calls(Vec<(&'static str, String)>),
    Text(String),
}

#[derive(Clone)]
pub struct Model {
    pub base_url: String,
    inner: Arc<Inner>,
}

#[derive(Default)]
struct KillTarget {
    process: Option<Pid>,
    survived: HashSet<String>,
}

#[derive(Default)]
struct Inner {
    complaints: Mutex<BTreeSet<String>>,
    prompts: Mutex<Vec<Value>>,
    /// The process that each new prompt kills; `None` if prompts kill no process.
    target: Mutex<Option<KillTarget>>,
    failing: Mutex<HashSet<String>>,
}

impl Model {
    pub async fn start() -> Self {
        let inner = Arc::new(Inner::default());
        let router = Router::new()
            .route("/v1/chat/completions", post(answer))
            .with_state(Arc::clone(&inner));
        let address =
            crate::support::serve(router.layer(axum::extract::DefaultBodyLimit::disable())).await;
        Self {
            base_url: format!("http://{address}/v1"),
            inner,
        }
    }

    pub fn complaints(&self) -> Vec<String> {
        self.inner
            .complaints
            .lock()
            .unwrap()
            .iter()
            .cloned()
            .collect()
    }

    pub fn prompts(&self) -> Vec<Value> {
        self.inner.prompts.lock().unwrap().clone()
    }

    /// From now on, the model kills the process named by [`Self::is_asked_by`] at each new prompt.
    pub fn kills(&self) {
        *self.inner.target.lock().unwrap() = Some(KillTarget::default());
    }

    /// Names the process that calls the model from now on. After a call of [`Self::kills`], the
    /// model kills this process at each prompt with new messages.
    pub fn is_asked_by(&self, process: &Process) {
        if let Some(target) = self.inner.target.lock().unwrap().as_mut() {
            target.process = process.pid();
        }
    }

    /// Makes the model answer with an error if the last user message of a prompt is `message`. The
    /// errors end when `succeeds_on` is called with the same message.
    pub fn fails_on(&self, message: &str) {
        self.inner
            .failing
            .lock()
            .unwrap()
            .insert(message.to_owned());
    }

    pub fn succeeds_on(&self, message: &str) {
        self.inner.failing.lock().unwrap().remove(message);
    }
}

impl Inner {
    fn kills_for(&self, messages: &Value) -> bool {
        let mut target = self.target.lock().unwrap();
        let Some(target) = target
            .as_mut()
            .filter(|target| !target.survived.contains(&messages.to_string()))
        else {
            return false;
        };
        target.survived.insert(messages.to_string());
        target
            .process
            .is_some_and(|process| kill_process(process, Signal::KILL).is_ok())
    }
}

async fn answer(State(inner): State<Arc<Inner>>, Json(body): Json<Value>) -> Response {
    let messages = body["messages"].as_array().cloned().unwrap_or_default();
    inner.prompts.lock().unwrap().push(body["messages"].clone());
    if inner.kills_for(&body["messages"]) {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let (said, turn, complaints) = read(&messages);
    inner.complaints.lock().unwrap().extend(complaints);
    if inner.failing.lock().unwrap().contains(&said) {
        return (
            StatusCode::BAD_REQUEST,
            Json(json!({"error": {"message": "failing"}})),
        )
            .into_response();
    }
    match scripted_answer(&said, turn) {
        ScriptedAnswer::Text(text) => Json(text_answer(&text)).into_response(),
        ScriptedAnswer::Calls(calls) => {
            let calls: Vec<_> = calls
                .iter()
                .enumerate()
                .map(|(index, call)| tool_call(turn, index, call))
                .collect();
            let message = json!({"role": "assistant", "content": null, "tool_calls": calls});
            Json(json!({
                "id": "chatcmpl", "object": "chat.completion", "model": "fake",
                "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
                "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
            }))
            .into_response()
        }
    }
}

fn tool_call(turn: usize, index: usize, (name, arguments): &(&str, String)) -> Value {
    let function = json!({"name": name, "arguments": arguments});
    json!({"id": format!("call_{turn}_{index}"), "type": "function", "function": function})
}

/// Returns the last user message, the number of the model's answers since that message, and the
/// errors in the conversation.
fn read(messages: &[Value]) -> (String, usize, Vec<String>) {
    let (mut said, mut turn, mut wrong) = (String::new(), 0, Vec::new());
    let mut rest = messages.iter().peekable();
    while let Some(message) = rest.next() {
        match message["role"].as_str() {
            Some("user") => {
                (said, turn) = (user_text(message), 0);
            }
            Some("assistant") => {
                if !same(message, &scripted_answer(&said, turn), turn) {
                    wrong.push(format!("{said}: answer {turn} came back as {message}"));
                }
                turn += 1;
                for call in message["tool_calls"].as_array().into_iter().flatten() {
                    let result = rest.next_if(|next| next["role"] == "tool");
                    if result.is_none_or(|result| result["tool_call_id"] != call["id"]) {
                        wrong.push(format!(
                            "{said}: {} has no result right after its turn",
                            call["id"]
                        ));
                    }
                }
            }
            Some("tool") => wrong.push(format!(
                "{said}: a result of no call, {}",
                message["tool_call_id"]
            )),
            _ => {}
        }
    }
    (said, turn, wrong)
}

fn same(message: &Value, expected: &ScriptedAnswer, turn: usize) -> bool {
    match expected {
        ScriptedAnswer::Text(text) => message["content"] == text.as_str(),
        ScriptedAnswer::Calls(calls) => {
            let calls: Vec<_> = calls
                .iter()
                .enumerate()
                .map(|(index, call)| tool_call(turn, index, call))
                .collect();
            message["tool_calls"] == json!(calls)
        }
    }
}

/// Returns the answer to the user message `said`, which has the form `<plan> <number>`, after
/// `turn` earlier answers to the same message.
fn scripted_answer(said: &str, turn: usize) -> ScriptedAnswer {
    let (plan, number) = said.split_once(' ').unwrap_or((said, "0"));
    let number: u64 = number.parse().unwrap_or(0);
    let call = |name: &'static str, index: u64, amount: u64, fault: &str, wait: u64| {
        // No two calls of a task are equal, so the rejection of one call does not apply to another.
        let order = number * 100 + turn as u64 * 10 + index;
        (
            name,
            format!(r#"{{"order":{order},"amount":{amount},"fault":"{fault}","wait":{wait}}}"#),
        )
    };
    // Each message to a sub-agent has a unique number.
    let to = |agent: &'static str, index: u64, plan: &str| {
        (
            agent,
            format!(
                r#"{{"task":"{plan} {}"}}"#,
                number * 100 + turn as u64 * 10 + index
            ),
        )
    };
    let calls = match (plan, turn) {
        ("long", 0) => vec![call("lookup", 0, 0, "", 1_300)],
        ("long", 1) => vec![
            call("lookup", 0, 0, "", 0),
            call("lookup", 1, 0, "drop", 0),
            call("tag", 2, 0, "", 0),
            call("refund", 3, 5, "", 0),
        ],
        ("long", 2) => vec![call("refund", 0, 50, "", 0), call("tag", 1, 0, "drop", 0)],
        ("long", 3) => vec![call("refund", 0, 60, "no", 0)],
        ("small", 0) => vec![call("refund", 0, 5, "", 0)],
        ("doubt", 0) => vec![call("refund", 0, 5, "drop", 0), call("lookup", 1, 0, "", 0)],
        ("doubt", 1) => vec![call("refund", 0, 6, "", 0)],
        ("short", 0) => vec![call("short", 0, 5, "", 0)],
        ("held", 0) => vec![call("refund", 0, 50, "", 0)],
        ("cut", 0) => vec![call("refund", 0, 7, "", 1_300)],
        ("storm", turn) => storm(2 + seeded_number(number, 0) % 3, number, turn, call),
        ("tree", 0) => vec![
            to("scout", 0, "branch"),
            to("clerk", 1, "leaf"),
            call("lookup", 2, 0, "", 20),
            to("clerk", 3, "leaf"),
            to("scout", 4, "leaf"),
        ],
        ("tree", 1) => vec![to("clerk", 0, "leaf"), call("refund", 1, 50, "", 20)],
        ("branch", 0) => vec![
            to("hand", 0, "leaf"),
            to("hand", 1, "leaf"),
            call("refund", 2, 5, "", 20),
        ],
        ("leaf", turn) => storm(1 + seeded_number(number, 0) % 2, number, turn, call),
        _ => Vec::new(),
    };
    if calls.is_empty() {
        ScriptedAnswer::Text(format!("done with {said}"))
    } else {
        ScriptedAnswer::Calls(calls)
    }
}

/// Returns the calls of one turn, whose number is `turn`, counted from 0. Each of the first `turns`
/// turns has one to three calls. Every later turn has no calls.
///
/// A few calls have a non-empty argument `fault`. The value `no` makes the simulated people reject
/// the call. Any other value names the way in which the test's tool misbehaves.
fn storm(
    turns: u64,
    number: u64,
    turn: usize,
    call: impl Fn(&'static str, u64, u64, &str, u64) -> (&'static str, String),
) -> Vec<(&'static str, String)> {
    if turn as u64 >= turns {
        return Vec::new();
    }
    let draw = |what: u64| seeded_number(number.wrapping_mul(1_000) + turn as u64, what);
    let one = |index: u64| {
        let wait = 20 + draw(index * 10) % 180;
        let fault = match draw(index * 10 + 1) % 100 {
            0..3 => "drop",
            3..6 => "fail",
            6..7 => "hang",
            _ => "",
        };
        match draw(index * 10 + 2) % 8 {
            0..2 => call("lookup", index, 0, fault, wait),
            2..4 => call("tag", index, 0, fault, wait),
            4..6 => call("refund", index, 1 + draw(index * 10 + 3) % 20, fault, wait),
            6 => call("refund", index, 50, fault, wait),
            _ => call(
                "refund",
                index,
                60,
                if draw(index * 10 + 4) % 2 == 0 {
                    "no"
                } else {
                    fault
                },
                wait,
            ),
        }
    };
    (0..=draw(7) % 3).map(one).collect()
}

/// Returns a pseudo-random number, computed from `seed` and `what`.
pub fn seeded_number(seed: u64, what: u64) -> u64 {
    let mut value = seed
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .wrapping_add(what.wrapping_mul(0xD1B5_4A32_D192_ED03));
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (value ^ (value >> 31)) >> 8
}
