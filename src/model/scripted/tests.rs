//! Tests of scripts that users write, and of the built-in script.

use std::sync::Mutex;
use std::time::Duration;

use super::*;
use crate::model::{DiscardingSink, Piece};
use crate::task::item::Part;
use crate::task::time::Time;

mod demonstration;

#[derive(Debug, Default)]
struct Quick(Mutex<Vec<Duration>>);

#[async_trait]
impl Clock for Quick {
    fn now(&self) -> Time {
        Time(0)
    }

    fn uptime(&self) -> Duration {
        Duration::ZERO
    }

    async fn sleep(&self, time: Duration) {
        self.0.lock().unwrap().push(time);
    }
}

fn read(rules: &str) -> Result<Scripted, Vec<(String, String)>> {
    let mut mistakes = Mistakes::default();
    let clock = Arc::new(Quick::default());
    let script = Scripted::read("demo", ("s.yaml", rules), clock, &mut mistakes);
    let found = mistakes
        .found
        .into_iter()
        .map(|mistake| (mistake.place.join("."), mistake.detail));
    script.ok_or_else(|| found.collect())
}

fn user(text: &str) -> Message {
    Message::User {
        context: None,
        parts: vec![Part {
            content_type: PartType::Text,
            content: text.to_owned(),
        }],
    }
}

fn turn(answer: &Answer) -> Message {
    let calls = answer.calls.iter().map(|call| {
        (
            call.provider_id.clone(),
            call.name.clone(),
            call.arguments_text.clone(),
        )
    });
    Message::Assistant {
        raw: answer.raw.clone(),
        text: answer.text.clone(),
        calls: calls.collect(),
    }
}

fn result(name: &str, content: &str) -> Message {
    let (name, content) = (name.to_owned(), content.to_owned());
    Message::Result {
        provider_id: "call_0".to_owned(),
        name,
        content,
        succeeded: true,
    }
}

fn prompt(messages: Vec<Message>, turn: u32) -> Prompt {
    Prompt {
        system: None,
        messages,
        tools: Vec::new(),
        turn,
    }
}

async fn say(script: &Scripted, messages: Vec<Message>, turn: u32) -> String {
    script
        .answer(&prompt(messages, turn), &DiscardingSink)
        .await
        .unwrap()
        .text
        .unwrap_or_default()
}

#[tokio::test]
async fn first_rule_whose_conditions_all_hold_is_played() {
    let script = read(
        r#"
- { when: {last: tool, tool: look, matches: "^(?<n>\\d+)$", turn: 2}, say: "two: ${n} ${1} ${0}" }
- { when: {last: tool, tool: look}, say: look }
- { when: {last: tool}, say: tool }
- { when: {last: user, turn: 7}, say: seventh }
- { when: {matches: hi}, say: hi }
"#,
    )
    .unwrap();
    assert_eq!(
        say(&script, vec![user("x"), result("look", "42")], 2).await,
        "two: 42 42 42"
    );
    assert_eq!(
        say(&script, vec![user("x"), result("look", "42")], 3).await,
        "look"
    );
    assert_eq!(
        say(&script, vec![user("x"), result("look", "4x")], 2).await,
        "look"
    );
    assert_eq!(
        say(&script, vec![user("x"), result("other", "42")], 2).await,
        "tool"
    );
    assert_eq!(say(&script, vec![user("hi")], 7).await, "seventh");
    assert_eq!(say(&script, vec![user("oh hi")], 1).await, "hi");
    assert_eq!(say(&script, vec![user("x")], 1).await, NO_RULE);
}

