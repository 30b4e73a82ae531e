//! The examples of `docs/configuration.md`.

use super::holdpoint;
use super::served_binary::Folder;

#[test]
fn examples_of_the_configuration_page_are_accepted_by_check() {
    let page = include_str!("../../docs/configuration.md");
    let blocks = page.split("```yaml\n").skip(1);
    let examples: Vec<&str> = blocks
        .filter_map(|rest| Some(rest.split_once("```")?.0))
        .collect();
    assert!(examples.len() >= 10, "{}", examples.len());
    let folder = Folder::new();
    std::fs::write(folder.path().join("page.yaml"), examples.concat()).unwrap();
    let variables = [
        ("ALICE_KEY", "alice-key-0123456789"),
        ("BOB_KEY", "bob-key-0123456789abc"),
        ("WEB_KEY", "web-key-0123456789abc"),
        (
            "SEALING_KEY",
            "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
        ),
        ("OPENAI_API_KEY", "sk-of-the-operator-0123"),
        ("PATH", "/usr/bin:/bin"),
    ];
    let check = holdpoint(
        folder.path(),
        &["check", "--config", "page.yaml"],
        &variables,
    );
    assert_eq!(
        (check.code, check.err.as_str()),
        (Some(0), ""),
        "{}",
        check.out
    );
}
