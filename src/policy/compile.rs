//! The rules, made ready: their globs and expressions compiled, every mistake reported with its place.
//! What must stay true: a rule with a mistake is kept, as one that always faults, so it never allows and never lets pass.

use std::collections::{BTreeMap, BTreeSet};

use globset::{Glob, GlobMatcher};

use super::cel::{self, Node};
use super::check::{Findings, look};
use super::rules::{Decide, Rule};
use super::shape::Shape;
use crate::task::tool_spec::{ToolKind, ToolSpec};
use crate::task::verdict::Terms;
use crate::world::Mistakes;

/// Above this size a judgement runs off the runtime's threads.
const HEAVY: usize = 16 * 1024;

/// Every rule of the configuration, in its order.
#[derive(Debug, Default)]
pub struct Policy {
    pub(super) rules: Vec<Compiled>,
    shapes: Vec<(ToolSpec, Shape)>,
}

/// One rule, made ready.
#[derive(Debug)]
pub(super) struct Compiled {
    pub(super) name: String,
    pub(super) decide: Decide,
    pub(super) reason: Option<String>,
    pub(super) terms: Terms,
    pub(super) when: When,
    tools: Tools,
}

/// When a rule matches.
#[derive(Debug)]
pub(super) enum When {
    Always,
    Holds(Node),
    /// It was refused: it always faults.
    Refused,
}

#[derive(Debug, Default)]
struct Tools {
    names: Vec<String>,
    globs: Vec<GlobMatcher>,
}

impl Tools {
    /// Whether the rule is about a tool. A human's tool has to be named; a glob does not reach it.
    fn cover(&self, tool: &ToolSpec) -> bool {
        self.names.contains(&tool.name)
            || (tool.kind != ToolKind::Human && self.globs.iter().any(|glob| glob.is_match(&tool.name)))
    }
}

impl Compiled {
    /// Whether it is about a tool. An `allow` has nothing to say of a human's tool.
    pub(super) fn covers(&self, tool: &ToolSpec) -> bool {
        self.tools.cover(tool) && (tool.kind != ToolKind::Human || self.decide != Decide::Allow)
    }
}

impl Rule {
    /// Whether the rule is about a tool: by name or glob, the `request_…` tools only by name.
    #[must_use]
    pub fn covers(&self, tool: &ToolSpec) -> bool {
        self.compiled_tools().0.cover(tool)
    }

