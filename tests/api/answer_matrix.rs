//! Tests each kind of request with each way to answer it and each reason to refuse the answer.
//! `TAKEN` has one line for each accepted answer. Every other answer is refused with 422. A usual
//! run divides the lines between the two databases.

mod stored_decisions;
mod taken_answers;

use macro_rules_attribute::apply;
use reqwest::Method;
use serde_json::{Value, json};

use self::stored_decisions::is_stored;
use self::taken_answers::{ALLOWED, ANSWERS, TAKEN, Taken, is_taken};
use super::approval_cycle::on_both;
use super::request_kinds::{
    ASKING, KINDS, Question, TOKEN, ask, filled_in, items, request, results_of, short,
};
use crate::support::api_contract::is_a;
use crate::support::test_app::{ACCOUNTS, Actor, CAROL, OTHER, On, Reply, TestApp};
use crate::support::until;

const JSON: &str = "application/json";
const RAN: &str = r#"{"ok":true}"#;
const EDITED: &str = r#"{"order":17,"amount":1.50}"#;

/// Returns the path of an answer's POST, and the body of the answer.
fn post(question: &Question, kind: &str, answer: &str) -> (String, Value) {
    let one = |decision: Value| json!({"decisions": {question.call.as_str(): decision}});
    let body = match answer {
        "approve" | "reject" | "retry" => json!({"action": answer}),
        "respond response" => json!({"action": "respond", "response": filled_in(kind)}),
        "respond result" => json!({"action": "respond", "result": {"by": "hand"}}),
        "each approve" => one(json!({"action": "approve"})),
        "each reject" => one(json!({"action": "reject"})),
        "each edit" => one(json!({"action": "edit", "arguments": {"order": 17, "amount": 1.5}})),
        "each respond" => one(json!({"action": "respond", "result": {"by": "hand"}})),
        suffix => return (format!("{}{suffix}", question.path()), json!({})),
    };
    (question.path(), body)
}

/// Sends an answer as a client would: without a body if `body` is empty.
async fn send(actor: &Actor<'_>, path: &str, body: &Value) -> Reply {
    if *body == json!({}) {
        actor.hit(path).await
    } else {
        actor.post(path, body).await
    }
}

fn with(body: &Value, name: &str, value: Value) -> Value {
    let mut body = body.clone();
    body[name] = value;
    body
}

/// Returns the state that a refusal must not change: the journal, the task, the number of tool
/// executions and the number of model calls.
async fn state(app: &TestApp, task: &str) -> (Vec<Value>, Value, usize, usize) {
    let shown = app.owner().task(task).await;
    (
        items(app, task).await,
        shown.body,
        app.tool.ledger().len(),
        app.model.sent().len(),
    )
}

#[track_caller]
fn is(reply: &Reply, status: u16, code: &str, about: &str) {
    reply.about(&about).assert_code(status, code);
    assert_eq!(reply.header("content-type"), "application/problem+json");
}

#[track_caller]
fn shows(reply: &Reply, question: &Question, status: &str) {
    assert_eq!(reply.str("/request/request_id"), question.id);
    assert_eq!(reply.str("/request/status"), status, "{}", reply.text);
}

/// Asserts that a request of this kind refuses every answer that does not belong to the kind.
async fn no_other_answer_is_taken(app: &TestApp, question: &Question, kind: &str) {
    for answer in ANSWERS.into_iter().filter(|answer| !is_taken(kind, answer)) {
        let (path, body) = post(question, kind, answer);
        let reply = send(&app.owner(), &path, &body).await;
        is(&reply, 422, "invalid", &format!("{kind} {answer}"));
        let errors = reply.body["errors"].as_array().unwrap();
        let known = ["/action", "/response", "/result", "/decisions"];
        let at = errors[0]["pointer"].as_str().unwrap();
        assert!(
            known.iter().any(|known| at.starts_with(known)),
            "{kind} {answer}: {}",
            reply.text
        );
        reply.about(&"no value is repeated").assert_lacks(TOKEN);
    }
}

