//! Turns a change into rows. The rows of requests, approvers and decisions are derived from facts
//! here and nowhere else, so the journal and the tables cannot contradict each other.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::notices::Wanted;
use super::rows::{
    ANY, ApproverLine, AskedLine, CredentialLine, DecisionLine, GrantLine, ImmutableLine, ItemLine,
    KEEP, NEW, Needs, PARK, QUEUE, Rows, TAKE, TaskLine, TouchedLine, UseLine, VERSION,
};
use crate::task::change::{Change, Guard, LeaseChange, TaskChange};
use crate::task::credential::SealedCredential;
use crate::task::decision::{Action, CallAnswer, Decision};
use crate::task::id::{RequestId, TaskId};
use crate::task::item::Fact;
use crate::task::request::RequestSpec;
use crate::task::status::{RequestStatus, TaskStatus};

/// Turns a change into rows. Returns `None` if the change cannot be stored, for example because a
/// text has a NUL, a task is named twice, or a task with `Guard::Any` gets items. The change gets a
/// notice if one of its events is `wanted`.
pub(super) fn rows(change: Change, wanted: &Wanted) -> Option<Rows> {
    let mut rows = Rows {
        noticed: wanted.wants(&change),
        root: change.root,
        tenant: change.tenant,
        change: change.id.0,
        tasks: Vec::with_capacity(change.tasks.len() + 1),
        items: Vec::new(),
        asked: Vec::new(),
        approvers: Vec::new(),
        touched: Vec::new(),
        decisions: Vec::new(),
        credentials: Vec::new(),
        given: Vec::new(),
        uses: Vec::new(),
        idempotency: change.idempotency,
    };
    let mut touched = BTreeMap::new();
    for task in change.tasks {
        rows.add_task(task, &mut touched)?;
    }
    for RequestId(request_id) in change.resumed {
        touched
            .entry(request_id)
            .or_insert_with(|| TouchedLine {
                request_id,
                ..TouchedLine::default()
            })
            .resumed = true;
    }
    // A request that is opened and closed in one change is written once, with its final status.
    for asked in &mut rows.asked {
        if let Some(line) = touched.remove(&asked.request_id) {
            asked.status = line.end().unwrap_or(asked.status);
        }
    }
    for line in &mut rows.given {
        line.agent.clone_from(&change.root_agent);
    }
    rows.touched = touched.into_values().collect();
    rows.number_events();
    rows.storable().then_some(rows)
}

impl Rows {
    fn add_task(
        &mut self,
        task: TaskChange,
        touched: &mut BTreeMap<Uuid, TouchedLine>,
    ) -> Option<()> {
        let mut agent_version = task.agent_version;
        let (guard, version, immutable) = match task.guard {
            Guard::New(new) => {
                agent_version = Some(new.agent_version.clone());
                (NEW, 0, Some(immutable(*new)?))
            }
            Guard::Version(version) => (VERSION, version, None),
            Guard::Any => (ANY, 0, None),
        };
        let twice = self.tasks.iter().any(|line| line.task_id == task.task_id.0);
        let shape = match guard {
            NEW => task.last_seq == 0 && !task.facts.is_empty(),
            ANY => task.facts.is_empty() && task.credentials.is_empty() && task.asker.is_none(),
            _ => true,
        };
        if twice || !shape {
            return None;
        }
        let (lease, lease_owner, lease_time) = lease(task.lease, guard);
        let mut line = TaskLine {
            task_id: task.task_id.0,
            guard,
            version,
            last_seq: task.last_seq,
            facts: i64::try_from(task.facts.len()).ok()?,
            events: 0,
            busy: task.counters.busy.into(),
            open_requests: task.counters.open_requests.into(),
            prompt_tokens: task.counters.usage.prompt_tokens,
            completion_tokens: task.counters.usage.completion_tokens,
            total_tokens: task.counters.usage.total_tokens,
            model_calls: task.counters.model_calls.into(),
            status: None,
            status_seq: 0,
            agent_version,
            lease,
            lease_owner,
            lease_time,
            asker: task.asker,
            immutable,
        };
        self.add_items(&mut line, task.facts, touched)?;
        if guard == NEW && line.status.is_none() {
            line.status = Some(TaskStatus::Running.as_str());
        }
        if !line.ends() {
            self.keep(task.task_id.0, task.credentials);
        }
        self.tasks.push(line);
        Some(())
    }

