//! Writes a digest as a mail: plain text and HTML, in the person's language.
//!
//! Invariants: the invisible characters of every name are replaced (`visible`). Names in headers
//! have no line breaks, so a name cannot inject a header. Long texts are cut, so that a mail with
//! twenty questions has at most 50 KB.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use lettre::Message;
use lettre::message::header::{HeaderName, HeaderValue};
use lettre::message::{Mailbox, MultiPart};
use maud::{DOCTYPE, Markup, html};

use super::texts::MailTexts;
use crate::notify::chat::{cut, format_time};
use crate::notify::digest::{Digest, DigestQuestion};
use crate::people::language::Language;
use crate::task::text_safety::visible;
use crate::task::time::Time;

const MAX_NAME_CHARS: usize = 80;
/// The maximum number of bytes of an encoded mail.
const MAX_MAIL_BYTES: usize = 50_000;

/// The limits of the texts about each question in a mail.
#[derive(Clone, Copy, Debug)]
struct TextLimits {
    max_chars: usize,
    max_summaries: usize,
}

/// The limits, from the widest to the narrowest. If a mail exceeds [`MAX_MAIL_BYTES`], it is built
/// again with the next limits.
const TEXT_LIMITS: [TextLimits; 3] = [
    TextLimits {
        max_chars: 300,
        max_summaries: 3,
    },
    TextLimits {
        max_chars: 80,
        max_summaries: 1,
    },
    TextLimits {
        max_chars: 24,
        max_summaries: 0,
    },
];

/// The values from which the headers of a mail are made.
#[derive(Clone, Debug)]
pub(super) struct MailHead<'h> {
    pub(super) from: &'h Mailbox,
    pub(super) to: Mailbox,
    pub(super) language: Language,
    /// The mail's id without the domain. A retry with the same deliveries has the same id.
    pub(super) id: &'h str,
    /// The domain in the ids of mails and threads.
    pub(super) domain: &'h str,
    pub(super) now: Time,
}

pub(super) fn mail(head: &MailHead<'_>, digest: &Digest) -> Option<Message> {
    let texts = MailTexts::for_language(head.language);
    let subject = subject(texts, digest);
    let threads: Vec<String> = digest
        .questions
        .iter()
        .map(|question| format!("<{}@{}>", question.request_id, head.domain))
        .collect();
    let candidates = TEXT_LIMITS.into_iter().map(|limits| {
        let html = markup(head.language, &subject, digest, limits);
        let bodies = (plain(texts, &subject, digest, limits), html);
        build(head.clone(), subject.clone(), &threads, bodies)
    });
    let mut last = None;
    for mail in candidates {
        last = mail;
        let fits = |mail: &Message| mail.formatted().len() <= MAX_MAIL_BYTES;
        if last.as_ref().is_none_or(fits) {
            break;
        }
    }
    last
}

pub(super) fn ping(head: MailHead<'_>) -> Option<Message> {
    let texts = MailTexts::for_language(head.language);
    let body = html! { p { (texts.ping) } };
    let html = page(head.language, texts.ping_subject, &body);
    let subject = texts.ping_subject.to_owned();
    build(head, subject, &[], (format!("{}\r\n", texts.ping), html))
}

