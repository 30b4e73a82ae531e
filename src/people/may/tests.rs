//! Rights of callers, and approvals that still count.

use super::*;
use crate::people::May;
use crate::people::directory::Account;

const READ: May = May {
    create: false,
    read: true,
    decide: false,
};
const DECIDE: May = May {
    create: false,
    read: false,
    decide: true,
};
const CREATE: May = May {
    create: true,
    read: false,
    decide: false,
};

fn caller(user: &str, tenant: &str, groups: &[&str], admin: bool, may: May) -> Caller {
    Caller {
        user_id: user.into(),
        tenant: tenant.to_owned(),
        groups: groups.iter().map(ToString::to_string).collect(),
        via: None,
        door: Some(Door::Key),
        admin,
        may,
        unaccounted: user == "local",
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
    let owner = caller("alice", "acme", &["finance"], false, May::ALL);
    let named = caller("bob", "acme", &[], false, May::ALL);
    let member = caller("carol", "acme", &["finance"], false, May::ALL);
    let admin = caller("ops", "acme", &[], true, May::ALL);
    let foreign = caller("alice", "other", &["finance"], true, May::ALL);
    let reader = caller("dave", "acme", &["finance"], false, READ);
    let local = caller("local", "acme", &[], false, May::ALL);
    let table = [
        // Columns: the approvers; whether owner, named, member, admin, foreign, reader and
        // local may decide.
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
        let found = people.map(|person| may_decide(person, "acme", "alice", &approvers));
        assert_eq!(found, expected, "{approvers:?}");
    }
}

#[test]
fn reading_and_moving_a_tree_follow_role_and_rights() {
    let cases = [
        // Columns: caller, involved; may read; may message, cancel, retry while the agent is
        // open; may message, cancel, retry while the agent is closed.
        (
            caller("alice", "acme", &[], false, May::ALL),
            false,
            [true, true, true, true, false, true, false],
        ),
        (
            caller("ALICE", "acme", &[], false, May::ALL),
            false,
            [true, true, true, true, false, true, false],
        ),
        (
            caller("bob", "acme", &[], false, May::ALL),
            false,
            [false; 7],
        ),
        (
            caller("bob", "acme", &[], false, May::ALL),
            true,
            [true, false, false, false, false, false, false],
        ),
        (
            caller("ops", "acme", &[], true, May::ALL),
            false,
            [true, false, true, true, false, true, true],
        ),
        (
            caller("ops", "acme", &[], true, READ),
            false,
            [true, false, false, false, false, false, false],
        ),
        (
            caller("alice", "acme", &[], true, May::ALL),
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
            caller("alice", "other", &[], true, May::ALL),
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
        // Columns: the approvers; whether ALICE, Bob and dave may decide. The owner is alice.
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
                &caller(user, "acme", groups, false, May::ALL),
                "acme",
                "alice",
                &approvers,
            )
        });
        assert_eq!(found, expected, "{approvers:?}");
    }
}

#[test]
fn exact_ids_differ_in_case() {
    let exact = |user: &str| Caller {
        user_id: UserIds::Exact.id(user),
        ..caller("", "acme", &[], false, May::ALL)
    };
    let approvers = approvers(false, &["bob"], &[]);
    assert!(may_decide(&exact("bob"), "acme", "alice", &approvers));
    assert!(!may_decide(&exact("Bob"), "acme", "alice", &approvers));
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
        may: May::ALL,
        key_sha256: crate::people::directory::hash(user),
    };
    let accounts = ["bob", "eve", "web"].map(account).to_vec();
    let folded = Roster::new(Some(Directory::new(accounts.clone())));
    let exact = Roster::new(Some(Directory::new(accounts).comparing(UserIds::Exact)));
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
    let suffice = |roster: &Roster, users: &[&str], editor| {
        roster.suffice("acme", "alice", &finance, &votes(users), editor)
    };
    assert!(
        suffice(&folded, &["bob", "Eve"], None) && !suffice(&folded, &["bob", "Bob", "BOB"], None)
    );
    assert!(
        !suffice(&folded, &["alice", "bob"], None) && !suffice(&folded, &["Alice", "bob"], None)
    );
    assert!(!suffice(&folded, &["bob", "eve"], Some("Eve")));
    assert!(
        !suffice(&exact, &["bob", "Bob"], None),
        "under exact ids WEB is not the key that vouches"
    );
}
