"""The answer in one sentence: what computes, the largest loss, and what its remedy would give."""

from __future__ import annotations

from dataclasses import replace

from traceview.model.analysis import Analysis
from traceview.model.findings import Finding
from traceview.pricing.base import LossWords
from traceview.pricing.packages import rules_of_packages
from traceview.rules import RULES
from traceview.units import time_range

MIN_IDLE = 0.05  # share of the time; without findings, less idle time needs no words


def _words(loss: str, subject: str, remedy: str) -> LossWords:
    return LossWords(loss, subject, remedy)


# By the id of a finding. A rule may define its words itself (Rule.words).
LOSSES = {rule.name: rule.words for rule in RULES if rule.words} | {
    "fp32_matrix": _words(
        "FP32 matrix products without tensor cores", "TF32 or half precision", "Use TF32 or half precision."
    ),
    "separate_attention": _words(
        "attention by separate kernels", "attention in one kernel", "Use fused attention: one kernel, not several."
    ),
    "unfused_optimizer": _words("an unfused optimizer", "a fused optimizer", "Use a fused optimizer."),
    "layout_changes": _words(
        "layout changes of images", "channels-last tensors", "Keep tensors in channels-last layout."
    ),
    "odd_dimensions": _words(
        "matrix products with odd dimensions", "padded dimensions", "Pad the dimensions to multiples of 8."
    ),
    "small_products": _words(
        "small matrix products one by one", "batched products", "Batch the products into one launch."
    ),
    "unfused_chains": _words(
        "chains of memory-bound kernels", "fused kernels", "Fuse the chains of small kernels, for example by compiling."
    ),
    "casts": _words("casts between precisions", "fewer casts", "Keep tensors in one precision."),
    "concatenations": _words("concatenations", "results that are allocated once", "Write into one allocated result."),
    "strided_copies": _words("copies of strided tensors", "fewer copies", "Avoid copies that only change strides."),
    "zeroed_gradients": _words(
        "gradients that are set to zero",
        "gradients that are dropped",
        "Drop gradients instead of setting them to zero.",
    ),
    "embedding_gradients": _words(
        "dense gradients of embeddings", "sparse or fused updates", "Use sparse gradients or fused updates."
    ),
    "small_grid": _words(
        "kernels with few blocks", "more blocks", "Give these kernels more blocks: a larger grid or batch."
    ),
    "tail_wave": _words(
        "blocks that do not divide evenly among the SMs",
        "other tile sizes",
        "Choose tile sizes that divide evenly among the SMs.",
    ),
    "host_bound": _words(
        "waiting for the host", "less host work between launches", "Move the host's work out of the loop, or beside it."
    ),
    "launch_bound": _words(
        "gaps between small kernels",
        "a CUDA graph",
        "Launch a step as one CUDA graph, or launch fewer, larger kernels.",
    ),
    "kernel_storm": _words(
        "many tiny kernels", "one operation instead of a loop", "Replace the loop by one operation."
    ),
    "data_loading": _words("waiting for data", "loading in parallel", "Load data in more workers, ahead of time."),
    "pageable_copies": _words(
        "pageable copies", "pinned host memory", "Pin the host memory, and prefetch on a stream of its own."
    ),
    "exposed_h2d": _words(
        "copies to the GPU that nothing hides",
        "prefetching",
        "Copy the next batch during this step, on its own stream.",
    ),
    "exposed_d2h": _words(
        "copies from the GPU that nothing hides",
        "copying beside compute",
        "Copy results back on a stream of their own.",
    ),
    "exposed_copies": _words(
        "copies that take longer than the compute",
        "fewer bytes",
        "Copy fewer bytes: keep data on the GPU, or smaller types.",
    ),
    "exposed_communication": _words(
        "communication that nothing hides", "communication during compute", "Communicate while the GPU computes."
    ),
    "communication_wait": _words(
        "waiting for other ranks", "equal work on all ranks", "Give all ranks equal work; the last rank delays all."
    ),
    "synchronize": _words(
        "synchronizations", "fewer synchronizations", "Synchronize less often; read values some steps later."
    ),
    "allocation": _words("allocating GPU memory", "memory that is allocated once", "Allocate once, before the loop."),
    "slow_calls": _words("slow CUDA calls", "no such calls in the loop", "Move these calls out of the loop."),
    "operation_gaps": _words(
        "the steps from one operation to the next",
        "fewer, larger kernels",
        "Launch fewer, larger kernels: fuse them, or batch the work.",
    ),
    "dependency_wait": _words(
        "launched work that waits for other streams",
        "fewer dependencies between streams",
        "Put operations that depend on each other on one stream.",
    ),
    "process_wait": _words(
        "launched work that waits for another process",
        "a GPU for each process",
        "Give each process its own GPU, or run them under MPS.",
    ),
    "late_start": _words(
        "launched work that starts late",
        "work that starts at once",
        "Look for what the capture lacks: other programs, page migrations.",
    ),
    "managed_wait": _words(
        "migrations of managed memory", "prefetched memory", "Prefetch managed memory before its use."
    ),
    **dict.fromkeys(
        ("exposed_um_h2d", "exposed_um_d2h", "exposed_um_d2d"),
        _words("migrations of managed memory", "prefetched memory", "Prefetch managed memory before its use."),
    ),
    "shared_stream": _words(
        "copies on the stream of the kernels", "a copy stream", "Copy on a stream of its own, one batch ahead."
    ),
    "idle_stream": _words("a stream without work", "a stream that overlaps", "Give the stream work that can overlap."),
    "exposed_memset": _words("memsets that nothing hides", "fewer memsets", "Avoid or merge the memsets."),
    "exposed_d2d": _words("copies on the GPU that nothing hides", "fewer copies", "Copy less within the GPU."),
    "exposed_p2p": _words("copies between GPUs that nothing hides", "copying beside compute", "Copy during compute."),
    "exposed_h2h": _words("copies on the host that nothing hides", "fewer copies", "Copy less within host memory."),
    "unknown_launch": _words(
        "idle time whose launch is not captured", "a complete capture", "Capture all processes and threads."
    ),
}


