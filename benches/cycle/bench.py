"""Measures the service's cycle against ceilings on this machine; scripts/bench runs it. Standard library only.

Each round measures every variant once, the next round in the reverse order, so that a machine that becomes slower
harms all of them alike. A ratio compares two measurements of one round; tables show the median and the spread of the
rounds. Every measurement begins with fresh servers and an empty database (but for --growth).
"""

import argparse
import hashlib
import itertools
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request

import claims
import gate
import gate_waits
import messages
from machine import MOST_FOREIGN_CORES, CountingProxy, Load, Postgres, Process, free_port, memory_of, status_of
from tables import spread, table

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
KEY = "bench-key-of-32-characters-0001"
# The keys of further people, each with the number of the person's tasks. The paused tasks of --growth belong to another
# person.
OTHERS = {"bench-key-of-32-characters-0002": 3, "bench-key-of-32-characters-0003": 50, "bench-key-of-32-characters-0004": 0}
# The lists and pages whose reads are timed while the database holds all of these tasks.
READS = [
    "/v1/requests", "/v1/requests?kind=guidance", "/v1/requests?status=responded", "/v1/tasks", "/v1/tasks?status=Completed",
    "/inbox", "/inbox/decided", "/tasks", "/metrics",
]
# The time in the ids of copied tasks, in milliseconds, to which a copy's number is added. Its upper bits mark the copies.
FIRST_COPY = 0x18BCF000000
INPUT = "Please refund order A-1001, the customer was charged twice (42.50 EUR)."
# The limit of the drift (see `drift_of`) above which a run is refused.
MOST_DRIFT = 0.15


def options():
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Measures the cycle against ceilings.")
    parser.add_argument(
        "--binary", default="", metavar="[NAME=]PATH,…", help="built services to compare, instead of building one"
    )
    parser.add_argument("--conc", metavar="N,…", help="cycles at once (default 1,64,256)")
    parser.add_argument("--ceilings", metavar="MODE,…", help="pg3, batch3, batch5, sqlite5 (default batch3,batch5); batch5:4 has 4 writers")
    parser.add_argument("--sqlite", action="store_true", help="the service on SQLite, against sqlite5")
    parser.add_argument("--replicas", type=int, default=1, metavar="N", help="also N processes on one database")
    parser.add_argument("--growth", type=int, default=0, metavar="ROWS", help="also a database with ROWS paused tasks")
    parser.add_argument("--ended", type=int, default=0, metavar="ROWS", help="with --growth: ROWS ended tasks beside the paused ones")
    parser.add_argument("--messages", action="store_true", help="webhooks, and rows and streams of the inbox, instead of ceilings")
    parser.add_argument("--gate", action="store_true", help="calls at a gate against bare handlers, with the goals (default --conc 1,64)")
    parser.add_argument("--gate-waits", action="store_true", help="gates behind proxies and gateways, with waiting clients and many rows, with the goals")
    parser.add_argument("--seconds", type=float, metavar="S", help="the length of a measurement (default 3)")
    parser.add_argument("--rounds", type=int, metavar="N", help="the number of rounds (default 3)")
    parser.add_argument("--json", metavar="FILE", help="also write every measurement to a file")
    parser.add_argument("--smoke", action="store_true", help="only show that every variant works, in seconds")
    chosen = parser.parse_args()
    if chosen.sqlite and chosen.replicas > 1:
        parser.error("--replicas needs Postgres")
    if chosen.ended and (chosen.sqlite or not chosen.growth):
        parser.error("--ended needs --growth, on Postgres")
    if chosen.gate and (chosen.sqlite or chosen.messages or chosen.ceilings or chosen.growth or chosen.replicas > 1):
        parser.error("--gate has its own ceilings on Postgres, and no other mode beside it")
    if chosen.gate_waits and (chosen.gate or chosen.sqlite or chosen.messages or chosen.ceilings or chosen.growth or chosen.conc or "," in chosen.binary):
        parser.error("--gate-waits measures one service on Postgres with its own baselines, and no other mode beside it")
    chosen.warmup = 0.3 if chosen.smoke else 1.0
    chosen.seconds = chosen.seconds or (0.7 if chosen.smoke else 3.0)
    chosen.rounds = chosen.rounds or (1 if chosen.smoke else 3)
    chosen.conc = [int(each) for each in (chosen.conc or ("1,64" if chosen.gate else "8" if chosen.smoke else "1,64,256")).split(",")]
    everything = "pg3,batch3,batch5,sqlite5" if chosen.smoke else "sqlite5" if chosen.sqlite else "batch3,batch5"
    everything = "" if chosen.messages else ",".join(gate.BARE) if chosen.gate else everything
    chosen.ceilings = list(filter(None, (chosen.ceilings or everything).split(",")))
    return chosen


