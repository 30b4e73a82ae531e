//! Checks that code distinguishes kinds of request, and kinds of tool, only by their properties and
//! by exhaustive matches. So the compiler names each place that a new kind must be added to.

use std::sync::LazyLock;

use regex::Regex;

use super::sources;

static COMPARISON: LazyLock<Regex> = LazyLock::new(|| {
    let compared = r"(==|!=)\s*&?KIND|matches!\([^;]*?\bKIND|\blet KIND|\bKIND\w+\]\s*\.contains|\b_, KIND|\bKIND\w+, _\b";
    let kind = r"(?:\w+::)*(?:Request|Tool)Kind::";
    Regex::new(&compared.replace("KIND", kind)).expect("a pattern")
});

/// Returns the comparisons with a kind of request or of tool, outside of tests. If a kind is added,
/// the compiler does not report such a comparison.
fn comparisons(text: &str) -> Vec<String> {
    let code = text.split("#[cfg(test)]\nmod tests {").next();
    COMPARISON
        .find_iter(code.unwrap_or_default())
        .map(|found| found.as_str().to_owned())
        .collect()
}

#[test]
fn kinds_of_request_and_tool_differ_only_where_the_compiler_asks_for_a_new_kind() {
    let wrong: Vec<String> = sources("src")
        .iter()
        .filter(|source| !source.is_of_tests())
        .flat_map(|source| {
            let found = comparisons(&source.text);
            found
                .into_iter()
                .map(move |line| format!("{}: {line}", source.path))
        })
        .collect();
    assert!(
        wrong.is_empty(),
        "a property (`task/request_kind.rs`, `task/tool_spec.rs`) or an exhaustive match tells kinds apart:\n{}",
        wrong.join("\n")
    );
    for line in [
        "if kind == RequestKind::Approval {",
        "kind != RequestKind::Guidance",
        "matches!(kind, RequestKind::Approval | RequestKind::Guidance)",
        "matches!(row.kind(), RequestKind::Approval)",
        "if let RequestKind::Approval = kind {",
        "[RequestKind::Approval].contains(&kind)",
        "(_, RequestKind::Approval) => 1,",
        "(RequestKind::Approval, _) => 1,",
        "call.performer != ToolKind::External || call.attempts == 0",
        "matches!(spec.kind, ToolKind::Agent | ToolKind::Human)",
        "call.performer == crate::task::tool_spec::ToolKind::External",
    ] {
        assert_eq!(comparisons(line).len(), 1, "{line}");
    }
    for line in [
        "RequestKind::Approval | RequestKind::Guidance => 1,",
        "let kind = RequestKind::Approval;",
        "(ToolKind::Shell, target, settings.timeout)",
        "self.new_request(RequestKind::Credentials, calls, terms)",
    ] {
        assert!(comparisons(line).is_empty(), "{line}");
    }
}
