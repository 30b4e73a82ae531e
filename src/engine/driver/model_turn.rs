//! Calls the model for its next turn, and journals the answer. Invariant: everything in the prompt
//! is durable before the model is called.

use std::collections::BTreeSet;

use futures_util::future::{Either, select};
use serde_json::Value;

use super::{Driver, Stop};
use crate::engine::runtime::in_flight_model_calls::ModelCallGuard;
use crate::engine::runtime::leases::Lease;
use crate::engine::session::DeltaStream;
use crate::engine::session::task_draft::Stored;
use crate::model::{Answer, ModelClient, ModelError, OfferedTool, Prompt};
use crate::task::failure::{Failure, FailureCode};
use crate::task::id::CallId;
use crate::task::item::{Fact, ToolCall, Turn};
use crate::task::request::RequestKind;
use crate::task::step::Ending;
use crate::task::text::{nesting_depth, without_nul};
use crate::tool::catalog::CatalogEntry;
use crate::tool::{self, human};

/// The maximum nesting depth of a stored [`Turn::raw`]. A turn with a deeper `raw` is stored
/// without it. The parser of stored items accepts 127 levels in all, and the JSON of an endpoint
/// may have as many.
const MAX_RAW_DEPTH: usize = 100;

impl Driver<'_> {
    /// Commits the pending facts, calls the model, and journals the model's turn or the task's
    /// failure.
    pub(crate) async fn call_model(&mut self) -> Result<(), Stop> {
        let Some(client) = self.engine.models.get(&self.agent.model) else {
            let failure = Failure::new(
                FailureCode::Configuration,
                format!("There is no model {}.", self.agent.model),
            );
            return self.finish(Ending::Failed(failure)).await;
        };
        let guard = match self.register_model_call().await? {
            Ok(guard) => guard,
            Err(limit) => return self.finish(Ending::Failed(Failure::limit(limit))).await,
        };
        self.save(self.engine.take_lease()).await?;
        if self.session.lease.as_ref().is_some_and(Lease::is_passed_on) {
            // Another driver of this process has taken the task and calls the model.
            return Err(Stop::Lost);
        }
        let began = self.engine.clock.uptime();
        let answer = self.call_model_streaming(&**client, guard).await?;
        self.advance_now(began);
        // The tree must be read again: other tasks may have committed while the model answered.
        self.session.tree.fresh = false;
        match answer {
            Ok(answer) => {
                let answer = self.redact_answer(answer).await?;
                self.record_turn(answer);
            }
            Err(error) => {
                tracing::warn!(task = %self.session.task_id(), model = %self.agent.model, status = error.attempt_end.status, reason = error.attempt_end.reason, "the model failed");
                let detail = self.redact_error(&error.detail).await?;
                let failure = Failure::new(FailureCode::ModelFailed, detail);
                self.finish(Ending::Failed(failure)).await?;
            }
        }
        Ok(())
    }

    /// Calls the model with the stored conversation, and publishes the answer while it arrives. If
    /// the session has a fact that is not stored yet, returns `Lost` without calling the model,
    /// because a model may see only durable facts.
    async fn call_model_streaming(
        &mut self,
        client: &dyn ModelClient,
        guard: Option<ModelCallGuard>,
    ) -> Result<Result<Answer, ModelError>, Stop> {
        let redactor = self.redactor().await?;
        let Some(stored) = self.session.own.stored() else {
            tracing::error!(task = %self.session.task_id(), "a model call was refused: the task has facts that are not stored");
            return Err(Stop::Lost);
        };
        let prompt = self.prompt(stored);
        let (deltas, publisher) =
            DeltaStream::open(self.engine, self.session, prompt.turn, redactor, guard);
        self.session.delta_stream = Some(deltas);
        match select(
            client.answer(&prompt, &*publisher),
            std::pin::pin!(publisher.publish_arriving_text()),
        )
        .await
        {
            Either::Left((answer, _)) => Ok(answer),
            Either::Right((never, _)) => match never {},
        }
    }

    fn prompt(&self, stored: Stored<'_>) -> Prompt {
        let tools = self.agent.tools.iter().map(|offer| OfferedTool {
            name: offer.name.clone(),
            description: offer.description.clone(),
            parameters: offer.parameters.clone(),
        });
        let sub_agent_tools = self.agent.sub_agents.iter().filter_map(|sub| {
            let spec = &self.engine.catalog.agent(&sub.agent)?.spec;
            Some(OfferedTool {
                name: spec.name.clone(),
                description: tool::agent::description(&sub.agent, &sub.description),
                parameters: spec.parameters.clone(),
            })
        });
        let human_tools = self.human_tools().map(|entry| OfferedTool {
            name: entry.spec.name.clone(),
            description: entry.spec.description.clone(),
            parameters: entry.spec.parameters.clone(),
        });
        Prompt {
            system: self.system(),
            messages: stored.conversation(),
            tools: tools.chain(sub_agent_tools).chain(human_tools).collect(),
            turn: stored.next_turn(),
        }
    }

    fn human_tools(&self) -> impl Iterator<Item = &CatalogEntry> {
        self.agent
            .human
            .iter()
            .filter_map(|kind| self.engine.catalog.human(&self.agent.name, kind.tool()))
    }

    /// Returns the system prompt: the agent's instructions, and a paragraph that says when to ask a
    /// person. Returns `None` if the prompt would be empty.
    fn system(&self) -> Option<String> {
        let kinds: Vec<_> = self
            .human_tools()
            .filter_map(|entry| RequestKind::from_tool(&entry.spec.name))
            .collect();
        let own = Some(self.agent.instructions.clone()).filter(|text| !text.is_empty());
        let parts: Vec<_> = own
            .into_iter()
            .chain(human::prompt_paragraph(&kinds))
            .collect();
        (!parts.is_empty()).then(|| parts.join("\n\n"))
    }

    /// Journals the model's turn. Each call gets an id of this service. The provider's id of the
    /// call is kept, too, because the next prompts contain it. If the provider's id is empty, or is
    /// the id of an earlier call of this turn, the id of this service replaces it.
    fn record_turn(&mut self, answer: Answer) {
        let mut seen = BTreeSet::new();
        let delta_ids = self
            .session
            .delta_stream
            .as_ref()
            .map_or_else(Vec::new, |deltas| deltas.finish(&answer));
        let ids = delta_ids
            .into_iter()
            .chain(std::iter::repeat_with(|| CallId(self.engine.ids.fresh())));
        let tool_calls = answer
            .calls
            .into_iter()
            .zip(ids)
            .map(|(call, tool_call_id)| {
                let needs_own_id =
                    call.provider_id.is_empty() || !seen.insert(call.provider_id.clone());
                ToolCall {
                    tool_call_id,
                    name: without_nul(call.name),
                    arguments_text: without_nul(call.arguments_text),
                    holds_secret: call.holds_secret,
                    provider_id: if needs_own_id {
                        tool_call_id.to_string()
                    } else {
                        without_nul(call.provider_id)
                    },
                }
            });
        let turn = Turn {
            turn: self.session.own.progress.turns + 1,
            text: answer.text.map(without_nul),
            tool_calls: tool_calls.collect(),
            finish_reason: answer.finish_reason,
            usage: answer.usage,
            raw: if nesting_depth(&answer.raw) > MAX_RAW_DEPTH {
                Value::Null
            } else {
                answer.raw
            },
        };
        self.session.push(Fact::AssistantMessage(turn));
    }
}
