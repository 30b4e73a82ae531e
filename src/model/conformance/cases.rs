//! The conversations and their expected answers, which are the same for every provider.

use std::collections::BTreeMap;

use serde_json::json;

use super::{Provider, stored};
use crate::model::OfferedTool;
use crate::task::item::{FinishReason, Part, PartType};
use crate::task::transcript::Message;

/// The JSON of a reasoning item with unusual spaces and escapes.
const EXACT: &str = r#"{ "type": "reasoning",  "id":"rs_01", "summary": [ ], "encrypted_content" : "gAAAAABpBxfl\u002b3dpz\/w==", "content":[ ] }"#;

pub(super) struct Case {
    /// The name of the case's files in `wire`, without `.txt`.
    pub(super) name: &'static str,
    pub(super) of: &'static [Provider],
    /// Whether the prompt has instructions and tools.
    pub(super) has_tools: bool,
    pub(super) steps: Vec<CaseStep>,
    /// Texts that the last request must contain: each either byte for byte, or as a JSON string
    /// with this content.
    pub(super) exact: Vec<&'static str>,
    /// The expected waits before repeated attempts, in seconds; `None` if the waits are not
    /// checked.
    pub(super) waits: Option<Vec<u64>>,
}

pub(super) struct CaseStep {
    added: AddedMessages,
    pub(super) means: Means,
    /// The expected number of `Piece::Reset`s. A reset voids the pieces that were emitted so far.
    pub(super) resets: usize,
    /// Whether the test expects that a streamed answer is emitted in pieces.
    pub(super) told: bool,
}

