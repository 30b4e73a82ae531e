//! The page where a person decides a request. Above its first button, the page shows every byte of
//! the calls that would run. Invisible characters are shown as `\u{…}`, and the agent's text is in
//! a box that names the agent as its author. The forms post the digest of the request as shown, so
//! an approval covers exactly the calls that the approver saw. The page works without its scripts,
//! which show times in the reader's zone, and the events that happen while the page is open.

mod arguments;
mod asker;
mod call;
mod change;
mod choices;
pub(crate) mod deadline;
mod decide;
mod details;
pub(crate) mod form;
mod forms;
mod headline;
mod history;
mod inputs;
pub(crate) mod invalid_form;
pub(crate) mod kind;
pub(crate) mod live;
mod opening;
mod ordered;
mod question;
mod remember;
mod risk;
mod schema;
mod several;
pub(crate) mod single_action;
mod submitted;
mod sum;
pub(crate) mod texts;
mod timeline;
mod user_message;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_forms;
#[cfg(test)]
mod tests_layout;
#[cfg(test)]
mod tests_mistakes;

use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use maud::{Markup, html};

use self::headline::{asked_by_agent, headline};
use self::history::RequestHistory;
use self::submitted::SubmittedForm;
use self::texts::RequestTexts;
use self::timeline::RequestTimeline;
use self::user_message::UserMessage;
use super::follow;
use super::inbox::next_question::next_question_line;
use super::language::Language;
use super::layout::{force_left_to_right, frame_in};
use super::link;
use super::sign_in::{sign_in_again, signed_in_bar};
use super::site::Site;
use super::translations::Translations;
use super::unless_corrupt;
use crate::engine::gate::AskerStatus;
use crate::http::server::link::CurrentLink;
use crate::http::server::problem::{Problem, path_prefix};
use crate::http::wire::decision::DecisionAction;
use crate::http::wire::request::{InterventionRequest, RequestedCall, WireRequestStatus};
use crate::http::{Http, Settings};
use crate::people::Caller;
use crate::people::authorization::{may_decide, required_approvals};
use crate::store::RequestRow;
use crate::task::decision::Action;
use crate::task::status;
use crate::task::time::Time;

/// The data of a request's page: the request, the page's reader, and facts from the journal.
#[derive(Debug)]
pub(crate) struct View<'a> {
    /// The request as the reader sees it.
    pub request: InterventionRequest,
    pub row: &'a RequestRow,
    pub caller: &'a Caller,
    /// The path of `public_url`.
    pub prefix: String,
    pub words: &'static Translations,
    pub texts: &'static RequestTexts,
    /// The current time, from which the page computes relative times.
    pub now: Time,
    /// The form that was submitted with mistakes, if any.
    pub submitted: Option<&'a SubmittedForm>,
    /// The facts that the journal has about the calls since the request was opened. `None` if the
    /// status of the request is `Pending`, or if the journal is unreadable.
    pub history: Option<RequestHistory>,
    /// The line with a link to the next question, as [`next_question_line`] returns it. `None` if a
    /// sealed link opened the page.
    pub next_question: Option<Markup>,
    /// The entries from the journal that the page's history lists.
    timeline: RequestTimeline,
    /// The last message of the user before the question; for a call at a gate, the agent's text
    /// about the call. `None` if `user_message::load` finds none.
    user_message: Option<UserMessage>,
    /// The state of the client that proposed the call at a gate. `None` if `asker::load` finds
    /// none.
    asker: Option<AskerStatus>,
    /// The path to which the reader returns after signing in as another user.
    pub return_path: String,
    /// The sealed link that the reader opened, if any.
    pub link: Option<&'a CurrentLink>,
}

const ITEMS_PER_READ: i64 = 16;

impl<'a> View<'a> {
    /// Creates the page's data for `caller` at the time `now`, without facts from the journal.
    #[must_use]
    pub(crate) fn new(
        row: &'a RequestRow,
        caller: &'a Caller,
        settings: &Settings,
        language: Language,
        now: Time,
    ) -> Self {
        let prefix = path_prefix(&settings.public_url);
        Self {
            request: InterventionRequest::for_caller(row, caller, settings),
            row,
            caller,
            return_path: format!("{prefix}/resume/{}", row.spec.request_id),
            prefix,
            words: Translations::for_language(language),
            texts: RequestTexts::for_language(language),
            now,
            submitted: None,
            history: None,
            next_question: None,
            timeline: RequestTimeline::default(),
            user_message: None,
            asker: None,
            link: None,
        }
    }

    /// Reads the page's data for `caller` at the current time. `link` is the sealed link that the
    /// reader opened, if any. Such a reader gets no link to the next question.
    pub(crate) async fn load(
        http: &Http,
        row: &'a RequestRow,
        caller: &'a Caller,
        headers: &HeaderMap,
        link: Option<&'a CurrentLink>,
    ) -> Result<Self, Problem> {
        let language = Language::from_headers(headers);
        let mut view = Self::new(row, caller, &http.settings, language, http.clock.now());
        view.link = link;
        if row.status != status::RequestStatus::Pending {
            view.load_history(http).await?;
        }
        view.user_message = user_message::load(http, row).await?;
        view.asker = asker::load(http, row).await?;
        if link.is_none() {
            view.next_question = next_question_line(http, row, &view.site()).await?;
        }
        Ok(view)
    }

