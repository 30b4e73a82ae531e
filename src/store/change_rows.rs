//! Turns a change into rows. Only this module derives the rows of requests, approvers and decisions
//! from facts, so the journal and the tables cannot contradict each other.

use std::collections::BTreeMap;
use std::mem;

use uuid::Uuid;

use super::notices::EventFilters;
use super::rows::{
    ApproverLine, ChangeRows, CredentialLine, DecisionLine, GrantLine, ItemLine, RequestLine,
    RequestUpdateLine, RequiredState, TaskLine, UseLine,
};
use crate::task::change::{Change, Guard, LeaseChange, TaskChange};
use crate::task::credential::SealedCredential;
use crate::task::decision::{Action, CallAnswer, Decision};
use crate::task::id::{RequestId, TaskId};
use crate::task::item::Fact;
use crate::task::request::RequestSpec;
use crate::task::status::{RequestStatus, TaskStatus};

/// Turns a change into rows. Returns `None` if the change cannot be stored, for example because a
/// text contains a NUL character, because the change names a task twice, or because the change adds
/// items to a task without a check of the task's version (`Guard::Any`). If an event of the change
/// matches `event_filters`, the rows include a notice, from which a sender later makes deliveries.
pub(super) fn rows(change: Change, event_filters: &EventFilters) -> Option<ChangeRows> {
    let mut rows = ChangeRows {
        gets_notice: event_filters.matches(&change),
        history_fence: history_fence(&change),
        is_general: false,
        root: change.root,
        tenant: change.tenant,
        change: change.id.0,
        tasks: Vec::with_capacity(change.tasks.len() + 1),
        items: Vec::new(),
        requests: Vec::new(),
        approvers: Vec::new(),
        request_updates: Vec::new(),
        decisions: Vec::new(),
        credentials: Vec::new(),
        grants: Vec::new(),
        uses: Vec::new(),
        idempotency: change.idempotency,
    };
    let mut updates = Updates::new();
    for task in change.tasks {
        rows.add_task(task, &mut updates)?;
    }
    for RequestId(request_id) in change.resumed {
        update_of(&mut updates, request_id).resumed = true;
    }
    // A request that is opened and closed in one change is written once, with its final status.
    for request in &mut rows.requests {
        if let Some(line) = updates.remove(&request.request_id) {
            request.status = line.end().unwrap_or(request.status);
            request.closed_seq = line.closed_seq;
        }
    }
    for line in &mut rows.grants {
        line.agent.clone_from(&change.root_agent);
    }
    rows.request_updates = updates.into_values().collect();
    rows.count_events();
    rows.is_storable().then_some(rows)
}

/// The updates of requests, each with the request's id.
type Updates = BTreeMap<Uuid, RequestUpdateLine>;

fn update_of(updates: &mut Updates, request_id: Uuid) -> &mut RequestUpdateLine {
    let line = updates.entry(request_id).or_default();
    line.request_id = request_id;
    line
}

impl ChangeRows {
    fn add_task(&mut self, mut task: TaskChange, updates: &mut Updates) -> Option<()> {
        let mut known = self.tasks.iter();
        let twice = known.any(|line| line.task.task_id == task.task_id);
        let fits = match task.guard {
            Guard::New(_) => task.last_seq == 0 && !task.facts.is_empty(),
            Guard::Version(_) => true,
            Guard::Any => {
                task.facts.is_empty() && task.credentials.is_empty() && task.asker.is_none()
            }
        };
        if twice || !fits {
            return None;
        }
        let facts = mem::take(&mut task.facts);
        let credentials = mem::take(&mut task.credentials);
        let mut line = TaskLine {
            facts: i64::try_from(facts.len()).ok()?,
            ..TaskLine::new(task)
        };
        self.add_items(&mut line, facts, updates)?;
        line.complete_new_task()?;
        if !line.ends() {
            self.add_credentials(line.task.task_id, credentials);
        }
        self.tasks.push(line);
        Some(())
    }

