//! Tests of credentials in the environment of a command.

use super::*;

fn holding(value: &str) -> Credentials {
    let mut credentials = Credentials::default();
    credentials.insert(
        "crm",
        BTreeMap::from([("token".to_owned(), Secret::new(value.to_owned()))]),
    );
    credentials
}

fn taking(directory: &Path) -> ShellTool {
    let mut tool = tool(directory, Duration::from_secs(20), 1000);
    let value = Secret::new("key={{credential:crm.token}};".to_owned());
    tool.settings.env.0.insert("CRM".to_owned(), Some(value));
    tool
}

#[tokio::test]
async fn credential_is_in_the_commands_environment_and_in_no_command_line() {
    let directory = tempfile::tempdir().unwrap();
    let tool = taking(directory.path());
    assert_eq!(
        tool.settings.credential_names(),
        BTreeSet::from(["crm".to_owned()])
    );
    // The command reads the command lines of all processes on the machine, including those of
    // concurrent tests. Therefore no other test may use these values.
    for value in [
        "in-no-line-hunter2",
        "$(echo x) `id` \"q\" 'q'",
        "clé-中文-😀",
        "{{credential:crm.token}}",
        "\\n\\0 end",
    ] {
        let command = "printf %s \"$CRM\" > got; cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' > lines; true";
        let call = Invocation {
            credentials: holding(value),
            ..invocation(command)
        };
        assert_eq!(tool.call(&call).await, succeeded("exit code 0"));
        let read = |name: &str| {
            String::from_utf8_lossy(&std::fs::read(directory.path().join(name)).unwrap())
                .into_owned()
        };
        assert_eq!(read("got"), format!("key={value};"));
        assert!(
            read("lines").contains("/bin/sh") && !read("lines").contains(value),
            "{value}"
        );
    }
}

#[tokio::test]
async fn command_output_shows_a_credential_by_its_name_only() {
    let directory = tempfile::tempdir().unwrap();
    let tool = taking(directory.path());
    let shown = |end: &str| {
        let command = format!(
            "echo \"$CRM\"; echo \"$CRM\" >&2; printf %s \"$TOKEN\" | base64; printf %s \"${{CRM#key=}}\" | tr -d ';' | base64; {end}"
        );
        Invocation {
            credentials: holding("hunter2-hunter2"),
            ..invocation(&command)
        }
    };
    let expected = "stdout:\nkey=[secret crm.token];\n[secret TOKEN]\n[secret crm.token]\nstderr:\nkey=[secret crm.token];";
    assert_eq!(
        tool.call(&shown("true")).await,
        succeeded(&format!("exit code 0\n{expected}"))
    );
    assert_eq!(
        tool.call(&shown("exit 3")).await,
        failed(&format!("exit code 3\n{expected}"))
    );
    // A credential of the call is redacted, even if the tool does not refer to this credential.
    let plain = tool_that_takes_nothing(directory.path());
    let echo = Invocation {
        credentials: holding("hunter2-hunter2"),
        ..invocation("echo hunter2-hunter2")
    };
    assert_eq!(
        plain.call(&echo).await,
        succeeded("exit code 0\nstdout:\n[secret crm.token]")
    );
}

fn tool_that_takes_nothing(directory: &Path) -> ShellTool {
    tool(directory, Duration::from_secs(20), 1000)
}

#[tokio::test]
async fn command_with_a_missing_or_unsendable_credential_is_not_started() {
    let directory = tempfile::tempdir().unwrap();
    let tool = taking(directory.path());
    let missing =
        "The tool `Shell` failed before the command was started: the credential `crm` is missing.";
    let not_started = ToolAnswer::NotSent {
        content: missing.to_owned(),
    };
    assert_eq!(tool.call(&invocation("touch there")).await, not_started);
    for value in ["v4lue\0", "v4lue\r\n", "v4lue\u{1b}"] {
        let call = Invocation {
            credentials: holding(value),
            ..invocation("touch there")
        };
        let ToolAnswer::NotSent { content } = tool.call(&call).await else {
            panic!("it began")
        };
        assert!(
            content.contains("the field `token` of the credential `crm`")
                && !content.contains("v4lue"),
            "{content}"
        );
    }
    assert!(!directory.path().join("there").exists());
}

#[tokio::test]
async fn command_leaves_no_core_file_with_its_environment() {
    let limits =
        r"sed -n 's/^Max core file size *\([0-9]*\) *\([0-9]*\).*/\1 \2/p' /proc/self/limits";
    // Where the hard limit is 0, the guard may not raise it.
    let small = ["1 1", "0 0"].map(|limits| succeeded(&format!("exit code 0\nstdout:\n{limits}")));
    let answer = run(limits).await;
    assert!(small.contains(&answer), "{answer:?}");
}
