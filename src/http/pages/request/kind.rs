//! The texts and form fields that depend on the kind of a request. Each kind has one [`KindPart`].

use maud::Markup;

use super::View;
use super::forms;
use super::history::CallStatus;
use super::texts::RequestTexts;
use crate::http::pages::translations::Translations;
use crate::task::request::RequestKind;

pub(crate) struct KindPart {
    /// The word for the kind in lists.
    pub word: &'static str,
    /// The name of the kind of request, which is the page's heading if the agent itself asked.
    pub heading: &'static str,
    /// A paragraph about the request, in addition to the agent's own words.
    pub about: Option<&'static str>,
    /// The sentence that says who wrote the arguments, and how the arguments are used.
    pub authorship: &'static str,
    /// Like `authorship`, for arguments that a person has changed. `{user}` stands for that person.
    pub changed: &'static str,
    /// The text of the `<summary>` above the folded form for a rejection.
    pub decline: &'static str,
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
    /// The beginning of the headline after a response. For a confirmation, this is the beginning
    /// after a "no"; after a "yes", `headline.rs` uses `head_confirmed`.
    pub responded: &'static str,
    /// The beginning of the headline after a rejection.
    pub rejected: &'static str,
}

pub(crate) fn kind_part(kind: RequestKind, words: &Translations) -> KindPart {
    let texts = RequestTexts::for_language(words.language);
    let named = |word, heading| guidance_part(word, heading, words, texts);
    match kind {
        RequestKind::Approval => KindPart {
            authorship: texts.runs_exactly,
            changed: texts.changed_exactly,
            reject_head: words.reject_head,
            reject: words.reject,
            reject_all: Some(words.reject_all),
            responded: words.head_supplied,
            rejected: words.head_rejected,
            ..named(words.short_approval, words.kind_approval)
        },
        RequestKind::Guidance => named(words.short_guidance, words.kind_guidance),
        RequestKind::Credentials => KindPart {
            answer_head: words.credentials_head,
            answer: forms::credential_fields,
            responded: words.head_login,
            ..named(words.short_credentials, words.kind_credentials)
        },
        RequestKind::Confirmation => KindPart {
            answer: forms::confirmation_fields,
            reject_head: words.decline_confirmation,
            reject: words.confirm_no,
            responded: words.head_refused,
            rejected: words.head_refused,
            ..named(words.short_confirmation, words.kind_confirmation)
        },
        RequestKind::ExternalResult => KindPart {
            about: Some(words.external_about),
            answer_head: words.external_head,
            answer: forms::external_result_fields,
            responded: words.head_result,
            ..named(words.short_external_result, words.kind_external_result)
        },
        RequestKind::Reconcile => KindPart {
            about: Some(words.reconcile_about),
            authorship: texts.sent_exactly,
            changed: texts.changed_sent,
            decline: texts.give_up,
            answer_head: words.reconcile_head,
            answer: forms::reconcile_fields,
            reject_head: words.give_up_head,
            reject: words.give_up,
            rejected: words.head_given_up,
            ..named(words.short_reconcile, words.kind_reconcile)
        },
        RequestKind::Elicitation => KindPart {
            about: Some(words.elicitation_about),
            authorship: texts.sent_exactly,
            changed: texts.changed_sent,
            answer_head: words.elicitation_head,
            answer: forms::elicitation_fields,
            ..named(words.short_elicitation, words.kind_elicitation)
        },
    }
}

/// Returns the word for a kind of request in lists.
pub(crate) fn kind_word(kind: RequestKind, words: &Translations) -> &'static str {
    kind_part(kind, words).word
}

/// Returns the texts and fields of a guidance request, with `word` and `heading` as the names of
/// the kind. For every other kind, [`kind_part`] starts from this result and replaces the texts and
/// fields that differ.
fn guidance_part(
    word: &'static str,
    heading: &'static str,
    words: &Translations,
    texts: &RequestTexts,
) -> KindPart {
    KindPart {
        word,
        heading,
        about: None,
        authorship: texts.asks_exactly,
        changed: texts.changed_asked,
        decline: texts.decline,
        answer_head: words.answer_head,
        answer: forms::guidance_fields,
        reject_head: words.decline_head,
        reject: words.decline,
        reject_all: None,
        responded: words.head_answered,
        rejected: words.head_declined,
    }
}

/// Returns the status of a call while a later request of kind `kind` asks about the call.
pub(crate) fn status_by_later_request(kind: RequestKind) -> CallStatus {
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
