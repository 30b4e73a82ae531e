//! Tests of standing decisions in a tree of agents: a standing decision that is given in one task
//! of the tree counts in all tasks of the tree.

use macro_rules_attribute::apply;
use serde_json::json;

use super::super::approval_cycle::on_both;
use super::super::request_kinds::items;
use super::{assert_asks, id, only, open, paused, pays, trees, turn, typed};
use crate::support::test_app::On;

/// A rule that holds large refunds and lets an approver remember an approval for the tree.
const KEPT: &str = "  - { name: kept, tools: [refund], when: \"args.amount > 20.0\", decide: hold, \
                    remember: { when: \"args.amount <= 500.0\", for: [task], most: 1h, uses: 9 } }\n";

#[apply(on_both)]
async fn standing_decision_of_one_sub_agent_counts_for_its_sibling_until_the_users_next_message(
    on: On,
) {
    let app = trees(on, KEPT).await;
    let root = paused(
        &app,
        &[
            turn(&[pays("analyst", 1)]),
            turn(&[pays("clerk", 2)]),
            json!("ok"),
        ],
    )
    .await;
    let root_id = root.str("/task_id");
    let body = json!({"action": "approve", "remember": {"for": "task", "expires_in": "1h"}});
    let end = app.owner().answer(&open(&root)[0].1, &body).await;
    end.about(&"asked once only")
        .assert_status(200, "Completed");
    let grant = app.owner().get("/v1/grants").await.body["grants"][0].clone();
    let said = ["rule", "agent", "task_id", "used", "ended"].map(|member| &grant[member]);
    assert_eq!(
        said,
        [
            &json!("kept"),
            &json!("supervisor"),
            &json!(root_id),
            &json!(1),
            &json!(null)
        ]
    );
    let journal = items(&app, &id(&only(&app, &root_id, "clerk").await)).await;
    let judged = typed(&journal, "judged")[0];
    let verdict = ["verdict", "rule", "grant_id"].map(|member| &judged[member]);
    assert_eq!(
        verdict,
        [&json!("allow"), &json!("kept"), &grant["grant_id"]]
    );
    assert_eq!(app.tool.ledger().len(), 2);

    let more = json!({"input": json!([turn(&[pays("clerk", 3)]), "ok"]).to_string()});
    let asks = app.owner().message(&root_id, &more).await;
    assert_asks(&asks, 1);
    assert_eq!(
        app.owner().get("/v1/grants").await.str("/grants/0/ended"),
        "message"
    );
    assert_eq!(app.tool.ledger().len(), 2);
    app.stop().await;
}
