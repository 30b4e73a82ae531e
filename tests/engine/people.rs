//! The rights of approvers are checked again when a call starts: keys, groups and rules may have
//! changed since the approval.

use std::sync::Arc;

use holdpoint::engine::{Engine, Parts, Refusal};
use holdpoint::people::directory::{Account, Directory};
use holdpoint::people::may::Roster;
use holdpoint::people::{Caller, May};
use holdpoint::task::decision::Action;
use holdpoint::task::id::{CallId, RequestId, TaskId};
use holdpoint::task::item::Outcome;
use holdpoint::task::status::TaskStatus;

use super::replies::{
    approve, asked, became, bodies, each, edit, message, question, refused, respond,
};
use super::stage::{Stage, alice, go, person, too_late, whole};
use crate::store::house::{House, both};

const LARGE: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":120}"#)];
const EDITED: &str = r#"{"order":1,"amount":44.40}"#;

/// A user with a key of their own.
pub fn account(user: &str, groups: &[&str]) -> Account {
    Account {
        user: user.to_owned(),
        tenant: "acme".to_owned(),
        groups: groups.iter().map(ToString::to_string).collect(),
        act_as: false,
        admin: false,
        may: May::ALL,
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

/// A caller with their own key.
fn keyed(user: &str, groups: &[&str]) -> Caller {
    Caller {
        via: None,
        groups: groups.iter().map(ToString::to_string).collect(),
        ..person(user)
    }
}

/// A user in finance for whom the key `web` speaks.
fn vouched(user: &str) -> Caller {
    Caller {
        groups: vec!["finance".to_owned()],
        ..person(user)
    }
}

fn local() -> Caller {
    Caller {
        unaccounted: true,
        ..keyed("local", &[])
    }
}

/// An engine with this roster.
fn process(stage: &Stage, roster: &Roster, room: usize) -> Arc<Engine> {
    Engine::new(Parts {
        roster: roster.clone(),
        ..stage.parts(room)
    })
}

fn known<const N: usize>(accounts: [Account; N]) -> Roster {
    Roster::new(Some(directory(accounts.into_iter())))
}

async fn driven(stage: &Stage, roster: &Roster) {
    for driver in process(stage, roster, 4).claim().await.unwrap() {
        driver.await;
    }
}

async fn stage(house: House, approvers: &str) -> Stage {
    let mut stage = Stage::set(house, LARGE).await;
    stage.configure(|yaml| yaml.replace("{ owner: true }", approvers));
    stage
}

async fn begun(stage: &Stage) -> (TaskId, RequestId, CallId) {
    let task = stage.held().await;
    let (request, calls) = question(stage, task).await;
    (task, request, calls[0])
}

/// The call did not run, and a new request is open.
async fn asked_again(stage: &Stage, task: TaskId, before: RequestId) -> RequestId {
    assert_eq!(
        (stage.executions(task, "/refund"), stage.status(task).await),
        (0, TaskStatus::Paused)
    );
    let anew = asked(stage, task).await;
    assert_ne!(anew.request_id, before);
    anew.request_id
}

async fn ran(stage: &Stage, task: TaskId) {
    assert_eq!(
        (stage.executions(task, "/refund"), stage.status(task).await),
        (1, TaskStatus::Completed)
    );
}

both! {
    async fn stranger_moves_no_task_whatever_the_operation_asked_before(house) {
        let stage = Stage::set(house, LARGE).await;
        let (task, door) = (stage.held().await, stage.engine(4));
        for said in [
            door.message(&person("bob"), task, message(), None).await,
            door.retry(&person("bob"), task, None).await,
            door.cancel(&person("bob"), task, None).await,
        ] {
            assert!(matches!(said, Err(Refusal::Forbidden(_))), "{said:?}");
        }
        assert_eq!(stage.status(task).await, TaskStatus::Paused);
    }

    async fn approval_of_a_person_who_lost_the_right_since_does_not_count(house) {
        let bob = || account("bob", &["finance"]);
        let table = [
            ("his key is gone", vec![]),
            ("his group is", vec![account("bob", &["support"])]),
            ("he may not decide any more", vec![Account { may: May { decide: false, ..May::ALL }, ..bob() }]),
            ("he is of another tenant", vec![Account { tenant: "other".to_owned(), ..bob() }]),
        ];
        let stage = stage(house, "{ groups: [finance] }").await;
        let carol = account("carol", &["finance"]);
        let before = known([bob(), carol.clone()]);
        for (why, mut accounts) in table {
            let (task, request, _) = begun(&stage).await;
            let yes = whole(Action::Approve, None);
            process(&stage, &before, 0).decide(&keyed("bob", &["finance"]), request, yes.clone(), None).await.unwrap();
            accounts.push(carol.clone());
            let now = Roster::new(Some(directory(accounts.into_iter())));
            driven(&stage, &now).await;
            let anew = asked_again(&stage, task, request).await;
            let reason = asked(&stage, task).await.pending_tool_calls[0].reason.clone();
            assert!(reason.is_some_and(|reason| reason.contains("has lost the right")), "{why}");
            process(&stage, &now, 0).decide(&keyed("carol", &["finance"]), anew, yes, None).await.unwrap();
            driven(&stage, &now).await;
            ran(&stage, task).await;
        }
        let (task, request, _) = begun(&stage).await;
        process(&stage, &before, 0).decide(&keyed("bob", &["finance"]), request, whole(Action::Approve, None), None).await.unwrap();
        driven(&stage, &known([account("bob", &["finance", "more"])])).await;
        ran(&stage, task).await;
    }

    async fn approval_through_a_key_counts_only_while_that_key_may_speak_for_people(house) {
        let stage = stage(house, "{ groups: [finance] }").await;
        let table = [
            (vec![web()], true),
            (vec![], false),
            (vec![Account { act_as: false, ..web() }], false),
            (vec![Account { may: May { decide: false, ..May::ALL }, ..web() }], false),
            (vec![Account { tenant: "other".to_owned(), ..web() }], false),
            // Bob's own key does not vouch for an approval given through `web`.
            (vec![account("bob", &["finance"])], false),
        ];
        for (accounts, counts) in table {
            let (task, request, _) = begun(&stage).await;
            stage.engine(0).decide(&vouched("bob"), request, whole(Action::Approve, None), None).await.unwrap();
            let what = format!("{accounts:?}");
            driven(&stage, &Roster::new(Some(directory(accounts.into_iter())))).await;
            if counts {
                ran(&stage, task).await;
            } else {
                asked_again(&stage, task, request).await;
                assert_eq!(stage.executions(task, "/refund"), 0, "{what}");
            }
        }
    }

    async fn two_required_approvals_are_asked_anew_when_one_approver_is_gone(house) {
        let stage = stage(house, "{ groups: [finance], required: 2 }").await;
        let (bob, carol) = (account("bob", &["finance"]), account("carol", &["finance"]));
        let before = known([bob.clone(), carol.clone(), account("dave", &["finance"])]);
        for (now, stands) in [(known([bob.clone(), carol.clone()]), true), (known([bob, account("dave", &["finance"])]), false)] {
            let (task, request, _) = begun(&stage).await;
            for user in ["bob", "carol"] {
                process(&stage, &before, 0).decide(&keyed(user, &["finance"]), request, whole(Action::Approve, None), None).await.unwrap();
            }
            driven(&stage, &now).await;
            if stands {
                ran(&stage, task).await;
                continue;
            }
            // The new request starts without approvals.
            let anew = asked_again(&stage, task, request).await;
            process(&stage, &now, 0).decide(&keyed("bob", &["finance"]), anew, whole(Action::Approve, None), None).await.unwrap();
            assert!(process(&stage, &now, 1).claim().await.unwrap().is_empty());
            process(&stage, &now, 0).decide(&keyed("dave", &["finance"]), anew, whole(Action::Approve, None), None).await.unwrap();
            driven(&stage, &now).await;
            ran(&stage, task).await;
        }
    }

    async fn edit_of_a_person_who_is_gone_is_held_with_its_bytes(house) {
        let stage = stage(house, "{ groups: [finance] }").await;
        let carol = account("carol", &["finance"]);
        let (task, request, call) = begun(&stage).await;
        let before = known([account("bob", &["finance"]), carol.clone()]);
        process(&stage, &before, 0).decide(&keyed("bob", &["finance"]), request, each([(call, edit(EDITED))]), None).await.unwrap();
        let now = known([carol]);
        driven(&stage, &now).await;
        let anew = asked_again(&stage, task, request).await;
        assert_eq!(asked(&stage, task).await.pending_tool_calls[0].arguments_text, EDITED);
        process(&stage, &now, 0).decide(&keyed("carol", &["finance"]), anew, whole(Action::Approve, None), None).await.unwrap();
        driven(&stage, &now).await;
        assert_eq!(bodies(&stage, task, "/refund"), [(call.to_string(), EDITED.to_owned())]);
    }

    async fn changed_rule_asks_again_unless_those_who_approved_are_among_its_approvers(house) {
        let table = [
            ("{ users: [bob] }", true),
            ("{ users: [carol], groups: [finance] }", true),
            ("{ users: [carol] }", false),
            ("{ groups: [audit] }", false),
            ("{ groups: [finance], required: 2 }", false),
            ("{ owner: true }", false),
        ];
        for (approvers, stands) in table {
            let mut stage = stage(House::like(&house).await, "{ groups: [finance] }").await;
            let (task, request, _) = begun(&stage).await;
            stage.engine(0).decide(&vouched("bob"), request, whole(Action::Approve, None), None).await.unwrap();
            stage.configure(|yaml| yaml.replace("{ groups: [finance] }", approvers));
            stage.run().await;
            if stands {
                ran(&stage, task).await;
            } else {
                asked_again(&stage, task, request).await;
                let terms = asked(&stage, task).await.terms.approvers;
                assert!(!terms.groups.contains(&"finance".to_owned()) || terms.required == 2, "the terms of today: {terms:?}");
            }
        }
    }

    async fn rule_that_denies_since_the_approval_denies_the_call(house) {
        let mut stage = stage(house, "{ owner: true }").await;
        let (task, request, call) = begun(&stage).await;
        stage.configure(|yaml| yaml.replace("policy:\n", "policy:\n  - { name: stop, tools: [refund], decide: deny, reason: Not today. }\n"));
        stage.engine(0).decide(&alice(), request, whole(Action::Approve, None), None).await.unwrap();
        stage.run().await;
        assert_eq!((stage.executions(task, "/refund"), became(&stage, task, [call]).await), (0, [Some(Outcome::Denied)]));
        assert!(super::replies::shown(&stage)[0].contains("Not today"));
    }

    async fn owner_does_not_count_as_a_member_of_a_group(house) {
        let stage = stage(house, "{ groups: [finance], users: [alice] }").await;
        let (task, ..) = begun(&stage).await;
        let door = stage.engine(0);
        for action in [Action::Approve, Action::Reject] {
            assert!(matches!(refused(&stage, &door, &vouched("alice"), task, whole(action, None)).await, Refusal::Forbidden(_)));
        }
        // An earlier vote of the owner in the journal does not count either.
        let roster = known([web()]);
        let approvers = asked(&stage, task).await.terms.approvers;
        let vote = |by: &str| holdpoint::task::decision::Vote { by: by.to_owned(), via: Some("web".to_owned()), groups: vec!["finance".to_owned()] };
        assert!(roster.still_counts("acme", "alice", &approvers, &vote("bob")));
        assert!(!roster.still_counts("acme", "alice", &approvers, &vote("alice")));
    }

    async fn second_answer_of_one_person_is_refused_and_one_rejection_decides(house) {
        let stage = stage(house, "{ groups: [finance], required: 3 }").await;
        let (task, request, call) = begun(&stage).await;
        let door = stage.engine(0);
        door.decide(&vouched("bob"), request, whole(Action::Approve, None), None).await.unwrap();
        for again in [whole(Action::Approve, None), whole(Action::Reject, None), each([(call, approve())]), each([(call, edit(EDITED))])] {
            // The same person through another key is still the same person.
            for caller in [vouched("bob"), keyed("bob", &["finance"])] {
                let lost = Refusal::AlreadyDecided { request, call: Some(call) };
                assert_eq!(refused(&stage, &door, &caller, task, again.clone()).await, lost);
            }
        }
        door.decide(&vouched("carol"), request, whole(Action::Approve, None), None).await.unwrap();
        assert!(stage.engine(1).claim().await.unwrap().is_empty(), "two of three");
        door.decide(&vouched("dave"), request, whole(Action::Reject, None), None).await.unwrap();
        assert_eq!((stage.status(task).await, stage.executions(task, "/refund")), (TaskStatus::Canceled, 0));
        let late = door.decide(&vouched("erin"), request, whole(Action::Approve, None), None).await;
        assert!(too_late(&late, request));
    }

    async fn single_approval_suffices_without_accounts_where_two_are_required(house) {
        let stage = stage(house, "{ groups: [finance], required: 2 }").await;
        let nobody = Roster::default();
        let by_hand = "\"by hand\"";
        for (reply, outcome, ran_with) in [
            (approve(), Outcome::Succeeded, vec![LARGE[0].1.to_owned()]),
            (edit(EDITED), Outcome::Succeeded, vec![EDITED.to_owned()]),
            (respond(by_hand), Outcome::Responded, vec![]),
        ] {
            let task = process(&stage, &nobody, 0).create(&local(), go(), None).await.unwrap().task_id;
            driven(&stage, &nobody).await;
            let (request, calls) = question(&stage, task).await;
            process(&stage, &nobody, 0).decide(&local(), request, each([(calls[0], reply)]), None).await.unwrap();
            driven(&stage, &nobody).await;
            assert_eq!((stage.status(task).await, became(&stage, task, [calls[0]]).await), (TaskStatus::Completed, [Some(outcome)]));
            let bodies: Vec<_> = bodies(&stage, task, "/refund").into_iter().map(|(_, body)| body).collect();
            assert_eq!(bodies, ran_with);
        }
        // Approvals given with accounts do not count without accounts, and the reverse.
        let (task, request, _) = begun(&stage).await;
        for user in ["bob", "carol"] {
            stage.engine(0).decide(&vouched(user), request, whole(Action::Approve, None), None).await.unwrap();
        }
        driven(&stage, &nobody).await;
        asked_again(&stage, task, request).await;
        let task = process(&stage, &nobody, 0).create(&local(), go(), None).await.unwrap().task_id;
        driven(&stage, &nobody).await;
        let (request, _) = question(&stage, task).await;
        process(&stage, &nobody, 0).decide(&local(), request, whole(Action::Approve, None), None).await.unwrap();
        stage.run().await;
        asked_again(&stage, task, request).await;
    }
}
