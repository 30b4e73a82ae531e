//! The spec of the tool with which an agent calls another agent. The engine performs the call.
//!
//! Invariant: all tools of this kind take the same arguments. Several agents may call the same
//! agent, each with its own description of the tool. The digest of the tool's definition leaves out
//! the description, so that the digest is the same for all calling agents.

use std::time::Duration;

use serde_json::{Value, json};

use super::catalog::{CatalogEntry, definition_digest};
use super::schema::CompiledSchema;
use crate::task::tool_spec::{Effect, ToolKind, ToolSpec};

pub(crate) const TASK_ARGUMENT: &str = "task";

#[must_use]
pub(crate) fn spec(name: &str) -> ToolSpec {
    let (kind, effect, target) = (ToolKind::Agent, Effect::Once, format!("agent {name}"));
    let parameters = parameters();
    let definition = definition_digest(&json!({
        "kind": kind, "target": target, "effect": effect.as_str(), "parameters": parameters,
    }));
    ToolSpec {
        name: name.to_owned(),
        description: description(name, ""),
        parameters,
        effect,
        kind,
        target,
        summary: Some(format!("{name}: {{{TASK_ARGUMENT}}}")),
        timeout: Duration::ZERO,
        definition,
        needs: Vec::new(),
    }
}

#[must_use]
pub(crate) fn catalog_entry(name: &str) -> Option<CatalogEntry> {
    let spec = spec(name);
    let schema = CompiledSchema::closed(&spec.parameters).ok()?;
    Some(CatalogEntry::without_tool(spec, schema))
}

/// Returns the text that describes the agent to a model: `configured`, or a default sentence if
/// `configured` is blank.
#[must_use]
pub(crate) fn description(name: &str, configured: &str) -> String {
    match configured.trim() {
        "" => format!("Gives a task to the agent {name} and returns its answer."),
        _ => configured.to_owned(),
    }
}

fn parameters() -> Value {
    let task = json!({
        "type": "string", "minLength": 1,
        "description": "What it should do, with everything that it needs to know: it sees nothing of this conversation.",
    });
    json!({"type": "object", "properties": {TASK_ARGUMENT: task}, "required": [TASK_ARGUMENT]})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::arguments;

    #[test]
    fn sub_agent_takes_a_task_and_nothing_else() {
        let entry = catalog_entry("analyst").unwrap();
        let fits = |text: &str| arguments::read(text, &entry.schema).is_ok();
        assert!(fits(r#"{"task": "count the orders"}"#));
        for text in [
            r#"{"task": ""}"#,
            r#"{"task": 1}"#,
            "{}",
            r#"{"task": "x", "agent": "boss"}"#,
            r#"{"Task": "x"}"#,
        ] {
            assert!(!fits(text), "{text}");
        }
        assert!(entry.tool.is_none(), "the engine performs it");
    }

    #[test]
    fn approver_reads_which_agent_is_called_with_which_task() {
        let spec = spec("analyst");
        assert_eq!(
            (spec.kind, spec.effect, spec.target.as_str()),
            (ToolKind::Agent, Effect::Once, "agent analyst")
        );
        assert_eq!(
            spec.summarize(r#"{"task": "count {orders}"}"#),
            "analyst: count {orders}"
        );
    }

    #[test]
    fn each_agent_is_a_tool_of_its_own() {
        let (one, other) = (spec("analyst"), spec("clerk"));
        assert!(one.definition.starts_with("sha256:"));
        assert_eq!(one.definition, spec("analyst").definition);
        assert_ne!(one.definition, other.definition);
    }

    #[test]
    fn operator_description_is_what_a_model_is_told() {
        assert_eq!(description("analyst", "Counts. "), "Counts. ");
        assert_eq!(
            description("analyst", " \n"),
            "Gives a task to the agent analyst and returns its answer."
        );
    }
}
