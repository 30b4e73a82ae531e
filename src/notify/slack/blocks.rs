//! The body of a message to Slack, as blocks.
//!
//! Invariants: a text that this service did not write is `plain_text`, in which markup has no
//! effect. `mrkdwn` is used for links to this service and nowhere else. `&`, `<` and `>` are always
//! escaped.

use serde_json::{Map, Value, json};

use crate::notify::chat::{ListedQuestion, REVIEW, RoomMessage, title};

/// Returns the members `text` and `blocks` of the body of a message.
pub(in crate::notify) fn content(message: &RoomMessage) -> Map<String, Value> {
    let mut blocks = Vec::new();
    if message.digest.questions.len() == 1 {
        for listed in message.listed_questions() {
            blocks.extend(details(&listed, &message.first_line(&listed)));
        }
    } else {
        blocks.push(section(&plain(&message.heading())));
        for listed in message.listed_questions() {
            if message.shows_details() {
                blocks.extend(details(&listed, &title(listed.question)));
            } else {
                blocks.push(summary_line(&listed));
            }
        }
    }
    if let Some(unlisted_text) = message.unlisted_text() {
        let inbox = message.digest.inbox.as_deref();
        let mut elements = vec![plain(&unlisted_text)];
        elements.extend(inbox.map(|url| link(url, "Inbox")));
        blocks.push(context(&elements));
    }
    let mut members = plain_content(&message.notification_text());
    members.insert("blocks".to_owned(), blocks.into());
    members
}

/// Returns the member `text` of the body of a message without blocks.
pub(in crate::notify) fn plain_content(words: &str) -> Map<String, Value> {
    let text = ("text".to_owned(), Value::from(escape(words)));
    [text].into_iter().collect()
}

/// Returns the blocks of a question with all details: title, message, summaries and facts, and the
/// link while the question is open.
fn details(listed: &ListedQuestion<'_>, title: &str) -> Vec<Value> {
    let mut head = vec![title.to_owned()];
    head.extend(listed.message());
    let mut blocks = vec![section(&plain(&head.join("\n")))];
    let summaries = listed.summaries();
    if !summaries.is_empty() {
        blocks.push(section(&plain(&summaries.join("\n"))));
    }
    blocks.push(context(&[plain(&facts(listed))]));
    blocks.extend(listed.link().map(|url| section(&link(url, REVIEW))));
    blocks
}

fn summary_line(listed: &ListedQuestion<'_>) -> Value {
    let title = title(listed.question);
    let state = match listed.outcome {
        Some(outcome) => outcome.text.clone(),
        None => facts(listed),
    };
    let review = listed.link().map(|url| link(url, REVIEW));
    let text = plain(&format!("{title} · {state}"));
    let elements: Vec<Value> = review.into_iter().chain([text]).collect();
    context(&elements)
}

fn facts(listed: &ListedQuestion<'_>) -> String {
    let facts = listed.facts().into_iter();
    let texts = facts.map(|(name, value)| match name {
        "Kind" | "State" => value,
        name => format!("{} {value}", name.to_lowercase()),
    });
    texts.collect::<Vec<_>>().join(" · ")
}

fn section(text: &Value) -> Value {
    json!({"type": "section", "text": text})
}

fn context(elements: &[Value]) -> Value {
    json!({"type": "context", "elements": elements})
}

fn plain(words: &str) -> Value {
    json!({"type": "plain_text", "text": escape(words), "emoji": false})
}

/// Returns a text object with a link. `url` must be an address of this service.
fn link(url: &str, word: &'static str) -> Value {
    let url = escape(url).replace('|', "%7C");
    json!({"type": "mrkdwn", "text": format!("<{url}|{word}>"), "verbatim": true})
}

