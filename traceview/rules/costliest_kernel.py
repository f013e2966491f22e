"""The kernel, or the family of kernels, that takes most of the time: only a faster one makes the program much faster.

Symptom: kernels run for a tenth of the time or more, and one of them, or one family, takes most of that.
Cause: what the kernels compute, and how they use the GPU. The finding states what the capture shows of it: blocks
against SMs, waves, occupancy and its limit, precision, tensor cores, and the rate against the peak.
Remedy: a library's routine in place of a hand-written kernel, or a larger grid, or a profile of this kernel with ncu.
CUDA graphs that are traced whole hide their kernels: then the finding names the graph, and how to see inside.

Claims the compute time of these kernels that no other finding claims. How fast they can be is not known, so that the
finding has no gain.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.intervals import Times
from traceview.measure.kernels.families import MATRIX, KernelKind, kernel_kind
from traceview.model.analysis import DeviceUse
from traceview.model.rows import KernelUse
from traceview.model.trace import SOURCES
from traceview.model.units import duration, operations, quantity, share
from traceview.pricing.base import HIGH_SHARE, FindingDraft, GpuWork, MeasuredCapture, Rule
from traceview.pricing.ledger import KernelClaim
from traceview.rules.shared_gpu import metric_sentence

MIN_KERNEL = 0.25  # share of the kernel time from which a kernel stands out of its family
GRAPH = SOURCES.index("graph")
# Families that libraries have routines for.
ROUTINES = frozenset(
    (
        "gemm",
        "convolution",
        "attention",
        "fft",
        "normalization",
        "softmax",
        "sort_scan",
        "reduction",
        "random",
        "layout",
    )
)
FAMILY_WORDS = {
    "gemm": "matrix products",
    "convolution": "convolutions",
    "fft": "Fourier transforms",
    "sort_scan": "sorts and scans",
    "reduction": "reductions",
    "layout": "layout changes",
    "custom": "hand-written kernels",
}
PRECISION_WORDS = {"bf16": "bfloat16", "tf32": "TF32"}
LIMIT_WORDS = {
    "shared_memory": "shared memory",
    "threads": "the size of its blocks",
    "blocks": "the number of blocks it holds",
}


class Costliest(NamedTuple):
    """The kernels of one label, or of one family where `label` is None, by launch shape, the costliest first."""

    family: str
    label: str | None
    rows: Sequence[KernelUse]

    @property
    def ns(self) -> int:
        """The sum of their lengths."""
        return sum(row.total_ns for row in self.rows)


def costliest(use: DeviceUse) -> Costliest | None:
    """Return the kernel that takes most of a device's time, or the family if no kernel stands out."""
    rows = [row for row in use.tables["kernels"].rows if row.family is not None]
    if not rows:
        return None
    families, labels = Counter[str](), Counter[tuple[str, str]]()
    for row in rows:
        families[row.family] += row.total_ns
        labels[row.family, row.label] += row.total_ns
    total = sum(row.total_ns for row in use.tables["kernels"].rows)
    family, label = min(labels, key=lambda key: (-labels[key], key))
    if labels[family, label] < MIN_KERNEL * total:
        family = min(families, key=lambda name: (-families[name], name))
        own = [row for row in rows if row.family == family]
        alone = len({row.label for row in own}) == 1
        return Costliest(family, own[0].label if alone else None, own)
    return Costliest(family, label, [row for row in rows if (row.family, row.label) == (family, label)])


