//! Tests of the pages of the inbox and of tasks, as a browser without scripts gets them.

use macro_rules_attribute::apply;
use reqwest::Method;
use serde_json::json;

use super::approval_cycle::on_both;
use super::pages::form;
use super::request_kinds::{ask, asking};
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{
    ACCOUNTS, Actor, BOB, Held, OTHER, On, REFUNDS, Reply, TestApp, refunds,
};

const CRON: &str = "cron-key-0123456789ab";
const EVE: &str = "eve-key-0123456789ab";

async fn app_with(on: On, approvers: &str) -> TestApp {
    let more = r#"
    - { user: cron, tenant: acme, key: "cron-key-0123456789ab", may: [create] }
    - { user: eve, tenant: acme, groups: [finance], key: "eve-key-0123456789ab" }
"#;
    let yaml = REFUNDS.replace("{approvers}", approvers) + ACCOUNTS.trim_end() + more;
    TestApp::with(on, &yaml).await
}

async fn finance(on: On) -> TestApp {
    app_with(on, "{ groups: [finance] }").await
}

async fn page(actor: Actor<'_>, path: &str) -> Reply {
    actor.header("accept", "text/html").get(path).await
}

/// Returns the request ids in the rows of a list, in their order.
fn rows(page: &Reply) -> Vec<&str> {
    let parts = page.text.split("<li data-request=\"").skip(1);
    parts.map(|part| &part[..36]).collect()
}

/// An entry of the timeline on a task's page.
pub(super) struct TimelineEntry {
    pub number: i64,
    /// Whether the entry is indented, as the entry of a task below the tree's root is.
    pub is_below: bool,
    /// The markup of the first line, without the number and the time.
    pub line: String,
}

/// Returns the entries of the timeline on a task's page, in the order of the page.
pub(super) fn timeline(page: &str) -> Vec<TimelineEntry> {
    let (_, list) = page.split_once(" id=\"live-log\"").unwrap();
    let (list, _) = list.split_once("</ol>").unwrap();
    let entries = list.split("<li class=\"").skip(1).map(|entry| {
        let (class, rest) = entry.split_once("\"><p><span class=\"soft\">#").unwrap();
        let (number, rest) = rest.split_once(' ').unwrap();
        let (_, line) = rest.split_once("</span> ").unwrap();
        TimelineEntry {
            number: number.parse().unwrap(),
            is_below: class == "below",
            line: line.split("</p>").next().unwrap().to_owned(),
        }
    });
    entries.collect()
}

