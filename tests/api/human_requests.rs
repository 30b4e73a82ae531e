//! Tests of tasks that ask people in every way: long tasks across restarts, turns with several
//! requests at once, forms that are filled in wrongly, and the terms of a request.

use macro_rules_attribute::apply;
use reqwest::Method;
use serde_json::{Value, json};

use super::approval_cycle::on_both;
use super::request_kinds::{
    ASKING, KINDS, Question, TOKEN, ask, asking, asks, begin, each_has_one_result, filled_in,
    items, last_tool_results, request, results_of,
};
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{ACCOUNTS, BOB, On, Reply, TestApp};

const BIG: &str = "12345678901234567890123";
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

/// Sends an invalid answer. Returns the JSON pointers of its errors, sorted and without
/// repetitions. Asserts that the reply does not repeat `s3cret`.
async fn places(app: &TestApp, question: &Question, body: &Value) -> Vec<String> {
    let reply = app.owner().post(&question.path(), body).await;
    assert_eq!(
        (reply.status, reply.str("/code").as_str()),
        (422, "invalid"),
        "{body}: {}",
        reply.text
    );
    assert!(
        !reply.text.contains("s3cret"),
        "no value is repeated: {}",
        reply.text
    );
    let errors = reply.body["errors"].as_array().unwrap();
    let mut places: Vec<_> = errors
        .iter()
        .map(|error| error["pointer"].as_str().unwrap().to_owned())
        .collect();
    places.sort();
    places.dedup();
    places
}

fn kinds_of(requests: &Value) -> Vec<&str> {
    requests
        .as_array()
        .unwrap()
        .iter()
        .map(|request| request["kind"].as_str().unwrap())
        .collect()
}

/// Returns how long a request stays open, in seconds.
fn open_for(request: &Value) -> i64 {
    let at = |name: &str| {
        request[name]
            .as_str()
            .unwrap()
            .parse::<jiff::Timestamp>()
            .unwrap()
    };
    at("expires_at").duration_since(at("created_at")).as_secs()
}

