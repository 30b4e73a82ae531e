//! Tests of the warning about an MCP server whose command fetches no exact version.

use super::*;

#[test]
fn command_that_fetches_no_exact_version_of_a_server_is_warned_about() {
    for (command, is_warned) in [
        ("[npx, -y, \"@scope/server\"]", true),
        ("[npx, -y, \"@scope/server@1\"]", true),
        ("[npx, -y, \"@scope/server@1.2.3\"]", false),
    ] {
        let yaml = format!("{BASE}mcp: {{ files: {{ command: {command} }} }}\n");
        let source = Source::File("/etc/holdpoint.yaml".into(), yaml);
        let (environment, flags) = (Environment::default(), Flags::default());
        let report = load(source, &environment, &flags, |_, _| {}).expect_err("no lock file");
        let warned = report.warnings.iter().any(|line| {
            line.path == "mcp.files.command" && line.detail.ends_with("name an exact version")
        });
        assert_eq!(warned, is_warned, "{report}");
    }
}
