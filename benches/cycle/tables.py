"""Tables of measurements, as Markdown."""

import statistics


def spread(values, digits=2):
    """Returns the median with the smallest and the largest value."""
    values = [value for value in values if value is not None]
    if not values:
        return "–"
    middle, low, high = (f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
    return middle if low == high else f"{middle} [{low}–{high}]"


def table(head, rows):
    print("| " + " | ".join(head) + " |\n|---|" + "---:|" * (len(head) - 1))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()
