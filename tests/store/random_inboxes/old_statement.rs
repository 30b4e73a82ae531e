//! The statements that listed requests before the table `inbox` existed. They look at each request
//! of the tenant, and compare it with the filter and with the person. So they use neither the copies
//! in `inbox` nor the ranges of its keys.

use holdpoint::store::{RequestFilter, Sql};
use holdpoint::task::id::RequestId;
use holdpoint::task::status::RequestStatus;
use holdpoint::world::Clock as _;
use sqlx::{AssertSqlSafe, Executor as _, PgConnection, Row as _};
use uuid::Uuid;

use super::super::store_fixture::StoreFixture;
use crate::support::sqlite_file;

/// The page of a filter with any statuses.
const REQUESTS: Sql = Sql {
    postgres: "with page as (
        select r.request_id from intervention_request r join agent_task t on t.task_id = r.task_id
         where r.tenant = $2 and ($3 or r.request_id > $4)
           and (cardinality($5::text[]) = 0 or r.status = any($5::text[]))
           and (cardinality($6::text[]) = 0 or r.kind = any($6::text[]))
           and (cardinality($7::text[]) = 0 or t.agent = any($7::text[]))
           and (cardinality($8::text[]) = 0 or t.session_id = any($8::text[]))
           and (cardinality($9::uuid[]) = 0 or r.root_task_id = any($9::uuid[]))
           and ($10
             or exists (select 1 from request_approver a where a.tenant = r.tenant and a.request_id = r.request_id
                   and ((a.kind in ('owner', 'user') and a.name = any($11::text[])) or (a.kind = 'group' and a.name = any($12::text[]))))
             or exists (select 1 from decision d
                 where d.tenant = r.tenant and d.user_id = any($11::text[]) and d.request_id = r.request_id))
         order by r.request_id limit $13
     )",
    sqlite: "with page as (
        select r.request_id from intervention_request r join agent_task t on t.task_id = r.task_id
         where r.tenant = $2 and ($3 or r.request_id > $4)
           and (json_array_length($5) = 0 or r.status in (select value from json_each($5)))
           and (json_array_length($6) = 0 or r.kind in (select value from json_each($6)))
           and (json_array_length($7) = 0 or t.agent in (select value from json_each($7)))
           and (json_array_length($8) = 0 or t.session_id in (select value from json_each($8)))
           and (json_array_length($9) = 0 or r.root_task_id in (select unhex(value) from json_each($9)))
           and ($10
             or exists (select 1 from request_approver a where a.tenant = r.tenant and a.request_id = r.request_id
                   and ((a.kind in ('owner', 'user') and a.name in (select value from json_each($11)))
                     or (a.kind = 'group' and a.name in (select value from json_each($12)))))
             or exists (select 1 from decision d where d.tenant = r.tenant
                   and d.user_id in (select value from json_each($11)) and d.request_id = r.request_id))
         order by r.request_id limit $13
     )",
    by_key: false,
};

/// The page of a filter with the status `Pending` alone. `$14` says whether requests past their
/// deadline can match.
const PENDING_REQUESTS: Sql = Sql {
    postgres: "with page as (
        select r.request_id from intervention_request r join agent_task t on t.task_id = r.task_id
         where r.tenant = $2 and ($3 or r.request_id > $4) and r.status = 'pending'
           and ($14 or r.expires_at is null
             or r.expires_at > (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1::bigint))
           and (cardinality($5::text[]) = 0 or r.kind = any($5::text[]))
           and (cardinality($6::text[]) = 0 or t.agent = any($6::text[]))
           and (cardinality($7::text[]) = 0 or t.session_id = any($7::text[]))
           and (cardinality($8::uuid[]) = 0 or r.root_task_id = any($8::uuid[]))
           and ($9
             or exists (select 1 from request_approver a where a.tenant = r.tenant and a.request_id = r.request_id
                   and ((a.kind in ('owner', 'user') and a.name = any($10::text[])) or (a.kind = 'group' and a.name = any($11::text[])))))
         order by r.request_id limit $12
     )",
    sqlite: "with page as (
        select r.request_id from intervention_request r join agent_task t on t.task_id = r.task_id
         where r.tenant = $2 and ($3 or r.request_id > $4) and r.status = 'pending'
           and ($14 or r.expires_at is null or r.expires_at > $1)
           and (json_array_length($5) = 0 or r.kind in (select value from json_each($5)))
           and (json_array_length($6) = 0 or t.agent in (select value from json_each($6)))
           and (json_array_length($7) = 0 or t.session_id in (select value from json_each($7)))
           and (json_array_length($8) = 0 or r.root_task_id in (select unhex(value) from json_each($8)))
           and ($9
             or exists (select 1 from request_approver a where a.tenant = r.tenant and a.request_id = r.request_id
                   and ((a.kind in ('owner', 'user') and a.name in (select value from json_each($10)))
                     or (a.kind = 'group' and a.name in (select value from json_each($11))))))
         order by r.request_id limit $12
     )",
    by_key: false,
};

