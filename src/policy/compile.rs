//! Compiles the globs and expressions of the rules, and reports every mistake with its place.
//! Invariant: a rule whose `when` has a mistake stays in the policy. The evaluation of such a rule
//! always fails, which prevents this rule and all later rules from allowing a call.

use std::collections::{BTreeMap, BTreeSet};

use super::cel::{self, ExprNode};
use super::check::{TypeFindings, check_types};
use super::remember::CompiledRemember;
use super::rules::{Decide, Rule};
use super::shape::Shape;
use super::tool_patterns::ToolPatterns;
use crate::task::tool_spec::ToolSpec;
use crate::task::verdict::Terms;
use crate::world::Mistakes;

/// The size of arguments in bytes above which a call is judged on a blocking thread.
const HEAVY_ARGUMENT_BYTES: usize = 16 * 1024;

/// The compiled rules of the configuration, in the file's order.
#[derive(Debug, Default)]
pub struct Policy {
    pub(super) rules: Vec<CompiledRule>,
    shapes: Vec<(ToolSpec, Shape)>,
    /// The bases of the standing decisions that the rules still offer (see [`Policy::offers`]): one
    /// for each rule with `remember` and each tool that the rule covers. A basis in this set is the
    /// part of `Offer::basis` that does not depend on the arguments of a call.
    pub(super) offered: BTreeSet<String>,
}

#[derive(Debug)]
pub(super) struct CompiledRule {
    pub(super) name: String,
    pub(super) decide: Decide,
    pub(super) reason: Option<String>,
    pub(super) terms: Terms,
    pub(super) when: CompiledWhen,
    pub(super) remember: Option<CompiledRemember>,
    tools: ToolPatterns,
}

#[derive(Debug)]
pub(super) enum CompiledWhen {
    Always,
    Expression(ExprNode),
    /// The expression has a mistake, so every evaluation of the rule fails.
    Invalid,
}

impl CompiledRule {
    /// Whether the rule applies to a tool. An `allow` rule never applies to a tool that asks a
    /// person. To a tool that the gate does not list (`is_listed` is false), an `allow` rule
    /// applies only by a glob. The exact name in `tools` is not enough: it stands for a tool whose
    /// schema checks the arguments, and an unlisted tool has no schema that checks them.
    pub(super) fn covers(&self, tool: &ToolSpec, is_listed: bool) -> bool {
        if self.decide != Decide::Allow {
            return self.tools.matches(tool);
        }
        let named = is_listed && self.tools.matches_name(tool);
        (named || self.tools.matches_glob(tool)) && !tool.kind.properties().asks_person
    }
}

impl Policy {
    /// Whether the rule with the name `rule` lists the exact name of the tool. A glob that matches
    /// the tool does not count.
    #[must_use]
    pub fn names_exactly(&self, rule: &str, tool: &str) -> bool {
        let mut rules = self.rules.iter().filter(|known| known.name == rule);
        rules.any(|rule| rule.tools.names.iter().any(|name| name == tool))
    }

    /// Whether a rule lists the exact name of the tool. A glob that matches the tool does not
    /// count.
    #[must_use]
    pub fn lists_tool(&self, tool: &str) -> bool {
        let mut rules = self.rules.iter();
        rules.any(|rule| rule.tools.names.iter().any(|name| name == tool))
    }

    /// Compiles the rules for these tools (including sub-agents and the `request_…` tools). Reports
    /// every mistake at its place in the configuration, which begins with `policy` and the rule's
    /// index. A rule's `tools` may contain a name or a glob that matches none of these tools,
    /// because a gate may judge other tools, too.
    #[must_use]
    pub fn new(rules: &[Rule], tools: &[ToolSpec], mistakes: &mut Mistakes) -> Self {
        let shapes: Vec<_> = tools
            .iter()
            .map(|tool| (tool.clone(), Shape::from_parameters(&tool.parameters)))
            .collect();
        let mut seen = BTreeSet::new();
        let rules = rules.iter().enumerate().map(|(index, rule)| {
            let index = index.to_string();
            if !seen.insert(rule.name.as_str()) {
                let detail = format!(
                    "another rule is called `{}` too: a judgement could not tell them apart",
                    rule.name
                );
                mistakes.warn(&["policy", &index, "name"], detail);
            }
            CompiledRule::new(rule, &index, &shapes, mistakes)
        });
        let rules: Vec<CompiledRule> = rules.collect();
        let mut offered = BTreeSet::new();
        for rule in &rules {
            let tools = shapes.iter().filter(|(tool, _)| rule.covers(tool, true));
            let bases = rule.remember.iter();
            offered.extend(tools.flat_map(|(tool, _)| bases.clone().map(|it| it.basis(tool))));
        }
        Self {
            rules,
            shapes,
            offered,
        }
    }

