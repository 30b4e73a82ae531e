//! Tests of different spellings of one person's name. At every endpoint, the approvals of one
//! person count once, whichever spellings a proxy sends.

use futures_util::future::join_all;
use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::approval_cycle::on_both;
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{ACCOUNTS, Actor, BOB, Held, On, REFUNDS, Reply, TestApp, WEB};

const HTML: &str = "text/html";
/// Pairs of spellings. Both spellings of a pair name one person.
const ONE_PERSON: [(&str, &str); 6] = [
    ("alice", "ALICE"),
    ("Zoe@Acme.com", "zoe@acme.COM"),
    ("José", "JOSÉ"),
    ("strasse", "Straße"),
    ("ὀδυσσεύς", "ὈΔΥΣΣΕΎΣ"),
    ("Ａｌｉｃｅ", "ａｌｉｃｅ"),
];

/// Starts the service. A refund needs the approvals of two people among Eve and the members of
/// finance.
async fn app(on: On) -> TestApp {
    let admin = "    - { user: ops, tenant: acme, key: \"admin-key-0123456789\", admin: true }\n";
    let accounts = format!("{}\n{admin}", ACCOUNTS.trim_end());
    TestApp::with(
        on,
        &(REFUNDS.replace(
            "{approvers}",
            "{ users: [Eve], groups: [finance], required: 2 }",
        ) + &accounts),
    )
    .await
}

const ADMIN: &str = "admin-key-0123456789";

fn finance<'a>(app: &'a TestApp, user: &str) -> Actor<'a> {
    app.actor(WEB)
        .header("holdpoint-user", user)
        .header("holdpoint-groups", "finance")
}

fn per_call(held: &Held, answer: &Value) -> Value {
    json!({"decisions": {held.call.as_str(): answer}})
}

fn edit(held: &Held) -> Value {
    per_call(
        held,
        &json!({"action": "edit", "arguments": {"order": 17, "amount": 99}}),
    )
}

async fn answer(actor: &Actor<'_>, held: &Held, body: &Value) -> Reply {
    actor.post(&format!("/resume/{}", held.request), body).await
}

fn approval() -> Value {
    json!({"action": "approve"})
}

fn ids(list: &Reply) -> Vec<String> {
    let tasks = list.body["tasks"]
        .as_array()
        .unwrap_or_else(|| panic!("{}", list.text));
    tasks
        .iter()
        .map(|task| task["task_id"].as_str().unwrap().to_owned())
        .collect()
}

#[apply(on_both)]
async fn other_spelling_of_the_owner_may_not_decide(on: On) {
    let app = app(on).await;
    for (one, other) in ONE_PERSON {
        let held = app.held_by(&finance(&app, one)).await;
        let twin = || finance(&app, other);
        let path = format!("/resume/{}", held.request);
        let answers = [
            approval(),
            json!({"action": "reject"}),
            per_call(&held, &approval()),
            per_call(&held, &json!({"action": "reject"})),
            edit(&held),
        ];
        for body in answers {
            assert_eq!(
                answer(&twin(), &held, &body).await.status,
                403,
                "{other}: {body}"
            );
        }
        assert_eq!(twin().hit(&format!("{path}/approve")).await.status, 403);
        assert_eq!(twin().hit(&format!("{path}/reject")).await.status, 403);
        let page = twin()
            .header("accept", HTML)
            .get(&format!("{path}/approve"))
            .await;
        assert!(
            page.status == 200 && !page.text.contains("<button"),
            "{}",
            page.text
        );
        let seen = twin().get(&path).await;
        assert_eq!(
            (&seen.body["can_decide"], &seen.body["allowed_actions"]),
            (&json!(false), &json!([]))
        );
        let inbox = twin().get("/v1/requests").await;
        assert_eq!(inbox.body["requests"], json!([]), "{other}");
        assert!(app.tool.ledger().is_empty());
        assert_eq!(
            twin()
                .hit(&format!("/v1/tasks/{}/cancel", held.task))
                .await
                .status,
            200
        );
    }
}

