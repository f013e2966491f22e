"""Commands for the next capture: `nsys profile` around the trainer with the settings of this run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from instrument.config.loading import flag_names, iter_settings, load
from instrument.config.schema import Config
from instrument.config.settings import get_setting
from instrument.config.strategies import STRATEGIES
from instrument.diagnosis.records import Bound

FIRST_STEP, LAST_STEP = 20, 30
# Settings that do not affect the speed, or that the command sets itself.
OMITTED_SETTINGS = ("training.steps", "training.epochs", "training.warmup", "training.annotate_modules")
OMITTED_SECTIONS = ("checkpoint", "monitor", "capture")
MODULE_LEVEL_BOUNDS = ("launch", "precision", "module", "compute")


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
    default = replace(default, training=replace(default.training, device="auto"))
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
