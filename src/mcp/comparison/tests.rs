//! Tests of comparisons with a server on loopback.

use futures_util::future::join_all;

use super::super::fake::{Fake, answer, called, endless, modern, said, succeeded};
use super::*;
use crate::world::captured::Captured;

fn locked(tools: &[Value]) -> LockedServer {
    let tools = tools.iter().map(|tool| {
        let name = tool_name(tool).unwrap().to_owned();
        (name, LockedTool::new(tool.clone()))
    });
    LockedServer {
        server: Value::Null,
        protocol: String::new(),
        locked_at: String::new(),
        tools: tools.collect(),
    }
}

#[test]
fn tool_that_is_listed_differently_or_not_at_all_or_twice_has_changed() {
    let same = json!({"name": "a", "description": "x", "inputSchema": {"type": "object"}});
    let locked = locked(std::slice::from_ref(&same));
    assert_eq!(
        differences(&locked, std::slice::from_ref(&same)),
        BTreeMap::new()
    );
    let reordered: Value = serde_json::from_str(
        r#"{"inputSchema": {"type": "object"}, "description": "x", "name": "a"}"#,
    )
    .unwrap();
    assert_eq!(differences(&locked, &[reordered]), BTreeMap::new());
    let with = |member: &str, value: Value| {
        let mut tool = same.clone();
        tool[member] = value;
        tool
    };
    for (listed, detail) in [
        (vec![], "The server does not list it any more."),
        (
            vec![same.clone(), same.clone()],
            "The server lists two tools of this name.",
        ),
        (
            vec![with("description", json!("y"))],
            "Now different: description.",
        ),
        (
            vec![with(
                "inputSchema",
                json!({"type": "object", "properties": {}}),
            )],
            "Now different: inputSchema.",
        ),
        (
            vec![with("annotations", json!({"readOnlyHint": true}))],
            "Now different: annotations.",
        ),
        (
            vec![with("x-new", json!(1))],
            "Now different: other members.",
        ),
        (
            vec![with("name", json!("A"))],
            "The server does not list it any more.",
        ),
    ] {
        let found = differences(&locked, &listed);
        assert_eq!(found.len(), 1, "{listed:?}");
        assert_eq!(found["a"].detail, detail);
        assert_ne!(found["a"].digest, locked.tools["a"].digest);
    }
}

fn definition(text: &str) -> Value {
    json!({"name": "a", "description": text, "inputSchema": {"type": "object"}})
}

/// Starts a server with one tool. The tool's description is the current value of `text`. While
/// `text` is `down`, the server answers 503.
async fn listing(text: &tokio::sync::watch::Sender<&'static str>) -> Fake {
    let text = text.subscribe();
    Fake::new(move |seen| {
        if let Some(response) = modern(seen) {
            return Some(response);
        }
        let text = *text.borrow();
        if text == "down" {
            return Some(answer(503, "text/plain", ""));
        }
        let list = json!({"tools": [definition(text)], "resultType": "complete"});
        let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
        let mut texts = vec![seen.result_text(&list)];
        if seen.method() == "tools/call" {
            texts = vec![changed.to_owned(), seen.result_text(&said("done"))];
        }
        Some(endless(&texts))
    })
    .await
}

fn lists(server: &Fake) -> usize {
    let methods = server.methods();
    methods
        .iter()
        .filter(|method| *method == "tools/list")
        .count()
}

fn age(comparison: &ToolComparison, by: Duration) {
    let mut state = comparison.state.lock();
    if let Some(at) = &mut state.compared_at {
        *at -= by;
    }
    if let Some((_, at, _)) = &mut state.failed {
        *at -= by;
    }
}

#[tokio::test]
async fn comparison_counts_for_a_minute_but_never_for_the_start_of_an_approved_call() {
    let (text, _) = tokio::sync::watch::channel("x");
    let server = listing(&text).await;
    let (client, comparison) = (server.client(), ToolComparison::default());
    let locked = locked(&[definition("x")]);
    let none = HeaderMap::new();
    let reasons = [
        ComparisonReason::Judge,
        ComparisonReason::Start,
        ComparisonReason::StartNow,
    ];
    let stale = || reasons.map(|reason| comparison.is_stale(reason, &client));
    assert_eq!(stale(), [true; 3]);
    for reason in reasons {
        let compared = comparison.compare(reason, "s", &client, &locked, &none);
        compared.await.unwrap();
    }
    assert_eq!((lists(&server), stale()), (2, [false, false, true]));
    age(&comparison, Duration::from_secs(50));
    assert_eq!(stale(), [false, false, true]);
    age(&comparison, Duration::from_secs(11));
    assert_eq!(stale(), [true; 3]);
    let compared = comparison.compare(ComparisonReason::Start, "s", &client, &locked, &none);
    compared.await.unwrap();
    assert_eq!((lists(&server), comparison.difference("a")), (3, None));
}

