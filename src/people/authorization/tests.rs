//! Tests which rights callers have, and which earlier approvals still count.

use super::*;
use crate::people::Permissions;
use crate::people::directory::Account;
use crate::people::language::Language;
use crate::people::link::LinkRight;
use crate::task::id::RequestId;
use crate::task::request::RequestKind;
use crate::task::verdict::Terms;
use uuid::Uuid;

const READ: Permissions = Permissions {
    create: false,
    read: true,
    decide: false,
    gate: false,
};
const DECIDE: Permissions = Permissions {
    create: false,
    read: false,
    decide: true,
    gate: false,
};
const CREATE: Permissions = Permissions {
    create: true,
    read: false,
    decide: false,
    gate: true,
};

fn caller(
    user: &str,
    tenant: &str,
    groups: &[&str],
    admin: bool,
    permissions: Permissions,
) -> Caller {
    Caller {
        user_id: user.into(),
        tenant: tenant.to_owned(),
        groups: groups.iter().map(ToString::to_string).collect(),
        via: None,
        door: Some(Door::Key),
        admin,
        permissions,
        without_accounts: user == "local",
    }
}

fn approvers(owner: bool, users: &[&str], groups: &[&str]) -> Approvers {
    Approvers {
        owner,
        users: users.iter().map(ToString::to_string).collect(),
        groups: groups.iter().map(ToString::to_string).collect(),
        required: 1,
        links: None,
    }
}

#[test]
fn rule_decides_who_may_decide_for_every_person() {
    let owner = caller("alice", "acme", &["finance"], false, Permissions::ALL);
    let named = caller("bob", "acme", &[], false, Permissions::ALL);
    let member = caller("carol", "acme", &["finance"], false, Permissions::ALL);
    let admin = caller("ops", "acme", &[], true, Permissions::ALL);
    let foreign = caller("alice", "other", &["finance"], true, Permissions::ALL);
    let reader = caller("dave", "acme", &["finance"], false, READ);
    let local = caller("local", "acme", &[], false, Permissions::ALL);
    let table = [
        // Columns: the approvers; whether the callers `owner`, `named`, `member`, `admin`,
        // `foreign`, `reader` and `local` may decide.
        (
            approvers(true, &[], &[]),
            [true, false, false, false, false, false, true],
        ),
        (
            approvers(false, &["bob"], &["finance"]),
            [false, true, true, false, false, false, true],
        ),
        (
            approvers(true, &[], &["finance"]),
            [true, false, true, false, false, false, true],
        ),
        (
            approvers(false, &["alice"], &[]),
            [false, false, false, false, false, false, true],
        ),
        (
            approvers(false, &[], &[]),
            [false, false, false, false, false, false, true],
        ),
    ];
    for (approvers, expected) in table {
        let people = [&owner, &named, &member, &admin, &foreign, &reader, &local];
        let found = people.map(|person| may_decide(person, "acme", "alice", &approvers).is_some());
        assert_eq!(found, expected, "{approvers:?}");
    }
}

