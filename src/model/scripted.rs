//! Implements a model that answers from rules, for the demonstration and for tests. The model is
//! deterministic: the same conversation gets the same answer. The model repeats its call ids in
//! every answer, as some providers do, so that tests find code that relies on unique ids. Answers
//! are emitted in pieces. If the sink has a listener, the model pauses before the pieces. The sum
//! of these pauses is the rule's `delay`. In the built-in script, if a rule has no `delay`, the sum
//! grows with the number of pieces, up to `MAX_PACED_TIME`. Without a listener, the whole `delay`
//! comes before the first piece.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use self::script::{LastAuthor, MatchInput, Script, ScriptRule};
use super::protocol::{MAX_CALLS, TOO_MANY_CALLS};
use super::{
    Answer, AnswerCall, AttemptEnd, ModelClient, ModelError, OfferedTool, PieceSink, Prompt,
};
use crate::task::item::{FinishReason, PartType, Usage};
use crate::task::text::without_nul;
use crate::task::transcript::Message;
use crate::world::{Clock, Mistakes};

mod ordered_value;
mod pieces;
mod script;
mod template;

/// The name and text of the built-in script.
const BUILT_IN: (&str, &str) = ("builtin:refunds", include_str!("refunds.yaml"));
const NO_RULE: &str = "This model is scripted, and no rule of its script matches what was said.";

/// How long the built-in script waits before it emits an answer to a listener. A page reloads after
/// it has posted a decision, and this wait gives the page time to listen again.
const THINKING_TIME: Duration = Duration::from_millis(350);
/// The maximum pause before each piece of an answer, if the model pauses (see `is_paced`).
const PAUSE_PER_PIECE: Duration = Duration::from_millis(60);
/// The maximum time for all pieces of an answer, if the model pauses (see `is_paced`).
const MAX_PACED_TIME: Duration = Duration::from_millis(600);

pub(crate) struct Scripted {
    name: String,
    script: Script,
    /// Whether the model pauses before the pieces of an answer even if the rule has no `delay`. The
    /// model pauses only if the sink has a listener.
    is_paced: bool,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scripted")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Scripted {
    /// Loads a script: `builtin:refunds`, or the path of a file. Adds the mistakes to `mistakes` at
    /// the place `models.NAME.script`, with the file and the line. A rule adds only its first
    /// mistake. Returns `None` if there are mistakes.
    pub(crate) fn load(
        name: &str,
        source: &str,
        clock: Arc<dyn Clock>,
        mistakes: &mut Mistakes,
    ) -> Option<Self> {
        let place = ["models", name, "script"];
        let (built_in, rules) = BUILT_IN;
        if source == built_in {
            return Some(Self {
                is_paced: true,
                ..Self::read(name, (source, rules), clock, mistakes)?
            });
        }
        if let Some(unknown) = source.strip_prefix("builtin:") {
            mistakes.add(
                &place,
                format!("there is no built-in script `{unknown}`, only `{built_in}`"),
            );
            return None;
        }
        match std::fs::read_to_string(source) {
            Ok(rules) => Self::read(name, (source, &rules), clock, mistakes),
            Err(error) => {
                mistakes.add(
                    &place,
                    format!("the script `{source}` cannot be read: {error}"),
                );
                None
            }
        }
    }

    /// Reads a script from the text `rules`, which comes from `source`, and reports mistakes as
    /// [`Scripted::load`] does.
    pub(crate) fn read(
        name: &str,
        (source, rules): (&str, &str),
        clock: Arc<dyn Clock>,
        mistakes: &mut Mistakes,
    ) -> Option<Self> {
        match Script::read(rules) {
            Ok(script) => Some(Self {
                name: name.to_owned(),
                script,
                is_paced: false,
                clock,
            }),
            Err(found) => {
                for detail in found {
                    let detail = format!("the script `{source}`: {detail}");
                    mistakes.add(&["models", name, "script"], detail);
                }
                None
            }
        }
    }

    fn fill_rule(
        &self,
        rule: &ScriptRule,
        match_input: &MatchInput<'_>,
        tools: &[OfferedTool],
    ) -> (Option<String>, Vec<AnswerCall>) {
        let captures = self.script.captures(rule, match_input);
        let text = rule
            .say
            .as_ref()
            .map(|say| without_nul(say.text(&captures)));
        let calls = rule.calls.iter().enumerate().map(|(at, call)| {
            let name = without_nul(call.name.text(&captures));
            let tool = tools.iter().find(|tool| tool.name == name);
            let schema = tool.map(|tool| &tool.parameters);
            AnswerCall {
                provider_id: format!("call_{at}"),
                name,
                arguments_text: without_nul(call.arguments.text(&captures, schema)),
                holds_secret: false,
            }
        });
        (text, calls.collect())
    }
}

#[async_trait]
impl ModelClient for Scripted {
    async fn answer(&self, prompt: &Prompt, sink: &dyn PieceSink) -> Result<Answer, ModelError> {
        let began = self.clock.uptime();
        let answer = self.answer_paced(prompt, sink).await;
        let outcome = if answer.is_ok() { "answered" } else { "failed" };
        let took = self.clock.uptime().saturating_sub(began);
        super::measure(&self.name, outcome, took);
        answer
    }
}

