//! Tests that messages contain no secret values. Also tests that a `${…}` in a JSON Schema stands
//! only in a `description` or `title`, and that a tool's target, which people see, has the
//! unexpanded `${…}`.

use super::*;

#[test]
fn short_value_of_a_variable_is_not_shown_in_the_line_about_its_place() {
    for value in ["tiny1", "x"] {
        let text = WHOLE.replace("model: main\n", "model: \"${HIDDEN}\"\n");
        let report = with(&text, &[("HIDDEN", value)], &Flags::default()).unwrap_err();
        let report = report.to_string();
        assert!(report.contains("`[secret HIDDEN]`"), "{report}");
        assert!(!report.contains(&format!("`{value}`")), "{report}");
    }
}

#[test]
fn value_of_an_overriding_variable_is_not_shown_in_the_line_about_its_place() {
    for value in ["tiny1", "x"] {
        let variable = [("HOLDPOINT_AGENTS__BILLING__MODEL", value)];
        let report = with(WHOLE, &variable, &Flags::default()).unwrap_err();
        let report = report.to_string();
        let hidden = "no model is called `[secret HOLDPOINT_AGENTS__BILLING__MODEL]`";
        assert!(report.contains(hidden), "{report}");
        assert!(!report.contains(&format!("`{value}`")), "{report}");
    }
}

#[test]
fn short_value_of_a_variable_is_not_shown_in_a_line_about_its_entry() {
    let key =
        |key: &str, groups: &str| format!("{{ user: \"${{HIDDEN}}\", {groups}key: '{key}' }}");
    let keys = [
        key("0123456789abcdef", ""),
        key("0123456789abcdeF", "groups: [g], "),
    ];
    let auth = format!("auth: {{ api_keys: [{}] }}\n", keys.join(", "));
    let text = format!("{auth}{SMALLEST}");
    let report = with(&text, &[("HIDDEN", "bob")], &Flags::default()).unwrap_err();
    let report = report.to_string();
    let hidden = "the user `[secret HIDDEN]` has other groups";
    assert!(
        report.contains(hidden) && !report.contains("bob"),
        "{report}"
    );
}

#[test]
fn short_value_of_a_variable_is_not_shown_as_the_name_of_a_rule() {
    for value in ["tiny1", "x"] {
        let rule = "policy: [{ name: \"${HIDDEN}\", tools: [gone], decide: hold }]\n";
        let text = format!("{SMALLEST}{rule}");
        let report = with(&text, &[("HIDDEN", value)], &Flags::default()).unwrap_err();
        let report = report.to_string();
        let hidden = "policy[0].tools[0]: rule `[secret HIDDEN]`: `gone` names no tool";
        assert!(report.contains(hidden), "{report}");
        assert!(!report.contains(&format!("`{value}`")), "{report}");
    }
}

#[test]
fn value_that_is_a_word_of_a_message_is_not_hidden_in_it() {
    let text = WHOLE.replace("migrate: true", "migrate: \"${HIDDEN}\"");
    let report = with(&text, &[("HIDDEN", "true")], &Flags::default()).unwrap_err();
    let report = report.to_string();
    assert!(
        report.contains("database.migrate: expected true or false, found text"),
        "{report}"
    );
}

#[test]
fn variable_in_a_condition_of_a_rule_that_remembers_is_refused() {
    let condition = "'${HIDDEN}' == user.id";
    for (when, remembered) in [(condition, "true"), ("true", condition)] {
        let rule = format!(
            "\npolicy:\n  - {{ name: again, tools: [lookup_order], decide: hold, when: \"{when}\", \
             remember: {{ when: \"{remembered}\", for: [task], most: 1h, uses: 5 }} }}"
        );
        let text = WHOLE.replacen("\npolicy:", &rule, 1);
        let variables = [("HIDDEN", "sk-hidden-0123456789")];
        let report = with(&text, &variables, &Flags::default()).unwrap_err();
        let report = format!("{report}");
        assert!(
            report.contains("has no `${…}` in its conditions") && !report.contains("sk-hidden"),
            "{report}"
        );
    }
}