#[test]
fn reading_and_moving_a_tree_follow_role_and_rights() {
    let cases = [
        // Columns: the caller; whether the caller is involved; whether the caller may
        // - read,
        // - message, cancel and retry while the owner may use the agent,
        // - message, cancel and retry while the owner may not use the agent.
        (
            caller("alice", "acme", &[], false, Permissions::ALL),
            false,
            [true, true, true, true, false, true, false],
        ),
        (
            caller("ALICE", "acme", &[], false, Permissions::ALL),
            false,
            [true, true, true, true, false, true, false],
        ),
        (
            caller("bob", "acme", &[], false, Permissions::ALL),
            false,
            [false; 7],
        ),
        (
            caller("bob", "acme", &[], false, Permissions::ALL),
            true,
            [true, false, false, false, false, false, false],
        ),
        (
            caller("ops", "acme", &[], true, Permissions::ALL),
            false,
            [true, false, true, true, false, true, true],
        ),
        (
            caller("ops", "acme", &[], true, READ),
            false,
            [true, false, false, false, false, false, false],
        ),
        (
            caller("alice", "acme", &[], true, Permissions::ALL),
            false,
            [true, true, true, true, false, true, true],
        ),
        (
            caller("alice", "acme", &[], false, DECIDE),
            false,
            [false; 7],
        ),
        (
            caller("alice", "acme", &[], false, DECIDE),
            true,
            [true, false, false, false, false, false, false],
        ),
        (
            caller("alice", "acme", &[], false, CREATE),
            true,
            [false, true, true, true, false, true, false],
        ),
        (
            caller("alice", "other", &[], true, Permissions::ALL),
            true,
            [false; 7],
        ),
    ];
    let moves = [true, false]
        .map(|open| [Command::Message, Command::Cancel, Command::Retry].map(|how| (how, open)));
    for (who, involved, expected) in cases {
        let moves = moves
            .iter()
            .flatten()
            .map(|(how, open)| may_command(&who, *how, "acme", "alice", *open).is_ok());
        let found: Vec<_> = [may_read(&who, "acme", "alice", involved)]
            .into_iter()
            .chain(moves)
            .collect();
        assert_eq!(found, expected, "{who:?} {involved}");
    }
}

#[test]
fn other_spelling_of_the_owner_is_the_owner() {
    let table = [
        // Columns: the approvers; whether `ALICE`, `Bob` and `dave` may decide. `ALICE` is another
        // spelling of the owner's id, `alice`.
        (approvers(true, &[], &["finance"]), [true, false, false]),
        (
            approvers(false, &["alice", "BOB"], &[]),
            [false, true, false],
        ),
        (
            approvers(false, &["Alice", "bob"], &["finance"]),
            [false, true, false],
        ),
    ];
    for (approvers, expected) in table {
        let people = [("ALICE", &["finance"][..]), ("Bob", &[]), ("dave", &[])];
        let found = people.map(|(user, groups)| {
            may_decide(
                &caller(user, "acme", groups, false, Permissions::ALL),
                "acme",
                "alice",
                &approvers,
            )
            .is_some()
        });
        assert_eq!(found, expected, "{approvers:?}");
    }
}

#[test]
fn exact_ids_differ_in_case() {
    let exact = |user: &str| Caller {
        user_id: UserIds::Exact.id(user),
        ..caller("", "acme", &[], false, Permissions::ALL)
    };
    let approvers = approvers(false, &["bob"], &[]);
    assert!(may_decide(&exact("bob"), "acme", "alice", &approvers).is_some());
    assert!(may_decide(&exact("Bob"), "acme", "alice", &approvers).is_none());
    assert!(
        may_read(&exact("alice"), "acme", "alice", false)
            && !may_read(&exact("Alice"), "acme", "alice", false)
    );
}

#[test]
fn two_spellings_are_one_approval_and_an_editors_is_none() {
    let account = |user: &str| Account {
        user: user.to_owned(),
        tenant: "acme".to_owned(),
        groups: vec!["finance".to_owned()],
        act_as: user == "web",
        admin: false,
        permissions: Permissions::ALL,
        key_sha256: crate::people::directory::hash_key(user),
    };
    let accounts = ["bob", "eve", "web"].map(account).to_vec();
    let folded = Roster::new(Some(Directory::new(accounts.clone())));
    let exact = Roster::new(Some(Directory::new(accounts).with_user_ids(UserIds::Exact)));
    let finance = Approvers {
        required: 2,
        ..approvers(false, &[], &["finance"])
    };
    let votes = |users: &[&str]| -> Vec<Vote> {
        let groups = vec!["finance".to_owned()];
        users
            .iter()
            .map(|user| Vote {
                by: (*user).to_owned(),
                via: Some("WEB".to_owned()),
                groups: groups.clone(),
                door: Some(Door::Key),
            })
            .collect()
    };
    let suffice = |roster: &Roster, users: &[&str], editor: Option<&str>| {
        let edited = editor.map(|editor| edited_by(editor, false));
        roster.votes_suffice("acme", "alice", &finance, &votes(users), edited.as_ref())
    };
    assert!(
        suffice(&folded, &["bob", "Eve"], None) && !suffice(&folded, &["bob", "Bob", "BOB"], None)
    );
    assert!(
        !suffice(&folded, &["alice", "bob"], None) && !suffice(&folded, &["Alice", "bob"], None)
    );
    assert!(!suffice(&folded, &["bob", "eve"], Some("Eve")));
    let one = approvers(false, &[], &["finance"]);
    let alone = |roster: &Roster, needs_others| {
        let edited = edited_by("Eve", needs_others);
        roster.votes_suffice("acme", "alice", &one, &votes(&["eve"]), Some(&edited))
    };
    assert!(alone(&folded, false) && !alone(&folded, true));
    assert!(
        !suffice(&exact, &["bob", "Bob"], None),
        "under exact ids WEB is not the key that vouches"
    );
}

