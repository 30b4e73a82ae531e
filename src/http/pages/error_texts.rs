//! The texts of errors on pages: the titles and details of problems, and the mistakes in a
//! submitted form. A text is looked up by the code of its error. The English texts are those of the
//! API, with a few exceptions. An error without a code is shown in English.

use maud::{Markup, html};

use super::language::Language;
use super::layout::visible;
use super::translations::Translations;
use crate::engine::{Detail, DetailCode};
use crate::http::server::problem::Code;

/// The English texts that a page shows instead of the API's texts. These texts of the API name
/// members of JSON bodies, which the reader of a page does not see, or do not say how a value is
/// written.
const ENGLISH_ON_PAGES: [(DetailCode, &str); 6] = [
    (
        DetailCode::MayNotDecide,
        "Other people decide this. Its page says who.",
    ),
    (
        DetailCode::DigestMismatch,
        "The request has changed since this page was shown. Read it again before you decide.",
    ),
    (
        DetailCode::AlreadyDecided,
        "Your answer was not stored: an earlier one counts.",
    ),
    (
        DetailCode::ThenWithoutReject,
        "only together with a rejection",
    ),
    (DetailCode::Date, "must be a date as YYYY-MM-DD"),
    (
        DetailCode::Number,
        "a number, with a point before any decimals",
    ),
];

macro_rules! chinese_texts {
    ($($code:ident: $chinese:literal;)*) => {
        fn chinese(code: DetailCode) -> String {
            match code {
                $(DetailCode::$code => $chinese.to_owned(),)*
                DetailCode::AtMostBytes(limit) => format!("最多 {limit} 字节"),
            }
        }
    };
}

chinese_texts! {
    // Problems.
    KeyMissing: "请发送密钥：Authorization: Bearer <key>；在浏览器中请登录。";
    KeyUnknown: "此密钥无效。";
    TooManyWrongKeys: "来自您的地址的无效密钥过多。有效的密钥仍可使用。";
    MayNotRead: "只有任务所有者、有权决定或已决定其请求的人，以及管理员可以查看。";
    MayNotDecide: "此请求由其他人决定，请求页面上列有这些人。";
    KeyMayNotDecide: "此密钥无权决定请求。";
    LinkMayNotDecide: "无法通过链接决定此请求。请登录后决定。";
    LinkExpired: "此链接已失效。请登录，或等待下一封消息。";
    DigestMismatch: "请求在此页面显示之后已有变化，请重新查看后再决定。";
    AlreadyDecided: "您的答复未被保存，以先前的答复为准。";
    RequestExpired: "请求的期限已过。";
    RequestWithdrawn: "此请求已撤回。";
    ForeignOrigin: "请求来自其他来源的页面，此处不允许。";
    ShownToAnother: "此表单所在的页面是为另一用户显示的。未作任何更改。";
    NoOrigin: "请求缺少 `Origin`。请在浏览器中通过链接页面的表单答复。";
    Unavailable: "服务暂时无法处理，请稍后再试。";
    Internal: "服务出错。可凭请求编号在日志中找到此请求，原因见其上方的错误行。";
    // The errors of a member of a body or a field of a form. Many of these texts do not describe
    // the mistake, but the expected value.
    ValueRequired: "此项必填";
    Json: "须为无歧义的 JSON";
    Date: "须为日期，格式为 YYYY-MM-DD";
    Number: "须为数字，小数点用“.”";
    Integer: "须为整数";
    Boolean: "须为 true 或 false";
    OfferedChoice: "须为所提供的选项之一";
    UnknownMember: "没有此字段";
    NoSuchCall: "此请求中没有需要决定的此调用";
    CallAction: "须为 `approve`、`reject`、`edit` 或 `respond`";
    ArgumentsUnchosen: "参数已被改动，但未选择“修改参数”";
    ArgumentsChangedTwice: "字段和 JSON 均被改动：请只改其中之一";
    ResultUnchosen: "已填写结果，但未选择“自行提供结果”";
    ReasonUnchosen: "已填写理由，但未作出决定";
    AnswerRequired: "至少作出一个决定";
    ThenUnchosen: "仅可在拒绝时选择";
    ThenWithoutReject: "仅可在拒绝时选择";
    RestNotApproved: "其余各项只能选择“批准”";
    ResultType: "须为 `text` 或 `json`";
    Object: "须为对象";
    ObjectReplacement: "须为对象：完整替换";
    Text: "须为字符串";
}

fn english(code: DetailCode) -> String {
    let mut exceptions = ENGLISH_ON_PAGES.iter();
    let exception = exceptions.find(|(excepted, _)| *excepted == code);
    exception.map_or_else(|| code.to_string(), |(_, text)| (*text).to_owned())
}

/// Returns the title of a page about a problem, in the page's language. If the code has no Chinese
/// title, returns `None` in both languages. The page then has the English title of the JSON
/// problem.
pub(super) fn title(language: Language, code: Code) -> Option<&'static str> {
    let chinese = chinese_title(code)?;
    Some(match language {
        Language::English if code == Code::DigestMismatch => "The request has changed",
        Language::English => code.title(),
        Language::Chinese => chinese,
    })
}

fn chinese_title(code: Code) -> Option<&'static str> {
    Some(match code {
        Code::BadJson => "请求内容不是 JSON",
        Code::BadRequest => "无法读取请求",
        Code::Unauthorized => "需要密钥",
        Code::Forbidden => "不允许",
        Code::NotFound => "未找到",
        Code::MethodNotAllowed => "此路径不支持该方法",
        Code::TooLarge => "请求内容过大",
        Code::UnsupportedMediaType => "请求内容类型不符",
        Code::Invalid => "请求不符合要求",
        Code::IdempotencyKeyReused => "幂等键已用于其他内容",
        Code::DigestMismatch => "请求已有变化",
        Code::RequestExpired => "请求已过期",
        Code::LinkExpired => "链接已失效",
        Code::RequestWithdrawn => "请求已撤回",
        Code::AlreadyDecided => "已有决定",
        Code::TooMany => "请求过多",
        Code::Unavailable => "暂时不可用",
        Code::Internal => "内部错误",
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

/// Renders the text of an error in the reader's language, or in English if it has no translation.
pub(crate) fn localized(words: &Translations, detail: &Detail) -> Markup {
    match (detail, words.language) {
        (Detail::Coded(code), Language::English) => html! { (english(*code)) },
        (Detail::Coded(code), Language::Chinese) => html! { (chinese(*code)) },
        (Detail::Text(english), _) => untranslated(words, english),
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
    use crate::people::language::assert_translated;

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
    fn every_text_and_every_title_is_translated() {
        for code in DetailCode::ALL {
            assert_translated(&[(&english(*code), &chinese(*code))]);
        }
        for code in Code::ALL {
            let [english, chinese] =
                [Language::English, Language::Chinese].map(|it| title(it, *code));
            assert_translated(&english.zip(chinese).into_iter().collect::<Vec<_>>());
        }
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
        let untranslated = Code::ALL
            .iter()
            .filter(|code| title(Language::Chinese, **code).is_none());
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
