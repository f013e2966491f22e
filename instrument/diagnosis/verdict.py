"""The diagnosis of measured stages: the largest cost, its remedy, and the capture to record next."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from instrument.config.loading import flag_names, iter_settings, load
from instrument.config.schema import Config
from instrument.config.settings import get_setting
from instrument.config.strategies import STRATEGIES
from instrument.diagnosis.costs import (
    MIN_COST_FRACTION,
    Bound,
    Cost,
    Diagnosis,
    Remedy,
    StageResult,
    StageTimes,
    compute_costs,
    measured_ms,
    pipeline_text,
    round_spread_ms,
)

FIRST_STEP, LAST_STEP = 20, 30
# Settings that do not affect the speed, or that the command sets itself.
OMITTED_SETTINGS = ("training.steps", "training.epochs", "training.warmup", "training.annotate_modules")
OMITTED_SECTIONS = ("checkpoint", "monitor", "capture")
MODULE_LEVEL_BOUNDS = ("launch", "precision", "compute")


def capture_commands(bound: Bound, config: Config, program: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the commands that record steady steps, export the report and analyze it.

    Args:
        bound: the part with the largest cost. If it lies inside the compute, modules get NVTX ranges too.
        config: the configuration of the run, with its device.
        program: the command of a user's program, which sets its own capture range; empty for the trainer.
    """
    name = f"next-{bound}"
    recorded = program or _train_command(bound, config)
    return (
        shlex.join(["nsys", "profile", *_nsys_options(config), "-o", name, *recorded]),
        f"nsys export --type sqlite --lazy=true -o {name}.sqlite {name}.nsys-rep",
        f"traceview analyze {name}.sqlite",
    )


def non_default_flags(config: Config) -> list[str]:
    """Return the flags of all settings that differ from the defaults, without the omitted settings and sections."""
    default, names = load(None, {"device": config.training.device}), flag_names()
    default = replace(default, training=replace(default.training, device="auto"), data=default.data.with_workers())
    config = replace(config, data=config.data.with_workers())
    flags: list[str] = []
    for key, field in iter_settings():
        section, name = key.split(".")
        value = getattr(getattr(config, section), name)
        omitted = section in OMITTED_SECTIONS or key in OMITTED_SETTINGS
        if not omitted and value != getattr(getattr(default, section), name):
            flags += _flag_words(names[key], get_setting(field).off, value)
    return flags


def _flag_words(name: str, off: str | None, value: Any) -> Iterator[str]:
    if isinstance(value, bool):
        yield f"--{name}" if value else f"--{off or f'no-{name}'}"
    else:
        yield from (f"--{name}", "none" if value is None else str(value))


def _nsys_options(config: Config) -> list[str]:
    """Return the options of nsys. Without a GPU no CUDA call can open a capture range."""
    if config.training.device == "cpu":
        return ["-t", "nvtx", "-s", "none", "--cpuctxsw=none"]
    return ["-t", "cuda,nvtx", "-s", "none", "--cpuctxsw=none", "-c", "cudaProfilerApi", "--capture-range-end=stop"]


def _train_command(bound: Bound, config: Config) -> list[str]:
    depth = config.training.annotate_modules
    if bound in MODULE_LEVEL_BOUNDS and not STRATEGIES[config.training.strategy].captures_step:
        depth = depth or 2
    modules = ["--annotate-modules", str(depth)] if depth else []
    steps = ["--steps", str(LAST_STEP)]
    if config.training.device != "cpu":
        steps += ["--capture", f"{FIRST_STEP}:{LAST_STEP}"]
    return ["python", "-m", "instrument.train", *non_default_flags(config), *modules, *steps]


MAX_SPREAD_FRACTION = 0.2  # share of an iteration: limit for the difference between the slowest and the fastest round
MAX_WORKERS = 32
ON_A_CPU = (
    "A CPU shows loading, the loop and the precision of the compute. Copies, their overlap, launches and waits for the "
    "GPU need a GPU: run this command there."
)


def build_diagnosis(results: Sequence[StageResult], config: Config) -> Diagnosis:
    """Return the diagnosis of measured stages.

    Args:
        results: the selected stages, measured or not.
        config: the configuration of the run, with its device.
    """
    notes = (ON_A_CPU,) if config.training.device == "cpu" else ()
    times = StageTimes.from_results(results, config)
    if times is None:
        return replace(_missing_stages(results, config), notes=notes)
    noise = _noise_reason(times)
    if noise is not None:
        why = "run it again with twice the --iterations, or on an otherwise idle machine"
        return replace(_unknown(f"too noisy: {noise}", why, config), notes=notes)
    largest = _largest_cost(times)
    return Diagnosis(
        largest.bound,
        largest.stage,
        times.total_ms,
        largest.ms,
        100 * largest.ms / times.total_ms if times.total_ms else 0.0,
        largest.because,
        REMEDIES[largest.bound](times),
        (*notes, *_notes(times, largest, results)),
        capture_commands(largest.bound, config),
        measured_ms(times.compute),
        100 * (times.total_ms / measured_ms(times.compute) - 1) if measured_ms(times.compute) else None,
    )


