//! A fixture with a store on `SQLite` or Postgres, and functions that build changes for it.

mod manual_clock;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use holdpoint::secret::Secret;
use holdpoint::store::{CommitError, Drive, RequestFilter, RequestRow, Settings, Store};
use holdpoint::task::change::{
    Change, ClientColumns, Committed, Counters, Guard, LeaseChange, NewTask, TaskChange, TaskRow,
};
use holdpoint::task::decision::{Action, CallAnswer, Decision};
use holdpoint::task::id::{CallId, ChangeId, RequestId, TaskId};
use holdpoint::task::item::{Fact, Part, PartType};
use holdpoint::task::operator_text::OperatorText;
use holdpoint::task::request::{CallSpec, RequestKind, RequestSpec};
use holdpoint::task::status::TaskStatus;
use holdpoint::task::tool_spec::Effect;
use holdpoint::task::verdict::{Approvers, Terms, Verdict};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, Row as _};
use uuid::Uuid;

use crate::support::database::Database;
use crate::support::postgres::{TestDatabase, database};
use crate::support::{sqlite_file, until};

pub use manual_clock::ManualClock;

/// Declares tests in a module of the function's name. Each test calls the function with its fixture.
macro_rules! store_tests {
    ($function:ident: $($test:ident($fixture:expr))+) => {
        mod $function {
            use $crate::store::store_fixture::StoreFixture;

            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::$function($fixture).await;
                }
            )+
        }
    };
}
pub(crate) use store_tests;

