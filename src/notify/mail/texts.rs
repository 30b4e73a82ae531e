//! The texts of mails in all languages. `{…}` marks a value to fill in.

use crate::notify::digest::Reason;
use crate::people::language::{Language, texts};

texts! {
    MailTexts;
    // Subjects and headings of mails about one question: `new`, `expiring` and `waiting`.
    new: "Waits for you: {tools} ({agent})", "等待您决定：{tools}（{agent}）";
    expiring: "Ends soon: {tools} ({agent})", "即将到期：{tools}（{agent}）";
    waiting: "Still waits for you: {tools} ({agent})", "仍在等待您决定：{tools}（{agent}）";
    // Subjects and headings of mails about several questions: `all_new` to `all_waiting`.
    all_new: "{count} questions wait for you", "{count} 个请求等待您决定";
    all_expiring: "{count} questions end soon", "{count} 个请求即将到期";
    all_waiting: "{count} questions still wait for you", "{count} 个请求仍在等待您决定";
    tool: "Tool", "工具";
    // Stands for a tool whose name the configuration does not have.
    unlisted_tool: "a tool that the configuration does not name", "配置中没有的工具";
    agent: "Agent", "智能体";
    asked_at: "Asked", "提出时间";
    deadline: "Deadline", "截止时间";
    no_deadline: "none", "无";
    summary: "Summary, not the whole call", "摘要（并非完整调用）";
    review: "Review", "查看";
    // The line about the questions that are not listed.
    more: "and {count} more", "另有 {count} 个未列出";
    inbox: "Inbox", "待处理";
    // The sentences about the links in a mail: `own_link` for sealed links of the person,
    // `sign_in` for links that demand a sign-in.
    own_link: "The links are yours alone: anyone with this mail can open them as you.", "这些链接仅供您本人使用：任何持有此邮件的人都能以您的身份打开它们。";
    sign_in: "The links ask you to sign in.", "打开链接后需要登录。";
    reason: "You get this mail because you may decide these questions. Nothing is decided by opening a link.", "您收到此邮件，是因为您可以决定这些请求。仅打开链接不会作出任何决定。";
    separator: ", ", "、";
    label_separator: ": ", "：";
    ping_subject: "A test of Holdpoint", "Holdpoint 测试邮件";
    ping: "This mail only says that mail arrives. Nothing waits for you.", "此邮件仅用于确认邮件可以送达，没有请求等待您处理。";
}

impl MailTexts {
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
