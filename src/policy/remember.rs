//! The standing decisions that rules offer: the settings, their checks, and the offer for one call.
//!
//! The rules judge a call once for each agent on the path from the root to the task. Invariants:
//!
//! - A call gets an offer only if this service performs the call itself.
//! - If a rule could not be evaluated for one of these agents, the call gets no offer.
//! - If the judgements for several of these agents hold the call, the call gets an offer only if
//!   the same rule makes the same offer in each of these judgements.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::JudgementInput;
use super::compile::{CompiledWhen, compile_when};
use super::eval::{Scope, evaluate_condition};
use super::rules::{Decide, Rule};
use super::shape::Shape;
use crate::task::grant::{GrantScope, Offer};
use crate::task::rejections::json_equality_key;
use crate::task::request::digest_of_texts;
use crate::task::tool_spec::{Effect, ToolSpec};
use crate::task::units::{duration_text, format_duration};
use crate::task::verdict::Terms;
use crate::world::Mistakes;

/// The number of calls that a standing decision lets through if the rule does not set `uses`.
const DEFAULT_USES: u32 = 20;

/// The standing decision that an approver may give with an approval. It lets later calls run
/// without a request. Exactly one of `same` and `when` must be set, to select these calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Remember", extend("required" = ["for", "most"]))]
pub struct RuleRemember {
    /// Whether the standing decision covers calls of the same tool with the same arguments. Not for
    /// a `once` tool.
    pub same: bool,
    /// A condition, written like the rule's own `when` and shown to approvers. The standing
    /// decision covers those calls of the rule that meet the condition.
    pub when: Option<String>,
    /// The scopes from which an approver may choose. `task` covers the tree of the approved call
    /// until the user's next message, and is not offered at a gate, where each call is a tree of its
    /// own. `owner` covers the tasks of the same owner and root agent.
    #[serde(rename = "for")]
    #[schemars(length(min = 1))]
    pub scopes: Vec<GrantScope>,
    /// The longest duration that an approver may choose for the standing decision.
    #[serde(with = "duration_text")]
    #[schemars(with = "duration_text::Text")]
    pub most: Duration,
    /// The number of calls that the standing decision lets through. Default: 20. Required in a rule
    /// for a `once` tool.
    #[schemars(range(min = 1))]
    pub uses: Option<u32>,
}

#[derive(Debug)]
pub(super) struct CompiledRemember {
    when: Option<CompiledWhen>,
    settings: RuleRemember,
    /// The digest of the whole rule.
    rule: String,
}

impl Rule {
    /// Reports the members of `remember` that do not fit each other or the rule. If `same` or
    /// `when` could not be read, `is_selection_known` is false, and the function does not check
    /// that exactly one of them is set.
    ///
    /// Both `Policy::new` and the module `config` call this function. If `config` has found a
    /// mistake in a member of `remember`, it drops the reports of `Policy::new` about `remember` as
    /// a whole, and so needs a report of its own.
    pub(crate) fn check_whole_remember(
        &self,
        place: &[&str],
        is_selection_known: bool,
        mistakes: &mut Mistakes,
    ) {
        let Some(remember) = &self.remember else {
            return;
        };
        let place = [place, &["remember"]].concat();
        if self.decide != Decide::Hold {
            let detail = "only a rule that holds calls offers to remember an approval";
            mistakes.add(&place, detail);
        }
        if self.approvers.required > 1 {
            let detail = "an approval of several people cannot be remembered: `required` is 1";
            mistakes.add(&place, detail);
        }
        if is_selection_known && remember.same == remember.when.is_some() {
            mistakes.add(&place, "exactly one of `same: true` and `when`");
        }
    }

    /// Reports the mistakes in `remember` that can be found without the definitions of the tools.
    pub(super) fn check_remember(&self, place: &[&str], mistakes: &mut Mistakes) {
        let Some(remember) = &self.remember else {
            return;
        };
        self.check_whole_remember(place, true, mistakes);
        let at = |key: &'static str| [place, &["remember", key]].concat();
        if remember.scopes.is_empty() {
            mistakes.add(&at("for"), "at least one of `task` and `owner`");
        }
        if remember.most.is_zero() {
            mistakes.add(&at("most"), "a time longer than 0, such as `4h`");
        }
        if remember.uses == Some(0) {
            mistakes.add(&at("uses"), "expected 1 or more");
        }
    }

    /// Returns a digest of the whole rule, so that a change of the rule ends the standing decisions
    /// that the rule offered.
    fn digest(&self) -> String {
        let remember = self.remember.clone().unwrap_or_default();
        let most = format_duration(remember.most);
        let members = serde_json::json!([
            self.name,
            self.tools,
            self.when,
            self.decide,
            self.reason,
            self.terms(),
            [
                remember.same,
                remember.when,
                remember.scopes,
                most,
                remember.uses
            ],
        ]);
        digest_of_texts([members.to_string().as_str()].into_iter())
    }
}

