"""Advice on a rank that delays the others, for each kind of program."""

from __future__ import annotations

from collections.abc import Mapping

from traceview.model.program import Program

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
