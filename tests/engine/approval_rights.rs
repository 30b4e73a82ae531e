//! Tests that the rights of approvers are checked again when a call starts, because keys and groups
//! may have changed since the approval.

mod changed_rules;
mod required_approvals;

use std::sync::Arc;

use holdpoint::engine::{Engine, EngineParts, Refusal};
use holdpoint::people::authorization::Roster;
use holdpoint::people::directory::{Account, Directory};
use holdpoint::people::{Caller, Permissions};
use holdpoint::task::decision::Action;
use holdpoint::task::id::{CallId, RequestId, TaskId};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;

use super::call_decisions::{each, edit, last_open_request, question, ran_as, refused};
use super::engine_harness::{EngineHarness, decides, drive, person, superseding, whole};
use crate::store::store_fixture::{StoreFixture, both};

const LARGE: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":120}"#)];

const EDITED: &str = r#"{"order":1,"amount":44.40}"#;

/// Returns the account of a user with their own key.
pub fn account(user: &str, groups: &[&str]) -> Account {
    Account {
        user: user.to_owned(),
        tenant: "acme".to_owned(),
        groups: groups.iter().map(ToString::to_string).collect(),
        act_as: false,
        admin: false,
        permissions: Permissions::ALL,
        key_sha256: [0; 32],
    }
}

pub fn directory(accounts: impl Iterator<Item = Account>) -> Directory {
    Directory::new(accounts.collect())
}

fn web() -> Account {
    Account {
        act_as: true,
        ..account("web", &[])
    }
}

/// Returns a caller who uses their own key.
pub fn keyed(user: &str, groups: &[&str]) -> Caller {
    Caller {
        via: None,
        groups: groups.iter().map(ToString::to_string).collect(),
        ..person(user)
    }
}

/// Returns a user of the group finance. The user has no key; the service key `web` speaks for the
/// user.
fn vouched(user: &str) -> Caller {
    Caller {
        groups: vec!["finance".to_owned()],
        ..person(user)
    }
}

pub fn process(harness: &EngineHarness, roster: &Roster, room: usize) -> Arc<Engine> {
    Engine::new(EngineParts {
        roster: roster.clone(),
        ..harness.parts(room)
    })
}

pub fn known<const N: usize>(accounts: [Account; N]) -> Roster {
    Roster::new(Some(directory(accounts.into_iter())))
}

pub async fn driven(harness: &EngineHarness, roster: &Roster) {
    drive(&process(harness, roster, 4)).await;
}

async fn harness(fixture: StoreFixture, approvers: &str) -> EngineHarness {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    harness.replace("{ owner: true }", approvers);
    harness
}

async fn held_call(harness: &EngineHarness) -> (TaskId, RequestId, CallId) {
    let task = harness.held().await;
    let (request, calls) = question(harness, task).await;
    (task, request, calls[0])
}

/// Lets a member of finance, who uses their own key, decide a request.
async fn decided_by(
    harness: &EngineHarness,
    roster: &Roster,
    user: &str,
    request: RequestId,
    action: Action,
) {
    decides(
        &process(harness, roster, 0),
        &keyed(user, &["finance"]),
        request,
        whole(action, None),
    )
    .await;
}

/// Asserts that the call did not run and that a new request is open; returns the new request.
async fn asked_again(harness: &EngineHarness, task: TaskId, before: RequestId) -> RequestId {
    assert_eq!(harness.executions(task, "/refund"), 0);
    assert_eq!(harness.status(task).await, TaskStatus::Paused);
    let anew = last_open_request(harness, task).await;
    assert_ne!(anew.request_id, before);
    anew.request_id
}

async fn ran(harness: &EngineHarness, task: TaskId) {
    assert_eq!(harness.executions(task, "/refund"), 1);
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
}

#[apply(both)]
async fn stranger_moves_no_task_whatever_the_operation_asked_before(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, LARGE).await;
    let (task, api) = (harness.held().await, harness.engine(4));
    for said in [
        api.message(&person("bob"), task, superseding("and now"), None)
            .await,
        api.retry(&person("bob"), task, None).await,
        api.cancel(&person("bob"), task, None).await,
    ] {
        assert!(matches!(said, Err(Refusal::Forbidden(_))), "{said:?}");
    }
    assert_eq!(harness.status(task).await, TaskStatus::Paused);
}

#[apply(both)]
async fn approval_of_a_person_who_lost_the_right_since_does_not_count(fixture: StoreFixture) {
    let bob = || account("bob", &["finance"]);
    let table = [
        ("his key is gone", vec![]),
        ("his group is", vec![account("bob", &["support"])]),
        (
            "he may not decide any more",
            vec![Account {
                permissions: Permissions {
                    decide: false,
                    ..Permissions::ALL
                },
                ..bob()
            }],
        ),
        (
            "he is of another tenant",
            vec![Account {
                tenant: "other".to_owned(),
                ..bob()
            }],
        ),
    ];
    let harness = harness(fixture, "{ groups: [finance] }").await;
    let carol = account("carol", &["finance"]);
    let before = known([bob(), carol.clone()]);
    for (why, mut accounts) in table {
        let (task, request, _) = held_call(&harness).await;
        decided_by(&harness, &before, "bob", request, Action::Approve).await;
        accounts.push(carol.clone());
        let now = Roster::new(Some(directory(accounts.into_iter())));
        driven(&harness, &now).await;
        let anew = asked_again(&harness, task, request).await;
        let reason = last_open_request(&harness, task).await.pending_tool_calls[0]
            .reason
            .clone();
        assert!(
            reason.is_some_and(|reason| reason.contains("has lost the right")),
            "{why}"
        );
        decided_by(&harness, &now, "carol", anew, Action::Approve).await;
        driven(&harness, &now).await;
        ran(&harness, task).await;
    }
    let (task, request, _) = held_call(&harness).await;
    decided_by(&harness, &before, "bob", request, Action::Approve).await;
    driven(&harness, &known([account("bob", &["finance", "more"])])).await;
    ran(&harness, task).await;
}

