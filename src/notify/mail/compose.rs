//! Writes a digest as a mail: plain text and HTML, in the person's language.
//!
//! Invariant: every name passes `visible`, and headers have only fixed words and words of the
//! configuration, so that no name can begin a header or hide itself. Long texts are cut, so that a
//! mail of twenty questions stays under 50 KB.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use lettre::Message;
use lettre::message::header::{HeaderName, HeaderValue};
use lettre::message::{Mailbox, MultiPart};
use maud::{DOCTYPE, Markup, html};

use super::words::Words;
use crate::notify::chat::{cut, moment};
use crate::notify::digest::{Digest, Question};
use crate::people::language::Language;
use crate::task::text_safety::visible;
use crate::task::time::Time;

/// The maximum number of characters of a name.
const NAME: usize = 80;
/// The maximum number of bytes of a mail, as it is sent.
const MOST: usize = 50 * 1024;

/// The limits of the texts that a mail shows of each question.
#[derive(Clone, Copy, Debug)]
struct Room {
    /// The maximum number of characters of a text.
    text: usize,
    /// The maximum number of summaries.
    summaries: usize,
}

/// The limits, the widest first. A mail that exceeds [`MOST`] is built again with the next.
const ROOMS: [Room; 3] = [
    Room {
        text: 300,
        summaries: 3,
    },
    Room {
        text: 80,
        summaries: 1,
    },
    Room {
        text: 24,
        summaries: 0,
    },
];

/// The values from which the headers of a mail are made.
#[derive(Clone, Debug)]
pub(super) struct Head<'h> {
    pub(super) from: &'h Mailbox,
    pub(super) to: Mailbox,
    pub(super) language: Language,
    /// The mail's own id without the domain. It is the same for each attempt.
    pub(super) id: &'h str,
    /// The domain after the `@` in the ids of mails and threads.
    pub(super) domain: &'h str,
    pub(super) now: Time,
}

/// Builds the mail of a digest; `None` if it cannot be built.
pub(super) fn mail(head: &Head<'_>, digest: &Digest) -> Option<Message> {
    let words = Words::of(head.language);
    let subject = subject(words, digest);
    let threads: Vec<String> = digest
        .questions
        .iter()
        .map(|question| format!("<{}@{}>", question.request_id, head.domain))
        .collect();
    let made = ROOMS.into_iter().map(|room| {
        let html = markup(head.language, &subject, digest, room);
        let bodies = (plain(words, &subject, digest, room), html);
        built(head.clone(), subject.clone(), &threads, bodies)
    });
    let mut last = None;
    for mail in made {
        last = mail;
        let fits = |mail: &Message| mail.formatted().len() <= MOST;
        if last.as_ref().is_none_or(fits) {
            break;
        }
    }
    last
}

/// Builds the mail of a ping; `None` if it cannot be built.
pub(super) fn ping(head: Head<'_>) -> Option<Message> {
    let words = Words::of(head.language);
    let html = page(
        head.language,
        words.ping_subject,
        &html! { p { (words.ping) } },
    );
    let subject = words.ping_subject.to_owned();
    built(head, subject, &[], (format!("{}\r\n", words.ping), html))
}

fn built(
    head: Head<'_>,
    subject: String,
    threads: &[String],
    (plain, html): (String, Markup),
) -> Option<Message> {
    let since = Duration::from_micros(u64::try_from(head.now.0).unwrap_or(0));
    let raw = |name, value: &str| {
        HeaderValue::new(HeaderName::new_from_ascii_str(name), value.to_owned())
    };
    let mut message = Message::builder()
        .from(head.from.clone())
        .to(head.to)
        .date(SystemTime::UNIX_EPOCH + since)
        .subject(subject)
        .message_id(Some(format!("<{}@{}>", head.id, head.domain)))
        .raw_header(raw("Auto-Submitted", "auto-generated"))
        .raw_header(raw("X-Auto-Response-Suppress", "All"));
    if let Some(first) = threads.first() {
        message = message
            .in_reply_to(first.clone())
            .references(threads.join(" "));
    }
    let parts = MultiPart::alternative_plain_html(plain, html.into_string());
    message.multipart(parts).ok()
}

/// Returns the text in one line of at most `most` characters, with every invisible character shown.
fn shown(text: &str, most: usize) -> String {
    let flat: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    cut(visible(&flat), most)
}

fn tools(words: &Words, question: &Question, most: usize) -> String {
    let names: Vec<String> = question
        .tools
        .iter()
        .map(|name| shown(name, NAME))
        .collect();
    shown(&names.join(words.between), most)
}

fn count(digest: &Digest) -> u64 {
    u64::try_from(digest.questions.len())
        .unwrap_or(u64::MAX)
        .saturating_add(digest.more)
}

fn subject(words: &Words, digest: &Digest) -> String {
    match (digest.questions.as_slice(), digest.more) {
        ([only], 0) => words.one(
            digest.reason,
            &tools(words, only, 2 * NAME),
            &shown(&only.agent, NAME),
        ),
        _ => words.several(digest.reason, count(digest)),
    }
}

