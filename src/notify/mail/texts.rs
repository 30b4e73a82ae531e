//! The texts of mails in each language. All languages fill the same struct, so a missing
//! translation is a compile error.

use crate::notify::digest::Reason;
use crate::people::language::Language;

/// The texts of mails in one language. `{…}` marks a value to fill in.
pub(super) struct MailTexts {
    /// Subjects and headings of mails about one question: `new`, `expiring` and `waiting`.
    new: &'static str,
    expiring: &'static str,
    waiting: &'static str,
    /// Subjects and headings of mails about several questions: `all_new` to `all_waiting`.
    all_new: &'static str,
    all_expiring: &'static str,
    all_waiting: &'static str,
    pub(super) tool: &'static str,
    /// Stands for a tool whose name the configuration does not have.
    pub(super) unlisted_tool: &'static str,
    pub(super) agent: &'static str,
    pub(super) asked_at: &'static str,
    pub(super) deadline: &'static str,
    pub(super) no_deadline: &'static str,
    pub(super) summary: &'static str,
    pub(super) review: &'static str,
    /// The line about the questions that are not listed.
    pub(super) more: &'static str,
    pub(super) inbox: &'static str,
    /// The sentences about the links in a mail: `own_link` for sealed links of the person,
    /// `sign_in` for links that demand a sign-in.
    pub(super) own_link: &'static str,
    pub(super) sign_in: &'static str,
    pub(super) reason: &'static str,
    pub(super) separator: &'static str,
    pub(super) label_separator: &'static str,
    pub(super) ping_subject: &'static str,
    pub(super) ping: &'static str,
}

const ENGLISH: MailTexts = MailTexts {
    new: "Waits for you: {tools} ({agent})",
    expiring: "Ends soon: {tools} ({agent})",
    waiting: "Still waits for you: {tools} ({agent})",
    all_new: "{count} questions wait for you",
    all_expiring: "{count} questions end soon",
    all_waiting: "{count} questions still wait for you",
    tool: "Tool",
    unlisted_tool: "a tool that the configuration does not name",
    agent: "Agent",
    asked_at: "Asked",
    deadline: "Deadline",
    no_deadline: "none",
    summary: "Summary, not the whole call",
    review: "Review",
    more: "and {count} more",
    inbox: "Inbox",
    own_link: "The links are yours alone: anyone with this mail can open them as you.",
    sign_in: "The links ask you to sign in.",
    reason: "You get this mail because you may decide these questions. Nothing is decided by opening a link.",
    separator: ", ",
    label_separator: ": ",
    ping_subject: "A test of Holdpoint",
    ping: "This mail only says that mail arrives. Nothing waits for you.",
};

const CHINESE: MailTexts = MailTexts {
    new: "等待您决定：{tools}（{agent}）",
    expiring: "即将到期：{tools}（{agent}）",
    waiting: "仍在等待您决定：{tools}（{agent}）",
    all_new: "{count} 个请求等待您决定",
    all_expiring: "{count} 个请求即将到期",
    all_waiting: "{count} 个请求仍在等待您决定",
    tool: "工具",
    unlisted_tool: "配置中没有的工具",
    agent: "智能体",
    asked_at: "提出时间",
    deadline: "截止时间",
    no_deadline: "无",
    summary: "摘要（并非完整调用）",
    review: "查看",
    more: "另有 {count} 个未列出",
    inbox: "收件箱",
    own_link: "这些链接仅供您本人使用：任何持有此邮件的人都能以您的身份打开它们。",
    sign_in: "打开链接后需要登录。",
    reason: "您收到此邮件，是因为您可以决定这些请求。仅打开链接不会作出任何决定。",
    separator: "、",
    label_separator: "：",
    ping_subject: "Holdpoint 测试邮件",
    ping: "此邮件仅用于确认邮件可以送达，没有请求等待您处理。",
};

impl MailTexts {
    pub(super) fn for_language(language: Language) -> &'static Self {
        match language {
            Language::English => &ENGLISH,
            Language::Chinese => &CHINESE,
        }
    }

    pub(super) fn single_subject(&self, reason: Reason, tools: &str, agent: &str) -> String {
        let text = match reason {
            Reason::New => self.new,
            Reason::Expiring => self.expiring,
            Reason::Waiting => self.waiting,
        };
        text.replace("{agent}", agent).replace("{tools}", tools)
    }

    pub(super) fn digest_subject(&self, reason: Reason, count: u64) -> String {
        let text = match reason {
            Reason::New => self.all_new,
            Reason::Expiring => self.all_expiring,
            Reason::Waiting => self.all_waiting,
        };
        text.replace("{count}", &count.to_string())
    }

    pub(super) fn more(&self, count: u64) -> String {
        self.more.replace("{count}", &count.to_string())
    }
}
