//! A credential that a user fills in appears only in the request of the tool that takes it: not in
//! an answer, a page, an item, a table, a file of the database, a log or a prompt; in no spelling,
//! and not as a hash that could be guessed. The same holds for refused values.

use serde_json::{Value, json};

use super::served_binary::{Folder, Served};
use super::stored_values::{everything, hashes, traces};
use crate::support::database::Database;
use crate::support::fake_chat_completions::{FakeModel, calls, says};
use crate::support::fake_tool::FakeTool;
use crate::support::test_app::{ACCOUNTS, ALICE, BOB, CAROL, On, Reply};

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";
const HTML: &str = "text/html,application/xhtml+xml";
/// Part of the user's messages: the search must find it.
const SEEN: &str = "canary-that-may-be-seen/\"é+0123456789";

const FILE: &str = r#"
secrets: { keys: [ { id: k1, key: "${SEALING_KEY}" } ] }
credentials: { vault: { fields: { long: {}, json: {}, percent: {} } } }
models: { main: { provider: openai, base_url: "{model}", model: fake, retries: 0 } }
tools:
  use: { http: { method: POST, url: "{tool}/use/{{credential:vault.percent}}?q={{credential:vault.long}}", headers: { X-Long: "{{credential:vault.long}}", X-Json: "{{credential:vault.json}}" } } }
  pay: { http: { method: POST, url: "{tool}/pay", headers: { X-Long: "{{credential:vault.long}}" } } }
  sh: { shell: { env: { PATH: "${PATH}", LONG: "{{credential:vault.long}}", JSON: "{{credential:vault.json}}" } } }
agents: { clerk: { description: A clerk., model: main, tools: [use, pay, sh], human: [credentials] } }
policy:
  - { name: held, tools: [pay], decide: hold }
  - { name: rest, tools: [use, sh], decide: allow }
"#;

/// A defect of an answer.
type Change = fn(&mut Value, &Planted);
/// (path, headers, body, expected status)
type Case<'c> = (
    &'c str,
    &'c [(&'c str, &'c str)],
    &'c dyn Fn(&Planted) -> String,
    u16,
);

/// The values filled in at one place: no two places share a value.
struct Planted {
    long: String,
    json: String,
    percent: String,
}

impl Planted {
    fn new() -> Self {
        let fresh = || crate::support::postgres::unique();
        Self {
            long: format!("{}{}{}", fresh(), fresh(), fresh()),
            json: format!("{}\"\\/é{{}}\"x", fresh()),
            percent: format!("{}%41+&=/?#é;..~", fresh()),
        }
    }

    fn response(&self) -> Value {
        json!({"long": self.long, "json": self.json, "percent": self.percent})
    }

    fn answer(&self) -> Value {
        json!({"action": "respond", "response": self.response()})
    }

    fn form(&self, more: &[(&str, &str)]) -> String {
        let mut form = url::form_urlencoded::Serializer::new(String::new());
        form.append_pair("action", "respond");
        for (name, value) in [
            ("long", &self.long),
            ("json", &self.json),
            ("percent", &self.percent),
        ] {
            form.append_pair(&format!("field.{name}"), value);
        }
        form.extend_pairs(more);
        form.finish()
    }
}

/// The program, its fake endpoints, the planted values, the bodies sent and the replies heard.
struct Scene {
    served: Served,
    model: FakeModel,
    planted: Vec<Planted>,
    bodies: Vec<Vec<u8>>,
    heard: Vec<(String, String)>,
}

impl Scene {
    fn plant(&mut self) -> &Planted {
        self.planted.push(Planted::new());
        self.planted.last().unwrap()
    }

    async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Reply {
        self.bodies.push(body.clone());
        let reply = self.served.exchange(method, path, headers, body).await;
        self.heard.push((
            format!("{method} {path} {}", reply.status),
            format!("{:?}\n{}", reply.headers, reply.text),
        ));
        reply
    }