/// Asserts that an otherwise valid answer is refused if the caller, the digest, the body or the
/// content type is wrong.
async fn in_the_wrong_way(
    app: &TestApp,
    question: &Question,
    path: &str,
    body: &Value,
    about: &str,
) {
    is(
        &send(&app.actor(CAROL), path, body).await,
        403,
        "forbidden",
        about,
    );
    is(
        &send(&app.actor(OTHER), path, body).await,
        404,
        "not_found",
        about,
    );
    is(
        &send(&app.anonymous(), path, body).await,
        401,
        "unauthorized",
        about,
    );
    let other = app
        .owner()
        .post(path, &with(body, "digest", json!("sha256:00")))
        .await;
    is(&other, 412, "digest_mismatch", about);
    shows(&other, question, "pending");
    let more = app.owner().post(path, &with(body, "zzz", json!(1))).await;
    is(&more, 422, "invalid", about);
    // The pointer of an error names the unknown member. If the request asks for a credential, this
    // name may be the secret, so the pointer is empty.
    let place = if about.starts_with("credentials") {
        ""
    } else {
        "/zzz"
    };
    assert_eq!(more.str("/errors/0/pointer"), place, "{}", more.text);
    let nul = app
        .owner()
        .post(path, &with(body, "reason", json!("a\u{0}b")))
        .await;
    is(&nul, 422, "invalid", about);
    is(
        &app.owner().bytes(path, b"{".to_vec()).await,
        400,
        "bad_json",
        about,
    );
    let text = app
        .owner()
        .send(Method::POST, path, Some(("text/plain", body.to_string())))
        .await;
    is(&text, 415, "unsupported_media_type", about);
}

/// Asserts that an answer is accepted once. Also asserts that wrong answers are refused before and
/// after the accepted answer.
async fn one_is_taken(app: &TestApp, taken: &Taken) {
    let about = format!("{} {}", taken.kind, taken.answer);
    let question = ask(app, taken.kind).await;
    let (path, mut body) = post(&question, taken.kind, taken.answer);
    let before = state(app, &question.task).await;
    in_the_wrong_way(app, &question, &path, &body, &about).await;
    assert_eq!(
        state(app, &question.task).await,
        before,
        "{about}: a refusal changed something"
    );

    let is_path_suffix = taken.answer.starts_with('/');
    if !is_path_suffix {
        assert!(
            is_a("DecisionBody", &body),
            "the document does not know {body}"
        );
        body = with(&body, "digest", json!(question.digest));
        assert!(
            is_a("DecisionBody", &body),
            "the document does not know {body}"
        );
    }
    // `EDITED` spells the arguments in an order that `serde_json` does not produce. The call must
    // run with exactly the bytes of `EDITED`.
    let text = if is_path_suffix {
        String::new()
    } else {
        body.to_string()
            .replace(r#"{"amount":1.5,"order":17}"#, EDITED)
    };
    let post = async |actor: Actor<'_>| match text.as_str() {
        "" => actor.hit(&path).await,
        text => {
            actor
                .send(Method::POST, &path, Some((JSON, text.to_owned())))
                .await
        }
    };
    let key = || app.owner().keyed("only-once");
    let done = post(key()).await;
    done.about(&about).assert_status(200, taken.status);
    assert_eq!(
        (done.str("/task_id"), &done.body["pending"]),
        (question.task.clone(), &json!([])),
        "{about}"
    );
    assert_eq!(app.tool.ledger().len(), before.2 + taken.runs, "{about}");
    assert_eq!(
        app.model.sent().len(),
        before.3 + usize::from(taken.status == "Completed"),
        "{about}"
    );
    if taken.action == "edit" {
        assert_eq!(app.tool.ledger().last().unwrap().body, EDITED);
    }
    if taken.action == "retry" {
        assert_eq!(
            app.tool.ledger().last().unwrap().header("idempotency-key"),
            question.call
        );
    }
    is_stored(app, &question, taken).await;
    is_taken_once(app, &question, &about, (&path, &body), &done, post).await;
}

