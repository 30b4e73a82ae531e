//! Reads a task's row with the task's whole journal, and optionally with one of the task's
//! requests. Also reads pages of a task's items.

use super::damaged_task::is_complete;
use super::db::{Sql, Value, sql};
use super::page::MAX_PAGE_BYTES;
use super::record::record;
use super::tasks::{TaskRecord, corrupt, fact};
use super::{ReadError, RequestRow, Store};
use crate::task::change::Journal;
use crate::task::id::{RequestId, TaskId};
use crate::task::item::Item;
use crate::task::status::RequestStatus;
use crate::task::time::Time;

/// Returns a row for each item of a task, with the task's row beside it. So one statement reads
/// both in one snapshot. The join leaves out no task, because the commit that creates a task also
/// writes an item. `s` is the item that set the task's status. `s` is joined to the first row only,
/// because the task's columns are read from the first row alone.
const JOURNAL: Sql = sql!(
    "select " (task) ", i.seq, i.at, i.body, i.event_number, " (now 2) " as moment,
            (select doubted_at from database_identity where id = 1) as doubted_at
       from agent_task t join agent_task_item i on i.task_id = t.task_id
       left join agent_task_item s on s.task_id = t.task_id and s.seq = t.status_seq and i.seq = 1
      where t.task_id = $1 order by i.seq"
)
.by_key();

/// Like `JOURNAL`, but finds the task by a request, and also returns columns of the request.
const JOURNAL_OF_REQUEST: Sql = sql!(
    "select " (task) ", i.seq, i.at, i.body, i.event_number, " (now 2) " as moment,
            (select doubted_at from database_identity where id = 1) as doubted_at,
            r.status as request_status, r.seq as asked_seq, r.created_at as asked_at, r.expires_at
       from intervention_request r join agent_task t on t.task_id = r.task_id
       join agent_task_item i on i.task_id = t.task_id
       left join agent_task_item s on s.task_id = t.task_id and s.seq = t.status_seq and i.seq = 1
      where r.request_id = $1 order by i.seq"
)
.by_key();

/// Chooses items by the sizes of their bodies: as many as fit into the limit, and at least one.
/// Then loads the bodies of these items.
const ITEMS: Sql = sql!(
    "with page (seq, size) as (
        select seq, octet_length(body) from agent_task_item where task_id = $1 and seq > $2 order by seq limit $3
     ),
     summed (seq, size, upto) as (select seq, size, sum(size) over (order by seq) from page)
     select i.seq, i.at, i.body, i.event_number
       from summed p join agent_task_item i on i.task_id = $1 and i.seq = p.seq
      where p.upto <= $4 or p.upto = p.size order by i.seq"
)
.by_key();

pub(super) const STATEMENTS: &[Sql] = &[JOURNAL, JOURNAL_OF_REQUEST, ITEMS];

record! {
    /// A task's row, with the time of the read (`moment`). `doubted_at` is the time up to which the
    /// history is uncertain after a restore or failover; `None` if the history is certain.
    pub(super) struct Head {
        pub(super) task: TaskRecord => flatten,
        pub(super) moment: i64,
        pub(super) doubted_at: Option<i64>,
    }
}

record! {
    pub(super) struct ItemRecord {
        seq: i64,
        at: i64,
        body: String,
        pub(super) event_number: i64,
    }
}

record! {
    struct RequestHead {
        task: Head => flatten,
        request: RequestColumns => flatten,
    }
}

record! {
    struct RequestColumns {
        request_status: String,
        asked_seq: i64,
        asked_at: i64,
        expires_at: Option<i64>,
    }
}

