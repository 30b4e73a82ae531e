//! Tests four ways to decide a request, as they occur in practice: through a frontend on another
//! origin, through a backend that speaks for its users, by a person with a browser and a key, and
//! by a person with a sealed link alone. The tool runs once, whichever way is used.

mod browsers;
mod frontends;

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

    /// Opens a page, with these headers.
    async fn page(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        self.served.exchange("GET", path, headers, "").await
    }

    /// Posts a form, with these headers and the form's content type.
    async fn post_form(&self, path: &str, headers: &[(&str, &str)], form: String) -> Reply {
        let headers = [headers, &[("content-type", FORM)]].concat();
        self.served.exchange("POST", path, &headers, form).await
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
        assert_eq!(calls[0].uri.as_str(), "/refund");
        assert_eq!(calls[0].body.as_str(), r#"{"order": 17, "amount": 120}"#);
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
    assert_eq!(request.str("/decision/by"), "fay".to_owned());
    assert_eq!(request.str("/decision/via"), "web".to_owned());
    fixture.ran_once();
    let call = &fixture.tool.ledger()[0];
    assert_eq!(call.header("holdpoint-user"), "ann");
    assert_eq!(call.header("holdpoint-decided-by"), "fred,fay");
    assert_eq!(inboxes().await, [0; 4]);
}

#[apply(on_both)]
async fn person_with_a_sealed_link_and_no_key_decides(on: On) {
    let fixture = serve_with_links(on, "{ groups: [finance] }").await;
    let (path, _) = fixture.held(&[("authorization", &bearer(ALICE))]).await;
    let link = link("dora", path.strip_prefix("/resume/").unwrap());
    let browser = [("accept", HTML)];
    let shown = fixture.page(&link, &browser).await;
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
    let posts = [browser[0], ("origin", origin.as_str())];
    let decided = fixture.post_form(&link, &posts, body).await;
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
