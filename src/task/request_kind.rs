//! The kinds of request. For each kind, a constant of type [`RequestKindProperties`] holds the
//! kind's properties. To add a kind, add a variant of [`RequestKind`], a constant, and the code for
//! behaviour that no other kind has.
//!
//! Invariant: code tells kinds apart only by a property or by an exhaustive match. The code with a
//! new kind therefore compiles only once every property and every match covers the kind. A test
//! (`tests/architecture`) refuses code that compares kinds.

use serde::{Deserialize, Serialize};

use super::decision::Action;
use super::words::word_enum;

word_enum! {
    /// The kind of a request. The kind determines the actions that people may take.
    #[derive(
        Clone,
        Copy,
        Debug,
        PartialEq,
        Eq,
        Hash,
        PartialOrd,
        Ord,
        Serialize,
        Deserialize,
        utoipa::ToSchema,
    )]
    #[serde(rename_all = "snake_case")]
    pub enum RequestKind {
        /// Asks whether calls may run.
        Approval = "approval",
        /// The agent asks for guidance.
        Guidance = "guidance",
        /// Asks a person for a login that a call needs.
        Credentials = "credentials",
        /// The agent asks for a confirmation.
        Confirmation = "confirmation",
        /// Asks the API's client to run the call and to post the result.
        ExternalResult = "external_result",
        /// Asks a person for the outcome of a call, because this service does not know the outcome.
        Reconcile = "reconcile",
        /// Asks a person a question that the tool's server has asked in the middle of a call.
        Elicitation = "elicitation",
    }
}

/// The properties in which the kinds of request differ.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "a row of independent properties"
)]
pub struct RequestKindProperties {
    /// The question with which an agent opens a request of this kind; `None` if no agent can.
    pub human: Option<HumanKind>,
    /// The actions that a request of this kind accepts, in the order in which they are shown.
    pub actions: &'static [Action],
    /// The actions that a person may take by a link. Three sorts of action are left out: actions
    /// that show or take a secret, actions that let a call run with arguments that the policy has
    /// not judged, and actions that report an event outside of this service, such as the outcome of
    /// a call.
    pub link_actions: &'static [Action],
    pub response: ResponseKind,
    /// Whether an open request of this kind prevents all calls of the turn from running.
    pub blocks_turn: bool,
    /// Whether a request of this kind decides if calls of the turn may run. If true, the request
    /// shows the whole turn, takes an answer for each call, and follows the `allow` and `on_reject`
    /// of the rule that held the calls. If false, the request is about one call.
    pub decides_calls: bool,
    /// Whether a request of this kind needs as many people to agree as the rule requires. If false,
    /// the answer of one person is enough.
    pub counts_approvers: bool,
    /// Whether a request of this kind asks about a call whose outcome is unknown.
    pub outcome_unknown: bool,
    /// Whether every answer to a request of this kind depends on the tool's definition. If false,
    /// only the answer `retry` depends on it, because a retry runs the tool again. If the
    /// definition has changed since the request was opened, an answer that depends on the
    /// definition decides nothing: the request is withdrawn.
    pub depends_on_tool: bool,
    /// Whether an answer to a request of this kind ends the quarantine of the call's tool. False
    /// for a kind whose answers only supply or refuse an input of the call, such as a login.
    pub lifts_quarantine: bool,
}

/// The content of an answer with the action `respond`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseKind {
    /// The answer's member `decisions` has a result for each call.
    PerCall,
    /// The answer's member `response` has a filled-in form, which the agent defined.
    AgentForm,
    /// The answer's member `response` has a filled-in form, which the tool's server defined. The
    /// next attempt at the call sends the answer to the server.
    ServerForm,
    /// The answer's member `response` has the operator's form, filled in with secrets. The secrets
    /// are stored sealed. The journal has only the names of the form's fields.
    SecretForm,
    /// The answer's member `response` says yes or no in `confirmed`, with or without a `comment`.
    /// A person can also say yes by the action `approve`, and no by the action `reject`.
    YesOrNo,
    /// The answer's member `result` has any JSON value.
    Result,
    /// The answer's member `result` has the result of a call that this service does not run. If the
    /// request has a form, the result must fit the form.
    FormResult,
}

