"""Asynchronous batches, NVTX phases and tokens per second for `transformers.Trainer`.

    from instrument.hf import AsyncTrainer              # a Trainer, ready to use
    class MyTrainer(AsyncTrainerMixin, SFTTrainer): ... # or in front of any other Trainer

    AsyncTrainer(model, args, train_dataset=data).train()
    AsyncTrainer(model, args, train_dataset=data, enable_async_dataloader=False).train()  # to compare

Only what transformers and accelerate document as open to a subclass is used, so that resuming, gradient
accumulation, datasets without a length and evaluation stay the library's own. Two things cost overlap:
`logging_nan_inf_filter=True`, which is transformers' default, waits for the GPU after every micro-batch;
and `logging_steps=1` waits after every step.
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
