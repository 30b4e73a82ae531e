//! Tests that reminders and escalations are sent at their time if the question still waits.

use std::collections::BTreeSet;
use std::time::Duration;

use macro_rules_attribute::apply;
use serde_json::Value;

use super::{ALICE, BOB, BY_MAIL, HOUR, MINUTE, Post};
use crate::api::approval_cycle::on_both;
use crate::notify::{NEW, NotifyFixture};
use crate::support::test_app::On;

const AFTER: &str =
    "    - { name: still, mail: { to: approvers }, when: { after: 2h }, tenants: [acme] }";
const BEFORE: &str = "    - { name: last-call, mail: { to: approvers }, when: { before_expiry: 1h }, tenants: [acme] }";
/// An entry that mails the members of a group about questions that have waited for two hours.
const LEADS: &str = "    - { name: leads, mail: { to: { groups: [leads] } }, when: { after: 2h }, tenants: [acme] }";
const HOOK: &str = r#"    - { name: leads, webhook: { url: "{hook}/leads", secrets: ["{new}"] }, when: { after: 2h }, tenants: [acme] }"#;

/// Changes the configuration: only the group finance decides, and the group leads has six members.
/// Of these six, bob and gina may decide. The other four may not: alice owns the task, erin is not
/// in the group finance, fred's key may only read, and dora has no key. carol may decide but is not
/// in the group leads.
fn with_leads(yaml: String) -> String {
    let changes = [
        (
            "{ owner: true, groups: [finance] }",
            "{ groups: [finance] }",
        ),
        ("[support], key", "[support, finance, leads], key"),
        ("[finance], key: \"bob", "[finance, leads], key: \"bob"),
        (
            "carol, tenant: acme, key",
            "carol, tenant: acme, groups: [finance], key",
        ),
        ("[finance], email: dora", "[finance, leads], email: dora"),
        ("  people:\n", MORE_PEOPLE),
    ];
    changes.into_iter().fold(yaml, |yaml, (before, after)| {
        assert!(yaml.contains(before), "{before}: {yaml}");
        yaml.replace(before, after)
    })
}

const MORE_PEOPLE: &str = r#"    - { user: erin, tenant: acme, groups: [leads], key: "erin-key-0123456789a" }
    - { user: fred, tenant: acme, groups: [finance, leads], key: "fred-key-0123456789a", may: [read] }
    - { user: gina, tenant: acme, groups: [finance, leads], key: "gina-key-0123456789a" }
  people:
    - { user: erin, tenant: acme, email: erin@acme.com }
    - { user: fred, tenant: acme, email: fred@acme.com }
    - { user: gina, tenant: acme, email: gina@acme.com }
"#;

