//! Counts the work of statements on `SQLite` when the tables hold many rows of other people, and
//! looks at the plans of statements.

use holdpoint::store::Store;
use holdpoint::task::verdict::Terms;
use rusqlite::{Connection, StatementStatus, ToSql, params};
use uuid::Uuid;

use super::schema::query_plan;
use super::store_fixture::StoreFixture;
use crate::support::sqlite_file;

/// The limit for the steps that `SQLite`'s virtual machine takes for one statement. The statements
/// here take up to about 1,000. A statement that reads 20,000 rows takes tens of thousands.
const MAX_STEPS: i32 = 2_000;

/// Runs the statement that contains `part`. Returns the ids in its first column, sorted. Fails if
/// the statement scans a table, or takes more steps than a few rows need.
fn ids_in_few_steps(connection: &Connection, part: &str, values: &[&dyn ToSql]) -> Vec<Uuid> {
    let mut all = Store::statements().into_iter();
    let sql = all.find(|sql| sql.sqlite.contains(part)).unwrap().sqlite;
    let mut statement = connection.prepare(sql).unwrap();
    for index in 1..=statement.parameter_count() {
        let name = statement.parameter_name(index).unwrap();
        let number: usize = name.strip_prefix('$').unwrap().parse().unwrap();
        let value = values[number - 1];
        statement.raw_bind_parameter(index, value).unwrap();
    }
    let ids = statement.raw_query().mapped(|row| row.get(0));
    let mut ids: Vec<Uuid> = ids.collect::<rusqlite::Result<_>>().unwrap();
    ids.sort_unstable();
    let scanned = statement.get_status(StatementStatus::FullscanStep);
    let steps = statement.get_status(StatementStatus::VmStep);
    assert_eq!(scanned, 0, "rows of scans: {sql}");
    assert!((10..MAX_STEPS).contains(&steps), "{steps} steps: {sql}");
    ids
}

/// Copies the row of a table that fits `condition`, once for each row of the table `copies`.
/// `changed` has the columns in which the copies differ from the row.
fn copy_row(connection: &Connection, table: &str, condition: &str, changed: &[(&str, &str)]) {
    let columns = format!("select name from pragma_table_info('{table}')");
    let columns = sqlite_file::rows(connection, &columns, |row| row.get::<_, String>(0)).unwrap();
    let values = columns.iter().map(|name| {
        let mut changed = changed.iter().copied();
        let found = changed.find(|(column, _)| column == name);
        found.map_or(name.as_str(), |(_, value)| value)
    });
    let values: Vec<&str> = values.collect();
    let sql = format!(
        "insert into {table} ({}) select {} from {table}, copies where {condition}",
        columns.join(", "),
        values.join(", ")
    );
    connection.execute_batch(&sql).unwrap();
}

/// Copies a task and its open request 20,000 times, for 100 other users. The ids of the copies come
/// before all other ids.
fn copy_for_others(connection: &Connection, task: &str, request: &str) {
    let copies = "create temporary table copies as
        with recursive numbers (n) as (values (1) union all select n + 1 from numbers where n < 20000)
        select unhex(printf('%032x', n)) as id, 'u' || (n % 100) as other from numbers";
    connection.execute_batch(copies).unwrap();
    let task = format!("task_id = {task}");
    let request = format!("request_id = {request}");
    let own_task = [("task_id", "id"), ("root_task_id", "id")];
    let own_request = [own_task[0], own_task[1], ("request_id", "id")];
    let of_user = [own_task[0], own_task[1], ("user_id", "other")];
    let named = [("request_id", "id"), ("name", "other"), ("owner", "other")];
    for (table, row, changed) in [
        ("agent_task", &task, of_user),
        ("agent_task_item", &request, own_request),
        ("intervention_request", &request, own_request),
        ("request_approver", &request, named),
        ("inbox", &request, named),
    ] {
        copy_row(connection, table, row, &changed);
    }
    let decisions = "insert into decision (tenant, user_id, request_id, tool_call_id, action, final, task_id, seq, at)
        select 'acme', other, id, id, 'approve', false, id, 5, 0 from copies";
    connection.execute_batch(decisions).unwrap();
}

