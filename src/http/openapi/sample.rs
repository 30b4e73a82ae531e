//! A realistic task with its request, as examples in the OpenAPI document and as fixtures for
//! tests.

#[cfg(test)]
mod variants;

use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;
use uuid::Uuid;

use crate::engine::gate::{GateCall, GateDecision, GateState, Repetition};
use crate::http::Settings;
use crate::people::authorization::Roster;
use crate::people::{Caller, Permissions};
use crate::store::{GrantRow, RequestRow};
use crate::task::change::{ClientColumns, NewTask, TaskRow};
use crate::task::decision::{Door, Vote};
use crate::task::grant::GrantScope;
use crate::task::id::{CallId, GrantId, RequestId, TaskId};
use crate::task::item::Usage;
use crate::task::operator_text::OperatorText;
use crate::task::request::{Address, CallSpec, RequestKind, RequestSpec};
use crate::task::status::{RequestStatus, TaskStatus};
use crate::task::time::Time;
use crate::task::tool_spec::Effect;
use crate::task::verdict::{Approvers, Terms, Verdict};

#[cfg(test)]
pub(crate) use self::variants::{answer, now, of_kind, several};

const DIGEST: &str = "sha256:5b1f3c3d0b4a4d5f8a7c2e9d6f1b0a3c4e5d6f7a8b9c0d1e2f3a4b5c6d7e8f90";
const AT: i64 = 1_793_698_200_000_000;

fn id(last: u128) -> Uuid {
    Uuid::from_u128(0x019a_4b2c_7000_7000_8000_0000_0000_0000 + last)
}

/// Returns the caller who owns the [`task()`]. This caller may not decide the [`request()`].
#[must_use]
pub(crate) fn caller() -> Caller {
    Caller {
        user_id: "alice".into(),
        tenant: "acme".into(),
        groups: vec!["support".into()],
        via: None,
        door: Some(Door::Key),
        admin: false,
        permissions: Permissions::ALL,
        without_accounts: false,
    }
}

/// Returns a member of the group that may decide the [`request()`].
#[must_use]
pub(crate) fn approver() -> Caller {
    Caller {
        user_id: "bob".into(),
        groups: vec!["finance".into()],
        ..caller()
    }
}

/// Returns the settings of a new installation.
#[must_use]
pub(crate) fn settings() -> Settings {
    Settings {
        public_url: "http://127.0.0.1:8080".into(),
        request_url: None,
        cors_origins: Vec::new(),
        wait: Duration::from_secs(10),
        max_streams: 1000,
        max_streams_per_caller: 20,
        max_waiting: 1000,
        stream_life: Duration::from_hours(1),
        without_accounts: false,
        has_metrics_listener: false,
        receivers: BTreeMap::new(),
        roster: Roster::default(),
        sealer: None,
        links: None,
    }
}

/// Returns a held call at a gate, without its request.
#[must_use]
pub(crate) fn gate_call() -> GateCall {
    GateCall {
        task_id: TaskId(id(1)),
        tool_call_id: CallId(id(3)),
        gate: "refunds".into(),
        tool: "refund_payment".into(),
        session_id: "gate".into(),
        arguments_text: r#"{"order": 17, "amount": 120}"#.into(),
        edited: false,
        digest: Some(DIGEST.into()),
        can_never_run: false,
        decision: GateDecision::Pending,
        state: GateState::Pending,
        outcome: None,
        rule: Some("large-refund".into()),
        reason: Some("Refunds above 20 need finance.".into()),
        end_text: None,
        by: Vec::new(),
        permit: None,
        result: None,
        request: None,
        attempts: 0,
        repetition: Repetition::Continues,
        runs_elsewhere: false,
        created_at: Time(AT),
        expires_at: None,
        now: Time(AT),
    }
}

