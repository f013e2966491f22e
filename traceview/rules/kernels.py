"""Rules on compute: kernels that a known change makes faster, that fill the GPU badly, and that take most time."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Rows, Times
from traceview.measure.kernels.families import MATRIX
from traceview.measure.shared_work import launch_rows
from traceview.model.analysis import DeviceUse
from traceview.model.findings import HIGH_SHARE
from traceview.model.names import title_name
from traceview.model.rows import KernelUse
from traceview.model.trace import names_match
from traceview.model.units import duration, operations, quantity, share
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture, once_per_capture
from traceview.pricing.ledger import KernelClaim
from traceview.pricing.speedups import FINDABLE, Estimate, Speedup
from traceview.pricing.speedups.matrices import FP32_MATRIX, TF32_MATRIX
from traceview.pricing.speedups.steps import KernelSequence, Savings
from traceview.pricing.texts import fits
from traceview.rules.captured import GRAPH, metric_sentence

ATTENTION_KERNELS = "attention kernels"
MIN_OF_KIND = 0.1  # share of the matrix kernels from which a kind of them is named
FINDINGS: Mapping[str, str] = {  # by the name of the speedup
    "sdpa": "separate_attention",
    "fused-optimizer": "unfused_optimizer",
    "channels-last": "layout_changes",
    "pad": "odd_dimensions",
    "batch": "small_products",
    "tf32": "fp32_matrix",
    "fp16": "fp32_matrix",
    "bf16": "fp32_matrix",
    "zeroed-gradients": "zeroed_gradients",
    "embedding": "embedding_gradients",
    "casts": "casts",
    "concatenate": "concatenations",
    "contiguous": "strided_copies",
    "compile": "unfused_chains",
}


def slow_kernels(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """Compute that a known change makes faster: precision, attention, optimizer, layout, shapes, fusion.

    Symptom: kernels whose names show it: FP32 matrix products without tensor cores, softmax between two products, an
    optimizer tensor by tensor, layout changes, products with odd dimensions, equal small products, kernels that only
    move, convert or set data, chains of memory-bound kernels.
    Cause: defaults of libraries, or a model written operation by operation.
    Remedy: one change each; `traceview whatif` predicts what most of them give.

    Claims the compute time of the kernels that the change is expected to save (traceview.pricing.speedups). bfloat16 is
    an alternative to TF32: it gets a finding only where TF32 is on already.
    """
    drafted = set[str]()
    for speedup in FINDABLE:
        name = FINDINGS[speedup.name]
        if name in drafted or not fits(speedup.programs, capture.program):
            continue
        estimate = speedup.estimate(device.kernels)
        if not isinstance(estimate, str) and (savings := estimate.savings(device.kernels)).expected > 0:
            drafted.add(name)
            yield _speedup_draft(device, speedup, estimate, savings)


def _speedup_draft(device: GpuWork, speedup: Speedup, estimate: Estimate, savings: Savings) -> FindingDraft:
    shorter = estimate.middle < 1
    rows = device.kernels.places[estimate.rows[shorter]]
    # Subtract the time of kernels that the change makes slower.
    claim = KernelClaim(rows, (1 - estimate.middle[shorter]) * (savings.expected / savings.gross))
    what = _matrix_words(device.kernels, estimate.rows[shorter])
    is_attention = what.lower() == ATTENTION_KERNELS
    values = {
        "detail": estimate.detail,
        "least": duration(max(savings.least, 0)),
        "most": duration(max(savings.most, 0)),
        "metrics": metric_sentence(device.use),
        "speedup": speedup.title,
        "what": what,
        "narrowest": "FP32 from TF32 products" if is_attention else "TF32",
        "half": "flash attention needs 16 bits" if is_attention else "the tensor cores are twice as fast in it",
    }
    case = speedup.name if speedup.name in ("fp16", "bf16") else ""
    return FindingDraft(FINDINGS[speedup.name], device, (claim,), values, case)


def _matrix_words(kernels: KernelSequence, rows: Rows) -> str:
    """Return which matrix kernels some rows have: products, attention, convolutions."""
    ns = np.where(kernels.where(FP32_MATRIX | TF32_MATRIX), kernels.ns, 0)[rows]
    products, attention = (ns[kernels.in_families(family)[rows]].sum() for family in ("gemm", "attention"))
    kinds = {
        "matrix products": products,
        ATTENTION_KERNELS: attention,
        "convolutions": ns.sum() - products - attention,
    }
    words = " and ".join(name for name, own in kinds.items() if own >= MIN_OF_KIND * ns.sum())
    return f"{words[:1].upper()}{words[1:]}"


MIN_NS = 10_000
MIN_IDLE = 0.25  # share of the SMs
MIN_SHARE_OF_COMPUTE = 0.03
# Families whose blocks depend on sizes or code; libraries choose the others.
IS_TILED = pl.col("family").is_in((*MATRIX, "fused", "custom"))
SHAPES = {"small_grid": "small grids", "tail_wave": "uneven grids"}  # by the finding


def small_grids(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """Kernels with fewer blocks than the GPU has SMs, and kernels whose few blocks do not divide evenly among the SMs.

    Symptom: blocks per SM below 1, or slightly more than 1 or 2.
    Cause: too little parallel work in a launch, or a tile size that does not divide it.
    Remedy: more blocks, larger inputs, other tiles, or independent kernels side by side. A library chooses the blocks
    of its kernels, so that its calls need other sizes.

    The SM with the most blocks decides how long a kernel takes, so that it can gain the share 1 - b / ceil(b), where b
    is blocks per SM (benchmarks/studies/tail_waves.py). How many blocks an SM holds at once hardly matters, because
    blocks that share an SM take longer. Claims this share of the compute time, if no earlier finding does. Kernels
    below 10 µs are limited by their launch. The blocks of a cooperative launch wait for each other, so that more of
    them make it longer.
    """
    kernels = device.kernels
    if not kernels.sms:
        return
    each = np.nan_to_num(kernels.shapes.blocks / kernels.sms, nan=1.0)  # by row of Trace.shapes
    tiled = kernels.shapes.where(IS_TILED)
    idle, splits = _idle_share(each), ~_are_cooperative(capture, device)
    for kind, chosen in (("small_grid", each < 1), ("tail_wave", tiled & (each > 1))):
        every = np.flatnonzero((chosen & (idle >= MIN_IDLE))[kernels.shape] & splits)
        rows = every[kernels.ns[every] >= MIN_NS]
        if kernels.ns[rows].sum() >= MIN_SHARE_OF_COMPUTE * max(device.use.compute_ns, 1):
            claim = KernelClaim(kernels.places[rows], idle[kernels.shape[rows]])
            values = _grid_values(kernels, kind, rows, every)
            yield FindingDraft(kind, device, (claim,), values, "library" if values["library"] else "")


def _are_cooperative(capture: MeasuredCapture, device: GpuWork) -> NDArray[np.bool_]:
    """Return which kernels of a device are launched cooperatively."""
    launch = launch_rows(capture.trace.operations)[device.activity.rows[device.kernels.places]]
    cooperative: NDArray[np.bool_] = _cooperative_calls(capture)[launch]
    return cooperative


@once_per_capture
def _cooperative_calls(capture: MeasuredCapture) -> NDArray[np.bool_]:
    """Return which rows of Trace.api launch cooperatively; the last entry stands for no call."""
    return np.append(names_match(capture.trace.api["name"], "Cooperative"), False)


def _idle_share(each: Any) -> Any:
    """Return the share of SM time that a kernel of `each` blocks per SM, a number or an array, leaves idle."""
    return 1 - each / np.maximum(np.ceil(each), 1)


def _grid_values(kernels: KernelSequence, kind: str, rows: Times, every: Times) -> dict[str, object]:
    """Return the values of the kernel that leaves most SM time idle with one number of blocks.

    `rows` are the kernels whose time counts. The figures of the one that is named are of all its launches among
    `every`, the short ones too.
    """
    grids = _grids(kernels, rows)
    loss = grids["ns"].to_numpy() * _idle_share(grids["blocks"].to_numpy() / kernels.sms)
    # Equal losses are ordered by text, so that the result does not depend on the order of kernels.
    _, label, library = max(grids.filter(loss == loss.max()).select("blocks", "label", "library").rows(), key=_text)
    of_label = _grids(kernels, every).filter(pl.col("label") == label)
    total, count = map(int, of_label.select(pl.col("ns", "launches").sum()).row(0))
    return {
        "label": title_name(label),
        "who": _launches_words(kernels, label, count),
        "others": f" and other kernels have {SHAPES[kind]}" if (grids["label"] != label).any() else "",
        "library": library,
        "blocks": _blocks_words(of_label["blocks"].to_list()),
        "sms": kernels.sms,
        "time": duration(total),
        "launches": quantity(count, "launch", "launches"),
        "kernel_share": share(total, int(kernels.ns.sum())),
    }


def _grids(kernels: KernelSequence, rows: Times) -> pl.DataFrame:
    """Return the ns and launches of some kernels by number of blocks, label and library ("" for none)."""
    shape = kernels.shape[rows]
    launches, sums = np.bincount(shape), np.bincount(shape, weights=kernels.ns[rows]).astype(np.int64)
    used = np.flatnonzero(launches)
    kinds = kernels.shapes.kinds.select("label", pl.col("library").fill_null(""))[used]
    figures = {"blocks": kernels.shapes.blocks[used].astype(np.int64), "ns": sums[used], "launches": launches[used]}
    return kinds.with_columns(**figures).group_by("blocks", "label", "library").agg(pl.col("ns", "launches").sum())


def _text(values: tuple[object, ...]) -> str:
    return " ".join(map(str, values))


def _launches_words(kernels: KernelSequence, label: str, count: int) -> str:
    """Return the kernel of `count` launches as a subject: "12 of 31 launches of it run", or "it runs" if all count."""
    labels = kernels.shapes.kinds["label"].to_numpy()[kernels.shape]
    every = int(np.count_nonzero(labels == label))
    name = title_name(label)
    return f"{name} runs" if count == every else f"{count:,} of {every:,} launches of {name} run"


def _blocks_words(blocks: Collection[int]) -> str:
    """Return how many blocks the launches of a kernel run: "1 block", "1 to 47 blocks"."""
    few, many = min(blocks), max(blocks)
    return quantity(many, "block") if few == many else f"{few:,} to {many:,} blocks"


NARROW = ("fp8", "fp4", "int8", "fp16", "bf16")  # precisions below which results are seldom good enough
MANY_WAVES = 10  # waves of blocks: with more, the sizes of a product on tensor cores leave little of the GPU idle
TINY_NS = 3_000  # twice an empty kernel, which takes 1.3 to 1.5 µs on an H200: most of it is start and end
MIN_KERNEL = 0.25  # share of the kernel time from which a kernel stands out of its family
# Families that libraries have routines for.
ROUTINES = frozenset(
    (
        *("gemm", "convolution", "attention", "fft", "normalization", "softmax"),
        *("sort_scan", "reduction", "random", "layout"),
    )
)
# Products of several experts, for which no library has a plain routine, by the names of their kernels: fused_moe_kernel
# (vLLM and SGLang, fused_moe.py), matmul_ogs (triton_kernels), GemmGrouped and GroupProblemShape (CUTLASS 2 and 3, and
# with it torch._grouped_mm), GemmType::GroupedContiguous (DeepGEMM), and triton_..._grouped_mm (torch.compile).
GROUPED = re.compile(r"(?i)fused_moe|matmul_ogs|gemm_?grouped|GroupProblemShape|GemmType::\w*Grouped|grouped_(gemm|mm)")
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
    """The kernels of one label, or of one family that has several.

    `first` is the costliest launch shape of the costliest label, and `members` are indices into GpuWork.kernels.
    """

    family: str
    label: str | None
    first: KernelUse
    members: Times


def costliest(device: GpuWork) -> Costliest | None:
    """Return the kernel that takes most of a device's time, or the family if no kernel stands out."""
    kernels = device.kernels
    size = len(kernels.shapes.blocks)
    sums = np.bincount(kernels.shape, weights=kernels.ns, minlength=size).astype(np.int64)
    used = kernels.shapes.kinds.select("family", "label").with_columns(ns=sums, shape=np.arange(size))
    used = used.filter(pl.col("ns") > 0, pl.col("family").is_not_null())
    used = used.with_columns(
        of_family=pl.col("ns").sum().over("family"), of_label=pl.col("ns").sum().over("family", "label")
    ).sort("of_label", "family", "label", descending=[True, False, False])
    if used.is_empty():
        return None
    if used["of_label"][0] >= MIN_KERNEL * sums.sum():
        chosen = used.filter(*(pl.col(name) == used[name][0] for name in ("family", "label")))
    else:
        chosen = used.filter(pl.col("of_family") == pl.col("of_family").max())
        chosen = chosen.filter(pl.col("family") == chosen["family"].min())
    family, label = chosen.row(0)[:2]
    rows = [row for row in device.use.tables["kernels"].rows if row.family == family]
    first = next((row for row in rows if row.label == label), next(iter(rows), None))
    if first is None:
        return None
    members: Times = np.flatnonzero(np.isin(kernels.shape, chosen["shape"]))
    return Costliest(family, label if chosen["label"].n_unique() == 1 else None, first, members)