#[tokio::test]
async fn person_with_three_of_many_requests_is_answered_from_few_rows_on_sqlite() {
    let fixture = StoreFixture::sqlite().await;
    let (mut tasks, mut requests) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        // The approver is Alice, as the owner of the task.
        let (task, question) = fixture.paused(Terms::default()).await;
        tasks.push(task.0);
        requests.push(question.request_id.0);
    }
    let connection = sqlite_file::connect(fixture.settings.url.reveal());
    let (task, request) = (fixture.literal(tasks[0]), fixture.literal(requests[0]));
    copy_for_others(&connection, &task, &request);
    assert_eq!(fixture.count("inbox where name like 'u%'").await, 20_000);

    let (first, last, alice) = (Uuid::nil(), Uuid::max(), r#"["alice"]"#);
    for (kind, found) in [("owner", &requests[..]), ("user", &requests[..0])] {
        for (part, values) in [
            (
                "from inbox where tenant = $1 and kind = $3 and name = $4",
                params!["acme", first, kind, "alice", 51],
            ),
            // The count of a person's open requests stops at 1,000.
            (
                "from inbox where tenant = $2 and kind = $4 and name = $5",
                params![0, "acme", first, kind, "alice", alice, 1001],
            ),
            (
                "select * from (select request_id from request_approver",
                params!["acme", first, kind, "alice", 51],
            ),
            (
                "from request_approver where tenant = $1 and kind = $2",
                params!["acme", kind, "alice", last, 51],
            ),
        ] {
            let ids = ids_in_few_steps(&connection, part, values);
            assert_eq!(ids, found, "{kind}: {part}");
        }
    }
    let hex = |ids: &[Uuid]| {
        let ids = ids.iter().map(|id| id.simple().to_string());
        ids.collect::<serde_json::Value>().to_string()
    };
    let (task_ids, request_ids) = (hex(&tasks), hex(&requests));
    let (pending, any, bytes) = (r#"["pending"]"#, "[]", 4_194_304);
    for (part, found, values) in [
        (
            "t.user_id = $2 and t.parent_task_id is null",
            &tasks,
            params!["acme", "alice", last, 51],
        ),
        (
            "and not t.agent_version in",
            &tasks,
            params![task_ids, alice, any, any, any, any, any, 51, bytes],
        ),
        (
            "order by r.request_id limit $9",
            &requests,
            params![
                0,
                request_ids,
                "acme",
                pending,
                any,
                any,
                any,
                false,
                51,
                bytes
            ],
        ),
        (
            "as answered",
            &requests,
            params![0, request_ids, "acme", pending, any, any, any, alice, false],
        ),
    ] {
        let ids = ids_in_few_steps(&connection, part, values);
        assert_eq!(ids, *found, "{part}");
    }
}

#[tokio::test]
async fn calls_at_a_gate_are_found_by_their_keys_on_sqlite() {
    let fixture = StoreFixture::sqlite().await;
    for (part, indexes) in [
        (
            "i.call_key = k.value",
            &[
                "agent_task_call_key (tenant=? AND agent=? AND user_id=? AND session_id=? AND call_tool=? AND call_key=?)",
                "intervention_request_reconcile (tenant=? AND gate=? AND gate_user=?)",
                "agent_task_quarantine (tenant=? AND agent=? AND user_id=? AND session_id=? AND call_tool=?",
            ][..],
        ),
        (
            "x) as calls",
            &["intervention_request_gate (tenant=? AND gate=? AND gate_user=?)"][..],
        ),
        (
            "t.call_key is not null limit 1)",
            &[
                "agent_task_call_key (tenant=? AND agent=? AND user_id=? AND session_id=? AND call_tool=?",
            ][..],
        ),
    ] {
        let statements = Store::statements();
        let sql = statements
            .iter()
            .find(|sql| sql.sqlite.contains(part))
            .unwrap();
        let plan = query_plan(&fixture, sql.sqlite);
        assert!(indexes.iter().all(|index| plan.contains(index)), "{plan}");
        let scanned = ["t", "r", "i"].map(|table| format!("SCAN {table}"));
        assert!(
            !plan.lines().any(|line| scanned.contains(&line.to_owned())),
            "{plan}"
        );
    }
}

/// On `SQLite`, a list for one person searches the ranges of the person's keys, one key at a time.
/// Thus it reads none of the other people's requests.
#[tokio::test]
async fn requests_of_a_person_are_found_by_the_persons_keys_on_sqlite() {
    let fixture = StoreFixture::sqlite().await;
    let statements = Store::statements();
    for (part, index, range) in [
        (
            "from inbox where tenant = $2 and kind = $4 and name = $5",
            "inbox USING PRIMARY KEY",
            "(tenant=? AND kind=? AND name=? AND request_id>?)",
        ),
        (
            "from inbox where tenant = $1 and kind = $3 and name = $4",
            "inbox USING PRIMARY KEY",
            "(tenant=? AND kind=? AND name=? AND request_id>?)",
        ),
        (
            "select * from (select request_id from request_approver",
            "sqlite_autoindex_request_approver_1",
            "(tenant=? AND kind=? AND name=? AND request_id>?)",
        ),
        (
            "select * from (select distinct request_id from decision",
            "sqlite_autoindex_decision_1",
            "(tenant=? AND user_id=? AND request_id>?)",
        ),
        (
            "from request_approver where tenant = $1 and kind = $2",
            "sqlite_autoindex_request_approver_1",
            "(tenant=? AND kind=? AND name=? AND request_id<?)",
        ),
        (
            "from decision where tenant = $1 and user_id = $2",
            "sqlite_autoindex_decision_1",
            "(tenant=? AND user_id=? AND request_id<?)",
        ),
    ] {
        let sql = statements.iter().find(|sql| sql.sqlite.contains(part));
        let plan = query_plan(&fixture, sql.unwrap().sqlite);
        assert!(plan.contains(&format!("{index} {range}")), "{plan}");
        let scanned =
            ["inbox", "request_approver", "decision"].map(|table| format!("SCAN {table}"));
        assert!(!scanned.iter().any(|scan| plan.contains(scan)), "{plan}");
    }
}

/// The index `decision_final` has only final answers, in the order of the requests. If `SQLite`
/// used the primary key of `decision` instead, the statement would read all answers of the tenant
/// and sort them.
#[tokio::test]
async fn decided_requests_are_found_by_their_final_answers_on_sqlite() {
    let fixture = StoreFixture::sqlite().await;
    let statements = Store::statements();
    let mut all = statements.iter();
    let sql = all.find(|sql| sql.sqlite.contains("where d.final"));
    let plan = query_plan(&fixture, sql.unwrap().sqlite);
    let found = "SEARCH d USING INDEX decision_final (request_id<?)";
    assert!(plan.contains(found) && !plan.contains("TEMP"), "{plan}");
}

#[tokio::test]
async fn last_user_message_is_found_by_the_journals_key_on_sqlite() {
    let fixture = StoreFixture::sqlite().await;
    let mut statements = Store::statements().into_iter();
    let search = statements.find(|sql| sql.sqlite.contains("m.type = 'user_message'"));
    let plan = query_plan(&fixture, search.unwrap().sqlite);
    let found = "m USING INDEX sqlite_autoindex_agent_task_item_1 (task_id=? AND seq<?)";
    assert!(
        plan.contains(found) && !plan.contains("TEMP B-TREE"),
        "{plan}"
    );
}
