//! Tests sealed credentials after crashes, takeovers, changed keys and moves of rows in the
//! database. A credential can be opened only for its own task, and only with the key that sealed
//! it. No text of a model or a tool shows a credential.

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use holdpoint::model::{Answer, AnswerCall, ModelError};
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::credentials::{
    TOKEN, approve, clerk, fill, jira, only_open_request, ran, results, times_asked,
};
use super::engine_harness::{EngineHarness, alice_decides, fills, turn};
use super::invariants::check;
use super::takeover::{Drop, drive_and_drop, steps_of_polls};
use crate::store::store_fixture::{StoreFixture, both};

const FIRST_KEY: &str = r#"{ id: k1, key: "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=" }"#;
const NEXT_KEY: &str = r#"{ id: k2, key: "YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXoxMjM0NTY=" }"#;
const ASKS_THEN_PAYS: &[&[(&str, &str)]] = &[
    &[("request_credentials", r#"{"service":"jira"}"#)],
    &[("pay", "{}")],
];

/// Returns a task that has `token` as its login for Jira, and whose payment waits for approval.
async fn given(harness: &EngineHarness, token: &str) -> TaskId {
    let task = harness.stopped().await;
    fill(harness, task, &jira(token)).await;
    task
}

/// Approves the payment. Asserts that the task then requests the login again, and that the call
/// `pay` runs once the login is entered.
async fn asks_again(harness: &EngineHarness, task: TaskId) {
    approve(harness, task).await;
    assert_eq!(
        harness.executions(task, "/pay"),
        0,
        "a credential that does not open is not sent"
    );
    fill(harness, task, &jira("anew-0123456789")).await;
    ran(harness, task, "/pay", ("x-token", "anew-0123456789"), 1).await;
}

async fn seen(harness: &EngineHarness, task: TaskId) -> String {
    format!(
        "{:?} {:?}",
        harness.journal(task).await.items,
        harness.prompted().1
    )
}

/// Returns every scalar and every member name in a JSON value, as text.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::Array(all) => all.iter().flat_map(texts).collect(),
        Value::Object(members) => members
            .iter()
            .flat_map(|(name, one)| [vec![name.clone()], texts(one)].concat())
            .collect(),
        Value::String(text) => vec![text.clone()],
        Value::Null | Value::Bool(_) | Value::Number(_) => vec![value.to_string()],
    }
}

#[apply(both)]
async fn crash_after_a_credential_answer_loses_nothing_and_asks_nothing_twice(
    fixture: StoreFixture,
) {
    let harness = clerk(fixture, &[&[("comment", "{}")]]).await;
    let task = harness.stopped().await;
    let request = only_open_request(&harness, task).await.request_id;
    // This process has no slot to drive the task. It only stores the answer, and then ends.
    let api = harness.engine(0);
    alice_decides(&api, request, fills(&jira(TOKEN))).await;
    drop(api);
    assert_eq!(harness.status(task).await, TaskStatus::Running);
    assert_eq!(harness.tool.ledger().len(), 0);
    harness.later();
    harness.run().await;
    ran(
        &harness,
        task,
        "/comment",
        ("authorization", &format!("Bearer {TOKEN}")),
        1,
    )
    .await;
    assert_eq!(times_asked(&harness, task).await, 1);
}

