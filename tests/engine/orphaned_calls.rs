//! Tests journals in which an import or a crash has left unfinished calls after a long regular
//! history. The driver's ordinary loop finishes these calls. The model is shown a well-formed
//! conversation, and no call runs without a permission.

mod decisions;
mod next_messages;
mod past_calls;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use holdpoint::engine::{Engine, EngineParts};
use holdpoint::model::{Answer, ModelClient, ModelError, PieceSink, Prompt};
use holdpoint::task::change::{Counters, Guard, LeaseChange, TaskChange};
use holdpoint::task::decision::Action;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Item, Outcome};
use holdpoint::task::progress::Progress;
use holdpoint::task::request::{RequestKind, RequestSpec, call_digest, digest_of_texts};
use holdpoint::task::status::TaskStatus;
use holdpoint::task::time::Time;
use holdpoint::task::transcript::Message;
use holdpoint::task::verdict::{Terms, Verdict};
use macro_rules_attribute::apply;
use serde_json::Value;

use self::past_calls::{PastCall, asks, history, large, lookup, refund};
use super::engine_harness::{
    EngineHarness, alice_decides, drive, outcomes, tool_results, turn, whole,
};
use super::invariants::check_ended;
use crate::store::store_fixture::{StoreFixture, both, fresh, new_task, request_spec, status};

/// A model that answers each prompt without a call and keeps the prompts that it gets.
#[derive(Default)]
struct PromptRecorder(Mutex<Vec<Prompt>>);

#[async_trait]
impl ModelClient for PromptRecorder {
    async fn answer(&self, prompt: &Prompt, _: &dyn PieceSink) -> Result<Answer, ModelError> {
        self.0.lock().unwrap().push(prompt.clone());
        Ok(turn(&[]))
    }
}

const TURNS: u32 = 40;

struct OrphanHarness {
    harness: EngineHarness,
    recorder: Arc<PromptRecorder>,
}

impl OrphanHarness {
    async fn new(fixture: StoreFixture) -> Self {
        Self {
            harness: EngineHarness::new(fixture, &[]).await,
            recorder: Arc::default(),
        }
    }

    fn parts(&self) -> EngineParts {
        let model: Arc<dyn ModelClient> = self.recorder.clone();
        EngineParts {
            models: BTreeMap::from([("main".to_owned(), model)]),
            ..self.harness.parts(4)
        }
    }

    /// Writes these groups of facts as the task's journal, each group in its own commit.
    async fn imported(&self, task: TaskId, groups: &[Vec<Fact>]) {
        let mut items: Vec<Item> = Vec::new();
        for (place, facts) in groups.iter().enumerate() {
            let before = Progress::from_items(&items);
            let (open, seq) = (before.open.len(), i64::try_from(items.len()).unwrap());
            for fact in facts {
                let seq = i64::try_from(items.len()).unwrap() + 1;
                items.push(Item {
                    seq,
                    at: Time::default(),
                    fact: fact.clone(),
                });
            }
            let after = Progress::from_items(&items);
            let runs =
                |progress: &Progress| i32::from(progress.status == Some(TaskStatus::Running));
            let asked = |count: usize| i32::try_from(count).unwrap();
            let busy = if place == 0 {
                runs(&after)
            } else {
                runs(&after) - runs(&before)
            };
            let counters = Counters {
                busy,
                open_requests: asked(after.open.len()) - asked(open),
                ..Counters::default()
            };
            let last = place + 1 == groups.len();
            let lease = if last {
                LeaseChange::Queue
            } else {
                LeaseChange::Keep
            };
            let change = if place == 0 {
                let mut new = new_task(task, "acme", "alice");
                if let Guard::New(fixed) = &mut new.guard {
                    fixed
                        .agent_version
                        .clone_from(&self.parts().agents.get("billing").unwrap().version);
                }
                TaskChange {
                    facts: facts.clone(),
                    counters,
                    lease,
                    ..new
                }
            } else {
                let guard = Guard::Version(i64::try_from(place).unwrap());
                TaskChange {
                    facts: facts.clone(),
                    counters,
                    lease,
                    ..TaskChange::empty(task, guard, seq)
                }
            };
            self.harness.fixture.write(change).await.unwrap();
        }
    }

