//! Compares the journals with the ledger of the executed calls (`tool_server.rs`) and with the
//! changes that the service acknowledged (`simulated_people.rs`). No acknowledged change may be
//! lost, and no `once` call may run twice.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "an item of a new type proves nothing here by itself"
)]

mod calls;

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use holdpoint::task::id::{CallId, TaskId};
use holdpoint::task::item::{Fact, Item};

use self::calls::{AGENTS, one_call, one_delegation, read};
use super::simulated_people::Acknowledged;
use super::tool_server::Execution;
use crate::engine::invariants;

/// The state of one task after the run.
pub struct TaskRecord {
    pub task: TaskId,
    pub root: TaskId,
    /// The task and the call that started this task; `None` for a root.
    pub parent: Option<(TaskId, CallId)>,
    pub status: String,
    pub output: Option<String>,
    /// The counters in the task's row, which cover its subtree: busy tasks and open requests.
    pub counted: (i32, i32),
    /// The items of the journal, each with its event number.
    pub journal: Vec<(Item, i64)>,
}

pub struct Evidence<'a> {
    pub tasks: &'a [TaskRecord],
    pub ledger: &'a [Execution],
    pub history: &'a [Acknowledged],
    pub attempted: &'a BTreeMap<String, Vec<&'static str>>,
    /// Whether the database and the process of `tool_server.rs` use the same clock, so that their
    /// times can be compared.
    pub one_clock: bool,
}

/// The errors that a check found, and figures about the run.
#[derive(Debug, Default)]
pub struct Findings {
    pub tasks: usize,
    pub calls: usize,
    pub executions: usize,
    pub decisions: usize,
    /// The number of reconcile requests.
    pub to_human: usize,
    /// The number of times that a process died between the start of a call and its result. A call
    /// whose connection was broken by the tools' process (`tool_server.rs`) does not count.
    pub cut_off: usize,
    /// The number of calls that a process started after another process had started the task's
    /// previous call.
    pub takeovers: usize,
    pub rejected: usize,
    /// The number of sub-agents' tasks.
    pub children: usize,
    pub wrong: Vec<Wrong>,
}

/// A guarantee of the service that a run has broken.
#[derive(Debug)]
pub struct Wrong {
    pub kind: Kind,
    pub task: Option<TaskId>,
    pub what: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Duplicate,
    Lost,
    Other,
}

impl Findings {
    pub fn count(&self, kind: Kind) -> usize {
        self.wrong.iter().filter(|wrong| wrong.kind == kind).count()
    }

    fn add(&mut self, kind: Kind, task: impl Into<Option<TaskId>>, what: impl fmt::Display) {
        self.wrong.push(Wrong {
            kind,
            task: task.into(),
            what: what.to_string(),
        });
    }
}

pub fn check(evidence: &Evidence<'_>) -> Findings {
    let mut found = Findings {
        tasks: evidence.tasks.len(),
        executions: evidence.ledger.len(),
        ..Findings::default()
    };
    let mut by_key: HashMap<&str, Vec<&Execution>> = HashMap::new();
    for execution in evidence.ledger {
        by_key.entry(&execution.key).or_default().push(execution);
    }
    let children: HashMap<TaskId, &TaskRecord> = evidence
        .tasks
        .iter()
        .map(|record| (record.task, record))
        .collect();
    numbered(evidence, &mut found);
    for record in evidence.tasks {
        stands(record, &mut found);
        let calls = read(record, evidence, &mut found);
        for (id, call) in &calls {
            if AGENTS.contains(&call.name.as_str()) {
                one_delegation(record, *id, call, &children, &mut found);
                continue;
            }
            let executions = by_key.remove(id.to_string().as_str()).unwrap_or_default();
            one_call(
                record.task,
                *id,
                call,
                &executions,
                evidence.one_clock,
                &mut found,
            );
        }
    }
    for (key, executions) in by_key {
        let task = executions[0].task.parse().ok();
        found.add(
            Kind::Lost,
            task,
            format!("{key} was executed and stands in no journal"),
        );
    }
    acknowledged(evidence, &mut found);
    found
}

