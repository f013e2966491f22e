"""What to do about a rank that holds the others up, by what its own time went to."""

from __future__ import annotations

MORE = "more kernels"
# Other keys: "compute", "copies" and the causes of model.CAUSES.
REMEDIES = {
    "compute": (
        "Its kernels take longer, and are as many as the others': larger batches or longer sequences (bucket by "
        "length, shard evenly), a slower GPU (compare clocks, power and temperature with nvidia-smi -q -d "
        "CLOCK,POWER,PERFORMANCE), or a GPU that another program shares (nvidia-smi)."
    ),
    MORE: (
        "It does work that the others do not: logging, evaluation, checkpoints, or another part of the model. Spread "
        "it, or do it between steps on all ranks."
    ),
    "copies": (
        "Its copies are hidden less than the others': pin its host memory and prefetch, and look at which socket its "
        "process runs on (nvidia-smi topo -m)."
    ),
    "host": (
        "Its GPU waits for Python or data loading: more workers for its DataLoader, its data on a disk as fast as the "
        "others', no logging or checkpoints on this rank alone, its process pinned to the cores beside its GPU."
    ),
    "launch": (
        "Its launches are slower: pin its process to the cores beside its GPU (numactl), and see what else runs on "
        "them; CUDA graphs take the host out of it."
    ),
    "sync": (
        "It synchronizes with the host more than the others: look for .item(), print or logging on this rank alone."
    ),
    "blocking_copy": (
        "It copies from pageable memory, or reads values back, more than the others: pin_memory=True, fewer .item()."
    ),
    "memory": (
        "It allocates or frees more than the others: look for a rank near the end of its memory (cudaMalloc retries)."
    ),
    "api": ("It spends longer in CUDA calls than the others: look at its slow calls with traceview analyze."),
    "queued": (
        "Its GPU waits for events of its own streams longer than the others': look at its copies and their order."
    ),
    "profiler": ("The profiler itself held it up: capture it again before you change anything."),
    "unknown": ("Its capture does not say why the GPU waited: capture its launches as well (-t cuda,nvtx)."),
}
UNKNOWN = (
    "Put an NVTX range around each step, so that it can be said what the late rank does meanwhile: "
    "torch.cuda.nvtx.range_push('iteration 7')."
)
TURNS = (
    "They take turns. Uneven batches (bucket by length), garbage collection (gc.freeze, or all ranks at the same "
    "step), data loading at the edge (more workers, prefetch), or fewer collectives, each of which waits for the last "
    "(larger buckets, gradient accumulation)."
)
