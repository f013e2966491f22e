"""The diagnosis of measured stages: the largest cost, its remedy, and the capture to record next."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

from instrument.config.schema import Config
from instrument.config.strategies import STRATEGIES
from instrument.diagnosis.costs import (
    Bound,
    Cost,
    Diagnosis,
    Remedy,
    StageTimes,
    compute_costs,
    pipeline_text,
    round_spread_ms,
)

FIRST_STEP, LAST_STEP = 20, 30


def capture_commands(bound: Bound, config: Config, program: Sequence[str], *, own: bool = False) -> tuple[str, ...]:
    """Return the commands that record steady steps, export the report and analyze it.

    Args:
        bound: the part with the largest cost. If it lies inside the compute, modules get NVTX ranges too.
        config: the configuration of the run, with its device.
        program: the command of the run.
        own: whether it is a user's program, which sets its own capture range, and not the trainer.
    """
    training = config.training
    name, on_gpu = f"next-{bound}", training.device != "cpu"
    profile = ["nsys", "profile", "-t", "cuda,nvtx" if on_gpu else "nvtx", "-s", "none", "--cpuctxsw=none"]
    if on_gpu:  # without a GPU no CUDA call can open a capture range
        profile += ["-c", "cudaProfilerApi", "--capture-range-end=stop"]
    words = [*program]
    if not own:
        inside = bound in ("launch", "compute") and not STRATEGIES[training.strategy].captures_step
        words += ["--annotate-modules", "2"] if inside and not training.annotate_modules else []
        words += ["--steps", str(LAST_STEP)]
        words += ["--epochs", "none"] if training.epochs is not None else []
        words += ["--warmup", "0"] if training.warmup else []
        words += ["--capture", f"{FIRST_STEP}:{LAST_STEP}"] if on_gpu else []
    return (
        shlex.join([*profile, "-o", name, *words]),
        f"nsys export --type sqlite --lazy=true -o {name}.sqlite {name}.nsys-rep",
        f"traceview analyze {name}.sqlite",
    )


MAX_SPREAD_FRACTION = 0.2  # share of an iteration: limit for the difference between the slowest and the fastest round
MAX_WORKERS = 32
ON_A_CPU = (
    "A CPU shows loading and the loop. Copies, their overlap, launches and waits for the GPU need a GPU: run this "
    "command there."
)


def build_diagnosis(times: StageTimes, program: Sequence[str], *, own: bool = False) -> Diagnosis:
    """Return the diagnosis of the measured stages; `program` and `own` are those of `capture_commands`."""
    config, total = times.config, times.pipeline.ms
    notes = [] if times.on_gpu else [ON_A_CPU]
    if noise := _noise_reason(times):
        remedy = Remedy("", "run it again with twice the --iterations, or on an otherwise idle machine")
        capture = capture_commands("unknown", config, program, own=own)
        return Diagnosis("unknown", None, None, None, f"too noisy: {noise}", remedy, tuple(notes), capture)
    largest = _largest_cost(times)
    percent = 100 * largest.ms / total if total else 0.0
    notes += _notes(times)
    remedy = REMEDIES[largest.bound](times)
    capture = capture_commands(largest.bound, config, program, own=own)
    return Diagnosis(largest.bound, total, largest.ms, percent, largest.because, remedy, tuple(notes), capture)


def _largest_cost(times: StageTimes) -> Cost:
    costs = compute_costs(times)
    if costs[0].ms > times.min_cost_ms:
        return costs[0]
    unexplained = times.feeding_ms > times.min_cost_ms
    reason = "nothing measured explains the difference" if unexplained else "the difference is not worth a change"
    return Cost("compute", 0.0, f"{pipeline_text(times)}; {reason}")


def _noise_reason(times: StageTimes) -> str | None:
    """Return why the rounds differ too much for a diagnosis; None if they do not."""
    largest, total, compute = compute_costs(times)[0], times.pipeline.ms, times.compute.ms
    if not times.replays and compute - total > max(times.min_cost_ms, largest.ms / 2):
        return f"the pipeline takes {total:.2f} ms, less than its compute alone ({compute:.2f} ms)"
    if largest.ms > times.min_cost_ms and largest.noise_ms >= largest.ms:
        return f"the rounds differ by {largest.noise_ms:.2f} ms and the cost is {largest.ms:.2f} ms ({largest.because})"
    if largest.ms <= times.min_cost_ms and times.feeding_noise_ms > MAX_SPREAD_FRACTION * total:
        return f"the rounds differ by {times.feeding_noise_ms:.2f} ms and an iteration takes {total:.2f} ms"
    return None


def _notes(times: StageTimes) -> Iterator[str]:
    in_turn = times.loader_ms + (times.pipeline.copy_ms or 0.0)
    hidden = in_turn - times.feeding_ms
    if times.on_gpu and min(in_turn, hidden) > times.min_cost_ms:
        yield f"The pipeline hides {hidden:.2f} of {in_turn:.2f} ms of loading and copying behind the compute."
    limit = max(MAX_SPREAD_FRACTION * times.pipeline.ms, times.min_cost_ms)
    unsteady = [result.stage for result in (times.compute, times.pipeline) if round_spread_ms(result) > limit]
    if unsteady:
        yield f"The rounds of {', '.join(unsteady)} differ; use more --iterations or an otherwise idle machine."


def _loader_remedy(times: StageTimes) -> Remedy:
    data = times.config.data
    if data.kept:
        return Remedy("", "the samples are already in memory; make collation cheaper or use a smaller batch")
    if data.workers and times.on_gpu and not times.copies_ahead:
        return Remedy("--strategy prefetch", "it loads and copies the next batch during the compute")
    if data.workers >= MAX_WORKERS:
        return Remedy("", "many workers load already; make loading a sample cheaper or use a smaller batch")
    synthetic = "" if data.path else "; or use --distinct-batches 3 to reuse synthetic batches"
    workers = _worker_count(times)
    own = f" (a DataLoader of your own: num_workers={workers})" if ":" in times.config.model.name else ""
    return Remedy(f"--workers {workers}", f"worker processes load during the training{synthetic}{own}")


def _worker_count(times: StageTimes) -> int:
    """Return how many workers keep up with the compute if each loads as fast as now."""
    now = times.config.data.workers
    needed = math.ceil(max(now, 1) * times.loader_ms / times.computing_ms) if times.computing_ms else 1
    return min(max(needed, now + 1, 2), MAX_WORKERS)


def _copy_remedy(times: StageTimes) -> Remedy:
    if not times.copies_ahead:
        return Remedy("--strategy prefetch", "it copies the next batch from pinned memory during the compute")
    why = (
        "copies take longer than the compute that could hide them; copy fewer bytes (for example half-precision or "
        "integer batches, decoded on the GPU) or compute more per batch"
    )
    return Remedy("", why)


def _synchronisation_remedy(times: StageTimes) -> Remedy:
    if times.waits_each_step:
        prefetch = "--strategy prefetch " if times.strategy.pins == "none" and times.on_gpu else ""
        return Remedy(f"{prefetch}--sync 10", "the host waits after each step, and then the GPU waits for launches")
    if times.on_gpu and times.strategy.blocks_host:
        name = times.config.training.strategy
        return Remedy("--strategy prefetch", f"strategy {name} makes the host wait longer than it saves here")
    return Remedy("--sync event", "the host then waits only if it is too far ahead of the GPU")


def _launch_remedy(times: StageTimes) -> Remedy:
    training, model = times.config.training, times.config.model
    if training.accumulation == 1 and training.precision != "fp16" and not model.compile:
        return Remedy("--strategy graph", "a CUDA graph launches the complete step at once")
    if not model.compile:
        return Remedy("--compile", "torch.compile fuses short kernels into fewer, longer ones")
    return Remedy(f"--batch {2 * times.config.data.batch}", "each launch then does twice the work")


def _compute_remedy(times: StageTimes) -> Remedy:
    training, model = times.config.training, times.config.model
    if times.on_gpu and training.precision == "fp32":
        return Remedy("--precision bf16", "tensor cores are several times faster in half precision")
    if model.checkpointing:
        return Remedy("--checkpointing none", "activations are computed twice; use checkpointing only to save memory")
    if not model.compile and not times.strategy.captures_step:
        return Remedy("--compile", "only the kernels are left; torch.compile can fuse some of them")
    return Remedy("", "only the kernels are left; use a faster GPU or several (torchrun --nproc-per-node 2)")


REMEDIES: Mapping[Bound, Callable[[StageTimes], Remedy]] = {
    "loader": _loader_remedy,
    "copy": _copy_remedy,
    "synchronisation": _synchronisation_remedy,
    "launch": _launch_remedy,
    "compute": _compute_remedy,
}
