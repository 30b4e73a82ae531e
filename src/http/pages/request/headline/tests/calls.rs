//! Checks that the headline after an approval names the status of the approved calls.

use super::*;

#[test]
fn headline_of_an_approval_names_the_status_of_the_call() {
    let row = decided(sample::request(), Action::Approve);
    let call = own(&row, 0);
    let again = |kind| vec![asked_again(&row, kind)];
    let after = |facts: Vec<Fact>| say(&row, facts);
    assert_eq!(after(vec![]), "Approved by bob. It has not started yet.");
    assert_eq!(
        after(vec![started(call)]),
        "Approved by bob. It is running."
    );
    assert_eq!(
        after(vec![started(call), ended(call, Outcome::Succeeded)]),
        "Approved by bob, and it ran."
    );
    let failed = Fact::ToolResult(result(call, Outcome::Failed, Some(500)));
    assert_eq!(
        after(vec![started(call), failed]),
        "Approved by bob, but it failed: 500."
    );
    for (outcome, said) in [
        (Outcome::Failed, "Approved by bob, but it failed."),
        (
            Outcome::Invalid,
            "Approved by bob, but it is not valid and did not run.",
        ),
        (Outcome::Denied, "Approved by bob, but a rule refused it."),
        (
            Outcome::Rejected,
            "Approved by bob, but it was rejected later.",
        ),
        (
            Outcome::Responded,
            "Approved by bob. A person gave its result.",
        ),
        (
            Outcome::Expired,
            "Approved by bob, but a later question about it was not answered in time.",
        ),
        (Outcome::Withdrawn, "Approved by bob, but it was withdrawn."),
        (Outcome::Canceled, "Approved by bob, but it was canceled."),
        (
            Outcome::Unknown,
            "Approved by bob. Its outcome is not known.",
        ),
    ] {
        assert_eq!(after(vec![ended(call, outcome)]), said);
    }
    assert_eq!(
        after([vec![started(call)], again(RequestKind::Reconcile)].concat()),
        "Approved by bob. Its outcome is not known: a person is asked."
    );
    assert_eq!(
        after(again(RequestKind::Approval)),
        "Approved by bob. A new request asks about it."
    );
    assert_eq!(
        after(again(RequestKind::Credentials)),
        "Approved by bob. It waits for a login."
    );
    assert_eq!(
        after(again(RequestKind::ExternalResult)),
        "Approved by bob. Its result is awaited from outside."
    );
    let lost = [started(call), status(TaskStatus::Failed)];
    assert_eq!(
        after(lost.to_vec()),
        "Approved by bob. Its outcome is not known."
    );
    assert_eq!(
        after(vec![status(TaskStatus::Failed)]),
        "Approved by bob, but the task failed before it ran."
    );
    assert_eq!(
        after(vec![status(TaskStatus::Canceled)]),
        "Approved by bob, but it was canceled."
    );
    let retried = vec![status(TaskStatus::Failed), status(TaskStatus::Running)];
    assert_eq!(after(retried), "Approved by bob. It has not started yet.");
}

#[test]
fn later_request_about_the_call_counts_until_it_is_over() {
    let row = decided(sample::request(), Action::Approve);
    let call = own(&row, 0);
    let reconciling = || vec![started(call), asked_again(&row, RequestKind::Reconcile)];
    let after = |facts: Vec<Fact>| say(&row, [reconciling(), facts].concat());
    assert_eq!(
        after(vec![answered_again(&row, Action::Retry, true)]),
        "Approved by bob. It is running."
    );
    let told = answered_again(&row, Action::Respond, false);
    assert_eq!(
        after(vec![told.clone()]),
        "Approved by bob. A later question about it was answered."
    );
    assert_eq!(
        after(vec![told, ended(call, Outcome::Responded)]),
        "Approved by bob. A person gave its result."
    );
    let again = vec![
        answered_again(&row, Action::Retry, true),
        started(call),
        ended(call, Outcome::Succeeded),
    ];
    assert_eq!(after(again), "Approved by bob, and it ran.");
    let over = Fact::RequestClosed {
        request_id: RequestId(uuid::Uuid::from_u128(99)),
        status: RequestStatus::Expired,
        reason: CloseReason::Expired,
    };
    assert_eq!(
        after(vec![over, ended(call, Outcome::Unknown)]),
        "Approved by bob. Its outcome is not known."
    );
    let other = say(&row, vec![started(CallId(uuid::Uuid::from_u128(77)))]);
    assert_eq!(
        other, "Approved by bob. It has not started yet.",
        "another call is another call"
    );
}

#[test]
fn late_result_is_shown_as_late() {
    let row = decided(sample::request(), Action::Approve);
    let call = own(&row, 0);
    let late = |outcome| {
        let late = Fact::LateResult(result(call, outcome, None));
        say(
            &row,
            vec![started(call), ended(call, Outcome::Unknown), late],
        )
    };
    assert_eq!(
        late(Outcome::Succeeded),
        "Approved by bob. It ran, and its result came late."
    );
    assert_eq!(
        late(Outcome::Failed),
        "Approved by bob. It failed, and its result came late."
    );
    assert_eq!(
        late(Outcome::Unknown),
        "Approved by bob. Its outcome is not known."
    );
}

