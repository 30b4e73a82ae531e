//! The texts and form fields that depend on the kind of a request. Each kind has one [`KindPart`].

use maud::Markup;

use super::View;
use super::forms;
use super::history::CallStatus;
use super::texts::RequestTexts;
use crate::http::pages::translations::Translations;
use crate::task::request::RequestKind;

pub(crate) struct KindPart {
    /// The name of the kind of request. If the agent itself asked, it is the page's heading.
    pub heading: &'static str,
    /// A paragraph about the request, in addition to the agent's own words.
    pub about: Option<&'static str>,
    /// The sentence that says who wrote the arguments, and how they are used.
    pub authorship: fn(&'static RequestTexts) -> &'static str,
    /// The text of the `<summary>` above the folded form for a rejection.
    pub decline: fn(&'static RequestTexts) -> &'static str,
    /// The heading of the form for a response.
    pub answer_head: &'static str,
    /// The fields of the form for a response.
    pub answer: fn(&View<'_>) -> Markup,
    /// The heading of the form for a rejection.
    pub reject_head: &'static str,
    /// The text of the button for a rejection.
    pub reject: &'static str,
    /// The text of the button that rejects several calls, with `{count}` for their number. `None`
    /// if `reject` is the text for any number of calls.
    pub reject_all: Option<&'static str>,
    /// The beginning of the headline after a response.
    pub responded: &'static str,
    /// The beginning of the headline after a rejection.
    pub rejected: &'static str,
}

pub(crate) fn kind_part(kind: RequestKind, words: &Translations) -> KindPart {
    match kind {
        RequestKind::Approval => approval(words),
        RequestKind::Guidance => guidance(words),
        RequestKind::Credentials => credentials(words),
        RequestKind::Confirmation => confirmation(words),
        RequestKind::ExternalResult => external_result(words),
        RequestKind::Reconcile => reconcile(words),
        RequestKind::Elicitation => elicitation(words),
    }
}

/// Returns the status of a call about which a later request, of the kind `kind`, is open.
pub(crate) fn status_while_asked(kind: RequestKind) -> CallStatus {
    match kind {
        RequestKind::Approval
        | RequestKind::Guidance
        | RequestKind::Confirmation
        | RequestKind::Elicitation => CallStatus::AskedAgain,
        RequestKind::Credentials => CallStatus::NeedsLogin,
        RequestKind::ExternalResult => CallStatus::AwaitsResult,
        RequestKind::Reconcile => CallStatus::Reconciling,
    }
}

fn approval(words: &Translations) -> KindPart {
    KindPart {
        heading: words.kind_approval,
        about: None,
        authorship: |texts| texts.runs_exactly,
        decline: |texts| texts.reject_otherwise,
        answer_head: words.reconcile_head,
        answer: forms::reconcile_fields,
        reject_head: words.reject_head,
        reject: words.reject,
        reject_all: Some(words.reject_all),
        responded: words.head_supplied,
        rejected: words.head_rejected,
    }
}

fn guidance(words: &Translations) -> KindPart {
    KindPart {
        heading: words.kind_guidance,
        about: None,
        authorship: |texts| texts.asks_exactly,
        decline: |texts| texts.decline,
        answer_head: words.answer_head,
        answer: forms::guidance_fields,
        reject_head: words.decline_head,
        reject: words.decline,
        reject_all: None,
        responded: words.head_answered,
        rejected: words.head_declined,
    }
}

fn credentials(words: &Translations) -> KindPart {
    KindPart {
        heading: words.kind_credentials,
        about: None,
        authorship: |texts| texts.asks_exactly,
        decline: |texts| texts.decline,
        answer_head: words.credentials_head,
        answer: forms::credential_fields,
        reject_head: words.decline_head,
        reject: words.decline,
        reject_all: None,
        responded: words.head_login,
        rejected: words.head_declined,
    }
}

/// The person answers with yes or no. After a "no", the headline begins with `responded`; after a
/// "yes", `headline.rs` uses `head_confirmed` instead.
fn confirmation(words: &Translations) -> KindPart {
    KindPart {
        heading: words.kind_confirmation,
        about: None,
        authorship: |texts| texts.asks_exactly,
        decline: |texts| texts.decline,
        answer_head: words.answer_head,
        answer: forms::confirmation_fields,
        reject_head: words.decline_confirmation,
        reject: words.confirm_no,
        reject_all: None,
        responded: words.head_refused,
        rejected: words.head_refused,
    }
}

fn external_result(words: &Translations) -> KindPart {
    KindPart {
        heading: words.kind_external_result,
        about: Some(words.external_about),
        authorship: |texts| texts.asks_exactly,
        decline: |texts| texts.decline,
        answer_head: words.external_head,
        answer: forms::external_result_fields,
        reject_head: words.decline_head,
        reject: words.decline,
        reject_all: None,
        responded: words.head_result,
        rejected: words.head_declined,
    }
}

fn reconcile(words: &Translations) -> KindPart {
    KindPart {
        heading: words.kind_reconcile,
        about: Some(words.reconcile_about),
        authorship: |texts| texts.sent_exactly,
        decline: |texts| texts.give_up,
        answer_head: words.reconcile_head,
        answer: forms::reconcile_fields,
        reject_head: words.give_up_head,
        reject: words.give_up,
        reject_all: None,
        responded: words.head_answered,
        rejected: words.head_given_up,
    }
}

fn elicitation(words: &Translations) -> KindPart {
    KindPart {
        heading: words.kind_elicitation,
        about: Some(words.elicitation_about),
        authorship: |texts| texts.sent_exactly,
        decline: |texts| texts.decline,
        answer_head: words.elicitation_head,
        answer: forms::elicitation_fields,
        reject_head: words.decline_head,
        reject: words.decline,
        reject_all: None,
        responded: words.head_answered,
        rejected: words.head_declined,
    }
}
