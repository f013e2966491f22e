"""Training on several GPUs, with `torchrun --nproc-per-node N -m instrument.train`.

world.py        rank and device of this process; decisions and means over all ranks
wrap.py         wraps a model in DDP or FSDP2, and controls when gradients are reduced
parts.py        checkpoint state that is independent of the number of ranks
checkpoints.py  checkpoints that rank 0 writes for all ranks, or of which each writes its shards
scaling.py      speed-up over one GPU, and what limits it
"""
