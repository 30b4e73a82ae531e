"""Prints the operations of the document that succeeded under the fuzzer. Fails if an operation never succeeded, or gave
a 5xx."""

import json
import sys


def main(document: str, seen: str) -> None:
    with open(document) as file:
        paths = json.load(file)["paths"]
    with open(seen) as file:
        counts = json.load(file)
    operations = sorted(operation["operationId"] for item in paths.values() for operation in item.values())
    calls = sum(sum(statuses.values()) for statuses in counts.values())
    worked = [name for name in operations if any(status < "400" for status in counts.get(name, {}))]
    broken = {name: statuses for name, statuses in counts.items() if any(status >= "500" for status in statuses)}
    print(f"fuzz: {calls} calls; {len(worked)} of {len(operations)} operations succeeded")
    for name in operations:
        if name not in worked:
            print(f"fuzz: {name} never did: {counts.get(name, {})}")
    if broken:
        print(f"fuzz: 5xx: {broken}")
    sys.exit(len(worked) < len(operations) or bool(broken))


if __name__ == "__main__":
    main(*sys.argv[1:])
