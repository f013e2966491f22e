"""The answer: what the program is, what an iteration takes, where its time goes, and the change that gains most."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from traceview.model.analysis import Analysis, DeviceUse, Iterations
from traceview.model.composition import MIN_PROFILER, Composition, composition
from traceview.model.findings import Answer, Finding
from traceview.model.names import with_title_names
from traceview.model.program import program_words
from traceview.model.trace import MIN_STATED
from traceview.model.units import duration, quantity, share, time_range
from traceview.pricing.describe import decisive_cost
from traceview.pricing.texts import join_words
from traceview.rules.outside import outside_words, start_words, time_outside

MIN_NAMED = 0.05  # share of the time; smaller ones are not named
MAX_NAMED = 3
MOSTLY = 0.5  # share of the run
DETAILS = re.compile(r"; |(?<=% of the time): ")  # what follows in a title is left to the finding


def with_answer(analysis: Analysis) -> Analysis:
    """Return the analysis with its answer; its findings are in the order of their gains."""
    before = [*first_sentences(analysis)]
    if not analysis.devices:
        text = " ".join([*before, "The capture has no GPU work."])
        return replace(analysis, answer=Answer(text, "", analysis.answer.gain))
    rest = f"{_run(analysis)}."
    if not analysis.info.trust.lost_everything:
        # A shorter start of a run whose work failed gains nothing.
        fails = analysis.info.trust.failed and any(finding.once for finding in analysis.findings[:1])
        shares = _shares(analysis, MAX_NAMED - bool(before))
        rest = f"{_run(analysis)}: {shares}.{'' if fails else f' {_best_change(analysis)}'}"
    text = with_title_names(" ".join([*before, rest]))
    first = next(iter(analysis.findings), None)
    if first is None:
        return replace(analysis, answer=Answer(text, "", analysis.answer.gain))
    return replace(analysis, answer=Answer(text, first.change or first.id, first.gain))


def _unit(analysis: Analysis) -> str:
    """Return what repeats: "a step", "an iteration", of several kinds "the mean iteration"; "the run" if nothing does.

    A program that trains also validates, or generates text: of several kinds, not all are steps.
    """
    if not isinstance(analysis.iterations, Iterations):
        return "the run"
    if analysis.iterations.kinds:
        return "the mean iteration"
    return "a step" if analysis.program.training else "an iteration"


def _run(analysis: Analysis) -> str:
    """Return the program and the time of an iteration, or of the run, with and without the profiler."""
    iterations, program = analysis.iterations, program_words(analysis.program)
    if not isinstance(iterations, Iterations):
        return f"{program}, {duration(analysis.run.length)}"
    if iterations.kinds:
        time = f"{quantity(iterations.counted, 'iteration')}, {iterations.time_words}"
    else:
        time = f"{duration(iterations.time_ns)} {_unit(analysis)}"
    unprofiled = iterations.unprofiled
    if unprofiled is None or unprofiled.mean_ns > (1 - MIN_PROFILER) * iterations.time_ns:
        return f"{program}, {time}"
    profiler = analysis.info.profiler
    if iterations.kinds:
        return f"{program}, {time}, about {duration(unprofiled.mean_ns)} on average without {profiler}"
    return f"{program}, {time} under {profiler}, about {duration(unprofiled.mean_ns)} without"


def _shares(analysis: Analysis, most: int) -> str:
    """Return the `most` largest parts of a GPU's time: compute, the profiler, and waits as findings name them.

    Of several GPUs it is that of the first finding.
    """
    first = next((finding.device for finding in analysis.findings if finding.device), analysis.devices[0].id)
    device = next((use for use in analysis.devices if use.id == first), analysis.devices[0])
    whole = composition(analysis, device)
    parts = {
        **_losses(analysis, device, is_estimate=whole.profiler_ns > 0),
        "compute": whole.busy["compute"],
        "the profiler": whole.profiler_ns,
    }
    named = sorted(parts.items(), key=lambda pair: -pair[1])
    shown = [(words, ns) for words, ns in named if ns >= MIN_NAMED * whole.whole_ns][:most]
    waits = whole.whole_ns - whole.busy["compute"] - whole.profiler_ns
    if {words for words, _ in shown} <= {"compute", "the profiler"} and waits >= MIN_NAMED * whole.whole_ns:
        shown = sorted([*shown, ("time in which nothing computes", waits)], key=lambda pair: -pair[1])
    (words, ns), *others = shown or named[:1]
    texts = [f"{_percent(whole, ns)} is {words}", *(f"{_percent(whole, ns)} {words}" for words, ns in others)]
    return f"{f'of {device.id} ' if len(analysis.devices) > 1 else ''}{join_words(texts)}"


def _percent(whole: Composition, ns: int) -> str:
    """Return a part in whole percent."""
    return whole_percent(ns / max(whole.whole_ns, 1))


def _losses(analysis: Analysis, device: DeviceUse, *, is_estimate: bool) -> dict[str, int]:
    """Return the time of a GPU that waits of one kind take in the time that findings cover, in ns, by their words.

    With `is_estimate`, it is the time without the profiler.
    """
    losses: dict[str, int] = {}
    iterations = analysis.iterations
    for finding in (each for first in analysis.findings for each in first.by_device):
        if finding.claims == "compute" or finding.device != device.id:
            continue
        words = finding.loss or finding.id.replace("_", " ")
        ns = decisive_cost(finding) if is_estimate else finding.cost_ns
        if finding.once and isinstance(iterations, Iterations) and not analysis.whole:
            each = finding.cost_per_iteration_ns or 0  # the rest lies outside the iterations
            ns = each * device.steady.window.length // max(iterations.time_ns, 1)
        losses[words] = losses.get(words, 0) + ns
    return losses


def _best_change(analysis: Analysis) -> str:
    """Return what the change with the largest gain would give."""
    if not analysis.findings:
        return "No known problem costs a thousandth of it."
    first = analysis.findings[0]
    gain, remedy = first.gain, first.remedy or first.advice
    device = first.device_words if first.device and len(analysis.devices) > 1 else ""
    where = f" on {device}" if device else ""
    effect = first.effect or remedy.removesuffix(".")
    effect = f"{effect[:1].upper()}{effect[1:]}"
    words = f"{effect}{where}"
    if gain.source == "none":
        return f"{DETAILS.split(first.title)[0]}{where}. {remedy}"
    if gain.is_little:
        return f"No known change gains much: the first would save {share_of_gain(first)}. {remedy}"
    if gain.source == "predicted" and first.effect and not gain.is_at_most:
        if first.choice:
            return f"{words} would take {_unit(analysis)} to {time_range(*first.choice_ns)}; try {first.choice}."
        return f"{words} would take {_unit(analysis)} to {time_range(*gain.after_ns)}."
    whole = " of the run" if first.once and isinstance(analysis.iterations, Iterations) else ""
    saved = f"{'at most ' if gain.is_at_most else ''}{share_of_gain(first)}{whole}"
    if not first.effect:
        return f"{words}: that saves {saved}."
    return f"{effect} would save {f'{device} ' if device else ''}{saved}."


def share_of_gain(finding: Finding) -> str:
    """Return the share that a remedy saves, at most if its range is wide: "23%", "2.3%"."""
    fraction = finding.gain.stated_fraction
    if fraction < 0.0995:
        return "less than 0.1%" if fraction < 0.0005 else f"{fraction:.1%}"
    return whole_percent(fraction)


def whole_percent(fraction: float) -> str:
    """Return a share as "43%". Less than all is never "100%": "99.6%"."""
    percent = 100 * fraction
    return f"{percent:.0f}%" if percent < 99.5 or percent == 100 else f"{min(percent, 99.9):.1f}%"


def first_sentences(analysis: Analysis) -> Iterator[str]:
    """Yield what was read of a large capture, failed launches, lost work, rows that are not read or cut, and drift."""
    info = analysis.info
    if info.stretch:
        yield f"{info.stretch[:1].upper()}{info.stretch[1:]}."
    if info.trust.failed:
        yield f"{info.trust.failed[:1].upper()}{info.trust.failed[1:]}."
    yield from _lost_work(analysis)
    yield from _no_kernel(analysis)
    for note in info.left_out:
        if note.id == "unread_table" and "compute" in note.affects:
            yield f"The table {note.text.partition(' ')[0]} has rows that are not read."
    operations = len(analysis.trace.operations)
    if info.trust.cut >= MIN_STATED * max(operations, 1):
        yield f"{share(info.trust.cut, operations)} of the GPU operations have durations that cannot be and are cut."
    yield from _time_outside(analysis)
    yield from _drift(analysis)


def _time_outside(analysis: Analysis) -> Iterator[str]:
    """Yield what the time before the first kernel, or outside the iterations, takes of the run if that is most of it.

    A finding that leads says it, and so does one of the whole run.
    """
    leads = any(finding.once for finding in analysis.findings[:1])
    outside = time_outside(analysis)
    if not isinstance(analysis.iterations, Iterations) or outside is None or leads or analysis.whole:
        return
    run, before = analysis.run.length, outside.before.length
    if outside.start and before > MOSTLY * run:
        yield f"{start_words(analysis, outside.start)}."
    elif before + outside.after.length > MOSTLY * run:
        yield f"{outside_words(analysis, outside)}."


def _no_kernel(analysis: Analysis) -> Iterator[str]:
    """Yield that the capture has no kernel, but copies or memsets; launches that failed or lost their work say why."""
    trust, classes = analysis.info.trust, analysis.trace.operations["class"]
    if trust.failed or trust.lost or any((classes == kernel).any() for kernel in ("compute", "communication")):
        return
    counts = {
        ("copy", "copies"): int((classes == "copy").sum()),
        ("memset", "memsets"): int((classes == "memset").sum()),
    }
    if others := [quantity(count, *words) for words, count in counts.items() if count]:
        yield f"The capture has no kernel, but {join_words(others)}."


def _drift(analysis: Analysis) -> Iterator[str]:
    """Yield how iterations change during the run, or their kernels if that is a part of an iteration that counts.

    Where what occurs once leads, iterations hardly matter.
    """
    drift = analysis.iterations.drift if isinstance(analysis.iterations, Iterations) else None
    if drift is None or any(finding.once for finding in analysis.findings[:1]):
        return
    if drift.of_iterations:
        unit = "Steps" if analysis.program.training else "Iterations"
        yield f"{f'{unit} {drift.words} during the run: {drift.reason}'.removesuffix(': ')}."
    elif abs((drift.kernels_ratio or 1) - 1) * max(map(analysis.compute_share, analysis.devices)) >= MIN_STATED:
        yield drift.kernel_words


def _lost_work(analysis: Analysis) -> Iterator[str]:
    trust, iterations = analysis.info.trust, analysis.iterations
    if trust.failed and trust.lost_everything:
        return  # what failed has no record
    if trust.unrecorded:
        yield (
            f"The capture lacks {trust.unrecorded:,} CUDA calls, by their ids, and has {len(analysis.trace.api):,}, so "
            "that nothing is predicted: record fewer steps."
        )
    elif trust.lost_everything:
        yield (
            f"None of the {trust.launches:,} launches has GPU work in the capture, so that nothing on the GPU is known "
            "and nothing is predicted."
        )
    elif trust.lost_fraction >= MIN_STATED:
        lost = f"{share(trust.lost, trust.launches)} of the launches have no GPU work in the capture"
        yield f"{lost}{_steps_without_work(iterations)}." if isinstance(iterations, Iterations) else f"{lost}."


def _steps_without_work(iterations: Iterations) -> str:
    """Return how many iterations lack GPU work: ": 7 of 10 iterations lack it and do not count"; "" without any."""
    if not iterations.lost:
        return ""
    total = iterations.count + iterations.lost + iterations.apart
    beyond = f", nor do {iterations.apart:,} beyond them" if iterations.apart else ""
    return f": {iterations.lost:,} of {total:,} iterations lack it and do not count{beyond}"
