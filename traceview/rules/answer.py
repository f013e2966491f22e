"""The answer: what the program is, what an iteration takes, where its time goes, and the change that gains most."""

from __future__ import annotations

from dataclasses import replace

from traceview.model.analysis import Analysis, Iterations
from traceview.model.findings import Answer, Finding
from traceview.model.program import program_words
from traceview.model.units import duration, time_range
from traceview.pricing.packages import rules_of_packages
from traceview.pricing.texts import Entry, join_words, read_entry

MIN_NAMED = 0.1  # share of the time; smaller ones are not named
MAX_NAMED = 3
ROUND_SHARES = {"a quarter": 1 / 4, "a third": 1 / 3, "half": 1 / 2, "two thirds": 2 / 3, "three quarters": 3 / 4}
CLOSE = 0.02  # a share that differs by less from one of these is stated in words
NEARLY_ALL = 0.95


def with_answer(analysis: Analysis) -> Analysis:
    """Return the analysis with its answer; its findings are in the order of their gains."""
    if not analysis.devices:
        return replace(analysis, answer=Answer("The capture has no GPU work.", "", analysis.answer.gain))
    text = f"{_stretch(analysis)}{_run(analysis)}: {_shares(analysis)}. {_best_change(analysis)}"
    first = next(iter(analysis.findings), None)
    if first is None:
        return replace(analysis, answer=Answer(text, "", analysis.answer.gain))
    return replace(analysis, answer=Answer(text, first.change or first.id, first.gain))


def _stretch(analysis: Analysis) -> str:
    """Return which stretch of a capture larger than memory was read, as a sentence."""
    stretch = analysis.info.stretch
    return f"{stretch[:1].upper()}{stretch[1:]}. " if stretch else ""


def _entry(finding: str) -> Entry:
    """Return the entry of a finding; empty if it has none."""
    own = (rule.entries[finding] for rule in rules_of_packages() if finding in rule.entries)
    return read_entry(finding) or next(own, {})


def _unit(analysis: Analysis) -> str:
    """Return what repeats: "a step", "an iteration"; "the run" if nothing does."""
    if not isinstance(analysis.iterations, Iterations):
        return "the run"
    return "a step" if analysis.program.training else "an iteration"


def _run(analysis: Analysis) -> str:
    """Return the program and the time of an iteration, or of the run."""
    iterations, program = analysis.iterations, program_words(analysis.program)
    if not isinstance(iterations, Iterations):
        return f"{program}, {duration(analysis.run.length)}"
    if iterations.kinds:
        time = f"{iterations.counted:,} {_unit(analysis).split()[1]}s, {iterations.time_words}"
    else:
        time = f"{duration(iterations.time_ns)} {_unit(analysis)}"
    if iterations.unprofiled is None:
        return f"{program}, {time}"
    return f"{program}, {time} (about {duration(iterations.unprofiled.mean_ns)} without the profiler)"


def _shares(analysis: Analysis) -> str:
    """Return the largest shares of the time of a GPU: compute, and what it waits for, as findings name it.

    Of several GPUs it is that of the first finding.
    """
    first = next((finding.device for finding in analysis.findings if finding.device), analysis.devices[0].id)
    device = next((use for use in analysis.devices if use.id == first), analysis.devices[0])
    compute = analysis.compute_share(device)
    shares = {**_losses(analysis, device.id), "compute": compute}
    named = sorted(shares.items(), key=lambda pair: -pair[1])
    shown = [(words, share) for words, share in named if share >= MIN_NAMED][:MAX_NAMED]
    if all(words == "compute" for words, _ in shown) and (idle := 1 - compute) >= MIN_NAMED:
        shown = sorted([*shown, ("time in which nothing computes", idle)], key=lambda pair: -pair[1])
    (words, share), *others = shown or named[:1]
    texts = [f"{share_words(share)} is {words}", *(f"{share_words(share)} {words}" for words, share in others)]
    return f"{f'of {device.id} ' if len(analysis.devices) > 1 else ''}{join_words(texts)}"


def _losses(analysis: Analysis, device: str) -> dict[str, float]:
    """Return the share of the time of a GPU that waits of one kind take, by their words."""
    losses: dict[str, float] = {}
    iterations = analysis.iterations
    for finding in (each for first in analysis.findings for each in first.by_device):
        if finding.claims != "compute" and finding.device == device:
            words = _entry(finding.id).get("loss", finding.id.replace("_", " "))
            share = finding.decisive_fraction
            if finding.once and isinstance(iterations, Iterations):  # its share is that of the run
                share = (finding.cost_per_iteration_ns or 0) / max(iterations.time_ns, 1)
            losses[words] = losses.get(words, 0.0) + share
    return losses


def share_words(share: float) -> str:
    """Return a share in words where it is close to a simple one: "half", "a quarter"; otherwise "41%"."""
    near = min(ROUND_SHARES, key=lambda words: abs(ROUND_SHARES[words] - share))
    if abs(ROUND_SHARES[near] - share) <= CLOSE:
        return near
    return "nearly all" if share >= NEARLY_ALL else f"{100 * share:.0f}%"


def _best_change(analysis: Analysis) -> str:
    """Return what the change with the largest gain would give."""
    if not analysis.findings:
        return "No known problem costs a thousandth of it."
    first = analysis.findings[0]
    gain, remedy = first.gain, first.remedy or first.advice
    where = f" on {first.device_words}" if first.device and len(analysis.devices) > 1 else ""
    entry = _entry(first.id)
    # A case without the change of its entry has another remedy, which the entry's effect does not describe.
    effect = "" if entry.get("change") and not first.change else entry.get("effect", "")
    words = f"{effect[:1].upper()}{effect[1:]}{where}" if effect else f"{first.title}{where}. A change"
    if gain.source == "none":
        return f"{first.title}{where}. {remedy}"
    if gain.is_little:
        return f"No known change gains much: the first would save {share_of_gain(first)}. {remedy}"
    if gain.source == "bound" or not effect:
        whole = " of the run" if first.once and isinstance(analysis.iterations, Iterations) else ""
        saved = f"{share_of_gain(first)}{whole}"
        return f"{words} would save at most {saved}: {remedy[:1].lower()}{remedy[1:]}"
    return f"{words} would take {_unit(analysis)} to {time_range(*gain.after_ns)}."


def share_of_gain(finding: Finding) -> str:
    """Return the share that a remedy saves: "23%", "2.3%"."""
    percent = 100 * finding.gain.fraction
    return "less than 0.1%" if percent < 0.05 else f"{percent:.0f}%" if percent >= 9.95 else f"{percent:.1f}%"