    /// Its names and globs, and which of its entries are no glob.
    fn compiled_tools(&self) -> (Tools, Vec<usize>) {
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

impl Policy {
    /// Makes the rules ready for these tools (sub-agents and the `request_…` tools among them) and reports every mistake
    /// under `policy`, by the rule's index.
    #[must_use]
    pub fn new(rules: &[Rule], tools: &[ToolSpec], mistakes: &mut Mistakes) -> Self {
        let shapes: Vec<_> = tools.iter().map(|tool| (tool.clone(), Shape::of_arguments(&tool.parameters))).collect();
        let mut seen = BTreeSet::new();
        let rules = rules.iter().enumerate().map(|(index, rule)| {
            let index = index.to_string();
            if !seen.insert(rule.name.as_str()) {
                let detail =
                    format!("another rule is called `{}` too: a judgement could not tell them apart", rule.name);
                mistakes.warn(&["policy", &index, "name"], detail);
            }
            Compiled::new(rule, &index, &shapes, mistakes)
        });
        Self { rules: rules.collect(), shapes }
    }

    /// Whether a judgement over arguments of this size belongs off the runtime's threads. Its work is bounded either way:
    /// beyond a million steps (a part of an expression, an item of a list, 16 bytes of text) it faults, and never allows.
    #[must_use]
    pub fn is_heavy(&self, args_bytes: usize) -> bool {
        args_bytes > HEAVY && self.rules.iter().any(|rule| matches!(rule.when, When::Holds(_)))
    }

    /// The shape of a tool's arguments, if it was known when the rules were made ready.
    pub(super) fn shape(&self, tool: &ToolSpec) -> Option<&Shape> {
        self.shapes
            .iter()
            .find(|(known, _)| {
                known.name == tool.name && known.kind == tool.kind && known.parameters == tool.parameters
            })
            .map(|(_, shape)| shape)
    }
}

impl Compiled {
    fn new(rule: &Rule, index: &str, tools: &[(ToolSpec, Shape)], mistakes: &mut Mistakes) -> Self {
        let place = ["policy", index];
        rule.check(&place, mistakes);
        let (covers, broken) = rule.compiled_tools();
        for at in broken {
            mistakes
                .add(&["policy", index, "tools", &at.to_string()], format!("rule `{}`: this is no glob", rule.name));
        }
        unknown_tools(rule, index, tools, mistakes);
        let covered: Vec<_> = tools.iter().filter(|(tool, _)| covers.cover(tool)).collect();
        if rule.decide == Decide::Allow && covered.iter().any(|(tool, _)| tool.kind == ToolKind::Human) {
            let detail = format!("rule `{}`: an `allow` has no effect on a tool that asks a human", rule.name);
            mistakes.warn(&["policy", index, "decide"], detail);
        }
        Self {
            name: rule.name.clone(),
            decide: rule.decide,
            reason: rule.reason.clone(),
            terms: rule.terms(),
            when: rule
                .when
                .as_deref()
                .map_or(When::Always, |when| compile_when(rule, when, &["policy", index, "when"], &covered, mistakes)),
            tools: covers,
        }
    }
}

/// Each entry must be about a tool: a misspelt name in a `deny` would let everything pass.
fn unknown_tools(rule: &Rule, index: &str, tools: &[(ToolSpec, Shape)], mistakes: &mut Mistakes) {
    for (at, entry) in rule.tools.iter().enumerate() {
        let alone = Rule { tools: vec![entry.clone()], ..rule.clone() };
        let (covers, broken) = alone.compiled_tools();
        if broken.is_empty() && !tools.iter().any(|(tool, _)| covers.cover(tool)) {
            let detail = format!("rule `{}`: `{entry}` names no tool", rule.name);
            mistakes.add(&["policy", index, "tools", &at.to_string()], detail);
        }
    }
}

fn compile_when(
    rule: &Rule,
    when: &str,
    place: &[&str],
    tools: &[&(ToolSpec, Shape)],
    mistakes: &mut Mistakes,
) -> When {
    let node = match cel::parse(when) {
        Ok(node) => node,
        Err(flaw) => {
            mistakes.add(place, format!("rule `{}`: {flaw}", rule.name));
            return When::Refused;
        }
    };
    let mut found: Vec<(&str, Findings)> =
        tools.iter().map(|(tool, shape)| (tool.name.as_str(), look(&node, shape))).collect();
    if found.is_empty() {
        // No tool to type it by: that is reported as a mistake of its own.
        found.push(("", Findings::default()));
    }
    if report(rule, place, &found, mistakes) { When::Holds(node) } else { When::Refused }
}

/// Reports what was found for each tool; whether the expression may be used.
fn report(rule: &Rule, place: &[&str], found: &[(&str, Findings)], mistakes: &mut Mistakes) -> bool {
    let before = mistakes.found.len();
    let mut types: BTreeMap<&str, (&str, &Shape)> = BTreeMap::new();
    for (tool, findings) in found {
        for detail in &findings.refused {
            mistakes.add(place, format!("rule `{}`: for tool `{tool}` it {detail}", rule.name));
        }
        for detail in &findings.misfits {
            mistakes.warn(place, format!("rule `{}`: for tool `{tool}` it {detail}", rule.name));
        }
        for member in &findings.optional {
            let detail =
                format!("`{member}` is not `required` by tool `{tool}`: without it the rule cannot be evaluated");
            mistakes.warn(place, format!("rule `{}`: {detail}", rule.name));
        }
        for (member, shape) in &findings.members {
            let (first, known) = *types.entry(member).or_insert((tool, shape));
            if known.word() != shape.word() {
                let (one, two) = (known.word(), shape.word());
                let detail = format!("`{member}` is {one} of tool `{first}` and {two} of tool `{tool}`");
                mistakes.add(place, format!("rule `{}`: {detail}; it needs one type", rule.name));
            }
        }
    }
    if rule.decide == Decide::Allow {
        let from_caller: BTreeSet<_> = found.iter().flat_map(|(_, findings)| &findings.from_caller).collect();
        for name in from_caller {
            mistakes.warn(place, format!("rule `{}` allows by `{name}`, which the caller writes", rule.name));
        }
    }
    mistakes.found.len() == before
}
