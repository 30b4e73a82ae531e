//! Tests of credentials in headers and URLs. The endpoint records the requests and echoes them.

use super::*;

fn holding(fields: &[(&str, &str)]) -> Credentials {
    let mut credentials = Credentials::default();
    let fields = fields
        .iter()
        .map(|(field, value)| ((*field).to_owned(), Secret::new((*value).to_owned())));
    credentials.insert("jira", fields.collect());
    credentials
}

fn tool_with(method: Method, url: String, headers: &[(&str, &str)]) -> Arc<dyn Tool> {
    let headers = headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), Secret::new((*value).to_owned())));
    let settings = catalog::Settings {
        description: String::new(),
        effect: Effect::Once,
        parameters: Some(any()),
        summary: None,
        raw: json!({"http": {"headers": {"Authorization": "Bearer {{credential:jira.token}}"}}}),
        http: Some(Settings {
            method,
            url,
            headers: headers.collect(),
            timeout: Duration::from_secs(5),
        }),
        ..catalog::Settings::default()
    };
    built(settings)
}

const AUTHORIZATION: (&str, &str) = ("Authorization", "Bearer {{credential:jira.token}}");

/// Credentials whose characters have a meaning in URLs, headers or templates. Each of them is long
/// enough to be redacted.
const HOSTILE: [&str; 6] = [
    "a/b?c#d@evil:80",
    ".../...admin",
    "%2e%2e%2d%0d%0a%00",
    "x&admin=true;y=1",
    "\"quoted\\ 'text'",
    "{{credential:jira.email}}{id}",
];

#[tokio::test]
async fn credential_is_filled_in_only_where_the_configuration_names_it() {
    for value in HOSTILE {
        let (origin, seen) = endpoint(vec![answer("200 OK", b"done")]).await;
        let url = format!(
            "{origin}/a/{{{{credential:jira.token}}}}/{{id}}?t={{{{credential:jira.token}}}}&z=1"
        );
        let tool = tool_with(
            Method::POST,
            url,
            &[AUTHORIZATION, ("X-Mail", "<{{credential:jira.email}}>")],
        );
        assert_eq!(tool.spec().needs, ["jira"]);
        assert_eq!(tool.spec().target, format!("POST {origin}"));
        let arguments = r#"{"id":"7","note":"{{credential:jira.token}}"}"#;
        let credentials = holding(&[("token", value), ("email", "a@b.example")]);
        let call = Invocation {
            credentials,
            ..invocation(arguments)
        };
        assert!(!format!("{call:?}").contains(value), "{call:?}");
        let answered = tool.call(&call).await;
        assert_eq!(
            answered,
            ToolAnswer::Succeeded {
                content: "done".to_owned(),
                http_status: Some(200)
            }
        );
        let seen = seen.await.unwrap().remove(0);
        let line = seen.lines().next().unwrap();
        let path = line
            .strip_prefix("POST ")
            .unwrap()
            .strip_suffix(" HTTP/1.1")
            .unwrap();
        let url = reqwest::Url::parse(&format!("{origin}{path}")).unwrap();
        let segments: Vec<_> = url
            .path_segments()
            .unwrap()
            .map(percent_encoding::percent_decode_str)
            .collect();
        let segments: Vec<_> = segments
            .into_iter()
            .map(|text| text.decode_utf8().unwrap())
            .collect();
        assert_eq!(segments, ["a", value, "7"]);
        let query: Vec<_> = url.query_pairs().into_owned().collect();
        assert_eq!(
            query,
            [
                ("t".to_owned(), value.to_owned()),
                ("z".to_owned(), "1".to_owned())
            ]
        );
        let host = origin.strip_prefix("http://").unwrap();
        assert!(seen.contains(&format!("\r\nhost: {host}\r\n")), "{seen}");
        assert!(
            seen.contains(&format!("\r\nauthorization: Bearer {value}\r\n")),
            "{seen}"
        );
        assert!(seen.contains("\r\nx-mail: <a@b.example>\r\n"), "{seen}");
        assert!(
            seen.ends_with(arguments),
            "what a model writes is never filled in: {seen}"
        );
    }
}