#[apply(on_both)]
async fn two_spellings_of_one_approver_are_one_vote(on: On) {
    let app = app(on).await;
    for (round, (one, other)) in ONE_PERSON.into_iter().enumerate() {
        let held = app.held_by(&app.owner()).await;
        let (first, twin) = (
            if one == "alice" { "bob" } else { one },
            if other == "ALICE" { "BOB" } else { other },
        );
        let voted = answer(&finance(&app, first), &held, &approval()).await;
        voted.assert_status(200, "Paused");
        let path = format!("/resume/{}", held.request);
        for body in [
            approval(),
            per_call(&held, &approval()),
            per_call(&held, &json!({"action": "reject"})),
            edit(&held),
        ] {
            let again = answer(&finance(&app, twin), &held, &body).await;
            assert_eq!(
                (again.status, again.str("/code").as_str()),
                (409, "already_decided"),
                "{twin}: {body}"
            );
            assert_eq!(again.body["decision"]["action"], "approve");
        }
        assert_eq!(
            finance(&app, twin)
                .hit(&format!("{path}/approve"))
                .await
                .status,
            409
        );
        assert_eq!(
            finance(&app, twin).get("/v1/requests").await.body["requests"],
            json!([]),
            "{twin}"
        );
        let seen = finance(&app, twin).get(&path).await;
        assert_eq!(seen.body["can_decide"], json!(false), "{}", seen.text);
        assert_eq!(
            seen.body["tool_calls"][0]["approvals"]
                .as_array()
                .unwrap()
                .len(),
            1
        );
        let page = finance(&app, twin).header("accept", HTML).get(&path).await;
        assert!(
            page.status == 200 && !page.text.contains("<button"),
            "{}",
            page.text
        );
        assert_eq!(app.tool.ledger().len(), round);
        app.model.then(text_answer("refunded"));
        // The rule names the approver `Eve`. This HTTP request spells the name differently and
        // names no group.
        let second = answer(
            &app.actor(WEB).header("holdpoint-user", "eVE"),
            &held,
            &approval(),
        )
        .await;
        second.assert_status(200, "Completed");
        assert_eq!(app.tool.ledger().len(), round + 1);
    }
    let all = app.owner().get("/v1/requests?status=resumed").await;
    assert_eq!(all.status, 200);
    let mine = finance(&app, "bOB")
        .get("/v1/requests?status=resumed")
        .await;
    assert!(
        mine.body["requests"]
            .as_array()
            .unwrap()
            .iter()
            .any(|request| request["tool_calls"][0]["approvals"][1]["by"] == "Eve")
    );
}

#[apply(on_both)]
async fn second_vote_in_another_spelling_is_told_the_first_of_its_person(on: On) {
    let mut app = app(on).await;
    app.restart_with(|yaml| yaml.replace("required: 2", "required: 3"))
        .await;
    let held = app.held_by(&app.owner()).await;
    for voter in ["Zoë", "Eve"] {
        assert_eq!(
            answer(&finance(&app, voter), &held, &approval())
                .await
                .status,
            200,
            "{voter}"
        );
    }
    for body in [approval(), per_call(&held, &approval())] {
        let again = answer(&finance(&app, "zOË"), &held, &body).await;
        assert_eq!(
            (again.status, again.str("/decision/by").as_str()),
            (409, "Zoë"),
            "{}",
            again.text
        );
    }
}

#[apply(on_both)]
async fn other_spelling_of_an_editor_cannot_approve_the_edit(on: On) {
    let app = app(on).await;
    let first = app.held_by(&app.owner()).await;
    let edited = answer(&finance(&app, "Zoé"), &first, &edit(&first)).await;
    assert_eq!(edited.status, 200, "{}", edited.text);
    let request = edited.str("/pending/0/request_id");
    let again = Held { request, ..first };
    for spelling in ["Zoé", "zoé", "ZOÉ"] {
        let seen = finance(&app, spelling)
            .get(&format!("/resume/{}", again.request))
            .await;
        assert_eq!(
            seen.body["allowed_actions"],
            json!(["reject", "edit"]),
            "{}",
            seen.text
        );
        for body in [approval(), per_call(&again, &approval())] {
            assert_eq!(
                answer(&finance(&app, spelling), &again, &body).await.status,
                403,
                "{spelling}"
            );
        }
    }
    assert_eq!(
        answer(&app.approver(), &again, &approval()).await.status,
        200
    );
    assert_eq!(
        answer(&finance(&app, "BOB"), &again, &approval())
            .await
            .status,
        409
    );
    assert!(app.tool.ledger().is_empty());
    app.model.then(text_answer("refunded"));
    assert_eq!(
        answer(&finance(&app, "eve"), &again, &approval())
            .await
            .str("/status"),
        "Completed"
    );
    assert_eq!(app.tool.ledger().len(), 1);
}

