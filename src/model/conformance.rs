//! Conformance tests of the model protocols: one suite for all providers. `cases` declares each
//! conversation and the expected answers once. `wire/PROVIDER/CASE.txt` holds the traffic of a
//! conversation with one provider, written from the provider's documentation. The tests assert:
//!
//! - The requests are as documented.
//! - The parsed answer is the same with and without streaming, and wherever the bytes are cut.
//! - The emitted pieces add up to the answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::task::JoinSet;

use self::cases::{Case, CaseStep, Means, cases};
use self::traffic::{Sent, Traffic, TrafficEndpoint};
use super::anthropic::Messages;
use super::endpoint::Endpoint;
use super::openai::ChatCompletions;
use super::openai_responses::Responses;
use super::protocol::Protocol;
use super::settings::Settings;
use super::test_sinks::CollectingSink;
use super::{Answer, ModelClient, ModelError, Prompt};
use crate::net::Net;
use crate::secret::{Redactor, Secret};
use crate::task::item::Usage;
use crate::task::time::Time;
use crate::task::transcript::Message;
use crate::world::{Clock, Mistakes};

mod cases;
mod cuts;
mod many;
mod stored;
mod traffic;

/// The API key of the requests. In some cases the endpoint echoes the key.
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
    Responses,
    Anthropic,
}

impl Provider {
    const ALL: [Self; 3] = [Self::OpenAi, Self::Responses, Self::Anthropic];

