//! Tests that a call whose arguments contain a secret is refused, and never runs with the secret
//! redacted. The secret may come from a credential that an owner fills in, a model that repeats a
//! credential, a person's edit, or a tool's response.

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::request::{RequestKind, RequestSpec};
use holdpoint::task::status::TaskStatus;
use holdpoint::task::verdict::Verdict;
use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::call_decisions::{bodies, each, edit, places, refused};
use super::credentials::{fill, jira, results};
use super::engine_harness::{EngineHarness, decides, person, turn};
use crate::store::store_fixture::{StoreFixture, both};
use crate::support::test_app::ACCOUNTS;

const WORD: &str = "tok/en-\"0123456789";
const MODEL_KEY: &str = "sk-model-key-0123456789";

const TOOLS: &str = r#"
secrets: { keys: [ { id: k1, key: "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=" } ] }
credentials:
  jira: { fields: { email: { format: email }, token: {} } }
models:
  main: { provider: openai, base_url: "{model}", model: fake, api_key: "${MODEL_KEY}" }
tools:
  comment: { http: { url: "{tool}/comment", headers: { X-Mail: "{{credential:jira.email}}", Authorization: "Bearer {{credential:jira.token}}" } } }
  send: { parameters: { type: object, properties: { to: {}, text: {} } }, http: { url: "{tool}/send" } }
  note: { parameters: { type: object, properties: { to: {} } }, http: { url: "{tool}/note" } }
  order: { parameters: { type: object, properties: { id: { type: string } }, required: [id] }, http: { method: GET, url: "{tool}/orders/{id}/items" } }
  count: { parameters: { type: object, properties: { to: {} } }, external: {} }
default_agent: clerk
agents:
  clerk:
    { description: A clerk., model: main, tools: [comment, send, note, order, count], human: [credentials, guidance], sub_agents: [helper] }
  helper: { description: Helps., model: main, tools: [note] }
policy:
  - { name: held, tools: [send, order], decide: hold, approvers: { users: [bob] } }
  - { name: rest, tools: ["*"], decide: allow }
"#;

fn percent(text: &str) -> String {
    text.bytes()
        .fold(String::new(), |all, byte| all + &format!("%{byte:02x}"))
}

