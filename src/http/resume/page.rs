//! The page where a person decides. It shows everything that would run, every byte of it, before the first button;
//! what cannot be seen is shown as its code. Its forms post the digest of what it showed, so that nobody approves
//! something else than he saw. It needs no script.

use maud::{Markup, html};

use crate::http::Settings;
use crate::http::page::{frame, visible};
use crate::http::problem::prefix;
use crate::http::wire::decision::{Decision, open_for};
use crate::http::wire::request::{Approvers, InterventionRequest, RequestedCall, status_of};
use crate::people::Caller;
use crate::people::may::may_decide;
use crate::store::RequestRow;
use crate::task::decision::Action;
use crate::task::status::RequestStatus;

/// The whole page: what is asked, and every answer this caller may give from here.
#[must_use]
pub fn whole(request: &InterventionRequest, row: &RequestRow, caller: &Caller, settings: &Settings) -> Markup {
    let offered: Vec<Action> = [Action::Approve, Action::Reject]
        .into_iter()
        .filter(|action| why_not(row, caller, *action).is_none())
        .collect();
    frame(
        &title(request),
        &html! {
            (question(request))
            @if offered.is_empty() {
                p { strong { "Nothing to decide here. " (why_not(row, caller, Action::Reject).unwrap_or_default()) } }
            }
            @for action in &offered { (form(request, settings, *action)) }
        },
    )
}

/// The page with one button; without it, saying why, where its POST would be refused.
#[must_use]
pub fn single(
    request: &InterventionRequest,
    row: &RequestRow,
    caller: &Caller,
    settings: &Settings,
    action: Action,
) -> Markup {
    frame(
        &title(request),
        &html! {
            (question(request))
            @match why_not(row, caller, action) {
                Some(why) => { p { strong { "Nothing to decide here. " (why) } } }
                None => { (form(request, settings, action)) }
            }
            p { a href=(format!("{}/resume/{}", prefix(&settings.public_url), request.request_id)) { "Back to the request" } }
        },
    )
}

/// Why this answer would be refused, if it would.
fn why_not(row: &RequestRow, caller: &Caller, action: Action) -> Option<&'static str> {
    match status_of(row) {
        RequestStatus::Responded | RequestStatus::Resumed => return Some("This request is decided."),
        RequestStatus::Expired => return Some("This request has expired."),
        RequestStatus::Withdrawn => return Some("This request was withdrawn."),
        RequestStatus::Pending => {}
    }
    if !may_decide(caller, &row.tenant, &row.owner, &row.asked.terms.approvers) {
        return Some("This request is for others to decide.");
    }
    if !open_for(row, &caller.user_id) {
        return Some("You have answered; others have not yet.");
    }
    if !row.asked.actions(row.asked.required()).contains(&action) {
        return Some("This request does not take this answer.");
    }
    None
}

fn title(request: &InterventionRequest) -> String {
    let agent = request.agent_path.last().map(String::as_str).unwrap_or_default();
    format!("{}: {}", visible(agent), visible(&request.message))
}

fn question(request: &InterventionRequest) -> Markup {
    html! {
        dl {
            dt { "Status" } dd { (word(&request.status)) }
            dt { "Kind" } dd { (word(&request.kind)) }
            dt { "Who may decide" } dd { (who(&request.approvers)) }
            dt { "Asked" } dd { (request.created_at) }
            dt { "Answer before" } dd { (request.expires_at.as_deref().unwrap_or("no deadline")) }
            dt { "Agent" } dd { (visible(&request.agent_path.join(" › "))) }
            dt { "Task" } dd { code { (request.task_id) } }
            dt { "Request" } dd { code { (request.request_id) } }
        }
        @if let Some(question) = &request.question {
            p { "The agent writes (unverified):" }
            pre dir="ltr" { (visible(question)) }
        }
        @if let Some(details) = &request.details {
            pre dir="ltr" { (visible(&details.to_string())) }
        }
        @for call in &request.tool_calls { (one_call(call)) }
        @if let Some(decision) = &request.decision { h2 { "Decision" } (decided(decision)) }
    }
}