#[apply(on_both)]
async fn every_spelling_of_the_owner_reads_moves_and_lists(on: On) {
    let app = app(on).await;
    for (one, other) in ONE_PERSON {
        let (owner, twin) = (
            app.actor(WEB).header("holdpoint-user", one),
            app.actor(WEB).header("holdpoint-user", other),
        );
        app.model.then_fails(400);
        let failed = owner
            .post("/v1/tasks", &json!({"input": "go", "session_id": "desk"}))
            .await;
        let task = failed.str("/task_id");
        let path = format!("/v1/tasks/{task}");
        let shown = twin.get(&path).await;
        let expected = if one == "alice" { "alice" } else { one };
        assert_eq!(
            (shown.status, shown.str("/user_id").as_str()),
            (200, expected),
            "{}",
            shown.text
        );
        assert_eq!(
            ids(&twin.get("/v1/tasks?session_id=desk").await),
            [task.as_str()],
            "{other}"
        );
        app.model.then(text_answer("done"));
        assert_eq!(
            twin.hit(&format!("{path}/retry")).await.str("/status"),
            "Completed"
        );
        app.model
            .then(calls(&[("refund", r#"{"order": 1, "amount": 50}"#)]));
        assert_eq!(
            twin.post(&format!("{path}/messages"), &json!({"input": "more"}))
                .await
                .str("/status"),
            "Paused"
        );
        assert_eq!(
            twin.hit(&format!("{path}/cancel")).await.str("/status"),
            "Canceled"
        );
        for spelling in [one, other] {
            let query: String = url::form_urlencoded::byte_serialize(spelling.as_bytes()).collect();
            let found = ids(&app
                .actor(ADMIN)
                .get(&format!("/v1/tasks?user_id={query}"))
                .await);
            assert_eq!(found, [task.as_str()], "{spelling}");
            assert_eq!(
                ids(&twin.get(&format!("/v1/tasks?user_id={query}")).await),
                [task.as_str()],
                "{spelling}"
            );
        }
        let stranger = app.actor(WEB).header("holdpoint-user", "carol2");
        assert_eq!(
            (
                stranger.get(&path).await.status,
                stranger.hit(&format!("{path}/retry")).await.status
            ),
            (403, 403)
        );
    }
}

#[apply(on_both)]
async fn letters_that_folding_keeps_apart_are_two_people(on: On) {
    let app = app(on).await;
    for (one, other) in [
        ("alice", "ａｌｉｃｅ"),
        ("ines", "\u{131}nes"),
        ("Ines", "\u{130}nes"),
        ("alice", "аlice"),
        ("jose", "josé"),
    ] {
        let held = app.held_by(&finance(&app, one)).await;
        let path = format!("/v1/tasks/{}", held.task);
        let stranger = app.actor(WEB).header("holdpoint-user", other);
        assert_eq!(stranger.get(&path).await.status, 403, "{other}");
        assert_eq!(
            ids(&stranger.get("/v1/tasks").await),
            Vec::<String>::new(),
            "{other}"
        );
        assert_eq!(
            stranger.hit(&format!("{path}/cancel")).await.status,
            403,
            "{other}"
        );
        assert_eq!(
            answer(&finance(&app, other), &held, &approval())
                .await
                .status,
            200,
            "{other}"
        );
    }
}

#[apply(on_both)]
async fn idempotency_key_replays_for_every_spelling_of_its_user(on: On) {
    let app = app(on).await;
    for (one, other) in ONE_PERSON {
        let keyed = |user: &str, key: &str| finance(&app, user).header("idempotency-key", key);
        app.model
            .then(calls(&[("refund", r#"{"order": 1, "amount": 50}"#)]));
        let first = keyed(one, "create")
            .post("/v1/tasks", &json!({"input": "go"}))
            .await;
        let again = keyed(other, "create")
            .post("/v1/tasks", &json!({"input": "go"}))
            .await;
        assert_eq!(
            (again.status, again.header("idempotency-replayed")),
            (201, "true"),
            "{other}: {}",
            again.text
        );
        assert_eq!(again.str("/task_id"), first.str("/task_id"));
        let reused = keyed(other, "create")
            .post("/v1/tasks", &json!({"input": "else"}))
            .await;
        assert_eq!(
            (reused.status, reused.str("/code").as_str()),
            (422, "idempotency_key_reused"),
            "{other}"
        );
        let cancel = format!("/v1/tasks/{}/cancel", first.str("/task_id"));
        assert_eq!(keyed(one, "cancel").hit(&cancel).await.status, 200);
        assert_eq!(
            keyed(other, "cancel")
                .hit(&cancel)
                .await
                .header("idempotency-replayed"),
            "true",
            "{other}"
        );
    }
    let ours = app.held_by(&app.owner()).await;
    let path = format!("/resume/{}", ours.request);
    let vote = |user: &str| finance(&app, user).header("idempotency-key", "vote");
    assert_eq!(vote("Zed").post(&path, &approval()).await.status, 200);
    let again = vote("zED").post(&path, &approval()).await;
    assert_eq!(
        (again.status, again.header("idempotency-replayed")),
        (200, "true"),
        "{}",
        again.text
    );
}

#[apply(on_both)]
async fn key_over_a_day_old_is_as_new_in_every_spelling_of_its_user(on: On) {
    let app = app(on).await;
    app.model.otherwise(|_| text_answer("done"));
    let body = json!({"input": "go"});
    for (one, other) in ONE_PERSON {
        let keyed = |user: &str| finance(&app, user).header("idempotency-key", "k");
        let first = keyed(one).post("/v1/tasks", &body).await;
        app.database
            .execute("update idempotency set created_at = created_at - 86400000000")
            .await;
        let anew = keyed(other).post("/v1/tasks", &body).await;
        assert_eq!(
            (anew.status, anew.header("idempotency-replayed")),
            (201, ""),
            "{other}: {}",
            anew.text
        );
        assert_ne!(anew.str("/task_id"), first.str("/task_id"));
        let again = keyed(one).post("/v1/tasks", &body).await;
        assert_eq!(
            (again.status, again.header("idempotency-replayed")),
            (201, "true"),
            "{one}: {}",
            again.text
        );
        assert_eq!(again.str("/task_id"), anew.str("/task_id"));
    }
}

#[apply(on_both)]
async fn sixteen_spellings_at_once_create_one_task(on: On) {
    let app = app(on).await;
    app.model.otherwise(|_| text_answer("done"));
    for round in 0..4 {
        let name = |number: usize| -> String {
            "maxi"
                .chars()
                .enumerate()
                .map(|(at, c)| {
                    if number >> at & 1 == 1 {
                        c.to_ascii_uppercase()
                    } else {
                        c
                    }
                })
                .collect()
        };
        let replies = join_all((0..16).map(|number| {
            let (app, name) = (&app, name(number));
            async move {
                let key = format!("at-once-{round}");
                finance(app, &name)
                    .header("idempotency-key", &key)
                    .post("/v1/tasks", &json!({"input": "go"}))
                    .await
            }
        }))
        .await;
        let told: Vec<_> = replies
            .iter()
            .map(|reply| (reply.status, reply.body["task_id"].clone()))
            .collect();
        assert!(
            told.iter()
                .all(|(status, task)| *status == 201 && *task == told[0].1),
            "{told:?}"
        );
    }
    assert_eq!(
        ids(&app
            .actor(WEB)
            .header("holdpoint-user", "MAXI")
            .get("/v1/tasks")
            .await)
        .len(),
        4
    );
}

#[apply(on_both)]
async fn session_of_a_key_is_its_user_in_every_spelling(on: On) {
    let app = app(on).await;
    let cookie = app.sign_in(BOB).await;
    let browser = || app.anonymous().header("cookie", &cookie);
    // A proxy posted this task for `BOB`, so Bob owns the task and may not approve its request.
    let own = app.held_by(&finance(&app, "BOB")).await;
    assert_eq!(
        browser()
            .hit(&format!("/resume/{}/approve", own.request))
            .await
            .status,
        403
    );
    assert_eq!(ids(&browser().get("/v1/tasks").await), [own.task.as_str()]);
    assert_eq!(
        browser()
            .get(&format!("/v1/tasks/{}", own.task))
            .await
            .str("/user_id"),
        "bob",
        "as the file spells it"
    );
    let others = app.held_by(&app.owner()).await;
    assert_eq!(
        browser()
            .hit(&format!("/resume/{}/approve", others.request))
            .await
            .status,
        200
    );
    assert_eq!(
        finance(&app, "Bob")
            .hit(&format!("/resume/{}/approve", others.request))
            .await
            .status,
        409
    );
    for header in [
        "holdpoint-user",
        "holdpoint-groups",
        "holdpoint-session",
        "holdpoint-runner",
        "holdpoint-other",
    ] {
        assert_eq!(
            browser()
                .header(header, "bob")
                .get("/v1/tasks")
                .await
                .status,
            403,
            "{header}"
        );
    }
}

#[apply(on_both)]
async fn user_header_that_is_not_nfc_or_holds_a_comma_is_400(on: On) {
    let app = app(on).await;
    for name in [
        "a,b",
        "jose\u{301}",
        "\u{212a}elvin",
        "\u{212b}ke",
        "a b",
        "a\u{a0}",
        "\u{3000}a",
        "a\u{200b}",
        "",
    ] {
        let reply = finance(&app, name).get("/v1/me").await;
        assert_eq!(
            (reply.status, reply.str("/code").as_str()),
            (400, "bad_request"),
            "{name:?}"
        );
    }
    let twice = finance(&app, "a")
        .header("holdpoint-user", "a")
        .get("/v1/me")
        .await;
    assert_eq!(twice.status, 400, "{}", twice.text);
    let groups = finance(&app, "a")
        .header("holdpoint-groups", "finance")
        .get("/v1/me")
        .await;
    assert_eq!(groups.status, 400, "{}", groups.text);
    for header in [
        "holdpoint-as",
        "holdpoint-tenant",
        "holdpoint-admin",
        "holdpoint-users",
        "holdpoint-",
    ] {
        let replies = [
            app.owner().header(header, "x").get("/v1/me").await,
            finance(&app, "a")
                .header(header, "x")
                .post("/v1/tasks", &json!({"input": "go"}))
                .await,
            app.anonymous()
                .header(header, "x")
                .get("/openapi.json")
                .await,
        ];
        for reply in replies {
            assert_eq!(
                (reply.status, reply.str("/code").as_str()),
                (400, "bad_request"),
                "{header}"
            );
        }
        assert_eq!(
            app.anonymous()
                .header(header, "x")
                .get("/v1/me")
                .await
                .status,
            401,
            "a key comes first"
        );
        assert_eq!(
            app.anonymous()
                .header(header, "x")
                .get("/healthz")
                .await
                .status,
            200
        );
    }
    for header in ["holdpoint-user", "holdpoint-groups"] {
        assert_eq!(
            app.owner()
                .header(header, "alice")
                .get("/v1/me")
                .await
                .status,
            403,
            "{header}"
        );
    }
}

#[apply(on_both)]
async fn stored_votes_of_two_spellings_count_once_after_ids_are_folded(on: On) {
    let mut app = app(on).await;
    app.restart_with(|yaml| {
        yaml.replace("required: 2", "required: 3")
            .replace("auth:", "auth:\n  user_ids: exact")
    })
    .await;
    let old = app.held_by(&finance(&app, "Olga")).await;
    let other = app.held_by(&app.owner()).await;
    for spelling in ["zoe", "Zoe"] {
        assert_eq!(
            answer(&finance(&app, spelling), &other, &approval())
                .await
                .status,
            200,
            "two people then"
        );
    }
    assert_eq!(
        app.actor(WEB)
            .header("holdpoint-user", "olga")
            .get(&format!("/v1/tasks/{}", old.task))
            .await
            .status,
        403
    );
    app.restart_with(|yaml| yaml.replace("user_ids: exact", "user_ids: folded"))
        .await;
    // With each spelling, the owner finds the task, and the owner's approval is refused.
    for spelling in ["Olga", "olga", "OLGA"] {
        assert_eq!(
            ids(&app
                .actor(WEB)
                .header("holdpoint-user", spelling)
                .get("/v1/tasks")
                .await),
            [old.task.as_str()],
            "{spelling}"
        );
        assert_eq!(
            answer(&finance(&app, spelling), &old, &approval())
                .await
                .status,
            403,
            "{spelling}"
        );
    }
    for spelling in ["zoe", "Zoe", "ZOE"] {
        assert_eq!(
            answer(&finance(&app, spelling), &other, &approval())
                .await
                .status,
            409,
            "{spelling}"
        );
    }
    let third = answer(&app.approver(), &other, &approval()).await;
    assert_eq!(
        (third.status, third.str("/status").as_str()),
        (200, "Paused"),
        "zoe and bob are two: {}",
        third.text
    );
    let shown = finance(&app, "eve")
        .get(&format!("/resume/{}", other.request))
        .await;
    assert_eq!(
        (&shown.body["status"], &shown.body["can_decide"]),
        (&json!("pending"), &json!(true))
    );
    assert!(app.tool.ledger().is_empty());
    app.model.then(text_answer("refunded"));
    let last = answer(&finance(&app, "Eve"), &other, &approval()).await;
    assert_eq!(last.str("/status"), "Completed", "{}", last.text);
    assert_eq!(app.tool.ledger().len(), 1);
    app.restart_with(|yaml| yaml.replace("user_ids: folded", "user_ids: exact"))
        .await;
    assert_eq!(
        app.actor(WEB)
            .header("holdpoint-user", "olga")
            .get(&format!("/v1/tasks/{}", old.task))
            .await
            .status,
        403
    );
    assert_eq!(
        app.actor(WEB)
            .header("holdpoint-user", "Olga")
            .get(&format!("/v1/tasks/{}", old.task))
            .await
            .status,
        200
    );
}

#[apply(on_both)]
async fn call_approved_by_two_spellings_is_asked_again_after_ids_are_folded(on: On) {
    let mut app = app(on).await;
    app.restart_with(|yaml| yaml.replace("auth:", "auth:\n  user_ids: exact"))
        .await;
    app.model.then(calls(&[
        ("refund", r#"{"order": 1, "amount": 120}"#),
        ("refund", r#"{"order": 2, "amount": 130}"#),
    ]));
    let reply = app
        .owner()
        .post("/v1/tasks", &json!({"input": "please"}))
        .await;
    let (task, request) = (reply.str("/task_id"), reply.str("/pending/0/request_id"));
    let call = reply.str("/pending/0/tool_calls/0/tool_call_id");
    for spelling in ["zoe", "Zoe"] {
        let body = json!({"decisions": {call.as_str(): {"action": "approve"}}});
        let voted = finance(&app, spelling)
            .post(&format!("/resume/{request}"), &body)
            .await;
        assert_eq!(voted.status, 200, "{}", voted.text);
    }
    app.restart_with(|yaml| yaml.replace("user_ids: exact", "user_ids: folded"))
        .await;
    // After the rejection of the second call, the turn goes on. With folded user ids, the two
    // approvals of the first call are of one person, so a new request asks about this call.
    let rest = app
        .approver()
        .post(
            &format!("/resume/{request}"),
            &json!({"action": "reject", "then": "continue"}),
        )
        .await;
    rest.assert_status(200, "Paused");
    assert!(app.tool.ledger().is_empty());
    let asked = app.owner().get(&format!("/v1/tasks/{task}")).await;
    assert_eq!(
        asked.body["pending"].as_array().unwrap().len(),
        1,
        "the first call is asked about anew: {}",
        asked.text
    );
    assert_ne!(asked.str("/pending/0/request_id"), request);
}
