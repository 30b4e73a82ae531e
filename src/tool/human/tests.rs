//! Tests of the offered tools, of the questions that their calls ask, and of accepted and refused
//! forms.

use super::*;
use crate::tool::arguments;
use crate::tool::catalog::Catalog;

mod own_forms;

pub(super) fn jira() -> Service {
    let field = |name: &str, format: Option<&str>, description: &str| ServiceField {
        name: name.to_owned(),
        format: format.map(str::to_owned),
        description: description.to_owned(),
    };
    Service {
        name: "jira".to_owned(),
        description: "Login of the caller's Jira.".to_owned(),
        fields: vec![
            field("email", Some("email"), ""),
            field("token", None, "From your profile's page."),
        ],
        expires_in: Some(Duration::from_hours(8)),
        receivers: vec!["comment_ticket: POST https://jira.acme.com".to_owned()],
    }
}

fn kinds_with_tools() -> [RequestKind; HumanKind::ALL.len()] {
    HumanKind::ALL.map(HumanKind::request)
}

fn built(kind: RequestKind) -> CatalogEntry {
    catalog_entry(kind, &[jira()]).unwrap()
}

fn asks(kind: RequestKind, args: &Value) -> Result<Question, String> {
    let args = arguments::read(&args.to_string(), &built(kind).schema)
        .map_err(|misfits| misfits.to_string())?;
    question(kind, &args, &[jira()])
}

pub(super) fn form_of(form: &Value) -> Result<Value, String> {
    asks(
        RequestKind::Guidance,
        &json!({"question": "Which?", "form": form}),
    )
    .map(|question| question.form.unwrap())
}

fn fields(properties: &Value) -> Result<Value, String> {
    form_of(&json!({"type": "object", "properties": properties}))
}

#[test]
fn each_human_kind_has_its_tool_name_and_no_other_kind_has_one() {
    for kind in RequestKind::ALL {
        assert_eq!(kind.tool().is_some(), kinds_with_tools().contains(&kind));
        assert_eq!(
            kind.tool().and_then(RequestKind::from_tool),
            kind.tool().map(|_| kind)
        );
        assert_eq!(
            catalog_entry(kind, &[jira()]).is_some(),
            kinds_with_tools().contains(&kind)
        );
        assert!(kinds_with_tools().contains(&kind) || question(kind, &json!({}), &[]).is_err());
    }
    assert_eq!(RequestKind::from_tool("request_Confirmation"), None);
    assert!(
        catalog_entry(RequestKind::Credentials, &[]).is_none(),
        "nothing to ask for"
    );
}

#[test]
fn human_tools_have_no_implementation_and_no_effect() {
    for kind in kinds_with_tools() {
        let entry = built(kind);
        let spec = &entry.spec;
        assert_eq!(Some(spec.name.as_str()), kind.tool());
        assert_eq!(
            (spec.kind, spec.effect, spec.target.as_str()),
            (ToolKind::Human, Effect::ReadOnly, "human")
        );
        assert!(
            entry.tool.is_none() && entry.result_schema.is_none() && !spec.description.is_empty()
        );
        assert!(
            spec.definition.starts_with("sha256:") && spec.definition.len() == 71,
            "{}",
            spec.definition
        );
    }
    assert!(
        built(RequestKind::Credentials)
            .spec
            .description
            .contains("`jira` (Login of the caller's Jira.)")
    );
}

#[test]
fn definition_changes_with_the_receivers_of_a_credential_and_not_with_texts() {
    let of = |service: Service| {
        catalog_entry(RequestKind::Credentials, &[service])
            .unwrap()
            .spec
            .definition
    };
    let same = Service {
        description: "Other words.".to_owned(),
        expires_in: None,
        ..jira()
    };
    assert_eq!(of(same), of(jira()));
    let receivers = Service {
        receivers: vec!["comment_ticket: POST https://evil.example".to_owned()],
        ..jira()
    };
    let fewer = Service {
        fields: jira().fields.into_iter().take(1).collect(),
        ..jira()
    };
    let other = Service {
        name: "crm".to_owned(),
        ..jira()
    };
    for changed in [receivers, fewer, other] {
        assert_ne!(of(changed), of(jira()));
    }
    let guidance = |services: &[Service]| {
        catalog_entry(RequestKind::Guidance, services)
            .unwrap()
            .spec
            .definition
    };
    assert_eq!(guidance(&[]), guidance(&[jira()]));
}

