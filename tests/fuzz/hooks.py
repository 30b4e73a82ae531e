"""Tells the fuzzer about this service: its agents, the state that an operation needs, and the refusals that an
`x-constraint` excuses. Also records which operations have succeeded."""

import atexit
import itertools
import json
import os
import re
import urllib.request
from collections import Counter, defaultdict

import link
import schemathesis

AGENTS = ["refunds", "asking", "failing"]
SEEN: dict[str, Counter[int]] = defaultdict(Counter)
CREATED = itertools.count()
# For each operation: an agent whose tasks are in the state that the operation needs, and the member of a task that the
# operation's path contains.
NEEDS = {
    "approve_request": ("refunds", "request_id"),
    "decide_request": ("refunds", "request_id"),
    "reject_request": ("refunds", "request_id"),
    "cancel_task": ("refunds", "task_id"),
    "retry_task": ("failing", "task_id"),
}

# The operations on a sealed link.
LINKS = ["get_link_page", "decide_by_link"]

# The operations at a gate, which take the key of an agent.
GATES = ["propose_gate_call", "get_gate_call", "report_gate_outcome", "post_mcp_message"]
FILE = {"gate": "coding", "tool": "read_file", "arguments": {"path": "a"}}


def is_positive(case) -> bool:
    return case.meta is not None and case.meta.generation.mode.is_positive


@schemathesis.hook
def before_call(context, case, kwargs) -> None:
    """Replaces parts of some valid cases by names, ids and keys that exist in this service, because a schema cannot
    know them."""
    operation = case.operation.definition.raw["operationId"]
    if not is_positive(case):
        return
    if case.headers is not None:
        # The fuzzer's keys may not speak for other users, so every request with these headers would be refused.
        for name in ("Holdpoint-User", "Holdpoint-Groups"):
            case.headers.pop(name, None)
    if operation in NEEDS and not any(status < 400 for status in SEEN[operation]):
        aim(case, *NEEDS[operation])
        if operation == "decide_request":
            # Few of the generated answers fit a request of this kind.
            case.body = {"action": "approve"}
    if operation in LINKS and not any(status < 400 for status in SEEN[operation]):
        follow(case, operation)
    if operation == "resend_delivery" and not any(status < 400 for status in SEEN[operation]):
        case.path_parameters["delivery_id"] = delivery()
    if operation in ("end_grant", "end_grant_here") and not any(status < 400 for status in SEEN[operation]):
        case.path_parameters["grant_id"] = grant()
    if operation in GATES and not any(status < 400 for status in SEEN[operation]):
        knock(case, operation)
    if operation == "get_home":
        # The service redirects only browsers to the inbox. The document cannot declare `Accept` as a parameter.
        case.headers["Accept"] = "text/html"
    if not isinstance(case.body, dict):
        return
    if operation == "create_task" and isinstance(case.body.get("agent"), str):
        length = len(case.body["agent"])
        if length % 4 < len(AGENTS):
            case.body["agent"] = AGENTS[length % 4]
    if operation == "create_task" and next(CREATED) % 3 == 0:
        # Only a failed task can be retried.
        case.body["agent"] = "failing"
    if operation == "resend_deliveries" and isinstance(case.body.get("target"), str) and len(case.body["target"]) % 2:
        case.body["target"] = "nobody"
    if operation == "sign_in" and isinstance(case.body.get("key"), str) and len(case.body["key"]) % 2:
        case.body["key"] = os.environ["FUZZ_KEY"]


@schemathesis.hook
def after_call(context, case, response) -> None:
    operation = case.operation.definition.raw["operationId"]
    SEEN[operation][response.status_code] += 1


