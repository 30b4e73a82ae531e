//! Reads a whole tree: the rows of all its tasks, and their items in the order of the tree's
//! events.
//!
//! Invariant: rows and items agree. First, all rows are read in one snapshot; the root's row has
//! the number of the tree's last event. Then the items up to this number are read. Events are
//! numbered under the lock of the root's row, and their numbers never change. So all items up to
//! this number are present, and the items of later commits are left out.

use std::collections::{BTreeSet, HashMap};

use uuid::Uuid;

use super::db::{Sql, Value, sql, values};
use super::journal::{ItemRecord, JournalHead};
use super::record::record;
use super::{ReadError, Store};
use crate::task::change::TaskRow;
use crate::task::id::TaskId;
use crate::task::item::Item;
use crate::task::time::Time;

/// Selects the root by its key, and the other tasks by the index on the children of a root. Has no
/// `order by`, which could make Postgres scan a whole index instead of searching it.
const ROWS: Sql = sql!(
    "select " (task) ", " (now 2) " as moment,
            (select doubted_at from database_identity where id = 1) as doubted_at
       from agent_task t left join agent_task_item s on s.task_id = t.task_id and s.seq = t.status_seq
      where t.task_id = $1 and t.parent_task_id is null
     union all
     select " (task) ", " (now 2) " as moment,
            (select doubted_at from database_identity where id = 1) as doubted_at
       from agent_task t left join agent_task_item s on s.task_id = t.task_id and s.seq = t.status_seq
      where t.root_task_id = $1 and t.parent_task_id is not null"
)
.by_key();

/// Selects the events in a range of numbers, in the two ways that `events.rs` explains.
const EVENTS: Sql = sql!(
    "select task_id, seq, at, body, event_number from agent_task_item
      where task_id = $1 and seq > $2 and seq <= $3 and event_number = seq
     union all
     select task_id, seq, at, body, event_number from agent_task_item
      where root_task_id = $1 and event_number > $2 and event_number <= $3 and event_number <> seq
      order by event_number"
)
.by_key();

const SIZE: Sql = sql!(
    "select count(*) as size from (
        select task_id from agent_task where task_id = $1 and parent_task_id is null
         union all
        select task_id from agent_task where root_task_id = $1 and parent_task_id is not null) t"
)
.by_key();

pub(super) const STATEMENTS: &[Sql] = &[ROWS, EVENTS, SIZE];

/// A tree as of one moment.
#[derive(Clone, Debug)]
pub struct TreeSnapshot {
    /// The rows of the tree's tasks, the root's included, ordered by id.
    pub rows: Vec<TaskRow>,
    /// The items that were read, in the order of their event numbers.
    pub items: Vec<TreeItem>,
    /// The number of the tree's last event, even if its item was not read.
    pub last_event: i64,
    /// The time of the snapshot, by the database's clock.
    pub now: Time,
    /// The time up to which a restore or failover may have lost items; `None` if there was neither.
    pub history_uncertain_until: Option<Time>,
    /// The tasks with undecodable or missing parts. Their other parts are in `rows` and `items`.
    pub unreadable: BTreeSet<TaskId>,
}

/// An item of one of the tree's tasks.
#[derive(Clone, Debug, PartialEq)]
pub struct TreeItem {
    /// The item's number among the tree's events.
    pub event: i64,
    /// The item's task.
    pub task_id: TaskId,
    /// The item, with its `seq` and time in the task's journal.
    pub item: Item,
}

record! {
    struct EventRecord {
        task_id: Uuid,
        record: ItemRecord => flatten,
    }
}

impl TreeSnapshot {
    /// Returns the tasks of which the row, or an item after the event `after`, is missing. A gap in
    /// the `seq` of a task's items shows that an item is missing.
    ///
    /// If `after` is 0, the items of each task must begin with `seq` 1, so the result has all such
    /// tasks. If `after` is greater, the first expected `seq` of a task is unknown. The result then
    /// lacks a task if none of its items was read. It also lacks a task whose missing items all
    /// come before its first item that was read.
    fn with_gaps(&self, after: i64) -> BTreeSet<TaskId> {
        let known: BTreeSet<TaskId> = self.rows.iter().map(|row| row.task_id).collect();
        let mut gaps = BTreeSet::new();
        let mut last: HashMap<TaskId, i64> = HashMap::new();
        let first = (after == 0).then_some(0);
        for TreeItem { task_id, item, .. } in &self.items {
            let before = last.insert(*task_id, item.seq).or(first);
            if !known.contains(task_id) || before.is_some_and(|before| item.seq != before + 1) {
                gaps.insert(*task_id);
            }
        }
        for row in &self.rows {
            let last = last.get(&row.task_id).copied().or(first);
            if last.is_some_and(|last| last != row.last_seq) {
                gaps.insert(row.task_id);
            }
        }
        gaps
    }
}

