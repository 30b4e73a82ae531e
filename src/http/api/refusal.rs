//! Converts the engine's refusals to problems, with the members that each problem code requires.

use crate::engine::{ConflictCode, DetailCode, Refusal};
use crate::http::Http;
use crate::http::access;
use crate::http::server::problem::{Code, Problem};
use crate::http::wire::decision::WireDecision;
use crate::http::wire::request::InterventionRequest;
use crate::http::wire::task::WireTaskStatus;
use crate::people::Caller;
use crate::store::RequestRow;
use crate::task::decision::Consequence;
use crate::task::id::{CallId, TaskId};
use crate::task::request_state::TimedDecision;
use crate::task::status::TaskStatus;
use crate::task::user::UserId;

/// Converts a refusal to a problem. Reads the current values of the problem's members, as `caller`
/// may see them. If a read fails, returns the problem of the failed read instead.
pub(crate) async fn refusal_problem(http: &Http, caller: &Caller, refusal: Refusal) -> Problem {
    match with_members(http, caller, refusal).await {
        Ok(problem) | Err(problem) => problem,
    }
}

async fn with_members(http: &Http, caller: &Caller, refusal: Refusal) -> Result<Problem, Problem> {
    Ok(match refusal {
        Refusal::NotFound => Problem::not_found(),
        Refusal::Forbidden(detail) => Problem::forbidden(detail),
        Refusal::Invalid(errors) => Problem::invalid(&errors),
        Refusal::KeyReused => Problem::new(
            Code::IdempotencyKeyReused,
            "An earlier request of the same user to this path had this Idempotency-Key and a different body.",
        ),
        Refusal::DigestMismatch(id) => {
            let row = access::request(http, caller, id).await?;
            let problem = Problem::new(Code::DigestMismatch, DetailCode::DigestMismatch);
            with_request(http, caller, problem, &row)
        }
        Refusal::Expired(id) => {
            let row = access::request(http, caller, id).await?;
            let problem = Problem::new(Code::RequestExpired, DetailCode::RequestExpired);
            with_request(http, caller, problem, &row)
        }
        Refusal::Withdrawn(id) => {
            let row = access::request(http, caller, id).await?;
            let root = row.root_task_id;
            let problem = Problem::new(Code::RequestWithdrawn, DetailCode::RequestWithdrawn);
            with_request(http, caller, problem, &row)
                .with("pending", pending(http, caller, root).await?)
        }
        Refusal::AlreadyDecided { request: id, call } => {
            let row = access::request(http, caller, id).await?;
            let problem = Problem::new(Code::AlreadyDecided, DetailCode::AlreadyDecided);
            with_request(http, caller, problem, &row)
                .with("decision", earlier_decision(&row, &caller.user_id, call))
        }
        Refusal::Conflict {
            code,
            task_id,
            status,
        } => conflict_problem(http, caller, code, task_id, status).await?,
        Refusal::NotARoot { root, status } => {
            let detail = "This is a sub-agent's task; send messages and retries to its root.";
            Problem::new(Code::NotARootTask, detail)
                .with("task_status", WireTaskStatus::from(status))
                .with("root_task_id", root)
        }
        Refusal::Unavailable => Problem::unavailable(),
        Refusal::Internal(logged) => logged.into(),
    })
}

async fn conflict_problem(
    http: &Http,
    caller: &Caller,
    code: ConflictCode,
    task_id: TaskId,
    status: TaskStatus,
) -> Result<Problem, Problem> {
    if code == ConflictCode::TaskPaused {
        // Boxed, because otherwise each POST would reserve memory for this read in its future.
        return Box::pin(paused_problem(http, caller, task_id)).await;
    }
    let (word, detail) = conflict(code);
    Ok(Problem::new(word, detail).with("task_status", WireTaskStatus::from(status)))
}

/// Returns the problem for a message that was refused because its task was paused. The task may
/// have changed since the refusal. So the problem does not have the status of the refusal, but the
/// status that was read together with the open requests.
async fn paused_problem(http: &Http, caller: &Caller, task: TaskId) -> Result<Problem, Problem> {
    let row = access::task(http, caller, task).await?;
    let task = access::task_with_requests(http, caller, row).await?;
    let (code, detail) = match task.status {
        WireTaskStatus::Running => conflict(ConflictCode::TaskRunning),
        WireTaskStatus::Paused => conflict(ConflictCode::TaskPaused),
        WireTaskStatus::Completed | WireTaskStatus::Failed | WireTaskStatus::Canceled => (
            Code::TaskPaused,
            "The task was paused, and has ended since; send the message again.",
        ),
    };
    let problem = Problem::new(code, detail).with("task_status", task.status);
    Ok(if code == Code::TaskPaused {
        problem.with("pending", task.pending)
    } else {
        problem
    })
}

fn with_request(http: &Http, caller: &Caller, problem: Problem, row: &RequestRow) -> Problem {
    problem.with(
        "request",
        InterventionRequest::for_caller(row, caller, &http.settings),
    )
}

async fn pending(
    http: &Http,
    caller: &Caller,
    root: TaskId,
) -> Result<Vec<InterventionRequest>, Problem> {
    let rows = http.store.pending(root, root).await?;
    Ok(rows
        .iter()
        .map(|row| InterventionRequest::listed(row, caller, &http.settings))
        .collect())
}

