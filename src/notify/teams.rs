//! Messages to a channel or chat of Teams: an Adaptive Card in the envelope that a workflow
//! expects. A posted message cannot be updated.
//!
//! Invariant: a text that this service did not write is a `TextRun`, in which Markdown has no
//! effect. No action decides anything: each opens a page.

use reqwest::header::{CONTENT_TYPE, HeaderValue};
use serde_json::{Value, json};
use url::Url;

use super::answer::Answer;
use super::chat::{Asked, Shown, WHOLE, title};
use super::exchange::{WITHIN, exchange};
use super::settings::{Teams as Settings, address};
use crate::net::Net;
use crate::world::Clock;

/// A channel or chat of Teams that is ready to post to.
pub(super) struct Teams {
    url: Url,
    /// Whether messages show the tools' summaries of the calls.
    pub(super) summaries: bool,
}

impl Teams {
    /// Returns the channel of these settings; `None` if they have mistakes.
    pub(super) fn of(settings: &Settings) -> Option<Self> {
        Some(Self {
            url: address(settings.url.reveal())?,
            summaries: settings.summaries,
        })
    }

    /// Posts a message. The answer does not have the message's id.
    pub(super) async fn post(&self, net: &Net, clock: &dyn Clock, shown: &Shown) -> Answer {
        self.send(net, clock, &body(shown)).await
    }

    /// Posts a message that is only a text.
    pub(super) async fn say(&self, net: &Net, clock: &dyn Clock, words: &str) -> Answer {
        self.send(net, clock, &plain_body(words)).await
    }

    async fn send(&self, net: &Net, clock: &dyn Clock, body: &Value) -> Answer {
        let request = net.repeatable().post(self.url.clone());
        let json = HeaderValue::from_static("application/json");
        let request = request.header(CONTENT_TYPE, json).body(body.to_string());
        match exchange(clock, request, WITHIN).await {
            Ok(answered) => Answer::of(&answered, clock.now()),
            Err(problem) => Answer::none(problem),
        }
    }
}

/// Returns the body of a message.
fn body(shown: &Shown) -> Value {
    let mut content = Vec::new();
    if shown.digest.questions.len() == 1 {
        for asked in shown.each() {
            content.extend(whole(&asked, &shown.first_line(&asked)));
        }
    } else {
        content.push(text(&shown.heading(), true));
        for (index, asked) in shown.each().enumerate() {
            let title = format!("{}. {}", index + 1, title(asked.question));
            if shown.is_whole() {
                content.extend(whole(&asked, &title));
            } else {
                content.push(text(&title, false));
            }
        }
    }
    content.extend(shown.further().map(|further| text(&further, false)));
    card(&content, &actions(shown))
}

/// Returns the body of a message that is only a text.
fn plain_body(words: &str) -> Value {
    card(&[text(words, false)], &[])
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

/// Returns the elements of a question that is shown whole: title, message, summaries and facts.
fn whole(asked: &Asked<'_>, title: &str) -> Vec<Value> {
    let mut content = vec![text(title, true)];
    let lines = asked.message().into_iter().chain(asked.summaries());
    content.extend(lines.map(|line| text(&line, false)));
    let facts = asked.facts().into_iter();
    let facts: Vec<Value> = facts
        .map(|(title, value)| json!({"title": title, "value": value}))
        .collect();
    content.push(json!({"type": "FactSet", "facts": facts}));
    content
}

fn text(words: &str, strong: bool) -> Value {
    let weight = if strong { "Bolder" } else { "Default" };
    let run = json!({"type": "TextRun", "text": words, "weight": weight});
    json!({"type": "RichTextBlock", "inlines": [run]})
}

/// Returns a link to each question, or one link to the inbox if the questions are not shown whole.
fn actions(shown: &Shown) -> Vec<Value> {
    let open =
        |title: &str, url: &str| json!({"type": "Action.OpenUrl", "title": title, "url": url});
    if let Some(inbox) = shown.digest.inbox.as_deref().filter(|_| !shown.is_whole()) {
        return vec![open("Open the inbox", inbox)];
    }
    let only = shown.digest.questions.len() == 1;
    let each = shown.each().take(WHOLE).enumerate();
    each.map(|(index, asked)| {
        let word = asked.link_word();
        let number = index + 1;
        let title = if only {
            word.to_owned()
        } else {
            format!("{word} {number}")
        };
        open(&title, &asked.question.url)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notify::chat::samples::{HOSTILE, shown};

    fn content(shown: &Shown) -> Value {
        body(shown)["attachments"][0]["content"].clone()
    }

    #[test]
    fn one_question_is_a_card_with_facts_and_one_action() {
        let message = body(&shown(1));
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
        let five = content(&shown(5));
        assert_eq!(
            titles(&five),
            ["Review 1", "Review 2", "Review 3", "Review 4", "Review 5"]
        );
        assert_eq!(five["body"][1]["inlines"][0]["text"], "1. refund (billing)");
        let mut six = shown(6);
        six.digest.more = 3;
        let card = content(&six);
        assert_eq!(titles(&card), ["Open the inbox"]);
        assert_eq!(card["body"].as_array().unwrap().len(), 1 + 6 + 1);
        six.digest.inbox = None;
        assert_eq!(titles(&content(&six)).len(), 5);
    }

    #[test]
    fn text_that_is_not_ours_is_a_run_of_text_whatever_it_says() {
        for hostile in HOSTILE {
            let mut two = shown(2);
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
            assert_eq!(content(&shown(2))["actions"], card["actions"]);
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
            let mut many = shown(count);
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
