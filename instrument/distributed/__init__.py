"""Training on several GPUs, with `torchrun --nproc-per-node N -m instrument.train`.

world.py        rank and device of this process; decisions and means over all ranks
wrap.py         wraps a model in DDP or FSDP2, and controls when gradients are reduced
checkpoints.py  checkpoints that fit any number of ranks: rank 0 writes for all, or each writes its shards
"""
