//! Tests of mistakes in tool settings, and of the contents of a tool's definition.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::secret::Secret;
use crate::task::text::canonical_json;
use crate::task::tool_spec::{Effect, ToolKind};
use crate::tool::{arguments, http, shell};

mod warnings;

#[expect(
    clippy::needless_pass_by_value,
    reason = "the tests write the value in place"
)]
fn http(method: &str, url: &str, parameters: Value) -> Settings {
    Settings {
        description: "Texts are not part of it.".to_owned(),
        effect: Effect::Once,
        parameters: Some(parameters.clone()),
        summary: None,
        http: Some(http::Settings {
            method: method.parse().unwrap(),
            url: url.to_owned(),
            headers: BTreeMap::from([(
                "X-Key".to_owned(),
                Secret::new("expanded-secret".to_owned()),
            )]),
            timeout: Duration::from_secs(30),
        }),
        raw: json!({"http": {"url": url, "headers": {"X-Key": "${ORDERS_KEY}"}}, "parameters": parameters}),
        ..Settings::default()
    }
}

fn shell(parameters: Option<Value>) -> Settings {
    Settings {
        http: None,
        shell: Some(shell::Settings {
            working_dir: "/srv/ops".to_owned(),
            env: shell::Env(BTreeMap::from([(
                "PATH".to_owned(),
                Some(Secret::new("/bin".to_owned())),
            )])),
            ..shell::Settings::default()
        }),
        parameters,
        raw: json!({"shell": {"env": ["PATH"]}}),
        ..http("POST", "http://h/", json!({}))
    }
}

fn external(result: Option<Value>) -> Settings {
    Settings {
        http: None,
        external: Some(external::Settings { result }),
        ..http("POST", "http://h/", json!({"type": "object"}))
    }
}

fn said(settings: &Settings) -> Vec<String> {
    let mut mistakes = Mistakes::default();
    settings.prepare("t", &mut mistakes);
    mistakes
        .found
        .iter()
        .map(|mistake| format!("{}: {}", mistake.place.join("."), mistake.detail))
        .collect()
}

fn built(settings: Settings) -> CatalogEntry {
    let mut mistakes = Mistakes::default();
    let net = Net::new().unwrap();
    let all = BTreeMap::from([("t".to_owned(), settings)]);
    let catalog = Catalog::build(all, &net, &Arc::default(), &mut mistakes);
    assert_eq!(mistakes.found, []);
    assert_eq!(catalog.specs().count(), 1);
    catalog.get("t").unwrap().clone()
}

/// Settings with one mistake each, and a part of the message about the mistake.
fn mistaken() -> Vec<(Settings, &'static str)> {
    let object =
        |properties: Value| json!({"type": "object", "properties": properties, "required": ["id"]});
    let id = || object(json!({"id": {"type": "string"}}));
    vec![
        (
            http("POST", "http://h/{id}", object(json!({}))),
            "tools.t.http.url: `{id}` is not declared",
        ),
        (
            http(
                "POST",
                "http://h/{id}",
                object(json!({"id": {"type": "object"}})),
            ),
            "tools.t.http.url: `{id}` must be declared",
        ),
        (
            http("POST", "http://h/{id}", object(json!({"id": {}}))),
            "tools.t.http.url: `{id}` must be declared",
        ),
        (
            http("POST", "http://{id}/", id()),
            "tools.t.http.url: `url` has a placeholder in its host",
        ),
        (
            http("GET", "http://h/", object(json!({"a": {"type": "array"}}))),
            "tools.t.parameters.properties.a: `a` goes into the query",
        ),
        (
            http(
                "DELETE",
                "http://h/",
                object(json!({"a": {"type": ["string", "object"]}})),
            ),
            "tools.t.parameters.properties.a",
        ),
        (
            http("GET", "http://h/?id=1", id()),
            "tools.t.parameters.properties.id: `id` is a name that the query",
        ),
        (
            http(
                "GET",
                "http://h/",
                json!({"type": "object", "additionalProperties": {"type": "object"}}),
            ),
            "tools.t.parameters.additionalProperties",
        ),
        (
            http("POST", "http://h/", json!({})),
            "tools.t.parameters.type: the schema of `t` must say `type: object`",
        ),
        (
            http("POST", "http://h/", json!({"type": "string"})),
            "must say `type: object`",
        ),
        (
            http("POST", "http://h/", object(json!({"a": {}, "A": {}}))),
            "differ only in case",
        ),
        (
            http(
                "POST",
                "http://h/",
                object(json!({"a": {"$ref": "http://x/"}})),
            ),
            "does not begin with `#`",
        ),
        (
            http(
                "POST",
                "http://h/",
                object(json!({"a": {"pattern": "(?=x)"}})),
            ),
            "pattern",
        ),
        (
            http("POST", "builtin:refunds/other", id()),
            "tools.t.http.url: `url` is not a built-in endpoint",
        ),
        (
            http("POST", "builtin:else", id()),
            "is not a built-in endpoint",
        ),
        (
            shell(Some(id())),
            "tools.t.parameters: `t` must declare `command`",
        ),
        (
            external(Some(json!({"type": "nonsense"}))),
            "tools.t.external.result.type: the schema at /type",
        ),
    ]
}