#[tokio::test]
async fn change_is_found_as_soon_as_the_server_announces_it() {
    let (text, _) = tokio::sync::watch::channel("x");
    let server = listing(&text).await;
    let (client, comparison) = (server.client(), ToolComparison::default());
    let locked = locked(&[definition("x")]);
    let none = HeaderMap::new();
    let compare = || comparison.compare(ComparisonReason::Start, "s", &client, &locked, &none);
    compare().await.unwrap();
    text.send_replace("y");
    compare().await.unwrap();
    assert_eq!((lists(&server), comparison.difference("a")), (1, None));
    assert_eq!(called(&client).await, succeeded("done"));
    assert!(comparison.is_stale(ComparisonReason::Start, &client));
    compare().await.unwrap();
    let detail = comparison.difference("a").unwrap().detail;
    assert_eq!(
        (lists(&server), detail.as_str()),
        (2, "Now different: description.")
    );
    assert!(!comparison.is_stale(ComparisonReason::Start, &client));
}

#[tokio::test]
async fn tools_that_are_new_at_the_server_are_logged_once() {
    let (names, _) = tokio::sync::watch::channel(Vec::<&'static str>::new());
    let listed = names.subscribe();
    let server = Fake::new(move |seen| {
        let definition_of = |name: &&str| json!({"name": name, "description": "x", "inputSchema": {"type": "object"}});
        let tools: Vec<Value> = listed.borrow().iter().map(definition_of).collect();
        let list = json!({"tools": tools, "resultType": "complete"});
        modern(seen).or_else(|| Some(seen.result(&list)))
    })
    .await;
    let (client, comparison) = (server.client(), ToolComparison::default());
    let locked = locked(&[definition("x")]);
    let captured = Captured::default();
    let printing = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(captured.writer());
    let _printing = tracing::subscriber::set_default(printing.finish());
    for (listed, lines) in [
        (&["a"][..], 0),
        (&["a", "b"], 1),
        (&["a", "b"], 1),
        (&["a", "c"], 2),
        (&["a", "c", "d"], 3),
        (&["a"], 3),
        (&[], 4),
    ] {
        names.send_replace(listed.to_vec());
        let none = HeaderMap::new();
        let compared = comparison.compare(ComparisonReason::StartNow, "s", &client, &locked, &none);
        compared.await.unwrap();
        let logged = captured.text();
        let logged = logged.matches("not those that were reviewed").count();
        assert_eq!(logged, lines, "{listed:?}");
    }
}

#[tokio::test]
async fn start_fails_while_no_comparison_can_be_made_and_judging_waits_a_while() {
    let (text, _) = tokio::sync::watch::channel("down");
    let server = listing(&text).await;
    let (client, comparison) = (server.client(), ToolComparison::default());
    let locked = locked(&[definition("x")]);
    let none = HeaderMap::new();
    for reason in [
        ComparisonReason::Judge,
        ComparisonReason::Start,
        ComparisonReason::StartNow,
    ] {
        let compared = comparison
            .compare(reason, "s", &client, &locked, &none)
            .await;
        assert_eq!(compared.unwrap_err(), "the server answered 503");
    }
    assert_eq!((lists(&server), server.calls().len()), (3, 0));
    let judged = comparison
        .compare(ComparisonReason::Judge, "s", &client, &locked, &none)
        .await;
    assert_eq!((judged, lists(&server)), (Ok(()), 3));
    age(&comparison, PAUSE_AFTER_FAILURE);
    assert!(comparison.is_stale(ComparisonReason::Judge, &client));
    text.send_replace("y");
    let started = comparison.compare(ComparisonReason::StartNow, "s", &client, &locked, &none);
    started.await.unwrap();
    assert!(comparison.difference("a").is_some());
    text.send_replace("down");
    age(&comparison, Duration::from_secs(61));
    let compared = comparison.compare(ComparisonReason::StartNow, "s", &client, &locked, &none);
    assert!(compared.await.is_err());
    assert!(
        comparison.difference("a").is_some(),
        "the last finding stands"
    );
}

#[tokio::test]
async fn concurrent_starts_share_the_comparison_that_began_after_them_failed_or_not() {
    for (state, works) in [("x", true), ("down", false)] {
        let (text, _) = tokio::sync::watch::channel(state);
        let server = listing(&text).await;
        let (client, comparison) = (server.client(), ToolComparison::default());
        let locked = locked(&[definition("x")]);
        let none = HeaderMap::new();
        let compare =
            || comparison.compare(ComparisonReason::StartNow, "s", &client, &locked, &none);
        let compared = join_all((0..8).map(|_| compare())).await;
        assert!(compared.iter().all(|compared| compared.is_ok() == works));
        // The first caller begins a comparison before the other seven callers call `compare`, so
        // these callers must not use its result. They share a second comparison.
        assert_eq!(lists(&server), 2, "{state}");
    }
}
