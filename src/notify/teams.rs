//! Posts messages to a channel or chat of Teams. A message is an Adaptive Card in the envelope that
//! a workflow of Teams expects. A posted message cannot be updated.
//!
//! Invariants: a text that this service did not write is a `TextRun`, in which Markdown has no
//! effect. The actions of a card open pages. No action answers a question.

use reqwest::header::{CONTENT_TYPE, HeaderValue};
use serde_json::{Value, json};
use url::Url;

use super::attempt_result::AttemptResult;
use super::chat::{ListedQuestion, MAX_DETAILED_QUESTIONS, REVIEW, RoomMessage, title};
use super::exchange::{ATTEMPT_TIMEOUT, exchange};
use super::settings::Teams as Settings;
use crate::net::{Net, plain_http_url};
use crate::world::Clock;

pub(super) struct TeamsChannel {
    url: Url,
    pub(super) shows_summaries: bool,
}

impl TeamsChannel {
    /// Returns the channel with these settings; `None` if the URL in the settings is not valid.
    pub(super) fn from_settings(settings: &Settings) -> Option<Self> {
        Some(Self {
            url: plain_http_url(settings.url.reveal())?,
            shows_summaries: settings.summaries,
        })
    }

    /// Posts a message. The result has no id of the message, because a posted message cannot be
    /// updated.
    pub(super) async fn post(&self, net: &Net, clock: &dyn Clock, body: &Value) -> AttemptResult {
        let request = net.repeatable().post(self.url.clone());
        let json = HeaderValue::from_static("application/json");
        let request = request.header(CONTENT_TYPE, json).body(body.to_string());
        exchange(clock, request, ATTEMPT_TIMEOUT).await.0
    }
}

pub(super) fn body(message: &RoomMessage) -> Value {
    let mut content = Vec::new();
    if message.digest.questions.len() == 1 {
        for listed in message.listed_questions() {
            content.extend(details(&listed, &message.first_line(&listed)));
        }
    } else {
        content.push(text_block(&message.heading(), true));
        for (index, listed) in message.listed_questions().enumerate() {
            let title = format!("{}. {}", index + 1, title(listed.question));
            if message.shows_details() {
                content.extend(details(&listed, &title));
            } else {
                content.push(text_block(&title, false));
            }
        }
    }
    let unlisted = message.unlisted_text();
    content.extend(unlisted.map(|text| text_block(&text, false)));
    card(&content, &actions(message))
}

pub(super) fn plain_body(text: &str) -> Value {
    card(&[text_block(text, false)], &[])
}

fn card(content: &[Value], actions: &[Value]) -> Value {
    json!({
        "type": "message",
        "attachments": [{
            "contentType": "application/vnd.microsoft.card.adaptive",
            "contentUrl": null,
            "content": {
                "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
                "type": "AdaptiveCard",
                "version": "1.4",
                "body": content,
                "actions": actions,
            },
        }],
    })
}

/// Returns the card's elements for a question in full: its title, message, summaries and facts.
fn details(listed: &ListedQuestion<'_>, title: &str) -> Vec<Value> {
    let mut content = vec![text_block(title, true)];
    let lines = listed.message().into_iter().chain(listed.summaries());
    content.extend(lines.map(|line| text_block(&line, false)));
    let facts = listed.facts().into_iter();
    let facts: Vec<Value> = facts
        .map(|(title, value)| json!({"title": title, "value": value}))
        .collect();
    content.push(json!({"type": "FactSet", "facts": facts}));
    content
}

fn text_block(text: &str, strong: bool) -> Value {
    let weight = if strong { "Bolder" } else { "Default" };
    let run = json!({"type": "TextRun", "text": text, "weight": weight});
    json!({"type": "RichTextBlock", "inlines": [run]})
}