impl CompiledRemember {
    /// Compiles `remember` of a rule, and reports its mistakes. `None` if the rule has no
    /// `remember`. `place` is the path of the rule in the file, and `covered` has the tools that
    /// the rule covers.
    pub(super) fn new(
        rule: &Rule,
        place: &[&str],
        covered: &[&(ToolSpec, Shape)],
        mistakes: &mut Mistakes,
    ) -> Option<Self> {
        let settings = rule.remember.clone()?;
        let at = |key: &'static str| [place, &["remember", key]].concat();
        let own_tools: Vec<_> = covered
            .iter()
            .copied()
            .filter(|(tool, _)| is_performed_here(tool))
            .collect();
        if own_tools.is_empty() && !covered.is_empty() {
            let detail = "none of the rule's tools is called by this service itself, so nothing can be remembered";
            mistakes.add(&[place, &["remember"]].concat(), detail);
        }
        let once = own_tools
            .iter()
            .find(|(tool, _)| tool.effect == Effect::Once);
        if let Some((tool, _)) = once {
            if settings.same {
                let detail = format!(
                    "`{}` is a `once` tool: the same call again is a second effect; say `when`",
                    tool.name
                );
                mistakes.add(&at("same"), detail);
            }
            if settings.uses.is_none() {
                let detail = format!(
                    "`{}` is a `once` tool: say how many calls are let through",
                    tool.name
                );
                mistakes.add(&at("uses"), detail);
            }
        }
        // The condition is checked like the condition of an `allow` rule, because a standing
        // decision also lets calls run.
        let when = settings.when.as_deref();
        let when = when
            .map(|when| compile_when(&rule.name, true, when, &at("when"), &own_tools, mistakes));
        Some(Self {
            when,
            rule: rule.digest(),
            settings,
        })
    }

    /// Returns the offer for a call that the rule holds. `None` if no standing decision may cover
    /// the call, for example because the condition `remember.when` is false or cannot be evaluated.
    /// `arguments_fit` says whether the arguments have the types that the tool declares.
    pub(super) fn offer(&self, scope: &Scope<'_>, arguments_fit: bool) -> Option<Offer> {
        let JudgementInput {
            tool,
            args,
            at_gate,
            ..
        } = scope.input;
        // At a gate, each call is a tree of its own, so the scope `task` would cover no later call.
        let mut scopes = self.settings.scopes.clone();
        scopes.retain(|scope| !at_gate || *scope == GrantScope::Owner);
        if !arguments_fit || !is_performed_here(tool) || scopes.is_empty() {
            return None;
        }
        let arguments = match &self.when {
            Some(CompiledWhen::Expression(when)) if evaluate_condition(when, scope) == Ok(true) => {
                None
            }
            None if self.settings.same && tool.effect.is_repeatable() => {
                Some(json_equality_key(args))
            }
            Some(_) | None => return None,
        };
        let basis = self.basis(tool);
        Some(Offer {
            basis: match arguments {
                Some(arguments) => {
                    let digest = digest_of_texts([arguments.as_str()].into_iter());
                    format!("{basis}/{digest}")
                }
                None => basis,
            },
            when: self.settings.when.clone(),
            scopes,
            most: self.settings.most,
            uses: self.settings.uses.unwrap_or(DEFAULT_USES),
        })
    }

    /// Returns a digest of the rule and the tool. The basis of each offer begins with this digest.
    /// If the offer is for the same arguments, a digest of the arguments follows.
    pub(super) fn basis(&self, tool: &ToolSpec) -> String {
        let parts = [
            self.rule.as_str(),
            tool.name.as_str(),
            tool.definition.as_str(),
            tool.target.as_str(),
            tool.effect.as_str(),
        ];
        digest_of_texts(parts.into_iter())
    }
}

/// Whether this service performs the tool's calls itself. Calls of other tools get no offer: the
/// service counts a use of a standing decision when it starts the call, so it could not limit the
/// number of calls that it does not start.
fn is_performed_here(tool: &ToolSpec) -> bool {
    let properties = tool.kind.properties();
    !properties.is_performed_elsewhere() && !properties.asks_person
}

impl super::Policy {
    #[must_use]
    pub fn terms(&self, rule: &str) -> Option<&Terms> {
        let rule = self.rules.iter().find(|known| known.name == rule);
        rule.map(|rule| &rule.terms)
    }

    /// Whether a rule still offers standing decisions with this basis. If not, a standing decision
    /// with this basis no longer counts. The basis changes with the rule and with the tool, because
    /// it contains a digest of both.
    #[must_use]
    pub fn offers(&self, basis: &str) -> bool {
        let tool_basis = basis
            .split_once('/')
            .map_or(basis, |(tool_basis, _)| tool_basis);
        self.offered.contains(tool_basis)
    }
}

#[cfg(test)]
mod tests;
