//! Checks the invariants of the driver's loop in random runs with random crashes, without a
//! database. The model, the policy and the people choose at random. A crashed driver loses the
//! facts that it has not committed.

mod driver;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use holdpoint::task::call_state::MAX_ATTEMPTS;
use holdpoint::task::decision::{CallAnswer, Consequence};
use holdpoint::task::id::{CallId, RequestId, TaskId};
use holdpoint::task::item::{
    Fact, FinishReason, Item, Outcome, Part, PartType, ToolCall, ToolResult, Turn, Usage,
};
use holdpoint::task::operator_text::OperatorText;
use holdpoint::task::progress::Progress;
use holdpoint::task::request::{CallSpec, RequestKind, RequestSpec};
use holdpoint::task::status::TaskStatus;
use holdpoint::task::step::{AwaitedEvent, StepContext, next_step};
use holdpoint::task::time::Time;
use holdpoint::task::tool_spec::{Effect, ToolKind};
use holdpoint::task::verdict::{Approvers, Judgement, OnExpiry, Terms, Verdict};
use serde_json::Value;
use uuid::Uuid;

use self::sub_agents::{CLERK, one_after_the_other};
use super::invariants::{check, retried};
use crate::support::repetitions;
use crate::support::rng::SeededRng;

mod people;
mod sub_agents;

/// The state of one run: the journal, the driver's view of the journal, and the events outside the
/// journal.
struct RunState {
    rng: SeededRng,
    ids: u128,
    clock: i64,
    /// The committed items.
    journal: Vec<Item>,
    /// The facts that are not committed yet.
    pushed: Vec<Fact>,
    /// The view that results from reading the journal and the pending facts item by item.
    progress: Progress,
    effects: BTreeMap<CallId, Effect>,
    /// The tool that the model named in each call.
    names: BTreeMap<CallId, &'static str>,
    /// The outcome of each sub-agent's task that has ended, even if the journal has no result yet.
    ended: BTreeMap<TaskId, Outcome>,
    /// How often each call actually reached its tool.
    ledger: BTreeMap<CallId, u32>,
    model_calls: u32,
    crashes: u32,
}

struct Crash;

impl RunState {
    fn new(seed: u64) -> Self {
        let mut run = Self {
            rng: SeededRng(seed),
            ids: 0,
            clock: 0,
            journal: Vec::new(),
            pushed: Vec::new(),
            progress: Progress::default(),
            effects: BTreeMap::new(),
            names: BTreeMap::new(),
            ended: BTreeMap::new(),
            ledger: BTreeMap::new(),
            model_calls: 0,
            crashes: 0,
        };
        run.push(status(TaskStatus::Running));
        run.say();
        run.commit_surely();
        run
    }

    fn id(&mut self) -> Uuid {
        self.ids += 1;
        Uuid::from_u128(self.ids)
    }

    fn push(&mut self, fact: Fact) {
        let seq = i64::try_from(self.journal.len() + self.pushed.len() + 1).unwrap();
        self.progress.apply(&Item {
            seq,
            at: Time(self.clock + 1),
            fact: fact.clone(),
        });
        // `next_step` must return a step, and not panic, after every prefix of a journal.
        let _ = next_step(&self.progress, &StepContext::default());
        self.pushed.push(fact);
    }

    fn say(&mut self) {
        let items = vec![Part {
            content_type: PartType::Text,
            content: "go on".to_owned(),
        }];
        self.push(Fact::UserMessage {
            items,
            user_context: None,
            by: "alice".to_owned(),
            groups: Vec::new(),
        });
    }

    fn commit_surely(&mut self) {
        self.clock += 1;
        for fact in std::mem::take(&mut self.pushed) {
            let seq = i64::try_from(self.journal.len() + 1).unwrap();
            self.journal.push(Item {
                seq,
                at: Time(self.clock),
                fact,
            });
        }
    }

    /// Commits the pending facts. May crash before or after the commit. A crash before the commit
    /// loses the pending facts; a crash after the commit only ends the driver.
    fn commit(&mut self) -> Result<(), Crash> {
        self.maybe_crash()?;
        self.commit_surely();
        self.maybe_crash()
    }