    /// Whether the judgement of a call with `args_bytes` bytes of arguments may take so long that
    /// it should run on a blocking thread.
    #[must_use]
    pub fn is_heavy(&self, args_bytes: usize) -> bool {
        args_bytes > HEAVY_ARGUMENT_BYTES
            && self.rules.iter().any(|rule| {
                matches!(rule.when, CompiledWhen::Expression(_)) || rule.remember.is_some()
            })
    }

    /// Returns the shape of a tool's arguments, if the tool was known when the rules were compiled.
    pub(super) fn shape(&self, tool: &ToolSpec) -> Option<&Shape> {
        self.shapes
            .iter()
            .find(|(known, _)| {
                known.name == tool.name
                    && known.kind == tool.kind
                    && known.parameters == tool.parameters
            })
            .map(|(_, shape)| shape)
    }
}

impl CompiledRule {
    fn new(rule: &Rule, index: &str, tools: &[(ToolSpec, Shape)], mistakes: &mut Mistakes) -> Self {
        let place = ["policy", index];
        rule.check(&place, mistakes);
        let (patterns, invalid) = rule.tool_patterns();
        for at in invalid {
            mistakes.add(
                &["policy", index, "tools", &at.to_string()],
                format!("rule `{}`: this is not a valid glob", rule.name),
            );
        }
        let covered: Vec<_> = tools
            .iter()
            .filter(|(tool, _)| patterns.matches(tool))
            .collect();
        if rule.decide == Decide::Allow
            && covered
                .iter()
                .any(|(tool, _)| tool.kind.properties().asks_person)
        {
            let detail = "a `request_…` tool is itself the question: a rule sets its terms (`hold`) or refuses it (`deny`)";
            mistakes.warn(&["policy", index, "decide"], detail);
        }
        Self {
            name: rule.name.clone(),
            decide: rule.decide,
            reason: rule.reason.clone(),
            terms: rule.terms(),
            when: rule.when.as_deref().map_or(CompiledWhen::Always, |when| {
                let (place, allows) = (["policy", index, "when"], rule.decide == Decide::Allow);
                compile_when(&rule.name, allows, when, &place, &covered, mistakes)
            }),
            remember: CompiledRemember::new(rule, &place, &covered, mistakes),
            tools: patterns,
        }
    }
}

/// Compiles a condition of the rule `rule`, and reports the condition's mistakes. `allows` says
/// whether calls that meet the condition run without a request.
pub(super) fn compile_when(
    rule: &str,
    allows: bool,
    when: &str,
    place: &[&str],
    tools: &[&(ToolSpec, Shape)],
    mistakes: &mut Mistakes,
) -> CompiledWhen {
    let (node, flaws) = cel::parse(when);
    for flaw in &flaws {
        mistakes.add(place, format!("rule `{rule}`: {flaw}"));
    }
    let Some(node) = node else {
        return CompiledWhen::Invalid;
    };
    let mut found: Vec<(&str, TypeFindings)> = tools
        .iter()
        .map(|(tool, shape)| (tool.name.as_str(), check_types(&node, shape)))
        .collect();
    if found.is_empty() {
        // The rule matches no configured tool, so no argument types can be checked.
        found.push(("", TypeFindings::default()));
    }
    if report(rule, allows, place, &found, mistakes) && flaws.is_empty() {
        CompiledWhen::Expression(node)
    } else {
        CompiledWhen::Invalid
    }
}