/// Returns a harness and a task. In the first turn, the model calls `comment`, and the owner fills
/// in the login that this call needs. In the second turn, the model makes `calls`.
async fn given(
    fixture: StoreFixture,
    email: &str,
    token: &str,
    calls: Vec<(&'static str, String)>,
) -> (EngineHarness, TaskId) {
    given_by(
        fixture,
        TOOLS,
        &json!({"email": email, "token": token}),
        calls,
    )
    .await
}

async fn given_by(
    fixture: StoreFixture,
    yaml: &'static str,
    login: &Value,
    calls: Vec<(&'static str, String)>,
) -> (EngineHarness, TaskId) {
    let mut harness = EngineHarness::new(fixture, &[]).await;
    harness.configure(|_| yaml.to_owned() + ACCOUNTS);
    harness.script_by_name(move |_, prompt| {
        // The model of a sub-agent makes no calls. The script recognizes a sub-agent's prompt by
        // its tools: every other prompt offers at least three.
        let calls: Vec<_> = calls
            .iter()
            .map(|(name, text)| (*name, text.as_str()))
            .collect();
        let alone = prompt.tools.len() < 3;
        Ok(turn(match prompt.turn {
            _ if alone => &[],
            1 => &[("comment", "{}")],
            2 => &calls,
            _ => &[],
        }))
    });
    let task = harness.stopped().await;
    fill(&harness, task, login).await;
    (harness, task)
}

/// Returns the name, the verdict and the stored arguments of each call in the model's second turn.
async fn judged(harness: &EngineHarness, task: TaskId) -> Vec<(String, Verdict, String)> {
    let items = harness.journal(task).await.items;
    let calls = items.iter().find_map(|item| {
        let Fact::AssistantMessage(turn) = &item.fact else {
            return None;
        };
        (turn.turn == 2).then(|| turn.tool_calls.clone())
    });
    let verdict = |id| {
        items.iter().find_map(|item| {
            let Fact::Judged {
                tool_call_id,
                judgement,
                ..
            } = &item.fact
            else {
                return None;
            };
            (*tool_call_id == id).then_some(judgement.verdict)
        })
    };
    calls
        .unwrap()
        .into_iter()
        .map(|call| {
            (
                call.name,
                verdict(call.tool_call_id).unwrap(),
                call.arguments_text,
            )
        })
        .collect()
}

async fn seen(harness: &EngineHarness, task: TaskId) -> String {
    format!(
        "{:?} {:?}",
        harness.journal(task).await.items,
        harness.prompts_since(0)
    )
}

async fn approval(harness: &EngineHarness, task: TaskId) -> RequestSpec {
    let open = harness.open_specs(task).await;
    let [asked] = &open[..] else {
        panic!("{open:#?}")
    };
    assert_eq!(asked.kind, RequestKind::Approval);
    asked.clone()
}

#[apply(both)]
async fn email_of_a_login_stays_in_calls_as_the_model_wrote_it(fixture: StoreFixture) {
    let text = r#"{"to":"alice@acme.com"}"#;
    let (harness, task) = given(
        fixture,
        "alice@acme.com",
        WORD,
        vec![("send", text.to_owned())],
    )
    .await;
    let asked = approval(&harness, task).await;
    assert_eq!(asked.pending_tool_calls[0].arguments_text, text);
    super::credentials::approve(&harness, task).await;
    assert_eq!(
        bodies(&harness, task, "/send")
            .into_iter()
            .map(|(_, body)| body)
            .collect::<Vec<_>>(),
        [text]
    );
}

#[apply(both)]
async fn field_is_secret_unless_the_file_says_otherwise(fixture: StoreFixture) {
    let yaml = Box::leak(
        TOOLS
            .replace(
                "email: { format: email }, token: {}",
                "email: { format: email, secret: true }, token: { secret: false }",
            )
            .into_boxed_str(),
    );
    let login = json!({"email": "alice@acme.com", "token": "SHOP-0123456789"});
    let calls = vec![
        ("note", r#"{"to":"alice@acme.com"}"#.to_owned()),
        ("note", r#"{"to":"SHOP-0123456789"}"#.to_owned()),
    ];
    let (harness, task) = given_by(fixture, yaml, &login, calls).await;
    let judged = judged(&harness, task).await;
    assert_eq!(judged[0].1, Verdict::Invalid);
    assert_eq!(judged[0].2, r#"{"to":"[secret jira.email]"}"#);
    assert_eq!(judged[1].1, Verdict::Allow);
    assert_eq!(judged[1].2.as_str(), r#"{"to":"SHOP-0123456789"}"#);
    assert_eq!(bodies(&harness, task, "/note").len(), 1);
}

#[apply(both)]
async fn owner_cannot_hide_words_from_model_approver_and_journal(fixture: StoreFixture) {
    for word in [
        "fraud suspected",
        "fraud\u{a0}suspected",
        "suspicious",
        "approved",
    ] {
        let fixture = StoreFixture::like(&fixture).await;
        let text = json!({"text": format!("{word}: do not pay")}).to_string();
        let (harness, task) = given(fixture, "a@b.c", word, vec![("send", text.clone())]).await;
        assert_eq!(
            approval(&harness, task).await.pending_tool_calls[0].arguments_text,
            text
        );
        harness.tool.answers(200, word);
        super::credentials::approve(&harness, task).await;
        assert_eq!(results(&harness, task).await[1].2, word);
        assert!(!seen(&harness, task).await.contains("[secret"));
    }
}

#[apply(both)]
async fn call_that_holds_a_secret_is_invalid_without_a_request_and_never_runs(
    fixture: StoreFixture,
) {
    let bytes = percent(WORD);
    let json = serde_json::to_string(WORD).unwrap();
    let spelled = [
        WORD.to_owned(),
        bytes.clone(),
        bytes.replace('%', "%25"),
        json.trim_matches('"').to_owned(),
        BASE64_STANDARD.encode(format!("user:{WORD}")),
        BASE64_URL_SAFE_NO_PAD.encode(format!("a{WORD}b")),
        BASE64_STANDARD.encode(WORD).replace('=', "%3D"),
        MODEL_KEY.to_owned(),
    ];
    let tools = [
        "send",
        "note",
        "count",
        "helper",
        "request_human_guidance",
        "order",
    ];
    let member = |tool: &str| match tool {
        "helper" => "task",
        "request_human_guidance" => "question",
        "order" => "id",
        _ => "to",
    };
    let calls = tools
        .iter()
        .cycle()
        .zip(&spelled)
        .chain(tools.iter().zip(std::iter::repeat(&spelled[0])));
    let calls: Vec<_> = calls
        .map(|(tool, text)| (*tool, json!({member(tool): text}).to_string()))
        .collect();
    let (harness, task) = given(fixture, "a@b.c", WORD, calls.clone()).await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    let judged = judged(&harness, task).await;
    assert_eq!(judged.len(), calls.len());
    for (name, verdict, text) in &judged {
        assert_eq!(*verdict, Verdict::Invalid, "{name} {text}");
        assert!(
            text.contains("[secret jira.token]") || text.contains("[secret MODEL_KEY]"),
            "{text}"
        );
    }
    let results = results(&harness, task).await;
    for (name, outcome, text) in &results[1..] {
        assert_eq!(*outcome, Outcome::Invalid, "{name}");
        assert!(text.contains("kept secret"), "{text}");
    }
    assert_eq!(harness.tool.ledger().len(), 1, "only the comment runs");
    let seen = seen(&harness, task).await;
    for text in &spelled {
        assert!(!seen.contains(text.as_str()), "{text}");
    }
}

#[apply(both)]
async fn tool_name_that_holds_a_secret_is_invalid(fixture: StoreFixture) {
    let (harness, task) = given(
        fixture,
        "a@b.c",
        "note-note-note",
        vec![("note-note-note", "{}".to_owned())],
    )
    .await;
    let judged = judged(&harness, task).await;
    assert_eq!(judged[0].0.as_str(), "[secret jira.token]");
    assert_eq!(judged[0].1, Verdict::Invalid);
}

#[apply(both)]
async fn arguments_that_only_look_redacted_run_unchanged(fixture: StoreFixture) {
    let text = r#"{"to":"[secret jira.token]"}"#;
    let (harness, task) = given(fixture, "a@b.c", WORD, vec![("note", text.to_owned())]).await;
    assert_eq!(
        bodies(&harness, task, "/note")
            .into_iter()
            .map(|(_, body)| body)
            .collect::<Vec<_>>(),
        [text]
    );
}

#[apply(both)]
async fn call_with_a_secret_beside_a_held_call_is_shown_as_invalid(fixture: StoreFixture) {
    let calls = vec![
        ("send", r#"{"to":"x"}"#.to_owned()),
        ("note", json!({"to": WORD}).to_string()),
    ];
    let (harness, task) = given(fixture, "a@b.c", WORD, calls).await;
    let asked = approval(&harness, task).await;
    let [held, secret] = &asked.pending_tool_calls[..] else {
        panic!("two")
    };
    assert!(held.needs_decision && !held.digest.is_empty());
    assert_eq!(
        (secret.needs_decision, secret.verdict),
        (false, Verdict::Invalid)
    );
    assert_eq!(secret.arguments_text, r#"{"to":"[secret jira.token]"}"#);
    // The approval goes to another process, which must read the request from the database.
    super::credentials::approve(&harness, task).await;
    assert_eq!(bodies(&harness, task, "/send").len(), 1);
    assert_eq!(bodies(&harness, task, "/note").len(), 0);
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
}

#[apply(both)]
async fn edit_that_holds_a_secret_is_refused_and_changes_nothing(fixture: StoreFixture) {
    let (harness, task) = given(
        fixture,
        "a@b.c",
        WORD,
        vec![("send", r#"{"to":"x"}"#.to_owned())],
    )
    .await;
    let call = approval(&harness, task).await.pending_tool_calls[0].tool_call_id;
    let (engine, bob) = (harness.engine(0), person("bob"));
    for text in [
        json!({"to": WORD}),
        json!({WORD: 1, "to": 1}),
        json!({"to": BASE64_STANDARD.encode(format!("u:{WORD}"))}),
        json!({"to": MODEL_KEY}),
    ] {
        let refusal = refused(
            &harness,
            &engine,
            &bob,
            task,
            each([(call, edit(&text.to_string()))]),
        )
        .await;
        let places = places(&refusal);
        assert_eq!(
            places,
            [format!("/decisions/{call}/arguments")],
            "a pointer could contain the secret as a name"
        );
        assert!(!format!("{refusal:?}").contains(WORD));
    }
    let written = r#"{"to":"y"}"#;
    decides(
        &engine,
        &bob,
        approval(&harness, task).await.request_id,
        each([(call, edit(written))]),
    )
    .await;
    harness.run().await;
    assert_eq!(bodies(&harness, task, "/send")[0].1, written);
}

#[apply(both)]
async fn tool_that_sends_a_secret_back_twice_escaped_shows_nothing_of_it(fixture: StoreFixture) {
    let (harness, _) = given(fixture, "a@b.c", WORD, Vec::new()).await;
    let bytes = percent(WORD);
    let encoded = BASE64_STANDARD.encode(format!("{{\"token\":\"{WORD}\"}}"));
    let wrapped = encoded
        .as_bytes()
        .chunks(9)
        .map(String::from_utf8_lossy)
        .collect::<Vec<_>>()
        .join("\n");
    let json = |text: &str| serde_json::to_string(text).unwrap();
    for spelled in [
        bytes.replace('%', "%25"),
        bytes.replace('%', "\\u0025"),
        json(&json(WORD)),
        wrapped.clone(),
        json(&wrapped),
    ] {
        harness.tool.answers(200, spelled.clone());
        harness.script_turns(&[&[("comment", "{}")]]);
        let task = harness.stopped().await;
        fill(&harness, task, &jira(WORD)).await;
        let content = &results(&harness, task).await[0].2;
        assert!(
            content.contains("[secret jira.token]"),
            "{spelled}: {content}"
        );
    }
}

#[apply(both)]
async fn argument_that_would_climb_in_a_path_is_invalid_before_any_request(fixture: StoreFixture) {
    let ids = [
        "../admin",
        "..",
        "a/..%2fb",
        "%252e%252e",
        "..\\x",
        "17",
        "a..b",
    ];
    let calls = ids
        .iter()
        .map(|id| ("order", json!({"id": id}).to_string()))
        .collect();
    let (harness, task) = given(fixture, "a@b.c", WORD, calls).await;
    let judged = judged(&harness, task).await;
    let verdicts: Vec<_> = judged.iter().map(|(_, verdict, _)| *verdict).collect();
    let (no, held) = (Verdict::Invalid, Verdict::Hold);
    assert_eq!(verdicts, [no, no, no, no, no, held, held]);
    let asked = approval(&harness, task).await;
    let call = asked.own_calls().next().unwrap().tool_call_id;
    let refusal = refused(
        &harness,
        &harness.engine(0),
        &person("bob"),
        task,
        each([(call, edit(r#"{"id":"..%2Fx"}"#))]),
    )
    .await;
    assert_eq!(places(&refusal), [format!("/decisions/{call}/arguments")]);
    super::credentials::approve(&harness, task).await;
    let sent: Vec<_> = harness
        .tool
        .ledger()
        .into_iter()
        .map(|call| call.uri)
        .collect();
    assert_eq!(sent, ["/comment", "/orders/17/items", "/orders/a..b/items"]);
}

#[apply(both)]
async fn secret_of_the_configuration_is_found_in_what_any_model_says(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, &[]).await;
    harness.configure(|_| TOOLS.to_owned() + ACCOUNTS);
    harness.script(|asked| {
        Ok(if asked == 1 {
            turn(&[("note", r#"{"to":"sk-model-key-0123456789"}"#)])
        } else {
            turn(&[])
        })
    });
    let task = harness.stopped().await;
    assert_eq!(results(&harness, task).await[0].1, Outcome::Invalid);
    assert!(harness.tool.ledger().is_empty() && !seen(&harness, task).await.contains(MODEL_KEY));
}