#[test]
fn arguments_that_do_not_fit_are_refused_before_a_request_is_opened() {
    for (kind, args) in [
        (RequestKind::Guidance, json!({})),
        (RequestKind::Guidance, json!({"question": ""})),
        (RequestKind::Guidance, json!({"question": " \n"})),
        (RequestKind::Guidance, json!({"question": 7})),
        (
            RequestKind::Guidance,
            json!({"question": "?", "options": 1}),
        ),
        (
            RequestKind::Guidance,
            json!({"question": "?", "options": [1]}),
        ),
        (
            RequestKind::Guidance,
            json!({"question": "?", "attempted_approaches": [1]}),
        ),
        (
            RequestKind::Guidance,
            json!({"question": "?", "form": "text"}),
        ),
        (
            RequestKind::Guidance,
            json!({"question": "?", "approvers": ["eve"]}),
        ),
        (RequestKind::Confirmation, json!({"reason": "x"})),
        (
            RequestKind::Confirmation,
            json!({"action": "x", "risks": {"a": "y"}}),
        ),
        (
            RequestKind::Confirmation,
            json!({"action": "x", "form": {}}),
        ),
        (RequestKind::Credentials, json!({})),
        (RequestKind::Credentials, json!({"service": "gitlab"})),
        (RequestKind::Credentials, json!({"service": "Jira"})),
        (
            RequestKind::Credentials,
            json!({"service": "jira", "description": "Type it here."}),
        ),
    ] {
        assert!(asks(kind, &args).is_err(), "{args}");
    }
}

#[test]
fn words_of_a_call_become_question_and_details() {
    let answer = json!({
        "type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"],
        "additionalProperties": false,
    });
    let confirmed = json!({
        "type": "object", "properties": {"confirmed": {"type": "boolean"}, "comment": {"type": "string"}},
        "required": ["confirmed"], "additionalProperties": false,
    });
    for (kind, args, question, details, form) in [
        (
            RequestKind::Guidance,
            json!({"question": "Which?"}),
            "Which?",
            None,
            &answer,
        ),
        (
            RequestKind::Guidance,
            json!({"question": "Which?", "context": "c", "attempted_approaches": ["a"], "options": ["x", "y"]}),
            "Which?",
            Some(json!({"context": "c", "attempted_approaches": ["a"], "options": ["x", "y"]})),
            &answer,
        ),
        (
            RequestKind::Guidance,
            json!({"question": "Which?", "attempted_approaches": "a", "options": "x"}),
            "Which?",
            Some(json!({"attempted_approaches": ["a"], "options": ["x"]})),
            &answer,
        ),
        (
            RequestKind::Confirmation,
            json!({"action": "Close it"}),
            "Close it",
            None,
            &confirmed,
        ),
        (
            RequestKind::Confirmation,
            json!({"action": "Close it", "reason": "r", "risks": ["x"], "alternatives": []}),
            "Close it",
            Some(json!({"reason": "r", "risks": ["x"], "alternatives": []})),
            &confirmed,
        ),
        (
            RequestKind::Confirmation,
            json!({"action": "Close it", "risks": "x", "alternatives": "y"}),
            "Close it",
            Some(json!({"risks": ["x"], "alternatives": ["y"]})),
            &confirmed,
        ),
    ] {
        let asked = asks(kind, &args).unwrap();
        let expected = Question {
            kind,
            text: Some(question.to_owned()),
            details,
            form: Some(form.clone()),
        };
        assert_eq!(asked, expected);
    }
}

