//! The texts of errors in all languages: the titles and details of problems, and the mistakes in a
//! submitted form. A text is looked up by the code of its error.

use std::borrow::Cow;

use maud::{Markup, html};

use super::language::{Language, texts};
use super::layout::visible;
use super::translations::{Translations, fill};
use crate::engine::{Detail, DetailCode};
use crate::http::server::problem::Code;

texts! {
    ErrorTexts, #[cfg(test)] PAIRS;
    // The titles of problems.
    title_bad_json: "The body is not JSON", "请求内容不是 JSON";
    title_bad_request: "The request cannot be read", "无法读取请求";
    title_unauthorized: "A key is needed", "需要密钥";
    title_forbidden: "Not allowed", "不允许";
    title_not_found: "Not found", "未找到";
    title_invalid: "The request is not valid", "请求不符合要求";
    title_method: "This path has no such method", "此路径不支持该方法";
    title_too_large: "The body is too large", "请求内容过大";
    title_type: "The body has an unsupported type", "请求内容类型不符";
    title_key_reused: "The idempotency key was used with another body", "幂等键已用于其他内容";
    title_digest: "The request has changed", "请求已有变化";
    title_expired: "The request has expired", "请求已过期";
    title_link: "The link has expired", "链接已失效";
    title_withdrawn: "The request was withdrawn", "请求已撤回";
    title_decided: "Already decided", "已有决定";
    title_too_many: "Too many requests", "请求过多";
    title_unavailable: "Not available right now", "暂时不可用";
    title_internal: "An internal error", "内部错误";
    // The details of problems.
    link_expired: "This link is over. Sign in, or wait for the next message.", "此链接已失效。请登录，或等待下一封消息。";
    link_may_not: "A link may not decide this request. Sign in to decide it.", "无法通过链接决定此请求。请登录后决定。";
    detail_no_key: "Send a key: Authorization: Bearer <key>; in a browser, sign in.", "请发送密钥：Authorization: Bearer <key>；在浏览器中请登录。";
    detail_unknown_key: "The key is unknown.", "此密钥无效。";
    detail_wrong_keys: "Too many wrong keys came from your address. A correct key is still accepted.", "来自您的地址的无效密钥过多。有效的密钥仍可使用。";
    detail_readers: "Only the task's owner, an admin, and people who may decide or have decided one of its requests may read it.", "只有任务所有者、有权决定或已决定其请求的人，以及管理员可以查看。";
    detail_others: "Other people decide this. Its page says who.", "此请求由其他人决定，请求页面上列有这些人。";
    detail_digest: "The request has changed since this page was shown. Read it again before you decide.", "请求在此页面显示之后已有变化，请重新查看后再决定。";
    detail_decided: "Your answer was not stored: an earlier one counts.", "您的答复未被保存，以先前的答复为准。";
    detail_expired: "The request's deadline has passed.", "请求的期限已过。";
    detail_withdrawn: "The request was withdrawn.", "此请求已撤回。";
    detail_origin: "The request comes from a page of another origin, which is not allowed here.", "请求来自其他来源的页面，此处不允许。";
    detail_no_origin: "The request has no `Origin`. A link is answered by the form of its page, in a browser.", "请求缺少 `Origin`。请在浏览器中通过链接页面的表单答复。";
    detail_unavailable: "The service is not available right now. Try again shortly.", "服务暂时无法处理，请稍后再试。";
    detail_internal: "The service has failed. Its log has the cause under the request's id.", "服务出错，可凭请求编号在日志中查找原因。";
    // Mistakes in a submitted form.
    value_required: "a value is required", "此项必填";
    not_json: "unambiguous JSON", "须为无歧义的 JSON";
    not_a_number: "a number", "须为数字";
    not_an_integer: "a whole number", "须为整数";
    not_a_boolean: "true or false", "须为 true 或 false";
    not_a_choice: "one of the values that are offered", "须为所提供的选项之一";
    unknown_member: "no such member", "没有此字段";
    no_such_call: "no call of this request that needs a decision", "此请求中没有需要决定的此调用";
    no_such_action: "`approve`, `reject`, `edit` or `respond`", "须为 `approve`、`reject`、`edit` 或 `respond`";
    changed_unchosen: "the arguments were changed, but `Change the arguments` is not chosen", "参数已被改动，但未选择“修改参数”";
    result_unchosen: "a result was given, but `Give the result yourself` is not chosen", "已填写结果，但未选择“自行提供结果”";
    reason_unchosen: "a reason was given, but no decision", "已填写理由，但未作出决定";
    choose_one: "at least one answer", "至少作出一个决定";
    then_unchosen: "only together with a rejection", "仅可在拒绝时选择";
    not_a_type: "`text` or `json`", "须为 `text` 或 `json`";
    an_object: "an object", "须为对象";
    an_object_replacement: "an object: the full replacement", "须为对象：完整替换";
    a_string: "a string", "须为字符串";
    changed_twice: "changed both in the fields and as JSON: change one of them", "字段和 JSON 均被改动：请只改其中之一";
    not_approvable: "only \"approve\" can be used for the rest", "其余各项只能选择“批准”";
    at_most_bytes: "at most {count} bytes", "最多 {count} 字节";
}

