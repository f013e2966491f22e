"""Rules on compute find the same in the parts of a capture as in the whole capture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.captures import analyzed, sample
from tests.rules.helpers import rows_of
from traceview.model.sums import merged_sums
from traceview.pricing.base import CaptureFacts, CapturePart, DeviceFacts, DevicePart, FindingDraft, Rule
from traceview.pricing.claims import resolve
from traceview.pricing.ledger import KernelClaim
from traceview.rules.slow_kernels import slow_kernels
from traceview.rules.small_grids import small_grids

NEIGHBOURS = 256  # operations
Claimed = tuple[list[int], list[float]]


def cut_device(device: DevicePart, count: int) -> Iterator[tuple[int, DevicePart]]:
    """Yield `count` parts of a device with the index of the first operation of each, as far as these rules read it."""
    rows = device.activity.rows
    for first, last in pairwise(np.linspace(0, len(rows), count + 1).astype(int).tolist()):
        begin = max(first - NEIGHBOURS, 0)
        yield (
            first,
            replace(
                device,
                activity=replace(device.activity, rows=rows[first:last]),
                nearby_rows=rows[begin : last + NEIGHBOURS],
                own_nearby=slice(first - begin, last - begin),
            ),
        )


def drafts(rule: Rule[Any], part: CapturePart, count: int) -> list[tuple[FindingDraft, Claimed]]:
    """Return what a rule finds in a capture of `count` parts, without claims, and the kernels and fractions claimed."""
    devices = {device.use.device: list(cut_device(device, count)) for device in part.devices}
    collected = {row: [rule.collect(part, device) for _, device in cut] for row, cut in devices.items()}
    own = tuple(DeviceFacts(device.use, device.steady) for device in part.devices)
    facts = CaptureFacts(part.analysis, own, part.counted, {})
    result = []
    for draft in rule.decide(
        facts, {row: merged_sums([each.sums for each in all_]) for row, all_ in collected.items()}
    ):
        assert isinstance(draft, FindingDraft)
        rows, fractions = list[int](), list[float]()
        row = draft.device.row
        for (first, _), each in zip(devices[row], collected[row], strict=True):
            (claim,) = (resolve(claim, each.groups, slice(0)) for claim in draft.claims)
            assert isinstance(claim, KernelClaim)
            rows += (claim.rows + first).tolist()
            fractions += claim.fractions.tolist()
        result.append((replace(draft, device=None), (rows, fractions)))  # type: ignore[arg-type]
    return result


@pytest.mark.parametrize("rule", [slow_kernels, small_grids], ids=lambda rule: rule.name)
@pytest.mark.parametrize("name", ["serial.sqlite", "quad.sqlite", "torch_profiler/serial.json.gz"])
def test_parts_find_what_the_whole_shows(rule: Rule[Any], name: str) -> None:
    part = rows_of(analyzed(sample(name)))
    whole = drafts(rule, part, 1)
    assert whole
    for count in (2, 5):
        assert drafts(rule, part, count) == whole