/// Returns the lines about a question: the label and the text of each.
fn lines(words: &'static Words, question: &Question, room: Room) -> Vec<(&'static str, String)> {
    let deadline = question
        .expires_at
        .map_or_else(|| words.no_deadline.to_owned(), |at| moment(at, None));
    let mut lines = vec![
        (words.tool, tools(words, question, room.text)),
        (words.agent, shown(&question.agent, NAME.min(room.text))),
        (words.asked, moment(question.created_at, None)),
        (words.deadline, deadline),
    ];
    let summaries = question.summaries.iter().take(room.summaries);
    lines.extend(summaries.map(|summary| (words.summary, shown(summary, room.text))));
    lines
}

/// Returns the URL that the mail has for a question: the recipient's link, or the page.
fn address(question: &Question) -> &str {
    question.link.as_deref().unwrap_or(&question.url)
}

/// Returns the sentences at the end of the mail.
fn notes(words: &'static Words, digest: &Digest) -> [&'static str; 2] {
    let linked = digest
        .questions
        .iter()
        .any(|question| question.link.is_some());
    let worth = if linked {
        words.own_link
    } else {
        words.sign_in
    };
    [worth, words.reason]
}

fn plain(words: &'static Words, subject: &str, digest: &Digest, room: Room) -> String {
    let mut text = format!("{subject}\r\n");
    for question in &digest.questions {
        text.push_str("\r\n");
        if let Some(message) = &question.message {
            let _ = write!(text, "{}\r\n", shown(message, room.text));
        }
        for (word, line) in lines(words, question, room) {
            let _ = write!(text, "{word}{}{line}\r\n", words.colon);
        }
        let _ = write!(
            text,
            "{}{}{}\r\n",
            words.review,
            words.colon,
            address(question)
        );
    }
    if digest.more > 0 {
        let _ = write!(text, "\r\n{}\r\n", words.more(digest.more));
    }
    if let Some(inbox) = &digest.inbox {
        let _ = write!(text, "\r\n{}{}{inbox}\r\n", words.inbox, words.colon);
    }
    let _ = write!(text, "\r\n-- \r\n{}\r\n", notes(words, digest).join("\r\n"));
    text
}

fn markup(language: Language, subject: &str, digest: &Digest, room: Room) -> Markup {
    let words = Words::of(language);
    let body = html! {
        @for question in &digest.questions {
            @if let Some(message) = &question.message { p { (shown(message, room.text)) } }
            table {
                @for (word, line) in lines(words, question, room) {
                    tr { th align="left" { (word) } td { (line) } }
                }
            }
            p { a href=(address(question)) { (words.review) } }
            hr;
        }
        @if digest.more > 0 { p { (words.more(digest.more)) } }
        @if let Some(inbox) = &digest.inbox { p { a href=(inbox) { (words.inbox) } } }
        @for note in notes(words, digest) { p { small { (note) } } }
    };
    page(language, subject, &body)
}

fn page(language: Language, title: &str, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang=(language.tag()) {
            head { meta charset="utf-8"; title { (title) } }
            body { h1 { (title) } (body) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notify::digest::{LISTED, Reason};
    use crate::task::id::RequestId;
    use crate::task::request::RequestKind;
    use uuid::Uuid;

    fn question(number: u128, text: &str) -> Question {
        Question {
            request_id: RequestId(Uuid::from_u128(number)),
            kind: RequestKind::Approval,
            tools: vec![text.to_owned(); 30],
            agent: text.to_owned(),
            message: Some(text.to_owned()),
            created_at: Time(1_795_338_000_000_000),
            expires_at: Some(Time(1_795_424_400_000_000)),
            url: format!("https://agents.acme.com/resume/{}", Uuid::from_u128(number)),
            link: Some(format!("https://agents.acme.com/l/{}", "x".repeat(250))),
            summaries: vec![text.to_owned(); 3],
        }
    }

    fn formatted(digest: &Digest, language: Language) -> String {
        let from: Mailbox = "Holdpoint <holdpoint@acme.com>".parse().unwrap();
        let head = Head {
            from: &from,
            to: "bob@acme.com".parse().unwrap(),
            language,
            id: "one",
            domain: "acme.com",
            now: Time(1_795_338_000_000_000),
        };
        String::from_utf8(mail(&head, digest).unwrap().formatted()).unwrap()
    }

    #[test]
    fn mail_of_twenty_questions_with_the_longest_texts_has_fifty_kilobytes_at_most() {
        for (text, language) in [
            ("w".repeat(9000), Language::English),
            ("长".repeat(9000), Language::Chinese),
        ] {
            let digest = Digest {
                reason: Reason::New,
                questions: (0..20).map(|number| question(number, &text)).collect(),
                more: 980,
                inbox: Some("https://agents.acme.com/inbox".to_owned()),
            };
            assert_eq!(digest.questions.len(), LISTED);
            let size = formatted(&digest, language).len();
            assert!(size <= 50 * 1024, "{size}");
        }
    }

    #[test]
    fn line_break_in_any_name_begins_no_line_of_the_header() {
        let hostile = "x\r\nBcc: eve@evil.com\r\n\r\n<script>\u{202e}";
        let digest = Digest {
            reason: Reason::Expiring,
            questions: vec![question(1, hostile)],
            more: 0,
            inbox: None,
        };
        for language in Language::ALL {
            let mail = formatted(&digest, language);
            let head = mail.split("\r\n\r\n").next().unwrap();
            assert!(!head.to_ascii_lowercase().contains("\nbcc"), "{head}");
            assert!(head.is_ascii(), "{head}");
        }
    }
}