def find(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """Yield findings on the graphs and on the costliest kernels of a GPU that take HIGH_SHARE of its time."""
    enough = HIGH_SHARE * device.use.window.length
    graphs = np.flatnonzero(device.column("source") == GRAPH)
    if len(graphs):
        rows = capture.trace.operations[device.activity.rows[graphs]]
        ns = dict(
            rows.group_by(pl.col("name").cast(pl.String)).agg((pl.col("end") - pl.col("start")).sum()).iter_rows()
        )
        if sum(ns.values()) >= enough:
            yield _draft_of_graphs(capture, device, graphs, ns)
    chosen = costliest(device.use)
    if chosen is not None and chosen.ns >= enough:
        yield _draft(capture, device, chosen)


def _draft_of_graphs(
    capture: MeasuredCapture, device: GpuWork, graphs: Times, ns_of: Mapping[str, int]
) -> FindingDraft:
    """Return the finding on graphs, indices into the device's activity; `ns_of` are their lengths by name."""
    length, ns = device.use.window.length, sum(ns_of.values())
    name = min(ns_of, key=lambda name: (-ns_of[name], name))
    values = {
        "what": f"{name} takes" if len(ns_of) == 1 else f"{len(ns_of):,} CUDA graphs take",
        "time_share": f"{share(min(ns, length), length)} of {_covered(capture)}",
        "launches": quantity(len(graphs), "launch", "launches"),
        "mean": duration(ns / len(graphs)),
        "limits": metric_sentence(device.use).strip(),
    }
    claim = KernelClaim(graphs, np.ones(len(graphs)))
    return FindingDraft("costliest_kernel", device, (claim,), values, "graph", key="graph")


def _draft(capture: MeasuredCapture, device: GpuWork, chosen: Costliest) -> FindingDraft:
    first, use = chosen.rows[0], device.use
    gpu = capture.trace.devices.row(device.row, named=True)
    kind = kernel_kind(first.name, first.demangled or first.name)
    count = sum(row.count for row in chosen.rows)
    words = FAMILY_WORDS.get(chosen.family, f"{chosen.family} kernels")
    limits = (
        _launch(first, gpu["sm_count"], chosen.label is None),
        _precision(first),
        _rate(use, first),
        _limiter(first),
    )
    values = {
        "what": f"{chosen.label} takes" if chosen.label else f"{words[0].upper()}{words[1:]} take",
        "time_share": f"{share(min(chosen.ns, use.window.length), use.window.length)} of {_covered(capture)}",
        "launches": quantity(count, "launch", "launches"),
        "mean": duration(chosen.ns / count),
        "limits": " ".join(text for text in limits if text) + metric_sentence(use),
        "library": kind.library or "the program",
        "blocks": quantity(_product(first.grid), "block"),
        "sms": gpu["sm_count"] or 0,
        "pattern": ncu_filter(first),
    }
    return FindingDraft("costliest_kernel", device, (_claim(device, chosen),), values, _case(first, kind, gpu))


def _claim(device: GpuWork, chosen: Costliest) -> KernelClaim:
    kernels, wanted = device.kernels, {(row.family, row.label) for row in chosen.rows}
    is_wanted = np.array([(kind.family, kind.label) in wanted for kind in kernels.kinds], np.bool_)
    rows = kernels.places[is_wanted[kernels.shape]]
    return KernelClaim(rows, np.ones(len(rows)))


def _covered(capture: MeasuredCapture) -> str:
    """Return the time that a share is of. Gains of a whole run are of the run, which is longer."""
    return "the time from first to last GPU work" if capture.analysis.covers_run else "the time"


def _case(row: KernelUse, kind: KernelKind, gpu: Mapping[str, object]) -> str:
    """Return the case of the next step."""
    if kind.library is not None:
        return "library" if row.family in MATRIX else "library_memory"
    if row.family in ROUTINES:
        return str(row.family)
    if row.blocks_per_sm is not None and row.blocks_per_sm < 1:
        return "few_blocks"
    return "amd" if "AMD" in str(gpu["name"]) else ""


def _launch(row: KernelUse, sms: int | None, is_family: bool) -> str:
    """Return the launch shape of kernels and how it fills the GPU, as a sentence; "" if it is unknown."""
    if row.grid is None or row.block is None:
        return ""
    subject = f"The costliest, {row.label}, has" if is_family else "A launch has"
    on_sms = f" on {sms} SMs" if sms else ""
    waves = "" if row.waves is None else f", {_waves(row.waves)}"
    text = (
        f"{subject} {quantity(_product(row.grid), 'block')} of {quantity(_product(row.block), 'thread')}{on_sms}{waves}"
    )
    if row.occupancy is None:
        return f"{text}."
    limit = LIMIT_WORDS.get(row.occupancy_limit or "", row.occupancy_limit)
    each = f" ({row.registers} a thread)" if row.occupancy_limit == "registers" else ""
    why = f", limited by {limit}{each}" if limit else ""
    return f"{text}; an SM holds {share(row.occupancy)} of its warps{why}."


def _waves(waves: float) -> str:
    return (
        "less than one wave" if waves < 0.95 else "one wave" if waves < 1.05 else f"{waves:,.{int(waves < 10)}f} waves"
    )


def _product(sizes: tuple[int, ...] | None) -> int:
    return int(np.prod(sizes or (0,), dtype=object))


def _precision(row: KernelUse) -> str:
    """Return the precision and the use of tensor cores, as a sentence; "" if its name does not show them."""
    words = PRECISION_WORDS.get(row.precision or "", (row.precision or "").upper())
    if row.family not in MATRIX or row.tensor_core is None:
        return f"It works on {words} data." if words else ""
    return f"It computes{f' in {words}' if words else ''} {'on' if row.tensor_core else 'without'} tensor cores."


def _rate(use: DeviceUse, row: KernelUse) -> str:
    """Return the rate of matrix kernels of this precision against the GPU's peak, as a sentence; "" if unknown."""
    if row.family not in MATRIX or "matrix_precisions" not in use.tables:
        return ""
    for known in use.tables["matrix_precisions"].rows:
        if (known.precision, known.tensor_core) == (row.precision, row.tensor_core) and known.flops_per_s:
            of_peak = "" if known.of_peak is None else f", {share(known.of_peak)} of the GPU's peak"
            return f"Such kernels reach {operations(known.flops_per_s)}/s{of_peak}."
    return ""


def _limiter(row: KernelUse) -> str:
    """Return what Nsight Compute says that limits a kernel, as a sentence; "" if it did not profile it."""
    if row.limiter is None:
        return ""
    shares = f"compute {share(row.compute_fraction or 0.0)} and memory {share(row.memory_fraction or 0.0)} of its peak"
    return f"Nsight Compute: {row.limiter} limits it ({shares})."


def ncu_filter(row: KernelUse) -> str:
    """Return the options of ncu that choose a kernel by its name.

    A shell and ncu read no sign of the name: signs other than letters, digits and _ become ".".
    """
    words = [re.sub(r"[^A-Za-z0-9_]", ".", word) for word in re.split("[<>]", row.label) if word]
    pattern = ".*".join(words) or "."
    base = "" if row.label == row.name else "--kernel-name-base demangled "
    return f"{base}-k 'regex:{pattern}'" if "*" in pattern else f"{base}-k regex:{pattern}"


costliest_kernel = Rule("costliest_kernel", find)