/// Returns a paused task, which waits for its [`request()`].
#[must_use]
pub(crate) fn task() -> TaskRow {
    let task_id = TaskId(id(1));
    let new = NewTask {
        tenant: "acme".into(),
        user_id: "alice".into(),
        session_id: "desk-7".into(),
        agent: "billing".into(),
        agent_version: DIGEST.into(),
        parent: None,
        agent_path: vec!["billing".into()],
        client: ClientColumns::with_metadata(r#"{"ticket":"T-1"}"#.into()),
    };
    TaskRow {
        status: TaskStatus::Paused,
        version: 2,
        last_seq: 5,
        open_requests: 1,
        usage: Usage {
            prompt_tokens: 412,
            completion_tokens: 38,
            total_tokens: 450,
        },
        model_calls: 1,
        parked: true,
        next_event: 5,
        created_at: Time(AT),
        updated_at: Time(AT + 250_000),
        ..TaskRow::unsaved(task_id, task_id, &new)
    }
}

/// Returns a standing decision that was given together with the approval of the [`request()`].
#[must_use]
pub(crate) fn grant() -> GrantRow {
    GrantRow {
        grant_id: GrantId(id(5)),
        tenant: "acme".into(),
        owner: "alice".into(),
        root_task_id: TaskId(id(1)),
        scope: GrantScope::Task,
        agent: "billing".into(),
        tool: "refund_payment".into(),
        rule: "large-refund".into(),
        basis: DIGEST.into(),
        by: Vote {
            by: "bob".into(),
            via: None,
            groups: Vec::new(),
            door: Some(Door::Session),
        },
        request_id: RequestId(id(2)),
        created_at: Time(AT + 60_000_000),
        expires_at: Time(AT + 60_000_000 + 14_400_000_000),
        uses: 3,
        used: 1,
        revoked_by: None,
        superseded: false,
        uncertain_until: None,
        now: Time(AT + 120_000_000),
    }
}

fn call() -> CallSpec {
    CallSpec {
        tool_call_id: CallId(id(3)),
        name: "refund_payment".into(),
        arguments_text: r#"{"amount":120, "order":17}"#.into(),
        effect: Effect::Once,
        target: "POST http://payments.internal".into(),
        address: Some(Address::new(
            DIGEST,
            "POST http://payments.internal/refunds".into(),
        )),
        summary: "Refund 120 for order 17".into(),
        warnings: Vec::new(),
        needs_decision: true,
        verdict: Verdict::Hold,
        rule: Some("large-refund".into()),
        reason: Some("Refunds above 20 need finance.".into()),
        parameters: json!({
            "type": "object",
            "properties": { "order": { "type": "integer" }, "amount": { "type": "number", "exclusiveMinimum": 0 } },
            "required": ["order", "amount"]
        }),
        digest: DIGEST.into(),
        definition: Some(DIGEST.into()),
        editor: None,
        bars_editor: false,
        operator_text: OperatorText::default(),
        offer: None,
    }
}

/// Returns the open request of the [`task()`].
#[must_use]
pub(crate) fn request() -> RequestRow {
    let approvers = Approvers {
        owner: false,
        users: Vec::new(),
        groups: vec!["finance".into()],
        required: 1,
        links: None,
    };
    RequestRow {
        spec: RequestSpec {
            request_id: RequestId(id(2)),
            kind: RequestKind::Approval,
            pending_tool_calls: vec![call()],
            terms: Terms {
                approvers,
                ..Terms::default()
            },
            digest: DIGEST.into(),
            question: None,
            details: None,
            form: None,
            elicitation: None,
            seal: None,
        },
        asked_seq: 4,
        task_id: TaskId(id(1)),
        root_task_id: TaskId(id(1)),
        tenant: "acme".into(),
        owner: "alice".into(),
        session_id: "desk-7".into(),
        agent_path: vec!["billing".into()],
        status: RequestStatus::Pending,
        created_at: Time(AT + 250_000),
        expires_at: Some(Time(AT + 250_000 + 86_400_000_000)),
        expired: false,
        history_uncertain: false,
        answers: Vec::new(),
    }
}
