//! Builds the facts of an imported journal, in particular those of its calls.

use holdpoint::task::id::CallId;
use holdpoint::task::item::{Fact, FinishReason, Outcome, ToolCall, ToolResult, Turn, Usage};
use holdpoint::task::status::TaskStatus;
use holdpoint::task::tool_spec::{Effect, ToolKind};
use holdpoint::task::verdict::{Judgement, Terms, Verdict};
use serde_json::Value;

use super::TURNS;
use crate::store::store_fixture::{fresh, said, status};

#[derive(Clone)]
pub struct PastCall {
    pub id: CallId,
    pub name: &'static str,
    pub arguments: &'static str,
    pub provider_id: String,
}

pub fn refund() -> PastCall {
    past("refund", r#"{"order":1,"amount":5}"#)
}

pub fn large() -> PastCall {
    past("refund", r#"{"order":1,"amount":120}"#)
}

pub fn lookup() -> PastCall {
    past("lookup", r#"{"order":1}"#)
}

pub fn past(name: &'static str, arguments: &'static str) -> PastCall {
    let id = CallId(fresh());
    PastCall {
        id,
        name,
        arguments,
        provider_id: id.to_string(),
    }
}

impl PastCall {
    pub fn known_as(mut self, provider_id: &str) -> Self {
        provider_id.clone_into(&mut self.provider_id);
        self
    }

    pub fn effect(&self) -> Effect {
        if self.name == "lookup" {
            Effect::ReadOnly
        } else {
            Effect::Once
        }
    }

    pub fn judged(&self, verdict: Verdict) -> Fact {
        let terms = (verdict == Verdict::Hold).then(Terms::default);
        let judgement = Judgement {
            terms,
            ..Judgement::new(verdict)
        };
        Fact::Judged {
            tool_call_id: self.id,
            judgement,
            effect: self.effect(),
            performer: ToolKind::Http,
        }
    }

    pub fn started(&self, attempt: u32) -> Fact {
        Fact::ToolStarted {
            tool_call_id: self.id,
            name: self.name.to_owned(),
            digest: "sha256:0".to_owned(),
            attempt,
            timeout_ms: 5000,
            replica: "one that is gone".to_owned(),
            grant: None,
        }
    }

    pub fn result(&self, outcome: Outcome, content: &str) -> ToolResult {
        let (name, content) = (self.name.to_owned(), content.to_owned());
        ToolResult {
            tool_call_id: self.id,
            name,
            outcome,
            content,
            http_status: None,
            suspect: false,
            reported: false,
        }
    }

    pub fn succeeded(&self) -> Fact {
        Fact::ToolResult(self.result(Outcome::Succeeded, "ok"))
    }
}

pub fn asks(number: u32, calls: &[&PastCall]) -> Fact {
    let tool_calls = calls.iter().map(|call| ToolCall {
        tool_call_id: call.id,
        name: call.name.to_owned(),
        arguments_text: call.arguments.to_owned(),
        holds_secret: false,
        provider_id: call.provider_id.clone(),
    });
    Fact::AssistantMessage(Turn {
        turn: number,
        text: None,
        tool_calls: tool_calls.collect(),
        finish_reason: FinishReason::ToolCalls,
        usage: Usage::default(),
        raw: Value::Null,
    })
}

/// Returns 200 calls with results, in 40 turns, with a user message after every eighth turn.
pub fn history() -> Vec<Fact> {
    let mut facts = vec![status(TaskStatus::Running), said("hello")];
    for number in 1..=TURNS {
        let calls: Vec<_> = (0..5).map(|_| lookup()).collect();
        facts.push(asks(number, &calls.iter().collect::<Vec<_>>()));
        for call in &calls {
            facts.extend([
                call.judged(Verdict::Allow),
                call.started(1),
                call.succeeded(),
            ]);
        }
        if number.is_multiple_of(8) {
            facts.push(said("go on"));
        }
    }
    facts
}
