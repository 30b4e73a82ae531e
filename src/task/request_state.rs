//! Evaluates the answers to a request. For each call, the module finds the answer that decided the
//! call and the answers that approved the call. From these answers, the module derives the decision
//! of the whole request.

use std::collections::BTreeSet;

use super::decision::{Action, Consequence, Decision};
use super::id::CallId;
use super::request::{CallSpec, RequestSpec};
use super::status::RequestStatus;
use super::time::Time;
use super::user::{UserId, UserIds};

pub(crate) type TimedDecision = (Time, Decision);

/// The setting for counting the people whose stored answers approve a call. The journal lacks the
/// value that `auth.user_ids` had at the time of an answer, so the setting is always `Folded`.
/// `Folded` may count two people as one, but never counts one person as two. A count that is too
/// low does no harm: the answer that completes the approvals is stored with `leave`, which decides
/// the call without a count.
pub(super) const COUNTING_IDS: UserIds = UserIds::Folded;

/// A request with the answers given so far.
#[derive(Clone, Copy, Debug)]
pub struct RequestState<'a> {
    pub spec: &'a RequestSpec,
    /// The answers, oldest first.
    pub answers: &'a [TimedDecision],
    /// The stored status. It may still be `Pending` after the deadline has passed.
    pub status: RequestStatus,
    pub expired: bool,
    /// Whether the request was opened before a restore or the promotion of a standby.
    pub history_uncertain: bool,
}

/// The decision of a whole request, derived from all its answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolution<'a> {
    /// The last answer, which closed the request.
    pub last: &'a TimedDecision,
    /// The action that decided the calls; `Mixed` if different actions decided them. If no call is
    /// decided, `action` is the action of the last answer.
    pub action: Action,
    /// The consequence of the rejections for the task; `None` if no call was rejected.
    pub then: Option<Consequence>,
    /// The decided calls, each with the answer that decided the call.
    pub calls: Vec<(CallId, &'a TimedDecision)>,
}

