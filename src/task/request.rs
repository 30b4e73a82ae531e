//! The content of a request to people. The commit that opens the request fixes the content.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::decision::Action;
use super::elicitation::Elicitation;
use super::grant::Offer;
use super::id::{CallId, RequestId, TaskId};
use super::operator_text::OperatorText;
pub use super::request_kind::RequestKind;
use super::tool_spec::{Effect, ToolSpec};
use super::user::UserIds;
use super::verdict::{Terms, Verdict};

/// A warning for an approver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// Stable code of the warning, for programs.
    pub code: String,
    /// JSON pointer to the part of the arguments to which the warning applies; empty if the warning
    /// applies to the arguments as a whole.
    pub pointer: String,
    /// The warning in one sentence, for the approver.
    pub detail: String,
}

/// One call of a request. All members hold the values that they had when the request was opened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallSpec {
    /// Id that this service gave the call.
    pub tool_call_id: CallId,
    /// Name of the called tool.
    pub name: String,
    /// The exact text of the arguments. People see it, `digest` covers it, and the tool gets it.
    pub arguments_text: String,
    /// Effect of repeating the call; `once` if there is no tool called `name`.
    pub effect: Effect,
    /// Target of the tool's calls, see [`ToolSpec::target`]; `digest` covers the target.
    pub target: String,
    /// Whole address of this call, as an approver sees it; `None` if `target` is the whole address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    /// One line for the approver, see [`ToolSpec::summarize`].
    pub summary: String,
    /// Which texts of this call come from the configuration. Not on the wire.
    #[serde(default, skip_serializing_if = "OperatorText::is_default")]
    pub operator_text: OperatorText,
    /// Warnings for the approver; empty if the request does not decide the call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
    /// Whether the call needs a decision in this request. `false` for the turn's other calls, which
    /// an approval request shows as context only.
    pub needs_decision: bool,
    /// The policy's last verdict on the call.
    pub verdict: Verdict,
    /// Name of the rule that gave the verdict; `None` if no rule gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Reason for the verdict, see `Judgement::reason`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// JSON Schema of the tool's arguments.
    pub parameters: Value,
    /// Digest of the call, see [`call_digest`].
    pub digest: String,
    /// Digest of the tool's definition. With this member, `digest` can be recomputed even after the
    /// tool has changed. `None` if the tool did not exist, or if an older version of this service
    /// stored the request. Not on the wire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<String>,
    /// User id of the person who replaced the model's arguments by `arguments_text`, if any. If
    /// this request requires several approvals, only other people may approve the call. Not on the
    /// wire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub editor: Option<String>,
    /// Whether only people other than `editor` may approve the call, even if this request requires
    /// only one approval. Copied from `EditedArguments::needs_others`; false if no person edited
    /// the call. Not on the wire.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bars_editor: bool,
    /// The standing decision that a person may give when they approve the call, if the rule offered
    /// one when the request was opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offer: Option<Box<Offer>>,
}

impl CallSpec {
    /// Returns the target that an approver sees: `address` if the call has one, otherwise `target`.
    #[must_use]
    pub fn shown_target(&self) -> &str {
        self.address
            .as_ref()
            .map_or(&self.target, |address| &address.text)
    }

    /// Whether `digest` and `address` match the other members. Without a stored `definition`,
    /// `digest` cannot be recomputed, so only `address` is checked.
    fn has_valid_digests(&self, tenant: &str, task: TaskId) -> bool {
        let is_sealed =
            |address: &Address| *address == Address::new(&self.digest, address.text.clone());
        let digest = self.digest_with(tenant, task, &self.arguments_text, self.rule.as_deref());
        self.address.as_ref().is_none_or(is_sealed)
            && digest.is_none_or(|digest| digest == self.digest)
    }

    /// Returns the digest of the call with these arguments under this rule; `None` without a stored
    /// `definition`.
    #[must_use]
    pub fn digest_with(
        &self,
        tenant: &str,
        task: TaskId,
        arguments_text: &str,
        rule: Option<&str>,
    ) -> Option<String> {
        let tool = DigestedTool {
            name: &self.name,
            definition: self.definition.as_deref()?,
            target: &self.target,
            effect: self.effect,
        };
        let call = self.tool_call_id;
        Some(call_digest(tenant, task, call, tool, arguments_text, rule))
    }
}

