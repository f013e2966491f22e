"""Several GPUs on one run, under `torchrun --nproc-per-node N -m instrument.train`; alone, all of it does nothing.

world.py        which rank this process is, and on which device
wrap.py         DDP or FSDP2 around a model, and when gradients are reduced
agreement.py    what all ranks decide and average together, on the host
parts.py        the state of a run as one process would have it, and back
checkpoints.py  checkpoints that one rank writes for all
calibrate.py    how long the gradients take to reduce, and one rank's work without that
report.py       whether the GPUs together were faster, and which knob was too small
"""

from instrument.checkpoint.resume import Parts
from instrument.distributed.agreement import Stop, mean_over_ranks, smallest, stop_together
from instrument.distributed.calibrate import calibrate, share
from instrument.distributed.checkpoints import SharedCheckpoints, load, shared_checkpoints
from instrument.distributed.parts import parts_of
from instrument.distributed.report import Calibration, RankFigures, Together, Verdict, lines, verdicts
from instrument.distributed.world import World, device_of, joined
from instrument.distributed.wrap import inner, reduced, wrap

__all__ = [
    "Calibration",
    "Parts",
    "RankFigures",
    "SharedCheckpoints",
    "Stop",
    "Together",
    "Verdict",
    "World",
    "calibrate",
    "device_of",
    "inner",
    "joined",
    "lines",
    "load",
    "mean_over_ranks",
    "parts_of",
    "reduced",
    "share",
    "shared_checkpoints",
    "smallest",
    "stop_together",
    "verdicts",
    "wrap",
]
