"""Stalls: single iterations that hold much of the cost of a finding (docs/definitions.md "Iterations")."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from traceview.model.analysis import Iterations, NotMeasured
from traceview.model.findings import Finding
from traceview.model.units import duration, plain, quantity

MIN_SHARE = 0.1  # share of the cost
MIN_RATIO = 5  # the cost of the iteration over that of each other one
MIN_COUNTED = 4


def with_stall(finding: Finding, iterations: Iterations | NotMeasured) -> Finding:
    """Return a finding that names the iteration with a tenth or more of its cost, and says what the others cost."""
    each = finding.cost_per_iteration_ns
    if isinstance(iterations, NotMeasured) or each is None or iterations.counted < MIN_COUNTED:
        return finding
    costs = _costs_by_iteration(finding, iterations)
    if not costs:
        return finding
    [(number, cost)] = costs.most_common(1)
    others = max(each * iterations.counted - cost, 0) // (iterations.counted - 1)
    if cost < MIN_SHARE * finding.cost_ns or cost < MIN_RATIO * others:
        return finding
    name = f"`{plain(iterations.per_iteration[number].name, 60)}`"
    rest = quantity(iterations.counted - 1, "other iteration")
    return replace(
        finding,
        title=f"{finding.title}; {duration(cost)} of it in {name}",
        advice=f"{name} stalls: the {rest} cost {duration(others)} each. {finding.advice}",
    )


def _costs_by_iteration(finding: Finding, iterations: Iterations) -> Counter[int]:
    """Return what the costliest places of a finding cost in ns, by the number of the counted iteration."""
    start = np.array([iteration.start_ns for iteration in iterations.per_iteration], np.int64)
    costs = Counter[int]()
    for place in finding.evidence if finding.claims == "waiting" else ():
        number = int(np.searchsorted(start, place.start_ns, side="right")) - 1
        if number >= iterations.skipped and place.start_ns < iterations.steady.end:
            costs[number] += place.cost_ns
    return costs