impl Store {
    /// Reads a tree: all its rows, and the items with an event number greater than `after`. Returns
    /// `None` if there is no such root. If an item or an agent path cannot be decoded, still reads
    /// the rest, and calls [`Store::report_unreadable`] for the task if it has not ended.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or another part of a row cannot be decoded.
    pub async fn tree(&self, root: TaskId, after: i64) -> Result<Option<TreeSnapshot>, ReadError> {
        let Some(mut tree) = self.tree_rows(root).await? else {
            return Ok(None);
        };
        let last_event = tree.last_event;
        let values = values![root, after, last_event];
        let records: Vec<EventRecord> = self.db().all(EVENTS, values).await?;
        tree.items.reserve(records.len());
        for EventRecord { task_id, record } in &records {
            let task_id = TaskId(*task_id);
            match record.item() {
                Ok(item) => tree.items.push(TreeItem {
                    event: record.event_number,
                    task_id,
                    item,
                }),
                Err(_) => {
                    tree.unreadable.insert(task_id);
                }
            }
        }
        let is_complete =
            i64::try_from(records.len()).is_ok_and(|items| items == (last_event - after).max(0));
        tree.unreadable.extend(tree.with_gaps(after));
        // The engine checks reported tasks, and ends damaged tasks. A terminal task needs no
        // report.
        let live = tree.rows.iter().filter(|row| !row.status.is_terminal());
        let (damaged, others): (Vec<_>, Vec<_>) =
            live.partition(|row| tree.unreadable.contains(&row.task_id));
        // If an item is missing but no live task is known to be damaged, every live task is
        // reported, and the check finds the damaged task. Otherwise, only the damaged tasks are
        // reported. If `after` is 0, `with_gaps` has found every task that lacks an item, so no
        // other task needs a report.
        let is_known = is_complete || after == 0 || !damaged.is_empty();
        for row in if is_known { damaged } else { others } {
            self.report_unreadable(row.task_id);
        }
        Ok(Some(tree))
    }

    /// Reads the rows of the tree without its items. [`TreeSnapshot::unreadable`] then has every
    /// task of the tree, because all their items are missing.
    ///
    /// # Errors
    /// Fails in the same cases as [`Store::tree`].
    pub async fn tree_without_items(
        &self,
        root: TaskId,
    ) -> Result<Option<TreeSnapshot>, ReadError> {
        let mut tree = self.tree_rows(root).await?;
        if let Some(tree) = &mut tree {
            tree.unreadable = tree.rows.iter().map(|row| row.task_id).collect();
        }
        Ok(tree)
    }

    /// Returns the number of tasks of a tree, the root included; 0 if there is no such root.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn tree_size(&self, root: TaskId) -> Result<i64, ReadError> {
        let size = self.db().one(SIZE, values![root]).await?;
        Ok(size.unwrap_or(0))
    }

    /// Reads the rows of a tree, without its items. `unreadable` has the tasks with a row that
    /// cannot be decoded completely.
    async fn tree_rows(&self, root: TaskId) -> Result<Option<TreeSnapshot>, ReadError> {
        let values = values![root, Value::Now];
        let records: Vec<JournalHead> = self.db().all(ROWS, values).await?;
        let Some(head) = records.iter().find(|record| record.task.id() == root) else {
            return Ok(None);
        };
        let (now, history_uncertain_until) = (Time(head.moment), head.doubted_at.map(Time));
        let mut unreadable = BTreeSet::new();
        let mut rows = Vec::with_capacity(records.len());
        for JournalHead { task, .. } in records {
            let (row, is_complete) = task.readable_row()?;
            if !is_complete {
                unreadable.insert(row.task_id);
            }
            rows.push(row);
        }
        rows.sort_unstable_by_key(|row| row.task_id);
        let last_event = rows
            .iter()
            .find(|row| row.task_id == root)
            .map_or(0, |row| row.next_event);
        Ok(Some(TreeSnapshot {
            rows,
            items: Vec::new(),
            last_event,
            now,
            history_uncertain_until,
            unreadable,
        }))
    }
}