def with_answer(analysis: Analysis) -> Analysis:
    """Return the analysis with its answer, and the remedies of its findings in one line."""
    findings = tuple(
        replace(finding, remedy=finding.remedy or _loss_words(finding.id).remedy) for finding in analysis.findings
    )
    return replace(analysis, findings=findings, answer=_answer(replace(analysis, findings=findings)))


def _loss_words(finding: str) -> LossWords:
    packages = {rule.plugin.name: rule.words for rule in rules_of_packages()}
    return LOSSES.get(finding) or packages.get(finding) or LossWords(finding.replace("_", " "), "", "")


def _answer(analysis: Analysis) -> str:
    parts = [analysis.part(device) for device in analysis.devices]
    shares = sorted(part.compute_ns / part.window.length for part in parts if part.window.length)
    if not shares:
        return "The capture has no GPU work."
    low, high = _share(shares[0]), _share(shares[-1])
    between = high if low == high else f"{low.removesuffix('%')} to {high}"
    who = "GPUs compute" if len(shares) > 1 else "GPU computes"
    return f"The {who} {between} of the time. {_largest_loss(analysis)}"


def _share(fraction: float) -> str:
    """Return a share with two digits: "23%", "2.3%"."""
    if 0 < fraction < 0.0005:
        return "less than 0.1%"
    return f"{100 * fraction:.0f}%" if fraction >= 0.0995 else f"{100 * fraction:.1f}%"


def _largest_loss(analysis: Analysis) -> str:
    if not analysis.findings:
        idle = max(analysis.part(device).idle_ns / analysis.part(device).window.length for device in analysis.devices)
        if idle < MIN_IDLE:
            return "No known problem costs a thousandth of it."
        return f"It is idle for {_share(idle)}, and the capture does not show why."
    first = analysis.findings[0]
    words = _loss_words(first.id)
    where = f" on {first.device_words}" if first.device and len(analysis.devices) > 1 else ""
    most = "up to " if first.others else ""
    size, measured = _share(first.decisive_fraction), _share(first.cost_fraction)
    without = "" if size == measured else " without the profiler"
    loss = f"The largest loss is {words.loss}{where}, {most}{size}{without}."
    return f"{loss} {_effect(words, first, not without)}" if words.subject else loss


def _effect(words: LossWords, finding: Finding, states_profiler: bool) -> str:
    """Return what the remedy would give, or the remedy alone if that is unknown or little.

    `states_profiler` says that the time is one without the profiler, if it is.
    """
    time = finding.prediction
    if time is None or time.is_little:
        return finding.remedy
    times = time_range(time.before_ns, time.after_ns)
    without = " without the profiler" if time.is_unprofiled and states_profiler else ""
    subject = words.subject[0].upper() + words.subject[1:]
    return f"{subject} would take an iteration from {times}{without}."
