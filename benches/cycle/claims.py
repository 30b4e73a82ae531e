"""Times claims of queued tasks (src/store/claim_statement.rs) among many others. Postgres runs the statement of the
service, whose text is in the log of Postgres. Each execution commits, as the worker's does."""

import os
import re
import time

from look_up import logged

QUEUED, CLAIMS, FIRST = 200_000, 200, 20
# The settings `PLANNED_ONCE` of src/store/open.rs.
PLANNED_ONCE = {"plan_cache_mode": "force_generic_plan"} | dict.fromkeys(
    (f"enable_{name}" for name in ("seqscan", "bitmapscan", "hashjoin", "mergejoin", "material")), "off"
)
# Queues tasks of 7,000 users of seven tenants beside those of the database.
FILL = f"""
set session_replication_role = replica;  -- skips triggers
insert into claimable_task (task_id, tenant, user_id, due_at, alone)
    select gen_random_uuid(), 't' || n % 7, 'u' || n % 1000, 0, false from generate_series(1, {QUEUED}) n;
insert into agent_task select (x.t).* from (
    select jsonb_populate_record(t, jsonb_build_object('task_id', c.task_id, 'root_task_id', c.task_id, 'tenant', c.tenant,
            'user_id', c.user_id, 'status', 'Running', 'phase', 'queued')) as t
      from agent_task t, claimable_task c where t.task_id = (select task_id from agent_task limit 1) and c.tenant ~ '^t[0-6]$') x;
vacuum analyze"""


def statement(bench, variant):
    """Returns the text of the statement by which the worker of a service claims."""
    log = os.path.join(bench.folder, "postgres.log")
    begin, deadline = os.path.getsize(log), time.monotonic() + 60
    bench.postgres.sql(f"alter database {variant.database} set log_min_duration_statement = 0")
    started, _ = bench.serve(variant, bench.postgres.url(variant.database))
    try:
        while time.monotonic() < deadline:
            for _, text in logged(log, begin):
                found = re.match(r"duration: [\d.]+ ms  execute \S+: (.*\bover as \(.*)", text, re.DOTALL)
                if found:
                    return found[1]
            time.sleep(0.2)
        raise RuntimeError("the service claims no task")
    finally:
        bench.stop(started)
        bench.postgres.sql(f"alter database {variant.database} reset log_min_duration_statement")


def measure(bench, variant):
    """Queues tasks. Returns a row of the table of lists for claims of one task, and for claims of 64."""
    text, rows = statement(bench, variant), []
    bench.postgres.sql(FILL, variant.database)
    for tasks in (1, 64):
        prepare = "".join(f"set {name} = {value};\n" for name, value in PLANNED_ONCE.items()) + f"prepare claim as {text};\n"
        execute = f"execute claim (0, 'bench', 30000000, {tasks}, 't3', '[]', true);\n"
        lines = bench.postgres.sql("\\timing on\n" + prepare + execute * (FIRST + CLAIMS), variant.database)
        times = [float(line[0].split()[1]) for line in lines if line[0].startswith("Time: ")]
        if sum(len(line) == 7 and line[3] == "t" for line in lines) != tasks * (FIRST + CLAIMS):
            raise RuntimeError(f"a claim of {tasks} took fewer")
        times = sorted(times[-CLAIMS:])
        rows.append([f"claim of {tasks} among {QUEUED:,} queued", "–", f"{times[99]:.1f}", f"{times[197]:.1f}", f"{times[-1]:.1f}"])
    return rows
