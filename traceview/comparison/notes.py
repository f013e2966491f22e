"""Notes on differences between captures that are not changes of the program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traceview.comparison.document import AnalysisDocument, Analyzed
from traceview.model.analysis import Iterations, NotMeasured
from traceview.model.comparison import CaptureDifference, ComparedCapture
from traceview.model.trace import Note
from traceview.model.units import quantity, share
from traceview.report.screen import confidence_word

MIN_COMMON_LAUNCHES = 0.5
MIN_PROFILER_DIFFERENCE = 0.05  # share of an iteration; a smaller difference of the profilers' costs gets no note
MIN_LAUNCH_CHANGE = 0.05  # share of the launches per iteration; a smaller change is not stated


def comparison_notes(files: Sequence[str], analyses: Sequence[Analyzed], is_whole: bool) -> tuple[Note, ...]:
    """Return a note for each difference in hardware, profiler, iterations, graphs and processes.

    `is_whole` says that captures are compared as a whole.
    """
    texts = {
        "left_out": _left_out_notes(files, analyses),
        "period": () if is_whole else _period_notes(files, analyses),
        "hardware": _hardware_notes(files, analyses),
        "profiler": _profiler_notes(files, analyses),
        "profiler_cost": () if is_whole else _profiler_cost_notes(files, analyses),
        "whole_graphs": _graph_notes(files, analyses),
        "processes": _process_notes(files, analyses),
    }
    return (
        *(Note(name, text) for name, some in texts.items() for text in some),
        *(
            Note("document", text, ("parts", "idle", "host", "lines", "kernels"))
            for text in _document_notes(files, analyses)
        ),
    )


def difference_notes(base: ComparedCapture, against: CaptureDifference) -> tuple[Note, ...]:
    """Return a note if the iterations of a capture and of the base may not do the same work."""
    if against.capture.range is None or base.range is None:
        return ()
    affects = ("time", "parts", "host", "kernels")
    return tuple(Note("work", text, affects) for text in _work_notes(base, against))


def _work_notes(base: ComparedCapture, against: CaptureDifference) -> Iterator[str]:
    work, file = against.work, against.capture.file
    before, after = round(work.launches_before), round(work.launches_after)
    launches = f"{file} launches {quantity(after, 'kernel or graph', 'kernels and graphs')} per iteration, "
    launches += f"{base.file} {before:,}"
    if work.multiple is not None:
        yield f"{launches}: an iteration of one is several of the other; name the same iteration with --iteration"
    elif not work.launches_before or not work.launches_after:
        if work.launches_before != work.launches_after:
            yield f"{launches}: check that both iterations do the same work"
    elif work.common_fraction < MIN_COMMON_LAUNCHES:
        yield (
            f"{launches}; {share(work.common_fraction)} of the launches have a name that both captures have: "
            "check that both iterations do the same work"
        )
    elif abs(work.launches_after / work.launches_before - 1) > MIN_LAUNCH_CHANGE:
        yield f"{launches}: other kernels, treated as the same step"


def _left_out_notes(files: Sequence[str], analyses: Sequence[Analyzed]) -> Iterator[str]:
    for file, analysis in zip(files, analyses, strict=True):
        yield from (f"{file}: {note.text}" for note in analysis.info.left_out if note.affects)


def _period_notes(files: Sequence[str], analyses: Sequence[Analyzed]) -> Iterator[str]:
    for file, analysis in zip(files, analyses, strict=True):
        iterations = analysis.iterations
        if isinstance(iterations, Iterations) and iterations.source == "period":
            yield (
                f"{file} has no range for its iterations; an iteration is a {iterations.range} "
                f"(confidence {confidence_word(iterations.confidence)})"
            )


def _hardware_notes(files: Sequence[str], analyses: Sequence[Analyzed]) -> Iterator[str]:
    base, *others = ([device.name for device in analysis.devices] for analysis in analyses)
    for file, names in zip(files[1:], others, strict=True):
        if sorted(names) != sorted(base):
            yield f"{file} ran on {_gpu_names(names)}, {files[0]} on {_gpu_names(base)}"


def _profiler_notes(files: Sequence[str], analyses: Sequence[Analyzed]) -> Iterator[str]:
    base, *others = (_profiler(analysis) for analysis in analyses)
    for file, profiler in zip(files[1:], others, strict=True):
        if profiler != base:
            yield f"{file} was captured with {profiler}, {files[0]} with {base}: profiler overhead may differ"


def _profiler_cost_notes(files: Sequence[str], analyses: Sequence[Analyzed]) -> Iterator[str]:
    base, *others = (_profiler_share(analysis) for analysis in analyses)
    for file, other in zip(files[1:], others, strict=True):
        if base is not None and other is not None and abs(other - base) >= MIN_PROFILER_DIFFERENCE:
            yield (
                f"without the profiler an iteration takes about {share(other)} less in {file}, {share(base)} less in "
                f"{files[0]}: compare these times; verdicts are on measured times"
            )


def _profiler_share(analysis: Analyzed) -> float | None:
    iterations = analysis.iterations
    if not isinstance(iterations, Iterations) or iterations.unprofiled is None or not iterations.time_ns:
        return None
    return max(1 - iterations.unprofiled.mean_ns / iterations.time_ns, 0.0)


def _profiler(analysis: Analyzed) -> str:
    info = analysis.info
    return f"nsys {info.nsys_version or 'of unknown version'}" if info.profiler == "nsys" else info.profiler


def _graph_notes(files: Sequence[str], analyses: Sequence[Analyzed]) -> Iterator[str]:
    for file, analysis in zip(files, analyses, strict=True):
        if isinstance(analysis, AnalysisDocument):
            continue
        count = int((analysis.trace.operations["source"] == "graph").sum())
        if count:
            yield (
                f"{file}: {count} CUDA graphs are traced as a whole and count as compute; "
                "capture with --cuda-graph-trace=node to see inside"
            )


def _process_notes(files: Sequence[str], analyses: Sequence[Analyzed]) -> Iterator[str]:
    for file, analysis in zip(files, analyses, strict=True):
        iterations = analysis.iterations
        if isinstance(iterations, NotMeasured):
            continue
        own = [iterations.process_id in device.process_ids for device in analysis.devices]
        if sum(own) > 1:
            yield f"{file}: parts of an iteration are means over its {sum(own)} GPUs; kernels are sums over them"
        if not all(own):
            others = len(own) - sum(own)
            gpus = "1 GPU" if others == 1 else f"{others} GPUs"
            yield (
                f"{file}: {gpus} of other processes not compared, because these have their own iterations; if each "
                f"process has its own batch, an iteration does the work of {len(own)}"
            )


def _document_notes(files: Sequence[str], analyses: Sequence[Analyzed]) -> Iterator[str]:
    """Say what documents lack."""
    for file, analysis in zip(files, analyses, strict=True):
        if not isinstance(analysis, AnalysisDocument):
            continue
        yield (
            f"{file} is a document of sums: intervals of parts and kernels, figures of the host, source "
            "lines, and what counts twice are not measured"
        )


def _gpu_names(names: Sequence[str]) -> str:
    count = f" ({len(names)} GPUs)" if len(names) > 1 else ""
    return (", ".join(dict.fromkeys(name or "an unnamed GPU" for name in names)) or "no GPU") + count