async fn refund(app: &TestApp, amount: u32) -> Held {
    app.model.then(calls(&[(
        "refund",
        &format!(r#"{{"order": 17, "amount": {amount}}}"#),
    )]));
    let reply = app
        .owner()
        .post("/v1/tasks", &json!({"input": "please"}))
        .await;
    Held {
        task: reply.str("/task_id"),
        request: reply.str("/pending/0/request_id"),
        call: reply.str("/pending/0/tool_calls/0/tool_call_id"),
        body: reply.body,
    }
}

#[apply(on_both)]
async fn browser_at_the_root_is_led_to_the_inbox_and_a_program_finds_nothing(on: On) {
    let app = finance(on).await;
    let led = page(app.anonymous(), "/").await;
    assert_eq!((led.status, led.header("location")), (303, "/inbox"));
    let program = app.approver().get("/").await;
    program.assert_code(404, "not_found");
    let out = page(app.anonymous(), "/inbox").await;
    assert_eq!(
        (out.status, out.header("location")),
        (303, "/sign-in?next=%2Finbox")
    );
    assert_eq!(app.anonymous().get("/inbox").await.status, 401);
    let form = ("application/x-www-form-urlencoded", format!("key={BOB}"));
    let entered = app
        .anonymous()
        .send(Method::POST, "/sign-in", Some(form))
        .await;
    assert_eq!(
        (entered.status, entered.header("location")),
        (303, "/inbox")
    );
    app.stop().await;
}

#[apply(on_both)]
async fn inbox_lists_what_waits_for_its_reader_oldest_first_and_without_a_button(on: On) {
    let app = finance(on).await;
    let empty = page(app.approver(), "/inbox").await;
    assert!(
        empty.text.contains("Nothing waits for you.") && rows(&empty).is_empty(),
        "{}",
        empty.text
    );
    let (first, second) = (refund(&app, 120).await, refund(&app, 80).await);
    let inbox = page(app.approver(), "/inbox").await;
    assert_eq!(
        (inbox.status, rows(&inbox)),
        (200, vec![first.request.as_str(), second.request.as_str()])
    );
    assert!(
        inbox.header("content-type").starts_with("text/html")
            && inbox.header("cache-control") == "no-store"
    );
    assert!(
        inbox
            .header("content-security-policy")
            .contains("script-src 'self'")
    );
    for shown in [
        "<title>Inbox – Holdpoint</title>",
        "Refund 120 for order 17",
        "Refund 80 for order 17",
        "for alice",
        "rule large",
        "approval · once",
        "<span id=\"open-heading\">2</span>",
        "href=\"/inbox\" aria-current=\"page\"",
        "href=\"/inbox/decided\"",
        "href=\"/tasks\"",
    ] {
        assert!(inbox.text.contains(shown), "{shown}: {}", inbox.text);
    }
    let list = inbox.text.split("<ul").nth(1).unwrap();
    assert!(
        !list.split("</ul>").next().unwrap().contains("<button"),
        "no decision in a list"
    );
    assert_eq!(
        inbox.text.matches("<form").count(),
        1,
        "the filter; a key has no session to end"
    );
    for actor in [app.owner(), app.stranger(), app.actor(OTHER)] {
        let other = page(actor, "/inbox").await;
        assert!(
            rows(&other).is_empty() && !other.text.contains("Refund 120"),
            "{}",
            other.text
        );
    }
    let no_right = page(app.actor(CRON), "/inbox").await;
    assert!(
        no_right.status == 403 && no_right.text.contains("This key may not read."),
        "{}",
        no_right.text
    );
    let chinese = app
        .approver()
        .header("accept-language", "zh")
        .header("accept", "text/html")
        .get("/inbox")
        .await;
    assert!(
        chinese.text.contains("待处理") && chinese.text.contains("lang=\"zh-Hans\""),
        "{}",
        chinese.text
    );
    app.stop().await;
}

#[apply(on_both)]
async fn inbox_is_filtered_and_paged(on: On) {
    let app = finance(on).await;
    let mut all = Vec::new();
    for amount in 0..52 {
        all.push(refund(&app, 100 + amount).await.request);
    }
    let first = page(app.approver(), "/inbox?kind=&agent=&session_id=").await;
    assert_eq!(rows(&first), all[..50], "{}", first.text);
    assert!(first.text.contains("The next of 2 more"), "{}", first.text);
    assert!(first.text.len() <= 60_000, "{} bytes", first.text.len());
    let next = first
        .text
        .split("id=\"inbox-next\" href=\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    let second = page(app.approver(), next).await;
    assert_eq!(rows(&second), all[50..]);
    assert!(
        !second.text.contains("inbox-next")
            && second.text.contains("<span id=\"open-heading\">52</span>")
    );
    let none = page(app.approver(), "/inbox?kind=guidance").await;
    assert!(
        none.text.contains("Nothing that fits.") && none.text.contains("Show all"),
        "{}",
        none.text
    );
    assert_eq!(
        rows(&page(app.approver(), "/inbox?kind=approval&agent=billing").await).len(),
        50
    );
    let wrong = page(app.approver(), "/inbox?kind=nope").await;
    assert!(wrong.status == 422 && wrong.header("content-type").starts_with("text/html"));
    app.stop().await;
}

#[apply(on_both)]
async fn answered_request_leads_to_the_next_question(on: On) {
    let app = finance(on).await;
    let (first, second, third) = (
        refund(&app, 120).await,
        refund(&app, 80).await,
        refund(&app, 60).await,
    );
    let before = page(app.approver(), &format!("/resume/{}", first.request)).await;
    assert!(!before.text.contains("class=\"next\"") && before.text.contains("href=\"/inbox\""));
    app.approver()
        .hit(&format!("/resume/{}/approve", first.request))
        .await;
    let after = page(app.approver(), &format!("/resume/{}", first.request)).await;
    let line = format!(
        "<a autofocus href=\"/resume/{}\">Next: Refund 80 for order 17</a> · 1 more",
        second.request
    );
    assert!(
        after.text.contains("Approved. ") && after.text.contains(&line),
        "{}",
        after.text
    );
    let others = page(app.actor(EVE), &format!("/resume/{}", first.request)).await;
    let line = format!(
        "<p class=\"next\"><a href=\"/resume/{}\">Next: Refund 80 for order 17</a> · 1 more",
        second.request
    );
    assert!(
        others.text.contains(&line),
        "bob has decided it: {}",
        others.text
    );
    let open = page(app.actor(EVE), &format!("/resume/{}", second.request)).await;
    assert!(!open.text.contains("class=\"next\""), "it waits for eve");
    let owners = page(app.owner(), &format!("/resume/{}", first.request)).await;
    assert!(
        !owners.text.contains("class=\"next\""),
        "alice may not decide it"
    );
    for held in [&second, &third] {
        app.approver()
            .post(&format!("/resume/{}/reject", held.request), &json!({}))
            .await;
    }
    let last = page(app.approver(), &format!("/resume/{}", third.request)).await;
    assert!(
        last.text.contains("Rejected. Nothing else waits for you."),
        "{}",
        last.text
    );
    app.stop().await;
}

#[apply(on_both)]
async fn partly_answered_request_is_not_its_own_next_question(on: On) {
    let app = finance(on).await;
    let both = [
        ("refund", r#"{"order": 1, "amount": 50}"#),
        ("refund", r#"{"order": 2, "amount": 60}"#),
    ];
    app.model.then(calls(&both));
    let asked = app
        .owner()
        .post("/v1/tasks", &json!({"input": "please"}))
        .await;
    let path = format!("/resume/{}", asked.str("/pending/0/request_id"));
    let call = asked.str("/pending/0/tool_calls/0/tool_call_id");
    let answered = app
        .approver()
        .post(&path, &json!({"decisions": {call: {"action": "approve"}}}))
        .await;
    assert_eq!(answered.status, 200, "{}", answered.text);
    let alone = page(app.approver(), &path).await;
    assert!(
        alone
            .text
            .contains("Approved. The rest of this request still waits for you."),
        "{}",
        alone.text
    );
    let other = refund(&app, 80).await;
    let after = page(app.approver(), &path).await;
    let line = format!(
        "<a autofocus href=\"/resume/{}\">Next: Refund 80 for order 17</a> · <a",
        other.request
    );
    assert!(after.text.contains(&line), "no further one: {}", after.text);
    app.stop().await;
}

#[apply(on_both)]
async fn decided_requests_are_listed_with_who_decided_and_who_is_missing(on: On) {
    let app = app_with(on, "{ groups: [finance], required: 2 }").await;
    let (first, second) = (refund(&app, 120).await, refund(&app, 80).await);
    let nothing = page(app.approver(), "/inbox/decided").await;
    assert!(
        nothing.text.contains("Nothing was decided yet."),
        "{}",
        nothing.text
    );
    app.approver()
        .post(
            &format!("/resume/{}/approve", first.request),
            &json!({"reason": "fine <b>"}),
        )
        .await;
    let inbox = page(app.approver(), "/inbox").await;
    assert_eq!(rows(&inbox), [second.request.as_str()], "answered by me");
    let partly = page(app.approver(), "/inbox/decided").await;
    for shown in [
        "Refund 120 for order 17",
        "by you,",
        "waits for one more",
        "fine &lt;b&gt;",
        "· open",
    ] {
        assert!(partly.text.contains(shown), "{shown}: {}", partly.text);
    }
    let eves = page(app.actor(EVE), "/inbox").await;
    assert!(eves.text.contains("1 of 2 have approved"), "{}", eves.text);
    app.actor(EVE)
        .post(&format!("/resume/{}/reject", second.request), &json!({}))
        .await;
    let mine = page(app.approver(), "/inbox/decided").await;
    assert!(!mine.text.contains("Refund 80"), "{}", mine.text);
    let all = page(app.approver(), "/inbox/decided?all=1").await;
    let (newer, older) = (
        all.text.find("Refund 80").unwrap(),
        all.text.find("Refund 120").unwrap(),
    );
    assert!(
        newer < older && all.text.contains("by eve,"),
        "newest first: {}",
        all.text
    );
    assert!(
        !page(app.stranger(), "/inbox/decided?all=1")
            .await
            .text
            .contains("Refund"),
        "nobody's"
    );
    assert_eq!(
        page(app.approver(), "/inbox/decided?all=2").await.status,
        422
    );
    app.stop().await;
}

#[apply(on_both)]
async fn decided_requests_are_listed_by_their_answers_newest_first(on: On) {
    let app = finance(on).await;
    let (first, second) = (refund(&app, 120).await, refund(&app, 80).await);
    for held in [&second, &first] {
        app.model.then(text_answer("done"));
        let reply = app
            .approver()
            .post(&format!("/resume/{}/approve", held.request), &json!({}))
            .await;
        assert_eq!(reply.status, 200, "{}", reply.text);
    }
    for (actor, path) in [
        (app.approver(), "/inbox/decided"),
        (app.actor(EVE), "/inbox/decided?all=1"),
    ] {
        let shown = page(actor, path).await.text;
        let (newer, older) = (
            shown.find("Refund 120").unwrap(),
            shown.find("Refund 80").unwrap(),
        );
        assert!(newer < older, "{path}: {shown}");
    }
    app.stop().await;
}

#[apply(on_both)]
async fn pages_show_the_last_of_several_answers_and_call_different_ones_different(on: On) {
    let app = finance(on).await;
    app.model.then(calls(&[
        ("refund", r#"{"order":1,"amount":50}"#),
        ("refund", r#"{"order":2,"amount":60}"#),
    ]));
    let task = app.owner().post("/v1/tasks", &json!({"input": "go"})).await;
    let path = format!("/resume/{}", task.str("/pending/0/request_id"));
    app.model.then(text_answer("done"));
    let (first, last) = (
        "Approved. The rest of this request still waits",
        "Rejected. Nothing else waits",
    );
    for (index, action, line) in [(0, "approve", first), (1, "reject", last)] {
        let call = task.str(&format!("/pending/0/tool_calls/{index}/tool_call_id"));
        let answer = json!({"decisions": {call: {"action": action}}});
        let reply = app.approver().post(&path, &answer).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        let shown = page(app.approver(), &path).await;
        assert!(
            shown
                .text
                .contains(&format!("<p class=\"next\">{line} for you.")),
            "{}",
            shown.text
        );
    }
    let decided = page(app.approver(), "/inbox/decided").await;
    assert!(
        decided.text.contains("Calls were decided differently"),
        "{}",
        decided.text
    );
    app.stop().await;
}

#[apply(on_both)]
async fn edit_that_needs_further_approvals_is_nowhere_called_an_approval(on: On) {
    let app = app_with(on, "{ groups: [finance], required: 2 }").await;
    let held = refund(&app, 120).await;
    let path = format!("/resume/{}", held.request);
    let edit = json!({"decisions": {(&held.call): {"action": "edit", "arguments": {"order": 17, "amount": 40}}}});
    let reply = app.approver().post(&path, &edit).await;
    assert_eq!(
        (reply.status, reply.str("/status").as_str()),
        (200, "Paused"),
        "{}",
        reply.text
    );
    for shown in [&path, "/inbox/decided", &format!("/tasks/{}", held.task)] {
        let shown = page(app.approver(), shown).await.text;
        assert!(
            shown.contains("Changed") && !shown.contains("hanged and approved"),
            "{shown}"
        );
    }
    app.stop().await;
}

#[apply(on_both)]
async fn timeline_of_a_task_is_its_journal_in_order(on: On) {
    let app = finance(on).await;
    let held = refund(&app, 120).await;
    app.model.then(text_answer("<i>done</i>"));
    app.approver()
        .post(
            &format!("/resume/{}/approve", held.request),
            &json!({"reason": "ok"}),
        )
        .await;
    let path = format!("/tasks/{}", held.task);
    let shown = page(app.owner(), &path).await;
    assert_eq!(shown.status, 200, "{}", shown.text);
    let numbers: Vec<i64> = shown
        .text
        .split("<li")
        .skip(1)
        .filter_map(|part| part.split('#').nth(1)?.split(' ').next()?.parse().ok())
        .collect();
    let items = app
        .owner()
        .get(&format!("/v1/tasks/{}/items", held.task))
        .await;
    let count = i64::try_from(items.body["items"].as_array().unwrap().len()).unwrap();
    assert_eq!(numbers, (1..=count).collect::<Vec<_>>());
    for part in [
        "Message of the user alice",
        "please",
        "The agent answers.",
        "Judged: held for a person",
        "rule large",
        "Refunds above 20 need a look.",
        "A person is asked: approval",
        "Approved by bob.",
        "refund was started.",
        "refund: done",
        "&lt;i&gt;done&lt;/i&gt;",
        "Written by the agent, not verified",
        "Completed",
    ] {
        assert!(shown.text.contains(part), "{part}: {}", shown.text);
    }
    assert_eq!(
        shown.text.matches("&lt;i&gt;done&lt;/i&gt;").count(),
        1,
        "the output is the last answer"
    );
    assert!(
        shown.text.contains("/times.js") && !shown.text.contains("/follow.js"),
        "it has ended"
    );
    let early = page(app.owner(), &format!("{path}?before=3")).await;
    assert!(
        early.text.contains("#2 ") && !early.text.contains("#3 "),
        "exclusive: {}",
        early.text
    );
    let late = page(app.owner(), &format!("{path}?after={}", count - 2))
        .await
        .text;
    let numbers: Vec<i64> = timeline(&late).iter().map(|entry| entry.number).collect();
    assert_eq!(numbers, [count - 1, count], "{late}");
    assert!(
        late.contains(&format!("data-after=\"{count}\"")) && !late.contains("id=\"earlier\""),
        "{late}"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn timeline_of_a_long_journal_is_paged_back_without_a_gap_or_a_repetition(on: On) {
    let yaml = REFUNDS
        .replace("{approvers}", "{ groups: [finance] }")
        .replace("forbidden] }", "forbidden], limits: { max_calls: 200 } }");
    let app = TestApp::with(on, &(yaml + ACCOUNTS)).await;
    app.model
        .then(calls(&[("forbidden", "{}"); 200]))
        .then(text_answer("done"));
    let task = app
        .owner()
        .header("prefer", "wait=60")
        .post("/v1/tasks", &json!({"input": "go"}))
        .await;
    assert_eq!(task.str("/status"), "Completed", "{}", task.text);
    let path = format!("/tasks/{}", task.str("/task_id"));
    let (mut numbers, mut sizes, mut query) = (Vec::new(), Vec::new(), String::new());
    for _ in 0..5 {
        let shown = page(app.owner(), &format!("{path}{query}")).await;
        let part: Vec<i64> = timeline(&shown.text)
            .iter()
            .map(|entry| entry.number)
            .collect();
        sizes.push(part.len());
        numbers = [part, numbers].concat();
        let Some((_, rest)) = shown.text.split_once("?before=") else {
            break;
        };
        query = format!("?before={}", rest.split('"').next().unwrap());
    }
    let last = app
        .database
        .texts("select cast(max(event_number) as text) from agent_task_item")
        .await;
    assert_eq!(
        numbers,
        (1..=last[0].parse().unwrap()).collect::<Vec<i64>>()
    );
    assert_eq!(sizes, [200, 200, 5]);
    for (after, has_gap) in [(204, true), (205, false), (500, false)] {
        let shown = page(app.owner(), &format!("{path}?after={after}"))
            .await
            .text;
        assert_eq!(
            shown.contains("id=\"earlier\""),
            has_gap,
            "{after}: {shown}"
        );
    }
    app.stop().await;
}

#[apply(on_both)]
async fn task_page_says_what_is_open_and_goes_on_with_the_script(on: On) {
    let app = finance(on).await;
    let held = refund(&app, 120).await;
    let path = format!("/tasks/{}", held.task);
    let shown = page(app.owner(), &path).await;
    for part in [
        "Task · billing · Paused",
        "Refund 120 for order 17",
        "data-after=\"6\"",
        "/times.js",
        "/follow.js",
    ] {
        assert!(shown.text.contains(part), "{part}: {}", shown.text);
    }
    assert!(
        shown
            .text
            .contains(&format!("href=\"/resume/{}\"", held.request))
    );
    let asked = format!("Asked <time datetime={}>", held.body["created_at"]);
    assert!(
        shown.text.contains(&asked) && !shown.text.contains("tree of"),
        "{asked}: {}",
        shown.text
    );
    for (actor, status) in [
        (app.approver(), 200),
        (app.stranger(), 403),
        (app.actor(OTHER), 404),
    ] {
        let seen = page(actor, &path).await;
        assert!(
            seen.status == status && seen.header("content-type").starts_with("text/html"),
            "{}",
            seen.text
        );
    }
    let unknown = page(app.owner(), "/tasks/019a4b2c-7000-7000-8000-000000000001").await;
    assert!(unknown.status == 404 && unknown.header("content-type").starts_with("text/html"));
    app.database
        .execute("update agent_task_item set body = 'x' where event_number in (3, 5)")
        .await;
    let damaged = page(app.owner(), &path).await;
    assert_eq!(
        damaged.text.matches("This entry cannot be read.").count(),
        2,
        "{}",
        damaged.text
    );
    assert!(
        damaged.text.contains("#4 ") && damaged.text.contains("#6 "),
        "it goes on: {}",
        damaged.text
    );
    app.stop().await;
}

#[apply(on_both)]
async fn task_page_names_the_agent_of_a_question_and_its_kind_unless_it_is_an_approval(on: On) {
    let app = asking(on, "").await;
    for (kind, language, about) in [
        ("approval", "en", "(<bdi>billing</bdi>)"),
        ("guidance", "en", "(<bdi>billing</bdi>, guidance)"),
        ("guidance", "zh", "(<bdi>billing</bdi>、指导)"),
    ] {
        let question = ask(&app, kind).await;
        let reader = app.owner().header("accept-language", language);
        let shown = page(reader, &format!("/tasks/{}", question.task)).await;
        let line = format!("</span> {about} <a href=\"/resume/{}\">", question.id);
        assert!(shown.text.contains(&line), "{line}: {}", shown.text);
    }
    app.stop().await;
}

#[apply(on_both)]
async fn task_page_cancels_the_task_for_those_who_may_in_two_steps(on: On) {
    let app = finance(on).await;
    let held = app.held().await;
    let path = format!("/tasks/{}", held.task);
    let action = format!("action=\"{path}/cancel\"");
    let shown = page(app.owner(), &path).await.text;
    let (before, _) = shown.split_once(&action).expect("the form");
    assert!(
        before.rfind("<details") > before.rfind("</details>"),
        "the button is shown by a first step: {shown}"
    );
    assert!(
        !page(app.approver(), &path).await.text.contains(&action),
        "an approver may not cancel"
    );
    let cancel = format!("{path}/cancel");
    assert_eq!(
        app.approver()
            .send(Method::POST, &cancel, Some(form(&[])))
            .await
            .status,
        403
    );
    assert_eq!(app.owner().get(&path).await.status, 200);
    for replayed in ["", "true"] {
        let owner = app.owner().header("idempotency-key", "k");
        let canceled = owner.send(Method::POST, &cancel, Some(form(&[]))).await;
        let said = (
            canceled.header("location"),
            canceled.header("idempotency-replayed"),
        );
        assert_eq!((canceled.status, said), (303, (path.as_str(), replayed)));
    }
    let after = page(app.owner(), &path).await.text;
    assert!(
        after.contains("Canceled") && !after.contains(&action),
        "{after}"
    );
    assert_eq!(
        app.owner()
            .get(&format!("/resume/{}", held.request))
            .await
            .str("/status"),
        "withdrawn"
    );
    let again = app
        .owner()
        .send(Method::POST, &cancel, Some(form(&[])))
        .await;
    assert_eq!(
        again.status, 303,
        "a repetition changes nothing: {}",
        again.text
    );
    assert_eq!(app.tool.ledger().len(), 0);
    app.stop().await;
}

#[apply(on_both)]
async fn tasks_are_listed_for_their_owner_and_the_tenants_for_an_admin(on: On) {
    let app = finance(on).await;
    let held = refund(&app, 120).await;
    app.model.then(text_answer("Hello."));
    app.actor("web-key-0123456789ab")
        .header("holdpoint-user", "<b>zoe")
        .post("/v1/tasks", &json!({"input": "hi"}))
        .await;
    let mine = page(app.owner(), "/tasks").await;
    let link = format!("href=\"/tasks/{}\"", held.task);
    assert!(
        mine.text.contains(&link)
            && mine.text.contains("Paused</td>")
            && !mine.text.contains("zoe"),
        "{}",
        mine.text
    );
    let all = page(app.actor("ops-key-0123456789ab"), "/tasks").await;
    assert!(
        all.text.contains(&link)
            && all.text.contains("&lt;b&gt;zoe")
            && !all.text.contains("<b>zoe"),
        "{}",
        all.text
    );
    let paused = page(app.actor("ops-key-0123456789ab"), "/tasks?status=Completed").await;
    assert!(
        !paused.text.contains(&link) && paused.text.contains("zoe"),
        "{}",
        paused.text
    );
    assert!(
        page(app.stranger(), "/tasks?status=")
            .await
            .text
            .contains("No tasks.")
    );
    assert_eq!(page(app.actor(CRON), "/tasks").await.status, 403);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_that_expires_within_an_hour_stands_first() {
    let yaml = refunds("{ groups: [finance] }").replace(
        "policy:",
        "policy:\n  - { name: soon, tools: [refund], when: \"args.amount == 77.0\", decide: hold, approvers: { groups: [finance] }, expires_in: 30m }",
    );
    let app = TestApp::with(On::Sqlite, &yaml).await;
    let (first, soon) = (refund(&app, 120).await, refund(&app, 77).await);
    let inbox = page(app.approver(), "/inbox").await;
    assert_eq!(
        rows(&inbox),
        [soon.request.as_str(), first.request.as_str()],
        "{}",
        inbox.text
    );
    assert!(
        inbox.text.contains("29 min left")
            && inbox
                .text
                .contains("those that expire within an hour come first"),
        "{}",
        inbox.text
    );
    for _ in 0..51 {
        refund(&app, 77).await;
    }
    let inbox = page(app.approver(), "/inbox").await;
    assert_eq!(rows(&inbox).len(), 50);
    let next = inbox.text.split("id=\"inbox-next\" href=\"").nth(1);
    let next = next.and_then(|rest| rest.split('"').next()).unwrap();
    let rest = page(app.approver(), &next.replace("&amp;", "&")).await;
    assert_eq!(rows(&rest)[0], first.request, "no request is unreachable");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_of_the_decided_requests_keep_the_filters() {
    let app = TestApp::with_finance(On::Sqlite).await;
    let decided = page(app.approver(), "/inbox/decided?agent=billing").await;
    assert!(
        decided
            .text
            .contains("href=\"/inbox/decided?agent=billing&amp;all=1\""),
        "{}",
        decided.text
    );
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_of_fifty_rows_and_its_script_are_small() {
    let app = finance(On::Sqlite).await;
    for amount in 0..102 {
        let held = refund(&app, 100 + amount).await;
        if amount % 2 == 0 {
            let path = format!("/resume/{}/reject", held.request);
            let reply = app.approver().post(&path, &json!({})).await;
            assert_eq!(reply.status, 200, "{}", reply.text);
        }
    }
    for (actor, path, row) in [
        (app.approver(), "/inbox", "<li data-request="),
        (app.approver(), "/inbox/decided", "<p class=\"status\">"),
        (app.owner(), "/tasks", "<td data-label=\"Status\">"),
    ] {
        let shown = page(actor, path).await.text;
        assert_eq!(shown.matches(row).count(), 50, "{path}: {shown}");
        assert!(shown.len() <= 60_000, "{path}: {} bytes", shown.len());
        let scripts: Vec<&str> = shown.split("<script src=\"").skip(1).collect();
        assert_eq!(scripts.len(), 1, "{path}: {scripts:?}");
        let (script, _) = scripts[0].split_once('"').unwrap();
        let script = app.anonymous().get(script).await;
        assert_eq!(script.status, 200, "{path}");
        assert!(
            script.text.len() <= 12_000,
            "{path}: {} bytes",
            script.text.len()
        );
    }
    app.stop().await;
}
