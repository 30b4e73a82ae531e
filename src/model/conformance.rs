//! Conformance tests of the model protocols: one suite for all providers. `cases` declares each
//! conversation and its expected answers once; `wire/PROVIDER/CASE.txt` holds the traffic of a
//! conversation with one provider, written from the provider's documentation. The tests assert that
//! requests are as documented, that an answer means the same whether it is streamed or not and
//! however its bytes are cut, and that the emitted pieces add up to the answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::task::JoinSet;

use self::cases::{Case, Means, Step, cases};
use self::traffic::{Played, Reply, Sent, Traffic};
use super::anthropic::{Anthropic, Messages};
use super::clean::Cleaner;
use super::heard::{Heard, Told};
use super::openai::{ChatCompletions, OpenAi};
use super::protocol::{Attempt, Progress, Protocol, Reading, Telling};
use super::settings::Settings;
use super::{Answer, ModelClient, ModelError, Prompt};
use crate::net::Net;
use crate::net::sse::Decoder;
use crate::secret::{Redactor, Secret};
use crate::task::item::Usage;
use crate::task::time::Time;
use crate::task::transcript::Message;
use crate::world::{Clock, Mistakes};

mod cases;
mod many;
mod traffic;

/// A key that an endpoint echoes.
const KEY: &str = "sk-very-secret";
/// The usage of each complete answer in the traffic files.
const USAGE: Usage = Usage {
    prompt_tokens: 12,
    completion_tokens: 7,
    total_tokens: 19,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Provider {
    OpenAi,
    Anthropic,
}

impl Provider {
    fn name(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
        }
    }

    /// The request line, and the header that carries the key.
    fn door(self) -> [&'static str; 2] {
        match self {
            Self::OpenAi => [
                "post /v1/chat/completions?team=blue http/1.1",
                "authorization: bearer sk-very-secret",
            ],
            Self::Anthropic => [
                "post /v1/messages?team=blue http/1.1",
                "x-api-key: sk-very-secret",
            ],
        }
    }

    fn settings(self, url: &str) -> Settings {
        Settings {
            name: "main".to_owned(),
            base_url: Some(if self == Self::OpenAi {
                format!("{url}/v1")
            } else {
                url.to_owned()
            }),
            model: Some("m-1".to_owned()),
            api_key: Some(Secret::new(KEY.to_owned())),
            timeout: Duration::from_secs(10),
            retries: 4,
            headers: [("X-Team".to_owned(), Secret::new("blue".to_owned()))].into(),
            query: [("team".to_owned(), Secret::new("blue".to_owned()))].into(),
            ..Settings::default()
        }
    }

    fn client(self, settings: Settings, net: Net, clock: &Arc<Quick>) -> Box<dyn ModelClient> {
        let redactor = Arc::new(Redactor::new([("KEY", &Secret::new(KEY.to_owned()))]));
        let clock = Arc::clone(clock);
        match self {
            Self::OpenAi => Box::new(OpenAi::new(settings, net, clock, redactor).unwrap()),
            Self::Anthropic => Box::new(Anthropic::new(settings, net, clock, redactor).unwrap()),
        }
    }
}

/// A clock that records its sleeps and ends them at once.
#[derive(Debug, Default)]
struct Quick(Mutex<Vec<Duration>>);

#[async_trait]
impl Clock for Quick {
    fn now(&self) -> Time {
        Time(1_445_412_480_000_000)
    }

