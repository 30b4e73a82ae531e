//! The texts of the frame's links, and of the pages of the inbox, of tasks and of standing
//! decisions, in all languages. Texts about requests and events are in `translations.rs`, because
//! the page of a request shares them.

use crate::http::pages::language::{Language, texts};

texts! {
    SiteTexts;
    // The frame of the pages.
    pages: "Pages", "页面";
    skip: "Skip to the content", "跳到正文";
    inbox: "Inbox", "待处理";
    decided: "Decided", "已决定";
    tasks: "Tasks", "任务";
    // The inbox: its state, and announcements of new requests.
    as_of: "As of {at}", "截至 {at}";
    live: "live", "实时更新中";
    not_live: "Not live since {at}.", "自 {at} 起未更新。";
    look_again: "Look again", "重新查看";
    new_one: "1 new question: show it", "1 个新请求：显示";
    new_many: "{count} new questions: show them", "{count} 个新请求：显示";
    notify: "Tell me here", "在此提醒我";
    notify_stop: "Stop telling me here", "不再在此提醒我";
    notify_refused: "This browser does not allow notices.", "此浏览器不允许通知。";
    notify_title: "A question waits", "有请求等待处理";
    nothing_open: "Nothing waits for you.", "没有等待您处理的请求。";
    nothing_matches: "Nothing that fits.", "没有符合条件的请求。";
    show_all: "Show all", "全部显示";
    urgent_first: "Of the 200 oldest questions, those that expire within an hour come first.", "最早的 200 个请求中，一小时内到期的排在最前。";
    newest_last: "Newest questions last.", "按时间排列，最新的在最后。";
    next_page: "Next page: {count} more", "接下来的请求（还有 {count} 个）";
    first_page: "Back to the oldest", "返回最早的请求";
    // The filters of the lists.
    filter: "Filter", "筛选";
    status: "Status", "状态";
    all: "all", "全部";
    show: "Show", "显示";
    // The row of a request.
    summary: "Summary", "摘要";
    and_more: "and {count} more", "等另外 {count} 个";
    for_user: "for {user}", "为 {user}";
    asked_ago: "asked {time} ago", "{time}前提出";
    by_rule: "rule {rule}", "规则 {rule}";
    calls: "{count} calls", "{count} 个调用";
    have_approved: "{have} of {required} have approved", "{required} 人中已有 {have} 人批准";
    warning: "1 warning", "1 个警告";
    warnings: "{count} warnings", "{count} 个警告";
    row_decided: "{what} by {user}, {at} — nothing left to do here", "{what}（{user}，{at}）：无需再处理";
    row_over: "Nothing left to do here", "无需再处理";
    row_expired: "Expired — nothing left to do here", "已过期：无需再处理";
    row_withdrawn: "Withdrawn — nothing left to do here", "已撤回：无需再处理";
    row_answered: "You have answered: it waits for other people", "您已答复：等待其他人";
    effect_read_only: "read only", "只读";
    effect_idempotent: "idempotent", "幂等";
    effect_once: "once", "一次性";
    // The line that leads to the next question, shown after an answer.
    next: "Next: {summary}", "下一个：{summary}";
    more_wait: "{count} more", "还有 {count} 个";
    rest_waits: "The rest of this request still waits for you.", "此请求的其余部分仍等待您处理。";
    nothing_more: "Nothing else waits for you.", "没有其他等待您处理的请求。";
    // The list of decided requests.
    nothing_decided: "Nothing was decided yet.", "尚无决定。";
    own_only: "Only what I have answered", "仅显示我的答复";
    others_too: "Also what others have decided", "同时显示他人的决定";
    by_you: "you", "您";
    by_at: "by {user},", "{user}，";
    waited: "waited {time}", "等待了 {time}";
    waits_for_one: "waits for one more", "还需一人";
    waits_for_more: "waits for {count} more", "还需 {count} 人";
    state_pending: "open", "未决";
    state_responded: "decided, not carried out yet", "已决定，尚未生效";
    state_resumed: "decided", "已决定";
    state_expired: "expired", "已过期";
    state_withdrawn: "withdrawn", "已撤回";
    older: "Older", "更早的";
    none_so_far: "None found so far; there may be more.", "目前查看过的里面没有；后面可能还有。";
    // Tasks.
    no_tasks: "No tasks.", "没有任务。";
    calls_at_gate: "Calls at the gate", "网关的调用";
    owner: "Owner", "所有者";
    updated: "Changed", "更新时间";
    open: "Open", "未决";
    running: "Running", "运行中";
    paused: "Paused", "等待人工";
    completed: "Completed", "已完成";
    failed: "Failed", "失败";
    canceled: "Canceled", "已取消";
    task_title: "Task · {agent} · {status}", "任务 · {agent} · {status}";
    usage: "model calls: {calls}, tokens: {tokens}", "模型调用：{calls}，token：{tokens}";
    asked: "Asked", "提出于";
    tree: "tree of {count}", "任务树共 {count} 个任务";
    part_of: "Part of a larger task", "隶属于更大的任务";
    cancel_task: "Cancel the task", "取消任务";
    cancel_effect: "The task and all tasks below it end permanently. No further call starts, and their open questions are withdrawn.", "该任务及其下的所有任务将永久结束：不再发起任何调用，未决请求将被撤回。";
    open_questions: "Open questions", "未决请求";
    review: "Review", "查看";
    timeline: "Timeline", "时间线";
    earlier: "Earlier than #{number}", "早于 #{number}";
    newest: "The newest entries", "最新的记录";
    unreadable: "This entry cannot be read.", "此记录无法读取。";
    judged: "Judged: {verdict}", "判定：{verdict}";
    by_link: "by link", "通过链接";
    in_slack: "in Slack", "在 Slack 中";
    // Standing decisions.
    grants: "What is not asked again", "不再询问的事项";
    grants_about: "Approvals that also let later calls through. Each ends by itself; end it here to be asked again.", "这些批准也适用于之后的调用。到期后自动失效；也可在此结束，恢复询问。";
    no_grants: "Everything is asked about.", "目前所有事项都会询问。";
    grant_tool: "{tool}, under rule {rule}", "{tool}（规则 {rule}）";
    grant_of_task: "in one task of {user}, until the next message", "{user} 的一个任务，至下一条消息为止";
    grant_of_owner: "in every task of {user} with {agent}", "{user} 使用 {agent} 的所有任务";
    grant_given: "given by {user},", "由 {user} 授予，";
    grant_until: "until", "有效期至";
    grant_used: "used {used} of {uses} times", "已使用 {used} 次，共 {uses} 次";
    grant_end: "Ask again: {tool}", "恢复询问：{tool}";
    ended_revoked: "ended", "已结束";
    ended_expired: "expired", "已到期";
    ended_used_up: "used up", "次数已用完";
    ended_message: "ended by the user’s next message", "用户发送新消息后已失效";
    ended_history_lost: "ended: stored history was lost", "已失效：部分历史记录丢失";
    ended_giver: "ended: its giver may no longer approve this", "已失效：授予者不再有权批准";
    ended_changed: "ended: its rule or tool has changed", "已失效：规则或工具已更改";
}
