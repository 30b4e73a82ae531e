//! Tests that the two schemas match, that every statement fits both, and that the important reads
//! use their index.

use std::collections::BTreeSet;

use holdpoint::store::Store;
use sqlx::{
    AssertSqlSafe, Connection as _, Executor as _, PgConnection, Row as _, SqlSafeStr as _,
};

use super::store_fixture::{StoreFixture, finance};
use crate::support::postgres::{database, database_without_nets};
use crate::support::sqlite_file;

async fn texts(fixture: &StoreFixture, sql: &str) -> Vec<String> {
    fixture.database().texts(sql).await
}

async fn texts_at(url: &str, sql: &'static str) -> BTreeSet<String> {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let rows = connection.fetch_all(sql.into_sql_str()).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

pub fn query_plan(fixture: &StoreFixture, query: &str) -> String {
    let connection = sqlite_file::connect(fixture.settings.url.reveal());
    let explain = format!("explain query plan {query}");
    let steps: Vec<String> =
        sqlite_file::rows(&connection, &explain, |row| row.get("detail")).unwrap();
    steps.join("\n")
}

#[tokio::test]
async fn both_schemas_have_the_same_tables_columns_nullability_and_indexes() {
    let (postgres, sqlite) = (StoreFixture::postgres().await, StoreFixture::sqlite().await);
    let columns = texts(
        &postgres,
        "select table_name || '.' || column_name || ' ' || case data_type when 'bigint' then 'integer'
            when 'boolean' then 'integer' when 'uuid' then 'blob' else data_type end || ' '
            || case is_nullable when 'YES' then 'null' else 'not null' end
           from information_schema.columns where table_schema = 'public' and table_name not like '\\_sqlx%'
            and table_name <> 'claimable_task'",
    )
    .await;
    let twins = texts(
        &sqlite,
        "select t.name || '.' || c.name || ' ' || lower(c.type) || ' ' || case c.\"notnull\" when 0 then 'null' else 'not null' end
           from sqlite_schema t join pragma_table_info(t.name) c where t.type = 'table' and t.name not like '\\_sqlx%' escape '\\'",
    )
    .await;
    assert_eq!(
        columns.iter().collect::<BTreeSet<_>>(),
        twins.iter().collect::<BTreeSet<_>>()
    );
    assert!(columns.len() > 60);
    for (of_postgres, of_sqlite) in [
        (
            "select indexname::text from pg_indexes where schemaname = 'public' and indexname not like '%_pkey'
                and tablename <> 'claimable_task'",
            "select name from sqlite_schema where type = 'index' and name not like 'sqlite_%'
                and name not in ('agent_task_queued', 'agent_task_leased', 'agent_task_asleep', 'agent_task_alone')",
        ),
        (
            "select tgname::text from pg_trigger where not tgisinternal and tgname not in
                ('agent_task_claimable', 'request_inbox', 'agent_task_item_of_request', 'intervention_request_close')",
            "select name from sqlite_schema where type = 'trigger'",
        ),
    ] {
        let postgres: BTreeSet<_> = texts(&postgres, of_postgres).await.into_iter().collect();
        assert_eq!(
            postgres,
            texts(&sqlite, of_sqlite).await.into_iter().collect()
        );
        assert!(!postgres.is_empty());
    }
}

/// Queries for the columns, the indexes, the constraints and the triggers of a schema.
const PARTS: [&str; 4] = [
    "select table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable || ' '
        || coalesce(column_default, '') from information_schema.columns where table_schema = 'public'",
    "select indexdef from pg_indexes where schemaname = 'public'",
    "select conrelid::regclass::text || '.' || conname || ' ' || pg_get_constraintdef(oid) from pg_constraint
      where connamespace = 'public'::regnamespace",
    "select pg_get_triggerdef(oid) from pg_trigger where not tgisinternal",
];

#[tokio::test]
async fn schema_of_the_tests_differs_from_the_product_only_by_its_nets() {
    let (product, tests) = (database_without_nets().await, database().await);
    let mut nets = BTreeSet::new();
    for sql in PARTS {
        let (ours, theirs) = (
            texts_at(&product.url, sql).await,
            texts_at(&tests.url, sql).await,
        );
        assert!(ours.is_subset(&theirs), "{:?}", ours.difference(&theirs));
        nets.extend(theirs.difference(&ours).cloned());
    }
    let names = [
        "agent_task.agent_task_claimable TRIGGER",
        "agent_task.agent_task_counters CHECK",
        "agent_task.agent_task_lease CHECK",
        "agent_task.agent_task_parent CHECK",
        "agent_task.agent_task_phase_check CHECK",
        "agent_task.agent_task_status_check CHECK",
        "credential.credential_task_id_fkey FOREIGN",
        "decision.decision_request_id_fkey FOREIGN",
        "intervention_request.intervention_request_task_id_fkey FOREIGN",
        "request_approver.request_approver_request_id_fkey FOREIGN",
        "CREATE CONSTRAINT TRIGGER agent_task_claimable",
        "CREATE CONSTRAINT TRIGGER request_inbox",
        "CREATE CONSTRAINT TRIGGER agent_task_item_of_request",
        "agent_task_item.agent_task_item_of_request TRIGGER",
        "inbox.inbox_request_id_fkey FOREIGN",
        "intervention_request.request_inbox TRIGGER",
        "standing_grant.standing_grant_scope_check CHECK",
        "CREATE TRIGGER agent_task_end",
        "CREATE TRIGGER intervention_request_close",
        "CREATE TRIGGER intervention_request_end",
    ];
    assert_eq!(nets.len(), names.len(), "{nets:#?}");
    for name in names {
        assert!(nets.iter().any(|net| net.starts_with(name)), "{name}");
    }
}

/// Postgres parses each check of a table in every statement that writes to the table.
#[tokio::test]
async fn no_table_of_the_product_has_more_than_one_check() {
    let checks = "select conrelid::regclass::text from pg_constraint
        where contype = 'c' and conrelid <> 0 group by conrelid having count(*) > 1";
    let product = texts_at(&database_without_nets().await.url, checks).await;
    let tests = texts_at(&database().await.url, checks).await;
    assert!(product.is_empty(), "{product:?}");
    assert!(
        tests.iter().eq(["agent_task", "standing_grant"]),
        "{tests:?}"
    );
}

#[test]
fn migrations_of_both_engines_have_the_same_numbers_and_names() {
    let names = |engine: &str| -> BTreeSet<_> {
        let folder = format!("{}/migrations/{engine}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect()
    };
    assert_eq!(names("postgres"), names("sqlite"));
}

#[tokio::test]
async fn every_statement_is_understood_by_both_engines() {
    let (postgres, sqlite) = (StoreFixture::postgres().await, StoreFixture::sqlite().await);
    let mut on_postgres = postgres.connection().await;
    let on_sqlite = sqlite_file::connect(sqlite.settings.url.reveal());
    let statements = Store::statements();
    assert!(statements.len() > 20);
    for sql in statements {
        if !sql.postgres.is_empty() {
            on_postgres
                .prepare(sql.postgres.into_sql_str())
                .await
                .unwrap_or_else(|error| panic!("{error}: {}", sql.postgres));
        }
        if !sql.sqlite.is_empty() {
            on_sqlite
                .prepare(sql.sqlite)
                .unwrap_or_else(|error| panic!("{error}: {}", sql.sqlite));
        }
    }
}

#[tokio::test]
async fn paused_task_is_found_by_its_request_id_through_an_index() {
    for fixture in [StoreFixture::postgres().await, StoreFixture::sqlite().await] {
        let (_, question) = fixture.paused(finance(1)).await;
        let id = fixture.literal(question.request_id.0);
        let mut all = Store::statements().into_iter();
        let read = all.find(|sql| {
            sql.postgres
                .ends_with("where r.request_id = $1 order by i.seq")
        });
        let read = read.unwrap();
        let filled = |text: &str| text.replace("$1", &id).replace("$2", "0");
        let (plan, keys, scan) = if fixture.is_postgres() {
            run_filler(&fixture).await;
            let explain = format!("explain {}", filled(read.postgres));
            let keys = [
                "intervention_request_pkey",
                "agent_task_pkey",
                "agent_task_item_pkey",
            ];
            (
                texts(&fixture, &explain).await.join("\n"),
                keys,
                "Seq Scan on",
            )
        } else {
            let keys = [
                "sqlite_autoindex_intervention_request_1",
                "sqlite_autoindex_agent_task_1",
                "sqlite_autoindex_agent_task_item_1",
            ];
            (query_plan(&fixture, &filled(read.sqlite)), keys, "SCAN")
        };
        assert!(keys.iter().all(|key| plan.contains(key)), "{plan}");
        // The table `database_identity` has one row.
        let scans = plan.lines().filter(|line| line.contains(scan));
        assert!(
            scans.clone().all(|line| line.contains("database_identity")),
            "{plan}"
        );
    }
}

#[tokio::test]
async fn overdue_requests_and_an_inbox_are_found_through_the_indexes_of_open_requests() {
    let fixture = StoreFixture::postgres().await;
    fixture.paused(finance(1)).await;
    run_filler(&fixture).await;
    let plan_of = async |part: &str, values: &[&str]| {
        let sql = Store::statements()
            .into_iter()
            .find(|sql| sql.postgres.contains(part))
            .unwrap();
        let mut query = format!("explain {}", sql.postgres);
        for (number, value) in values.iter().enumerate().rev() {
            query = query.replace(&format!("${}", number + 1), value);
        }
        texts(&fixture, &query).await.join("\n")
    };
    let plan = plan_of("r.expires_at limit", &["0", "10", "0"]).await;
    let found = plan
        .lines()
        .skip_while(|line| !line.contains("intervention_request_deadline"))
        .nth(1);
    assert!(
        found.is_some_and(|line| line.contains("Index Cond") && line.contains("expires_at <=")),
        "{plan}"
    );

    let nobody = "'00000000-0000-0000-0000-000000000000'";
    let plan = plan_of(
        "r.status = 'pending' and r.request_id > $2",
        &["'globex'", nobody, "10"],
    )
    .await;
    assert!(plan.contains("intervention_request_open"), "{plan}");
}

/// Copies the rows many times, because the plan for a table of two rows proves nothing.
async fn run_filler(fixture: &StoreFixture) {
    let sql = "
        insert into agent_task select (t).* from (select jsonb_populate_record(t, jsonb_build_object('task_id', u.id,
            'root_task_id', u.id)) as t from agent_task t, (select gen_random_uuid() as id from generate_series(1, 3000)) u) x;
        insert into intervention_request select (r).* from (select jsonb_populate_record(r, jsonb_build_object('request_id', u.id))
            as r from intervention_request r, (select gen_random_uuid() as id from generate_series(1, 3000)) u) x;
        insert into inbox select r.tenant, 'user', 'filler', r.request_id from intervention_request r
            where not exists (select 1 from inbox i where i.request_id = r.request_id);
        insert into agent_task_item select (i).* from (select jsonb_populate_record(i, jsonb_build_object('task_id', u.id,
            'root_task_id', u.id, 'request_id', u.id)) as i from agent_task_item i, (select gen_random_uuid() as id from
            generate_series(1, 3000)) u) x;
        analyze";
    crate::support::postgres::run_without_slow_nets(fixture.settings.url.reveal(), sql).await;
}

/// A prepared statement is planned once, while the tables are empty. Its plan must also suit large
/// tables, so the plan must search each table by a key.
#[tokio::test]
async fn statement_that_is_planned_once_searches_every_table_by_a_key() {
    let fixture = StoreFixture::postgres().await;
    let mut connection = fixture.connection().await;
    for setting in holdpoint::store::PLANNED_ONCE {
        let set = format!("set {} = '{}'", setting.0, setting.1);
        connection.execute(AssertSqlSafe(set)).await.unwrap();
    }
    let statements: Vec<_> = Store::statements()
        .into_iter()
        .filter(|sql| sql.by_key && !sql.postgres.is_empty())
        .collect();
    assert!(statements.len() > 5);
    for (place, sql) in statements.iter().enumerate() {
        let count = (1..200)
            .rev()
            .find(|n| sql.postgres.contains(&format!("${n}")))
            .unwrap();
        let nulls = vec!["null"; count].join(", ");
        connection
            .execute(AssertSqlSafe(format!(
                "prepare s{place} as {}",
                sql.postgres
            )))
            .await
            .unwrap();
        let explain = format!("explain (costs off) execute s{place}({nulls})");
        let rows = connection.fetch_all(AssertSqlSafe(explain)).await.unwrap();
        let lines: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let is_linear = ["with n as", "\nwith held as"]
            .iter()
            .any(|start| sql.postgres.starts_with(start));
        for (at, line) in lines.iter().enumerate() {
            assert!(!line.contains("Seq Scan on"), "{}", lines.join("\n"));
            // A `Join Filter` compares all pairs of rows. For two lists, its cost grows with the
            // square of their length. The filter on `h.in_time` is allowed, because it joins a list
            // with a single row, which holds the current time.
            let joins_lists = line.contains("Join Filter") && !line.contains("h.in_time");
            assert!(!is_linear || !joins_lists, "{}", lines.join("\n"));
            if line.contains("Index Scan using") || line.contains("Index Only Scan using") {
                let next = lines.get(at + 1).map_or("", String::as_str);
                assert!(
                    next.contains("Index Cond"),
                    "scanned, not searched: {line}\n{}",
                    lines.join("\n")
                );
            }
        }
    }
}

#[tokio::test]
async fn tree_is_found_by_its_keys_on_both_engines() {
    for fixture in [StoreFixture::postgres().await, StoreFixture::sqlite().await] {
        let (root, _) = fixture.paused(finance(1)).await;
        if fixture.is_postgres() {
            run_filler(&fixture).await;
        }
        let statements = Store::statements();
        let of = |part: &str| {
            statements
                .iter()
                .find(|sql| sql.sqlite.contains(part))
                .unwrap()
        };
        for (sql, indexes) in [
            (
                of("t.parent_task_id is null\n     union all"),
                ["agent_task_children", "agent_task_item"],
            ),
            (
                of("event_number <= $3"),
                ["agent_task_item_tree", "event_number"],
            ),
        ] {
            let plan = if fixture.is_postgres() {
                let query = sql
                    .postgres
                    .replace("$3", "9")
                    .replace("$2", "0")
                    .replace("$1", &format!("'{root}'"));
                texts(&fixture, &format!("explain {query}"))
                    .await
                    .join("\n")
            } else {
                query_plan(&fixture, sql.sqlite)
            };
            assert!(indexes.iter().all(|index| plan.contains(index)), "{plan}");
            assert!(
                !plan.contains("SCAN ") && !plan.contains("Seq Scan on agent_task"),
                "{plan}"
            );
        }
    }
}

/// The claim must search the index `delivery_recipient`, and read only due deliveries of the
/// person. By the index `delivery_once`, it would also read the person's ended deliveries. By the
/// index `delivery_due`, it would also read due deliveries to other people.
#[tokio::test]
async fn due_deliveries_of_a_person_are_found_through_their_index_on_both_engines() {
    let (postgres, sqlite) = (StoreFixture::postgres().await, StoreFixture::sqlite().await);
    let filler = "
        insert into delivery (delivery_id, tenant, target, person, type, root_task_id, change_id, event_number, state,
            due_at, attempts, created_at)
        select gen_random_uuid(), 'acme', 'by-mail', 'user-' || n % 300, 'request.created', gen_random_uuid(),
            gen_random_uuid(), 1, case when n / 300 % 2 = 0 then 'due' else 'sent' end, n, 0, n
          from generate_series(1, 6000) n;
        analyze";
    crate::support::postgres::run(postgres.settings.url.reveal(), filler.to_owned()).await;
    let statements = Store::statements();
    let of = |part: &str| {
        let mut all = statements.iter();
        all.find(|sql| sql.postgres.contains(part) || sql.sqlite.contains(part))
            .unwrap()
    };
    let values = [
        "0",
        "'by-mail'",
        "4",
        "25000000",
        "1000",
        "300000000",
        "385000000",
    ];
    let mut query = format!(
        "explain {}",
        of("from opened o cross join lateral").postgres
    );
    for (number, value) in values.iter().enumerate() {
        query = query.replace(&format!("${}", number + 1), value);
    }
    let on_postgres = texts(&postgres, &query).await;
    let condition = on_postgres
        .iter()
        .skip_while(|line| !line.contains("delivery_recipient"))
        .nth(1);
    assert!(
        condition.is_some_and(|line| line.contains("(person = o.person) AND (due_at <=")),
        "{on_postgres:#?}"
    );
    let on_sqlite = query_plan(&sqlite, of("person = $3\n         order by due_at").sqlite);
    let found = "delivery_recipient (target=? AND tenant=? AND person=? AND due_at<?)";
    assert!(on_sqlite.contains(found), "{on_sqlite}");
}

/// A message of Slack can be changed as long as its request is open or has a new item.
#[tokio::test]
async fn removal_of_deliveries_finds_the_items_of_a_request_by_the_journals_key_on_both_engines() {
    let (postgres, sqlite) = (StoreFixture::postgres().await, StoreFixture::sqlite().await);
    postgres.paused(finance(1)).await;
    run_filler(&postgres).await;
    let mut all = Store::statements().into_iter();
    let remove = all.find(|sql| sql.postgres.contains("m.reference = d.reference"));
    let remove = remove.unwrap();
    let values = ["0", "100", "1", "1", "1"];
    let mut query = format!("explain {}", remove.postgres);
    for (number, value) in values.iter().enumerate() {
        query = query.replace(&format!("${}", number + 1), value);
    }
    let plan = texts(&postgres, &query).await.join("\n");
    assert!(
        plan.contains("agent_task_item_pkey") && !plan.contains("Seq Scan on agent_task_item"),
        "{plan}"
    );
    let plan = query_plan(&sqlite, remove.sqlite);
    let found =
        "SEARCH i USING INDEX sqlite_autoindex_agent_task_item_1 (task_id=? AND seq>? AND seq<?)";
    assert!(plan.contains(found), "{plan}");
}
