"""What the answer rests on: the first lines of the summary and of the page below its sentence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from traceview.model.analysis import Analysis, DeviceUse, Iterations, NotMeasured
from traceview.model.composition import Composition
from traceview.model.findings import MEDIUM_SHARE, OTHERS_LIMIT, Finding, Gain
from traceview.model.names import title_name
from traceview.model.rows import SpeedOfLight
from traceview.model.trace import Note
from traceview.model.units import duration, plain, share, time_range
from traceview.model.unprofiled import UnprofiledTime
from traceview.report.screen import confidence_word, figure

# Notes on the time outside the steady part, which the first lines state; the answer may state all of it.
OUTSIDE_NOTES, OUTSIDE = ("start_up", "before_loop", "after_loop"), "lie outside the counted iterations"
COUNTED = "in the counted iterations"  # assets/analysis/answer.js has the same words
OF_ITERATIONS, LITTLE_GAIN = "", f"No gain is known, or it is less than {MEDIUM_SHARE:.0%}"
RUN, IN_RUN = "from the first CUDA call to the last", "in the run"
MOST_KNOWN = 0.95  # share of the time of matrix kernels; below it, the share of known FLOPs is stated
PRECISION_NAMES = {"bf16": "bfloat16", "tf32": "TF32", "fp64": "FP64", "fp32": "FP32", "fp16": "FP16", "fp8": "FP8"}
MOSTLY = 0.5  # share of the time
MIN_FAMILY = 0.2  # share of the kernel time, or of all time; smaller families and waits of unknown gain are not named
MIN_KERNEL = 1 / 3  # share of the time from which kernels of unknown gain are named
FAMILY_WORDS = {"gemm": "matrix products", "sort_scan": "sorts and scans", "custom": "hand-written kernels"}


def basis_lines(analysis: Analysis) -> list[str]:
    """Return what the answer rests on: the iteration, what computes and how fast, and the time that is left out."""
    outside = (plain(note.text, 400) for note in outside_notes(analysis))
    iteration, base = iteration_line(analysis.iterations), base_line(analysis)
    known = (iteration, base, families_line(analysis), *speed_lines(analysis), *outside)
    return [line for line in known if line]


def outside_notes(analysis: Analysis) -> Iterable[Note]:
    """Return the notes on the time outside the steady part, but for what a finding or the answer states."""
    stated, answer = {finding.id for finding in analysis.findings if finding.once}, analysis.answer.text
    stated |= {"start_up", "before_loop"} if stated & {"start_up", "host_bound"} else set()
    notes = (note for note in analysis.notes if note.id in OUTSIDE_NOTES and note.id not in stated)
    return () if OUTSIDE in answer else (note for note in notes if note.text.partition(". ")[0] not in answer)


def families_line(analysis: Analysis) -> str:
    """Return the largest families of kernels of the first device: "Kernel time: 63% convolution."; "" without any."""
    if not analysis.devices:
        return ""
    tables = analysis.covered(analysis.devices[0]).tables
    rows = tables["kernel_families"].rows if "kernel_families" in tables else ()
    total = sum(row.total_ns for row in rows)
    named = [row for row in rows[:2] if row.total_ns >= MIN_FAMILY * total]
    words = (f"{share(row.total_ns, total)} {FAMILY_WORDS.get(row.family, row.family)}" for row in named)
    return f"Kernel time: {', '.join(words)}." if named else ""


def iteration_line(iterations: Iterations | NotMeasured) -> str:
    """Return the time of an iteration with its source, or that there are none."""
    if isinstance(iterations, NotMeasured):
        return "Iterations are unknown, so findings and shares cover the whole window."
    name = title_name(iterations.range)
    source = (
        f"range {name}"
        if iterations.source == "range"
        else f"{name} in the launch sequence, confidence {confidence_word(iterations.confidence)}"
    )
    counted = iterations.count - iterations.skipped
    skipped = f", {iterations.skipped:,} skipped" if iterations.skipped else ""
    time = f"{duration(iterations.time_ns)}{unprofiled_words(iterations.unprofiled)}"
    if iterations.kinds:
        kinds = "; ".join(f"{kind.words} ({kind.differs})".removesuffix(" ()") for kind in iterations.kinds)
        return f"Iterations: {kinds}. Mean: {time} ({source}; {counted} counted{skipped})"
    return f"Iteration: {time} ({source}; {counted} counted{skipped})"


def unprofiled_words(time: UnprofiledTime | None) -> str:
    """Return the time of an iteration without the profiler: ", unprofiled about 9.9 ms (9.2 to 10.8)"."""
    if time is None:
        return ""
    if time.source == "given":
        return f", unprofiled {duration(time.mean_ns)}"
    between = time_range(time.low_ns, time.high_ns)
    return f", unprofiled about {duration(time.mean_ns)} ({between})"


def speed_lines(analysis: Analysis) -> Iterator[str]:
    """Yield the speed of each device whose floating-point operations are known, and its peak."""
    rows: Sequence[SpeedOfLight] = analysis.tables["speed_of_light"].rows
    for row in rows:
        if row.flops_per_s is not None:
            yield f"{plain(row.device, 24)} computes at {_speed(row)}."


def _speed(row: SpeedOfLight) -> str:
    rate = figure(row.flops_per_s, "flops_per_s")
    if row.mfu is None:
        return f"{rate}; {row.unknown_because}"
    precision = PRECISION_NAMES.get(row.precision or "", row.precision)
    share, peak = figure(row.mfu, "fraction"), figure(row.peak_flops_per_s, "flops_per_s")
    speed = f"{rate}, {share} of its {precision} peak ({peak})"
    if row.known_fraction is not None and row.known_fraction < MOST_KNOWN:
        speed += f"; FLOPs are known for {figure(row.known_fraction, 'fraction')} of the time of matrix kernels"
    return speed


def covered(analysis: Analysis, device: DeviceUse) -> str:
    """Return which time of a device findings and tables cover."""
    return span(analysis) if analysis.covered(device).window == device.window else COUNTED


def bar_words(analysis: Analysis, whole: Composition, covers: str) -> str:
    """Return which time of a device its bar and shares cover: `covers`, or the run where it shows more.

    Data that are loaded first, or a call of the profiler, may come before the first call of the run.
    """
    if not whole.outside_ns:
        return covers
    first = analysis.trace.api["start"].head(1).to_list()
    return RUN if first == [analysis.run.start] else IN_RUN


def span(analysis: Analysis) -> str:
    """Return what the window of a device is."""
    return "from first to last GPU work" if analysis.trace.window is None else "in the chosen window"


def base_line(analysis: Analysis) -> str:
    """Return the time that the shares of findings are parts of; "" without findings."""
    if not analysis.findings:
        return ""
    if isinstance(analysis.iterations, NotMeasured):
        return f"Gains are of the run, {duration(analysis.answer.gain.of_ns or analysis.run.length)}."
    iterations = analysis.iterations
    if iterations.unprofiled is None:
        return f"Gains are of {duration(iterations.time_ns)}."
    return f"Gains are of {duration(iterations.unprofiled.mean_ns)}, without the profiler."


def finding_lists(analysis: Analysis) -> dict[str, tuple[Finding, ...]]:
    """Return the findings by the time that their gains are parts of, with its words: lists in the order of the answer.

    Findings of low severity or unknown gain are the last list, but for the one that leads the answer, for waits of
    unknown gain that take a fifth of the time, which the answer names, and for kernels that take a third of it: these
    are the last of their list if they take less than half.
    Findings of the run come before those of an iteration only if one of them leads.
    """
    base, lists = analysis.answer.gain.of_ns, dict[str, list[Finding]]()
    iterations, first = isinstance(analysis.iterations, Iterations), analysis.findings[:1]
    ordered = sorted(analysis.findings, key=lambda each: each not in first and _is_kernel_of_unknown_gain(each))
    for number, finding in enumerate(ordered):
        of_run = iterations and finding.once and not analysis.whole
        words = f"For the run, {duration(finding.gain.of_ns or base)}" if of_run else OF_ITERATIONS
        large = finding.decisive_fraction >= (MIN_FAMILY if finding.claims == "waiting" else MIN_KERNEL)
        known = number == 0 or (large if finding.gain.source == "none" else finding.severity != "low")
        lists.setdefault(words if known else LITTLE_GAIN, []).append(finding)
    last = {LITTLE_GAIN: lists.pop(LITTLE_GAIN, [])}
    return {words: tuple(findings) for words, findings in (lists | last).items() if findings}


def _is_kernel_of_unknown_gain(finding: Finding) -> bool:
    """Return whether a finding is on kernels that take less than half of the time, and whose gain is unknown."""
    return finding.claims == "compute" and finding.gain.source == "none" and finding.decisive_fraction < MOSTLY


def gain_words(gain: Gain) -> str:
    """Return what a remedy saves: "-37% (5.10 to 7.80 ms)", "at most 21%"; of more than a finding costs, also why."""
    if gain.source == "none":
        return "gain unknown"
    part = share(gain.stated_fraction)
    if gain.source == "bound":
        return f"at most {part} ({OTHERS_LIMIT})" if gain.reason.endswith(OTHERS_LIMIT) else f"at most {part}"
    loses, also = ", may lose" if gain.low_ns < 0 else "", gain.reason.partition(",")[0]
    if gain.is_at_most:
        words = "; ".join(filter(None, (loses.removeprefix(", "), also)))
        return f"at most {part}{words and f' ({words})'}"
    return f"-{part} ({time_range(*gain.after_ns)}{loses}{also and f'; {also}'})" if gain.ns else "no gain"


def price(finding: Finding) -> str:
    """Return what the remedy of a finding saves, and what the finding costs as captured."""
    most = f" on {plain(finding.device or '', 24)}" if finding.others else ""
    cost = f"{gain_words(finding.gain)}; it cost {duration(finding.cost_ns)}{most}"
    each = finding.cost_per_iteration_ns
    return cost if each is None else f"{cost}, {duration(each)} per iteration"
