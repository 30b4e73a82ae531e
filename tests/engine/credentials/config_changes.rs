//! Tests open credential requests after a change of the configuration. The new configuration has
//! other fields, receivers or wording for the credential, or a call that needs no credential.

use holdpoint::engine::Refusal;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{CloseReason, Fact, Outcome};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::{RequestStatus, TaskStatus};
use macro_rules_attribute::apply;
use serde_json::json;

use super::super::engine_harness::{
    EngineHarness, alice_decides, alice_is_refused, beyond_the_maximum, claimed, fills, kill,
    outcomes, turn,
};
use super::{ASKS_FOR_JIRA, TOKEN, clerk, commented, fill, jira, only_open_request, results};
use crate::store::store_fixture::{StoreFixture, both};

#[apply(both)]
async fn credential_request_whose_fields_or_receivers_changed_is_asked_anew(fixture: StoreFixture) {
    const MORE: (&str, &str) = (
        "email: { format: email },",
        "email: { format: email }, site: {},",
    );
    const RECEIVER: (&str, &str) = (
        "url: \"{tool}/plain\"",
        "url: \"{tool}/plain\", headers: { X: \"{{credential:jira.token}}\" }",
    );
    const CALL: &[(&str, &str)] = &[("comment", "{}")];
    const AGENT: &[(&str, &str)] = &[ASKS_FOR_JIRA];
    let mut harness = clerk(fixture, &[]).await;
    let before = harness.yaml();
    for calls in [CALL, AGENT] {
        for (from, to) in [MORE, RECEIVER, ("expires_in: 8h", "expires_in: 80h")] {
            harness.configure(|_| before.clone());
            harness.script(move |asked| Ok(turn(if asked == 1 { calls } else { &[] })));
            let task = harness.stopped().await;
            let old = only_open_request(&harness, task).await;
            harness.configure(|yaml| yaml.replacen(from, to, 1));
            let refused =
                alice_is_refused(&harness.engine(0), old.request_id, fills(&jira(TOKEN))).await;
            assert!(
                matches!(refused, Refusal::Withdrawn(_)),
                "{calls:?} {to}: {refused:?}"
            );
            let row = harness.fixture.request(old.request_id).await;
            assert_eq!(row.status, RequestStatus::Withdrawn);
            let items = harness.journal(task).await.items;
            let closed = |fact: &Fact| {
                matches!(
                    fact,
                    Fact::RequestClosed {
                        reason: CloseReason::ToolChanged,
                        ..
                    }
                )
            };
            assert!(items.iter().any(|item| closed(&item.fact)));
            harness.run().await;
            let anew = only_open_request(&harness, task).await;
            assert!(
                anew.request_id != old.request_id && anew.form != old.form,
                "{anew:?}"
            );
            harness.finish(task).await;
            assert_eq!(harness.status(task).await, TaskStatus::Completed);
        }
    }
}

#[apply(both)]
async fn credential_request_with_only_other_wording_is_not_withdrawn(fixture: StoreFixture) {
    let mut harness = clerk(fixture, &[&[("comment", "{}")]]).await;
    let task = harness.stopped().await;
    harness.configure(|yaml| {
        yaml.replace("Login of your Jira.", "The Jira login.")
            .replace("From your profile.", "A token.")
    });
    fill(&harness, task, &jira(TOKEN)).await;
    commented(&harness, task, TOKEN, 1).await;
}

#[apply(both)]
async fn call_that_no_longer_needs_a_credential_withdraws_the_request_and_runs(
    fixture: StoreFixture,
) {
    let mut harness = clerk(fixture, &[&[("find", "{}")]]).await;
    let task = harness.stopped().await;
    harness.replace(
        "{tool}/find/{{credential:crm.key}}?as={{credential:jira.email}}&all=1",
        "{tool}/find",
    );
    let old = only_open_request(&harness, task).await;
    let refused = alice_is_refused(
        &harness.engine(0),
        old.request_id,
        fills(&json!({"key": "k"})),
    )
    .await;
    assert!(matches!(refused, Refusal::Withdrawn(_)), "{refused:?}");
    harness.run().await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(harness.executions(task, "/find"), 1);
}

