//! Writes the texts of a message to a room (a channel or chat of Slack or Teams). All rooms get the
//! same texts, in English, because a room has no setting for a language.
//!
//! Invariant: each text that this service did not write is shown in one line, with invisible
//! characters made visible, and is cut to a maximum length.

use super::digest::{Digest, DigestQuestion, Reason};
use super::outcome::QuestionOutcome;
use crate::task::id::RequestId;
use crate::task::text::one_line;
use crate::task::text_safety::visible;
use crate::task::time::Time;

/// A message with at most this number of questions shows all details of each question. A message
/// with more questions shows each question in one line.
pub(super) const MAX_DETAILED_QUESTIONS: usize = 5;
const MAX_TITLE_CHARS: usize = 200;
const MAX_MESSAGE_CHARS: usize = 200;
const MAX_SUMMARY_CHARS: usize = 100;
/// The maximum number of tools that a title names.
const MAX_TITLE_TOOLS: usize = 3;
/// The text of the link to a question's page.
pub(super) const REVIEW: &str = "Review";
/// Stands for a tool whose name the configuration does not have.
const UNLISTED_TOOL: &str = "a tool that the configuration does not name";

#[derive(Clone, Debug, PartialEq)]
pub(super) struct RoomMessage {
    pub(super) digest: Digest,
    /// The outcome of each question, in the order of the questions in `digest`. An outcome is
    /// `None` while its question is open and has no answer.
    pub(super) outcomes: Vec<Option<QuestionOutcome>>,
}

impl RoomMessage {
    pub(super) fn listed_questions(&self) -> impl Iterator<Item = ListedQuestion<'_>> {
        let both = self.digest.questions.iter().zip(&self.outcomes);
        both.map(|(question, outcome)| ListedQuestion {
            question,
            outcome: outcome.as_ref(),
        })
    }

    pub(super) fn lists_request(&self, request: RequestId) -> bool {
        let mut questions = self.digest.questions.iter();
        questions.any(|question| question.request_id == request)
    }

    pub(super) fn shows_details(&self) -> bool {
        self.digest.questions.len() <= MAX_DETAILED_QUESTIONS
    }

    /// Returns the first line of a message about several questions.
    pub(super) fn heading(&self) -> String {
        let (listed, all) = (self.digest.questions.len(), self.digest.question_count());
        let questions = self.listed_questions();
        let open = questions.filter(ListedQuestion::is_open).count();
        // A text about closed questions counts only the listed questions, because the outcomes of
        // unlisted questions are not known here.
        let counted = match self.digest.unlisted {
            0 => format!("{listed} questions"),
            _ => format!("the {listed} listed questions"),
        };
        match (open, self.digest.reason) {
            (0, _) => format!("None of {counted} waits any more"),
            (open, _) if open < listed => format!("{open} of {counted} still wait"),
            (_, Reason::New) => format!("{all} questions wait"),
            (_, Reason::Expiring) => format!("{all} questions expire soon"),
            (_, Reason::Waiting) => format!("{all} questions still wait"),
        }
    }

    /// Returns the first line of a message about one question.
    pub(super) fn first_line(&self, listed: &ListedQuestion<'_>) -> String {
        let title = title(listed.question);
        match (listed.outcome, self.digest.reason) {
            (Some(outcome), _) if !outcome.is_open => format!("{}: {title}", outcome.text),
            (_, Reason::New) => format!("A question waits: {title}"),
            (_, Reason::Expiring) => format!("A question expires soon: {title}"),
            (_, Reason::Waiting) => format!("A question still waits: {title}"),
        }
    }

    /// Returns the line that a chat app shows when it notifies a user of the message (`text` in
    /// Slack).
    pub(super) fn notification_text(&self) -> String {
        match self.listed_questions().next() {
            Some(listed) if self.digest.questions.len() == 1 => self.first_line(&listed),
            _ => self.heading(),
        }
    }

    /// Returns a text with the number of unlisted questions; `None` if all questions are listed.
    pub(super) fn unlisted_text(&self) -> Option<String> {
        (self.digest.unlisted > 0).then(|| format!("and {} more", self.digest.unlisted))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ListedQuestion<'s> {
    pub(super) question: &'s DigestQuestion,
    pub(super) outcome: Option<&'s QuestionOutcome>,
}

