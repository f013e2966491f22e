"""What a reader must know beside the figures of a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from traceview.comparison.align import Ranges
from traceview.model.analysis import Analysis, NotMeasured

# Time between iterations is worth a word from this share of it on.
OUTSIDE = 0.05


def notes_on(
    files: Sequence[str], analyses: Sequence[Analysis], ranges: Sequence[Ranges | None], cut: str
) -> tuple[str, ...]:
    """Return one line for each thing that makes captures differ for a reason other than the change."""
    return (
        *_hardware(files, analyses),
        *_versions(files, analyses),
        *(_outside(files, ranges) if cut == "range" else ()),
        *_graphs(files, analyses),
        *_processes(files, analyses),
    )


def _hardware(files: Sequence[str], analyses: Sequence[Analysis]) -> Iterator[str]:
    base, *others = ([device.name for device in analysis.devices] for analysis in analyses)
    for file, found in zip(files[1:], others, strict=True):
        if sorted(found) != sorted(base):
            yield f"{file} ran on {_list(found)}, {files[0]} on {_list(base)}"


def _versions(files: Sequence[str], analyses: Sequence[Analysis]) -> Iterator[str]:
    base, *others = (_profiler(analysis) for analysis in analyses)
    for file, found in zip(files[1:], others, strict=True):
        if found != base:
            yield f"{file} was captured by {found}, {files[0]} by {base}: what a profiler costs may differ"


def _profiler(analysis: Analysis) -> str:
    info = analysis.info
    return f"nsys {info.nsys_version or 'of unknown version'}" if info.profiler == "nsys" else info.profiler


def _outside(files: Sequence[str], ranges: Sequence[Ranges | None]) -> Iterator[str]:
    for file, found in zip(files, ranges, strict=True):
        if found is None or len(found.start) < found.skipped + 2:
            continue
        period = np.diff(found.start[found.skipped :])
        between = period - (found.end - found.start)[found.skipped : -1]
        share = float(between.sum()) / float(period.sum()) if period.sum() else 0.0
        if share > OUTSIDE:
            yield (
                f"{file}: {100 * share:.0f}% of the time lies between its iterations and is not compared; "
                "put the range around the whole step, or use --cut gpu"
            )


def _graphs(files: Sequence[str], analyses: Sequence[Analysis]) -> Iterator[str]:
    for file, analysis in zip(files, analyses, strict=True):
        whole = int((analysis.trace.operations["source"] == "graph").sum())
        if whole:
            yield (
                f"{file}: {whole} CUDA graphs were traced whole, so what is inside them counts as compute; "
                "to see it, capture with --cuda-graph-trace=node"
            )


def _processes(files: Sequence[str], analyses: Sequence[Analysis]) -> Iterator[str]:
    for file, analysis in zip(files, analyses, strict=True):
        found = analysis.iterations
        if isinstance(found, NotMeasured):
            continue
        own = [found.process_id in device.process_ids for device in analysis.devices]
        if sum(own) > 1:
            yield f"{file}: the parts of an iteration are means of its {sum(own)} GPUs; kernels are added up over them"
        if not all(own):
            others = len(own) - sum(own)
            gpus = "one more GPU" if others == 1 else f"{others} more GPUs"
            yield (
                f"{file}: {gpus} of other processes, with iterations of their own, not compared; where each takes a "
                f"batch of its own, an iteration does the work of {len(own)}"
            )


def _list(names: Sequence[str]) -> str:
    several = f" ({len(names)} GPUs)" if len(names) > 1 else ""
    return (", ".join(dict.fromkeys(name or "an unnamed GPU" for name in names)) or "no GPU") + several
