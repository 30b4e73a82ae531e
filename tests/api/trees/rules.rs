//! Tests of the policy in a tree of agents. A call is judged for each agent on the path from the
//! root to the agent that makes the call, and the strictest verdict wins. A call that starts a
//! sub-agent is judged by rules, too.

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::super::approval_cycle::on_both;
use super::super::request_kinds::items;
use super::{
    assert_invariants, assert_outcomes, call, completed, does, give, id, only, open, outcomes,
    paused, prompts, refund, results, tree, trees, turn, typed, with,
};
use crate::support::test_app::{On, TestApp};

/// Returns the verdict, the rule and the outcome of the analyst's first judged call.
async fn judged(app: &TestApp, root: &str) -> (Value, Value, Value) {
    let journal = items(app, &id(&only(app, root, "analyst").await)).await;
    let judged = typed(&journal, "judged")[0].clone();
    let outcome = typed(&journal, "tool_result")[0]["outcome"].clone();
    (judged["verdict"].clone(), judged["rule"].clone(), outcome)
}

#[apply(on_both)]
async fn call_denied_to_a_parent_is_denied_to_its_sub_agents(on: On) {
    let rules = "  - { name: top, tools: [refund], when: \"agent.name == 'supervisor'\", decide: deny, reason: Not the supervisor. }\n  \
                     - { name: leaf, tools: [refund], when: \"agent.name == 'analyst'\", decide: allow }\n";
    let app = trees(on, rules).await;
    let root = completed(
        &app,
        &[turn(&[give("analyst", &does(&[refund(1)], "analyst: no"))])],
    )
    .await;
    assert_eq!(
        judged(&app, &root.str("/task_id")).await,
        (json!("deny"), json!("top"), json!("denied"))
    );
    assert!(results(prompts(&app, "analyst").last().unwrap())[0].contains("Not the supervisor."));
    assert!(app.tool.ledger().is_empty());
    // As a root task, without the supervisor above it, the analyst may refund.
    let body = json!({"agent": "analyst", "input": json!([[refund(2)], "paid"]).to_string()});
    let alone = app.owner().post("/v1/tasks", &body).await;
    assert_eq!(
        (alone.str("/status"), app.tool.ledger().len()),
        ("Completed".to_owned(), 1),
        "{}",
        alone.text
    );
    app.stop().await;
}

