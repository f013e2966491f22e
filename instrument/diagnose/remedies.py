"""What to change for each thing that time is lost in: flags of `instrument.train`, and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from instrument.diagnose.costs import Times, ms
from instrument.diagnose.records import Bound, Remedy

MOST_WORKERS = 32


def remedy(bound: Bound, times: Times) -> Remedy:
    """Return what to change first where an iteration is bound so."""
    return REMEDIES[bound](times)


def _loader(times: Times) -> Remedy:
    data = times.config.data
    anew = "" if data.path else "; each sample is made anew: --distinct-batches 3 keeps some batches and repeats them"
    if data.kept:
        return Remedy("", "the samples are in memory already: make their collation cheaper, or the batch smaller")
    if data.workers and times.on_gpu and not times.copies_ahead:
        return Remedy("--strategy prefetch", "the next batch is loaded and copied while one computes")
    if data.workers >= MOST_WORKERS:
        return Remedy("", "many processes load already: make a sample cheaper to load, or the batch smaller")
    return Remedy(f"--workers {_workers(times)}", f"processes of their own load beside the training{anew}")


def _workers(times: Times) -> int:
    """Return how many loaders would keep up with the compute, if each loads as fast as those do now."""
    now = times.config.data.workers
    alone = 0.0 if times.loader is None else ms(times.loader)
    needed = math.ceil(max(now, 1) * alone / times.computing_ms) if times.computing_ms else 1
    return min(max(needed, now + 1, 2), MOST_WORKERS)


def _copy(times: Times) -> Remedy:
    if not times.copies_ahead:
        return Remedy("--strategy prefetch", "the next batch is copied from pinned memory while one computes")
    return Remedy("", "copies take longer than the compute that could hide them: send fewer bytes (a half-precision or "
                      "integer batch, decoded on the GPU), or compute more on each batch")  # fmt: skip


def _synchronisation(times: Times) -> Remedy:
    if times.waits_each_step:
        prefetch = "--strategy prefetch " if times.strategy.pins == "none" and times.on_gpu else ""
        return Remedy(f"{prefetch}--sync 10", "the host waits after each step, and the GPU for the next launch")
    name = times.config.training.strategy
    if times.on_gpu and times.strategy.blocks_host:
        return Remedy("--strategy prefetch", f"strategy {name} makes the host wait more than it hides here")
    return Remedy("--sync event", "the host waits only when it is too far ahead")


def _launch(times: Times) -> Remedy:
    training, model = times.config.training, times.config.model
    if training.accumulation == 1 and training.precision != "fp16" and not model.compile:
        return Remedy("--strategy graph", "a CUDA graph launches the whole step at once")
    if not model.compile:
        return Remedy("--compile", "torch.compile makes fewer and longer kernels of the many short ones")
    return Remedy(f"--batch {2 * times.config.data.batch}", "the same launches then do twice the work")


def _precision(times: Times) -> Remedy:
    precision = times.config.training.precision
    return Remedy("--precision fp32", f"{precision} gains nothing at this size: its casts cost what its kernels save")


def _compute(times: Times) -> Remedy:
    training, model = times.config.training, times.config.model
    if times.on_gpu and training.precision == "fp32":
        return Remedy("--precision bf16", "the tensor cores compute several times as fast in half precision")
    if times.on_gpu and model.attention == "math":
        return Remedy("--attention auto", "a fused attention kernel neither writes nor reads the scores")
    if model.checkpointing:
        return Remedy("--no-checkpointing", "the activations are computed twice: do so only where memory is short")
    if not model.compile and not times.strategy.captures_step:
        return Remedy("--compile", "nothing but the kernels is left: torch.compile fuses what can be fused")
    return Remedy("", "nothing but the kernels is left: a faster GPU, or more of them (torchrun --nproc-per-node 2)")


REMEDIES: Mapping[Bound, Callable[[Times], Remedy]] = {
    "loader": _loader,
    "copy": _copy,
    "synchronisation": _synchronisation,
    "launch": _launch,
    "precision": _precision,
    "compute": _compute,
}
