"""`--fail-if 'exposed_h2d > 5%'`: a comparison of one figure with one bound, for continuous integration."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from traceview.errors import RequestError
from traceview.model import CAUSES, Analysis, DeviceUse, NotMeasured

FORM = re.compile(r"\s*([\w.]+)\s*(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)?)\s*(%|ns|us|ms|s)?\s*")
UNITS: Mapping[str, int] = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison; `unit` is "%" (of the device's window), a unit of time, or "" for a count or ns."""

    text: str
    quantity: str
    compare: str
    bound: float
    unit: str


def parse(text: str) -> Check:
    """Read `QUANTITY OPERATOR NUMBER[%|ns|us|ms|s]`; raises RequestError with what would be understood."""
    found = FORM.fullmatch(text)
    if not found:
        raise RequestError(f"--fail-if {text!r}: write QUANTITY > NUMBER with %, ns, us, ms or s, as in 'exposed_h2d > 5%'")
    quantity, compare, number, unit = found.groups()
    if quantity not in KNOWN:
        close = difflib.get_close_matches(quantity, KNOWN, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are: {', '.join(KNOWN)}"
        raise RequestError(f"--fail-if {text!r}: no quantity is called {quantity!r}; {hint}")
    if unit == "%" and quantity in COUNTS:
        raise RequestError(f"--fail-if {text!r}: {quantity} is a count, not a part of the run; leave the % away")
    return Check(text.strip(), quantity, compare, float(number), unit or "")


def failures(checks: tuple[Check, ...], analysis: Analysis) -> Iterator[str]:
    """Yield one line for each check and device where the comparison holds.

    Raises RequestError where a figure that a check needs was not measured.
    """
    for check in checks:
        for device, value in _values(check, analysis):
            of = device.window.length if check.unit == "%" else 0
            shown = 100 * value / of if of else value
            bound = check.bound * UNITS.get(check.unit, 1)
            if COMPARE[check.compare](shown, bound):
                yield f"{check.text}: {check.quantity} is {_shown(check, value, shown)} on {device.id}"


def _shown(check: Check, value: int, shown: float) -> str:
    if check.unit == "%":
        return f"{shown:.2f}% ({value / 1e6:.3f} ms)"
    return f"{value}" if check.quantity in COUNTS else f"{value / 1e6:.3f} ms"


def _values(check: Check, analysis: Analysis) -> Iterator[tuple[DeviceUse, int]]:
    if check.quantity in OF_ITERATIONS:
        found = analysis.iterations
        if isinstance(found, NotMeasured):
            raise RequestError(f"--fail-if {check.text!r}: {found.reason}")
        _, figure, which = check.quantity.split(".")
        yield analysis.devices[0], getattr(found.spreads[f"{figure}_ns"], which)
        return
    for device in analysis.devices:
        yield device, QUANTITIES[check.quantity](analysis, device)


def _exposed(kinds: tuple[str, ...]) -> Callable[[Analysis, DeviceUse], int]:
    return lambda _, device: sum(copies.exposed_ns for copies in device.copies if copies.kind in kinds)


def _cause(name: str) -> Callable[[Analysis, DeviceUse], int]:
    return lambda _, device: device.gaps.causes[name]


def _sync(figure: str) -> Callable[[Analysis, DeviceUse], int]:
    return lambda analysis, _: getattr(analysis.host.sync, figure)


def _findings(analysis: Analysis, device: DeviceUse) -> int:
    return sum(finding.cost_ns for finding in analysis.findings if finding.device == device.id)


COUNTS = ("sync.count", "implicit_sync.count", "kernel_count", "gaps.count", "unmatched")
QUANTITIES: Mapping[str, Callable[[Analysis, DeviceUse], int]] = {
    "idle": lambda _, device: device.idle_ns,
    **{f"idle.{name}": _cause(name) for name in CAUSES},
    "busy": lambda _, device: device.busy_ns,
    "compute": lambda _, device: device.compute_ns,
    "communication": lambda _, device: device.communication_ns,
    "exposed_h2d": _exposed(("h2d",)),
    "exposed_d2h": _exposed(("d2h",)),
    "exposed_copies": _exposed(("h2d", "d2h", "d2d", "h2h", "p2p", "um_h2d", "um_d2h", "um_d2d", "other")),
    "exposed_communication": lambda _, device: device.communication.exposed_ns,
    "sync.blocked": _sync("blocked_ns"),
    "sync.starved": _sync("starved_ns"),
    "sync.refill": _sync("refill_ns"),
    "sync.count": _sync("count"),
    "implicit_sync.blocked": lambda analysis, _: analysis.host.implicit_sync.blocked_ns,
    "implicit_sync.count": lambda analysis, _: analysis.host.implicit_sync.count,
    "findings.cost": _findings,
    "kernel_count": lambda _, device: device.kernel_count,
    "gaps.count": lambda _, device: device.gaps.count,
    "unmatched": lambda analysis, _: analysis.unmatched.kernels + analysis.unmatched.copies,
}
OF_ITERATIONS = tuple(
    f"iteration.{figure}.{which}"
    for figure in ("wall", "compute", "exposed_h2d", "exposed_d2h", "exposed_communication", "idle", "blocked")
    for which in ("median", "p5", "p95")
)
KNOWN = (*QUANTITIES, *OF_ITERATIONS)
