//! Checks the invariants of gate calls: after each answer, and in all journals at the end of a run
//! (one random sequence of events at a gate).

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "an item of a new type starts and delivers nothing by itself"
)]

use std::collections::BTreeSet;

use holdpoint::engine::Refusal;
use holdpoint::engine::gate::{GateAnswer, GateDecision, GateRefusal, GateState};
use holdpoint::task::change::{ASKER_UNTIL_DELIVERED, Journal};
use holdpoint::task::decision::Action;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Item, Outcome, ToolCall};
use holdpoint::task::request::RequestKind;
use holdpoint::task::time::Time;
use holdpoint::task::verdict::Verdict;

use super::super::invariants::check_ended;
use super::tool_server::{CHANGED, Definition};
use super::{Ask, CALLS, HandedResult, RunState};

impl RunState<'_> {
    pub(super) async fn answers(&mut self) {
        let (over, open): (Vec<_>, Vec<_>) = std::mem::take(&mut self.asks)
            .into_iter()
            .partition(|ask| ask.handle.is_finished());
        self.asks = open;
        for mut ask in over {
            let Ok(answer) = (&mut ask.handle).await else {
                // The asker has left, or its process has died.
                continue;
            };
            let now = self.now().await;
            let presence = self.presences.iter_mut().find(|of| of.ask == ask.number);
            presence.unwrap().until = Some(now);
            match answer {
                Ok(answer) => self.answered(&ask, answer).await,
                Err(
                    GateRefusal::InHand(_)
                    | GateRefusal::Command(Refusal::KeyReused | Refusal::Unavailable),
                ) => {}
                Err(refusal) => panic!("seed {}: {refusal}", self.seed),
            }
        }
    }

    async fn answered(&mut self, ask: &Ask, answer: GateAnswer) {
        let (seed, task) = (self.seed, answer.call.task_id);
        let asked = &CALLS[ask.call];
        let answered = (answer.call.gate.as_str(), answer.call.tool.as_str());
        assert_eq!(answered, (asked.gate, asked.tool), "seed {seed}");
        if let Some(permit) = answer.call.permit {
            self.permitted(ask, &answer, permit.attempt).await;
        }
        if answer.call.decision == GateDecision::Deny {
            assert_ne!(answer.call.state, GateState::Started, "seed {seed}");
        }
        let settled = answer.call.state == GateState::Settled && answer.call.result.is_some();
        let by_bytes = ask.by_bytes && settled && answer.delivery.is_some();
        if by_bytes {
            self.handed_once(ask, task);
        }
        let Some(delivery) = answer.delivery else {
            return;
        };
        if self.rng.one_in(4) {
            // The answer is lost before it is delivered.
            self.seen.lost += 1;
            if by_bytes {
                self.handed.get_mut(&task).unwrap().pop();
            }
            let replica = &self.replicas[ask.replica];
            let _inside = replica.runtime.enter();
            drop(delivery);
            return;
        }
        self.seen.delivered += 1;
        {
            let _inside = self.replicas[ask.replica].runtime.enter();
            delivery.delivered();
        }
        if self.rng.one_in(2) {
            for _ in 0..2_000 {
                if self.harness.journal(task).await.row.asker_until == Some(ASKER_UNTIL_DELIVERED) {
                    let noted = Some(self.last_ask + 1);
                    for handed in self.handed.entry(task).or_default() {
                        handed.noted_before = handed.noted_before.or(noted);
                    }
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
    }

    /// Checks that the result of a call is not delivered to two asks that identify the call by its
    /// arguments (`by_bytes`). A second delivery is allowed only if it comes after a crash or from
    /// another replica. In addition, the second ask must have begun before the test read in the
    /// call's row that the result was delivered.
    fn handed_once(&mut self, ask: &Ask, task: TaskId) {
        let (crashes, replica) = (self.crashes, ask.replica);
        let earlier = self.handed.entry(task).or_default();
        for handed in &*earlier {
            let noted = handed.noted_before.is_some_and(|next| ask.number >= next);
            let twice = handed.crashes == crashes && handed.replica == replica || noted;
            assert!(
                !twice,
                "seed {}: the result of {task} is delivered twice",
                self.seed
            );
        }
        earlier.push(HandedResult {
            replica,
            crashes,
            noted_before: None,
        });
    }

    /// Asserts that the permit in `answer` was committed before the answer was sent, and that only
    /// one runner got the permit. If the ask named no runner, only one ask may have got the permit.
    async fn permitted(&mut self, ask: &Ask, answer: &GateAnswer, attempt: u32) {
        let (seed, call) = (self.seed, &answer.call);
        self.seen.permits += 1;
        let journal = self.harness.fixture.store.journal(call.task_id).await;
        let journal = journal
            .unwrap()
            .unwrap_or_else(|| panic!("seed {seed}: the permit of {} is not stored", call.task_id));
        let committed = journal.items.iter().any(|item| {
            matches!(&item.fact, Fact::ToolStarted { attempt: of, replica, .. }
                if *of == attempt && replica.starts_with("elsewhere:"))
        });
        assert!(
            committed,
            "seed {seed}: the permit of {} is not stored",
            call.task_id
        );
        let text = approved_text(&journal);
        assert_eq!(
            call.arguments_text, text,
            "seed {seed}: other bytes than approved"
        );
        let to = (ask.runner, ask.number);
        let (runner, number) = *self.permits.entry((call.task_id, attempt)).or_insert(to);
        let same = number == ask.number || runner.is_some() && runner == ask.runner;
        assert!(
            same,
            "seed {seed}: two runners have the permit of {}",
            call.task_id
        );
    }

    /// Checks all journals and executions of this run against the invariants. If a call has not
    /// ended, checks nothing and returns false.
    pub(super) async fn check(&mut self) -> bool {
        let mut journals = Vec::new();
        for task in self.tasks().await {
            journals.push((task, self.harness.journal(task).await));
        }
        let has_ended = |(_, journal): &(TaskId, Journal)| journal.row.status.is_terminal();
        if !journals.iter().all(has_ended) {
            return false;
        }
        let gates = journals.iter().map(|(_, journal)| &journal.row.agent);
        let gates: BTreeSet<_> = gates.collect();
        self.seen.at_both_gates += usize::from(gates.len() == 2);
        let ran = self.harness.tool.since(self.executions);
        self.tools_in_doubt_are_held(&journals);
        for (task, journal) in journals {
            check_ended(&journal.items);
            self.starts_have_an_asker(&journal);
            self.starts_what_was_approved(&journal);
            let starts = count(&journal, |fact| matches!(fact, Fact::ToolStarted { .. }));
            let id = task.to_string();
            let bodies: Vec<_> = ran
                .iter()
                .filter(|call| call.header("holdpoint-task-id") == id)
                .map(|call| call.body.as_str())
                .collect();
            let seed = self.seed;
            assert!(
                bodies.len() <= starts,
                "seed {seed}: {task} ran {} times",
                bodies.len()
            );
            let text = approved_text(&journal);
            assert!(
                bodies.iter().all(|body| *body == text),
                "seed {seed}: {bodies:?}, not {text}"
            );
            self.runs_as_defined(&journal, bodies.len());
            self.seen.starts += starts;
            self.seen.edits += count(&journal, is_edit);
            self.seen.expired += count(
                &journal,
                |fact| matches!(fact, Fact::ToolResult(result) if result.outcome == Outcome::Expired),
            );
        }
        true
    }

    /// A call that may have run puts its tool in doubt at its gate, until a person decides a call
    /// of the tool at this gate. Asserts that no rule starts a `once` call that was proposed while
    /// its tool was in doubt, unless a person has ended the doubt before the start.
    fn tools_in_doubt_are_held(&mut self, journals: &[(TaskId, Journal)]) {
        let mut changes: Vec<((String, String), Time, bool)> = Vec::new();
        for (_, journal) in journals {
            let tool = tool_of(journal);
            let of_tool = |item: &Item| Some((tool.clone(), item.at, may_have_run(&item.fact)?));
            changes.extend(journal.items.iter().filter_map(of_tool));
        }
        changes.sort_by_key(|(_, at, _)| *at);
        for (_, journal) in journals {
            let tool = tool_of(journal);
            self.seen.in_doubt += count(journal, |fact| {
                matches!(fact, Fact::Judged { judgement, .. } if judgement.reason.as_deref().is_some_and(
                    |reason| reason.contains("is held until a human has decided one of them")))
            });
            if !["refund", "Bash"].contains(&tool.1.as_str()) {
                continue;
            }
            // One of these asks created the call. The service judged the call after that ask had
            // begun, and so after the earliest of these asks had begun.
            let (call, created) = (call_of(journal), journal.row.created_at);
            let asks = self.presences.iter().filter(|ask| {
                ask.call == call
                    && ask.from <= created
                    && ask.until.is_none_or(|until| created <= until)
            });
            let Some(began) = asks.map(|ask| ask.from).min() else {
                continue;
            };
            let Some(started) = started_by_rule(journal) else {
                continue;
            };
            // A commit sets the time of its items before it becomes visible to other transactions.
            // So only changes that are 50 ms older than the ask count as visible to the ask.
            let seen = changes
                .iter()
                .rfind(|(of, at, _)| *of == tool && at.0 + 50_000 < began.0);
            let Some((_, doubt, true)) = seen else {
                continue;
            };
            let is_decided = changes.iter().any(|(of, at, in_doubt)| {
                *of == tool && !in_doubt && doubt <= at && *at <= started
            });
            assert!(
                is_decided,
                "seed {}: {} starts although its tool is in doubt",
                self.seed, journal.row.task_id
            );
        }
    }

    /// Asserts that an asker was present at each start of the call. Checks nothing if the call's
    /// row stores no presence of an asker (`asker_until`).
    fn starts_have_an_asker(&mut self, journal: &Journal) {
        if journal.row.asker_until.is_none() {
            return;
        }
        let call = call_of(journal);
        let slack = if self.harness.fixture.is_postgres() {
            2_000_000
        } else {
            10_000
        };
        for item in &journal.items {
            if !matches!(item.fact, Fact::ToolStarted { .. }) {
                continue;
            }
            let is_there = self.presences.iter().any(|there| {
                let until = there.until.map_or(i64::MAX, |until| until.0);
                there.call == call
                    && there.from <= item.at
                    && item.at.0 <= until.saturating_add(slack)
            });
            assert!(
                is_there,
                "seed {}: item {} of {} starts without an asker",
                self.seed, item.seq, journal.row.task_id
            );
        }
    }

    /// Asserts that a call started after a person's approval has the digest that the person saw, or
    /// the digest of the edit.
    fn starts_what_was_approved(&mut self, journal: &Journal) {
        let id = proposed(journal).tool_call_id;
        let (mut shown, mut approved) = (None, None);
        for item in &journal.items {
            match &item.fact {
                Fact::InterventionRequested(asked) => {
                    let mut own = asked.own_calls();
                    shown = own
                        .find(|call| call.tool_call_id == id)
                        .map(|call| call.digest.clone());
                    self.seen.doubtful += usize::from(asked.kind == RequestKind::Reconcile);
                }
                Fact::Decision { decision, .. } => {
                    if let Some(answer) = decision.decisions.get(&id) {
                        let edit = answer.edit.as_ref().map(|edit| edit.digest.clone());
                        approved = edit
                            .or_else(|| shown.clone())
                            .filter(|_| lets_run(answer.action));
                    }
                }
                Fact::Judged { judgement, .. } if judgement.verdict == Verdict::Allow => {
                    approved = None;
                }
                Fact::ToolStarted { digest, .. } => {
                    if let Some(approved) = &approved {
                        assert_eq!(digest, approved, "seed {}: other bytes start", self.seed);
                        self.seen.held_starts += 1;
                    }
                }
                _ => {}
            }
        }
    }

    /// Asserts that each attempt at the call was made under an approved definition of the tool.
    /// After a person's approval, this is the definition that the person saw. If a rule allowed the
    /// call, it is the reviewed definition of the process. `sent` is the number of attempts that
    /// reached the tool. Checks nothing if more attempts began, because it is then unknown which of
    /// them reached the tool.
    fn runs_as_defined(&mut self, journal: &Journal, sent: usize) {
        let id = proposed(journal).tool_call_id;
        let (mut shown, mut approved, mut starts) = (None, None, Vec::new());
        let mut reviews = BTreeSet::new();
        for item in &journal.items {
            match &item.fact {
                Fact::InterventionRequested(asked) => {
                    let mut own = asked.own_calls();
                    let own = own.find(|call| call.tool_call_id == id);
                    let definition = own.and_then(|call| call.definition.clone());
                    let (changed, reviewed): (Option<_>, Option<_>) = match definition {
                        Some(text) if text.starts_with(CHANGED) => (Some(text), None),
                        reviewed => (None, reviewed),
                    };
                    shown = changed;
                    reviews.extend(reviewed);
                    let approved: Option<Definition> = approved.take();
                    let is_another = approved.is_some_and(|approved| approved != shown);
                    self.seen.held_anew += usize::from(is_another);
                }
                Fact::Decision { decision, .. } => {
                    let answer = decision.decisions.get(&id);
                    if answer.is_some_and(|answer| lets_run(answer.action)) {
                        approved = Some(shown.clone());
                    }
                }
                Fact::Judged { judgement, .. } if judgement.verdict == Verdict::Allow => {
                    approved = None;
                }
                Fact::ToolStarted { .. } => starts.push(approved.take().flatten()),
                _ => {}
            }
        }
        self.seen.asked_under_both += usize::from(reviews.len() > 1);
        let attempts = self.server.attempts(id);
        if attempts.len() != sent {
            return;
        }
        let mut starts = starts.iter();
        for definitions in attempts {
            assert!(
                starts.any(|definition| definitions.contains(definition)),
                "seed {}: {} ran under {definitions:?}, which was not approved",
                self.seed,
                journal.row.task_id
            );
        }
    }
}

/// Returns the index of this journal's call in [`CALLS`].
pub(super) fn call_of(journal: &Journal) -> usize {
    let proposed = proposed(journal);
    let text = proposed.arguments_text.as_str();
    CALLS
        .iter()
        .position(|call| {
            call.gate == journal.row.agent
                && call.tool == proposed.name
                && call.spellings.contains(&text)
        })
        .unwrap()
}

/// Returns the gate of this journal's call, and the name of its tool.
fn tool_of(journal: &Journal) -> (String, String) {
    (journal.row.agent.clone(), proposed(journal).name)
}

fn proposed(journal: &Journal) -> ToolCall {
    let turn = journal.items.iter().find_map(|item| match &item.fact {
        Fact::AssistantMessage(turn) => Some(turn),
        _ => None,
    });
    turn.unwrap().tool_calls[0].clone()
}

/// Returns the arguments that may run: the arguments of the last edit, or of the proposal if there
/// is no edit.
fn approved_text(journal: &Journal) -> String {
    let call = proposed(journal);
    let edits = journal
        .items
        .iter()
        .rev()
        .filter_map(|item| match &item.fact {
            Fact::Decision { decision, .. } => {
                decision.decisions.get(&call.tool_call_id)?.edit.clone()
            }
            _ => None,
        });
    edits
        .map(|edit| edit.arguments_text)
        .next()
        .unwrap_or(call.arguments_text)
}

/// Returns when the call first started because a rule allowed it.
fn started_by_rule(journal: &Journal) -> Option<Time> {
    let mut is_allowed = false;
    for item in &journal.items {
        match &item.fact {
            Fact::Judged { judgement, .. } => is_allowed = judgement.verdict == Verdict::Allow,
            Fact::Decision { .. } => is_allowed = false,
            Fact::ToolStarted { .. } if is_allowed => return Some(item.at),
            _ => {}
        }
    }
    None
}

/// Returns `true` for a fact that puts the tool of a `once` call in doubt, `false` for a person's
/// decision, which ends the doubt, and `None` for every other fact.
fn may_have_run(fact: &Fact) -> Option<bool> {
    match fact {
        Fact::InterventionRequested(asked) if asked.kind == RequestKind::Reconcile => Some(true),
        Fact::ToolResult(result) | Fact::LateResult(result) => {
            let failed = result.outcome == Outcome::Failed;
            let in_doubt = failed && result.http_status.is_some_and(|status| status >= 500);
            (in_doubt || result.outcome == Outcome::Unknown).then_some(true)
        }
        Fact::Decision { .. } => Some(false),
        _ => None,
    }
}

fn lets_run(action: Action) -> bool {
    matches!(action, Action::Approve | Action::Retry | Action::Edit)
}

fn is_edit(fact: &Fact) -> bool {
    matches!(fact, Fact::Decision { decision, .. }
        if decision.decisions.values().any(|answer| answer.action == Action::Edit))
}

fn count(journal: &Journal, which: impl Fn(&Fact) -> bool) -> usize {
    journal
        .items
        .iter()
        .filter(|item| which(&item.fact))
        .count()
}