/// Repeats an accepted answer with its idempotency key, without a key, with another key, and with a
/// wrong digest. Asserts that no repetition changes the stored state.
async fn is_taken_once<'a>(
    app: &'a TestApp,
    question: &Question,
    about: &str,
    (path, body): (&str, &Value),
    done: &Reply,
    post: impl AsyncFn(Actor<'a>) -> Reply,
) {
    let key = || app.owner().keyed("only-once");
    let after = state(app, &question.task).await;
    let replay = post(key()).await;
    replay
        .about(&about)
        .assert_header(200, "idempotency-replayed", "true");
    assert_eq!(replay.body, done.body, "{about}");
    for actor in [app.owner(), app.owner().keyed("another")] {
        let again = post(actor).await;
        is(&again, 409, "already_decided", about);
        shows(&again, question, "resumed");
        assert_eq!(
            again.body["decision"],
            request(app, &question.id).await["decision"],
            "{about}"
        );
    }
    let digest = app
        .owner()
        .post(path, &with(body, "digest", json!("sha256:00")))
        .await;
    is(&digest, 412, "digest_mismatch", about);
    assert_eq!(
        state(app, &question.task).await,
        after,
        "{about}: a refusal changed something"
    );
}

/// Asserts that a closed or overdue request refuses each answer of its kind with `code`. `stands`
/// is the request's status. Wrong callers, wrong digests and answers of other kinds must get the
/// same refusals as for an open request.
async fn nothing_is_taken_any_more(
    on: On,
    app: &TestApp,
    question: &Question,
    kind: &str,
    status: u16,
    code: &str,
    stands: &str,
) {
    let before = state(app, &question.task).await;
    for taken in on.share(TAKEN.iter().filter(|taken| taken.kind == kind)) {
        let about = format!("{kind} {} {stands}", taken.answer);
        let (path, body) = post(question, kind, taken.answer);
        let late = send(&app.owner().keyed("late"), &path, &body).await;
        is(&late, status, code, &about);
        shows(&late, question, stands);
        assert_eq!(late.body["request"]["can_decide"], false, "{about}");
        if code == "request_withdrawn" {
            assert_eq!(late.body["pending"], json!([]), "{about}");
        }
        let digest = app
            .owner()
            .post(&path, &with(&body, "digest", json!("sha256:00")))
            .await;
        is(&digest, 412, "digest_mismatch", &about);
        is(
            &send(&app.actor(CAROL), &path, &body).await,
            403,
            "forbidden",
            &about,
        );
        is(
            &send(&app.actor(OTHER), &path, &body).await,
            404,
            "not_found",
            &about,
        );
    }
    no_other_answer_is_taken(app, question, kind).await;
    assert_eq!(
        state(app, &question.task).await,
        before,
        "{kind} {stands}: a refusal changed something"
    );
}

async fn overdue(app: &TestApp, question: &Question) {
    let is_overdue = async || request(app, &question.id).await["can_decide"] != true;
    until("the request is overdue", is_overdue).await;
}