/// Checks that a journal has no gaps and satisfies `engine::invariants`. Also checks that its task
/// has completed or was canceled, that the service shows the same status, and that the task's
/// counters are zero.
fn stands(record: &TaskRecord, found: &mut Findings) {
    let items: Vec<Item> = record
        .journal
        .iter()
        .map(|(item, _)| item.clone())
        .collect();
    for (place, (item, _)) in (1..).zip(&record.journal) {
        if item.seq != place {
            found.add(
                Kind::Lost,
                record.task,
                format!("a gap: item {} in place {place}", item.seq),
            );
        }
    }
    if record.counted != (0, 0) {
        found.add(
            Kind::Other,
            record.task,
            format!("it is over and counts {:?}", record.counted),
        );
    }
    if !matches!(record.status.as_str(), "Completed" | "Canceled") {
        found.add(
            Kind::Lost,
            record.task,
            format!("it did not end: {}", record.status),
        );
    }
    let last = items.iter().rev().find_map(|item| match &item.fact {
        Fact::TaskStatus { status, .. } => Some(format!("{status:?}")),
        _ => None,
    });
    if last.as_deref() != Some(record.status.as_str()) {
        found.add(
            Kind::Other,
            record.task,
            format!(
                "it is said to be {}, its journal says {last:?}",
                record.status
            ),
        );
    }
    for (name, law) in [
        (
            "every call has one result",
            invariants::every_call_has_one_result as fn(&[Item]),
        ),
        ("no start without leave", invariants::check),
    ] {
        if std::panic::catch_unwind(|| law(&items)).is_err() {
            found.add(
                Kind::Other,
                record.task,
                format!("the law is broken: {name}"),
            );
        }
    }
}

/// Checks that the events of each tree are numbered 1, 2, 3 … over all its tasks.
fn numbered(evidence: &Evidence<'_>, found: &mut Findings) {
    let mut trees: BTreeMap<TaskId, Vec<i64>> = BTreeMap::new();
    for record in evidence.tasks {
        found.children += usize::from(record.parent.is_some());
        trees
            .entry(record.root)
            .or_default()
            .extend(record.journal.iter().map(|(_, event)| *event));
    }
    for (root, mut events) in trees {
        events.sort_unstable();
        if !(1..).zip(&events).all(|(place, event)| place == *event) {
            found.add(
                Kind::Lost,
                root,
                format!("the events of its tree have gaps: {events:?}"),
            );
        }
    }
}

/// Checks that every acknowledged task and every acknowledged decision is stored as it was
/// acknowledged.
fn acknowledged(evidence: &Evidence<'_>, found: &mut Findings) {
    let by_id: HashMap<String, &TaskRecord> = evidence
        .tasks
        .iter()
        .map(|record| (record.task.to_string(), record))
        .collect();
    let mut trees: HashMap<String, Vec<&TaskRecord>> = HashMap::new();
    for record in evidence.tasks {
        trees
            .entry(record.root.to_string())
            .or_default()
            .push(record);
    }
    // `task` is the root of a tree. The request may belong to any task of that tree.
    let stored = |task: &str, request: &str| -> Vec<&'static str> {
        let journals = trees
            .get(task)
            .into_iter()
            .flatten()
            .flat_map(|record| record.journal.as_slice());
        let decisions = journals.filter_map(|(item, _)| match &item.fact {
            Fact::Decision {
                request_id,
                decision,
            } if request_id.to_string() == request => Some(decision.action.as_str()),
            _ => None,
        });
        decisions.collect()
    };
    for change in evidence.history {
        match change {
            Acknowledged::Created { task } => {
                if !by_id.contains_key(task) {
                    found.add(
                        Kind::Lost,
                        task.parse().ok(),
                        "the task was acknowledged and is not there",
                    );
                }
            }
            Acknowledged::Decided {
                task,
                request,
                action,
            } => {
                found.decisions += 1;
                let stored = stored(task, request);
                if stored != [*action] {
                    let what =
                        format!("{action} of {request} was acknowledged; stored is {stored:?}");
                    found.add(Kind::Lost, task.parse().ok(), what);
                }
            }
            Acknowledged::Overruled {
                task,
                request,
                action,
            } => {
                let stored = stored(task, request);
                if stored != [action.as_str()] {
                    let what = format!(
                        "{action} was said to be the answer to {request}; stored is {stored:?}"
                    );
                    found.add(Kind::Lost, task.parse().ok(), what);
                }
            }
        }
    }
}

/// Returns a text with at most 20 of the failures, and with the journal and the ledger of the task
/// of the first failure.
pub fn report(findings: &Findings, evidence: &Evidence<'_>) -> String {
    let mut text: Vec<String> = findings
        .wrong
        .iter()
        .take(20)
        .map(|wrong| format!("{:?}: {}", wrong.kind, wrong.what))
        .collect();
    let first = findings.wrong.iter().find_map(|wrong| wrong.task);
    if let Some(record) = evidence
        .tasks
        .iter()
        .find(|record| Some(record.task) == first)
    {
        text.push(format!("journal of {}:", record.task));
        text.extend(
            record
                .journal
                .iter()
                .map(|(item, _)| format!("  {} {} {:?}", item.seq, item.at.0, item.fact)),
        );
        text.push("ledger:".to_owned());
        let lines = evidence
            .ledger
            .iter()
            .filter(|line| line.task == record.task.to_string());
        text.extend(lines.map(|line| format!("  {line:?}")));
    }
    text.join("\n")
}