/// The messages that are added to the conversation before the model is asked.
enum AddedMessages {
    User(&'static str),
    /// A user message with context data about the user, and with three parts: a text and two
    /// images.
    Richly,
    /// The results of the last turn's calls. Each element is the content of a result, and whether
    /// the call succeeded.
    Results(Vec<(&'static str, bool)>),
    ResultsAndUser(Vec<(&'static str, bool)>, &'static str),
    /// The stored messages of a conversation that began with this provider.
    Stored(Provider),
}

#[derive(Debug)]
pub(super) enum Means {
    Answer {
        text: Option<&'static str>,
        calls: Vec<(&'static str, &'static str)>,
        finish: FinishReason,
    },
    /// An error with this reason is expected instead of an answer.
    Error(&'static str),
}

impl CaseStep {
    /// Returns the messages to add to the conversation; `ids` are the ids of the last turn's calls.
    pub(super) fn said(&self, ids: &[String]) -> Vec<Message> {
        match &self.added {
            AddedMessages::User(text) => vec![user(text)],
            AddedMessages::Richly => vec![richly()],
            AddedMessages::Results(given) => results(given, ids),
            AddedMessages::ResultsAndUser(given, text) => results(given, ids)
                .into_iter()
                .chain([user(text)])
                .collect(),
            AddedMessages::Stored(provider) => match provider {
                Provider::OpenAi => stored::by_openai(),
                Provider::Responses => stored::by_responses(),
                Provider::Anthropic => stored::by_anthropic(),
            },
        }
    }
}

fn text_part(text: &str) -> Part {
    Part {
        content_type: PartType::Text,
        content: text.to_owned(),
    }
}

pub(super) fn user(text: &str) -> Message {
    Message::User {
        context: None,
        parts: vec![text_part(text)],
    }
}

fn richly() -> Message {
    let image = |content: &str| Part {
        content_type: PartType::Image,
        content: content.to_owned(),
    };
    let parts = vec![
        text_part("What is it?"),
        image("data:image/png;base64,iVBORw0KGgo="),
        image("https://img.example/a.webp"),
    ];
    Message::User {
        context: Some(BTreeMap::from([("plan".to_owned(), "gold".to_owned())])),
        parts,
    }
}

pub(super) fn result(id: &str, content: &str, succeeded: bool) -> Message {
    let (provider_id, content) = (id.to_owned(), content.to_owned());
    Message::Result {
        provider_id,
        name: "pay".to_owned(),
        content,
        succeeded,
    }
}

fn results(given: &[(&str, bool)], ids: &[String]) -> Vec<Message> {
    assert_eq!(given.len(), ids.len());
    given
        .iter()
        .zip(ids)
        .map(|((content, succeeded), id)| result(id, content, *succeeded))
        .collect()
}

/// Returns the instructions and the tools in the prompt of each case whose `has_tools` is true.
pub(super) fn instructions_and_tools() -> (Option<String>, Vec<OfferedTool>) {
    let schema =
        json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let tool = |name: &str, description: &str, parameters| OfferedTool {
        name: name.to_owned(),
        description: description.to_owned(),
        parameters,
    };
    (
        Some("Be kind.".to_owned()),
        vec![tool("pay", "Pays.", schema), tool("look", "", json!({}))],
    )
}

fn step(added: AddedMessages, means: Means) -> CaseStep {
    CaseStep {
        added,
        means,
        resets: 0,
        told: true,
    }
}

/// Returns a step in which the endpoint does not stream, so no pieces are expected.
fn plainly(said: AddedMessages, text: &'static str) -> CaseStep {
    CaseStep {
        told: false,
        ..step(said, text_answer(text))
    }
}

fn text_answer(text: &'static str) -> Means {
    Means::Answer {
        text: Some(text),
        calls: Vec::new(),
        finish: FinishReason::Stop,
    }
}

fn calls(text: Option<&'static str>, calls: &[(&'static str, &'static str)]) -> Means {
    Means::Answer {
        text,
        calls: calls.to_vec(),
        finish: FinishReason::ToolCalls,
    }
}

fn case<const N: usize>(name: &'static str, steps: [CaseStep; N]) -> Case {
    Case {
        name,
        of: &Provider::ALL,
        has_tools: false,
        steps: steps.into(),
        exact: Vec::new(),
        waits: Some(Vec::new()),
    }
}

/// Returns a case in which the first attempts fail, and the last attempt gives the answer `text`.
/// `resets` is the expected number of resets, each of which voids the pieces emitted so far.
fn in_the_end(name: &'static str, text: &'static str, resets: usize) -> Case {
    let step = CaseStep {
        resets,
        ..step(AddedMessages::User("Hi"), text_answer(text))
    };
    Case {
        waits: None,
        ..case(name, [step])
    }
}

pub(super) fn cases() -> Vec<Case> {
    of_all()
        .into_iter()
        .chain(of_reasoners())
        .chain(of_responses())
        .collect()
}

/// Returns the cases of the protocols that send the model's reasoning back to the endpoint.
fn of_reasoners() -> Vec<Case> {
    use AddedMessages::{Results, User};
    let both_have = |case| Case {
        of: &[Provider::Responses, Provider::Anthropic],
        ..case
    };
    let paid = || Results(vec![("paid", true)]);
    let pays = |text: Option<&'static str>| calls(text, &[("pay", "{\"n\":1}")]);
    let cut = Means::Answer {
        text: Some(""),
        calls: Vec::new(),
        finish: FinishReason::Length,
    };
    let both = calls(None, &[("look", "{\"n\":1}"), ("pay", "{\"n\":2}")]);
    vec![
        both_have(case(
            "stale_thoughts",
            [
                step(User("Go."), pays(None)),
                step(paid(), text_answer("Done.")),
                step(User("Thanks."), text_answer("Bye.")),
            ],
        )),
        both_have(case(
            "cut_thought",
            [
                step(User("Go."), cut),
                step(User("Again."), text_answer("Bye.")),
            ],
        )),
        Case {
            of: &[Provider::Anthropic],
            ..case(
                "other_blocks",
                [
                    step(User("Cats?"), pays(Some("So: They purr."))),
                    step(paid(), text_answer("Done.")),
                ],
            )
        },
        both_have(case("interleaved", [step(User("Go."), both)])),
    ]
}

fn of_responses() -> Vec<Case> {
    use AddedMessages::{Results, User};
    let only = |case| Case {
        of: &[Provider::Responses],
        ..case
    };
    let paid = || Results(vec![("paid", true)]);
    let pays = |text: Option<&'static str>| calls(text, &[("pay", "{\"n\":1}")]);
    let filtered = |text| Means::Answer {
        text: Some(text),
        calls: vec![("pay", "{\"n\":1}")],
        finish: FinishReason::ContentFilter,
    };
    let refused = Means::Error(
        "Model `main` gave no usable answer (after 2 attempts): it reported an error: The prompt was refused.",
    );
    vec![
        only(Case {
            exact: vec![EXACT],
            ..case(
                "exact_reasoning",
                [
                    step(User("Go."), pays(None)),
                    step(paid(), text_answer("Done.")),
                    step(User("Thanks."), text_answer("Bye.")),
                ],
            )
        }),
        only(case(
            "lost_thoughts",
            [
                step(User("Go."), pays(None)),
                step(paid(), text_answer("Done.")),
            ],
        )),
        only(case(
            "other_items",
            [
                step(User("Cats?"), pays(Some("They purr."))),
                step(paid(), text_answer("Done.")),
            ],
        )),
        only(case(
            "half_refusal",
            [
                step(User("Go."), filtered("Half of it. The rest I refuse.")),
                step(
                    Results(vec![("It was refused.", false)]),
                    text_answer("Sorry."),
                ),
            ],
        )),
        only(case(
            "filtered",
            [
                step(User("Go."), filtered("On it.")),
                step(Results(vec![("It was cut.", false)]), text_answer("Sorry.")),
            ],
        )),
        only(Case {
            waits: None,
            ..case(
                "failed",
                [CaseStep {
                    resets: 2,
                    ..step(User("Hi"), refused)
                }],
            )
        }),
    ]
}

fn of_all() -> Vec<Case> {
    let mut cases = answers_of_all();
    cases.extend(hard_answers_of_all());
    cases
}

fn answers_of_all() -> Vec<Case> {
    use AddedMessages::{Results, ResultsAndUser, User};
    let paid = || Results(vec![("paid", true)]);
    let cut = |text, calls, finish| Means::Answer {
        text: Some(text),
        calls,
        finish,
    };
    let formatted = "{ \"order\": 17,\n  \"amount\": 20.50 }";
    let harm = cut(
        "I can't help with that.",
        Vec::new(),
        FinishReason::ContentFilter,
    );
    let half = cut("On it.", vec![("pay", "{\"n\": 12")], FinishReason::Length);
    let several = calls(
        None,
        &[("look", "{\"n\":1}"), ("pay", "{\"n\":2}"), ("look", "{}")],
    );
    let outcomes = vec![("one", true), ("refused", false), ("", true)];
    let one = |added, text: Option<&'static str>| step(added, calls(text, &[("pay", "{\"n\":1}")]));
    vec![
        case("text", [step(User("Hi"), text_answer("Grüße, 世界 😀."))]),
        Case {
            exact: vec![formatted],
            ..case(
                "one_call",
                [
                    step(User("Pay it back."), calls(None, &[("pay", formatted)])),
                    step(paid(), text_answer("Done.")),
                ],
            )
        },
        case(
            "parallel_calls",
            [
                step(User("All of them."), several),
                step(ResultsAndUser(outcomes, "Go on."), text_answer("Fine.")),
            ],
        ),
        case(
            "text_and_call",
            [
                one(User("Go."), Some("On it, sir.")),
                step(paid(), text_answer("Done.")),
            ],
        ),
        case(
            "thoughts",
            [
                one(User("Go."), None),
                step(paid(), text_answer("Done.")),
                step(User("Thanks."), text_answer("Bye.")),
            ],
        ),
        case(
            "refusal",
            [
                step(User("Do harm."), harm),
                step(User("Then not."), text_answer("Good.")),
            ],
        ),
        case(
            "length",
            [
                step(User("Go."), half),
                step(Results(vec![("It was cut.", false)]), text_answer("Sorry.")),
            ],
        ),
        Case {
            waits: Some(vec![7, 2]),
            ..in_the_end("rate_limited", "Hello.", 0)
        },
        in_the_end("overloaded_midway", "Hello.", 1),
        in_the_end("lost_midway", "Hello.", 1),
        in_the_end("no_end", "Hello.", 2),
    ]
}

/// Returns the cases with a refused key, with unusual content, with a conversation that began with
/// another provider, and with an endpoint that does not stream.
fn hard_answers_of_all() -> Vec<Case> {
    use AddedMessages::{Results, Richly, Stored, User};
    let paid = || Results(vec![("paid", true)]);
    let odd = r#"{"a":1,"a":2,"n":20.000000000000000001,"s":"\ud83d\ude00","t":"\u0041"}"#;
    let hidden = [("pay", r#"{"k":"[secret KEY]\ufffd"}"#)];
    let refused = Means::Error(
        "Model `main` gave no usable answer: it answered with status 401 (request req_01): invalid x-api-key",
    );
    vec![
        case("bad_key", [step(User("Hi"), refused)]),
        Case {
            has_tools: true,
            ..case("everything", [step(Richly, text_answer("A cat."))])
        },
        case(
            "unshowable",
            [
                step(
                    User("Hi"),
                    calls(Some("The key is [secret KEY]\u{FFFD}."), &hidden),
                ),
                step(paid(), text_answer("Done.")),
            ],
        ),
        Case {
            exact: vec![odd],
            ..case(
                "odd_arguments",
                [
                    step(User("Go."), calls(None, &[("pay", odd)])),
                    step(Results(vec![("Not so.", false)]), text_answer("Sorry.")),
                ],
            )
        },
        case(
            "from_openai",
            [step(Stored(Provider::OpenAi), text_answer("Hello."))],
        ),
        case(
            "from_responses",
            [step(Stored(Provider::Responses), text_answer("Hello."))],
        ),
        case(
            "from_anthropic",
            [step(Stored(Provider::Anthropic), text_answer("Hello."))],
        ),
        case(
            "no_streams",
            [
                plainly(User("Hi"), "Hello."),
                plainly(User("Bye"), "Hello."),
            ],
        ),
    ]
}
