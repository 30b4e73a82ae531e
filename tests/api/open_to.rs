//! Tests that every message and every retry checks whether the agent is open to the caller under
//! the current configuration.

use macro_rules_attribute::apply;
use serde_json::json;

use super::approval_cycle::on_both;
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{ACCOUNTS, Actor, On, REFUNDS, TestApp, WEB};

const ADMIN: &str = "admin-key-0123456789";

/// Starts the service. The agent `billing` is open to Alice's group `support` and to the user Zoe.
async fn app(on: On) -> TestApp {
    let admin = "    - { user: root, tenant: acme, key: \"admin-key-0123456789\", admin: true }\n";
    let open = "agents:\n  desk: { description: For all., model: main, tools: [lookup] }";
    let yaml = REFUNDS
        .replace("{approvers}", "{ groups: [finance] }")
        .replace("agents:", open)
        .replace(
            "description: Refunds.,",
            "description: Refunds., open_to: { groups: [support], users: [Zoe] },",
        );
    TestApp::with(
        on,
        &format!(
            "{yaml}default_agent: billing\n{}\n{admin}",
            ACCOUNTS.trim_end()
        ),
    )
    .await
}

async fn command_statuses(actor: &Actor<'_>, path: &str) -> Vec<u16> {
    let message = json!({"input": "more", "supersede": true});
    vec![
        actor
            .post(&format!("{path}/messages"), &message)
            .await
            .status,
        actor.hit(&format!("{path}/retry")).await.status,
    ]
}

#[apply(on_both)]
async fn owner_who_lost_the_agent_can_neither_message_nor_retry(on: On) {
    let mut app = app(on).await;
    app.model.then_fails(400);
    let failed = app.owner().create_task("go").await.str("/task_id");
    let held = app.held().await.task;
    app.restart_with(|yaml| yaml.replace("groups: [support], users: [Zoe]", "users: [Zoe]"))
        .await;
    for task in [&failed, &held] {
        let path = format!("/v1/tasks/{task}");
        assert_eq!(
            command_statuses(&app.owner(), &path).await,
            [403, 403],
            "{task}"
        );
        let words = app
            .owner()
            .post(&format!("{path}/messages"), &json!({"input": "more"}))
            .await;
        assert!(
            words.str("/detail").contains("no longer use the task"),
            "{}",
            words.text
        );
        // The service checks the caller's right before it reads the body.
        assert_eq!(
            app.owner()
                .post(&format!("{path}/messages"), &json!({"zzz": 1}))
                .await
                .status,
            403
        );
        assert_eq!(
            app.owner().get(&path).await.status,
            200,
            "it stays readable"
        );
    }
    assert_eq!(app.model.sent().len(), 2);
    assert_eq!(app.owner().cancel(&held).await.str("/status"), "Canceled");
    app.model.then(text_answer("done"));
    let retried = app
        .actor(ADMIN)
        .hit(&format!("/v1/tasks/{failed}/retry"))
        .await;
    retried
        .about(&"an admin may retry")
        .assert_status(200, "Completed");
    let path = format!("/v1/tasks/{failed}/messages");
    assert_eq!(
        app.actor(ADMIN)
            .post(&path, &json!({"input": "more"}))
            .await
            .status,
        403,
        "an admin sends no messages"
    );
}

#[apply(on_both)]
async fn groups_of_the_message_decide_not_those_of_the_first_one(on: On) {
    let app = app(on).await;
    app.model
        .then(text_answer("one"))
        .then(text_answer("two"))
        .then(text_answer("three"));
    let task = app
        .on_behalf_of("max", "support")
        .create_task("go")
        .await
        .str("/task_id");
    let path = format!("/v1/tasks/{task}");
    assert_eq!(
        command_statuses(&app.on_behalf_of("max", "sales"), &path).await,
        [403, 403]
    );
    assert_eq!(
        command_statuses(&app.actor(WEB).header("holdpoint-user", "max"), &path).await,
        [403, 403]
    );
    assert_eq!(
        app.on_behalf_of("max", "support")
            .post(&format!("{path}/messages"), &json!({"input": "more"}))
            .await
            .status,
        200
    );
    // `open_to` names the user Zoe. The comparison of user names ignores case.
    let zoe = app
        .actor(WEB)
        .header("holdpoint-user", "zOE")
        .create_task("go")
        .await;
    assert_eq!(zoe.status, 201, "{}", zoe.text);
    let agents = app
        .actor(WEB)
        .header("holdpoint-user", "ZOE")
        .get("/v1/agents")
        .await;
    assert_eq!(agents.count("agents"), 2, "{}", agents.text);
    assert_eq!(
        app.on_behalf_of("max", "sales")
            .create_task("go")
            .await
            .status,
        422
    );
}