impl ListedQuestion<'_> {
    pub(super) fn is_open(&self) -> bool {
        self.outcome.is_none_or(|outcome| outcome.is_open)
    }

    /// Returns the address of the question's page; `None` if the question is closed, because a
    /// message does not link to the page of a closed question.
    pub(super) fn link(&self) -> Option<&str> {
        self.is_open().then_some(self.question.url.as_str())
    }

    /// Returns the rule's message in one line; `None` if the rule has no message.
    pub(super) fn message(&self) -> Option<String> {
        let text = self.question.message.as_deref()?;
        Some(single_line(&one_line(text), MAX_MESSAGE_CHARS)).filter(|text| !text.is_empty())
    }

    pub(super) fn summaries(&self) -> Vec<String> {
        let summaries = self.question.summaries.iter();
        summaries
            .map(|text| format!("Summary: {}", single_line(text, MAX_SUMMARY_CHARS)))
            .collect()
    }

    /// Returns pairs of a label and a value: the question's kind, its times, and its outcome if it
    /// has one.
    pub(super) fn facts(&self) -> Vec<(&'static str, String)> {
        let kind = self.question.kind.as_str().replace('_', " ");
        let asked = format_time(self.question.created_at, None);
        let mut facts = vec![("Kind", kind), ("Asked", asked)];
        if let Some(at) = self.question.expires_at.filter(|_| self.is_open()) {
            facts.push(("Answer by", format_time(at, None)));
        }
        let state = self.outcome.map(|outcome| outcome.text.clone());
        facts.extend(state.map(|text| ("State", text)));
        facts
    }
}

/// Returns the tools and the agent of a question in one line. The kind of the question replaces the
/// tools if it has none.
pub(super) fn title(question: &DigestQuestion) -> String {
    let mut tools = question.tool_names(UNLISTED_TOOL);
    let mut named: Vec<&str> = tools.by_ref().take(MAX_TITLE_TOOLS).collect();
    let kind = question.kind.as_str();
    if named.is_empty() {
        named.push(kind);
    }
    let further = match tools.count() {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    let title = format!("{}{further} ({})", named.join(", "), question.agent);
    single_line(&title, MAX_TITLE_CHARS)
}

/// Returns the text in one line of at most `max_chars` characters, with invisible characters made
/// visible.
pub(super) fn single_line(text: &str, max_chars: usize) -> String {
    cut(visible(text).replace('\n', " "), max_chars)
}

/// Cuts a text to `max_chars` characters. Appends `…` to a text that was longer.
pub(super) fn cut(text: String, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        None => text,
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
    }
}

/// Formats a time in UTC. Leaves out the date if the time is on the same day as `day`.
pub(super) fn format_time(at: Time, day: Option<Time>) -> String {
    format!("{} UTC", at.to_minute(day))
}

#[cfg(test)]
pub(super) mod samples {
    use std::time::Duration;

    use uuid::Uuid;

    use super::*;
    use crate::task::request::RequestKind;

    /// The time 2026-11-23 09:00 UTC.
    pub(in crate::notify) const NINE: Time = Time(1_795_424_400_000_000);

    /// Texts with markup of Slack or Markdown, control characters, or JSON.
    pub(in crate::notify) const HOSTILE: [&str; 7] = [
        "<!channel> <@U012AB3CD> &lt;!here&gt;",
        "<https://evil.example|Review>",
        "*bold* _it_ ~gone~ `code` > quote",
        "[Review](https://evil.example) ![](https://evil.example/x.png)",
        "a & b &amp; c",
        "one\ntwo\r\nthree\u{202e}four\u{200b}five",
        "\"}],\"blocks\":[]",
    ];

