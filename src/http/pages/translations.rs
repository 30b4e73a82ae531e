//! The texts of the pages in all languages. Each entry has a text in every language, so a missing
//! translation does not compile. Texts of certain pages are in `request/texts.rs`,
//! `sign_in/texts.rs` and `site_texts.rs`; the texts of errors are in `error_texts.rs`.
//!
//! [`fill`] replaces `{name}` in a text by a value.

use std::fmt::Display;

use super::language::{Language, texts};
use crate::http::wire::decision::DecisionAction;
use crate::http::wire::request::WireVerdict;
use crate::task::item::Outcome;

texts! {
    Translations with language;
    // The kinds of request: the word in lists, and what the page asks the reader.
    short_approval: "approval", "批准";
    short_guidance: "guidance", "指导";
    short_credentials: "login", "凭据";
    short_confirmation: "confirmation", "确认";
    short_external_result: "result", "结果";
    short_reconcile: "unknown outcome", "结果未知";
    short_elicitation: "question of a tool", "工具提问";
    kind_approval: "May these calls run?", "是否允许执行这些调用？";
    kind_guidance: "The agent asks for guidance", "智能体请求指导";
    kind_credentials: "A login is needed", "需要登录凭据";
    kind_confirmation: "The agent asks for a confirmation", "智能体请求确认";
    kind_external_result: "A result from outside is awaited", "等待外部结果";
    kind_elicitation: "The server of a tool asks", "工具的服务器提问";
    kind_reconcile: "The outcome of this call is not known", "此调用的结果未知";
    reconcile_about: "The call was started and its answer never arrived. Check its target, and report the result.", "调用已经开始，但未收到答复。请到目标系统核实，再说明实际情况。";
    external_about: "The service does not run this call. Run it yourself and fill in its result.", "本服务不会执行此调用。请自行执行并填写结果。";
    error_prefix: "Error: ", "错误：";
    // The headline: the decision, and the status of the calls.
    full_stop: ".", "。";
    head_approved: "Approved by {by}", "{by} 已批准";
    head_rejected: "Rejected by {by}", "{by} 已拒绝";
    head_edited: "Changed and approved by {by}", "{by} 已修改并批准";
    head_changed: "Changed by {by}", "{by} 已修改";
    head_supplied: "Result given by {by}, the tool did not run", "{by} 已提供结果，工具未执行";
    head_result: "Result given by {by}", "{by} 已提供结果";
    head_answered: "Answered by {by}", "{by} 已答复";
    head_declined: "Declined by {by}", "{by} 已谢绝";
    head_confirmed: "Confirmed by {by}", "{by} 已确认";
    head_refused: "Answered with “no” by {by}", "{by} 已答复“否”";
    head_login: "Login given by {by}", "{by} 已提供凭据";
    head_again: "Allowed to run again by {by}", "{by} 已允许再次执行";
    head_given_up: "Counted as failed by {by}", "{by} 已将其视为失败";
    head_decided: "Decided by {by}", "{by} 已作出决定";
    head_expired: "No answer came in time", "逾期无人答复";
    head_withdrawn: "Withdrawn", "已撤回";
    head_superseded: "Withdrawn: the user continued with another message", "已撤回：用户已发送其他消息";
    head_task_canceled: "Withdrawn: the task was canceled", "已撤回：任务已取消";
    head_task_failed: "Withdrawn: the task failed", "已撤回：任务失败";
    head_tool_changed: "Withdrawn: the tool was changed after the request was opened", "已撤回：提问之后工具已更改";
    head_answered_late: "Withdrawn: the result of the call arrived without an answer", "已撤回：调用的结果已自行返回";
    after_ran: ", and it ran.", "，并已执行。";
    after_failed: ", but it failed.", "，但执行失败。";
    after_failed_with: ", but it failed: {status}.", "，但执行失败：{status}。";
    after_ran_late: ". It ran, and its result came late.", "。已执行，但结果迟到。";
    after_failed_late: ". It failed, and its result came late.", "。执行失败，但结果迟到。";
    after_released: ". Its agent was permitted to run it.", "，已放行，由其智能体执行。";
    after_running: ". It is running.", "，正在执行。";
    after_waiting: ". It has not started yet.", "，尚未开始执行。";
    after_waiting_again: ". It has not been started again yet.", "，尚未再次开始执行。";
    after_asked_again: ". A new request asks about it.", "，正在重新征求决定。";
    after_needs_login: ". It waits for a login.", "，正在等待登录凭据。";
    after_awaits_result: ". Its result is awaited from outside.", "，正在等待外部结果。";
    after_answered_later: ". A later question about it was answered.", "，之后关于它的提问已有答复。";
    after_reconciling: ". Its outcome is not known: a person is asked.", "，但其结果未知，正在请人核实。";
    after_unknown: ". Its outcome is not known.", "，但其结果未知。";
    after_responded: ". A person gave its result.", "，其结果由人提供。";
    after_rejected: ", but it was rejected later.", "，但之后被拒绝。";
    after_denied: ", but a rule refused it.", "，但规则禁止执行。";
    after_invalid: ", but it is not valid and did not run.", "，但调用无效，未执行。";
    after_expired: ", but a later question about it was not answered in time.", "，但之后关于它的提问逾期无人答复。";
    after_withdrawn: ", but it was withdrawn.", "，但已被撤回。";
    after_canceled: ", but it was canceled.", "，但已被取消。";
    after_abandoned: ", but the task failed before it ran.", "，但任务在其执行之前失败。";
    agent_was_told: ". The agent was told.", "，并已告知智能体。";
    agent_will_be_told: ". The agent will be told.", "，将告知智能体。";
    task_failed_before_agent_told: ". The task failed before the agent was told.", "，但任务在告知智能体之前失败。";
    task_canceled_before_agent_told: ". The task was canceled before the agent was told.", "，但任务在告知智能体之前已取消。";
    then_was_canceled: ". The task was canceled.", "，任务已取消。";
    then_was_canceled_sub: ". The agent's task was canceled; the agent that called it is told.", "，该智能体的任务已取消，并告知调用它的智能体。";
    then_was_canceled_root: ". The whole task tree was canceled.", "，整个任务树已取消。";
    count_ran: "{count} ran", "{count} 个已执行";
    count_failed: "{count} failed", "{count} 个失败";
    count_ran_late: "{count} ran, result came late", "{count} 个已执行（结果迟到）";
    count_failed_late: "{count} failed, result came late", "{count} 个失败（结果迟到）";
    count_released: "{count} let through", "{count} 个已放行";
    count_running: "{count} running", "{count} 个正在执行";
    count_waiting: "{count} not started yet", "{count} 个尚未开始";
    count_asked_again: "{count} asked about again", "{count} 个正在重新征求决定";
    count_needs_login: "{count} waiting for a login", "{count} 个正在等待凭据";
    count_awaits_result: "{count} waiting for a result from outside", "{count} 个正在等待外部结果";
    count_answered_later: "{count} answered later", "{count} 个之后已有答复";
    count_reconciling: "{count} with an unknown outcome that a person is asked about", "{count} 个结果未知，正在请人核实";
    count_unknown: "{count} with an unknown outcome", "{count} 个结果未知";
    count_responded: "{count} answered by a person", "{count} 个由人答复";
    count_rejected: "{count} rejected", "{count} 个已拒绝";
    count_denied: "{count} refused by a rule", "{count} 个被规则禁止";
    count_invalid: "{count} not valid", "{count} 个无效";
    count_expired: "{count} not answered in time", "{count} 个逾期无人答复";
    count_withdrawn: "{count} withdrawn", "{count} 个已撤回";
    count_canceled: "{count} canceled", "{count} 个已取消";
    count_abandoned: "{count} not started before the task failed", "{count} 个在任务失败前未开始";
    // The facts about a request, and punctuation.
    kind: "Kind", "类型";
    who_may_decide: "Who may decide", "谁可以决定";
    asked_at: "Asked", "提出时间";
    no_deadline: "no deadline", "无期限";
    agent: "Agent", "智能体";
    task: "Task", "任务";
    request: "Request", "请求";
    session: "Session", "会话";
    owner: "the task's owner ({user})", "任务所有者（{user}）";
    user: "user {user}", "用户 {user}";
    group: "group {group}", "组 {group}";
    people_have_to: "{names}; {count} different people have to approve", "{names}；须有 {count} 个不同的人批准";
    no_approvers: "nobody", "无人";
    between: ", ", "、";
    colon: ": ", "：";
    // Relative times.
    time_left: "{time} left", "剩余 {time}";
    in_time: "in {time}", "剩余 {time}";
    ago: "{time} ago", "{time}前";
    less_than_a_minute: "less than a minute", "不到一分钟";
    minutes: "{count} min", "{count} 分钟";
    hours: "{count} h", "{count} 小时";
    days: "{count} days", "{count} 天";
    // Labels of texts that agents and tools wrote.
    by_agent: "Written by the agent, not verified", "由智能体撰写，未经核实";
    by_server: "Asked by the server of the tool, not verified", "由工具的服务器提出，未经核实";
    elicitation_about: "The call is running: its server continues with your answer. Give no password or other secret.", "调用正在进行：服务器将根据您的答复继续。请勿提供密码或其他机密。";
    page_host: "The page is on", "网页位于";
    page_host_written: "shown in browsers as", "浏览器中显示为";
    page_address: "Its whole address", "完整网址";
    by_agent_form: "The agent's questions, not verified", "智能体提出的问题，未经核实";
    no_text: "(no text at all)", "（没有任何文本）";
    what_is_known: "Known facts", "已知情况";
    sent_at: "Sent", "发送时间";
    attempt: "Attempt", "第几次尝试";
    replica: "Replica", "副本";
    problem: "Problem", "问题";
    // The details of a call.
    tool: "Tool", "工具";
    effect: "Effect", "影响";
    effect_read_only: "read only: changes nothing", "只读：不做任何更改";
    effect_idempotent: "idempotent: safe to repeat", "幂等：可安全重复";
    effect_once: "once: cannot be undone here", "一次性：无法在此撤销";
    verdict: "Verdict", "判定";
    verdict_allow: "allowed by a rule", "规则允许";
    verdict_hold: "held for a person", "须由人决定";
    verdict_deny: "denied by a rule", "规则禁止";
    verdict_invalid: "not valid, does not run", "无效，不会执行";
    verdict_human: "a question to a person", "向人提问";
    rule: "Rule", "规则";
    no_rule: "no rule matched", "没有匹配的规则";
    reason: "Reason", "理由";
    call_id: "Call id", "调用编号";
    warning: "Warning", "警告";
    warned_hidden: "hidden characters.", "含有隐藏字符。";
    warned_scripts: "letters of several scripts.", "混用多种文字。";
    warned_look_alike: "a look-alike word.", "含有形似的词。";
    warned_right_to_left: "text from right to left.", "含有从右向左书写的文字。";
    warned_overlay: "marks drawn over text.", "含有覆盖在文字上的符号。";
    warned_blanks: "long blanks.", "含有大段空白。";
    warned_large: "long.", "内容较长。";
    warned_may_have_run: "may already have run.", "可能已经执行过。";
    approvals: "Approvals", "批准情况";
    approvals_so_far: "{have} of {required}", "{have} / {required}";
    approvals_missing: "{have} of {required}; still needed: {missing} of {names}", "{have} / {required}；还需 {names} 中的 {missing} 人批准";
    // A decision, as the page shows it.
    decision: "Decision", "决定";
    decision_whole: "Decision", "决定结果";
    did_approve: "Approved", "已批准";
    did_reject: "Rejected", "已拒绝";
    did_edit: "Changed", "已修改";
    did_respond: "Answered", "已答复";
    did_retry: "To be run again", "再次执行";
    did_mixed: "Calls were decided differently", "各调用决定不同";
    by: "by {user}", "由 {user}";
    by_via: "by {user} through {via}", "由 {user}（经由 {via}）";
    comment_given: "Comment", "备注";
    then: "Then", "随后";
    then_as_ruled: "as the rule says", "按规则";
    then_rule: "The rule says: {then}.", "规则规定：{then}。";
    then_continue: "the agent is told, and goes on", "告知智能体并继续";
    then_cancel: "the task is canceled", "取消该任务";
    then_cancel_sub: "this agent's task is canceled, and the agent that called it is told", "取消该智能体的任务，并告知调用它的智能体";
    then_cancel_root: "the whole task tree is canceled", "取消整个任务树";
    changed_to: "Changed to", "修改为";
    given_result: "Result", "所提供的结果";
    given_response: "Answer", "所填写的内容";
    sealed_value: "(kept sealed)", "（已密封保存）";
    // The answer's form, and the reasons why a person cannot answer.
    your_answer: "Your answer", "您的答复";
    nothing_here: "Nothing to decide here.", "此处没有需要您决定的事项。";
    is_decided: "This request is decided.", "此请求已有决定。";
    has_expired: "This request has expired.", "此请求已过期。";
    was_withdrawn: "This request was withdrawn.", "此请求已撤回。";
    tool_has_changed: "The tool was changed after this request was opened, so this answer would not count. Any answer on the request's page has the call judged again with the tool as it is now.", "提问之后工具已更改，因此这种答复不会生效。在请求页面上作出任何答复，都会按现在的工具重新判断该调用。";
    for_others: "Other people decide this request.", "此请求由其他人决定。";
    you_answered: "You have answered; other people have not answered yet.", "您已答复，其他人尚未答复。";
    not_of_kind: "This request does not take this answer: answer on its page.", "此请求不接受这种答复，请在请求页面上答复。";
    rule_forbids: "The rule does not allow this answer.", "规则不允许这种答复。";
    exact_text: "The exact text that the agent wrote", "智能体所写的原文";
    not_permitted: "You may not give this answer here.", "您不能在此给出这种答复。";
    back: "Back to the request", "返回请求";
    approve: "Approve", "批准";
    approve_all: "Approve all {count}", "批准全部 {count} 项";
    reject_all: "Reject all {count}", "拒绝全部 {count} 项";
    approve_head: "Let it run as shown", "按所示内容执行";
    reject: "Reject", "拒绝";
    reject_head: "Do not let it run", "不执行";
    decline: "Decline", "谢绝";
    decline_head: "Decline to answer", "谢绝答复";
    decline_confirmation: "Say no, and say what follows", "回答“否”并说明后续";
    give_up: "Count it as failed", "将其视为失败";
    give_up_head: "Count the call as failed", "将此调用视为失败";
    retry: "Run it again", "再次执行";
    retry_about: "If the call has taken effect already, it may take effect twice.", "如果此调用已经生效，可能会重复生效。";
    each_call_about: "Only the decisions that you choose are sent. The other calls stay open.", "仅提交您已选择的部分，其余保持未决。";
    leave: "Leave undecided", "暂不决定";
    choose_approve: "Approve: run as shown", "批准：按所示执行";
    choose_reject: "Reject: do not run", "拒绝：不执行";
    choose_edit: "Change the arguments", "修改参数";
    choose_respond: "Give the result yourself: the tool does not run", "自行提供结果：不执行工具";
    edit_approves: "This approves the arguments as you leave them here.", "提交即批准您在此填写的参数。";
    edit_asks: "A new request asks about the changed call; the person who changed it may not approve it.", "修改后的调用会重新征求批准，修改者本人不得批准。";
    too_long_to_edit: "These calls are too long to be changed on this page.", "这些调用过长，无法在此页面修改。";
    edit_label: "Arguments as JSON: the full replacement", "参数（JSON，完整替换）";
    respond_send: "Use this result", "使用此结果";
    respond_about: "The tool does not run; the agent is given this as its result.", "不执行工具，此内容将作为结果交给智能体。";
    result_label: "Result", "结果";
    result_type: "The result is", "结果格式";
    result_text: "text", "文本";
    result_json: "JSON", "JSON";
    then_label: "After a rejection", "拒绝之后";
    then_label_no: "After a no", "答复“否”之后";
    answer_head: "Answer the agent", "答复智能体";
    elicitation_head: "Answer the tool", "答复工具";
    given_to_server: "Your answer is given to the server of the tool.", "您输入的内容将提供给工具的服务器。";
    page_done: "Done: I have visited the page", "完成：我已访问";
    shown_to_model: "The agent reads your answer. It approves no call.", "智能体会读到您的答复。答复不构成任何批准。";
    send_answer: "Send the answer", "提交答复";
    response_json: "Answer as JSON", "答复（JSON）";
    confirm_yes: "Yes, confirmed", "是，确认";
    confirm_no: "No", "否";
    credentials_later: "It is deleted when the task ends.", "任务结束时删除。";
    credentials_head: "Enter the login", "输入凭据";
    credentials_about: "It is sealed, is not shown to the model, and is given only to these tools:", "凭据将密封保存，不会展示给模型，仅提供给以下工具：";
    credentials_none: "It is sealed and is not shown to the model. No tool of this agent or of its sub-agents takes it.", "凭据将密封保存，不会展示给模型。此智能体及其子智能体没有任何工具使用它。";
    credentials_kept: "It is deleted after {time} at the latest.", "最迟在 {time} 后删除。";
    credentials_send: "Seal and submit", "密封并提交";
    external_head: "Fill in the result", "填写结果";
    external_send: "Send the result", "提交结果";
    reconcile_head: "Report its result", "说明其结果";
    reconcile_send: "This is its result", "这就是它的结果";
    optional: "optional", "可选";
    choose: "(choose)", "（请选择）";
    no_choice: "(nothing)", "（不填）";
    yes: "yes", "是";
    no: "no", "否";
    // Mistakes in a submitted form.
    not_stored: "Your answer was not stored", "您的答复未被保存";
    correct_below: "Correct the mistakes below, and send the form again.", "请修正以下各项后重新提交。";
    enter_again: "For security, your input was not kept: enter it again.", "为安全起见未保留您输入的内容，请重新输入。";
    error: "Error", "错误";
    // Events while the page is open.
    live_running: "The task is running.", "任务进行中。";
    live_paused: "The task waits for a person.", "任务正在等待人工处理。";
    live_completed: "The task is completed.", "任务已完成。";
    live_failed: "The task has failed.", "任务失败。";
    live_canceled: "The task was canceled.", "任务已取消。";
    live_follows: "This page follows the task automatically.", "本页面会自动显示任务的最新进展。";
    live_reconnecting: "The connection was lost; the page reconnects.", "连接已中断，正在重新连接。";
    live_ended: "The task has ended: no further events follow.", "任务已结束，此处不再更新。";
    live_stopped: "This page no longer follows the task.", "本页面已停止更新。";
    live_reload: "Load the page again", "重新加载页面";
    live_others: "Other open questions", "其他未决问题";
    live_earlier: "Earlier entries are not shown.", "更早的记录不再显示。";
    live_cut: "(cut: {count} characters in all)", "（已截断，共 {count} 个字符）";
    meanwhile_decided: "Already decided: {user} {what} at {at}.", "有人先作出决定：{user} 于 {at} {what}。";
    meanwhile_answered: "{user} {what} at {at}. The question is still open.", "{user} 于 {at} {what}。此问题仍未完结。";
    has_approve: "approved", "批准";
    has_reject: "rejected", "拒绝";
    has_edit: "changed it", "修改";
    has_respond: "answered", "答复";
    has_retry: "let it run again", "允许再次执行";
    has_mixed: "decided", "作出决定";
    // The entries of timelines.
    event_created: "Started.", "开始。";
    event_paused: "Waits for a person.", "等待人工处理。";
    event_resumed: "Continues.", "继续进行。";
    event_completed: "Completed.", "已完成。";
    event_failed: "Failed.", "失败。";
    event_canceled: "Canceled.", "已取消。";
    event_message: "Message of the user {user}", "用户 {user} 的消息";
    event_handed: "Task from the agent {agent}", "来自智能体 {agent} 的任务";
    event_image: "(an image)", "（图片）";
    event_answered: "The agent answers.", "智能体作答。";
    event_call: "Asks to run {tool}.", "请求执行 {tool}。";
    event_asked: "A person is asked: {kind}", "向人提问：{kind}";
    event_decided: "{what} by {user}.", "{what}（{user}）。";
    event_started: "{tool} was started.", "{tool} 已开始执行。";
    event_started_again: "{tool} was started (attempt {count}).", "{tool} 已开始执行（第 {count} 次）。";
    event_finished: "{tool}: {outcome}", "{tool}：{outcome}";
    event_late: "{tool}, too late: {outcome}", "{tool}，迟到的结果：{outcome}";
    event_sub_agent: "Hands work over to the agent {agent}.", "将工作交给智能体 {agent}。";
    by_result: "The result as the agent is told, not verified", "智能体得到的调用结果，未经核实";
    outcome_succeeded: "done", "已完成";
    outcome_failed: "failed", "失败";
    outcome_invalid: "not valid, did not run", "无效，未执行";
    outcome_denied: "denied by a rule", "规则禁止";
    outcome_rejected: "rejected by a person", "已被人拒绝";
    outcome_responded: "answered by a person", "由人答复";
    outcome_expired: "not answered in time", "逾期无人答复";
    outcome_withdrawn: "withdrawn", "已撤回";
    outcome_canceled: "canceled", "已取消";
    outcome_unknown: "outcome unknown", "结果未知";
    outcome_released: "let through", "已放行";
    // The pages that report a problem.
    for_support: "For support", "技术支持信息";
    code_line: "Code {code}, status {status}.", "代码 {code}，状态 {status}。";
    id_line: "Request {id}.", "请求 {id}。";
    first_decision: "The first decision counts: {user} {what} at {at}.", "有人先作出决定：{user} 于 {at} {what}。";
}