/// Makes two tests of a function: one per database engine.
macro_rules! both {
    ($(#[$meta:meta])* async fn $name:ident($fixture:ident: StoreFixture $(,)?) $body:block) => {
        $(#[$meta])*
        async fn $name($fixture: StoreFixture) $body

        $crate::store::store_fixture::store_tests! {
            $name:
            on_sqlite(StoreFixture::sqlite().await)
            on_postgres(StoreFixture::postgres().await)
        }
    };
}
pub(crate) use both;

/// Makes three tests of a function: those of `both`, and a test on Postgres in which the general
/// statement commits even the changes of single tasks.
macro_rules! every_statement {
    ($(#[$meta:meta])* async fn $name:ident($fixture:ident: StoreFixture $(,)?) $body:block) => {
        $(#[$meta])*
        async fn $name($fixture: StoreFixture) $body

        $crate::store::store_fixture::store_tests! {
            $name:
            on_sqlite(StoreFixture::sqlite().await)
            on_postgres(StoreFixture::postgres().await)
            by_general_statement(StoreFixture::with_general_statement().await)
        }
    };
}
pub(crate) use every_statement;

/// Keeps the test's database until this value is dropped.
pub enum KeptDatabase {
    Folder { _kept: tempfile::TempDir },
    Postgres { _kept: TestDatabase },
}

/// A table and its key column.
pub type Rows = (&'static str, &'static str);

pub const TASKS: Rows = ("agent_task", "task_id");

const TIME_LIMIT: Duration = Duration::from_mins(1);

pub struct StoreFixture {
    pub store: Store,
    pub settings: Settings,
    pub clock: Arc<ManualClock>,
    pub kept: KeptDatabase,
}

impl StoreFixture {
    pub async fn sqlite() -> Self {
        let (folder, url) = sqlite_file::database().await;
        let settings = Settings {
            url: Secret::new(url),
            ..Settings::default()
        };
        Self::on(settings, KeptDatabase::Folder { _kept: folder }).await
    }

    pub async fn postgres() -> Self {
        Self::with_writers(Settings::default().writers).await
    }

    /// Returns a fixture on Postgres whose general statement commits every change.
    pub async fn with_general_statement() -> Self {
        let fixture = Self::postgres().await;
        fixture.store.use_general_statement();
        fixture
    }

    /// Returns a fixture on Postgres whose store has this number of writers.
    pub async fn with_writers(writers: u32) -> Self {
        let database = database().await;
        let settings = Settings {
            url: Secret::new(database.url.clone()),
            writers,
            // Long enough for a machine that stands still for a while.
            acquire_timeout: TIME_LIMIT,
            statement_timeout: TIME_LIMIT,
            ..Settings::default()
        };
        Self::on(settings, KeptDatabase::Postgres { _kept: database }).await
    }

    pub async fn like(other: &Self) -> Self {
        if other.is_postgres() {
            Self::postgres().await
        } else {
            Self::sqlite().await
        }
    }

    async fn on(settings: Settings, kept: KeptDatabase) -> Self {
        let clock = Arc::new(ManualClock::at(1_700_000_000_000_000));
        let store = Store::open(&settings, clock.clone()).await.unwrap();
        if std::env::var_os("HOLDPOINT_TEST_GENERAL").is_some() {
            store.use_general_statement();
        }
        Self {
            store,
            settings,
            clock,
            kept,
        }
    }

    pub fn forward(&self, by: Duration) {
        self.clock.forward(by);
        self.store.set_clock_forward(by);
    }

    pub fn is_postgres(&self) -> bool {
        matches!(self.kept, KeptDatabase::Postgres { .. })
    }

    /// Runs a statement on a connection of its own. Returns the integers of the first column.
    pub async fn numbers(&self, sql: &str) -> anyhow::Result<Vec<i64>> {
        let url = self.settings.url.reveal();
        if self.is_postgres() {
            let mut connection = PgConnection::connect(url).await?;
            let rows = connection.fetch_all(AssertSqlSafe(sql.to_owned())).await?;
            return Ok(rows.iter().map(|row| row.get::<i64, _>(0)).collect());
        }
        Ok(sqlite_file::rows(&sqlite_file::connect(url), sql, |row| {
            row.get(0)
        })?)
    }

    /// Runs a statement on a connection of its own.
    pub async fn execute(&self, sql: &str) {
        self.numbers(sql).await.unwrap();
    }

    /// Opens a new connection to Postgres.
    pub async fn connection(&self) -> PgConnection {
        let url = self.settings.url.reveal();
        PgConnection::connect(url).await.unwrap()
    }

    /// Waits until at least this number of statements wait for locks on Postgres.
    pub async fn until_locked_out(&self, statements: i64) {
        let waiting = "select count(*) from pg_stat_activity
            where datname = current_database() and wait_event_type = 'Lock'";
        let do_wait = async || self.number(waiting).await >= statements;
        until("the statements wait for locks", do_wait).await;
    }

    /// Begins another transaction on Postgres, which locks one row until the connection is dropped
    /// or the transaction is rolled back.
    pub async fn holding(&self, (table, key): Rows, id: Uuid) -> PgConnection {
        let mut other = self.connection().await;
        other.execute("begin").await.unwrap();
        let sql = format!("select 1 from {table} where {key} = '{id}' for update");
        other.execute(AssertSqlSafe(sql)).await.unwrap();
        other
    }

    pub async fn row(&self, id: TaskId) -> TaskRow {
        self.store.task(id).await.unwrap().unwrap()
    }

    pub async fn request(&self, id: RequestId) -> RequestRow {
        self.store.request(id).await.unwrap().unwrap()
    }

    /// Returns access to the database that bypasses the store.
    pub fn database(&self) -> Database {
        Database::at(self.settings.url.reveal())
    }

    /// Returns an id as it stands in a statement.
    pub fn literal(&self, id: Uuid) -> String {
        self.database().id(&id.to_string())
    }

    /// Gives each task that fits `condition` two fruitless leases. Returns the number of tasks.
    pub async fn suspect(&self, condition: &str) -> usize {
        let sql =
            format!("update agent_task set fruitless = 2 where {condition} returning fruitless");
        let changed = self.numbers(&sql).await.unwrap();
        if self.is_postgres() {
            let sql = "update claimable_task c set alone = true from agent_task t
                where t.task_id = c.task_id and t.fruitless >= 2 returning c.due_at";
            self.execute(sql).await;
        }
        changed.len()
    }

    /// Copies the only task and its request `count` times, on Postgres. The group `many` may decide
    /// the copies.
    pub async fn many_requests(&self, count: u32, members: &str) {
        let url = self.settings.url.reveal();
        crate::support::postgres::copy_request(url, count, "many", members).await;
    }

    pub async fn number(&self, sql: &str) -> i64 {
        self.numbers(sql).await.unwrap()[0]
    }

    /// Counts the rows of a table. A condition may follow the table's name.
    pub async fn count(&self, table: &str) -> i64 {
        self.number(&format!("select count(*) from {table}")).await
    }

    pub async fn write(&self, task: TaskChange) -> Result<Committed, CommitError> {
        let mut change = change(task.task_id, vec![task]);
        change.history_uncertain_until = self.store.history_uncertain_until();
        self.store.commit(change).await
    }

    /// Commits these changes of tasks in the tree of `root`.
    pub async fn commit(&self, root: TaskId, tasks: Vec<TaskChange>) -> Committed {
        self.store.commit(change(root, tasks)).await.unwrap()
    }

    /// Creates a running task with its first two items.
    pub async fn task(&self) -> TaskId {
        self.task_of("acme", "alice").await
    }

    pub async fn task_of(&self, tenant: &str, user: &str) -> TaskId {
        let id = TaskId(fresh());
        self.write(new_task(id, tenant, user)).await.unwrap();
        id
    }

    /// Creates a task with an open request. Returns the task and the request.
    pub async fn paused(&self, terms: Terms) -> (TaskId, RequestSpec) {
        let id = self.task().await;
        let asked = request_spec(RequestKind::Approval, terms, 1);
        self.pause(id, &asked).await;
        (id, asked)
    }

    pub async fn pause(&self, id: TaskId, asked: &RequestSpec) {
        let mut pause = self.next(id).await;
        pause.facts = vec![
            Fact::InterventionRequested(asked.clone()),
            status(TaskStatus::Paused),
        ];
        pause.counters = Counters {
            busy: -1,
            open_requests: 1,
            ..Counters::default()
        };
        pause.lease = LeaseChange::Park { wake_in: None };
        self.write(pause).await.unwrap();
    }

    /// Returns an empty change of the task, whose commit requires the task's present version.
    pub async fn next(&self, id: TaskId) -> TaskChange {
        let row = self.row(id).await;
        TaskChange::empty(id, Guard::Version(row.version), row.last_seq)
    }

    /// Closes the one open request of a task by a person's answer.
    pub async fn decide(&self, id: TaskId, asked: &RequestSpec, by: &str, action: Action) {
        let decide = self.deciding(id, asked, by, action).await;
        self.write(decide).await.unwrap();
    }

    /// Returns the change by which a person's answer closes the one open request of a task.
    pub async fn deciding(
        &self,
        id: TaskId,
        asked: &RequestSpec,
        by: &str,
        action: Action,
    ) -> TaskChange {
        let mut change = self.next(id).await;
        change.facts = vec![
            decided(asked, by, action, true),
            status(TaskStatus::Running),
        ];
        change.counters = Counters {
            busy: 1,
            open_requests: -1,
            ..Counters::default()
        };
        change
    }
}

/// The duration of the leases of [`claim`].
pub const LEASE: Duration = Duration::from_secs(30);

/// Claims tasks for the process `owner`, possibly also a task that needs a lone drive. Returns
/// the claimed tasks without those that the claim has put to sleep.
pub async fn claim(store: &Store, owner: &str, limit: i64) -> Vec<TaskId> {
    let mut claimed = store.claim(owner, LEASE, limit, true).await.unwrap();
    claimed.retain(|claimed| claimed.drive != Drive::Asleep);
    claimed.into_iter().map(|claimed| claimed.task).collect()
}

#[expect(clippy::disallowed_methods, reason = "tests may be surprised")]
pub fn fresh() -> Uuid {
    Uuid::now_v7()
}

pub fn change(root: TaskId, tasks: Vec<TaskChange>) -> Change {
    Change {
        id: ChangeId(fresh()),
        root,
        tenant: "acme".to_owned(),
        root_agent: "billing".to_owned(),
        tasks,
        resumed: Vec::new(),
        idempotency: None,
        history_uncertain_until: None,
    }
}

pub fn new_task(id: TaskId, tenant: &str, user: &str) -> TaskChange {
    let new = NewTask {
        tenant: tenant.to_owned(),
        user_id: user.to_owned(),
        session_id: "s".to_owned(),
        agent: "billing".to_owned(),
        agent_version: "sha256:0".to_owned(),
        parent: None,
        agent_path: vec!["billing".to_owned()],
        client: ClientColumns {
            metadata: "{\"b\":1,\"a\":[2.50]}".to_owned(),
        },
    };
    TaskChange {
        facts: vec![status(TaskStatus::Running), said("hello")],
        counters: Counters {
            busy: 1,
            ..Counters::default()
        },
        lease: LeaseChange::Queue,
        ..TaskChange::empty(id, Guard::New(Box::new(new)), 0)
    }
}

pub fn child_task(id: TaskId, parent: TaskId) -> TaskChange {
    let mut task = new_task(id, "acme", "alice");
    if let Guard::New(new) = &mut task.guard {
        new.parent = Some((parent, CallId(fresh())));
        new.agent_path.push("analyst".to_owned());
        "analyst".clone_into(&mut new.agent);
    }
    task
}

pub fn status(status: TaskStatus) -> Fact {
    Fact::TaskStatus {
        status,
        error: None,
        output: None,
    }
}

pub fn said(text: &str) -> Fact {
    let part = Part {
        content_type: PartType::Text,
        content: text.to_owned(),
    };
    Fact::UserMessage {
        items: vec![part],
        user_context: None,
        by: "alice".to_owned(),
        groups: Vec::new(),
    }
}

pub fn request_spec(kind: RequestKind, terms: Terms, calls: usize) -> RequestSpec {
    let call = || CallSpec {
        tool_call_id: CallId(fresh()),
        name: "refund_payment".to_owned(),
        arguments_text: "{\"amount\":120}".to_owned(),
        effect: Effect::Once,
        target: "POST http://payments.internal".to_owned(),
        address: None,
        summary: "Refund 120".to_owned(),
        warnings: Vec::new(),
        needs_decision: true,
        verdict: Verdict::Hold,
        rule: None,
        reason: None,
        parameters: serde_json::json!({"type": "object"}),
        digest: "sha256:1".to_owned(),
        definition: None,
        editor: None,
        bars_editor: false,
        operator_text: OperatorText::default(),
        offer: None,
    };
    RequestSpec {
        request_id: RequestId(fresh()),
        kind,
        pending_tool_calls: (0..calls).map(|_| call()).collect(),
        terms,
        digest: "sha256:2".to_owned(),
        question: None,
        details: None,
        form: None,
        elicitation: None,
        seal: None,
    }
}

pub fn decided(asked: &RequestSpec, by: &str, action: Action, closes: bool) -> Fact {
    let answer = CallAnswer::plain(action);
    let decisions: BTreeMap<CallId, CallAnswer> = asked
        .own_calls()
        .map(|call| (call.tool_call_id, answer.clone()))
        .collect();
    let decision = Decision {
        action,
        by: by.to_owned(),
        via: None,
        groups: Vec::new(),
        door: None,
        reason: None,
        then: None,
        response: None,
        result_text: None,
        decisions,
        closes,
    };
    Fact::Decision {
        request_id: asked.request_id,
        decision,
    }
}

pub fn finance(required: u32) -> Terms {
    let approvers = Approvers {
        owner: false,
        users: vec!["carol".to_owned()],
        groups: vec!["finance".to_owned()],
        required,
        links: None,
    };
    Terms {
        approvers,
        ..Terms::default()
    }
}

/// Returns a filter that lists all requests of `acme`, at most `limit` at once.
pub fn acme_requests(limit: i64) -> RequestFilter {
    RequestFilter {
        tenant: "acme".to_owned(),
        limit,
        ..RequestFilter::default()
    }
}
