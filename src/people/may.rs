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
