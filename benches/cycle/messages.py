"""Measures webhooks, and the rows and the streams of the inbox; scripts/bench --messages runs it. Standard library only."""

import json
import selectors
import socket
import threading
import time
import urllib.request
from datetime import datetime, timezone

from machine import memory_of

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
KEY = "bench-key-of-32-characters-0001"
STREAMS = 1000
READERS = 20
WAITING = 10_000
# The cycles per second. Each cycle has four messages, so there are a hundred messages per second.
PACE = 25


def entry(name, path):
    return f'    - {{ name: {name}, webhook: {{ url: "http://${{BENCH_RECEIVER}}/hook{path}", secrets: ["{SECRET}"] }} }}\n'


def notify(*entries):
    return "notify:\n  to:\n" + "".join(entries)


ONE, SLOW, DEAD, SILENT = entry("backend", ""), entry("backend", "/slow"), entry("dead", "/dead"), entry("backend", "/silent")
# The settings of each variant: first those that fill the database, last those of the measurement.
SETTINGS = {
    "no webhook": ("",),
    "one webhook": (notify(ONE),),
    # The dead entry gets new messages, too. This variant separates the cost of new messages from the cost of the 10,000
    # undelivered messages.
    "one webhook, a dead one beside it": (notify(ONE, DEAD),),
    "one webhook, a dead one with 10,000 undelivered": (notify(DEAD), notify(ONE, DEAD)),
    "no webhook, no rows of the inbox": ("",),
}
# The statements that Postgres runs once the service has made its tables. This trigger drops each row of the inbox, and
# the service does everything else as usual. So the rate beside "no webhook" shows the cost of the rows, less the cost of
# the trigger.
SQL = {
    "no webhook, no rows of the inbox": """
create function drop_row() returns trigger language plpgsql as 'begin return null; end';
create trigger drop_row before insert on inbox for each row execute function drop_row()""",
}
UNDELIVERED = "select (select count(*) from delivery where state = 'due') + (select count(*) from notice)"


def fill(bench, variant, database):
    """Fills the database: for each of the settings but the last, runs cycles until enough messages wait."""
    for settings in variant.settings[:-1]:
        started, targets = bench.serve(variant, database, settings)
        wanted = 100 if bench.chosen.smoke else WAITING
        while bench.number_of(variant, database, UNDELIVERED) < wanted:
            bench.load(targets, 64, {}, seconds=1)
        wait_until(lambda: bench.number_of(variant, database, "select count(*) from notice") == 0)
        bench.stop(started)


def wait_until(is_true, seconds=120):
    deadline = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > deadline:
            raise RuntimeError("the messages do not arrive")
        time.sleep(0.05)


def lags(bench):
    """Returns the number of messages that the receiver took since the last call, and quantiles of their lags in
    milliseconds."""
    with urllib.request.urlopen(f"http://{bench.receiver}/lags", timeout=10) as answer:
        return json.load(answer)


def measure(bench, found):
    print("## Messages\n")
    seconds = 1 if bench.chosen.smoke else 10
    print("From an event to the first byte at its receiver, in milliseconds, at 100 messages a second:\n")
    print("| | p50 | p99 | messages |\n|---|---:|---:|---:|")
    for variant in found:
        if not variant.settings[-1]:
            continue
        lag = lag_at_pace(bench, variant, seconds)
        print(f"| {variant.name} | {lag['p50']:.1f} | {lag['p99']:.1f} | {lag['received']} |")
    count, took = drain(bench, found[1])
    print(f"\n{count} messages that were due when the service started reached a receiver that takes 5 ms each in {took:.1f} s.\n")
    streams(bench, found[0], seconds)


def lag_at_pace(bench, variant, seconds):
    started, targets = bench.serve(variant, bench.prepare(variant))
    bench.load(targets, 4, {}, seconds=1, rate=PACE)
    time.sleep(0.5)
    lags(bench)
    bench.load(targets, 4, {}, seconds=seconds, rate=PACE)
    time.sleep(0.5)
    lag = lags(bench)
    bench.stop(started)
    return lag


