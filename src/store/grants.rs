//! Reads, revokes and removes standing decisions. The commit of an approval inserts a standing
//! decision. The commit that starts a call counts the use of a standing decision
//! (`commit_postgres.rs`, `commit_sqlite.rs`), and fails if the standing decision is revoked,
//! expired or used up.

use std::time::Duration;

use uuid::Uuid;

use super::db::{Sql, Value, sql, values};
use super::page::{IdsFirst, Page};
use super::record::record;
use super::{ReadError, Store};
use crate::task::decision::{Door, Vote};
use crate::task::grant::{GrantEnd, GrantScope};
use crate::task::id::{GrantId, RequestId, TaskId};
use crate::task::time::Time;
use crate::task::user::{UserId, Viewer};

/// A standing decision in its current state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantRow {
    /// The standing decision's id. Newer standing decisions have greater ids.
    pub grant_id: GrantId,
    /// The tenant of the tree in which the standing decision was given.
    pub tenant: String,
    /// The owner of the tree in which the standing decision was given.
    pub owner: String,
    /// The root of the tree in which the standing decision was given.
    pub root_task_id: TaskId,
    /// The tasks to which the standing decision applies.
    pub scope: GrantScope,
    /// The name of the root's agent.
    pub agent: String,
    /// The tool of the calls that the standing decision covers.
    pub tool: String,
    /// The rule that offered the standing decision.
    pub rule: String,
    /// The basis of the offer, see [`crate::task::grant::Offer::basis`].
    pub basis: String,
    /// The person who gave the standing decision.
    pub by: Vote,
    /// The request whose approval gave the standing decision.
    pub request_id: RequestId,
    /// The time of the approval.
    pub created_at: Time,
    /// The time from which the standing decision no longer counts.
    pub expires_at: Time,
    /// The maximum number of calls that the standing decision lets through.
    pub uses: i64,
    /// How many calls have started with the standing decision.
    pub used: i64,
    /// The person who revoked the standing decision; `None` if it was not revoked.
    pub revoked_by: Option<String>,
    /// Whether a later message of the user has ended the standing decision. Such a message ends
    /// only standing decisions of the scope [`GrantScope::Task`]. Always `false` in the result of
    /// [`Store::grants_covering`].
    pub superseded: bool,
    /// The time up to which the history is uncertain after a restore or failover
    /// (`Journal::history_uncertain_until`); `None` if the history is certain. A standing decision
    /// that was given at or before this time has ended.
    pub uncertain_until: Option<Time>,
    /// The time of the read, by the database's clock.
    pub now: Time,
}

impl GrantRow {
    /// Returns the reason why the standing decision has ended; `None` if the row shows no reason. A
    /// row from [`Store::grants_covering`] does not show whether a later message of the user has
    /// ended the standing decision.
    #[must_use]
    pub fn ended(&self) -> Option<GrantEnd> {
        let ends = [
            (self.revoked_by.is_some(), GrantEnd::Revoked),
            (self.expires_at <= self.now, GrantEnd::Expired),
            (self.superseded, GrantEnd::Message),
            (
                self.uncertain_until
                    .is_some_and(|until| self.created_at <= until),
                GrantEnd::HistoryLost,
            ),
            (self.used >= self.uses, GrantEnd::UsedUp),
        ];
        ends.into_iter()
            .find_map(|(holds, end)| holds.then_some(end))
    }
}

/// A held call, for [`Store::grants_covering`].
#[derive(Clone, Debug)]
pub struct CoverableCall<'a> {
    /// The tenant of the call's tree.
    pub tenant: &'a str,
    /// The owner of the call's tree.
    pub owner: UserId,
    /// The name of the root's agent.
    pub root_agent: &'a str,
    /// The root of the call's tree.
    pub root_task_id: TaskId,
    /// The basis of a standing decision for this call (see [`crate::task::grant::Offer::basis`]).
    /// The rule that holds the call offers this standing decision.
    pub basis: &'a str,
    /// The standing decision under which an earlier attempt of the call was started, if any.
    pub used_grant: Option<GrantId>,
}

/// A filter for [`Store::grants`].
#[derive(Clone, Debug, Default)]
pub struct GrantFilter {
    /// The tenant of the standing decisions.
    pub tenant: String,
    /// Selects the standing decisions that this person gave, those in the person's trees, and those
    /// given in requests that the person may decide. `None`, or a person who decides everything,
    /// selects all standing decisions of the tenant.
    pub person: Option<Viewer>,
    /// The id of a standing decision. If set, selects older standing decisions, which have smaller
    /// ids.
    pub before: Option<GrantId>,
    /// The maximum number of standing decisions of a page.
    pub limit: i64,
}