#[apply(on_both)]
async fn removed_agent_takes_no_message_of_its_owner(on: On) {
    let mut app = app(on).await;
    app.model.then_fails(400).then(text_answer("done"));
    let failed = app.owner().create_task("go").await.str("/task_id");
    let done = app.owner().create_task("go").await.str("/task_id");
    app.restart_with(|yaml| {
        yaml.replace("  billing:", "  invoicing:")
            .replace("default_agent: billing", "default_agent: desk")
    })
    .await;
    for task in [&failed, &done] {
        assert_eq!(
            command_statuses(&app.owner(), &format!("/v1/tasks/{task}")).await,
            [403, 403],
            "{task}"
        );
    }
    let retried = app
        .actor(ADMIN)
        .hit(&format!("/v1/tasks/{failed}/retry"))
        .await;
    retried.assert_text(200, "/error/code", "configuration");
}

#[apply(on_both)]
async fn replay_is_403_after_the_agent_was_closed(on: On) {
    let mut app = app(on).await;
    app.model.then(text_answer("one")).then(text_answer("two"));
    let task = app
        .owner()
        .keyed("k")
        .create_task("go")
        .await
        .str("/task_id");
    let path = format!("/v1/tasks/{task}/messages");
    assert_eq!(
        app.owner()
            .keyed("k")
            .post(&path, &json!({"input": "more"}))
            .await
            .status,
        200
    );
    app.restart_with(|yaml| yaml.replace("groups: [support], users: [Zoe]", "users: [Zoe]"))
        .await;
    assert_eq!(
        app.owner()
            .keyed("k")
            .post(&path, &json!({"input": "more"}))
            .await
            .status,
        403
    );
    assert_eq!(app.owner().keyed("k").create_task("go").await.status, 403);
}

#[apply(on_both)]
async fn open_to_of_a_sub_agent_leaves_its_task_409(on: On) {
    let yaml = REFUNDS
            .replace("{approvers}", "{ owner: true }")
            .replace("tools: [lookup, tag, refund, forbidden] }", "tools: [lookup, tag, refund, forbidden], sub_agents: [closed] }\n  closed: { description: Closed., model: main, tools: [refund], open_to: { users: [somebody] } }");
    let app = TestApp::with(on, &format!("{yaml}default_agent: billing\n{ACCOUNTS}")).await;
    app.model
        .then(calls(&[("closed", r#"{"task":"go"}"#)]))
        .then(calls(&[("refund", r#"{"order":1,"amount":50}"#)]));
    let held = app.owner().create_task("go").await;
    let child = held.str("/pending/0/task_id");
    assert_ne!(child, held.str("/task_id"));
    assert_eq!(
        command_statuses(&app.owner(), &format!("/v1/tasks/{child}")).await,
        [409, 409]
    );
}

#[apply(on_both)]
async fn caller_sees_the_gates_that_are_open_to_them_if_the_key_may_propose_calls(on: On) {
    let gates = "gates:\n  all: { tools: [lookup] }\n  desk: { tools: [lookup], open_to: { groups: [support] } }\n";
    let keys = r#"
    - { user: alice, tenant: acme, groups: [support], key: "alice-gate-012345678", may: [read, gate] }
    - { user: carol, tenant: acme, key: "carol-create-0123456", may: [read, create] }
    - { user: edge, tenant: acme, key: "edge-gate-0123456789", act_as: true, may: [read, gate] }
"#;
    let yaml = REFUNDS.replace("{approvers}", "{ groups: [finance] }");
    let app = TestApp::with(on, &format!("{yaml}{gates}{}{keys}", ACCOUNTS.trim_end())).await;
    let sees = async |actor: Actor<'_>| {
        let me = actor.get("/v1/me").await;
        (me.body["may"].clone(), me.body["gates"].clone())
    };
    assert_eq!(
        sees(app.owner()).await,
        (json!(["create", "read", "decide", "gate"]), json!([])),
        "a key that may decide"
    );
    assert_eq!(
        sees(app.actor("alice-gate-012345678")).await,
        (json!(["read", "gate"]), json!(["all", "desk"]))
    );
    assert_eq!(
        sees(app.actor("carol-create-0123456")).await,
        (json!(["create", "read", "gate"]), json!(["all"]))
    );
    let edge = || {
        app.actor("edge-gate-0123456789")
            .header("holdpoint-user", "zoe")
    };
    assert_eq!(
        sees(edge()).await,
        (json!(["read", "gate"]), json!(["all"]))
    );
    assert_eq!(
        sees(edge().header("holdpoint-groups", "support")).await.1,
        json!(["all", "desk"])
    );
    let agents = app.owner().get("/v1/agents").await;
    let names = agents.texts("agents", "name");
    assert_eq!(names, ["billing"], "a gate is no agent of the list");
    let task = app
        .owner()
        .post("/v1/tasks", &json!({"input": "go", "agent": "all"}))
        .await;
    assert_eq!(task.status, 422, "{}", task.text);
    app.stop().await;
}