def drain(bench, variant):
    """Makes messages for a receiver that never answers, then starts the service with a receiver that answers. Returns
    how many messages arrived, and in how many seconds."""
    database = bench.prepare(variant)
    # This receiver has the same name and never answers, so that the messages wait without a failed attempt.
    filler = type(variant)(variant.name, binary=variant.binary, sqlite=variant.sqlite, settings=(notify(SILENT), ""))
    fill(bench, filler, database)
    count = bench.number_of(variant, database, "select count(*) from delivery where state = 'due'")
    lags(bench)
    began = time.monotonic()
    started, _ = bench.serve(variant, database, notify(SLOW))
    wait_until(lambda: bench.number_of(variant, database, "select count(*) from delivery where state = 'due'") == 0)
    took = time.monotonic() - began
    bench.stop(started)
    return lags(bench)["received"], took


class Reader:
    """A connection that reads a stream of the inbox."""

    def __init__(self, address):
        host, port = address.split(":")
        self.socket = socket.create_connection((host, int(port)))
        head = f"GET /v1/events HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {KEY}\r\naccept: text/event-stream\r\n\r\n"
        self.socket.sendall(head.encode())
        self.rest = b""

    def events(self):
        """Yields the events that are complete in the bytes so far."""
        self.rest += self.socket.recv(65536)
        *blocks, self.rest = self.rest.split(b"\n\n")
        for block in blocks:
            for line in block.split(b"\n"):
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])


def open_readers(address, count):
    found, selector = [Reader(address) for _ in range(count)], selectors.DefaultSelector()
    waiting = set(found)
    for reader in found:
        selector.register(reader.socket, selectors.EVENT_READ, reader)
    while waiting:
        for key, _ in selector.select(10):
            if any(event.get("event") == "inbox" for event in key.data.events()):
                waiting.discard(key.data)
    return found, selector


def streams(bench, plain, seconds):
    """Measures idle streams of the inbox, and the time from a new question to its event at readers of another
    replica."""
    replicas = 1 if plain.sqlite else 2
    variant = type(plain)(plain.name, binary=plain.binary, sqlite=plain.sqlite, replicas=replicas)
    database = bench.prepare(variant)
    started, targets = bench.serve(variant, database)
    bench.load(targets, 4, {}, seconds=1)
    quiet = 1 if bench.chosen.smoke else 15
    before, memory = statements(bench, variant, quiet), memory_of(started[-1].pid)
    count = 10 if bench.chosen.smoke else STREAMS
    found, _ = open_readers(targets[-1], count)
    each = (memory_of(started[-1].pid) - memory) / count
    after = statements(bench, variant, quiet)
    for reader in found:
        reader.socket.close()
    print(f"{count} idle streams of the inbox: {each:.1f} KiB each", end="")
    print("." if before is None else f", {after - before:+.0f} statements in {quiet} s.")
    late = follow(bench, targets, seconds)
    where = "the same process" if plain.sqlite else "another replica"
    print(f"From a question to its event at {READERS} readers of {where}: p50 {late[len(late) // 2]:.1f} ms, p99 {late[len(late) * 99 // 100]:.1f} ms.\n")
    bench.stop(started)


def statements(bench, variant, seconds):
    """Returns the number of statements in some seconds in which nothing happens; None on SQLite."""
    if variant.sqlite:
        return None
    first = bench.postgres.counters(variant.database).get("statements")
    time.sleep(seconds)
    last = bench.postgres.counters(variant.database).get("statements")
    return None if first is None else last - first


def follow(bench, targets, seconds):
    """Creates tasks at the first process. Returns the milliseconds from the creation of each request to its event, at
    readers of the last process."""
    _, selector = open_readers(targets[-1], READERS)
    load = threading.Thread(target=bench.load, args=(targets[:1], 4, {}), kwargs={"seconds": seconds, "rate": PACE})
    load.start()
    late = []
    while load.is_alive():
        for key, _ in selector.select(0.2):
            for event in key.data.events():
                if event.get("event") == "request.created":
                    created = datetime.fromisoformat(event["request"]["created_at"].replace("Z", "+00:00"))
                    late.append((datetime.now(timezone.utc) - created).total_seconds() * 1000)
    load.join()
    return sorted(late)
