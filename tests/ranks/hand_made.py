"""Hand-made ranks with groups, communicators and orders that no available capture has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceview.model.analysis import CAUSES
from traceview.model.fleet import Channel, Collectives, RankResult, ReportResult, Steps
from traceview.model.program import PLAIN_CUDA, Program

MS = 1_000_000


def rank(
    calls: Sequence[tuple[int, str, int, int, int]],
    *,
    communicators: Sequence[str | None] = (None,),
    steps: Sequence[int] = (),
    own: int | Sequence[int] = 10 * MS,
) -> RankResult:
    """Return a rank with calls (iteration, kind, channel, start, end) in order, and the own time of its iterations."""
    kinds = tuple(sorted({call[1] for call in calls}))
    columns = [
        np.array(column, np.int64) for column in zip(*[(c[0], kinds.index(c[1]), *c[2:]) for c in calls], strict=True)
    ]
    step, kind, channel, start, end = columns or [np.empty(0, np.int64)] * 5
    return RankResult(
        device="GPU 0",
        gpu="NVIDIA H200",
        start=0,
        end=int(end.max()) if len(end) else MS,
        compute=0,
        exposed_communication=0,
        idle=(0,) * len(CAUSES),
        kernels=0,
        steps=_steps(steps, own) if steps else None,
        collectives=Collectives(
            kinds=kinds,
            channels=tuple(Channel(name, 7 + index) for index, name in enumerate(communicators)),
            start=start,
            end=end,
            hidden=np.zeros(len(start), np.int64),
            step=step,
            kind=kind,
            channel=channel,
            left_out=0,
        ),
    )


def _steps(numbers: Sequence[int], own: int | Sequence[int]) -> Steps:
    wall = np.broadcast_to(np.array(own, np.int64), len(numbers)).copy()
    none = np.zeros(len(numbers), np.int64)
    return Steps(
        source="range",
        time=int(wall.mean()),
        named=True,
        cut="gpu",
        skipped=0,
        number=np.array(numbers, np.int64),
        wall=wall,
        compute=wall,
        exposed_communication=none,
        kernels=none,
        idle=np.zeros((len(CAUSES), len(numbers)), np.int64),
    )


def report(*ranks: RankResult, epoch: int | None = None, program: Program = PLAIN_CUDA) -> ReportResult:
    """Return a report with these ranks."""
    return ReportResult(program, epoch, (), ranks)
