//! Checks a task's journal: each call has exactly one result, and each start of a call has a
//! permission.

use std::collections::{BTreeMap, BTreeSet};

use holdpoint::task::decision::Action;
use holdpoint::task::id::{CallId, RequestId};
use holdpoint::task::item::{Fact, Item};
use holdpoint::task::tool_spec::Effect;
use holdpoint::task::verdict::Verdict;

use super::engine_harness::tool_results;
use crate::store::store_fixture::StoreFixture;

/// Checks the journal of an ended task.
pub fn check_ended(journal: &[Item]) {
    check(journal);
    every_call_has_one_result(journal);
}

/// Asserts that the numbers of the events of each tree have no gaps.
pub async fn events_have_no_gaps(fixture: &StoreFixture) {
    let gaps = "select max(event_number) - count(*) from agent_task_item
        group by root_task_id having max(event_number) <> count(*)";
    assert_eq!(fixture.numbers(gaps).await.unwrap(), Vec::<i64>::new());
}

/// Asserts that the inbox has a row for each approver of each open request, and no other row.
pub async fn inbox_has_the_open_requests(fixture: &StoreFixture) {
    let open = "select a.tenant, a.kind, a.name, a.request_id from request_approver a
        join intervention_request r on r.request_id = a.request_id where r.status = 'pending'";
    let listed = "select i.tenant, i.kind, i.name, i.request_id from inbox i";
    for (these, those) in [(open, listed), (listed, open)] {
        let others = format!("select count(*) from ({these} except {those}) x");
        assert_eq!(fixture.numbers(&others).await.unwrap(), [0], "{others}");
    }
}

pub fn every_call_has_one_result(journal: &[Item]) {
    let mut results: BTreeMap<CallId, u32> = BTreeMap::new();
    for result in tool_results(journal) {
        *results.entry(result.tool_call_id).or_default() += 1;
    }
    for item in journal {
        if let Fact::AssistantMessage(turn) = &item.fact {
            for call in &turn.tool_calls {
                assert_eq!(
                    results.get(&call.tool_call_id),
                    Some(&1),
                    "one result for each call"
                );
            }
        }
    }
}

/// Asserts that each start of a call uses up one permission, given since the previous start of that
/// call. A permission is an `allow` verdict, or a person's decision that lets the call run: the
/// last required approval or retry, or an edit. A later verdict withdraws an unused permission. A
/// repeatable call (`read_only` or `idempotent`) may start again without a permission. A call
/// starts at most one sub-agent.
pub fn check(journal: &[Item]) {
    let mut leave: BTreeSet<CallId> = BTreeSet::new();
    let mut starts: BTreeMap<CallId, u32> = BTreeMap::new();
    let mut effects: BTreeMap<CallId, Effect> = BTreeMap::new();
    let mut approvals: BTreeMap<(RequestId, CallId), u32> = BTreeMap::new();
    let mut required: BTreeMap<RequestId, u32> = BTreeMap::new();
    for item in journal {
        match &item.fact {
            Fact::Judged {
                tool_call_id,
                judgement,
                effect,
                ..
            } => {
                effects.insert(*tool_call_id, *effect);
                leave.remove(tool_call_id);
                if judgement.verdict == Verdict::Allow {
                    leave.insert(*tool_call_id);
                }
            }
            Fact::InterventionRequested(asked) => {
                required.insert(asked.request_id, asked.required());
            }
            Fact::Decision {
                request_id,
                decision,
            } => {
                for (id, answer) in &decision.decisions {
                    if answer.leave {
                        leave.insert(*id);
                    }
                    if matches!(answer.action, Action::Approve | Action::Retry) {
                        let count = approvals.entry((*request_id, *id)).or_default();
                        *count += 1;
                        if *count >= required[request_id] {
                            leave.insert(*id);
                        }
                    }
                }
            }
            Fact::ToolStarted { tool_call_id, .. } => {
                let again = starts.entry(*tool_call_id).or_default();
                *again += 1;
                let repeatable = effects[tool_call_id].is_repeatable() && *again > 1;
                assert!(
                    leave.remove(tool_call_id) || repeatable,
                    "a start without permission"
                );
            }
            Fact::TaskStatus { .. }
            | Fact::UserMessage { .. }
            | Fact::AssistantMessage(_)
            | Fact::RequestClosed { .. }
            | Fact::ToolResult(_)
            | Fact::LateResult(_) => {}
            Fact::SubAgentStarted { tool_call_id, .. } => {
                let again = starts.entry(*tool_call_id).or_default();
                *again += 1;
                assert!(
                    *again == 1 && leave.remove(tool_call_id),
                    "a sub-agent starts once for each permitted call"
                );
            }
        }
    }
}

pub fn retried(item: &Item, id: CallId) -> bool {
    matches!(&item.fact, Fact::Decision { decision, .. }
        if decision.decisions.get(&id).is_some_and(|answer| matches!(answer.action, Action::Retry | Action::Approve)))
}