def costliest_kernel(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """A kernel, or a family of kernels, takes most of the time: only a faster one makes the program much faster.

    Symptom: kernels run for a tenth of the time or more, and one of them, or one family, takes most of that.
    Cause: what the kernels compute, and how they use the GPU. The finding states what the capture shows of it: blocks
    against SMs, waves, occupancy and its limit, precision, tensor cores, and the rate against the peak.
    Remedy: a library's routine in place of a hand-written kernel, or a larger grid, or a profile of this kernel with
    ncu.
    CUDA graphs that are traced whole hide their kernels: then the finding names the graph, and how to see inside.

    Claims the compute time of these kernels that no other finding claims. Its gain is unknown, because the capture
    does not show how fast these kernels can be.
    """
    enough = HIGH_SHARE * device.use.window.length
    graphs = np.flatnonzero(device.column("source") == GRAPH)
    if len(graphs):
        rows = capture.trace.operations[device.activity.rows[graphs]]
        ns = dict(
            rows.group_by(pl.col("name").cast(pl.String)).agg((pl.col("end") - pl.col("start")).sum()).iter_rows()
        )
        if sum(ns.values()) >= enough:
            yield _draft_of_graphs(capture, device, graphs, ns)
    chosen = costliest(device)
    if chosen is not None and device.kernels.ns[chosen.members].sum() >= enough:
        yield _draft_of_kernels(capture, device, chosen)


def _draft_of_graphs(
    capture: MeasuredCapture, device: GpuWork, graphs: Times, ns_of: Mapping[str, int]
) -> FindingDraft:
    """Return the finding on graphs, indices into the device's activity; `ns_of` are their lengths by name."""
    ns = sum(ns_of.values())
    name = min(ns_of, key=lambda name: (-ns_of[name], name))
    values = {
        "what": f"{name} takes" if len(ns_of) == 1 else f"{len(ns_of):,} CUDA graphs take",
        "time_share": _time_share(capture, device, ns),
        "launches": quantity(len(graphs), "launch", "launches"),
        "mean": duration(ns / len(graphs)),
        "shape": "",
        "limits": metric_sentence(device.use).strip(),
    }
    claim = KernelClaim(graphs, np.ones(len(graphs)))
    return FindingDraft("costliest_kernel", device, (claim,), values, "graph", key="graph")


def _draft_of_kernels(capture: MeasuredCapture, device: GpuWork, chosen: Costliest) -> FindingDraft:
    first, use, count = chosen.first, device.use, len(chosen.members)
    ns = int(device.kernels.ns[chosen.members].sum())
    gpu = capture.trace.devices.row(device.row, named=True)
    same = (pl.col("label") == first.label) & (pl.col("demangled") == (first.demangled or ""))
    library = next(iter(device.kernels.shapes.kinds.filter(same)["library"]), None)
    words = FAMILY_WORDS.get(chosen.family, f"{chosen.family} kernels")
    narrow = first.precision in NARROW
    limits = (
        _launch(first, gpu["sm_count"], chosen.label is None),
        _precision(first),
        _rate(use, first),
        _limiter(first),
    )
    values = {
        "what": f"{title_name(chosen.label)} takes" if chosen.label else f"{words[0].upper()}{words[1:]} take",
        "time_share": _time_share(capture, device, ns),
        "launches": quantity(count, "launch", "launches"),
        "mean": duration(ns / count),
        "shape": _shape_words(first, chosen.label is None, np.unique(device.kernels.shape[chosen.members]).size),
        "limits": " ".join(text for text in limits if text) + metric_sentence(use),
        "library": library or "the program",
        "better": "" if first.tensor_core and (first.waves or 0) >= MANY_WAVES else "better sizes, or ",
        "or_precision": "" if narrow else "a lower precision, or ",
        "precision_too": "" if narrow else ", use the lowest precision that the results allow",
        "blocks": quantity(_product(first.grid), "block"),
        "sms": gpu["sm_count"] or 0,
        "pattern": ncu_filter(first),
    }
    claim = KernelClaim(device.kernels.places[chosen.members], np.ones(count))
    splits = not _are_cooperative(capture, device)[chosen.members].any()
    return FindingDraft("costliest_kernel", device, (claim,), values, _case(first, library, gpu, splits=splits))


def _time_share(capture: MeasuredCapture, device: GpuWork, ns: int) -> str:
    """Return the share of kernels in the time that the bar of a device shows."""
    whole = capture.analysis.run.length if capture.analysis.covers_run else device.use.window.length
    return f"{share(min(ns, whole), whole)} of the time"


def _case(row: KernelUse, library: str | None, gpu: Mapping[str, object], *, splits: bool) -> str:
    """Return the case of the next step. More blocks help a kernel that `splits` its work among those it is given."""
    if row.mean_ns < TINY_NS:
        return "tiny"
    if library is not None:
        return "library" if row.family in MATRIX else "library_memory"
    if row.family in ROUTINES and not GROUPED.search(row.demangled or row.name):
        return str(row.family)
    if splits and row.blocks_per_sm is not None and row.blocks_per_sm < 1:
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


def _shape_words(row: KernelUse, is_family: bool, shapes: int) -> str:
    """Return which kernel of a family is the costliest, or what each launch has if all have the same."""
    if is_family:
        return f"; the costliest is {title_name(row.label)}"
    if shapes > 1 or row.grid is None or row.block is None:
        return ""
    return f" with {quantity(_product(row.grid), 'block')} of {quantity(_product(row.block), 'thread')}"


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
    parts = [word for word in re.split(r"[<>]|(?<=\w) (?=\w)", row.label) if word]
    words = [re.sub(r"[^A-Za-z0-9_]", ".", word) for word in parts]
    pattern = ".*".join(words) or "."
    base = "" if all(word in row.name for word in parts) else "--kernel-name-base demangled "
    return f"{base}-k 'regex:{pattern}'" if "*" in pattern else f"{base}-k regex:{pattern}"