/// The rest of both statements, which selects the first requests of the page whose items have at
/// most `$bytes` bytes. The columns other than the id are left out.
const FITTING: &str = ", sized (request_id, size) as (
            select p.request_id,
                   (select coalesce(sum(octet_length(i.body)), 0) from agent_task_item i where i.request_id = p.request_id)
              from page p
         ),
         summed (request_id, size, upto, found) as (
            select request_id, size, sum(size) over (order by request_id), count(*) over () from sized
         )
         select r.request_id
           from summed p join intervention_request r on r.request_id = p.request_id
           join agent_task t on t.task_id = r.task_id join agent_task_item i on i.request_id = r.request_id
          where p.upto <= $bytes or p.upto = p.size order by r.request_id, i.seq";

/// The maximum number of bytes of a page.
const MAX_BYTES: &str = "4194304";

/// Lists requests with the old statements.
pub struct OldStatements<'f> {
    fixture: &'f StoreFixture,
    /// `None` on `SQLite`.
    postgres: Option<PgConnection>,
}

impl<'f> OldStatements<'f> {
    pub async fn new(fixture: &'f StoreFixture) -> Self {
        // Migration 0031 has dropped the index by which the statements found the items.
        let index = "create index old_item_request on agent_task_item (request_id)";
        fixture.database().execute(index).await;
        let postgres = if fixture.is_postgres() {
            Some(fixture.connection().await)
        } else {
            None
        };
        Self { fixture, postgres }
    }

    /// Lists the requests of a filter without trees: a page, and one more request if another page
    /// follows.
    pub async fn list(&mut self, filter: &RequestFilter) -> Vec<RequestId> {
        let sql = self.statement(filter);
        let mut ids: Vec<Uuid> = if let Some(connection) = &mut self.postgres {
            let rows = connection.fetch_all(AssertSqlSafe(sql)).await.unwrap();
            rows.iter().map(|row| row.get(0)).collect()
        } else {
            let connection = sqlite_file::connect(self.fixture.settings.url.reveal());
            sqlite_file::rows(&connection, &sql, |row| row.get(0)).unwrap()
        };
        // A request has a row for each of its items.
        ids.dedup();
        ids.into_iter().map(RequestId).collect()
    }

    /// Returns the statement that lists the requests of a filter, with its values in place of its
    /// parameters.
    fn statement(&self, filter: &RequestFilter) -> String {
        let only_pending = filter.statuses == [RequestStatus::Pending];
        let sql = if only_pending {
            PENDING_REQUESTS
        } else {
            REQUESTS
        };
        let (now, page) = if self.fixture.is_postgres() {
            // The statement reads the server's clock, and adds this offset.
            (0, sql.postgres)
        } else {
            (self.fixture.clock.now().0, sql.sqlite)
        };
        let person = filter.person.as_ref();
        let user = person.map(|person| person.user_id.to_string());
        let groups = person.map(|person| person.groups.clone());
        let after = filter.after.map_or(Uuid::nil(), |id| id.0);
        let mut values = vec![
            now.to_string(),
            format!("'{}'", filter.tenant),
            filter.after.is_none().to_string(),
            self.fixture.literal(after),
        ];
        if !only_pending {
            let statuses = filter.statuses.iter();
            let statuses = statuses.map(|status| status.as_str().to_owned());
            values.push(self.texts(&statuses.collect::<Vec<_>>()));
        }
        values.extend([
            self.texts(&filter.kinds),
            self.texts(&filter.agents),
            self.texts(&filter.sessions),
            self.texts(&[]),
            person
                .is_none_or(|person| person.decides_everything)
                .to_string(),
            self.texts(user.as_slice()),
            self.texts(&groups.unwrap_or_default()),
            (filter.limit + 1).to_string(),
        ]);
        if only_pending {
            // `$13` was the number of bytes.
            values.extend([MAX_BYTES.to_owned(), filter.overdue.to_string()]);
        }
        let mut text = format!("{page}{FITTING}").replace("$bytes", MAX_BYTES);
        // The last first, because `$1` also begins `$10`.
        for (place, value) in values.iter().enumerate().rev() {
            text = text.replace(&format!("${}", place + 1), value);
        }
        text
    }

    /// Returns a list of texts as it stands in a statement.
    fn texts(&self, texts: &[String]) -> String {
        if self.fixture.is_postgres() {
            format!("'{{{}}}'", texts.join(","))
        } else {
            format!("'{}'", serde_json::json!(texts))
        }
    }
}
