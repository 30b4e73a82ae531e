//! Counts the rows that the statements of commits read in vain on Postgres, because a condition of
//! a join or of a scan removes them. The tests commit 64 changes as one batch. The server writes
//! the plan of each statement, with the counts of its execution, to its log.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use holdpoint::secret::Secret;
use holdpoint::store::{Settings, Store};
use holdpoint::task::change::{Change, Guard, IdempotencyRow, TaskChange};
use holdpoint::task::credential::SealedCredential;
use holdpoint::task::decision::Action;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::Fact;
use holdpoint::task::request::{RequestKind, RequestSpec};
use holdpoint::task::user::UserId;
use holdpoint::world::SystemClock;
use serde_json::{Deserializer, Value};

use super::busy_writer::commit_while_busy;
use super::store_fixture::{change, child_task, decided, finance, fresh, new_task, request_spec};
use crate::support::postgres::PrivateCluster;

/// Options with which Postgres logs the plan of each statement.
const LOGS_PLANS: &str = "-c shared_preload_libraries=auto_explain \
    -c auto_explain.log_min_duration=0 -c auto_explain.log_format=json \
    -c auto_explain.log_analyze=on -c auto_explain.log_timing=off";

/// The beginnings of the two statements that write commits.
const SINGLE: &str = "with n as";
const GENERAL: &str = "with changes as";

const CHANGES: u64 = 64;

const TIME_LIMIT: Duration = Duration::from_mins(1);

/// A stored root with two open requests.
struct AskingRoot {
    id: TaskId,
    requests: [RequestSpec; 2],
    /// The number of the task's items.
    last_seq: i64,
}

impl AskingRoot {
    async fn new(store: &Store) -> Self {
        let id = TaskId(fresh());
        let request = || request_spec(RequestKind::Approval, finance(1), 1);
        let requests = [request(), request()];
        let mut new = new_task(id, "acme", "alice");
        let asked = requests.iter().cloned().map(Fact::InterventionRequested);
        new.facts.extend(asked);
        new.counters.open_requests = 2;
        let last_seq = i64::try_from(new.facts.len()).unwrap();
        store.commit(change(id, vec![new])).await.unwrap();
        Self {
            id,
            requests,
            last_seq,
        }
    }

    /// Returns the change of the root by which a person answers the first `count` requests.
    fn answered(&self, count: usize) -> TaskChange {
        let answers = self.requests[..count].iter();
        let mut task = TaskChange::empty(self.id, Guard::Version(1), self.last_seq);
        task.facts = answers
            .map(|asked| decided(asked, "carol", Action::Approve, true))
            .collect();
        task.counters.open_requests = -i32::try_from(count).unwrap();
        task
    }

    /// Returns a commit of these changes of tasks under an idempotency key.
    fn commit(&self, tasks: Vec<TaskChange>) -> Change {
        let key = IdempotencyRow {
            tenant: "acme".to_owned(),
            user_id: "carol".to_owned(),
            person: UserId::from("carol").folded(),
            path: "POST /v1/tasks".to_owned(),
            key: self.id.to_string(),
            body_digest: "00".to_owned(),
            task_id: self.id,
            request_id: None,
        };
        Change {
            idempotency: Some(key),
            ..change(self.id, tasks)
        }
    }

    /// Returns a commit that only the general statement writes: it answers two requests, stores a
    /// credential, and creates a child with a request.
    fn tree_commit(&self) -> Change {
        let credential = SealedCredential {
            name: "jira".to_owned(),
            request_id: self.requests[0].request_id,
            key_id: "k1".to_owned(),
            text: "sealed".to_owned(),
            expires_in: None,
        };
        let mut root = self.answered(2);
        root.credentials = vec![credential];
        let mut child = child_task(TaskId(fresh()), self.id);
        let asked = request_spec(RequestKind::Approval, finance(1), 1);
        child.facts.push(Fact::InterventionRequested(asked));
        child.counters.open_requests = 1;
        self.commit(vec![root, child])
    }
}

/// Commits one change of each of 64 roots as one batch. Returns the number of rows that the
/// conditions of its statement remove. The text of the statement begins with `start`.
async fn rows_removed(start: &str, commit: impl Fn(&AskingRoot) -> Change) -> u64 {
    let cluster = PrivateCluster::with(LOGS_PLANS);
    let settings = Settings {
        url: Secret::new(cluster.url("postgres")),
        writers: 1,
        acquire_timeout: TIME_LIMIT,
        statement_timeout: TIME_LIMIT,
        ..Settings::default()
    };
    let store = Store::open(&settings, Arc::new(SystemClock)).await.unwrap();
    let roots = join_all((0..CHANGES).map(|_| AskingRoot::new(&store))).await;
    let changes = roots.iter().map(commit).collect();
    let (size, written) = commit_while_busy(&store, changes).await;
    assert_eq!(size, roots.len());
    for result in written {
        result.unwrap();
    }
    // Postgres logs the plan before it answers.
    let plan = last_plan(&cluster.log(), start);
    store.close().await;
    removed_by(&plan)
}

/// Returns the last logged plan of a commit, whose statement must begin with `start`.
fn last_plan(log: &str, start: &str) -> Value {
    let entries = log.split(" plan:\n").skip(1).filter_map(|entry| {
        // Another connection may just be writing the last entry.
        let first = Deserializer::from_str(entry).into_iter::<Value>().next();
        first?.ok()
    });
    let begins_with = |entry: &Value, start: &str| {
        let text = entry["Query Text"].as_str().unwrap();
        text.trim_start().starts_with(start)
    };
    let of_commit = |entry: &Value| [SINGLE, GENERAL].iter().any(|of| begins_with(entry, of));
    let mut last = entries.filter(of_commit).last().unwrap();
    assert!(
        begins_with(&last, start),
        "the other statement wrote the batch"
    );
    last["Plan"].take()
}

/// Returns the number of rows that the conditions of a plan's node and of the nodes below it
/// remove.
fn removed_by(node: &Value) -> u64 {
    // Both counts are averages of the node's executions.
    let number = |name: &str| node[name].as_u64().unwrap_or(0);
    let removed = number("Rows Removed by Join Filter") + number("Rows Removed by Filter");
    let nodes = node["Plans"].as_array().into_iter().flatten();
    removed * number("Actual Loops") + nodes.map(removed_by).sum::<u64>()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_of_changes_of_single_tasks_removes_fewer_than_ten_rows_for_each_change() {
    let answer = |root: &AskingRoot| root.commit(vec![root.answered(1)]);
    let removed = rows_removed(SINGLE, answer).await;
    assert!(removed < 10 * CHANGES, "{removed} rows");
}

/// The general statement joins the lists of a batch by nested loops, the only joins of two lists
/// that `PLANNED_ONCE` allows. It compares each line of a list with each line of `taken`, and often
/// also with each row of `locked`, `held` or `known`. So the number of removed rows grows with the
/// square of the number of changes. `MAX_BATCH_CHANGES` and `MAX_BATCH_LINES` bound the lists.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_of_changes_of_trees_removes_fewer_than_60_rows_for_each_pair_of_changes() {
    let removed = rows_removed(GENERAL, AskingRoot::tree_commit).await;
    assert!(removed < 60 * CHANGES * CHANGES, "{removed} rows");
}
