//! Tests of tasks that ask people in every way: long tasks across restarts, turns with several
//! requests at once, forms that are filled in wrongly, and the terms of a request.

mod forms;
mod restarts;
mod terms;

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::approval_cycle::on_both;
use super::request_kinds::{
    ASKING, Question, TOKEN, asking, asks, begin, each_has_one_result, filled_in, items,
    last_tool_results, request, results_of,
};
use crate::support::fake_chat_completions::calls;
use crate::support::test_app::{ACCOUNTS, On, Reply, TestApp};

const FORM: &str = r#"{"question":"How long?","context":"A sale.","attempted_approaches":"guessing","form":{"type":"object",
    "properties":{"shop":{"enum":["north","south"]},"days":{"type":"integer","minimum":1},"mail":{"type":"string","format":"email"}},
    "required":["shop"]}}"#;

async fn answer(app: &TestApp, question: &Question, body: &Value) -> Reply {
    let reply = app.owner().post(&question.path(), body).await;
    assert_eq!(reply.status, 200, "{body}: {}", reply.text);
    reply
}

fn response(value: Value) -> Value {
    let mut body = json!({"action": "respond"});
    body["response"] = value;
    body
}

#[apply(on_both)]
async fn task_asks_for_guidance_round_after_round(on: On) {
    let app = asking(on, "").await;
    let mut asked = begin(&app, &[asks("guidance")]).await;
    for round in 1..=5 {
        let question = Question::of(&asked, "guidance");
        if round < 5 {
            app.model
                .then(calls(&[("lookup", r#"{"order":1}"#), asks("guidance")]));
        }
        asked = answer(
            &app,
            &question,
            &response(json!({"answer": format!("round {round}")})),
        )
        .await;
        assert!(
            last_tool_results(&app)
                .last()
                .unwrap()
                .contains(&format!("round {round}"))
        );
    }
    assert_eq!(
        (asked.str("/status"), app.tool.ledger().len()),
        ("Completed".to_owned(), 4)
    );
    let last = app.model.sent().last().unwrap()["messages"].to_string();
    let at: Vec<_> = (1..=5)
        .map(|round| last.find(&format!("round {round}")).unwrap())
        .collect();
    assert!(at.is_sorted(), "{last}");
    each_has_one_result(&items(&app, &asked.str("/task_id")).await);
    app.stop().await;
}

/// Answers a request while other requests of its turn are open. Asserts that nothing of the turn
/// runs, and that the request takes no second answer.
async fn answer_and_keep_waiting(app: &TestApp, asked: &Reply, kind: &str, body: &Value) {
    let question = Question::of(asked, kind);
    assert_eq!(
        question.request["tool_calls"].as_array().unwrap().len(),
        if kind == "approval" { 6 } else { 1 }
    );
    let now = answer(app, &question, body).await;
    assert_eq!(now.str("/status"), "Paused", "{kind}: {}", now.text);
    assert!(
        !now.texts("pending", "kind").contains(&"external_result"),
        "{kind}: {}",
        now.text
    );
    assert!(
        app.tool.ledger().is_empty(),
        "nothing of the turn runs while a request is open"
    );
    assert_eq!(
        request(app, &question.id).await["status"],
        "responded",
        "{kind}"
    );
    let again = app.owner().post(&question.path(), body).await;
    again.about(&kind).assert_text(409, "/decision/by", "alice");
}

#[apply(on_both)]
async fn all_requests_of_a_turn_open_at_once_except_external_results(on: On) {
    let app = asking(on, "").await;
    let turn = [
        ("lookup", r#"{"order":1}"#),
        asks("external_result"),
        asks("guidance"),
        asks("approval"),
        asks("confirmation"),
        asks("credentials"),
    ];
    let asked = begin(&app, &turn).await;
    let mut open = asked.texts("pending", "kind");
    open.sort_unstable();
    assert_eq!(
        open,
        ["approval", "confirmation", "credentials", "guidance"]
    );
    let shown = Question::of(&asked, "approval").request["tool_calls"]
        .as_array()
        .unwrap()
        .clone();
    let needed = shown.iter().map(|call| call["needs_decision"] == true);
    let needed: Vec<_> = needed.collect();
    assert_eq!(needed, [false, false, false, true, false, false]);
    let verdicts: Vec<_> = shown
        .iter()
        .map(|call| call["verdict"].as_str().unwrap())
        .collect();
    assert_eq!(
        verdicts,
        ["allow", "allow", "human", "hold", "human", "human"]
    );
    for (kind, body) in [
        ("confirmation", json!({"action": "approve"})),
        ("approval", json!({"action": "approve"})),
        ("guidance", response(filled_in("guidance"))),
    ] {
        answer_and_keep_waiting(&app, &asked, kind, &body).await;
    }
    let now = answer(
        &app,
        &Question::of(&asked, "credentials"),
        &json!({"action": "reject", "reason": "mine"}),
    )
    .await;
    assert_eq!(now.texts("pending", "kind"), ["external_result"]);
    let ran: Vec<_> = app
        .tool
        .ledger()
        .iter()
        .map(|execution| execution.uri.clone())
        .collect();
    assert_eq!(
        ran,
        ["/lookup", "/refund"],
        "an external call does not block the turn"
    );
    for kind in ["confirmation", "approval", "guidance", "credentials"] {
        assert_eq!(
            request(&app, &Question::of(&asked, kind).id).await["status"],
            "resumed",
            "{kind}"
        );
    }
    let done = answer(
        &app,
        &Question::of(&now, "external_result"),
        &json!({"action": "respond", "result": "seven"}),
    )
    .await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    let results = last_tool_results(&app);
    let parts = [
        r#"{"ok":true}"#,
        "seven",
        "north",
        r#"{"ok":true}"#,
        r#""confirmed":true"#,
        "mine",
    ];
    assert!(
        results.len() == 6
            && results
                .iter()
                .zip(parts)
                .all(|(result, part)| result.contains(part)),
        "{results:?}"
    );
    each_has_one_result(&items(&app, &done.str("/task_id")).await);
    app.stop().await;
}

#[apply(on_both)]
async fn question_that_cannot_be_asked_is_an_invalid_result(on: On) {
    let app = asking(on, "").await;
    let form = |form: Value| json!({"question": "q", "form": form}).to_string();
    let field = |field: Value| form(json!({"type": "object", "properties": {"a": field}}));
    let turn = [
        ("request_human_guidance", "{}".to_owned()),
        ("request_human_guidance", r#"{"question":""}"#.to_owned()),
        (
            "request_human_guidance",
            r#"{"question":"q","more":1}"#.to_owned(),
        ),
        (
            "request_human_guidance",
            r#"{"question":"q","options":1}"#.to_owned(),
        ),
        ("request_human_guidance", form(json!({}))),
        (
            "request_human_guidance",
            form(json!({"type": "object", "properties": {}})),
        ),
        ("request_human_guidance", form(json!({"type": "string"}))),
        (
            "request_human_guidance",
            form(json!({"type": "object", "properties": {"password": {"type": "string"}}})),
        ),
        ("request_human_guidance", field(json!({"type": "object"}))),
        ("request_human_guidance", field(json!({"type": "array"}))),
        (
            "request_human_guidance",
            field(json!({"type": "string", "pattern": "(a+)+"})),
        ),
        ("request_human_guidance", field(json!({"enum": [1]}))),
        ("request_confirmation", r#"{"reason":"r"}"#.to_owned()),
        ("request_credentials", r#"{"service":"github"}"#.to_owned()),
        ("request_credentials", "{}".to_owned()),
        ("Request_Confirmation", r#"{"action":"x"}"#.to_owned()),
    ];
    let turn: Vec<_> = turn
        .iter()
        .map(|(name, text)| (*name, text.as_str()))
        .collect();
    let done = begin(&app, &turn).await;
    done.assert_completed("done");
    let journal = items(&app, &done.str("/task_id")).await;
    let outcomes: Vec<_> = journal
        .iter()
        .filter(|item| item["type"] == "tool_result")
        .map(|item| item["outcome"].clone())
        .collect();
    assert_eq!(outcomes, vec![json!("invalid"); turn.len()], "{journal:#?}");
    assert!(
        journal
            .iter()
            .all(|item| item["type"] != "intervention_requested")
    );
    let judged = journal.iter().filter(|item| item["type"] == "judged");
    assert!(
        judged.clone().count() == turn.len()
            && judged.clone().all(|item| item["verdict"] == "invalid")
    );
    app.stop().await;
}

#[apply(on_both)]
async fn human_tool_that_an_agent_may_not_use_is_not_offered(on: On) {
    let yaml = ASKING.replace("{more}", "").replace(
        "human: [guidance, confirmation, credentials]",
        "human: [confirmation]",
    );
    let app = TestApp::with(on, &(yaml + ACCOUNTS)).await;
    let done = begin(&app, &[asks("guidance"), asks("credentials")]).await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    let offered: Vec<_> = app.model.sent()[0]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["function"]["name"].as_str().unwrap().to_owned())
        .filter(|name| name.starts_with("request_"))
        .collect();
    assert_eq!(offered, ["request_confirmation"]);
    let journal = items(&app, &done.str("/task_id")).await;
    let results: Vec<_> = journal
        .iter()
        .filter(|item| item["type"] == "tool_result")
        .collect();
    assert!(
        results.len() == 2 && results.iter().all(|result| result["outcome"] == "invalid"),
        "{results:#?}"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn calls_that_lack_one_login_ask_for_it_once_and_run_or_are_rejected(on: On) {
    let app = asking(on, "").await;
    let turn = [
        ("comment", r#"{"text":"a"}"#),
        ("lookup", r#"{"order":1}"#),
        ("comment", r#"{"text":"b"}"#),
    ];
    let asked = begin(&app, &turn).await;
    let question = Question::of(&asked, "credentials");
    assert_eq!(asked.count("pending"), 1, "{}", asked.text);
    assert_eq!(
        (&question.request["question"], &question.request["details"]),
        (&Value::Null, &json!({"service": "jira"}))
    );
    assert_eq!(
        question.request["form"]["required"],
        json!(["email", "token"])
    );
    let receivers = question.request["form"]["x-receivers"].to_string();
    assert!(
        receivers.contains(&format!("comment: POST {}", app.tool.url)),
        "who receives it: {receivers}"
    );
    let done = answer(&app, &question, &response(filled_in("credentials"))).await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    let ran: Vec<_> = app
        .tool
        .ledger()
        .iter()
        .map(|run| (run.uri.clone(), run.header("authorization").to_owned()))
        .collect();
    let with = format!("Bearer {TOKEN}");
    assert_eq!(
        ran,
        [
            ("/comment".to_owned(), with.clone()),
            ("/lookup".to_owned(), String::new()),
            ("/comment".to_owned(), with)
        ]
    );

    let asked = begin(&app, &turn[..2]).await;
    let question = Question::of(&asked, "credentials");
    let done = answer(
        &app,
        &question,
        &json!({"action": "reject", "reason": "not mine"}),
    )
    .await;
    assert_eq!(
        done.str("/status"),
        "Completed",
        "another task does not share the login: {}",
        done.text
    );
    let journal = items(&app, &done.str("/task_id")).await;
    assert_eq!(
        results_of(&journal, &question.call)[0]["outcome"],
        "rejected"
    );
    assert!(
        last_tool_results(&app)[0].contains("not mine"),
        "{:?}",
        last_tool_results(&app)
    );
    assert_eq!(app.tool.ledger().len(), 4, "the other call ran");
    app.stop().await;
}

#[apply(on_both)]
async fn result_whose_number_is_a_secret_is_shown_without_its_digits(on: On) {
    let (token, result) = ("123456789012", r#"{"orders":123456789012,"shops":2}"#);
    let app = asking(on, "").await;
    let asked = begin(&app, &[asks("credentials")]).await;
    app.model.then(calls(&[asks("external_result")]));
    let login = response(json!({"email": "alice@acme.example", "token": token}));
    let asked = answer(&app, &Question::of(&asked, "credentials"), &login).await;
    let question = Question::of(&asked, "external_result");
    let body = format!(r#"{{"action":"respond","result":{result}}}"#);
    let done = app.owner().bytes(&question.path(), body.into()).await;
    done.assert_status(200, "Completed");
    let shown = result.replace(token, "[secret jira.token]");
    let decided = request(&app, &question.id).await;
    assert_eq!(decided["decision"]["result"], shown, "{decided:#}");
    let by_call = &decided["decision"]["decisions"][&question.call]["result"];
    assert_eq!(*by_call, shown, "{decided:#}");
    let journal = items(&app, &question.task).await;
    let result = results_of(&journal, &question.call)[0];
    assert_eq!(result["content"], shown, "{result:#}");
    assert!(!json!(journal).to_string().contains(token), "{journal:#?}");
    app.stop().await;
}
