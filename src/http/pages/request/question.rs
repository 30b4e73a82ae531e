//! Renders the agent's question, the approvers and the decisions.

use maud::{Markup, html};
use serde_json::Value;
use url::Url;

use super::View;
use super::headline::asked_by_agent;
use super::ordered::member_names_at;
use super::risk::warnings;
use crate::http::pages::layout::{time_tag, visible, visible_lines};
use crate::http::pages::translations::{Translations, fill};
use crate::http::wire::decision::{ThenAction, WireDecision};
use crate::http::wire::raw_json::RawJson;
use crate::http::wire::request::RequestedCall;
use crate::task::request_kind::ResponseKind;

/// Renders the agent's question in a box. For a call whose outcome is unknown, the known facts
/// about the call come first.
pub(crate) fn question(view: &View<'_>) -> Markup {
    let (words, request) = (view.words, &view.request);
    let properties = request.kind.properties();
    let asked_by_server = properties.response == ResponseKind::ServerForm;
    // In these cases, `page_to_visit`, `known_facts` or the title of the form for secrets shows the
    // details, so this box leaves them out.
    let has_own_text =
        asked_by_server || properties.outcome_unknown || request.kind.takes_secrets();
    let details = request.details.as_ref().filter(|_| !has_own_text);
    html! {
        @if properties.outcome_unknown { (known_facts(view)) }
        // If the agent asked through a tool call, that call never runs, and no other section of the
        // page shows it. So the question includes the complete text of the call.
        @let call = request.tool_calls.first().filter(|_| asked_by_agent(view.row));
        @if let Some(call) = call { (warnings(view, call, None)) }
        @if request.question.is_some() || details.is_some() || call.is_some() {
            div.agent {
                p.by { (if asked_by_server { words.by_server } else { words.by_agent }) }
                @if let Some(question) = &request.question { pre.exact.words dir="ltr" { (visible_lines(question)) } }
                @if asked_by_server { (page_to_visit(view)) }
                @if let Some(details) = details { (agent_details(details, call)) }
                @if let Some(call) = call {
                    details.raw {
                        summary { (words.exact_text) }
                        pre.exact dir="ltr" { (visible(&call.arguments_text)) }
                    }
                }
            }
        }
    }
}

/// If a tool's server asks the person to visit a page, returns the address of the page; otherwise
/// `None`.
pub(super) fn page_address<'v>(view: &'v View<'_>) -> Option<&'v str> {
    view.request.details.as_ref()?["url"].as_str()
}

/// Renders the address of the page that a tool's server asks the person to visit: the host in ASCII
/// and (if different) in Unicode, and the whole address. The browser loads nothing from that
/// address until the person opens it.
fn page_to_visit(view: &View<'_>) -> Markup {
    let words = view.words;
    let Some((address, url)) =
        page_address(view).and_then(|text| Some((text, Url::parse(text).ok()?)))
    else {
        return html! {};
    };
    let host = url.host_str().unwrap_or_default();
    let (unicode_host, _) = idna::domain_to_unicode(host);
    html! {
        dl {
            dt { (words.page_host) }
            dd { strong.host.exact dir="ltr" { (visible(host)) } }
            @if unicode_host != host {
                dt { (words.page_host_written) }
                dd { strong.host.exact dir="ltr" { (visible(&unicode_host)) } }
            }
            dt { (words.page_address) }
            dd {
                // On the page of a sealed link, the address is plain text: a hyperlink could reveal
                // the page's own address, which contains the secret token, to the linked site.
                @if view.link.is_some() {
                    span.exact dir="ltr" { (visible(address)) }
                } @else {
                    a.exact dir="ltr" href=(address) target="_blank" rel="noopener noreferrer" { (visible(address)) }
                }
            }
        }
    }
}

/// Renders the known facts about a call whose outcome is unknown. The facts with a translated label
/// come first, in the order of `labels`. Any other fact has its member's name as the label. Leaves
/// out the id of the replica, because the page's folded details show it.
fn known_facts(view: &View<'_>) -> Markup {
    let words = view.words;
    let Some(Value::Object(details)) = &view.request.details else {
        return html! {};
    };
    let labels = [
        ("sent_at", words.sent_at),
        ("attempt", words.attempt),
        ("problem", words.problem),
    ];
    let rank = |name: &str| labels.iter().position(|(known, _)| *known == name);
    let label = |name: &str| match rank(name).and_then(|rank| labels.get(rank)) {
        Some((_, label)) => (*label).to_owned(),
        None => visible(name),
    };
    let mut facts: Vec<_> = details
        .iter()
        .filter(|(name, value)| *name != "replica" && !value.is_null())
        .collect();
    facts.sort_by_key(|(name, _)| rank(name).unwrap_or(usize::MAX));
    html! {
        section {
            h2.quiet { (words.what_is_known) }
            dl {
                @for (name, value) in facts {
                    dt { (label(name)) }
                    dd { @if name == "sent_at" { (time_tag(&value_text(value))) } @else { (visible(&value_text(value))) } }
                }
            }
        }
    }
}

/// Returns a value as text: a string without quotation marks, any other value as JSON.
pub(crate) fn value_text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns the text of a value that is stored as JSON text: a string without quotation marks and
/// escapes, any other value unchanged.
pub(crate) fn unquoted_text(value: &RawJson) -> String {
    let text = serde_json::to_string(value).unwrap_or_default();
    serde_json::from_str::<String>(&text).unwrap_or(text)
}