impl ResponseKind {
    /// Whether the answer's member `response` has a filled-in form.
    #[must_use]
    pub const fn is_form(self) -> bool {
        match self {
            Self::AgentForm | Self::ServerForm | Self::SecretForm | Self::YesOrNo => true,
            Self::PerCall | Self::Result | Self::FormResult => false,
        }
    }

    /// Whether the answer's member `result` has a result.
    #[must_use]
    pub const fn is_result(self) -> bool {
        match self {
            Self::Result | Self::FormResult => true,
            Self::PerCall
            | Self::AgentForm
            | Self::ServerForm
            | Self::SecretForm
            | Self::YesOrNo => false,
        }
    }
}

const APPROVAL: RequestKindProperties = RequestKindProperties {
    human: None,
    actions: &[
        Action::Approve,
        Action::Reject,
        Action::Edit,
        Action::Respond,
    ],
    link_actions: &[Action::Approve, Action::Reject],
    response: ResponseKind::PerCall,
    blocks_turn: true,
    decides_calls: true,
    counts_approvers: true,
    outcome_unknown: false,
    depends_on_tool: true,
    lifts_quarantine: true,
};

const GUIDANCE: RequestKindProperties = RequestKindProperties {
    human: Some(HumanKind::Guidance),
    actions: &[Action::Respond, Action::Reject],
    link_actions: &[Action::Respond, Action::Reject],
    response: ResponseKind::AgentForm,
    blocks_turn: true,
    decides_calls: false,
    counts_approvers: false,
    outcome_unknown: false,
    depends_on_tool: false,
    lifts_quarantine: true,
};

const CREDENTIALS: RequestKindProperties = RequestKindProperties {
    human: Some(HumanKind::Credentials),
    actions: &[Action::Respond, Action::Reject],
    link_actions: &[],
    response: ResponseKind::SecretForm,
    blocks_turn: true,
    decides_calls: false,
    counts_approvers: false,
    outcome_unknown: false,
    depends_on_tool: true,
    lifts_quarantine: false,
};

const CONFIRMATION: RequestKindProperties = RequestKindProperties {
    human: Some(HumanKind::Confirmation),
    actions: &[Action::Approve, Action::Reject, Action::Respond],
    link_actions: &[Action::Approve, Action::Reject, Action::Respond],
    response: ResponseKind::YesOrNo,
    blocks_turn: true,
    decides_calls: false,
    counts_approvers: false,
    outcome_unknown: false,
    depends_on_tool: false,
    lifts_quarantine: true,
};

const EXTERNAL_RESULT: RequestKindProperties = RequestKindProperties {
    human: None,
    actions: &[Action::Respond, Action::Reject],
    link_actions: &[],
    response: ResponseKind::FormResult,
    blocks_turn: false,
    decides_calls: false,
    counts_approvers: false,
    outcome_unknown: false,
    depends_on_tool: true,
    lifts_quarantine: true,
};

const RECONCILE: RequestKindProperties = RequestKindProperties {
    human: None,
    actions: &[Action::Retry, Action::Respond, Action::Reject],
    link_actions: &[],
    response: ResponseKind::Result,
    blocks_turn: true,
    decides_calls: false,
    counts_approvers: true,
    outcome_unknown: true,
    depends_on_tool: false,
    lifts_quarantine: true,
};

const ELICITATION: RequestKindProperties = RequestKindProperties {
    human: None,
    actions: &[Action::Respond, Action::Reject],
    link_actions: &[],
    response: ResponseKind::ServerForm,
    blocks_turn: true,
    decides_calls: false,
    counts_approvers: false,
    outcome_unknown: false,
    depends_on_tool: true,
    lifts_quarantine: false,
};