def build(manifest, profile):
    """Builds a workspace. Returns the folder of its programs."""
    cargo = ["cargo", "build", "--quiet", "--locked", "--bins", "--profile", profile, "--manifest-path", manifest]
    subprocess.run(cargo, check=True, cwd=ROOT)
    metadata = ["cargo", "metadata", "--locked", "--no-deps", "--format-version", "1", "--manifest-path", manifest]
    text = subprocess.run(metadata, check=True, cwd=ROOT, capture_output=True, text=True).stdout
    return os.path.join(json.loads(text)["target_directory"], profile)


class Variant:
    """A server to measure. `ceiling` is a mode of the ceiling; `binary` is a built service. `settings` are texts that
    are appended to its configuration: the last text for the measurement, the texts before it to fill the database.
    `call` is the tool of a call at a gate and the expected decision; None if a cycle is measured. `sql` are statements
    that Postgres runs once the server is ready."""

    def __init__(self, name, ceiling=None, binary=None, sqlite=False, replicas=1, growth=0, ended=0, settings=("",), call=None, sql=None):
        self.name, self.ceiling, self.binary, self.settings, self.sql = name, ceiling, binary, settings, sql
        self.sqlite, self.replicas, self.growth, self.ended, self.call = sqlite, replicas, growth, ended, call
        self.is_filled = False
        # With growth: the bytes of the database that a paused task takes.
        self.bytes_of_task = None

    @property
    def database(self):
        return "bench_" + "".join(letter if letter.isalnum() else "_" for letter in self.name.lower())


def variants(chosen, services):
    found = [
        Variant(f"ceil-{mode}", ceiling=mode, sqlite=mode.startswith("sqlite"), call=gate.BARE.get(mode))
        for mode in chosen.ceilings
    ]
    for name, binary in services.items():
        if chosen.gate:
            found += [Variant(f"{name}, {case}", binary=binary, call=call) for case, call in gate.CASES.items()]
            continue
        if chosen.messages:
            for label, texts in messages.SETTINGS.items():
                sql = messages.SQL.get(label)
                if not (sql and chosen.sqlite):
                    found.append(Variant(f"{name}, {label}", binary=binary, sqlite=chosen.sqlite, settings=texts, sql=sql))
            continue
        if chosen.smoke or not chosen.sqlite:
            found.append(Variant(name, binary=binary))
        if chosen.smoke or chosen.sqlite:
            found.append(Variant(f"{name}, SQLite", binary=binary, sqlite=True))
        if chosen.replicas > 1:
            found.append(Variant(f"{name}, {chosen.replicas} replicas", binary=binary, replicas=chosen.replicas))
        if chosen.growth:
            label = f"{name}, {chosen.growth} paused" + (f", {chosen.ended} ended" if chosen.ended else "")
            found.append(Variant(label, binary=binary, sqlite=chosen.sqlite, growth=chosen.growth, ended=chosen.ended))
    return found