fn one_call(call: &RequestedCall) -> Markup {
    html! {
        section {
            h2 { (visible(&call.name)) @if !call.needs_decision { " (not part of this request)" } }
            p { (visible(&call.summary)) }
            dl {
                dt { "Goes to" } dd { (visible(&call.target)) }
                dt { "Effect" } dd { (word(&call.effect)) }
                dt { "Verdict" } dd { (word(&call.verdict)) }
                dt { "Rule" } dd { (visible(call.rule.as_deref().unwrap_or("no rule matched"))) }
                @if let Some(reason) = &call.reason { dt { "Reason" } dd { (visible(reason)) } }
                dt { "Call" } dd { code { (call.tool_call_id) } }
            }
            @for warning in &call.warnings {
                p { strong { "Warning: " (visible(&warning.detail)) } " " code { (visible(&warning.pointer)) } }
            }
            p { "Arguments, exactly as they will run:" }
            pre dir="ltr" { (visible(&call.arguments_text)) }
            @for approval in &call.approvals { p { "Approved by " (visible(&approval.by)) ", " (approval.at) } }
            @if let Some(decision) = &call.decision { (decided(decision)) }
        }
    }
}

fn decided(decision: &Decision) -> Markup {
    html! {
        p {
            (word(&decision.action)) " by " (visible(&decision.by))
            @if let Some(via) = &decision.via { " (through " (visible(via)) ")" }
            ", " (decision.at)
            @if let Some(reason) = &decision.reason { ": " (visible(reason)) }
        }
    }
}

fn who(approvers: &Approvers) -> String {
    let mut names = Vec::new();
    if approvers.owner {
        names.push("the task's owner".to_owned());
    }
    names.extend(approvers.users.iter().map(|user| format!("user {}", visible(user))));
    names.extend(approvers.groups.iter().map(|group| format!("group {}", visible(group))));
    let names = names.join(", ");
    if approvers.required > 1 { format!("{names}; {} people have to approve", approvers.required) } else { names }
}

fn form(request: &InterventionRequest, settings: &Settings, action: Action) -> Markup {
    let path = format!("{}/resume/{}/{}", prefix(&settings.public_url), request.request_id, action.as_str());
    let approves = action == Action::Approve;
    html! {
        form method="post" action=(path) {
            input type="hidden" name="digest" value=(request.digest);
            label { "Reason (optional)" textarea name="reason" rows="2" maxlength="1000" {} }
            @if !approves {
                label {
                    "Then"
                    select name="then" {
                        option value="" selected { "as the rule says" }
                        option value="continue" { "the agent is told, and goes on" }
                        option value="cancel" { "the task is canceled" }
                        option value="cancel_root" { "the whole task tree is canceled" }
                    }
                }
            }
            button type="submit" { @if approves { "Approve" } @else { "Reject" } }
        }
    }
}

/// The word of an enum, as it stands on the wire.
fn word(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word.replace('_', " "),
        Ok(_) | Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::sample;

    fn page(row: &RequestRow, caller: &Caller) -> String {
        let settings = sample::settings();
        whole(&InterventionRequest::of(row, caller, &settings), row, caller, &settings).into_string()
    }

    #[test]
    fn the_buttons_come_after_the_last_byte() {
        let mut row = sample::request();
        row.asked.pending_tool_calls[0].arguments_text = "{\"a\":\"<script>\u{202e}\u{0}\"}".into();
        let page = page(&row, &sample::approver());
        let shown = page.find("&lt;script&gt;\\u{202e}\\u{0}").unwrap();
        assert!(shown < page.find("<button").unwrap());
        assert!(!page.contains("<script"));
        assert_eq!(page.matches("<button").count(), 2);
        assert_eq!(page.matches(&format!("value=\"{}\"", row.asked.digest)).count(), 2);
    }

    #[test]
    fn who_may_not_decide_has_no_button_and_is_told_why() {
        let row = sample::request();
        let page = page(&row, &sample::caller());
        assert!(!page.contains("<button") && page.contains("for others to decide"));
    }

    #[test]
    fn the_one_button_page_has_one_or_none() {
        let settings = sample::settings();
        let one = |row: &RequestRow| {
            let caller = sample::approver();
            let request = InterventionRequest::of(row, &caller, &settings);
            single(&request, row, &caller, &settings, Action::Approve).into_string()
        };
        let row = sample::request();
        assert_eq!(one(&row).matches("<button").count(), 1);
        let expired = RequestRow { expired: true, ..row.clone() };
        assert!(!one(&expired).contains("<button") && one(&expired).contains("has expired"));
        let decided = RequestRow { status: RequestStatus::Resumed, ..row.clone() };
        assert!(one(&decided).contains("is decided"));
        let mut narrow = row;
        narrow.asked.terms.allow = vec![Action::Reject];
        assert!(one(&narrow).contains("does not take this answer"));
    }
}