/// How long a standing decision stays listed after it has expired.
const RETENTION: Duration = Duration::from_hours(24 * 30);
const MAX_COVERING: i64 = 32;

/// Finds standing decisions by their basis (see `Offer::basis`) and by the owner of their tree,
/// newest first. Leaves out standing decisions that cannot cover the call, so that they do not fill
/// the limit: those that are revoked, expired or used up, and those given for another agent or
/// another tree. Exception: `$7` is the standing decision under which an earlier attempt of the
/// call was started. It is found even if it is used up.
const COVERING: Sql = sql!(
    "select grant_id, tenant, owner, root_task_id, scope, agent, tool, rule, basis, given_by, via, given_groups, door,
            request_id, created_at, expires_at, uses, used, revoked_by, false as superseded,
            (select doubted_at from database_identity where id = 1) as doubted_at, " (now 1) " as moment
       from standing_grant
      where tenant = $2 and basis = $3 and owner " (any 4 text) " and revoked_at is null and expires_at > " (now 1) "
        and ((scope = 'owner' and agent = $5) or (scope = 'task' and root_task_id = $6))
        and (used < uses or grant_id = $7)
      order by grant_id desc limit $8"
);

const IDS: Sql = sql!(
    "select grant_id from standing_grant where tenant = $1 and grant_id < $2 order by grant_id desc limit $3"
);

/// Selects, among the given ids, the standing decisions that a person gave, those in the person's
/// trees, and those whose request the person may decide. If `$3` is true, selects all given ids.
const MATCHING: Sql = sql!(
    "select g.grant_id, g.tenant, g.owner, g.root_task_id, g.scope, g.agent, g.tool, g.rule, g.basis, g.given_by, g.via,
            g.given_groups, g.door, g.request_id, g.created_at, g.expires_at, g.uses, g.used, g.revoked_by,
            g.scope = 'task' and exists (select 1 from agent_task_item i
                where i.task_id = g.root_task_id and i.type = 'user_message' and i.at >= g.created_at) as superseded,
            (select doubted_at from database_identity where id = 1) as doubted_at, "
            (now 1) " as moment
       from standing_grant g
      where g.grant_id " (any 2 uuid) " and ($3 or g.given_by " (any 4 text) " or g.owner " (any 4 text) "
         or exists (select 1 from request_approver a where a.request_id = g.request_id and a.tenant = g.tenant
            and ((a.kind = 'user' and a.name " (any 4 text) ") or (a.kind = 'group' and a.name " (any 5 text) "))))
      order by g.grant_id desc limit $6"
);

const REVOKE: Sql = sql!(
    "update standing_grant set revoked_at = " (now 1) ", revoked_by = $4
      where tenant = $2 and grant_id = $3 and revoked_at is null returning grant_id"
)
.by_key();

const REMOVE: Sql = sql!(
    "delete from standing_grant where grant_id in (
        select grant_id from standing_grant where expires_at < " (now 1) " - $3 order by expires_at limit $2)
     returning grant_id"
);

pub(super) const STATEMENTS: &[Sql] = &[COVERING, IDS, MATCHING, REVOKE, REMOVE];

record! {
    struct Record {
        grant_id: Uuid,
        tenant: String,
        owner: String,
        root_task_id: Uuid,
        scope: String,
        agent: String,
        tool: String,
        rule: String,
        basis: String,
        given_by: String,
        via: Option<String>,
        given_groups: String,
        door: Option<String>,
        request_id: Uuid,
        created_at: i64,
        expires_at: i64,
        uses: i64,
        used: i64,
        revoked_by: Option<String>,
        superseded: bool,
        doubted_at: Option<i64>,
        moment: i64,
    }
}

impl Record {
    fn row(self) -> Result<GrantRow, ReadError> {
        let corrupt = |what: &str| ReadError::Corrupt(format!("the {what} of a standing decision"));
        let door = |word: &str| Door::parse(word).ok_or_else(|| corrupt("door"));
        Ok(GrantRow {
            grant_id: GrantId(self.grant_id),
            tenant: self.tenant,
            owner: self.owner,
            root_task_id: TaskId(self.root_task_id),
            scope: GrantScope::parse(&self.scope).ok_or_else(|| corrupt("scope"))?,
            agent: self.agent,
            tool: self.tool,
            rule: self.rule,
            basis: self.basis,
            by: Vote {
                by: self.given_by,
                via: self.via,
                groups: serde_json::from_str(&self.given_groups).map_err(|_| corrupt("groups"))?,
                door: self.door.as_deref().map(door).transpose()?,
            },
            request_id: RequestId(self.request_id),
            created_at: Time(self.created_at),
            expires_at: Time(self.expires_at),
            uses: self.uses,
            used: self.used,
            revoked_by: self.revoked_by,
            superseded: self.superseded,
            uncertain_until: self.doubted_at.map(Time),
            now: Time(self.moment),
        })
    }
}

