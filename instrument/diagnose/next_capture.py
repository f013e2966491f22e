"""The commands that capture what to look at next: nsys around the trainer, with the flags of this configuration."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from instrument.config.loading import keys_of, long_names
from instrument.config.schema import Config, Training, load
from instrument.config.settings import spec
from instrument.diagnose.records import Bound
from instrument.strategies import strategy_class

START, STOP = 20, 30
# What belongs to one run and not to its speed, or is given anew.
LEFT_OUT = ("training.steps", "training.epochs", "training.warmup", "training.annotate_modules")
SECTIONS_LEFT_OUT = ("checkpoint", "monitor", "capture")
INSIDE_COMPUTE = ("launch", "precision", "compute")


def commands(bound: Bound, config: Config) -> tuple[str, ...]:
    """Return the commands that record steady steps, export the report and analyse it.

    Args:
        bound: what time is lost in; where that is inside the compute, the modules get ranges too.
        config: the run's, with the device that was found.
    """
    name = f"next-{bound}"
    return (
        shlex.join(["nsys", "profile", *_tracing(config), "-o", name, *_training(bound, config)]),
        f"nsys export --type sqlite --lazy=true -o {name}.sqlite {name}.nsys-rep",
        f"traceview analyze {name}.sqlite",
    )


def flags_of(config: Config) -> list[str]:
    """Return the flags that make this configuration from the defaults, without what LEFT_OUT names."""
    default, names = load(None, {"device": config.training.device}), long_names(Config)
    default = replace(default, training=replace(default.training, device=Training().device))
    found: list[str] = []
    for key, field in keys_of(Config):
        section, name = key.split(".")
        value = getattr(getattr(config, section), name)
        left_out = section in SECTIONS_LEFT_OUT or key in LEFT_OUT
        if not left_out and value != getattr(getattr(default, section), name):
            found += _flag(names[key], spec(field).off, value)
    return found


def _flag(name: str, off: str | None, value: Any) -> Iterator[str]:
    if isinstance(value, bool):
        yield f"--{name}" if value else f"--{off or f'no-{name}'}"
    else:
        yield from (f"--{name}", "none" if value is None else str(value))


def _tracing(config: Config) -> list[str]:
    """Return nsys's options; without a GPU there is no call that could open a capture range."""
    if config.training.device == "cpu":
        return ["-t", "nvtx", "-s", "none", "--cpuctxsw=none"]
    return ["-t", "cuda,nvtx", "-s", "none", "--cpuctxsw=none", "-c", "cudaProfilerApi", "--capture-range-end=stop"]


def _training(bound: Bound, config: Config) -> list[str]:
    depth = config.training.annotate_modules
    if bound in INSIDE_COMPUTE and not strategy_class(config.training.strategy).captures_step:
        depth = depth or 2
    modules = ["--annotate-modules", str(depth)] if depth else []
    steps = ["--steps", str(STOP), "--capture", f"{START}:{STOP}"]
    return ["python", "-m", "instrument.train", *flags_of(config), *modules, *steps]