    fn name(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Responses => "openai_responses",
            Self::Anthropic => "anthropic",
        }
    }

    /// Returns two lines that each request to this provider must have: the request line, and the
    /// header that carries the key. The lines are in lower case, because the test compares them
    /// with the request's head in lower case.
    fn request_lines(self) -> [&'static str; 2] {
        match self {
            Self::OpenAi => [
                "post /v1/chat/completions?team=blue http/1.1",
                "authorization: bearer sk-very-secret",
            ],
            Self::Responses => [
                "post /v1/responses?team=blue http/1.1",
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
            base_url: Some(if self == Self::Anthropic {
                url.to_owned()
            } else {
                format!("{url}/v1")
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
        match self {
            Self::OpenAi => endpoint::<ChatCompletions>(settings, net, clock),
            Self::Responses => endpoint::<Responses>(settings, net, clock),
            Self::Anthropic => endpoint::<Messages>(settings, net, clock),
        }
    }

    fn check(self, settings: &Settings, mistakes: &mut Mistakes) {
        match self {
            Self::OpenAi => settings.check::<ChatCompletions>(mistakes, &[]),
            Self::Responses => settings.check::<Responses>(mistakes, &[]),
            Self::Anthropic => settings.check::<Messages>(mistakes, &[]),
        }
    }

    fn cases(self) -> impl Iterator<Item = Case> {
        cases()
            .into_iter()
            .filter(move |case| case.of.contains(&self))
    }
}

fn endpoint<P: Protocol>(settings: Settings, net: Net, clock: &Arc<Quick>) -> Box<dyn ModelClient> {
    let redactor = Arc::new(Redactor::new([("KEY", &Secret::new(KEY.to_owned()))]));
    let clock = Arc::clone(clock);
    Box::new(Endpoint::<P>::new(settings, net, clock, redactor).unwrap())
}

/// A clock that records each sleep, and whose sleeps end at once.
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
    let served = TrafficEndpoint::begin(traffic.answers, sent).await;
    let clock = Arc::new(Quick::default());
    let client = provider.client(provider.settings(&served.url), net.clone(), &clock);
    let mut messages: Vec<Message> = Vec::new();
    for step in &case.steps {
        let ids: Vec<String> = match messages.last() {
            Some(Message::Assistant { calls, .. }) => {
                calls.iter().map(|(id, ..)| id.clone()).collect()
            }
            Some(_) | None => Vec::new(),
        };
        messages.extend(step.said(&ids));
        let (system, tools) = if case.has_tools {
            cases::instructions_and_tools()
        } else {
            (None, Vec::new())
        };
        let prompt = Prompt {
            system,
            messages: messages.clone(),
            tools,
            turn: 1,
        };
        let heard = CollectingSink::default();
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
    let requests = served.requests();
    assert_eq!(requests.len(), traffic.bodies.len(), "{place}");
    for (at, (request, asked)) in requests.iter().zip(&traffic.bodies).enumerate() {
        let body: serde_json::Value = serde_json::from_str(&request.body).unwrap();
        assert_eq!(body, *asked, "{place}: request {at}\n{}", request.body);
        for line in provider
            .request_lines()
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

/// Asserts that an answer is as expected. Returns the answer; `None` if an error was expected.
fn means(
    place: &str,
    step: &CaseStep,
    answer: Result<Answer, ModelError>,
    heard: &CollectingSink,
    sent: Sent,
) -> Option<Answer> {
    let told = heard.collected();
    match (&step.means, answer) {
        (Means::Error(detail), Err(error)) => {
            assert_eq!(error.detail, *detail, "{place}");
            let left = (told.text.as_str(), told.calls.len(), told.resets);
            assert_eq!(left, ("", 0, step.resets), "{place}");
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
                heard.assert_adds_up_to(&answer);
            }
            Some(answer)
        }
        (means, answer) => panic!("{place}: {answer:?} instead of {means:?}"),
    }
}

/// Runs all conversations concurrently, and reports those that failed.
async fn all(provider: Provider, sent: Sent) {
    let (net, mut running, mut names) = (Net::new().unwrap(), JoinSet::new(), Vec::new());
    for case in provider.cases() {
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
async fn conversations_over_the_responses_api_keep_their_meaning() {
    all(Provider::Responses, Sent::AsRecorded).await;
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
async fn responses_answer_may_come_in_tiny_pieces() {
    all(Provider::Responses, Sent::InCrumbs).await;
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
async fn responses_endpoint_may_answer_in_one_piece() {
    all(Provider::Responses, Sent::Whole).await;
}

#[tokio::test]
async fn messages_endpoint_may_answer_in_one_piece() {
    all(Provider::Anthropic, Sent::Whole).await;
}

#[tokio::test]
async fn operator_headers_are_added_or_replace_the_built_in_ones() {
    let served =
        TrafficEndpoint::begin(Traffic::of("anthropic", "text").answers, Sent::AsRecorded).await;
    let secret = |text: &str| Secret::new(text.to_owned());
    let mut settings = Provider::Anthropic.settings(&format!("{}/deep/", served.url));
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
    Provider::Anthropic.check(&settings, &mut mistakes);
    assert_eq!(mistakes.found, []);
    let client = Provider::Anthropic.client(settings, Net::new().unwrap(), &Arc::default());
    let prompt = Prompt {
        system: None,
        messages: Vec::new(),
        tools: Vec::new(),
        turn: 1,
    };
    client
        .answer(&prompt, &CollectingSink::default())
        .await
        .unwrap();
    let head = served.requests().remove(0).head;
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
fn base_url_of_a_messages_endpoint_may_end_in_the_version_of_the_path() {
    for (base_url, path) in [
        ("https://h", "/v1/messages"),
        ("https://h/v1", "/v1/messages"),
        ("https://h/deep/v1/", "/deep/v1/messages"),
        ("https://h/dev1", "/dev1/v1/messages"),
    ] {
        let address = Provider::Anthropic.settings(base_url).address::<Messages>();
        assert_eq!(address.unwrap().path(), path, "{base_url}");
    }
}

#[test]
fn configured_body_may_not_name_reserved_members() {
    for (provider, ours) in [
        (
            Provider::OpenAi,
            &["messages", "model", "stream", "tools"][..],
        ),
        (
            Provider::Responses,
            &[
                "include",
                "input",
                "instructions",
                "model",
                "store",
                "stream",
                "tools",
            ],
        ),
        (
            Provider::Anthropic,
            &["messages", "model", "stream", "system", "tools"],
        ),
    ] {
        let mut settings = provider.settings("http://x");
        let names = [
            "messages",
            "tools",
            "model",
            "stream",
            "system",
            "max_tokens",
        ];
        for name in names
            .iter()
            .chain(&["include", "input", "instructions", "store"])
        {
            settings
                .body
                .insert((*name).to_owned(), serde_json::Value::Null);
        }
        let mut mistakes = Mistakes::default();
        provider.check(&settings, &mut mistakes);
        let mut places: Vec<_> = mistakes
            .found
            .iter()
            .map(|mistake| mistake.place.join("."))
            .collect();
        places.sort();
        let expected: Vec<_> = ours.iter().map(|name| format!("body.{name}")).collect();
        assert_eq!(places, expected);
    }
}

#[test]
fn every_traffic_file_belongs_to_a_case_and_every_case_has_one_per_provider() {
    for provider in Provider::ALL {
        let mut names: Vec<_> = provider
            .cases()
            .map(|case| format!("{}.txt", case.name))
            .collect();
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
