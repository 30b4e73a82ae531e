//! The lock file: the definitions of tools that a person has reviewed. Models and approvers are
//! shown these definitions, not the server's current definitions. Invariant: the digest of a tool
//! covers its whole definition, including unknown members, because any member may influence a model
//! or a person.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::param_headers::invalid_param_headers;
use super::wire::Revision;
use crate::tool::catalog::definition_digest;
use crate::tool::schema::{CompiledSchema, case_collisions};

const VERSION: u32 = 1;
/// Older dialects of JSON Schema that are accepted. A schema in such a dialect is read in the
/// dialect 2020-12. The tool is refused if the schema has a keyword that 2020-12 no longer applies
/// (such as `dependencies`) or no longer accepts in this form (such as a list at `items`).
const OLDER_DIALECTS: [&str; 3] = [
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-07/schema",
    "https://json-schema.org/draft/2019-09/schema",
];

/// The content of the lock file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lock {
    version: u32,
    /// The reviewed tools, by the server's name in the configuration.
    pub servers: BTreeMap<String, LockedServer>,
}

/// The reviewed tools of one server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockedServer {
    /// The server's `serverInfo` (name and version). `null` if `serverInfo` contained a secret.
    pub server: Value,
    /// The protocol revision that the server spoke at the review.
    pub protocol: String,
    /// The time of the last review that changed this server's locked data, in UTC (RFC 3339).
    pub locked_at: String,
    /// The tools, by their names at the server.
    pub tools: BTreeMap<String, LockedTool>,
}

/// The reviewed definition of a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockedTool {
    /// The digest of `definition`, as `sha256:…`.
    pub digest: String,
    /// The definition as the server listed it.
    pub definition: Value,
}

impl Default for Lock {
    fn default() -> Self {
        Self {
            version: VERSION,
            servers: BTreeMap::new(),
        }
    }
}

impl Lock {
    /// Parses a lock file and checks its digests.
    ///
    /// # Errors
    /// Fails if the file has another format or version, if a digest is not the digest of its
    /// definition, or if a definition has another name than its key in [`LockedServer::tools`]. The
    /// error has one text for each mistake.
    pub fn read(text: &str) -> Result<Self, Vec<String>> {
        let lock: Self = serde_json::from_str(text)
            .map_err(|error| vec![format!("is not a lock file of MCP tools: {error}")])?;
        if lock.version != VERSION {
            return Err(vec![format!(
                "has the version {}; known is {VERSION}",
                lock.version
            )]);
        }
        let tools = lock.servers.iter().flat_map(|(server, locked)| {
            let tools = locked.tools.iter();
            tools.map(move |(name, tool)| (server, name, tool))
        });
        let mistakes: Vec<String> = tools
            .filter_map(|(server, name, tool)| {
                let why = tool.mistake(name)?;
                Some(format!(
                    "has a tool `{name}` of the server `{server}` that {why}"
                ))
            })
            .collect();
        if mistakes.is_empty() {
            Ok(lock)
        } else {
            Err(mistakes)
        }
    }

    /// Returns the text of the file: JSON with sorted keys, so that a diff shows only real changes.
    #[must_use]
    pub fn text(&self) -> String {
        let value = serde_json::to_value(self).unwrap_or_default();
        let text = serde_json::to_string_pretty(&value).unwrap_or_default();
        format!("{text}\n")
    }
}

impl LockedServer {
    /// Whether the server may ask people a question during a call. False if the server was reviewed
    /// with a revision older than the stateless revision (2026-07-28). In the older revisions, the
    /// client cancels every question of the server.
    #[must_use]
    pub fn may_ask(&self) -> bool {
        let reviewed = Revision::parse(&self.protocol);
        reviewed.is_none_or(Revision::is_stateless)
    }
}

impl LockedTool {
    /// Creates the reviewed definition of a tool, with its digest. `definition` must be exactly as
    /// the server listed it.
    #[must_use]
    pub fn new(definition: Value) -> Self {
        Self {
            digest: definition_digest(&definition),
            definition,
        }
    }

    fn mistake(&self, name: &str) -> Option<&'static str> {
        if self.digest != definition_digest(&self.definition) {
            Some("has a digest that is not its definition's: it was changed by hand")
        } else if tool_name(&self.definition) != Some(name) {
            Some("has a definition with another name")
        } else {
            None
        }
    }

    /// Returns the description for the model; empty if the definition has none.
    #[must_use]
    pub fn description(&self) -> &str {
        let description = self.definition.get("description");
        description.and_then(Value::as_str).unwrap_or_default()
    }

    /// Returns the JSON Schema of the arguments. Leaves out `$schema` if it names an older dialect
    /// that is accepted.
    #[must_use]
    pub fn parameters(&self) -> Value {
        parameters(&self.definition)
    }

    /// Returns whether the definition sets the annotation `hint` to true.
    #[must_use]
    pub fn has_annotation(&self, hint: &str) -> bool {
        let annotation = self
            .definition
            .pointer("/annotations")
            .and_then(|all| all.get(hint));
        annotation == Some(&Value::Bool(true))
    }
}

/// Returns the name in a tool's definition; `None` if the definition has no name.
#[must_use]
pub fn tool_name(definition: &Value) -> Option<&str> {
    definition.get("name").and_then(Value::as_str)
}

fn parameters(definition: &Value) -> Value {
    let schema = definition.get("inputSchema");
    let mut schema = schema.cloned().unwrap_or_default();
    let dialect = schema.get("$schema").and_then(Value::as_str);
    let older = dialect.is_some_and(|name| OLDER_DIALECTS.contains(&name.trim_end_matches('#')));
    if let (true, Some(members)) = (older, schema.as_object_mut()) {
        members.remove("$schema");
    }
    schema
}

/// Returns the reason why a listed tool cannot be used; `None` if the tool can be used. The reason
/// is a phrase that follows the tool's name in a sentence.
#[must_use]
pub fn unusable_reason(definition: &Value) -> Option<String> {
    let Some(name) = tool_name(definition) else {
        return Some("has no name".to_owned());
    };
    let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > 128 || !name.chars().all(letter) {
        return Some("has a name that is not 1 to 128 of `A-Z a-z 0-9 _ - .`".to_owned());
    }
    let schema = definition.get("inputSchema");
    let object = schema.and_then(|schema| schema.get("type")) == Some(&Value::from("object"));
    if !object {
        return Some("has no `inputSchema` of type object".to_owned());
    }
    let parameters = parameters(definition);
    let flaws = CompiledSchema::of_parameters(&parameters).err();
    let first = flaws.into_iter().flatten().next();
    let flaw = first.map(|flaw| flaw.detail).or_else(|| {
        let (_, one, other) = case_collisions(&parameters).into_iter().next()?;
        Some(format!(
            "has the parameters `{one}` and `{other}`, which differ only in case"
        ))
    });
    if let Some(flaw) = flaw {
        return Some(format!("has a schema that {flaw}"));
    }
    invalid_param_headers(&parameters)
}