    /// Returns a message about `count` questions, all of them open.
    pub(in crate::notify) fn room_message(count: usize) -> RoomMessage {
        let question = |index: usize| DigestQuestion {
            request_id: RequestId(Uuid::from_u128(index as u128)),
            kind: RequestKind::Approval,
            tools: vec!["refund".to_owned()],
            has_unlisted_tool: false,
            agent: "billing".to_owned(),
            message: Some("Refunds above 20 need finance.".to_owned()),
            created_at: NINE,
            expires_at: Some(NINE + Duration::from_hours(24)),
            url: format!("https://agents.acme.com/resume/{index}"),
            link: Some("https://agents.acme.com/l/canary".to_owned()),
            summaries: Vec::new(),
        };
        RoomMessage {
            digest: Digest {
                reason: Reason::New,
                questions: (0..count).map(question).collect(),
                unlisted: 0,
                inbox: Some("https://agents.acme.com/inbox".to_owned()),
            },
            outcomes: vec![None; count],
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "the type of `outcomes`")]
    pub(in crate::notify) fn closed(words: &str) -> Option<QuestionOutcome> {
        Some(QuestionOutcome {
            is_open: false,
            text: single_line(words, 100),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::samples::{NINE, closed, room_message};
    use super::*;

    #[test]
    fn time_is_in_utc_with_its_date_on_another_day() {
        assert_eq!(format_time(NINE, None), "2026-11-23 09:00 UTC");
        assert_eq!(format_time(NINE, Some(Time(NINE.0 + 1))), "09:00 UTC");
        let tomorrow = NINE + Duration::from_hours(24);
        assert_eq!(format_time(tomorrow, Some(NINE)), "2026-11-24 09:00 UTC");
    }

    #[test]
    fn line_shows_what_is_invisible_and_is_cut() {
        assert_eq!(single_line("a\nb\u{202e}c", 50), "a\\u{a} b\\u{202e}c");
        assert_eq!(single_line("aéb", 2), "aé…");
        assert_eq!(single_line("aéb", 3), "aéb");
    }

    #[test]
    fn title_names_three_tools_and_the_agent() {
        let mut question = room_message(1).digest.questions.remove(0);
        let mut of = |tools: &[&str]| {
            question.tools = tools.iter().map(ToString::to_string).collect();
            title(&question)
        };
        assert_eq!(of(&["a", "b", "c"]), "a, b, c (billing)");
        assert_eq!(
            of(&["a", "b", "c", "d", "e"]),
            "a, b, c and 2 more (billing)"
        );
        assert_eq!(of(&[]), "approval (billing)");
        question.has_unlisted_tool = true;
        let unlisted = "a, a tool that the configuration does not name (billing)";
        question.tools = vec!["a".to_owned()];
        assert_eq!(title(&question), unlisted);
    }

    #[test]
    fn heading_counts_the_unlisted_questions_as_long_as_every_listed_one_waits() {
        let mut message = room_message(20);
        message.digest.unlisted = 5;
        assert_eq!(message.heading(), "25 questions wait");
        message.outcomes[0] = closed("Approved by carol");
        assert_eq!(
            message.heading(),
            "19 of the 20 listed questions still wait"
        );
        message.outcomes = vec![closed("Approved by carol"); 20];
        assert_eq!(
            message.heading(),
            "None of the 20 listed questions waits any more"
        );
    }

    #[test]
    fn first_line_says_why_the_message_is_sent() {
        for (reason, one, two) in [
            (Reason::New, "A question waits: ", "2 questions wait"),
            (
                Reason::Expiring,
                "A question expires soon: ",
                "2 questions expire soon",
            ),
            (
                Reason::Waiting,
                "A question still waits: ",
                "2 questions still wait",
            ),
        ] {
            let (mut single, mut both) = (room_message(1), room_message(2));
            single.digest.reason = reason;
            both.digest.reason = reason;
            assert_eq!(single.notification_text(), format!("{one}refund (billing)"));
            assert_eq!(both.notification_text(), two);
        }
    }
}