def _largest_cost(times: StageTimes) -> Cost:
    costs = compute_costs(times)
    if costs[0].ms > times.min_cost_ms:
        return costs[0]
    if _precision_gains_nothing(times):
        return next(cost for cost in costs if cost.bound == "precision")
    unexplained = times.feeding_ms > times.min_cost_ms
    reason = "no stage explains the difference" if unexplained else "the difference is too small to be worth a change"
    because = f"{pipeline_text(times)}; {reason}"
    return Cost("compute", times.compute.stage, 0.0, because)


def _noise_reason(times: StageTimes) -> str | None:
    """Return why the rounds differ too much for a diagnosis; None if they do not."""
    largest, total, compute = compute_costs(times)[0], times.total_ms, measured_ms(times.compute)
    if not times.replays and compute - total > max(times.min_cost_ms, largest.ms / 2):
        return f"the pipeline takes {total:.2f} ms, less than its compute alone ({compute:.2f} ms)"
    if largest.ms > times.min_cost_ms and largest.noise_ms >= largest.ms:
        return f"the rounds differ by {largest.noise_ms:.2f} ms and the cost is {largest.ms:.2f} ms ({largest.because})"
    if largest.ms <= times.min_cost_ms and times.feeding_noise_ms > MAX_SPREAD_FRACTION * total:
        return f"the rounds differ by {times.feeding_noise_ms:.2f} ms and an iteration takes {total:.2f} ms"
    return None


def _unknown(because: str, why: str, config: Config) -> Diagnosis:
    commands = capture_commands("unknown", config)
    return Diagnosis("unknown", None, None, None, None, because, Remedy("", why), (), commands)


def _missing_stages(results: Sequence[StageResult], config: Config) -> Diagnosis:
    needed = ("training" if config.training.precision == "fp32" else "mixed", "pipeline")
    reasons = {result.stage: result.not_measured.get("ms", "") for result in results if result.ms is None}
    measured = {result.stage for result in results if result.ms is not None}
    missing = [name for name in needed if name not in measured]
    because = "; ".join(f"stage {name}: {reasons.get(name, 'not selected by --stages')}" for name in missing)
    return _unknown(because, f"a diagnosis needs the stages {' and '.join(needed)}; measure both", config)


def _precision_gains_nothing(times: StageTimes) -> bool:
    if times.training is None or times.config.training.precision == "fp32":
        return False
    return measured_ms(times.compute) >= (1 - MIN_COST_FRACTION) * measured_ms(times.training)


def _notes(times: StageTimes, largest: Cost, results: Sequence[StageResult]) -> Iterator[str]:
    if times.training is not None and largest.bound != "precision" and _precision_gains_nothing(times):
        mixed, full = measured_ms(times.compute), measured_ms(times.training)
        yield f"Mixed precision gains nothing here: {mixed:.2f} ms instead of {full:.2f} ms in fp32."
    if times.plain is not None and times.on_gpu:
        yield from _comparison_with_plain(times, measured_ms(times.plain))
    unsteady = [
        result.stage
        for result in results
        if result.ms and round_spread_ms(result) > max(MAX_SPREAD_FRACTION * result.ms, times.min_cost_ms)
    ]
    if unsteady:
        yield f"The rounds of {', '.join(unsteady)} differ; use more --iterations or an otherwise idle machine."


def _comparison_with_plain(times: StageTimes, plain: float) -> Iterator[str]:
    """Yield how much of the feeding time of the plain stage the strategy hides."""
    total, feeding = times.total_ms, plain - measured_ms(times.compute)
    if total > (1 + MIN_COST_FRACTION) * plain:
        yield f"The pipeline is slower than the plain stage, which takes {plain:.2f} ms."
    elif feeding > times.min_cost_ms and times.feeding_ms <= times.min_cost_ms:
        yield f"The pipeline hides all {feeding:.2f} ms of loading and copying behind the compute."
    elif feeding > times.min_cost_ms and total < plain:
        yield f"The pipeline hides {plain - total:.2f} of {feeding:.2f} ms of loading and copying behind the compute."


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
    loader = 0.0 if times.loader is None else measured_ms(times.loader)
    needed = math.ceil(max(now, 1) * loader / times.computing_ms) if times.computing_ms else 1
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


def _precision_remedy(times: StageTimes) -> Remedy:
    precision = times.config.training.precision
    return Remedy("--precision fp32", f"{precision} gains nothing at this size: casts cost as much as it saves")


def _compute_remedy(times: StageTimes) -> Remedy:
    training, model = times.config.training, times.config.model
    if times.on_gpu and training.precision == "fp32":
        return Remedy("--precision bf16", "tensor cores are several times faster in half precision")
    if times.on_gpu and model.attention == "math":
        return Remedy("--attention auto", "a fused attention kernel does not write the scores to memory")
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
    "precision": _precision_remedy,
    "compute": _compute_remedy,
}
