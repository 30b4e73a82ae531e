//! Tests of credentials in a tree: the task that was given a credential uses it, and so do that
//! task's descendants.

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::super::approval_cycle::on_both;
use super::super::request_kinds::{TOKEN, filled_in, items};
use super::{
    assert_asks, assert_invariants, call, does, give, id, only, open, paused, tree, trees, turn,
};
use crate::support::test_app::{On, Reply, TestApp};

fn comments() -> Value {
    turn(&[call("comment", &json!({"text": "hi"}))])
}

fn asks() -> Value {
    turn(&[call("request_credentials", &json!({"service": "jira"}))])
}

/// Fills in the credential for which the agent at this path asks.
async fn fill(app: &TestApp, waits: &Reply, path: &[&str]) -> Reply {
    let asked = &waits.body["pending"][0];
    assert_eq!(
        (&asked["kind"], &asked["agent_path"]),
        (&json!("credentials"), &json!(path)),
        "{}",
        waits.text
    );
    assert_eq!(open(waits).len(), 1);
    let body = json!({"action": "respond", "response": filled_in("credentials")});
    let reply = app.owner().answer(&open(waits)[0].1, &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply
}

#[apply(on_both)]
async fn login_is_known_to_the_task_it_was_given_to_and_its_subtree(on: On) {
    let app = trees(on, "").await;
    let below = give("clerk", &[comments(), json!("clerk: commented")]);
    let analyst = give(
        "analyst",
        &[
            asks(),
            comments(),
            turn(&[below]),
            json!("analyst: commented"),
        ],
    );
    let root = paused(
        &app,
        &[
            turn(&[analyst]),
            turn(&[give("clerk", &[comments(), json!("clerk too")])]),
            comments(),
            json!("end"),
        ],
    )
    .await;
    let root_id = root.str("/task_id");
    let sibling = fill(&app, &root, &["supervisor", "analyst"]).await;
    assert_eq!(
        app.tool.ledger().len(),
        2,
        "the analyst, and the clerk below it, which needs no request"
    );
    let parent = fill(&app, &sibling, &["supervisor", "clerk"]).await;
    assert_eq!(
        app.tool.ledger().len(),
        3,
        "a sibling has to be given its own"
    );
    let end = fill(&app, &parent, &["supervisor"]).await;
    end.assert_completed("end");
    let ledger = app.tool.ledger();
    assert_eq!(ledger.len(), 4);
    assert!(
        ledger
            .iter()
            .all(|call| call.header("authorization") == format!("Bearer {TOKEN}"))
    );
    let mut said = vec![format!("{:?}", app.model.sent())];
    for task in tree(&app, &root_id).await {
        said.push(format!("{task} {:?}", items(&app, &id(&task)).await));
    }
    assert!(!said.concat().contains(TOKEN));
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn login_given_to_the_root_is_known_to_its_whole_tree(on: On) {
    let app = trees(on, "").await;
    let clerk = give("clerk", &[comments(), json!("clerk: commented")]);
    let root = paused(
        &app,
        &[
            asks(),
            turn(&[give("analyst", &[comments(), turn(&[clerk]), json!("a")])]),
            json!("end"),
        ],
    )
    .await;
    let end = fill(&app, &root, &["supervisor"]).await;
    end.assert_completed("end");
    assert_eq!(app.tool.ledger().len(), 2);
    app.stop().await;
}

#[apply(on_both)]
async fn siblings_that_need_a_login_each_ask_for_it(on: On) {
    let app = trees(on, "").await;
    let both = turn(&[
        give("analyst", &[comments(), json!("a")]),
        give("clerk", &[comments(), json!("c")]),
    ]);
    let root = paused(&app, &[both, json!("end")]).await;
    let root_id = root.str("/task_id");
    assert_eq!(open(&root).len(), 2, "{}", root.text);
    let body = json!({"action": "respond", "response": filled_in("credentials")});
    let one = app.owner().answer(&open(&root)[0].1, &body).await;
    assert_asks(&one, 1);
    let end = app.owner().answer(&open(&root)[1].1, &body).await;
    assert_eq!(end.str("/status"), "Completed", "{}", end.text);
    assert_eq!(app.tool.ledger().len(), 2);
    assert_eq!(only(&app, &root_id, "clerk").await["output"], "c");
    app.stop().await;
}

#[apply(on_both)]
async fn login_of_a_working_sub_agent_is_not_shared_with_its_siblings(on: On) {
    let app = trees(on, "").await;
    let wonders = || {
        turn(&[call(
            "request_human_guidance",
            &json!({"question": "Go on?"}),
        )])
    };
    let below = give("clerk", &[wonders(), comments(), json!("below: commented")]);
    let analyst = give("analyst", &[asks(), turn(&[below]), json!("analyst: done")]);
    let root = paused(
        &app,
        &does(
            &[
                analyst,
                give(
                    "clerk",
                    &[wonders(), comments(), json!("beside: commented")],
                ),
            ],
            "end",
        ),
    )
    .await;
    let root_id = root.str("/task_id");
    let of_path = |reply: &Reply, path: &[&str]| {
        let pending = reply.body["pending"].as_array().unwrap();
        let found = pending
            .iter()
            .find(|request| request["agent_path"] == json!(path));
        found
            .unwrap_or_else(|| panic!("nothing of {path:?} in {}", reply.text))
            .clone()
    };
    let answer = async |request: &Value, response: Value| {
        let body = json!({"action": "respond", "response": response});
        app.owner()
            .answer(request["request_id"].as_str().unwrap(), &body)
            .await
    };
    let yes = json!({"answer": "yes"});
    let given = answer(
        &of_path(&root, &["supervisor", "analyst"]),
        filled_in("credentials"),
    )
    .await;
    let beside = answer(&of_path(&given, &["supervisor", "clerk"]), yes.clone()).await;
    let asked = of_path(&beside, &["supervisor", "clerk"]);
    assert_eq!(
        asked["kind"], "credentials",
        "the analyst's credential is not the clerk's: {asked}"
    );
    assert!(app.tool.ledger().is_empty());
    let below = answer(&of_path(&beside, &["supervisor", "analyst", "clerk"]), yes).await;
    assert_eq!(
        open(&below).len(),
        1,
        "the analyst's descendants have it: {}",
        below.text
    );
    assert_eq!(app.tool.ledger().len(), 1);
    let end = answer(
        &of_path(&below, &["supervisor", "clerk"]),
        filled_in("credentials"),
    )
    .await;
    end.assert_completed("end");
    assert_eq!(app.tool.ledger().len(), 2);
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn login_of_a_working_sub_agent_is_redacted_in_its_siblings(on: On) {
    let app = trees(on, "").await;
    let wonders = || {
        turn(&[call(
            "request_human_guidance",
            &json!({"question": "Go on?"}),
        )])
    };
    let analyst = give("analyst", &[asks(), wonders(), json!("analyst: done")]);
    let looks = turn(&[call("lookup", &json!({"order": 1}))]);
    let clerk = give(
        "clerk",
        &[wonders(), looks, json!(format!("the login is {TOKEN}"))],
    );
    app.tool.answers(200, format!("found {TOKEN}"));
    let root = paused(&app, &does(&[analyst, clerk], "end")).await;
    let root_id = root.str("/task_id");
    let answer = async |reply: &Reply, agent: &str, response: Value| {
        let pending = reply.body["pending"].as_array().unwrap();
        let asked = pending
            .iter()
            .find(|request| request["agent_path"] == json!(["supervisor", agent]))
            .unwrap();
        let body = json!({"action": "respond", "response": response});
        app.owner()
            .answer(asked["request_id"].as_str().unwrap(), &body)
            .await
    };
    let yes = json!({"answer": "yes"});
    let given = answer(&root, "analyst", filled_in("credentials")).await;
    let beside = answer(&given, "clerk", yes.clone()).await;
    let clerk = only(&app, &root_id, "clerk").await;
    assert_eq!(clerk["output"], "the login is [secret jira.token]");
    let items_of_clerk = items(&app, &id(&clerk)).await;
    assert!(
        items_of_clerk
            .iter()
            .any(|item| item["content"] == "found [secret jira.token]"),
        "{items_of_clerk:?}"
    );
    let end = answer(&beside, "analyst", yes).await;
    assert_eq!(end.str("/status"), "Completed", "{}", end.text);
    for task in tree(&app, &root_id).await {
        // The test's script contains the login. The root's message and the arguments of calls to
        // sub-agents contain the script, so the check leaves them out.
        let items = items(&app, &id(&task)).await;
        let said: Vec<_> = items
            .iter()
            .flat_map(|item| [&item["text"], &item["content"], &item["output"]])
            .collect();
        assert!(
            said.iter().all(|text| !text.to_string().contains(TOKEN)),
            "{said:?}"
        );
    }
    app.stop().await;
}
