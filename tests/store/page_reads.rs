//! Counts the pages that statements read on Postgres when the tables hold many rows of other
//! people.

use holdpoint::store::Store;
use holdpoint::task::decision::Action;
use sqlx::{AssertSqlSafe, Executor as _, Row as _};

use super::store_fixture::{StoreFixture, finance};
use crate::support::postgres::run_without_slow_nets;

/// Returns the Postgres text of the statement that contains `part`.
fn statement_with(part: &str) -> &'static str {
    let mut all = Store::statements().into_iter();
    all.find(|sql| sql.postgres.contains(part))
        .unwrap()
        .postgres
}

/// Plans a statement with the settings in `PLANNED_ONCE`, and returns the number of pages that it
/// reads. Rolls back the writes of the statement.
async fn pages_read(fixture: &StoreFixture, sql: &str, values: &str) -> u64 {
    let mut connection = fixture.connection().await;
    for (name, value) in holdpoint::store::PLANNED_ONCE {
        let set = AssertSqlSafe(format!("set {name} = '{value}'"));
        connection.execute(set).await.unwrap();
    }
    let prepare = AssertSqlSafe(format!("prepare s as {sql}"));
    connection.execute(prepare).await.unwrap();
    let explain =
        format!("explain (analyze, buffers, timing off, summary off) execute s({values})");
    let mut plan = String::new();
    // The first execution plans the statement. Thus the second execution reads no catalog pages.
    for _ in 0..2 {
        connection.execute("begin").await.unwrap();
        let rows = connection.fetch_all(AssertSqlSafe(explain.clone())).await;
        plan = rows
            .unwrap()
            .iter()
            .map(|row| row.get::<String, _>(0) + "\n")
            .collect();
        connection.execute("rollback").await.unwrap();
    }
    let line = plan.lines().find(|line| line.contains("Buffers:")).unwrap();
    let counts = line.split_whitespace().filter_map(|word| {
        let count = word.strip_prefix("hit=").or(word.strip_prefix("read="))?;
        Some(count.parse::<u64>().unwrap())
    });
    counts.sum()
}

/// Copies the last item of the only journal until the journal has 8,000 items.
async fn fill_journal(fixture: &StoreFixture) {
    let many = "insert into agent_task_item select (x.i).* from (
            select jsonb_populate_record(i, jsonb_build_object('seq', n, 'event_number', n)) as i
              from agent_task_item i, generate_series(i.seq + 1, 8000) n
             where i.seq = (select max(seq) from agent_task_item)) x;
        analyze";
    fixture.execute(many).await;
}

#[tokio::test]
async fn claim_among_many_queued_tasks_reads_few_pages() {
    let fixture = StoreFixture::postgres().await;
    fixture.task().await;
    let many = "insert into claimable_task (task_id, tenant, user_id, due_at, alone)
        select gen_random_uuid(), 't' || n % 7, 'u' || n % 1000, 0, false from generate_series(1, 10000) n;
        insert into agent_task select (x.t).* from (select jsonb_populate_record(t, jsonb_build_object('task_id', c.task_id,
            'root_task_id', c.task_id, 'tenant', c.tenant, 'user_id', c.user_id)) as t from agent_task t, claimable_task c
            where c.task_id <> t.task_id) x;
        analyze";
    run_without_slow_nets(fixture.settings.url.reveal(), many).await;
    let claim = statement_with("over as (");
    for (tasks, limit) in [(1, 200), (64, 2_800)] {
        let values = format!("0, 'me', 30000000, {tasks}, 't3', '[]', true");
        let pages = pages_read(&fixture, claim, &values).await;
        assert!(
            (5..limit).contains(&pages),
            "{pages} pages for {tasks} tasks"
        );
    }
}