class Bench:
    def __init__(self, chosen, folder, programs):
        self.chosen, self.folder, self.programs = chosen, folder, programs
        self.running = []
        self.number = 0
        self.postgres = None
        self.model, self.receiver = (f"127.0.0.1:{free_port()}" for _ in range(2))

    def start(self, needs_postgres):
        if needs_postgres:
            self.postgres = Postgres(self.folder)
            self.running.append(self.postgres.process)
        command = [f"{self.programs}/fake-model", "--listen", self.model]
        self.fake = self.spawn(command, "fake-model", f"http://{self.model}/stats")
        if self.chosen.messages:
            # The receiver has its own process, so that the CPU time of the fake model stays comparable.
            command = [f"{self.programs}/fake-model", "--listen", self.receiver]
            self.spawn(command, "receiver", f"http://{self.receiver}/stats")

    def spawn(self, command, name, url, **options):
        process = Process(command, os.path.join(self.folder, f"{name}.log"), **options)
        self.running.append(process)
        process.wait_until(lambda: status_of(url) in (200, 404))
        return process

    def stop(self, processes):
        for process in reversed(processes):
            process.stop()
            self.running.remove(process)

    def stop_all(self):
        self.stop(list(self.running))

    def prepare(self, variant):
        """Makes the variant's database. Returns its URL; on SQLite, its file."""
        if variant.sqlite:
            if variant.growth and variant.is_filled:
                return os.path.join(self.folder, "growth.db")
            self.number += 1
            database = os.path.join(self.folder, "growth.db" if variant.growth else f"{self.number}.db")
            if variant.growth:
                self.fill_sqlite(variant, database)
            messages.fill(self, variant, database)
            return database
        if variant.growth and not variant.is_filled:
            self.fill(variant)
        elif not variant.growth:
            self.postgres.create(variant.database)
            messages.fill(self, variant, self.postgres.url(variant.database))
        self.postgres.sql("checkpoint")
        return self.postgres.url(variant.database)

    def configuration(self, variant, settings):
        """Returns the file of the service's configuration with these settings appended."""
        if variant.call:
            return os.path.join(HERE, "gate.yaml")
        if not settings:
            return os.path.join(HERE, "holdpoint.yaml")
        path = os.path.join(self.folder, "holdpoint.yaml")
        with open(os.path.join(HERE, "holdpoint.yaml")) as common, open(path, "w") as file:
            file.write(common.read() + settings)
        return path

    def number_of(self, variant, database, sql):
        """Returns the number that a statement returns, on either engine."""
        if variant.sqlite:
            with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
                return connection.execute(sql).fetchone()[0]
        return int(self.postgres.sql(sql, variant.database)[0][0])

    def serve(self, variant, database, settings=None):
        """Starts the variant's processes. Returns them, and their addresses."""
        configuration = self.configuration(variant, variant.settings[-1] if settings is None else settings)
        started, targets = [], []
        for _ in range(variant.replicas):
            address = f"127.0.0.1:{free_port()}"
            if variant.ceiling:
                mode, _, writers = variant.ceiling.partition(":")
                command = [f"{self.programs}/ceiling", "--mode", mode, "--writers", writers, "--database", database]
                command += ["--listen", address, "--model", self.model]
            else:
                command = [variant.binary, "serve", "--config", configuration]
            url = f"sqlite://{database}" if variant.sqlite else database
            environment = {"BENCH_LISTEN": address, "BENCH_DATABASE": url, "BENCH_MODEL": self.model, "BENCH_RECEIVER": self.receiver}
            # Waits until the process is ready, so that the next replica starts after the migrations.
            started.append(
                self.spawn(command, "server", f"http://{address}/readyz", cwd=self.folder, env=os.environ | environment)
            )
            targets.append(address)
        if variant.sql:
            self.postgres.sql(variant.sql, variant.database)
        return started, targets

    def pause_one(self, variant, database):
        """Creates one paused task in a new database. Returns the id of its request."""
        started, targets = self.serve(variant, database)
        task = self.fetch(targets[0], "/v1/tasks", KEY, {"input": INPUT})
        assert task["status"] == "Paused"
        self.stop(started)
        return task["pending"][0]["request_id"]

    def complete_one(self, variant, database, request_id):
        """Approves the call of the task that `pause_one` made."""
        started, targets = self.serve(variant, database)
        assert self.fetch(targets[0], f"/resume/{request_id}", KEY, {"action": "approve"})["status"] == "Completed"
        self.stop(started)

    def fetch(self, target, path, key, body=None):
        """Reads a path; posts a body if there is one. Returns the answer's JSON."""
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json", "accept": "application/json"}
        sent = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(f"http://{target}{path}", sent, headers)) as answer:
            return json.load(answer)

    def fill(self, variant):
        """Copies one paused task into many; then completes it, and copies it into the ended ones."""
        self.postgres.create(variant.database)
        url = self.postgres.url(variant.database)
        request_id = self.pause_one(variant, url)
        size = "select pg_database_size(current_database())"
        before = self.number_of(variant, variant.database, size)
        self.copy(variant, 1, variant.growth)
        self.postgres.sql("vacuum analyze", variant.database)
        variant.bytes_of_task = (self.number_of(variant, variant.database, size) - before) / variant.growth
        if variant.ended:
            self.complete_one(variant, url, request_id)
            # No list, claim or count reads the journal, which would be most of the bytes.
            self.copy(variant, variant.growth + 1, variant.ended, without={"agent_task_item"})
            self.postgres.sql("vacuum analyze", variant.database)
        variant.is_filled = True

    def copy(self, variant, first, count, without=()):
        """Copies the rows that are no copies, in every table whose rows have ids. A copied id begins with an earlier time
        and ends with a digest of the id and the copy's number, so that all tables agree on it."""
        columns = self.postgres.sql(
            "select table_name, column_name, data_type from information_schema.columns"
            " where table_schema = 'public' order by table_name, ordinal_position",
            variant.database,
        )
        for table in dict.fromkeys(row[0] for row in columns):
            kinds = {row[1]: row[2] for row in columns if row[0] == table}
            ids = [name for name, kind in kinds.items() if kind == "uuid"]
            if not ids or table in without:
                continue
            time_of = f"lpad(to_hex({FIRST_COPY} + n), 12, '0') || '7'"
            values = [f"({time_of} || substr(md5(c.{name}::text || n), 14))::uuid" if name in ids else f"c.{name}" for name in kinds]
            is_copy = " or ".join(f"left(c.{name}::text, 6) = '{FIRST_COPY >> 24:06x}'" for name in ids)
            self.postgres.sql(
                # This session setting skips triggers and checks of foreign keys.
                f"set session_replication_role = replica; insert into {table} ({', '.join(kinds)}) select {', '.join(values)}"
                f" from (select * from {table} c where ({is_copy}) is not true) c, generate_series({first}, {first + count - 1}) n",
                variant.database,
            )

    def fill_sqlite(self, variant, database):
        """Like `fill`, for SQLite."""
        self.pause_one(variant, database)
        before = os.path.getsize(database)

        def copied(value, number):
            if value is None:
                return None
            time_of = (FIRST_COPY + number).to_bytes(6, "big")
            return time_of + b"\x70" + hashlib.md5(value + number.to_bytes(8, "big")).digest()[:9]

        with sqlite3.connect(database) as connection:
            triggers = []
            connection.create_function("copied", 2, copied, deterministic=True)
            tables = [row[0] for row in connection.execute("select name from sqlite_schema where type = 'table'")]
            for (trigger,) in connection.execute("select sql from sqlite_schema where type = 'trigger'").fetchall():
                connection.execute(f"drop trigger {trigger.split()[2]}")
                triggers.append(trigger)
            for table in tables:
                kinds = {row[1]: row[2] for row in connection.execute(f"pragma table_info({table})")}
                ids = [name for name, kind in kinds.items() if kind == "BLOB" and name.endswith("_id")]
                if not ids:
                    continue
                values = [f"copied(c.{name}, n)" if name in ids else f"c.{name}" for name in kinds]
                connection.execute(
                    "with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < ?)"
                    f" insert into {table} ({', '.join(kinds)}) select {', '.join(values)} from {table} c, numbers",
                    (variant.growth,),
                )
            for trigger in triggers:
                connection.execute(trigger)
        connection.execute("analyze")
        connection.close()
        variant.bytes_of_task = (os.path.getsize(database) - before) / variant.growth
        variant.is_filled = True

    def measure(self, variant, concurrency):
        """Prepares the variant's database, runs the load once, and returns the figures."""
        database = self.prepare(variant)
        updates = [0, 0] if variant.sqlite else self.postgres.task_updates(variant.database)
        started, targets = self.serve(variant, database)
        idle_memory = memory_of(started[0].pid)
        groups = {
            "server": [process.pid for process in started],
            "postgres": [self.postgres.process.pid] if self.postgres else [],
            "model": [self.fake.pid],
        }
        counted = {} if variant.sqlite else self.postgres.counters(variant.database)
        if self.chosen.messages:
            messages.lags(self)
        load = self.load(targets, concurrency, groups, call=variant.call)
        per_cycle = {}
        if self.chosen.messages:
            per_cycle["received"] = messages.lags(self)["received"] / load.report["finished"]
        if not variant.sqlite:
            after = self.postgres.counters(variant.database)
            per_cycle |= {name: (after[name] - counted[name]) / load.report["finished"] for name in counted}
        memory = memory_of(started[0].pid)
        self.stop(started)
        if not variant.sqlite:
            after = self.postgres.task_updates(variant.database)
            all_updates, hot = after[0] - updates[0], after[1] - updates[1]
            per_cycle["hot_share"] = hot / all_updates if all_updates else None
        report, used = load.report, load.used
        per_thousand = 1000 / report["cycles"]
        requests = report["requests"].items()
        latencies = {f"{request}_{quantile}_ms": time for request, times in requests for quantile, time in times.items()}
        return per_cycle | latencies | {
            "variant": variant.name,
            "concurrency": concurrency,
            "cycles_per_second": report["cycles"] / report["seconds"],
            "server_cpu_s_per_1000": used["server"] * per_thousand,
            "postgres_cpu_s_per_1000": used["postgres"] * per_thousand,
            "model_cpu_us": used["model_us"] / max(1, used["model_cycles"]),
            "idle_memory_mib": idle_memory / 1024,
            "memory_mib": memory / 1024,
            "foreign_cores": max(0.0, used["others"] / report["seconds"]),
        }

    def load(self, targets, concurrency, groups, seconds=None, rate=0, call=None):
        program, seconds = f"{self.programs}/load", seconds or self.chosen.seconds
        load = Load(program, targets, concurrency, seconds, self.chosen.warmup, groups, self.model, rate, call)
        if load.report["errors"] or not load.report["cycles"]:
            raise RuntimeError(f"{load.report['errors']} cycles failed, the first with: {load.report['first_error']}")
        return load

    def count(self, variant):
        """Counts the messages to Postgres in each cycle. Runs one cycle at a time."""
        self.prepare(variant)
        proxy = CountingProxy(self.postgres.port)
        started, targets = self.serve(variant, self.postgres.url(variant.database, proxy.port))
        before = proxy.counted()
        since = self.postgres.log_position()
        load = self.load(targets, 1, {}, call=variant.call)
        after = proxy.counted()
        self.stop(started)
        cycles = load.report["finished"]
        messages = {name: (after[name] - before[name]) / cycles for name in before}
        log = self.postgres.log_by_table(variant.database, since)
        parts = {
            " ".join((table, "index" if is_index else "")).strip(): [size / cycles, records / cycles]
            for (table, is_index), (size, records) in log.items()
        }
        return messages | {"log": parts}

    def reads(self, variant):
        """Measures the time of lists and pages while the database holds the paused tasks: for their owner and for other
        people. On Postgres, also measures the time of claims."""
        started, targets = self.serve(variant, self.prepare(variant))

        def read(path, key):
            headers = {"authorization": f"Bearer {key}"}
            with urllib.request.urlopen(urllib.request.Request(f"http://{targets[0]}{path}", headers=headers)) as answer:
                answer.read()

        for key, count in OTHERS.items():
            for _ in range(count):
                self.fetch(targets[0], "/v1/tasks", key, {"input": INPUT})
        timed = []
        for path in READS:
            for key, person in ({KEY: "all"} | OTHERS).items():
                times = []
                for _ in range(200):
                    began = time.perf_counter()
                    read(path, key)
                    times.append((time.perf_counter() - began) * 1000)
                times.sort()
                timed.append([f"GET {path}", str(person), f"{times[99]:.1f}", f"{times[197]:.1f}", f"{times[-1]:.1f}"])
        self.stop(started)
        return timed if variant.sqlite else timed + claims.measure(self, variant)