#[apply(both)]
async fn credential_is_asked_for_once_wherever_its_driver_is_dropped(fixture: StoreFixture) {
    let harness = clerk(fixture, &[&[("comment", "{}")]]).await;
    for when in [Drop::AtOnce, Drop::Woken] {
        let (mut polls, step) = steps_of_polls(&harness.fixture, when);
        let (mut whole, mut dropped) = (0, 0);
        // On a fast disk, the first task may complete after few polls, so the loop goes on with
        // further tasks.
        while whole < 1 || polls <= 12 {
            let (task, by_itself) = drive_and_drop(&harness, when, polls).await;
            polls += step;
            whole += usize::from(by_itself);
            dropped += usize::from(!by_itself);
            let journal = harness.journal(task).await;
            let said = || format!("dropped {when:?} after {polls} polls: {:#?}", journal.items);
            assert_eq!(journal.row.status, TaskStatus::Completed, "{}", said());
            check(&journal.items);
            assert_eq!(times_asked(&harness, task).await, 1, "{}", said());
            assert!(harness.executions(task, "/comment") <= 1, "{}", said());
        }
        assert!(dropped * step > 5, "only {dropped} await points");
    }
    let sent = harness.tool.ledger();
    let headers = |path: &str, name: &str| {
        let calls = sent.iter().filter(|call| call.uri == path);
        calls
            .map(|call| call.header(name).to_owned())
            .collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(
        headers("/comment", "authorization")
            .into_iter()
            .collect::<Vec<_>>(),
        ["Bearer of-token@acme.com"]
    );
    assert_eq!(harness.stored_credentials().await, 0);
}

#[apply(both)]
async fn old_sealing_key_still_opens_what_it_sealed(fixture: StoreFixture) {
    let mut harness = clerk(fixture, ASKS_THEN_PAYS).await;
    let task = given(&harness, TOKEN).await;
    harness.replace(FIRST_KEY, &format!("{NEXT_KEY}, {FIRST_KEY}"));
    approve(&harness, task).await;
    ran(&harness, task, "/pay", ("x-token", TOKEN), 1).await;
    assert_eq!(times_asked(&harness, task).await, 1);
}

#[apply(both)]
async fn credential_without_its_key_is_asked_for_again(fixture: StoreFixture) {
    let mut harness = clerk(fixture, ASKS_THEN_PAYS).await;
    let task = given(&harness, "old-0123456789").await;
    harness.replace(FIRST_KEY, NEXT_KEY);
    asks_again(&harness, task).await;
}

#[apply(both)]
async fn other_key_under_the_same_id_opens_nothing(fixture: StoreFixture) {
    let mut harness = clerk(fixture, ASKS_THEN_PAYS).await;
    let task = given(&harness, "old-0123456789").await;
    harness.replace(FIRST_KEY, &NEXT_KEY.replace("k2", "k1"));
    asks_again(&harness, task).await;
}

#[apply(both)]
async fn new_credential_field_is_asked_for_before_the_call(fixture: StoreFixture) {
    let mut harness = clerk(fixture, ASKS_THEN_PAYS).await;
    let task = given(&harness, "old-0123456789").await;
    harness.replace(
        "email: { format: email },",
        "email: { format: email }, site: {},",
    );
    approve(&harness, task).await;
    assert_eq!(harness.executions(task, "/pay"), 0);
    fill(
        &harness,
        task,
        &json!({"email": "a@acme.com", "token": "new-0123456789", "site": "here"}),
    )
    .await;
    ran(&harness, task, "/pay", ("x-token", "new-0123456789"), 1).await;
}

#[apply(both)]
async fn credential_row_swapped_with_another_tasks_does_not_open(fixture: StoreFixture) {
    let harness = clerk(fixture, ASKS_THEN_PAYS).await;
    let (mine, theirs) = (
        given(&harness, "mine-0123456789").await,
        given(&harness, "theirs-0123456789").await,
    );
    let (one, other) = (
        harness.fixture.literal(mine.0),
        harness.fixture.literal(theirs.0),
    );
    for column in ["sealed", "request_id"] {
        let sql = format!(
                "update credential set {column} = (select c.{column} from credential c where c.task_id = {other})
                 where task_id = {one}"
            );
        harness.fixture.execute(&sql).await;
    }
    asks_again(&harness, mine).await;
    approve(&harness, theirs).await;
    ran(
        &harness,
        theirs,
        "/pay",
        ("x-token", "theirs-0123456789"),
        1,
    )
    .await;
}

#[apply(both)]
async fn damaged_credential_row_does_not_open_and_is_asked_for_again(fixture: StoreFixture) {
    let harness = clerk(fixture, ASKS_THEN_PAYS).await;
    for sealed in [
        "''",
        "'x'",
        "'AAAA'",
        "substr(sealed, 2)",
        "sealed || 'AAAA'",
    ] {
        let task = given(&harness, "old-0123456789").await;
        let one = harness.fixture.literal(task.0);
        harness
            .fixture
            .execute(&format!(
                "update credential set sealed = {sealed} where task_id = {one}"
            ))
            .await;
        asks_again(&harness, task).await;
    }
}

#[apply(both)]
async fn credential_echoed_by_a_tool_is_redacted_in_every_spelling(fixture: StoreFixture) {
    let harness = clerk(fixture, &[&[("comment", "{}")]]).await;
    let percent = TOKEN
        .bytes()
        .fold(String::new(), |text, byte| text + &format!("%{byte:02X}"));
    let json = serde_json::to_string(TOKEN).unwrap();
    let ascii = TOKEN.chars().fold(String::new(), |text, c| {
        text + &format!("\\u{:04x}", c as u32)
    });
    let spellings = [
        TOKEN.to_owned(),
        url::form_urlencoded::byte_serialize(TOKEN.as_bytes()).collect(),
        percent,
        json.trim_matches('"').to_owned(),
        ascii,
        BASE64_STANDARD.encode(TOKEN),
        BASE64_URL_SAFE_NO_PAD.encode(TOKEN),
    ];
    for status in [200, 400] {
        for spelled in &spellings {
            harness.tool.answers(status, format!("<{spelled}>"));
            let task = harness.stopped().await;
            fill(&harness, task, &jira(TOKEN)).await;
            let results = results(&harness, task).await;
            assert!(
                results[0].2.contains("<[secret jira.token]>"),
                "{spelled}: {results:?}"
            );
            let seen = seen(&harness, task).await;
            assert!(
                !seen.contains(spelled) && seen.contains("[secret jira.token]"),
                "{spelled}: {seen}"
            );
        }
    }
}

#[apply(both)]
async fn credential_repeated_by_the_model_is_redacted(fixture: StoreFixture) {
    let harness = clerk(fixture, &[]).await;
    let digits = "1234567890123";
    for token in [TOKEN, digits, "ends-in-a-quote\"", "ends-in-a-backslash\\"] {
        harness.script(move |asked| {
                let mut answer = turn(if asked == 1 { &[("comment", "{}")] } else { &[] });
                if asked > 1 {
                    let number: Value = token.parse::<u64>().map_or_else(|_| json!(token), Value::from);
                    answer = Answer {
                        text: Some(format!("It is {token}, so {}.", BASE64_STANDARD.encode(token))),
                        calls: vec![AnswerCall {
                            provider_id: format!("call-{token}"),
                            name: if asked == 2 { "plain".to_owned() } else { format!("plain-{token}") },
                            arguments_text: json!({"said": token}).to_string(),
                            holds_secret: false,
                        }],
                        raw: json!({
                            "role": "assistant", "content": token, "number": number, token: [token, {"deep": number}],
                            "name": &token[..token.len() - 1], "other": format!("{}\"x", &token[..token.len() - 1]),
                        }),
                        ..answer
                    };
                }
                if asked > 3 {
                    answer.calls.clear();
                }
                Ok(answer)
            });
        let task = harness.stopped().await;
        fill(&harness, task, &jira(token)).await;
        let journal = harness.journal(task).await;
        assert_eq!(
            journal.row.status,
            TaskStatus::Completed,
            "{:#?}",
            journal.items
        );
        for item in journal.items {
            let texts = texts(&serde_json::to_value(&item.fact).unwrap());
            let json = json!(token).to_string();
            for text in [
                token,
                &json[1..json.len() - 1],
                &BASE64_STANDARD.encode(token),
            ] {
                assert!(
                    !texts.iter().any(|one| one.contains(text)),
                    "{token}: {texts:?}"
                );
            }
            if let Fact::AssistantMessage(turn) = &item.fact {
                assert_eq!(
                    turn.text
                        .as_deref()
                        .is_some_and(|text| text.contains("[secret jira.token]")),
                    turn.turn > 1
                );
            }
        }
        assert_eq!(
            harness.executions(task, "/plain"),
            0,
            "no call is rewritten and run"
        );
    }
}

#[apply(both)]
async fn credential_in_a_model_error_is_redacted(fixture: StoreFixture) {
    let harness = clerk(fixture, &[]).await;
    harness.script(|asked| match asked {
        1 => Ok(turn(&[("comment", "{}")])),
        _ => Err(ModelError::new(format!(
            "Model `main` gave no usable answer: {TOKEN} is odd"
        ))),
    });
    let task = harness.stopped().await;
    fill(&harness, task, &jira(TOKEN)).await;
    let journal = harness.journal(task).await;
    assert_eq!(journal.row.status, TaskStatus::Failed);
    let detail = journal.row.error.as_ref().unwrap().detail.clone();
    assert_eq!(
        detail,
        "Model `main` gave no usable answer: [secret jira.token] is odd"
    );
    assert!(!format!("{journal:?}").contains(TOKEN), "{journal:?}");
}

#[apply(both)]
async fn credential_across_the_cut_of_a_model_error_leaves_nothing_behind(fixture: StoreFixture) {
    let harness = clerk(fixture, &[]).await;
    let base64 = BASE64_STANDARD.encode(TOKEN);
    for spelled in [TOKEN, &base64] {
        let kept: String = spelled.chars().take(9).collect();
        let cut = format!("Model `main` gave no usable answer: {TOKEN} and {kept}…");
        harness.script(move |asked| match asked {
            1 => Ok(turn(&[("comment", "{}")])),
            _ => Err(ModelError::new(cut.clone())),
        });
        let task = harness.stopped().await;
        fill(&harness, task, &jira(TOKEN)).await;
        let error = harness.journal(task).await.row.error.unwrap();
        assert_eq!(
            error.detail,
            "Model `main` gave no usable answer: [secret jira.token] and…"
        );
    }
}

#[apply(both)]
async fn credential_shorter_than_twelve_characters_is_used_but_not_redacted(fixture: StoreFixture) {
    let harness = clerk(fixture, &[&[("look", "{}"), ("plain", "{}")]]).await;
    harness.tool.answers(200, "abc12345678");
    let task = harness.stopped().await;
    fill(&harness, task, &json!({"key": "abc12345678"})).await;
    ran(&harness, task, "/look", ("x-key", "abc12345678"), 1).await;
    assert!(
        results(&harness, task)
            .await
            .iter()
            .all(|(_, outcome, text)| *outcome == Outcome::Succeeded && text == "abc12345678")
    );
    harness.tool.answers(200, "abc123456789");
    harness.script_turns(&[&[("look", "{}")]]);
    let task = harness.stopped().await;
    fill(&harness, task, &json!({"key": "abc123456789"})).await;
    assert_eq!(results(&harness, task).await[0].2, "[secret crm.key]");
}
