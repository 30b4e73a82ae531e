//! Tests notices and deliveries that an earlier process has left behind, and messages after a
//! restore of the database.

use std::collections::BTreeSet;
use std::time::Duration;

use macro_rules_attribute::apply;

use super::{BACKEND, BEYOND_RETRIES, NotifyFixture};
use crate::api::approval_cycle::on_both;
use crate::support::fake_receiver::Received;
use crate::support::test_app::On;

fn ids(messages: &[Received]) -> BTreeSet<String> {
    messages
        .iter()
        .map(|message| message.id().to_owned())
        .collect()
}

#[apply(on_both)]
async fn messages_that_an_earlier_process_left_are_sent_after_the_start(on: On) {
    let mut fixture = NotifyFixture::start(on, BACKEND).await;
    fixture.server.answers(500);
    fixture.short().await;
    fixture.until_tried(1).await;
    fixture.app.restart().await;
    fixture.server.answers(200);
    fixture.advance(BEYOND_RETRIES);
    fixture.counted(&[("sent", 1)]).await;
}

#[apply(on_both)]
async fn message_of_an_entry_that_is_gone_is_dropped_after_a_day_and_not_before(on: On) {
    let mut fixture = NotifyFixture::start(on, BACKEND).await;
    fixture.server.answers(500);
    fixture.short().await;
    fixture.until_tried(1).await;
    fixture.replace("name: backend", "name: renamed").await;
    let before = fixture.server.count();
    fixture.advance(Duration::from_mins(24 * 60 - 5));
    fixture.server.answers(200);
    fixture.short().await;
    let found = fixture.until(|found| found[0]["state"] == "sent").await;
    assert_eq!(
        (&found[1]["target"], &found[1]["state"]),
        (&"backend".into(), &"due".into())
    );
    fixture.advance(Duration::from_mins(10));
    let found = fixture.counted(&[("dropped", 1)]).await;
    assert_eq!(
        (&found[1]["target"], &found[1]["state"]),
        (&"backend".into(), &"dropped".into())
    );
    assert_eq!(fixture.server.count(), before + 1, "nobody sent it again");
}

#[apply(on_both)]
async fn delivery_of_a_change_that_the_journal_does_not_have_is_dead_and_not_sent(on: On) {
    let fixture = NotifyFixture::start(on, BACKEND).await;
    fixture.server.answers(500);
    fixture.short().await;
    fixture.until_tried(1).await;
    fixture
        .app
        .database
        .execute("update delivery set change_id = delivery_id")
        .await;
    let before = fixture.server.count();
    fixture.advance(BEYOND_RETRIES);
    let found = fixture.counted(&[("dead", 1)]).await;
    assert_eq!(
        (&found[0]["last"]["problem"], fixture.server.count()),
        (&"gone".into(), before)
    );
}

#[apply(on_both)]
async fn waiting_message_that_the_changed_entry_no_longer_selects_is_dropped(on: On) {
    let elsewhere = [
        ("tenants: [acme]", "tenants: [other]"),
        ("tenants: [acme]", "tenants: [acme], agents: [clerk]"),
        ("tenants: [acme]", "tenants: [acme], events: [task.failed]"),
    ];
    for (from, to) in elsewhere {
        let mut fixture = NotifyFixture::start(on, BACKEND).await;
        fixture.server.answers(500);
        fixture.short().await;
        fixture.until_tried(1).await;
        let clerk = "default_agent: billing\nagents:\n  clerk: { model: main }";
        fixture
            .app
            .restart_with(|yaml| {
                yaml.replace(&format!("{from} }}"), &format!("{to} }}"))
                    .replace("agents:\n", &format!("{clerk}\n"))
            })
            .await;
        let before = fixture.server.count();
        fixture.server.answers(200);
        fixture.advance(BEYOND_RETRIES);
        let found = fixture.counted(&[("dropped", 1)]).await;
        let problem = &found[0]["last"]["problem"];
        assert_eq!(
            (problem, fixture.server.count()),
            (
                &"the entry's settings no longer select this message".into(),
                before
            ),
            "{to}"
        );
    }
}

#[apply(on_both)]
async fn entry_that_now_has_groups_sends_what_waits_about_requests_of_these_groups_only(on: On) {
    for (groups, sent) in [("finance", 1), ("support", 0)] {
        let mut fixture = NotifyFixture::start(on, BACKEND).await;
        fixture.server.answers(500);
        fixture.app.held().await;
        fixture.until_tried(2).await;
        let grouped = format!("tenants: [acme], groups: [{groups}] }}");
        fixture.replace("tenants: [acme] }", &grouped).await;
        let before = fixture.server.count();
        fixture.server.answers(200);
        fixture.advance(BEYOND_RETRIES);
        let found = fixture.counted(&[("sent", sent), ("due", 0)]).await;
        let told: Vec<_> = found
            .iter()
            .filter(|one| one["state"] == "sent")
            .map(|one| &one["type"])
            .collect();
        assert!(
            told.iter().all(|kind| *kind == "request.created"),
            "{told:?}"
        );
        assert_eq!(fixture.server.count(), before + sent);
    }
}

#[apply(on_both)]
async fn notices_are_cleared_by_a_process_without_entries(on: On) {
    let mut fixture = NotifyFixture::start(on, BACKEND).await;
    fixture
        .app
        .restart_with(|yaml| {
            yaml.replace("notify:", "# notify:")
                .replace("  to:", "# to:")
                .replace("    - { name: backend", "    # - { name: backend")
        })
        .await;
    fixture.short().await;
    let sql = "insert into notice (notice_id, root_task_id, change_id, event_number)
            select task_id, task_id, task_id, 1 from agent_task";
    fixture.app.database.execute(sql).await;
    fixture.advance(Duration::from_mins(2));
    let count = async || {
        fixture
            .app
            .database
            .texts("select cast(count(*) as text) from notice")
            .await
    };
    while count().await != ["0"] {
        crate::support::pause().await;
    }
    assert_eq!(fixture.server.count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_new_event_of_a_restored_backup_has_the_id_of_a_lost_one() {
    let mut fixture = NotifyFixture::start(On::Sqlite, BACKEND).await;
    let held = fixture.app.held().await;
    fixture.counted(&[("sent", 2)]).await;
    let file = fixture.app.database.file().to_owned();
    let copy = format!("{file}.copy");
    fixture
        .app
        .database
        .execute(&format!("vacuum into '{copy}'"))
        .await;
    fixture.approve(&held).await;
    fixture.counted(&[("sent", 4)]).await;
    let before = fixture.server.all();
    fixture.app.restart_on_copy(&file, &copy).await;
    fixture.approve(&held).await;
    fixture.counted(&[("sent", 4)]).await;
    let all = fixture.server.all();
    let after = &all[before.len()..];
    assert_eq!(after.len(), 2);
    let numbers = |messages: &[Received]| -> BTreeSet<i64> {
        messages
            .iter()
            .map(|message| message.body["data"]["event"].as_i64().unwrap())
            .collect()
    };
    assert!(
        numbers(after).intersection(&numbers(&before)).count() == 2,
        "the same numbers again"
    );
    assert!(ids(after).is_disjoint(&ids(&before)), "and other messages");
}