#[test]
fn every_mistake_is_reported_with_its_place() {
    for (settings, expected) in mistaken() {
        let found = said(&settings);
        assert!(
            found.iter().any(|mistake| mistake.contains(expected)),
            "{expected}: {found:?}"
        );
        assert!(!format!("{found:?}").contains("expanded-secret"));
    }
}

#[test]
fn mistake_in_a_url_hides_no_other_mistake_in_it() {
    let settings = http("POST", "http://u@h/{a}/{b}/{#x", json!({"type": "object"}));
    let of_url = |detail: &str| format!("tools.t.http.url: {detail}");
    assert_eq!(
        said(&settings),
        [
            of_url("`url` names a user; credentials belong in `headers`"),
            of_url("`url` has a `#`, which is never sent"),
            of_url("`url` has a `{` or `}` that is not part of a `{name}`"),
            of_url("`{a}` is not declared in the parameters of `t`"),
            of_url("`{b}` is not declared in the parameters of `t`"),
        ]
    );
}

#[test]
fn argument_in_the_path_is_not_said_to_go_into_the_query() {
    let parameters =
        json!({"type": "object", "properties": {"id": {"type": "object"}}, "required": ["id"]});
    assert_eq!(
        said(&http("GET", "http://h/{id}", parameters)),
        ["tools.t.http.url: `{id}` must be declared as text, a number or a boolean"]
    );
}

#[test]
fn sound_settings_report_no_mistake() {
    let object =
        |properties: Value| json!({"type": "object", "properties": properties, "required": ["id"]});
    let id = || object(json!({"id": {"type": "string"}}));
    for good in [
        http("GET", "http://h/{id}?a=1", id()),
        http("GET", "http://h/?id={id}", id()),
        http(
            "GET",
            "http://h/",
            object(json!({"id": {"$ref": "#/$defs/n"}, "e": {"enum": ["a", 1]}, "n": {"type": ["string", "null"]}})),
        )
        .with_defs(),
        http("POST", "http://h/", json!({"type": "object"})),
        http("POST", "builtin:refunds/lookup_order", id()),
        shell(None),
        shell(Some(shell::parameters())),
        external(None),
        external(Some(json!({"type": "object"}))),
    ] {
        assert_eq!(said(&good), Vec::<String>::new());
    }
}

#[test]
fn summary_that_names_what_no_call_declares_is_a_mistake() {
    let declared = || {
        json!({"type": "object", "properties": {"order": {"type": "integer"}},
            "allOf": [{"type": "object", "properties": {"amount": {"type": "number"}}}]})
    };
    let with = |summary: &str, settings: Settings| {
        said(&Settings {
            summary: Some(summary.to_owned()),
            ..settings
        })
    };
    let amout = "tools.t.summary: `{amout}` is not declared in the parameters of `t`";
    assert_eq!(
        with(
            "Refund {amout} for order {order}",
            http("POST", "http://h/", declared())
        ),
        [amout]
    );
    assert_eq!(with("Refund {amout}", external(None)), [amout]);
    assert_eq!(
        with("Run {cmd}", shell(None)),
        ["tools.t.summary: `{cmd}` is not declared in the parameters of `t`"]
    );
    assert_eq!(
        with("{}", external(None)),
        ["tools.t.summary: `{}` is not declared in the parameters of `t`"]
    );
    assert_eq!(
        with("Refund {order", http("POST", "http://h/", declared())),
        ["tools.t.summary: `summary` has a `{` that is not part of a `{name}`"]
    );
    assert_eq!(
        with("{order}: {amount}}", http("POST", "http://h/", declared())),
        Vec::<String>::new()
    );
    assert_eq!(with("Run {command}", shell(None)), Vec::<String>::new());
    assert_eq!(with("", external(None)), Vec::<String>::new());
}

impl Settings {
    fn with_defs(mut self) -> Self {
        self.parameters.as_mut().unwrap()["$defs"] = json!({"n": {"type": "integer"}});
        self
    }
}

#[test]
fn target_shows_only_what_an_approver_may_see() {
    assert_eq!(
        built(http(
            "POST",
            "http://payments.internal/refunds?k=1",
            json!({"type": "object"})
        ))
        .spec
        .target,
        "POST http://payments.internal"
    );
    assert_eq!(
        built(http("GET", "https://h:8443/x", json!({"type": "object"})))
            .spec
            .target,
        "GET https://h:8443"
    );
    let shell = built(shell(None)).spec;
    assert_eq!(
        (shell.target.as_str(), &shell.parameters),
        ("shell /srv/ops", &shell::parameters())
    );
    let external = built(external(Some(json!({"type": "object"}))));
    assert_eq!(external.spec.target, "external");
    assert!(external.tool.is_none() && external.result_schema.is_some());
}