/// Loses the result of an idempotent call, whose credential then expires. Returns the harness and
/// the task, whose second attempt at the call waits for the credential.
async fn lost_call_without_its_credential(fixture: StoreFixture) -> (EngineHarness, TaskId) {
    let mut harness = clerk(fixture, &[&[("comment", "{}")]]).await;
    harness.replace("comment: { http:", "comment: { effect: idempotent, http:");
    harness.replace("expires_in: 8h", "expires_in: 1m");
    let task = harness.stopped().await;
    let request = only_open_request(&harness, task).await.request_id;
    harness.tool.close();
    alice_decides(&harness.engine(0), request, fills(&jira(TOKEN))).await;
    let drivers = claimed(&harness.engine(1)).await;
    harness.tool.reached(1).await;
    kill(drivers).await;
    harness.tool.open();
    harness.later();
    harness.run().await;
    assert_eq!(harness.executions(task, "/comment"), 1);
    (harness, task)
}

/// Asserts that a person is asked about the outcome of the call, and that the call is not repeated.
async fn is_asked_about(harness: &EngineHarness, task: TaskId) {
    harness.only_request(task, RequestKind::Reconcile).await;
    harness.finish(task).await;
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Responded]);
    assert_eq!(harness.executions(task, "/comment"), 1);
    assert_eq!(harness.executions(task, "/remark"), 0);
}

#[apply(both)]
async fn lost_call_whose_target_changes_after_its_credential_was_given_again_is_not_repeated(
    fixture: StoreFixture,
) {
    let (mut harness, task) = lost_call_without_its_credential(fixture).await;
    let request = only_open_request(&harness, task).await.request_id;
    alice_decides(&harness.engine(0), request, fills(&jira(TOKEN))).await;
    harness.replace("{tool}/comment", "{tool}/remark");
    harness.run().await;
    is_asked_about(&harness, task).await;
}

#[apply(both)]
async fn lost_call_whose_target_changes_while_it_waits_for_its_credential_is_not_repeated(
    fixture: StoreFixture,
) {
    let (mut harness, task) = lost_call_without_its_credential(fixture).await;
    let request = only_open_request(&harness, task).await.request_id;
    harness.replace("{tool}/comment", "{tool}/remark");
    let refused = alice_is_refused(&harness.engine(0), request, fills(&jira(TOKEN))).await;
    assert_eq!(refused, Refusal::Withdrawn(request));
    harness.run().await;
    is_asked_about(&harness, task).await;
}

#[apply(both)]
async fn credential_that_is_gone_before_its_request_can_be_opened_is_not_asked_for(
    fixture: StoreFixture,
) {
    const SPARE: (&str, &str) = ("request_credentials", r#"{"service":"spare"}"#);
    const CALLS: [(&str, &str); 21] = beyond_the_maximum(SPARE);
    let mut harness = clerk(fixture, &[&CALLS]).await;
    let more = "human: [guidance, credentials], limits: { max_calls: 32 }";
    harness.replace("human: [credentials]", more);
    let task = harness.held().await;
    let open = harness.open(task).await;
    assert_eq!(open.len(), 20);
    harness.replace("spare:", "extra:");
    let said = fills(&json!({"answer": "so"}));
    alice_decides(&harness.engine(0), open[0].0, said).await;
    harness.run().await;
    let open = harness.open(task).await.into_iter();
    let kinds: Vec<_> = open.map(|(_, kind)| kind).collect();
    assert_eq!(kinds, [RequestKind::Guidance; 19]);
    let mut ended = results(&harness, task).await;
    ended.retain(|(name, ..)| name == "request_credentials");
    let [(_, outcome, text)] = &ended[..] else {
        panic!("one result: {ended:?}")
    };
    assert_eq!(*outcome, Outcome::Invalid);
    assert!(text.contains("`service` is not one of"), "{text}");
}

#[apply(both)]
async fn result_of_a_call_whose_credential_is_gone_comes_before_the_request_of_another(
    fixture: StoreFixture,
) {
    let mut harness = clerk(fixture, &[&[("comment", "{}"), ("look", "{}")]]).await;
    // Repeatable calls start together.
    harness.replace("comment: { http:", "comment: { effect: read_only, http:");
    let task = harness.queued().await;
    // The task keeps its agent, which has the tool `look`. No tool of the present one takes `crm`.
    harness.replace("find, look, peek, plain]", "plain]");
    harness.run().await;
    let items = harness.journal(task).await.items;
    let names = items.iter().map(|item| item.fact.type_name());
    let compared = ["tool_result", "intervention_requested"];
    let order: Vec<_> = names.filter(|name| compared.contains(name)).collect();
    assert_eq!(order, compared);
    fill(&harness, task, &jira(TOKEN)).await;
    let outcomes = outcomes(&harness.journal(task).await);
    assert_eq!(outcomes, [Outcome::Invalid, Outcome::Succeeded]);
}