#[test]
fn messages_never_show_a_value() {
    let hidden = "sk-hidden-0123456789";
    let text = WHOLE
        .replace("listen: 127.0.0.1:8080", "listen: \"${HIDDEN}\"")
        .replace("timeout: 60s", "timeout: \"${HIDDEN}\"")
        .replace("retries: 4", "retries: \"${HIDDEN}\"")
        .replace("effect: read_only", "effect: \"${HIDDEN}\"")
        .replace("model: main\n", "model: \"${HIDDEN}\"\n")
        .replace(
            "{ X-Key: \"${ORDERS_KEY}\" }",
            "{ X-Key: \"${HIDDEN}\\n\" }",
        )
        .replace("url: sqlite://holdpoint.db", "url: \"${HIDDEN}\"")
        .replace(
            "{ id: k1, key: \"${SEALING_KEY}\" }",
            "{ id: k1, key: \"${HIDDEN}\" }",
        )
        .replace(
            "user: bob,   tenant: acme, groups: [finance], key: \"${BOB_KEY}\"",
            "user: bob, groups: \"${HIDDEN}\", key: \"${HIDDEN} \"",
        )
        .replace(
            "tools: [lookup_order], decide: allow",
            "tools: [\"${HIDDEN}\"], decide: \"${HIDDEN}\"",
        );
    let variables = [
        ("HIDDEN", hidden),
        (
            "HOLDPOINT_AUTH__API_KEYS__OPS__KEY",
            "sk-hidden-over 12345678",
        ),
        ("HOLDPOINT_MODELS__MAIN__API_KEY", "[sk-hidden-over"),
    ];
    let report = with(&text, &variables, &Flags::default()).unwrap_err();
    assert!(report.mistakes.len() >= 11, "{report}");
    assert!(!report.to_string().contains("sk-hidden"), "{report}");
    assert!(!format!("{report:?}").contains("sk-hidden"));
}

#[test]
fn secrets_are_found_wherever_they_stand_but_not_in_names_and_texts() {
    let text = WHOLE
        .replace(
            "description: Pay an order back.",
            "description: \"Shown ${SHOWN}\"",
        )
        .replace(
            "http://payments.internal/refunds",
            "http://${SHOWN}/refunds",
        )
        .replace("key: \"${BOB_KEY}\"", "key: literal-key-0123456789")
        .replace(
            "body: { temperature: 0 }",
            "body: { user: \"${file:/run/key}\" }",
        );
    let variables = [
        ("SHOWN", "shown-value-1234"),
        (
            "HOLDPOINT_TOOLS__REFUND_PAYMENT__HTTP__HEADERS",
            "{ X: header-secret-1 }",
        ),
    ];
    let (config, _) = with(&text, &variables, &Flags::default()).unwrap();
    let names: Vec<_> = config
        .secret_values
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(
        names,
        [
            "ALICE_KEY",
            "WEB_KEY",
            "OPS_KEY",
            "SEALING_KEY",
            "OPENAI_API_KEY",
            "key",
            "ORDERS_KEY",
            "auth.api_keys.1.key",
            "HOLDPOINT_TOOLS__REFUND_PAYMENT__HTTP__HEADERS",
        ]
    );
    let cleaned = config
        .redactor()
        .redact("shown-value-1234 orders-secret-value header-secret-1 key-from-a-file-012345")
        .into_owned();
    assert_eq!(
        cleaned,
        "shown-value-1234 [secret ORDERS_KEY] [secret HOLDPOINT_TOOLS__REFUND_PAYMENT__HTTP__HEADERS] [secret key]"
    );
    let unexpanded = config.unexpanded.to_string();
    for (name, value) in VARIABLES
        .iter()
        .chain(&variables)
        .filter(|(name, _)| !["PATH", "SHOWN"].contains(name))
    {
        assert!(!unexpanded.contains(value), "{name}");
    }
    assert!(!unexpanded.contains("header-secret"));
    assert_eq!(
        config.unexpanded(&["tools", "lookup_order", "http", "headers", "X-Key"]),
        "${ORDERS_KEY}"
    );
    assert!(!format!("{config:?}").contains("secret-value"));
}