#[apply(on_both)]
async fn task_that_asks_in_every_way_survives_a_restart_before_each_answer(on: On) {
    let mut app = asking(on, "").await;
    let asked = begin(&app, &[("request_human_guidance", FORM)]).await;
    let task = asked.str("/task_id");
    app.restart().await;
    let question = Question::of(
        &app.owner().get(&format!("/v1/tasks/{task}")).await,
        "guidance",
    );
    assert_eq!(question.request["question"], "How long?");
    assert_eq!(
        question.request["details"],
        json!({"context": "A sale.", "attempted_approaches": ["guessing"]})
    );
    assert_eq!(
        question.request["form"]["properties"]["days"],
        json!({"type": "integer", "minimum": 1})
    );
    app.model.then(calls(&[asks("confirmation")]));
    let filled = json!({"shop": "north", "days": 3});
    let asked = answer(&app, &question, &response(filled.clone())).await;
    assert_eq!(
        serde_json::from_str::<Value>(&last_tool_results(&app)[0]).unwrap(),
        filled
    );

    let question = Question::of(&asked, "confirmation");
    assert_eq!(question.request["question"], "Close the shop.");
    assert_eq!(
        question.request["details"],
        json!({"risks": ["angry people"]})
    );
    app.restart().await;
    app.model
        .then(calls(&[("comment", r#"{"text":"closed"}"#)]));
    let asked = app
        .owner()
        .post(
            &format!("{}/approve", question.path()),
            &json!({"reason": "fine"}),
        )
        .await;
    assert_eq!(
        serde_json::from_str::<Value>(&last_tool_results(&app)[0]).unwrap(),
        json!({"confirmed": true, "comment": "fine"})
    );

    let question = Question::of(&asked, "credentials");
    assert_eq!(
        question.request["tool_calls"][0]["name"], "comment",
        "a call that lacks its login asks for it"
    );
    assert_eq!(question.request["details"]["service"], "jira");
    assert!(app.tool.ledger().is_empty());
    app.restart().await;
    app.tool.answers(200, format!("hello {TOKEN}"));
    app.model.then(calls(&[("count", "{}")]));
    let asked = answer(&app, &question, &response(filled_in("credentials"))).await;
    assert_eq!(
        last_tool_results(&app),
        ["hello [secret jira.token]"],
        "the echoed secret is redacted"
    );
    let ran = app.tool.ledger();
    assert_eq!(
        (ran.len(), ran[0].header("authorization")),
        (1, format!("Bearer {TOKEN}").as_str())
    );
    assert_eq!(
        ran[0].header("idempotency-key"),
        question.call,
        "that call continues"
    );

    let question = Question::of(&asked, "external_result");
    app.restart().await;
    app.model.then(calls(&[asks("approval")]));
    let body = format!(r#"{{"action":"respond","result":{{"n":{BIG},"f":1.10}}}}"#);
    let asked = app
        .owner()
        .send(
            Method::POST,
            &question.path(),
            Some(("application/json", body)),
        )
        .await;
    assert_eq!(
        last_tool_results(&app),
        [format!(r#"{{"n":{BIG},"f":1.10}}"#)]
    );

    let question = Question::of(&asked, "approval");
    app.restart().await;
    app.tool.answers(502, "");
    app.model.then(text_answer("never asked"));
    let edit = json!({"decisions": {&question.call: {"action": "edit", "arguments": {"order": 17, "amount": 5}}}});
    let asked = answer(&app, &question, &edit).await;
    let ran = app.tool.ledger();
    assert_eq!(
        (
            ran.len(),
            serde_json::from_str::<Value>(&ran[1].body).unwrap()
        ),
        (2, json!({"order": 17, "amount": 5}))
    );

    let question = Question::of(&asked, "reconcile");
    assert_eq!(question.request["details"]["attempt"], 1);
    assert_eq!(
        question.request["tool_calls"][0]["arguments"],
        json!({"order": 17, "amount": 5}),
        "the bytes that were sent"
    );
    app.restart().await;
    app.tool.answers(200, "paid");
    let done = answer(&app, &question, &json!({"action": "retry"})).await;
    assert_eq!(
        (done.str("/status"), done.str("/output")),
        ("Completed".to_owned(), "never asked".to_owned())
    );
    let ran = app.tool.ledger();
    assert_eq!(ran.len(), 3);
    assert_eq!(
        (&ran[1].body, ran[1].header("idempotency-key")),
        (&ran[2].body, ran[2].header("idempotency-key"))
    );
    assert!(
        last_tool_results(&app)[0].contains(r#"{"amount":5,"order":17}"#)
            && last_tool_results(&app)[0].ends_with("paid"),
        "{:?}",
        last_tool_results(&app)
    );

    let journal = items(&app, &task).await;
    each_has_one_result(&journal);
    let tree = app
        .owner()
        .get(&format!("/v1/requests?task_id={task}"))
        .await;
    assert_eq!(
        kinds_of(&tree.body["requests"]),
        [
            "guidance",
            "confirmation",
            "credentials",
            "external_result",
            "approval",
            "reconcile"
        ]
    );
    let all = tree.body["requests"].as_array().unwrap();
    assert!(
        all.iter().all(|request| request["status"] == "resumed"),
        "{}",
        tree.text
    );
    assert_eq!(
        all[0]["decision"]["response"], filled,
        "what was filled in stays readable"
    );
    assert_eq!(
        all[2]["decision"]["response"],
        json!({"email": null, "token": null}),
        "a login is its names"
    );
    assert!(tree.text.contains(BIG), "every digit stays: {}", tree.text);
    let shown = app
        .owner()
        .get(&format!("/v1/tasks/{task}/items?limit=200"))
        .await;
    assert!(
        shown.text.contains(&format!(r#""n":{BIG},"f":1.10"#)),
        "{}",
        shown.text
    );
    for text in [&tree.text, &shown.text, &format!("{:?}", app.model.sent())] {
        assert!(
            !text.contains(TOKEN) && !text.contains("alice@acme.example"),
            "a login is never shown"
        );
    }
    if let Some(file) = app.database.url().strip_prefix("sqlite://") {
        for file in std::fs::read_dir(std::path::Path::new(file).parent().unwrap()).unwrap() {
            let stored = std::fs::read(file.unwrap().path()).unwrap();
            assert!(
                !stored
                    .windows(TOKEN.len())
                    .any(|part| part == TOKEN.as_bytes()),
                "it is stored sealed"
            );
        }
    }
    app.stop().await;
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

#[apply(on_both)]
async fn all_requests_of_a_turn_open_at_once_except_external_results(on: On) {
    let app = asking(on, "").await;
    let mut turn = vec![("lookup", r#"{"order":1}"#)];
    turn.extend(
        [
            "external_result",
            "guidance",
            "approval",
            "confirmation",
            "credentials",
        ]
        .map(asks),
    );
    let asked = begin(&app, &turn).await;
    let mut open = kinds_of(&asked.body["pending"]);
    open.sort_unstable();
    assert_eq!(
        open,
        ["approval", "confirmation", "credentials", "guidance"]
    );
    let shown = Question::of(&asked, "approval").request["tool_calls"]
        .as_array()
        .unwrap()
        .clone();
    assert_eq!(
        shown
            .iter()
            .map(|call| call["needs_decision"] == true)
            .collect::<Vec<_>>(),
        [false, false, false, true, false, false]
    );
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
        assert_eq!(
            Question::of(&asked, kind).request["tool_calls"]
                .as_array()
                .unwrap()
                .len(),
            if kind == "approval" { 6 } else { 1 }
        );
        let now = answer(&app, &Question::of(&asked, kind), &body).await;
        assert_eq!(now.str("/status"), "Paused", "{kind}: {}", now.text);
        assert!(
            !kinds_of(&now.body["pending"]).contains(&"external_result"),
            "{kind}: {}",
            now.text
        );
        assert!(
            app.tool.ledger().is_empty(),
            "nothing of the turn runs while a request is open"
        );
        assert_eq!(
            request(&app, &Question::of(&asked, kind).id).await["status"],
            "responded",
            "{kind}"
        );
        let again = app
            .owner()
            .post(&Question::of(&asked, kind).path(), &body)
            .await;
        assert_eq!(
            (again.status, again.str("/decision/by").as_str()),
            (409, "alice"),
            "{kind}: {}",
            again.text
        );
    }
    let now = answer(
        &app,
        &Question::of(&asked, "credentials"),
        &json!({"action": "reject", "reason": "mine"}),
    )
    .await;
    assert_eq!(kinds_of(&now.body["pending"]), ["external_result"]);
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
async fn answer_that_does_not_fit_is_refused_by_place_and_never_by_value(on: On) {
    let app = asking(on, "").await;
    let own = Question::of(
        &begin(&app, &[("request_human_guidance", FORM)]).await,
        "guidance",
    );
    let plain = ask(&app, "guidance").await;
    assert_eq!(
        plain.request["details"],
        json!({"options": ["north", "south"]})
    );
    let (confirmation, credentials) = (
        ask(&app, "confirmation").await,
        ask(&app, "credentials").await,
    );
    let before = items(&app, &own.task).await;
    for (question, filled, expected) in [
        (&own, json!({"shop": "s3cret"}), vec!["/response/shop"]),
        (
            &own,
            json!({"shop": "s3cret", "days": "s3cret"}),
            vec!["/response/days", "/response/shop"],
        ),
        (
            &own,
            json!({"shop": "north", "days": 0}),
            vec!["/response/days"],
        ),
        (
            &own,
            json!({"shop": "north", "days": 1.5}),
            vec!["/response/days"],
        ),
        (
            &own,
            json!({"shop": "north", "mail": "s3cret"}),
            vec!["/response/mail"],
        ),
        (
            &own,
            json!({"shop": "north", "more": "s3cret"}),
            vec!["/response/more"],
        ),
        (&own, json!({"days": 3}), vec!["/response/shop"]),
        (&own, json!({"shop": null}), vec!["/response/shop"]),
        (
            &own,
            json!({"shop": "north", "SHOP": "s3cret"}),
            vec!["/response/shop"],
        ),
        (&own, json!("s3cret"), vec!["/response"]),
        (&own, json!(["s3cret"]), vec!["/response"]),
        (&own, Value::Null, vec!["/response"]),
        (&plain, json!({}), vec!["/response/answer"]),
        (&plain, json!({"answer": 17}), vec!["/response/answer"]),
        (
            &plain,
            json!({"answer": "x", "reason": "s3cret"}),
            vec!["/response/reason"],
        ),
        (&confirmation, json!({}), vec!["/response/confirmed"]),
        (
            &confirmation,
            json!({"confirmed": "s3cret"}),
            vec!["/response/confirmed"],
        ),
        (
            &confirmation,
            json!({"confirmed": true, "comment": 1}),
            vec!["/response/comment"],
        ),
        (
            &confirmation,
            json!({"comment": "s3cret"}),
            vec!["/response/confirmed"],
        ),
        (
            &credentials,
            json!({"email": "a@b.example"}),
            vec!["/response/token"],
        ),
        (
            &credentials,
            json!({"email": "s3cret", "token": "s3cret"}),
            vec!["/response/email"],
        ),
        (
            &credentials,
            json!({"email": "a@b.example", "token": ""}),
            vec!["/response/token"],
        ),
        (
            &credentials,
            json!({"email": "a@b.example", "token": {"s3cret": 1}}),
            vec!["/response/token"],
        ),
        (
            &credentials,
            json!({"email": "a@b.example", "token": "s3cret\r\nx: y"}),
            vec!["/response/token"],
        ),
        (
            &credentials,
            json!({"email": "a@b.example", "token": "s3cret", "more": "s3cret"}),
            vec!["/response"],
        ),
    ] {
        assert_eq!(
            places(&app, question, &response(filled.clone())).await,
            expected,
            "{filled}"
        );
    }
    // Errors about a credentials form do not repeat unknown member names, because the user may
    // have typed the secret as a name.
    for (body, expected) in [
        (
            r#"{"action":"respond","response":{"s3cret":"a","email":"a@b.example","token":"t"}}"#,
            "/response",
        ),
        (
            r#"{"action":"respond","response":{"s3cret":{"s3cret":1e999}}}"#,
            "",
        ),
        (
            r#"{"action":"respond","response":{"s3cret":{"s3cret\u0000":1}}}"#,
            "/response",
        ),
        (
            r#"{"action":"respond","response":{"s3cret":"a\u0000"}}"#,
            "/response",
        ),
        (
            r#"{"action":"respond","response":{"token":"t","TOKEN":"s3cret","email":"a@b.example"}}"#,
            "/response",
        ),
        (
            r#"{"action":"respond","response":{"token":{"s3cret":"x","S3CRET":1}}}"#,
            "/response/token",
        ),
        (
            r#"{"action":"respond","response":{"token":[{"s3cret":12345678901234567890123}]}}"#,
            "/response/token",
        ),
        (
            r#"{"action":"respond","s3cret":{"token":"t"}}"#,
            "/response",
        ),
        (r#"{"s3cret":"t"}"#, ""),
        (
            r#"{"decisions":{"s3cret":{"action":"respond","s3cret":1}}}"#,
            "/decisions",
        ),
        (r#"{"decisions":{"s3cret":1}}"#, "/decisions"),
        (r#"{"action":"reject","s3cret":"t"}"#, ""),
    ] {
        let refused = app.owner().bytes(&credentials.path(), body.into()).await;
        let status = if body.contains("999") { 400 } else { 422 };
        assert_eq!(refused.status, status, "{body} {}", refused.body);
        assert!(
            !refused
                .body
                .to_string()
                .to_ascii_lowercase()
                .contains("s3cret"),
            "{body} {}",
            refused.body
        );
        if status == 422 {
            assert_eq!(refused.str("/errors/0/pointer"), expected, "{body}");
        }
    }
    for fields in [
        "s3cret=",
        "action=respond&field.s3cret=1",
        "action=respond&field.token=s3cret&s3cret=x",
        "call.s3cret.action=approve",
    ] {
        for accept in ["text/html", "application/json"] {
            let form = Some(("application/x-www-form-urlencoded", fields.to_owned()));
            let refused = app
                .owner()
                .header("accept", accept)
                .send(Method::POST, &credentials.path(), form)
                .await;
            assert_eq!(refused.status, 422, "{fields}");
            assert!(
                !refused.text.contains("s3cret"),
                "{fields} {}",
                refused.text
            );
        }
    }
    let twice = r#"{"action":"respond","response":{"shop":"north","shop":"south"}}"#;
    assert_eq!(
        app.owner().bytes(&own.path(), twice.into()).await.status,
        400
    );
    assert_eq!(
        items(&app, &own.task).await,
        before,
        "a refusal changed something"
    );
    answer(
        &app,
        &own,
        &response(json!({"shop": "south", "mail": "a@b.example"})),
    )
    .await;
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
            r#"{"question":"q","options":"north"}"#.to_owned(),
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
    assert_eq!(
        (done.str("/status"), done.str("/output")),
        ("Completed".to_owned(), "done".to_owned()),
        "{}",
        done.text
    );
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
async fn rule_that_names_a_question_sets_its_approvers_and_deadline_or_denies_it(on: On) {
    let more = "  - { name: ask-finance, tools: [request_confirmation], decide: hold, approvers: { groups: [finance] }, expires_in: 1h, message: Look. }
  - { name: no-guidance, tools: [request_human_guidance], decide: deny, reason: Think yourself. }
  - { name: all, tools: ['*'], when: \"user.id == 'nobody'\", decide: deny }\n";
    let app = asking(on, more).await;
    let asked = begin(&app, &[asks("confirmation")]).await;
    let question = Question::of(&asked, "confirmation");
    let approvers = json!({"owner": false, "users": [], "groups": ["finance"], "required": 1});
    assert_eq!(
        (&question.request["approvers"], open_for(&question.request)),
        (&approvers, 3600)
    );
    assert_eq!(
        (
            &question.request["message"],
            &question.request["tool_calls"][0]["rule"]
        ),
        (&json!("Look."), &json!("ask-finance"))
    );
    assert_eq!(question.request["tool_calls"][0]["verdict"], "human");
    assert_eq!(
        (
            &question.request["can_decide"],
            &question.request["allowed_actions"]
        ),
        (&json!(false), &json!([]))
    );
    assert_eq!(
        app.owner()
            .hit(&format!("{}/approve", question.path()))
            .await
            .status,
        403
    );
    assert_eq!(
        app.actor(BOB)
            .hit(&format!("{}/approve", question.path()))
            .await
            .str("/status"),
        "Completed"
    );
    let denied = begin(&app, &[asks("guidance")]).await;
    assert_eq!(denied.str("/status"), "Completed", "{}", denied.text);
    assert!(
        last_tool_results(&app)[0].contains("Think yourself."),
        "{:?}",
        last_tool_results(&app)
    );
    app.stop().await;
}

#[apply(on_both)]
async fn request_that_no_rule_names_is_the_owners_for_a_day(on: On) {
    let app = asking(on, "").await;
    for kind in KINDS {
        let question = ask(&app, kind).await;
        let owner = json!({"owner": true, "users": [], "groups": [], "required": 1});
        assert_eq!(
            (&question.request["approvers"], open_for(&question.request)),
            (&owner, 86400),
            "{kind}"
        );
        assert_eq!(
            question.request["message"], "Human intervention required.",
            "{kind}"
        );
        let inbox = app.owner().get(&format!("/v1/requests?kind={kind}")).await;
        assert_eq!(inbox.str("/requests/0/request_id"), question.id, "{kind}");
        assert_eq!(
            inbox.body["requests"].as_array().unwrap().len(),
            1,
            "{kind}"
        );
        let others = app
            .owner()
            .get("/v1/requests?kind=approval&kind=reconcile")
            .await;
        assert!(
            kinds_of(&others.body["requests"])
                .iter()
                .all(|kind| ["approval", "reconcile"].contains(kind))
        );
        assert_eq!(
            app.approver().get("/v1/requests").await.body["requests"],
            json!([]),
            "{kind}"
        );
    }
    assert_eq!(
        app.owner().get("/v1/requests").await.body["requests"]
            .as_array()
            .unwrap()
            .len(),
        6
    );
    assert_eq!(
        app.owner().get("/v1/requests?kind=question").await.status,
        422
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
    assert_eq!(
        asked.body["pending"].as_array().unwrap().len(),
        1,
        "{}",
        asked.text
    );
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
