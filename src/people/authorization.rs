//! Checks the rights of a caller: to read a tree of tasks, to command a task, to propose calls at
//! gates, to decide a request, and to end a standing decision. Also checks whether an earlier
//! approval still counts. Invariant: no other module decides by the permissions of a caller
//! (`tests/architecture`).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::directory::Directory;
use super::person::Person;
use super::{Caller, LOCAL_USER};
use crate::task::call_state::EditedArguments;
use crate::task::decision::{Action, Door, Vote};
use crate::task::request::{CallSpec, RequestSpec};
use crate::task::request_state::RequestState;
use crate::task::user::{UserIds, Viewer};
use crate::task::verdict::Approvers;

/// The proof that a caller may decide a request. Only [`may_decide`] makes this proof, and an
/// [`OwnedApprover`] keeps it. The engine's functions that apply a decision take the proof in place
/// of a [`Caller`], so code that skips the check does not compile.
#[derive(Clone, Copy, Debug)]
pub struct Approver<'a>(&'a Caller);

/// An [`Approver`] that owns its caller, for a decision that outlives the borrowed caller.
#[derive(Clone, Debug)]
pub struct OwnedApprover(Caller);

impl OwnedApprover {
    #[must_use]
    pub fn borrowed(&self) -> Approver<'_> {
        Approver(&self.0)
    }
}

impl<'a> Approver<'a> {
    #[must_use]
    pub fn into_owned(self) -> OwnedApprover {
        OwnedApprover(self.0.clone())
    }

    #[must_use]
    pub fn caller(self) -> &'a Caller {
        self.0
    }

    /// Returns the actions that the approver may take on `request`, regardless of its status.
    /// `request` and its `owner` must be those for which [`may_decide`] made this proof.
    #[must_use]
    pub fn permitted_actions(
        self,
        roster: &Roster,
        owner: &str,
        request: &RequestSpec,
    ) -> Vec<Action> {
        let Self(caller) = self;
        let required = required_approvals(caller, request);
        let mut actions = actions_by_door(caller, request);
        if request.kind.properties().decides_calls {
            let is_barred = |call: &CallSpec| is_barred_editor(caller, request, call);
            let approvers = &request.terms.approvers;
            let is_editor = request.own_calls().any(is_barred);
            // If `caller` edits arguments, other people must approve the edit in two cases: several
            // approvals are required, or an earlier edit bars `caller` from approving a call of the
            // request (`is_barred_editor`). In both cases, `caller` may edit only if enough other
            // people could approve.
            let may_edit =
                (required < 2 && !is_editor) || others_suffice(roster, caller, owner, approvers);
            actions.retain(|action| match action {
                Action::Edit => may_edit,
                Action::Approve => !is_editor || !request.own_calls().all(is_barred),
                Action::Reject | Action::Respond | Action::Retry | Action::Mixed => true,
            });
        }
        actions
    }
}

/// Returns the proof that `caller` may decide a request with these approvers; `None` if `caller`
/// may not. `tenant` and `owner` are the tenant and the owner of the request's root task.
#[must_use]
pub fn may_decide<'a>(
    caller: &'a Caller,
    tenant: &str,
    owner: &str,
    approvers: &Approvers,
) -> Option<Approver<'a>> {
    let has_right = caller.tenant == tenant
        && caller.permissions.decide
        && (caller.without_accounts
            || ((caller.door != Some(Door::Link) || approvers.accepts_links())
                && is_approver(caller, tenant, owner, approvers)));
    has_right.then_some(Approver(caller))
}

/// Whether `caller` has the permission to decide. Without this permission, the inbox of `caller` is
/// empty.
#[must_use]
pub fn may_decide_any(caller: &Caller) -> bool {
    caller.permissions.decide
}

/// Whether `caller` may end a standing decision of a tree with this tenant and owner. The caller
/// must belong to the tenant and must have the permission to decide. This is enough in a service
/// without accounts. In a service with accounts, the caller must also be one of these people:
/// - `giver`, who gave the standing decision,
/// - an admin,
/// - a person who may decide requests with `approvers`, which are the current approvers of the rule
///   that offered the standing decision; `None` if the rule no longer exists.
#[must_use]
pub fn may_end_grant(
    caller: &Caller,
    tenant: &str,
    owner: &str,
    giver: &str,
    approvers: Option<&Approvers>,
) -> bool {
    caller.tenant == tenant
        && caller.permissions.decide
        && (caller.admin
            || caller.without_accounts
            || caller.user_id.is_same_person(giver)
            || approvers
                .is_some_and(|approvers| may_decide(caller, tenant, owner, approvers).is_some()))
}

