//! Judges the arguments of a call by the policy and the review of the tool, without the task's
//! history. Proposals, the starts of calls, and people's edits are all judged here.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

use super::Driver;
use crate::agent::Agent;
use crate::agent::gate::OtherTools;
use crate::engine::Engine;
use crate::engine::session::TaskSession;
use crate::policy::{JudgementInput, Policy};
use crate::task::id::CallId;
use crate::task::rejections::REPEATED_TEXT;
use crate::task::verdict::{Judgement, Terms, Verdict};
use crate::tool::catalog::{Catalog, CatalogEntry};
use crate::tool::{DefinitionChange, arguments, human};

impl<'e> Driver<'e> {
    pub(crate) fn offered(&self, name: &str) -> Option<Cow<'e, CatalogEntry>> {
        self.engine.offered(self.agent, name)
    }
}

impl Engine {
    /// Returns the tool of exactly this name. The task's version of the agent determines which
    /// tools are offered; the tool itself comes from the current configuration. A gate with
    /// `other_tools: judge` also offers tools that it does not list (`other_tool`). Returns `None`
    /// if the agent does not offer the tool, or if the configuration no longer has it.
    pub(in crate::engine) fn offered<'a>(
        &'a self,
        agent: &Agent,
        name: &str,
    ) -> Option<Cow<'a, CatalogEntry>> {
        let known = if agent.human_request_kind(name).is_some() {
            self.catalog.human(&agent.name, name)
        } else {
            match agent.sub_agent(name) {
                Some(sub) => self.catalog.agent(&sub.agent),
                None => agent
                    .offered_tool(name)
                    .and_then(|offer| self.catalog.get(&offer.name)),
            }
        };
        known
            .map(Cow::Borrowed)
            .or_else(|| other_tool(agent, name).map(Cow::Owned))
    }

    /// Judges a call of the tool `name` with the arguments `text`. Considers the arguments, the
    /// policy, and the review of the tool's definition, but not the task's history. A call whose
    /// tool is not offered is invalid.
    pub(in crate::engine) async fn verdict(
        &self,
        session: &TaskSession,
        agent: &Agent,
        (name, text): (&str, &str),
    ) -> Judgement {
        let Some(entry) = self.offered(agent, name) else {
            return Judgement::invalid("the tool is not offered any more");
        };
        let args = match arguments::read(text, &entry.schema) {
            Ok(args) => args,
            Err(misfits) => return Judgement::invalid(misfits.to_string()),
        };
        let tool = entry.tool.as_ref();
        if let Some(why) = tool.and_then(|tool| tool.refusal_reason(&args)) {
            return Judgement::invalid(why);
        }
        if let Some(kind) = agent.human_request_kind(name)
            && let Err(why) = human::question(kind, &args, self.catalog.services(&agent.name))
        {
            return Judgement::invalid(why);
        }
        let metadata = &session.own.row.client.metadata;
        let metadata: Value = serde_json::from_str(metadata).unwrap_or_default();
        let (row, groups) = (session.own.row.clone(), session.own.progress.groups.clone());
        let policy = Arc::clone(&self.policy);
        let spec = entry.current_spec(session.task_id()).into_owned();
        let heavy = policy.is_heavy(text.len());
        let user = self.roster.ids().id(row.user_id.as_str());
        let at_gate = agent.gate.is_some();
        // `offered` returns an owned entry only for a tool that the gate does not list.
        let is_listed = matches!(entry, Cow::Borrowed(_));
        let judge = move || {
            policy.judge(&JudgementInput {
                tool: &spec,
                args: &args,
                agent_path: &row.agent_path,
                user: &user,
                tenant: &row.tenant,
                groups: &groups,
                task_id: &row.root_task_id.to_string(),
                metadata: &metadata,
                session: &row.session_id,
                at_gate,
                is_listed,
            })
        };
        let judgement = if heavy {
            tokio::task::spawn_blocking(judge)
                .await
                .unwrap_or_else(|_| held_for_owner(None, "The policy could not be evaluated."))
        } else {
            judge()
        };
        restrict_if_changed(judgement, entry.definition_change(session.task_id()))
    }
}

/// Returns a catalog entry for a tool that the gate does not list, if the gate lets the rules judge
/// such tools (`other_tools: judge`).
pub(super) fn other_tool(agent: &Agent, name: &str) -> Option<CatalogEntry> {
    let gate = agent.gate.as_ref()?;
    let judged = gate.other_tools == OtherTools::Judge && agent.offered_tool(name).is_none();
    judged.then(|| Catalog::unconfigured(name)).flatten()
}

/// Makes a judgement stricter if the tool's server has changed the tool since its review. If
/// `change.denied` is true, an allowed or held call is denied. Otherwise, an allowed call is held,
/// and a held call loses its offer of a standing decision.
fn restrict_if_changed(judgement: Judgement, change: Option<DefinitionChange>) -> Judgement {
    let Some(change) = change else {
        return judgement;
    };
    let rule = judgement.rule.clone();
    match judgement.verdict {
        Verdict::Allow | Verdict::Hold if change.denied => Judgement {
            rule,
            reason: Some(change.reason),
            ..Judgement::new(Verdict::Deny)
        },
        Verdict::Allow => held_for_owner(rule, change.reason),
        Verdict::Hold => Judgement {
            offer: None,
            ..judgement.with_reason(Some(&change.reason))
        },
        Verdict::Deny | Verdict::Invalid | Verdict::Human => judgement,
    }
}

/// Parses the arguments of a call. Reads an empty text as an empty object, as the tools do. Returns
/// `None` if [`arguments::parse`] refuses the text; such a call never runs.
pub(in crate::engine) fn parse_arguments(text: &str) -> Option<Value> {
    let is_blank = text.trim_matches([' ', '\t', '\n', '\r']).is_empty();
    arguments::parse(if is_blank { "{}" } else { text }).ok()
}

/// Returns the denial of a call that equals the earlier call `call`, which a person has rejected.
/// `reason` is that person's reason.
pub(in crate::engine) fn denied_again(call: CallId, reason: Option<&str>) -> Judgement {
    let reason = reason.map_or(String::new(), |reason| format!(" Reason: {reason}"));
    Judgement {
        reason: Some(format!("{REPEATED_TEXT}.{reason}")),
        repeats: Some(call),
        ..Judgement::new(Verdict::Deny)
    }
}

/// Returns a hold of a call that `allowed` allows. If a standing decision allows the call, the
/// terms of its rule apply, because the rule would hold the call without the standing decision.
/// Otherwise, or if this rule is gone, the owner decides.
pub(in crate::engine) fn held_despite_permission(
    policy: &Policy,
    allowed: Judgement,
    reason: impl Into<String>,
) -> Judgement {
    let granting_rule = allowed.grant_id.and(allowed.rule.as_deref());
    let terms = granting_rule.and_then(|rule| policy.terms(rule).cloned());
    Judgement {
        terms: Some(terms.unwrap_or_default()),
        ..held_for_owner(allowed.rule, reason)
    }
}

/// Returns a hold with the default terms, under which the owner decides.
pub(in crate::engine) fn held_for_owner(
    rule: Option<String>,
    reason: impl Into<String>,
) -> Judgement {
    Judgement {
        rule,
        reason: Some(reason.into()),
        terms: Some(Terms::default()),
        ..Judgement::new(Verdict::Hold)
    }
}