/// The method and the whole address of one call, with the call's arguments filled in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The address as an approver sees it.
    pub text: String,
    /// Digest over `text` and the call's digest. Not on the wire.
    pub seal: String,
}

impl Address {
    /// Creates the address `text` of the call with the digest `digest`. Its seal is a hash over
    /// both.
    #[must_use]
    pub fn new(digest: &str, text: String) -> Self {
        let seal = digest_of_texts([digest, text.as_str()].into_iter());
        Self { text, seal }
    }
}

/// A request as it was opened: the content of the journal item `intervention_requested`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestSpec {
    /// Id of the request, never reused.
    pub request_id: RequestId,
    /// Kind of the request, see [`RequestKind::properties`].
    pub kind: RequestKind,
    /// All calls of the turn if this is an approval request; otherwise the one call that the
    /// request is about.
    pub pending_tool_calls: Vec<CallSpec>,
    /// Terms under which the request is decided.
    pub terms: Terms,
    /// Digest over the digests of the calls that the request decides, in order.
    pub digest: String,
    /// The question, in the words of the agent or of the tool's server; `None` if the request has
    /// no such question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// Further data for the approver. The members depend on the kind, for example the service of a
    /// credentials request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
    /// JSON Schema of the answer; `None` if the request has no form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<Value>,
    /// The questions of a tool's server that have no answer yet, with the earlier answers and the
    /// server's state. This request asks the first question. `None` if this request asks no
    /// question of a tool's server. Not on the wire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elicitation: Option<Box<Elicitation>>,
    /// Digest over the members that the other digests do not cover, see `computed_seal`. `None` in
    /// requests that older versions of this service stored. Not on the wire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seal: Option<String>,
}

impl RequestSpec {
    /// Returns the calls that this request decides.
    pub fn own_calls(&self) -> impl Iterator<Item = &CallSpec> {
        self.pending_tool_calls
            .iter()
            .filter(|call| call.needs_decision)
    }

    /// Returns the message of the terms if it is the operator's text. Returns `None` if this
    /// request asks a question of a tool's server: the message then repeats the server's text.
    #[must_use]
    pub fn operator_message(&self) -> Option<&str> {
        let message = self.terms.message.as_deref();
        message.filter(|_| self.elicitation.is_none())
    }

    /// Returns the request with `digest` and `seal` computed from the other members.
    #[must_use]
    pub fn sealed(mut self) -> Self {
        self.digest = digest_of_texts(self.own_calls().map(|call| call.digest.as_str()));
        self.seal = Some(self.computed_seal());
        self
    }

    /// Whether other people must approve the arguments that `editor` writes for a call of this
    /// request. True in two cases: the request requires several approvals, or `editor` has edited
    /// the call before and is barred from approving the call (see `bars_editor`).
    #[must_use]
    pub fn needs_others_after_edit(&self, call: CallId, editor: &str) -> bool {
        let is_barred = |own: &CallSpec| {
            let is_editor = |earlier: &String| UserIds::Folded.is_same_person(earlier, editor);
            own.bars_editor && own.editor.as_ref().is_some_and(is_editor)
        };
        let mut own = self.own_calls().filter(|own| own.tool_call_id == call);
        self.required() > 1 || own.any(is_barred)
    }

    fn computed_seal(&self) -> String {
        // The seal does not cover `bars_editor`, because older versions of this service compute the
        // seal without this member. Before a call starts, the votes are checked again, with
        // `EditedArguments::needs_others` instead of `bars_editor`.
        let calls: Vec<_> = self
            .pending_tool_calls
            .iter()
            .map(|call| (call.tool_call_id, call.needs_decision, &call.editor))
            .collect();
        // In a credentials request, the seal covers `details`, which name the service whose login
        // is asked for. In an elicitation, the seal covers `details`, `form` and the server's
        // questions. In any other request, the seal covers none of them.
        let elicitation = self.elicitation.as_ref();
        let asked = elicitation.map(|asked| json!([self.details, self.form, asked]));
        let service = self.details.clone();
        let asked = asked.or(service.filter(|_| self.kind.takes_secrets()));
        let members = (
            self.request_id,
            self.kind,
            &self.terms,
            &self.question,
            asked,
            calls,
        );
        format_sha256(&Sha256::digest(
            serde_json::to_vec(&members).unwrap_or_default(),
        ))
    }

