"""Measures the statement that finds the earlier calls of a user at a gate (src/store/gate_calls.rs), in tables with
many rows. Postgres itself measures the time while the service asks. So the statement, its parameters and its plan are
those of the service."""

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor

from http_client import Connection, request

# A text that occurs in this statement and in no other.
MARK = "k.call_key"
# For each user with 1,000 own calls: the argument of the measured asks; None if each ask has a new argument.
CASES = {"other arguments": None, "the same arguments": 1, "pending": None}
NEW_KEY = "'b:' || md5(n::text) || md5('second' || n)"
PER_USER = 100


def user_of(case):
    return f"own-{case.replace(' ', '-')}"


def ask(connection, key, user, order, expected=200, **more):
    body = json.dumps({"gate": "waits", "tool": "refund", "arguments": {"order": order, **more}})
    message = request(connection.address, "/v1/gate/calls", body, authorization=f"Bearer {key}", holdpoint_user=user, prefer="wait=0")
    return json.loads(connection.ask(message, expected))["task_id"]


class Fill:
    """Copies calls in the database: the rows in the tables that the statement reads, and for the user's own calls also
    the journals."""

    def __init__(self, postgres, database):
        self.postgres, self.database = postgres, database
        rows = self.sql(
            "select table_name, column_name, data_type from information_schema.columns where table_schema = 'public'"
            " order by table_name, ordinal_position"
        )
        self.columns = {}
        for table, name, kind in rows:
            self.columns.setdefault(table, {})[name] = kind

    def sql(self, text):
        return self.postgres.sql(text, self.database)

    def insert(self, table, task, source, **replaced):
        """Copies the rows of one task, once for each row of `source`. `replaced` has expressions for some columns."""
        names = list(self.columns[table])
        values = [replaced.get(name, f"c.{name}") for name in names]
        self.sql(
            # This session setting skips triggers.
            f"set session_replication_role = replica; insert into {table} ({', '.join(names)})"
            f" select {', '.join(values)} from {table} c, {source} where c.task_id = '{task}'"
        )

    def copy(self, table, task, count, **replaced):
        """Makes copies. A copied id begins with an earlier time and ends with a digest of the id and the copy's number,
        so that all tables agree on it."""
        time_of = "lpad(to_hex(1700000000000 + n), 12, '0') || '7'"
        uuids = [name for name, kind in self.columns[table].items() if kind == "uuid"]
        ids = {name: f"({time_of} || substr(md5(c.{name}::text || n), 14))::uuid" for name in uuids}
        self.insert(table, task, f"generate_series(1, {count}) n", **ids | replaced)

    def copy_others(self, task, first, last):
        """Copies an ended call for many users, in the order of the index. To save time for millions of rows, the ids
        have no digest, and texts that the statement does not read are empty."""
        ids = "(lpad(to_hex(1600000000000 + n), 12, '0') || '70008000000000000000')::uuid as id"
        source = f"(select n, {ids} from (select generate_series({first}, {last}) n) numbers offset 0) s"
        self.insert(
            "agent_task", task, source, task_id="s.id", root_task_id="s.id", agent_version="''", metadata="'{}'", agent_path="'[]'",
            user_id=f"'other-' || lpad((n / {PER_USER})::text, 7, '0')", call_key="'b:' || lpad(to_hex(n), 64, '0')",
        )

    def run(self, tasks, sizes):
        """Copies `tasks`: a call for each case, and an ended and a pending call of other users."""
        # To save time, the tables are not in the write-ahead log, their pages are filled completely, and the indexes
        # are built last. The rows stay the same.
        for table, name in self.sql("select conrelid::regclass, conname from pg_constraint where contype in ('c', 'f') and conrelid <> 0"):
            self.sql(f"alter table {table} drop constraint {name}")
        for table in ("agent_task", "intervention_request"):
            self.sql(f"alter table {table} set (fillfactor = 100); alter table {table} set unlogged")
        indexes = self.sql(
            "select indexname, indexdef from pg_indexes where tablename in ('agent_task', 'intervention_request')"
            " and indexname not in (select conname from pg_constraint where contype = 'p')"
        )
        self.sql("".join(f"drop index {name};" for name, _ in indexes))
        for case, order in CASES.items():
            new_key = {} if order else {"call_key": NEW_KEY}
            self.copy("agent_task", tasks[case], sizes.own - 1, **new_key)
            self.copy("agent_task_item", tasks[case], sizes.own - 1)
            self.copy("intervention_request", tasks[case], sizes.own - 1)
        users = max(1, sizes.rows // PER_USER)
        other = "'other-' || lpad(n::text, 7, '0')"
        self.copy("agent_task", tasks["others pending"], users, user_id=other, call_key=NEW_KEY)
        self.copy("intervention_request", tasks["others pending"], users, gate_user=other)
        half = (sizes.rows - users) // 2
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda range_: self.copy_others(tasks["others"], *range_), [(1, half), (half + 1, 2 * half)]))
        self.sql("set maintenance_work_mem = '1GB';" + ";".join(text for _, text in indexes))
        self.sql("analyze; checkpoint")