    fn site(&self) -> Site<'_> {
        Site {
            caller: self.caller,
            prefix: self.prefix.clone(),
            language: self.words.language,
        }
    }

    /// Renders `why`, the reason why this reader has nothing to answer. If only other people may
    /// decide the request, adds a link to sign in as another user. If a sealed link does not permit
    /// the action, renders the advice to sign in instead of `why`.
    fn nothing_to_answer(&self, why: &str) -> Markup {
        if self.link.is_some() && why == self.texts.link_no_answer {
            return link::key_needed_notice(self);
        }
        html! {
            p { strong { (self.words.nothing_here) } " " (why) }
            @if why == self.words.for_others {
                (sign_in_again(self.caller, &self.return_path, &self.prefix, self.words.language))
            }
        }
    }

    fn allows(&self, action: Action) -> bool {
        let action = DecisionAction::from(action);
        self.request.can_decide && self.request.allowed_actions.contains(&action)
    }

    /// Returns whether this reader may take this action on the whole request. A rejection covers
    /// every undecided call, and a reader's first answer to a call counts. So the service refuses
    /// the rejection if this reader has approved a call that still needs further approvals.
    fn allows_whole(&self, action: Action) -> bool {
        self.allows(action) && (action != Action::Reject || !self.has_approved_undecided_call())
    }

    fn has_approved_undecided_call(&self) -> bool {
        let (state, user) = (self.row.state(), &self.caller.user_id);
        self.row.spec.own_calls().any(|call| {
            let id = call.tool_call_id;
            state.deciding_answer(id).is_none() && state.answer_by(user, Some(id)).is_some()
        })
    }

    /// Returns the calls that this reader may still answer.
    fn open_calls(&self) -> Vec<&RequestedCall> {
        let state = self.row.state();
        let open = state.open_calls(&self.caller.user_id);
        let open: Vec<String> = open.map(|call| call.tool_call_id.to_string()).collect();
        let calls = self.request.tool_calls.iter();
        calls
            .filter(|call| open.contains(&call.tool_call_id))
            .collect()
    }

    /// Returns the calls that the request decides, each with its index in `request.tool_calls`.
    fn own_calls(&self) -> Vec<(usize, &RequestedCall)> {
        let calls = self.request.tool_calls.iter().enumerate();
        calls.filter(|(_, call)| call.needs_decision).collect()
    }

    /// Returns whether the request was decided by an action other than a rejection, and none of its
    /// calls has failed (`CallStatus::is_failure`).
    fn ended_well(&self) -> bool {
        let decided = self.request.decision.as_ref();
        let went_wrong = |history: &RequestHistory| {
            let mut own = self.row.spec.own_calls();
            own.any(|call| history.call_status(call.tool_call_id).is_failure())
        };
        decided.is_some_and(|decision| decision.action != DecisionAction::Reject)
            && !self.history.as_ref().is_some_and(went_wrong)
    }

    /// Returns the number of people who have to approve each call.
    fn required(&self) -> u32 {
        required_approvals(self.caller, &self.row.spec)
    }

    /// Returns the reason why a POST of this action would be refused; `None` if it would be
    /// accepted.
    fn refusal_reason(&self, action: Action) -> Option<&'static str> {
        let words = self.words;
        match self.request.status {
            WireRequestStatus::Responded | WireRequestStatus::Resumed => {
                return Some(words.is_decided);
            }
            WireRequestStatus::Expired => return Some(words.has_expired),
            WireRequestStatus::Withdrawn => return Some(words.was_withdrawn),
            // The deadline has passed, but no commit has set the status `expired` yet.
            WireRequestStatus::Pending if self.row.expired => return Some(words.has_expired),
            WireRequestStatus::Pending => {}
        }
        let (row, terms) = (self.row, &self.row.spec.terms);
        if self.link.is_none()
            && may_decide(self.caller, &row.tenant, &row.owner, &terms.approvers).is_none()
        {
            return Some(words.for_others);
        }
        if self.open_calls().is_empty() {
            return Some(words.you_answered);
        }
        if self.link.is_some() {
            return (!self.allows(action)).then_some(self.texts.link_no_answer);
        }
        if self.allows_whole(action) {
            return None;
        }
        let approves = action == Action::Approve;
        if approves && self.request.approval_url.is_none() {
            return Some(words.not_of_kind);
        }
        let decides_calls = self.request.kind.properties().decides_calls;
        let by_rule = decides_calls && !terms.allow.contains(&action);
        Some(if by_rule {
            words.rule_forbids
        } else {
            words.not_permitted
        })
    }
}

