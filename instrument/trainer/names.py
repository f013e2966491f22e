"""The names a capture of this trainer shows: what `traceview` finds iterations and phases by."""

from __future__ import annotations

DATA_LOAD = "data_load"
COPY = "h2d"
FORWARD = "forward"
BACKWARD = "backward"
OPTIMIZER = "optimizer"
REPLAY = "replay"  # of a CUDA graph that holds forward, backward and optimizer
SYNCHRONIZE = "sync"
CHECKPOINT = "checkpoint"
VALIDATE = "validate"

PHASES = (DATA_LOAD, COPY, FORWARD, BACKWARD, OPTIMIZER, REPLAY, SYNCHRONIZE, CHECKPOINT, VALIDATE)


NUMBERS = 100_000


def iteration(step: int) -> str:
    """Return the name of one training step, counted from 0: "iteration 7".

    Numbers start again after NUMBERS steps: nvtx keeps each name for the life of the process.
    """
    return f"iteration {step % NUMBERS}"
