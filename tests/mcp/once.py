"""Tests a call of a `once` tool. The service or the server is killed at each point of the call, over both transports
and in both revisions. The server's ledger shows at most one execution, and a person is asked if the outcome is
unknown."""

from contextlib import suppress
from functools import partial

from harness import Peer, Place, Service, at_once, folder, until

# For each failpoint at which the service is killed: the number of executions, and whether a person is asked.
FAILPOINTS = {
    "tool_started.before": (1, False),  # nothing was sent, so the call starts again
    "tool_started.committed": (0, True),
    "call.before": (0, True),
    "call.answered": (1, True),
    "tool_result.before": (1, True),
    "tool_result.committed": (1, False),
}


class Case:
    def __init__(self, peer: Peer, place: Place) -> None:
        self.peer, self.place = peer, place

    def ran(self, key: str) -> int:
        return sum(line["arguments"]["key"] == key for line in self.peer.ledger("ran"))

    def received(self, key: str) -> int:
        return sum(line["arguments"]["key"] == key for line in self.peer.ledger("received"))

    def ask(self, service: Service, key: str) -> dict:
        """Creates a task with one call, and does not wait for it. If the POST is repeated, the same task is
        returned."""
        return service.task(key, wait=0, key=f"once-{key}")

    def is_settled(self, service: Service, task: dict, key: str, runs: int, asked: bool) -> None:
        """Asserts that the task ends after `runs` executions. If `asked`, a person is asked first, and their answer
        ends the task without another execution."""
        now = service.settled(task)
        if asked:
            assert now["status"] == "Paused", (now, service.outcomes(task))
            (request,) = now["pending"]
            assert request["kind"] == "reconcile", request
            status, now = service.respond(request, "I looked: it is fine.")
            assert status == 200, now
        assert now["status"] == "Completed", (now, service.outcomes(task))
        assert self.ran(key) == runs, (runs, self.peer.ledger())
        assert self.received(key) <= 1, self.peer.ledger()
        outcomes = service.outcomes(task)
        assert [outcome for outcome, _ in outcomes] == ["responded" if asked else "succeeded"], outcomes

    def service_dies(self, point: str) -> None:
        runs, asked = FAILPOINTS[point]
        key, task = point.replace(".", "_"), None
        with self.place.serve(f"{point}=abort") as service:
            # The service may die before it answers the POST.
            with suppress(ConnectionError):
                task = self.ask(service, key)
            service.died()
            service.again()
            self.is_settled(service, task or self.ask(service, key), key, runs, asked)

    def service_dies_while(self, point: str) -> None:
        """The service dies while the server is at this point of the call."""
        key = f"service_{point}"
        self.peer.plan(add=[{"wait": point}])
        (self.peer.folder / "go").unlink(missing_ok=True)
        with self.place.serve() as service:
            task = self.ask(service, key)
            lines = self.received if point == "received" else self.ran
            until("the server has the call", lambda: lines(key))
            service.kill()
            self.peer.go()
            service.again()
            now = service.settled(task)
            assert now["status"] == "Paused" and now["pending"][0]["kind"] == "reconcile", now
            status, _ = service.respond(now["pending"][0], "I looked: it is fine.")
            # A child process may end before it runs the call, because the end of the service closes its input.
            assert status == 200 and self.ran(key) <= 1 and self.received(key) == 1, self.peer.ledger()
            assert self.peer.web is False or until("the server runs it", lambda: self.ran(key)) == 1

    def server_dies(self, point: str) -> None:
        """The server dies at this point of the call. The next call goes to a new process."""
        key, again = f"server_{point}", f"{point}_again"
        number = len(self.peer.ledger("received"))
        self.peer.plan(add=[{}] * number + [{"die": point}, {}])
        with self.place.serve() as service:
            task = self.ask(service, key)
            now = service.settled(task)
            assert now["status"] == "Paused" and now["pending"][0]["kind"] == "reconcile", (now, service.outcomes(task))
            assert self.ran(key) == (0 if point == "received" else 1), self.peer.ledger()
            if self.peer.web:
                self.peer.stop()
                self.peer.start()
            if point == "received":
                self.retried(service, now, key)
            else:
                self.is_settled(service, task, key, 1, asked=True)
            other = service.task(again)
            assert other["status"] == "Completed" and self.ran(again) == 1, (other, service.outcomes(other))

    def retried(self, service: Service, task: dict, key: str) -> None:
        """A person answers `retry`, so the call runs, once."""
        body = {"action": "retry"}
        status, now = service.ask("POST", f"/resume/{task['pending'][0]['request_id']}", body, wait=30)
        now = service.settled(now)
        assert status in (200, 202) and now["status"] == "Completed", (now, service.outcomes(now))
        assert self.ran(key) == 1 and self.received(key) == 2, self.peer.ledger()

    def server_died_before(self) -> None:
        """The server dies between two calls. Nothing was sent to the dead process, so the second call runs in the new
        process."""
        with self.place.serve() as service:
            first, second = service.task("before"), None
            assert first["status"] == "Completed", first
            self.peer.kill()
            self.peer.start()
            second = service.task("between")
            assert second["status"] == "Completed", (second, service.outcomes(second))
            assert service.outcomes(second)[0][0] == "succeeded" and self.ran("between") == 1, service.outcomes(second)

    def server_is_down(self) -> None:
        """If a server cannot be reached, the call has not run, and no person is asked."""
        if not self.peer.web:
            return
        with self.place.serve() as service:
            self.peer.stop()
            task = service.task("down")
            assert task["status"] == "Completed" and service.outcomes(task)[0][0] == "failed", service.outcomes(task)
            assert self.received("down") == 0


    def times_out(self) -> None:
        """After the time limit, the outcome is unknown and a person is asked. The late answer or the person's answer
        settles the call."""
        self.peer.plan(add=[{"wait": "ran"}])
        with self.place.serve() as service:
            now = service.settled(self.ask(service, "slow"))
            assert now["status"] == "Paused" and now["pending"][0]["kind"] == "reconcile", (now, service.outcomes(now))
            self.peer.go()
            until("the server has answered", lambda: self.peer.ledger("answered"))
            status, _ = service.respond(now["pending"][0], "I looked: it is fine.")
            assert status in (200, 409, 410), status
            now = service.settled(now)
            assert now["status"] == "Completed" and self.ran("slow") == self.received("slow") == 1, now