/// Returns whether the page has the forms for a single call. With two or more open calls, the page
/// has the form with a choice for each call instead.
#[must_use]
pub(crate) fn has_single_call_forms(view: &View<'_>) -> bool {
    view.open_calls().len() < 2
}

/// Responds with a page. The page of a sealed link has no script, and its `Content-Security-Policy`
/// permits none.
#[must_use]
pub(crate) fn page_response(view: &View<'_>, page: Markup) -> Response {
    if view.link.is_some() {
        page.into_response()
    } else {
        follow::page_with_script(page)
    }
}

/// Renders the page with every form that this reader may use.
#[must_use]
pub(crate) fn request_page(view: &View<'_>) -> Markup {
    let permitted = forms::permitted_forms(view);
    let nothing_to_answer = || {
        view.refusal_reason(Action::Reject)
            .unwrap_or(view.words.not_permitted)
    };
    page(
        view,
        &html! {
            @if permitted.is_empty() {
                (view.nothing_to_answer(nothing_to_answer()))
            } @else {
                h2.unseen { (view.words.your_answer) }
                @for form in &permitted { (form) }
            }
        },
    )
}

/// Renders the page with the button for `action`. If the service would refuse `action`, `refusal`
/// has the reason, and the page shows the reason instead of the button.
#[must_use]
pub(crate) fn single_action_page(view: &View<'_>, action: Action, refusal: Option<&str>) -> Markup {
    page(
        view,
        &html! {
            @match refusal {
                Some(why) => (view.nothing_to_answer(why)),
                None if action == Action::Approve => (forms::approve_form(view)),
                None => (forms::reject_form(view)),
            }
            p { a href=(format!("{}/resume/{}", view.prefix, view.request.request_id)) { (view.words.back) } }
        },
    )
}

/// Renders the whole page, with its parts in the order in which a reader needs them.
fn page(view: &View<'_>, answers: &Markup) -> Markup {
    let closed = headline(view.row, view.history.as_ref(), view.words);
    frame_in(
        view.words.language,
        &tab_title(view, closed.as_deref()),
        &html! {
            @if view.link.is_none() { a.skip href="#content" { (view.site().texts().skip) } }
            header { @match view.link { Some(link) => (link::person_line(view, link)), None => (view.site().nav_links(None, "")) } }
            div #content tabindex="-1" {
                // The list of mistakes comes before the link to the next question, because the
                // first element with `autofocus` gets the focus.
                @if let Some(submitted) = view.submitted { (inputs::mistake_list(view, submitted)) }
                @if let Some(line) = &view.next_question { (line) }
                (opening::opening(view, closed.as_deref()))
                // The script announces here an answer that is stored while the page is open.
                div #meanwhile role="status" aria-live="polite" {}
                (user_message::message_figure(view))
                (question::question(view))
                @if !asked_by_agent(view.row) { (call::calls(view)) }
                (user_message::context_figure(view))
                div #answers {
                    @if closed.is_none() { (risk::warnings_and_risk(view)) }
                    (answers)
                }
                (details::section(view))
                (live::history_section(view))
            }
            footer {
                @match view.link {
                    Some(link) => (link::expiry_lines(view, link)),
                    None => (signed_in_bar(view.caller, &view.prefix, view.words.language)),
                }
            }
        },
    )
}

/// Returns the title of the browser's tab: a prefix if the page shows mistakes, the headline if the
/// request is closed, and the page's heading.
fn tab_title(view: &View<'_>, closed: Option<&str>) -> String {
    let mistakes = view.submitted.map_or("", |_| view.words.error_prefix);
    let heading = opening::heading(view);
    force_left_to_right(match closed {
        Some(closed) => format!("{mistakes}{closed} · {heading}"),
        None => format!("{mistakes}{heading}"),
    })
}

/// The maximum number of reads of the journal's items after the request. Fewer reads are enough if
/// the journal ends, or if `RequestHistory::is_settled` returns true. `is_settled` never returns
/// true for a request with a canceled call, or with a call whose outcome is unknown.
const MAX_HISTORY_READS: usize = 64;

impl View<'_> {
    /// Reads `history` and `timeline` from the journal, at most [`MAX_HISTORY_READS`] times. If a
    /// stored item is unreadable, `history` stays `None`, and `timeline` has only the entries that
    /// were read before.
    async fn load_history(&mut self, http: &Http) -> Result<(), Problem> {
        let mut history = RequestHistory::new(self.row);
        let mut after = self.row.asked_seq;
        for _ in 0..MAX_HISTORY_READS {
            let read = http.store.items(self.row.task_id, after, ITEMS_PER_READ);
            let Some(items) = unless_corrupt(read.await)? else {
                return Ok(());
            };
            for (item, _) in &items {
                history.apply(item);
                self.timeline.apply(self.row, item, self.words);
            }
            match items.last() {
                Some((item, _)) if !history.is_settled() => after = item.seq,
                Some(_) | None => break,
            }
        }
        self.history = Some(history);
        Ok(())
    }
}