/// Reports the findings for each tool, as mistakes or as warnings. Returns whether the rule may use
/// the expression: false if a mistake was reported.
fn report(
    rule: &str,
    allows: bool,
    place: &[&str],
    found: &[(&str, TypeFindings)],
    mistakes: &mut Mistakes,
) -> bool {
    let before = mistakes.found.len();
    let mut types: BTreeMap<&str, (&str, &Shape)> = BTreeMap::new();
    for (tool, findings) in found {
        let of_tool = |detail: &String| format!("rule `{rule}`: for tool `{tool}` it {detail}");
        for detail in &findings.refused {
            mistakes.add(place, of_tool(detail));
        }
        for detail in &findings.misfits {
            mistakes.warn(place, of_tool(detail));
        }
        for member in &findings.optional {
            let detail = format!(
                "rule `{rule}`: `{member}` is not `required` by tool `{tool}`: without it the rule cannot be evaluated"
            );
            mistakes.warn(place, detail);
        }
        for (member, shape) in &findings.members {
            let (first, known) = *types.entry(member).or_insert((tool, shape));
            if known.type_name() != shape.type_name() {
                let (one, two) = (known.type_name(), shape.type_name());
                let detail = format!(
                    "rule `{rule}`: `{member}` is {one} of tool `{first}` and {two} of tool `{tool}`; it needs one type"
                );
                mistakes.add(place, detail);
            }
        }
    }
    if allows {
        let from_caller: BTreeSet<_> = found
            .iter()
            .flat_map(|(_, findings)| &findings.from_caller)
            .collect();
        for variable in from_caller {
            let detail = format!("rule `{rule}` allows by `{variable}`, which the caller writes");
            mistakes.warn(place, detail);
        }
    }
    mistakes.found.len() == before
}

#[cfg(test)]
mod tests {
    use crate::policy::fixture::{policy, rule, sound, tools};
    use crate::policy::{Decide, Rule};

    fn mistakes(tools: &[&str], when: &str) -> Vec<String> {
        policy(&[rule("r", tools, when, Decide::Allow)])
            .1
            .found
            .into_iter()
            .map(|found| found.detail)
            .collect()
    }

    fn warnings(when: &str, decide: Decide) -> Vec<String> {
        let (_, mistakes) = policy(&[rule("r", &["refund"], when, decide)]);
        assert!(mistakes.is_empty(), "{when}: {:?}", mistakes.found);
        mistakes
            .warnings
            .into_iter()
            .map(|warning| warning.detail)
            .collect()
    }

    #[test]
    fn only_members_that_every_tool_declares_with_one_type_may_be_read() {
        for (tools, when, name) in [
            (&["refund"][..], "args.amuont <= 20.0", "args.amuont"),
            (&["refund"], "has(args.amuont)", "args.amuont"),
            (&["refund"], "args['amuont'] <= 20.0", "args.amuont"),
            (&["refund"], "'amuont' in args", "args.amuont"),
            (&["refund"], "args.either == 'x'", "args.either"),
            (&["refund"], "args.free.x == 1", "args.free.x"),
            (&["refund"], "args.money.euros == 1", "args.money.euros"),
            (&["refund"], "args.rows.all(r, r.cost < 1.0)", "r.cost"),
            (&["refund"], "args.loose.all(r, r.cost < 1.0)", "r.cost"),
            (&["refund", "shell"], "args.amount <= 20.0", "`shell`"),
            (&["refund", "lookup"], "args.order == 1", "args.order"),
            (&["*"], "args.amount <= 20.0", "args.amount"),
            (&["ask_customer"], "args.x == 1", "args.x"),
            (&["refund"], "args == {}", "args"),
            (&["refund"], "args.exists(k, k == 'x')", "args"),
            (&["refund"], "args.money[args.note] == 1", "args.money"),
            (&["refund"], "amount <= 20.0", "`amount`"),
            (&["refund"], "tool == 'x'", "`tool`"),
            (&["refund"], "tool.kind == 'x'", "tool.kind"),
            (&["refund"], "user.email == 'x'", "user.email"),
            (&["refund"], "frobnicate(args.amount)", "frobnicate"),
            (&["refund"], "args.tags.all(args, args == 'x')", "`args`"),
        ] {
            let found = mistakes(tools, when);
            assert!(
                !found.is_empty() && found.iter().any(|detail| detail.contains(name)),
                "{when}: {found:?}"
            );
        }
        for (tools, when) in [
            (&["refund"][..], "args.amount <= 20.0"),
            (&["refund"], "args.amount <= 20"),
            (&["refund", "lookup"], "tool.name == 'refund'"),
            (
                &["refund"],
                "args.money.cents > 5 && args.rows.all(r, r.price > 1.0)",
            ),
            (&["request_confirmation", "*"], "user.id == 'alice'"),
        ] {
            assert_eq!(mistakes(tools, when), Vec::<String>::new(), "{when}");
        }
    }

