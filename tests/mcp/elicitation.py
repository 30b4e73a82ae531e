"""Tests a server that asks the user a question in the middle of a call. The question waits for a person even if the
service is killed. The next attempt sends the answer, and the call runs once. A form that asks for a secret is shown to
no person."""

import json
from contextlib import contextmanager
from functools import partial
from typing import Iterator

from harness import Peer, Place, Service, at_once, folder, tool, until

REVISION = "2026-07-28"
FORM = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Which folder?",
        "requestedSchema": {"type": "object", "properties": {"folder": {"type": "string"}}, "required": ["folder"]},
    },
}
CHOICES = {
    "method": "elicitation/create",
    "params": {
        "message": "Which toppings?",
        "requestedSchema": {
            "type": "object",
            "properties": {
                "toppings": {
                    "type": "array",
                    "minItems": 1,
                    "items": {"anyOf": [{"const": "h", "title": "Ham"}, {"const": "c", "title": "Cheese"}]},
                }
            },
            "required": ["toppings"],
        },
    },
}
SECRET = {
    "method": "elicitation/create",
    "params": {
        "message": "Log in",
        "requestedSchema": {"type": "object", "properties": {"password": {"type": "string"}}},
    },
}
PAGE = {
    "method": "elicitation/create",
    "params": {"mode": "url", "message": "Please log in", "url": "https://bücher.example/login?next=1"},
}


@contextmanager
def asked(web: bool, *steps: dict) -> Iterator[tuple[Peer, Service, dict]]:
    """Runs a server whose calls follow `steps`, a service that calls the server, and a task that makes a call."""
    with folder() as name:
        peer = Peer(name / "peer", REVISION, web, tools=[tool("add")])
        peer.plan(add=list(steps))
        place = Place(name)
        place.servers = {"s": peer.settings()}
        place.play("add", ("s_add", {"key": "k"}))
        try:
            peer.start()
            place.lock()
            with place.serve() as service:
                yield peer, service, service.task("add")
        finally:
            peer.stop()


def question(service: Service, task: dict) -> dict:
    now = service.settled(task)
    assert now["status"] == "Paused", (now, service.outcomes(task))
    (request,) = now["pending"]
    assert request["kind"] == "elicitation", request
    return request


def fill_in(service: Service, request: dict, response: dict) -> tuple[int, dict]:
    body = {"action": "respond", "response": response, "digest": request["digest"]}
    return service.ask("POST", f"/resume/{request['request_id']}", body, 30)


def form(web: bool) -> None:
    with asked(web, {"asks": {"q": FORM}}, {}) as (peer, service, task):
        request = question(service, task)
        assert request["message"] == "s asks: Which folder?", request
        assert request["question"] == "Which folder?" and request["allowed_actions"] == ["respond", "reject"]
        assert request["details"] == {"server": "s", "tool": "add", "mode": "form", "url": None}
        assert '"7"' not in json.dumps(request), request
        service.kill()
        service.again()
        status, refused = fill_in(service, request, {"folder": 7})
        assert status == 422 and "/response/folder" in json.dumps(refused), refused
        status, done = fill_in(service, request, {"folder": "/a"})
        assert status == 200, done
        assert service.settled(task)["status"] == "Completed"
        assert service.outcomes(task) == [("succeeded", "ran 2")], service.outcomes(task)
        first, second = [json.loads(line["text"])["params"] for line in peer.ledger("received")]
        assert "inputResponses" not in first and second["requestState"] == "7", second
        answer = {"q": {"action": "accept", "content": {"folder": "/a"}}}
        assert second["inputResponses"] == answer and second["arguments"] == first["arguments"], second
        assert len(peer.ledger("ran")) == 1
        status, late = fill_in(service, request, {"folder": "/b"})
        assert status == 409 and late["code"] == "already_decided", late


def choices(web: bool) -> None:
    with asked(web, {"asks": {"q": CHOICES}}, {}) as (peer, service, task):
        request = question(service, task)
        for unfit in ([], ["h", "h"], ["x"], "h"):
            status, refused = fill_in(service, request, {"toppings": unfit})
            assert status == 422 and "/response/toppings" in json.dumps(refused), refused
        status, done = fill_in(service, request, {"toppings": ["c", "h"]})
        assert status == 200 and service.settled(task)["status"] == "Completed", done
        second = json.loads(peer.ledger("received")[1]["text"])["params"]
        assert second["inputResponses"]["q"] == {"action": "accept", "content": {"toppings": ["c", "h"]}}, second


def secret(web: bool) -> None:
    with asked(web, {"asks": {"q": SECRET}}, {}) as (peer, service, task):
        ((outcome, content),) = service.outcomes(task)
        assert outcome == "succeeded" and "`password`" in content and "declined" in content, content
        second = json.loads(peer.ledger("received")[1]["text"])["params"]
        assert second["inputResponses"] == {"q": {"action": "decline"}}, second
        assert not service.items(task, "intervention_requested")


def page() -> None:
    with asked(True, {"asks": {"q": PAGE}}, {}) as (peer, service, task):
        request = question(service, task)
        assert request["details"]["url"] == "https://xn--bcher-kva.example/login?next=1", request
        status, refused = fill_in(service, request, {"opened": False})
        assert status == 422, refused
        status, done = fill_in(service, request, {"opened": True})
        assert status == 200, done
        assert service.settled(task)["status"] == "Completed"
        second = json.loads(peer.ledger("received")[1]["text"])["params"]
        assert second["inputResponses"] == {"q": {"action": "accept"}}, second


def killed(web: bool) -> None:
    """The server dies after it has received the answer. A person is asked, and the call is not repeated."""
    with asked(web, {"asks": {"q": FORM}}, {"die": "ran"}, {}) as (peer, service, task):
        fill_in(service, question(service, task), {"folder": "/a"})
        (request,) = until("the call is asked about", lambda: service.settled(task)["pending"])
        assert request["kind"] == "reconcile", request
        assert len(peer.ledger("ran")) == 1 and len(peer.ledger("received")) == 2


if __name__ == "__main__":
    both = {"http": True, "stdio": False}
    cases = {f"{case.__name__} over {name}": partial(case, web) for name, web in both.items() for case in (form, choices, secret, killed)}
    at_once(cases | {"page": page})
