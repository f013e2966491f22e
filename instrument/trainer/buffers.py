"""The buffers of a model, such as running statistics, which a step that is not finite leaves unchanged."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn


class KeptBuffers:
    """Copies of the buffers that training changes, from before a step. Nothing waits for the GPU.

        kept.keep()
        loss = model(batch)  # changes running_mean
        kept.end_step(norm_of_gradients)

    Only buffers of the model's state are copied, and after the first step only those that have changed. A buffer that
    changes for the first time later is kept from the step after.

    Args:
        model: the model; its buffers may be replaced by others, but not added.
    """

    def __init__(self, model: nn.Module) -> None:
        self._places = [
            (module._buffers, name)
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None and name not in module._non_persistent_buffers_set
        ]
        self._first: list[tuple[Tensor, int]] | None = None
        self._before: list[tuple[list[Tensor], Tensor]] = []

    def keep(self) -> None:
        """Copy the buffers, unless it is done for this step."""
        if self._before or not self._places:
            return
        now = [buffers[name] for buffers, name in self._places]
        if self._first is None:
            self._first = [(buffer, buffer._version) for buffer in now if buffer is not None]
        else:
            pairs = zip(now, self._first, strict=True)
            now = [buffer for buffer, (first, version) in pairs if buffer is not first or buffer._version != version]
        groups: dict[torch.dtype, list[Tensor]] = defaultdict(list)
        for buffer in now:
            if buffer is not None:
                groups[buffer.dtype].append(buffer)
        self._before = [(group, _flat(group)) for group in groups.values()]

    def end_step(self, norm: Tensor | None = None) -> None:
        """Put the buffers back if `norm` is not finite, or if a number in them was finite and is not any more."""
        if not self._before:
            return
        flat = [(group, before, _flat(group)) for group, before in self._before]
        bad = [(torch.isfinite(before) & ~torch.isfinite(now)).any() for _group, before, now in flat]
        bad += [] if norm is None else [~torch.isfinite(norm)]
        any_bad = torch.stack(bad).any()
        with torch.no_grad():
            for group, before, now in flat:
                right = torch.split(torch.where(any_bad, before, now), [buffer.numel() for buffer in group])
                torch._foreach_copy_(group, [part.view_as(buffer) for part, buffer in zip(right, group, strict=True)])
        self._before = []


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