def sent(path: str, body: dict | None = None, key: str = "FUZZ_KEY") -> dict:
    """Sends a GET, or a POST of `body`. Returns the answer."""
    headers = {"Authorization": f"Bearer {os.environ[key]}", "Content-Type": "application/json"}
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(os.environ["FUZZ_URL"] + path, content, headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def knock(case, operation: str) -> None:
    """Changes a case so that it proposes a call at the gate, or refers to a call that was proposed there."""
    if case.headers is not None:
        for name in ("Idempotency-Key", "Holdpoint-Runner", "MCP-Protocol-Version"):
            case.headers.pop(name, None)
    call = None if operation == "propose_gate_call" else sent("/v1/gate/calls", FILE, "FUZZ_AGENT_KEY")
    if operation == "get_gate_call":
        case.path_parameters["task_id"] = call["task_id"]
    if operation == "post_mcp_message":
        case.path_parameters["gate"] = "coding"
    bodies = {
        "propose_gate_call": FILE,
        "report_gate_outcome": {"task_id": call and call["task_id"], "outcome": "succeeded"},
        "post_mcp_message": {"jsonrpc": "2.0", "id": 1, "method": "ping"},
    }
    if operation in bodies and isinstance(case.body, dict):
        case.body.clear()
        case.body.update(bodies[operation])


def aim(case, agent: str, place: str) -> None:
    """Points a case at a new task or its request, because the tasks of earlier cases may have ended. Removes the
    members that could still cause a refusal."""
    task = created(agent)
    case.path_parameters[place] = task["pending"][0][place] if place == "request_id" else task[place]
    if case.headers is not None:
        case.headers.pop("Idempotency-Key", None)
    if isinstance(case.body, dict):
        case.body.pop("digest", None)


def created(agent: str) -> dict:
    """Creates a task of an agent."""
    return sent("/v1/tasks", {"input": "go", "agent": agent})


def follow(case, operation: str) -> None:
    """Points a case at a link to a new request. An answer then has the form that the link's page posts."""
    request = created("refunds")["pending"][0]
    sealing_key = os.environ["SEALING_KEY"]
    case.path_parameters["token"] = link.token(sealing_key, "acme", "fuzz", request["request_id"])
    if operation == "decide_by_link" and isinstance(case.body, dict):
        case.headers["Origin"] = os.environ["FUZZ_URL"]
        # The object is changed in place, because schemathesis would treat a new object as data that the document forbids.
        case.body.clear()
        case.body.update({"digest": request["digest"], "action": "approve"})


def delivery() -> str:
    """Returns the id of a delivery. Waits for it, because a delivery is stored a moment after its task's commit."""
    created("refunds")
    for _ in range(600):
        found = sent("/v1/deliveries")["deliveries"]
        if found:
            return found[0]["delivery_id"]
    raise TimeoutError("no delivery")


def grant() -> str:
    """Creates a standing decision by an approval. Returns its id."""
    task = created("refunds")
    request = task["pending"][0]["request_id"]
    sent(f"/resume/{request}", {"action": "approve", "remember": {"for": "task", "expires_in": "1h"}})
    return sent("/v1/grants")["grants"][0]["grant_id"]


@schemathesis.hook
def filter_failure(context, failure, case, response) -> bool:
    """Returns whether a failure counts. A refusal of valid data counts, unless an `x-constraint` of each refused place
    explains the refusal."""
    # The document describes the messages of MCP and their errors only in prose.
    if case.operation.path == "/mcp/{gate}" and response is not None and '"jsonrpc"' in response.text:
        return False
    # The fuzzer sees a stream as one text. The Rust tests compare each event with its component of the document.
    if failure.title == "SSE event violates schema":
        return False
    # A client may send headers that no operation reads.
    if "in header - object with unexpected properties" in failure.message:
        return False
    # After ten wrong keys in a minute, each further wrong key gets 429 instead of 401.
    if response.status_code == 429 and response.json()["code"] == "too_many":
        return False
    if "got `429 Too Many Requests`" in failure.message and "invalid credentials" in failure.message:
        return False
    if type(failure).__name__ != "RejectedPositiveData":
        return True
    problem = response.json()
    if response.status_code == 422 and problem["code"] == "invalid":
        return not all(is_excused(case, error["pointer"]) for error in problem["errors"])
    if problem["code"] == "idempotency_key_reused":
        return False
    if problem["code"] == "bad_request":
        return not any(is_blamed(case, one, problem["detail"]) for one in parameters(case))
    return True


def is_blamed(case, parameter: dict, detail: str) -> bool:
    """Returns whether a refusal names a parameter that was sent and has an `x-constraint`."""
    name = parameter["name"]
    sent = {"query": case.query, "header": case.headers}.get(parameter["in"]) or {}
    named = re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", detail)
    return "x-constraint" in resolved(case, parameter["schema"]) and name in sent and named is not None


def parameters(case) -> list[dict]:
    return [resolved(case, one) for one in case.operation.definition.raw.get("parameters", [])]


def resolved(case, part: dict) -> dict:
    """Returns the schema or the parameter. If it is a `$ref`, returns the component that it refers to."""
    while "$ref" in part:
        kind, component = part["$ref"].removeprefix("#/components/").split("/")
        part = case.operation.schema.raw_schema["components"][kind][component]
    return part


def is_excused(case, pointer: str) -> bool:
    operation = case.operation.definition.raw
    if "x-constraint" in operation and pointer == "/action":
        return True
    path = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    for parameter in parameters(case):
        if path == [parameter["name"]] and "x-constraint" in resolved(case, parameter["schema"]):
            return True
    media = operation.get("requestBody", {}).get("content", {})
    return any(is_constrained(case, one["schema"], path) for one in media.values())


def is_constrained(case, schema: dict, path: list[str]) -> bool:
    """Returns whether the schema at a path, or the schema of a place that contains it, has an `x-constraint`."""
    schema = resolved(case, schema)
    if "x-constraint" in schema:
        return True
    variants = [one for union in ("oneOf", "anyOf", "allOf") for one in schema.get(union, [])]
    if any(is_constrained(case, one, path) for one in variants):
        return True
    if not path:
        return False
    first, rest = path[0], path[1:]
    if first in schema.get("properties", {}):
        return is_constrained(case, schema["properties"][first], rest)
    inner = schema.get("items") or schema.get("additionalProperties")
    return isinstance(inner, dict) and is_constrained(case, inner, rest)


@atexit.register
def report() -> None:
    with open(os.environ["FUZZ_SEEN"], "w") as file:
        json.dump(SEEN, file)