    fn maybe_crash(&mut self) -> Result<(), Crash> {
        if self.rng.one_in(12) {
            self.pushed.clear();
            self.progress = Progress::from_items(&self.journal);
            self.crashes += 1;
            return Err(Crash);
        }
        Ok(())
    }

    fn result(&mut self, id: CallId, outcome: Outcome, content: &str) {
        let result = ToolResult {
            tool_call_id: id,
            name: "tool".to_owned(),
            outcome,
            content: content.to_owned(),
            http_status: None,
            suspect: false,
            reported: false,
        };
        self.push(Fact::ToolResult(result));
    }

    fn answer(&mut self) {
        self.model_calls += 1;
        let count = if self.rng.one_in(3) {
            0
        } else {
            1 + self.rng.below(4)
        };
        let tool_calls: Vec<_> = (0..count)
            .map(|_| {
                let id = CallId(self.id());
                let name = self
                    .rng
                    .pick(&["tool", "tool", "tool", "tool", "scout", CLERK]);
                let effects = [
                    Effect::ReadOnly,
                    Effect::Idempotent,
                    Effect::Once,
                    Effect::Once,
                ];
                let effect = if name == "tool" {
                    self.rng.pick(&effects)
                } else {
                    Effect::Once
                };
                self.effects.insert(id, effect);
                self.names.insert(id, name);
                ToolCall {
                    tool_call_id: id,
                    name: name.to_owned(),
                    arguments_text: "{}".to_owned(),
                    holds_secret: false,
                    provider_id: "call_0".to_owned(),
                }
            })
            .collect();
        let turn = 1 + self
            .journal
            .iter()
            .filter(|item| matches!(item.fact, Fact::AssistantMessage(_)))
            .count();
        self.push(Fact::AssistantMessage(Turn {
            turn: u32::try_from(turn).unwrap(),
            text: Some("text".to_owned()),
            tool_calls,
            finish_reason: FinishReason::Stop,
            usage: Usage::default(),
            raw: Value::Null,
        }));
    }

    fn terms(&mut self) -> Terms {
        Terms {
            approvers: Approvers {
                required: self.rng.pick(&[1, 1, 1, 2]),
                ..Approvers::default()
            },
            expires_in: Some(Duration::from_hours(1)),
            on_expiry: self
                .rng
                .pick(&[OnExpiry::Continue, OnExpiry::Continue, OnExpiry::Cancel]),
            on_reject: self.rng.pick(&[Consequence::Continue, Consequence::Cancel]),
            ..Terms::default()
        }
    }

    fn judge(&mut self, id: CallId) {
        let verdict = self.rng.pick(&[
            Verdict::Allow,
            Verdict::Allow,
            Verdict::Hold,
            Verdict::Hold,
            Verdict::Deny,
            Verdict::Invalid,
        ]);
        let terms = (verdict == Verdict::Hold).then(|| self.terms());
        let judgement = Judgement {
            terms,
            ..Judgement::new(verdict)
        };
        let effect = self.effects[&id];
        let external = effect == Effect::Once && self.rng.one_in(4);
        let performer = match self.names[&id] {
            "tool" if external => ToolKind::External,
            "tool" => ToolKind::Http,
            _ => ToolKind::Agent,
        };
        self.push(Fact::Judged {
            tool_call_id: id,
            judgement,
            effect,
            performer,
        });
    }

    fn ask(&mut self, kind: RequestKind, calls: &[CallId], terms: Terms) {
        let pending_tool_calls = calls
            .iter()
            .map(|id| CallSpec {
                tool_call_id: *id,
                name: "tool".to_owned(),
                arguments_text: "{}".to_owned(),
                effect: self.effects[id],
                target: String::new(),
                address: None,
                summary: String::new(),
                warnings: Vec::new(),
                needs_decision: true,
                verdict: Verdict::Hold,
                rule: None,
                reason: None,
                parameters: Value::Null,
                digest: id.to_string(),
                definition: None,
                editor: None,
                bars_editor: false,
                operator_text: OperatorText::default(),
                offer: None,
            })
            .collect();
        let request_id = RequestId(self.id());
        self.push(Fact::InterventionRequested(RequestSpec {
            request_id,
            kind,
            pending_tool_calls,
            terms,
            digest: String::new(),
            question: None,
            details: None,
            form: None,
            elicitation: None,
            seal: None,
        }));
    }

