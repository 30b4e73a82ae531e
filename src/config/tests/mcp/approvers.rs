//! Tests of rules that allow tools of MCP servers, and of their approvers, who answer the servers'
//! questions.

use super::*;

const UNANSWERED: &str =
    "no tenant can satisfy this rule: it needs 1 different people, and 0 could answer";

/// Loads a file in which a rule allows these tools with these approvers. Eve's key may not decide,
/// and Bob gets mails. Returns the lines of `check` about the rule, or the mistakes.
fn allowing(tools: &str, approvers: &str) -> Result<Vec<String>, String> {
    let tool = "tools:\n  post: { http: { url: 'http://h/' } }\n  close_ticket:";
    let file = FILE.replace("tools:\n  close_ticket:", tool);
    assert_ne!(file, FILE);
    let auth = "auth: { api_keys: [ { user: bob, key: '0123456789abcdef' }, { user: eve, may: [create, read], key: '0123456789abcdeF' } ], people: [ { user: bob, email: b@acme.com } ] }";
    let rule = format!("name: r, tools: [{tools}], decide: allow, approvers: {{ {approvers} }}");
    let notify = "notify: { mail: { url: 'smtp://smtp.acme.com', from: h@acme.com }, to: [ { name: by-mail, mail: { to: { users: [bob] } } } ] }";
    let text = format!("{file}{auth}\npolicy: [ {{ {rule} }} ]\n{notify}\n");
    read(&text).map(|config| config.recipient_lines())
}

#[test]
fn rule_that_allows_a_tool_of_a_server_by_name_needs_approvers_who_could_answer_its_questions() {
    for approvers in [
        "users: [eve]",
        "groups: [none]",
        "users: [eve], required: 2",
    ] {
        let mistakes = allowing("fs_write_file", approvers).unwrap_err();
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
        assert_eq!(allowing(tools, approvers), Ok(lines), "{tools} {approvers}");
    }
}
