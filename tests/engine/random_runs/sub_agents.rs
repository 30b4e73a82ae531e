//! Sub-agents in random runs. Each call starts at most one task, even after crashes. The started
//! task runs, pauses or ends. The next driver of the parent task writes the result of the call.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "an item of a new type says nothing here"
)]

use std::collections::BTreeMap;

use holdpoint::task::id::{CallId, TaskId};
use holdpoint::task::item::{Fact, Item, Outcome};
use holdpoint::task::status::TaskStatus;
use holdpoint::task::step::AwaitedEvent;
use holdpoint::task::tool_spec::ToolKind;

use super::{Crash, RunState, status};

/// A sub-agent whose calls must not overlap, because they all continue one conversation.
pub(super) const CLERK: &str = "clerk";

impl RunState {
    /// Adds the start of a sub-agent for each of these calls to the next commit. Sometimes commits
    /// at once.
    pub(super) fn start(&mut self, calls: &[CallId]) -> Result<(), Crash> {
        for id in calls {
            let standing = self.progress.call(*id).unwrap();
            assert!(
                standing.performer == ToolKind::Agent && standing.child().is_none(),
                "{standing:?}"
            );
        }
        if self.has_become_stricter(calls, ToolKind::Agent) {
            return Ok(());
        }
        for id in calls {
            let (child_task_id, agent) = (TaskId(self.id()), self.names[id].to_owned());
            self.push(Fact::SubAgentStarted {
                tool_call_id: *id,
                child_task_id,
                agent,
            });
        }
        // Without a commit here, these starts are committed together with the starts of the turn's
        // other calls.
        if self.rng.one_in(2) {
            self.commit()
        } else {
            Ok(())
        }
    }

    /// Writes the results of those sub-agents that have ended and whose calls have no result yet.
    pub(super) fn hand_back(&mut self) {
        let ended = self.progress.unfinished().filter_map(|standing| {
            let outcome = self.ended.get(&standing.child()?)?;
            Some((standing.call.tool_call_id, *outcome))
        });
        for (id, outcome) in ended.collect::<Vec<_>>() {
            self.result(id, outcome, "what it found");
        }
    }

    /// Returns whether the task waits for a running attempt or sub-agent. Such a task counts as
    /// running.
    pub(super) fn is_at_work(&mut self, on: &[AwaitedEvent]) -> bool {
        let children = on.iter().any(|on| matches!(on, AwaitedEvent::Child(_)));
        on.iter().any(|on| matches!(on, AwaitedEvent::Attempt(_)))
            || (children && self.rng.one_in(2))
    }

    /// Lets one of the awaited events happen: a sub-agent's task changes, or a person acts.
    pub(super) fn trigger_event(&mut self, on: &[AwaitedEvent]) {
        let at_work: Vec<_> = on
            .iter()
            .filter_map(|on| {
                if let AwaitedEvent::Child(child) = on {
                    Some(*child)
                } else {
                    None
                }
            })
            .collect();
        let asks = on.iter().any(|on| matches!(on, AwaitedEvent::Request(_)));
        if at_work.is_empty() || (asks && self.rng.one_in(2)) {
            self.human(on);
            return;
        }
        let child = self.rng.pick(&at_work);
        if self.rng.one_in(4) {
            // The sub-agent's task pauses or goes on, and its parent gets the same status.
            let other = if self.progress.status == Some(TaskStatus::Paused) {
                TaskStatus::Running
            } else {
                TaskStatus::Paused
            };
            self.push(status(other));
        } else {
            let ends = [
                Outcome::Succeeded,
                Outcome::Succeeded,
                Outcome::Failed,
                Outcome::Canceled,
            ];
            let outcome = self.rng.pick(&ends);
            self.ended.insert(child, outcome);
            if self.progress.status == Some(TaskStatus::Paused) {
                self.push(status(TaskStatus::Running));
            }
        }
        self.commit_surely();
    }
}

pub(super) fn one_after_the_other(journal: &[Item]) {
    let mut at_work: BTreeMap<CallId, &str> = BTreeMap::new();
    for item in journal {
        match &item.fact {
            Fact::SubAgentStarted {
                tool_call_id,
                agent,
                ..
            } => {
                let alone = agent != CLERK || !at_work.values().any(|other| *other == CLERK);
                assert!(alone, "two calls of one conversation at once: {journal:#?}");
                at_work.insert(*tool_call_id, agent);
            }
            Fact::ToolResult(result) => {
                at_work.remove(&result.tool_call_id);
            }
            _ => {}
        }
    }
}