/// Returns the actions of a message. A message with at most `MAX_DETAILED_QUESTIONS` questions has
/// an action for each open question, which opens the question's page. A longer message has a single
/// action, which opens the inbox. If there is no inbox, a longer message has an action for each
/// open question among its first `MAX_DETAILED_QUESTIONS`.
fn actions(message: &RoomMessage) -> Vec<Value> {
    let open =
        |title: &str, url: &str| json!({"type": "Action.OpenUrl", "title": title, "url": url});
    if let Some(inbox) = &message.digest.inbox
        && !message.shows_details()
    {
        return vec![open("Open the inbox", inbox)];
    }
    let only = message.digest.questions.len() == 1;
    let numbered = (1..).zip(message.listed_questions());
    let detailed = numbered.take(MAX_DETAILED_QUESTIONS);
    let actions = detailed.filter_map(|(number, listed)| match listed.link()? {
        url if only => Some(open(REVIEW, url)),
        url => Some(open(&format!("{REVIEW} {number}"), url)),
    });
    actions.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notify::chat::samples::{HOSTILE, closed, room_message};

    fn content(message: &RoomMessage) -> Value {
        body(message)["attachments"][0]["content"].clone()
    }

    #[test]
    fn one_question_is_a_card_with_facts_and_one_action() {
        let message = body(&room_message(1));
        assert_eq!(message["type"], "message");
        let card = &message["attachments"][0];
        assert_eq!(
            card["contentType"],
            "application/vnd.microsoft.card.adaptive"
        );
        let card = &card["content"];
        assert_eq!(
            (&card["type"], &card["version"]),
            (&json!("AdaptiveCard"), &json!("1.4"))
        );
        assert_eq!(
            card["body"][0]["inlines"][0]["text"],
            "A question waits: refund (billing)"
        );
        assert_eq!(
            card["body"][2]["facts"],
            json!([
                {"title": "Kind", "value": "approval"},
                {"title": "Asked", "value": "2026-11-23 09:00 UTC"},
                {"title": "Answer by", "value": "2026-11-24 09:00 UTC"}
            ])
        );
        let review = json!([{"type": "Action.OpenUrl", "title": "Review", "url": "https://agents.acme.com/resume/0"}]);
        assert_eq!(card["actions"], review);
    }

    #[test]
    fn few_questions_have_an_action_each_and_many_lead_to_the_inbox() {
        let titles = |card: &Value| {
            let actions = card["actions"].as_array().unwrap().iter();
            actions
                .map(|action| action["title"].as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        let five = content(&room_message(5));
        assert_eq!(
            titles(&five),
            ["Review 1", "Review 2", "Review 3", "Review 4", "Review 5"]
        );
        assert_eq!(five["body"][1]["inlines"][0]["text"], "1. refund (billing)");
        let mut six = room_message(6);
        six.digest.unlisted = 3;
        let card = content(&six);
        assert_eq!(titles(&card), ["Open the inbox"]);
        assert_eq!(card["body"].as_array().unwrap().len(), 1 + 6 + 1);
        six.digest.inbox = None;
        assert_eq!(titles(&content(&six)).len(), 5);
        let mut three = room_message(3);
        three.outcomes[1] = closed("Rejected by bob, 09:14 UTC");
        assert_eq!(titles(&content(&three)), ["Review 1", "Review 3"]);
    }

    #[test]
    fn text_that_is_not_ours_is_a_run_of_text_whatever_it_says() {
        for hostile in HOSTILE {
            let mut two = room_message(2);
            for question in &mut two.digest.questions {
                question.message = Some(hostile.to_owned());
                question.summaries = vec![hostile.to_owned()];
                question.agent = hostile.to_owned();
                question.tools = vec![hostile.to_owned()];
            }
            let mut card = content(&two);
            for block in card["body"].as_array_mut().unwrap() {
                if block["type"] == "RichTextBlock" {
                    assert_eq!(block["inlines"][0]["type"], "TextRun");
                    assert!(
                        !block["inlines"][0]["text"]
                            .as_str()
                            .unwrap()
                            .contains(['\n', '\u{202e}'])
                    );
                    *block = Value::Null;
                }
            }
            assert_eq!(content(&room_message(2))["actions"], card["actions"]);
            let rest = card.to_string();
            assert!(
                !rest.contains("evil") && !rest.contains("channel"),
                "{rest}"
            );
        }
    }

    #[test]
    fn largest_card_keeps_to_the_limit_of_teams() {
        for count in [5, 20] {
            let mut many = room_message(count);
            for question in &mut many.digest.questions {
                question.message = Some("€".repeat(100_000));
                question.summaries = vec!["€".repeat(100_000); 3];
                question.tools = vec!["€".repeat(64); 40];
            }
            let size = body(&many).to_string().len();
            assert!(size < 28 * 1024, "{count}: {size}");
        }
    }
}
