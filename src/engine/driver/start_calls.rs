//! The steps that look at the world: judging, asking the model, running calls. Each pushes facts; `drive.rs` commits.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::Engine;
use super::drive::Stop;
use super::integrity::damage_before;
use super::session::TaskSession;
use super::draft::Stored;
use crate::agent::Agent;
use crate::model::{Answer, OfferedTool, Prompt};
use crate::policy::Case;
use crate::task::change::LeaseChange;
use crate::task::restore::HISTORY_LOST;
use crate::task::id::CallId;
use crate::task::item::{Fact, FinishReason, Outcome, ToolCall, Turn};
use crate::task::request::RequestKind;
use crate::task::call_state::{Phase, CallState};
use crate::task::step::{Budget, Ending};
use crate::task::text::{cleaned, cut};
use crate::task::tool_spec::{Effect, ToolKind};
use crate::task::turn::Last;
use crate::task::verdict::{Judgement, Terms, Verdict};
use crate::tool::catalog::Entry;
use crate::tool::{self, Invocation, arguments, human};

/// Why a call does not run whose arguments are not stored as the model wrote them.
const HOLDS_SECRET: &str =
    "the arguments hold a value that is kept secret; it is not repeated here, and no call is run with it";
/// Why a call is held in a tree of which something is damaged.
const TREE_DAMAGED: &str = "What is stored of another task of this tree cannot be read: what it has done is not known.";

