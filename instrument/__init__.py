"""NVTX annotations for PyTorch, and the parts of a trainer that overlaps copies with compute.

    annotate, phase, mark         NVTX ranges and marks (need no torch)
    annotate_collections          NVTX ranges for garbage collections
    annotate_module               NVTX ranges for every module of a model, forward and backward
    usable_device                 a device, or the CPU with a warning where there is no GPU
    Stream, Streams, Event        named CUDA streams and events, which also work without a GPU
    record_stream                 makes tensors of one stream safe to use on another
    PrefetchLoader                copies batch N+1 to the GPU while batch N computes
    SyncPolicy, AsyncMetrics      when the host waits for the GPU; reading losses without blocking
    StepMeter                     times of steps and their parts by CUDA events
    CaptureRange                  the steps that nsys records
    Interrupts                    stops a loop after its step on Ctrl-C or SIGTERM
    Checkpoints                   atomic checkpoints of a run in a folder
    MicroBatches, retry_loader    retries after out-of-memory and after a data loader's error
    train, Config, Hooks          the complete trainer, its configuration, and methods of your own that it calls
    Training, Model, Data         sections of Config: what is trained
    Distributed, Checkpoint, Monitor, Capture  sections of Config: the run around it
    diagnose                      where a training step loses time, for a model, a loader and a loss of your own
    InstrumentError, ConfigError  problems that the user can fix, in one line

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
    from instrument.config.sections import Capture, Checkpoint, Data, Distributed, Model, Monitor, Training
    from instrument.devices import usable_device
    from instrument.diagnosis.own import diagnose
    from instrument.modules import annotate_module
    from instrument.monitor.meter import StepMeter
    from instrument.prefetch import PrefetchLoader
    from instrument.streams import Event, Stream, Streams, record_stream
    from instrument.sync import AsyncMetrics, SyncPolicy
    from instrument.trainer.capture import CaptureRange
    from instrument.trainer.hooks import Hooks
    from instrument.trainer.interrupts import Interrupts
    from instrument.trainer.recover import MicroBatches, retry_loader
    from instrument.trainer.training_run import train

__all__ = [
    "AsyncMetrics", "Capture", "CaptureRange", "Checkpoint", "Checkpoints", "Config", "ConfigError", "Data",
    "Distributed", "Event", "Hooks", "InstrumentError", "Interrupts", "MicroBatches", "Model", "Monitor",
    "PrefetchLoader", "StepMeter", "Stream", "Streams", "SyncPolicy", "Training",
    "annotate", "annotate_collections", "annotate_module", "diagnose", "mark", "phase", "record_stream",
    "retry_loader", "train", "usable_device",
]  # fmt: skip

# The names of each module that needs torch: imported on first use, so that `import instrument` works without torch.
_NAMES = {
    "checkpoint.folder": "Checkpoints",
    "config.schema": "Config",
    "config.sections": "Capture Checkpoint Data Distributed Model Monitor Training",
    "devices": "usable_device",
    "diagnosis.own": "diagnose",
    "modules": "annotate_module",
    "monitor.meter": "StepMeter",
    "prefetch": "PrefetchLoader",
    "streams": "Event Stream Streams record_stream",
    "sync": "AsyncMetrics SyncPolicy",
    "trainer.capture": "CaptureRange",
    "trainer.hooks": "Hooks",
    "trainer.interrupts": "Interrupts",
    "trainer.recover": "MicroBatches retry_loader",
    "trainer.training_run": "train",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Import a public name that needs torch when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module 'instrument' has no attribute {name!r}")
    return getattr(import_module(f"instrument.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names, also those that are not imported yet."""
    return sorted(__all__)
