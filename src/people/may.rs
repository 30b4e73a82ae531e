//! The only functions that say what somebody may. Every door asks them: the API, the page and the link.

use super::Caller;
use crate::task::verdict::Approvers;

/// Whether `caller` is one of those a request is for. `owner` is the root task's owner.
/// The owner counts only where `owner: true`, also when he is in a group that is named.
#[must_use]
pub fn may_decide(caller: &Caller, tenant: &str, owner: &str, approvers: &Approvers) -> bool {
    if caller.tenant != tenant || !caller.may.decide {
        return false;
    }
    if caller.unaccounted {
        return true;
    }
    if caller.user_id == owner {
        return approvers.owner;
    }
    approvers.users.contains(&caller.user_id) || caller.groups.iter().any(|group| approvers.groups.contains(group))
}

/// Whether `caller` reads a tree: its owner, an admin of the tenant, or somebody who may decide or has decided one of its
/// requests (`involved`, which only the store knows).
#[must_use]
pub fn may_read(caller: &Caller, tenant: &str, owner: &str, involved: bool) -> bool {
    caller.tenant == tenant
        && ((caller.may.read && (caller.admin || caller.user_id == owner))
            || ((caller.may.read || caller.may.decide) && involved))
}

/// Whether `caller` sends messages to a task: its owner.
#[must_use]
pub fn may_message(caller: &Caller, tenant: &str, owner: &str) -> bool {
    caller.tenant == tenant && caller.may.create && caller.user_id == owner
}

/// Whether `caller` cancels or retries a task: its owner, or an admin of the tenant.
#[must_use]
pub fn may_steer(caller: &Caller, tenant: &str, owner: &str) -> bool {
    caller.tenant == tenant && caller.may.create && (caller.admin || caller.user_id == owner)
}

/// What somebody comes for; `may` of his key narrows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// A POST under `/v1`.
    Create,
    /// A GET of a task, a list or anything that is no request.
    Read,
    /// A POST under `/resume`.
    Decide,
    /// A GET of a request, the inbox, or a task that one may decide something of.
    ReadDecidable,
}

/// Whether the caller's key is one for that.
#[must_use]
pub fn may_enter(caller: &Caller, door: Door) -> bool {
    match door {
        Door::Create => caller.may.create,
        Door::Read => caller.may.read,
        Door::Decide => caller.may.decide,
        Door::ReadDecidable => caller.may.read || caller.may.decide,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::people::May;

    const READ: May = May { create: false, read: true, decide: false };
    const DECIDE: May = May { create: false, read: false, decide: true };
    const CREATE: May = May { create: true, read: false, decide: false };
    const NOTHING: May = May { create: false, read: false, decide: false };

    fn caller(user: &str, tenant: &str, groups: &[&str], admin: bool, may: May) -> Caller {
        Caller {
            user_id: user.to_owned(),
            tenant: tenant.to_owned(),
            groups: groups.iter().map(ToString::to_string).collect(),
            via: None,
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
        }
    }

    #[test]
    fn who_decides_is_the_rules_word_for_every_person() {
        let owner = caller("alice", "acme", &["finance"], false, May::ALL);
        let named = caller("bob", "acme", &[], false, May::ALL);
        let member = caller("carol", "acme", &["finance"], false, May::ALL);
        let admin = caller("ops", "acme", &[], true, May::ALL);
        let foreign = caller("alice", "other", &["finance"], true, May::ALL);
        let reader = caller("dave", "acme", &["finance"], false, READ);
        let local = caller("local", "acme", &[], false, May::ALL);
        let table = [
            // approvers, owner, named, member, admin, foreign, reader, local
            (approvers(true, &[], &[]), [true, false, false, false, false, false, true]),
            (approvers(false, &["bob"], &["finance"]), [false, true, true, false, false, false, true]),
            (approvers(true, &[], &["finance"]), [true, false, true, false, false, false, true]),
            (approvers(false, &["alice"], &[]), [false, false, false, false, false, false, true]),
            (approvers(false, &[], &[]), [false, false, false, false, false, false, true]),
        ];
        for (approvers, expected) in table {
            let people = [&owner, &named, &member, &admin, &foreign, &reader, &local];
            let found = people.map(|person| may_decide(person, "acme", "alice", &approvers));
            assert_eq!(found, expected, "{approvers:?}");
        }
    }

    #[test]
    fn who_comes_through_which_door() {
        let doors = [Door::Create, Door::Read, Door::Decide, Door::ReadDecidable];
        for (may, expected) in [
            (May::ALL, [true, true, true, true]),
            (CREATE, [true, false, false, false]),
            (READ, [false, true, false, true]),
            (DECIDE, [false, false, true, true]),
            (NOTHING, [false, false, false, false]),
        ] {
            let who = caller("alice", "acme", &[], true, may);
            assert_eq!(doors.map(|door| may_enter(&who, door)), expected, "{may:?}");
        }
    }

    #[test]
    fn who_reads_and_who_moves_a_tree() {
        let cases = [
            // who, involved, reads, messages, cancels and retries
            (caller("alice", "acme", &[], false, May::ALL), false, [true, true, true]),
            (caller("bob", "acme", &[], false, May::ALL), false, [false, false, false]),
            (caller("bob", "acme", &[], false, May::ALL), true, [true, false, false]),
            (caller("ops", "acme", &[], true, May::ALL), false, [true, false, true]),
            (caller("ops", "acme", &[], true, READ), false, [true, false, false]),
            (caller("alice", "acme", &[], false, DECIDE), false, [false, false, false]),
            (caller("alice", "acme", &[], false, DECIDE), true, [true, false, false]),
            (caller("alice", "acme", &[], false, CREATE), true, [false, true, true]),
            (caller("alice", "other", &[], true, May::ALL), true, [false, false, false]),
        ];
        for (who, involved, expected) in cases {
            let found = [
                may_read(&who, "acme", "alice", involved),
                may_message(&who, "acme", "alice"),
                may_steer(&who, "acme", "alice"),
            ];
            assert_eq!(found, expected, "{who:?} {involved}");
        }
    }
}