/// Renders the details that the agent gave with the question. The members of an object are in the
/// order in which the agent wrote them.
fn agent_details(value: &Value, call: Option<&RequestedCall>) -> Markup {
    let Value::Object(members) = value else {
        return html! { pre.exact.words dir="ltr" { (visible_lines(&value_text(value))) } };
    };
    let order = call.map_or_else(Vec::new, |call| member_names_at(&call.arguments_text, &[]));
    let mut members: Vec<_> = members.iter().collect();
    members.sort_by_key(|(name, _)| order.iter().position(|other| other == *name));
    html! {
        dl {
            @for (name, value) in members {
                dt.exact { (visible(name)) }
                dd {
                    @match value {
                        Value::Array(list) if list.iter().all(Value::is_string) => {
                            ul { @for text in list { li.exact { (visible_lines(&value_text(text))) } } }
                        }
                        value => { pre.exact.words dir="ltr" { (visible_lines(&value_text(value))) } }
                    }
                }
            }
        }
    }
}

/// Renders a person's answer. Each text has the writing direction of its own script (`dir="auto"`).
pub(crate) fn answer_members(value: &Value) -> Markup {
    let Value::Object(members) = value else {
        return html! { pre dir="auto" { (visible_lines(&value_text(value))) } };
    };
    html! {
        dl {
            @for (name, value) in members {
                dt { bdi { (visible(name)) } }
                dd {
                    @match value {
                        Value::Array(list) if list.iter().all(Value::is_string) => {
                            ul { @for text in list { li dir="auto" { (visible_lines(&value_text(text))) } } }
                        }
                        value => { pre dir="auto" { (visible_lines(&value_text(value))) } }
                    }
                }
            }
        }
    }
}

pub(super) fn approver_names(view: &View<'_>) -> String {
    let words = view.words;
    let names = remaining_approvers(view, &[]);
    let text = words.people_have_to;
    match view.required() {
        0 | 1 => names,
        count => fill(text, &[("names", &names), ("count", &count)]),
    }
}

/// Returns the approvers as text, without the users in `approved`, who have already approved.
pub(crate) fn remaining_approvers(view: &View<'_>, approved: &[&str]) -> String {
    let (approvers, owner, words) = (&view.request.approvers, &view.row.owner, view.words);
    let ids = view.caller.user_id.ids();
    let has_approved = |user: &str| approved.iter().any(|name| ids.is_same_person(name, user));
    let mut names = Vec::new();
    if approvers.owner && !has_approved(owner) {
        names.push(fill(words.owner, &[("user", &visible(owner))]));
    }
    let users = approvers.users.iter();
    let users = users.filter(|user| !has_approved(user) && !ids.is_same_person(user, owner));
    names.extend(users.map(|user| fill(words.user, &[("user", &visible(user))])));
    let groups = approvers.groups.iter();
    names.extend(groups.map(|group| fill(words.group, &[("group", &visible(group))])));
    if names.is_empty() {
        words.no_approvers.to_owned()
    } else {
        names.join(words.between)
    }
}

pub(crate) fn decision_section(view: &View<'_>) -> Markup {
    let Some(decision) = &view.request.decision else {
        return html! {};
    };
    html! { div.decision { h2.unseen { (view.words.decision_whole) } (decision_details(view, decision, true)) } }
}

/// Renders one decision: the action, the person, the time, the reason and the consequence. If
/// `with_response` is true, also renders the response: the form's values or the result.
pub(crate) fn decision_details(
    view: &View<'_>,
    decision: &WireDecision,
    with_response: bool,
) -> Markup {
    let words = view.words;
    let by = visible(&decision.by);
    let author = match &decision.via {
        Some(via) => fill(words.by_via, &[("user", &by), ("via", &visible(via))]),
        None => fill(words.by, &[("user", &by)]),
    };
    let secret = view.request.kind.takes_secrets();
    html! {
        p { strong { (words.action(decision.action)) } " " bdi { (author) } " · " (time_tag(&decision.at)) }
        dl {
            @if let Some(reason) = reason(decision) { dt { (words.comment_given) } dd { pre dir="auto" { (visible_lines(reason)) } } }
            @if let Some(then) = decision.then { dt { (words.then) } dd { (then_text(view, then)) } }
            @if let Some(response) = decision.response.as_ref().filter(|_| with_response) {
                dt { (words.given_response) } dd { (response_details(response, secret, words)) }
            }
            @if let Some(result) = decision.result.as_ref().filter(|_| with_response) {
                dt { (words.given_result) } dd { pre dir="auto" { (visible_lines(&unquoted_text(result))) } }
            }
        }
    }
}

/// Returns the person's reason for a decision. A form that names a call stores the reason with the
/// answer to this call. If the decision has a single call, that reason is the decision's reason.
fn reason(decision: &WireDecision) -> Option<&str> {
    let first = decision.decisions.values().next();
    let only = first.filter(|_| decision.decisions.len() == 1);
    let of_call = only.and_then(|call| call.reason.as_deref());
    decision.reason.as_deref().or(of_call)
}

fn response_details(response: &Value, secret: bool, words: &Translations) -> Markup {
    if !secret {
        return answer_members(response);
    }
    let fields = response.as_object().into_iter().flatten();
    html! { dl { @for (name, _) in fields { dt { (visible(name)) } dd { (words.sealed_value) } } } }
}

/// Describes the consequence of a rejection.
pub(crate) fn then_text(view: &View<'_>, then: impl Into<ThenAction>) -> &'static str {
    match then.into() {
        ThenAction::Continue => view.words.then_continue,
        ThenAction::Cancel => cancel_text(view),
        ThenAction::CancelRoot => view.words.then_cancel_root,
    }
}

/// Describes the consequence `cancel`. If a sub-agent asked, the sub-agent's task is canceled, and
/// the parent task goes on.
pub(crate) fn cancel_text(view: &View<'_>) -> &'static str {
    if view.row.task_id == view.row.root_task_id {
        view.words.then_cancel
    } else {
        view.words.then_cancel_sub
    }
}
