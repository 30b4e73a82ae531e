//! Tests of agentgateway's guardrails: calls that pass, are held, are changed, or are refused
//! before the gateway forwards them.

use macro_rules_attribute::apply;

use super::*;
use crate::api::approval_cycle::on_both;

pub(super) const REQUEST: &str = "/agentgateway.dev.ext_mcp.ExtMcp/CheckRequest";
pub(super) const RESPONSE: &str = "/agentgateway.dev.ext_mcp.ExtMcp/CheckResponse";
pub(super) const REQUIRED: &str = "hold: 0s\n    ext_authz: { user_header: x-user }";
const JUDGE: &str = "hold: 0s\n    other_tools: judge\n    ext_authz: { user_header: x-user }";
pub(super) const LS: &str = r#"{"name":"Bash","arguments":{"command":"ls"}}"#;
const MAKE: &str = r#"{"_meta":{"n": 1.0},"arguments":{"command" : "make"},"name":"Bash"}"#;

/// Starts a service with the configuration of [`guardrails_yaml`].
pub(super) async fn guardrails(on: On, settings: &str) -> TestApp {
    TestApp::with(on, &guardrails_yaml(settings)).await
}

/// Returns a configuration with two gates. The first gate has the tool `Bash` of the upstream `up`.
/// No gateway may use the second gate.
pub(super) fn guardrails_yaml(settings: &str) -> String {
    let tool = "
  up__Bash: { description: A shell., external: {}, parameters: { type: object, properties: { command: { type: string }, timeout: { type: number } }, required: [command] } }
agents:";
    let rule = r#"
  - { name: up, tools: [up__Bash], when: "args.command == \"ls\"", decide: allow }
  - { name: up_never, tools: [up__Bash], when: "args.command == \"rm\"", decide: deny, reason: Not here. }
gates:
  other: { description: Of programs., tools: [Bash] }
"#;
    gateway_yaml(settings)
        .replacen("\nagents:", tool, 1)
        .replacen("Bash, Read]", "Bash, Read, up__Bash]", 1)
        .replacen("\ngates:\n", rule, 1)
}

pub(super) fn message(service: &[&str], method: &str, params: &str, user: &str) -> Vec<u8> {
    let mut message: Vec<u8> = service
        .iter()
        .flat_map(|name| field(1, name.as_bytes()))
        .collect();
    message.extend(field(2, method.as_bytes()));
    message.extend(field(4, params.as_bytes()));
    message.extend(field(5, &pair("x-user", user.as_bytes())));
    message
}

/// The service's answer to a `CheckRequest`.
#[derive(Debug)]
pub(super) struct CheckAnswer {
    message: Vec<u8>,
}

impl CheckAnswer {
    fn text(&self, path: &[usize]) -> String {
        String::from_utf8(at(&self.message, path).unwrap_or_default()).unwrap()
    }

    fn passes(&self) -> bool {
        at(&self.message, &[1]).is_some() && !self.is_refused()
    }

    fn is_refused(&self) -> bool {
        at(&self.message, &[3]).is_some()
    }

    /// Returns the JSON object that a refusal carries.
    pub(super) fn members(&self) -> Value {
        assert_eq!(self.text(&[3, 1]), "1", "PERMISSION_DENIED");
        serde_json::from_str(&self.text(&[3, 3])).unwrap()
    }

    fn reason(&self) -> String {
        self.text(&[3, 2])
    }

    fn mutated(&self) -> String {
        assert!(!self.is_refused() && at(&self.message, &[1]).is_none());
        self.text(&[2])
    }

    /// Returns the headers (name, value) that the gateway is told to set.
    pub(super) fn headers(&self) -> Vec<(String, String)> {
        let mutation = at(&self.message, &[4]).unwrap();
        fields(&mutation)
            .into_iter()
            .filter(|(number, _)| *number == 1)
            .map(|(_, pair)| {
                let text = |number| String::from_utf8(at(&pair, &[number]).unwrap()).unwrap();
                (text(1), text(2))
            })
            .collect()
    }

    /// Returns the id of the attempt from the metadata of a call that passes.
    pub(super) fn attempt(&self) -> String {
        self.text(&[5, 1, 2, 3])
    }

    /// Returns the id of the task of a call that passes. Asserts that the headers `holdpoint-call`
    /// and `holdpoint-task` and the metadata name that task.
    pub(super) fn task(&self) -> String {
        let set = self.headers();
        let names: Vec<&str> = set.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["holdpoint-call", "holdpoint-task"]);
        assert_eq!(self.text(&[5, 1, 1]), "holdpoint_call");
        let task = self.attempt();
        assert!(set.iter().all(|(_, value)| *value == task), "{set:?}");
        task
    }
}

