//! The tools that a rule applies to: exact names and globs.

use globset::{Glob, GlobMatcher};

use super::rules::Rule;
use crate::task::tool_spec::{ToolKind, ToolSpec};

#[derive(Debug, Default)]
pub(super) struct Tools {
    pub(super) names: Vec<String>,
    /// The tools that the names stand for, once `keep_known` has found them.
    known: Option<Vec<(String, ToolKind)>>,
    globs: Vec<GlobMatcher>,
}

impl Tools {
    /// Makes a name stand for these tools only. A call at a gate may name a tool that is not among
    /// them, and the rule's author has not seen what that tool takes: a name alone must not match it,
    /// nor a tool of the same name and another kind.
    pub(super) fn keep_known<'t>(&mut self, tools: impl Iterator<Item = &'t ToolSpec>) {
        let named = tools.filter(|tool| self.names.contains(&tool.name));
        self.known = Some(named.map(|tool| (tool.name.clone(), tool.kind)).collect());
    }

    /// Whether a name stands for the tool.
    fn named(&self, tool: &ToolSpec) -> bool {
        match &self.known {
            None => self.names.contains(&tool.name),
            Some(known) => {
                let mut known = known.iter();
                known.any(|(name, kind)| *name == tool.name && *kind == tool.kind)
            }
        }
    }

    /// Whether a name or a glob matches a tool. A `Human` tool is matched by its name, never by a
    /// glob.
    pub(super) fn cover(&self, tool: &ToolSpec) -> bool {
        self.named(tool)
            || (!tool.kind.facts().asks_person
                && self.globs.iter().any(|glob| glob.is_match(&tool.name)))
    }
}

impl Rule {
    /// The rule's names and globs, and the indexes of entries that are no valid glob.
    pub(super) fn compiled_tools(&self) -> (Tools, Vec<usize>) {
        let (mut tools, mut broken) = (Tools::default(), Vec::new());
        for (at, entry) in self.tools.iter().enumerate() {
            if !entry.contains(['*', '?', '[', ']', '{', '}', '!', '\\']) {
                tools.names.push(entry.clone());
            } else if let Ok(glob) = Glob::new(entry) {
                tools.globs.push(glob.compile_matcher());
            } else {
                broken.push(at);
            }
        }
        (tools, broken)
    }
}
