"""NVTX annotations for PyTorch, and the parts of a trainer that overlaps copies with compute.

    annotate, phase, mark      NVTX ranges and marks (need no torch)
    annotate_collections       NVTX ranges for garbage collections
    annotate_module            NVTX ranges for every module of a model, forward and backward
    usable_device              a device, or the CPU with a warning where there is no GPU
    Streams, hand_over         named CUDA streams and events; moving tensors between streams safely
    PrefetchLoader             copies batch N+1 to the GPU while batch N computes
    PinnedCollator, PinnedBudget  a collate_fn that makes batches in pinned memory, within a budget
    SyncPolicy, LateLosses     when the host waits for the GPU; reading losses without blocking
    StepMeter                  times of steps and their parts by CUDA events
    CaptureRange               the steps that nsys records
    Interrupts                 stops a loop after its step on Ctrl-C or SIGTERM
    Checkpoints                atomic checkpoints of a run in a folder
    MicroBatches, reopening    retries after out-of-memory and after a data loader's error
    train, Config              the complete trainer, from Python
    diagnose                   where a training step loses time, for a model, a loader and a loss of your own

`python -m instrument.run train.py` gives a script its ranges without a changed line. `python -m instrument.train` is a
complete trainer made of these parts. Ranges do nothing if the package `nvtx` is not installed. Names that need torch
are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from instrument.errors import ConfigError, InstrumentError
from instrument.ranges import annotate, annotate_collections, mark, phase

if TYPE_CHECKING:
    from instrument.checkpoint.folder import Checkpoints
    from instrument.config.schema import Config
    from instrument.devices import usable_device
    from instrument.diagnosis.own import diagnose
    from instrument.memory import PinnedBudget
    from instrument.modules import annotate_module
    from instrument.monitor.meter import StepMeter
    from instrument.pinned import PinnedCollator
    from instrument.prefetch import PrefetchLoader
    from instrument.streams import Event, Stream, Streams, hand_over
    from instrument.sync import LateLosses, SyncPolicy
    from instrument.trainer.capture import CaptureRange
    from instrument.trainer.interrupts import Interrupts
    from instrument.trainer.recover import MicroBatches, reopening
    from instrument.trainer.training_run import train

__all__ = [
    "CaptureRange",
    "Checkpoints",
    "Config",
    "ConfigError",
    "Event",
    "InstrumentError",
    "Interrupts",
    "LateLosses",
    "MicroBatches",
    "PinnedBudget",
    "PinnedCollator",
    "PrefetchLoader",
    "StepMeter",
    "Stream",
    "Streams",
    "SyncPolicy",
    "annotate",
    "annotate_collections",
    "annotate_module",
    "diagnose",
    "hand_over",
    "mark",
    "phase",
    "reopening",
    "train",
    "usable_device",
]

# Module of each name that needs torch: they are imported on first use, so that `import instrument` works without torch.
_MODULES = {
    "CaptureRange": "trainer.capture",
    "Checkpoints": "checkpoint.folder",
    "Config": "config.schema",
    "Event": "streams",
    "Interrupts": "trainer.interrupts",
    "LateLosses": "sync",
    "MicroBatches": "trainer.recover",
    "PinnedBudget": "memory",
    "PinnedCollator": "pinned",
    "PrefetchLoader": "prefetch",
    "StepMeter": "monitor.meter",
    "Stream": "streams",
    "Streams": "streams",
    "SyncPolicy": "sync",
    "annotate_module": "modules",
    "diagnose": "diagnosis.own",
    "hand_over": "streams",
    "reopening": "trainer.recover",
    "train": "trainer.training_run",
    "usable_device": "devices",
}


def __getattr__(name: str) -> object:
    """Import a public name that needs torch when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module 'instrument' has no attribute {name!r}")
    return getattr(import_module(f"instrument.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names, also those that are not imported yet."""
    return sorted(__all__)
