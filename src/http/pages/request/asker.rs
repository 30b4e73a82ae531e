//! For a call at a gate, shows whether its asker (the client that proposed the call) waits for the
//! answer, and how an approval takes effect.

use maud::{Markup, html};

use super::View;
use super::deadline::duration_text;
use crate::engine::gate::AskerStatus;
use crate::http::Http;
use crate::http::pages::translations::fill;
use crate::http::pages::unless_corrupt;
use crate::http::server::problem::Problem;
use crate::http::wire::request::RequestedCall;
use crate::store::RequestRow;
use crate::task::decision::Action;

/// Reads the state of the client that proposed the request's call at a gate. `None` if
/// `Gates::asker_status` returns none, or if the journal cannot be read.
pub(super) async fn load(http: &Http, row: &RequestRow) -> Result<Option<AskerStatus>, Problem> {
    let (gates, agent) = (http.engine.gates(), row.agent_path.first());
    let read = gates.asker_status(row.root_task_id, agent).await;
    Ok(unless_corrupt(read)?.flatten())
}

/// Renders the line about the client that proposed the call. If an approval by this reader lets the
/// call run, the line also names the effect of the approval. Empty if the request is closed, or if
/// `view.asker` is `None`.
pub(super) fn line(view: &View<'_>, is_open: bool) -> Markup {
    let Some(asker) = view.asker.as_ref().filter(|_| is_open) else {
        return html! {};
    };
    let texts = view.texts;
    let time = duration_text(asker.use_within, view.words);
    let (presence, effect) = match (asker.is_waiting, asker.runs_elsewhere) {
        (true, false) => (texts.asker_waiting, texts.approval_runs_call),
        (true, true) => (texts.asker_waiting, texts.approval_permits_call),
        (false, false) => (texts.asker_absent, texts.approval_runs_call_later),
        (false, true) => (texts.asker_absent, texts.approval_permits_call_later),
    };
    html! {
        p.why.asker {
            (presence)
            @if approval_lets_run(view) { " " (fill(effect, &[("time", &time)])) }
        }
    }
}

/// Returns whether an approval by this reader lets the call run. False if this reader may not
/// approve, or if more than one approval is missing.
fn approval_lets_run(view: &View<'_>) -> bool {
    let required = usize::try_from(view.required()).unwrap_or(usize::MAX);
    let is_last = |call: &RequestedCall| required.saturating_sub(call.approvals.len()) < 2;
    view.request.kind.properties().decides_calls
        && view.allows(Action::Approve)
        && view.own_calls().iter().all(|(_, call)| is_last(call))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::request_page;
    use super::*;
    use crate::http::openapi::sample;
    use crate::http::pages::language::Language;
    use crate::task::request::RequestKind;
    use crate::task::status::RequestStatus;

    fn page(row: &RequestRow, language: Language, asker: Option<AskerStatus>) -> String {
        let (approver, settings) = (sample::approver(), sample::settings());
        let mut view = View::new(row, &approver, &settings, language, sample::now());
        view.asker = asker;
        request_page(&view).into_string()
    }

    fn asker(is_waiting: bool, runs_elsewhere: bool) -> AskerStatus {
        AskerStatus {
            is_waiting,
            runs_elsewhere,
            use_within: Duration::from_hours(2),
        }
    }

    #[test]
    fn open_gate_call_says_whether_its_asker_waits_and_what_an_approval_does() {
        let row = sample::request();
        let states = [(true, false), (true, true), (false, false), (false, true)];
        for (language, texts) in [
            (
                Language::English,
                [
                    "The agent waits now. If you approve, the call runs at once.",
                    "The agent waits now. If you approve, the agent runs the call itself.",
                    "The agent is not waiting: it must ask again. If you approve, the call runs when the agent asks again, within 2 h.",
                    "The agent is not waiting: it must ask again. If you approve, the agent may run the call itself when it asks again, within 2 h.",
                ],
            ),
            (
                Language::Chinese,
                [
                    "智能体正在等待。 批准后将立即执行此调用。",
                    "智能体正在等待。 批准后由智能体自行执行此调用。",
                    "智能体未在等待：需要再次请求。 批准后，智能体在 2 小时 内再次请求时才会执行此调用。",
                    "智能体未在等待：需要再次请求。 批准后，智能体在 2 小时 内再次请求时可自行执行此调用。",
                ],
            ),
        ] {
            for ((is_waiting, runs_elsewhere), text) in states.into_iter().zip(texts) {
                let page = page(&row, language, Some(asker(is_waiting, runs_elsewhere)));
                let line = format!("<p class=\"why asker\">{text}</p>");
                let place = page.find(&line);
                assert!(place.is_some(), "no {line}: {page}");
                assert!(place < page.find("<button"), "above the buttons: {page}");
            }
        }
    }

    #[test]
    fn gate_call_with_several_approvers_names_the_effect_of_the_last_approval_only() {
        let mut row = sample::request();
        row.spec.terms.approvers.required = 2;
        let call = row.spec.pending_tool_calls[0].tool_call_id;
        let approved_by = |by: Option<&str>| {
            let answer = by.and_then(|by| sample::answer(by, Action::Approve, &[call], false));
            RequestRow {
                answers: answer.into_iter().collect(),
                ..row.clone()
            }
        };
        for (language, presence, effect) in [
            (
                Language::English,
                "The agent waits now.",
                " If you approve, the call runs at once.",
            ),
            (
                Language::Chinese,
                "智能体正在等待。",
                " 批准后将立即执行此调用。",
            ),
        ] {
            for (by, effect) in [(None, ""), (Some("dana"), effect), (Some("bob"), "")] {
                let page = page(&approved_by(by), language, Some(asker(true, false)));
                let line = format!("<p class=\"why asker\">{presence}{effect}</p>");
                assert!(page.contains(&line), "{by:?}: no {line}: {page}");
            }
        }
    }

    #[test]
    fn question_of_a_tools_server_says_nothing_of_an_approval() {
        let row = sample::of_kind(RequestKind::Elicitation);
        for (is_waiting, text) in [
            (true, "The agent waits now."),
            (false, "The agent is not waiting: it must ask again."),
        ] {
            let page = page(&row, Language::English, Some(asker(is_waiting, false)));
            let line = format!("<p class=\"why asker\">{text}</p>");
            assert!(page.contains(&line), "no {line}: {page}");
            assert!(!page.contains("If you approve"), "{page}");
        }
    }

    #[test]
    fn asker_is_not_shown_for_an_own_agents_call_and_a_closed_gate_call() {
        let mut row = sample::request();
        let asks = |row: &RequestRow, asker| {
            page(row, Language::English, asker).contains("class=\"why asker\"")
        };
        let waits = Some(asker(true, false));
        assert!(asks(&row, waits));
        assert!(!asks(&row, None), "a call of an own agent");
        row.status = RequestStatus::Withdrawn;
        assert!(!asks(&row, waits), "a closed call");
    }
}
