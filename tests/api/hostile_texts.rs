//! Tests of texts that could be taken for markup. They stay text wherever they are shown: on every
//! page, in mails, in Slack and in Teams.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::fake_mail_server::{FakeMailServer, Mail};
use crate::support::fake_receiver::FakeReceiver;
use crate::support::fake_slack::{CHANNEL, FakeSlack, TOKEN};
use crate::support::hostile_texts::{hostile_text, mark};
use crate::support::html::{Element, Page};
use crate::support::links::{SEALING_KEY, link};
use crate::support::repetitions;
use crate::support::test_app::{ACCOUNTS, Actor, On, REFUNDS, Reply, TestApp, WEB};

/// The number of all texts, and the number of texts in each task.
const ALL: usize = 500;
const EACH: usize = 20;

/// Returns the numbers of the tasks. The texts of every fourth task have all shapes and all turns
/// of `support::hostile_texts`, so a usual run has only these tasks.
fn task_numbers() -> impl Iterator<Item = usize> {
    (0..ALL / EACH).step_by(repetitions(4, 1))
}

/// The elements and attributes that a page or a mail may have, besides attributes that begin with
/// `data-` or `aria-`.
const ELEMENTS: &str = "html head meta title style script body header nav main footer section article aside h1 h2 h3 p div span a \
    ul ol li dl dt dd table caption thead tbody tfoot tr th td pre code bdi b strong small em time hr br wbr form fieldset legend \
    label input textarea select optgroup option button details summary figure figcaption blockquote output datalist";
const ATTRIBUTES: &str = "class id href lang dir charset name content src defer action method type value for checked required \
    hidden autofocus align scope colspan open datetime title role rows cols min max step minlength maxlength pattern placeholder \
    autocomplete spellcheck selected disabled readonly rel tabindex inputmode form size multiple enctype list autocapitalize formaction formnovalidate";

/// A service, and all receivers of its messages. The configuration of the rule, the tool and the
/// agent accepts free text in as many places as possible.
struct HostileTextsFixture {
    app: TestApp,
    mail: FakeMailServer,
    hook: FakeReceiver,
    slack: FakeSlack,
}