#[test]
fn address_of_a_call_has_its_arguments_and_changes_no_definition() {
    let properties =
        json!({"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]});
    let entry = built(http(
        "POST",
        "http://payments.internal/refunds/{id}?k=1",
        properties,
    ));
    assert_eq!(
        entry.address(&json!({"id": "17"})),
        "POST http://payments.internal/refunds/17"
    );
    assert_eq!(
        entry.address(&json!({"id": "a/b?c"})),
        "POST http://payments.internal/refunds/a%2Fb%3Fc"
    );
    assert_eq!(
        entry.address(&json!({})),
        "POST http://payments.internal/refunds/{id}"
    );
    assert_eq!(
        entry.spec.target, "POST http://payments.internal",
        "the digest is over this one"
    );
    let refund = built(http(
        "POST",
        "builtin:refunds/refund_payment",
        json!({"type": "object"}),
    ));
    assert_eq!(
        refund.address(&json!({})),
        "POST builtin:refunds/refund_payment"
    );
    assert_eq!(built(shell(None)).address(&json!({})), "shell /srv/ops");
    assert_eq!(built(external(None)).address(&json!({})), "external");
}

#[test]
fn definition_changes_only_with_what_a_call_could_do() {
    let of = |settings: Settings| built(settings).spec.definition;
    let base = || {
        http(
            "POST",
            "http://h/x",
            json!({"type": "object", "properties": {"a": {"type": "string"}}}),
        )
    };
    let definition = of(base());
    assert!(
        definition.starts_with("sha256:") && definition.len() == 71,
        "{definition}"
    );

    let mut same = base();
    same.description = "Other words.".to_owned();
    same.summary = Some("Other {a}".to_owned());
    let Some(inner) = &mut same.http else {
        unreachable!()
    };
    inner.timeout = Duration::from_secs(1);
    inner.headers.insert(
        "X-Key".to_owned(),
        Secret::new("another value of the same variable".to_owned()),
    );
    assert_eq!(of(same), definition);

    let effect = Settings {
        effect: Effect::Idempotent,
        ..base()
    };
    let path = http("POST", "http://h/y", base().parameters());
    let host = http("POST", "http://i/x", base().parameters());
    let method = http("PUT", "http://h/x", base().parameters());
    let parameters = http(
        "POST",
        "http://h/x",
        json!({"type": "object", "properties": {"a": {"type": "integer"}}}),
    );
    let mut header = base();
    header.raw["http"]["headers"]["X-Key"] = json!("${OTHER_KEY}");
    let all = [
        effect,
        path,
        host,
        method,
        parameters,
        header,
        shell(None),
        external(None),
    ];
    let mut seen = BTreeSet::from([definition]);
    for changed in all {
        assert!(seen.insert(of(changed)));
    }
    let mut environment = shell(None);
    environment.raw["shell"]["env"] = json!(["PATH", "HOME"]);
    assert_ne!(of(environment), of(shell(None)));
}

#[test]
fn order_of_members_does_not_matter_to_a_definition() {
    let one: Value = serde_json::from_str(r#"{"b":{"y":1,"x":[{"d":1,"c":2}]},"a":1}"#).unwrap();
    assert_eq!(
        canonical_json(&one),
        r#"{"a":1,"b":{"x":[{"c":2,"d":1}],"y":1}}"#
    );
}

#[test]
fn tool_that_is_not_configured_takes_any_object_once_under_a_name_of_128_letters() {
    let entry = Catalog::unconfigured("files__read.all:v1/x-y").unwrap();
    let spec = &entry.spec;
    assert_eq!(
        (
            spec.name.as_str(),
            spec.kind,
            spec.effect,
            spec.target.as_str()
        ),
        (
            "files__read.all:v1/x-y",
            ToolKind::External,
            Effect::Once,
            "external"
        )
    );
    assert_eq!(spec.summarize(r#"{"a": 1}"#), spec.name);
    for fits in ["{}", r#"{"a": {"b": [1, null]}}"#] {
        assert!(arguments::read(fits, &entry.schema).is_ok(), "{fits}");
    }
    for misfit in ["[]", "1", r#"{"a": 1, "a": 2}"#] {
        assert!(arguments::read(misfit, &entry.schema).is_err(), "{misfit}");
    }
    assert!(entry.tool.is_none() && entry.result_schema.is_none());
    let open = Settings {
        parameters: Some(json!({"type": "object"})),
        ..external(None)
    };
    let open = Settings {
        raw: json!({"parameters": {"type": "object"}, "external": {}}),
        ..open
    };
    let configured = open.prepare("t", &mut Mistakes::default()).unwrap();
    assert_eq!(spec.definition, configured.0.spec.definition);
    assert!(Catalog::unconfigured(&"x".repeat(128)).is_some());
    for name in ["", "a b", "é", "a\n", "a*", &"x".repeat(129)] {
        assert!(Catalog::unconfigured(name).is_none(), "{name:?}");
    }
}
