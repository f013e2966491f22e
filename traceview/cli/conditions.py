"""`--fail-if 'PATH OP VALUE'`: a check on a figure of the JSON document of `analyze`, `compare` or `fleet`.

PATH is a path of the document, such as `iterations.time_ns` or `devices[0].steady.idle_ns`, or one of SHORT_NAMES. A
list with `[]`, or without an index, stands for each of its elements: the condition holds if it holds for any of them. A
path to a list of objects or texts is their number: `findings > 0`. A figure that the document lacks is an error: no
check passes on what was not measured. Results are shown on the terminal, as Markdown and as JUnit's XML.
"""

from __future__ import annotations

import operator
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from traceview.cli.options import BYTES
from traceview.cli.outputs import print_error, write_output
from traceview.errors import RequestError
from traceview.model.analysis import CAUSES
from traceview.model.frozen import dataclass
from traceview.model.times import NANOSECONDS
from traceview.model.units import exact_duration, plain
from traceview.report.screen import markdown_code, markdown_row, markdown_text

PATH = r"[A-Za-z_]\w*(?:\.\w+|\[\d{0,9}\]){0,20}"
KEY = r"\w+(?![\w\]])"  # a key of a path, not an index
CONDITION = re.compile(
    rf"\s*({PATH})\s*(>=|<=|==|!=|>|<)\s*([+-]?[0-9]{{1,19}}(?:\.[0-9]{{1,9}})?)\s*(%|[A-Za-zµ]{{1,2}})?\s*"
)
OPERATORS: Mapping[str, Callable[[Decimal, Decimal], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
TIMES = ("ns", "causes", "idle", "host_states", "host_waits", "quantiles")  # keys of times, or of objects of times
LABELS = ("label", "id", "name", "kind", "file", "device")  # keys by which a reason names the element of a list
EXIT_CHECK_FAILED = 1
UNMEASURED = ("not_measured", "unknown_because")  # keys that say why an object lacks figures


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A check by its option, the figure that it compared as text, whether it passed, and the sentence that says why."""

    condition: str
    value: str
    passed: bool
    reason: str


class Quantity(NamedTuple):
    """The path of a figure, and the paths whose sum is its 100%.

    `needs` is a path whose figures are not all 0 where this one was measured; in an empty list it is then 0. The
    figures of the paths `added` are added to it.
    """

    path: str
    total: tuple[str, ...] = ()
    needs: str = ""
    added: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """The unit of the figure: "ns", "B", or "" for a count or a fraction."""
        keys = re.findall(KEY, self.path)
        if any(key in TIMES or key.endswith("_ns") for key in keys):
            return "ns"
        return "B" if keys[-1] == "bytes" or keys[-1].endswith("_bytes") else ""

    @property
    def is_change(self) -> bool:
        """Whether the figure is a difference of two captures."""
        return ".difference" in self.path


STEADY = ("busy", "idle", "compute", "communication", "exposed_h2d", "exposed_d2h", "exposed_communication")
STEADY_TIME = ("devices[].steady.busy_ns", "devices[].steady.idle_ns")
MEAN_TIME = ("against[].time.before_ns",)
MEAN_IDLE = tuple(f"against[].mean_parts.idle.{cause}.difference_ns" for cause in CAUSES)
SHORT_NAMES: Mapping[str, Mapping[str, Quantity]] = {
    "analyze": {
        "iteration": Quantity("iterations.time_ns"),
        **{name: Quantity(f"devices[].steady.{name}_ns", STEADY_TIME) for name in STEADY},
        "mfu": Quantity("speed_of_light[].mfu"),
        "finding": Quantity("findings[].cost_fraction", needs="devices"),
    },
    "compare": {
        "iteration": Quantity("against[].time.difference_ns", MEAN_TIME),
        "idle": Quantity(MEAN_IDLE[0], MEAN_TIME, added=MEAN_IDLE[1:]),
        **{
            name: Quantity(f"against[].mean_parts.{name}.difference_ns", MEAN_TIME)
            for name in ("compute", "exposed_h2d", "exposed_d2h", "exposed_communication")
        },
    },
    "fleet": {
        "iteration": Quantity("ranks[].time_ns"),
        **{
            name: Quantity(f"ranks[].{name}_ns", ("ranks[].wall_ns",))
            for name in ("idle", "compute", "exposed_communication")
        },
        "straggler": Quantity("ranks[].lag_ns", ("ranks[].typical_own_ns",)),
        "wait": Quantity("ranks[].bare_wait_ns", ("ranks[].wall_ns",), needs="ranks[].matched_count"),
    },
}


class Figure(NamedTuple):
    """A number of the document, the indices of the elements on its path, and their names."""

    value: int | float
    at: tuple[int, ...] = ()
    place: tuple[str, ...] = ()


class Condition(NamedTuple):
    """A condition of a command. `name` is the path as the user writes it, `unit` "%", "ns", "B" or "" for a number."""

    command: str
    text: str
    name: str
    quantity: Quantity
    operator: str
    bound: Decimal
    unit: str

    def error(self, reason: str) -> RequestError:
        """Return the error of this condition."""
        return RequestError(f"--fail-if {self.text!r}: {reason}")


def conditions_of(command: str, texts: Iterable[str]) -> tuple[Condition, ...]:
    """Parse conditions on the document of a command. Raises RequestError."""
    return tuple(_condition(command, text) for text in texts)


def _condition(command: str, text: str) -> Condition:
    text = text.strip()
    match = CONDITION.fullmatch(text)
    if match is None:
        raise RequestError(f"--fail-if {text!r} is not PATH OP VALUE, for example 'idle > 20%' or 'iteration > 12.5ms'")
    name, unit = match[1], match[4] or ""
    quantity = SHORT_NAMES[command].get(name, Quantity(name))
    if unit in NANOSECONDS:
        scale, kind = NANOSECONDS[unit], "ns"
    elif unit.lower() in BYTES:
        scale, kind = BYTES[unit.lower()], "B" if unit else ""
    else:
        scale, kind = 1, unit
    return Condition(command, text, name, quantity, match[2], Decimal(match[3]) * scale, kind)


def check_results(
    conditions: Sequence[Condition], document: Callable[[], Mapping[str, Any]]
) -> tuple[CheckResult, ...]:
    """Return the results of conditions on a document, which is made only if there are conditions.

    Raises RequestError for a condition whose figure the document lacks, with the nearest path.
    """
    values = document() if conditions else {}
    return tuple(_result(condition, values) for condition in conditions)


def _result(condition: Condition, document: Mapping[str, Any]) -> CheckResult:
    """Return the result for the figure that fails most, or that comes nearest to failing."""
    totals = _totals(condition, document)
    values = {
        figure: Decimal(str(figure.value)) * (100 if condition.unit == "%" else 1) / (totals[figure.at] or 1)
        for figure in _measured_figures(condition.quantity, document)
        if totals[figure.at] or not totals
    }
    if not values:
        raise condition.error(_why_unmeasured(condition, document))
    _check_unit(condition, [figure.value for figure in values])
    holds = OPERATORS[condition.operator]
    failed = [figure for figure, value in values.items() if holds(value, condition.bound)]
    most = (min if condition.operator[0] == "<" else max)(failed or values, key=values.__getitem__)
    text = _text(condition, most.value, values[most], totals[most.at])
    verb = "changed by" if condition.quantity.is_change else "is"
    place = f" on {', '.join(most.place)}" if most.place else ""
    more = f" and on {len(failed) - 1} more" if len(failed) > 1 else ""
    return CheckResult(f"--fail-if {condition.text}", text, not failed, f"{condition.name} {verb} {text}{place}{more}")


def _check_unit(condition: Condition, values: Sequence[int | float]) -> None:
    """Raise RequestError if the unit of a condition does not fit its figures: % needs fractions or a total."""
    unit, quantity = condition.unit, condition.quantity
    is_share = bool(quantity.total) or all(isinstance(value, float) for value in values)
    if unit not in ("", "%", quantity.unit) or (unit == "%" and not is_share):
        units = {"ns": "with ns, us, ms or s", "B": "with B, KB, MB or GB"}
        fitting = units.get(quantity.unit, "with %" if is_share else "without a unit")
        raise condition.error(f"compare {condition.name} with a number {fitting}")


def _text(condition: Condition, value: int | float, in_unit: Decimal, total: int) -> str:
    sign = "+" if condition.quantity.is_change and value > 0 else ""
    text = sign + (exact_duration(int(value)) if condition.quantity.unit == "ns" else f"{value:,}")
    if condition.unit != "%":
        return text
    return f"{sign}{in_unit:.3f}%{f' ({text} of {exact_duration(total)})' if total else ''}"


def _totals(condition: Condition, document: Mapping[str, Any]) -> Counter[tuple[int, ...]]:
    """Return what is 100% of each figure, by its indices; nothing for a fraction, or a condition without %."""
    totals: Counter[tuple[int, ...]] = Counter()
    for path in condition.quantity.total if condition.unit == "%" else ():
        for total in _figures(document, _steps(path)):
            totals[total.at] += int(total.value)
    return totals


def _measured_figures(quantity: Quantity, document: Mapping[str, Any]) -> list[Figure]:
    """Return the figures of a quantity; none where the document says that they were not measured."""
    steps = _steps(quantity.path)
    needed = _figures(document, _steps(quantity.needs)) if quantity.needs else (Figure(1),)
    if _notes(steps[0], document) or not any(figure.value for figure in needed):
        return []
    sums: dict[tuple[int, ...], Figure] = {}
    for path in (quantity.path, *quantity.added):
        for figure in _figures(document, _steps(path)):
            before = sums.get(figure.at, Figure(0))
            sums[figure.at] = figure._replace(value=before.value + figure.value)
    return list(sums.values()) or [Figure(0.0)] * bool(quantity.needs)


def _notes(key: str, document: Mapping[str, Any]) -> list[str]:
    """Return the notes that say why a list of the document is empty."""
    return [] if document.get(key) else [note["text"] for note in document["notes"] if key in note["affects"]]


def _steps(path: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+|\[\d*\]", path))


def _figures(
    node: Any, steps: Sequence[str], at: tuple[int, ...] = (), place: tuple[str, ...] = ()
) -> Iterator[Figure]:
    """Yield the figures to which the steps of a path lead."""
    node = node.tolist() if hasattr(node, "tolist") else node  # an array of a document that is not text yet
    if isinstance(node, list):
        if not steps and not (node and not isinstance(node[0], (dict, str))):
            yield Figure(len(node), at, place)
            return
        index, rest = (steps[0][1:-1], steps[1:]) if steps and steps[0][0] == "[" else ("", steps)
        for number, element in enumerate(node):
            if index in ("", str(number)):
                yield from _figures(element, rest, (*at, number), (*place, *_label(element)))
    elif isinstance(node, dict) and steps and node.get("count", 0) is not None:  # null: not measured, its list is empty
        count = 1 if steps[0] in node else 2  # keys of one word or, in a comparison, of two: "sync.count"
        yield from _figures(node.get(".".join(steps[:count])), steps[count:], at, place)
    elif not steps and _is_number(node):
        yield Figure(node, at, place)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _label(element: Any) -> tuple[str, ...]:
    """Return the name of an element of a list, if it has one."""
    keys = element.get("capture", element) if isinstance(element, dict) else {}
    return tuple(keys[key] for key in LABELS if isinstance(keys.get(key), str))[:1]


def _why_unmeasured(condition: Condition, document: Mapping[str, Any]) -> str:
    """Return the reason that the document states for a figure that it lacks, or else the nearest path with one."""
    path = condition.quantity.path
    first, *keys = re.findall(KEY, path)
    stated = [text for key in (first, *keys) for text in _notes(key, document)]
    figure = path.replace("implicit_sync", "sync")  # notes name both so
    stated += [
        note["text"] for note in document["notes"] if any(figure.startswith(f"{key}.") for key in note["affects"])
    ]
    rows = document.get(first)
    row = rows[0] if isinstance(rows, list) and rows else rows
    if isinstance(row, dict) and keys and keys[0] in row:
        stated += [row[key] for key in UNMEASURED if row.get(key)]
    if stated:
        return f"{path} was not measured: {stated[0]}"
    return f"the JSON of `{condition.command}` has no figure {path}; the nearest is {_nearest(condition, document)}"


def _nearest(condition: Condition, document: Mapping[str, Any]) -> str:
    """Return the short name or the path of a figure that is most like the path of a condition, or like its end."""
    names = {name: name for name in SHORT_NAMES[condition.command]}
    for path in sorted(_paths(document), key=lambda path: (len(path), path)):
        keys = path.split(".")
        for start in range(len(keys)):
            names.setdefault(".".join(keys[start:]), path)
    names.pop(condition.name, None)
    return names[get_close_matches(condition.name, names, 1, 0.0)[0]]


def _paths(node: Any, path: str = "") -> set[str]:
    """Return the paths of all figures."""
    if isinstance(node, dict):
        return {inner for key, value in node.items() for inner in _paths(value, f"{path}.{key}" if path else key)}
    if isinstance(node, list) and not (node and _is_number(node[0])):
        return {path}.union(*(_paths(element, f"{path}[]") for element in node))
    return {path} if _is_number(node) or isinstance(node, list) else set()


def with_checks(to_markdown: Callable[[], str], checks: Sequence[CheckResult]) -> str:
    """Return the Markdown of a result, with a table of the checks."""
    rows = [
        (markdown_code(check.condition), "passed" if check.passed else "**failed**", markdown_text(check.reason))
        for check in checks
    ]
    table = ["", *map(markdown_row, (("check", "result", "figure"), ("---",) * 3, *rows)), ""] if rows else []
    return to_markdown() + "\n".join(table)


def junit_text(checks: Sequence[CheckResult]) -> str:
    """Return the checks as JUnit's XML, a test case for each."""
    failed = sum(not check.passed for check in checks)
    suite = ElementTree.Element("testsuite", name="traceview", tests=str(len(checks)), failures=str(failed))
    for check in checks:
        case = ElementTree.SubElement(suite, "testcase", classname="traceview", name=plain(check.condition, 2000))
        if not check.passed:
            ElementTree.SubElement(case, "failure", message=plain(f"{check.condition}: {check.reason}", 2000))
    return ElementTree.tostring(suite, encoding="unicode") + "\n"


def exit_if_failed(checks: Sequence[CheckResult], junit: Path | None) -> None:
    """Write the file of --junit, print the checks that failed, and exit with EXIT_CHECK_FAILED if there are any."""
    write_output(junit, partial(junit_text, checks))
    for check in checks:
        if not check.passed:
            print_error(f"traceview: {check.condition}: {check.reason}")
    if not all(check.passed for check in checks):
        sys.exit(EXIT_CHECK_FAILED)