fn edited_by(editor: &str, needs_others: bool) -> EditedArguments {
    EditedArguments {
        arguments_text: "{}".to_owned(),
        by: editor.to_owned(),
        needs_others,
    }
}

/// Returns a roster whose only person is Dora, who has no key and is in these groups. The links in
/// messages give the permission `links`.
fn dora(links: Option<LinkRight>, groups: &[&str]) -> Roster {
    let person = Person {
        user: "Dora".to_owned(),
        tenant: "acme".to_owned(),
        groups: groups.iter().map(ToString::to_string).collect(),
        email: Some("dora@acme.com".to_owned()),
        language: Language::English,
    };
    let directory = Directory::new(Vec::new()).with_links(links);
    Roster::new(Some(directory.with_people(vec![person])))
}

#[test]
fn vote_by_link_counts_only_while_its_person_the_links_and_the_rule_let_it() {
    let decide = Some(LinkRight::Decide);
    let finance = approvers(false, &[], &["finance"]);
    let rule = |links, required| Approvers {
        required,
        links,
        ..finance.clone()
    };
    let vote = |by: &str, door| Vote {
        by: by.to_owned(),
        via: None,
        groups: Vec::new(),
        door,
    };
    for (links, groups, approvers, by, door, expected) in [
        (decide, "finance", rule(None, 1), "dora", Door::Link, true),
        (
            decide,
            "finance",
            rule(Some(true), 2),
            "dora",
            Door::Link,
            true,
        ),
        (decide, "finance", rule(None, 2), "dora", Door::Link, false),
        (
            decide,
            "finance",
            rule(Some(false), 1),
            "dora",
            Door::Link,
            false,
        ),
        (decide, "sales", rule(None, 1), "dora", Door::Link, false),
        (decide, "finance", rule(None, 1), "zoe", Door::Link, false),
        (
            Some(LinkRight::Open),
            "finance",
            rule(None, 1),
            "dora",
            Door::Link,
            false,
        ),
        (None, "finance", rule(None, 1), "dora", Door::Link, false),
        (decide, "finance", rule(None, 1), "dora", Door::Key, false),
        (
            decide,
            "finance",
            rule(None, 1),
            "dora",
            Door::Session,
            false,
        ),
    ] {
        let roster = dora(links, &[groups]);
        let counts =
            |tenant| roster.still_counts(tenant, "alice", &approvers, &vote(by, Some(door)));
        assert_eq!(
            counts("acme"),
            expected,
            "{links:?} {groups} {approvers:?} {by} {door:?}"
        );
        assert!(!counts("other"));
        let owners = roster.still_counts("acme", "dora", &approvers, &vote(by, Some(door)));
        assert!(!owners, "the owner is no approver");
    }
}

/// Returns a request of this kind for the group `finance`, whose rule allows these actions.
fn asked_of_finance(kind: RequestKind, allow: &[Action]) -> RequestSpec {
    RequestSpec {
        request_id: RequestId(Uuid::nil()),
        kind,
        pending_tool_calls: Vec::new(),
        terms: Terms {
            approvers: approvers(false, &[], &["finance"]),
            allow: allow.to_vec(),
            ..Terms::default()
        },
        digest: String::new(),
        question: None,
        details: None,
        form: None,
        elicitation: None,
        seal: None,
    }
}

