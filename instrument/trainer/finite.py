"""Which losses were finite: they are read steps later, and until then a run's state is not known to be good."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

NEVER = 1 << 62  # a step that no run reaches


@dataclass(slots=True)
class FiniteLosses:
    """What the losses that have been read say.

    Attributes:
        good: the step after the last finite loss; the run's first step where there is none.
        first_bad: the first step whose loss or gradient was not finite; NEVER where there is none.
        bad: how many such steps there were.
    """

    good: int
    first_bad: int = NEVER
    bad: int = 0

    def take(self, losses: Iterable[tuple[int, float]]) -> None:
        """Take (step, loss) in the order of the steps."""
        for step, loss in losses:
            if math.isfinite(loss):
                self.good = step + 1
            else:
                self.first_bad = min(self.first_bad, step)
                self.bad += 1

    def summary(self, steps: int, skipped: bool) -> str | None:
        """Return one line about the steps of a run that were not finite, None where all were."""
        if not self.bad:
            return None
        what = "their updates were skipped" if skipped else "the run went on with them"
        which = f"{self.bad} of {steps} steps was not finite (first: step {self.first_bad})"
        return f"the loss or gradient of {which}; {what}"
