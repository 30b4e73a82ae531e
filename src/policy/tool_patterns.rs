//! The tools to which a rule applies: exact names and globs.

use globset::{Glob, GlobMatcher};

use super::rules::Rule;
use crate::task::tool_spec::{ToolKind, ToolSpec};

#[derive(Debug, Default)]
pub(super) struct ToolPatterns {
    pub(super) names: Vec<String>,
    /// The configured tools that have one of `names`, each with its kind. `None` before `limit_to`
    /// is called; without the limit, a name matches every tool of that name.
    known: Option<Vec<(String, ToolKind)>>,
    globs: Vec<GlobMatcher>,
}

impl ToolPatterns {
    /// Limits the exact names to the configured tools `tools`: from now on, an exact name matches a
    /// tool only if a configured tool has the same name and the same kind. A call at a gate may
    /// name a tool that is not configured. No exact name matches such a tool, because the author of
    /// the rule cannot know the tool's arguments.
    pub(super) fn limit_to<'t>(&mut self, tools: impl Iterator<Item = &'t ToolSpec>) {
        let named = tools.filter(|tool| self.names.contains(&tool.name));
        self.known = Some(named.map(|tool| (tool.name.clone(), tool.kind)).collect());
    }

    fn matches_name(&self, tool: &ToolSpec) -> bool {
        match &self.known {
            None => self.names.contains(&tool.name),
            Some(known) => {
                let mut known = known.iter();
                known.any(|(name, kind)| *name == tool.name && *kind == tool.kind)
            }
        }
    }

    /// Whether a name or a glob matches a tool. A glob never matches a tool that asks a person.
    pub(super) fn matches(&self, tool: &ToolSpec) -> bool {
        self.matches_name(tool)
            || (!tool.kind.properties().asks_person
                && self.globs.iter().any(|glob| glob.is_match(&tool.name)))
    }
}

impl Rule {
    /// Returns the names and globs in the rule's `tools`, and the indexes of the entries of `tools`
    /// that are invalid globs.
    pub(super) fn tool_patterns(&self) -> (ToolPatterns, Vec<usize>) {
        let (mut patterns, mut invalid) = (ToolPatterns::default(), Vec::new());
        for (at, entry) in self.tools.iter().enumerate() {
            if !entry.contains(['*', '?', '[', ']', '{', '}', '!', '\\']) {
                patterns.names.push(entry.clone());
            } else if let Ok(glob) = Glob::new(entry) {
                patterns.globs.push(glob.compile_matcher());
            } else {
                invalid.push(at);
            }
        }
        (patterns, invalid)
    }
}
