"""Training on several GPUs, with `torchrun --nproc-per-node N -m instrument.train`.

world.py        rank and device of this process
wrap.py         wraps a model in DDP or FSDP2, and controls when gradients are reduced
agreement.py    decisions and means over all ranks, on the host
parts.py        checkpoint state that is independent of the number of ranks
checkpoints.py  checkpoints that rank 0 writes for all ranks
scaling.py      speed-up over one GPU, and the settings that limit it
"""