/// Returns the person whose inbox `caller` reads. The store lists the requests that this person may
/// decide.
#[must_use]
pub fn inbox_person(caller: &Caller) -> Viewer {
    Viewer {
        user_id: caller.user_id.clone(),
        groups: caller.groups.clone(),
        decides_everything: caller.without_accounts,
    }
}

/// Whether `caller` is an approver. The permissions of the caller's key or link do not matter.
#[must_use]
pub fn is_approver(caller: &Caller, tenant: &str, owner: &str, approvers: &Approvers) -> bool {
    let user = caller.user_id.as_str();
    caller.tenant == tenant
        && approvers_include(caller.user_id.ids(), user, &caller.groups, owner, approvers)
}

/// Whether `caller` can answer the request now. The request must be open and must have an undecided
/// call that `caller` has not answered yet. `caller` must have the right to decide the request, and
/// [`may_take_any_action`] must be true.
#[must_use]
pub fn can_decide(caller: &Caller, tenant: &str, owner: &str, state: &RequestState<'_>) -> bool {
    state.is_open()
        && may_decide(caller, tenant, owner, &state.spec.terms.approvers).is_some()
        && may_take_any_action(caller, state.spec)
        && state.open_calls(&caller.user_id).next().is_some()
}

/// Whether the door of `caller` permits to show the request as a request to decide. The rights of
/// `caller` do not matter here. False only if `caller` comes by a link, and the request accepts no
/// action by a link. Through any other door, even a request that accepts no action is shown, so
/// that its approvers can see why it waits.
#[must_use]
pub fn may_take_any_action(caller: &Caller, request: &RequestSpec) -> bool {
    caller.door != Some(Door::Link) || !actions_by_door(caller, request).is_empty()
}

/// Returns the actions that the request accepts through the door of `caller`. By a link, the
/// request accepts only the `link_actions` of its kind. Earlier edits by `caller` do not matter
/// here (see [`is_barred_editor`]).
fn actions_by_door(caller: &Caller, request: &RequestSpec) -> Vec<Action> {
    let mut actions = request.actions(required_approvals(caller, request));
    if caller.door == Some(Door::Link) {
        let link_actions = request.kind.properties().link_actions;
        actions.retain(|action| link_actions.contains(action));
    }
    actions
}

/// Returns the actions that `caller` may take on a request, regardless of the request's status. The
/// result is empty if `caller` may not decide the request.
#[must_use]
pub fn permitted_actions(
    roster: &Roster,
    caller: &Caller,
    tenant: &str,
    owner: &str,
    request: &RequestSpec,
) -> Vec<Action> {
    may_decide(caller, tenant, owner, &request.terms.approvers)
        .map(|approver| approver.permitted_actions(roster, owner, request))
        .unwrap_or_default()
}

/// Whether people of the tenant of `caller`, other than `caller`, could give all the approvals that
/// `approvers` requires. False in a service without accounts.
#[must_use]
pub fn others_suffice(
    roster: &Roster,
    caller: &Caller,
    owner: &str,
    approvers: &Approvers,
) -> bool {
    let user = Some(caller.user_id.as_str());
    roster.0.as_ref().is_some_and(|directory| {
        let (tenant, owner) = (&caller.tenant, Some(owner));
        let count = directory.possible_approver_count(tenant, approvers, owner, user);
        count >= approvers.required.max(1) as usize
    })
}

/// Returns the number of approvals that a request needs; 1 in a service without accounts.
#[must_use]
pub fn required_approvals(caller: &Caller, request: &RequestSpec) -> u32 {
    if caller.without_accounts {
        1
    } else {
        request.required()
    }
}

/// Whether `caller` may not approve this call because `caller` edited its arguments. An editor is
/// barred if this request, or an earlier request about the call, requires several approvals. A
/// service without accounts bars no editor.
#[must_use]
pub fn is_barred_editor(caller: &Caller, request: &RequestSpec, call: &CallSpec) -> bool {
    !caller.without_accounts
        && (request.required() > 1 || call.bars_editor)
        && call
            .editor
            .as_ref()
            .is_some_and(|editor| caller.user_id.is_same_person(editor))
}

/// The current accounts, which tell whether an earlier approval still counts. `None` in a service
/// without accounts.
#[derive(Clone, Debug, Default)]
pub struct Roster(Option<Arc<Directory>>);