#[apply(on_both)]
async fn every_kind_of_request_takes_exactly_its_own_answers(on: On) {
    let app = TestApp::with(on, &(ASKING.replace("{more}", "") + ACCOUNTS)).await;
    for (kind, allowed) in ALLOWED {
        let question = ask(&app, kind).await;
        let asked = &question.request;
        let page = format!("{}/resume/{}", app.url(), question.id);
        let link = |verb: &str, has: bool| {
            if has {
                json!(format!("{page}/{verb}"))
            } else {
                Value::Null
            }
        };
        assert_eq!(
            asked["allowed_actions"].as_array().unwrap().len(),
            allowed.len(),
            "{asked}"
        );
        assert!(
            allowed.iter().all(|action| asked["allowed_actions"]
                .as_array()
                .unwrap()
                .contains(&json!(action))),
            "{asked}"
        );
        assert_eq!(asked["can_decide"], true);
        assert_eq!(
            asked["approval_url"],
            link("approve", ["approval", "confirmation"].contains(&kind)),
            "{kind}"
        );
        assert_eq!(asked["rejection_url"], link("reject", true), "{kind}");
        assert_eq!(
            (&asked["url"], &asked["decision"]),
            (&json!(page), &Value::Null)
        );
        let before = state(&app, &question.task).await;
        for (verb, has) in [
            ("approve", is_taken(kind, "/approve")),
            ("reject", is_taken(kind, "/reject")),
        ] {
            let shown = app
                .owner()
                .accept_html()
                .get(&format!("{}/{verb}", question.path()))
                .await;
            let button = shown.text.contains("type=\"submit\"")
                && shown
                    .text
                    .contains(&format!("/resume/{}/{verb}\"", question.id));
            assert_eq!(
                (shown.status, button),
                (200, has),
                "{kind} {verb}: {}",
                shown.text
            );
        }
        no_other_answer_is_taken(&app, &question, kind).await;
        assert_eq!(
            state(&app, &question.task).await,
            before,
            "{kind}: a refusal changed something"
        );
    }
    for taken in on.share(&TAKEN) {
        one_is_taken(&app, taken).await;
    }
    app.stop().await;
}

#[apply(on_both)]
async fn withdrawn_request_of_any_kind_takes_no_answer(on: On) {
    let app = TestApp::with(on, &(ASKING.replace("{more}", "") + ACCOUNTS)).await;
    for kind in KINDS {
        let question = ask(&app, kind).await;
        let canceled = app.owner().cancel(&question.task).await;
        assert_eq!(canceled.str("/status"), "Canceled", "{}", canceled.text);
        let code = "request_withdrawn";
        nothing_is_taken_any_more(on, &app, &question, kind, 409, code, "withdrawn").await;
    }
    app.stop().await;
}

#[apply(on_both)]
async fn overdue_request_of_any_kind_takes_no_answer_swept_or_not(on: On) {
    let yaml = ASKING.replace("{more}", &short("4s", "")) + ACCOUNTS;
    for (swept, app) in [
        (false, TestApp::unswept(on, &yaml).await),
        (true, TestApp::with(on, &yaml).await),
    ] {
        let mut questions = Vec::new();
        for kind in KINDS {
            questions.push((kind, ask(&app, kind).await));
        }
        for (_, question) in &questions {
            overdue(&app, question).await;
            let is_completed =
                async || items(&app, &question.task).await.last().unwrap()["status"] == "Completed";
            if swept {
                until("the task is completed", is_completed).await;
            }
        }
        for (kind, question) in &questions {
            let stands = if swept { "expired" } else { "pending" };
            let code = "request_expired";
            nothing_is_taken_any_more(on, &app, question, kind, 410, code, stands).await;
            let journal = items(&app, &question.task).await;
            let closed: Vec<_> = journal
                .iter()
                .filter(|item| item["type"] == "request_closed")
                .collect();
            assert_eq!(closed.len(), usize::from(swept), "{kind}: {journal:#?}");
            if swept {
                assert_eq!(
                    (&closed[0]["status"], &closed[0]["reason"]),
                    (&json!("expired"), &json!("expired"))
                );
                let result = results_of(&journal, &question.call);
                let outcome = if *kind == "reconcile" {
                    "unknown"
                } else {
                    "expired"
                };
                assert_eq!(
                    (result.len(), &result[0]["outcome"]),
                    (1, &json!(outcome)),
                    "{kind}: {journal:#?}"
                );
            }
        }
        app.stop().await;
    }
}
