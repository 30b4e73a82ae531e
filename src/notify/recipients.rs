//! Finds the people to whom an entry mails a request. Also checks, right before sending, whether a
//! message about the request is still needed.

use super::entry::Entry;
use super::settings::{Mail, Recipients};
use crate::people::authorization::{can_decide, may_decide, may_take_any_action};
use crate::people::directory::Directory;
use crate::people::person::Person;
use crate::store::RequestRow;

/// Returns the people to whom this entry mails a request: those who have a mail address, are
/// included in the entry's `to`, and may decide the request now.
pub(super) fn mail_recipients<'d>(
    mail: &Mail,
    request: &RequestRow,
    directory: &'d Directory,
) -> Vec<&'d Person> {
    let approvers = &request.spec.terms.approvers;
    directory
        .people()
        .filter(|person| person.email.is_some() && recipients_include(&mail.to, person, directory))
        .filter(|person| {
            let caller = directory.most_entitled_caller(person);
            may_decide(&caller, &request.tenant, &request.owner, approvers).is_some()
                && may_take_any_action(&caller, &request.spec)
        })
        .collect()
}

pub(crate) fn recipients_include(to: &Recipients, person: &Person, directory: &Directory) -> bool {
    match to {
        Recipients::Approvers => true,
        Recipients::Named(named) => {
            let same = |user: &String| directory.ids().is_same_person(user, &person.user);
            named.users.iter().any(same)
                || person
                    .groups
                    .iter()
                    .any(|group| named.groups.contains(group))
        }
    }
}

/// Whether a message of the type `kind` about a request is still needed. The request must be open,
/// and the present settings of the entry must select the message. If the message is for a `person`,
/// the entry must also include this person, and the person must be able to decide the request.
pub(super) fn is_message_needed(
    entry: &Entry,
    person: Option<&Person>,
    kind: &str,
    request: &RequestRow,
    directory: Option<&Directory>,
) -> bool {
    let state = request.state();
    let own = match (person, directory) {
        (None, _) => true,
        (Some(person), Some(directory)) => {
            let caller = directory.most_entitled_caller(person);
            entry.channel.includes(person, directory)
                && can_decide(&caller, &request.tenant, &request.owner, &state)
        }
        (Some(_), None) => false,
    };
    let is_selected = entry.sends_kind(kind) && entry.planned_message(request).is_some();
    state.is_open() && own && is_selected && entry.covers(request, directory)
}