#[test]
fn person_of_a_link_takes_only_the_actions_that_links_take() {
    let roster = dora(Some(LinkRight::Decide), &["finance"]);
    let (person, caller) = roster.link_caller("acme", "DORA").unwrap();
    assert_eq!(
        (person.user.as_str(), roster.link_caller("other", "dora")),
        ("Dora", None)
    );
    for kind in RequestKind::ALL {
        let asked = asked_of_finance(kind, &Terms::default().allow);
        let found = permitted_actions(&roster, &caller, "acme", "alice", &asked);
        let mut expected = kind.properties().link_actions.to_vec();
        expected.sort_unstable();
        let mut sorted = found.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, expected, "{kind:?}");
        assert_eq!(may_take_any_action(&caller, &asked), !found.is_empty());
    }
    let kept = Approvers {
        links: Some(false),
        ..approvers(false, &[], &["finance"])
    };
    assert!(may_decide(&caller, "acme", "alice", &kept).is_none());
    assert!(is_approver(&caller, "acme", "alice", &kept));
    assert!(
        !is_approver(&caller, "acme", "dora", &kept)
            && !is_approver(&caller, "other", "alice", &kept)
    );
}

#[test]
fn person_of_a_link_can_answer_an_approval_only_if_the_rule_allows_an_action_of_links() {
    let roster = dora(Some(LinkRight::Decide), &["finance"]);
    let (_, by_link) = roster.link_caller("acme", "dora").unwrap();
    let by_key = Caller {
        door: Some(Door::Key),
        ..by_link.clone()
    };
    for (allow, taken) in [
        (&[Action::Approve][..], &[Action::Approve][..]),
        (&[Action::Edit, Action::Reject], &[Action::Reject]),
        (&[Action::Edit, Action::Respond], &[]),
    ] {
        let approval = asked_of_finance(RequestKind::Approval, allow);
        let found = permitted_actions(&roster, &by_link, "acme", "alice", &approval);
        assert_eq!(found, taken, "{allow:?}");
        let can_answer = may_take_any_action(&by_link, &approval);
        assert_eq!(can_answer, !taken.is_empty(), "{allow:?}");
        assert!(may_take_any_action(&by_key, &approval), "{allow:?}");
        let guidance = asked_of_finance(RequestKind::Guidance, allow);
        assert!(may_take_any_action(&by_link, &guidance), "{allow:?}");
    }
}

#[test]
fn key_that_may_decide_proposes_no_calls_at_gates_except_without_accounts() {
    let gate = Permissions { gate: true, ..READ };
    let both = Permissions {
        gate: true,
        ..DECIDE
    };
    for (may, refused) in [
        (gate, None),
        (CREATE, None),
        (READ, Some("has no `gate`")),
        (DECIDE, Some("has no `gate`")),
        (both, Some("must not be able to approve its own calls")),
        (
            Permissions::ALL,
            Some("must not be able to approve its own calls"),
        ),
    ] {
        for door in [Door::Key, Door::Session, Door::Link, Door::Slack] {
            let refused = match door {
                Door::Link | Door::Slack => {
                    Some("may not propose calls at gates: that needs a key")
                }
                Door::Key | Door::Session => refused,
            };
            let caller = Caller {
                door: Some(door),
                ..caller("ai", "acme", &[], true, may)
            };
            let found = may_ask_at_gate(&caller).err();
            assert_eq!(found.is_some(), refused.is_some(), "{may:?} {door:?}");
            let (found, refused) = (found.unwrap_or(""), refused.unwrap_or(""));
            assert!(found.contains(refused), "{may:?} {door:?}: {found}");
        }
    }
    let local = caller("local", "default", &[], false, Permissions::ALL);
    assert_eq!(may_ask_at_gate(&local), Ok(()));
}
