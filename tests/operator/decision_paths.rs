//! Tests four ways to decide a request, as they occur in practice: through a frontend on another
//! origin, through a backend that speaks for its users, by a person with a browser and a key, and
//! by a person with a sealed link alone. The tool runs once, whichever way is used.

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::served_binary::{Folder, Served, fakes};
use crate::api::approval_cycle::on_both;
use crate::support::database::Database;
use crate::support::fake_chat_completions::{FakeModel, calls, text_answer};
use crate::support::fake_tool::FakeTool;
use crate::support::links::{DECIDING, PEOPLE, SEALING_KEY, link};
use crate::support::test_app::{ALICE, BOB, On, Reply, VARIABLES, WEB, refunds};

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";
const HTML: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
const APP: &str = "https://app.example";
const EVIL: &str = "https://evil.example";

struct DecisionFixture {
    served: Served,
    model: FakeModel,
    tool: FakeTool,
    folder: Folder,
    _database: Database,
}

/// Starts the refund agent. `approvers` is the YAML of the approvers of large refunds.
async fn serve(on: On, approvers: &str) -> DecisionFixture {
    serve_with(on, approvers, "").await
}

/// Like `serve`, with links by which people decide.
async fn serve_with_links(on: On, approvers: &str) -> DecisionFixture {
    let keys = format!("secrets: {{ keys: [ {{ id: k1, key: '{SEALING_KEY}' }} ] }}");
    serve_with(on, approvers, &format!("{PEOPLE}{keys}\n{DECIDING}")).await
}

/// Like `serve`, with `after_accounts`, which is YAML that follows the accounts.
async fn serve_with(on: On, approvers: &str, after_accounts: &str) -> DecisionFixture {
    let (model, tool, folder) = fakes().await;
    let database = Database::of(on).await;
    let yaml = refunds(approvers)
        .replace("{model}", &model.base_url)
        .replace("{tool}", &tool.url);
    let more = format!(
        "{after_accounts}\nserver: {{ cors_origins: ['{APP}'] }}\ndatabase: {{ url: '{}' }}\n",
        database.url()
    );
    let served = Served::start(folder.path(), &(yaml + &more), &VARIABLES);
    DecisionFixture {
        served,
        model,
        tool,
        folder,
        _database: database,
    }
}