def logged(path, begin):
    """Yields the entries of Postgres' log from the offset `begin`: the id of the process, and the text."""
    with open(path, errors="replace") as file:
        file.seek(begin)
        text = file.read()
    for entry in re.split(r"\n(?=\d{4}-\d\d-\d\d )", text):
        head = re.match(r"\S+ \S+ \S+ \[(\d+)\] \w+: +(.*)", entry, re.DOTALL)
        if head:
            yield head[1], head[2]


def statement_times(entries):
    """For each execution of the prepared statement, returns the milliseconds of the whole execution, and the
    milliseconds without the binding of parameters (which also locks the tables)."""
    bound, taken = {}, []
    for process, text in entries:
        found = re.match(r"duration: ([\d.]+) ms  (bind|execute) ", text)
        if not found or MARK not in text:
            continue
        if found[2] == "bind":
            bound[process] = float(found[1])
        else:
            taken.append((bound.pop(process, 0.0) + float(found[1]), float(found[1])))
    return taken


def plans(entries):
    """Returns the milliseconds of each explained execution, and the indexes in the plans."""
    taken, indexes = [], set()
    for _, text in entries:
        found = re.match(r"duration: ([\d.]+) ms  plan:", text)
        if found and MARK in text:
            taken.append(float(found[1]))
            indexes |= set(re.findall(r"Index (?:Only )?Scan(?: Backward)? using (\w+)", text))
            indexes |= {f"all of {name}" for name in re.findall(r"Seq Scan on (\w+)", text)}
    return taken, indexes


def asked(site, key, database, settings, read):
    """Serves the database with these session settings, and asks for each case. Returns the result of `read` for
    Postgres' log of each case."""
    for name, value in settings.items():
        site.postgres.sql(f"alter database {database} set {name} = '{value}'")
    found, log = {}, os.path.join(site.folder, "postgres.log")
    with site.serving(database) as [(address, _)], site.undisturbed(), Connection(address) as connection:
        number = 1000
        for case, order in CASES.items():
            for count in (max(5, site.sizes.asks // 10), site.sizes.asks):  # the first, smaller count warms up
                begin = os.path.getsize(log)
                for _ in range(count):
                    number += 1
                    ask(connection, key, user_of(case), order or number)
            found[case] = read(logged(log, begin))
    for name in settings:
        site.postgres.sql(f"alter database {database} reset {name}")
    return found


def has_auto_explain(postgres):
    try:
        postgres.sql("load 'auto_explain'")
        return True
    except RuntimeError:
        return False


def measure(site, key):
    """Returns for each case the times of the prepared statement, the times of its execution alone and, if Postgres can
    explain them, the times of explained executions. Also returns the indexes that the statement uses."""
    database, tasks = site.new_database("waits_rows"), {}
    with site.serving(database) as [(address, _)], Connection(address) as connection:
        tasks["others"] = ask(connection, key, "others", 1)
        tasks["others pending"] = ask(connection, key, "others", 2, 202, held=True)
        for case in CASES:
            more, expected = ({"held": True}, 202) if case == "pending" else ({}, 200)
            tasks[case] = ask(connection, key, user_of(case), 1, expected, **more)
    Fill(site.postgres, database).run(tasks, site.sizes)
    times = asked(site, key, database, {"log_min_duration_statement": 0}, statement_times)
    explained = {}
    if has_auto_explain(site.postgres):
        settings = {"session_preload_libraries": "auto_explain", "auto_explain.log_min_duration": 0, "auto_explain.log_analyze": "on"}
        explained = asked(site, key, database, settings, plans)
    for case in CASES:
        if len(times[case]) != site.sizes.asks:
            raise RuntimeError(f"Postgres' log has {len(times[case])} look-ups of {site.sizes.asks} asks")
        found = dict(zip(("the prepared statement", "its execution"), zip(*times[case])))
        taken, indexes = explained.get(case, ([], set()))
        if taken:
            found["EXPLAIN (ANALYZE)"] = taken
        yield case, found, sorted(indexes)
