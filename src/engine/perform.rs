//! The steps that look at the world: judging, asking the model, running calls. Each pushes facts; `drive.rs` commits.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::Engine;
use super::drive::Stop;
use super::integrity::damage_before;
use super::live::Live;
use super::member::Stored;
use crate::agent::Agent;
use crate::model::{Answer, OfferedTool, Prompt};
use crate::policy::Case;
use crate::task::change::LeaseChange;
use crate::task::doubt::HISTORY_LOST;
use crate::task::id::CallId;
use crate::task::item::{Fact, FinishReason, Outcome, ToolCall, Turn};
use crate::task::request::RequestKind;
use crate::task::standing::{Phase, Standing};
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

    pub(super) fn budget(&self, live: &Live, agent: &Agent) -> Budget {
        // Nobody else serves this database, or it is this process, which knows its own flights.
        let gone = |replica: &str| self.store.is_sole() || replica == self.replica;
        let mut budget = live.budget(self.settings.lease, gone);
        budget.running.extend(self.flights.calls());
        budget.spent = self.spent(live, agent, &[]);
        budget.sessions = agent.sub_agents.iter().filter(|sub| sub.session).map(|sub| sub.agent.clone()).collect();
        budget
    }

    /// When the last attempt that may still be running is over, from now.
    pub(super) fn attempts_over_in(&self, live: &Live, agent: &Agent) -> Option<Duration> {
        let running = self.budget(live, agent).running;
        let over = live.own.progress.unfinished().filter(|standing| running.contains(&standing.call.tool_call_id));
        let over = over.filter(|standing| !standing.effect.repeatable()).filter_map(|standing| standing.start.as_ref());
        over.map(|start| (start.at + start.timeout + self.settings.lease).since(live.now)).max()
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
    pub(super) fn answered(&self, live: &mut Live, answer: Answer) {
        let mut seen = BTreeSet::new();
        let told = live.delta_stream.as_ref().map_or_else(Vec::new, |deltas| deltas.ids(&answer));
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
            turn: live.own.progress.turns + 1,
            text: answer.text.map(cleaned),
            tool_calls: tool_calls.collect(),
            finish_reason: answer.finish_reason,
            usage: answer.usage,
            raw: answer.raw,
        };
        live.push(Fact::AssistantMessage(turn));
    }

    /// Reads the arguments once and asks the policy.
    pub(super) async fn judge(&self, live: &mut Live, agent: &Agent, calls: &[CallId]) {
        for id in calls {
            let Some(standing) = live.own.progress.call(*id).cloned() else { continue };
            let judgement = self.judgement(live, agent, &standing).await;
            let spec = self.offered(agent, &standing.call.name).map(|entry| &entry.spec);
            let effect = spec.map_or(Effect::Once, |spec| spec.effect);
            let performer = spec.map_or(ToolKind::default(), |spec| spec.kind);
            live.push(Fact::Judged { tool_call_id: *id, judgement, effect, performer });
        }
    }

    /// How a call is judged now.
    async fn judgement(&self, live: &Live, agent: &Agent, standing: &Standing) -> Judgement {
        if let Some(reason) = self.unfit(live, agent, standing) {
            return Judgement::invalid(reason);
        }
        if let Some(no) = Self::refused_before(live, standing) {
            return no;
        }
        let judgement = self.verdict(live, agent, standing).await;
        Self::mistrusted(live, standing, self.unless_forgotten(live, agent, standing, judgement))
    }

    /// A no stays a no: the same call is not asked about again, and no rule lets it run. What a human let run is another
    /// matter.
    fn refused_before(live: &Live, standing: &Standing) -> Option<Judgement> {
        if standing.approval.is_some() || standing.performer == ToolKind::Human {
            return None;
        }
        let text = standing.arguments_text();
        // No text at all is an empty object, here as everywhere.
        let arguments =
            arguments::parse(if text.trim_matches([' ', '\t', '\n', '\r']).is_empty() { "{}" } else { text }).ok()?;
        let no = live.own.progress.noes.find(&standing.call.name, &arguments)?;
        let said = "A human has said no to this same call.".to_owned();
        let reason = Some(no.reason.as_ref().map_or(said.clone(), |reason| format!("{said} Reason: {reason}")));
        Some(Judgement { reason, repeats: Some(no.call), ..Judgement::of(Verdict::Deny) })
    }

    /// No rule lets a tool run whose last word is in doubt; what a human has let run, runs.
    fn mistrusted(live: &Live, standing: &Standing, judgement: Judgement) -> Judgement {
        if judgement.verdict != Verdict::Allow || standing.approval.is_some() {
            return judgement;
        }
        match live.own.progress.suspects.reason(&standing.call.name) {
            Some(reason) => Judgement { reason: Some(reason), ..Self::owner_is_asked() },
            None => judgement,
        }
    }

    /// The model may ask again for what the lost history has done: until the user says something new, no rule allows a
    /// later call that must happen once.
    fn unless_forgotten(&self, live: &Live, agent: &Agent, standing: &Standing, judgement: Judgement) -> Judgement {
        let spec = self.offered(agent, &standing.call.name).map(|entry| &entry.spec);
        let repeatable = spec.is_some_and(|spec| spec.effect.repeatable());
        let later = live.own.progress.message_doubted && !standing.of_doubted_turn;
        // What a damaged relative has done, and what a human has said no to there, is not known either.
        let alone = spec.is_some_and(|spec| spec.kind != ToolKind::Agent) && standing.approval.is_none();
        let damaged = alone && live.family.is_damaged();
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
    fn unfit(&self, live: &Live, agent: &Agent, standing: &Standing) -> Option<String> {
        if let Last::Model(turn) = &live.own.progress.last
            && turn.turn == standing.turn
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
        if standing.call.holds_secret {
            return Some(HOLDS_SECRET.to_owned());
        }
        let name = &standing.call.name;
        let told = agent.offer(name).is_some() || agent.sub_agent(name).is_some() || agent.asks(name).is_some();
        match (told, self.offered(agent, name)) {
            (true, Some(_)) => self.beyond(live, agent, standing),
            (true, None) => Some(format!("the tool {name:?} is gone from the configuration")),
            (false, _) => Some(format!("there is no tool {:?}", cut(name, 64))),
        }
    }

    /// The policy's word on a call whose tool is offered.
    pub(super) async fn verdict(&self, live: &Live, agent: &Agent, standing: &Standing) -> Judgement {
        let Some(entry) = self.offered(agent, &standing.call.name) else {
            return Judgement::invalid("the tool is not offered any more");
        };
        let args = match arguments::read(standing.arguments_text(), &entry.schema) {
            Ok(args) => args,
            Err(misfits) => return Judgement::invalid(misfits.to_string()),
        };
        if let Some(why) = entry.tool.as_ref().and_then(|tool| tool.refuses(&args)) {
            return Judgement::invalid(why);
        }
        if let Some(kind) = agent.asks(&standing.call.name)
            && let Err(why) = human::question(kind, &args, self.catalog.services(&agent.name))
        {
            return Judgement::invalid(why);
        }
        let metadata: Value = serde_json::from_str(&live.own.row.metadata).unwrap_or_default();
        let (row, groups) = (live.own.row.clone(), live.own.progress.groups.clone());
        let (policy, spec) = (Arc::clone(&self.policy), entry.spec.clone());
        let heavy = policy.is_heavy(standing.arguments_text().len());
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

    pub(super) fn refuse(live: &mut Live, refusals: Vec<(CallId, Outcome, String)>) {
        live.own.refuse(refusals, live.now);
    }

    /// Runs calls that may run: judged once more, then written down as started, then called.
    pub(super) async fn run(&self, live: &mut Live, agent: &Agent, calls: &[CallId]) -> Result<(), Stop> {
        if !self.may_begin(live, agent, calls).await? {
            return Ok(());
        }
        let credentials = self.credentials(live).await?;
        if self.ask_for_missing(live, agent, calls, &credentials) {
            return Ok(());
        }
        let mut attempts = Vec::new();
        for id in calls {
            let Some(standing) = live.own.progress.call(*id).cloned() else { continue };
            let Some(entry) = self.offered(agent, &standing.call.name) else { continue };
            let (Some(tool), Ok(arguments)) =
                (entry.tool.clone(), arguments::read(standing.arguments_text(), &entry.schema))
            else {
                continue;
            };
            live.push(Fact::ToolStarted {
                tool_call_id: *id,
                name: entry.spec.name.clone(),
                digest: live.digest(&entry.spec, *id, standing.arguments_text(), standing.rule()),
                attempt: standing.attempts + 1,
                timeout_ms: u64::try_from(entry.spec.timeout.as_millis()).unwrap_or(u64::MAX),
                replica: self.replica.clone(),
            });
            let decided_by = standing.approval.as_ref().map(|approval| {
                let names: Vec<_> = approval.by.iter().map(|vote| vote.by.as_str()).collect();
                names.join(",")
            });
            let invocation = self.invocation(live, &standing, arguments, decided_by);
            attempts.push((tool, Invocation { credentials: credentials.clone(), ..invocation }));
        }
        if attempts.is_empty() {
            // Nobody here performs these calls: say so rather than ask for ever.
            let nobody = |id: &CallId| (*id, Outcome::Failed, "Nothing here can run this call.".to_owned());
            Self::refuse(live, calls.iter().map(nobody).collect());
            return Ok(());
        }
        let flights: Vec<_> = attempts.iter().map(|(_, call)| self.flights.boards(call.call_id)).collect();
        self.save(live, self.take()).await?;
        if self.store.doubted_at() > live.doubted_at {
            tracing::warn!(task = %live.task_id(), "the history was lost before a call was sent; it was not sent");
            return self.under_doubt(live).await;
        }
        for (flight, (_, call)) in flights.iter().zip(&mut attempts) {
            call.leave = self.leave(live, flight);
        }
        live.flights = flights;
        self.send(live, &attempts).await
    }

    /// Whether calls that may run still may, right before they start: by the history, by what is stored of their questions
    /// and by the policy in force. Where not, `next_step` is asked again.
    ///
    /// # Errors
    /// As [`Engine::save`], and where the history is in doubt by now.
    pub(super) async fn may_begin(&self, live: &mut Live, agent: &Agent, calls: &[CallId]) -> Result<bool, Stop> {
        if self.store.doubted_at() > live.doubted_at {
            self.save(live, self.take()).await?;
            self.under_doubt(live).await?;
        }
        if let Some(failure) = damage_before(live, calls) {
            self.finish(live, Ending::Failed(failure)).await?;
            return Ok(false);
        }
        Ok(!self.look_again(live, agent, calls).await)
    }

    /// Right before calls start, the policy in force is asked again: it can refuse or ask, never release. Whether
    /// anything became stricter, or repeating a call does something else by now; then nothing runs and `next_step` is
    /// asked again.
    pub(super) async fn look_again(&self, live: &mut Live, agent: &Agent, calls: &[CallId]) -> bool {
        let mut differs = false;
        for id in calls {
            let Some(standing) = live.own.progress.call(*id).cloned() else { continue };
            let now = self.judgement(live, agent, &standing).await;
            let effect = self.effect_now(live, agent, &standing);
            // A human's leave is over the effect that he was shown.
            let same = effect == standing.effect || standing.approval.is_some();
            let unchanged = (!same).then(|| now.clone());
            let Some(judgement) = self.tightened(live, agent, &standing, now).or(unchanged) else { continue };
            live.push(Fact::Judged { tool_call_id: *id, judgement, effect, performer: standing.performer });
            differs = true;
        }
        differs
    }

    /// What repeating the call does now. Where its tool is another one than the one that was started, sending it again
    /// is no repetition: it would happen a second time somewhere else. (What only reads happens nowhere.)
    fn effect_now(&self, live: &Live, agent: &Agent, standing: &Standing) -> Effect {
        let Some(entry) = self.offered(agent, &standing.call.name) else { return Effect::Once };
        let id = standing.call.tool_call_id;
        let reads = (standing.effect, entry.spec.effect) == (Effect::ReadOnly, Effect::ReadOnly);
        if !matches!(standing.phase, Phase::Started(_)) || reads {
            return entry.spec.effect;
        }
        let started = live.own.items.iter().rev().find_map(|item| {
            let Fact::ToolStarted { tool_call_id, digest, .. } = &item.fact else { return None };
            (*tool_call_id == id).then_some(digest)
        });
        let now = live.digest(&entry.spec, id, standing.arguments_text(), standing.rule());
        if started == Some(&now) { entry.spec.effect } else { Effect::Once }
    }

    /// The stricter judgement, if `now` is stricter than what the call has passed.
    fn tightened(&self, live: &Live, agent: &Agent, standing: &Standing, now: Judgement) -> Option<Judgement> {
        let Some(approval) = &standing.approval else {
            return (now.verdict != Verdict::Allow).then_some(now);
        };
        if matches!(now.verdict, Verdict::Deny | Verdict::Invalid) {
            return Some(now);
        }
        let entry = self.offered(agent, &standing.call.name);
        let digest = entry.map(|entry| {
            live.digest(&entry.spec, standing.call.tool_call_id, standing.arguments_text(), approval.rule.as_deref())
        });
        let same = digest.as_deref() == Some(approval.digest.as_str());
        let (tenant, owner) = (&live.own.row.tenant, &live.own.row.user_id);
        let editor = standing.edited.as_ref().map(|edited| edited.by.as_str());
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