def words() -> list[str]:
    named = [point.replace(".", "_") for point in FAILPOINTS]
    points = [f"service_{point}" for point in ("received", "ran")]
    dying = [f"{who}" for point in ("received", "ran", "half") for who in (f"server_{point}", f"{point}_again")]
    return [*named, *points, *dying, "before", "between", "down", "slow"]


def case(revision: str, web: bool, sse: bool, steps: list[str]) -> None:
    with folder() as name:
        peer = Peer(name / "peer", revision, web, sse)
        place = Place(name)
        place.servers = {"s": peer.settings() | ({"timeout": "1s"} if "times_out" in steps else {})}
        for word in words():
            place.play(word, ("s_add", {"key": word}))
        try:
            peer.start()
            place.lock()
            one = Case(peer, place)
            for step in steps:
                method, _, point = step.partition(" ")
                try:
                    getattr(one, method)(*([point] if point else []))
                except AssertionError as error:
                    raise AssertionError(f"{step}: {error}") from error
        finally:
            peer.stop()


STEPS = {
    "the service dies at failpoints": [f"service_dies {point}" for point in FAILPOINTS],
    "the service dies during the call": ["service_dies_while received", "service_dies_while ran"],
    "the server dies": [*(f"server_dies {point}" for point in ("received", "ran", "half"))],
    "the server died before": ["server_died_before", "server_is_down"],
    "the server is slow": ["times_out"],
}
SERVERS = {
    "stdio 2025-11-25": ("2025-11-25", False, False),
    "stdio 2026-07-28": ("2026-07-28", False, False),
    "HTTP 2025-11-25": ("2025-11-25", True, False),
    "HTTP 2026-07-28, streams": ("2026-07-28", True, True),
}

if __name__ == "__main__":
    at_once(
        {
            f"{what}, {server}": partial(case, *settings, steps)
            for server, settings in SERVERS.items()
            for what, steps in STEPS.items()
        }
    )