impl<'a> RequestState<'a> {
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.status == RequestStatus::Pending && !self.expired
    }

    /// Returns the answer that decided `call`; `None` if the call is undecided. The first answer
    /// that settles the call alone or completes the required approvals has decided the call. If
    /// there is no such answer, but an answer closed the request and lets the task continue, the
    /// last answer about the call has decided the call.
    #[must_use]
    pub fn deciding_answer(&self, call: CallId) -> Option<&'a TimedDecision> {
        let mut people = BTreeSet::new();
        let found = self.answers.iter().find(|(_, answer)| {
            let Some(call_answer) = answer.decisions.get(&call) else {
                return false;
            };
            people.insert(COUNTING_IDS.key(&answer.by));
            call_answer.decides(people.len(), self.spec.required())
        });
        // If `found` is `None` and the closing answer cancels the task, the call stays undecided.
        let mut answers = self.answers.iter();
        let continues = answers.any(|(_, answer)| answer.closes_and_continues());
        let last = || {
            self.answers
                .iter()
                .rfind(|(_, answer)| continues && answer.decisions.contains_key(&call))
        };
        found.or_else(last)
    }

    /// Returns each person's first approval of `call`. The list is empty if the request requires
    /// only one approval. `ids` says which user ids belong to one person.
    #[must_use]
    pub fn approvals(&self, call: CallId, ids: UserIds) -> Vec<&'a TimedDecision> {
        if self.spec.required() < 2 {
            return Vec::new();
        }
        let approves = |answer: &Decision| {
            let call_answer = answer.decisions.get(&call);
            call_answer
                .is_some_and(|answer| matches!(answer.action, Action::Approve | Action::Retry))
        };
        let mut people = BTreeSet::new();
        let answers = self.answers.iter();
        answers
            .filter(|(_, answer)| approves(answer) && people.insert(ids.key(&answer.by)))
            .collect()
    }

    /// Returns the number of approvals so far; 0 if the request requires only one approval. If the
    /// request decides several calls, returns the number for the undecided call with the fewest
    /// approvals. Once all calls are decided, returns the number for the call with the most.
    #[must_use]
    pub fn approval_count(&self, ids: UserIds) -> usize {
        let calls = || self.spec.own_calls().map(|call| call.tool_call_id);
        let count = |call: CallId| self.approvals(call, ids).len();
        let open = calls().filter(|call| self.deciding_answer(*call).is_none());
        let fewest = open.map(count).min();
        fewest
            .or_else(|| calls().map(count).max())
            .unwrap_or_default()
    }

    /// Returns the answers of `user`, oldest first.
    pub fn answers_by(&self, user: &UserId) -> impl DoubleEndedIterator<Item = &'a TimedDecision> {
        self.answers
            .iter()
            .filter(move |(_, answer)| user.is_same_person(&answer.by))
    }

    /// Returns the first answer of `user`. If `call` is given, only answers about that call count.
    #[must_use]
    pub fn answer_by(&self, user: &UserId, call: Option<CallId>) -> Option<&'a TimedDecision> {
        let about =
            |answer: &Decision| call.is_none_or(|call| answer.decisions.contains_key(&call));
        self.answers_by(user).find(|(_, answer)| about(answer))
    }

    /// Returns the request's undecided calls that `user` has not answered.
    pub fn open_calls(&self, user: &UserId) -> impl Iterator<Item = &'a CallSpec> {
        self.spec.own_calls().filter(move |call| {
            let id = call.tool_call_id;
            self.deciding_answer(id).is_none() && self.answer_by(user, Some(id)).is_none()
        })
    }

    /// Returns the decision of the whole request, or `None` if no answer has closed the request.
    #[must_use]
    pub fn resolution(&self) -> Option<Resolution<'a>> {
        match self.status {
            RequestStatus::Responded | RequestStatus::Resumed => {}
            RequestStatus::Pending | RequestStatus::Expired | RequestStatus::Withdrawn => {
                return None;
            }
        }
        let last = self.answers.last()?;
        let own = self.spec.own_calls().map(|call| call.tool_call_id);
        let calls: Vec<_> = own
            .filter_map(|call| Some((call, self.deciding_answer(call)?)))
            .collect();
        let actions: Vec<_> = calls
            .iter()
            .filter_map(|(call, (_, answer))| answer.decisions.get(call))
            .collect();
        let rejected = actions.iter().any(|answer| answer.action == Action::Reject);
        let action = match actions.split_first() {
            None => last.1.action,
            Some((first, others)) if others.iter().all(|other| other.action == first.action) => {
                first.action
            }
            Some(_) => Action::Mixed,
        };
        Some(Resolution {
            last,
            action,
            then: last.1.then.or(rejected.then_some(Consequence::Continue)),
            calls,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::task::decision::CallAnswer;
    use crate::task::id::RequestId;
    use crate::task::operator_text::OperatorText;
    use crate::task::request::RequestKind;
    use crate::task::tool_spec::Effect;
    use crate::task::verdict::{Terms, Verdict};

    const FIRST: CallId = CallId(Uuid::from_u128(1));
    const SECOND: CallId = CallId(Uuid::from_u128(2));

    fn call(tool_call_id: CallId) -> CallSpec {
        CallSpec {
            tool_call_id,
            name: "refund".into(),
            arguments_text: "{}".into(),
            effect: Effect::Once,
            target: "POST http://payments.internal".into(),
            address: None,
            summary: String::new(),
            warnings: Vec::new(),
            needs_decision: true,
            verdict: Verdict::Hold,
            rule: None,
            reason: None,
            parameters: json!({}),
            digest: String::new(),
            definition: None,
            editor: None,
            bars_editor: false,
            operator_text: OperatorText::default(),
            offer: None,
        }
    }

    fn request_spec(required: u32, calls: &[CallId]) -> RequestSpec {
        let mut terms = Terms::default();
        terms.approvers.required = required;
        RequestSpec {
            request_id: RequestId(Uuid::from_u128(9)),
            kind: RequestKind::Approval,
            pending_tool_calls: calls.iter().map(|id| call(*id)).collect(),
            terms,
            digest: String::new(),
            question: None,
            details: None,
            form: None,
            elicitation: None,
            seal: None,
        }
    }

    fn answer(by: &str, call: CallId, action: Action) -> TimedDecision {
        let decision = Decision {
            action,
            by: by.into(),
            via: None,
            groups: Vec::new(),
            door: None,
            reason: None,
            then: None,
            response: None,
            result_text: None,
            decisions: [(call, CallAnswer::plain(action))].into(),
            closes: false,
        };
        (Time(0), decision)
    }

    fn state<'a>(
        asked: &'a RequestSpec,
        answers: &'a [TimedDecision],
        status: RequestStatus,
    ) -> RequestState<'a> {
        RequestState {
            spec: asked,
            answers,
            status,
            expired: false,
            history_uncertain: false,
        }
    }

    fn decider<'a>(state: &RequestState<'a>, call: CallId) -> Option<&'a str> {
        state
            .deciding_answer(call)
            .map(|(_, answer)| answer.by.as_str())
    }

    #[test]
    fn first_approval_decides_a_call_where_one_is_required() {
        let (asked, answers) = (
            request_spec(1, &[FIRST]),
            [answer("bob", FIRST, Action::Approve)],
        );
        let state = state(&asked, &answers, RequestStatus::Resumed);
        assert_eq!(decider(&state, FIRST), Some("bob"));
        let resolution = state.resolution().unwrap();
        assert_eq!(
            (resolution.action, resolution.then, resolution.calls.len()),
            (Action::Approve, None, 1)
        );
        assert!(state.approvals(FIRST, UserIds::Folded).is_empty());
    }

    #[test]
    fn second_approval_decides_a_call_where_two_are_required() {
        let asked = request_spec(2, &[FIRST]);
        let mut answers = vec![answer("bob", FIRST, Action::Approve)];
        let one = state(&asked, &answers, RequestStatus::Pending);
        assert_eq!(
            (
                decider(&one, FIRST),
                one.approvals(FIRST, UserIds::Folded).len()
            ),
            (None, 1)
        );
        answers.push(answer("eve", FIRST, Action::Approve));
        let two = state(&asked, &answers, RequestStatus::Pending);
        assert_eq!(
            (
                decider(&two, FIRST),
                two.approvals(FIRST, UserIds::Folded).len()
            ),
            (Some("eve"), 2)
        );
    }

    #[test]
    fn two_spellings_of_one_id_decide_nothing_where_two_people_are_required() {
        let asked = request_spec(2, &[FIRST]);
        let answers = ["bob", "BOB"].map(|by| answer(by, FIRST, Action::Approve));
        let state = state(&asked, &answers, RequestStatus::Pending);
        assert_eq!(decider(&state, FIRST), None);
        assert_eq!(
            [UserIds::Folded, UserIds::Exact].map(|ids| state.approvals(FIRST, ids).len()),
            [1, 2]
        );
    }

    #[test]
    fn rejection_decides_a_call_however_many_are_required() {
        let (asked, answers) = (
            request_spec(3, &[FIRST]),
            [answer("bob", FIRST, Action::Reject)],
        );
        let state = state(&asked, &answers, RequestStatus::Responded);
        assert_eq!(decider(&state, FIRST), Some("bob"));
        assert_eq!(
            state.resolution().unwrap().then,
            Some(Consequence::Continue)
        );
    }

    #[test]
    fn closing_answer_decides_its_calls_however_many_are_required() {
        let asked = request_spec(2, &[FIRST]);
        let (at, closing) = answer("local", FIRST, Action::Approve);
        let answers = [(
            at,
            Decision {
                closes: true,
                ..closing
            },
        )];
        let state = state(&asked, &answers, RequestStatus::Responded);
        assert_eq!(decider(&state, FIRST), Some("local"));
        assert_eq!(state.resolution().unwrap().calls.len(), 1);
    }

    #[test]
    fn call_with_one_of_two_approvals_stays_undecided_when_a_rejection_of_another_call_cancels() {
        let asked = request_spec(2, &[FIRST, SECOND]);
        let (at, rejection) = answer("carol", SECOND, Action::Reject);
        let cancels = Decision {
            closes: true,
            then: Some(Consequence::Cancel),
            ..rejection
        };
        let answers = [answer("bob", FIRST, Action::Approve), (at, cancels)];
        let state = state(&asked, &answers, RequestStatus::Responded);
        assert_eq!(decider(&state, FIRST), None);
        assert_eq!(decider(&state, SECOND), Some("carol"));
        assert_eq!(state.resolution().unwrap().action, Action::Reject);
    }

    #[test]
    fn calls_with_different_actions_resolve_to_mixed() {
        let asked = request_spec(1, &[FIRST, SECOND]);
        let answers = [
            answer("bob", FIRST, Action::Approve),
            answer("eve", SECOND, Action::Reject),
        ];
        let resolution = |status| {
            let state = state(&asked, &answers, status);
            state.resolution().map(|whole| {
                (
                    whole.action,
                    whole.last.1.by.clone(),
                    whole.then,
                    whole.calls.len(),
                )
            })
        };
        assert_eq!(
            resolution(RequestStatus::Responded),
            Some((Action::Mixed, "eve".into(), Some(Consequence::Continue), 2))
        );
        for status in [
            RequestStatus::Pending,
            RequestStatus::Expired,
            RequestStatus::Withdrawn,
        ] {
            assert_eq!(resolution(status), None);
        }
    }

    #[test]
    fn call_is_open_until_it_is_decided_or_the_user_has_answered_it() {
        let asked = request_spec(2, &[FIRST, SECOND]);
        let answers = [
            answer("bob", FIRST, Action::Approve),
            answer("eve", SECOND, Action::Reject),
        ];
        let state = state(&asked, &answers, RequestStatus::Pending);
        let open = |user: &str| -> Vec<CallId> {
            state
                .open_calls(&UserIds::Folded.id(user))
                .map(|call| call.tool_call_id)
                .collect()
        };
        assert_eq!(
            (open("Bob"), open("eve"), open("dan")),
            (vec![], vec![FIRST], vec![FIRST])
        );
    }

    #[test]
    fn expired_request_is_not_open_before_its_status_says_so() {
        let asked = request_spec(1, &[FIRST]);
        let pending = state(&asked, &[], RequestStatus::Pending);
        assert!(
            pending.is_open()
                && !RequestState {
                    expired: true,
                    ..pending
                }
                .is_open()
        );
        assert!(!state(&asked, &[], RequestStatus::Responded).is_open());
    }
}