impl RequestKind {
    /// Returns the properties in which this kind differs from the others.
    #[must_use]
    pub const fn properties(self) -> RequestKindProperties {
        match self {
            Self::Approval => APPROVAL,
            Self::Guidance => GUIDANCE,
            Self::Credentials => CREDENTIALS,
            Self::Confirmation => CONFIRMATION,
            Self::ExternalResult => EXTERNAL_RESULT,
            Self::Reconcile => RECONCILE,
            Self::Elicitation => ELICITATION,
        }
    }

    /// Returns the tool with which a model opens a request of this kind, if any.
    #[must_use]
    pub fn tool(self) -> Option<&'static str> {
        self.properties().human.map(HumanKind::tool)
    }

    /// Returns the kind of request that a model opens with the tool of exactly this name (letter
    /// case counts).
    #[must_use]
    pub fn from_tool(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.tool() == Some(name))
    }

    /// Whether a request of this kind asks for secrets.
    #[must_use]
    pub fn takes_secrets(self) -> bool {
        self.properties().response == ResponseKind::SecretForm
    }

    /// Whether a request of this kind asks for a yes or a no.
    #[must_use]
    pub fn is_yes_or_no(self) -> bool {
        self.properties().response == ResponseKind::YesOrNo
    }

    /// Whether a request of this kind can be answered by `approve`. The rule of an approval request
    /// may still exclude `approve`.
    #[must_use]
    pub fn can_be_approved(self) -> bool {
        self.properties().actions.contains(&Action::Approve)
    }
}

word_enum! {
    /// A question that an agent may ask a human.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, schemars::JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum HumanKind {
        /// The question of the tool `request_human_guidance`.
        Guidance = "guidance",
        /// The question of the tool `request_credentials`.
        Credentials = "credentials",
        /// The question of the tool `request_confirmation`.
        Confirmation = "confirmation",
    }
}

impl HumanKind {
    /// Returns the kind of request that the question opens.
    #[must_use]
    pub const fn request(self) -> RequestKind {
        match self {
            Self::Guidance => RequestKind::Guidance,
            Self::Credentials => RequestKind::Credentials,
            Self::Confirmation => RequestKind::Confirmation,
        }
    }

    /// Returns the name of the tool with which an agent asks the question.
    #[must_use]
    pub const fn tool(self) -> &'static str {
        match self {
            Self::Guidance => "request_human_guidance",
            Self::Credentials => "request_credentials",
            Self::Confirmation => "request_confirmation",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_table_are_the_words_of_serde() {
        for kind in RequestKind::ALL {
            assert_eq!(serde_json::json!(kind), kind.as_str());
        }
        for kind in HumanKind::ALL {
            assert_eq!(serde_json::json!(kind), kind.as_str());
        }
    }

    #[test]
    fn request_kind_and_its_human_kind_name_each_other() {
        for kind in HumanKind::ALL {
            assert_eq!(kind.request().properties().human, Some(kind));
        }
        let human = RequestKind::ALL
            .iter()
            .filter_map(|kind| kind.properties().human);
        assert_eq!(human.count(), HumanKind::ALL.len());
    }

    #[test]
    fn only_a_kind_that_decides_calls_takes_edits_and_results_per_call() {
        for kind in RequestKind::ALL {
            let properties = kind.properties();
            assert_eq!(
                properties.decides_calls,
                properties.actions.contains(&Action::Edit)
            );
            assert_eq!(
                properties.decides_calls,
                properties.response == ResponseKind::PerCall
            );
        }
    }

    #[test]
    fn link_takes_only_actions_of_the_kind_and_never_an_edit_a_retry_or_a_secret() {
        for kind in RequestKind::ALL {
            let properties = kind.properties();
            let known = |action: &Action| properties.actions.contains(action);
            assert!(properties.link_actions.iter().all(known), "{kind:?}");
            let kept = [Action::Edit, Action::Retry];
            assert!(
                !properties
                    .link_actions
                    .iter()
                    .any(|action| kept.contains(action))
            );
        }
        assert!(
            RequestKind::Credentials
                .properties()
                .link_actions
                .is_empty()
        );
    }
}