    /// Whether every digest of the request matches the content that it covers. `tenant` and `task`
    /// must be those of the request's task, because the digests of the calls cover both.
    #[must_use]
    pub fn has_valid_digests(&self, tenant: &str, task: TaskId) -> bool {
        let own = digest_of_texts(self.own_calls().map(|call| call.digest.as_str()));
        own == self.digest
            && self
                .seal
                .as_ref()
                .is_none_or(|seal| *seal == self.computed_seal())
            && self
                .pending_tool_calls
                .iter()
                .all(|call| call.has_valid_digests(tenant, task))
    }

    /// Returns the number of people who have to agree. In an approval request, they agree that a
    /// call runs. In a reconcile request, they agree that a call is retried. A request of any other
    /// kind needs one person.
    #[must_use]
    pub fn required(&self) -> u32 {
        if self.kind.properties().counts_approvers {
            self.terms.approvers.required
        } else {
            1
        }
    }

    /// Returns the actions that this request accepts from the people who may decide. `required` is
    /// the number of people who have to agree. An approval request accepts the actions of the
    /// rule's `allow`. If 2 or more people have to agree, it does not accept `respond`. Any other
    /// request accepts all actions of its kind, but no `retry` of a call without a stored
    /// `definition`.
    #[must_use]
    pub fn actions(&self, required: u32) -> Vec<Action> {
        let properties = self.kind.properties();
        let by_rule = |action: &Action| {
            self.terms.allow.contains(action) && (*action != Action::Respond || required < 2)
        };
        let can_run = |action: &Action| {
            *action != Action::Retry || self.own_calls().all(|call| call.definition.is_some())
        };
        let actions = properties.actions.iter().copied();
        actions
            .filter(|action| !properties.decides_calls || by_rule(action))
            .filter(can_run)
            .collect()
    }
}

/// The members of a tool that the digest of a call covers.
#[derive(Clone, Copy, Debug)]
pub struct DigestedTool<'t> {
    /// Name by which a model calls the tool.
    pub name: &'t str,
    /// Digest of the tool's definition, see [`ToolSpec::definition`].
    pub definition: &'t str,
    /// Target of the tool's calls, see [`ToolSpec::target`].
    pub target: &'t str,
    /// Effect of repeating a call.
    pub effect: Effect,
}

impl<'t> From<&'t ToolSpec> for DigestedTool<'t> {
    fn from(tool: &'t ToolSpec) -> Self {
        Self {
            name: &tool.name,
            definition: &tool.definition,
            target: &tool.target,
            effect: tool.effect,
        }
    }
}

/// Returns the digest of one call. The digest is SHA-256 over tenant, task, call, tool name, the
/// tool's definition, target, effect, argument bytes and rule. The length of each part is hashed
/// before the part, so that different parts never give the same bytes. Clients treat the digest as
/// opaque.
#[must_use]
pub fn call_digest(
    tenant: &str,
    task: TaskId,
    call: CallId,
    tool: DigestedTool<'_>,
    arguments_text: &str,
    rule: Option<&str>,
) -> String {
    let parts: [&[u8]; 10] = [
        tenant.as_bytes(),
        task.0.as_bytes(),
        call.0.as_bytes(),
        tool.name.as_bytes(),
        tool.definition.as_bytes(),
        tool.target.as_bytes(),
        tool.effect.as_str().as_bytes(),
        arguments_text.as_bytes(),
        if rule.is_some() { b"rule" } else { b"none" },
        rule.unwrap_or("").as_bytes(),
    ];
    digest_of_parts(parts)
}

/// Returns the digest over the texts in the given order. The length of each text is hashed before
/// the text. A request's digest is this digest over the digests of the calls that the request
/// decides.
#[must_use]
pub fn digest_of_texts<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    digest_of_parts(texts.map(str::as_bytes))
}

fn digest_of_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(part);
    }
    format_sha256(&hash.finalize())
}

/// Returns `sha256:` and the bytes of `hash` in lower-case hex.
#[must_use]
pub fn format_sha256(hash: &[u8]) -> String {
    let digits = hash.iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
    let digits = digits.filter_map(|digit| char::from_digit(u32::from(digit), 16));
    let mut text = String::with_capacity("sha256:".len() + 2 * hash.len());
    text.push_str("sha256:");
    text.extend(digits);
    text
}

#[cfg(test)]
mod tests;