impl Roster {
    /// Returns the person with this user id, and the [`Caller`] with the rights of a link in a
    /// message to this person. `None` if no person with this user id gets messages.
    #[must_use]
    pub fn link_caller(&self, tenant: &str, user: &str) -> Option<(&Person, Caller)> {
        let directory = self.0.as_ref()?;
        let person = directory.person(tenant, user)?;
        Some((person, directory.link_caller(person)))
    }

    #[must_use]
    pub fn new(accounts: Option<Directory>) -> Self {
        Self(accounts.map(Arc::new))
    }

    #[must_use]
    pub fn ids(&self) -> UserIds {
        self.0
            .as_ref()
            .map(|directory| directory.ids())
            .unwrap_or_default()
    }

    /// Whether an earlier approval (`vote`) would be accepted with the current accounts. A service
    /// without accounts accepts only an approval by `local`. In a service with accounts, the person
    /// who approved must still be an approver, and must still have the right to approve in the same
    /// way:
    /// - If they approved by their own key, by a session or in Slack, they must have a key that may
    ///   decide.
    /// - If they approved by a link, they must get messages, links must give the right to decide,
    ///   and `approvers` must accept links.
    /// - If they approved through the key of a user who speaks for others (`vote.via`), that user
    ///   must have a key that may both decide and speak for others. The person's groups are then
    ///   those in `vote`.
    #[must_use]
    pub fn still_counts(
        &self,
        tenant: &str,
        owner: &str,
        approvers: &Approvers,
        vote: &Vote,
    ) -> bool {
        let Some(directory) = &self.0 else {
            return vote.via.is_none() && vote.by == LOCAL_USER;
        };
        let groups = match &vote.via {
            Some(key) => directory
                .has_deciding_service_key(tenant, key)
                .then_some(vote.groups.as_slice()),
            None if vote.door == Some(Door::Link) => directory
                .groups_of_link_decider(tenant, &vote.by)
                .filter(|_| approvers.accepts_links()),
            None => directory.groups_of_decider(tenant, &vote.by),
        };
        groups.is_some_and(|groups| {
            approvers_include(directory.ids(), &vote.by, groups, owner, approvers)
        })
    }

    /// Whether the `votes` that still count ([`Self::still_counts`]) are enough. In a service
    /// without accounts, one vote is enough. In a service with accounts, the votes must come from
    /// as many people as `approvers` requires. The vote of the person who edited the arguments does
    /// not count in two cases: if `approvers` requires several approvals, or if
    /// [`EditedArguments::needs_others`] is set.
    #[must_use]
    pub fn votes_suffice(
        &self,
        tenant: &str,
        owner: &str,
        approvers: &Approvers,
        votes: &[Vote],
        edited: Option<&EditedArguments>,
    ) -> bool {
        let ids = self.ids();
        let has_accounts = self.0.is_some();
        let required = if has_accounts {
            approvers.required.max(1)
        } else {
            1
        };
        let bars_editor =
            |edited: &EditedArguments| required > 1 || (has_accounts && edited.needs_others);
        let barred = edited.filter(|edited| bars_editor(edited));
        let own =
            |vote: &Vote| barred.is_some_and(|edited| ids.is_same_person(&edited.by, &vote.by));
        let people: BTreeSet<_> = votes
            .iter()
            .filter(|vote| self.still_counts(tenant, owner, approvers, vote) && !own(vote))
            .map(|vote| ids.key(&vote.by))
            .collect();
        people.len() >= required as usize
    }
}

/// Whether the user is an approver. The owner is an approver only if `approvers.owner` is true,
/// even if `users` or `groups` include the owner.
fn approvers_include(
    ids: UserIds,
    user: &str,
    groups: &[String],
    owner: &str,
    approvers: &Approvers,
) -> bool {
    if ids.is_same_person(user, owner) {
        return approvers.owner;
    }
    approvers
        .users
        .iter()
        .any(|name| ids.is_same_person(name, user))
        || groups.iter().any(|group| approvers.groups.contains(group))
}

/// Whether `caller` may read a tree. Only these callers of the tenant may:
/// - the tree's owner and an admin, with the permission to read,
/// - a caller who may decide or has decided a request of the tree (`involved`), with the permission
///   to read or the permission to decide.
#[must_use]
pub fn may_read(caller: &Caller, tenant: &str, owner: &str, involved: bool) -> bool {
    caller.tenant == tenant
        && ((caller.permissions.read && (caller.admin || caller.user_id.is_same_person(owner)))
            || ((caller.permissions.read || caller.permissions.decide) && involved))
}

