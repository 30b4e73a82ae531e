//! Tests questions of a tool's server in calls whose outcome is unknown: an earlier attempt at the
//! call got no answer, the task failed while the question was open, or the tool has changed since.

use holdpoint::engine::{DecisionInput, Refusal};
use holdpoint::task::decision::Action;
use holdpoint::task::failure::FailureCode;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::Outcome;
use holdpoint::task::progress::Progress;
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;
use serde_json::json;

use super::super::approval_rights::{driven, keyed, process};
use super::super::engine_harness::{
    Calls, EngineHarness, alice, alice_is_refused, fills, outcomes, whole,
};
use super::{
    LARGE, SMALL, answer, answer_as, asking, asks, attempts, harness_on, lost, resume,
    rosters_of_finance, the_request,
};
use crate::store::store_fixture::{StoreFixture, both};

const TAG_AND_SMALL: Calls = &[
    ("tag", r#"{"text":"paid"}"#),
    ("refund", r#"{"order":1,"amount":5}"#),
];

/// Parts of the configuration, each with its replacement.
type Changes = &'static [(&'static str, &'static str)];

const ELSEWHERE: Changes = &[("{tool}/refund", "{tool}/elsewhere")];
pub(super) const DENIED_ELSEWHERE: Changes = &[
    ("{tool}/refund", "{tool}/elsewhere"),
    ("<= 20.0\", decide: allow", "<= 20.0\", decide: deny"),
];
pub(super) const GONE: Changes = &[
    ("  refund:\n", "  payment:\n"),
    ("tag, refund,", "tag, payment,"),
    ("tools: [refund]", "tools: [payment]"),
];

#[apply(both)]
async fn question_of_the_third_attempt_after_two_lost_ones_is_asked_and_its_answer_sent(
    fixture: StoreFixture,
) {
    let answers = vec![lost(), lost(), asks(&["folder"])];
    let (harness, server, task) = asking(fixture, "idempotent", SMALL, answers).await;
    let asked = the_request(&harness, task).await;
    assert_eq!(asked.kind, RequestKind::Elicitation);
    assert_eq!(attempts(&harness, task).await, [1, 2, 3]);
    answer(&harness, task, fills(&json!({"folder": "a"}))).await;
    let accepted = json!({"folder": {"action": "accept", "content": {"folder": "a"}}});
    let resumed = Some(resume(&accepted));
    assert_eq!(server.resumed(), [None, None, None, resumed]);
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Succeeded]);
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
}

/// Asserts that the task has failed because its agent is gone, and that its call of `refund` has no
/// result and puts the tool into quarantine. Then configures the agent again, as in `with_agent`,
/// and retries the task. Asserts that a person is asked about the call's outcome, and tells it.
async fn is_asked_about_after_a_retry(harness: &mut EngineHarness, with_agent: &str, task: TaskId) {
    let journal = harness.journal(task).await;
    assert!(outcomes(&journal).is_empty());
    let progress = Progress::from_items(&journal.items);
    assert!(progress.shared.quarantine.reason("refund").is_some());
    let code = journal.row.error.map(|error| error.code);
    assert_eq!(
        (journal.row.status, code),
        (TaskStatus::Failed, Some(FailureCode::Configuration))
    );
    harness.configure(|_| with_agent.to_owned());
    harness.later();
    let retried = harness.engine(0).retry(&alice(), task, None).await;
    retried.unwrap();
    harness.until_stopped(task).await;
    let asked = the_request(harness, task).await;
    assert_eq!(asked.kind, RequestKind::Reconcile);
    assert_eq!(asked.own_calls().next().unwrap().name, "refund");
    let paid = whole(Action::Respond, Some("it was paid".into()));
    answer(harness, task, paid).await;
    harness.until_stopped(task).await;
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Responded]);
}

#[apply(both)]
async fn call_whose_question_was_open_when_its_task_failed_is_asked_about_after_a_retry(
    fixture: StoreFixture,
) {
    let asking = vec![asks(&["folder"])];
    let (mut harness, server) = harness_on(fixture, TAG_AND_SMALL, asking).await;
    harness.replace(
        r#"http: { method: POST, url: "{tool}/tag" }"#,
        "external: {}",
    );
    let with_agent = harness.yaml();
    let task = harness.held().await;
    let open = harness.open(task).await;
    let [
        (external, RequestKind::ExternalResult),
        (_, RequestKind::Elicitation),
    ] = open[..]
    else {
        panic!("{open:?}")
    };
    harness.configure(|yaml| yaml.replacen("  billing:", "  clerk:", 1));
    let tagged = whole(Action::Respond, Some("it was tagged".into()));
    let refused = alice_is_refused(&harness.engine(0), external, tagged).await;
    assert_eq!(refused, Refusal::Withdrawn(external));
    is_asked_about_after_a_retry(&mut harness, &with_agent, task).await;
    assert_eq!(server.resumed().len(), 1);
}

#[apply(both)]
async fn call_whose_question_is_answered_while_its_agent_is_gone_is_asked_about_after_a_retry(
    fixture: StoreFixture,
) {
    let (mut harness, server) = harness_on(fixture, SMALL, vec![asks(&["folder"])]).await;
    let with_agent = harness.yaml();
    let task = harness.held().await;
    let question = the_request(&harness, task).await.request_id;
    harness.configure(|yaml| yaml.replacen("  billing:", "  clerk:", 1));
    let folder = fills(&json!({"folder": "a"}));
    let refused = alice_is_refused(&harness.engine(0), question, folder).await;
    assert_eq!(refused, Refusal::Withdrawn(question));
    is_asked_about_after_a_retry(&mut harness, &with_agent, task).await;
    assert_eq!(server.resumed().len(), 1);
}