impl Translations {
    #[must_use]
    pub(crate) fn action(&self, action: impl Into<DecisionAction>) -> &'static str {
        match action.into() {
            DecisionAction::Approve => self.did_approve,
            DecisionAction::Reject => self.did_reject,
            DecisionAction::Edit => self.did_edit,
            DecisionAction::Respond => self.did_respond,
            DecisionAction::Retry => self.did_retry,
            DecisionAction::Mixed => self.did_mixed,
        }
    }

    #[must_use]
    pub(crate) fn verdict(&self, verdict: impl Into<WireVerdict>) -> &'static str {
        match verdict.into() {
            WireVerdict::Allow => self.verdict_allow,
            WireVerdict::Hold => self.verdict_hold,
            WireVerdict::Deny => self.verdict_deny,
            WireVerdict::Invalid => self.verdict_invalid,
            WireVerdict::Human => self.verdict_human,
        }
    }

    #[must_use]
    pub(crate) fn outcome(&self, outcome: Outcome) -> &'static str {
        match outcome {
            Outcome::Succeeded => self.outcome_succeeded,
            Outcome::Failed => self.outcome_failed,
            Outcome::Invalid => self.outcome_invalid,
            Outcome::Denied => self.outcome_denied,
            Outcome::Rejected => self.outcome_rejected,
            Outcome::Responded => self.outcome_responded,
            Outcome::Expired => self.outcome_expired,
            Outcome::Withdrawn => self.outcome_withdrawn,
            Outcome::Canceled => self.outcome_canceled,
            Outcome::Unknown => self.outcome_unknown,
            Outcome::Released => self.outcome_released,
        }
    }
}

/// Replaces each `{name}` in a text by the value of that name in `values`, or by nothing if there
/// is no such value. A `{name}` inside a value stays unchanged.
#[must_use]
pub(crate) fn fill(text: &str, values: &[(&str, &dyn Display)]) -> String {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        let (name, tail) = after.split_once('}').unwrap_or((after, ""));
        if let Some((_, value)) = values.iter().find(|(known, _)| *known == name) {
            filled.push_str(&value.to_string());
        }
        rest = tail;
    }
    filled + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_translated_except_names() {
        let same: Vec<&str> = PAIRS
            .iter()
            .filter(|(english, chinese)| english == chinese)
            .map(|pair| pair.0)
            .collect();
        assert_eq!(same, ["JSON"]);
    }

    #[test]
    fn filled_in_values_are_not_expanded_again() {
        assert_eq!(fill("{a} of {b}", &[("a", &"{b}"), ("b", &2)]), "{b} of 2");
        assert_eq!(fill("{none}|", &[]), "|");
    }
}
