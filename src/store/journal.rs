//! Reads a task's row with the task's whole journal, pages of a task's items, and the last message
//! of the user before a question.

use std::slice;

use uuid::Uuid;

use super::damaged_task::is_complete;
use super::db::{Sql, Value, sql, values};
use super::page::MAX_PAGE_BYTES;
use super::record::{Keyed, record};
use super::task_columns::TaskRecord;
use super::tasks::{corrupt, fact};
use super::users::spelled;
use super::{ReadError, RequestRow, Store};
use crate::task::change::{Journal, TaskRow};
use crate::task::id::TaskId;
use crate::task::item::Item;
use crate::task::time::Time;
use crate::task::user::UserId;

/// Selects the items of a task, each with the task's row beside it. So one statement reads the
/// items and the row in one snapshot. The inner join finds every task, because every task has an
/// item: the commit that creates a task also writes an item. `s` is the item that set the task's
/// status. Only the first row of the result has the columns of `s`, because the reader takes the
/// task's row from the first row of the result alone. `$items` is a further condition on the items,
/// which is true for the first item.
macro_rules! journal_sql {
    ($($items:tt)*) => {
        sql!(
            "select " (task) ", i.task_id as key, i.seq, i.at, i.body, i.event_number, " (now 2) " as moment,
            (select doubted_at from database_identity where id = 1) as doubted_at
       from agent_task t join agent_task_item i on i.task_id = t.task_id" $($items)* "
       left join agent_task_item s on s.task_id = t.task_id and s.seq = t.status_seq and i.seq = 1
      where t.task_id = $1 order by i.seq"
        )
        .by_key()
    };
}

const JOURNAL: Sql = journal_sql!();

/// Like [`JOURNAL`], but selects only the first item if the task does not belong to the user.
const USER_JOURNAL: Sql = journal_sql!(
    " and i.seq <= case when t.tenant = $3 and t.user_id " (spelled 3 4 5)
    " then 9223372036854775807 else 1 end"
);

/// Chooses the first items whose bodies add up to at most `$4` bytes: at most `$3` items, and
/// always the first item. Then loads the bodies of these items.
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

/// Finds the last message of the user to the root `$1` before a question. The question is the item
/// of the task `$2` with the `seq` `$3`. Selects this message and the item after it.
///
/// The question may be in another task of the tree than the root, so the statement compares event
/// numbers: they order the items of all tasks of the tree. The search walks the root's journal
/// backwards by the primary key. A condition on `seq` starts the walk near the question, and not at
/// the end of a journal that has continued since. This condition skips no message before the
/// question, because the `seq` of an item is at most its event number. The walk needs no limit,
/// because it loads no bodies of the items that it passes.
const LAST_USER_MESSAGE: Sql = sql!(
    "with question (number) as (
        select event_number from agent_task_item where task_id = $2 and seq = $3
     )
     select i.seq, i.at, i.body, i.event_number from agent_task_item i
      where i.task_id = $1 and i.seq >= (
        select m.seq from agent_task_item m
         where m.task_id = $1 and m.type = 'user_message' and m.seq < (select number from question)
           and m.event_number < (select number from question)
         order by m.seq desc limit 1)
      order by i.seq limit 2"
)
.by_key();

pub(super) const STATEMENTS: &[Sql] = &[JOURNAL, USER_JOURNAL, ITEMS, LAST_USER_MESSAGE];

record! {
    /// A task's row, with the time of the read (`moment`). `doubted_at` is the time up to which the
    /// history is uncertain after a restore or failover; `None` if the history is certain.
    pub(super) struct JournalHead {
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
    /// An item with the key by which `Db::groups` gathers the items of one task. In this file, the
    /// key is the id of the task. In `request_reads.rs`, the key is the id of the request by which
    /// the statement has found the task.
    pub(super) struct KeyedItem {
        pub(super) key: Uuid,
        item: ItemRecord => flatten,
    }
}

impl Keyed for KeyedItem {
    fn key(&self) -> Uuid {
        self.key
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

pub(super) fn journal(head: JournalHead, items: &[KeyedItem]) -> Result<Journal, ReadError> {
    let items: Vec<Item> = items
        .iter()
        .map(|keyed| keyed.item.item())
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

/// A task, as [`Store::user_journal`] reads it for a user.
#[derive(Debug)]
pub enum UserJournal {
    /// The task belongs to the user.
    Own(Journal),
    /// The task belongs to another user, or to another tenant.
    Foreign(TaskRow),
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
        let values = values![id, Value::Now];
        let groups: Vec<(JournalHead, Vec<KeyedItem>)> = self.db().groups(JOURNAL, values).await?;
        let read = groups.into_iter().next();
        read.map(|(head, items)| journal(head, &items)).transpose()
    }

    /// Like [`Store::journal`], for a task that may belong to another user than `user`, or to
    /// another tenant. Of such a task, reads the row and not the journal, so the read costs no more
    /// than the read of an unknown id.
    ///
    /// # Errors
    /// As [`Store::journal`].
    pub async fn user_journal(
        &self,
        id: TaskId,
        tenant: &str,
        user: &UserId,
    ) -> Result<Option<UserJournal>, ReadError> {
        let [names, keys] = spelled(slice::from_ref(user));
        let values = values![id, Value::Now, tenant, names, keys];
        let groups: Vec<(JournalHead, Vec<KeyedItem>)> =
            self.db().groups(USER_JOURNAL, values).await?;
        let Some((head, items)) = groups.into_iter().next() else {
            return Ok(None);
        };
        let read = if head.task.belongs_to(tenant, user) {
            if items.len() == 1 {
                // The statement does not know the spelling of the user's id in the row.
                return Ok(self.journal(id).await?.map(UserJournal::Own));
            }
            journal(head, &items).map(UserJournal::Own)
        } else {
            head.task.row().map(UserJournal::Foreign)
        };
        if read.is_err() {
            self.report_unreadable(id);
        }
        read.map(Some)
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
        let values = values![id, after, limit, MAX_PAGE_BYTES];
        let records: Vec<ItemRecord> = self.db().all(ITEMS, values).await?;
        records
            .iter()
            .map(|record| Ok((record.item()?, record.event_number)))
            .collect()
    }

    /// Reads the last message that the user sent to the root task before the request was opened.
    /// Returns this message and the next item of the root's journal. Returns no item if there is no
    /// such message.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn last_user_message(&self, request: &RequestRow) -> Result<Vec<Item>, ReadError> {
        let values = values![request.root_task_id, request.task_id, request.asked_seq];
        let records: Vec<ItemRecord> = self.db().all(LAST_USER_MESSAGE, values).await?;
        records.iter().map(ItemRecord::item).collect()
    }
}
