"""Ranges and step times for loops that report their progress by events: callbacks of other libraries."""

from __future__ import annotations

from contextlib import ExitStack
from statistics import median
from time import perf_counter

from instrument.ranges import annotate, iteration_name, phase

STEP_MS = "perf/step_ms"


class StepRanges:
    """The open range `iteration N` of a loop, with at most one phase inside it.

    steps = StepRanges()
    steps.begin(0)
    steps.enter("forward")
    steps.enter("backward")  # closes forward
    steps.begin(1)  # closes backward and iteration 0
    steps.close()
    """

    def __init__(self) -> None:
        self._step: int | None = None
        self._iteration, self._phase = ExitStack(), ExitStack()
        self._began_at = 0.0
        self._durations: list[float] = []

    def begin(self, step: int) -> None:
        """Start a step, which ends the one before. Do nothing if `step` has begun already."""
        if step == self._step:
            return
        now = perf_counter()
        if self._step is not None:
            self._durations.append(now - self._began_at)
        self.close()
        self._step, self._began_at = step, now
        self._iteration.enter_context(annotate(iteration_name(step)))

    def enter(self, name: str) -> None:
        """Open a phase, and close the open one."""
        self.leave()
        self._phase.enter_context(phase(name))

    def leave(self) -> None:
        """Close the open phase, if there is one."""
        self._phase.close()

    def close(self) -> None:
        """Close all ranges."""
        self.leave()
        self._iteration.close()
        self._step = None

    def figures(self) -> dict[str, float]:
        """Return perf/step_ms, the median host time of the steps since the last call; empty if none has ended."""
        durations, self._durations = self._durations, []
        return {STEP_MS: 1000 * median(durations)} if durations else {}
