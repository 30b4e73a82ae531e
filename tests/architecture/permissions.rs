//! Checks that only `people/authorization.rs` decides by the permissions of a caller, so that each
//! right is checked in one place.

use super::sources;

/// The operation that shows the caller their permissions.
const SHOWS_PERMISSIONS: &str = "src/http/api/me.rs";

/// Returns the places outside of tests that read a permission of a caller, or whether the caller is
/// an admin.
fn permission_reads(text: &str) -> Vec<String> {
    let read = r"\bpermissions\s*\.\s*(create|read|decide|gate)\b|\bcaller\s*\.\s*admin\b";
    let read = regex::Regex::new(read).expect("a pattern");
    let code = text.split("#[cfg(test)]\nmod tests {").next();
    read.find_iter(code.unwrap_or_default())
        .map(|found| found.as_str().to_owned())
        .collect()
}

#[test]
fn permissions_are_judged_only_by_the_functions_of_authorization() {
    let wrong: Vec<String> = sources("src")
        .iter()
        .filter(|source| !source.is_of_tests() && !source.path.starts_with("src/people/"))
        .filter(|source| source.path != SHOWS_PERMISSIONS)
        .flat_map(|source| {
            let reads = permission_reads(&source.text).into_iter();
            reads.map(move |read| format!("{}: {read}", source.path))
        })
        .collect();
    assert!(
        wrong.is_empty(),
        "`people/authorization.rs` checks rights:\n{}",
        wrong.join("\n")
    );
    for text in [
        "if caller.permissions.decide {",
        "caller\n    .permissions\n    .read",
        "let all = site.caller.admin;",
    ] {
        assert_eq!(permission_reads(text).len(), 1, "{text}");
    }
    for text in [
        "permissions: Permissions::ALL,",
        "may_decide_any(caller)",
        "administrator_of(caller.admin_group)",
        "#[cfg(test)]\nmod tests {\n    reader.permissions.decide = false;",
    ] {
        assert!(permission_reads(text).is_empty(), "{text}");
    }
}