#[test]
fn edit_is_an_approval_only_where_the_call_runs_with_it() {
    let row = decided(sample::request(), Action::Edit);
    let call = own(&row, 0);
    let ran = || vec![started(call), ended(call, Outcome::Succeeded)];
    let approving = |mut row: RequestRow| {
        for answer in row.answers[0].1.decisions.values_mut() {
            answer.leave = true;
        }
        row
    };
    assert_eq!(
        say(&approving(row.clone()), vec![started(call)]),
        "Changed and approved by bob. It is running."
    );
    let again = || vec![asked_again(&row, RequestKind::Approval)];
    assert_eq!(
        say(&row, again()),
        "Changed by bob. A new request asks about it."
    );
    let approved_later = vec![answered_again(&row, Action::Approve, true)];
    assert_eq!(
        say(&row, [again(), approved_later, ran()].concat()),
        "Changed by bob, and it ran."
    );
    let rejected_later = vec![
        answered_again(&row, Action::Reject, false),
        ended(call, Outcome::Rejected),
    ];
    assert_eq!(
        say(&row, [again(), rejected_later].concat()),
        "Changed by bob, but it was rejected later."
    );
    let mut two = row.clone();
    two.spec.terms.approvers.required = 2;
    assert_eq!(say(&two, ran()), "Changed by bob, and it ran.");
    assert_eq!(
        say(&approving(two), ran()),
        "Changed and approved by bob, and it ran.",
        "without accounts, one approval is enough"
    );
}

#[test]
fn several_calls_are_counted_by_status() {
    let row = decided(sample::several(4), Action::Approve);
    let calls = [0, 1, 2, 3].map(|index| own(&row, index));
    let facts = vec![
        started(calls[0]),
        started(calls[1]),
        started(calls[2]),
        ended(calls[0], Outcome::Succeeded),
        Fact::ToolResult(result(calls[1], Outcome::Failed, Some(503))),
    ];
    assert_eq!(
        say(&row, facts),
        "Approved by bob: 1 ran, 1 failed, 1 running, 1 not started yet."
    );
    let mut mixed = row.clone();
    mixed.answers.clear();
    for (who, action, call) in [
        ("bob", Action::Approve, 0),
        ("eve", Action::Reject, 1),
        ("eve", Action::Respond, 2),
        ("bob", Action::Edit, 3),
    ] {
        mixed
            .answers
            .extend(sample::answer(who, action, &[calls[call]], call == 3));
    }
    assert_eq!(
        say(
            &mixed,
            vec![started(calls[0]), ended(calls[0], Outcome::Succeeded)]
        ),
        "Decided by bob, eve: 1 ran, 1 not started yet, 1 answered by a person, 1 rejected."
    );
    let none = then(decided(row.clone(), Action::Reject), Consequence::Cancel);
    assert_eq!(
        say(&none, vec![]),
        "Rejected by bob. The task was canceled."
    );
    let told = decided(row.clone(), Action::Reject);
    let results: Vec<Fact> = calls
        .map(|call| ended(call, Outcome::Rejected))
        .into_iter()
        .collect();
    assert_eq!(
        say(&told, [results, vec![model_answers()]].concat()),
        "Rejected by bob. The agent was told."
    );
    let mut cut_short = row;
    cut_short.answers = sample::answer("eve", Action::Reject, &[calls[0]], true)
        .into_iter()
        .collect();
    let cut_short = then(cut_short, Consequence::Cancel);
    let canceled = calls[1..]
        .iter()
        .map(|call| ended(*call, Outcome::Canceled));
    let facts = std::iter::once(ended(calls[0], Outcome::Rejected))
        .chain(canceled)
        .collect();
    assert_eq!(
        say(&cut_short, facts),
        "Decided by eve: 1 rejected, 3 canceled. The task was canceled."
    );
}

#[test]
fn answer_without_a_call_of_its_own_does_not_count() {
    let mut row = decided(sample::several(2), Action::Approve);
    let [first, second] = [own(&row, 0), own(&row, 1)];
    row.answers[0].1.decisions = [(first, CallAnswer::plain(Action::Approve))].into();
    let said = say(
        &row,
        vec![
            ended(first, Outcome::Succeeded),
            ended(second, Outcome::Canceled),
        ],
    );
    assert_eq!(said, "Decided by bob: 1 ran, 1 canceled.");
}

#[test]
fn every_person_whose_answer_counts_is_named_once() {
    let mut row = decided(sample::request(), Action::Approve);
    row.spec.terms.approvers.required = 2;
    let call = own(&row, 0);
    row.answers.extend(sample::answer(
        "<b>\u{202e}",
        Action::Approve,
        &[call],
        true,
    ));
    let ran = vec![started(call), ended(call, Outcome::Succeeded)];
    let said = headline(
        &row,
        Some(&read(&row, ran)),
        Translations::for_language(Language::English),
    )
    .unwrap();
    assert_eq!(said, "Approved by bob, <b>\\u{202e}, and it ran.");
}
