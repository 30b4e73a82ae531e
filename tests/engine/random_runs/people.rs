//! People in random runs: they answer whole requests and single calls, edit arguments, answer too
//! late, send another message, or never answer.

use std::collections::BTreeMap;

use holdpoint::task::decision::{Action, CallAnswer, Consequence, Decision, Edit};
use holdpoint::task::id::CallId;
use holdpoint::task::item::{CloseReason, Fact, Outcome};
use holdpoint::task::progress::{Progress, RequestProgress};
use holdpoint::task::request::{RequestKind, RequestSpec};
use holdpoint::task::status::{RequestStatus, TaskStatus};
use holdpoint::task::step::AwaitedEvent;

use super::{RunState, status};

impl RunState {
    pub(super) fn human(&mut self, on: &[AwaitedEvent]) {
        let progress = self.progress.clone();
        let asked: Vec<_> = progress.open.iter().map(|open| open.spec.clone()).collect();
        if on.contains(&AwaitedEvent::Message) {
            self.push(status(TaskStatus::Running));
            if self.rng.one_in(2) || progress.status != Some(TaskStatus::Failed) {
                self.say();
            }
            self.commit_surely();
            return;
        }
        if asked.is_empty() {
            return;
        }
        let asked = self.rng.pick(&asked);
        match self.rng.below(8) {
            0 => self.close(&asked, RequestStatus::Expired, CloseReason::Expired),
            1 => self.supersede(&progress),
            2 if asked.kind == RequestKind::Approval => {
                self.close(&asked, RequestStatus::Withdrawn, CloseReason::ToolChanged);
            }
            _ => self.decide(&progress, &asked),
        }
        self.commit_surely();
    }

    fn close(&mut self, asked: &RequestSpec, closed: RequestStatus, reason: CloseReason) {
        self.push(Fact::RequestClosed {
            request_id: asked.request_id,
            status: closed,
            reason,
        });
        let progress = self.progress.clone();
        if progress.ending.is_some() {
            self.withdraw(&progress);
        } else {
            self.goes_on(&progress);
        }
    }

    fn goes_on(&mut self, progress: &Progress) {
        if progress.status == Some(TaskStatus::Paused) && progress.has_work() {
            self.push(status(TaskStatus::Running));
        }
    }

    fn withdraw(&mut self, progress: &Progress) {
        for open in &progress.open {
            self.push(Fact::RequestClosed {
                request_id: open.spec.request_id,
                status: RequestStatus::Withdrawn,
                reason: CloseReason::Canceled,
            });
        }
    }

    fn supersede(&mut self, progress: &Progress) {
        self.withdraw(progress);
        self.push(status(TaskStatus::Running));
        for standing in progress.unfinished() {
            let outcome = if standing.attempts > 0 {
                Outcome::Unknown
            } else {
                Outcome::Withdrawn
            };
            self.result(standing.call.tool_call_id, outcome, "the user went on");
        }
        self.say();
    }

    fn decide(&mut self, progress: &Progress, asked: &RequestSpec) {
        let open = progress.open_request(asked.request_id).unwrap();
        let mut calls: Vec<CallId> = asked.own_calls().map(|call| call.tool_call_id).collect();
        calls.retain(|call| !open.decided.contains_key(call));
        let one_by_one = asked.kind == RequestKind::Approval && self.rng.one_in(2);
        let said = self.whole(asked);
        let mut decisions = BTreeMap::new();
        for call in calls {
            if one_by_one && !decisions.is_empty() && self.rng.one_in(2) {
                continue;
            }
            let action = if one_by_one { self.single(asked) } else { said };
            decisions.insert(call, answer(open, call, action));
        }
        let by = format!("person {}", self.id());
        let (then, closes) = follows(open, &decisions);
        self.push(Fact::Decision {
            request_id: asked.request_id,
            decision: Decision {
                action: if one_by_one { Action::Mixed } else { said },
                by,
                via: None,
                groups: Vec::new(),
                door: None,
                reason: None,
                then,
                response: None,
                result_text: None,
                decisions,
                closes,
            },
        });
        let progress = self.progress.clone();
        if progress.ending.is_some() {
            self.withdraw(&progress);
        } else {
            self.goes_on(&progress);
        }
    }

    fn whole(&mut self, asked: &RequestSpec) -> Action {
        match asked.kind {
            RequestKind::Reconcile => {
                self.rng
                    .pick(&[Action::Retry, Action::Reject, Action::Respond])
            }
            RequestKind::ExternalResult | RequestKind::Elicitation => {
                self.rng
                    .pick(&[Action::Respond, Action::Respond, Action::Reject])
            }
            RequestKind::Approval
            | RequestKind::Guidance
            | RequestKind::Credentials
            | RequestKind::Confirmation => {
                self.rng
                    .pick(&[Action::Approve, Action::Approve, Action::Reject])
            }
        }
    }

    fn single(&mut self, asked: &RequestSpec) -> Action {
        let any = [
            Action::Approve,
            Action::Reject,
            Action::Edit,
            Action::Respond,
        ];
        let of_several = [
            Action::Approve,
            Action::Approve,
            Action::Reject,
            Action::Edit,
        ];
        self.rng.pick(if asked.required() > 1 {
            &of_several
        } else {
            &any
        })
    }
}

fn answer(open: &RequestProgress, call: CallId, action: Action) -> CallAnswer {
    let required = open.spec.required();
    let edit = Edit {
        arguments_text: r#"{"changed":true}"#.to_owned(),
        digest: call.to_string(),
        rule: None,
    };
    CallAnswer {
        edit: (action == Action::Edit).then_some(edit),
        result_text: (action == Action::Respond).then(|| "\"it did happen\"".to_owned()),
        leave: match action {
            Action::Approve | Action::Retry => {
                open.approvals.get(&call).map_or(0, Vec::len) + 1 >= required as usize
            }
            Action::Edit => required < 2,
            Action::Reject | Action::Respond | Action::Mixed => false,
        },
        ..CallAnswer::plain(action)
    }
}

fn follows(
    open: &RequestProgress,
    decisions: &BTreeMap<CallId, CallAnswer>,
) -> (Option<Consequence>, bool) {
    let settled = |call: CallId| {
        decisions
            .get(&call)
            .filter(|answer| answer.settles())
            .map(|answer| answer.action)
    };
    let outcomes: Vec<_> = open
        .spec
        .own_calls()
        .map(|call| settled(call.tool_call_id).or(open.decided.get(&call.tool_call_id).copied()))
        .collect();
    let closes = outcomes.iter().all(Option::is_some);
    let rejects = decisions
        .values()
        .any(|answer| answer.action == Action::Reject);
    let all = outcomes
        .iter()
        .all(|outcome| *outcome == Some(Action::Reject));
    let then = if open.spec.kind == RequestKind::Approval && all {
        open.spec.terms.on_reject
    } else {
        Consequence::Continue
    };
    (rejects.then_some(then).filter(|_| closes), closes)
}
