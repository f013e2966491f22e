"""Asynchronous batches, NVTX phases and tokens per second for `transformers.Trainer`.

    from instrument.hf import AsyncTrainer              # a Trainer, ready to use
    class MyTrainer(AsyncTrainerMixin, SFTTrainer): ... # or in front of any other Trainer

    AsyncTrainer(model, args, train_dataset=data).train()
    AsyncTrainer(model, args, train_dataset=data, enable_async_dataloader=False).train()  # to compare

Reading goes on through accelerate's own loader, so that resuming, gradient accumulation, datasets without a
length, several processes and evaluation stay the library's. Two things cost overlap on a GPU:
`logging_nan_inf_filter=True`, which is transformers' default, waits for it after every micro-batch, and
`logging_steps=1` after every step. Works with transformers 4.57 and 5.
"""

from __future__ import annotations

try:
    from transformers import Trainer

    from instrument.hf.mixin import AsyncTrainerMixin
except ModuleNotFoundError as missing:
    package = str(missing.name).partition(".")[0]
    if package not in {"transformers", "accelerate"}:
        raise
    raise ModuleNotFoundError(
        f"instrument.hf needs {package}: pip install transformers accelerate", name=package
    ) from missing

__all__ = ["AsyncTrainer", "AsyncTrainerMixin"]


class AsyncTrainer(AsyncTrainerMixin, Trainer):  # type: ignore[misc, unused-ignore]
    """`transformers.Trainer` with the mixin: batches copied while the GPU computes, and named phases."""
