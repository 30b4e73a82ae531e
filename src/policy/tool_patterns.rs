//! The tools to which a rule applies: exact names and globs.

use globset::{Glob, GlobMatcher};

use super::rules::Rule;
use crate::task::tool_spec::ToolSpec;

#[derive(Debug, Default)]
pub(super) struct ToolPatterns {
    pub(super) names: Vec<String>,
    globs: Vec<GlobMatcher>,
}

impl ToolPatterns {
    pub(super) fn matches_name(&self, tool: &ToolSpec) -> bool {
        self.names.contains(&tool.name)
    }

    /// Whether one of the globs matches the tool. No glob matches a tool that asks a person.
    pub(super) fn matches_glob(&self, tool: &ToolSpec) -> bool {
        !tool.kind.properties().asks_person
            && self.globs.iter().any(|glob| glob.is_match(&tool.name))
    }

    pub(super) fn matches(&self, tool: &ToolSpec) -> bool {
        self.matches_name(tool) || self.matches_glob(tool)
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