impl RequestColumns {
    /// Assembles the request from its row and its task's journal. Returns `None` if the row and the
    /// journal disagree.
    fn row(&self, id: RequestId, journal: &Journal) -> Option<RequestRow> {
        let items = journal.items.iter().map(|item| (item.at, item));
        let request = RequestRow::from_journal(&journal.row, items, id)?;
        let request = RequestRow {
            status: RequestStatus::parse(&self.request_status)?,
            created_at: Time(self.asked_at),
            expires_at: self.expires_at.map(Time),
            ..request
        };
        let request = request.read_at(journal.now, journal.history_uncertain_until);
        (request.asked_seq == self.asked_seq).then_some(request)
    }
}

impl ItemRecord {
    pub(super) fn item(&self) -> Result<Item, ReadError> {
        Ok(Item {
            seq: self.seq,
            at: Time(self.at),
            fact: fact(&self.body)?,
        })
    }
}

fn journal(head: Head, items: &[ItemRecord]) -> Result<Journal, ReadError> {
    let items: Vec<Item> = items
        .iter()
        .map(ItemRecord::item)
        .collect::<Result<_, _>>()?;
    let (now, history_uncertain_until) = (Time(head.moment), head.doubted_at.map(Time));
    let row = head.task.row()?;
    if !is_complete(&items, row.last_seq) {
        return Err(corrupt("a journal with gaps"));
    }
    Ok(Journal {
        row,
        items,
        now,
        history_uncertain_until,
    })
}

impl Store {
    /// Reads a task's row and its whole journal in one snapshot; `None` if there is no such task.
    /// If the row or the journal is unreadable, also calls [`Store::report_unreadable`].
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn journal(&self, id: TaskId) -> Result<Option<Journal>, ReadError> {
        let read = self.read_journal(id).await;
        if matches!(read, Err(ReadError::Corrupt(_))) {
            self.report_unreadable(id);
        }
        read
    }

    /// Like [`Store::journal`], but does not call [`Store::report_unreadable`].
    pub(super) async fn read_journal(&self, id: TaskId) -> Result<Option<Journal>, ReadError> {
        let read = self
            .db()
            .all_with_head::<Head, ItemRecord>(JOURNAL, vec![Value::Id(id.0), Value::Now])
            .await?;
        read.map(|(head, items)| journal(head, &items)).transpose()
    }

    /// Reads a request with the journal of its task, in one snapshot; `None` if there is no such
    /// request. The journal is `None` if it cannot be decoded or disagrees with the request's row.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or the request itself cannot be decoded.
    pub async fn request_with_journal(
        &self,
        id: RequestId,
    ) -> Result<Option<(RequestRow, Option<Journal>)>, ReadError> {
        let values = vec![Value::Id(id.0), Value::Now];
        let read = self
            .db()
            .all_with_head::<RequestHead, ItemRecord>(JOURNAL_OF_REQUEST, values)
            .await;
        match read.map_err(ReadError::from) {
            Ok(None) => return Ok(None),
            Ok(Some((head, items))) => {
                if let Ok(journal) = journal(head.task, &items)
                    && let Some(row) = head.request.row(id, &journal)
                {
                    return Ok(Some((row, Some(journal))));
                }
            }
            Err(ReadError::Corrupt(_)) => {}
            Err(ReadError::Unavailable) => return Err(ReadError::Unavailable),
        }
        Ok(self.request(id).await?.map(|row| (row, None)))
    }

    /// Reads the items of a task with a `seq` greater than `after`, each with its event number in
    /// the tree. Returns at most `limit` items and `MAX_PAGE_BYTES` bytes, but always the first
    /// item.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn items(
        &self,
        id: TaskId,
        after: i64,
        limit: i64,
    ) -> Result<Vec<(Item, i64)>, ReadError> {
        let values = vec![
            Value::Id(id.0),
            Value::Int(after),
            Value::Int(limit),
            Value::Int(MAX_PAGE_BYTES),
        ];
        let records: Vec<ItemRecord> = self.db().all(ITEMS, values).await?;
        records
            .iter()
            .map(|record| Ok((record.item()?, record.event_number)))
            .collect()
    }
}