    /// Adds a task's new items. The task's row gets the status of the last item that sets a status.
    fn add_items(
        &mut self,
        line: &mut TaskLine,
        facts: Vec<Fact>,
        updates: &mut Updates,
    ) -> Option<()> {
        let (task_id, mut seq) = (line.task.task_id, line.task.last_seq);
        for fact in facts {
            seq += 1;
            if let Fact::TaskStatus { status, .. } = &fact {
                line.status = Some(*status);
                line.status_seq = seq;
            }
            self.add_derived_rows(&fact, task_id, seq, updates);
            self.items.push(ItemLine {
                task_id: task_id.0,
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

    /// Adds a task's new credentials. If several have the same name, adds only the last of them.
    fn add_credentials(&mut self, task: TaskId, credentials: Vec<SealedCredential>) {
        let by_name: BTreeMap<_, _> = credentials
            .into_iter()
            .map(|sealed| (sealed.name.clone(), sealed))
            .collect();
        self.credentials
            .extend(by_name.into_values().map(|sealed| CredentialLine {
                task_id: task.0,
                expires_in: sealed.expires_in.map(micros),
                sealed,
            }));
    }

    fn add_derived_rows(&mut self, fact: &Fact, task: TaskId, seq: i64, updates: &mut Updates) {
        if let Fact::InterventionRequested(spec) = fact {
            self.add_request(spec, task, seq);
        }
        if let Fact::Decision {
            request_id: RequestId(request_id),
            decision,
        } = fact
        {
            let line = update_of(updates, *request_id);
            line.required_state = RequiredState::InTime;
            if decision.closes {
                line.close(RequestStatus::Responded, seq);
            }
            self.add_decisions(decision, *request_id, task, seq);
            self.add_grants(decision, *request_id, task, seq);
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
            let line = update_of(updates, *request_id);
            let required_state = if *status == RequestStatus::Expired {
                RequiredState::Overdue
            } else {
                RequiredState::Open
            };
            line.required_state = line.required_state.max(required_state);
            line.close(*status, seq);
        }
    }

    fn add_request(&mut self, spec: &RequestSpec, task: TaskId, seq: i64) {
        let request_id = spec.request_id.0;
        let call = spec
            .own_calls()
            .next()
            .or_else(|| spec.pending_tool_calls.first());
        let approvers = &spec.terms.approvers;
        let expires_in = spec.terms.expires_in.map(micros);
        let one_answer = spec.required() <= 1 && spec.own_calls().count() <= 1;
        self.requests.push(RequestLine {
            request_id,
            task_id: task.0,
            seq,
            kind: spec.kind.as_str(),
            status: RequestStatus::Pending,
            required: spec.required().into(),
            one_answer,
            call_id: call.map(|call| call.tool_call_id.0),
            closed_seq: None,
            expires_in,
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
                    expires_in,
                    one_answer,
                });
            }
        };
        if approvers.owner {
            add("owner", None);
        }
        for user in &approvers.users {
            add("user", Some(user));
        }
        for group in &approvers.groups {
            add("group", Some(group));
        }
    }

    fn add_decisions(&mut self, decision: &Decision, request_id: Uuid, task: TaskId, seq: i64) {
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

    fn add_grants(&mut self, decision: &Decision, request_id: Uuid, task: TaskId, seq: i64) {
        let grants = decision.grants().into_iter().map(|grant| GrantLine {
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
        self.grants.extend(grants);
    }

    /// Stores the number of new events in the root's line, because the root's row counts the events
    /// of the tree. Adds a line for the root if the change has no such line.
    fn count_events(&mut self) {
        let events = i64::try_from(self.items.len()).unwrap_or(0);
        if events == 0 {
            return;
        }
        let root = self.root;
        let mut lines = self.tasks.iter_mut();
        if let Some(line) = lines.find(|line| line.task.task_id == root) {
            line.events = events;
            return;
        }
        self.tasks.push(TaskLine {
            events,
            ..TaskLine::new(TaskChange::empty(root, Guard::Any, 0))
        });
    }
}

impl TaskLine {
    /// Completes the line of a new task; leaves the line of a stored task unchanged. Sets the agent
    /// path. If the change sets no status, sets the status to `running`. If the change sets no
    /// lease, queues the task. Returns `None` if the agent path cannot be stored.
    fn complete_new_task(&mut self) -> Option<()> {
        let Guard::New(new) = &self.task.guard else {
            return Some(());
        };
        self.agent_path = Some(serde_json::to_string(&new.agent_path).ok()?);
        self.status = self.status.or(Some(TaskStatus::Running));
        if self.task.lease == LeaseChange::Keep {
            self.task.lease = LeaseChange::Queue;
        }
        Some(())
    }
}

/// Returns the [`ChangeRows::history_fence`] of a change; `None` if the change requires no version
/// of a stored task. A new task needs no fence, because it has no history that could be lost.
fn history_fence(change: &Change) -> Option<i64> {
    let mut tasks = change.tasks.iter();
    let requires_version = tasks.any(|task| matches!(task.guard, Guard::Version(_)));
    requires_version.then(|| change.history_uncertain_until.unwrap_or_default().0)
}

/// Converts a duration to microseconds. The result is limited, so that adding it to the current
/// time cannot overflow.
pub(super) fn micros(time: std::time::Duration) -> i64 {
    i64::try_from(time.as_micros())
        .unwrap_or(i64::MAX)
        .min(i64::MAX / 4)
}
