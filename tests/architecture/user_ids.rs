//! Checks that users' ids are compared only by the functions of `task/user.rs`. Other code must
//! not compare users' ids byte by byte.

use super::sources;

/// Comparisons that the check would wrongly report. Some of them compare other ids. Some use the
/// comparison of `UserId`. Some are byte-exact on purpose.
const COMPARED: [&str; 12] = [
    "approvers.owner == Some(false)",
    "*owner == engine.replica",
    "*user != caller.user_id",
    "spelling(record) == user.as_str()",
    "vote.by == LOCAL_USER",
    "k.user_id = $2 and k.path = $3",
    // The SQL texts below compare byte by byte on purpose: `Store::spellings` has already returned
    // each stored spelling of the user's id, and the parameter is one of these spellings.
    "kind = $3 and name = $4",
    "kind = $2 and name = $3",
    "kind = $4 and name = $5",
    "user_id = $2 and request_id < $3",
    "user_id = $4 and $3 = 'user'",
    "t.user_id = $2 and t.parent_task_id is null",
];

/// Returns the lines outside of tests that compare a user's id without the functions of
/// `task/user.rs`.
fn raw_comparisons(text: &str) -> Vec<String> {
    let name = r"(user_id|by|editor|owner|user)\b";
    let raw = format!(
        r"\b{name}\s*(==|!=)|(==|!=)\s*[&*]*(\w+\.)*{name}[^(]|\b(user_id|name|spelling) = \$"
    );
    let raw = regex::Regex::new(&raw).expect("a pattern");
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = code
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with("//") && raw.is_match(&format!("{line} ")));
    lines
        .filter(|line| !COMPARED.iter().any(|known| line.contains(known)))
        .map(str::to_owned)
        .collect()
}

#[test]
fn user_ids_are_never_compared_byte_by_byte() {
    let mut wrong = Vec::new();
    for source in sources("src") {
        if !source.is_of_tests() && source.path != "src/store/users.rs" {
            wrong.extend(
                raw_comparisons(&source.text)
                    .into_iter()
                    .map(|line| format!("{}: {line}", source.path)),
            );
        }
    }
    assert!(
        wrong.is_empty(),
        "user ids are compared by task/user.rs (`is_same_person`):\n{}",
        wrong.join("\n")
    );
    for line in [
        "if vote.by == user {",
        "a != row.user_id",
        "row.owner == caller.user_id",
        "where user_id = $2",
    ] {
        assert_eq!(raw_comparisons(line), [line]);
    }
    for line in [
        "let user = a == b;",
        "caller.user_id.is_same_person(&vote.by)",
        "// a.by == b",
        "user.key() == other.key()",
    ] {
        assert!(raw_comparisons(line).is_empty(), "{line}");
    }
}