    /// Adds a task's new items. The row gets the status of the last new item that sets a status.
    fn add_items(
        &mut self,
        line: &mut TaskLine,
        facts: Vec<Fact>,
        touched: &mut BTreeMap<Uuid, TouchedLine>,
    ) -> Option<()> {
        let mut seq = line.last_seq;
        for fact in facts {
            seq += 1;
            if let Fact::TaskStatus { status, .. } = &fact {
                line.status = Some(status.as_str());
                line.status_seq = seq;
            }
            self.follow(&fact, TaskId(line.task_id), seq, touched);
            self.items.push(ItemLine {
                task_id: line.task_id,
                seq,
                ordinal: i64::try_from(self.items.len()).ok()? + 1,
                kind: fact.type_name(),
                role: fact.role(),
                request_id: fact.request_id().map(|id| id.0),
                body: serde_json::to_string(&fact).ok()?,
            });
        }
        Some(())
    }

    /// Adds a task's new credentials; of several with the same name, only the last.
    fn keep(&mut self, task_id: Uuid, credentials: Vec<SealedCredential>) {
        let by_name: BTreeMap<_, _> = credentials
            .into_iter()
            .map(|sealed| (sealed.name.clone(), sealed))
            .collect();
        self.credentials
            .extend(by_name.into_values().map(|sealed| CredentialLine {
                task_id,
                expires_in: sealed.expires_in.map(micros),
                sealed,
            }));
    }

    /// Adds the rows that follow from a fact: requests, approvers, decisions, standing decisions
    /// and their uses.
    fn follow(
        &mut self,
        fact: &Fact,
        task: TaskId,
        seq: i64,
        touched: &mut BTreeMap<Uuid, TouchedLine>,
    ) {
        if let Fact::InterventionRequested(asked) = fact {
            self.ask(asked, task, seq);
        }
        if let Fact::Decision {
            request_id: RequestId(request_id),
            decision,
        } = fact
        {
            let line = touched.entry(*request_id).or_default();
            line.request_id = *request_id;
            line.needs = Needs::InTime;
            if decision.closes {
                line.status = Some(RequestStatus::Responded);
            }
            self.decide(decision, *request_id, task, seq);
            self.give(decision, *request_id, task, seq);
        }
        if let Fact::ToolStarted {
            grant: Some(used), ..
        } = fact
        {
            self.uses.push(UseLine {
                grant_id: used.grant_id.0,
                calls: i64::from(!used.again),
            });
        }
        if let Fact::RequestClosed {
            request_id: RequestId(request_id),
            status,
            ..
        } = fact
        {
            let line = touched.entry(*request_id).or_default();
            line.request_id = *request_id;
            let needs = if *status == RequestStatus::Expired {
                Needs::Overdue
            } else {
                Needs::Open
            };
            line.needs = line.needs.max(needs);
            line.status = Some(*status);
        }
    }