#[tokio::test]
async fn claim_of_deliveries_among_many_ended_and_waiting_ones_reads_few_pages() {
    let fixture = StoreFixture::postgres().await;
    let many = "insert into delivery (delivery_id, tenant, target, person, type, root_task_id, change_id, event_number, state,
            due_at, attempts, created_at)
        select gen_random_uuid(), 'acme', 'backend', '', 'task.paused', gen_random_uuid(), gen_random_uuid(), 1,
            case n % 3 when 0 then 'due' else 'sent' end, case n % 6 when 0 then n else 9000000000000000 end, 0, n
          from generate_series(1, 20000) n;
        analyze";
    fixture.execute(many).await;
    let claim = statement_with("set lease_until = (select at from moment) + $4");
    let pages = pages_read(&fixture, claim, "0, 'backend', 4, 20000000, '{}'").await;
    assert!((5..100).contains(&pages), "{pages} pages");
}

#[tokio::test]
async fn look_for_equal_calls_reads_few_pages_among_many_calls_of_others_and_its_own() {
    let fixture = StoreFixture::postgres().await;
    fixture.paused(finance(1)).await;
    // The table has 20,000 pending calls of other users, followed by 1,000 calls of Bob. Bob's
    // calls have 100 different call keys, and 50 of them are pending. A person has decided each
    // call.
    let call = |columns: &str| {
        format!(
            "'agent', 'cli', 'session_id', 'gate', 'call_tool', 'refund', 'quarantine_at', 1, 'in_quarantine', false, {columns}"
        )
    };
    fixture
        .many_requests(
            20_000,
            &call("'user_id', 'u' || ids.n % 100, 'call_key', 'b:' || ids.n"),
        )
        .await;
    let own = "insert into agent_task select (x.t).* from (select jsonb_populate_record(t, jsonb_build_object('task_id', u.id,
            'root_task_id', u.id, 'user_id', 'bob', 'call_key', 'b:' || u.n % 100, 'status', case when u.n % 20 = 0
            then 'Paused' else 'Completed' end)) as t from agent_task t,
            (select gen_random_uuid() as id, n from generate_series(1, 1000) n) u
            where t.task_id = (select task_id from agent_task where agent = 'cli' limit 1)) x;
        insert into intervention_request select (x.r).* from (select jsonb_populate_record(r, jsonb_build_object(
            'request_id', t.task_id, 'task_id', t.task_id, 'root_task_id', t.task_id)) as r
            from intervention_request r, agent_task t where t.user_id = 'bob' and t.status = 'Paused'
             and r.request_id = (select request_id from intervention_request limit 1)) x;
        insert into inbox select r.tenant, 'user', 'filler', r.request_id from intervention_request r
            where not exists (select 1 from inbox i where i.request_id = r.request_id);
        update intervention_request r set gate = t.agent, gate_user = t.user_id from agent_task t
            where t.task_id = r.task_id and t.call_key is not null";
    run_without_slow_nets(fixture.settings.url.reveal(), own).await;
    fixture.execute("vacuum analyze").await;
    let values =
        "'acme', 'cli', '{Bob,bob}', 'gate', 'refund', '{b:1,k:1}', 9000000000000000, 200, 0,
        '{bob}', 1000";
    let pages = pages_read(
        &fixture,
        statement_with("r.kind = 'reconcile'\n              order by"),
        values,
    )
    .await;
    assert!((50..500).contains(&pages), "{pages} pages");
    let values = "'acme', 'cli', '{Bob,bob}', 100, '{bob}'";
    let pages = pages_read(
        &fixture,
        statement_with("r.gate_user = p.user_id and r.status = 'pending' limit $4"),
        values,
    )
    .await;
    assert!((2..40).contains(&pages), "{pages} pages");
}

#[tokio::test]
async fn search_for_the_last_user_message_reads_few_pages_of_a_journal_that_has_gone_on() {
    let fixture = StoreFixture::postgres().await;
    let (task, _) = fixture.paused(finance(1)).await;
    // The question is item 3, and about 8,000 items follow it.
    fill_journal(&fixture).await;
    let search = statement_with("m.type = 'user_message'");
    let pages = pages_read(&fixture, search, &format!("'{task}', '{task}', 3")).await;
    assert!((3..30).contains(&pages), "{pages} pages");
}

