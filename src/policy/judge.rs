//! Judges a call, once for each agent on the path from the root's agent to the agent that made the
//! call. Invariants: the strictest of these verdicts counts (deny, then hold, then allow). If a
//! rule cannot be evaluated, neither this rule nor a later rule allows the call. No judgement
//! quotes an argument.

use super::JudgementInput;
use super::compile::{CompiledRule, CompiledWhen, Policy};
use super::eval::{Fault, Scope, StepBudget, evaluate_condition};
use super::rules::Decide;
use super::shape::Shape;
use crate::task::verdict::{Judgement, NO_RULE_MATCHES, Terms, Verdict};

/// The maximum number of steps per judgement, over all rules and agents.
const MAX_STEPS: u32 = 1_000_000;

/// The result of the rules for one agent on the path from the root's agent to the calling agent.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a few short-lived values for each judgement"
)]
enum Opinion {
    /// No rule matches.
    None,
    /// The decision of the first matching rule. If a `hold` or `deny` rule cannot be evaluated, the
    /// rule counts as matching, and the judgement's reason says that the evaluation failed. If an
    /// `allow` rule before a matching `hold` or `deny` rule could not be evaluated, the judgement's
    /// reason names the first such `allow` rule.
    Rule(Decide, Judgement),
    /// The call must be held, for the reason in the text. Either an `allow` rule could not be
    /// evaluated, and no later `hold` or `deny` rule matches; a later `allow` rule then has no
    /// effect. Or [`conclude`] holds the call for another reason: for example, no rule matches.
    Faulted(String),
}

impl Policy {
    /// Judges a call. The judgement never panics, takes bounded time, and never allows a call after
    /// a fault in a rule.
    #[must_use]
    pub fn judge(&self, input: &JudgementInput<'_>) -> Judgement {
        let computed;
        let shape = if let Some(shape) = self.shape(input.tool) {
            shape
        } else {
            computed = Shape::from_parameters(&input.tool.parameters);
            &computed
        };
        let arguments_fit = shape.fits(input.args);
        let budget = StepBudget::new(MAX_STEPS);
        let mut opinions = Vec::new();
        for length in 1..=input.agent_path.len() {
            let path = input.agent_path.get(..length).unwrap_or_default();
            opinions.push(self.opinion(
                &Scope {
                    input,
                    path,
                    shape,
                    budget: &budget,
                },
                arguments_fit,
            ));
        }
        conclude(input, opinions)
    }

    fn opinion(&self, scope: &Scope<'_>, arguments_fit: bool) -> Opinion {
        let mut faulted: Option<String> = None;
        for rule in self
            .rules
            .iter()
            .filter(|rule| rule.covers(scope.input.tool, scope.input.is_listed))
        {
            let matched = rule.matches(scope, arguments_fit);
            match (rule.decide, matched) {
                (_, Ok(false)) => {}
                (Decide::Allow, Ok(true)) => {
                    if faulted.is_none() {
                        return Opinion::Rule(Decide::Allow, rule.judgement(Verdict::Allow, &[]));
                    }
                }
                (Decide::Allow, Err(fault)) => {
                    faulted.get_or_insert_with(|| rule.notice(&fault));
                }
                (Decide::Hold | Decide::Deny, matched) => {
                    let own = matched.err().map(|fault| rule.notice(&fault));
                    let verdict = if rule.decide == Decide::Hold {
                        Verdict::Hold
                    } else {
                        Verdict::Deny
                    };
                    let notices: Vec<&str> =
                        faulted.iter().chain(&own).map(String::as_str).collect();
                    let mut judgement = rule.judgement(verdict, &notices);
                    if verdict == Verdict::Hold && notices.is_empty() {
                        let remember = rule.remember.as_ref();
                        let offer = remember.and_then(|it| it.offer(scope, arguments_fit));
                        judgement.offer = offer.map(Box::new);
                    }
                    return Opinion::Rule(rule.decide, judgement);
                }
            }
        }
        faulted.map_or(Opinion::None, Opinion::Faulted)
    }
}

