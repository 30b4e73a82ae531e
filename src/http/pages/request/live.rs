//! The section of the page that the script `pages/follow.js` fills with the events of the task, and
//! the script's texts in the reader's language. Without the script, the section stays empty and
//! hidden.

use maud::{Markup, html};
use serde_json::{Map, Value};

use super::View;
use super::texts::RequestTexts;
use super::timeline;
use crate::http::pages::follow;
use crate::http::pages::language::named_texts;
use crate::http::pages::translations::Translations;
use crate::http::wire::request::WireRequestStatus;

/// Renders the stored history of the request. Also renders the script and the section that the
/// script fills, except on the page of a sealed link. The script hides the stored history when it
/// has filled the section with the events of the task tree.
pub(crate) fn history_section(view: &View<'_>) -> Markup {
    html! {
        section.history {
            h2.quiet { (view.texts.history) }
            (timeline::list(view))
            @if view.link.is_none() { (script(view)) }
        }
    }
}

fn script(view: &View<'_>) -> Markup {
    let (words, request) = (view.words, &view.request);
    let root = view.row.root_task_id;
    let status = match request.status {
        WireRequestStatus::Pending => "pending",
        WireRequestStatus::Responded
        | WireRequestStatus::Resumed
        | WireRequestStatus::Expired
        | WireRequestStatus::Withdrawn => "closed",
    };
    html! {
        div #live hidden
            data-events=(format!("{}/v1/tasks/{root}/events", view.prefix))
            data-timeline=(format!("{}/tasks/{root}", view.prefix))
            data-requests=(format!("{}/resume/", view.prefix))
            data-request=(request.request_id)
            data-status=(status)
            data-answers=(view.row.answers.len())
            data-words=(Value::Object(script_texts(words)))
        {
            div #live-asked hidden { h3 { (words.live_others) } div #task-questions {} }
            (follow::live_elements(words, &follow::event_log(&[], 0)))
        }
        (follow::script_tags(&view.prefix, &["times.js", "follow.js"]))
    }
}

pub(crate) fn script_texts(words: &Translations) -> Map<String, Value> {
    let texts = RequestTexts::for_language(words.language);
    let shared = named_texts![words:
        by_agent colon event_call has_expired was_withdrawn
        has_approve has_reject has_edit has_respond has_retry has_mixed
        less_than_a_minute minutes hours days time_left
        live_running live_paused live_completed live_failed live_canceled
        live_follows live_reconnecting live_ended live_stopped live_reload
        meanwhile_decided meanwhile_answered
    ];
    let overdue = named_texts![texts: overdue];
    shared.into_iter().chain(overdue).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use regex::Regex;

    use super::*;
    use crate::http::openapi::{self, sample};
    use crate::http::pages::language::Language;
    use crate::http::pages::request::tests::page_in;

    /// Returns the texts that the page passes to the script in the attribute `data-words`.
    fn handed(page: &str) -> Map<String, Value> {
        let (_, words) = page.split_once("data-words=\"").unwrap();
        let (words, _) = words.split_once('"').unwrap();
        serde_json::from_str(&words.replace("&quot;", "\"").replace("&amp;", "&")).unwrap()
    }

    #[test]
    fn every_word_of_the_script_is_passed_in_the_readers_language() {
        let said = Regex::new(r"words\.([a-z_]+)").unwrap();
        let wanted: BTreeSet<&str> = said
            .captures_iter(follow::SCRIPT)
            .map(|found| found.get(1).unwrap().as_str())
            .collect();
        assert!(wanted.len() > 15, "{wanted:?}");
        let said_in =
            |language| handed(&page_in(language, &sample::request(), &sample::approver()));
        let (english, chinese) = (said_in(Language::English), said_in(Language::Chinese));
        for word in wanted {
            assert!(english.contains_key(word), "{word}");
        }
        for (word, text) in &english {
            assert_ne!(chinese.get(word), Some(text), "{word}");
        }
        let document = openapi::document();
        for (kind, prefix) in [("DecisionAction", "has"), ("TaskStatus", "live")] {
            let all = document["components"]["schemas"][kind]["enum"]
                .as_array()
                .unwrap();
            assert!(all.len() > 4, "{kind}");
            for word in all {
                let name = format!("{prefix}_{}", word.as_str().unwrap().to_lowercase());
                assert!(english.contains_key(&name), "{name}");
            }
        }
    }

    #[test]
    fn live_section_is_hidden_without_its_script() {
        for language in Language::ALL {
            let page = page_in(language, &sample::request(), &sample::approver());
            assert_eq!(page.matches("<div id=\"live\" hidden").count(), 1, "{page}");
            assert!(
                page.contains("<div id=\"meanwhile\" role=\"status\" aria-live=\"polite\"></div>"),
                "{page}"
            );
        }
    }
}
