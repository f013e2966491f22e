"""Finds the ranks that hold the others up, with their cause and cost, and advises each kind of program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

import numpy as np

from traceview.fleet.rank_figures import difference_within_sets
from traceview.fleet.waits import ABSENT
from traceview.intervals import Times
from traceview.model.analysis import CAUSES
from traceview.model.fleet import Advice, CollectiveGroup, Rank, Straggler
from traceview.model.program import Program
from traceview.model.units import share

KERNELS = "kernels"
EXTRA_KERNEL_SHARE = 50  # one kernel in this many beyond the others' count is extra work
MIN_WAIT_FRACTION = 0.03  # part of the ranks' time; a shorter wait gives no advice


def _cause_getter(place: int) -> Callable[[Rank], int]:
    return lambda rank: rank.causes[place]


# The parts of a rank's own time, and its number of kernels.
PARTS: Mapping[str, Callable[[Rank], int]] = {
    "compute": lambda rank: rank.compute,
    "copies": lambda rank: rank.copies,
    **{cause: _cause_getter(place) for place, cause in enumerate(CAUSES)},
    KERNELS: lambda rank: rank.kernels,
}


def find_stragglers(ranks: Sequence[Rank], groups: Sequence[CollectiveGroup], margin: float) -> tuple[Straggler, ...]:
    """Return the ranks whose lag exceeds both their noise and `margin` times a typical own time, costliest first."""
    late = [
        index
        for index, rank in enumerate(ranks)
        if rank.lag is not None and rank.noise is not None and rank.lag > max(margin * (rank.typical or 0), rank.noise)
    ]
    differences = {name: _difference_of(ranks, figure) for name, figure in PARTS.items()} if late else {}
    stragglers = [_build_straggler(ranks, groups, index, differences) for index in late]
    return tuple(sorted(stragglers, key=lambda straggler: (-straggler.cost, -straggler.lag, straggler.rank)))


def _difference_of(ranks: Sequence[Rank], figure: Callable[[Rank], int]) -> Times:
    """Return a figure of every rank minus the median of the others of its set that have iterations."""
    values = np.array([figure(rank) if rank.iterations else ABSENT for rank in ranks], np.int64)
    difference = difference_within_sets(values, np.array([rank.set for rank in ranks], np.int64))
    rounded: Times = np.nan_to_num(difference).round().astype(np.int64)
    return rounded


def _build_straggler(
    ranks: Sequence[Rank], groups: Sequence[CollectiveGroup], index: int, differences: Mapping[str, Times]
) -> Straggler:
    rank = ranks[index]
    assert rank.lag is not None
    part = max((name for name in differences if name != KERNELS), key=lambda name: int(differences[name][index]))
    waiting = set(chain.from_iterable(group.ranks for group in groups if index in group.ranks)) - {index}
    return Straggler(
        rank=index,
        lag=rank.lag,
        share=rank.lag / rank.typical if rank.typical else 0.0,
        part=part,
        part_lag=int(differences[part][index]),
        more_kernels=int(differences[KERNELS][index]),
        cost=rank.bare_caused,
        cost_each=rank.bare_caused // max(len(waiting), 1),
        waiting=len(waiting),
    )


def build_advice(
    ranks: Sequence[Rank], stragglers: Sequence[Straggler], programs: Sequence[Program]
) -> tuple[Advice, ...]:
    """Return one advice per set and cause of stragglers, and one for waits that no straggler explains.

    `programs` are the kinds of program of the ranks.
    """
    by_cause: dict[tuple[int, str], list[Straggler]] = {}
    for straggler in stragglers:
        by_cause.setdefault((ranks[straggler.rank].set, straggler.part), []).append(straggler)
    advice = [_straggler_advice(ranks, group, programs) for group in by_cause.values()]
    unexplained = sum(rank.bare_wait for rank in ranks) - sum(straggler.cost for straggler in stragglers)
    wall = sum(rank.wall for rank in ranks if rank.matched)
    if unexplained > MIN_WAIT_FRACTION * wall:
        straggling = {straggler.rank for straggler in stragglers}
        advice.append(_unexplained_wait_advice(ranks, straggling, programs, unexplained))
    return tuple(sorted(advice, key=lambda item: -item.cost))


def _straggler_advice(ranks: Sequence[Rank], stragglers: Sequence[Straggler], programs: Sequence[Program]) -> Advice:
    first = stragglers[0]
    part = first.part
    where = {"compute": "compute", "copies": "exposed copies"}.get(part, f"idle ({part})")
    kernels = ranks[first.rank].kernels
    has_extra = part == "compute" and first.more_kernels * EXTRA_KERNEL_SHARE > kernels
    extra = f" It runs {first.more_kernels:,} more kernels per iteration than the others, of {kernels:,}."
    cost = sum(straggler.cost for straggler in stragglers)
    together = [rank for rank in ranks if rank.set == ranks[first.rank].set and rank.matched]
    waiting = first.waiting if len(stragglers) == 1 else len(together)
    more = f" (and {len(stragglers) - 1} more)" if len(stragglers) > 1 else ""
    return Advice(
        title=(
            f"{ranks[first.rank].label}{more}: own time is {share(first.share)} longer than the others', mostly {where}"
        ),
        text=remedies(programs[first.rank])[EXTRA_KERNELS if has_extra else part] + (extra if has_extra else ""),
        cost=cost,
        each=cost // max(waiting, 1),
        waiting=waiting,
        wall=_median_wall(together),
        rank=first.rank,
    )


def _median_wall(ranks: Sequence[Rank]) -> int:
    return int(np.median([rank.wall for rank in ranks])) if ranks else 0


def _unexplained_wait_advice(
    ranks: Sequence[Rank], straggling: set[int], programs: Sequence[Program], wait: int
) -> Advice:
    together = [rank for rank in ranks if rank.matched]
    wall = sum(rank.wall for rank in together)
    candidates = [index for index in range(len(ranks)) if index not in straggling] or list(range(len(ranks)))
    index = max(candidates, key=lambda candidate: (ranks[candidate].last_count, -candidate))
    rank = ranks[index]
    judged = any(rank.lag is not None for rank in ranks)
    subject = "Besides, ranks" if straggling else "Ranks"
    remedy = remedies(programs[index])[CHANGING_RANKS if judged else NO_ITERATIONS]
    return Advice(
        title=f"{subject} wait in collectives for {share(wait, wall)} of their time, but no rank is always slower",
        text=f"{rank.label} arrived last most often: {rank.last_count:,} of {rank.matched:,}. {remedy}",
        cost=wait,
        each=wait // len(together),
        waiting=len(together),
        wall=_median_wall(together),
        rank=index,
    )


EXTRA_KERNELS = "more kernels"
NO_ITERATIONS = "no iterations"
CHANGING_RANKS = "changing ranks"

# By the part that takes longer: "compute", EXTRA_KERNELS, "copies" or a cause of model.CAUSES; and for ranks that wait
# although none is always slower: NO_ITERATIONS, CHANGING_RANKS.
CUDA: Mapping[str, str] = {
    "compute": (
        "It runs as many kernels as the others, but they take longer. Check for a larger share of the work, a slower "
        "GPU (compare nvidia-smi -q -d CLOCK,POWER,PERFORMANCE), or another program on the GPU (nvidia-smi)."
    ),
    EXTRA_KERNELS: "It does work that the others do not do. Distribute this work, or do it between steps on all ranks.",
    "copies": (
        "Less of its copy time is hidden than on the others. Pin its host memory, copy ahead, and check which socket "
        "its process runs on (nvidia-smi topo -m)."
    ),
    "host": (
        "Its GPU waits for host code outside CUDA. Compare what this rank does besides (files, logging), and pin its "
        "process to the cores near its GPU."
    ),
    "launch": (
        "Its kernel launches are slower. Pin its process to the cores near its GPU (numactl), check what else runs on "
        "these cores, or use CUDA graphs."
    ),
    "sync": "It synchronizes with the host more than the others. Look for synchronizations that only this rank makes.",
    "blocking_copy": (
        "It copies from pageable memory, or reads values back, more than the others. Use pinned memory "
        "(cudaMallocHost) and cudaMemcpyAsync."
    ),
    "memory": (
        "It allocates or frees memory more than the others. Check whether its GPU memory is nearly full (cudaMalloc "
        "retries)."
    ),
    "api": "It spends more time in CUDA calls than the others. Look at its slow calls with traceview analyze.",
    "queued": "Its GPU waits longer for events of its own streams. Look at its copies and their order.",
    "profiler": "The profiler delayed it. Capture it again before you change anything.",
    "unknown": "Its capture does not show why the GPU waited. Capture its launches as well (-t cuda,nvtx).",
    NO_ITERATIONS: (
        'Put an NVTX range around each step to see what the late rank does meanwhile: nvtxRangePushA("step 7").'
    ),
    CHANGING_RANKS: "The late rank changes. Check for uneven work per step, and for other programs on the hosts.",
}
PYTORCH: Mapping[str, str] = {
    **CUDA,
    "compute": (
        "It runs as many kernels as the others, but they take longer. Check for larger batches or longer sequences "
        "(bucket by length, shard evenly), a slower GPU (compare nvidia-smi -q -d CLOCK,POWER,PERFORMANCE), or another "
        "program on the GPU (nvidia-smi)."
    ),
    EXTRA_KERNELS: (
        "It does work that the others do not do: logging, evaluation, checkpoints, or another part of the model. "
        "Distribute this work, or do it between steps on all ranks."
    ),
    "copies": (
        "Less of its copy time is hidden than on the others. Pin its host memory, prefetch, and check which socket its "
        "process runs on (nvidia-smi topo -m)."
    ),
    "host": (
        "Its GPU waits for Python or data loading. Use more DataLoader workers, put its data on a disk as fast as the "
        "others', remove logging and checkpoints from this rank, and pin its process to the cores near its GPU."
    ),
    "sync": "It synchronizes with the host more than the others. Look for .item(), print or logging on this rank.",
    "blocking_copy": (
        "It copies from pageable memory, or reads values back, more than the others. Use pin_memory=True and fewer "
        ".item() calls."
    ),
    NO_ITERATIONS: (
        "Put an NVTX range around each step to see what the late rank does meanwhile: "
        "torch.cuda.nvtx.range_push('iteration 7')."
    ),
    CHANGING_RANKS: (
        "The late rank changes. Check for uneven batches (bucket by length), garbage collection (gc.freeze, or collect "
        "at the same step on all ranks) and data loading at its limit (more workers, prefetch), or run fewer "
        "collectives (larger buckets, gradient accumulation)."
    ),
}
MPI: Mapping[str, str] = {
    **CUDA,
    "compute": (
        "It runs as many kernels as the others, but they take longer. Check for a larger part of the domain (balance "
        "the decomposition), a slower GPU (compare nvidia-smi -q -d CLOCK,POWER,PERFORMANCE), or two ranks on one GPU "
        "(CUDA_VISIBLE_DEVICES by local rank)."
    ),
    EXTRA_KERNELS: (
        "It does work that the others do not do: boundary conditions, output, reductions. Distribute this work, or "
        "balance the decomposition."
    ),
    "host": (
        "Its GPU waits for host code, which includes MPI calls. Exchange halos while the interior computes "
        "(MPI_Isend, MPI_Irecv, then MPI_Waitall), write output from all ranks (MPI-IO), and bind the rank to the "
        "cores near its GPU (mpirun --map-by ppr:1:numa --bind-to core)."
    ),
    "launch": (
        "Its kernel launches are slower. Bind the rank to the cores near its GPU (mpirun --bind-to core), and check "
        "what else runs on these cores."
    ),
    "sync": (
        "It synchronizes with the host more than the others. Synchronize the stream of the halo before MPI_Send, not "
        "the device."
    ),
    "blocking_copy": (
        "It copies through the host more than the others. Pass device pointers to a CUDA-aware MPI, or pin the buffers "
        "(cudaMallocHost) and use cudaMemcpyAsync."
    ),
    CHANGING_RANKS: (
        "The late rank changes. Check for uneven work per step, for output by one rank, and for other programs on the "
        "nodes."
    ),
}


def remedies(program: Program) -> Mapping[str, str]:
    """Return the remedies for a kind of program."""
    if program.kind == "pytorch":
        return PYTORCH
    return MPI if "mpi" in (program.kind, *program.frameworks) else CUDA