impl ErrorTexts {
    /// Returns the title of a page about a problem; `None` without a translation.
    pub(super) fn title(&self, code: Code) -> Option<&'static str> {
        Some(match code {
            Code::BadJson => self.title_bad_json,
            Code::BadRequest => self.title_bad_request,
            Code::Unauthorized => self.title_unauthorized,
            Code::Forbidden => self.title_forbidden,
            Code::NotFound => self.title_not_found,
            Code::MethodNotAllowed => self.title_method,
            Code::TooLarge => self.title_too_large,
            Code::UnsupportedMediaType => self.title_type,
            Code::Invalid => self.title_invalid,
            Code::IdempotencyKeyReused => self.title_key_reused,
            Code::DigestMismatch => self.title_digest,
            Code::RequestExpired => self.title_expired,
            Code::LinkExpired => self.title_link,
            Code::RequestWithdrawn => self.title_withdrawn,
            Code::AlreadyDecided => self.title_decided,
            Code::TooMany => self.title_too_many,
            Code::Unavailable => self.title_unavailable,
            Code::Internal => self.title_internal,
            Code::TaskRunning
            | Code::TaskPaused
            | Code::TaskFinal
            | Code::TaskNotFailed
            | Code::NotARootTask
            | Code::CallInHand
            | Code::CallSettled
            | Code::NotAConversation
            | Code::ModelFailed
            | Code::LimitReached
            | Code::Integrity
            | Code::Configuration
            | Code::NoProgress => return None,
        })
    }

    /// Returns the text of an error. The text says `the page` or `a rejection` where the API's text
    /// names members of JSON bodies.
    fn detail(&self, code: DetailCode) -> Cow<'static, str> {
        Cow::Borrowed(match code {
            DetailCode::KeyMissing => self.detail_no_key,
            DetailCode::KeyUnknown => self.detail_unknown_key,
            DetailCode::TooManyWrongKeys => self.detail_wrong_keys,
            DetailCode::MayNotRead => self.detail_readers,
            DetailCode::MayNotDecide => self.detail_others,
            DetailCode::LinkMayNotDecide => self.link_may_not,
            DetailCode::LinkExpired => self.link_expired,
            DetailCode::DigestMismatch => self.detail_digest,
            DetailCode::AlreadyDecided => self.detail_decided,
            DetailCode::RequestExpired => self.detail_expired,
            DetailCode::RequestWithdrawn => self.detail_withdrawn,
            DetailCode::ForeignOrigin => self.detail_origin,
            DetailCode::NoOrigin => self.detail_no_origin,
            DetailCode::Unavailable => self.detail_unavailable,
            DetailCode::Internal => self.detail_internal,
            DetailCode::ValueRequired => self.value_required,
            DetailCode::Json => self.not_json,
            DetailCode::Number => self.not_a_number,
            DetailCode::Integer => self.not_an_integer,
            DetailCode::Boolean => self.not_a_boolean,
            DetailCode::OfferedChoice => self.not_a_choice,
            DetailCode::UnknownMember => self.unknown_member,
            DetailCode::NoSuchCall => self.no_such_call,
            DetailCode::CallAction => self.no_such_action,
            DetailCode::ArgumentsUnchosen => self.changed_unchosen,
            DetailCode::ArgumentsChangedTwice => self.changed_twice,
            DetailCode::ResultUnchosen => self.result_unchosen,
            DetailCode::ReasonUnchosen => self.reason_unchosen,
            DetailCode::AnswerRequired => self.choose_one,
            DetailCode::ThenUnchosen | DetailCode::ThenWithoutReject => self.then_unchosen,
            DetailCode::RestNotApproved => self.not_approvable,
            DetailCode::ResultType => self.not_a_type,
            DetailCode::Object => self.an_object,
            DetailCode::ObjectReplacement => self.an_object_replacement,
            DetailCode::Text => self.a_string,
            DetailCode::AtMostBytes(limit) => {
                return Cow::Owned(fill(self.at_most_bytes, &[("count", &limit)]));
            }
        })
    }
}