#[tokio::test]
async fn unicode_is_sent_as_utf_8() {
    let (origin, seen) = endpoint(vec![answer("200 OK", b"")]).await;
    let credentials = holding(&[("token", "clé-中文-😀")]);
    let tool = tool_with(
        Method::GET,
        format!("{origin}/{{{{credential:jira.token}}}}"),
        &[AUTHORIZATION],
    );
    let answered = tool
        .call(&Invocation {
            credentials,
            ..invocation("{}")
        })
        .await;
    assert!(
        matches!(answered, ToolAnswer::Succeeded { .. }),
        "{answered:?}"
    );
    let seen = seen.await.unwrap().remove(0);
    assert!(
        seen.starts_with("GET /cl%C3%A9-%E4%B8%AD%E6%96%87-%F0%9F%98%80 HTTP/1.1\r\n"),
        "{seen}"
    );
    assert!(
        seen.contains("\r\nauthorization: Bearer clé-中文-😀\r\n"),
        "{seen}"
    );
}

/// Asserts that the call fails with the reason `why` before a connection is made, and that the
/// error contains no value of a credential.
async fn not_sent(tool: &Arc<dyn Tool>, call: &Invocation, why: &str) {
    let call = Invocation {
        permit: AttemptPermit::permitted_while(|| panic!("it was about to be sent")),
        ..call.clone()
    };
    let ToolAnswer::NotSent { content } = tool.call(&call).await else {
        panic!("it was sent")
    };
    assert_eq!(
        content,
        format!("The tool `pay` failed before anything was sent: {why}.")
    );
}

#[tokio::test]
async fn call_with_a_missing_or_unsendable_credential_is_not_sent() {
    let nowhere = |path: &str| format!("http://127.0.0.1:9/{path}");
    let in_path = tool_with(Method::POST, nowhere("{{credential:jira.token}}/x"), &[]);
    let in_query = tool_with(Method::GET, nowhere("?k={{credential:jira.token}}"), &[]);
    let in_header = tool_with(Method::POST, nowhere(""), &[AUTHORIZATION]);
    let built_in = tool_with(
        Method::POST,
        "builtin:refunds/lookup_order".to_owned(),
        &[AUTHORIZATION],
    );
    for tool in [&in_path, &in_query, &in_header, &built_in] {
        assert_eq!(tool.spec().needs, ["jira"]);
        not_sent(tool, &invocation("{}"), "the credential `jira` is missing").await;
        let other = Invocation {
            credentials: holding(&[("email", "a@b.example")]),
            ..invocation("{}")
        };
        not_sent(tool, &other, "the credential `jira` has no field `token`").await;
        for value in [
            "v4lue\r\nX-Injected: 1",
            "v4lue\0",
            "v4lue\u{7f}",
            "v4lue\u{85}",
            "v4lue\t",
        ] {
            let call = Invocation {
                credentials: holding(&[("token", value)]),
                ..invocation("{}")
            };
            let why =
                "the field `token` of the credential `jira` has a character that cannot be sent";
            not_sent(tool, &call, why).await;
        }
    }
    for value in ["", ".", "..", "../../admin", "a%2f%2e%2e"] {
        let call = Invocation {
            credentials: holding(&[("token", value)]),
            ..invocation("{}")
        };
        let why = "the field `token` of the credential `jira` is empty, or has `.` or `..` between slashes or its ends, also \
                   after percent-decoding: no segment of a path may";
        not_sent(&in_path, &call, why).await;
    }
}

