//! Fixtures for the tests of the policy.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Decide, JudgementInput, Policy, Rule};
use crate::task::tool_spec::{Effect, ToolKind, ToolSpec};
use crate::task::verdict::Judgement;
use crate::world::Mistakes;

pub(super) fn tool(name: &str, kind: ToolKind, parameters: Value) -> ToolSpec {
    ToolSpec {
        name: name.to_owned(),
        description: String::new(),
        parameters,
        effect: Effect::Once,
        kind,
        target: String::new(),
        summary: None,
        timeout: Duration::from_secs(30),
        definition: String::new(),
        needs: Vec::new(),
    }
}

pub(super) fn tools() -> Vec<ToolSpec> {
    let refund = json!({
        "type": "object",
        "properties": {
            "amount": {"type": "number"},
            "order": {"type": "integer"},
            "note": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "loose": {"type": "array"},
            "urgent": {"type": "boolean"},
            "free": {"type": "object"},
            "either": {"type": ["string", "null"]},
            "rows": {"type": "array", "items": {"$ref": "#/$defs/row"}},
            "money": {"$ref": "#/$defs/money"},
            "dash-ed": {"type": "string"},
        },
        "required": ["amount", "order"],
        "$defs": {
            "money": {"type": "object", "properties": {"cents": {"type": "integer"}}, "required": ["cents"]},
            "row": {"type": "object", "properties": {"price": {"type": "number"}}, "required": ["price"]},
        },
    });
    let command = json!({"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]});
    let task =
        json!({"type": "object", "properties": {"task": {"type": "string"}}, "required": ["task"]});
    let ids = json!({"type": "object", "properties": {"order": {"type": "string"}}});
    vec![
        tool("refund", ToolKind::Http, refund),
        tool("shell", ToolKind::Shell, command),
        tool("lookup", ToolKind::Http, ids),
        tool("analyst", ToolKind::Agent, task),
        tool(
            "ask_customer",
            ToolKind::External,
            json!({"type": "object"}),
        ),
        tool(
            "request_confirmation",
            ToolKind::Human,
            json!({"type": "object"}),
        ),
    ]
}

pub(super) fn rule(name: &str, tools: &[&str], when: &str, decide: Decide) -> Rule {
    Rule {
        name: name.to_owned(),
        tools: tools.iter().map(ToString::to_string).collect(),
        when: (!when.is_empty()).then(|| when.to_owned()),
        decide,
        approvers: super::RuleApprovers {
            groups: vec![name.to_owned()],
            ..Default::default()
        },
        ..Rule::default()
    }
}

pub(super) fn policy(rules: &[Rule]) -> (Policy, Mistakes) {
    let mut mistakes = Mistakes::default();
    let policy = Policy::new(rules, &tools(), &mut mistakes);
    (policy, mistakes)
}

/// Returns the policy of these rules. Panics if a rule has a mistake.
pub(super) fn sound(rules: &[Rule]) -> Policy {
    let (policy, mistakes) = policy(rules);
    assert!(mistakes.is_empty(), "{:?}", mistakes.found);
    policy
}

/// Judges a call of the tool `name` that the last agent of `path` makes.
pub(super) fn judge_along(policy: &Policy, path: &[&str], name: &str, args: &Value) -> Judgement {
    let path: Vec<String> = path.iter().map(ToString::to_string).collect();
    judge_case(policy, &known(name), args, &path, (false, true))
}

/// Judges a call of `tool` that is proposed at the gate `billing`, which lists the tool.
pub(super) fn judge_at_gate(policy: &Policy, tool: &ToolSpec, args: &Value) -> Judgement {
    judge_case(policy, tool, args, &["billing".to_owned()], (true, true))
}

/// Judges a call of `tool` that is proposed at the gate `billing`, which does not list the tool.
pub(super) fn judge_unlisted(policy: &Policy, tool: &ToolSpec, args: &Value) -> Judgement {
    judge_case(policy, tool, args, &["billing".to_owned()], (true, false))
}

pub(super) fn known(name: &str) -> ToolSpec {
    let mut tools = tools().into_iter();
    tools.find(|tool| tool.name == name).expect("a known tool")
}

fn judge_case(
    policy: &Policy,
    tool: &ToolSpec,
    args: &Value,
    path: &[String],
    (at_gate, is_listed): (bool, bool),
) -> Judgement {
    policy.judge(&JudgementInput {
        tool,
        args,
        agent_path: path,
        user: &"alice".into(),
        tenant: "acme",
        groups: &["support".to_owned(), "night".to_owned()],
        task_id: "0190-task",
        metadata: &json!({
            "tier": "gold",
            "limit": 50,
            "nested": {"deep": [1, 2]},
            "owners": {"ALICE": 1},
        }),
        session: "s-1",
        at_gate,
        is_listed,
    })
}

/// Judges a call of the tool `name` that the root's agent `billing` makes.
pub(super) fn judge(policy: &Policy, name: &str, args: &Value) -> Judgement {
    judge_along(policy, &["billing"], name, args)
}