/// Renders the text of an error in the reader's language, or in English if it has no translation.
pub(crate) fn localized(words: &Translations, detail: &Detail) -> Markup {
    match detail {
        Detail::Coded(code) => {
            let text = ErrorTexts::for_language(words.language).detail(*code);
            html! { (&*text) }
        }
        Detail::Text(english) => untranslated(words, english),
    }
}

/// Renders a text in English that has no translation.
pub(crate) fn untranslated(words: &Translations, english: &str) -> Markup {
    match words.language {
        Language::English => html! { (visible(english)) },
        Language::Chinese => html! { span lang="en" { (visible(english)) } },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(language: Language, detail: impl Into<Detail>) -> String {
        localized(Translations::for_language(language), &detail.into()).into_string()
    }

    #[test]
    fn text_with_a_code_is_shown_in_the_readers_language() {
        let code = DetailCode::RequestExpired;
        assert_eq!(
            shown(Language::English, code),
            "The request's deadline has passed."
        );
        assert_eq!(shown(Language::Chinese, code), "请求的期限已过。");
        let limit = DetailCode::AtMostBytes(4096);
        assert_eq!(shown(Language::English, limit), limit.to_string());
        assert_eq!(shown(Language::Chinese, limit), "最多 4096 字节");
    }

    #[test]
    fn english_text_of_a_page_is_the_text_of_the_api_except_where_it_names_parts_of_the_page() {
        let texts = ErrorTexts::for_language(Language::English);
        let codes = DetailCode::ALL.iter().copied();
        let differs = |code: &DetailCode| texts.detail(*code) != code.to_string();
        assert_eq!(
            codes.filter(differs).collect::<Vec<_>>(),
            [
                DetailCode::MayNotDecide,
                DetailCode::DigestMismatch,
                DetailCode::AlreadyDecided,
                DetailCode::ThenWithoutReject
            ]
        );
    }

    #[test]
    fn text_without_a_code_is_shown_in_english_and_marked_as_english() {
        assert_eq!(shown(Language::English, "Only <b>."), "Only &lt;b&gt;.");
        assert_eq!(
            shown(Language::Chinese, "Only <b>."),
            "<span lang=\"en\">Only &lt;b&gt;.</span>"
        );
    }

    #[test]
    fn titles_about_tasks_and_calls_alone_have_no_translation() {
        let texts = ErrorTexts::for_language(Language::Chinese);
        let untranslated = Code::ALL
            .iter()
            .filter(|code| texts.title(**code).is_none());
        let codes: Vec<&str> = untranslated.map(|code| code.as_str()).collect();
        assert_eq!(
            codes,
            [
                "task_running",
                "task_paused",
                "task_final",
                "task_not_failed",
                "not_a_root_task",
                "call_in_hand",
                "call_settled",
                "not_a_conversation",
                "model_failed",
                "limit_reached",
                "integrity",
                "configuration",
                "no_progress"
            ]
        );
    }
}
