"""The figures of an Analysis by name, as `--fail-if` knows them; one line each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from traceview.errors import RequestError
from traceview.model.analysis import CAUSES, ITERATION_FIGURES, SEVERITIES, Analysis, DeviceUse, NotMeasured
from traceview.model.trace import KINDS


@dataclass(frozen=True, slots=True)
class Value:
    """A figure in ns or a count, what 100% of it is, and the device it was measured on ("": the capture)."""

    figure: int
    whole: int
    device: str = ""


OfDevice = Callable[[DeviceUse], int]
OfCapture = Callable[[Analysis], int]
OfShare = Callable[[DeviceUse], tuple[int, int]]


def _exposed(*kinds: str) -> OfDevice:
    return lambda device: sum(one.exposed_ns for one in device.copies if one.kind in kinds)


def _hidden(kind: str) -> OfShare:
    def share(device: DeviceUse) -> tuple[int, int]:
        copies = [one for one in device.copies if one.kind == kind]
        return sum(one.overlapped_ns for one in copies), sum(one.busy_ns for one in copies)

    return share


def _cause(name: str) -> OfDevice:
    return lambda device: device.gaps.causes[name]


def _sync(figure: str) -> OfCapture:
    return lambda analysis: int(getattr(analysis.host.sync, figure))


def _implicit(figure: str) -> OfCapture:
    return lambda analysis: int(getattr(analysis.host.implicit_sync, figure))


def _severity(name: str) -> OfCapture:
    return lambda analysis: sum(finding.severity == name for finding in analysis.findings)


SYNC_FIGURES = ("blocked", "waited", "starved", "refill")

TIMES_OF_DEVICE: Mapping[str, OfDevice] = {
    "busy": lambda device: device.busy_ns,
    "idle": lambda device: device.idle_ns,
    **{f"idle.{cause}": _cause(cause) for cause in CAUSES},
    "compute": lambda device: device.compute_ns,
    "communication": lambda device: device.communication_ns,
    **{f"exposed_{kind}": _exposed(kind) for kind in KINDS},
    "exposed_copies": _exposed(*KINDS),
    "exposed_communication": lambda device: device.communication.exposed_ns,
}
COUNTS_OF_DEVICE: Mapping[str, OfDevice] = {
    "kernels": lambda device: device.kernel_count,
    "gaps": lambda device: device.gaps.count,
}
SHARES: Mapping[str, OfShare] = {
    **{f"overlap_{kind}": _hidden(kind) for kind in KINDS},
    "overlap_communication": lambda device: (
        device.communication.overlapped_ns,
        device.communication.busy_ns,
    ),
}
TIMES_OF_CAPTURE: Mapping[str, OfCapture] = {
    **{f"sync.{figure}": _sync(f"{figure}_ns") for figure in SYNC_FIGURES},
    **{f"implicit_sync.{figure}": _implicit(f"{figure}_ns") for figure in SYNC_FIGURES},
}
COUNTS_OF_CAPTURE: Mapping[str, OfCapture] = {
    "sync.count": _sync("count"),
    "implicit_sync.count": _implicit("count"),
    "findings.count": lambda analysis: len(analysis.findings),
    **{f"findings.{severity}": _severity(severity) for severity in SEVERITIES},
    "unmatched": lambda analysis: analysis.unmatched.kernels + analysis.unmatched.copies,
}
COST = "findings.cost"
OF_ITERATIONS = tuple(
    f"iteration.{figure}.{which}"
    for figure in (
        *ITERATION_FIGURES,
        *(f"idle_{cause}" for cause in CAUSES),
    )
    for which in ("median", "p5", "p95")
)
KNOWN = (
    *TIMES_OF_DEVICE,
    COST,
    *SHARES,
    *COUNTS_OF_DEVICE,
    *TIMES_OF_CAPTURE,
    *COUNTS_OF_CAPTURE,
    "iteration.count",
    *OF_ITERATIONS,
)


def is_count(quantity: str) -> bool:
    """Say whether a quantity has no unit."""
    return quantity in COUNTS_OF_DEVICE or quantity in COUNTS_OF_CAPTURE or quantity == "iteration.count"


def is_share(quantity: str) -> bool:
    """Say whether a quantity is a share of something else than the window."""
    return quantity in SHARES


def values(quantity: str, analysis: Analysis) -> Iterator[Value]:
    """Yield the figure of each device, or the one of the capture; nothing where a device has no such work.

    Raises RequestError when it was not measured.
    """
    longest = max((device.window.length for device in analysis.devices), default=0)
    if quantity.startswith("iteration."):
        yield _of_iterations(quantity, analysis)
    elif quantity in TIMES_OF_CAPTURE:
        yield Value(TIMES_OF_CAPTURE[quantity](analysis), longest)
    elif quantity in COUNTS_OF_CAPTURE:
        yield Value(COUNTS_OF_CAPTURE[quantity](analysis), 0)
    else:
        for device in analysis.devices:
            value = _of_device(quantity, analysis, device)
            if value.whole or quantity not in SHARES:
                yield value


def _of_device(quantity: str, analysis: Analysis, device: DeviceUse) -> Value:
    if quantity in SHARES:
        part, whole = SHARES[quantity](device)
        return Value(part, whole, device.id)
    if quantity == COST:
        cost = sum(finding.cost_ns for finding in analysis.findings if finding.device == device.id)
        return Value(cost, device.window.length, device.id)
    found = TIMES_OF_DEVICE.get(quantity) or COUNTS_OF_DEVICE[quantity]
    return Value(found(device), device.window.length, device.id)


def _of_iterations(quantity: str, analysis: Analysis) -> Value:
    found = analysis.iterations
    if isinstance(found, NotMeasured):
        if quantity == "iteration.count":
            return Value(0, 0)
        raise RequestError(f"{analysis.info.file}: --fail-if {quantity} cannot be answered: {found.reason}")
    if quantity == "iteration.count":
        return Value(found.count - found.skipped, 0)
    _, figure, which = quantity.split(".")
    return Value(int(getattr(found.spreads[f"{figure}_ns"], which)), found.wall_ns.median)