/// Changes the configuration while a question of the tool's server is open. Then gives this answer,
/// which the engine must refuse, and drives the task on.
async fn is_refused_after(
    changes: Changes,
    harness: &mut EngineHarness,
    task: TaskId,
    said: DecisionInput,
) {
    let asked = the_request(harness, task).await;
    assert_eq!(asked.kind, RequestKind::Elicitation);
    for (part, by) in changes {
        harness.replace(part, by);
    }
    let refused = alice_is_refused(&harness.engine(0), asked.request_id, said).await;
    assert_eq!(refused, Refusal::Withdrawn(asked.request_id));
    harness.run().await;
}

/// Changes the target of the tool while its question is open. Then gives this answer, which the
/// engine must refuse, and drives the task until a person is asked about the call's outcome.
async fn is_asked_about_after_a_change_of_target(
    harness: &mut EngineHarness,
    task: TaskId,
    said: DecisionInput,
) {
    is_refused_after(ELSEWHERE, harness, task, said).await;
    let anew = the_request(harness, task).await;
    assert_eq!(anew.kind, RequestKind::Reconcile);
}

#[apply(both)]
async fn answer_to_a_question_of_a_tool_with_another_target_is_refused_and_reaches_no_server(
    fixture: StoreFixture,
) {
    let asking = vec![asks(&["folder", "name"])];
    let (mut harness, server) = harness_on(fixture, SMALL, asking).await;
    let task = harness.held().await;
    answer(&harness, task, fills(&json!({"folder": "a"}))).await;
    let name = fills(&json!({"name": "b"}));
    is_asked_about_after_a_change_of_target(&mut harness, task, name).await;
    assert_eq!(server.resumed(), [None]);
    // The person lets the call run again, and the new target gets no earlier answer or state.
    answer(&harness, task, whole(Action::Retry, None)).await;
    assert_eq!(server.resumed(), [None, None]);
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Succeeded]);
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
}

#[apply(both)]
async fn idempotent_call_with_a_question_and_another_target_is_asked_about_and_not_repeated(
    fixture: StoreFixture,
) {
    let answers = vec![lost(), lost(), asks(&["folder"])];
    let (mut harness, server, task) = asking(fixture, "idempotent", SMALL, answers).await;
    let no = whole(Action::Reject, None);
    is_asked_about_after_a_change_of_target(&mut harness, task, no).await;
    assert_eq!(server.resumed(), [None, None, None]);
    let paid = whole(Action::Respond, Some("it was paid".into()));
    answer(&harness, task, paid).await;
    harness.until_stopped(task).await;
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Responded]);
    assert_eq!(server.resumed().len(), 3);
}

#[apply(both)]
async fn call_with_a_question_whose_tool_is_gone_or_denied_is_asked_about_unless_it_only_reads(
    fixture: StoreFixture,
) {
    for (effect, is_asked) in [("once", true), ("idempotent", true), ("read_only", false)] {
        for changes in [GONE, DENIED_ELSEWHERE] {
            let like = StoreFixture::like(&fixture).await;
            let answers = vec![asks(&["folder"])];
            let (mut harness, server, task) = asking(like, effect, SMALL, answers).await;
            let folder = fills(&json!({"folder": "a"}));
            is_refused_after(changes, &mut harness, task, folder).await;
            let expected = if is_asked {
                let anew = the_request(&harness, task).await;
                assert_eq!(anew.kind, RequestKind::Reconcile);
                let paid = whole(Action::Respond, Some("it was paid".into()));
                answer(&harness, task, paid).await;
                Outcome::Responded
            } else {
                Outcome::Unknown
            };
            harness.until_stopped(task).await;
            let journal = harness.journal(task).await;
            assert_eq!(outcomes(&journal), [expected], "{effect}, {changes:?}");
            assert_eq!(journal.row.status, TaskStatus::Completed);
            assert_eq!(server.resumed().len(), 1);
        }
    }
}

#[apply(both)]
async fn approved_call_with_a_question_whose_tool_is_gone_is_asked_about_by_its_approvers(
    fixture: StoreFixture,
) {
    let (mut harness, server) = harness_on(fixture, LARGE, vec![asks(&["folder"])]).await;
    let (finance, _) = rosters_of_finance(&mut harness);
    let task = harness.held().await;
    let yes = whole(Action::Approve, None);
    answer_as(&harness, &finance, "bob", task, yes).await;
    driven(&harness, &finance).await;
    let asked = the_request(&harness, task).await;
    assert_eq!(asked.kind, RequestKind::Elicitation);
    for (part, by) in GONE {
        harness.replace(part, by);
    }
    let (api, bob) = (process(&harness, &finance, 0), keyed("bob", &["finance"]));
    let folder = fills(&json!({"folder": "a"}));
    let said = api.decide(&bob, asked.request_id, folder, None).await;
    let refused = said.unwrap_err();
    assert_eq!(refused, Refusal::Withdrawn(asked.request_id));
    driven(&harness, &finance).await;
    let anew = the_request(&harness, task).await;
    assert_eq!(anew.kind, RequestKind::Reconcile);
    assert_eq!(anew.terms.approvers.groups, ["finance"]);
    assert_eq!(anew.actions(1), [Action::Respond, Action::Reject]);
    let paid = whole(Action::Respond, Some("it was paid".into()));
    answer_as(&harness, &finance, "bob", task, paid).await;
    driven(&harness, &finance).await;
    harness.until_stopped(task).await;
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Responded]);
    assert_eq!(server.resumed().len(), 1);
}