impl CompiledRule {
    fn matches(&self, scope: &Scope<'_>, arguments_fit: bool) -> Result<bool, Fault> {
        match &self.when {
            CompiledWhen::Invalid => Err(Fault::Refused),
            CompiledWhen::Always if !arguments_fit && self.decide == Decide::Allow => {
                Err(Fault::Misfit)
            }
            CompiledWhen::Always => Ok(true),
            CompiledWhen::Expression(_) if !arguments_fit => Err(Fault::Misfit),
            CompiledWhen::Expression(when) => evaluate_condition(when, scope),
        }
    }

    fn notice(&self, fault: &Fault) -> String {
        format!("Rule `{}` could not be evaluated: {fault}.", self.name)
    }

    fn judgement(&self, verdict: Verdict, notices: &[&str]) -> Judgement {
        let reason: Vec<&str> = self
            .reason
            .as_deref()
            .into_iter()
            .chain(notices.iter().copied())
            .collect();
        Judgement {
            rule: Some(self.name.clone()),
            reason: (!reason.is_empty()).then(|| reason.join(" ")),
            terms: (verdict == Verdict::Hold).then(|| self.terms.clone()),
            ..Judgement::new(verdict)
        }
    }
}

fn judgement_without_rule(verdict: Verdict, reason: Option<String>) -> Judgement {
    let terms = matches!(verdict, Verdict::Hold | Verdict::Human).then(Terms::default);
    Judgement {
        reason,
        terms,
        ..Judgement::new(verdict)
    }
}

/// Combines the opinions, one for each agent of the path, in the order of the path. The last
/// opinion is for the agent that made the call. If no rule matches for this agent, a call at a gate
/// is held, and any other call gets the default verdict of its tool's kind. If no rule matches for
/// an earlier agent, the opinion for that agent has no effect. If a rule holds the call for one
/// agent, and a rule could not be evaluated for another agent, the reason also names the latter
/// rule.
fn conclude(input: &JudgementInput<'_>, mut opinions: Vec<Opinion>) -> Judgement {
    let own_opinion = opinions
        .pop()
        .unwrap_or(Opinion::Faulted("The agent is not known.".to_owned()));
    let properties = input.tool.kind.properties();
    let allowed = match own_opinion {
        Opinion::Rule(Decide::Allow, judgement) => Some(judgement),
        Opinion::None if input.at_gate || properties.without_rule == Verdict::Hold => {
            opinions.push(Opinion::Faulted(NO_RULE_MATCHES.to_owned()));
            None
        }
        Opinion::None => Some(judgement_without_rule(properties.without_rule, None)),
        other @ (Opinion::Rule(Decide::Hold | Decide::Deny, _) | Opinion::Faulted(_)) => {
            opinions.push(other);
            None
        }
    };
    let (mut held, mut faulted): (Option<Judgement>, _) = (None, None);
    let mut is_unanimous = true;
    for opinion in opinions {
        match opinion {
            Opinion::Rule(Decide::Deny, judgement) => return judgement,
            Opinion::Rule(Decide::Hold, judgement) => {
                is_unanimous &= held.as_ref().is_none_or(|first| {
                    first.rule == judgement.rule && first.offer == judgement.offer
                });
                held = held.or(Some(judgement));
            }
            Opinion::Faulted(notice) => faulted = faulted.or(Some(notice)),
            Opinion::None | Opinion::Rule(Decide::Allow, _) => {}
        }
    }
    if let Some(held) = &mut held
        && (!is_unanimous || faulted.is_some())
    {
        held.offer = None;
    }
    let fault = faulted.as_deref();
    let fault = fault.filter(|notice| *notice != NO_RULE_MATCHES);
    let held = held.map(|held| held.with_reason(fault));
    let held =
        held.or_else(|| faulted.map(|notice| judgement_without_rule(Verdict::Hold, Some(notice))));
    match (held, allowed) {
        (Some(held), _) if properties.asks_person => Judgement {
            verdict: Verdict::Human,
            ..held
        },
        (Some(held), _) => held,
        (None, Some(allowed)) => allowed,
        (None, None) => judgement_without_rule(Verdict::Hold, Some(NO_RULE_MATCHES.to_owned())),
    }
}

#[cfg(test)]
mod tests;