RATIOS = {
    "cycles/s": "cycles_per_second",
    "create p50": "create_p50_ms",
    "p99": "create_p99_ms",
    "CPU server": "server_cpu_s_per_1000",
    "CPU Postgres": "postgres_cpu_s_per_1000",
}
FIGURES = {
    "cycles/s": ("cycles_per_second", 0),
    "create p50 ms": ("create_p50_ms", 2),
    "p99": ("create_p99_ms", 2),
    "approve p50 ms": ("approve_p50_ms", 2),
    "p99 ": ("approve_p99_ms", 2),
    "server CPU s/1,000": ("server_cpu_s_per_1000", 3),
    "Postgres CPU s/1,000": ("postgres_cpu_s_per_1000", 3),
    "statements": ("statements", 2),
    "commits": ("commits", 2),
    "WAL bytes": ("wal", 0),
    "HOT share": ("hot_share", 2),
    "messages": ("received", 2),
    "idle MiB": ("idle_memory_mib", 1),
    "memory MiB": ("memory_mib", 1),
}


def print_tables(measured, found, concurrency):
    """Prints the ratios to each ceiling and to the first service, and the figures behind them."""
    def values(variant, name):
        return [one.get(name) for one in measured if (one["variant"], one["concurrency"]) == (variant.name, concurrency)]

    def ratio(variant, base, name):
        pairs = zip(values(variant, name), values(base, name))
        return spread([ours / theirs for ours, theirs in pairs if ours and theirs])

    services = [variant for variant in found if not variant.ceiling]
    ceilings = [variant for variant in found if variant.ceiling]
    print(f"## {concurrency} at once\n")
    table(["ratio", *RATIOS], [
        [f"{variant.name} / {base.name}"] + [ratio(variant, base, name) for name in RATIOS.values()]
        for place, variant in enumerate(services) for base in ceilings + services[:place]
    ])
    figures = {head: figure for head, figure in FIGURES.items() if any(figure[0] in one for one in measured)}
    table(["a cycle", *figures], [
        [variant.name] + [spread(values(variant, name), digits) for name, digits in figures.values()] for variant in found
    ])