    /// Alice's POST of JSON, with an idempotency key.
    async fn post(&mut self, path: &str, key: &str, body: &Value) -> Reply {
        let bearer = format!("Bearer {ALICE}");
        let headers = [
            ("authorization", bearer.as_str()),
            ("content-type", JSON),
            ("idempotency-key", key),
        ];
        self.send("POST", path, &headers, body.to_string().into_bytes())
            .await
    }

    /// A task that waits for its credential: its id and the request's.
    async fn task(&mut self, key: &str, call: &str) -> (String, String) {
        self.model.then(calls(&[(call, "{}")]));
        let task = self.post("/v1/tasks", key, &json!({"input": SEEN})).await;
        assert_eq!(task.str("/pending/0/kind"), "credentials", "{}", task.text);
        (task.str("/task_id"), task.str("/pending/0/request_id"))
    }

    /// Sends every kind of refused answer, before the accepted one.
    async fn refused(&mut self, request: &str) {
        let path = format!("/resume/{request}");
        let bearers = [ALICE, BOB, CAROL].map(|key| format!("Bearer {key}"));
        let [alice, bob, carol] = [0, 1, 2].map(|one| ("authorization", bearers[one].as_str()));
        let json = ("content-type", JSON);
        let with = |planted: &Planted, change: &dyn Fn(&mut Value, &Planted)| {
            let mut body = planted.answer();
            change(&mut body, planted);
            body.to_string()
        };
        let changes: [(Change, u16); 9] = [
            (
                |body, planted| body["response"]["extra"] = planted.long.clone().into(),
                422,
            ),
            (
                |body, planted| body["extra"] = planted.json.clone().into(),
                422,
            ),
            (
                |body, planted| body["response"]["long"] = format!("{}\r\n", planted.long).into(),
                422,
            ),
            (
                |body, planted| body["response"]["json"] = json!([planted.json]),
                422,
            ),
            (
                |body, planted| body["response"] = planted.percent.clone().into(),
                422,
            ),
            (
                |body, planted| body["action"] = planted.percent.clone().into(),
                422,
            ),
            (|body, _| body["action"] = "approve".into(), 422),
            (
                |body, planted| body["decisions"] = json!({"x": {"action": planted.long}}),
                422,
            ),
            (
                |body, _| body["digest"] = format!("sha256:{}", "0".repeat(64)).into(),
                412,
            ),
        ];
        for (at, (change, status)) in changes.into_iter().enumerate() {
            let key = format!("refused-{at}");
            let body = with(self.plant(), &change).into_bytes();
            let reply = self
                .send(
                    "POST",
                    &path,
                    &[alice, json, ("idempotency-key", &key)],
                    body,
                )
                .await;
            assert_eq!(reply.status, status, "{at}: {}", reply.text);
        }
        let whole = |planted: &Planted| planted.answer().to_string();
        let cut = |planted: &Planted| {
            planted
                .answer()
                .to_string()
                .trim_end_matches('}')
                .to_owned()
        };
        let twice =
            |planted: &Planted| format!(r#"{{"action":{0},"action":{0}}}"#, json!(planted.json));
        let large = |planted: &Planted| format!("{}{}", planted.answer(), " ".repeat(1 << 20));
        let typed = |planted: &Planted| planted.form(&[("digest", "sha256:0")]);
        let repeated = |planted: &Planted| planted.form(&[("field.long", &planted.json)]);
        let missing = |planted: &Planted| planted.form(&[]).replace("field.long=", "field.gone=");
        let odd = |planted: &Planted| {
            planted.form(&[("field.none", &planted.json), ("odd", &planted.percent)])
        };
        let page = [alice, ("content-type", FORM), ("accept", HTML)];
        let cases: [Case<'_>; 18] = [
            (&path, &[alice, json], &cut, 400),
            (&path, &[alice, json], &twice, 400),
            (&path, &[alice, json], &large, 413),
            (&path, &[alice, ("content-type", "text/plain")], &whole, 415),
            (
                &path,
                &[alice, ("content-type", "multipart/form-data; boundary=x")],
                &whole,
                415,
            ),
            (&path, &[json], &whole, 401),
            (
                &path,
                &[("authorization", "Bearer nobody-0123456789"), json],
                &whole,
                401,
            ),
            (&path, &[carol, json], &whole, 403),
            (&path, &[bob, json], &whole, 403),
            (
                &path,
                &[alice, json, ("origin", "https://evil.example")],
                &whole,
                403,
            ),
            (
                "/resume/01890000-0000-7000-8000-000000000000",
                &[alice, json],
                &whole,
                404,
            ),
            ("/v1/tasks", &[alice, json], &whole, 422),
            (&path, &page, &typed, 412),
            (&path, &page, &repeated, 400),
            (&path, &page, &missing, 422),
            (&path, &page, &odd, 422),
            // JSON labelled as a form, as `curl -d` sends it by default.
            (&path, &page, &whole, 422),
            (&format!("{path}/reject"), &page[..2], &whole, 422),
        ];
        for (at, (path, headers, body, status)) in cases.into_iter().enumerate() {
            let body = body(self.plant()).into_bytes();
            let reply = self.send("POST", path, headers, body).await;
            assert_eq!(reply.status, status, "{at}: {}", reply.text);
        }
        // In a URL, where no value belongs.
        let place =
            url::form_urlencoded::byte_serialize(self.plant().json.as_bytes()).collect::<String>();
        for headers in [&[json][..], &[alice, json], &[alice, ("accept", HTML)]] {
            let headers = [headers, &[("origin", "https://evil.example")]].concat();
            self.served
                .exchange("POST", &format!("{path}?response={place}"), &headers, "")
                .await;
            self.served
                .exchange("GET", &format!("{path}?response={place}"), &headers, "")
                .await;
        }
    }

    /// Reads everything that may be read.
    async fn read(&mut self, task: &str, request: &str) {
        let bearer = format!("Bearer {ALICE}");
        let paths = [
            format!("/v1/tasks/{task}"),
            format!("/v1/tasks/{task}/items?limit=200"),
            "/v1/tasks".to_owned(),
            format!("/v1/requests?task_id={task}"),
            "/v1/requests?status=resumed".to_owned(),
            format!("/resume/{request}"),
            format!("/resume/{request}/approve"),
            format!("/resume/{request}/reject"),
            "/v1/agents".to_owned(),
            "/v1/me".to_owned(),
            "/metrics".to_owned(),
            "/openapi.json".to_owned(),
            "/docs".to_owned(),
            "/problems/invalid".to_owned(),
            "/sign-in".to_owned(),
            "/nowhere".to_owned(),
        ];
        for path in paths {
            for accept in [JSON, HTML] {
                let headers = [("authorization", bearer.as_str()), ("accept", accept)];
                self.send("GET", &path, &headers, Vec::new()).await;
            }
        }
    }

    /// Asserts that no planted value is in any of these texts and, with `shows`, that the harmless
    /// text is.
    fn is_silent(&self, what: &str, texts: &[(String, String)], shows: bool) {
        let lower: Vec<_> = texts
            .iter()
            .map(|(place, text)| (place, text, text.to_lowercase()))
            .collect();
        let values = self
            .planted
            .iter()
            .flat_map(|one| [&one.long, &one.json, &one.percent]);
        let bodies = self
            .bodies
            .iter()
            .filter(|body| !body.is_empty())
            .flat_map(|body| hashes(body));
        for trace in values.flat_map(|value| traces(value)).chain(bodies) {
            let hash = trace.bytes().all(|byte| byte.is_ascii_hexdigit());
            for (place, text, lower) in &lower {
                let text: &str = if hash { lower } else { text };
                let at = text.find(trace.as_str());
                let near = at.map(|at| {
                    text.get(at.saturating_sub(80)..at + trace.len())
                        .unwrap_or(&trace)
                });
                assert!(at.is_none(), "{what}: {place} shows {trace}: {near:?}");
            }
        }
        let found = |trace: &String| texts.iter().any(|(_, text)| text.contains(trace.as_str()));
        assert!(
            !shows || traces(SEEN).iter().any(found),
            "{what}: what may be seen is not found either"
        );
    }
}

/// How often the tool received the planted values.
fn received(tool: &FakeTool, planted: &Planted) -> usize {
    let long = |call: &crate::support::fake_tool::Execution| call.header("x-long") == planted.long;
    let calls = tool.ledger();
    for call in calls
        .iter()
        .filter(|call| long(call) && call.uri.starts_with("/use/"))
    {
        assert_eq!(call.headers["x-json"].as_bytes(), planted.json.as_bytes());
        let url = url::Url::parse(&format!("http://h{}", call.uri)).unwrap();
        let path = url
            .path_segments()
            .unwrap()
            .nth(1)
            .unwrap()
            .replace('+', "%2B");
        assert_eq!(
            url::form_urlencoded::parse(path.as_bytes())
                .next()
                .unwrap()
                .0,
            planted.percent
        );
        assert_eq!(url.query_pairs().next().unwrap().1, planted.long);
    }
    calls.iter().filter(|call| long(call)).count()
}

async fn nothing_is_seen(on: On, level: &str) {
    let (folder, model, tool) = (
        Folder::new(),
        FakeModel::start().await,
        FakeTool::start().await,
    );
    let database = match on {
        On::Sqlite => Database::at(&format!(
            "sqlite://{}/holdpoint.db",
            folder.path().display()
        )),
        On::Postgres => Database::postgres().await,
    };
    let yaml = FILE
        .replace("{model}", &model.base_url)
        .replace("{tool}", &tool.url)
        + ACCOUNTS;
    let yaml = format!("{yaml}\ndatabase: {{ url: '{}' }}\n", database.url());
    let variables = [
        (
            "SEALING_KEY",
            "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
        ),
        ("RUST_LOG", level),
        ("PATH", "/usr/bin:/bin"),
    ];
    let served = Served::start(folder.path(), &yaml, &variables);
    let mut scene = Scene {
        served,
        model: model.clone(),
        planted: Vec::new(),
        bodies: Vec::new(),
        heard: Vec::new(),
    };

    // As JSON. The tool, a command and the model echo everything they get.
    let (task, request) = scene.task("task-1", "use").await;
    scene.refused(&request).await;
    assert!(
        tool.ledger().is_empty(),
        "the refused answers changed nothing"
    );
    let (answer, echoed) = {
        let planted = scene.plant();
        let values = [&planted.long, &planted.json, &planted.percent];
        (
            planted.answer(),
            values
                .iter()
                .flat_map(|value| super::variable_secrecy::spellings(value))
                .collect::<Vec<_>>()
                .join(" | "),
        )
    };
    tool.answers(200, echoed.clone());
    let command = json!({"command": "printf '%s' \"$LONG $JSON\"; printf '%s' \"$LONG\" | base64 -w0; printf '%s' \"$JSON\" >&2; exit 3"});
    model
        .then(calls(&[("sh", &command.to_string())]))
        .then(calls(&[(
            &echoed[..200],
            &json!({"x": echoed}).to_string(),
        )]))
        .then(says(&echoed));
    let path = format!("/resume/{request}");
    let done = scene.post(&path, "answer-1", &answer).await;
    assert_eq!(
        (done.status, done.str("/status").as_str()),
        (200, "Completed"),
        "{}",
        done.text
    );
    assert!(
        done.str("/output").contains("[secret vault.long]"),
        "{}",
        done.text
    );
    let again = scene.post(&path, "answer-1", &answer).await;
    assert_eq!(
        (again.status, again.header("idempotency-replayed")),
        (200, "true"),
        "{}",
        again.text
    );
    for (key, status) in [("answer-1", 422), ("late-1", 409), ("late-2", 409)] {
        let other = scene.plant().answer();
        assert_eq!(scene.post(&path, key, &other).await.status, status);
    }
    scene.read(&task, &request).await;
    let of_json = scene
        .planted
        .iter()
        .filter(|planted| received(&tool, planted) > 0)
        .count();
    assert_eq!(
        (of_json, tool.ledger().len()),
        (1, 1),
        "one request of one tool has it"
    );

    // By the page's form, for a call that then waits for its approval.
    model.then(calls(&[("request_credentials", r#"{"service":"vault"}"#)]));
    let asked = scene
        .post("/v1/tasks", "task-2", &json!({"input": SEEN}))
        .await;
    let (second, asked) = (asked.str("/task_id"), asked.str("/pending/0/request_id"));
    let (path, bearer) = (format!("/resume/{asked}"), format!("Bearer {ALICE}"));
    let shown = scene
        .send(
            "GET",
            &path,
            &[("authorization", &bearer), ("accept", JSON)],
            Vec::new(),
        )
        .await;
    let form = {
        let planted = scene.plant();
        let values = [&planted.long, &planted.json, &planted.percent];
        let echoed: Vec<_> = values
            .iter()
            .flat_map(|value| super::variable_secrecy::spellings(value))
            .collect();
        tool.answers(400, echoed.join(" | "));
        planted.form(&[("digest", &shown.str("/digest"))])
    };
    model.then(calls(&[("pay", "{}")]));
    let headers = [
        ("authorization", bearer.as_str()),
        ("content-type", FORM),
        ("accept", HTML),
        ("idempotency-key", "form-1"),
    ];
    let typed = scene.send("POST", &path, &headers, form.into_bytes()).await;
    assert_eq!(
        (typed.status, typed.header("location")),
        (303, path.as_str()),
        "{}",
        typed.text
    );
    let held = loop {
        let task = scene
            .send(
                "GET",
                &format!("/v1/tasks/{second}"),
                &[("authorization", &bearer), ("prefer", "wait=5")],
                Vec::new(),
            )
            .await;
        if task.body["pending"][0]["kind"] == "approval" {
            break task.str("/pending/0/request_id");
        }
    };
    scene.read(&second, &asked).await;

    // While the credential is stored, and after a crash.
    let kept = everything(database.url(), folder.path()).await;
    assert!(
        kept.iter()
            .any(|(table, rows)| table == "credential" && rows.contains("vault")),
        "it is kept"
    );
    scene.is_silent("the database while it is kept", &kept, true);
    scene.served.kill();
    let log = scene.served.log();
    assert!(log.lines().all(|line| line.starts_with('{')), "{log}");
    scene.is_silent("the log up to a crash", &[("log".to_owned(), log)], false);
    scene.is_silent(
        "the database after a crash",
        &everything(database.url(), folder.path()).await,
        true,
    );

    scene.served = Served::start(folder.path(), &yaml, &variables);
    model.then(says("done"));
    let paid = scene
        .post(
            &format!("/resume/{held}"),
            "approve-1",
            &json!({"action": "approve"}),
        )
        .await;
    assert_eq!(
        (paid.status, paid.str("/status").as_str()),
        (200, "Completed"),
        "{}",
        paid.text
    );
    assert_eq!(
        (
            received(&tool, scene.planted.last().unwrap()),
            tool.ledger().len()
        ),
        (1, 2)
    );
    scene.read(&second, &asked).await;
    assert!(scene.served.terminate().success());
    let log = scene.served.log();
    scene.is_silent("the log", &[("log".to_owned(), log)], false);
    scene.is_silent(
        "the database",
        &everything(database.url(), folder.path()).await,
        true,
    );
    scene.is_silent("answers", &scene.heard, true);
    let sent: Vec<_> = model
        .sent()
        .iter()
        .map(|body| ("model".to_owned(), body.to_string()))
        .collect();
    scene.is_silent("what the model was sent", &sent, true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credential_is_only_in_the_request_of_its_tool_on_sqlite() {
    nothing_is_seen(On::Sqlite, "trace").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credential_is_only_in_the_request_of_its_tool_on_postgres() {
    nothing_is_seen(On::Postgres, "debug").await;
}
