"""Names that make a backtracking expression take quadratic time, and captures with very many names.

A worker process has a generous time limit: the former code took minutes, and hours for the longest names.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from tests.build_export import Call, Kernel, Nvtx, build_export
from tests.fuzz.test_hostile import run
from traceview.measure.kernels.families import FAMILIES, kernel_kind, shape_kinds
from traceview.normalise.api import without_suffix
from traceview.normalise.sizes import metric_column
from traceview.normalise.stacks import qualified_name
from traceview.read.kineto.trace_file import copy_kind_and_memories

LONG = 32_000  # letters of the longest name that is read
WORDS = (
    "cutlass",
    "fprop",
    "f64f64_",
    "flash_fwd",
    "cub",
    "gtcx_",
    "winograd_nonfused",
    "at::native::",
    "_v1",
    "<",
    " [",
)


def hostile_names(seed: int, count: int) -> list[str]:
    """Return long names that repeat a word which an expression looks for, so that each place could begin a match."""
    chance = random.Random(seed)
    return [f"{chance.choice(WORDS) * LONG}"[: LONG - 9] + f"_{number}" for number in range(count)]


def test_long_repeated_names(tmp_path: Path) -> None:
    names = hostile_names(1, 60)
    spans = range(0, 10 * len(names), 10)
    path = build_export(
        tmp_path / "report.sqlite",
        kernels=[Kernel(at, at + 5, name=names[at // 10], correlation=at + 1) for at in spans],
        api=[Call(at - 3, at - 1, name=names[at // 10], correlation=at + 1) for at in spans],
        nvtx=[Nvtx(at - 5, at + 5, registered=names[at // 10]) for at in spans],
    )
    code, message = run("analyze", path, "--quiet", "--no-html")
    assert (code, message) == (0, "")


def test_many_names_are_searched_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of searches does not grow with the number of names: a million names took minutes."""
    searches: list[int] = []
    select = pl.DataFrame.select

    def counted(self: pl.DataFrame, *given: object, **named: object) -> pl.DataFrame:
        searches.append(len(self))
        return select(self, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(pl.DataFrame, "select", counted)
    counts = []
    for number in (17_000, 34_000):
        names = [f"kernel_{name}" for name in range(number)]
        kinds = shape_kinds(shapes := pl.DataFrame({"name": names, "demangled": names}))
        assert len(kinds) == number and shape_kinds(shapes) is kinds
        counts.append(len(searches))
        searches.clear()
    assert counts[0] == counts[1] < len(FAMILIES)


@pytest.mark.parametrize(
    "read",
    [without_suffix, qualified_name, metric_column, copy_kind_and_memories, lambda name: kernel_kind(name, name)],
)
def test_functions_of_a_name_are_linear(read: Callable[[str], object]) -> None:
    for word in (*WORDS, "<>", ">", "_ptsz", "Memcpy HtoD (a -> ", " -> ", "1", ": "):
        read(f"{word * LONG}"[:LONG] + "x")
        read(f"Memcpy HtoD ({word * LONG}"[:LONG] + "]")


def test_suffixes_and_templates_as_by_expressions() -> None:
    """The former expressions say what the linear functions return."""
    chance = random.Random(2)
    suffix, template = re.compile(r"(_v\d+|_ptsz|_ptds)+$"), re.compile(r"<[^<>]*>")
    for _ in range(3_000):
        call = "".join(chance.choices(("_v", "1", "22", "_ptsz", "_ptds", "a", "_", "cudaMalloc"), k=7))
        assert without_suffix(call) == suffix.sub("", call)
        symbol = bare = "".join(chance.choices("<>ab:", k=12))
        while (shorter := template.sub("", bare)) != bare:
            bare = shorter
        assert qualified_name(symbol) == (bare or symbol)