impl Scripted {
    async fn answer_paced(
        &self,
        prompt: &Prompt,
        sink: &dyn PieceSink,
    ) -> Result<Answer, ModelError> {
        let match_input = match_input(prompt);
        let rule = self.script.rule(&match_input);
        let delay = rule.and_then(|rule| rule.delay).unwrap_or_default();
        let fail = rule.and_then(|rule| rule.fail);
        let has_listener = sink.has_listener();
        if !delay.is_zero() && (fail.is_some() || !has_listener) {
            self.clock.sleep(delay).await;
        }
        if let Some(status) = fail {
            let detail = format!(
                "Model `{}` gave no usable answer: its script answers with status {status}.",
                self.name
            );
            return Err(ModelError {
                detail,
                attempt_end: AttemptEnd {
                    status: Some(status),
                    reason: None,
                },
            });
        }
        let (text, calls) = rule.map_or_else(
            || (Some(NO_RULE.to_owned()), Vec::new()),
            |rule| self.fill_rule(rule, &match_input, &prompt.tools),
        );
        if calls.len() > MAX_CALLS {
            let detail = format!(
                "Model `{}` gave no usable answer: {}.",
                self.name, *TOO_MANY_CALLS
            );
            return Err(ModelError::new(detail));
        }
        let text = if calls.is_empty() {
            Some(text.unwrap_or_default())
        } else {
            text
        };
        let pieces = pieces::pieces(text.as_deref(), &calls);
        let time = match has_listener {
            true if self.is_paced && delay.is_zero() => {
                self.clock.sleep(THINKING_TIME).await;
                paced_time(pieces.len())
            }
            true => delay,
            false => Duration::ZERO,
        };
        pieces::emit(&pieces, time, &*self.clock, sink).await;
        Ok(answer(prompt, text, calls))
    }
}

fn paced_time(pieces: usize) -> Duration {
    u32::try_from(pieces).map_or(MAX_PACED_TIME, |pieces| {
        MAX_PACED_TIME.min(PAUSE_PER_PIECE.saturating_mul(pieces))
    })
}

fn match_input(prompt: &Prompt) -> MatchInput<'_> {
    let user_text_of = |message: &Message| match message {
        Message::User { parts, .. } => {
            let texts = parts
                .iter()
                .filter(|part| part.content_type == PartType::Text);
            Some(
                texts
                    .map(|part| part.content.as_str())
                    .collect::<Vec<_>>()
                    .join("\n"),
            )
        }
        Message::Assistant { .. } | Message::Result { .. } => None,
    };
    let (last, text) = match prompt.messages.last() {
        Some(message @ Message::User { .. }) => (
            Some(LastAuthor::User),
            user_text_of(message).unwrap_or_default(),
        ),
        Some(Message::Result { content, name, .. }) => {
            (Some(LastAuthor::Tool(name)), content.clone())
        }
        Some(Message::Assistant { .. }) | None => (None, String::new()),
    };
    let mut answers = 0;
    let mut user_text = String::new();
    for message in prompt.messages.iter().rev() {
        if let Some(text) = user_text_of(message) {
            user_text = text;
            break;
        }
        answers += u32::from(matches!(message, Message::Assistant { .. }));
    }
    MatchInput {
        last,
        text,
        turn: prompt.turn,
        user_text,
        user_turn: prompt.turn.saturating_sub(answers),
    }
}

fn answer(prompt: &Prompt, text: Option<String>, calls: Vec<AnswerCall>) -> Answer {
    let finish_reason = if calls.is_empty() {
        FinishReason::Stop
    } else {
        FinishReason::ToolCalls
    };
    let raw = raw(text.as_deref(), &calls);
    let prompt_tokens = 10 * i64::try_from(prompt.messages.len()).unwrap_or(0);
    let words = text
        .as_ref()
        .map_or(0, |text| text.split_whitespace().count());
    let completion_tokens = i64::try_from(words + 5 * calls.len()).unwrap_or(0);
    let usage = Usage {
        prompt_tokens,
        completion_tokens,
        total_tokens: prompt_tokens + completion_tokens,
    };
    Answer {
        text,
        calls,
        finish_reason,
        usage,
        raw,
    }
}

/// Returns the turn as a Chat Completions message, so that another model can continue the
/// conversation.
fn raw(text: Option<&str>, calls: &[AnswerCall]) -> Value {
    let mut raw = json!({"role": "assistant", "content": text});
    if let (Some(members), false) = (raw.as_object_mut(), calls.is_empty()) {
        let calls = calls.iter().map(|call| {
            json!({"id": call.provider_id, "type": "function",
                "function": {"name": call.name, "arguments": call.arguments_text}})
        });
        members.insert("tool_calls".to_owned(), calls.collect());
    }
    raw
}

#[cfg(test)]
mod tests;
