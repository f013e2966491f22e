"""What a failed run leaves behind: the history of the GPU's memory, and the last collectives of each rank."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from instrument.errors import ConfigError, InstrumentError, LogFunction

MAX_MEMORY_EVENTS = 100_000  # allocations and frees; torch keeps the newest
MAX_COLLECTIVES = 2000
_BUFFER_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")  # the second one until torch 2.8


def record_collectives() -> None:
    """Make torch keep the last collectives of this process. Call it before the process group is created."""
    for name in _BUFFER_VARIABLES:
        os.environ.setdefault(name, str(MAX_COLLECTIVES))


@contextmanager
def failure_records(folder: Path | None, device: torch.device, rank: int, log: LogFunction) -> Iterator[None]:
    """Write two files per rank to `folder` if the block raises an error, and raise it again.

    `memory-rank0.pickle` is for https://pytorch.org/memory_viz, and `collectives-rank0` for torch's
    `torchfrtrace`. An error in writing them is logged and raised nowhere.

    Args:
        folder: the folder, created if it does not exist; None to write no files.
        device: the device of the run. A run on the CPU gets no file with the history of memory.
        rank: this process.
        log: receives one line for each file.

    Raises:
        ConfigError: the folder cannot be created.
    """
    if folder is None:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--failure-records {folder} cannot be created: {error.strerror}") from error
    if device.type == "cuda":
        torch.cuda.memory._record_memory_history(max_entries=MAX_MEMORY_EVENTS)
    try:
        yield
    except ConfigError:
        raise
    except (Exception, KeyboardInterrupt):
        _write_records(folder, device, rank, log)
        raise
    finally:
        if device.type == "cuda":
            torch.cuda.memory._record_memory_history(enabled=None)


def _write_records(folder: Path, device: torch.device, rank: int, log: LogFunction) -> None:
    try:
        if device.type == "cuda":
            memory = folder / f"memory-rank{rank}.pickle"
            torch.cuda.memory._dump_snapshot(str(memory))  # type: ignore[no-untyped-call]
            log(f"the history of the GPU's memory is in {memory}; open it at https://pytorch.org/memory_viz")
        if dist.is_initialized():
            collectives = folder / f"collectives-rank{rank}"
            collectives.write_bytes(_flight_recorder())
            log(f"the last collectives are in {collectives}; read them with torchfrtrace {folder} -p collectives-rank")
    except Exception as error:  # the first error is the one to report
        log(f"--failure-records: {type(error).__name__}: {error}".partition("\n")[0])


def _flight_recorder() -> bytes:
    """Return the pickled flight recorder of this process, as torch's own watchdog writes it."""
    module = torch._C._distributed_c10d
    # NCCL's collectives are in a recorder of their own, which builds of torch for the CPU lack.
    recorders = ("_dump_nccl_trace", "_dump_fr_trace")
    for name in recorders if "nccl" in dist.get_backend() else recorders[::-1]:
        if hasattr(module, name):
            dumped: bytes = getattr(module, name)()
            return dumped
    raise InstrumentError(f"torch {torch.__version__} has no flight recorder")