#[test]
fn credential_is_asked_for_in_the_operators_words() {
    let args = json!({"service": "jira", "reason": "Type your bank's PIN."});
    let asked = asks(RequestKind::Credentials, &args).unwrap();
    assert_eq!(asked.text.as_deref(), Some("Type your bank's PIN."));
    assert_eq!(asked.details, Some(json!({"service": "jira"})));
    let form = json!({
        "type": "object", "title": "jira", "description": "Login of the caller's Jira.",
        "properties": {
            "email": {"type": "string", "minLength": 1, "format": "email"},
            "token": {"type": "string", "minLength": 1, "description": "From your profile's page."},
        },
        "required": ["email", "token"], "additionalProperties": false,
        "x-receivers": ["comment_ticket: POST https://jira.acme.com"], "x-expires-in": 28800,
    });
    assert_eq!(asked.form.as_ref(), Some(&form));
    let schema = CompiledSchema::closed(&form).unwrap();
    assert!(
        schema
            .check(&json!({"email": "a@b.c", "token": "t"}))
            .is_ok()
    );
    for wrong in [
        json!({"email": "a@b.c"}),
        json!({"email": "a@b.c", "token": ""}),
        json!({"email": "x", "token": "t"}),
    ] {
        assert!(schema.check(&wrong).is_err(), "{wrong}");
    }
    assert_eq!(
        asks(RequestKind::Credentials, &json!({"service": "jira"}))
            .unwrap()
            .text,
        None
    );
}

#[test]
fn every_built_in_form_compiles_and_is_closed() {
    for form in [
        form::text_answer(),
        form::confirmation(),
        credential_form(&jira()),
    ] {
        let schema = CompiledSchema::closed(&form).unwrap();
        assert!(schema.check(&json!({"more": 1})).is_err());
    }
}

#[test]
fn error_about_a_wrong_call_quotes_no_value() {
    for form in [
        json!({"type": "object", "properties": {"a": {"type": "string", "default": 1, "title": "hunter2"}}}),
        json!({"type": "object", "properties": {"a": {"type": "hunter2"}}}),
        json!({"type": "object", "properties": {"a": {"type": "string", "format": "hunter2"}}}),
        json!({"type": "object", "properties": {"a": {"enum": ["hunter2", "hunter2"]}}}),
        json!({"type": "object", "properties": {"hunter2 !": {"type": "string"}}}),
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["hunter2"]}),
    ] {
        let told = form_of(&form).unwrap_err();
        assert!(!told.contains("hunter2"), "{told}");
    }
    assert!(
        !question(
            RequestKind::Credentials,
            &json!({"service": "hunter2"}),
            &[jira()]
        )
        .unwrap_err()
        .contains("hunter2")
    );
}

#[test]
fn prompt_mentions_only_the_offered_human_tools() {
    assert_eq!(prompt_paragraph(&[]), None);
    assert_eq!(
        prompt_paragraph(&[RequestKind::Approval, RequestKind::Reconcile]),
        None
    );
    for kind in kinds_with_tools() {
        let text = prompt_paragraph(&[kind]).unwrap();
        for other in kinds_with_tools() {
            assert_eq!(
                text.contains(&format!("- `{}`", other.tool().unwrap())),
                other == kind,
                "{text}"
            );
        }
    }
}

#[test]
fn catalog_knows_which_human_tools_each_agent_may_use() {
    let catalog = Catalog::default()
        .with_human("a", &kinds_with_tools(), vec![jira()])
        .with_human(
            "b",
            &[
                RequestKind::Credentials,
                RequestKind::Confirmation,
                RequestKind::Approval,
            ],
            Vec::new(),
        );
    let offered = |agent: &str| {
        kinds_with_tools()
            .into_iter()
            .filter(|kind| catalog.human(agent, kind.tool().unwrap()).is_some())
            .collect::<Vec<_>>()
    };
    assert_eq!(offered("a"), kinds_with_tools());
    assert_eq!(
        offered("b"),
        [RequestKind::Confirmation],
        "nothing to ask for"
    );
    assert_eq!(offered("c"), []);
    assert_eq!(
        (
            catalog.services("a"),
            catalog.services("b"),
            catalog.services("c")
        ),
        (&[jira()][..], &[][..], &[][..])
    );
    assert!(
        catalog.human("a", "Request_Confirmation").is_none()
            && catalog.get("request_confirmation").is_none()
    );
}
