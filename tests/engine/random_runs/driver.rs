//! The driver of a random run: carries out the steps that `next_step` returns, and may crash at
//! each commit and after calls are sent.

use std::collections::BTreeSet;

use holdpoint::task::id::CallId;
use holdpoint::task::item::Fact;
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::step::{AwaitedEvent, Ending, Step, StepContext, next_step};
use holdpoint::task::tool_spec::ToolKind;
use holdpoint::task::verdict::{Judgement, Verdict};

use super::super::invariants::every_call_has_one_result;
use super::sub_agents::CLERK;
use super::{Crash, RunState, status};

impl RunState {
    /// Drives until the task waits, or until a crash. Returns the events for which the task waits.
    /// A task that has ended waits for a message.
    pub fn drive(&mut self) -> Result<Vec<AwaitedEvent>, Crash> {
        let mut over = BTreeSet::new();
        for _ in 0..500 {
            self.hand_back();
            let context = self.step_context(&over);
            match next_step(&self.progress, &context) {
                Step::CallModel => {
                    self.commit()?;
                    every_call_has_one_result(&self.journal);
                    self.answer();
                }
                Step::Judge(calls) => calls.into_iter().for_each(|id| self.judge(id)),
                Step::Settle(refusals) => {
                    for (id, outcome, text) in refusals {
                        self.result(id, outcome, &text);
                    }
                }
                Step::OpenRequests(questions) => {
                    for question in questions {
                        self.ask(question.kind, &question.calls, question.terms);
                    }
                }
                Step::Reconcile(calls) => {
                    for id in calls {
                        let terms = self.terms();
                        self.ask(RequestKind::Reconcile, &[id], terms);
                    }
                }
                Step::HandOver(call) => panic!("no gate is here: {call}"),
                Step::Elicit(calls) => panic!("no server asks here: {calls:?}"),
                Step::StartSubAgents(calls) => self.start(&calls)?,
                Step::RunCalls(calls) => self.run(&calls, &mut over)?,
                Step::Wait(on) => {
                    let at_work = self.is_at_work(&on);
                    if self.progress.status == Some(TaskStatus::Running) && !at_work {
                        self.push(status(TaskStatus::Paused));
                    }
                    if !self.pushed.is_empty() {
                        self.commit()?;
                    }
                    return Ok(on);
                }
                Step::Finish(ending) => {
                    let ended = match ending {
                        Ending::Completed(_) | Ending::Settled => TaskStatus::Completed,
                        Ending::Failed(_) => TaskStatus::Failed,
                        Ending::Canceled => TaskStatus::Canceled,
                    };
                    self.push(status(ended));
                    self.commit()?;
                }
            }
        }
        panic!("the run neither waits nor ends");
    }

    /// Returns the context of the next step. `over` has the calls that this driver has run itself.
    /// Each other started call may still be running in an earlier driver, which is decided at
    /// random.
    pub fn step_context(&mut self, over: &BTreeSet<CallId>) -> StepContext {
        let spent = (self.model_calls >= 12).then_some("max_model_calls");
        let started = self.progress.unfinished().filter(|standing| {
            standing.start.is_some() && !over.contains(&standing.call.tool_call_id)
        });
        let mut running: BTreeSet<CallId> =
            started.map(|standing| standing.call.tool_call_id).collect();
        running.retain(|_| self.rng.one_in(4));
        StepContext {
            spent_limit: spent,
            running,
            ended_with_questions: BTreeSet::new(),
            is_driven_elsewhere: false,
            asker: None,
            session_agents: BTreeSet::from([CLERK.to_owned()]),
        }
    }

    /// Returns whether the policy has become stricter, which happens one time in ten. In that case
    /// the calls are judged again and none of them starts.
    pub fn has_become_stricter(&mut self, calls: &[CallId], performer: ToolKind) -> bool {
        if !self.rng.one_in(10) {
            return false;
        }
        for id in calls {
            let verdict = self.rng.pick(&[Verdict::Hold, Verdict::Deny]);
            let terms = (verdict == Verdict::Hold).then(|| self.terms());
            let judgement = Judgement {
                terms,
                ..Judgement::new(verdict)
            };
            self.push(Fact::Judged {
                tool_call_id: *id,
                judgement,
                effect: self.effects[id],
                performer,
            });
        }
        true
    }
}
