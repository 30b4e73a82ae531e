//! Tests who may answer a question of an agent, and until when. A rule for the tool that asks the
//! question may set both. Without such a rule, the owner may answer for a day.

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::super::approval_cycle::on_both;
use super::super::request_kinds::{KINDS, Question, ask, asking, asks, begin, last_tool_results};
use crate::support::test_app::{BOB, On};

/// Returns how long a request stays open, in seconds.
fn open_for(request: &Value) -> i64 {
    let at = |name: &str| {
        request[name]
            .as_str()
            .unwrap()
            .parse::<jiff::Timestamp>()
            .unwrap()
    };
    at("expires_at").duration_since(at("created_at")).as_secs()
}

#[apply(on_both)]
async fn rule_that_names_a_question_sets_its_approvers_and_deadline_or_denies_it(on: On) {
    let more = "  - { name: ask-finance, tools: [request_confirmation], decide: hold, approvers: { groups: [finance] }, expires_in: 1h, message: Look. }
  - { name: no-guidance, tools: [request_human_guidance], decide: deny, reason: Think yourself. }
  - { name: all, tools: ['*'], when: \"user.id == 'nobody'\", decide: deny }\n";
    let app = asking(on, more).await;
    let asked = begin(&app, &[asks("confirmation")]).await;
    let question = Question::of(&asked, "confirmation");
    let approvers = json!({"owner": false, "users": [], "groups": ["finance"], "required": 1});
    assert_eq!(
        (&question.request["approvers"], open_for(&question.request)),
        (&approvers, 3600)
    );
    assert_eq!(
        (
            &question.request["message"],
            &question.request["tool_calls"][0]["rule"]
        ),
        (&json!("Look."), &json!("ask-finance"))
    );
    assert_eq!(question.request["tool_calls"][0]["verdict"], "human");
    assert_eq!(
        (
            &question.request["can_decide"],
            &question.request["allowed_actions"]
        ),
        (&json!(false), &json!([]))
    );
    assert_eq!(
        app.owner()
            .hit(&format!("{}/approve", question.path()))
            .await
            .status,
        403
    );
    assert_eq!(
        app.actor(BOB)
            .hit(&format!("{}/approve", question.path()))
            .await
            .str("/status"),
        "Completed"
    );
    let denied = begin(&app, &[asks("guidance")]).await;
    assert_eq!(denied.str("/status"), "Completed", "{}", denied.text);
    assert!(
        last_tool_results(&app)[0].contains("Think yourself."),
        "{:?}",
        last_tool_results(&app)
    );
    app.stop().await;
}

#[apply(on_both)]
async fn request_that_no_rule_names_is_the_owners_for_a_day(on: On) {
    let app = asking(on, "").await;
    for kind in KINDS {
        let question = ask(&app, kind).await;
        let owner = json!({"owner": true, "users": [], "groups": [], "required": 1});
        assert_eq!(
            (&question.request["approvers"], open_for(&question.request)),
            (&owner, 86400),
            "{kind}"
        );
        assert_eq!(
            question.request["message"], "Human intervention required.",
            "{kind}"
        );
        let inbox = app.owner().get(&format!("/v1/requests?kind={kind}")).await;
        assert_eq!(inbox.str("/requests/0/request_id"), question.id, "{kind}");
        assert_eq!(inbox.count("requests"), 1, "{kind}");
        let others = app
            .owner()
            .get("/v1/requests?kind=approval&kind=reconcile")
            .await;
        assert!(
            others
                .texts("requests", "kind")
                .iter()
                .all(|kind| ["approval", "reconcile"].contains(kind))
        );
        assert_eq!(
            app.approver().get("/v1/requests").await.body["requests"],
            json!([]),
            "{kind}"
        );
    }
    assert_eq!(app.owner().get("/v1/requests").await.count("requests"), 6);
    assert_eq!(
        app.owner().get("/v1/requests?kind=question").await.status,
        422
    );
    app.stop().await;
}
