"""Compares calls at a gate with bare handlers; scripts/bench --gate runs it. Standard library only.

The service and the bare handlers of src/ceiling/gate.rs answer the same requests. The tools and the rules are in
gate.yaml.
"""

import operator
import statistics

from tables import spread, table

# For each case: the tool that is called, and the expected decision.
CASES = {
    "allowed": ("update_order", "allow"),
    "once": ("refund_order", "allow"),
    "denied": ("delete_order", "deny"),
    "record: held": ("read_order", "allow"),
}
# For each bare handler: the tool that is called, and the expected decision. A bare handler allows
# every call.
BARE = {"gate0": ("read_order", "allow"), "gate1": ("update_order", "allow"), "gate1once": ("refund_order", "allow")}
# Pairs of a case, and the bare handler or the other case with which the case is compared. Both answer the same calls.
PAIRS = [
    ("allowed", "gate1"), ("once", "gate1once"), ("once", "allowed"), ("denied", "gate1"), ("record: held", "gate0"),
]
RATE, RATIO, P50, P99 = "calls/s", "calls/s ratio", "p50 difference ms", "p99 difference ms"
# The goals. A key has a pair of `PAIRS`, a number of concurrent calls and a figure. The value is the minimum or maximum
# of the figure.
GOALS = {}
for pair in [("allowed", "gate1"), ("denied", "gate1")]:
    GOALS |= {(*pair, 1, P50): ("≤", 0.5), (*pair, 1, P99): ("≤", 1.5), (*pair, 64, RATIO): ("≥", 0.7)}
GOALS[("once", "allowed", 1, P50)] = ("≤", 0.3)
GOALS |= {("record: held", "gate0", 1, P50): ("≤", 0.2), ("record: held", "gate0", 64, RATE): ("≥", 20_000)}
FIGURES = {
    RATE: ("cycles_per_second", 0),
    "p50 ms": ("call_p50_ms", 2),
    "p99 ms": ("call_p99_ms", 2),
    "server CPU s/1,000": ("server_cpu_s_per_1000", 3),
    "Postgres CPU s/1,000": ("postgres_cpu_s_per_1000", 3),
    "statements": ("statements", 2),
    "commits": ("commits", 2),
    "WAL bytes": ("wal", 0),
    "memory MiB": ("memory_mib", 1),
}


IS_MET = {"≤": operator.le, "<": operator.lt, "≥": operator.ge}


def judged(values, goal, digits):
    """Returns the spread of a figure, and whether its median meets the goal."""
    text = spread(values, digits)
    if not goal:
        return text
    sign, bound = goal
    is_met = IS_MET[sign](statistics.median(values), bound)
    return f"{text} ({sign} {bound:,}: {'met' if is_met else 'not met'})"


def print_tables(measured, found, services, concurrency):
    """Prints each case with its bare handler and its goals, and then the figures behind them."""
    def values(variant, name):
        return [one.get(name) for one in measured if (one["variant"], one["concurrency"]) == (variant, concurrency)]

    def rows_of(service):
        for case, base in PAIRS:
            ours, theirs = f"{service}, {case}", f"ceil-{base}" if base in BARE else f"{service}, {base}"

            def pairs(name):
                return list(zip(values(ours, name), values(theirs, name)))

            def ratios(name):
                return [one / other for one, other in pairs(name) if one and other]

            def differences(name):
                return [one - other for one, other in pairs(name)]

            judgable = {
                RATE: (values(ours, "cycles_per_second"), 0),
                RATIO: (ratios("cycles_per_second"), 2),
                P50: (differences("call_p50_ms"), 2),
                P99: (differences("call_p99_ms"), 2),
            }
            cells = [judged(each, GOALS.get((case, base, concurrency, name)), digits) for name, (each, digits) in judgable.items()]
            yield [f"{ours} / {theirs}", *cells, spread(ratios("server_cpu_s_per_1000")), spread(ratios("postgres_cpu_s_per_1000"))]

    print(f"## Calls at a gate, {concurrency} at once\n")
    head = ["ratio or difference (goal)", RATE, RATIO, P50, P99, "CPU server", "CPU Postgres"]
    table(head, [row for service in services for row in rows_of(service)])
    table(["a call", *FIGURES], [
        [variant.name] + [spread(values(variant.name, name), digits) for name, digits in FIGURES.values()]
        for variant in found
    ])