/// The list of standing decisions that match `filter`, read by pages. `users` has all stored
/// spellings of the id of `filter.person`.
struct GrantSelection<'f> {
    filter: &'f GrantFilter,
    users: Vec<String>,
}

impl IdsFirst for GrantSelection<'_> {
    type Row = GrantRow;
    type Id = Uuid;

    fn is_inexact(&self) -> bool {
        self.filter.person.is_some()
    }

    async fn ids(&self, store: &Store, before: Uuid, limit: i64) -> Result<Vec<Uuid>, ReadError> {
        let values = values![&self.filter.tenant, before, limit];
        Ok(store.db().all(IDS, values).await?)
    }

    async fn matching(
        &self,
        store: &Store,
        ids: Vec<Uuid>,
        limit: i64,
    ) -> Result<Page<GrantRow>, ReadError> {
        let person = self.filter.person.as_ref();
        let decides_everything = person.is_none_or(|person| person.decides_everything);
        let groups = person.map(|person| person.groups.clone());
        let values = values![
            Value::Now,
            ids,
            decides_everything,
            self.users.as_slice(),
            groups.unwrap_or_default(),
            limit.saturating_add(1),
        ];
        let found = store.rows(store.db().all(MATCHING, values).await?)?;
        let count = i64::try_from(found.len()).unwrap_or(i64::MAX);
        Ok(Page::cut(found, count, limit))
    }
}

impl Store {
    fn rows(&self, records: Vec<Record>) -> Result<Vec<GrantRow>, ReadError> {
        // This process may already know of a restored backup or a promoted standby that
        // `doubted_at` in the records does not show yet.
        let known_uncertain_until = self.history_uncertain_until();
        let row = |record: Record| {
            record.row().map(|row| GrantRow {
                uncertain_until: row.uncertain_until.max(known_uncertain_until),
                ..row
            })
        };
        records.into_iter().map(row).collect()
    }

    /// Reads the standing decisions that may cover a call: the newest first, at most 32. Leaves out
    /// those that are revoked, expired or used up. Exception: the standing decision under which an
    /// earlier attempt of the call was started (`used_grant`) is returned even if it is used up.
    /// Does not check whether a later message of the user has ended a standing decision.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn grants_covering(
        &self,
        call: &CoverableCall<'_>,
    ) -> Result<Vec<GrantRow>, ReadError> {
        let owner = std::slice::from_ref(&call.owner);
        let owners = self.spellings(call.tenant, owner).await?;
        let values = values![
            Value::Now,
            call.tenant,
            call.basis,
            owners,
            call.root_agent,
            call.root_task_id,
            call.used_grant.map_or(Uuid::nil(), |id| id.0),
            MAX_COVERING,
        ];
        self.rows(self.db().all(COVERING, values).await?)
    }

    /// Reads one page of standing decisions, newest first.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn grants(&self, filter: &GrantFilter) -> Result<Page<GrantRow>, ReadError> {
        let users = match &filter.person {
            Some(person) => {
                let user = std::slice::from_ref(&person.user_id);
                self.spellings(&filter.tenant, user).await?
            }
            None => Vec::new(),
        };
        let before = filter.before.map_or(Uuid::max(), |id| id.0);
        GrantSelection { filter, users }
            .page(self, filter.limit, before)
            .await
    }

    /// Reads the standing decision with this id, of any tenant; `None` if there is none.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn grant(&self, id: GrantId) -> Result<Option<GrantRow>, ReadError> {
        let filter = GrantFilter::default();
        let list = GrantSelection {
            filter: &filter,
            users: Vec::new(),
        };
        let page = list.matching(self, vec![id.0], 1).await?;
        Ok(page.into_iter().next())
    }

    /// Revokes a standing decision in the name of the person `by`. Returns `false` if it is already
    /// revoked, or if the tenant has no such standing decision.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn revoke_grant(
        &self,
        tenant: &str,
        id: GrantId,
        by: &str,
    ) -> Result<bool, ReadError> {
        let values = values![Value::Now, tenant, id, by];
        Ok(self.db().count_written(REVOKE, values).await? > 0)
    }

    /// Removes at most one batch of standing decisions that expired more than 30 days ago. Returns
    /// whether there may be more.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn remove_spent_grants(&self) -> Result<bool, ReadError> {
        Ok(self.db().remove_batch(REMOVE, &[RETENTION]).await?)
    }
}