def drift_of(measured, is_gate):
    """Returns the largest drift of a variant: the relative change, between rounds, of the fake model's CPU time for a
    cycle. Calls at a gate need no model, so for them the CPU time of the bare handlers counts."""
    name, groups = "server_cpu_s_per_1000" if is_gate else "model_cpu_us", {}
    for one in measured:
        if not is_gate or one["variant"].startswith("ceil-"):
            groups.setdefault((one["variant"], one["concurrency"]), []).append(one[name])
    return max((max(times) / min(times) - 1 if min(times) else 0, *key) for key, times in groups.items())


def memory_latency():
    """Returns the latency of a processor's own cache, and of a cache that other machines on the same hardware may share."""
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "memory-latency")
        # Calls rustc and not cargo, because the program needs no package, and --gate-waits builds none.
        subprocess.run(["rustc", "--edition", "2024", "-O", "-o", program, os.path.join(HERE, "memory_latency.rs")], check=True, cwd=ROOT)
        return subprocess.run([program, "256", "4096"], check=True, capture_output=True, text=True).stdout.strip()


def describe(services, is_built):
    def output(*command):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip()

    commit = output("git", "describe", "--always", "--dirty", "--exclude=*")
    with open("/proc/cpuinfo") as file:
        models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return {
        "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "machine": f"{os.cpu_count()} × {models[0] if models else os.uname().machine}, Linux {os.uname().release}",
        "load before": f"{os.getloadavg()[0]:.1f}",
        "memory": memory_latency(),
        "service": f"commit {commit}, profile dist" if is_built else ", ".join(f"{n}: {p}" for n, p in services.items()),
    }


