//! Builds the two lists that clients see: the agents, and the tools of each gate. The descriptions
//! come from the configuration and from the lock file of MCP tools. The list of a gate has only the
//! tools that this service runs itself. With each of them it has the schema against which the
//! arguments of a call are checked.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::agent::{Agents, ToolDescription};
use crate::config::Config;
use crate::http::api::mcp::tools::{GateTools, ListedTool, OutputCheck};
use crate::http::wire::list::{AgentTool, WireAgent};
use crate::task::tool_spec::{Effect, ToolKind, ToolSpec};
use crate::tool::catalog::Catalog;
use crate::tool::schema::{CompiledSchema, closed_schema};

/// The keyword by which an MCP server's schema asks the client to repeat an argument in an HTTP
/// header.
const HEADER: &str = "x-mcp-header";

pub(super) fn cards(agents: &Agents, catalog: &Catalog) -> Vec<WireAgent> {
    let tool = |offer: &ToolDescription| {
        let spec = &catalog.get(&offer.name)?.spec;
        Some(AgentTool {
            name: spec.name.clone(),
            description: spec.description.clone(),
            effect: spec.effect.into(),
        })
    };
    let cards = agents.all().map(|agent| WireAgent {
        name: agent.name.clone(),
        description: agent.description.clone(),
        agent_version: agent.version.clone(),
        default: agent.name == agents.default_name(),
        tools: agent.tools.iter().filter_map(tool).collect(),
        sub_agents: agent
            .sub_agents
            .iter()
            .map(|sub| sub.agent.clone())
            .collect(),
        human: agent
            .human
            .iter()
            .filter(|kind| catalog.human(&agent.name, kind.tool()).is_some())
            .map(|kind| kind.as_str().to_owned())
            .collect(),
    });
    cards.collect()
}

pub(super) fn gate_tools(
    config: &Config,
    agents: &Agents,
    catalog: &Catalog,
) -> BTreeMap<String, GateTools> {
    let gates = agents.gates().map(|(agent, _)| {
        let mut by_name = BTreeMap::new();
        let listed = agent.tools.iter().filter_map(|offer| {
            let definition = definition(config, &catalog.get(&offer.name)?.spec)?;
            let output = definition.get("outputSchema").map(output);
            by_name.insert(offer.name.clone(), ListedTool { output });
            Some(definition)
        });
        let listed = listed.collect::<Value>().to_string();
        (agent.name.clone(), GateTools { listed, by_name })
    });
    gates.collect()
}

/// Returns the definition of a tool for clients. `None` if this service does not run the tool
/// itself: the tool is external, stands for an agent, or asks a person.
fn definition(config: &Config, spec: &ToolSpec) -> Option<Map<String, Value>> {
    let reviewed = match spec.kind {
        ToolKind::Http | ToolKind::Shell => None,
        ToolKind::Mcp => reviewed(config, &spec.name),
        ToolKind::External | ToolKind::Agent | ToolKind::Human => return None,
    };
    let schema = closed_schema(&spec.parameters).unwrap_or_else(|| spec.parameters.clone());
    let mut definition = Map::from_iter([
        ("name".to_owned(), json!(spec.name)),
        ("description".to_owned(), json!(spec.description)),
        ("inputSchema".to_owned(), without_headers(&schema, false)),
        ("annotations".to_owned(), annotations(spec.effect)),
    ]);
    for member in ["title", "outputSchema"] {
        if let Some(value) = reviewed.and_then(|definition| definition.get(member)) {
            definition.insert(member.to_owned(), value.clone());
        }
    }
    Some(definition)
}

/// Returns a function that checks structured results against `schema`. If `schema` cannot be
/// compiled, the function rejects every result.
fn output(schema: &Value) -> OutputCheck {
    let compiled = CompiledSchema::open(schema).ok();
    OutputCheck(Arc::new(move |value| {
        let compiled = compiled.as_ref();
        compiled.is_some_and(|schema| schema.check(value).is_ok())
    }))
}

fn reviewed<'c>(config: &'c Config, name: &str) -> Option<&'c Value> {
    let mcp = config.tools.get(name)?.mcp.as_ref()?;
    let server = config.lock.servers.get(&mcp.server)?;
    server.tools.get(&mcp.tool).map(|tool| &tool.definition)
}

/// Returns the MCP annotations for the configured effect. The annotations of the MCP server itself
/// are not trusted.
fn annotations(effect: Effect) -> Value {
    match effect {
        Effect::ReadOnly => json!({"readOnlyHint": true}),
        Effect::Idempotent => {
            json!({"readOnlyHint": false, "idempotentHint": true, "destructiveHint": true})
        }
        Effect::Once => {
            json!({"readOnlyHint": false, "destructiveHint": true, "idempotentHint": false})
        }
    }
}

/// Returns the schema without the keyword [`HEADER`], which only the client of the MCP server
/// needs. This client is the service, not the caller. If `named` is true, `schema` is the value of
/// the keyword `properties`. Its keys are then names of arguments, so the result keeps an argument
/// that has the name [`HEADER`].
fn without_headers(schema: &Value, named: bool) -> Value {
    match schema {
        Value::Object(members) => {
            let kept = members.iter().filter(|(name, _)| named || *name != HEADER);
            let kept = kept.map(|(name, value)| {
                let is_data = matches!(name.as_str(), "const" | "enum" | "default" | "examples");
                let value = match (named, is_data) {
                    (false, true) => value.clone(),
                    (true, _) => without_headers(value, false),
                    (false, false) => without_headers(value, name == "properties"),
                };
                (name.clone(), value)
            });
            Value::Object(kept.collect())
        }
        Value::Array(elements) => {
            let elements = elements.iter();
            elements
                .map(|element| without_headers(element, false))
                .collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => schema.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schema_loses_requests_for_headers_and_keeps_a_property_of_that_name() {
        let schema = json!({"properties": {
            "x-mcp-header": {"type": "string", "x-mcp-header": "A", "default": {"x-mcp-header": 1}},
        }});
        let expected = json!({"properties": {
            "x-mcp-header": {"type": "string", "default": {"x-mcp-header": 1}},
        }});
        assert_eq!(without_headers(&schema, false), expected);
    }
}
