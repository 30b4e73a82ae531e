//! Tests of `GET /v1/events`: the stream first reports the requests that wait for a caller, then
//! the changes.

mod stream_ends;

use std::time::Duration;

use holdpoint::task::time::Time;
use holdpoint::world::Clock as _;
use macro_rules_attribute::apply;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::approval_cycle::on_both;
use crate::notify::{BACKEND, NEW};
use crate::support::endless_sleep::{BETWEEN_ROUNDS, EndlessSleep};
use crate::support::event_stream::{Event, StreamBlock, Watch};
use crate::support::fake_receiver::FakeReceiver;
use crate::support::test_app::{ACCOUNTS, Actor, Held, OTHER, On, REFUNDS, TestApp};
use crate::support::test_clock::TestClock;

const DECIDER: &str = "only-decides-0123456789";
const EVE: &str = "eve-key-0123456789ab";

fn yaml(approvers: &str) -> String {
    let more = r#"
    - { user: dora, tenant: acme, groups: [finance], key: "only-decides-0123456789", may: [decide] }
    - { user: eve, tenant: acme, groups: [finance], key: "eve-key-0123456789ab" }
"#;
    REFUNDS.replace("{approvers}", approvers) + ACCOUNTS.trim_end() + more
}

async fn finance(on: On) -> TestApp {
    TestApp::with(on, &yaml("{ groups: [finance] }")).await
}

pub(super) async fn stream(actor: &Actor<'_>, query: &str) -> Watch {
    let path = format!("/v1/events{query}");
    Watch::of_inbox(actor.sent(Method::GET, &path, None).await)
}

/// Waits for `coming`. Panics after a minute, because no working step takes that long.
pub(super) async fn soon<T>(coming: impl Future<Output = T>) -> T {
    timeout(Duration::from_mins(1), coming)
        .await
        .expect("it comes soon")
}

pub(super) async fn next(watch: &mut Watch, name: &str) -> Event {
    let event = soon(watch.event()).await.expect("the stream goes on");
    assert_eq!(event.name, name, "{}", event.data);
    assert_eq!((event.id, event.data["event"].as_str()), (None, Some(name)));
    event
}

pub(super) fn ids(inbox: &Event) -> Vec<&str> {
    let requests = inbox.data["requests"].as_array().unwrap();
    requests
        .iter()
        .map(|request| request["request_id"].as_str().unwrap())
        .collect()
}

fn gone(request: &str, reason: &str, open: usize) -> Value {
    json!({"event": "request.gone", "request_id": request, "reason": reason, "decision": null, "open": open})
}

/// Returns the statement that makes a request unreadable.
fn damage(app: &TestApp, held: &Held) -> String {
    let id = app.database.id(&held.request);
    format!("update agent_task_item set body = '{{' where request_id = {id}")
}

#[apply(on_both)]
async fn stream_begins_with_what_is_open_and_tells_what_changes(on: On) {
    let app = finance(on).await;
    let first = app.held().await;
    let mut watch = stream(&app.approver(), "").await;
    assert_eq!(
        (watch.status, watch.header("content-type")),
        (200, "text/event-stream")
    );
    assert_eq!(watch.header("cache-control"), "no-store, no-transform");
    assert_eq!(watch.said().await, Some(StreamBlock::Retry(1000)));
    let inbox = next(&mut watch, "inbox").await;
    assert_eq!(ids(&inbox), [first.request.as_str()]);
    assert_eq!(
        (&inbox.data["open"], &inbox.data["more"]),
        (&json!(1), &json!(false))
    );
    assert_eq!(
        inbox.data["requests"][0]["summaries"],
        json!(["Refund 120 for order 17"])
    );
    let second = app.held().await;
    let created = next(&mut watch, "request.created").await;
    assert_eq!(
        created.data["request"]["request_id"],
        second.request.as_str()
    );
    assert_eq!(created.data["open"], 2);
    app.actor(EVE).approve(&first.request).await;
    let decided = next(&mut watch, "request.gone").await;
    assert_eq!(decided.data["request_id"], first.request.as_str());
    assert_eq!(
        (&decided.data["reason"], &decided.data["open"]),
        (&json!("decided"), &json!(1))
    );
    let decision = &decided.data["decision"];
    assert_eq!(
        (&decision["action"], &decision["by"], &decision["door"]),
        (&json!("approve"), &json!("eve"), &json!("key"))
    );
    app.owner().cancel(&second.task).await;
    assert_eq!(
        next(&mut watch, "request.gone").await.data,
        gone(&second.request, "withdrawn", 0)
    );
    app.stop().await;
}

