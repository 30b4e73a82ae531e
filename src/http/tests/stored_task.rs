//! A store on `SQLite`, and a task in it that waits for the sample's approver until a test approves
//! or cancels it.

use std::sync::Arc;

use tempfile::TempDir;

use crate::http::openapi::sample;
use crate::secret::Secret;
use crate::store::{Settings, Store};
use crate::task::change::{
    Change, ClientColumns, Counters, Guard, LeaseChange, NewTask, TaskChange,
};
use crate::task::decision::Action;
use crate::task::id::{CallId, ChangeId, RequestId, TaskId};
use crate::task::item::{CloseReason, Fact};
use crate::task::request::RequestSpec;
use crate::task::status::{RequestStatus, TaskStatus};
use crate::world::{Ids as _, RandomIds, SystemClock};

pub(crate) async fn store_in(folder: &TempDir) -> Store {
    let settings = Settings {
        url: Secret::new(format!("sqlite://{}/http.db", folder.path().display())),
        ..Settings::default()
    };
    Store::open(&settings, Arc::new(SystemClock)).await.unwrap()
}

/// Stores a task of the sample's caller that waits for the sample's approver. Returns the task and
/// its request.
pub(crate) async fn store_paused_task(store: &Store) -> (TaskId, RequestSpec) {
    let task = TaskId(RandomIds.fresh());
    let mut spec = sample::request().spec;
    spec.request_id = RequestId(RandomIds.fresh());
    for call in &mut spec.pending_tool_calls {
        call.tool_call_id = CallId(RandomIds.fresh());
    }
    let new = NewTask {
        tenant: "acme".to_owned(),
        user_id: "alice".to_owned(),
        session_id: "desk-7".to_owned(),
        agent: "billing".to_owned(),
        agent_version: "sha256:0".to_owned(),
        parent: None,
        agent_path: vec!["billing".to_owned()],
        client: ClientColumns::with_metadata("{}".to_owned()),
    };
    let paused = TaskChange {
        facts: vec![
            status_fact(TaskStatus::Running),
            Fact::InterventionRequested(spec.clone()),
            status_fact(TaskStatus::Paused),
        ],
        counters: Counters {
            open_requests: 1,
            ..Counters::default()
        },
        lease: LeaseChange::PARK,
        ..TaskChange::empty(task, Guard::New(Box::new(new)), 0)
    };
    commit(store, paused).await;
    (task, spec)
}

/// Commits the approval that closes the only open request of a task. The task then runs.
pub(crate) async fn approve(store: &Store, task: TaskId, asked: &RequestSpec) {
    let calls: Vec<CallId> = asked.own_calls().map(|call| call.tool_call_id).collect();
    let (_, decision) = sample::answer("bob", Action::Approve, &calls, true).unwrap();
    let decided = Fact::Decision {
        request_id: asked.request_id,
        decision,
    };
    close_request(store, task, decided, TaskStatus::Running).await;
}

/// Commits the cancel of a task with one open request.
pub(crate) async fn cancel(store: &Store, task: TaskId, asked: &RequestSpec) {
    let withdrawn = Fact::RequestClosed {
        request_id: asked.request_id,
        status: RequestStatus::Withdrawn,
        reason: CloseReason::Canceled,
    };
    close_request(store, task, withdrawn, TaskStatus::Canceled).await;
}

/// Commits the fact that closes the only open request of a task, and the status of the task after
/// it.
async fn close_request(store: &Store, task: TaskId, closing: Fact, status: TaskStatus) {
    let row = store.task(task).await.unwrap().unwrap();
    let change = TaskChange {
        facts: vec![closing, status_fact(status)],
        counters: Counters {
            busy: i32::from(status == TaskStatus::Running),
            open_requests: -1,
            ..Counters::default()
        },
        ..TaskChange::empty(task, Guard::Version(row.version), row.last_seq)
    };
    commit(store, change).await;
}

async fn commit(store: &Store, task: TaskChange) {
    let change = Change {
        id: ChangeId(RandomIds.fresh()),
        root: task.task_id,
        tenant: "acme".to_owned(),
        root_agent: "billing".to_owned(),
        tasks: vec![task],
        resumed: Vec::new(),
        idempotency: None,
        history_uncertain_until: None,
    };
    store.commit(change).await.unwrap();
}

fn status_fact(status: TaskStatus) -> Fact {
    Fact::TaskStatus {
        status,
        error: None,
        output: None,
    }
}
