"""Kills the service and its servers at random moments while tasks call `once` tools, then checks the ledgers: No call
ran twice. A call with a known result ran, and a call that provably failed did not run. A person was asked about every
other call. Argument: the duration of the storm in seconds (60). STORM_SEED repeats the random choices."""

import os
import random
import sys
import threading
import time
from collections import Counter

from harness import Peer, Place, Service, folder, until

SERVERS = [("2025-11-25", False), ("2026-07-28", False), ("2025-11-25", True), ("2026-07-28", True)]


class Storm:
    def __init__(self, place: Place, peers: list[Peer], seconds: float, seed: int) -> None:
        self.place, self.peers, self.seconds = place, peers, seconds
        self.random = random.Random(seed)
        self.service = Service(place)
        self.counts: Counter[str] = Counter()
        self.tasks: dict[str, str] = {}  # the task of each call, by the call's key
        self.end = time.monotonic() + seconds
        self.calm = threading.Event()

    def ask(self, method: str, path: str, body: object = None, key: str | None = None) -> tuple[int, dict]:
        """Sends a request, and repeats it while the service is down."""
        while True:
            try:
                return self.service.ask(method, path, body, wait=0, key=key)
            except (OSError, ValueError):
                time.sleep(0.02)

    def post(self, number: int) -> None:
        at = 0
        while time.monotonic() < self.end:
            key = f"k{number}-{at}"
            body = {"input": f"s{self.random.randrange(len(self.peers))} {key}", "agent": "helper"}
            status, task = self.ask("POST", "/v1/tasks", body, key)
            assert status in (201, 202), (status, task)
            self.tasks[key] = task["task_id"]
            at += 1
            time.sleep(self.random.uniform(0, 0.1))

    def answer(self) -> None:
        """Plays a person who approves calls, and who never lets a call of unknown outcome run again."""
        while not self.calm.is_set():
            status, found = self.ask("GET", "/v1/requests?status=pending&limit=200")
            for request in found["requests"] if status == 200 else []:
                path = f"/resume/{request['request_id']}"
                if request["kind"] == "reconcile":
                    status, _ = self.ask("POST", path, {"action": "respond", "result": "I looked."})
                    self.counts["asked"] += status in (200, 202)
                else:
                    self.ask("POST", f"{path}/approve", {})
            time.sleep(0.05)

    def kill(self) -> None:
        while time.monotonic() < self.end:
            time.sleep(self.random.uniform(0.05, 1.2))
            victim = self.random.randrange(len(self.peers) + 2)
            if victim >= len(self.peers):
                self.service.kill()
                self.counts["kills of the service"] += 1
                self.service.again()
            elif self.peers[victim].ledger("started"):
                self.peers[victim].kill()
                self.counts["kills of servers"] += 1
                self.peers[victim].start()

    def run(self) -> None:
        self.service.start()
        people = [threading.Thread(target=self.answer)]
        posters = [threading.Thread(target=self.post, args=(number,)) for number in range(4)]
        for thread in people + posters:
            thread.start()
        try:
            self.kill()
            for thread in posters:
                thread.join()
            self.settle()
        finally:
            self.calm.set()
            people[0].join()
            self.check()
            self.service.stop()

    def settle(self) -> None:
        def open_tasks() -> int:
            return sum(
                len(self.ask("GET", f"/v1/tasks?status={status}&limit=200")[1]["tasks"]) for status in ("Running", "Paused")
            )

        until("every task has ended", lambda: open_tasks() == 0, 180)

    def check(self) -> None:
        ran = Counter(line["arguments"]["key"] for peer in self.peers for line in peer.ledger("ran"))
        twice = [key for key, times in ran.items() if times > 1]
        wrong = []
        for key, task in self.tasks.items():
            for outcome, content in self.service.outcomes({"task_id": task}):
                self.counts[outcome] += 1
                allowed = {"succeeded": {1}, "responded": {0, 1}, "failed": {0}}.get(outcome, {0})
                if ran[key] not in allowed:
                    wrong.append((key, outcome, content, ran[key]))
        foreign = set(ran) - set(self.tasks)
        print(f"storm: {len(self.tasks)} tasks, {sum(ran.values())} executions, {len(twice)} twice")
        print(", ".join(f"{name}: {count}" for name, count in sorted(self.counts.items())))
        assert not twice and not wrong and not foreign, (twice, wrong, foreign)
        assert self.counts["succeeded"] and self.counts["kills of the service"], self.counts


def main(seconds: float, seed: int) -> None:
    print(f"storm: {seconds:.0f} s, STORM_SEED={seed}", flush=True)
    with folder() as name:
        place = Place(name)
        peers = []
        place.play("(?<server>s[0-9]) (?<key>[-a-z0-9]+)", ("${server}_add", {"key": "${key}"}))
        for at, (revision, web) in enumerate(SERVERS):
            peer = Peer(name / f"peer{at}", revision, web)
            peer.plan(add=[{"seconds": 0.03}])
            peer.start()
            peers.append(peer)
            place.servers[f"s{at}"] = peer.settings()
        try:
            place.lock()
            Storm(place, peers, seconds, seed).run()
        finally:
            for peer in peers:
                peer.stop()


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60, int(os.environ.get("STORM_SEED") or random.randrange(10**6)))