    #[test]
    fn every_unknown_name_of_a_condition_is_reported_once() {
        let when = "foo == 1 && bar.x > 2 && foo == 3 && user.x && baz(1) && agent == args.zz";
        let of_rule = |detail: &str| format!("rule `r`: {detail}");
        let variable = |name: &str| {
            of_rule(&format!(
                "there is no variable `{name}` here: only args, tool, agent, user, task and session"
            ))
        };
        let (policy, found) = policy(&[rule("r", &["refund"], when, Decide::Allow)]);
        let details: Vec<_> = found.found.into_iter().map(|found| found.detail).collect();
        assert_eq!(
            details,
            [
                variable("foo"),
                variable("bar"),
                of_rule("there is no `user.x`"),
                of_rule("there is no function `baz` with these arguments here"),
                of_rule("`agent` cannot be read whole, only its members"),
                of_rule("for tool `refund` it reads `args.zz`, which the tool does not declare"),
            ]
        );
        assert_eq!(found.warnings, []);
        assert!(matches!(policy.rules[0].when, super::CompiledWhen::Invalid));
    }

    #[test]
    fn optional_caller_written_or_always_failing_members_are_warned_about() {
        let allow = Decide::Allow;
        assert!(warnings("args.note == 'x'", allow)[0].contains("`args.note` is not `required`"));
        assert!(warnings("has(args.note)", allow).is_empty());
        assert!(warnings("args.amount <= 20.0", allow).is_empty());
        assert!(warnings("task.metadata.tier == 'gold'", allow)[0].contains("task.metadata"));
        assert!(warnings("session == 'x'", allow)[0].contains("session"));
        assert!(
            warnings(
                "session == 'x' && task.metadata.tier == 'gold'",
                Decide::Deny
            )
            .is_empty()
        );
        for when in [
            "args.amount <= '20'",
            "args.order == 'x'",
            "args.amount",
            "args.amount && true",
            "args.amount * 2 > 1.0",
            "args.order.contains('x')",
            "args.amount.all(x, x == 1)",
            "args.amount ? true : false",
            "'x' in user.id",
            "args.amount.cents == 1",
            "size(args.amount) == 1",
        ] {
            assert!(!warnings(when, allow).is_empty(), "{when}");
        }
    }

    #[test]
    fn rule_without_tools_or_with_an_invalid_glob_is_a_mistake() {
        let (_, found) = policy(&[
            rule("none", &[], "", Decide::Deny),
            rule("glob", &["[x"], "", Decide::Deny),
        ]);
        let places: Vec<String> = found
            .found
            .iter()
            .map(|mistake| mistake.place.join("."))
            .collect();
        assert_eq!(places, ["policy.0.tools", "policy.1.tools.0"]);
    }

    #[test]
    fn globs_match_by_name_and_rules_list_their_tools() {
        let covered = |entries: &[&str]| -> Vec<String> {
            let rule = rule("r", entries, "", Decide::Deny);
            tools()
                .into_iter()
                .filter(|tool| rule.tool_patterns().0.matches(tool))
                .map(|tool| tool.name)
                .collect()
        };
        assert_eq!(covered(&["re*"]), ["refund"]);
        assert_eq!(covered(&["*"]).len(), 5);
        assert_eq!(
            covered(&["request_confirmation", "s?ell"]),
            ["shell", "request_confirmation"]
        );
        assert!(covered(&["Refund"]).is_empty());
    }

    #[test]
    fn rule_is_read_from_yaml_shaped_json_with_its_terms() {
        let rule: Rule = serde_json::from_value(serde_json::json!({
            "name": "large-refund", "tools": ["refund"], "decide": "hold",
            "approvers": {"groups": ["finance"], "users": [], "required": 1},
            "expires_in": "never", "on_expiry": "cancel", "on_reject": "cancel_root", "allow": ["reject", "approve"]
        }))
        .expect("a rule");
        let _ = sound(std::slice::from_ref(&rule));
        let terms = rule.terms();
        assert!(!terms.approvers.owner);
        assert_eq!(terms.expires_in, None);
        let bare: Rule = serde_json::from_value(
            serde_json::json!({"name": "n", "tools": ["refund"], "decide": "hold"}),
        )
        .expect("a rule");
        assert_eq!(bare.terms(), crate::task::verdict::Terms::default());
        for wrong in [
            serde_json::json!({"name": "n", "tools": ["x"], "decide": "hold", "expires_in": "soon"}),
            serde_json::json!({"name": "n", "tools": ["x"], "decide": "maybe"}),
            serde_json::json!({"name": "n", "tools": ["x"], "decide": "hold", "expires": "1h"}),
        ] {
            assert!(serde_json::from_value::<Rule>(wrong).is_err());
        }
    }
}