fn build(
    head: MailHead<'_>,
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

/// Returns the text in one line of at most `max_chars` characters, with invisible characters made
/// visible.
fn visible_line(text: &str, max_chars: usize) -> String {
    let flat: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    cut(visible(&flat), max_chars)
}

fn tools(texts: &MailTexts, question: &DigestQuestion, max_chars: usize) -> String {
    let names: Vec<String> = question
        .tool_names(texts.unlisted_tool)
        .map(|name| visible_line(name, MAX_NAME_CHARS))
        .collect();
    visible_line(&names.join(texts.separator), max_chars)
}

fn subject(texts: &MailTexts, digest: &Digest) -> String {
    match (digest.questions.as_slice(), digest.unlisted) {
        ([only], 0) => texts.single_subject(
            digest.reason,
            &tools(texts, only, 2 * MAX_NAME_CHARS),
            &visible_line(&only.agent, MAX_NAME_CHARS),
        ),
        _ => texts.digest_subject(digest.reason, digest.question_count()),
    }
}

fn lines(
    texts: &'static MailTexts,
    question: &DigestQuestion,
    limits: TextLimits,
) -> Vec<(&'static str, String)> {
    let deadline = question
        .expires_at
        .map_or_else(|| texts.no_deadline.to_owned(), |at| format_time(at, None));
    let mut lines = vec![
        (texts.tool, tools(texts, question, limits.max_chars)),
        (
            texts.agent,
            visible_line(&question.agent, MAX_NAME_CHARS.min(limits.max_chars)),
        ),
        (texts.asked_at, format_time(question.created_at, None)),
        (texts.deadline, deadline),
    ];
    let summaries = question.summaries.iter().take(limits.max_summaries);
    lines.extend(summaries.map(|summary| (texts.summary, visible_line(summary, limits.max_chars))));
    lines
}

fn question_url(question: &DigestQuestion) -> &str {
    question.link.as_deref().unwrap_or(&question.url)
}

fn notes(texts: &'static MailTexts, digest: &Digest) -> [&'static str; 2] {
    let mut questions = digest.questions.iter();
    if questions.any(|question| question.link.is_some()) {
        [texts.own_link, texts.reason]
    } else {
        [texts.sign_in, texts.reason]
    }
}

fn plain(texts: &'static MailTexts, subject: &str, digest: &Digest, limits: TextLimits) -> String {
    let mut text = format!("{subject}\r\n");
    for question in &digest.questions {
        text.push_str("\r\n");
        if let Some(message) = &question.message {
            let _ = write!(text, "{}\r\n", visible_line(message, limits.max_chars));
        }
        for (word, line) in lines(texts, question, limits) {
            let _ = write!(text, "{word}{}{line}\r\n", texts.label_separator);
        }
        let _ = write!(
            text,
            "{}{}{}\r\n",
            texts.review,
            texts.label_separator,
            question_url(question)
        );
    }
    if digest.unlisted > 0 {
        let _ = write!(text, "\r\n{}\r\n", texts.more(digest.unlisted));
        // The mail does not list all questions, so it links to the inbox, which does.
        if let Some(inbox) = &digest.inbox {
            let _ = write!(text, "{}{}{inbox}\r\n", texts.inbox, texts.label_separator);
        }
    }
    let _ = write!(text, "\r\n-- \r\n{}\r\n", notes(texts, digest).join("\r\n"));
    text
}

fn markup(language: Language, subject: &str, digest: &Digest, limits: TextLimits) -> Markup {
    let texts = MailTexts::for_language(language);
    let body = html! {
        @for question in &digest.questions {
            @if let Some(message) = &question.message { p { (visible_line(message, limits.max_chars)) } }
            table {
                @for (word, line) in lines(texts, question, limits) {
                    tr { th align="left" { (word) } td { (line) } }
                }
            }
            p { a href=(question_url(question)) { (texts.review) } }
            hr;
        }
        @if digest.unlisted > 0 {
            p {
                (texts.more(digest.unlisted))
                @if let Some(inbox) = &digest.inbox { (texts.label_separator) a href=(inbox) { (texts.inbox) } }
            }
        }
        @for note in notes(texts, digest) { p { small { (note) } } }
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
    use crate::notify::digest::{MAX_LISTED_QUESTIONS, Reason};
    use crate::task::id::RequestId;
    use crate::task::request::RequestKind;
    use uuid::Uuid;

    fn question(number: u128, text: &str) -> DigestQuestion {
        DigestQuestion {
            request_id: RequestId(Uuid::from_u128(number)),
            kind: RequestKind::Approval,
            tools: vec![text.to_owned(); 30],
            has_unlisted_tool: false,
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
        let head = MailHead {
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
            ("w".repeat(2000), Language::English),
            ("长".repeat(2000), Language::Chinese),
        ] {
            let digest = Digest {
                reason: Reason::New,
                questions: (0..20).map(|number| question(number, &text)).collect(),
                unlisted: 980,
                inbox: Some("https://agents.acme.com/inbox".to_owned()),
            };
            assert_eq!(digest.questions.len(), MAX_LISTED_QUESTIONS);
            let size = formatted(&digest, language).len();
            assert!(size <= 50_000, "{size}");
        }
    }

    #[test]
    fn line_break_in_any_name_begins_no_line_of_the_header() {
        let hostile = "x\r\nBcc: eve@evil.com\r\n\r\n<script>\u{202e}";
        let digest = Digest {
            reason: Reason::Expiring,
            questions: vec![question(1, hostile)],
            unlisted: 0,
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