#[tokio::test]
async fn read_of_a_closed_request_reads_few_pages_of_a_journal_that_has_gone_on() {
    let fixture = StoreFixture::postgres().await;
    let (task, question) = fixture.paused(finance(1)).await;
    fixture
        .decide(task, &question, "bob", Action::Approve)
        .await;
    // The decision is item 5, and about 8,000 items follow it.
    fill_journal(&fixture).await;
    let read = statement_with("where r.request_id = $1 order by i.seq");
    let request = question.request_id.0;
    let pages = pages_read(&fixture, read, &format!("'{request}', 0")).await;
    assert!((8..30).contains(&pages), "{pages} pages");
}

#[tokio::test]
async fn lists_read_few_pages_however_many_requests_are_open() {
    let fixture = StoreFixture::postgres().await;
    let (_, question) = fixture.paused(finance(1)).await;
    fixture
        .many_requests(20_000, "'user_id', 'u' || ids.n % 100")
        .await;
    // With the statistics target 1, `analyze` samples so few rows that it sees only copies of one
    // request.
    for sql in ["set default_statistics_target = 1; analyze", "vacuum"] {
        fixture.execute(sql).await;
    }
    let none = "'00000000-0000-0000-0000-000000000000'";
    for (statement, values) in [
        (
            "(select i.request_id from inbox i",
            format!("'acme', {none}, '{{user,group}}', '{{bob,finance}}', 51"),
        ),
        (
            "(select i.request_id from inbox i",
            format!("'acme', {none}, '{{user,group}}', '{{bob,many}}', 51"),
        ),
        (
            "d.user_id = p.user_id and d.request_id < $3",
            format!("'acme', '{{bob,many}}', '{}', 51", uuid::Uuid::max()),
        ),
        (
            "a.name = p.name and a.request_id < $4",
            format!(
                "'acme', '{{user,group}}', '{{bob,many}}', '{}', 51",
                uuid::Uuid::max()
            ),
        ),
        (
            "d.user_id = p.name and p.kind = 'user'",
            format!("'acme', {none}, '{{user,group}}', '{{bob,many}}', 51"),
        ),
        (
            "r.status = 'pending' and r.request_id > $2",
            format!("'acme', {none}, 51"),
        ),
        (
            "t.user_id = p.user_id and t.parent_task_id",
            format!("'acme', '{{u7,alice}}', '{}', 51", uuid::Uuid::max()),
        ),
        (
            "as answered",
            format!(
                "0, '{{{}}}', 'acme', '{{}}', '{{}}', '{{}}', '{{}}', '{{bob}}', false",
                question.request_id
            ),
        ),
        (
            "order by r.request_id limit $9",
            format!(
                "0, '{{{}}}', 'acme', '{{}}', '{{}}', '{{}}', '{{}}', true, 51, 4194304",
                question.request_id
            ),
        ),
    ] {
        let pages = pages_read(&fixture, statement_with(statement), &values).await;
        assert!(
            (2..60).contains(&pages),
            "{pages} pages: {statement} {values}"
        );
    }
    // A page of 50 requests or of 50 tasks, and one more that shows that there is a next page. The
    // copied requests have the ids of their tasks.
    let ids = "select request_id::text from intervention_request order by request_id limit 51";
    let ids = fixture.database().texts(ids).await.join(",");
    let keys = "'{user,group}', '{bob,many}', '{bob,Bob}'";
    for (statement, values, limits) in [
        (
            "order by r.request_id limit $9",
            format!("0, '{{{ids}}}', 'acme', '{{}}', '{{}}', '{{}}', '{{}}', true, 51, 4194304"),
            100..1_000,
        ),
        (
            "and not t.agent_version = any($7",
            format!("'{{{ids}}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', 51, 4194304"),
            100..1_500,
        ),
        // The count of a person's open requests stops at 1,000.
        (
            "bool_and(x.known) as known",
            format!("0, 'acme', {none}, {keys}, 1001"),
            5..200,
        ),
        (
            "r.request_id > $3 order by r.request_id limit $4",
            format!("0, 'acme', {none}, 1001"),
            5..200,
        ),
    ] {
        let pages = pages_read(&fixture, statement_with(statement), &values).await;
        assert!(limits.contains(&pages), "{pages} pages: {statement}");
    }
}