    fn uptime(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn sleep(&self, time: Duration) {
        self.0.lock().unwrap().push(time);
    }
}

async fn runs(provider: Provider, case: &Case, sent: Sent, net: &Net) {
    let place = format!("{} {} {sent:?}", provider.name(), case.name);
    let traffic = Traffic::of(provider.name(), case.name);
    let played = Played::begin(traffic.answers, sent).await;
    let clock = Arc::new(Quick::default());
    let client = provider.client(provider.settings(&played.url), net.clone(), &clock);
    let mut messages: Vec<Message> = Vec::new();
    for step in &case.steps {
        let ids: Vec<String> = match messages.last() {
            Some(Message::Assistant { calls, .. }) => {
                calls.iter().map(|(id, ..)| id.clone()).collect()
            }
            Some(_) | None => Vec::new(),
        };
        messages.extend(step.said(provider, &ids));
        let (system, tools) = if case.furnished {
            cases::furniture()
        } else {
            (None, Vec::new())
        };
        let prompt = Prompt {
            system,
            messages: messages.clone(),
            tools,
            turn: 1,
        };
        let heard = Heard::default();
        let answer = client.answer(&prompt, &heard).await;
        if let Some(answer) = means(&place, step, answer, &heard, sent) {
            let calls = answer
                .calls
                .into_iter()
                .map(|call| (call.provider_id, call.name, call.arguments_text));
            messages.push(Message::Assistant {
                raw: answer.raw,
                text: answer.text,
                calls: calls.collect(),
            });
        }
    }
    let requests = played.requests();
    assert_eq!(requests.len(), traffic.asked.len(), "{place}");
    for (at, (request, asked)) in requests.iter().zip(&traffic.asked).enumerate() {
        let body: serde_json::Value = serde_json::from_str(&request.body).unwrap();
        assert_eq!(body, *asked, "{place}: request {at}\n{}", request.body);
        for line in provider
            .door()
            .into_iter()
            .chain(["x-team: blue", "content-type: application/json"])
        {
            assert!(request.head.contains(line), "{place}: {}", request.head);
        }
        if provider == Provider::Anthropic {
            assert!(
                request.head.contains("anthropic-version: 2023-06-01"),
                "{place}: {}",
                request.head
            );
        }
    }
    for exact in &case.exact {
        let quoted = serde_json::to_string(exact).unwrap();
        let last = &requests.last().unwrap().body;
        assert!(
            last.contains(*exact) || last.contains(&quoted),
            "{place}: not to the byte: {last}"
        );
    }
    let slept: Vec<u64> = clock
        .0
        .lock()
        .unwrap()
        .iter()
        .map(Duration::as_secs)
        .collect();
    if let Some(waits) = &case.waits {
        assert_eq!(slept, *waits, "{place}");
    }
}

/// Asserts that an answer is the expected one; returns it unless an error was expected.
fn means(
    place: &str,
    step: &Step,
    answer: Result<Answer, ModelError>,
    heard: &Heard,
    sent: Sent,
) -> Option<Answer> {
    let told = heard.told();
    match (&step.means, answer) {
        (Means::Error(detail), Err(error)) => {
            assert_eq!(error.detail, *detail, "{place}");
            assert_eq!(told, Told::default(), "{place}");
            None
        }
        (
            Means::Answer {
                text,
                calls,
                finish,
            },
            Ok(answer),
        ) => {
            assert_eq!(answer.text.as_deref(), *text, "{place}");
            let read: Vec<_> = answer
                .calls
                .iter()
                .map(|call| (&*call.name, &*call.arguments_text))
                .collect();
            assert_eq!(read, *calls, "{place}");
            assert_eq!(answer.finish_reason, *finish, "{place}");
            assert_eq!(answer.usage, USAGE, "{place}");
            assert_eq!(told.resets, step.resets, "{place}");
            if (sent != Sent::Whole && step.told) || told.pieces > 0 {
                heard.adds_up_to(&answer);
            }
            Some(answer)
        }
        (means, answer) => panic!("{place}: {answer:?} instead of {means:?}"),
    }
}

/// Runs all conversations concurrently and reports which failed.
async fn all(provider: Provider, sent: Sent) {
    let (net, mut running, mut names) = (Net::new().unwrap(), JoinSet::new(), Vec::new());
    for case in cases()
        .into_iter()
        .filter(|case| case.only.is_none_or(|only| only == provider))
    {
        let net = net.clone();
        let name = case.name;
        names.push((
            name,
            running
                .spawn(async move { runs(provider, &case, sent, &net).await })
                .id(),
        ));
    }
    let mut failed = Vec::new();
    while let Some(ended) = running.join_next().await {
        let Err(error) = ended else { continue };
        failed.extend(
            names
                .iter()
                .filter(|(_, id)| *id == error.id())
                .map(|(name, _)| *name),
        );
    }
    assert!(failed.is_empty(), "{}: {failed:?}", provider.name());
}

#[tokio::test]
async fn conversations_over_chat_completions_keep_their_meaning() {
    all(Provider::OpenAi, Sent::AsRecorded).await;
}

#[tokio::test]
async fn conversations_over_the_messages_api_keep_their_meaning() {
    all(Provider::Anthropic, Sent::AsRecorded).await;
}

#[tokio::test]
async fn chat_completions_answer_may_come_in_tiny_pieces() {
    all(Provider::OpenAi, Sent::InCrumbs).await;
}

#[tokio::test]
async fn messages_answer_may_come_in_tiny_pieces() {
    all(Provider::Anthropic, Sent::InCrumbs).await;
}

#[tokio::test]
async fn chat_completions_endpoint_may_answer_in_one_piece() {
    all(Provider::OpenAi, Sent::Whole).await;
}

#[tokio::test]
async fn messages_endpoint_may_answer_in_one_piece() {
    all(Provider::Anthropic, Sent::Whole).await;
}

#[tokio::test]
async fn operator_headers_are_added_or_replace_the_built_in_ones() {
    let played = Played::begin(Traffic::of("anthropic", "text").answers, Sent::AsRecorded).await;
    let secret = |text: &str| Secret::new(text.to_owned());
    let mut settings = Provider::Anthropic.settings(&format!("{}/deep/", played.url));
    settings.api_key = None;
    settings.headers = BTreeMap::from([
        ("Anthropic-Version".to_owned(), secret("2027-01-01")),
        (
            "anthropic-beta".to_owned(),
            secret("interleaved-thinking-2025-05-14"),
        ),
        ("Authorization".to_owned(), secret("Bearer token")),
    ]);
    let mut mistakes = Mistakes::default();
    Anthropic::check(&settings, &mut mistakes, &[]);
    assert_eq!(mistakes.found, []);
    let client = Provider::Anthropic.client(settings, Net::new().unwrap(), &Arc::default());
    let prompt = Prompt {
        system: None,
        messages: Vec::new(),
        tools: Vec::new(),
        turn: 1,
    };
    client.answer(&prompt, &Heard::default()).await.unwrap();
    let head = played.requests().remove(0).head;
    let ours = [
        "post /deep/v1/messages?team=blue ",
        "anthropic-version: 2027-01-01",
        "authorization: bearer token",
    ];
    for line in ours
        .into_iter()
        .chain(["anthropic-beta: interleaved-thinking-2025-05-14"])
    {
        assert!(head.contains(line), "{head}");
    }
    assert!(
        !head.contains("x-api-key") && !head.contains("2023-06-01"),
        "{head}"
    );
}

#[test]
fn configured_body_may_not_name_reserved_members() {
    for provider in [Provider::OpenAi, Provider::Anthropic] {
        let mut settings = provider.settings("http://x");
        for name in [
            "messages",
            "tools",
            "model",
            "stream",
            "system",
            "max_tokens",
        ] {
            settings
                .body
                .insert(name.to_owned(), serde_json::Value::Null);
        }
        let mut mistakes = Mistakes::default();
        match provider {
            Provider::OpenAi => OpenAi::check(&settings, &mut mistakes, &[]),
            Provider::Anthropic => Anthropic::check(&settings, &mut mistakes, &[]),
        }
        let mut places: Vec<_> = mistakes
            .found
            .iter()
            .map(|mistake| mistake.place.join("."))
            .collect();
        places.sort();
        let also = (provider == Provider::Anthropic).then_some("body.system");
        let expected = ["body.messages", "body.model", "body.stream"]
            .into_iter()
            .chain(also)
            .chain(["body.tools"]);
        assert_eq!(places, expected.collect::<Vec<_>>());
    }
}

#[test]
fn every_traffic_file_belongs_to_a_case_and_every_case_has_one_per_provider() {
    for provider in [Provider::OpenAi, Provider::Anthropic] {
        let cases = cases()
            .into_iter()
            .filter(|case| case.only.is_none_or(|only| only == provider));
        let mut names: Vec<_> = cases.map(|case| format!("{}.txt", case.name)).collect();
        names.sort();
        let folder = format!(
            "{}/src/model/conformance/wire/{}",
            env!("CARGO_MANIFEST_DIR"),
            provider.name()
        );
        let files = std::fs::read_dir(folder)
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap());
        let mut files: Vec<_> = files.collect();
        files.sort();
        assert_eq!(files, names);
    }
}