pub(super) async fn request(grpc: &mut Grpc, params: &str) -> CheckAnswer {
    let message = message(&["up"], "tools/call", params, "alice");
    let answered = grpc.call(REQUEST, EDGE, &message).await;
    assert_eq!(answered.status, Some(0));
    CheckAnswer {
        message: answered.message,
    }
}

/// Proposes a call and asserts that it is held. Returns the id of the call's request.
async fn held(grpc: &mut Grpc, params: &str) -> String {
    let told = request(grpc, params).await;
    let members = told.members();
    assert_eq!(members["state"], "pending", "{members}");
    assert_eq!(members["decision"], "pending");
    assert!(told.reason().starts_with("HELD."), "{}", told.reason());
    assert!(members["url"].as_str().unwrap().starts_with("http"));
    members["request_id"].as_str().unwrap().to_owned()
}

/// Answers a request about one call as the owner. `action` is the answer to the call, as JSON.
pub(super) async fn resume(app: &TestApp, request: &str, action: &str) {
    let owner = app.owner().prefer("wait=0");
    let path = format!("/resume/{request}");
    let shown = app.owner().get(&path).await;
    let call = shown.str("/tool_calls/0/tool_call_id");
    let body = format!(r#"{{"decisions":{{"{call}":{action}}}}}"#);
    let reply = owner.bytes(&path, body.into_bytes()).await;
    assert!(reply.status < 300, "{}", reply.text);
}

#[apply(on_both)]
async fn call_that_a_rule_decides_passes_or_is_refused_at_once(on: On) {
    let app = guardrails(on, REQUIRED).await;
    let mut grpc = Grpc::to(&app).await;
    let allowed = request(&mut grpc, LS).await;
    assert!(allowed.passes());
    allowed.task();
    let denied = request(&mut grpc, r#"{"name":"Bash","arguments":{"command":"rm"}}"#).await;
    let members = denied.members();
    assert_eq!(
        (&members["state"], &members["outcome"], &members["decision"]),
        (&json!("settled"), &json!("denied"), &json!("deny"))
    );
    assert!(denied.reason().contains("Not here"), "{}", denied.reason());
    let invalid = request(
        &mut grpc,
        r#"{"name":"Bash","arguments":{"command":"ls","command":"rm"}}"#,
    )
    .await;
    assert_eq!(invalid.members()["outcome"], "invalid");
    let unlisted = request(&mut grpc, r#"{"name":"Other","arguments":{}}"#).await;
    assert_eq!(unlisted.members()["outcome"], "invalid");
    app.stop().await;
}

#[apply(on_both)]
async fn approved_call_passes_once_as_it_is(on: On) {
    let app = guardrails(on, REQUIRED).await;
    let mut grpc = Grpc::to(&app).await;
    let first = held(&mut grpc, MAKE).await;
    resume(&app, &first, r#"{"action":"approve"}"#).await;
    let passed = request(&mut grpc, MAKE).await;
    assert!(passed.passes());
    passed.task();
    let again = held(&mut grpc, MAKE).await;
    assert_ne!(first, again);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn approval_covers_no_input_that_the_approved_call_did_not_have() {
    let app = guardrails(On::Sqlite, REQUIRED).await;
    let mut grpc = Grpc::to(&app).await;
    let first = held(&mut grpc, MAKE).await;
    resume(&app, &first, r#"{"action":"approve"}"#).await;
    let input = r#"{"requestState":"s","inputResponses":{"q":{"action":"accept"}},"#;
    let leg = MAKE.replacen('{', input, 1);
    assert_ne!(held(&mut grpc, &leg).await, first);
    let reason = request(&mut grpc, &leg).await.reason();
    assert!(reason.contains("you cannot make it again"), "{reason}");
    let input = format!(r#"{{"inputResponses":"{}","#, "x".repeat(17 * 1024));
    let large = MAKE.replacen('{', &input, 1);
    let refused = request(&mut grpc, &large).await;
    assert_eq!(refused.members()["outcome"], "invalid");
    assert!(request(&mut grpc, MAKE).await.passes());
    app.stop().await;
}

#[apply(on_both)]
async fn edited_call_is_mutated_and_its_other_members_stay(on: On) {
    let app = guardrails(on, REQUIRED).await;
    let mut grpc = Grpc::to(&app).await;
    let first = held(&mut grpc, MAKE).await;
    let shown = app.owner().request(&first).await;
    assert!(
        shown.body["allowed_actions"].to_string().contains("edit"),
        "{}",
        shown.text
    );
    resume(
        &app,
        &first,
        r#"{"action":"edit","arguments":{"command":"make x","timeout":1.0}}"#,
    )
    .await;
    let changed = request(&mut grpc, MAKE).await;
    assert_eq!(
        changed.mutated(),
        r#"{"_meta":{"n": 1.0},"arguments":{"command":"make x","timeout":1.0},"name":"Bash"}"#
    );
    changed.task();
    app.stop().await;
}

#[apply(on_both)]
async fn rejected_and_answered_calls_say_so_in_the_error(on: On) {
    let app = guardrails(on, REQUIRED).await;
    let mut grpc = Grpc::to(&app).await;
    let first = held(&mut grpc, MAKE).await;
    resume(
        &app,
        &first,
        r#"{"action":"reject","reason":"Not on a Friday."}"#,
    )
    .await;
    let rejected = request(&mut grpc, MAKE).await;
    let members = rejected.members();
    assert_eq!(
        (&members["state"], &members["outcome"]),
        (&json!("settled"), &json!("rejected"))
    );
    assert!(
        rejected
            .reason()
            .contains("Not on a Friday. It has not run."),
        "{}",
        rejected.reason()
    );
    let other = r#"{"name":"Bash","arguments":{"command":"date"}}"#;
    let second = held(&mut grpc, other).await;
    resume(
        &app,
        &second,
        r#"{"action":"respond","result":"It is Tuesday."}"#,
    )
    .await;
    let answered = request(&mut grpc, other).await;
    assert_eq!(
        (
            answered.members()["outcome"].as_str(),
            answered.reason().as_str()
        ),
        (Some("responded"), "It is Tuesday.")
    );
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn upstreams_whose_names_are_ambiguous_are_refused() {
    let app = gateway_app(JUDGE).await;
    let mut grpc = Grpc::to(&app).await;
    let params = r#"{"name":"pay"}"#;
    let cases: [&[&str]; 5] = [&["a__b"], &["a_"], &[""], &[], &["a", "b"]];
    for services in cases {
        let call = message(services, "tools/call", params, "alice");
        let message = grpc.call(REQUEST, EDGE, &call).await.message;
        let refused = CheckAnswer { message };
        assert_eq!(
            refused.text(&[3, 1]),
            "1",
            "PERMISSION_DENIED: {services:?}"
        );
        let reason = refused.reason();
        assert!(reason.starts_with("A call has one upstream"), "{reason}");
    }
    for params in [r#"{"name":"a","name":"b"}"#, "[]", "", r#"{"Name":"a"}"#] {
        let call = message(&["up"], "tools/call", params, "alice");
        let refused = grpc.call(REQUEST, EDGE, &call).await;
        assert_eq!(
            at(&refused.message, &[3, 1]).unwrap(),
            b"3",
            "INVALID: {params}"
        );
    }
    let call = message(&["a_b"], "tools/call", params, "alice");
    let message = grpc.call(REQUEST, EDGE, &call).await.message;
    assert_eq!(CheckAnswer { message }.members()["state"], "pending");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_methods_pass_without_the_clients_ids_or_are_refused() {
    let list = message(&["up"], "tools/list", "{}", "alice");
    let mut twice = list.clone();
    twice.extend(field(5, &pair("X-User", b"carol")));
    let strict = "hold: 0s\n    ext_authz: { user_header: x-user, pass_others: false }";
    for (settings, passes) in [(REQUIRED, true), (strict, false)] {
        let app = gateway_app(settings).await;
        let mut grpc = Grpc::to(&app).await;
        let answered = grpc.call(REQUEST, EDGE, &list).await;
        assert_eq!(at(&answered.message, &[1]).is_some(), passes);
        let removed = fields(&at(&answered.message, &[4]).unwrap_or_default());
        assert_eq!(removed.len(), if passes { 2 } else { 0 }, "{removed:?}");
        let answered = grpc.call(REQUEST, EDGE, &twice).await;
        assert_eq!(answered.status, Some(7), "two users");
        app.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn call_whose_user_is_named_twice_is_refused() {
    let app = guardrails(On::Sqlite, REQUIRED).await;
    let mut grpc = Grpc::to(&app).await;
    let mut twice = message(&["up"], "tools/call", LS, "alice");
    twice.extend(field(5, &pair("X-User", b"carol")));
    assert_eq!(grpc.call(REQUEST, EDGE, &twice).await.status, Some(7));
    app.stop().await;
}
