//! Tests that no GET and no HEAD of any path changes a row of the database. The tests send them as
//! scanners and previews, which follow every link that they see, and as callers with a key.

use std::collections::BTreeMap;

use macro_rules_attribute::apply;
use reqwest::Method;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::super::approval_cycle::on_both;
use super::super::gate::{AGENT, ask, refund};
use super::{answer, yaml};
use crate::support::fake_chat_completions::text_answer;
use crate::support::links::link;
use crate::support::test_app::{ALICE, Actor, BOB, Held, OPS, On, TestApp};

const PROFILES: [&[(&str, &str)]; 5] = [
    &[(
        "user-agent",
        "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 SafeLinks",
    )],
    &[
        (
            "user-agent",
            "Slackbot-LinkExpanding 1.0 (+https://api.slack.com/robots)",
        ),
        ("range", "bytes=0-32768"),
    ],
    &[
        ("user-agent", "facebookexternalhit/1.1"),
        ("accept", "text/html"),
    ],
    &[
        ("user-agent", "TelegramBot (like TwitterBot)"),
        ("sec-fetch-site", "cross-site"),
    ],
    &[
        ("user-agent", "Mozilla/5.0 (compatible; Barracuda Sentinel)"),
        ("origin", "https://scanner.example"),
        ("purpose", "prefetch"),
    ],
];

/// Returns the configuration with links, a gate, and the key of an agent that asks at the gate.
fn yaml_with_gate() -> String {
    let key = format!(
        "    - {{ user: alice, tenant: acme, groups: [support], key: \"{AGENT}\", may: [gate] }}\n"
    );
    let yaml = yaml("{ groups: [finance] }").replacen("  people:", &(key + "  people:"), 1);
    yaml + "gates: { refunds: { description: Refunds., tools: [refund] } }\n"
}

/// Returns every path that answers GET, with the ids of a held task and of a gate call's task
/// filled in. The paths come from the tables from which the router is made.
fn routes(held: &Held, gate_task: &str) -> Vec<String> {
    let document: Value = serde_json::from_str(&holdpoint::http::openapi::openapi_json()).unwrap();
    let paths = document["paths"].as_object().unwrap().iter();
    let answers_get = paths.filter(|(_, operations)| operations.get("get").is_some());
    let mut routes: Vec<String> = answers_get
        .map(|(path, _)| {
            let path = path.replace("/calls/{task_id}", &format!("/calls/{gate_task}"));
            path.replace("{request_id}", &held.request)
                .replace("{task_id}", &held.task)
                .replace("{code}", "not_found")
                .replace("/l/{token}", &link("dora", &held.request))
        })
        .collect();
    let assets = holdpoint::http::asset_paths().into_iter();
    routes.extend(assets.map(|path| path.replace("{*name}", "index.html")));
    assert!(routes.len() > 24 && !routes.iter().any(|path| path.contains('{')));
    routes
}

/// Returns for each table a hash of all its rows.
async fn rows(app: &TestApp, on: On) -> BTreeMap<String, String> {
    let tables = match on {
        On::Sqlite => {
            "select name from sqlite_master where type = 'table' and name not like 'sqlite_%'"
        }
        On::Postgres => {
            "select table_name::text from information_schema.tables where table_schema = current_schema()"
        }
    };
    let mut hashes = BTreeMap::new();
    for table in app.database.texts(tables).await {
        let row = match on {
            On::Sqlite => {
                let columns =
                    format!("select 'quote(' || name || ')' from pragma_table_info('{table}')");
                app.database.texts(&columns).await.join(" || ',' || ")
            }
            On::Postgres => format!("\"{table}\"::text"),
        };
        let rows = format!("select {row} from \"{table}\" order by 1");
        let rows = app.database.texts(&rows).await.join("\n");
        hashes.insert(table, format!("{:x?}", Sha256::digest(rows)));
    }
    hashes
}

/// Follows a link. Reads the body of the reply, except for an endless event stream. Returns the
/// status.
async fn follow(actor: &Actor<'_>, method: Method, path: &str) -> u16 {
    let reply = actor.sent(method, path, None).await;
    let status = reply.status().as_u16();
    assert!(status < 500, "{path}: {status}");
    let kind = reply.headers().get("content-type");
    if kind.is_none_or(|kind| !kind.as_bytes().starts_with(b"text/event-stream")) {
        reply.bytes().await.unwrap();
    }
    status
}

#[apply(on_both)]
async fn no_get_or_head_of_any_route_changes_a_row(on: On) {
    let app = TestApp::with(on, &yaml_with_gate()).await;
    let held = app.held().await;
    let gate_task = ask(&app, &refund(120), 0).await.str("/task_id");
    // A browser that loads a page in advance sends the cookie of its session.
    let session = app.sign_in(BOB).await;
    // A usual run divides the scanners between the two databases.
    let scanners = || {
        let all = PROFILES.into_iter().flat_map(|profile| {
            let cookie = app.anonymous().header("cookie", &session);
            let callers = [app.anonymous(), app.actor(BOB), cookie];
            callers.map(|actor| {
                profile
                    .iter()
                    .fold(actor, |actor, (name, value)| actor.header(name, value))
            })
        });
        on.share(all)
    };
    let readers = || [ALICE, OPS, AGENT].map(|key| app.actor(key));
    let before = rows(&app, on).await;
    assert!(before.len() > 10, "{before:?}");
    for path in routes(&held, &gate_task) {
        let mut is_read = false;
        for actor in scanners().chain(readers()) {
            for method in [Method::GET, Method::HEAD] {
                is_read |= follow(&actor, method, &path).await < 400;
            }
        }
        assert!(is_read, "{path} is refused to each caller");
        assert_eq!(rows(&app, on).await, before, "{path}");
    }
    assert_eq!(app.tool.ledger().len(), 0);
    app.model.then(text_answer("done"));
    let pressed = answer(&app, &link("dora", &held.request), "approve", &[]).await;
    assert_eq!(pressed.status, 303);
    assert_ne!(rows(&app, on).await, before, "the hashes see a decision");
    app.stop().await;
}
