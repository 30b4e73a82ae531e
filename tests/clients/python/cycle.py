"""Runs a whole cycle of the built-in demonstration with the client that openapi-python-client generates. One refund is
held, read and approved, and another one is rejected. Both are listed, and the journal says which calls ran."""

import importlib
import pkgutil
import sys
from http import HTTPStatus

import holdpoint_client
from holdpoint_client import Client
from holdpoint_client.api.gate import propose_gate_call, report_gate_outcome
from holdpoint_client.api.grants import list_grants
from holdpoint_client.api.requests import approve_request, decide_request, get_request
from holdpoint_client.api.tasks import create_task, list_task_items, list_tasks
from holdpoint_client.models import (
    AgentTask,
    ApproveBody,
    CreateTask,
    GateCall,
    GateDecision,
    GateOutcome,
    GrantList,
    InterventionRequest,
    ItemList,
    NewGateCall,
    Problem,
    RejectDecision,
    ReportGateOutcome,
    TaskList,
    TaskStatus,
    ThenAction,
    ToolResultItem,
)


def import_everything() -> int:
    """Imports every module of the client. An import fails only by a mistake of the document or of the generator."""
    names = [module.name for module in pkgutil.walk_packages(holdpoint_client.__path__, "holdpoint_client.")]
    for name in names:
        importlib.import_module(name)
    return len(names)


def held(client: Client, order: int) -> AgentTask:
    body = CreateTask(input_=f"Please refund 120 for order {order}")
    created = create_task.sync_detailed(client=client, body=body)
    assert created.status_code == HTTPStatus.CREATED, created
    task = created.parsed
    assert isinstance(task, AgentTask), task
    assert task.status == TaskStatus.PAUSED, task
    return task


def propose_and_report(client: Client) -> None:
    """A call that the caller runs itself is proposed, held, approved, claimed with the same key, and reported."""
    body = NewGateCall.from_dict({"gate": "refunds", "tool": "deploy", "arguments": {"version": 37}})

    def propose() -> GateCall:
        call = propose_gate_call.sync(client=client, body=body, idempotency_key="python-1", prefer="wait=0")
        assert isinstance(call, GateCall), call
        return call

    call = propose()
    assert (call.decision, call.permit) == (GateDecision.PENDING, None), call
    approved = approve_request.sync_detailed(call.request.request_id, client=client, body=ApproveBody())
    assert approved.status_code in (HTTPStatus.OK, HTTPStatus.ACCEPTED), approved
    call = propose()
    assert call.decision == GateDecision.ALLOW and call.permit, call
    report = ReportGateOutcome(key="python-1", outcome=GateOutcome.SUCCEEDED, content="deployed")
    reported = report_gate_outcome.sync(client=client, body=report)
    assert isinstance(reported, GateCall), reported
    assert (reported.state, reported.outcome) == ("settled", "succeeded"), reported


def main(base_url: str) -> None:
    assert import_everything() > 20
    client = Client(base_url=base_url, raise_on_unexpected_status=True)

    task = held(client, 37)
    request = get_request.sync(task.pending[0].request_id, client=client)
    assert isinstance(request, InterventionRequest), request
    assert (request.status, request.kind, request.can_decide) == ("pending", "approval", True), request

    answer = ApproveBody(reason="agreed by phone", digest=request.digest)
    approved = approve_request.sync_detailed(request.request_id, client=client, body=answer)
    assert approved.status_code == HTTPStatus.OK, approved
    assert isinstance(approved.parsed, AgentTask), approved
    assert approved.parsed.status == TaskStatus.COMPLETED, approved
    assert approved.parsed.output, approved

    late = approve_request.sync_detailed(request.request_id, client=client, body=answer)
    assert late.status_code == HTTPStatus.CONFLICT, late
    assert isinstance(late.parsed, Problem), late
    assert late.parsed.code == "already_decided", late

    other = held(client, 38)
    no = RejectDecision(action="reject", then=ThenAction.CONTINUE, reason="wrong order")
    rejected = decide_request.sync_detailed(other.pending[0].request_id, client=client, body=no)
    assert rejected.status_code == HTTPStatus.OK, rejected
    assert isinstance(rejected.parsed, AgentTask), rejected
    assert rejected.parsed.status == TaskStatus.COMPLETED, rejected

    listed = list_tasks.sync(client=client, status=[TaskStatus.COMPLETED], limit=200)
    assert isinstance(listed, TaskList), listed
    assert {task.task_id, other.task_id} <= {one.task_id for one in listed.tasks}, listed

    remembered = list_grants.sync(client=client)
    assert isinstance(remembered, GrantList), remembered
    assert remembered.grants == [], remembered

    journal = list_task_items.sync(task.task_id, client=client, limit=200)
    assert isinstance(journal, ItemList), journal
    call = request.tool_calls[0].tool_call_id
    ran = [item.outcome for item in journal.items if isinstance(item, ToolResultItem) and item.tool_call_id == call]
    assert ran == ["succeeded"], ran

    propose_and_report(client)
    print("openapi-python-client: created, approved, rejected, listed, read, proposed and reported")


if __name__ == "__main__":
    main(sys.argv[1])