#[tokio::test]
async fn calls_have_the_arguments_of_the_script_and_repeating_ids() {
    let script = read(
        r#"
- when: { last: user, matches: "pay (?<amount>\\S+) to (?<who>\\w+)" }
  say: On it.
  calls:
    - { name: pay, arguments: { to: ["${who}"], amount: "${amount}", note: "for ${who}", x: 1.5, y: null } }
    - { name: "ask_${who}" }
    - { name: pay, arguments: '{"amount":1,"amount":${amount}}' }
- { when: { last: tool }, say: "paid ${amount} to ${who}" }
"#,
    )
    .unwrap();
    let first = script
        .answer(&prompt(vec![user("pay 20.50 to bob")], 1), &DiscardingSink)
        .await
        .unwrap();
    let calls: Vec<_> = first
        .calls
        .iter()
        .map(|call| (call.provider_id.as_str(), call.name.as_str()))
        .collect();
    assert_eq!(
        calls,
        [("call_0", "pay"), ("call_1", "ask_bob"), ("call_2", "pay")]
    );
    let arguments: Vec<_> = first
        .calls
        .iter()
        .map(|call| call.arguments_text.as_str())
        .collect();
    let expected = r#"{"to":["bob"],"amount":20.50,"note":"for bob","x":1.5,"y":null}"#;
    assert_eq!(
        arguments,
        [expected, "{}", r#"{"amount":1,"amount":20.50}"#]
    );
    assert_eq!(
        (first.text.as_deref(), first.finish_reason),
        (Some("On it."), FinishReason::ToolCalls)
    );
    assert_eq!(
        first.raw["tool_calls"][0]["function"]["arguments"],
        expected
    );
    assert_eq!(
        first.usage,
        Usage {
            prompt_tokens: 10,
            completion_tokens: 17,
            total_tokens: 27
        }
    );
    let again = vec![user("pay 20.50 to bob"), turn(&first), result("pay", "ok")];
    assert_eq!(say(&script, again, 2).await, "paid 20.50 to bob");
}

#[tokio::test]
async fn captured_digits_stay_a_text_where_the_called_tool_declares_a_string() {
    let script = read(
        r#"
- when: { matches: "order (\\d+)" }
  calls: [{ name: orders, arguments: { id: "${1}" } }, { name: pay, arguments: { id: "${1}" } }]
"#,
    )
    .unwrap();
    let tool = |name: &str, kind: &str| OfferedTool {
        name: name.to_owned(),
        description: String::new(),
        parameters: json!({"type": "object", "properties": {"id": {"type": kind}}}),
    };
    let prompt = Prompt {
        tools: vec![tool("pay", "integer"), tool("orders", "string")],
        ..prompt(vec![user("order 17")], 1)
    };
    let answer = script.answer(&prompt, &DiscardingSink).await.unwrap();
    let calls = answer.calls.iter();
    let arguments: Vec<_> = calls.map(|call| call.arguments_text.as_str()).collect();
    assert_eq!(arguments, [r#"{"id":"17"}"#, r#"{"id":17}"#]);
}

#[tokio::test]
async fn rule_may_delay_and_may_fail() {
    let clock = Arc::new(Quick::default());
    let rules = "[{ when: {turn: 1}, delay: 200ms, fail: 500 }, { delay: 2m, say: late }]";
    let asked = Arc::clone(&clock);
    let script =
        Scripted::read("demo", ("s.yaml", rules), asked, &mut Mistakes::default()).unwrap();
    let error = script
        .answer(&prompt(vec![user("x")], 1), &DiscardingSink)
        .await
        .unwrap_err();
    assert_eq!(
        error.detail,
        "Model `demo` gave no usable answer: its script answers with status 500."
    );
    assert_eq!(say(&script, vec![user("x")], 2).await, "late");
    assert_eq!(
        *clock.0.lock().unwrap(),
        [Duration::from_millis(200), Duration::from_mins(2)]
    );
}

#[test]
fn every_mistake_is_found_with_the_file_and_the_line_of_its_rule_in_order() {
    let found = read(
        r#"
- { say: fine }
- { sya: typo }
- { when: { last: robot }, say: x }
- { when: { matches: "(" }, say: x }
- { say: "${nothing}" }
- { calls: [{ name: "${nothing}" }] }
- { say: x, delay: soon }
- { fail: 200 }
- { sya: again }
"#,
    )
    .unwrap_err();
    assert_eq!(found.len(), 8, "{found:?}");
    for ((place, detail), line) in found.iter().zip(3..) {
        let start = format!("the script `s.yaml`: line {line}: ");
        assert!(
            place == "models.demo.script" && detail.starts_with(&start) && !detail.contains('\n'),
            "{found:?}"
        );
    }
    assert!(found[0].1.contains("sya"), "{found:?}");
    assert_eq!(
        found[2].1,
        "the script `s.yaml`: line 5: `matches` is not a regular expression: unclosed group"
    );
    for no_list in ["a: 1", "- [", "- {say: a, say: b}"] {
        assert_eq!(read(no_list).unwrap_err().len(), 1, "{no_list}");
    }
}

#[tokio::test]
async fn script_is_a_file_or_built_in() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("s.yaml");
    std::fs::write(&file, "- { say: from a file }\n").unwrap();
    let mut mistakes = Mistakes::default();
    let mut load = |source: &str| {
        let clock = Arc::new(Quick::default());
        Scripted::load("demo", source, clock, &mut mistakes)
    };
    let script = load(file.to_str().unwrap()).unwrap();
    assert!(load(folder.path().join("missing.yaml").to_str().unwrap()).is_none());
    assert!(load("builtin:other").is_none());
    assert!(load("builtin:refunds").is_some());
    assert_eq!(mistakes.found.len(), 2);
    assert_eq!(say(&script, vec![user("x")], 1).await, "from a file");
}

/// A sink that records each piece with the total time that was slept before the piece.
struct Heard {
    clock: Arc<Quick>,
    pieces: Mutex<Vec<(String, Duration)>>,
}

impl PieceSink for Heard {
    fn receive(&self, piece: Piece<'_>) {
        let said = match piece {
            Piece::Text(text) => format!("text {text}"),
            Piece::CallName { call, name } => format!("call {call} {name}"),
            Piece::Arguments { call, text } => format!("arguments {call} {text}"),
            Piece::Reset => "reset".to_owned(),
        };
        let slept = self.clock.0.lock().unwrap().iter().sum();
        self.pieces.lock().unwrap().push((said, slept));
    }
}

/// Asks a scripted model for its first answer, with a sink that has a listener. The script is
/// `rules` or, if `rules` is `None`, the script with the name `source`. Returns the answer, and the
/// pieces with their times.
async fn watched(
    source: &str,
    rules: Option<&str>,
    messages: Vec<Message>,
) -> (Answer, Vec<(String, Duration)>) {
    let mut mistakes = Mistakes::default();
    let clock = Arc::new(Quick::default());
    let asked = Arc::clone(&clock);
    let script = match rules {
        Some(rules) => Scripted::read(source, (source, rules), asked, &mut mistakes),
        None => Scripted::load("demo", source, asked, &mut mistakes),
    };
    let heard = Heard {
        clock,
        pieces: Mutex::default(),
    };
    let answer = script
        .unwrap()
        .answer(&prompt(messages, 1), &heard)
        .await
        .unwrap();
    (answer, heard.pieces.into_inner().unwrap())
}

#[tokio::test]
async fn answer_is_streamed_word_by_word_and_call_by_call_and_adds_up() {
    let rules = r#"
- say: "  Höre  zu:\n\n${0}  "
  when: { matches: "(?s).*" }
  calls: [{ name: pay, arguments: { order: "${0}" } }, { name: look }]
"#;
    let (answer, told) = watched("demo", Some(rules), vec![user("größer als 🙂🙂🙂 alles")]).await;
    let pieces: Vec<&str> = told.iter().map(|(said, _)| said.as_str()).collect();
    let expected = [
        "text   ",
        "text Höre  ",
        "text zu:\n\n",
        "text größer ",
        "text als ",
        "text 🙂🙂🙂 ",
        "text alles  ",
    ];
    assert_eq!(pieces[..7], expected);
    assert_eq!(pieces[7], "call 0 pay");
    assert!(
        pieces.len() > 11 && pieces.ends_with(&["call 1 look", "arguments 1 {}"]),
        "{pieces:?}"
    );
    let all = |what: &str| {
        pieces
            .iter()
            .filter_map(|piece| piece.strip_prefix(what))
            .collect::<String>()
    };
    assert_eq!(Some(all("text ")), answer.text);
    assert_eq!(all("arguments 0 "), answer.calls[0].arguments_text);
    assert!(
        told.iter().all(|(_, slept)| slept.is_zero()),
        "all at once where no time was asked for: {told:?}"
    );
}

#[tokio::test]
async fn delay_is_spread_over_the_pieces_and_none_of_it_is_lost() {
    let (_, told) = watched(
        "demo",
        Some("[{ say: a b c d, delay: 200ms }]"),
        vec![user("x")],
    )
    .await;
    let at: Vec<u128> = told.iter().map(|(_, slept)| slept.as_millis()).collect();
    assert_eq!(at, [50, 100, 150, 200]);
    let many = format!("[{{ say: '{}', delay: 1s }}]", "word ".repeat(10_000));
    let (_, told) = watched("demo", Some(&many), vec![user("x")]).await;
    let mut at: Vec<_> = told.iter().map(|(_, slept)| *slept).collect();
    assert_eq!(
        (at.len(), at[0], at[9_999]),
        (10_000, Duration::from_millis(25), Duration::from_secs(1))
    );
    at.dedup();
    assert_eq!(
        at.len(),
        40,
        "no pause is so short that many of them would add up"
    );
    let (_, told) = watched("demo", Some("[{ say: '', delay: 200ms }]"), vec![user("x")]).await;
    assert!(told.is_empty());
}

#[tokio::test]
async fn rule_with_257_calls_gives_no_answer_and_streams_no_delta() {
    let rules = |calls: usize| format!("- calls: [{}]", vec!["{ name: pay }"; calls].join(", "));
    let heard = crate::model::test_sinks::CollectingSink::default();
    let asked = prompt(vec![user("go")], 1);
    let error = read(&rules(257))
        .unwrap()
        .answer(&asked, &heard)
        .await
        .unwrap_err();
    assert_eq!(
        error.detail,
        "Model `demo` gave no usable answer: it asked for more than 256 calls."
    );
    assert_eq!(heard.collected().pieces, 0);
    assert_eq!(
        read(&rules(256))
            .unwrap()
            .answer(&asked, &heard)
            .await
            .unwrap()
            .calls
            .len(),
        256
    );
}