fn must(is_allowed: bool, refusal: &'static str) -> Result<(), &'static str> {
    if is_allowed { Ok(()) } else { Err(refusal) }
}

/// Checks that `caller` has the permission to read.
///
/// # Errors
/// Fails without the permission. The error is the reason, in words for the caller.
pub fn may_read_any(caller: &Caller) -> Result<(), &'static str> {
    must(caller.permissions.read, "This key may not read.")
}

/// Checks that `caller` has the permission to read or the permission to decide.
///
/// # Errors
/// Fails if `caller` has neither permission. The error is the reason, in words for the caller.
pub fn may_read_or_decide_any(caller: &Caller) -> Result<(), &'static str> {
    if caller.permissions.decide {
        Ok(())
    } else {
        may_read_any(caller)
    }
}

/// Whether the lists for `caller` show the tasks, gates and standing decisions of every user of the
/// tenant.
#[must_use]
pub fn sees_whole_tenant(caller: &Caller) -> bool {
    caller.admin
}

/// Checks that `caller` may see and send messages: an admin, or any caller of a service without
/// accounts, which cannot have an admin.
///
/// # Errors
/// Fails for any other caller. The error is the reason, in words for the caller.
pub fn may_administer(caller: &Caller) -> Result<(), &'static str> {
    must(
        caller.admin || caller.without_accounts,
        "Only an admin may see and send messages.",
    )
}

const KEY_MAY_NOT_CREATE: &str = "This key may not create, continue or cancel tasks.";

/// Checks that `caller` may create tasks.
///
/// # Errors
/// Fails without the permission. The error is the reason, in words for the caller.
pub fn may_create(caller: &Caller) -> Result<(), &'static str> {
    must(caller.permissions.create, KEY_MAY_NOT_CREATE)
}

/// Checks that `caller` may look at a call at a gate. Proposals and reports need
/// [`may_ask_at_gate`], which also refuses a key with `decide`, because such a key could approve
/// its own call.
///
/// # Errors
/// Fails without the permission `gate`. The error is the reason, in words for the caller.
pub fn may_look_at_gate(caller: &Caller) -> Result<(), &'static str> {
    must(caller.permissions.gate, "This key may not ask at gates.")
}

/// Checks that `caller` may propose calls at gates and report their outcomes. This needs a key or a
/// session with the permission `gate`. A key that may decide is refused, because the agent that
/// holds the key could approve its own calls. The key's user can have a second key to decide with.
/// In a service without accounts every caller has this right.
///
/// # Errors
/// Fails if the caller does not have this right. The error is the reason, in words for the caller.
pub fn may_ask_at_gate(caller: &Caller) -> Result<(), &'static str> {
    if caller.without_accounts {
        return Ok(());
    }
    if !matches!(caller.door, Some(Door::Key | Door::Session)) {
        return Err("A link or a chat message may not propose calls at gates: that needs a key.");
    }
    if !caller.permissions.gate {
        return Err("This key may not propose calls at gates: its `may` has no `gate`.");
    }
    if caller.permissions.decide {
        return Err(
            "An agent's key must not be able to approve its own calls: a key that proposes calls at gates has no `decide` in its `may`.",
        );
    }
    Ok(())
}

/// The commands on an existing task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Message,
    Cancel,
    /// Continues a failed task.
    Retry,
}

/// Checks that `caller` may give a task this command. Every command needs a key with `create`. The
/// task's owner may cancel the task, and may give the other commands if the owner may still use the
/// task's agent (`is_open_to_owner`). An admin of the tenant may cancel and retry.
///
/// # Errors
/// Fails if the caller does not have this right. The error is the reason, in words for the caller.
pub fn may_command(
    caller: &Caller,
    command: Command,
    tenant: &str,
    owner: &str,
    is_open_to_owner: bool,
) -> Result<(), &'static str> {
    let is_owner = caller.tenant == tenant && caller.user_id.is_same_person(owner);
    let acts_as_admin = caller.tenant == tenant && caller.admin && command != Command::Message;
    if !is_owner && !acts_as_admin {
        return Err(match command {
            Command::Message => "Only the task's owner may send it messages.",
            Command::Cancel => "Only the task's owner and an admin may cancel it.",
            Command::Retry => "Only the task's owner and an admin may retry it.",
        });
    }
    if !caller.permissions.create {
        return Err(KEY_MAY_NOT_CREATE);
    }
    if !acts_as_admin && !is_open_to_owner && command != Command::Cancel {
        return Err("You may no longer use the task's agent.");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