    /// Returns a request of this kind about a call, with the content that the service would have
    /// given it.
    fn request_about(&self, task: TaskId, kind: RequestKind, call: &PastCall) -> RequestSpec {
        let spec = &self.parts().catalog.get(call.name).unwrap().spec.clone();
        let mut question = request_spec(kind, Terms::default(), 1);
        let shown = &mut question.pending_tool_calls[0];
        (shown.tool_call_id, shown.name) = (call.id, call.name.to_owned());
        call.arguments.clone_into(&mut shown.arguments_text);
        (shown.target, shown.effect) = (spec.target.clone(), spec.effect);
        shown.definition = Some(spec.definition.clone());
        shown.digest = call_digest("acme", task, call.id, spec.into(), call.arguments, None);
        question.digest = digest_of_texts(std::iter::once(shown.digest.as_str()));
        question
    }

    /// Returns the journal of a task whose only unfinished call is held, in groups for `imported`,
    /// and the open request about the call.
    fn held(&self, task: TaskId, call: &PastCall) -> (Vec<Vec<Fact>>, RequestSpec) {
        let question = self.request_about(task, RequestKind::Approval, call);
        let facts = vec![
            asks(TURNS + 1, &[call]),
            call.judged(Verdict::Hold),
            Fact::InterventionRequested(question.clone()),
            status(TaskStatus::Paused),
        ];
        (vec![history(), facts], question)
    }

    async fn driven(&self, task: TaskId) -> TaskStatus {
        let engine = Engine::new(self.parts());
        for _ in 0..8 {
            self.harness.later();
            drive(&engine).await;
            if self.harness.status(task).await != TaskStatus::Running {
                break;
            }
        }
        self.harness.status(task).await
    }

    /// Checks that the task has ended and every prompt was well-formed. Returns the outcomes of
    /// these calls.
    async fn outcomes_at_end(&self, task: TaskId, calls: &[&PastCall]) -> Vec<Option<Outcome>> {
        let journal = self.harness.journal(task).await;
        assert!(
            journal.row.status.is_terminal(),
            "{:#?}",
            journal.items.last()
        );
        assert_eq!((journal.row.busy, journal.row.open_requests), (0, 0));
        check_ended(&journal.items);
        for prompt in self.recorder.0.lock().unwrap().iter() {
            well_formed(&prompt.messages);
        }
        let result = |call: &&PastCall| {
            tool_results(&journal.items)
                .find(|result| result.tool_call_id == call.id)
                .map(|result| result.outcome)
        };
        calls.iter().map(result).collect()
    }

    fn shown(&self, call: &PastCall) -> String {
        let prompts = self.recorder.0.lock().unwrap();
        let messages = &prompts.last().expect("the model was asked").messages;
        let found = messages.iter().find_map(|message| {
            let Message::Result {
                provider_id,
                content,
                ..
            } = message
            else {
                return None;
            };
            (*provider_id == call.provider_id).then(|| content.clone())
        });
        found.expect("it was shown")
    }

    fn ran(&self, task: TaskId) -> (usize, usize) {
        (
            self.harness.executions(task, "/refund"),
            self.harness.executions(task, "/lookup"),
        )
    }
}