#[apply(on_both)]
async fn escalation_reaches_only_the_members_of_its_group_who_may_decide_then(on: On) {
    let mut post = Post::with(on, LEADS, with_leads).await;
    let held = post.app.held().await;
    let waiting = post.until(|found| !found.is_empty()).await;
    let mut people: Vec<_> = waiting
        .iter()
        .map(|one| one["person"].as_str().unwrap())
        .collect();
    people.sort_unstable();
    assert_eq!(people, ["bob", "gina"]);
    // Gina leaves the group that decides.
    let left = |yaml: &str| {
        yaml.replace(
            "groups: [finance, leads], key: \"gina",
            "groups: [leads], key: \"gina",
        )
    };
    post.app.restart_with(left).await;
    post.advance(119 * MINUTE);
    post.counted(&[("due", 2)]).await;
    assert_eq!(post.server.all().len(), 0);
    post.advance(2 * MINUTE);
    let found = post
        .until(|found| found.iter().all(|one| one["state"] != "due"))
        .await;
    let ended: BTreeSet<_> = found
        .iter()
        .map(|one| {
            (
                one["person"].as_str().unwrap(),
                one["state"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        ended,
        BTreeSet::from([("bob", "sent"), ("gina", "dropped")])
    );
    let mails = post.server.all();
    assert_eq!((mails.len(), mails[0].to.as_str()), (1, BOB));
    assert_eq!(
        mails[0].header("References"),
        format!("<{}@acme.com>", held.request)
    );
}

#[apply(on_both)]
async fn question_that_still_waits_is_told_of_after_its_time_and_not_before(on: On) {
    let post = Post::start(on, AFTER).await;
    let held = post.app.held().await;
    post.counted(&[("due", 2)]).await;
    post.advance(119 * MINUTE);
    post.app.held().await;
    post.counted(&[("due", 4)]).await;
    assert_eq!(post.server.all().len(), 0);
    post.advance(2 * MINUTE);
    post.counted(&[("sent", 2), ("due", 2)]).await;
    let mail = &post.server.to(BOB)[0];
    assert_eq!(mail.subject, "Still waits for you: refund (billing)");
    assert_eq!(
        mail.header("References"),
        format!("<{}@acme.com>", held.request)
    );
}

#[apply(on_both)]
async fn deadline_is_told_of_an_hour_before(on: On) {
    let post = Post::start(on, BEFORE).await;
    post.app.held().await;
    post.counted(&[("due", 2)]).await;
    post.advance((23 * 60 - 1) * MINUTE);
    post.app.held().await;
    post.counted(&[("due", 4)]).await;
    assert_eq!(post.server.all().len(), 0);
    post.advance(2 * MINUTE);
    let found = post.counted(&[("sent", 2)]).await;
    assert!(found.iter().all(|one| one["type"] == "request.expiring"));
    assert_eq!(post.server.to(ALICE).len(), 1);
    assert_eq!(
        post.server.to(BOB)[0].subject,
        "Ends soon: refund (billing)"
    );
}

#[apply(on_both)]
async fn reminder_of_a_deadline_waits_for_half_its_time_at_most(on: On) {
    let before = BEFORE.replace("1h", "2m");
    let post = Post::start(on, &before.replace("approvers", "{ users: [bob] }")).await;
    post.app.held().await;
    post.counted(&[("due", 1)]).await;
    post.advance(MINUTE / 2);
    post.app.held().await;
    post.counted(&[("due", 2)]).await;
    post.advance(Duration::from_secs((24 * 60 - 2) * 60 - 30));
    post.counted(&[("sent", 1), ("due", 1)]).await;
    post.advance(MINUTE + Duration::from_secs(2));
    post.counted(&[("sent", 2)]).await;
    assert_eq!(post.server.to(BOB).len(), 2);
}

#[apply(on_both)]
async fn person_who_has_answered_is_not_reminded(on: On) {
    let two = |yaml: String| {
        yaml.replace(
            "groups: [finance] }, reason",
            "groups: [finance], required: 2 }, reason",
        )
        .replace(
            "{ owner: true, groups: [finance] }",
            "{ owner: true, groups: [finance], required: 2 }",
        )
    };
    let post = Post::with(on, &format!("{BY_MAIL}\n{AFTER}"), two).await;
    let held = post.app.held().await;
    post.counted(&[("sent", 2), ("due", 2)]).await;
    let path = format!("/resume/{}/approve", held.request);
    assert_eq!(post.app.approver().hit(&path).await.status, 200);
    post.advance(2 * HOUR + MINUTE);
    post.counted(&[("sent", 3), ("dropped", 1), ("due", 0)])
        .await;
    assert_eq!(post.server.to(BOB).len(), 1);
    assert_eq!(post.server.to(ALICE).len(), 2);
}

#[apply(on_both)]
async fn closed_question_sends_no_reminder(on: On) {
    let post = Post::start(on, AFTER).await;
    let held = post.app.held().await;
    post.counted(&[("due", 2)]).await;
    post.reject(&held.request, crate::support::test_app::BOB)
        .await;
    post.advance(2 * HOUR + MINUTE);
    post.counted(&[("dropped", 2), ("due", 0)]).await;
    assert_eq!(post.server.all().len(), 0);
}

/// Returns the earliest time at which one of these deliveries is due.
fn earliest(found: &[Value]) -> Option<&str> {
    let times = found.iter().map(|one| one["due_at"].as_str());
    times.min().flatten()
}

#[apply(on_both)]
async fn mailed_reminder_waits_for_the_longer_time_of_a_new_configuration(on: On) {
    let mut post = Post::start(on, AFTER).await;
    post.app.held().await;
    let planned = post.counted(&[("due", 2)]).await;
    post.replace("after: 2h", "after: 4h").await;
    post.advance(2 * HOUR + MINUTE);
    post.until(|found| earliest(found) > earliest(&planned) && found[0]["state"] == "due")
        .await;
    assert_eq!(post.server.all().len(), 0);
    post.advance(2 * HOUR);
    post.counted(&[("sent", 2)]).await;
}

#[apply(on_both)]
async fn reminder_by_webhook_waits_for_the_longer_time_of_a_new_configuration(on: On) {
    let mut fixture = NotifyFixture::start(on, HOOK).await;
    fixture.app.held().await;
    let planned = fixture.counted(&[("due", 1)]).await;
    fixture.replace("after: 2h", "after: 4h").await;
    fixture.advance(2 * HOUR + MINUTE);
    fixture
        .until(|found| earliest(found) > earliest(&planned) && found[0]["state"] == "due")
        .await;
    assert_eq!(fixture.server.count(), 0);
    fixture.advance(2 * HOUR);
    fixture.counted(&[("sent", 1)]).await;
}

#[apply(on_both)]
async fn reminder_by_webhook_about_a_question_that_is_no_longer_selected_is_dropped(on: On) {
    let mut fixture = NotifyFixture::start(on, HOOK).await;
    fixture.app.held().await;
    fixture.counted(&[("due", 1)]).await;
    fixture.replace("tenants: [acme]", "tenants: [other]").await;
    fixture.advance(2 * HOUR + MINUTE);
    let found = fixture.counted(&[("dropped", 1)]).await;
    assert_eq!(
        found[0]["last"]["problem"],
        "the entry's settings no longer select this message"
    );
    assert_eq!(fixture.server.count(), 0);
}

#[apply(on_both)]
async fn webhook_of_a_timer_has_an_id_of_its_own_and_the_request_as_it_is_then(on: On) {
    let fixture = NotifyFixture::start(on, HOOK).await;
    let held = fixture.app.held().await;
    fixture.counted(&[("due", 1)]).await;
    fixture.advance(2 * HOUR + Duration::from_secs(1));
    fixture.counted(&[("sent", 1)]).await;
    let message = &fixture.server.all()[0];
    assert!(message.is_signed_with(NEW));
    assert_eq!(message.id(), format!("tmr_{}_leads", held.request));
    assert_eq!(
        (message.kind(), &message.body["data"]["request"]["status"]),
        ("request.waiting", &"pending".into())
    );
    assert_eq!(message.body["data"]["task_status"], "Paused");
    assert!(
        crate::support::api_contract::is_a("WebhookMessage", &message.body),
        "{}",
        message.text
    );
    let listed = fixture.deliveries("").await;
    assert_eq!(listed[0]["webhook_id"], message.id());
    assert_eq!(fixture.server.count(), 1, "nothing but the timer");
}

#[apply(on_both)]
async fn reminder_in_full_shows_the_request_as_it_is_now_under_the_type_of_the_reminder(on: On) {
    let full = HOOK.replace("[\"{new}\"] }", "[\"{new}\"], payload: full }");
    let mut fixture = NotifyFixture::start(on, &full).await;
    let two = "{ owner: true, groups: [finance], required: 2 }";
    fixture
        .replace("{ owner: true, groups: [finance] }", two)
        .await;
    let held = fixture.app.held().await;
    let approved = fixture
        .app
        .approver()
        .hit(&format!("/resume/{}/approve", held.request))
        .await;
    assert_eq!(approved.status, 200, "{}", approved.text);
    fixture.counted(&[("due", 1)]).await;
    fixture.advance(2 * HOUR + Duration::from_secs(1));
    fixture.counted(&[("sent", 1)]).await;
    let message = &fixture.server.all()[0];
    let data = &message.body["data"];
    assert_eq!(
        (message.kind(), &data["event"]),
        ("request.waiting", &"request.waiting".into())
    );
    let approvals = data.pointer("/request/tool_calls/0/approvals").unwrap();
    assert_eq!(approvals.as_array().unwrap().len(), 1, "{}", message.text);
    assert!(
        crate::support::api_contract::is_a("WebhookMessage", &message.body),
        "{}",
        message.text
    );
}
