"""How iterations change during a run (docs/definitions.md "Drift"), in numbers and in words."""

from __future__ import annotations

from traceview.model.frozen import dataclass
from traceview.model.units import durations

MIN_CHANGE = 0.05  # share of the length of iterations or kernels, above which they drift
MIN_EXPLAINED = 0.5  # share of a change of the iterations that kernels explain if they alone take all the time
MIN_CLOCK, MIN_KERNELS = 0.03, 0.02  # changes of the clock and of the number of kernels that explain one


@dataclass(frozen=True, slots=True)
class Drift:
    """How counted iterations change from the first third of them to the last.

    Attributes:
        first_ns: The median iteration of the first third.
        last_ns: The median iteration of the last third.
        of_iterations: Whether their lengths differ, and not those of their kernels alone.
        kernels_ratio: How many times as long the same kernels take at the end; None if that is unknown.
        first_kernels: The kernels that an iteration launches at the beginning.
        last_kernels: The kernels that an iteration launches at the end.
        first_mhz: The GPU's clock at the beginning; None without samples.
        last_mhz: The GPU's clock at the end.
    """

    first_ns: int
    last_ns: int
    of_iterations: bool
    kernels_ratio: float | None
    first_kernels: int
    last_kernels: int
    first_mhz: int | None = None
    last_mhz: int | None = None

    @property
    def words(self) -> str:
        """From what to what the iterations change: "rise from 10.6 to 12.7 ms"."""
        first, last = durations((self.first_ns, self.last_ns))
        number, _, unit = first.partition(" ")
        first = number if unit == last.partition(" ")[2] else first
        return f"{'rise' if self.last_ns > self.first_ns else 'fall'} from {first} to {last}"

    @property
    def kernel_words(self) -> str:
        """How the kernels change, in a sentence."""
        return (
            f"Kernels with the same grid take {self.kernels_ratio:.2f} times as long at the end of the run as at first."
        )

    @property
    def reason(self) -> str:
        """What explains the change; "" if the kernels of the same grid do not, or are too few."""
        if abs(self.last_kernels - self.first_kernels) > MIN_KERNELS * self.first_kernels:
            return f"they launch {self.first_kernels:,} kernels at first and {self.last_kernels:,} at the end"
        if self.kernels_ratio is None or abs(self.kernels_ratio - 1) <= MIN_CHANGE:
            return ""
        same = f"the same kernels take {self.kernels_ratio:.2f} times as long"
        if (self.kernels_ratio > 1) != (self.last_ns > self.first_ns):
            return f"although {same}"
        if abs(self.kernels_ratio - 1) < MIN_EXPLAINED * abs(self.last_ns / self.first_ns - 1):
            return f"{same}, which explains a part"
        if self.first_mhz is None or self.last_mhz is None:
            return f"{same}, as with another clock of the GPU (heat, power) or with other values"
        if abs(self.last_mhz - self.first_mhz) > MIN_CLOCK * self.first_mhz:
            return f"{same}, and the clock of the GPU goes from {self.first_mhz:,} to {self.last_mhz:,} MHz"
        return f"{same} at the same clock of the GPU ({self.last_mhz:,} MHz), as with other values or shared memory"
