//! Tests the content of a mail, and its recipients.

use macro_rules_attribute::apply;
use serde_json::Value;

use super::{ALICE, BOB, BOB_ONLY, BY_MAIL, Post, with_links};
use crate::api::approval_cycle::on_both;
use crate::support::has_word;
use crate::support::test_app::{OPS, On};

#[apply(on_both)]
async fn mail_of_a_question_reaches_only_people_who_may_decide_it(on: On) {
    let post = Post::start(on, BY_MAIL).await;
    let held = post.app.held().await;
    let all = post.server.reached(2).await;
    let found = post.counted(&[("sent", 2), ("due", 0)]).await;
    let mut to: Vec<_> = all.iter().map(|mail| mail.to.as_str()).collect();
    to.sort_unstable();
    assert_eq!(to, [ALICE, BOB]);
    let bob = &post.server.to(BOB)[0];
    assert_eq!(bob.subject, "Waits for you: refund (billing)");
    let delivery = found.iter().find(|one| one["person"] == "bob").unwrap();
    assert_eq!(
        (&delivery["channel"], &delivery["type"]),
        (&"mail".into(), &"request.created".into())
    );
    assert_eq!(
        bob.id,
        format!("{}@acme.com", delivery["delivery_id"].as_str().unwrap())
    );
    let thread = format!("<{}@acme.com>", held.request);
    assert_eq!(bob.header("In-Reply-To"), thread.clone());
    assert_eq!(bob.header("References"), thread);
    assert_eq!(bob.header("Auto-Submitted"), "auto-generated");
    assert_eq!(bob.header("X-Auto-Response-Suppress"), "All");
    assert_eq!(
        (bob.header("From"), bob.header("To")),
        ("Holdpoint <holdpoint@acme.com>".to_owned(), BOB.to_owned())
    );
    let page = format!("{}/resume/{}", "http://", held.request).replace("http://", "");
    for body in [&bob.text, &bob.html] {
        assert!(body.contains(&page) && !body.contains("/inbox"), "{body}");
    }
    assert_eq!(bob.html.matches("/resume/").count(), 1, "one link");
    let alice = &post.server.to(ALICE)[0];
    assert!(
        alice.subject.starts_with("等待您决定：refund") && alice.html.contains("zh-Hans"),
        "{}",
        alice.subject
    );
}

#[apply(on_both)]
async fn question_is_not_mailed_to_a_person_whose_link_takes_none_of_the_allowed_answers(on: On) {
    // dora may decide by link only.
    let approvers = "approvers: { owner: true, groups: [finance] }";
    for (allow, told) in [
        ("[edit, respond]", &["alice", "bob"][..]),
        ("[edit, reject]", &["alice", "bob", "dora"]),
    ] {
        let allowed = format!("{approvers}, allow: {allow}");
        let change = |yaml: String| with_links(&yaml.replace(approvers, &allowed));
        let post = Post::with(on, BY_MAIL, change).await;
        post.app.held().await;
        let are_done =
            |found: &[Value]| !found.is_empty() && found.iter().all(|one| one["state"] != "due");
        let found = post.until(are_done).await;
        let people = found.iter().map(|one| one["person"].as_str().unwrap());
        let mut people: Vec<_> = people.collect();
        people.sort_unstable();
        assert_eq!(people, told, "{allow}");
    }
}

#[apply(on_both)]
async fn no_text_of_an_agent_and_no_argument_leaves_unless_the_entry_says_so(on: On) {
    let more = BOB_ONLY
        .replace("by-mail", "more")
        .replace("users: [bob] }", "users: [bob] }, summaries: true");
    let post = Post::start(on, &format!("{BOB_ONLY}\n{more}")).await;
    post.app.held().await;
    let all = post.server.reached(2).await;
    let summary = "Refund 120 for order 17";
    let told: Vec<_> = all
        .iter()
        .filter(|mail| mail.text.contains(summary))
        .collect();
    assert_eq!(told.len(), 1);
    assert!(told[0].html.contains(summary));
    let silent = all
        .iter()
        .find(|mail| !mail.text.contains(summary))
        .unwrap();
    for text in [&silent.text, &silent.html] {
        assert!(
            !text.contains("please") && !text.contains("Refunds above 20"),
            "{text}"
        );
        assert!(!has_word(text, "120"), "{text}");
    }
}

#[apply(on_both)]
async fn name_of_anything_begins_no_header_of_a_mail(on: On) {
    let change = |yaml: String| {
        yaml.replace("decide: hold, reason", "decide: hold, message: \"Look.\\r\\nBcc: eve@evil.com\\r\\n\\r\\nHidden \\u202e\", reason")
    };
    let post = Post::with(on, BOB_ONLY, change).await;
    post.app.held().await;
    let mail = &post.server.reached(1).await[0];
    assert!(
        !mail.headers().contains(&"bcc".to_owned()),
        "{:?}",
        mail.headers()
    );
    assert!(
        mail.text
            .contains("Look. Bcc: eve@evil.com Hidden \\u{202e}"),
        "{}",
        mail.text
    );
    let said = post.server.heard();
    let recipients = said.iter().filter(|line| line.starts_with("RCPT"));
    assert_eq!(recipients.count(), 1, "{said:?}");
}

#[apply(on_both)]
async fn address_of_a_person_is_in_no_row_and_no_answer(on: On) {
    let post = Post::start(on, BY_MAIL).await;
    post.server
        .then(crate::support::fake_mail_server::MailBehaviour::Refuse(451));
    post.app.held().await;
    post.until_tried(2).await;
    for path in ["/v1/deliveries", "/metrics", "/v1/agents"] {
        let text = post.app.actor(OPS).get(path).await.text;
        assert!(
            !text.contains("bob@acme.com") && !text.contains("127.0.0.1:25"),
            "{path}"
        );
    }
    let rows = post.app.database.texts("select coalesce(last_problem, '') || person || target || coalesce(reference, '') from delivery").await;
    assert!(
        rows.iter()
            .all(|row| !row.contains('@') && !row.contains("RCPT")),
        "{rows:?}"
    );
}

#[apply(on_both)]
async fn question_of_which_no_approver_has_an_address_is_no_delivery(on: On) {
    let nobody = |yaml: String| {
        yaml.replace("email: alice@acme.com, ", "")
            .replace(", email: bob@acme.com", "")
    };
    let post = Post::with(on, BY_MAIL, nobody).await;
    post.app.held().await;
    let notices = "select cast(count(*) as text) from notice";
    while post.app.database.texts(notices).await != ["0"] {
        crate::support::pause().await;
    }
    assert_eq!(post.deliveries("").await.len(), 0);
    assert_eq!(post.server.all().len(), 0);
}
