//! Readings of a task for the tests of the engine.

use holdpoint::task::id::{RequestId, TaskId};
use holdpoint::task::item::{Fact, Item, ToolResult};
use holdpoint::task::request::RequestKind;

use super::EngineHarness;
use crate::engine::worker_steps::WorkerSteps as _;

impl EngineHarness {
    /// Returns the only open request of a task. Panics unless exactly one is open.
    pub async fn only_open(&self, task: TaskId) -> (RequestId, RequestKind) {
        let [only] = self.open(task).await[..] else {
            panic!("one is open: {:#?}", self.journal(task).await.items)
        };
        only
    }

    /// Returns the only open request of a task. Panics unless exactly one is open and is of this
    /// kind.
    pub async fn only_request(&self, task: TaskId, kind: RequestKind) -> RequestId {
        let (request, known) = self.only_open(task).await;
        assert_eq!(known, kind);
        request
    }

    pub async fn stored_credentials(&self) -> i64 {
        self.fixture.count("credential").await
    }

    /// Returns whether a new engine with this many slots finds no task to drive.
    pub async fn claims_nothing(&self, max_running: usize) -> bool {
        self.engine(max_running).claim().await.unwrap().is_empty()
    }
}

/// Returns the results of calls in a journal, in the order of the journal.
pub fn tool_results(journal: &[Item]) -> impl DoubleEndedIterator<Item = &ToolResult> {
    journal.iter().filter_map(|item| {
        let Fact::ToolResult(result) = &item.fact else {
            return None;
        };
        Some(result)
    })
}
