//! Tests that a mistake hides no other mistake beside it, and brings no line that follows from it.

use super::*;

#[test]
fn mistake_in_a_scope_of_remember_does_not_hide_that_it_covers_no_calls() {
    let rule = |name: &str, remember: &str| {
        format!("{{ name: {name}, tools: [t], decide: hold, remember: {{ {remember} }} }}")
    };
    let (one, two) = (
        rule("x", "for: [x], most: 1h"),
        rule("y", "same: 1, for: [task], most: 1h"),
    );
    let found = read(&format!("{BASE}{TOOL}policy:\n- {one}\n- {two}\n"));
    assert_eq!(
        found.err().unwrap_or_default(),
        [
            "5:40: policy[0].remember: exactly one of `same: true` and `when`",
            "5:58: policy[0].remember.for[0]: expected one of `task`, `owner`",
            "6:52: policy[1].remember.same: expected true or false, found a number",
        ]
    );
}
