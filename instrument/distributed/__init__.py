"""Training on several GPUs, with `torchrun --nproc-per-node N -m instrument.train`.

world.py        rank and device of this process
wrap.py         wraps a model in DDP or FSDP2, and controls when gradients are reduced
agreement.py    decisions and means over all ranks, on the host
parts.py        checkpoint state that is independent of the number of ranks
checkpoints.py  checkpoints that rank 0 writes for all ranks
calibrate.py    measures forward, backward and gradient reduction separately
report.py       speed-up over one GPU, and the settings that limit it
"""

from instrument.checkpoint.resume import Parts
from instrument.distributed.agreement import StopVote, any_rank, mean_over_ranks, min_over_ranks
from instrument.distributed.calibrate import calibrate, gather_scaling
from instrument.distributed.checkpoints import SharedCheckpoints, load, open_checkpoints, shared_checkpoints
from instrument.distributed.parts import checkpoint_parts
from instrument.distributed.report import (
    Calibration,
    RankFigures,
    Scaling,
    SlowdownCause,
    report_lines,
    slowdown_causes,
)
from instrument.distributed.world import World, process_group, select_device
from instrument.distributed.wrap import gradient_reduction, unwrap, wrap

__all__ = [
    "Calibration",
    "Parts",
    "RankFigures",
    "Scaling",
    "SharedCheckpoints",
    "SlowdownCause",
    "StopVote",
    "World",
    "any_rank",
    "calibrate",
    "checkpoint_parts",
    "gather_scaling",
    "gradient_reduction",
    "load",
    "mean_over_ranks",
    "min_over_ranks",
    "open_checkpoints",
    "process_group",
    "report_lines",
    "select_device",
    "shared_checkpoints",
    "slowdown_causes",
    "unwrap",
    "wrap",
]
