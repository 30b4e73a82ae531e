"""The whole cycle by the generated Python client, against the built-in demonstration: create, Paused, approve, Completed."""

import importlib
import pkgutil
import sys
from http import HTTPStatus

import holdpoint_client
from holdpoint_client import Client
from holdpoint_client.api.requests import approve_request, get_request
from holdpoint_client.api.tasks import create_task, list_task_items
from holdpoint_client.models import (
    AgentTask,
    ApproveBody,
    CreateTask,
    InterventionRequest,
    ItemList,
    Problem,
    TaskStatus,
    ToolResultItem,
)


def import_everything() -> int:
    """A module that does not import is a mistake of the document or of the generator."""
    names = [module.name for module in pkgutil.walk_packages(holdpoint_client.__path__, "holdpoint_client.")]
    for name in names:
        importlib.import_module(name)
    return len(names)


def main(base_url: str) -> None:
    assert import_everything() > 20
    client = Client(base_url=base_url, raise_on_unexpected_status=True)

    created = create_task.sync_detailed(client=client, body=CreateTask(input_="Please refund 120 for order 17"))
    assert created.status_code == HTTPStatus.CREATED, created
    task = created.parsed
    assert isinstance(task, AgentTask), task
    assert task.status == TaskStatus.PAUSED, task

    request = task.pending[0]
    assert request.kind == "approval", request
    found = get_request.sync(request.request_id, client=client)
    assert isinstance(found, InterventionRequest), found
    assert found.status == "pending", found

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

    journal = list_task_items.sync(task.task_id, client=client, limit=200)
    assert isinstance(journal, ItemList), journal
    call = request.tool_calls[0].tool_call_id
    ran = [item.outcome for item in journal.items if isinstance(item, ToolResultItem) and item.tool_call_id == call]
    assert ran == ["succeeded"], ran

    print("the Python client created, approved and completed a task")


if __name__ == "__main__":
    main(sys.argv[1])