/// Asserts that each turn is followed by one result for each of its calls, in the order of the
/// calls. Asserts also that each call has an id, and that no two calls of a turn have the same id.
fn well_formed(messages: &[Message]) {
    let mut wanted: Vec<String> = Vec::new();
    for message in messages {
        match message {
            Message::Result { provider_id, .. } => {
                assert!(!wanted.is_empty(), "a result without a call");
                assert_eq!(*provider_id, wanted.remove(0), "in the model's order");
            }
            Message::Assistant { calls, .. } => {
                assert!(
                    wanted.is_empty(),
                    "calls without results before the next turn"
                );
                wanted = calls.iter().map(|(id, ..)| id.clone()).collect();
                assert!(wanted.iter().all(|id| !id.is_empty()));
                assert_eq!(
                    wanted.iter().collect::<BTreeSet<_>>().len(),
                    wanted.len(),
                    "ids of one turn differ"
                );
            }
            Message::User { .. } => assert!(
                wanted.is_empty(),
                "calls without results before the next message"
            ),
        }
    }
    assert!(wanted.is_empty(), "calls without results at the end");
}

fn id() -> TaskId {
    TaskId(fresh())
}

#[apply(both)]
async fn calls_never_judged_or_started_are_judged_and_run(fixture: StoreFixture) {
    let orphans = OrphanHarness::new(fixture).await;
    for judged in [false, true] {
        let (task, one, other) = (id(), refund(), lookup());
        let mut facts = vec![asks(TURNS + 1, &[&one, &other])];
        if judged {
            facts.extend([one.judged(Verdict::Allow), other.judged(Verdict::Allow)]);
        }
        orphans.imported(task, &[history(), facts]).await;
        assert_eq!(orphans.driven(task).await, TaskStatus::Completed);
        assert_eq!(
            orphans.outcomes_at_end(task, &[&one, &other]).await,
            [Some(Outcome::Succeeded); 2]
        );
        assert_eq!(orphans.ran(task), (1, 1));
    }
}

#[apply(both)]
async fn unjudged_call_is_held_where_the_rules_hold_it(fixture: StoreFixture) {
    let orphans = OrphanHarness::new(fixture).await;
    let (task, one) = (id(), large());
    // The journal shows this call as allowed. The service judges the call again before the
    // call starts.
    orphans
        .imported(
            task,
            &[
                history(),
                vec![asks(TURNS + 1, &[&one]), one.judged(Verdict::Allow)],
            ],
        )
        .await;
    assert_eq!(orphans.driven(task).await, TaskStatus::Paused);
    assert_eq!(orphans.ran(task), (0, 0));
    orphans
        .harness
        .answer_all(&orphans.harness.engine(0), task)
        .await;
    assert_eq!(orphans.driven(task).await, TaskStatus::Completed);
    assert_eq!(
        orphans.outcomes_at_end(task, &[&one]).await,
        [Some(Outcome::Succeeded)]
    );
    assert_eq!(orphans.ran(task), (1, 0));
}

#[apply(both)]
async fn started_calls_are_asked_about_or_repeated_by_their_effect(fixture: StoreFixture) {
    let orphans = OrphanHarness::new(fixture).await;
    let (task, once, read, spent) = (id(), refund(), lookup(), lookup());
    let mut facts = vec![asks(TURNS + 1, &[&once, &read, &spent])];
    facts.extend([&once, &read, &spent].map(|call| call.judged(Verdict::Allow)));
    facts.extend([once.started(1), read.started(1), spent.started(3)]);
    orphans.imported(task, &[history(), facts]).await;
    assert_eq!(orphans.driven(task).await, TaskStatus::Paused);
    let [(request, RequestKind::Reconcile)] = orphans.harness.open(task).await[..] else {
        panic!("it is asked about")
    };
    assert_eq!(
        orphans.ran(task),
        (0, 0),
        "nothing runs past an unknown outcome"
    );
    let paid = whole(Action::Respond, Some(Value::from("it was paid")));
    alice_decides(&orphans.harness.engine(0), request, paid).await;
    assert_eq!(orphans.driven(task).await, TaskStatus::Completed);
    let ended = orphans.outcomes_at_end(task, &[&once, &read, &spent]).await;
    assert_eq!(
        ended,
        [
            Some(Outcome::Responded),
            Some(Outcome::Succeeded),
            Some(Outcome::Failed)
        ]
    );
    assert_eq!(orphans.ran(task), (0, 1));
    assert_eq!(orphans.shown(&once), "it was paid".to_owned());
}

