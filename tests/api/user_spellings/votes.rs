//! Tests how the votes, rejections and edits of one person are counted over several spellings.

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::super::approval_cycle::on_both;
use super::{ONE_PERSON, answer, app, approval, finance};
use crate::support::fake_chat_completions::text_answer;
use crate::support::test_app::{Held, On, WEB};

const HTML: &str = "text/html";

fn per_call(held: &Held, answer: &Value) -> Value {
    json!({"decisions": {held.call.as_str(): answer}})
}

fn edit(held: &Held) -> Value {
    per_call(
        held,
        &json!({"action": "edit", "arguments": {"order": 17, "amount": 99}}),
    )
}

#[apply(on_both)]
async fn other_spelling_of_the_owner_may_not_decide(on: On) {
    let app = app(on).await;
    for (one, other) in ONE_PERSON {
        let held = app.held_by(&finance(&app, one)).await;
        let twin = || finance(&app, other);
        let path = format!("/resume/{}", held.request);
        let answers = [
            approval(),
            json!({"action": "reject"}),
            per_call(&held, &approval()),
            per_call(&held, &json!({"action": "reject"})),
            edit(&held),
        ];
        for body in answers {
            assert_eq!(
                answer(&twin(), &held, &body).await.status,
                403,
                "{other}: {body}"
            );
        }
        assert_eq!(twin().hit(&format!("{path}/approve")).await.status, 403);
        assert_eq!(twin().hit(&format!("{path}/reject")).await.status, 403);
        let page = twin()
            .header("accept", HTML)
            .get(&format!("{path}/approve"))
            .await;
        assert_eq!(page.status, 200, "{}", page.text);
        page.assert_lacks("<button");
        let seen = twin().get(&path).await;
        assert_eq!(
            (&seen.body["can_decide"], &seen.body["allowed_actions"]),
            (&json!(false), &json!([]))
        );
        let inbox = twin().get("/v1/requests").await;
        assert_eq!(inbox.body["requests"], json!([]), "{other}");
        assert!(app.tool.ledger().is_empty());
        assert_eq!(twin().cancel(&held.task).await.status, 200);
    }
}

#[apply(on_both)]
async fn two_spellings_of_one_approver_are_one_vote(on: On) {
    let app = app(on).await;
    for (round, (one, other)) in ONE_PERSON.into_iter().enumerate() {
        let held = app.held_by(&app.owner()).await;
        let (first, twin) = (
            if one == "alice" { "bob" } else { one },
            if other == "ALICE" { "BOB" } else { other },
        );
        let voted = answer(&finance(&app, first), &held, &approval()).await;
        voted.assert_status(200, "Paused");
        let path = format!("/resume/{}", held.request);
        for body in [
            approval(),
            per_call(&held, &approval()),
            per_call(&held, &json!({"action": "reject"})),
            edit(&held),
        ] {
            let again = answer(&finance(&app, twin), &held, &body).await;
            again
                .about(&format_args!("{twin}: {body}"))
                .assert_code(409, "already_decided");
            assert_eq!(again.body["decision"]["action"], "approve");
        }
        assert_eq!(
            finance(&app, twin)
                .hit(&format!("{path}/approve"))
                .await
                .status,
            409
        );
        assert_eq!(
            finance(&app, twin).get("/v1/requests").await.body["requests"],
            json!([]),
            "{twin}"
        );
        let seen = finance(&app, twin).get(&path).await;
        assert_eq!(seen.body["can_decide"], json!(false), "{}", seen.text);
        assert_eq!(
            seen.body["tool_calls"][0]["approvals"]
                .as_array()
                .unwrap()
                .len(),
            1
        );
        let page = finance(&app, twin).header("accept", HTML).get(&path).await;
        assert_eq!(page.status, 200, "{}", page.text);
        page.assert_lacks("<button");
        assert_eq!(app.tool.ledger().len(), round);
        app.model.then(text_answer("refunded"));
        // The rule names the approver `Eve`. This HTTP request spells the name differently and
        // names no group.
        let second = answer(
            &app.actor(WEB).header("holdpoint-user", "eVE"),
            &held,
            &approval(),
        )
        .await;
        second.assert_status(200, "Completed");
        assert_eq!(app.tool.ledger().len(), round + 1);
    }
    let all = app.owner().get("/v1/requests?status=resumed").await;
    assert_eq!(all.status, 200);
    let mine = finance(&app, "bOB")
        .get("/v1/requests?status=resumed")
        .await;
    assert!(
        mine.body["requests"]
            .as_array()
            .unwrap()
            .iter()
            .any(|request| request["tool_calls"][0]["approvals"][1]["by"] == "Eve")
    );
}

#[apply(on_both)]
async fn second_vote_in_another_spelling_is_told_the_first_of_its_person(on: On) {
    let mut app = app(on).await;
    app.restart_with(|yaml| yaml.replace("required: 2", "required: 3"))
        .await;
    let held = app.held_by(&app.owner()).await;
    for voter in ["Zoë", "Eve"] {
        assert_eq!(
            answer(&finance(&app, voter), &held, &approval())
                .await
                .status,
            200,
            "{voter}"
        );
    }
    for body in [approval(), per_call(&held, &approval())] {
        let again = answer(&finance(&app, "zOË"), &held, &body).await;
        again.assert_text(409, "/decision/by", "Zoë");
    }
}

#[apply(on_both)]
async fn other_spelling_of_an_editor_cannot_approve_the_edit(on: On) {
    let app = app(on).await;
    let first = app.held_by(&app.owner()).await;
    let edited = answer(&finance(&app, "Zoé"), &first, &edit(&first)).await;
    assert_eq!(edited.status, 200, "{}", edited.text);
    let request = edited.str("/pending/0/request_id");
    let again = Held { request, ..first };
    for spelling in ["Zoé", "zoé", "ZOÉ"] {
        let seen = finance(&app, spelling).request(&again.request).await;
        assert_eq!(
            seen.body["allowed_actions"],
            json!(["reject", "edit"]),
            "{}",
            seen.text
        );
        for body in [approval(), per_call(&again, &approval())] {
            assert_eq!(
                answer(&finance(&app, spelling), &again, &body).await.status,
                403,
                "{spelling}"
            );
        }
    }
    assert_eq!(
        answer(&app.approver(), &again, &approval()).await.status,
        200
    );
    assert_eq!(
        answer(&finance(&app, "BOB"), &again, &approval())
            .await
            .status,
        409
    );
    assert!(app.tool.ledger().is_empty());
    app.model.then(text_answer("refunded"));
    assert_eq!(
        answer(&finance(&app, "eve"), &again, &approval())
            .await
            .str("/status"),
        "Completed"
    );
    assert_eq!(app.tool.ledger().len(), 1);
}