    fn run(&mut self, calls: &[CallId], over: &mut BTreeSet<CallId>) -> Result<(), Crash> {
        let once = calls
            .iter()
            .filter(|id| self.effects[id] == Effect::Once)
            .count();
        assert!(
            once == 0 || calls.len() == 1,
            "a call that must not be repeated runs alone"
        );
        assert!(calls.len() <= 8);
        if self.has_become_stricter(calls, ToolKind::Http) {
            return Ok(());
        }
        for id in calls {
            let attempt = self.progress.call(*id).unwrap().attempts + 1;
            self.push(Fact::ToolStarted {
                tool_call_id: *id,
                name: "tool".to_owned(),
                digest: String::new(),
                attempt,
                timeout_ms: 1,
                replica: "r".to_owned(),
                grant: None,
            });
        }
        self.commit()?;
        let mut answered = Vec::new();
        for id in calls {
            *self.ledger.entry(*id).or_default() += 1;
            over.insert(*id);
            answered.push((
                *id,
                self.rng
                    .pick(&[Some(Outcome::Succeeded), Some(Outcome::Failed), None]),
            ));
        }
        self.maybe_crash()?;
        for (id, outcome) in answered {
            if let Some(outcome) = outcome {
                self.result(id, outcome, "done");
            }
        }
        Ok(())
    }
}

fn is_partial(item: &Item) -> bool {
    matches!(&item.fact, Fact::Decision { decision, .. } if !decision.closes)
}

fn answers(item: &Item, which: impl Fn(&CallAnswer) -> bool) -> usize {
    let Fact::Decision { decision, .. } = &item.fact else {
        return 0;
    };
    decision
        .decisions
        .values()
        .filter(|answer| which(answer))
        .count()
}

fn status(status: TaskStatus) -> Fact {
    Fact::TaskStatus {
        status,
        error: None,
        output: None,
    }
}

#[test]
fn task_invariants_hold_over_random_runs_with_crashes() {
    let (mut crashes, mut runs, mut ends, mut edits, mut partial, mut children) =
        (0, 0, 0, 0, 0, 0);
    let seeds = repetitions(1_000, 10_000);
    for seed in 0..seeds as u64 {
        let mut run = RunState::new(seed);
        for _ in 0..30 {
            if let Ok(on) = run.drive() {
                run.trigger_event(&on);
                ends += u32::from(on.contains(&AwaitedEvent::Message));
            }
        }
        check(&run.journal);
        assert_eq!(
            run.progress,
            Progress::from_items(&run.journal),
            "reading item by item gives the same state"
        );
        for (id, times) in &run.ledger {
            let retries = run.journal.iter().filter(|item| retried(item, *id)).count();
            let most = if run.effects[id].is_repeatable() {
                MAX_ATTEMPTS as usize + retries
            } else {
                1 + retries
            };
            assert!(
                *times as usize <= most,
                "seed {seed}: {times} executions of one call"
            );
        }
        edits += run
            .journal
            .iter()
            .map(|item| answers(item, |answer| answer.edit.is_some()))
            .sum::<usize>();
        partial += run.journal.iter().filter(|item| is_partial(item)).count();
        one_after_the_other(&run.journal);
        children += run.ended.len();
        crashes += run.crashes;
        runs += run.ledger.len();
    }
    assert!(
        crashes as usize > seeds && runs > seeds && ends as usize > seeds,
        "{crashes} crashes, {runs} runs, {ends} ends"
    );
    let few = seeds / 2;
    assert!(children > few, "{children} sub-agents that ended");
    assert!(
        edits > few && partial > few,
        "{edits} edits, {partial} answers that left something open"
    );
}
