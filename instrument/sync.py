"""When the host waits for the GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from instrument.errors import ConfigError
from instrument.losses import Figures, LateLosses

MAX_STEPS_AHEAD = 32  # under the policy "event"; the batches and gradients of these steps take memory


@dataclass(frozen=True, slots=True)
class SyncPolicy:
    """When the host waits for the GPU: after every N steps, or only when it is too far ahead.

        late = SyncPolicy(every=10).losses("cuda")
        for step in range(steps):
            for done, loss in late.log(step, train_step()):
                print(done, loss)

    Each wait is an NVTX range named "sync". Nothing else in a step has to wait.

    Attributes:
        every: wait after each `every` steps. None: wait only when the host is 32 steps (`MAX_STEPS_AHEAD`) ahead.

    Raises:
        ConfigError: `every` is less than 1.
    """

    every: int | None

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise ConfigError(f"sync {self.every}: use 1 step or more between waits")

    @classmethod
    def from_text(cls, text: str, auto: int = 10) -> SyncPolicy:
        """Parse the setting `sync`: "auto", "every" (each step), a number of steps, or "event" (None).

        Args:
            text: the setting.
            auto: the number of steps that "auto" means.

        Raises:
            ConfigError: `text` is none of these.
        """
        if text == "auto":
            return cls(auto)
        if not text.isdecimal() and text not in ("every", "event"):
            raise ConfigError(f"sync {text!r} is unknown: use auto, every, event or a number of steps")
        return cls(None if text == "event" else 1 if text == "every" else int(text))

    def losses(self, device: torch.device | str) -> LateLosses[float]:
        """Return a queue with room for the losses that can be on their way under this policy."""
        return LateLosses(device, self._capacity, self)

    def metrics(self, device: torch.device | str) -> LateLosses[dict[str, float]]:
        """Return such a queue for several figures a step, which it returns as dictionaries."""
        return LateLosses(device, self._capacity, self)

    @property
    def _capacity(self) -> int:
        return max(MAX_STEPS_AHEAD, self.every or 0) + 1

    def after(self, step: int, losses: LateLosses[Figures]) -> list[tuple[int, Figures]]:
        """Wait if this policy requires it after `step`, counted from 0; return (step, loss) of losses that arrived."""
        if self.every is None:
            return losses.wait(leave=MAX_STEPS_AHEAD)
        return losses.wait() if (step + 1) % self.every == 0 else []