impl Engine {
    /// The tool of a name, if this agent is offered it (byte by byte): what is offered is pinned, the tool that performs
    /// it is today's.
    pub(super) fn offered<'a>(&'a self, agent: &Agent, name: &str) -> Option<&'a Entry> {
        if agent.asks(name).is_some() {
            return self.catalog.human(&agent.name, name);
        }
        match agent.sub_agent(name) {
            Some(sub) => self.catalog.agent(&sub.agent),
            None => agent.offer(name).and_then(|offer| self.catalog.get(&offer.name)),
        }
    }

    pub(super) fn take(&self) -> LeaseChange {
        LeaseChange::Take { owner: self.replica.clone(), time: self.settings.lease }
    }

    pub(super) fn budget(&self, session: &TaskSession, agent: &Agent) -> Budget {
        // Nobody else serves this database, or it is this process, which knows its own flights.
        let gone = |replica: &str| self.store.is_sole() || replica == self.replica;
        let mut budget = session.budget(self.settings.lease, gone);
        budget.running.extend(self.in_flight_calls.calls());
        budget.spent = self.spent(session, agent, &[]);
        budget.sessions = agent.sub_agents.iter().filter(|sub| sub.session).map(|sub| sub.agent.clone()).collect();
        budget
    }

    /// When the last attempt that may still be running is over, from now.
    pub(super) fn attempts_over_in(&self, session: &TaskSession, agent: &Agent) -> Option<Duration> {
        let running = self.budget(session, agent).running;
        let over = session.own.progress.unfinished().filter(|state| running.contains(&state.call.tool_call_id));
        let over = over.filter(|state| !state.effect.repeatable()).filter_map(|state| state.start.as_ref());
        over.map(|start| (start.at + start.timeout + self.settings.lease).since(session.now)).max()
    }

    /// What the model is shown.
    pub(super) fn prompt(&self, stored: Stored<'_>, agent: &Agent) -> Prompt {
        let tools = agent.tools.iter().map(|offer| OfferedTool {
            name: offer.name.clone(),
            description: offer.description.clone(),
            parameters: offer.parameters.clone(),
        });
        let calling = agent.sub_agents.iter().filter_map(|sub| {
            let spec = &self.catalog.agent(&sub.agent)?.spec;
            Some(OfferedTool {
                name: spec.name.clone(),
                description: tool::agent::description(&sub.agent, &sub.description),
                parameters: spec.parameters.clone(),
            })
        });
        let asking = self.asking(agent).map(|entry| OfferedTool {
            name: entry.spec.name.clone(),
            description: entry.spec.description.clone(),
            parameters: entry.spec.parameters.clone(),
        });
        Prompt {
            system: self.system(agent),
            messages: stored.conversation(),
            tools: tools.chain(calling).chain(asking).collect(),
            turn: stored.next_turn(),
        }
    }

    /// The tools with which an agent asks a human.
    fn asking<'a>(&'a self, agent: &'a Agent) -> impl Iterator<Item = &'a Entry> {
        agent.human.iter().filter_map(|kind| self.catalog.human(&agent.name, kind.tool()))
    }

    /// The instructions, and when to ask a human.
    fn system(&self, agent: &Agent) -> Option<String> {
        let kinds: Vec<_> = self.asking(agent).filter_map(|entry| RequestKind::of_tool(&entry.spec.name)).collect();
        let own = Some(agent.instructions.clone()).filter(|text| !text.is_empty());
        let parts: Vec<_> = own.into_iter().chain(human::paragraph(&kinds)).collect();
        (!parts.is_empty()).then(|| parts.join("\n\n"))
    }

    /// Journals the model's turn. Call ids are ours; the provider's are kept to be sent back, and replaced only where
    /// they are empty or repeated within this answer.
    pub(super) fn answered(&self, session: &mut TaskSession, answer: Answer) {
        let mut seen = BTreeSet::new();
        let told = session.delta_stream.as_ref().map_or_else(Vec::new, |deltas| deltas.ids(&answer));
        let ids = told.into_iter().chain(std::iter::repeat_with(|| CallId(self.ids.fresh())));
        let tool_calls = answer.calls.into_iter().zip(ids).map(|(call, tool_call_id)| {
            let known = call.provider_id.is_empty() || !seen.insert(call.provider_id.clone());
            ToolCall {
                tool_call_id,
                name: cleaned(call.name),
                arguments_text: cleaned(call.arguments_text),
                holds_secret: call.holds_secret,
                provider_id: if known { tool_call_id.to_string() } else { cleaned(call.provider_id) },
            }
        });
        let turn = Turn {
            turn: session.own.progress.turns + 1,
            text: answer.text.map(cleaned),
            tool_calls: tool_calls.collect(),
            finish_reason: answer.finish_reason,
            usage: answer.usage,
            raw: answer.raw,
        };
        session.push(Fact::AssistantMessage(turn));
    }

    /// Reads the arguments once and asks the policy.
    pub(super) async fn judge(&self, session: &mut TaskSession, agent: &Agent, calls: &[CallId]) {
        for id in calls {
            let Some(state) = session.own.progress.call(*id).cloned() else { continue };
            let judgement = self.judgement(session, agent, &state).await;
            let spec = self.offered(agent, &state.call.name).map(|entry| &entry.spec);
            let effect = spec.map_or(Effect::Once, |spec| spec.effect);
            let performer = spec.map_or(ToolKind::default(), |spec| spec.kind);
            session.push(Fact::Judged { tool_call_id: *id, judgement, effect, performer });
        }
    }

    /// How a call is judged now.
    async fn judgement(&self, session: &TaskSession, agent: &Agent, state: &CallState) -> Judgement {
        if let Some(reason) = self.unfit(session, agent, state) {
            return Judgement::invalid(reason);
        }
        if let Some(no) = Self::refused_before(session, state) {
            return no;
        }
        let judgement = self.verdict(session, agent, state).await;
        Self::mistrusted(session, state, self.unless_forgotten(session, agent, state, judgement))
    }

    /// A no stays a no: the same call is not asked about again, and no rule lets it run. What a human let run is another
    /// matter.
    fn refused_before(session: &TaskSession, state: &CallState) -> Option<Judgement> {
        if state.approval.is_some() || state.performer == ToolKind::Human {
            return None;
        }
        let text = state.arguments_text();
        // No text at all is an empty object, here as everywhere.
        let arguments =
            arguments::parse(if text.trim_matches([' ', '\t', '\n', '\r']).is_empty() { "{}" } else { text }).ok()?;
        let no = session.own.progress.rejections.find(&state.call.name, &arguments)?;
        let said = "A human has said no to this same call.".to_owned();
        let reason = Some(no.reason.as_ref().map_or(said.clone(), |reason| format!("{said} Reason: {reason}")));
        Some(Judgement { reason, repeats: Some(no.call), ..Judgement::of(Verdict::Deny) })
    }

    /// No rule lets a tool run whose last word is in doubt; what a human has let run, runs.
    fn mistrusted(session: &TaskSession, state: &CallState, judgement: Judgement) -> Judgement {
        if judgement.verdict != Verdict::Allow || state.approval.is_some() {
            return judgement;
        }
        match session.own.progress.quarantine.reason(&state.call.name) {
            Some(reason) => Judgement { reason: Some(reason), ..Self::owner_is_asked() },
            None => judgement,
        }
    }

    /// The model may ask again for what the lost history has done: until the user says something new, no rule allows a
    /// later call that must happen once.
    fn unless_forgotten(&self, session: &TaskSession, agent: &Agent, state: &CallState, judgement: Judgement) -> Judgement {
        let spec = self.offered(agent, &state.call.name).map(|entry| &entry.spec);
        let repeatable = spec.is_some_and(|spec| spec.effect.repeatable());
        let later = session.own.progress.message_uncertain && !state.of_uncertain_turn;
        // What a damaged relative has done, and what a human has said no to there, is not known either.
        let alone = spec.is_some_and(|spec| spec.kind != ToolKind::Agent) && state.approval.is_none();
        let damaged = alone && session.tree.is_damaged();
        if repeatable || !(later || damaged) || judgement.verdict != Verdict::Allow {
            return judgement;
        }
        let why = if later { HISTORY_LOST } else { TREE_DAMAGED };
        Judgement { rule: judgement.rule, reason: Some(why.to_owned()), ..Self::owner_is_asked() }
    }

    fn owner_is_asked() -> Judgement {
        Judgement { terms: Some(Terms::default()), ..Judgement::of(Verdict::Hold) }
    }

    /// Why a call cannot run whatever the policy says, if it cannot.
    fn unfit(&self, session: &TaskSession, agent: &Agent, state: &CallState) -> Option<String> {
        if let Last::Model(turn) = &session.own.progress.last
            && turn.turn == state.turn
        {
            let most = usize::try_from(agent.limits.max_calls).unwrap_or(usize::MAX);
            match turn.finish_reason {
                FinishReason::Length => return Some("the answer was cut off at its length".to_owned()),
                FinishReason::ContentFilter => return Some("the answer was cut off by a filter".to_owned()),
                FinishReason::Other => return Some("the answer ended for a reason that is not known".to_owned()),
                FinishReason::Stop | FinishReason::ToolCalls => {}
            }
            if turn.tool_calls.len() > most {
                return Some(format!("a turn may have {most} calls at most; none of these ran"));
            }
        }
        if state.call.holds_secret {
            return Some(HOLDS_SECRET.to_owned());
        }
        let name = &state.call.name;
        let told = agent.offer(name).is_some() || agent.sub_agent(name).is_some() || agent.asks(name).is_some();
        match (told, self.offered(agent, name)) {
            (true, Some(_)) => self.beyond(session, agent, state),
            (true, None) => Some(format!("the tool {name:?} is gone from the configuration")),
            (false, _) => Some(format!("there is no tool {:?}", cut(name, 64))),
        }
    }

    /// The policy's word on a call whose tool is offered.
    pub(super) async fn verdict(&self, session: &TaskSession, agent: &Agent, state: &CallState) -> Judgement {
        let Some(entry) = self.offered(agent, &state.call.name) else {
            return Judgement::invalid("the tool is not offered any more");
        };
        let args = match arguments::read(state.arguments_text(), &entry.schema) {
            Ok(args) => args,
            Err(misfits) => return Judgement::invalid(misfits.to_string()),
        };
        if let Some(why) = entry.tool.as_ref().and_then(|tool| tool.refuses(&args)) {
            return Judgement::invalid(why);
        }
        if let Some(kind) = agent.asks(&state.call.name)
            && let Err(why) = human::question(kind, &args, self.catalog.services(&agent.name))
        {
            return Judgement::invalid(why);
        }
        let metadata: Value = serde_json::from_str(&session.own.row.metadata).unwrap_or_default();
        let (row, groups) = (session.own.row.clone(), session.own.progress.groups.clone());
        let (policy, spec) = (Arc::clone(&self.policy), entry.spec.clone());
        let heavy = policy.is_heavy(state.arguments_text().len());
        let user = self.roster.ids().id(row.user_id.as_str());
        let judge = move || {
            policy.judge(&Case {
                tool: &spec,
                args: &args,
                agent_path: &row.agent_path,
                user: &user,
                tenant: &row.tenant,
                groups: &groups,
                task_id: &row.root_task_id.to_string(),
                metadata: &metadata,
                session: &row.session_id,
            })
        };
        if !heavy {
            return judge();
        }
        tokio::task::spawn_blocking(judge).await.unwrap_or_else(|_| Judgement {
            reason: Some("The policy could not be evaluated.".to_owned()),
            ..Self::owner_is_asked()
        })
    }

    pub(super) fn refuse(session: &mut TaskSession, refusals: Vec<(CallId, Outcome, String)>) {
        session.own.refuse(refusals, session.now);
    }

    /// Runs calls that may run: judged once more, then written down as started, then called.
    pub(super) async fn run(&self, session: &mut TaskSession, agent: &Agent, calls: &[CallId]) -> Result<(), Stop> {
        if !self.may_begin(session, agent, calls).await? {
            return Ok(());
        }
        let credentials = self.credentials(session).await?;
        if self.ask_for_missing(session, agent, calls, &credentials) {
            return Ok(());
        }
        let mut attempts = Vec::new();
        for id in calls {
            let Some(state) = session.own.progress.call(*id).cloned() else { continue };
            let Some(entry) = self.offered(agent, &state.call.name) else { continue };
            let (Some(tool), Ok(arguments)) =
                (entry.tool.clone(), arguments::read(state.arguments_text(), &entry.schema))
            else {
                continue;
            };
            session.push(Fact::ToolStarted {
                tool_call_id: *id,
                name: entry.spec.name.clone(),
                digest: session.digest(&entry.spec, *id, state.arguments_text(), state.rule()),
                attempt: state.attempts + 1,
                timeout_ms: u64::try_from(entry.spec.timeout.as_millis()).unwrap_or(u64::MAX),
                replica: self.replica.clone(),
            });
            let decided_by = state.approval.as_ref().map(|approval| {
                let names: Vec<_> = approval.by.iter().map(|vote| vote.by.as_str()).collect();
                names.join(",")
            });
            let invocation = self.invocation(session, &state, arguments, decided_by);
            attempts.push((tool, Invocation { credentials: credentials.clone(), ..invocation }));
        }
        if attempts.is_empty() {
            // Nobody here performs these calls: say so rather than ask for ever.
            let nobody = |id: &CallId| (*id, Outcome::Failed, "Nothing here can run this call.".to_owned());
            Self::refuse(session, calls.iter().map(nobody).collect());
            return Ok(());
        }
        let in_flight_calls: Vec<_> = attempts.iter().map(|(_, call)| self.in_flight_calls.register(call.call_id)).collect();
        self.save(session, self.take()).await?;
        if self.store.history_uncertain_until() > session.history_uncertain_until {
            tracing::warn!(task = %session.task_id(), "the history was lost before a call was sent; it was not sent");
            return self.under_doubt(session).await;
        }
        for (in_flight, (_, call)) in in_flight_calls.iter().zip(&mut attempts) {
            call.permit = self.leave(session, in_flight);
        }
        session.in_flight_calls = in_flight_calls;
        self.send(session, &attempts).await
    }

    /// Whether calls that may run still may, right before they start: by the history, by what is stored of their questions
    /// and by the policy in force. Where not, `next_step` is asked again.
    ///
    /// # Errors
    /// As [`Engine::save`], and where the history is in doubt by now.
    pub(super) async fn may_begin(&self, session: &mut TaskSession, agent: &Agent, calls: &[CallId]) -> Result<bool, Stop> {
        if self.store.history_uncertain_until() > session.history_uncertain_until {
            self.save(session, self.take()).await?;
            self.under_doubt(session).await?;
        }
        if let Some(failure) = damage_before(session, calls) {
            self.finish(session, Ending::Failed(failure)).await?;
            return Ok(false);
        }
        Ok(!self.look_again(session, agent, calls).await)
    }

    /// Right before calls start, the policy in force is asked again: it can refuse or ask, never release. Whether
    /// anything became stricter, or repeating a call does something else by now; then nothing runs and `next_step` is
    /// asked again.
    pub(super) async fn look_again(&self, session: &mut TaskSession, agent: &Agent, calls: &[CallId]) -> bool {
        let mut differs = false;
        for id in calls {
            let Some(state) = session.own.progress.call(*id).cloned() else { continue };
            let now = self.judgement(session, agent, &state).await;
            let effect = self.effect_now(session, agent, &state);
            // A human's leave is over the effect that he was shown.
            let same = effect == state.effect || state.approval.is_some();
            let unchanged = (!same).then(|| now.clone());
            let Some(judgement) = self.tightened(session, agent, &state, now).or(unchanged) else { continue };
            session.push(Fact::Judged { tool_call_id: *id, judgement, effect, performer: state.performer });
            differs = true;
        }
        differs
    }

    /// What repeating the call does now. Where its tool is another one than the one that was started, sending it again
    /// is no repetition: it would happen a second time somewhere else. (What only reads happens nowhere.)
    fn effect_now(&self, session: &TaskSession, agent: &Agent, state: &CallState) -> Effect {
        let Some(entry) = self.offered(agent, &state.call.name) else { return Effect::Once };
        let id = state.call.tool_call_id;
        let reads = (state.effect, entry.spec.effect) == (Effect::ReadOnly, Effect::ReadOnly);
        if !matches!(state.phase, Phase::Started(_)) || reads {
            return entry.spec.effect;
        }
        let started = session.own.items.iter().rev().find_map(|item| {
            let Fact::ToolStarted { tool_call_id, digest, .. } = &item.fact else { return None };
            (*tool_call_id == id).then_some(digest)
        });
        let now = session.digest(&entry.spec, id, state.arguments_text(), state.rule());
        if started == Some(&now) { entry.spec.effect } else { Effect::Once }
    }

    /// The stricter judgement, if `now` is stricter than what the call has passed.
    fn tightened(&self, session: &TaskSession, agent: &Agent, state: &CallState, now: Judgement) -> Option<Judgement> {
        let Some(approval) = &state.approval else {
            return (now.verdict != Verdict::Allow).then_some(now);
        };
        if matches!(now.verdict, Verdict::Deny | Verdict::Invalid) {
            return Some(now);
        }
        let entry = self.offered(agent, &state.call.name);
        let digest = entry.map(|entry| {
            session.digest(&entry.spec, state.call.tool_call_id, state.arguments_text(), approval.rule.as_deref())
        });
        let same = digest.as_deref() == Some(approval.digest.as_str());
        let (tenant, owner) = (&session.own.row.tenant, &session.own.row.user_id);
        let editor = state.edited.as_ref().map(|edited| edited.by.as_str());
        let suffice = |approvers| self.roster.suffice(tenant, owner, approvers, &approval.by, editor);
        let stands = suffice(&approval.terms.approvers);
        let suffices = now.terms.as_ref().is_none_or(|terms| suffice(&terms.approvers));
        if same && stands && suffices {
            return None;
        }
        let reason = match (same, stands) {
            (false, _) => Some("The tool has changed since it was approved.".to_owned()),
            (true, false) => Some("Somebody who approved this call may not do so any more.".to_owned()),
            (true, true) => now.reason,
        };
        let terms = Some(now.terms.unwrap_or_else(|| approval.terms.clone()));
        Some(Judgement { rule: now.rule, reason, terms, ..Judgement::of(Verdict::Hold) })
    }
}
