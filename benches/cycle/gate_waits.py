"""Measures gates with proxies, gateways, waiting clients and many rows; scripts/bench --gate-waits runs it. Standard
library only.

A difference is measured between two variants, which the same client calls in turn. Nothing is subtracted from the
figures of a variant."""

import asyncio
import glob
import json
import os
import random
import resource
import statistics
import sys
import threading
import time
from dataclasses import asdict, dataclass, field

import look_up
from gate import judged
from gate_site import AGENTS, PERSON, ROOT, Site, envoy, proposal, tools_call, tools_list
from http_client import Connection, read_answer, request
from machine import MOST_FOREIGN_CORES, cpu_of, free_port, memory_of, processes
from tables import table


@dataclass
class Sizes:
    calls: int = 1000  # the calls of a variant in a round
    decisions: int = 300  # the decisions at each replica in a round
    rows: int = 10_000_000  # the stored calls of other users
    own: int = 1000  # the stored calls of the user
    asks: int = 300  # the measured look-ups
    held: int = 100_000  # the held calls for which no client waits
    warmup: int = 5000  # the held calls before the measurement
    waiting: int = 1000  # the clients that wait at the same time
    ramp: float = 10.0  # the seconds within which all clients begin to wait
    hold: int = 45  # the seconds after which each client asks again
    window: int = 45  # the measured seconds of waiting
    tools: int = 1000
    lists: int = 200  # the lists of these tools in a round
    settle: float = 3.0  # the seconds without load before the memory is read


SMOKE = Sizes(50, 10, 20_000, 50, 20, 300, 100, 20, 0.5, 2, 4, 50, 10, 0.5)


@dataclass
class Row:
    """A goal with its figure in each round, or with the reason why there is none."""

    goal: str
    bound: tuple
    values: list = field(default_factory=list)
    digits: int = 2
    detail: str = ""


def quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def timed(connection, messages, holds):
    """Sends each message and returns the milliseconds until its answer, which must contain `holds`."""
    taken = []
    for message in messages:
        began = time.perf_counter()
        connection.send(message)
        status, body = connection.read()
        taken.append((time.perf_counter() - began) * 1000)
        if status != 200 or holds not in body:
            raise RuntimeError(f"{connection.address} answered {status}: {body[:500].decode(errors='replace')}")
    return taken


