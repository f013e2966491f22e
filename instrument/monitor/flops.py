"""How many floating-point operations one sample takes, forward and backward: what MFU counts."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.utils.flop_counter import FlopCounterMode

from instrument.config.schema import Config
from instrument.data.datasets import Synthetic
from instrument.models import build


def flops_per_sample(config: Config) -> int:
    """Count a training step's operations on the "meta" device, which computes nothing.

    It is the model's own count, whatever is done twice: without checkpointing's second forward, attention by
    its formula. Random numbers are as they were.
    """
    model = replace(config.model, checkpointing=False, compile=False, attention="auto")
    with torch.random.fork_rng(devices=[]), torch.device("meta"):  # weights there are not drawn, which takes seconds
        built = build(model, config.data, "meta")
    sample = Synthetic(model, config.data, 0)[0]
    batch = {name: torch.empty((1, *value.shape), dtype=value.dtype, device="meta") for name, value in sample.items()}
    with FlopCounterMode(display=False) as counter:
        built(batch).backward()
    return int(counter.get_total_flops())
