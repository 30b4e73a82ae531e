//! Checks the headline after a rejection, an answer to a question, an expiry, and a withdrawal.

use super::*;

#[test]
fn headline_of_a_rejection_names_the_consequence() {
    let row = decided(sample::request(), Action::Reject);
    let call = own(&row, 0);
    let rejected = || vec![ended(call, Outcome::Rejected)];
    let canceled = then(row.clone(), Consequence::Cancel);
    let facts = [rejected(), vec![status(TaskStatus::Canceled)]].concat();
    assert_eq!(
        say(&canceled, facts.clone()),
        "Rejected by bob. The task was canceled."
    );
    let root = then(row.clone(), Consequence::CancelRoot);
    assert_eq!(
        say(&root, facts.clone()),
        "Rejected by bob. The whole task tree was canceled."
    );
    let mut sub = canceled;
    sub.task_id = crate::task::id::TaskId(uuid::Uuid::from_u128(9));
    assert_eq!(
        say(&sub, facts),
        "Rejected by bob. The agent's task was canceled; the agent that called it is told."
    );
    let goes_on = then(row, Consequence::Continue);
    assert_eq!(
        say(&goes_on, rejected()),
        "Rejected by bob. The agent will be told."
    );
    let told = [rejected(), vec![model_answers()]].concat();
    assert_eq!(say(&goes_on, told), "Rejected by bob. The agent was told.");
    let failed = [rejected(), vec![status(TaskStatus::Failed)]].concat();
    assert_eq!(
        say(&goes_on, failed),
        "Rejected by bob. The task failed before the agent was told."
    );
    let ended = [rejected(), vec![status(TaskStatus::Canceled)]].concat();
    assert_eq!(
        say(&goes_on, ended),
        "Rejected by bob. The task was canceled before the agent was told."
    );
}

#[test]
fn headline_of_an_expired_request_names_the_consequence() {
    let mut row = RequestRow {
        status: RequestStatus::Expired,
        ..sample::request()
    };
    let call = own(&row, 0);
    let over = |row: &RequestRow| closed(row, RequestStatus::Expired, CloseReason::Expired);
    let facts = vec![over(&row), ended(call, Outcome::Expired)];
    assert_eq!(
        say(&row, facts.clone()),
        "No answer came in time. The agent will be told."
    );
    let told = [facts.clone(), vec![model_answers()]].concat();
    assert_eq!(
        say(&row, told),
        "No answer came in time. The agent was told."
    );
    row.spec.terms.on_expiry = OnExpiry::Cancel;
    assert_eq!(
        say(&row, facts),
        "No answer came in time. The task was canceled."
    );
    let reconciling = RequestRow {
        status: RequestStatus::Expired,
        ..sample::of_kind(RequestKind::Reconcile)
    };
    let facts = vec![
        over(&reconciling),
        ended(own(&reconciling, 0), Outcome::Unknown),
    ];
    assert_eq!(
        say(&reconciling, facts),
        "No answer came in time. Its outcome is not known."
    );
    let mut half = RequestRow {
        status: RequestStatus::Expired,
        ..sample::several(2)
    };
    let calls = [own(&half, 0), own(&half, 1)];
    half.answers = sample::answer("bob", Action::Approve, &[calls[0]], false)
        .into_iter()
        .collect();
    let facts = vec![
        over(&half),
        ended(calls[1], Outcome::Expired),
        started(calls[0]),
        ended(calls[0], Outcome::Succeeded),
    ];
    assert_eq!(
        say(&half, facts),
        "No answer came in time: 1 ran, 1 not answered in time."
    );
}