/// Reads a stream whose bytes arrive in these pieces. Returns the outcome (the answer, or the
/// reason why there is none) and the emitted pieces.
fn read<P: Protocol>(pieces: &[&[u8]]) -> (Result<Answer, String>, Heard) {
    let cleaner = Cleaner(Arc::new(Redactor::new([(
        "KEY",
        &Secret::new(KEY.to_owned()),
    )])));
    let (mut decoder, mut reading, heard) = (
        Decoder::new(64 * 1024),
        P::reading(&cleaner),
        Heard::default(),
    );
    let mut telling = Telling::new(&heard);
    let mut broken = None;
    for event in pieces.iter().flat_map(|piece| decoder.push(piece).unwrap()) {
        match reading.event(&event, &mut telling) {
            Ok(Progress::GoesOn) => {}
            Ok(Progress::Ended) => break,
            Err(attempt) => {
                broken = Some(attempt);
                break;
            }
        }
    }
    let answer = match broken.unwrap_or_else(|| reading.finish(&mut telling)) {
        Attempt::Answered(answer) => Ok(*answer),
        Attempt::Again(why, _) | Attempt::Plainer(why) | Attempt::Failed(why) => Err(why),
    };
    (answer, heard)
}

fn is_the_same_wherever_it_is_cut<P: Protocol>(provider: Provider) {
    for case in cases()
        .into_iter()
        .filter(|case| case.only.is_none_or(|only| only == provider))
    {
        let traffic = Traffic::of(provider.name(), case.name);
        let Some(stream) = traffic.answers.iter().find_map(Reply::stream) else {
            continue;
        };
        let (answer, heard) = read::<P>(&[stream.as_bytes()]);
        if let Ok(answer) = &answer {
            heard.adds_up_to(answer);
        }
        for size in 1..30 {
            let pieces: Vec<_> = stream.as_bytes().chunks(size).collect();
            let (same, again) = read::<P>(&pieces);
            assert_eq!(same, answer, "{} in pieces of {size}", case.name);
            let (told, again) = (heard.told(), again.told());
            assert_eq!(
                (told.text, told.calls),
                (again.text, again.calls),
                "{} in pieces of {size}",
                case.name
            );
        }
    }
}

#[test]
fn chat_completions_stream_is_the_same_wherever_it_is_cut() {
    is_the_same_wherever_it_is_cut::<ChatCompletions>(Provider::OpenAi);
}

#[test]
fn messages_stream_is_the_same_wherever_it_is_cut() {
    is_the_same_wherever_it_is_cut::<Messages>(Provider::Anthropic);
}