impl HostileTextsFixture {
    async fn start() -> Self {
        let (mail, hook) = (FakeMailServer::start().await, FakeReceiver::start().await);
        let rule = "{ groups: [finance] }, remember: { when: \"args.amount <= 500.0\", for: [task, owner], most: 4h, uses: 9 }";
        let yaml = REFUNDS
            .replace("{approvers}", rule)
            .replace(
                "exclusiveMinimum: 0 } }",
                "exclusiveMinimum: 0 }, note: { type: string } }",
            )
            .replace("for order {order}\"", "for order {order}: {note}\"")
            .replace(
                "forbidden] }\npolicy",
                "forbidden], human: [guidance] }\npolicy",
            );
        let more = format!(
            "  people: [ {{ user: bob, tenant: acme, email: bob@acme.com }} ]
secrets: {{ keys: [ {{ id: k1, key: \"{SEALING_KEY}\" }} ] }}
notify:
  links: {{ may: decide }}
  mail: {{ url: \"smtp://127.0.0.1:{0}\", from: \"Holdpoint <holdpoint@acme.com>\" }}
  to:
    - {{ name: by-mail, mail: {{ to: approvers, summaries: true }}, tenants: [acme], gather: 0s }}
    - {{ name: bot, slack: {{ token: \"{TOKEN}\", channel: {CHANNEL}, api_url: \"{1}/api\", summaries: true }}, tenants: [acme], groups: [finance], gather: 0s }}
    - {{ name: teams, teams: {{ url: \"{1}/teams\", summaries: true }}, tenants: [acme], groups: [finance], gather: 0s }}
",
            mail.port, hook.url
        );
        let slack = FakeSlack::serve_on(&hook);
        let app = TestApp::with(On::Sqlite, &format!("{yaml}{ACCOUNTS}{more}")).await;
        Self {
            app,
            mail,
            hook,
            slack,
        }
    }

    /// Returns a caller whose user name is `name`. Commas, and characters that are not printable
    /// ASCII, become `/`: in HTML, `/` separates attributes as a blank does.
    fn named(&self, name: &str, groups: &str) -> Actor<'_> {
        let sent = |c: char| {
            if c == ',' || !c.is_ascii_graphic() {
                '/'
            } else {
                c
            }
        };
        let name: String = name.chars().take(128).map(sent).collect();
        let actor = self.app.actor(WEB).header("holdpoint-user", &name);
        if groups.is_empty() {
            actor
        } else {
            actor.header("holdpoint-groups", groups)
        }
    }

    /// Waits until every receiver has messages about the questions of `tasks` tasks.
    async fn wait_until_notified(&self, tasks: usize) {
        self.mail.reached(tasks).await;
        let in_teams = || {
            self.hook
                .all()
                .iter()
                .filter(|one| one.path == "/teams")
                .count()
        };
        let is_told = async || self.slack.messages().len() >= tasks && in_teams() >= tasks;
        crate::support::until("every receiver is told", is_told).await;
    }
}

struct Texts(usize);

impl Texts {
    fn of(&self, place: usize) -> String {
        assert!(place < EACH);
        hostile_text(self.0 * EACH + place)
    }

    /// Returns the model's answer: refunds, a question to people, and calls that are invalid or
    /// name an unknown tool.
    fn turn(&self) -> Value {
        let note = |place| json!({"order": 17, "amount": 120, "note": self.of(place)}).to_string();
        let form = json!({"type": "object", "properties": {"answer": {"type": "string", "title": self.of(7), "description": self.of(8)}}});
        let asks = json!({"question": self.of(5), "context": self.of(6), "options": [self.of(9)], "form": form}).to_string();
        let alone = format!(
            r#"{{"order": 17, "amount": 120, "note": "\ud800 {}"}}"#,
            mark(self.0 * EACH + 10)
        );
        let (unknown, notes) = (self.of(11), [2, 3, 4].map(note));
        let mut turn = calls(&[
            ("refund", &notes[0]),
            ("refund", &notes[1]),
            ("refund", &notes[2]),
            ("request_human_guidance", &asks),
            (&unknown, "{}"),
            ("refund", &alone),
        ]);
        turn["choices"][0]["message"]["content"] = self.of(1).into();
        turn
    }
}

/// Asserts that no element and no attribute of a page comes from a hostile text. Returns the page's
/// text.
fn inert(html: &str, what: &str) -> String {
    let page = Page::of(html);
    for element in &page.elements {
        let seen = format!("{what}: {element:?}");
        assert!(
            ELEMENTS.split_whitespace().any(|name| name == element.name),
            "{seen}"
        );
        assert!(!has_mark(&element.raw), "{seen}");
        if element.name == "script" {
            assert!(element.raw.is_empty() && is_ours(element), "{seen}");
        }
        for (name, value) in &element.attributes {
            let known = ATTRIBUTES.split_whitespace().any(|known| known == name);
            assert!(
                known || name.starts_with("data-") || name.starts_with("aria-"),
                "{seen}"
            );
            assert!(!has_mark(name), "{seen}");
            if matches!(name.as_str(), "href" | "src" | "action" | "formaction") {
                let path = value
                    .strip_prefix("http://127.0.0.1:")
                    .map_or(Some(value.as_str()), |rest| {
                        rest.find('/').map(|at| &rest[at..])
                    });
                let path = path.unwrap_or("?");
                let leads_here = (path.starts_with('/') && !path.starts_with("//"))
                    || path.starts_with(['#', '?']);
                assert!(
                    leads_here && !path.contains(['<', '"', '\'', ' ']),
                    "{seen}"
                );
            }
            if matches!(
                name.as_str(),
                "class" | "id" | "lang" | "type" | "method" | "content" | "charset"
            ) {
                assert!(!has_mark(value), "{seen}");
            }
        }
    }
    page.text
}

fn is_ours(script: &Element) -> bool {
    let src = script.attributes.iter().find(|(name, _)| name == "src");
    src.is_some_and(|(_, value)| ["/follow.js", "/inbox.js", "/times.js"].contains(&value.as_str()))
}

fn has_mark(text: &str) -> bool {
    !marks(text).is_empty()
}

/// Returns the numbers of the hostile texts whose marks are in `text`, in upper or lower case.
fn marks(text: &str) -> BTreeSet<usize> {
    let text = text.to_ascii_lowercase();
    let found = text.match_indices("mk").filter_map(|(at, _)| {
        let rest = text.get(at + 2..at + 6)?.strip_suffix('q')?;
        rest.parse().ok()
    });
    found.collect()
}

/// Asserts that a page exists and that its markup contains no hostile text. Returns the page's
/// text.
async fn shown(actor: Actor<'_>, path: &str) -> String {
    let reply: Reply = actor.accept_html().get(path).await;
    assert_eq!(reply.status, 200, "{path}: {}", reply.text);
    inert(&reply.text, path)
}

fn requests(task: &Reply) -> [String; 2] {
    ["approval", "guidance"].map(|kind| {
        let pending = task.body["pending"].as_array().unwrap();
        let found = pending.iter().find(|one| one["kind"] == kind);
        let found = found.unwrap_or_else(|| panic!("{kind}: {}", task.text));
        found["request_id"].as_str().unwrap().to_owned()
    })
}

/// Runs task number `number` to its end, after `earlier` other tasks. All texts of the task are
/// hostile. Returns the texts of all pages of the task.
async fn task(fixture: &HostileTextsFixture, number: usize, earlier: usize) -> String {
    let (app, texts) = (&fixture.app, Texts(number));
    let (owner, decider) = (
        || fixture.named(&texts.of(12), ""),
        || fixture.named(&texts.of(13), "finance"),
    );
    app.tool.answers(200, texts.of(15));
    app.model.then(texts.turn());
    let context = json!({ texts.of(17): texts.of(18) });
    let metadata = json!({ texts.of(19): texts.of(19) });
    let body = json!({"input": texts.of(0).replace('\0', ""), "user_context": context, "metadata": metadata});
    let body: Value = serde_json::from_str(&body.to_string().replace("\\u0000", "")).unwrap();
    let asked = owner().post("/v1/tasks", &body).await;
    assert_eq!(asked.str("/status"), "Paused", "{}", asked.text);
    let [approval, guidance] = requests(&asked);
    let timeline = format!("/tasks/{}", asked.str("/task_id"));
    let page_of = |request: &str| format!("/resume/{request}");
    let mut all = shown(decider(), "/inbox").await;
    all += &shown(decider(), &page_of(&approval)).await;
    all += &shown(owner(), &page_of(&guidance)).await;
    all += &shown(app.anonymous(), &link("bob", &approval)).await;
    fixture.wait_until_notified(earlier + 1).await;
    let reason = texts.of(14).replace('\0', "");
    let remember = json!({"for": "owner", "expires_in": "1h"});
    let answer = json!({"action": "approve", "reason": reason, "remember": remember});
    let approved = decider().post(&page_of(&approval), &answer).await;
    assert_eq!(approved.status, 200, "{}", approved.text);
    app.model.then(text_answer(&texts.of(16)));
    let answer = json!({"action": "respond", "response": {"answer": "go on"}});
    let done = owner().post(&page_of(&guidance), &answer).await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    for path in [&page_of(&approval), &timeline, "/inbox/decided", "/grants"] {
        all += &shown(decider(), path).await;
    }
    for path in [&page_of(&guidance), &timeline, "/tasks"] {
        all += &shown(owner(), path).await;
    }
    all + &shown(app.anonymous(), &link("bob", &approval)).await
}

/// Asserts that a mail has only the service's own headers, has one recipient, and has no hostile
/// text in its markup. Returns the mail's texts.
fn mail(mail: &Mail) -> String {
    let headers: BTreeSet<String> = mail.headers().into_iter().collect();
    let ours = "from to date subject message-id in-reply-to references auto-submitted x-auto-response-suppress \
        mime-version content-type";
    assert_eq!(
        headers,
        ours.split_whitespace().map(str::to_owned).collect(),
        "{}",
        mail.raw
    );
    assert!(
        !has_mark(&mail.subject) && mail.to == "bob@acme.com",
        "{}",
        mail.subject
    );
    let hidden = |c: &char| c.is_control() && !matches!(c, '\r' | '\n');
    assert_eq!(mail.text.chars().find(hidden), None, "{}", mail.text);
    format!(
        "{} {}",
        without_links(&mail.text),
        inert(&mail.html, "a mail")
    )
}

/// Returns the text of a mail without its sealed links, because a link's random token may contain
/// the letters of a mark.
fn without_links(text: &str) -> String {
    let is_link = |word: &&str| word.contains("http://127.0.0.1:") && word.contains("/l/k1.");
    let words = text.split_whitespace();
    let rest: Vec<&str> = words.filter(|word| !is_link(word)).collect();
    rest.join(" ")
}

/// Returns the type and the text of every text object in a message to Slack.
fn slack_texts(value: &Value) -> Vec<(&str, &str)> {
    match value {
        Value::Object(members) => match (&members.get("type"), &members.get("text")) {
            (Some(Value::String(kind)), Some(Value::String(text))) => vec![(kind, text)],
            _ => members.values().flat_map(slack_texts).collect(),
        },
        Value::Array(all) => all.iter().flat_map(slack_texts).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

/// Asserts that a message to Slack has no markup except the service's own links. Returns the
/// message's texts.
fn slack(body: &Value, url: &str) -> String {
    let plain = |text: &str| {
        let rest = ["&amp;", "&lt;", "&gt;"]
            .iter()
            .fold(text.to_owned(), |text, it| text.replace(it, ""));
        assert!(
            !rest.contains(['<', '>', '&', '\u{202e}', '\r', '\u{1b}']),
            "{text}"
        );
    };
    plain(body["text"].as_str().unwrap());
    let texts = slack_texts(&body["blocks"]);
    for (kind, text) in &texts {
        if *kind == "mrkdwn" {
            let link = text.strip_prefix(&format!("<{url}/resume/"));
            let word = link.and_then(|link| link.get(36..));
            assert_eq!(word, Some("|Review>"), "{text}");
        } else {
            assert_eq!(*kind, "plain_text", "{body}");
            plain(text);
        }
    }
    texts.iter().map(|(_, text)| *text).collect()
}

/// Asserts that a Teams card has its texts only in text runs, and links only to the service's own
/// pages. Returns the card's texts.
fn teams(body: &Value, url: &str) -> String {
    let card = &body["attachments"][0]["content"];
    let mut all = String::new();
    for block in card["body"].as_array().unwrap() {
        if block["type"] == "RichTextBlock" {
            for run in block["inlines"].as_array().unwrap() {
                assert_eq!(run["type"], "TextRun", "{card}");
                all += run["text"].as_str().unwrap();
            }
        } else {
            assert!(
                block["type"] == "FactSet" && !has_mark(&block.to_string()),
                "{card}"
            );
        }
    }
    for action in card["actions"].as_array().unwrap() {
        let leads = action["url"].as_str().unwrap();
        assert!(
            action["type"] == "Action.OpenUrl" && leads.starts_with(&format!("{url}/resume/")),
            "{card}"
        );
        assert!(!has_mark(&action.to_string()), "{card}");
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_name_is_text_everywhere() {
    let fixture = HostileTextsFixture::start().await;
    for (earlier, number) in task_numbers().enumerate() {
        let found = marks(&task(&fixture, number, earlier).await);
        let missing: Vec<_> = (0..17)
            .filter(|place| !found.contains(&(number * EACH + place)))
            .collect();
        assert_eq!(
            missing,
            Vec::<usize>::new(),
            "texts of the task {number} that are on no page"
        );
    }
    let url = fixture.app.url();
    let mails: String = fixture.mail.all().iter().map(mail).collect();
    let posted = fixture.slack.messages();
    let posts = posted.iter().flat_map(|message| &message.bodies);
    let in_slack: String = posts.map(|body| slack(body, &url)).collect();
    let cards = fixture
        .hook
        .all()
        .into_iter()
        .filter(|one| one.path == "/teams");
    let in_teams: String = cards.map(|card| teams(&card.body, &url)).collect();
    for said in [mails, in_slack, in_teams] {
        let found = marks(&said);
        let missing = |number: &usize| {
            [2, 3, 4]
                .iter()
                .any(|place| !found.contains(&(number * EACH + place)))
        };
        assert_eq!(task_numbers().find(missing), None, "each summary is there");
        let place = |mark: &usize| mark % EACH;
        assert!(
            found
                .iter()
                .map(place)
                .all(|place| [2, 3, 4, 13].contains(&place)),
            "{found:?}"
        );
    }
    fixture.app.stop().await;
}