#[test]
fn headline_of_a_withdrawn_request_names_the_reason() {
    let row = RequestRow {
        status: RequestStatus::Withdrawn,
        ..sample::request()
    };
    let call = own(&row, 0);
    let why = |reason, more: Vec<Fact>| {
        say(
            &row,
            [vec![closed(&row, RequestStatus::Withdrawn, reason)], more].concat(),
        )
    };
    assert_eq!(
        why(CloseReason::Superseded, vec![]),
        "Withdrawn: the user continued with another message."
    );
    let ends = |to| vec![ended(call, Outcome::Canceled), status(to)];
    assert_eq!(
        why(CloseReason::Canceled, ends(TaskStatus::Canceled)),
        "Withdrawn: the task was canceled."
    );
    let retried = [
        ends(TaskStatus::Failed),
        vec![status(TaskStatus::Running), status(TaskStatus::Completed)],
    ]
    .concat();
    assert_eq!(
        why(CloseReason::Canceled, retried),
        "Withdrawn: the task failed."
    );
    let changed = "Withdrawn: the tool was changed after the request was opened";
    assert_eq!(
        why(
            CloseReason::ToolChanged,
            vec![asked_again(&row, RequestKind::Approval)]
        ),
        format!("{changed}. A new request asks about it.")
    );
    let failed = Fact::ToolResult(result(call, Outcome::Failed, Some(500)));
    assert_eq!(
        why(CloseReason::ToolChanged, vec![started(call), failed]),
        format!("{changed}, but it failed: 500.")
    );
    assert_eq!(
        why(
            CloseReason::AnsweredLate,
            vec![ended(call, Outcome::Succeeded)]
        ),
        "Withdrawn: the result of the call arrived without an answer, and it ran."
    );
    assert_eq!(
        headline(&row, None, Translations::for_language(Language::English)).unwrap(),
        "Withdrawn."
    );
}

#[test]
fn each_kind_of_question_has_its_own_words() {
    let told = |kind, action| {
        let row = decided(sample::of_kind(kind), action);
        let call = own(&row, 0);
        say(&row, vec![ended(call, Outcome::Responded), model_answers()])
    };
    for (kind, action, said) in [
        (
            RequestKind::Guidance,
            Action::Respond,
            "Answered by bob. The agent was told.",
        ),
        (
            RequestKind::Guidance,
            Action::Reject,
            "Declined by bob. The agent was told.",
        ),
        (
            RequestKind::Confirmation,
            Action::Approve,
            "Confirmed by bob. The agent was told.",
        ),
        (
            RequestKind::Confirmation,
            Action::Reject,
            "Answered with “no” by bob. The agent was told.",
        ),
        (
            RequestKind::Confirmation,
            Action::Respond,
            "Answered with “no” by bob. The agent was told.",
        ),
        (
            RequestKind::Credentials,
            Action::Respond,
            "Login given by bob. The agent was told.",
        ),
        (
            RequestKind::Credentials,
            Action::Reject,
            "Declined by bob. The agent was told.",
        ),
        (
            RequestKind::ExternalResult,
            Action::Respond,
            "Result given by bob. The agent was told.",
        ),
        (
            RequestKind::ExternalResult,
            Action::Reject,
            "Declined by bob. The agent was told.",
        ),
        (
            RequestKind::Reconcile,
            Action::Respond,
            "Answered by bob. The agent was told.",
        ),
        (
            RequestKind::Reconcile,
            Action::Reject,
            "Counted as failed by bob. The agent was told.",
        ),
        (
            RequestKind::Approval,
            Action::Respond,
            "Result given by bob, the tool did not run. The agent was told.",
        ),
    ] {
        assert_eq!(told(kind, action), said, "{kind:?} {action:?}");
    }
    let mut yes = decided(sample::of_kind(RequestKind::Confirmation), Action::Respond);
    yes.answers[0].1.response = Some(json!({"confirmed": true}));
    assert_eq!(
        say(&yes, vec![]),
        "Confirmed by bob. The agent will be told."
    );
    let retry = decided(sample::of_kind(RequestKind::Reconcile), Action::Retry);
    let call = own(&retry, 0);
    assert_eq!(
        say(&retry, vec![]),
        "Allowed to run again by bob. It has not been started again yet."
    );
    assert_eq!(
        say(&retry, vec![started(call)]),
        "Allowed to run again by bob. It is running."
    );
    let ran = vec![started(call), ended(call, Outcome::Succeeded)];
    assert_eq!(
        say(&retry, ran.clone()),
        "Allowed to run again by bob, and it ran."
    );
    let mut login = decided(sample::of_kind(RequestKind::Credentials), Action::Respond);
    login.spec.pending_tool_calls[0].name = "comment_ticket".into();
    assert_eq!(
        say(&login, ran),
        "Login given by bob, and it ran.",
        "a call that waited for a login goes on"
    );
}