#[test]
fn filled_in_value_is_shown_in_neither_schema_nor_directory() {
    let text = "models: { m: { provider: openai, model: x } }
agents: { a: { model: m, tools: [s, t] } }
tools:
  s: { shell: { working_dir: '/srv/${WHERE}' } }
  t: { external: { result: { enum: ['${WHERE}'] } }, parameters: { description: '${WHERE}', properties: { p: { const: '${WHERE}' } } } }
";
    let mistakes = with(text, &[("WHERE", "secret-place")], &Flags::default()).unwrap_err();
    let shown = "models and approvers see this schema: a `${…}` may stand in its `description` and `title` only";
    assert_eq!(
        lines(&mistakes),
        [
            format!("5:37: tools.t.external.result.enum[0]: {shown}"),
            format!("5:112: tools.t.parameters.properties.p.const: {shown}"),
        ]
    );
    let (config, _) = with(
        &text
            .replace("['${WHERE}']", "[a]")
            .replace("const: '${WHERE}'", "const: a"),
        &[("WHERE", "secret-place")],
        &Flags::default(),
    )
    .unwrap();
    let catalog = Catalog::build(
        config.tools.clone(),
        &Net::new().unwrap(),
        &Arc::default(),
        &mut Mistakes::default(),
    );
    assert_eq!(catalog.get("s").unwrap().spec.target, "shell /srv/${WHERE}");
}

#[test]
fn credential_in_a_header_is_a_secret_without_its_scheme() {
    let overrides = [
        (
            "HOLDPOINT_TOOLS__REFUND_PAYMENT__HTTP__HEADERS__AUTHORIZATION",
            "Bearer sk-tool-0123456789",
        ),
        (
            "HOLDPOINT_MODELS__MAIN__HEADERS__AUTHORIZATION",
            "Bearer sk-model-0123456789",
        ),
    ];
    let (config, _) = with(WHOLE, &overrides, &Flags::default()).unwrap();
    for (name, value) in overrides {
        let alone = value.strip_prefix("Bearer ").unwrap();
        assert_eq!(config.redactor().redact(alone), format!("[secret {name}]"));
    }
    let title = [("HOLDPOINT_MODELS__MAIN__HEADERS__X_TITLE", "Acme Helpdesk")];
    let (config, _) = with(WHOLE, &title, &Flags::default()).unwrap();
    assert_eq!(config.redactor().redact("Helpdesk"), "Helpdesk");
    let text = "mcp: { s: { url: 'https://h/', headers: { Authorization: '${FILLED}' } } }\n";
    let environment = Environment::new(&[("FILLED", "Bearer sk-server-0123456789")], &[]);
    let source = Source::File("/etc/h.yaml".into(), text.to_owned());
    let (servers, _) = load_mcp(source, &environment, &Flags::default()).unwrap();
    assert_eq!(
        servers.redactor().redact("sk-server-0123456789"),
        "[secret FILLED]"
    );
}

#[test]
fn password_in_the_database_url_is_a_secret() {
    for url in [
        "postgres://u:pass%20word-12@h/d",
        "postgres://u@h/d?password=pass%20word-12",
    ] {
        let text = WHOLE.replace("sqlite://holdpoint.db", url);
        let (config, _) = with(&text, &[], &Flags::default()).unwrap();
        assert_eq!(
            config.redactor().redact("it said pass word-12"),
            "it said [secret database.url]",
            "{url}"
        );
    }
}

#[test]
fn format_of_a_credential_field_is_one_that_a_form_can_check() {
    let file = |format: &str| {
        let credentials =
            format!("credentials: {{ k: {{ fields: {{ x: {{ format: {format} }} }} }} }}\n");
        let keys = "secrets: { keys: [ { id: a, key: 'MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=' } ] }\n";
        read(&format!(
            "models: {{ m: {{ provider: openai, model: x }} }}\nagents: {{ a: {{ model: m }} }}\n{keys}{credentials}"
        ))
    };
    for format in ["email", "uri", "date"] {
        assert!(file(format).is_ok(), "{format}");
    }
    for format in ["EMAIL", "date-time", "nope"] {
        let found = file(format).unwrap_err();
        assert_eq!(
            found,
            ["4:36: credentials.k.fields.x.format: expected one of `email`, `uri`, `date`"],
            "{format}"
        );
    }
}