#[apply(both)]
async fn retry_by_a_person_who_lost_the_right_since_asks_again_about_the_unknown_outcome(
    fixture: StoreFixture,
) {
    let harness = harness(fixture, "{ groups: [finance] }").await;
    let (bob, carol) = (account("bob", &["finance"]), account("carol", &["finance"]));
    let (before, now) = (known([bob, carol.clone()]), known([carol]));
    let (task, request, _) = held_call(&harness).await;
    harness.tool.answers(502, "");
    decided_by(&harness, &before, "bob", request, Action::Approve).await;
    driven(&harness, &before).await;
    let unknown = last_open_request(&harness, task).await;
    decided_by(&harness, &before, "bob", unknown.request_id, Action::Retry).await;
    driven(&harness, &now).await;
    let anew = last_open_request(&harness, task).await;
    assert_eq!(anew.kind, RequestKind::Reconcile);
    assert_eq!(anew.details, unknown.details);
    assert!(anew.request_id != unknown.request_id && harness.executions(task, "/refund") == 1);
    let reason = anew.pending_tool_calls[0]
        .reason
        .clone()
        .unwrap_or_default();
    for part in ["has lost the right", "may have taken effect"] {
        assert!(reason.contains(part), "{reason}");
    }
    harness.tool.answers(200, "paid");
    decided_by(&harness, &now, "carol", anew.request_id, Action::Retry).await;
    driven(&harness, &now).await;
    assert_eq!(harness.executions(task, "/refund"), 2);
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
}

#[apply(both)]
async fn approval_through_a_key_counts_only_while_that_key_may_speak_for_people(
    fixture: StoreFixture,
) {
    let harness = harness(fixture, "{ groups: [finance] }").await;
    let table = [
        (vec![web()], true),
        (vec![], false),
        (
            vec![Account {
                act_as: false,
                ..web()
            }],
            false,
        ),
        (
            vec![Account {
                permissions: Permissions {
                    decide: false,
                    ..Permissions::ALL
                },
                ..web()
            }],
            false,
        ),
        (
            vec![Account {
                tenant: "other".to_owned(),
                ..web()
            }],
            false,
        ),
        // Bob approved through the key `web`, which is now missing. Bob's own key does not replace
        // it, so the approval does not count.
        (vec![account("bob", &["finance"])], false),
    ];
    for (accounts, counts) in table {
        let (task, request, _) = held_call(&harness).await;
        harness
            .engine(0)
            .decide(&vouched("bob"), request, whole(Action::Approve, None), None)
            .await
            .unwrap();
        let what = format!("{accounts:?}");
        driven(
            &harness,
            &Roster::new(Some(directory(accounts.into_iter()))),
        )
        .await;
        if counts {
            ran(&harness, task).await;
        } else {
            asked_again(&harness, task, request).await;
            assert_eq!(harness.executions(task, "/refund"), 0, "{what}");
        }
    }
}

#[apply(both)]
async fn edit_of_a_person_who_is_gone_is_held_with_its_bytes(fixture: StoreFixture) {
    let harness = harness(fixture, "{ groups: [finance] }").await;
    let carol = account("carol", &["finance"]);
    let (task, request, call) = held_call(&harness).await;
    let before = known([account("bob", &["finance"]), carol.clone()]);
    decides(
        &process(&harness, &before, 0),
        &keyed("bob", &["finance"]),
        request,
        each([(call, edit(EDITED))]),
    )
    .await;
    let now = known([carol]);
    driven(&harness, &now).await;
    let anew = asked_again(&harness, task, request).await;
    assert_eq!(
        last_open_request(&harness, task).await.pending_tool_calls[0].arguments_text,
        EDITED
    );
    decided_by(&harness, &now, "carol", anew, Action::Approve).await;
    driven(&harness, &now).await;
    ran_as(&harness, task, "/refund", call, EDITED);
}

#[apply(both)]
async fn owner_does_not_count_as_a_member_of_a_group(fixture: StoreFixture) {
    let harness = harness(fixture, "{ groups: [finance], users: [alice] }").await;
    let (task, ..) = held_call(&harness).await;
    let api = harness.engine(0);
    for action in [Action::Approve, Action::Reject] {
        assert!(matches!(
            refused(&harness, &api, &vouched("alice"), task, whole(action, None)).await,
            Refusal::Forbidden(_)
        ));
    }
    // The roster counts a vote of Bob as a member of the group. It does not count the same vote
    // of Alice, who is the owner.
    let roster = known([web()]);
    let approvers = last_open_request(&harness, task).await.terms.approvers;
    let vote = |by: &str| holdpoint::task::decision::Vote {
        by: by.to_owned(),
        via: Some("web".to_owned()),
        groups: vec!["finance".to_owned()],
        door: None,
    };
    assert!(roster.still_counts("acme", "alice", &approvers, &vote("bob")));
    assert!(!roster.still_counts("acme", "alice", &approvers, &vote("alice")));
}