def services_of(chosen):
    """Returns the services to measure, by name, and a description of the run."""
    services = {}
    for each in filter(None, chosen.binary.split(",")):
        name, _, path = each.rpartition("=")
        services[name or "holdpoint"] = os.path.abspath(path)
    is_built = not services
    if is_built:
        services = {"holdpoint": os.path.join(build(os.path.join(ROOT, "Cargo.toml"), "dist"), "holdpoint")}
    return services, describe(services, is_built)


def measure_rounds(bench, found, concurrency):
    """Measures all rounds of a concurrency, and repeats disturbed rounds (see `disturbed_round`), at most as many as were
    asked for. Returns the measurements, and the number of rounds that a repetition replaced."""
    chosen, rounds, replaced = bench.chosen, {}, 0

    def measure(number):
        rounds[number] = []
        for variant in found if number % 2 == 0 else reversed(found):
            one = bench.measure(variant, concurrency) | {"round": number}
            rounds[number].append(one)
            cycles = "calls/s" if variant.call else f"cycles/s, model {one['model_cpu_us']:.0f} µs"
            print(
                f"round {number + 1} of {chosen.rounds}, {concurrency} at once: {variant.name}:"
                f" {one['cycles_per_second']:.0f} {cycles},"
                f" foreign processes {one['foreign_cores']:.1f} cores",
                file=sys.stderr,
            )

    if not chosen.smoke:
        measure(-1)  # warms the machine up
        del rounds[-1]
    for number in range(chosen.rounds):
        measure(number)
    while not chosen.smoke and replaced < chosen.rounds and (number := disturbed_round(rounds, chosen.gate)) is not None:
        measure(number)
        replaced += 1
    return list(itertools.chain.from_iterable(rounds.values())), replaced


def disturbed_round(rounds, is_gate):
    """Returns the number of the round without which the drift is smallest; None if the drift is within its limit. Only
    the drift selects a round, not the figures of the services."""
    def drift_without(number):
        return drift_of([one for other, measured in rounds.items() if other != number for one in measured], is_gate)[0]

    if len(rounds) < 2 or drift_without(None) <= MOST_DRIFT:
        return None
    return min(rounds, key=drift_without)