#[apply(on_both)]
async fn hold_rule_nearest_the_root_sets_the_terms(on: On) {
    let rules = "  - { name: top, tools: [refund], when: \"agent.name == 'supervisor'\", decide: hold, message: Ask finance., approvers: { groups: [finance] } }\n  \
                     - { name: middle, tools: [refund], when: \"agent.name == 'analyst'\", decide: hold, message: Ask carol., approvers: { users: [carol] } }\n  \
                     - { name: leaf, tools: [refund], when: \"agent.name == 'clerk'\", decide: allow }\n";
    let app = trees(on, rules).await;
    let clerk = give("clerk", &does(&[refund(1)], "clerk: paid"));
    let root = paused(&app, &[turn(&[give("analyst", &[turn(&[clerk])])])]).await;
    let asked = &root.body["pending"][0];
    assert_eq!(
        (&asked["tool_calls"][0]["rule"], &asked["message"]),
        (&json!("top"), &json!("Ask finance."))
    );
    assert_eq!(asked["approvers"]["groups"], json!(["finance"]));
    let request = open(&root)[0].1.clone();
    assert_eq!(app.stranger().approve(&request).await.status, 403);
    assert_eq!(app.owner().approve(&request).await.status, 403);
    assert_eq!(
        app.approver().approve(&request).await.str("/status"),
        "Completed"
    );

    let body = json!({"agent": "analyst", "input": json!([[give("clerk", &[turn(&[refund(2)])])]]).to_string()});
    let root = app.owner().post("/v1/tasks", &body).await;
    assert_eq!(
        root.str("/pending/0/message"),
        "Ask carol.",
        "{}",
        root.text
    );
    assert_eq!(
        root.body["pending"][0]["agent_path"],
        json!(["analyst", "clerk"])
    );
    assert_eq!(
        app.stranger()
            .approve(&open(&root)[0].1)
            .await
            .str("/status"),
        "Completed"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn ancestor_without_a_matching_rule_does_not_count(on: On) {
    let rules = "  - { name: leaf, tools: [refund], when: \"agent.name == 'analyst'\", decide: allow }\n  \
                     - { name: others, tools: [refund], when: \"agent.name == 'clerk'\", decide: deny }\n";
    let app = with(on, rules, |yaml| {
        yaml.replace(
            "  - { name: held, tools: [refund], decide: hold, reason: Refunds need a look. }\n",
            "",
        )
    })
    .await;
    let root = completed(
        &app,
        &[turn(&[give("analyst", &does(&[refund(1)], "paid"))])],
    )
    .await;
    assert_eq!(
        judged(&app, &root.str("/task_id")).await,
        (json!("allow"), json!("leaf"), json!("succeeded"))
    );
    let deep = give("analyst", &does(&[refund(2)], "not paid"));
    let root = completed(&app, &[turn(&[give("clerk", &[turn(&[deep])])])]).await;
    assert_eq!(
        judged(&app, &root.str("/task_id")).await,
        (json!("deny"), json!("others"), json!("denied"))
    );
    app.stop().await;
}

#[apply(on_both)]
async fn rule_reads_the_agent_path(on: On) {
    let rules = "  - { name: only-below, tools: [refund], when: \"agent.path.size() > 2\", decide: deny, reason: Too deep. }\n";
    let app = trees(on, rules).await;
    let clerk = give("clerk", &does(&[refund(1)], "clerk: no"));
    let root = completed(&app, &[turn(&[give("analyst", &[turn(&[clerk])])])]).await;
    let journal = items(&app, &id(&only(&app, &root.str("/task_id"), "clerk").await)).await;
    assert_eq!(outcomes(&journal), [("refund", "denied")]);
    let held = paused(&app, &[turn(&[give("analyst", &[turn(&[refund(1)])])])]).await;
    assert_eq!(open(&held).len(), 1);
    app.stop().await;
}

#[apply(on_both)]
async fn rule_holds_or_denies_the_call_of_a_sub_agent(on: On) {
    let rules = "  - { name: no-deletes, tools: [analyst], when: \"args.task.contains('delete')\", decide: deny, reason: Nothing is deleted. }\n  \
                     - { name: costly, tools: [analyst], when: \"args.task.contains('costly')\", decide: hold, reason: That costs. }\n";
    let app = trees(on, rules).await;
    let root = completed(
        &app,
        &does(&[give("analyst", &[json!("delete it")])], "then not"),
    )
    .await;
    assert_outcomes(&app, &root.str("/task_id"), &[("analyst", "denied")]).await;
    assert_eq!(tree(&app, &root.str("/task_id")).await.len(), 1);

    let root = paused(
        &app,
        &does(
            &[
                give("analyst", &[json!("costly it is")]),
                give("clerk", &[json!("clerk: hi")]),
            ],
            "end",
        ),
    )
    .await;
    let root_id = root.str("/task_id");
    let calls = &root.body["pending"][0]["tool_calls"];
    assert_eq!(
        (
            &calls[0]["summary"],
            &calls[0]["target"],
            &calls[0]["effect"]
        ),
        (
            &json!(r#"analyst: ["costly it is"]"#),
            &json!("agent analyst"),
            &json!("once")
        )
    );
    assert_eq!(
        (&calls[0]["needs_decision"], &calls[1]["needs_decision"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(
        tree(&app, &root_id).await.len(),
        1,
        "nothing of the turn runs while a request is open"
    );
    let end = app.owner().approve(&open(&root)[0].1).await;
    assert_eq!(end.str("/status"), "Completed", "{}", end.text);
    assert_eq!(
        results(prompts(&app, "supervisor").last().unwrap()),
        ["costly it is", "clerk: hi"]
    );
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn call_of_a_sub_agent_can_be_edited_answered_or_rejected(on: On) {
    let rules = "  - { name: all, tools: [analyst], decide: hold }\n";
    let app = trees(on, rules).await;
    let ask = || [turn(&[give("analyst", &[json!("as the model said")])])];
    let root = paused(&app, &ask()).await;
    let one = root.str("/pending/0/tool_calls/0/tool_call_id");
    let edit = json!({"decisions": {one: {"action": "edit", "arguments": {"task": "[\"as the human said\"]"}}}});
    let end = app.owner().answer(&open(&root)[0].1, &edit).await;
    assert_eq!(end.str("/status"), "Completed", "{}", end.text);
    assert_eq!(
        only(&app, &root.str("/task_id"), "analyst").await["output"],
        "as the human said"
    );

    let root = paused(&app, &ask()).await;
    let one = root.str("/pending/0/tool_calls/0/tool_call_id");
    let path = format!("/resume/{}", open(&root)[0].1);
    let wrong = json!({"decisions": {one.clone(): {"action": "edit", "arguments": {"task": ""}}}});
    let refused = app.owner().post(&path, &wrong).await;
    refused.assert_code(422, "invalid");
    let own = json!({"decisions": {one: {"action": "respond", "result": "the human's own work"}}});
    let end = app.owner().post(&path, &own).await;
    end.assert_completed("supervisor: the human's own work");
    assert_eq!(tree(&app, &root.str("/task_id")).await.len(), 1);

    let root = paused(&app, &ask()).await;
    let body = json!({"action": "reject", "then": "continue", "reason": "no need"});
    let end = app.owner().answer(&open(&root)[0].1, &body).await;
    assert_eq!(end.str("/status"), "Completed", "{}", end.text);
    assert_outcomes(&app, &root.str("/task_id"), &[("analyst", "rejected")]).await;
    app.stop().await;
}

#[apply(on_both)]
async fn invalid_call_of_a_sub_agent_starts_nothing(on: On) {
    let app = trees(on, "").await;
    let wrong = [
        call("analyst", &json!({})),
        call("analyst", &json!({"task": ""})),
        call("analyst", &json!({"task": 1})),
        call("analyst", &json!({"task": "x", "agent": "clerk"})),
        call("Analyst", &json!({"task": "x"})),
    ];
    let root = completed(&app, &does(&wrong, "end")).await;
    let outcomes_of = items(&app, &root.str("/task_id")).await;
    assert!(
        outcomes(&outcomes_of)
            .iter()
            .all(|(_, outcome)| *outcome == "invalid"),
        "{outcomes_of:#?}"
    );
    assert_eq!(
        (
            outcomes(&outcomes_of).len(),
            tree(&app, &root.str("/task_id")).await.len()
        ),
        (5, 1)
    );
    // The scribe has no sub-agents, so its call of the clerk is invalid.
    let body = json!({"agent": "scribe", "input": json!([[give("clerk", &[json!("x")])], "end"]).to_string()});
    let scribe = app.owner().post("/v1/tasks", &body).await;
    assert_outcomes(&app, &scribe.str("/task_id"), &[("clerk", "invalid")]).await;
    app.stop().await;
}