    fn ask(&mut self, asked: &RequestSpec, task: TaskId, seq: i64) {
        let request_id = asked.request_id.0;
        let call = asked
            .own_calls()
            .next()
            .or_else(|| asked.pending_tool_calls.first());
        let approvers = &asked.terms.approvers;
        self.asked.push(AskedLine {
            request_id,
            task_id: task.0,
            seq,
            kind: asked.kind.as_str(),
            status: RequestStatus::Pending,
            required: asked.required().into(),
            call_id: call.map(|call| call.tool_call_id.0),
            expires_in: asked.terms.expires_in.map(micros),
        });
        let mut add = |kind: &'static str, name: Option<&String>| {
            let name = name.cloned();
            let known = |line: &ApproverLine| {
                line.request_id == request_id && line.kind == kind && line.name == name
            };
            if !self.approvers.iter().any(known) {
                self.approvers.push(ApproverLine {
                    request_id,
                    task_id: task.0,
                    kind,
                    name,
                });
            }
        };
        if approvers.owner {
            add("owner", None);
        }
        approvers
            .users
            .iter()
            .for_each(|user| add("user", Some(user)));
        approvers
            .groups
            .iter()
            .for_each(|group| add("group", Some(group)));
    }

    fn decide(&mut self, decision: &Decision, request_id: Uuid, task: TaskId, seq: i64) {
        let mut add = |call_id, action: Action, settles: bool| {
            self.decisions.push(DecisionLine {
                request_id,
                call_id,
                user_id: decision.by.clone(),
                action: action.as_str(),
                settles: settles || decision.closes,
                task_id: task.0,
                seq,
            });
        };
        if decision.decisions.is_empty() {
            add(
                None,
                decision.action,
                CallAnswer::plain(decision.action).settles(),
            );
        }
        for (call, answer) in &decision.decisions {
            add(Some(call.0), answer.action, answer.settles());
        }
    }

    /// Adds the standing decisions that an answer gives.
    fn give(&mut self, decision: &Decision, request_id: Uuid, task: TaskId, seq: i64) {
        let given = decision.grants().map(|(_, grant)| GrantLine {
            grant: grant.clone(),
            agent: String::new(),
            by: decision.by.clone(),
            via: decision.via.clone(),
            groups: serde_json::Value::from(decision.groups.clone()).to_string(),
            door: decision.door,
            task_id: task.0,
            seq,
            request_id,
        });
        self.given.extend(given);
    }

    /// Stores the number of new events in the root's line, because the root's row counts the events
    /// of the tree. Adds a line for the root if the change has none.
    fn number_events(&mut self) {
        let events = i64::try_from(self.items.len()).unwrap_or(0);
        if events == 0 {
            return;
        }
        let root = self.root.0;
        if let Some(line) = self.tasks.iter_mut().find(|line| line.task_id == root) {
            line.events = events;
            return;
        }
        self.tasks.push(TaskLine {
            task_id: root,
            guard: ANY,
            version: 0,
            last_seq: 0,
            facts: 0,
            events,
            busy: 0,
            open_requests: 0,
            prompt_tokens: 0,
            completion_tokens: 0,
            total_tokens: 0,
            model_calls: 0,
            status: None,
            status_seq: 0,
            agent_version: None,
            lease: KEEP,
            lease_owner: None,
            lease_time: None,
            asker: None,
            immutable: None,
        });
    }
}

fn immutable(new: crate::task::change::NewTask) -> Option<ImmutableLine> {
    Some(ImmutableLine {
        parent_task_id: new.parent.map(|(task, _)| task.0),
        parent_call_id: new.parent.map(|(_, call)| call.0),
        tenant: new.tenant,
        user_id: new.user_id,
        session_id: new.session_id,
        agent: new.agent,
        agent_path: serde_json::to_string(&new.agent_path).ok()?,
        metadata: new.metadata,
        call: new.call,
    })
}

fn lease(change: LeaseChange, guard: i64) -> (i64, Option<String>, Option<i64>) {
    match change {
        // A new task must be picked up by a worker.
        LeaseChange::Keep if guard == NEW => (QUEUE, None, None),
        LeaseChange::Keep => (KEEP, None, None),
        LeaseChange::Take { owner, time } => (TAKE, Some(owner), Some(micros(time))),
        LeaseChange::Queue => (QUEUE, None, None),
        LeaseChange::Park { wake_in } => (PARK, None, wake_in.map(micros)),
    }
}

/// Converts a duration to microseconds. The result is limited, so that adding it to the current
/// time cannot overflow.
pub(super) fn micros(time: std::time::Duration) -> i64 {
    i64::try_from(time.as_micros())
        .unwrap_or(i64::MAX)
        .min(i64::MAX / 4)
}
