//! Tests of rules that allow tools of MCP servers, and of their approvers, who answer the servers'
//! questions.

use super::*;

const UNANSWERED: &str =
    "no tenant can satisfy this rule: it needs 1 different people, and 0 could answer";
/// A revision in which a server may ask in the middle of a call.
const ASKING: &str = "2026-07-28";

/// Loads a file in which a rule allows these tools with these approvers. The server `files` was
/// reviewed with the revision `protocol`. Eve's key may not decide, and Bob gets mails. Returns the
/// lines of `check` about the rule, or the mistakes.
fn allowing(protocol: &str, tools: &str, approvers: &str) -> Result<Vec<String>, String> {
    let tool = "tools:\n  post: { http: { url: 'http://h/' } }\n  close_ticket:";
    let file = FILE.replace("tools:\n  close_ticket:", tool);
    assert_ne!(file, FILE);
    let auth = "auth: { api_keys: [ { user: bob, key: '0123456789abcdef' }, { user: eve, may: [create, read], key: '0123456789abcdeF' } ], people: [ { user: bob, email: b@acme.com } ] }";
    let rule = format!("name: r, tools: [{tools}], decide: allow, approvers: {{ {approvers} }}");
    let notify = "notify: { mail: { url: 'smtp://smtp.acme.com', from: h@acme.com }, to: [ { name: by-mail, mail: { to: { users: [bob] } } } ] }";
    let text = format!("{file}{auth}\npolicy: [ {{ {rule} }} ]\n{notify}\n");
    let mut lock = lock();
    lock["servers"]["files"]["protocol"] = json!(protocol);
    load_with(&text, Some(&lock.to_string())).map(|config| config.recipient_lines())
}

#[test]
fn rule_that_allows_a_tool_of_a_server_by_name_needs_approvers_who_could_answer_its_questions() {
    for approvers in [
        "users: [eve]",
        "groups: [none]",
        "users: [eve], required: 2",
    ] {
        let mistakes = allowing(ASKING, "fs_write_file", approvers).unwrap_err();
        assert!(mistakes.contains(UNANSWERED), "{approvers}: {mistakes}");
    }
    let reached = "A question of the rule `r` reaches bob (by-mail).".to_owned();
    for (tools, approvers, lines) in [
        (
            "fs_write_file",
            "users: [bob], required: 2",
            vec![reached.clone()],
        ),
        ("fs_write_file", "users: [eve], owner: true", vec![reached]),
        ("fs_write_file", "", vec![]),
        // The owner answers, because no rule names the tool exactly.
        ("'fs_*'", "users: [eve]", vec![]),
        // This tool asks no question.
        ("post", "users: [eve]", vec![]),
    ] {
        let found = allowing(ASKING, tools, approvers);
        assert_eq!(found, Ok(lines), "{tools} {approvers}");
    }
}

#[test]
fn rule_that_allows_a_tool_of_a_server_that_cannot_ask_has_no_questions() {
    for protocol in ["2025-06-18", "2025-11-25"] {
        for approvers in ["users: [eve]", "users: [bob]"] {
            let found = allowing(protocol, "fs_write_file", approvers);
            assert_eq!(found, Ok(vec![]), "{protocol} {approvers}");
        }
    }
}