#[apply(on_both)]
async fn stream_that_is_asked_for_after_a_number_begins_with_what_is_open(on: On) {
    let app = finance(on).await;
    let held = app.held().await;
    for number in ["0", "17", "9223372036854775807", "x"] {
        let mut watch = stream(&app.approver().header("last-event-id", number), "").await;
        assert_eq!(watch.status, 200, "{number}");
        assert_eq!(
            ids(&next(&mut watch, "inbox").await),
            [held.request.as_str()],
            "{number}"
        );
    }
    app.stop().await;
}

#[apply(on_both)]
async fn damaged_request_silences_no_stream(on: On) {
    let app = finance(on).await;
    let (first, damaged) = (app.held().await, app.held().await);
    let mut watch = stream(&app.approver(), "").await;
    assert_eq!(
        ids(&next(&mut watch, "inbox").await),
        [first.request.as_str(), &damaged.request]
    );
    app.database.execute(&damage(&app, &damaged)).await;
    app.approver().approve(&damaged.request).await;
    // The service ends the damaged task, which closes the request.
    let inbox = next(&mut watch, "inbox").await;
    assert_eq!(
        (ids(&inbox), &inbox.data["open"]),
        (vec![first.request.as_str()], &json!(1))
    );
    let later = app.held().await;
    let created = next(&mut watch, "request.created").await;
    assert_eq!(
        (
            created.data["request"]["request_id"].as_str(),
            &created.data["open"]
        ),
        (Some(later.request.as_str()), &json!(2))
    );
    let mut again = stream(&app.approver(), "").await;
    assert_eq!(
        ids(&next(&mut again, "inbox").await),
        [first.request.as_str(), &later.request]
    );
    app.stop().await;
}