impl DecisionFixture {
    async fn as_(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Reply {
        let text = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let kind = [("content-type", JSON)];
        let headers = [headers, if body.is_null() { &[] } else { &kind[..] }].concat();
        self.served.exchange(method, path, &headers, text).await
    }

    /// Creates a task with a held refund. Returns the request's path, and the reply to the POST
    /// that created the task.
    async fn held(&self, headers: &[(&str, &str)]) -> (String, Reply) {
        self.model
            .then(calls(&[("refund", r#"{"order": 17, "amount": 120}"#)]));
        let task = self
            .as_("POST", "/v1/tasks", headers, &json!({"input": "please"}))
            .await;
        task.assert_status(201, "Paused");
        self.model.then(text_answer("Refunded."));
        (
            format!("/resume/{}", task.str("/pending/0/request_id")),
            task,
        )
    }

    fn ran_once(&self) {
        let calls = self.tool.ledger();
        assert_eq!(calls.len(), 1);
        assert_eq!(
            (calls[0].uri.as_str(), calls[0].body.as_str()),
            ("/refund", r#"{"order": 17, "amount": 120}"#)
        );
    }

    /// Asserts that the metric counts one approval, under the name of this door.
    async fn assert_counted_under(&self, door: &str) {
        let metrics = self.served.get("/metrics").await;
        let series = metrics
            .lines()
            .filter(|line| line.starts_with("holdpoint_requests_decided_total{"));
        let expected = format!(
            "holdpoint_requests_decided_total{{action=\"approve\",door=\"{door}\",kind=\"approval\"}} 1"
        );
        assert_eq!(series.collect::<Vec<_>>(), [expected]);
    }

    async fn inbox(&self, headers: &[(&str, &str)]) -> usize {
        let inbox = self.as_("GET", "/v1/requests", headers, &Value::Null).await;
        assert_eq!(inbox.status, 200, "{}", inbox.text);
        inbox.body["requests"].as_array().unwrap().len()
    }
}

fn bearer(key: &str) -> String {
    format!("Bearer {key}")
}

#[apply(on_both)]
async fn frontend_on_another_origin_decides_with_fetch(on: On) {
    let fixture = serve(on, "{ owner: true }").await;
    let alice = bearer(ALICE);
    let (path, task) = fixture
        .held(&[
            ("authorization", &alice),
            ("origin", APP),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "cors"),
        ])
        .await;
    assert_eq!(task.header("access-control-allow-origin"), APP);
    let exposed = task
        .header("access-control-expose-headers")
        .to_ascii_lowercase();
    for name in [
        "location",
        "content-location",
        "retry-after",
        "preference-applied",
        "idempotency-replayed",
        "x-request-id",
    ] {
        assert!(exposed.contains(name), "{exposed}");
    }

    let asks = "authorization,content-type,idempotency-key,prefer";
    let preflight = |origin| {
        [
            ("origin", origin),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", asks),
        ]
    };
    let allowed = fixture
        .as_("OPTIONS", &path, &preflight(APP), &Value::Null)
        .await;
    assert_eq!(
        (
            allowed.status,
            allowed.header("access-control-allow-origin")
        ),
        (204, APP),
        "{}",
        allowed.text
    );
    let (methods, headers) = (
        allowed.header("access-control-allow-methods"),
        allowed
            .header("access-control-allow-headers")
            .to_ascii_lowercase(),
    );
    assert!(
        methods.contains("POST") && asks.split(',').all(|name| headers.contains(name)),
        "{methods} {headers}"
    );
    assert_eq!(
        (
            allowed.header("access-control-allow-credentials"),
            allowed
                .header("vary")
                .to_ascii_lowercase()
                .contains("origin")
        ),
        ("", true)
    );
    let foreign = fixture
        .as_("OPTIONS", &path, &preflight(EVIL), &Value::Null)
        .await;
    assert_eq!(
        (
            foreign.status,
            foreign.header("access-control-allow-origin")
        ),
        (204, "")
    );

    let yes = json!({"action": "approve", "digest": task.str("/pending/0/digest")});
    for origin in [
        EVIL,
        "null",
        "https://app.example.evil.example",
        "http://app.example",
        "https://app.example:8443",
    ] {
        let headers = [
            ("authorization", alice.as_str()),
            ("origin", origin),
            ("sec-fetch-site", "cross-site"),
        ];
        let refused = fixture.as_("POST", &path, &headers, &yes).await;
        assert_eq!(
            (refused.status, refused.str("/code").as_str()),
            (403, "forbidden"),
            "{origin}"
        );
        assert_eq!(refused.header("access-control-allow-origin"), "");
    }
    let fetch = [
        ("authorization", alice.as_str()),
        ("origin", APP),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-mode", "cors"),
        ("idempotency-key", "click-1"),
    ];
    let keyless = fixture.as_("POST", &path, &[("origin", APP)], &yes).await;
    assert_eq!(
        (
            keyless.status,
            keyless.header("access-control-allow-origin")
        ),
        (401, APP),
        "also an error can be read"
    );
    assert!(fixture.tool.ledger().is_empty());
    let seen = fixture.as_("GET", &path, &fetch[..4], &Value::Null).await;
    assert_eq!(
        (
            seen.status,
            seen.header("access-control-allow-origin"),
            &seen.body["can_decide"]
        ),
        (200, APP, &json!(true))
    );
    let decided = fixture.as_("POST", &path, &fetch, &yes).await;
    decided.assert_status(200, "Completed");
    let again = fixture.as_("POST", &path, &fetch, &yes).await;
    assert_eq!(
        (again.status, again.header("idempotency-replayed")),
        (200, "true"),
        "a second click"
    );
    fixture.ran_once();
}

#[apply(on_both)]
async fn backend_with_one_key_decides_for_its_users(on: On) {
    let fixture = serve(on, "{ groups: [finance], required: 2 }").await;
    let web = bearer(WEB);
    let user = |name: &'static str, groups: &'static str| {
        [
            ("authorization", web.clone()),
            ("holdpoint-user", name.to_owned()),
            ("holdpoint-groups", groups.to_owned()),
        ]
    };
    let [owner, first, second, nobody] = [
        user("ann", "support"),
        user("fred", "finance,staff"),
        user("fay", "staff, finance"),
        user("zoe", "support"),
    ];
    macro_rules! of {
        ($who:expr) => {
            &$who.each_ref().map(|(name, value)| (*name, value.as_str()))[..]
        };
    }
    let (path, task) = fixture.held(of!(owner)).await;
    assert_eq!(task.str("/user_id"), "ann");
    let inboxes = async || {
        [
            fixture.inbox(of!(owner)).await,
            fixture.inbox(of!(first)).await,
            fixture.inbox(of!(second)).await,
            fixture.inbox(of!(nobody)).await,
        ]
    };
    assert_eq!(inboxes().await, [0, 1, 1, 0]);
    let groupless = [("authorization", web.as_str()), ("holdpoint-user", "fred")];
    assert_eq!(
        fixture.inbox(&groupless).await,
        0,
        "groups come from the request's header"
    );

    let yes = json!({"action": "approve", "digest": task.str("/pending/0/digest")});
    for refused in [
        of!(owner),
        of!(nobody),
        &groupless[..],
        &[("authorization", web.as_str())],
    ] {
        let refused = fixture.as_("POST", &path, refused, &yes).await;
        refused.assert_code(403, "forbidden");
    }
    let other = [
        ("authorization", bearer(BOB)),
        ("holdpoint-user", "fred".to_owned()),
        ("holdpoint-groups", "finance".to_owned()),
    ];
    assert_eq!(
        fixture.as_("POST", &path, of!(other), &yes).await.status,
        403,
        "another key speaks for no user"
    );

    let half = fixture.as_("POST", &path, of!(first), &yes).await;
    half.assert_status(200, "Paused");
    let vote = &half.body["pending"][0]["tool_calls"][0]["approvals"];
    assert_eq!(
        (vote.as_array().unwrap().len(), &vote[0]["by"]),
        (1, &json!("fred"))
    );
    assert_eq!(
        inboxes().await,
        [0, 0, 1, 0],
        "an approver who has answered has nothing left to decide"
    );
    let twice = fixture.as_("POST", &path, of!(first), &yes).await;
    twice.assert_code(409, "already_decided");
    assert!(fixture.tool.ledger().is_empty(), "one of two is not enough");

    let full = fixture.as_("POST", &path, of!(second), &yes).await;
    full.assert_status(200, "Completed");
    let request = fixture.as_("GET", &path, of!(owner), &Value::Null).await;
    assert_eq!(
        (request.str("/decision/by"), request.str("/decision/via")),
        ("fay".to_owned(), "web".to_owned())
    );
    fixture.ran_once();
    let call = &fixture.tool.ledger()[0];
    assert_eq!(
        (
            call.header("holdpoint-user"),
            call.header("holdpoint-decided-by")
        ),
        ("ann", "fred,fay")
    );
    assert_eq!(inboxes().await, [0; 4]);
}

#[apply(on_both)]
async fn person_with_a_browser_and_a_key_decides(on: On) {
    let fixture = serve(on, "{ groups: [finance] }").await;
    let alice = bearer(ALICE);
    let (path, task) = fixture.held(&[("authorization", &alice)]).await;
    let origin = format!("http://{}", fixture.served.address);
    assert_eq!(task.str("/pending/0/url"), format!("{origin}{path}"));

    let asked = fixture
        .served
        .exchange("GET", &path, &[("accept", HTML)], "")
        .await;
    let sign_in = asked.header("location").to_owned();
    assert_eq!((asked.status, asked.text.as_str()), (303, ""));
    assert!(sign_in.starts_with("/sign-in?next="), "{sign_in}");
    let page = fixture
        .served
        .exchange("GET", &sign_in, &[("accept", HTML)], "")
        .await;
    assert!(
        page.status == 200 && page.text.contains(r#"type="password""#),
        "{}",
        page.text
    );
    let form = form(&[("key", BOB), ("next", &path)]);
    let entered = fixture
        .served
        .exchange(
            "POST",
            "/sign-in",
            &[
                ("content-type", FORM),
                ("accept", HTML),
                ("origin", &origin),
                ("sec-fetch-site", "same-origin"),
            ],
            form,
        )
        .await;
    assert_eq!(
        (entered.status, entered.header("location")),
        (303, path.as_str()),
        "{}",
        entered.text
    );
    let cookie = entered
        .header("set-cookie")
        .split(';')
        .next()
        .unwrap()
        .to_owned();

    let browser = [
        ("cookie", cookie.as_str()),
        ("accept", HTML),
        ("origin", origin.as_str()),
        ("sec-fetch-site", "same-origin"),
    ];
    let shown = fixture
        .served
        .exchange("GET", &path, &browser[..2], "")
        .await;
    assert!(
        shown.status == 200 && shown.text.contains("Refund 120 for order 17"),
        "{}",
        shown.text
    );
    let digest = hidden(&shown.text, "digest");
    assert_eq!(
        digest,
        task.str("/pending/0/digest"),
        "the page posts what it showed"
    );
    let posts = [&browser[..], &[("content-type", FORM)]].concat();
    let foreign = [
        ("cookie", cookie.as_str()),
        ("content-type", FORM),
        ("origin", EVIL),
        ("sec-fetch-site", "cross-site"),
    ];
    let refused = fixture
        .served
        .exchange(
            "POST",
            &format!("{path}/approve"),
            &foreign,
            self::form(&[("digest", &digest)]),
        )
        .await;
    assert_eq!(refused.status, 403, "{}", refused.text);
    assert!(fixture.tool.ledger().is_empty());
    let body = self::form(&[("digest", &digest), ("reason", "looks right")]);
    let decided = fixture
        .served
        .exchange("POST", &format!("{path}/approve"), &posts, body.clone())
        .await;
    assert_eq!(
        (decided.status, decided.header("location")),
        (303, path.as_str()),
        "{}",
        decided.text
    );
    let again = fixture
        .served
        .exchange("POST", &format!("{path}/approve"), &posts, body)
        .await;
    assert_eq!(
        again.status, 409,
        "a second click is told that it is decided: {}",
        again.text
    );
    fixture.tool.reached(1).await;
    let request = fixture
        .as_(
            "GET",
            &path,
            &[("authorization", &alice), ("prefer", "wait=5")],
            &Value::Null,
        )
        .await;
    assert_eq!(
        (request.str("/decision/by"), request.str("/decision/reason")),
        ("bob".to_owned(), "looks right".to_owned())
    );
    fixture.assert_counted_under("session").await;

    let left = fixture
        .served
        .exchange("POST", "/sign-out", &posts, "")
        .await;
    assert_eq!(
        (left.status, left.header("location")),
        (303, "/sign-in"),
        "{}",
        left.text
    );
    assert_eq!(
        fixture
            .served
            .exchange("GET", &path, &browser[..2], "")
            .await
            .status,
        303,
        "the session is over"
    );
    fixture.ran_once();
}

#[apply(on_both)]
async fn person_with_a_sealed_link_and_no_key_decides(on: On) {
    let fixture = serve_with_links(on, "{ groups: [finance] }").await;
    let (path, _) = fixture.held(&[("authorization", &bearer(ALICE))]).await;
    let link = link("dora", path.strip_prefix("/resume/").unwrap());
    let browser = [("accept", HTML)];
    let shown = fixture.served.exchange("GET", &link, &browser, "").await;
    assert!(
        shown.status == 200 && shown.text.contains("Refund 120 for order 17"),
        "{}",
        shown.text
    );
    let body = form(&[
        ("digest", &hidden(&shown.text, "digest")),
        ("action", "approve"),
    ]);
    let origin = format!("http://{}", fixture.served.address);
    let posts = [
        browser[0],
        ("content-type", FORM),
        ("origin", origin.as_str()),
    ];
    let decided = fixture.served.exchange("POST", &link, &posts, body).await;
    assert_eq!(
        (decided.status, decided.header("location")),
        (303, link.as_str()),
        "{}",
        decided.text
    );
    fixture.tool.reached(1).await;
    assert_eq!(
        fixture.tool.ledger()[0].header("holdpoint-decided-by"),
        "dora"
    );
    fixture.assert_counted_under("link").await;
    fixture.ran_once();
}

#[apply(on_both)]
async fn person_with_curl_and_a_cookie_jar_decides(on: On) {
    let fixture = serve(on, "{ groups: [finance] }").await;
    let alice = bearer(ALICE);
    let (path, task) = fixture.held(&[("authorization", &alice)]).await;
    let url = task.str("/pending/0/url");
    let origin = format!("http://{}", fixture.served.address);
    let curl = |arguments: &[&str]| {
        let mut command = std::process::Command::new("curl");
        command.args([
            "-s",
            "--noproxy",
            "*",
            "-b",
            "jar",
            "-c",
            "jar",
            "-H",
            "Accept: text/html",
            "-w",
            "\n%{http_code} %{url_effective}",
        ]);
        let done = command
            .args(arguments)
            .current_dir(fixture.folder.path())
            .output()
            .unwrap();
        assert!(
            done.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
        String::from_utf8(done.stdout).unwrap()
    };
    let way_in = curl(&["-L", &url]);
    assert!(
        way_in.contains(r#"type="password""#) && way_in.contains("\n200 "),
        "{way_in}"
    );
    let next = format!("next={path}");
    let key = format!("key={BOB}");
    let shown = curl(&[
        "-L",
        "--data-urlencode",
        &key,
        "--data-urlencode",
        &next,
        &format!("{origin}/sign-in"),
    ]);
    assert!(
        shown.contains("Refund 120 for order 17") && shown.ends_with(&format!("200 {url}")),
        "{shown}"
    );
    let digest = format!("digest={}", hidden(&shown, "digest"));
    let decided = curl(&["-L", "--data-urlencode", &digest, &format!("{url}/approve")]);
    assert!(
        decided.contains("bob")
            && decided.ends_with(&format!("200 {url}"))
            && !decided.contains("<button type=\"submit\" class=\"approve"),
        "{decided}"
    );
    fixture.tool.reached(1).await;
    let out = curl(&["-L", "-X", "POST", &format!("{origin}/sign-out")]);
    assert!(!out.contains(BOB), "{out}");
    let after = curl(&["-L", &url]);
    assert!(after.contains("/sign-in?next="), "{after}");
    fixture.ran_once();
}

fn form(fields: &[(&str, &str)]) -> String {
    url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs(fields)
        .finish()
}

fn hidden(page: &str, name: &str) -> String {
    let (_, rest) = page
        .split_once(&format!("name=\"{name}\" value=\""))
        .unwrap_or_else(|| panic!("no {name} in {page}"));
    rest.split('"').next().unwrap().to_owned()
}
