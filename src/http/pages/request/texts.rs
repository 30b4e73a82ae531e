//! The texts of the page of a request, in all languages. The texts address people who decide
//! requests and may not know the API.

use crate::http::pages::language::{Language, texts};

texts! {
    RequestTexts;
    // The page that a sealed link opens.
    link_person: "{user} ({email})", "{user}（{email}）";
    link_for: "For {person}.", "此链接属于 {person}。";
    link_counts: "A decision on this page counts as {user}'s.", "在此页面作出的决定视为 {user} 的决定。";
    link_not_you: "Not you? Close it and tell the operator.", "不是您本人？请关闭此页面并告知管理员。";
    link_deadline: "This question can be answered until {at}.", "此请求可在 {at} 之前答复。";
    link_until: "Your link works until {at}.", "此链接有效至 {at}。";
    link_rest: "Whole task, edits, logins: sign in.", "查看完整任务、修改调用和提供凭据，请登录。";
    link_no_answer: "To do this, sign in.", "请登录后执行此操作。";
    link_sign_in: "Sign in", "登录";
    // The lines above the question.
    agent_asks: "{agent} asks", "{agent} 请求";
    agent_asked: "{agent} asked", "{agent} 曾请求";
    task_of: "{user}’s task", "{user} 的任务";
    overdue: "too late", "已逾期";
    and_more: "{summary}, and {count} more", "{summary}，以及另外 {count} 项";
    no_rule_why: "No rule lets this run without a person.", "没有规则允许此操作在无人批准时执行。";
    agent_wrote: "{user}’s agent says (unverified)", "{user} 的智能体称（未经核实）";
    asker_waiting: "The agent waits now.", "智能体正在等待。";
    asker_absent: "The agent is not waiting: it must ask again.", "智能体未在等待：需要再次请求。";
    approval_runs_call: "If you approve, the call runs at once.", "批准后将立即执行此调用。";
    approval_runs_call_later: "If you approve, the call runs when the agent asks again, within {time}.", "批准后，智能体在 {time} 内再次请求时才会执行此调用。";
    approval_permits_call: "If you approve, the agent runs the call itself.", "批准后由智能体自行执行此调用。";
    approval_permits_call_later: "If you approve, the agent may run the call itself when it asks again, within {time}.", "批准后，智能体在 {time} 内再次请求时可自行执行此调用。";
    user_wrote: "{user} wrote", "{user} 写道";
    whole_message: "the whole message", "完整消息";
    // A single call.
    runs_exactly: "Written by the agent, not verified. Exactly this runs.", "由智能体撰写，未经核实，将原样执行。";
    sent_exactly: "Written by the agent, not verified. Exactly this was sent.", "由智能体撰写，未经核实，已原样发送。";
    asks_exactly: "Written by the agent, not verified. Exactly this was asked.", "由智能体撰写，未经核实，系提问原文。";
    changed_exactly: "Changed by {user}. Exactly this runs if it is approved.", "由 {user} 修改，批准后将原样执行。";
    changed_sent: "Changed by {user}. Exactly this was sent.", "由 {user} 修改，已原样发送。";
    changed_asked: "Changed by {user}. Exactly this was asked.", "由 {user} 修改，系提问原文。";
    exact_text: "Exact text, {count} characters", "原文，共 {count} 个字符";
    exact_text_of_each: "Exact text of each call", "每个调用的原文";
    no_arguments: "no details", "无内容";
    goes_to: "Goes to", "目标";
    goes_nowhere: "nowhere: the service no longer has this tool", "无：服务已没有此工具";
    goes_outside: "outside this service", "本服务之外";
    runs_in: "Runs in the folder", "执行目录";
    risk_once: "This cannot be undone here.", "此操作无法在此撤销。";
    risk_once_several: "{count} of these cannot be undone here.", "其中 {count} 项无法在此撤销。";
    risk_idempotent: "Safe to repeat: a second run changes nothing more.", "可安全重复：再次执行不会产生更多更改。";
    risk_read_only: "Reads only: changes nothing.", "只读：不做任何更改。";
    risk_shell: "Runs this command on the server.", "在服务器上执行此命令。";
    risk_shell_several: "Commands that run on the server: {count}.", "将在服务器上执行的命令：{count} 项。";
    call_number: "Call {number}", "第 {number} 项";
    // Several calls.
    calls_of: "{tool} × {count}", "{tool} × {count}";
    number: "No.", "序号";
    call: "Call", "调用";
    sum: "Sum", "合计";
    state: "State", "状态";
    open: "open", "未决";
    table_is_partial: "This table leaves out parts of the arguments. The exact text below has them all.", "此表未列出参数的全部内容，完整内容见下方原文。";
    context_head: "Shown for context, not for you to decide", "仅供参考，不由您决定";
    // The forms.
    comment: "Comment (optional)", "备注（可选）";
    approve_last: "Approve the other call", "批准剩下的调用";
    approve_rest: "Approve the other {count}", "批准其余 {count} 项";
    reject_cancel: "Reject and cancel the task", "拒绝并取消任务";
    reject_cancel_sub: "Reject and stop this agent", "拒绝并停止该智能体";
    reject_cancel_root: "Reject and cancel the whole task", "拒绝并取消整个任务";
    reject_continue: "Reject and let the agent go on", "拒绝并让智能体继续";
    reject_all_cancel: "Reject all {count} and cancel the task", "拒绝全部 {count} 项并取消任务";
    reject_all_cancel_sub: "Reject all {count} and stop this agent", "拒绝全部 {count} 项并停止该智能体";
    reject_all_cancel_root: "Reject all {count} and cancel the whole task", "拒绝全部 {count} 项并取消整个任务";
    reject_all_continue: "Reject all {count} and let the agent go on", "拒绝全部 {count} 项并让智能体继续";
    reject_otherwise: "Reject in another way…", "以其他方式拒绝…";
    change: "Change…", "修改…";
    change_send: "Approve with these changes", "按修改后的内容批准";
    change_send_asks: "Ask again with these changes", "按修改后的内容重新征求批准";
    as_json: "As JSON", "以 JSON 编辑";
    as_json_about: "Replaces everything above. Leave it as it is to use the fields.", "将替换以上全部内容。如使用上面的字段，请勿改动。";
    expected_members: "The result is JSON with these entries", "结果为 JSON，包含以下各项";
    whole_schema: "The whole description of the result, as JSON Schema", "结果的完整说明（JSON Schema）";
    supply: "Give the result yourself…", "自行提供结果…";
    each_call: "Decide each call…", "逐项决定…";
    send_chosen: "Send only these decisions", "仅提交这些决定";
    send_and_approve_rest: "Send these, and approve the rest", "提交这些决定，并批准其余各项";
    decline: "Decline to answer…", "谢绝答复…";
    give_up: "Count it as failed…", "视为失败…";
    remember: "Do not ask again…", "不再询问…";
    remember_about: "If you tick the box, your approval also lets later calls run. You can end it at any time.", "勾选后，您的批准也适用于之后的调用，可随时结束。";
    remember_same: "{tool} with exactly these arguments (rule {rule})", "{tool}，参数与此完全相同（规则 {rule}）";
    remember_when: "{tool} under rule {rule}, where this holds:", "{tool}（规则 {rule}），满足以下条件时：";
    remember_uses: "{count} calls at most", "最多 {count} 次调用";
    remember_yes: "Do not ask again about this", "不再询问此事项";
    remember_for: "Where", "适用范围";
    remember_task: "In this task, until the next message", "此任务，至下一条消息为止";
    remember_owner: "In every task of {user} with {agent}", "{user} 使用 {agent} 的所有任务";
    remember_time: "For how long", "有效时间";
    retry: "Run it again…", "再次执行…";
    later_request: "Look at the new request", "查看新的请求";
    // Below the forms: details and history.
    details: "Details", "详细信息";
    digest: "Digest", "摘要值";
    deadline: "Deadline", "期限";
    history: "History", "历史";
    past_asked: "Asked.", "已提问。";
    past_expired: "No answer came in time.", "逾期无人答复。";
    past_withdrawn: "Withdrawn.", "已撤回。";
}