#[apply(on_both)]
async fn one_of_two_answers_changes_the_request_for_others_and_ends_it_for_the_answerer(on: On) {
    let app = TestApp::with(on, &yaml("{ groups: [finance], required: 2 }")).await;
    let Held { request, .. } = app.held().await;
    let (mut bobs, mut eves) = (
        stream(&app.approver(), "").await,
        stream(&app.actor(EVE), "").await,
    );
    next(&mut bobs, "inbox").await;
    next(&mut eves, "inbox").await;
    app.approver().approve(&request).await;
    assert_eq!(
        next(&mut bobs, "request.gone").await.data,
        gone(&request, "answered", 0)
    );
    let changed = next(&mut eves, "request.changed").await;
    assert_eq!(
        (&changed.data["request"]["approvals"], &changed.data["open"]),
        (&json!(1), &json!(1))
    );
    let mut again = stream(&app.approver(), "").await;
    assert_eq!(
        next(&mut again, "inbox").await.data["open"],
        0,
        "what I have answered does not wait for me"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn only_people_who_may_decide_a_request_hear_of_it(on: On) {
    let app = finance(on).await;
    let mut hears = Vec::new();
    for (actor, expected) in [
        (app.owner(), false),
        (app.approver(), true),
        (app.stranger(), false),
        (app.actor("ops-key-0123456789ab"), false),
        (app.actor(DECIDER), true),
        (app.actor(OTHER), false),
    ] {
        let mut watch = stream(&actor, "").await;
        assert_eq!(watch.status, 200);
        assert_eq!(next(&mut watch, "inbox").await.data["open"], 0);
        hears.push((watch, expected));
    }
    let held = app.held().await;
    for (watch, expected) in &mut hears {
        if *expected {
            let created = next(watch, "request.created").await;
            assert_eq!(created.data["request"]["request_id"], held.request.as_str());
        }
    }
    // Lists and new streams count the request only for the caller who may decide the request.
    for (actor, expected) in [
        (app.owner(), 0),
        (app.approver(), 1),
        (app.stranger(), 0),
        (app.actor(OTHER), 0),
    ] {
        let list = actor.get("/v1/requests").await;
        assert_eq!(list.body["open"], expected, "{}", list.text);
        assert_eq!(list.count("requests"), expected);
        let mut watch = stream(&actor, "").await;
        assert_eq!(next(&mut watch, "inbox").await.data["open"], expected);
    }
    app.stop().await;
    for (mut watch, expected) in hears {
        let rest = watch.rest().await;
        assert!(rest.is_empty(), "expected {expected}: {rest:?}");
    }
}

#[apply(on_both)]
async fn filters_of_the_stream_are_those_of_the_list(on: On) {
    let app = finance(on).await;
    let mut other = stream(&app.approver(), "?session_id=desk-9&agent=billing").await;
    let mut fits = stream(
        &app.approver(),
        "?kind=approval&session_id=desk-7&session_id=x",
    )
    .await;
    next(&mut other, "inbox").await;
    next(&mut fits, "inbox").await;
    app.model
        .then(crate::support::fake_chat_completions::calls(&[(
            "refund",
            r#"{"order": 17, "amount": 120}"#,
        )]));
    app.owner()
        .post(
            "/v1/tasks",
            &json!({"input": "please", "session_id": "desk-7"}),
        )
        .await;
    next(&mut fits, "request.created").await;
    let list = app.approver().get("/v1/requests?session_id=desk-9").await;
    assert_eq!(
        (&list.body["open"], &list.body["open_more"]),
        (&json!(0), &json!(false))
    );
    assert_eq!(
        app.approver()
            .get("/v1/requests?kind=approval&session_id=desk-7")
            .await
            .body["open"],
        1
    );
    for query in ["?kind=nope", "?status=pending", "?cursor=x"] {
        assert_eq!(
            app.approver()
                .get(&format!("/v1/events{query}"))
                .await
                .status,
            422,
            "{query}"
        );
    }
    app.stop().await;
    assert!(other.rest().await.is_empty());
}

#[apply(on_both)]
async fn open_counts_pending_requests_whatever_status_is_listed(on: On) {
    let app = finance(on).await;
    // The approver is in the group, but owns this task, so they may not decide its request.
    app.held_by(&app.approver()).await;
    let (first, second) = (app.held().await, app.held().await);
    app.approver().approve(&first.request).await;
    for (query, listed, open) in [
        ("", 1, 1),
        ("?limit=1", 1, 1),
        ("?status=resumed", 1, 1),
        ("?status=withdrawn", 0, 1),
        (&format!("?task_id={}", first.task), 1, 0),
        (&format!("?task_id={}", second.task), 1, 1),
    ] {
        let list = app.approver().get(&format!("/v1/requests{query}")).await;
        assert_eq!(
            (list.count("requests"), &list.body["open"]),
            (listed, &json!(open)),
            "{query}"
        );
    }
    app.stop().await;
}

/// The test stops the service's clock, sets it to a second after the deadline, and expects the
/// event. On `SQLite`, the service also compares the deadline with this clock. On Postgres, the
/// service compares the deadline with the database's clock, so the test sets that clock, too.
#[apply(on_both)]
async fn deadline_is_told_within_a_second_although_nothing_has_closed_the_request(on: On) {
    let clock = TestClock::new();
    let yaml = yaml("{ groups: [finance] }, expires_in: 10m");
    let unswept = EndlessSleep::of(clock.clone(), |time| time == BETWEEN_ROUNDS);
    let app = TestApp::timed(on, &yaml, unswept).await;
    let Held { request, body, .. } = app.held().await;
    let mut watch = stream(&app.approver(), "").await;
    assert_eq!(next(&mut watch, "inbox").await.data["open"], 1);
    clock.stop();
    let deadline = body["pending"][0]["expires_at"].as_str().unwrap();
    let deadline = Time::parse(deadline).unwrap();
    let moment = Duration::from_millis(1);
    clock.advance(deadline.since(clock.now()).saturating_sub(moment));
    assert_eq!(watch.said().await, Some(StreamBlock::Comment));
    app.store().set_clock_forward(Duration::from_mins(10));
    clock.advance(moment + Duration::from_secs(1));
    assert_eq!(clock.now().since(deadline), Duration::from_secs(1));
    let told = next(&mut watch, "request.gone").await;
    assert_eq!(told.data, gone(&request, "expired", 0));
    assert_eq!(
        app.approver().request(&request).await.str("/status"),
        "pending"
    );
    clock.go_on();
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_of_another_replica_hears_the_same_also_when_every_hint_is_lost() {
    let app = finance(On::Postgres).await;
    let other = app.replica().await;
    let mut there = stream(&other.approver(), "").await;
    next(&mut there, "inbox").await;
    let first = app.held().await;
    let created = next(&mut there, "request.created").await;
    assert_eq!(
        created.data["request"]["request_id"],
        first.request.as_str()
    );
    other.store().mute();
    app.store().mute();
    let second = app.held().await;
    app.actor(EVE).approve(&first.request).await;
    let mut heard = vec![
        watch_change(&mut there).await,
        watch_change(&mut there).await,
    ];
    heard.sort();
    let mut expected = vec![
        ("request.created".to_owned(), second.request.clone()),
        ("request.gone".to_owned(), first.request.clone()),
    ];
    expected.sort();
    assert_eq!(heard, expected);
    other.stop().await;
    app.stop().await;
}

async fn watch_change(watch: &mut Watch) -> (String, String) {
    let event = soon(watch.event()).await.unwrap();
    let id = event.data["request_id"].as_str();
    let id = id.or_else(|| event.data["request"]["request_id"].as_str());
    (event.name.clone(), id.unwrap().to_owned())
}

/// Returns the configuration with a further user of the tenant `other`, and with an entry of each
/// tenant for webhooks about its requests.
fn two_tenants(hook: &FakeReceiver) -> String {
    let entry = |tenant| {
        let events = format!("tenants: [{tenant}], events: [request.created]");
        let entry = BACKEND.replace("backend", tenant);
        let entry = entry.replace("tenants: [acme]", &events);
        entry.replace("{hook}", &hook.url).replace("{new}", NEW)
    };
    let mick = "    - { user: mick, tenant: other, key: \"mick-key-0123456789ab\" }\n";
    let accounts = yaml("{ groups: [finance] }") + mick;
    let entries = ["acme", "other"].map(entry).join("\n");
    format!("{accounts}notify:\n  to:\n{entries}\n")
}

#[apply(on_both)]
async fn two_tenants_never_hear_each_other_by_list_count_and_webhook(on: On) {
    let hook = FakeReceiver::start().await;
    let app = TestApp::with(on, &two_tenants(&hook)).await;
    let ours = app.held().await;
    let theirs = app.held_by(&app.actor("mick-key-0123456789ab")).await;
    for (actor, held) in [(app.approver(), &ours), (app.actor(OTHER), &theirs)] {
        let list = actor.get("/v1/requests").await;
        let listed = list.texts("requests", "request_id");
        assert_eq!(listed, [held.request.as_str()]);
        assert_eq!(list.body["open"], 1);
    }
    hook.reached(2).await;
    app.stop().await;
    for (path, tenant, held) in [("/acme", "acme", &ours), ("/other", "other", &theirs)] {
        let all = hook.all();
        let told = all.iter().filter(|message| message.path == path);
        let told: Vec<_> = told.map(|message| &message.body["data"]).collect();
        let [data] = told[..] else {
            panic!("{tenant}: {told:?}")
        };
        let named = (&data["tenant"], &data["request"]["request_id"]);
        assert_eq!(named, (&json!(tenant), &json!(held.request)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_of_two_tenants_never_hear_each_other() {
    for on in [On::Sqlite, On::Postgres] {
        let more = r#"
    - { user: mick, tenant: other, key: "mick-key-0123456789ab" }
"#;
        let app = TestApp::with(
            on,
            &(yaml("{ groups: [finance] }").trim_end().to_owned() + more),
        )
        .await;
        let (mut acme, mut other) = (
            stream(&app.approver(), "").await,
            stream(&app.actor(OTHER), "").await,
        );
        next(&mut acme, "inbox").await;
        next(&mut other, "inbox").await;
        let ours = app.held().await;
        let theirs = app.held_by(&app.actor("mick-key-0123456789ab")).await;
        for (watch, held) in [(&mut acme, &ours), (&mut other, &theirs)] {
            let created = next(watch, "request.created").await;
            assert_eq!(created.data["request"]["request_id"], held.request.as_str());
        }
        app.stop().await;
        assert!(acme.rest().await.is_empty() && other.rest().await.is_empty());
    }
}