#[apply(both)]
async fn orphaned_calls_of_several_turns_are_all_repaired(fixture: StoreFixture) {
    let orphans = OrphanHarness::new(fixture).await;
    let (task, doubtful, read, last) = (id(), refund(), lookup(), refund());
    let facts = vec![
        asks(TURNS + 1, &[&doubtful]),
        doubtful.judged(Verdict::Allow),
        doubtful.started(1),
        asks(TURNS + 2, &[&read]),
        read.judged(Verdict::Allow),
        read.started(1),
        asks(TURNS + 3, &[&last]),
    ];
    orphans.imported(task, &[history(), facts]).await;
    assert_eq!(orphans.driven(task).await, TaskStatus::Paused);
    assert_eq!(orphans.ran(task), (0, 0));
    orphans
        .harness
        .answer_all(&orphans.harness.engine(0), task)
        .await;
    assert_eq!(orphans.driven(task).await, TaskStatus::Completed);
    let ended = orphans
        .outcomes_at_end(task, &[&doubtful, &read, &last])
        .await;
    assert_eq!(
        ended,
        [
            Some(Outcome::Responded),
            Some(Outcome::Succeeded),
            Some(Outcome::Succeeded)
        ]
    );
    assert_eq!(orphans.ran(task), (1, 1));
}

#[apply(both)]
async fn late_result_before_or_after_an_unknown_one_is_shown_to_the_model(fixture: StoreFixture) {
    let orphans = OrphanHarness::new(fixture).await;
    for early in [true, false] {
        let (task, one) = (id(), refund());
        let late = Fact::LateResult(one.result(Outcome::Succeeded, "paid after all"));
        let unknown = Fact::ToolResult(one.result(Outcome::Unknown, "nobody knows"));
        let mut facts = vec![
            asks(TURNS + 1, &[&one]),
            one.judged(Verdict::Allow),
            one.started(1),
        ];
        facts.extend(if early {
            [late, unknown]
        } else {
            [unknown, late]
        });
        orphans.imported(task, &[history(), facts]).await;
        assert_eq!(orphans.driven(task).await, TaskStatus::Completed);
        assert_eq!(
            orphans.outcomes_at_end(task, &[&one]).await,
            [Some(Outcome::Unknown)]
        );
        assert_eq!(orphans.ran(task), (0, 0));
        assert_eq!(orphans.shown(&one), "paid after all", "{early}");
    }
}

#[apply(both)]
async fn provider_call_ids_that_repeat_or_are_missing_are_told_apart(fixture: StoreFixture) {
    let orphans = OrphanHarness::new(fixture).await;
    let task = id();
    let calls = ["call_0", "call_0", "", ""].map(|known| lookup().known_as(known));
    let again = lookup().known_as("call_0");
    let mut facts = vec![asks(TURNS + 1, &calls.each_ref())];
    for call in &calls {
        facts.extend([call.judged(Verdict::Allow), call.started(1)]);
    }
    facts.extend([calls[1].succeeded(), asks(TURNS + 2, &[&again])]);
    orphans.imported(task, &[history(), facts]).await;
    assert_eq!(orphans.driven(task).await, TaskStatus::Completed);
    assert_eq!(
        orphans.outcomes_at_end(task, &calls.each_ref()).await,
        [Some(Outcome::Succeeded); 4]
    );
    assert_eq!(
        orphans.outcomes_at_end(task, &[&again]).await,
        [Some(Outcome::Succeeded)]
    );
    assert_eq!(
        orphans.ran(task),
        (0, 4),
        "what had its result is not repeated"
    );
    let journal = orphans.harness.journal(task).await;
    assert_eq!(outcomes(&journal).len(), 205);
}