fn conflict(code: ConflictCode) -> (Code, &'static str) {
    match code {
        ConflictCode::TaskRunning => (
            Code::TaskRunning,
            "The task is running; wait until it has paused or ended.",
        ),
        ConflictCode::TaskPaused => (
            Code::TaskPaused,
            "The task waits for a human: decide the `pending` requests, or send `supersede: true`.",
        ),
        ConflictCode::TaskFinal => (Code::TaskFinal, "The task has ended already."),
        ConflictCode::NotAConversation => (
            Code::NotAConversation,
            "The task is a call at a gate: it accepts no messages and cannot be retried.",
        ),
        ConflictCode::TaskNotFailed => (Code::TaskNotFailed, "Only a Failed task can be retried."),
    }
}

/// Returns the earlier decision to show to `user`, whose answer came too late. If the decision of
/// the request has canceled a task (by its `then`), returns this decision, because it also ended
/// the calls that were undecided. Otherwise, returns the first decision that exists:
///
/// - for an answer to one `call`: the user's own earlier answer, the answer that decided the call,
///   the newest answer to the request;
/// - for an answer to a whole request that requires one approval: the decision of the request, the
///   user's own earlier answer, the newest answer to the request;
/// - for an answer to a whole request that requires several approvals: the user's own earlier
///   answer, the decision of the request, the newest answer to the request. The own answer comes
///   first, because each of several people may have answered.
fn earlier_decision(row: &RequestRow, user: &UserId, call: Option<CallId>) -> Option<WireDecision> {
    let state = row.state();
    let whole = WireDecision::of_request(&state);
    let then = state.resolution().and_then(|resolution| resolution.then);
    if then.is_some_and(|then| then != Consequence::Continue) {
        return whole;
    }
    let shown = |(at, answer): &TimedDecision| WireDecision::of_answer(*at, answer);
    let own = || state.answer_by(user, call).map(shown);
    let last = || row.answers.last().map(shown);
    match call {
        Some(call) => own()
            .or_else(|| WireDecision::of_call(&state, call))
            .or_else(last),
        None if row.spec.required() > 1 => own().or(whole).or_else(last),
        None => whole.or_else(own).or_else(last),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::http::openapi::sample;
    use crate::http::tests::stored_task::{approve, cancel, store_in, store_paused_task};
    use crate::task::decision::Action;
    use crate::task::status::RequestStatus;

    /// After the refusal of a message, a commit gives the task the status `now`; without a commit,
    /// the task stays Paused. `count` is the expected number of open requests.
    #[tokio::test]
    async fn refusal_by_a_paused_task_tells_the_status_and_requests_after_a_later_commit() {
        let folder = tempfile::tempdir().unwrap();
        let store = store_in(&folder).await;
        let http = Http {
            store: store.clone(),
            ..crate::http::tests::http(false, &[])
        };
        for (now, code, count) in [
            (TaskStatus::Paused, Code::TaskPaused, Some(1)),
            (TaskStatus::Running, Code::TaskRunning, None),
            (TaskStatus::Canceled, Code::TaskPaused, Some(0)),
        ] {
            let (task_id, asked) = store_paused_task(&store).await;
            if now == TaskStatus::Running {
                approve(&store, task_id, &asked).await;
            } else if now == TaskStatus::Canceled {
                cancel(&store, task_id, &asked).await;
            }
            let refusal = Refusal::Conflict {
                code: ConflictCode::TaskPaused,
                task_id,
                status: TaskStatus::Paused,
            };
            let problem = refusal_problem(&http, &sample::caller(), refusal).await;
            let pending = problem.member("pending");
            let told = (
                problem.code,
                problem.member("task_status"),
                pending.map(|open| open.as_array().unwrap().len()),
            );
            assert_eq!(told, (code, Some(json!(now.as_str())), count));
        }
        store.close().await;
    }

    #[test]
    fn late_answer_gets_its_own_decision_then_the_deciding_one_then_the_last() {
        let mut row = sample::several(2);
        row.spec.terms.approvers.required = 2;
        let [first, second] = [0, 1].map(|index| row.spec.pending_tool_calls[index].tool_call_id);
        let answers = [
            sample::answer("bob", Action::Approve, &[first], false),
            sample::answer("eve", Action::Reject, &[second], false),
        ];
        row.answers = answers.into_iter().flatten().collect();
        let by = |user: &str, call| earlier_decision(&row, &user.into(), call).unwrap().by;
        assert_eq!(
            (by("bob", None), by("dan", None)),
            ("bob".into(), "eve".into())
        );
        assert_eq!(
            (by("bob", Some(first)), by("dan", Some(first))),
            ("bob".into(), "eve".into())
        );
        assert_eq!(
            (by("bob", Some(second)), by("dan", Some(second))),
            ("eve".into(), "eve".into())
        );
        row.status = RequestStatus::Responded;
        let told = |row: &RequestRow, user: &str| {
            let decision = earlier_decision(row, &user.into(), None).unwrap();
            (decision.by, decision.then.is_some())
        };
        assert_eq!(told(&row, "bob"), ("bob".into(), false), "their own");
        assert_eq!(told(&row, "dan"), ("eve".into(), true), "the request's");
        row.answers[1].1.then = Some(Consequence::Cancel);
        assert_eq!(told(&row, "bob"), ("eve".into(), true), "it canceled");
    }
}