#[tokio::test]
async fn tool_response_is_searched_for_every_credential_in_hand() {
    let spellings = |value: &str| {
        let json = serde_json::to_string(value).unwrap();
        let base64 = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, value);
        format!(
            "{value} {} {} {base64}",
            &json[1..json.len() - 1],
            encoded(value)
        )
    };
    // The tool's URL refers only to the field `token`. The answer is redacted from the fields
    // `token` and `unused`. The field `short` is too short to be redacted.
    let values = [
        ("token", "hunter2/\"secret\"-é"),
        ("unused", "an0ther-one-1234"),
        ("short", "12345678901"),
    ];
    let mut body = String::from("you sent");
    for (_, value) in values {
        body.push(' ');
        body.push_str(&spellings(value));
    }
    for status in ["200 OK", "403 Forbidden"] {
        let (origin, _seen) = endpoint(vec![answer(status, body.as_bytes())]).await;
        let tool = tool_with(
            Method::GET,
            format!("{origin}/?k={{{{credential:jira.token}}}}"),
            &[],
        );
        let call = Invocation {
            credentials: holding(&values),
            ..invocation("{}")
        };
        let shown = match tool.call(&call).await {
            ToolAnswer::Succeeded { content, .. } | ToolAnswer::Failed { content, .. } => content,
            ToolAnswer::NotSent { content: problem }
            | ToolAnswer::Suspect { content: problem }
            | ToolAnswer::Unknown { problem } => panic!("{problem}"),
            ToolAnswer::Elicitation(asked) => panic!("{asked:?}"),
        };
        assert_eq!(shown.matches("[secret jira.token]").count(), 4, "{shown}");
        assert_eq!(shown.matches("[secret jira.unused]").count(), 4, "{shown}");
        for hidden in ["hunter2", "aHVudGVyMi", "an0ther", "YW4wdGhlci"] {
            assert!(!shown.contains(hidden), "{hidden}: {shown}");
        }
        assert!(
            shown.contains("12345678901"),
            "what is shorter than 12 characters is not looked for"
        );
    }
}

#[tokio::test]
async fn credential_across_the_cut_leaves_nothing_and_a_configured_secret_stays_redacted() {
    for pad in 2030..2050 {
        let body = format!(
            "{}hunter2-hunter2 s3cr3t-s3cr3t{}",
            "x".repeat(pad - 20),
            "y".repeat(500)
        );
        let (origin, _seen) = endpoint(vec![answer("403 Forbidden", body.as_bytes())]).await;
        let tool = tool_with(Method::POST, origin, &[AUTHORIZATION]);
        let call = Invocation {
            credentials: holding(&[("token", "hunter2-hunter2")]),
            ..invocation("{}")
        };
        let ToolAnswer::Failed { content, .. } = tool.call(&call).await else {
            panic!("no failure")
        };
        assert!(
            !content.contains("hun") && !content.contains("s3c"),
            "{content}"
        );
    }
}

#[tokio::test]
async fn lost_answer_reveals_nothing_that_was_sent() {
    for behaviour in [
        Behaviour::Reset,
        answer("502 Bad Gateway", b"hunter2-hunter2"),
    ] {
        let (origin, _seen) = endpoint(vec![behaviour]).await;
        let tool = tool_with(
            Method::POST,
            format!("{origin}/{{{{credential:jira.token}}}}"),
            &[AUTHORIZATION],
        );
        let call = Invocation {
            credentials: holding(&[("token", "hunter2-hunter2")]),
            ..invocation("{}")
        };
        let answered = tool.call(&call).await;
        assert!(
            unknown(&answered) && !format!("{answered:?}").contains("hunter2"),
            "{answered:?}"
        );
    }
}

#[test]
fn definition_reveals_no_values() {
    let tool = |url: &str| tool_with(Method::POST, url.to_owned(), &[AUTHORIZATION]);
    let (one, two) = (
        tool("http://h/{{credential:jira.token}}"),
        tool("http://h/{{credential:jira.email}}"),
    );
    assert_ne!(
        one.spec().definition,
        two.spec().definition,
        "another field is another definition"
    );
    assert_eq!(one.spec().target, "POST http://h");
    assert_eq!(one.spec().needs, ["jira"]);
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}