/// Escapes the three control characters of Slack.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notify::chat::samples::{HOSTILE, closed, room_message};

    /// Returns the type and the text of every text object in the blocks.
    fn texts(value: &Value) -> Vec<(String, String)> {
        match value {
            Value::Object(members)
                if members.contains_key("text") && members["text"].is_string() =>
            {
                let member = |key: &str| members[key].as_str().unwrap().to_owned();
                vec![(member("type"), member("text"))]
            }
            Value::Object(members) => members.values().flat_map(texts).collect(),
            Value::Array(all) => all.iter().flat_map(texts).collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
        }
    }

    fn blocks(message: &RoomMessage) -> Value {
        content(message)["blocks"].clone()
    }

    #[test]
    fn one_question_is_a_title_its_facts_and_a_text_link() {
        let found = content(&room_message(1));
        let kinds = |value: &Value| value["type"].as_str().unwrap().to_owned();
        let all = found["blocks"].as_array().unwrap();
        assert_eq!(
            all.iter().map(kinds).collect::<Vec<_>>(),
            ["section", "context", "section"]
        );
        assert_eq!(found["text"], "A question waits: refund (billing)");
        assert_eq!(
            all[0]["text"]["text"],
            "A question waits: refund (billing)\nRefunds above 20 need finance."
        );
        assert_eq!(
            all[1]["elements"][0]["text"],
            "approval · asked 2026-11-23 09:00 UTC · answer by 2026-11-24 09:00 UTC"
        );
        assert_eq!(
            all[2]["text"],
            json!({"type": "mrkdwn", "text": "<https://agents.acme.com/resume/0|Review>", "verbatim": true})
        );
    }

    #[test]
    fn five_questions_are_shown_whole_and_six_in_a_line_each() {
        let five = blocks(&room_message(5));
        assert_eq!(five.as_array().unwrap().len(), 1 + 5 * 3);
        let six = blocks(&room_message(6));
        assert_eq!(six.as_array().unwrap().len(), 1 + 6);
        assert_eq!(six[0]["text"]["text"], "6 questions wait");
        assert!(!six.to_string().contains("Refunds above 20"));
        let links = |all: &Value| {
            texts(all)
                .iter()
                .filter(|(kind, _)| kind == "mrkdwn")
                .count()
        };
        assert_eq!((links(&five), links(&six)), (5, 6));
    }

    #[test]
    fn further_questions_are_a_number_with_a_link_to_the_inbox() {
        let mut many = room_message(20);
        many.digest.unlisted = 980;
        let all = blocks(&many);
        let last = all.as_array().unwrap().last().unwrap();
        assert_eq!(last["elements"][0]["text"], "and 980 more");
        assert_eq!(
            last["elements"][1]["text"],
            "<https://agents.acme.com/inbox|Inbox>"
        );
        many.digest.inbox = None;
        assert!(!blocks(&many).to_string().contains("/inbox"));
    }

    #[test]
    fn text_that_is_not_ours_is_plain_and_escaped_whatever_it_says() {
        for hostile in HOSTILE {
            let mut many = room_message(2);
            for question in &mut many.digest.questions {
                question.message = Some(hostile.to_owned());
                question.summaries = vec![hostile.to_owned()];
                question.agent = hostile.to_owned();
                question.tools = vec![hostile.to_owned()];
            }
            many.outcomes = vec![closed(hostile), None];
            let content = content(&many);
            for (kind, text) in texts(&content["blocks"]) {
                if kind == "mrkdwn" {
                    let link = text
                        .strip_prefix("<https://agents.acme.com/resume/")
                        .unwrap();
                    assert_eq!(link, "1|Review>", "the first question is closed");
                } else {
                    assert_eq!(kind, "plain_text");
                    assert!(!text.contains(['<', '>', '\r', '\u{202e}']), "{text}");
                    let rest = ["&amp;", "&lt;", "&gt;"]
                        .iter()
                        .fold(text, |text, it| text.replace(it, ""));
                    assert!(!rest.contains('&'), "{rest}");
                }
            }
            assert!(!content["text"].as_str().unwrap().contains(['<', '>']));
        }
    }

    #[test]
    fn largest_message_keeps_to_the_limits_of_slack() {
        for count in [5, 20] {
            let mut many = room_message(count);
            for question in &mut many.digest.questions {
                question.message = Some("&".repeat(100_000));
                question.summaries = vec!["<".repeat(100_000); 3];
                question.tools = vec!["&".repeat(64); 40];
                question.agent = "&".repeat(64);
            }
            many.outcomes = (0..count).map(|_| closed(&"&".repeat(64))).collect();
            let all = blocks(&many);
            assert!(all.as_array().unwrap().len() <= 50);
            let longest = texts(&all)
                .into_iter()
                .map(|(_, text)| text.chars().count())
                .max();
            assert!(longest <= Some(3000), "{longest:?}");
            assert!(texts(&all).iter().all(|(_, text)| !text.is_empty()));
        }
    }

    #[test]
    fn message_about_a_decision_names_the_decider_and_has_no_link() {
        let mut one = room_message(1);
        one.outcomes = vec![closed("Approved by carol, 09:13 UTC")];
        let found = content(&one);
        assert_eq!(
            found["text"],
            "Approved by carol, 09:13 UTC: refund (billing)"
        );
        let rendered = found["blocks"].to_string();
        assert!(
            !rendered.contains("agents.acme.com") && !rendered.contains("answer by"),
            "{rendered}"
        );
        for count in [3, 6] {
            let mut several = room_message(count);
            several.outcomes[1] = closed("Rejected by bob, 09:14 UTC");
            let rendered = blocks(&several).to_string();
            let heading = format!("{} of {count} questions still wait", count - 1);
            assert!(
                rendered.contains(&heading) && rendered.contains("Rejected by bob, 09:14 UTC"),
                "{rendered}"
            );
            assert_eq!(rendered.matches("|Review>").count(), count - 1);
            assert!(!rendered.contains("/resume/1|"), "{rendered}");
        }
    }
}