def run(chosen, folder):
    programs = build(os.path.join(HERE, "Cargo.toml"), "release")
    services, about = services_of(chosen)
    found = variants(chosen, services)
    bench = Bench(chosen, folder, programs)
    measured, counted, reads, replaced = [], {}, {}, 0
    try:
        bench.start(needs_postgres=not all(variant.sqlite for variant in found))
        if bench.postgres:
            about["Postgres"] = bench.postgres.sql("show server_version")[0][0]
        print("\n".join(f"{name}: {value}" for name, value in about.items()) + "\n", flush=True)
        for concurrency in chosen.conc:
            kept, replaced_here = measure_rounds(bench, found, concurrency)
            measured += kept
            replaced += replaced_here
        if chosen.messages:
            messages.measure(bench, found)
        for variant in found:
            if not variant.sqlite and not variant.growth and variant.replicas == 1:
                counted[variant.name] = bench.count(variant)
            if variant.growth:
                reads[variant.name] = bench.reads(variant)
    finally:
        bench.stop_all()
    return about, services, found, measured, counted, reads, replaced


def main():
    chosen = options()
    # The end of the terminal session or a `kill` ends the servers, too.
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, lambda *_: sys.exit("bench: ended by a signal"))
    folder = tempfile.mkdtemp(prefix="holdpoint-bench-")
    os.chmod(folder, 0o711)  # the account of Postgres may enter the folder
    try:
        if chosen.gate_waits:
            sys.exit(gate_waits.run(chosen, folder, *services_of(chosen)))
        about, services, found, measured, counted, reads, replaced = run(chosen, folder)
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        sys.exit(f"bench: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for concurrency in chosen.conc:
        if chosen.gate:
            gate.print_tables(measured, found, services, concurrency)
        else:
            print_tables(measured, found, concurrency)
    unit = "call" if chosen.gate else "cycle"
    if counted:
        print(f"## Messages to Postgres for a {unit}, one {unit} at a time\n")
        table([f"a {unit}", "statements", "pings"], [
            [name, f"{each['statements']:.2f}", f"{each['pings']:.2f}"] for name, each in counted.items()
        ])
        for name, each in counted.items():
            print(f"## The write-ahead log of a {unit}, one {unit} at a time: {name}\n")
            parts = sorted(each["log"].items(), key=lambda part: -part[1][0])
            indexes = [counts for part, counts in parts if part.endswith(" index")]
            for part, of in (("all indexes", indexes), ("all", each["log"].values())):
                parts.append((part, [sum(counts[column] for counts in of) for column in (0, 1)]))
            table(["part", "bytes", "records"], [[part, f"{size:,.0f}", f"{records:.1f}"] for part, (size, records) in parts])
    for name, timed in reads.items():
        print(f"## Lists and claims: {name}, 200 times each\n")
        table(["list or claim", "the caller's tasks", "p50 ms", "p99 ms", "longest"], timed)
    for variant in found:
        if variant.bytes_of_task is not None:
            print(f"{variant.name}: a paused task takes {variant.bytes_of_task:,.0f} bytes of the database.\n")
    drift, variant, concurrency = drift_of(measured, chosen.gate)
    program = "a bare handler" if chosen.gate else "the fake model"
    print(f"Drift: {program}'s CPU time for a {unit} moved by {drift:.0%} at most ({variant}, {concurrency} at once).")
    foreign = max(one["foreign_cores"] for one in measured)
    print(f"Foreign processes used up to {foreign:.1f} processors. {replaced} rounds were measured again.")
    is_refused = (drift > MOST_DRIFT or foreign > MOST_FOREIGN_CORES) and not chosen.smoke
    if chosen.json:
        with open(chosen.json, "w") as file:
            whole = {"about": about, "is_refused": is_refused, "drift": drift, "foreign_cores": foreign, "replaced_rounds": replaced, "measured": measured, "counted": counted, "reads": reads}
            json.dump(whole, file, indent=1)
    if is_refused:
        print(
            f"REFUSED: a drift over {MOST_DRIFT:.0%}, or over {MOST_FOREIGN_CORES} processors used by others."
            " The machine did other work meanwhile; these figures prove nothing."
        )
        sys.exit(3)


if __name__ == "__main__":
    main()
