//! The settings of a tool: their keys, their checks, and the digest of the tool's definition.
//!
//! Invariant: the digest of a tool's definition covers everything that decides what a call does.
//! Headers, env, parameters and working directory go into the digest with each `${…}` unexpanded,
//! because the value of a variable may be a secret.

use std::collections::BTreeSet;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::CatalogEntry;
use super::checks::{
    add_all, add_schema_flaws, check_command, check_http, check_required, check_summary,
    external_result_schema,
};
use crate::task::request::format_sha256;
use crate::task::text::canonical_json;
use crate::task::tool_spec::{Effect, ToolKind, ToolSpec};
use crate::tool::http::CheckedSettings;
use crate::tool::schema::CompiledSchema;
use crate::tool::{external, http, mcp, shell};
use crate::world::Mistakes;

/// The keys that say how a tool is performed. A tool has exactly one of these keys.
pub(crate) const KINDS: [&str; 4] = ["http", "shell", "mcp", "external"];

/// A tool. Exactly one of `http`, `shell`, `mcp` and `external` says how it is performed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Tool", extend("oneOf" = KINDS.map(|key| json!({"required": [key]}))))]
pub struct Settings {
    /// The description of the tool that the model reads.
    pub description: String,
    /// The effect of repeating a call.
    pub effect: Effect,
    /// The line that an approver reads, such as `Refund {amount} for order {order}`. An argument is
    /// filled in as text of at most 80 characters; a longer one is cut there and ends with `…`.
    pub summary: Option<String>,
    /// The JSON Schema (2020-12) of the arguments. Default: no arguments; for a shell tool, the
    /// argument `command`; for a tool of an MCP server, the reviewed schema in the lock file.
    #[schemars(with = "Option<serde_json::Map<String, Value>>")]
    pub parameters: Option<Value>,
    /// The tool is an HTTP request.
    #[schemars(with = "http::Settings")]
    pub http: Option<http::Settings>,
    /// The tool is a command on this host.
    #[schemars(with = "shell::Settings")]
    pub shell: Option<shell::Settings>,
    /// The tool belongs to an MCP server.
    #[schemars(with = "mcp::Settings")]
    pub mcp: Option<mcp::Settings>,
    /// The caller performs the tool and posts its result.
    #[schemars(with = "external::Settings")]
    pub external: Option<external::Settings>,
    /// The tool's definition in the configuration file, with each `${…}` unexpanded. The
    /// definition's digest takes the headers, env and parameters from this value.
    #[serde(skip)]
    pub raw: Value,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum KindSettings<'s> {
    Http(&'s http::Settings),
    Shell(&'s shell::Settings),
    Mcp(&'s mcp::ReviewedTool),
    /// The API's client performs the calls.
    External(&'s external::Settings),
}

impl Settings {
    /// Returns how the tool is performed. `None` if the settings have none of [`KINDS`], or if
    /// their `mcp` names a tool that is not in the lock file.
    pub(super) fn kind(&self) -> Option<KindSettings<'_>> {
        let http = self.http.as_ref().map(KindSettings::Http);
        http.or_else(|| self.shell.as_ref().map(KindSettings::Shell))
            .or_else(|| self.mcp.as_ref()?.reviewed.as_ref().map(KindSettings::Mcp))
            .or_else(|| self.external.as_ref().map(KindSettings::External))
    }

    /// Whether the settings say how the tool is performed. The key `mcp` does so only if the
    /// lock file has the named tool.
    #[must_use]
    pub fn has_kind(&self) -> bool {
        self.kind().is_some()
    }

    /// Returns a phrase for the tool's kind if the tool's calls run code on this host; `None` for
    /// any other tool.
    #[must_use]
    pub fn local_kind(&self) -> Option<&'static str> {
        let reviewed = self.mcp.as_ref().and_then(|mcp| mcp.reviewed.as_ref());
        if self.shell.is_some() {
            Some("a shell tool")
        } else if reviewed.is_some_and(|reviewed| reviewed.runs_locally) {
            Some("a tool of an MCP server that runs on this host")
        } else {
            None
        }
    }

    /// Returns the configured schema of the arguments or, if none is configured, the default schema
    /// of the tool's kind.
    #[must_use]
    pub fn parameters(&self) -> Value {
        match (&self.parameters, self.kind()) {
            (Some(written), _) => written.clone(),
            (None, Some(KindSettings::Shell(_))) => shell::parameters(),
            (
                None,
                Some(KindSettings::Http(_) | KindSettings::Mcp(_) | KindSettings::External(_))
                | None,
            ) => {
                json!({"type": "object", "properties": {}})
            }
        }
    }

    /// Returns the tool's entry without its implementation, and the checked settings of an HTTP
    /// tool. `None` if the settings have mistakes, which are added to `mistakes`.
    pub(super) fn prepare(
        &self,
        name: &str,
        mistakes: &mut Mistakes,
    ) -> Option<(CatalogEntry, Option<CheckedSettings>)> {
        let before = mistakes.found.len();
        let performed = self.kind()?;
        let parameters = self.parameters();
        let schema = self.check_parameters(name, &parameters, mistakes);
        let (mut checked, mut result_schema, mut needs) = (None, None, BTreeSet::new());
        let (kind, target, timeout) = match performed {
            KindSettings::Http(settings) => {
                checked = check_http(name, settings, &parameters, mistakes);
                let names = checked.iter().flat_map(CheckedSettings::credential_names);
                needs = names.collect();
                let target = checked.as_ref().map(CheckedSettings::target);
                (ToolKind::Http, target.unwrap_or_default(), settings.timeout)
            }
            KindSettings::Shell(settings) => {
                add_all(mistakes, &["tools", name, "shell"], settings.mistakes());
                check_command(name, &parameters, mistakes);
                needs = settings.credential_names();
                let target = format!("shell {}", self.shown_directory(settings));
                (ToolKind::Shell, target, settings.timeout)
            }
            KindSettings::Mcp(reviewed) => {
                needs = reviewed.needs.iter().cloned().collect();
                (ToolKind::Mcp, reviewed.target.clone(), reviewed.timeout)
            }
            KindSettings::External(settings) => {
                result_schema = external_result_schema(name, settings, mistakes);
                let target = external::TARGET.to_owned();
                (ToolKind::External, target, Duration::ZERO)
            }
        };
        if mistakes.found.len() > before {
            return None;
        }
        let definition = self.definition(kind, &target, &parameters);
        let spec = ToolSpec {
            name: name.to_owned(),
            description: self.description.clone(),
            parameters,
            effect: self.effect,
            kind,
            target,
            summary: self.summary.clone(),
            timeout,
            definition,
            needs: needs.into_iter().collect(),
        };
        let entry = CatalogEntry {
            result_schema,
            ..CatalogEntry::without_tool(spec, schema?)
        };
        Some((entry, checked))
    }

    /// Compiles the schema of the parameters. `None` if the schema has flaws, which are added to
    /// `mistakes`.
    fn check_parameters(
        &self,
        name: &str,
        parameters: &Value,
        mistakes: &mut Mistakes,
    ) -> Option<CompiledSchema> {
        let compiled = CompiledSchema::of_parameters(parameters);
        let (schema, mut flaws) = match compiled {
            Ok(schema) => (Some(schema), Vec::new()),
            Err(flaws) => (None, flaws),
        };
        // Only HTTP and external tools have `parameters` in the configuration file. For any other
        // tool, a flaw's pointer leads to no place in the file, so the pointer is cleared.
        if matches!(
            self.kind(),
            Some(KindSettings::Http(_) | KindSettings::External(_))
        ) {
            check_required(name, parameters, mistakes);
        } else {
            for flaw in &mut flaws {
                flaw.pointer.clear();
            }
        }
        let place = ["tools", name, "parameters"];
        add_schema_flaws(mistakes, &place, &format!("the schema of `{name}`"), flaws);
        if let Some(summary) = &self.summary {
            check_summary(name, summary, parameters, mistakes);
        }
        schema
    }

    /// Returns the working directory as an approver sees it. A configured text with `${…}` stays
    /// unexpanded, because the variable's value may be a secret.
    fn shown_directory<'s>(&'s self, settings: &'s shell::Settings) -> &'s str {
        let configured = self
            .raw
            .pointer("/shell/working_dir")
            .and_then(Value::as_str);
        configured
            .filter(|configured| configured.contains("${"))
            .unwrap_or(&settings.working_dir)
    }

    /// Returns `sha256:…` over everything that decides what a call does: kind, destination, effect,
    /// and the unexpanded parameters, headers and env. Timeouts, and texts for people and models,
    /// are left out.
    fn definition(&self, kind: ToolKind, target: &str, parameters: &Value) -> String {
        let raw_member = |keys: &[&str]| {
            keys.iter()
                .try_fold(&self.raw, |value, key| value.get(key))
                .cloned()
        };
        let (mut destination, mut headers, mut env) = (target.to_owned(), Value::Null, Value::Null);
        match self.kind() {
            Some(KindSettings::Http(settings)) => {
                destination = format!("{} {}", settings.method, settings.url);
                headers = raw_member(&["http", "headers"])
                    .unwrap_or_else(|| settings.headers.keys().cloned().collect());
            }
            Some(KindSettings::Shell(settings)) => {
                env = raw_member(&["shell", "env"])
                    .unwrap_or_else(|| settings.env.0.keys().cloned().collect());
            }
            // For a tool of an MCP server, `raw` holds three parts: the server's settings, the
            // tool's name at the server, and the digest of the tool's definition in the lock file.
            Some(KindSettings::Mcp(_)) => headers = raw_member(&["mcp"]).unwrap_or_default(),
            Some(KindSettings::External(_)) | None => {}
        }
        let written = raw_member(&["parameters"]).filter(|_| self.parameters.is_some());
        let parameters = written.as_ref().unwrap_or(parameters);
        let definition = json!({
            "kind": kind, "target": destination, "effect": self.effect.as_str(), "headers": headers, "env": env,
            "parameters": parameters,
        });
        definition_digest(&definition)
    }
}

/// Returns `sha256:…` over a definition. The order of the definition's members does not matter.
pub(crate) fn definition_digest(definition: &Value) -> String {
    format_sha256(&Sha256::digest(canonical_json(definition)))
}