def compared(site, goal, bounds, base, ours, holds):
    """Yields rows for the differences of p50 and p99 between two variants. A variant is an address and a function from
    the number of a call to its message."""
    found = {}
    variants = [base, ours]
    with Connection(base[0]) as one, Connection(ours[0]) as other:
        connections, number = [one, other], 0
        for round_number in range(-1, site.rounds):  # round -1 warms up
            for at in (0, 1) if round_number % 2 == 0 else (1, 0):
                count = site.sizes.calls if round_number >= 0 else max(20, site.sizes.calls // 10)
                messages = [variants[at][1](number + each) for each in range(count)]
                number += count
                taken = timed(connections[at], messages, holds)
                if round_number >= 0:
                    found.setdefault(at, []).append((quantile(taken, 0.5), quantile(taken, 0.99)))
    for index, name in enumerate(("p50", "p99")):
        values = [here[index] - there[index] for there, here in zip(found[0], found[1])]
        whole = [statistics.median(each[index] for each in found[at]) for at in (0, 1)]
        yield Row(f"{goal}: {name} difference, ms", ("≤", bounds[index]), values, 2, f"{whole[0]:.2f} and {whole[1]:.2f} ms")


def proxied(site):
    """Compares allowed calls that the service runs at an MCP server with direct calls of that server."""
    with site.serving(site.new_database("waits_proxy")) as [(address, _)], site.undisturbed():
        for tool in ("repeat", "once"):
            def direct(number, tool=tool):
                return tools_call(site.upstream, "/mcp", tool, {"order": number})

            def through(number, tool=tool):
                return tools_call(address, "/mcp/proxy", f"up_{tool}", {"order": number}, authorization=f"Bearer {AGENTS}")

            effect = "idempotent" if tool == "repeat" else "once"
            goal = f"MCP proxy, allowed, `{effect}`, over calling the upstream directly"
            yield from compared(site, goal, (1.2, 3), (site.upstream, direct), (address, through), b'"ran"')


def envoy_program():
    """Returns the path of the Envoy that scripts/gateways installs; None if it is not installed."""
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    found = glob.glob(f"{target}/gateways/python/lib/python*/site-packages/envoy/_bin/envoy")
    return os.environ.get("GATEWAYS_ENVOY") or next(iter(found), None)


def gatewayed(site):
    """Compares allowed calls through Envoy with the filter, and through the same Envoy without the filter."""
    program = envoy_program()
    goal, bounds = "ext_authz, allowed, through Envoy over Envoy without the filter", (1.0, 2.5)
    if not program:
        reason = "left out: Envoy is not installed; run `scripts/gateways install`"
        for name, bound in zip(("p50", "p99"), bounds):
            yield Row(f"{goal}: {name} difference, ms", ("≤", bound), detail=reason)
        return
    plain, filtered = free_port(), free_port()
    with site.serving(site.new_database("waits_envoy")) as [(address, _)], site.undisturbed():
        ports = [int(each.split(":")[1]) for each in (site.upstream, address)]
        user = envoy.always_alice()
        listeners = [envoy.listener(plain, *user), envoy.listener(filtered, *user, envoy.authz("20s"))]
        settings = envoy.envoy_config(listeners, *ports)
        path = os.path.join(site.folder, "envoy.json")
        with open(path, "w") as file:
            json.dump(settings, file)
        command = [program, "-c", path, "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"]
        process = site.spawn(command, "envoy", f"http://127.0.0.1:{filtered}/")
        for tool, effect in (("update", "idempotent"), ("refund", "once")):
            def call(port, tool=tool):
                return f"127.0.0.1:{port}", lambda number: tools_call(f"127.0.0.1:{port}", "/mcp", tool, {"order": number})

            yield from compared(site, f"{goal}, `{effect}`", bounds, call(plain), call(filtered), b'"ran"')
        site.stop([process])


def decided(site):
    """Measures the time from sending an approval to the answer of the waiting client. The time includes the commit of
    the approval."""
    found, sizes = {"same": [], "another": []}, site.sizes
    with site.serving(site.new_database("waits_decided"), replicas=2) as servers, site.undisturbed():
        here, there = (address for address, _ in servers)
        with Connection(here) as person:
            for number in range(site.rounds):
                for replica, address in (("same", here), ("another", there)):
                    with Connection(address) as asker:
                        taken = [decision(person, asker, f"{replica}-{number}-{each}") for each in range(sizes.decisions)]
                    found[replica].append((quantile(taken, 0.5), quantile(taken, 0.99)))
    for replica, bound in (("same", 5), ("another", 50)):
        p50 = statistics.median(each[0] for each in found[replica])
        goal = f"decision to the answer of the waiting asker at {replica if replica == 'another' else 'the same'} replica: p99, ms"
        yield Row(goal, ("≤", bound), [each[1] for each in found[replica]], 1, f"p50 {p50:.1f} ms")


def decision(person, asker, key):
    """Returns the milliseconds from sending an approval to the answer of a client that waits for it."""
    held = json.loads(asker.ask(proposal(asker.address, 1, wait=0, idempotency_key=key), 202))
    path = f"/resume/{held['request']['request_id']}/approve"
    approval = request(person.address, path, "{}", authorization=f"Bearer {PERSON}", prefer="wait=0")
    asker.send(proposal(asker.address, 1, wait=60, idempotency_key=key))
    time.sleep(0.01)  # until the client waits; the answer would be the same after an earlier decision
    began = time.perf_counter()
    person.send(approval)
    status, body = asker.read()
    taken = (time.perf_counter() - began) * 1000
    if status != 200 or json.loads(body)["decision"] != "allow":
        raise RuntimeError(f"an approved call was answered {status}: {body[:500].decode(errors='replace')}")
    person.read()
    return taken


def hold_calls(address, numbers, per_user=20):
    """Proposes held calls, and waits for none of them. Proposes the calls of each user one after another."""
    failed, groups = [], [[number for number in numbers if number // per_user % 16 == at] for at in range(16)]

    def propose(numbers):
        try:
            with Connection(address) as connection:
                for number in numbers:
                    connection.ask(proposal(address, number, user=f"user-{number // per_user}", wait=0), 202)
        except (OSError, RuntimeError) as error:
            failed.append(error)

    threads = [threading.Thread(target=propose, args=(group,)) for group in groups]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    if failed:
        raise failed[0]


def settled_memory(site, pid):
    """Waits until the resident memory hardly changes, because a server gives memory back some seconds after a load.
    Returns it in MiB."""
    time.sleep(site.sizes.settle)
    now = memory_of(pid)
    for _ in range(int(3 * site.sizes.settle)):
        before, _, now = now, time.sleep(1), memory_of(pid)
        if abs(now - before) < 128:
            break
    return now / 1024


def forgotten(site):
    """Measures the memory of held calls for which no client waits."""
    sizes = site.sizes
    with site.serving(site.new_database("waits_held")) as [(address, pid)], site.undisturbed():
        fresh = memory_of(pid) / 1024
        hold_calls(address, range(sizes.warmup))
        before = settled_memory(site, pid)
        began = time.monotonic()
        hold_calls(address, range(sizes.warmup, sizes.warmup + sizes.held))
        rate = sizes.held / (time.monotonic() - began)
        after = settled_memory(site, pid)
    detail = f"{fresh:.1f} MiB at the start, {before:.1f} after {sizes.warmup:,} calls, {after:.1f} at the end; {rate:,.0f} calls/s"
    goal = f"memory after {sizes.held:,} further held calls for which no client waits: change, MiB"
    yield Row(goal, ("≤", 8), [abs(after - before)], 1, detail)


class Waiter:
    """A client with one connection, which asks again after each wait. `legs` counts the waits that are over."""

    def __init__(self, address, surface, number, first, hold):
        self.address, self.surface, self.user = address, surface, f"waiter-{number}"
        self.first, self.hold, self.state, self.legs = first, hold, None, 0

    def message(self, wait):
        if self.surface == "REST":
            return proposal(self.address, 1, user=self.user, wait=wait, idempotency_key="one")
        headers = {"authorization": f"Bearer {AGENTS}", "holdpoint_user": self.user, "prefer": f"wait={wait}"}
        return tools_call(self.address, "/mcp/waits", "refund_here", {"order": 1, "held": True}, self.state, **headers)

    def read(self, status, body):
        """Asserts that an answer says that the call waits."""
        if self.surface == "REST":
            is_pending = status == 202
        else:
            text = body.decode()
            text = next((line[6:] for line in text.splitlines() if line.startswith("data: ")), text)
            self.state = json.loads(text).get("result", {}).get("requestState")
            is_pending = self.state is not None
        if not is_pending:
            raise RuntimeError(f"a held call was answered {status}: {body[:500].decode(errors='replace')}")

    def propose(self, connection):
        connection.send(self.message(0))
        self.read(*connection.read())

    async def run(self, delay):
        await asyncio.sleep(delay)
        host, port = self.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        wait = self.first
        while True:
            writer.write(self.message(wait))
            self.read(*await read_answer(reader))
            self.legs, wait = self.legs + 1, self.hold


async def wait_all(site, database, pid, waiters):
    """Lets all clients wait. Returns the memory meanwhile, and the changes of the counts in the window."""
    def counted():
        [[versions]] = site.postgres.sql("select sum(version) from agent_task", database)
        table = processes()
        cpu = [cpu_of([each], table) for each in (pid, site.postgres.process.pid)]
        return [time.monotonic(), sum(each.legs for each in waiters), int(versions), *cpu]

    running = [asyncio.ensure_future(each.run(at / len(waiters) * site.sizes.ramp)) for at, each in enumerate(waiters)]
    await asyncio.sleep(site.sizes.ramp)
    memory, first = await asyncio.to_thread(settled_memory, site, pid), counted()
    done, _ = await asyncio.wait(running, timeout=site.sizes.window, return_when=asyncio.FIRST_COMPLETED)
    last = counted()
    for each in running:
        each.cancel()
    ended = await asyncio.gather(*running, return_exceptions=True)
    for error in ended:
        if done and isinstance(error, Exception):
            raise error
    return memory, [later - earlier for earlier, later in zip(first, last)]


def waited(site, surface):
    """Measures many clients that wait and ask again after each `hold`."""
    sizes, database = site.sizes, site.new_database(f"waits_{surface.lower()}")
    with site.serving(database) as [(address, pid)], site.undisturbed():
        waiters = [Waiter(address, surface, number, 1 + number % sizes.hold, sizes.hold) for number in range(sizes.waiting)]
        with Connection(address) as connection:
            for each in waiters:
                each.propose(connection)
        random.Random(1).shuffle(waiters)
        hold_calls(address, range(sizes.warmup // 10))
        before = settled_memory(site, pid)
        memory, [seconds, legs, versions, cpu, postgres_cpu] = asyncio.run(wait_all(site, database, pid, waiters))
    updates, hot = site.postgres.task_updates(database)
    name, share = f"{sizes.waiting:,} waiting over {surface}", (memory - before) * 1024 / sizes.waiting
    yield Row(f"{name}: memory of each, KiB", ("≤", 20), [share], 1, f"{before:.1f} and {memory:.1f} MiB")
    name += f", each asking again every {sizes.hold} s"
    detail = f"{legs:,} asks in {seconds:.0f} s; Postgres {postgres_cpu / seconds * 100:.1f} %"
    yield Row(f"{name}: server's CPU, % of a core", ("<", 2), [cpu / seconds * 100], 1, detail)
    # A wait may end between the first and the last count, so the number of writes is not exact.
    yield Row(f"{name}: writes for each leg", ("≤", 2), [round(versions / max(1, legs), 1)], 1)
    yield Row(f"{name}: HOT share of the updates, %", ("≥", 95), [hot / max(1, updates) * 100], 1, f"{updates:,} updates")


def catalogued(site):
    """Measures the list of many tools."""
    found = []
    with site.serving(site.new_database("waits_list")) as [(address, _)], site.undisturbed(), Connection(address) as connection:
        message = tools_list(address, "/mcp/catalogue", authorization=f"Bearer {AGENTS}")
        listed = connection.ask(message, 200)
        if len(json.loads(listed)["result"]["tools"]) != site.sizes.tools:
            raise RuntimeError("the list lacks tools")
        timed(connection, [message] * 10, b"tools")
        for _ in range(site.rounds):
            taken = timed(connection, [message] * site.sizes.lists, b"tools")
            found.append((quantile(taken, 0.5), quantile(taken, 0.99)))
    for index, name in enumerate(("p50", "p99")):
        goal, size = f"`tools/list` of {site.sizes.tools:,} tools: {name}, ms", f"{len(listed) / 1024:.0f} KiB"
        yield Row(goal, ("≤", 5), [each[index] for each in found], 2, size)


def looked_up(site):
    """Measures the look-up of earlier calls in a table with many rows."""
    for case, found, indexes in look_up.measure(site, AGENTS):
        goal = f"look-up with {site.sizes.rows:,} calls of others and {site.sizes.own:,} own ({case})"
        for name, taken in found.items():
            detail = f"p99 {quantile(taken, 0.99):.3f} ms" + (f"; by {', '.join(indexes)}" if "EXPLAIN" in name else "")
            yield Row(f"{goal}: p50 of {name}, ms", ("<", 0.2), [quantile(taken, 0.5)], 3, detail)


PARTS = {
    "MCP proxy": proxied,
    "Envoy": gatewayed,
    "decisions": decided,
    "`tools/list`": catalogued,
    "waiting over REST": lambda site: waited(site, "REST"),
    "waiting over MCP": lambda site: waited(site, "MCP"),
    "held calls": forgotten,
    "look-ups": looked_up,
}
# Exit codes: a part failed, or other processes disturbed the run.
FAILED, REFUSED = 1, 3


def measure(site):
    """Returns the rows of all parts, and the parts that failed."""
    rows, failed = [], []
    for name, part in PARTS.items():
        began = time.monotonic()
        try:
            rows += part(site)
        except (OSError, RuntimeError, asyncio.IncompleteReadError) as error:
            failed.append(f"{name}: {error}")
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return rows, failed


def run(chosen, folder, services, about):
    """Measures all goals and prints them. Returns the exit code."""
    [binary] = services.values()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    site = Site(folder, binary, SMOKE if chosen.smoke else Sizes(), chosen.rounds)
    try:
        site.start()
        about["Postgres"] = site.postgres.sql("show server_version")[0][0]
        print("\n".join(f"{name}: {value}" for name, value in about.items()) + "\n", flush=True)
        rows, failed = measure(site)
    finally:
        site.stop(list(site.running))
    print("## Gates with proxies, gateways and waiting clients\n")
    table(["goal", "figure (bound)", "measured"], [
        [row.goal, judged(row.values, row.bound, row.digits) if row.values else "–", row.detail] for row in rows
    ])
    print(f"Foreign processes used up to {site.foreign:.1f} processors.")
    is_refused = site.foreign > MOST_FOREIGN_CORES and not chosen.smoke
    if chosen.json:
        with open(chosen.json, "w") as file:
            whole = {"about": about, "is_refused": is_refused, "foreign_cores": site.foreign}
            json.dump(whole | {"failed": failed, "rows": [asdict(row) for row in rows]}, file, indent=1)
    for each in failed:
        print(f"FAILED {each}")
    if is_refused:
        print(f"REFUSED: over {MOST_FOREIGN_CORES} processors used by others. These figures prove nothing.")
    return FAILED if failed else REFUSED if is_refused else 0
