//! The part of the evidence that comes from the database: the events of every journal, the
//! deliveries, and the audit records. A trigger of this test writes an audit record for every claim
//! of a delivery and for every attempt at a delivery.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, Row as _};

use super::{DEAD, MAILS};

/// The database roles of the replicas. Each replica signs in with its own role, so the trigger
/// knows which replica writes.
pub const ROLES: [&str; 3] = ["replica1", "replica2", "replica3"];

/// SQL that records in `test_audit` each change of a delivery: `claimed` (a lease begins),
/// `recorded` (an attempt's result is stored) or `lost` (the test has ended the lease).
const AUDIT: &str = "
create table test_audit (n bigserial primary key, delivery_id uuid not null, who text not null, what text not null,
    tx xid8 not null default pg_current_xact_id());
create function test_audit() returns trigger language plpgsql as $$
begin
    insert into test_audit (delivery_id, who, what)
    select new.delivery_id, session_user, case
        when new.last_at is distinct from old.last_at then 'recorded'
        when new.lease_until is null then 'lost'
        else 'claimed' end
     where new.last_at is distinct from old.last_at or new.lease_until is distinct from old.lease_until;
    return null;
end $$;
create trigger test_audit after update on delivery for each row execute function test_audit();
";

const EVENTS: &str = "
select replace(change_id::text, '-', '') as change, change_id, root_task_id as root, task_id as task, event_number as number, task_id = root_task_id
    as of_root, seq, request_id, at, body from agent_task_item order by root_task_id, event_number";

const DELIVERIES: &str = "
select delivery_id, target, person, change_id, event_number as number, request_id, state, ended_at from delivery";

const AUDITED: &str = "select delivery_id, who, what, tx::text as tx from test_audit order by n";

/// A query that counts all notices, and the deliveries to healthy receivers that are still due.
const LEFT: &str = "
select (select count(*) from notice) + (select count(*) from delivery where state = 'due' and target <> $dead$) as left_over";

/// A statement that ends every lease, as a long freeze of the lease's holder would.
const END_LEASES: &str = "update delivery set lease_until = null where lease_until is not null";

#[derive(Clone, Debug, Deserialize)]
pub struct Event {
    /// The id of the item's change without hyphens, as the ids of messages contain it.
    pub change: String,
    pub change_id: String,
    pub root: String,
    pub task: String,
    pub number: i64,
    pub of_root: bool,
    pub seq: i64,
    pub request_id: Option<String>,
    /// The time of the event, in microseconds since 1970.
    pub at: i64,
    /// The fact, as JSON.
    pub body: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Row {
    pub delivery_id: String,
    pub target: String,
    pub person: String,
    pub change_id: String,
    pub number: i64,
    pub request_id: Option<String>,
    pub state: String,
    pub ended_at: Option<i64>,
}

/// A change of a delivery that the trigger recorded: a claim, the result of an attempt, or the end
/// of a lease.
#[derive(Clone, Debug, Deserialize)]
pub struct RecordedChange {
    pub delivery_id: String,
    pub who: String,
    pub what: String,
    /// The id of the transaction that made the change.
    pub tx: String,
}

#[derive(Debug)]
pub struct Stored {
    pub events: Vec<Event>,
    pub deliveries: Vec<Row>,
    pub audit: Vec<RecordedChange>,
}

/// The database of one run. The test connects with a role that no replica uses.
pub struct SenderDatabase {
    url: String,
}

impl SenderDatabase {
    pub fn of(url: &str) -> Self {
        Self {
            url: url.to_owned(),
        }
    }

    pub async fn add_roles(&self) {
        for role in ROLES {
            self.execute(&format!("create role {role} superuser login"))
                .await;
        }
    }

    /// Records every claim and every attempt from now on. The schema must already exist.
    pub async fn audit(&self) {
        self.execute(AUDIT).await;
    }

    pub async fn end_leases(&self) {
        self.execute(END_LEASES).await;
    }

    pub async fn left(&self) -> Left {
        Left(PgConnection::connect(&self.url).await.unwrap())
    }

    pub async fn stored(&self) -> Stored {
        Stored {
            events: self.rows(EVENTS).await,
            deliveries: self.rows(DELIVERIES).await,
            audit: self.rows(AUDITED).await,
        }
    }

    async fn execute(&self, sql: &str) {
        crate::support::postgres::run(&self.url, sql.to_owned()).await;
    }

    async fn rows<T: DeserializeOwned>(&self, sql: &str) -> Vec<T> {
        let sql = format!("select row_to_json(x)::text from ({sql}) x");
        let mut connection = PgConnection::connect(&self.url).await.unwrap();
        let rows = connection.fetch_all(AssertSqlSafe(sql)).await.unwrap();
        let texts = rows.iter().map(|row| row.get::<String, _>(0));
        texts
            .map(|text| serde_json::from_str(&text).unwrap())
            .collect()
    }
}

/// A connection that counts what is left to be sent.
pub struct Left(PgConnection);

impl Left {
    /// Returns the number of notices plus the number of due deliveries to healthy receivers.
    pub async fn count(&mut self) -> i64 {
        let sql = LEFT.replace("$dead$", &format!("'{DEAD}'"));
        let row = self.0.fetch_one(AssertSqlSafe(sql)).await.unwrap();
        row.get(0)
    }
}

impl Row {
    pub fn is_mail(&self) -> bool {
        MAILS.contains(&self.target.as_str())
    }
}
